//! What states are called in Redis.
//!
//! `prefix:{values}:limit`: the braces make a Cluster look at the values alone, so that all limits of
//! one subject lie on one server. Values and names are percent-encoded, so no brace or colon in them
//! is anything but ours, and no two keys share a name.

use smallvec::SmallVec;

use crate::store::INLINE;

/// The names of a request's states, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Names {
    text: String,
    ends: SmallVec<[usize; INLINE]>,
}

/// Stands for the one value of a key if that is empty. No encoded value holds a bare `%e`.
const EMPTY: &str = "%e";

impl Names {
    /// Adds the name of the state whose key is shown as `shown`: `limit:value:value`.
    pub(crate) fn push(&mut self, prefix: &str, shown: &str) {
        let (limit, values) = match shown.split_once(':') {
            None => (shown, ""),
            // One value that is empty is not the same as none.
            Some((limit, "")) => (limit, EMPTY),
            Some(both) => both,
        };
        for part in [prefix, ":{", values, "}:", limit] {
            self.text.push_str(part);
        }
        self.ends.push(self.text.len());
    }

    pub(crate) fn get(&self, place: usize) -> &str {
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[place]]
    }
}

/// The name of something that all nodes share and no caller is counted by: no limit's encoded name
/// begins with a percent sign that is not followed by two hexadecimal digits.
pub(crate) fn of_house(prefix: &str, what: &str) -> String {
    format!("{prefix}:{{%}}:%{what}")
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Key, Value};

    use super::*;

    fn names_of(keys: &[Key<'_>]) -> Vec<String> {
        let mut names = Names::default();
        for key in keys {
            names.push("tollgate", &key.text(|_| 7));
        }
        (0..keys.len()).map(|place| names.get(place).to_owned()).collect()
    }

    #[test]
    fn a_name_reads_prefix_values_limit() {
        let values = [Value::new(b"203.0.113.7"), Value::new(b"a:b{c}\r\n\0")];
        let keys = [
            Key { limit: "login", values: &values[..1] },
            Key { limit: "api", values: &values },
            Key { limit: "everyone", values: &[] },
        ];
        assert_eq!(
            names_of(&keys),
            [
                "tollgate:{203.0.113.7}:login",
                "tollgate:{203.0.113.7:a%3Ab%7Bc%7D%0D%0A%00}:api",
                "tollgate:{}:everyone",
            ]
        );
    }

    #[test]
    fn different_keys_have_different_names() {
        let texts: [&[u8]; 9] = [b"", b"a", b":", b"a:", b"}", b"{", b"}:x", b"%", b"%3A"];
        let mut keys = Vec::new();
        let values: Vec<[Value<'_>; 2]> = texts
            .iter()
            .flat_map(|one| texts.iter().map(|two| [Value::new(one), Value::new(two)]))
            .collect();
        for values in &values {
            for limit in ["a", "b:a", "}:a", "%nodes"] {
                keys.extend([0, 1, 2].map(|count| Key { limit, values: &values[..count] }));
            }
        }
        keys.sort_by_key(|key| key.text(|_| 7));
        keys.dedup();
        let mut names = names_of(&keys);
        names.push(of_house("tollgate", "nodes"));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
