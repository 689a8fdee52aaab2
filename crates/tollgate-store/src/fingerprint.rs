//! Keys are told apart by a 128-bit keyed hash of them.
//!
//! The table keeps the fingerprint and not the key, so a key of a megabyte costs no more than one
//! of a byte. Two keys with one fingerprint would share a state, so how rarely that happens must be
//! known, and not only believed.
//!
//! A key is written as numbers, its blocks, so that no two keys have the same ([`Blocks`]). These are
//! the coefficients of a polynomial (of a key that is a name alone, with a zero behind them), which is
//! evaluated modulo the prime 2^127 − 1 at a secret point.
//! The polynomials of two keys of at most L blocks differ by one that has at most L zeroes, and the
//! point is one of 2^122: so they meet for at most L of 2^122 secrets, whoever chose the keys, as long
//! as they do not know the secret. Among ten million keys of up to 45 bytes, all beneath one limit,
//! two meet in one store of 10^22.
//!
//! Polynomials of regular keys have regular values, and a table wants them scattered. So each half of
//! the value is scrambled with the other at the end, by a bijection, which cannot make two of one.
//!
//! Most keys are one block beneath a name. What the name is worth to them is worked out beforehand, and their
//! block is only added to it.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use tollgate_core::{Key, Shown, Value};

use crate::charge::{Charge, Receipt};
use crate::concealer::Concealer;
use crate::siphash::SipHasher;

/// What a key is known by. The second half is scattered, whatever the keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

/// The name of a limit as the keys of one store begin with it: hashed beforehand, since every key
/// does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Named(u128);

impl fmt::Debug for Fingerprint {
    /// Says nothing: whoever knows a polynomial's value knows something of the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fingerprint").finish_non_exhaustive()
    }
}

impl fmt::Debug for Named {
    /// Says nothing, for the same reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").finish_non_exhaustive()
    }
}

impl Fingerprint {
    /// Of no key: an empty slot. A key that had it would be counted there until another is given the slot; that
    /// is as unlikely as that it has the fingerprint of a given other.
    pub(crate) const NONE: Self = Self { first: 0, second: 0 };

    /// As many bits as half of it, for those who count keys and can bear that two of very many meet.
    /// Mixed once more, since counting by lot wants every bit of it to be one.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.first ^ folded(self.second, 0x9e37_79b9_7f4a_7c15)
    }
}

impl Receipt {
    /// What the state that was charged is known by in this store: all its charges have it, and those
    /// of no other state. It tells of the store's secret, so it must not be shown to anybody.
    pub fn state(&self) -> u128 {
        u128::from(self.key.first) << 64 | u128::from(self.key.second)
    }
}

/// The secret of one store.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    seed: [u64; 2],
    concealer: Concealer,
    point: Point,
    scramble: [[u64; 2]; 3],
}

impl Secret {
    /// A new secret, from the operating system's randomness.
    pub(crate) fn random() -> Self {
        if cfg!(loom) {
            // A model is run many times over, and must meet the same table each time.
            return Self::from_seed([1, 2]);
        }
        let random = || RandomState::new().hash_one(0u8);
        Self::from_seed([random(), random()])
    }

    /// The secret that grows from `seed`.
    pub(crate) fn from_seed(seed: [u64; 2]) -> Self {
        let words = |label: &[u8]| {
            let mut hasher = SipHasher::new(seed);
            // Two parts, so that nothing that is concealed has this hash.
            hasher.absorb_part(b"secret");
            hasher.absorb_part(label);
            hasher.finish()
        };
        let [low, high] = words(b"point");
        let (concealer, point) = (Concealer::new(seed), Point::of_bits(low, high));
        let rounds: [&[u8]; 3] = [b"scramble", b"scramble again", b"scramble once more"];
        let scramble = rounds.map(words).map(|[a, b]| [a, b | 1]);
        Self { seed, concealer, point, scramble }
    }

    /// What it grew from, and is kept with a snapshot.
    pub(crate) fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// The fingerprint of the key that `charge` is taken from.
    #[inline(always)]
    pub(crate) fn fingerprint_of(&self, charge: &Charge<'_>) -> Fingerprint {
        let Some(named) = charge.named else { return self.fingerprint(&charge.key) };
        debug_assert_eq!(named, self.named(charge.key.limit), "a charge under another's name");
        self.beneath(named, charge.key.values)
    }

    /// The fingerprint of `key`.
    pub(crate) fn fingerprint(&self, key: &Key<'_>) -> Fingerprint {
        self.beneath(self.named(key.limit), key.values)
    }

    /// What the keys of a limit begin with.
    pub(crate) fn named(&self, limit: &str) -> Named {
        let mut blocks = Blocks { point: self.point, value: 0, is_raised: true };
        blocks.absorb_bytes(limit.as_bytes());
        Named(blocks.raised())
    }

    /// The fingerprint of the key with these values beneath a name.
    #[inline(always)]
    fn beneath(&self, named: Named, values: &[Value<'_>]) -> Fingerprint {
        let mut blocks = Blocks { point: self.point, value: named.0, is_raised: true };
        for value in values {
            blocks.absorb_value(value, &self.concealer);
        }
        self.scrambled(blocks.value)
    }

    /// What stands for a secret value where keys are shown, and here: so what is shown is enough to
    /// find a state again. Others see it, so it must tell nothing of the secret: that, a polynomial's
    /// value would.
    pub(crate) fn concealer(&self) -> &Concealer {
        &self.concealer
    }

    /// Each half is changed by a function of the other, in turn, which can be taken back. Whichever half it is
    /// that keys differ in, the second has been through two functions then: through one alone, neighbours stay
    /// too regular.
    #[inline(always)]
    fn scrambled(&self, value: u128) -> Fingerprint {
        let [a, b, c] = self.scramble;
        let (low, high) = halves(value);
        let low = low ^ scatter(high, a);
        let first = high ^ scatter(low, b);
        let second = low ^ scatter(first, c);
        Fingerprint { first, second }
    }
}

/// Where polynomials are evaluated: both halves of 61 bits, so that no sum below overflows.
#[derive(Clone, Copy)]
struct Point {
    low: u64,
    high: u64,
}

impl Point {
    fn of_bits(low: u64, high: u64) -> Self {
        Self { low: low >> 3, high: high >> 3 }
    }

    /// `value` times this, modulo 2^127 − 1. The result is not brought below the modulus, only below
    /// 7/8 of 2^128: who adds a block to it may come here again.
    #[inline(always)]
    fn times(self, value: u128) -> u128 {
        let (low, high) = halves(value);
        // What is worth 2^64 each: fewer than 2^126 of it.
        let middle = product(low, self.high) + product(high, self.low);
        // 2^127 is worth 1, so the upper bits of the middle go to the bottom, and 2^128 is worth 2.
        let (lower, upper) = (middle as u64 & (u64::MAX >> 1), middle >> 63);
        product(low, self.low) + product(high, self.high << 1) + upper + (u128::from(lower) << 64)
    }
}

/// A polynomial's value as far as its coefficients are known: multiplied with the point before each block is
/// added, the last one too.
///
/// A block is up to 15 bytes and, above them, a tag that says what they are: all but the last of
/// a part's, the last with so many bytes, or something that has no bytes. So blocks can be read back
/// from the first on, and none is zero.
#[derive(Clone, Copy)]
struct Blocks {
    point: Point,
    value: u128,
    /// Whether the value has been multiplied for the next block.
    is_raised: bool,
}

const BLOCK_BYTES: usize = 15;

/// Tags. That of a part's last block is one more than its bytes, 1 to 16.
const CONTINUED: u64 = 17;
const MISSING: u64 = 18;
const SOURCE: u64 = 19;
const HASH: u64 = 20;

impl Blocks {
    #[inline(always)]
    fn absorb_value(&mut self, value: &Value<'_>, concealer: &Concealer) {
        match value.bytes {
            Some(bytes) if value.is_secret() => {
                *self = after_hash(*self, bytes, value.shown, concealer);
            }
            Some(bytes) => self.absorb_bytes(bytes),
            None => self.absorb(MISSING, 0),
        }
        if value.source > 0 {
            self.absorb(SOURCE, value.source.into());
        }
    }

    #[inline(always)]
    fn absorb_bytes(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if rest.len() > BLOCK_BYTES {
            (*self, rest) = after_full_blocks(*self, bytes);
        }
        self.absorb(rest.len() as u64 + 1, short_number(rest));
    }

    /// The tag is below 2^5 and the number below 2^120, so a block is below 2^125.
    #[inline(always)]
    fn absorb(&mut self, tag: u64, number: u128) {
        let block = number | u128::from(tag) << (8 * BLOCK_BYTES);
        self.value = self.raised() + block;
        self.is_raised = false;
    }

    /// What the next block is added to.
    #[inline(always)]
    fn raised(&self) -> u128 {
        if self.is_raised { self.value } else { self.point.times(self.value) }
    }
}

/// A polynomial after all blocks of a part but the last, and what that one holds. Apart, so that short
/// keys are hashed in registers.
#[inline(never)]
fn after_full_blocks(mut blocks: Blocks, bytes: &[u8]) -> (Blocks, &[u8]) {
    let mut rest = bytes;
    while rest.len() > BLOCK_BYTES {
        let (block, after) = rest.split_at(BLOCK_BYTES);
        blocks.absorb(CONTINUED, short_number(block));
        rest = after;
    }
    (blocks, rest)
}

/// The same after a secret part's hash, whether it is made now or was made before. Apart, since
/// hashing takes its time anyway.
#[inline(never)]
fn after_hash(mut blocks: Blocks, bytes: &[u8], shown: Shown, concealer: &Concealer) -> Blocks {
    match shown {
        Shown::AsHash => blocks.absorb_bytes(&concealer.conceal(bytes).to_be_bytes()),
        Shown::IsHash | Shown::Plainly => blocks.absorb_bytes(bytes),
    }
    blocks.absorb(HASH, 0);
    blocks
}

/// Up to 15 bytes as a number below 2^120, which no others of the same length have.
#[inline(always)]
fn short_number(bytes: &[u8]) -> u128 {
    // Overlapping reads are cheaper than a loop over a length the processor cannot guess.
    if let (Some(front), Some(back)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        // The front has the back's first byte too, as long as there are fewer than 16. What else they share does
        // no harm: the tag says how many there are.
        let back = u64::from_le_bytes(*back) >> 8;
        return u128::from(u64::from_le_bytes(*front)) | u128::from(back) << 64;
    }
    if let (Some(front), Some(back)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let back = u64::from(u32::from_le_bytes(*back)) << (8 * (bytes.len() - 4));
        return u128::from(u64::from(u32::from_le_bytes(*front)) | back);
    }
    let [first, .., last] = bytes else { return bytes.first().map_or(0, |byte| (*byte).into()) };
    let middle = bytes[bytes.len() / 2];
    let (middle_bit, last_bit) = (8 * (bytes.len() / 2), 8 * (bytes.len() - 1));
    (u32::from(*first) | u32::from(middle) << middle_bit | u32::from(*last) << last_bit).into()
}

#[inline]
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[inline]
fn scatter(word: u64, [mask, factor]: [u64; 2]) -> u64 {
    folded(word ^ mask, factor)
}

#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let (low, high) = halves(product(a, b));
    low ^ high
}

#[inline]
fn halves(value: u128) -> (u64, u64) {
    (value as u64, (value >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Limit, Quota, Timestamp};

    use super::*;
    use crate::{Clock, MemoryStore};

    const PRIME: u128 = (1 << 127) - 1;

    /// `a × b` modulo the prime, by doubling and adding.
    fn product_modulo(a: u128, b: u128) -> u128 {
        let plus = |a: u128, b: u128| (a % PRIME + b % PRIME) % PRIME;
        (0..128).rev().fold(0, |sum, bit| {
            let doubled = plus(sum, sum);
            if b >> bit & 1 == 1 { plus(doubled, a) } else { doubled }
        })
    }

    #[test]
    fn blocks_are_the_coefficients_of_a_polynomial() {
        let largest = (0..BLOCK_BYTES).fold(0, |number, _| number << 8 | 0xFF);
        let mut random = SipHasher::new([3, 4]).finish();
        for turn in 0..200 {
            let point = match turn {
                0 => Point::of_bits(u64::MAX, u64::MAX),
                _ => Point::of_bits(random[0], random[1]),
            };
            let as_number = u128::from(point.low) | u128::from(point.high) << 64;
            let (mut blocks, mut plain) = (Blocks { point, value: 0, is_raised: true }, 0);
            for tag in [1, 31, 17, 31, 31] {
                let number = if turn < 2 { largest } else { product(random[0], random[1]) >> 8 };
                blocks.absorb(tag, number);
                plain = product_modulo(plain, as_number) + (number | u128::from(tag) << 120);
                assert_eq!(blocks.value % PRIME, plain % PRIME);
                random = random.map(|word| folded(word ^ tag, 0x9e37_79b9_7f4a_7c15));
            }
        }
    }

    /// What was scrambled to it.
    fn unscrambled(secret: &Secret, Fingerprint { first, second }: Fingerprint) -> u128 {
        let [a, b, c] = secret.scramble;
        let low = second ^ scatter(first, c);
        let high = first ^ scatter(low, b);
        let low = low ^ scatter(high, a);
        u128::from(low) | u128::from(high) << 64
    }

    #[test]
    fn scrambling_can_be_taken_back() {
        let secret = Secret::from_seed([5, 6]);
        for number in 0..1_000_u128 {
            let value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            assert_eq!(unscrambled(&secret, secret.scrambled(value)), value);
        }
    }

    #[test]
    fn a_key_is_the_polynomial_of_the_blocks_of_its_name_and_values() {
        let secret = Secret::from_seed([7, 8]);
        let point = u128::from(secret.point.low) | u128::from(secret.point.high) << 64;
        let block = |tag: u64, bytes: &[u8]| short_number(bytes) | u128::from(tag) << 120;
        let letters = |name: &'static str| Value::new(name.as_bytes());
        let hash = secret.concealer().conceal(b"secret").to_be_bytes();
        let (long, full, part) = ("a name of seventeen", b"a name of seven".as_slice(), b"teen");
        let (one, long_one) = (block(4, b"one"), [block(17, full), block(5, part)]);
        let lists: [(&[Value<'_>], &[u128]); 7] = [
            (&[], &[]),
            (&[letters("one")], &[one]),
            (&[letters("")], &[block(1, b"")]),
            (&[letters(long), letters("one")], &[long_one[0], long_one[1], one]),
            (
                &[Value::secret(b"secret"), letters("one")],
                &[block(17, &hash[..15]), block(2, &hash[15..]), block(20, b""), one],
            ),
            (&[Value::MISSING, letters("one")], &[block(18, b""), one]),
            (&[Value { source: 3, ..letters("one") }], &[one, u128::from(19_u64) << 120 | 3]),
        ];
        for (limit, name) in [("one", &[one][..]), (long, &long_one[..])] {
            for (values, blocks) in lists {
                // A name alone is multiplied once more, as if zero followed it.
                let after_name = if blocks.is_empty() { &[0] } else { blocks };
                let expected = [name, after_name]
                    .concat()
                    .into_iter()
                    .fold(0, |sum, block| (product_modulo(sum, point) + block) % PRIME);
                let fingerprint = secret.fingerprint(&Key { limit, values });
                assert_eq!(
                    unscrambled(&secret, fingerprint) % PRIME,
                    expected,
                    "{limit} {values:?}"
                );
            }
        }
    }

    #[test]
    fn a_key_has_one_fingerprint_whether_its_name_was_hashed_beforehand_or_not() {
        let store = MemoryStore::new(Clock::manual(Timestamp::EPOCH)).unwrap();
        let limit = store.enroll(Limit::sliding_window(Quota::per_minute(1))).unwrap();
        let lists: [&[Value<'_>]; 4] = [
            &[],
            &[Value::new(b"one block")],
            &[Value::new(b"more than one block of a key")],
            &[Value::new(b"one"), Value::secret(b"another")],
        ];
        for values in lists {
            let charge = Charge::new(Key { limit: "name", values }, &limit);
            let named = Charge { named: Some(store.named("name")), ..charge };
            assert!(store.secret.fingerprint_of(&charge) == store.secret.fingerprint_of(&named));
        }
    }

    #[test]
    fn parts_do_not_run_together() {
        let secret = Secret::from_seed([1, 2]);
        let value = |bytes: &'static [u8]| Value::new(bytes);
        let second = |bytes: &'static [u8]| Value { source: 1, ..Value::new(bytes) };
        let lists: [&[Value<'_>]; 14] = [
            &[value(b"a:b"), value(b"c")],
            &[value(b"a"), value(b"b:c")],
            &[value(b"a:b:c")],
            &[value(b""), value(b"a:bc")],
            &[value(b"a:bc"), value(b"")],
            &[value(b"a:bc")],
            &[second(b"a:bc")],
            &[],
            &[value(b"")],
            &[Value::MISSING],
            &[value(b"fifteen letters")],
            &[value(b"fifteen letters"), value(b"")],
            &[value(b"fifteen letters\0")],
            &[value(b"fifteen letters"), value(b"\0")],
        ];
        let named: [(&str, &[Value<'_>]); 8] = [
            ("a", &[value(b"l")]),
            ("l", &[value(b"a")]),
            ("la", &[]),
            ("", &[value(b"l")]),
            ("", &[value(b"l"), value(b"a")]),
            ("fifteen letters.", &[]),
            ("fifteen letters", &[value(b".")]),
            (".", &[value(b"fifteen letters")]),
        ];
        let keys = lists.map(|values| ("l", values)).into_iter().chain(named);
        let mut seen: Vec<Fingerprint> = Vec::new();
        for (limit, values) in keys {
            let fingerprint = secret.fingerprint(&Key { limit, values });
            assert!(!seen.contains(&fingerprint), "{limit} {values:?}");
            seen.push(fingerprint);
        }
    }

    #[test]
    fn a_secret_value_and_its_hash_are_one_key_and_plain_bytes_are_another() {
        let secret = Secret::from_seed([1, 2]);
        let hash = secret.concealer().conceal(b"an API key").to_be_bytes();
        let of = |value| secret.fingerprint(&Key { limit: "l", values: &[value] });
        let hashed = Value { shown: Shown::IsHash, ..Value::new(&hash) };
        assert_eq!(of(Value::secret(b"an API key")), of(hashed));
        assert_ne!(of(Value::secret(b"an API key")), of(Value::secret(b"another")));
        assert_ne!(of(hashed), of(Value::new(&hash)));
        assert_ne!(of(hashed), of(Value { source: 1, ..hashed }));
        assert_ne!(of(Value::secret(b"an API key")), of(Value::new(b"an API key")));
    }

    #[test]
    fn bytes_of_one_length_are_told_apart_by_their_number() {
        for length in 0..=BLOCK_BYTES {
            let mut seen = std::collections::HashSet::new();
            let bytes: Vec<u8> = (1..).take(length).collect();
            for place in 0..length {
                for byte in 0..=u8::MAX {
                    let mut other = bytes.clone();
                    other[place] = byte;
                    let number = short_number(&other);
                    assert!(number >> (8 * BLOCK_BYTES) == 0, "no room for the tag");
                    assert!(seen.insert(number) || other == bytes, "{other:?}");
                }
            }
        }
        // Bytes can be read back from it: the first eight, and from the last on all that are behind those.
        let number = short_number(b"abcdefghijk").to_le_bytes();
        assert_eq!((&number[..8], &number[12..15]), (&b"abcdefgh"[..], &b"ijk"[..]));
    }

    /// How unevenly `keys` fall into 1024 places: 1 on average if they fell at random, and within
    /// 0.22 of it but for one time in a million.
    fn unevenness(keys: &[Vec<u8>], place: impl Fn(Fingerprint) -> u64, seed: u64) -> f64 {
        let secret = Secret::from_seed([seed, 0]);
        let mut counts = [0_u32; 1024];
        for key in keys {
            let key = Key { limit: "api", values: &[Value::new(key)] };
            counts[place(secret.fingerprint(&key)) as usize % 1024] += 1;
        }
        let expected = keys.len() as f64 / 1024.0;
        let squares = counts.iter().map(|count| (f64::from(*count) - expected).powi(2));
        squares.sum::<f64>() / expected / 1023.0
    }

    #[test]
    fn numbers_of_keys_that_differ_in_their_last_digits_fill_registers_as_drawn_by_lot() {
        // Of 1,024 a thousand draws leave 385 empty on average, and within 9.4 of that two times in three.
        let keys: Vec<Vec<u8>> = (0..1_000).map(|n| format!("user-{n}").into_bytes()).collect();
        let mut sum = 0.0;
        for seed in 0..20 {
            let secret = Secret::from_seed([seed, 0]);
            let mut is_filled = [false; 1024];
            for key in &keys {
                let key = Key { limit: "api", values: &[Value::new(key)] };
                is_filled[(secret.fingerprint(&key).number() >> 54) as usize] = true;
            }
            let empty = is_filled.iter().filter(|is_filled| !**is_filled).count() as f64;
            assert!((empty - 385.4).abs() < 5.0 * 9.4, "{empty} are empty with seed {seed}");
            sum += empty;
        }
        assert!(
            (sum / 20.0 - 385.4).abs() < 4.0 * 9.4 / 20_f64.sqrt(),
            "{} on average",
            sum / 20.0
        );
    }

    #[test]
    fn regular_keys_are_scattered() {
        const KEYS: u32 = 1 << 14;
        let families: [Vec<Vec<u8>>; 7] = [
            (0..KEYS).map(|n| format!("user:{n:08}").into_bytes()).collect(),
            (0..KEYS).map(|n| n.to_le_bytes().to_vec()).collect(),
            (0..KEYS).map(|n| n.to_be_bytes().to_vec()).collect(),
            (0..KEYS).map(|n| format!("10.0.{}.{}", n / 256, n % 256).into_bytes()).collect(),
            // The upper end of one half of a block, and both ends of both.
            (0..KEYS).map(|n| [&[0; 6][..], &n.to_le_bytes()[..2], &[0; 7]].concat()).collect(),
            (0..KEYS)
                .map(|n| {
                    (u128::from(n) * ((1 << 106) + (1 << 50) + 1)).to_le_bytes()[..15].to_vec()
                })
                .collect(),
            (0..KEYS).map(|n| [vec![b'a'; 40], n.to_be_bytes().to_vec()].concat()).collect(),
        ];
        for (number, family) in families.iter().enumerate() {
            for seed in 0..8 {
                let shards = unevenness(family, |key| key.second >> 54, seed);
                let groups = unevenness(family, |key| key.second << 12 >> 54, seed);
                let both = unevenness(family, |key| key.second << 7 >> 54, seed);
                let numbers = unevenness(family, |key| key.number() >> 54, seed);
                for uneven in [shards, groups, both, numbers] {
                    assert!((0.78..1.22).contains(&uneven), "family {number}: {uneven}");
                }
            }
        }
    }
}
