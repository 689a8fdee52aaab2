//! What a policy says of a key that somebody names.

use tollgate_core::{KeyBuf, Value};

use crate::mistake::quoted;
use crate::policy::Policy;
use crate::rule::{Per, Rule, Source};
use crate::suggest::closest;

/// What a key is counted under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Which of [`Policy::rules`].
    pub rule: usize,
    /// By which of [`Policy::limits`]; several if that goes by something that the key does not tell,
    /// as a tier.
    pub limits: Vec<usize>,
}

impl Policy {
    /// What a key is counted under, or why no request is ever counted under it.
    pub fn named(&self, key: &KeyBuf) -> Result<Named, String> {
        let name = key.limit();
        let rules = || self.rules().iter().map(|rule| &**rule.name());
        let Some(rule) = rules().position(|known| known == name) else {
            let advice = closest(name, rules());
            let advice = advice.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
            return Err(format!("the policy has no limit {}{advice}", quoted(name)));
        };
        let values = key.values();
        let owner = format!("limit {}", quoted(name));
        let limits = self.limits_for(rule, &values).map_err(|why| format!("{owner} {why}"))?;
        Ok(Named { rule, limits })
    }

    fn limits_for(&self, index: usize, values: &[Value<'_>]) -> Result<Vec<usize>, String> {
        let rule = &self.rules()[index];
        let (values, shard) = match values {
            [counted @ .., last] if last.shard_number().is_some() => (counted, last.shard_number()),
            _ => (values, None),
        };
        check_values(rule, values)?;
        let mut limits = self.limits_of_tenant(index, values);
        if limits.is_empty() {
            limits = rule.limits();
        }
        match (rule.shards(), shard) {
            (None, None) => Ok(limits),
            (None, Some(_)) => Err("is not split into shards, and the key names one".to_owned()),
            (Some(shards), Some(number)) if u16::from(number) < shards.count() => {
                let share = |whole: usize| self.share(whole, shards, number);
                Ok(limits.into_iter().map(share).collect())
            }
            (Some(shards), _) => {
                let last = shards.count() - 1;
                Err(format!("is split into shards; end the key with one of :%s0 to :%s{last}"))
            }
        }
    }
}

/// Whether a rule counts by values like these.
fn check_values(rule: &Rule, values: &[Value<'_>]) -> Result<(), String> {
    let per = rule.per();
    if values.len() != per.len() {
        let names: Vec<String> = per.iter().map(names).collect();
        let by = match names.as_slice() {
            [] => "nothing".to_owned(),
            names => names.join(", "),
        };
        return Err(format!("counts by {by}, and the key has {} values", values.len()));
    }
    for (value, per) in values.iter().zip(per) {
        let Some(source) = per.sources().get(usize::from(value.source)) else {
            return Err(format!("tries {}, and the key has a value of another", names(per)));
        };
        match (value.bytes, value.is_secret(), source.is_secret()) {
            (Some(_), false, true) => {
                let name = source.name();
                return Err(format!(
                    "keeps {name} secret; write its hash, %h…, as answers and explain show it"
                ));
            }
            (Some(_), true, false) => {
                let name = source.name();
                return Err(format!(
                    "counts by {name} itself, and a hash of it, as operators are shown under \
                     observe: {{keys: hashed}}, does not tell it; write the value in its place"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn names(per: &Per) -> String {
    per.sources().iter().map(Source::name).collect::<Vec<_>>().join(" or ")
}
