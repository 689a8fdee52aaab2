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
    /// Whether that is `tier`.
    is_tier: bool,
    table: Table,
    /// By place: first what applies to all others.
    amounts: Vec<T>,
}

/// Where among the amounts that of a value is.
#[derive(Clone, Debug)]
enum Table {
    /// Compared byte by byte.
    Words(WordMap<Box<[u8]>, u32>),
    /// In capitals.
    Methods(WordMap<Box<[u8]>, u32>),
    /// In small letters, without port.
    Hosts(WordMap<Box<[u8]>, u32>),
    /// The most precise pattern first.
    Paths(PathTree),
}

/// The place of what applies to all others.
const OTHERS: u32 = 0;

impl<T: Copy> Select<T> {
    pub(crate) fn by(
        attribute: AttributeId,
        name: &str,
        entries: impl IntoIterator<Item = (Key, T)>,
        default: T,
    ) -> Self {
        let mut words = WordMap::default();
        let mut patterns: Vec<(Pattern, T)> = Vec::new();
        let mut amounts = vec![default];
        for (key, amount) in entries {
            match key {
                Key::Word(word) => {
                    words.insert(word, amounts.len() as u32);
                    amounts.push(amount);
                }
                Key::Path(pattern) => patterns.push((pattern, amount)),
            }
        }
        let table = match name {
            "path" => Table::paths(patterns, &mut amounts),
            "method" => Table::Methods(words),
            "host" => Table::Hosts(words),
            _ => Table::Words(words),
        };
        Self::By(Box::new(By { attribute, is_tier: name == "tier", table, amounts }))
    }

    #[inline]
    pub(crate) fn pick(&self, facts: &Facts<'_>) -> T {
        match self {
            Self::Same(amount) => *amount,
            Self::By(by) => by.amounts[by.place(facts) as usize],
        }
    }

    /// The same, and which of [`tiers`](Self::tiers) it is for.
    #[inline]
    pub(crate) fn pick_with_tier(&self, facts: &Facts<'_>) -> (T, u32) {
        match self {
            Self::Same(amount) => (*amount, OTHERS),
            Self::By(by) => {
                let place = by.place(facts);
                (by.amounts[place as usize], if by.is_tier { place } else { OTHERS })
            }
        }
    }

    /// The values of `tier` that have an amount of their own, from the second on: the first is for all
    /// others. None if it does not go by tier.
    pub(crate) fn tiers(&self) -> Vec<&[u8]> {
        let Self::By(by) = self else { return Vec::new() };
        let Table::Words(map) = &by.table else { return Vec::new() };
        if !by.is_tier {
            return Vec::new();
        }
        let mut tiers: Vec<(u32, &[u8])> = map.iter().map(|(word, at)| (*at, &**word)).collect();
        tiers.sort_unstable();
        tiers.into_iter().map(|(_, word)| word).collect()
    }

    /// Every amount there is.
    pub(crate) fn amounts(&self) -> Vec<T> {
        match self {
            Self::Same(amount) => vec![*amount],
            Self::By(by) => by.amounts.clone(),
        }
    }
}

impl<T> By<T> {
    #[inline]
    fn place(&self, facts: &Facts<'_>) -> u32 {
        facts.value(self.attribute).map_or(OTHERS, |value| self.table.place(value))
    }
}

impl Table {
    /// Adds the amounts of `patterns` to `amounts`.
    fn paths<T: Copy>(mut patterns: Vec<(Pattern, T)>, amounts: &mut Vec<T>) -> Self {
        patterns.sort_by(|(one, _), (other, _)| one.compare_precision(other));
        let mut tree = PathTree::default();
        for (pattern, amount) in &patterns {
            let place = amounts.len() as u32;
            pattern.forms().for_each(|form| tree.insert(form, place));
            amounts.push(*amount);
        }
        Self::Paths(tree)
    }

    fn place(&self, value: &[u8]) -> u32 {
        let known = |place: Option<&u32>| place.copied().unwrap_or(OTHERS);
        match self {
            Self::Words(map) => known(map.get(value)),
            Self::Methods(map) => known(map.get(&*canonical_method(value))),
            Self::Hosts(map) => known(map.get(&*canonical_host(value))),
            Self::Paths(tree) => {
                let mut first = None;
                tree.find(value, |numbers| {
                    let least = numbers.iter().copied().chain(first).min();
                    first = least;
                });
                first.unwrap_or(OTHERS)
            }
        }
    }
}
