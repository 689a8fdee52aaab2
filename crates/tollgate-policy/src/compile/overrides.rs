//! What single tenants are allowed instead.
//!
//! An override is made into limits once, for every tier that its tenant's keys have: what it does
//! not say is what the limit says for that tier.

use std::collections::HashMap;

use tollgate_core::{Algorithm, Limit, Quota};

use super::{Changed, Compiled, Compiler, make, size_name, too_many_slots, word};
use crate::decode::{Amount, HowMuch, LimitDraft};
use crate::mistake::{Span, quoted};
use crate::suggest::closest;
use crate::tenants::{Override, OverrideSet, Tenancy, Variant};

impl Compiler<'_, '_> {
    pub(super) fn overrides(
        &mut self,
        limits: &[LimitDraft],
        compiled: &Compiled,
    ) -> HashMap<Variant, Box<[Changed]>> {
        let Some(Tenancy { file, source, .. }) = self.tenants else { return HashMap::new() };
        let names: HashMap<&str, usize> =
            limits.iter().enumerate().map(|(place, limit)| (&*limit.name.text, place)).collect();
        // Under a policy that is wrong elsewhere, limits may be missing that are not to blame.
        if !self.report.is_clean() {
            return HashMap::new();
        }
        let mut overrides = HashMap::new();
        let mut told = vec![false; file.sets.len()];
        for (variant, tier) in &file.variants {
            let set = &file.sets[variant.set as usize];
            let change = Change { limits, names: &names, compiled, tier: tier.as_deref() };
            match change.set(self, set) {
                Ok(changed) => drop(overrides.insert(*variant, changed)),
                // The set is told of once, not once for every tier of its tenants.
                Err(told_of) if !told[variant.set as usize] => {
                    told[variant.set as usize] = true;
                    for (span, sentence) in told_of {
                        self.report.mistake(source, span, sentence);
                    }
                }
                Err(_) => {}
            }
        }
        overrides
    }
}

/// Overrides being applied for one tier.
struct Change<'c> {
    limits: &'c [LimitDraft],
    names: &'c HashMap<&'c str, usize>,
    compiled: &'c Compiled,
    tier: Option<&'c str>,
}

type Wrong = Vec<(Span, String)>;

/// The number of a limit, once it has its shares if it is split. What is wrong is told where the
/// override is, not where the shards are.
fn divided(
    compiler: &mut Compiler<'_, '_>,
    draft: &LimitDraft,
    made: Limit,
    rate: Option<Quota>,
    size: u32,
) -> Result<u32, String> {
    compiler.limits.divide(draft, made, rate, size).map_err(|(_, sentence)| sentence)
}

impl Change<'_> {
    fn set(
        &self,
        compiler: &mut Compiler<'_, '_>,
        set: &OverrideSet,
    ) -> Result<Box<[Changed]>, Wrong> {
        let mut changed = Vec::new();
        let mut wrong = Wrong::new();
        for (name, change) in &set.limits {
            let owner = format!("override of {}", quoted(&name.text));
            let outcome = match self.names.get(name.text.as_str()) {
                Some(place) => self.one(compiler, *place, change),
                None => {
                    let names = self.names.keys().copied();
                    let advice = closest(&name.text, names)
                        .map_or(String::new(), |meant| format!("; did you mean {meant}?"));
                    Err(format!("the policy has no limit of this name{advice}"))
                }
            };
            match outcome {
                Ok(rules) => changed.extend(rules),
                Err(sentence) => wrong.push((name.span, format!("{owner}: {sentence}"))),
            }
        }
        changed.sort_unstable_by_key(|changed: &Changed| changed.rule);
        if wrong.is_empty() { Ok(changed.into()) } else { Err(wrong) }
    }

    fn one(
        &self,
        compiler: &mut Compiler<'_, '_>,
        place: usize,
        change: &Override,
    ) -> Result<Vec<Changed>, String> {
        let draft = &self.limits[place];
        let rules = self.compiled.rules_of[place].clone();
        change.fits(draft.algorithm)?;
        match &draft.how_much {
            HowMuch::Slots(slots) => {
                let slots = match change.concurrency {
                    Some(slots) => slots,
                    None => self.value(compiler, "concurrency", slots)?,
                };
                let made = Limit::concurrency(slots, draft.tuning.lease.value);
                let made = made.map_err(|_| too_many_slots(slots))?;
                let limit = divided(compiler, draft, made, None, slots)?;
                Ok(vec![Changed { rule: rules.start as u32, limit }])
            }
            HowMuch::Rates(rates) => {
                let rates = self.rates(compiler, draft, rates, change)?;
                let changed =
                    rules.zip(rates).map(|(rule, limit)| Changed { rule: rule as u32, limit });
                Ok(changed.collect())
            }
        }
    }

    fn rates(
        &self,
        compiler: &mut Compiler<'_, '_>,
        draft: &LimitDraft,
        rates: &[Amount<Quota>],
        change: &Override,
    ) -> Result<Vec<u32>, String> {
        let algorithm = draft.algorithm;
        let sizes = match algorithm {
            Algorithm::LeakyBucket => &change.queue,
            _ => &change.burst,
        };
        for (field, count) in [("rate", change.rate.len()), (size_name(algorithm), sizes.len())] {
            if count != 0 && count != rates.len() {
                let needed = rates.len();
                return Err(format!("{field} has {count} where the limit has {needed}"));
            }
        }
        let mut made = Vec::with_capacity(rates.len());
        for (place, rate) in rates.iter().enumerate() {
            let quota = match change.rate.get(place) {
                Some(quota) => *quota,
                None => self.value(compiler, "rate", rate)?,
            };
            let size = match (sizes.get(place), draft.tuning.sizes.get(place)) {
                (Some(size), _) => Some(*size),
                (None, Some(size)) => Some(self.value(compiler, size_name(algorithm), size)?),
                (None, None) => None,
            };
            let size = size.unwrap_or(quota.count());
            let limit = make(draft, quota, size).map_err(|error| error.to_string())?;
            made.push(divided(compiler, draft, limit, Some(quota), size)?);
        }
        Ok(made)
    }

    /// What the limit itself says for this tier.
    fn value<T: Copy>(
        &self,
        compiler: &Compiler<'_, '_>,
        field: &str,
        amount: &Amount<T>,
    ) -> Result<T, String> {
        if let Some(by) = amount.by() {
            let name = compiler.attributes.name(by.attribute);
            if &**name != "tier" {
                return Err(format!(
                    "{field} must be said too, because the limit has it by {name}"
                ));
            }
        }
        let strangers = compiler.tenants.and_then(|tenants| tenants.strangers());
        let instead = strangers.map(word);
        let key = self.tier.map(word);
        let at = amount.at(key.as_ref(), instead.as_ref());
        at.map(|at| at.value)
            .ok_or_else(|| format!("{field} must be said too: there is no default"))
    }
}
