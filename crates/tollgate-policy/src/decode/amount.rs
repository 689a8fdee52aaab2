//! Amounts that are one for all, or differ by tier or by the value of any attribute.

use std::collections::HashMap;

use super::Decoder;
use super::when::{read_host, read_method};
use crate::attribute::AttributeId;
use crate::mistake::{Span, quoted};
use crate::path::Pattern;
use crate::yaml::{Kind, Node, Word};

pub(super) const BY_FIELDS: [&str; 3] = ["by", "values", "default"];

/// How much, for whom.
#[derive(Clone, Debug)]
pub(crate) enum Amount<T> {
    /// The same for all.
    Same(At<T>),
    /// By the value of an attribute.
    By(By<T>),
}

/// Amounts by the value of an attribute.
#[derive(Clone, Debug)]
pub(crate) struct By<T> {
    pub(crate) attribute: AttributeId,
    pub(crate) span: Span,
    /// In the order written.
    pub(crate) values: Vec<Keyed<T>>,
    /// Where each is among them.
    places: HashMap<Key, usize>,
    pub(crate) default: Option<At<T>>,
}

/// Something and where it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Span,
}

/// The amount for one value.
#[derive(Clone, Debug)]
pub(crate) struct Keyed<T> {
    pub(crate) key: Key,
    /// As written.
    pub(crate) word: Word,
    pub(crate) amount: At<T>,
}

/// A value of an attribute in the way that attribute is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Word(Box<[u8]>),
    Path(Pattern),
}

impl<T: Copy> Amount<T> {
    pub(crate) fn by(&self) -> Option<&By<T>> {
        match self {
            Self::Same(_) => None,
            Self::By(by) => Some(by),
        }
    }

    /// The amount for a value; for any other value if none is given. A value without an entry takes
    /// the default, and without one what `instead` has: the tier of strangers.
    pub(crate) fn at(&self, key: Option<&Key>, instead: Option<&Key>) -> Option<At<T>> {
        match self {
            Self::Same(amount) => Some(*amount),
            Self::By(by) => key
                .and_then(|key| by.find(key))
                .or(by.default)
                .or_else(|| instead.and_then(|key| by.find(key))),
        }
    }
}

impl<T: Copy> By<T> {
    pub(crate) fn find(&self, key: &Key) -> Option<At<T>> {
        self.places.get(key).map(|&place| self.values[place].amount)
    }
}

/// Reads one amount.
pub(super) type ReadAmount<'d, T> = &'d mut dyn FnMut(&mut Decoder<'_, '_, '_>, &Node) -> Option<T>;

impl Decoder<'_, '_, '_> {
    /// One amount, a map by tier, or the long form by any attribute.
    pub(super) fn amount<T>(
        &mut self,
        node: &Node,
        owner: &str,
        field: &str,
        read: ReadAmount<'_, T>,
    ) -> Option<Amount<T>> {
        match &node.kind {
            Kind::Scalar(_) => self.one(node, owner, field, read).map(Amount::Same),
            Kind::Map(entries) if entries.iter().any(|(key, _)| key.text == "by") => {
                self.amount_by(node, owner, field, read).map(Amount::By)
            }
            Kind::Map(entries) => self.amount_by_tier(node, entries, owner, field, read),
            Kind::List(_) => self.one(node, owner, field, read).map(Amount::Same),
        }
    }

    /// `{free: …, pro: …, default: …}`.
    fn amount_by_tier<T>(
        &mut self,
        node: &Node,
        entries: &[(Word, Node)],
        owner: &str,
        field: &str,
        read: ReadAmount<'_, T>,
    ) -> Option<Amount<T>> {
        let attribute = self.attributes.intern("tier");
        let is_default = |entry: &&(Word, Node)| entry.0.text == "default";
        let default = entries.iter().find(is_default).map(|(_, node)| node);
        let named = entries.iter().filter(|entry| !is_default(entry));
        let values = self.keyed("tier", named, owner, field, read);
        let default = self.default_amount(default, owner, field, read);
        self.by(node.span, attribute, values?, default?, owner, field).map(Amount::By)
    }

    /// `{by: plan, values: {free: …}, default: …}`.
    pub(super) fn amount_by<T>(
        &mut self,
        node: &Node,
        owner: &str,
        field: &str,
        read: ReadAmount<'_, T>,
    ) -> Option<By<T>> {
        let fields = self.fields(node, owner, &BY_FIELDS)?;
        let by = self.required(&fields, owner, "by", "plan");
        let values = self.required(&fields, owner, "values", "{free: …}");
        let attribute = self.attribute(by?, owner, "by")?;
        let name = self.attributes.name(attribute).to_string();
        let values = values?;
        let Kind::Map(entries) = &values.kind else {
            let found = self.described(values);
            let sentence = format!("values is a map from {name} to {field}; found {found}");
            self.mistake(values.span, owner, sentence);
            return None;
        };
        let values = self.keyed(&name, entries.iter(), owner, field, read);
        let default = self.default_amount(fields.get("default"), owner, field, read);
        if !fields.are_among(&BY_FIELDS) {
            // It has been told. That the default is missing would be told as well if it is the one
            // that is misspelt.
            return None;
        }
        self.by(node.span, attribute, values?, default?, owner, field)
    }

    /// The inner `None` if there is no default, the outer if it cannot be read.
    fn default_amount<T>(
        &mut self,
        node: Option<&Node>,
        owner: &str,
        field: &str,
        read: ReadAmount<'_, T>,
    ) -> Option<Option<At<T>>> {
        let Some(node) = node else { return Some(None) };
        self.one(node, owner, field, read).map(Some)
    }

    /// One amount, not several.
    fn one<T>(
        &mut self,
        node: &Node,
        owner: &str,
        field: &str,
        read: ReadAmount<'_, T>,
    ) -> Option<At<T>> {
        if matches!(node.kind, Kind::List(_)) {
            let sentence = match field {
                "concurrency" | "cost" => format!("{field} cannot be a list; write one number"),
                _ => format!(
                    "{field} is a list inside; write it outside, as in [{{free: …}}, {{free: …}}]"
                ),
            };
            self.mistake(node.span, owner, sentence);
            return None;
        }
        read(self, node).map(|value| At { value, span: node.span })
    }

    fn by<T>(
        &mut self,
        span: Span,
        attribute: AttributeId,
        values: Vec<Keyed<T>>,
        default: Option<At<T>>,
        owner: &str,
        field: &str,
    ) -> Option<By<T>> {
        if values.is_empty() {
            let sentence = format!("{field} names no value at all; write one, as in {{free: …}}");
            self.mistake(span, owner, sentence);
            return None;
        }
        let places = values.iter().enumerate().map(|(place, keyed)| (keyed.key.clone(), place));
        Some(By { attribute, span, places: places.collect(), values, default })
    }

    fn keyed<'n, T>(
        &mut self,
        attribute: &str,
        entries: impl Iterator<Item = &'n (Word, Node)>,
        owner: &str,
        field: &str,
        read: ReadAmount<'_, T>,
    ) -> Option<Vec<Keyed<T>>> {
        let mut values: Vec<Keyed<T>> = Vec::new();
        let mut places: HashMap<Key, usize> = HashMap::new();
        let mut all_read = true;
        for (word, node) in entries {
            let key = self.key(attribute, word, owner);
            let amount = self.one(node, owner, field, read);
            let (Some(key), Some(amount)) = (key, amount) else {
                all_read = false;
                continue;
            };
            if let Some(&other) = places.get(&key) {
                let (one, other) = (quoted(&word.text), quoted(&values[other].word.text));
                let sentence = format!("{one} says the same as {other}; write one of them");
                self.mistake(word.span, owner, sentence);
                continue;
            }
            places.insert(key.clone(), values.len());
            values.push(Keyed { key, word: word.clone(), amount });
        }
        all_read.then_some(values)
    }

    fn key(&mut self, attribute: &str, word: &Word, owner: &str) -> Option<Key> {
        let read = match attribute {
            "path" => Pattern::read(&word.text, self.paths).map(Key::Path),
            "method" => read_method(&word.text).map(Key::Word),
            "host" => read_host(&word.text).and_then(|host| {
                let plain = (!host.below).then(|| Key::Word(host.name.as_ref().into()));
                plain.ok_or("names many hosts; write each of them here")
            }),
            _ => Ok(Key::Word(word.text.as_bytes().into())),
        };
        match read {
            Ok(key) => Some(key),
            Err(wrong) => {
                self.mistake(word.span, owner, format!("{} {wrong}", quoted(&word.text)));
                None
            }
        }
    }
}
