//! A key's text is its whole identity: it can be read back, and nothing else is read.

use std::collections::HashMap;

use tollgate_core::{Key, KeyBuf, KeyError, Shown, Value};

use crate::support::Rng;

/// What stands for the keyed hash of a store.
fn hash(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(7, |hash: u128, byte| hash.rotate_left(9).wrapping_mul(0x1B3) ^ u128::from(*byte))
}

/// Bytes that have a meaning in a text, and some that have none.
fn random_bytes(rng: &mut Rng) -> Vec<u8> {
    const NASTY: &[u8] = b"%%::hnsabfF0123789..~-_ {}\0\r\n\xFF\xC3\xBC";
    let length = rng.below(9);
    (0..length).map(|_| NASTY[rng.below(NASTY.len() as u64) as usize]).collect()
}

/// A limit's name and values, with the bytes of each.
type Owned = (String, Vec<(Option<Vec<u8>>, u8, Shown)>);

fn random_key(rng: &mut Rng) -> Owned {
    let limit = String::from_utf8_lossy(&random_bytes(rng)).into_owned();
    let values = (0..rng.below(4)).map(|_| match rng.below(8) {
        0 => (None, rng.below(14) as u8, Shown::Plainly),
        1 => (Some(vec![rng.below(256) as u8]), u8::MAX, Shown::Plainly),
        2 => (Some(rng.next().to_be_bytes().repeat(2)), rng.below(14) as u8, Shown::IsHash),
        3 => (Some(random_bytes(rng)), rng.below(256) as u8, Shown::Plainly),
        _ => (Some(random_bytes(rng)), 0, Shown::Plainly),
    });
    (limit, values.collect())
}

fn with_key<T>((limit, values): &Owned, look: impl FnOnce(Key<'_>) -> T) -> T {
    let values: Vec<Value<'_>> = values
        .iter()
        .map(|(bytes, source, shown)| Value {
            bytes: bytes.as_deref(),
            source: *source,
            shown: *shown,
        })
        .collect();
    look(Key { limit, values: &values })
}

#[test]
fn every_text_reads_back_as_the_key_it_is_of() {
    let mut rng = Rng::new(1);
    let mut seen = HashMap::new();
    for _ in 0..50_000 {
        let owned = random_key(&mut rng);
        let text = with_key(&owned, |key| key.text(hash));
        let read: KeyBuf = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        with_key(&owned, |key| {
            assert_eq!((read.limit(), &read.values()[..]), (key.limit, key.values), "{text}");
        });
        assert_eq!(read.to_string(), text);
        let other = seen.insert(text.clone(), owned.clone()).unwrap_or_else(|| owned.clone());
        assert_eq!(other, owned, "both are {text}");
    }
}

#[test]
fn a_secret_value_reads_back_as_its_hash() {
    let secret = [Value { source: 2, ..Value::secret(b"an API key") }];
    let key = Key { limit: "api", values: &secret };
    let text = key.text(hash);
    assert_eq!(text, format!("api:%n2.%h{:032x}", hash(b"an API key")));
    let read: KeyBuf = text.parse().unwrap();
    let bytes = hash(b"an API key").to_be_bytes();
    let hashed = Value { bytes: Some(&bytes), source: 2, shown: Shown::IsHash };
    assert_eq!(read.values(), [hashed]);
    assert_eq!(read.to_string(), text);
}

#[test]
fn what_is_read_at_all_is_read_from_one_text_only() {
    let mut rng = Rng::new(2);
    let mut read_well = 0;
    for _ in 0..200_000 {
        let bytes = random_bytes(&mut rng);
        let Ok(text) = String::from_utf8(bytes) else { continue };
        match text.parse::<KeyBuf>() {
            Ok(key) => {
                read_well += 1;
                assert_eq!(key.to_string(), text);
            }
            Err(KeyError::Spelling { right }) => {
                assert_ne!(right, text);
                assert!(right.parse::<KeyBuf>().is_ok(), "{text} should be {right}");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(read_well > 10_000, "{read_well}");
}

#[test]
fn what_is_no_key_is_refused_with_a_sentence() {
    let hash = "0123456789abcdef".repeat(2);
    for (text, expected) in [
        ("api:a%3ab", "write api:a%3Ab".to_owned()),
        ("api:a%41", "write api:aA".to_owned()),
        ("api:a b", "write api:a%20b".to_owned()),
        ("api:ü", "write api:%C3%BC".to_owned()),
        ("api:%s07", "write api:%s7".to_owned()),
        ("api:%n0.a", "write api:a".to_owned()),
        ("api:%n01.a", "write api:%n1.a".to_owned()),
        (&format!("api:%h{}", hash.to_uppercase()), format!("write api:%h{hash}")),
        ("api:%h0123", "\"%h0123\" is no part of a key".to_owned()),
        ("api:%s256", "\"%s256\" is no part of a key".to_owned()),
        ("api:%n256.a", "\"%n256.a\" is no part of a key".to_owned()),
        ("api:%n1", "\"%n1\" is no part of a key".to_owned()),
        ("api:%zz", "\"%zz\" is no part of a key".to_owned()),
        ("api:a%", "\"a%\" is no part of a key".to_owned()),
        ("%:a", "\"%\" is no part of a key".to_owned()),
        ("%FF:a", "the limit's name is not UTF-8 text".to_owned()),
    ] {
        let error = text.parse::<KeyBuf>().expect_err(text).to_string();
        assert!(error.contains(&expected), "{text}: {error}");
    }
    let long = format!("api:%z{}", "z".repeat(10_000)).parse::<KeyBuf>().expect_err("not hex");
    assert!(long.to_string().len() < 400);
}
