//! Who a key belongs to.
//!
//! Keys are kept as their SHA-256 and never as text: neither a dump of this process nor a message
//! about a mistake gives one away. A file of a million keys is read entry by entry, so that no more
//! than one entry is held as a tree at a time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use sha2::{Digest, Sha256};
use tollgate_core::{Algorithm, Quota};

use crate::bounds::{POLICY_MARKS_MAX, RATES_MAX, TENANT_BYTES_MAX, TENANTS_MARKS_MAX};
use crate::decode::{Decoder, Fields, TenantsDraft};
use crate::hash::WordMap;
use crate::mistake::{Report, Source, Span};
use crate::yaml::{Kind, Node, Reader, Unreadable, Word};

#[cfg(test)]
pub(crate) const FILE_FIELDS: [&str; 1] = ["keys"];
pub(crate) const KEY_FIELDS: [&str; 3] = ["tenant", "tier", "overrides"];
pub(crate) const OVERRIDE_FIELDS: [&str; 4] = ["rate", "burst", "queue", "concurrency"];

/// Which tenant and which tier, by key.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantTable {
    keys: HashMap<KeyHash, Owner, BuildHasherDefault<FirstBytes>>,
    tenants: Names,
    tiers: Names,
    /// By tenant: which set of overrides, if any.
    sets: Vec<Option<u32>>,
}

type KeyHash = [u8; 32];

/// Whose a key is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    tenant: u32,
    /// [`NO_TIER`] if the file says none.
    tier: u32,
}

const NO_TIER: u32 = u32::MAX;

impl TenantTable {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<Owner> {
        self.keys.get(&hash(key)).copied()
    }

    pub(crate) fn tenant(&self, owner: Owner) -> &str {
        self.tenants.get(owner.tenant)
    }

    pub(crate) fn tier(&self, owner: Owner) -> Option<&str> {
        (owner.tier != NO_TIER).then(|| self.tiers.get(owner.tier))
    }

    /// The overrides of the key's tenant as they turn out for the key's tier.
    pub(crate) fn variant(&self, owner: Owner) -> Option<Variant> {
        let set = self.sets[owner.tenant as usize]?;
        Some(Variant { set, tier: owner.tier })
    }

    /// The set of overrides that the tenant of this name has.
    pub(crate) fn set_of(&self, tenant: &[u8]) -> Option<u32> {
        let number =
            (0..self.tenants.len()).find(|it| self.tenants.get(*it).as_bytes() == tenant)?;
        self.sets[number as usize]
    }

    /// Every tenant, in the order of the file.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &str> {
        (0..self.tenants.len()).map(|number| self.tenants.get(number))
    }

    /// Every tier that some key has, in the order of the file.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = &str> {
        (0..self.tiers.len()).map(|number| self.tiers.get(number))
    }
}

/// A set of overrides under a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub(crate) set: u32,
    tier: u32,
}

/// What was read from a tenants file.
#[derive(Debug, Default)]
pub(crate) struct TenantsFile {
    pub(crate) table: TenantTable,
    /// Each set of overrides once, with the tier-dependent variants that some key asks for.
    pub(crate) sets: Vec<OverrideSet>,
    pub(crate) variants: Vec<(Variant, Option<String>)>,
    /// Whether some key has no tier.
    pub(crate) has_tierless_key: bool,
}

/// All that a policy knows of its tenants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenancy<'c> {
    pub(crate) draft: &'c TenantsDraft,
    pub(crate) file: &'c TenantsFile,
    pub(crate) source: &'c Source<'c>,
}

impl<'c> Tenancy<'c> {
    /// The tier of a request without a known key, if it is not refused.
    pub(crate) fn strangers(&self) -> Option<&'c str> {
        self.draft.unknown.as_ref().map(|tier| tier.text.as_str())
    }
}

/// What a tenant is allowed instead, by the name of the limit.
#[derive(Clone, Debug)]
pub(crate) struct OverrideSet {
    pub(crate) limits: Vec<(Word, Override)>,
}

/// What one limit allows a tenant instead. What is not said stays as the limit says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Override {
    pub(crate) rate: Vec<Quota>,
    pub(crate) burst: Vec<u32>,
    pub(crate) queue: Vec<u32>,
    pub(crate) concurrency: Option<u32>,
}

impl Override {
    /// Whether it says only what means something to an algorithm.
    pub(crate) fn fits(&self, algorithm: Algorithm) -> Result<(), String> {
        let has = [
            ("rate", !self.rate.is_empty(), algorithm != Algorithm::Concurrency),
            ("burst", !self.burst.is_empty(), algorithm == Algorithm::TokenBucket),
            ("queue", !self.queue.is_empty(), algorithm == Algorithm::LeakyBucket),
            ("concurrency", self.concurrency.is_some(), algorithm == Algorithm::Concurrency),
        ];
        match has.iter().find(|(_, is_said, is_meaningful)| *is_said && !is_meaningful) {
            None => Ok(()),
            Some(_) if algorithm == Algorithm::Concurrency => {
                Err("it counts slots; only concurrency can be changed".to_owned())
            }
            Some((field, ..)) => {
                Err(format!("{field} means nothing to it, because it is a {algorithm}"))
            }
        }
    }
}

/// Reads a tenants file. What is wrong with it goes to the report.
pub(crate) fn read(source: &Source<'_>, report: &mut Report) -> TenantsFile {
    let mut loading = Loading::default();
    // What stopped the reading is in the report.
    let _ = loading.read(source, report);
    loading.finish()
}

#[derive(Default)]
struct Loading {
    file: TenantsFile,
    tenants: WordMap<Box<str>, u32>,
    tiers: WordMap<Box<str>, u32>,
    sets: HashMap<Vec<(String, Override)>, u32>,
}

impl Loading {
    fn read(&mut self, source: &Source<'_>, report: &mut Report) -> Result<(), Unreadable> {
        // Entries inside one pair of braces are all scanned before the first is handed out.
        let most = if is_bracketed(source.text) { POLICY_MARKS_MAX } else { TENANTS_MARKS_MAX };
        let mut reader = Reader::open(source, report, most)?;
        let mut has_keys = false;
        if let Some(other) = reader.enter_map(0)? {
            reader.mistake(other.span, "a tenants file is a map with the one field keys");
            return Ok(());
        }
        while let Some(field) = reader.key(1)? {
            if field.text == "keys" && !has_keys {
                has_keys = true;
                self.keys(source, &mut reader)?;
            } else {
                // The name may be a key that slipped out of its place; it is not repeated.
                let sentence = "this is not a field; a tenants file has one, keys, written once";
                reader.mistake(field.span, sentence);
                reader.node(1)?;
            }
        }
        if !has_keys {
            let sentence = "keys is missing; write for example keys: { KEY: { tenant: acme } }";
            reader.mistake(Span::START, sentence);
        }
        reader.close()
    }

    fn keys<'t>(
        &mut self,
        source: &Source<'t>,
        reader: &mut Reader<'_, 't, '_>,
    ) -> Result<(), Unreadable> {
        if let Some(other) = reader.enter_map(1)? {
            reader.mistake(other.span, "keys is a map from key to tenant");
            return Ok(());
        }
        while let Some(key) = reader.key(2)? {
            let entry = reader.node(2)?;
            let mut decoder = Decoder::new(source, reader.report());
            let hash = read_key(&key, &mut decoder);
            let owner = self.owner(&entry, &mut decoder);
            let (Some(hash), Some(owner)) = (hash, owner) else { continue };
            if self.file.table.keys.insert(hash, owner).is_some() {
                reader.mistake(key.span, "this key is written twice");
            }
        }
        Ok(())
    }

    fn owner(&mut self, entry: &Node, decoder: &mut Decoder<'_, '_, '_>) -> Option<Owner> {
        let fields = decoder.fields(entry, "", &KEY_FIELDS)?;
        let tenant = decoder.required(&fields, "", "tenant", "acme");
        let tenant = tenant.and_then(|node| name(node, "tenant", decoder));
        let tier = match fields.get("tier") {
            Some(node) => name(node, "tier", decoder).map(Some),
            None => Some(None),
        };
        let overrides = fields.get("overrides").map(|node| (node.span, overrides(node, decoder)));
        let tenant = self.tenant(tenant?);
        let tier = tier?.map_or(NO_TIER, |tier| self.tier(tier));
        self.file.has_tierless_key |= tier == NO_TIER;
        if let Some((span, limits)) = overrides {
            self.set_overrides(tenant, span, limits?, decoder);
        }
        Some(Owner { tenant, tier })
    }

    fn tenant(&mut self, name: &str) -> u32 {
        let number = intern(&mut self.tenants, &mut self.file.table.tenants, name);
        if self.file.table.sets.len() <= number as usize {
            self.file.table.sets.push(None);
        }
        number
    }

    fn tier(&mut self, name: &str) -> u32 {
        intern(&mut self.tiers, &mut self.file.table.tiers, name)
    }

    fn set_overrides(
        &mut self,
        tenant: u32,
        span: Span,
        limits: Vec<(Word, Override)>,
        decoder: &mut Decoder<'_, '_, '_>,
    ) {
        let mut content: Vec<(String, Override)> =
            limits.iter().map(|(limit, change)| (limit.text.clone(), change.clone())).collect();
        content.sort_by(|one, other| one.0.cmp(&other.0));
        let sets = &mut self.file.sets;
        let set = *self.sets.entry(content).or_insert_with(|| {
            sets.push(OverrideSet { limits });
            sets.len() as u32 - 1
        });
        let known = &mut self.file.table.sets[tenant as usize];
        if known.is_some_and(|known| known != set) {
            let name = self.file.table.tenants.get(tenant);
            let sentence = format!(
                "another key of tenant {name:?} has other overrides; overrides are a tenant's, so \
                 write them at one key or alike at each"
            );
            decoder.mistake(span, "", sentence);
        }
        *known = Some(set);
    }

    fn finish(mut self) -> TenantsFile {
        let table = &self.file.table;
        let mut variants: Vec<Variant> =
            table.keys.values().filter_map(|owner| table.variant(*owner)).collect();
        variants.sort_unstable_by_key(|variant| (variant.set, variant.tier));
        variants.dedup();
        let tier = |variant: &Variant| {
            (variant.tier != NO_TIER).then(|| table.tiers.get(variant.tier).to_owned())
        };
        self.file.variants = variants.iter().map(|variant| (*variant, tier(variant))).collect();
        self.file
    }
}

/// Whether a text looks like a tenants file, readable or not: then no line of it is to be shown.
/// No section of a policy is called `keys`.
pub(crate) fn may_be_file(text: &str) -> bool {
    let names_keys = |text: &str| {
        let rest = text.trim_start_matches(['"', '\'']).strip_prefix("keys");
        rest.is_some_and(|rest| rest.trim_start_matches(['"', '\'', ' ']).starts_with(':'))
    };
    let text = text.trim_start_matches('\u{FEFF}');
    let inside = text.trim_start().strip_prefix('{').map(str::trim_start);
    inside.is_some_and(names_keys) || text.lines().any(names_keys)
}

/// Whether the keys stand inside one pair of braces, as in JSON, rather than in lines.
fn is_bracketed(text: &str) -> bool {
    let mut lines = text
        .trim_start_matches('\u{FEFF}')
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', '-']));
    let first = lines.next().unwrap_or("");
    match first.strip_prefix("keys:").map(str::trim_start) {
        Some("") => lines.next().is_some_and(|line| line.starts_with('{')),
        Some(rest) => rest.starts_with('{'),
        None => first.starts_with('{'),
    }
}

/// A key as its hash: given as one, or taken of its text.
fn read_key(key: &Word, decoder: &mut Decoder<'_, '_, '_>) -> Option<KeyHash> {
    if key.text.is_empty() {
        decoder.mistake(key.span, "", "a key is empty");
        return None;
    }
    let Some(digits) = key.text.strip_prefix("sha256:") else {
        return Some(hash(key.text.as_bytes()));
    };
    let hash = read_hexadecimal(digits.as_bytes());
    if hash.is_none() {
        let sentence =
            "a key's sha256 is 64 hexadecimal digits; printf %s KEY | sha256sum gives them";
        decoder.mistake(key.span, "", sentence);
    }
    hash
}

fn read_hexadecimal(digits: &[u8]) -> Option<KeyHash> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    if digits.len() != 64 {
        return None;
    }
    let mut hash = KeyHash::default();
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(hash)
}

fn hash(key: &[u8]) -> KeyHash {
    Sha256::digest(key).into()
}

/// The name of a tenant or a tier.
fn name<'n>(node: &'n Node, what: &str, decoder: &mut Decoder<'_, '_, '_>) -> Option<&'n str> {
    let text = decoder.text(node, "", what)?;
    if text.is_empty() || text.len() > TENANT_BYTES_MAX || text.contains(char::is_control) {
        let sentence = format!("{what} is a name of 1 to {TENANT_BYTES_MAX} bytes");
        decoder.mistake(node.span, "", sentence);
        return None;
    }
    Some(text)
}

fn overrides(node: &Node, decoder: &mut Decoder<'_, '_, '_>) -> Option<Vec<(Word, Override)>> {
    let Kind::Map(entries) = &node.kind else {
        let sentence = "overrides is a map from limit to what it allows, as in \
                        {api: {rate: 900/minute}}";
        decoder.mistake(node.span, "", sentence);
        return None;
    };
    let read: Vec<Option<(Word, Override)>> = entries
        .iter()
        .map(|(limit, node)| {
            let owner = format!("override of {:?}", limit.text);
            let fields = decoder.fields(node, &owner, &OVERRIDE_FIELDS)?;
            Some((limit.clone(), one_override(&fields, &owner, node.span, decoder)?))
        })
        .collect();
    read.into_iter().collect()
}

pub(crate) fn one_override(
    fields: &Fields<'_>,
    owner: &str,
    span: Span,
    decoder: &mut Decoder<'_, '_, '_>,
) -> Option<Override> {
    if fields.entries().is_empty() {
        decoder.mistake(span, owner, "it changes nothing; write for example {rate: 900/minute}");
        return None;
    }
    let rate = one_or_several(fields, "rate", owner, decoder, |decoder, node, owner| {
        decoder.quota(node, owner)
    });
    let burst = one_or_several(fields, "burst", owner, decoder, |decoder, node, owner| {
        decoder.count(node, owner, "burst")
    });
    let queue = one_or_several(fields, "queue", owner, decoder, |decoder, node, owner| {
        decoder.count(node, owner, "queue")
    });
    let concurrency = match fields.get("concurrency") {
        Some(node) => decoder.count(node, owner, "concurrency").map(Some),
        None => Some(None),
    };
    Some(Override { rate: rate?, burst: burst?, queue: queue?, concurrency: concurrency? })
}

/// Nothing, one value, or a list of them.
fn one_or_several<T>(
    fields: &Fields<'_>,
    field: &str,
    owner: &str,
    decoder: &mut Decoder<'_, '_, '_>,
    read: impl Fn(&mut Decoder<'_, '_, '_>, &Node, &str) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(node) = fields.get(field) else { return Some(Vec::new()) };
    let nodes = match &node.kind {
        Kind::List(list) if list.is_empty() || list.len() > RATES_MAX => {
            let sentence = format!("{field} has {} values, not 1 to {RATES_MAX}", list.len());
            decoder.mistake(node.span, owner, sentence);
            return None;
        }
        Kind::List(list) => list,
        Kind::Scalar(_) | Kind::Map(_) => std::slice::from_ref(node),
    };
    let read: Vec<Option<T>> = nodes.iter().map(|node| read(decoder, node, owner)).collect();
    read.into_iter().collect()
}

/// Many short texts in one allocation, by number.
#[derive(Clone, Debug, Default)]
struct Names {
    text: String,
    ends: Vec<u32>,
}

impl Names {
    fn push(&mut self, name: &str) -> u32 {
        self.text.push_str(name);
        self.ends.push(u32::try_from(self.text.len()).expect("a tenants file is below 4 GiB"));
        self.ends.len() as u32 - 1
    }

    fn get(&self, number: u32) -> &str {
        let number = number as usize;
        let start = if number == 0 { 0 } else { self.ends[number - 1] as usize };
        &self.text[start..self.ends[number] as usize]
    }

    fn len(&self) -> u32 {
        self.ends.len() as u32
    }
}

fn intern(numbers: &mut WordMap<Box<str>, u32>, names: &mut Names, name: &str) -> u32 {
    if let Some(number) = numbers.get(name) {
        return *number;
    }
    let number = names.push(name);
    numbers.insert(name.into(), number);
    number
}

/// A SHA-256 is spread evenly as it is: its first bytes are hash enough for a table.
#[derive(Clone, Copy, Debug, Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn write(&mut self, bytes: &[u8]) {
        let (first, _) = bytes.split_first_chunk().expect("a SHA-256 has 32 bytes");
        self.0 = u64::from_le_bytes(*first);
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
