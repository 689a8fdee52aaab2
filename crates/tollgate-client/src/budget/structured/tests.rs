//! Our reader beside the one of the `sfv` crate, which reads all of RFC 9651.

use sfv::{BareItem, Dictionary, ListEntry, Parser};

use super::*;

/// What both readers make of it, in one form; `None` if it is malformed, or more than we read.
type Told = Option<Vec<Line>>;

/// A key, an item and its parameters.
type Line = (String, String, Vec<(String, String)>);

/// An item with all of its parameters: of those of one name the last counts, in the place of the first.
#[derive(Debug, PartialEq)]
struct Whole<'a> {
    item: Item<'a>,
    parameters: Vec<(&'a [u8], Item<'a>)>,
}

impl<'a> Member<'a> for Whole<'a> {
    fn begin(item: Item<'a>) -> Self {
        Self { item, parameters: Vec::new() }
    }

    fn learn(&mut self, name: &'a [u8], item: Item<'a>) {
        match self.parameters.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = item,
            None => self.parameters.push((name, item)),
        }
    }
}

impl Whole<'_> {
    fn line(&self, key: &[u8]) -> Line {
        let told = self.parameters.iter().map(|(name, item)| (unescaped(name), shown(*item)));
        (unescaped(key), shown(self.item), told.collect())
    }
}

fn shown(item: Item<'_>) -> String {
    match item {
        Item::String(text) => format!("String({:?})", unescaped(text)),
        Item::Token(token) => format!("Token({:?})", unescaped(token)),
        item => format!("{item:?}"),
    }
}

fn ours(text: &str) -> (Told, Told) {
    let (mut members, mut pairs) = (Vec::new(), Vec::new());
    let is_list = list(text.as_bytes(), |member: Whole<'_>| members.push(member.line(b"")));
    let is_dictionary =
        dictionary(text.as_bytes(), |key, member: Whole<'_>| pairs.push(member.line(key)));
    (is_list.map(|()| members), is_dictionary.map(|()| last_of_each_key(pairs)))
}

fn last_of_each_key(members: Vec<Line>) -> Vec<Line> {
    let mut kept: Vec<Line> = Vec::new();
    for member in members {
        match kept.iter_mut().find(|known| known.0 == member.0) {
            Some(known) => *known = member,
            None => kept.push(member),
        }
    }
    kept
}

fn theirs(text: &str) -> (Told, Told) {
    let entry = |key: &str, entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { return None };
        let parameters: Option<Vec<_>> =
            item.params.iter().map(|(key, item)| Some((key.to_string(), bare(item)?))).collect();
        Some((key.to_owned(), bare(&item.bare_item)?, parameters?))
    };
    let list = Parser::new(text).parse::<sfv::List>().ok();
    let dictionary = Parser::new(text).parse::<Dictionary>().ok();
    (
        list.and_then(|list| list.iter().map(|it| entry("", it)).collect()),
        dictionary.and_then(|it| it.iter().map(|(key, it)| entry(key.as_str(), it)).collect()),
    )
}

fn bare(item: &BareItem) -> Option<String> {
    let item = match item {
        BareItem::Integer(number) => Item::Integer(i64::from(*number)),
        BareItem::Decimal(number) => Item::Decimal(number.as_integer_scaled_1000().into()),
        BareItem::String(text) => return Some(format!("String({:?})", text.as_str())),
        BareItem::Token(token) => return Some(format!("Token({:?})", token.as_str())),
        BareItem::Boolean(value) => Item::Boolean(*value),
        _ => return None,
    };
    Some(format!("{item:?}"))
}

#[track_caller]
fn check(text: &str) {
    assert_eq!(ours(text), theirs(text), "{text:?}");
}

#[test]
fn budgets_are_read_as_the_library_reads_them() {
    for text in [
        r#""api";r=50;t=30"#,
        r#""burst";q=100;w=60,"daily";q=1000;w=86400"#,
        r#" "a b\"c\\d" ; r=1"#,
        "api;a=50;w=30, other;a=1",
        "limit=100, remaining=50, reset=5",
        "limit=100, limit=50",
        "100, 100;w=60, 1000;w=3600;burst=12;comment=\"x\"",
        "598.0",
        "-1",
        "1.5, -0.25",
        "a;b;c=?0",
        "a;b=1;b=2",
        "",
        "  ",
        ",",
        "a,",
        "a,,b",
        "a b",
        "a;",
        "a;B=1",
        "a=",
        "1234567890123456",
        "123456789012345",
        "-9223372036854775808",
        "-9223372036854775808.1",
        "99999999999999999999999999999999",
        "1234567890123.1",
        "1.2345",
        "1.",
        ".1",
        "-",
        "--1",
        r#""unclosed"#,
        r#""bad\escape""#,
        "\"caf\u{e9}\"",
        "?2",
        "(1 2)",
        "*a, _b",
        "a\t,\tb",
        "\ta",
    ] {
        check(text);
    }
}

#[test]
fn mangled_budgets_are_read_as_the_library_reads_them() {
    const PIECES: &[&str] = &[
        "\"api\"", "api", ";", ";r=", ",", ", ", "=", "1", "0", "-", ".", "60", "limit=", "\"",
        "\\", " ", "\t", "?1", "*", "w", ";w=3", "A", "~", "_",
    ];
    let mut state = 0x5eed_u64;
    for _ in 0..50_000 {
        let mut text = String::new();
        for _ in 0..8 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            text.push_str(PIECES[(state >> 33) as usize % PIECES.len()]);
        }
        check(&text);
    }
}

#[test]
fn a_partition_key_is_skipped() {
    let mut told = Vec::new();
    let text = br#""peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:"#;
    list(text, |member: Whole<'_>| told = member.parameters).unwrap();
    assert_eq!(told[2], (&b"w"[..], Item::Integer(10)));
    assert_eq!(told[3], (&b"pk"[..], Item::Bytes(b"sdfjLJUOUH==")));
    assert_eq!(list(br#""a";pk=:no"#, |_: Item<'_>| {}), None);
}
