//! Values with a `*` in them, which stands for any text, also for none.
//!
//! They are tried in the order of the file, but not one after the other: all with the same text
//! before their first star and after their last are filed under those two, so that finding one
//! costs the different lengths that these have, not the number of wildcards.

use crate::hash::WordMap;

/// Things by the wildcards that lead to them.
#[derive(Clone, Debug)]
pub(super) struct Wildcards<T> {
    /// The lengths of head and tail that occur.
    lengths: Vec<(usize, usize)>,
    filed: WordMap<HeadAndTail, Vec<Wildcard<T>>>,
    count: usize,
}

/// What stands before the first star and after the last.
type HeadAndTail = (Box<str>, Box<str>);

#[derive(Clone, Debug)]
struct Wildcard<T> {
    /// Its place in the file.
    order: usize,
    /// What lies between its stars.
    middle: Vec<Box<str>>,
    leads_to: T,
}

impl<T> Default for Wildcards<T> {
    fn default() -> Self {
        Self { lengths: Vec::new(), filed: WordMap::default(), count: 0 }
    }
}

impl<T> Wildcards<T> {
    /// Adds a pattern, which has a star, behind those that are there; false if it is one of them.
    pub(super) fn push(&mut self, pattern: &str, leads_to: T) -> bool {
        let mut parts: Vec<&str> = pattern.split('*').collect();
        let tail = parts.pop().unwrap_or("");
        let head = parts.first().copied().unwrap_or("");
        let middle = parts.iter().skip(1).filter(|part| !part.is_empty());
        let middle: Vec<Box<str>> = middle.map(|part| Box::from(*part)).collect();
        let length = (head.len(), tail.len());
        if let Err(place) = self.lengths.binary_search(&length) {
            self.lengths.insert(place, length);
        }
        let filed = self.filed.entry((head.into(), tail.into())).or_default();
        let is_new = filed.iter().all(|other| other.middle != middle);
        filed.push(Wildcard { order: self.count, middle, leads_to });
        self.count += 1;
        is_new
    }

    /// What the first pattern leads to that `value` fits.
    #[inline]
    pub(super) fn find(&self, value: &str) -> Option<&T> {
        if self.count == 0 { None } else { self.find_filed(value) }
    }

    fn find_filed(&self, value: &str) -> Option<&T> {
        let candidates = self.lengths.iter().filter_map(|&(head, tail)| {
            let inner = head..value.len().checked_sub(tail).filter(|end| *end >= head)?;
            let (head, tail) = (value.get(..inner.start)?, value.get(inner.end..)?);
            let filed = self.filed.get(&(head, tail) as &dyn Ends)?;
            filed.iter().find(|wildcard| wildcard.fits(&value[inner.clone()]))
        });
        candidates.min_by_key(|wildcard| wildcard.order).map(|wildcard| &wildcard.leads_to)
    }
}

impl<T> Wildcard<T> {
    /// Whether the parts between the stars occur in a text one behind the other.
    fn fits(&self, mut text: &str) -> bool {
        self.middle.iter().all(|part| match text.find(&**part) {
            Some(at) => {
                text = &text[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

/// A head and a tail, borrowed from a value or owned by the map, so that one is found by the other
/// without a copy.
trait Ends {
    fn ends(&self) -> (&str, &str);
}

impl Ends for (&str, &str) {
    fn ends(&self) -> (&str, &str) {
        *self
    }
}

impl Ends for HeadAndTail {
    fn ends(&self) -> (&str, &str) {
        (&self.0, &self.1)
    }
}

impl<'a> std::borrow::Borrow<dyn Ends + 'a> for HeadAndTail {
    fn borrow(&self) -> &(dyn Ends + 'a) {
        self
    }
}

impl std::hash::Hash for dyn Ends + '_ {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.ends().hash(state);
    }
}

impl PartialEq for dyn Ends + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.ends() == other.ends()
    }
}

impl Eq for dyn Ends + '_ {}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'p>(patterns: &[&'p str], value: &str) -> Option<&'p str> {
        let mut wildcards = Wildcards::default();
        for pattern in patterns {
            wildcards.push(pattern, *pattern);
        }
        wildcards.find(value).copied()
    }

    #[test]
    fn a_star_stands_for_any_text_anywhere_in_a_value() {
        let check = |pattern: &str, value: &str, fits: bool| {
            assert_eq!(found(&[pattern], value).is_some(), fits, "{pattern} {value}");
        };
        check("*", "", true);
        check("*", "anything", true);
        check("files/*", "files/", true);
        check("files/*", "files", false);
        check("*.pdf", "a.pdf", true);
        check("*.pdf", "a.pdf.exe", false);
        check("a*a", "a", false);
        check("a*a", "aa", true);
        check("/v*/users/*/orders", "/v1/users/7/orders", true);
        check("/v*/users/*/orders", "/v1/orders", false);
        check("*b*a*", "xaxbx", false);
        check("*b*a*", "xbxax", true);
        check("a**b", "ab", true);
        check("é*", "ê", false);
        check("*é", "\u{a9}é", true);
    }

    #[test]
    fn the_first_of_the_file_wins_and_not_the_longest() {
        assert_eq!(found(&["a*", "ab*"], "abc"), Some("a*"));
        assert_eq!(found(&["ab*", "a*"], "abc"), Some("ab*"));
        assert_eq!(found(&["*c", "a*", "*"], "abc"), Some("*c"));
        assert_eq!(found(&["a*x*", "a*b*"], "abc"), Some("a*b*"));
    }

    #[test]
    fn a_thousand_wildcards_of_one_length_are_looked_up_and_not_tried() {
        let mut wildcards = Wildcards::default();
        for number in 1_000..2_000 {
            wildcards.push(&format!("tenant-{number}-*"), number);
        }
        assert_eq!(wildcards.lengths.len(), 1);
        assert_eq!(wildcards.find("tenant-1777-x"), Some(&1_777));
        assert_eq!(wildcards.find("tenant-2777-x"), None);
    }
}
