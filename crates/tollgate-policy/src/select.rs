//! One of several amounts, by the value of an attribute.

use crate::attribute::{AttributeId, Facts};
use crate::condition::{canonical_host, canonical_method};
use crate::decode::Key;
use crate::hash::WordMap;
use crate::path::{PathTree, Pattern};

/// What applies to all, or what applies by the value of an attribute.
#[derive(Clone, Debug)]
pub(crate) enum Select<T> {
    Same(T),
    By(Box<By<T>>),
}

#[derive(Clone, Debug)]
pub(crate) struct By<T> {
    attribute: AttributeId,
    table: Table<T>,
    default: T,
}

#[derive(Clone, Debug)]
enum Table<T> {
    /// Compared byte by byte.
    Words(WordMap<Box<[u8]>, T>),
    /// In capitals.
    Methods(WordMap<Box<[u8]>, T>),
    /// In small letters, without port.
    Hosts(WordMap<Box<[u8]>, T>),
    /// The most precise pattern first.
    Paths { tree: PathTree, amounts: Vec<T> },
}

impl<T: Copy> Select<T> {
    pub(crate) fn by(
        attribute: AttributeId,
        name: &str,
        entries: impl IntoIterator<Item = (Key, T)>,
        default: T,
    ) -> Self {
        let mut words = WordMap::default();
        let mut patterns: Vec<(Pattern, T)> = Vec::new();
        for (key, amount) in entries {
            match key {
                Key::Word(word) => drop(words.insert(word, amount)),
                Key::Path(pattern) => patterns.push((pattern, amount)),
            }
        }
        let table = match name {
            "path" => Table::paths(patterns),
            "method" => Table::Methods(words),
            "host" => Table::Hosts(words),
            _ => Table::Words(words),
        };
        Self::By(Box::new(By { attribute, table, default }))
    }

    #[inline]
    pub(crate) fn pick(&self, facts: &Facts<'_>) -> T {
        match self {
            Self::Same(amount) => *amount,
            Self::By(by) => facts
                .value(by.attribute)
                .and_then(|value| by.table.get(value))
                .unwrap_or(by.default),
        }
    }

    /// Every amount there is.
    pub(crate) fn amounts(&self) -> Vec<T> {
        match self {
            Self::Same(amount) => vec![*amount],
            Self::By(by) => {
                let mut amounts = match &by.table {
                    Table::Words(map) | Table::Methods(map) | Table::Hosts(map) => {
                        map.values().copied().collect()
                    }
                    Table::Paths { amounts, .. } => amounts.clone(),
                };
                amounts.push(by.default);
                amounts
            }
        }
    }
}

impl<T: Copy> Table<T> {
    fn paths(mut patterns: Vec<(Pattern, T)>) -> Self {
        patterns.sort_by(|(one, _), (other, _)| one.compare_precision(other));
        let mut tree = PathTree::default();
        for (number, (pattern, _)) in patterns.iter().enumerate() {
            pattern.forms().for_each(|form| tree.insert(form, number as u32));
        }
        Self::Paths { tree, amounts: patterns.into_iter().map(|(_, amount)| amount).collect() }
    }

    fn get(&self, value: &[u8]) -> Option<T> {
        match self {
            Self::Words(map) => map.get(value).copied(),
            Self::Methods(map) => map.get(&*canonical_method(value)).copied(),
            Self::Hosts(map) => map.get(&*canonical_host(value)).copied(),
            Self::Paths { tree, amounts } => {
                let mut first = u32::MAX;
                tree.find(value, |numbers| {
                    first = numbers.iter().fold(first, |least, number| least.min(*number));
                });
                amounts.get(first as usize).copied()
            }
        }
    }
}
