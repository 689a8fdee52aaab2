//! From what the policy says to what a request is matched against.
//!
//! Here everything that depends on several parts of the policy is decided: rates with their bursts,
//! tiers with the tenants file, overrides with the limits they change.

mod overrides;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use smallvec::smallvec;
use tollgate_core::bounds::LOG_ENTRIES_MAX;
use tollgate_core::{Algorithm, Align, Limit, Micros, Quota, QuotaError, Value};

use crate::attribute::{AttributeId, Attributes, Facts, is_secret};
use crate::change::Base;
use crate::condition::Condition;
use crate::decode::{Amount, At, CostDraft, Document, HowMuch, Key, LimitDraft, ListDraft};
use crate::hash::WordMap;
use crate::index::{Index, Set};
use crate::layer::Layer;
use crate::mistake::{Report, Source as Text, Span, quoted};
use crate::request::{Charge, ListEntry};
use crate::rule::{Asked, CostOf, Details, Per, Rule, Source};
use crate::select::Select;
use crate::shards::{Shards, Shares, share};
use crate::tenants::{Tenancy, Variant};

/// What a request is matched against.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compiled {
    pub(crate) rules: Vec<Rule>,
    /// Finds rules.
    pub(crate) index: Index,
    /// By limit, in the order of the policy: where its rules begin and end.
    rules_of: Vec<Range<usize>>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) rates: Vec<Option<Quota>>,
    /// By a limit that is split and over how many shards.
    shares: WordMap<(u32, u16), Shares>,
    pub(crate) exempt: List,
    pub(crate) deny: List,
    /// Which rules have another limit for the keys of a variant.
    pub(crate) overrides: HashMap<Variant, Box<[Changed]>>,
}

impl Compiled {
    /// The limit of one shard of a limit.
    pub(crate) fn share(&self, whole: usize, shards: &Shards, number: u8) -> usize {
        let shares = self.shares.get(&(whole as u32, shards.count()));
        shares.expect("every limit that is split has its shares").limit(number) as usize
    }

    /// Makes of the charge of a whole that of the shard which the caller is on.
    // Apart, so that limits that are not split do not pay for it.
    #[inline(never)]
    pub(crate) fn enter_shard(&self, charge: &mut Charge<'_, '_>, asked: &Asked<'_, '_>) {
        let Some(shards) = charge.rule.shards() else { return };
        let number = shards.number(asked);
        charge.limit = self.share(charge.limit, shards, number);
        charge.values.push(Value::shard(number));
    }
}

/// A rule that has another limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    pub(crate) rule: u32,
    pub(crate) limit: u32,
}

/// `exempt` or `deny`.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    pub(crate) entries: Vec<ListEntry>,
    pub(crate) index: Index,
}

impl List {
    /// The first entry that a request, or what else is asked about, is on.
    pub(crate) fn find(&self, layer: Layer, facts: &Facts<'_>) -> Option<&ListEntry> {
        if self.index.is_empty() {
            return None;
        }
        self.index.first(listed_at(layer), facts).map(|number| &self.entries[number])
    }

    /// How much work that is.
    pub(crate) fn work(&self, layer: Layer, facts: &Facts<'_>) -> usize {
        self.index.work(listed_at(layer), facts)
    }
}

/// Where the entries of lists that are asked are filed: a WebSocket and its messages are what the
/// request was that opened it.
fn listed_at(layer: Layer) -> Layer {
    if layer == Layer::Connection { layer } else { Layer::Request }
}

/// The sources a policy is compiled from.
pub(crate) struct Compiler<'c, 't> {
    policy: &'c Text<'t>,
    report: &'c mut Report,
    attributes: &'c Attributes,
    tenants: Option<Tenancy<'c>>,
    limits: Limits,
    /// What limits count by, each once.
    pers: HashMap<Vec<Vec<AttributeId>>, Arc<[Per]>>,
}

/// Limits, each once.
#[derive(Default)]
struct Limits {
    limits: Vec<Limit>,
    rates: Vec<Option<Quota>>,
    numbers: HashMap<(Limit, Option<Quota>), u32>,
    shares: WordMap<(u32, u16), Shares>,
}

impl Limits {
    fn intern(&mut self, limit: Limit, rate: Option<Quota>) -> u32 {
        *self.numbers.entry((limit, rate)).or_insert_with(|| {
            self.limits.push(limit);
            self.rates.push(rate);
            self.limits.len() as u32 - 1
        })
    }

    /// The number of a limit. If it is split, its shares are there as well; where that is wrong, and
    /// how, if they cannot be.
    fn divide(
        &mut self,
        limit: &LimitDraft,
        made: Limit,
        rate: Option<Quota>,
        size: u32,
    ) -> Result<u32, (Span, String)> {
        let whole = self.intern(made, rate);
        let Some(shards) = &limit.shards else { return Ok(whole) };
        let At { value: count, span } = shards.count;
        if let Some((amount, most)) = too_small(limit, rate, size, count) {
            let sentence = format!("{count} shards cannot share {amount}; write at most {most}");
            return Err((span, sentence));
        }
        let mut limit_of = |number: u16| {
            let rate = rate.map(|rate| {
                Quota::new(share(rate.count(), count, number), rate.period())
                    .expect("the period is that of a rate")
            });
            let size = share(size, count, number);
            let made = match rate {
                Some(rate) => make(limit, rate, size),
                None => Limit::concurrency(size, limit.tuning.lease.value),
            };
            let made = made.map_err(|error| (span, format!("a share of one shard: {error}")))?;
            Ok(self.intern(made, rate))
        };
        let rest = |total: u32| (total % u32::from(count)) as u16;
        let mut ends = [rest(rate.map_or(size, Quota::count)), rest(size)];
        ends.sort_unstable();
        let limits = [limit_of(0)?, limit_of(ends[0])?, limit_of(ends[1])?];
        self.shares.insert((whole, count), Shares { ends, limits });
        Ok(whole)
    }
}

/// What of a limit is too little to be split over `count` shards, if something is: each must have one
/// at least, unless the limit allows nothing to anybody.
fn too_small(
    limit: &LimitDraft,
    rate: Option<Quota>,
    size: u32,
    count: u16,
) -> Option<(String, u32)> {
    let sized = match rate {
        Some(_) => format!("a {} of {size}", size_name(limit.algorithm)),
        None => format!("{size} at a time"),
    };
    let amounts = [rate.map(|rate| (rate.to_string(), rate.count())), Some((sized, size))];
    amounts.into_iter().flatten().find(|(_, most)| (1..u32::from(count)).contains(most))
}

impl<'c, 't> Compiler<'c, 't> {
    pub(crate) fn new(
        policy: &'c Text<'t>,
        report: &'c mut Report,
        attributes: &'c Attributes,
        tenants: Option<Tenancy<'c>>,
    ) -> Self {
        let (limits, pers) = (Limits::default(), HashMap::new());
        Self { policy, report, attributes, tenants, limits, pers }
    }

    pub(crate) fn compile(mut self, document: &mut Document) -> Compiled {
        let mut compiled = Compiled::default();
        let mut conditions = Vec::with_capacity(document.limits.len());
        for limit in &document.limits {
            let first = compiled.rules.len();
            self.limit(limit, &mut compiled.rules);
            let rules = first..compiled.rules.len();
            conditions.extend(compiled.rules[first..].iter().map(|rule| {
                let layers = Layer::ALL.into_iter().filter(|layer| rule.is_asked_at(*layer));
                Set { conditions: limit.when.clone(), layers: layers.collect() }
            }));
            compiled.rules_of.push(rules);
        }
        compiled.index = Index::new(conditions, self.attributes.len());
        compiled.exempt = self.list(std::mem::take(&mut document.exempt));
        compiled.deny = self.list(std::mem::take(&mut document.deny));
        compiled.overrides = self.overrides(&document.limits, &compiled);
        compiled.limits = self.limits.limits;
        compiled.rates = self.limits.rates;
        compiled.shares = self.limits.shares;
        compiled
    }

    fn list(&self, drafts: Vec<ListDraft>) -> List {
        let entries = drafts.iter().map(|draft| {
            let texts = draft.conditions.iter().map(|condition| {
                condition.text(self.attributes, self.is_secret(condition.attribute))
            });
            let text = texts.collect::<Vec<String>>().join(", ");
            let attributes = draft.conditions.iter().map(|condition| condition.attribute).collect();
            ListEntry { place: self.policy.place(draft.span), text, attributes }
        });
        let entries = entries.collect();
        let sets = drafts.into_iter().map(|ListDraft { conditions, .. }| {
            let is_address =
                |condition: &Condition| &**self.attributes.name(condition.attribute) == "client_ip";
            let mut layers = smallvec![Layer::Request];
            if conditions.iter().all(is_address) {
                layers.push(Layer::Connection);
            }
            Set { conditions, layers }
        });
        let sets = sets.collect();
        List { entries, index: Index::new(sets, self.attributes.len()) }
    }

    fn limit(&mut self, limit: &LimitDraft, rules: &mut Vec<Rule>) {
        let per = self.per(limit);
        let shards = limit
            .shards
            .as_ref()
            .map(|draft| Shards { count: draft.count.value, by: self.source(draft.by) });
        for (number, select) in self.selects(limit).into_iter().enumerate() {
            let name: Arc<str> = match number {
                0 => limit.name.text.as_str().into(),
                _ => format!("{}#{}", limit.name.text, number + 1).into(),
            };
            let place = self.policy.place(limit.name.span);
            rules.push(Rule {
                name,
                algorithm: limit.algorithm,
                mode: limit.mode,
                count_denied: limit.count_denied,
                on_store_failure: limit.on_store_failure,
                sync: limit.sync,
                per: Arc::clone(&per),
                limit: select,
                has_own_cost: !matches!(limit.cost, CostDraft::Caller),
                is_sharded: limit.shards.is_some(),
                details: Box::new(Details {
                    place,
                    layer: limit.layer,
                    on_denied: limit.on_denied,
                    cost: self.cost(limit),
                    settle: limit.settle.clone(),
                    on_exhausted: limit.on_exhausted,
                    shards: shards.clone(),
                    base: Base::of(limit, number, self.attributes),
                }),
            });
        }
    }

    /// One for each rate. A limit that has a mistake has none: nobody will match against it.
    fn selects(&mut self, limit: &LimitDraft) -> Vec<Select<u32>> {
        match &limit.how_much {
            HowMuch::Rates(rates) => {
                let sizes = &limit.tuning.sizes;
                let pairs = rates.iter().enumerate().map(|(place, rate)| (rate, sizes.get(place)));
                pairs.filter_map(|(rate, size)| self.select_rate(limit, rate, size)).collect()
            }
            HowMuch::Slots(slots) => self.select_slots(limit, slots).into_iter().collect(),
        }
    }

    fn select_rate(
        &mut self,
        limit: &LimitDraft,
        rate: &Amount<Quota>,
        size: Option<&Amount<u32>>,
    ) -> Option<Select<u32>> {
        let size_name = size_name(limit.algorithm);
        let by_rate = rate.by().map(|by| (by.attribute, by.span));
        let by_size = size.and_then(Amount::by).map(|by| (by.attribute, by.span));
        if let (Some((one, _)), Some((other, span))) = (by_rate, by_size)
            && one != other
        {
            let (one, other) = (self.attributes.name(one), self.attributes.name(other));
            let sentence = format!(
                "rate goes by {one} and {size_name} by {other}; both must go by one attribute"
            );
            self.mistake(limit, span, &sentence);
            return None;
        }
        let Some((attribute, _)) = by_rate.or(by_size) else {
            let size = size.and_then(|size| size.at(None, None));
            return self.rated(limit, rate.at(None, None)?, size).map(Select::Same);
        };
        let keys = self.keys(limit, rate, size);
        let pick = |compiler: &mut Self, key: Option<&Key>, strict: bool| {
            let rate_at = compiler.pick(limit, "rate", rate, attribute, key, strict)?;
            let size_at = match size {
                Some(size) => Some(compiler.pick(limit, size_name, size, attribute, key, strict)?),
                None => None,
            };
            compiler.rated(limit, rate_at, size_at)
        };
        self.select(attribute, &keys, pick)
    }

    /// Every value that rate or size has an entry for.
    fn keys<'a>(
        &mut self,
        limit: &LimitDraft,
        rate: &'a Amount<Quota>,
        size: Option<&'a Amount<u32>>,
    ) -> Vec<&'a Key> {
        let mut keys: Vec<&Key> = Vec::new();
        keys.extend(rate.by().iter().flat_map(|by| by.values.iter().map(|keyed| &keyed.key)));
        for keyed in size.and_then(Amount::by).iter().flat_map(|by| &by.values) {
            match (rate.by(), &keyed.key) {
                (Some(by), key) if by.find(key).is_some() => {}
                (Some(_), Key::Path(_)) => {
                    // Which of two patterns a path belongs to would have two answers.
                    let (field, word) = (size_name(limit.algorithm), quoted(&keyed.word.text));
                    let sentence = format!("{field} names {word}, which rate does not");
                    self.mistake(limit, keyed.word.span, &sentence);
                }
                (_, key) => keys.push(key),
            }
        }
        keys
    }

    fn select_slots(&mut self, limit: &LimitDraft, slots: &Amount<u32>) -> Option<Select<u32>> {
        let by = match slots {
            Amount::Same(slots) => return self.held(limit, *slots).map(Select::Same),
            Amount::By(by) => by,
        };
        let keys: Vec<&Key> = by.values.iter().map(|keyed| &keyed.key).collect();
        self.select(by.attribute, &keys, |compiler, key, strict| {
            let at = compiler.pick(limit, "concurrency", slots, by.attribute, key, strict)?;
            compiler.held(limit, at)
        })
    }

    /// A selection over keys; `pick` makes the limit of a key, or of all others.
    fn select(
        &mut self,
        attribute: AttributeId,
        keys: &[&Key],
        mut pick: impl FnMut(&mut Self, Option<&Key>, bool) -> Option<u32>,
    ) -> Option<Select<u32>> {
        let picked: Vec<Option<u32>> = keys.iter().map(|key| pick(self, Some(key), true)).collect();
        let default = if self.knows_every_value(attribute, keys) {
            // No request has another value, so it does not matter what it would get.
            pick(self, None, false).or(picked.first().copied().flatten())
        } else {
            // A default would mend what is missing for a key, so one sentence is enough.
            let is_complete = picked.iter().all(Option::is_some);
            pick(self, None, is_complete)
        };
        let limits: Vec<u32> = picked.into_iter().collect::<Option<_>>()?;
        let entries = keys.iter().map(|key| (*key).clone()).zip(limits);
        Some(Select::by(attribute, self.attributes.name(attribute), entries, default?))
    }

    /// Whether the keys are all the values the attribute ever has: the tiers of a tenants file from
    /// which strangers are refused.
    fn knows_every_value(&self, attribute: AttributeId, keys: &[&Key]) -> bool {
        let Some(tenants) = self.tenants else { return false };
        let is_tier = &**self.attributes.name(attribute) == "tier";
        is_tier
            && tenants.strangers().is_none()
            && !tenants.file.has_tierless_key
            && tenants.file.table.tiers().all(|tier| keys.contains(&&word(tier)))
    }

    /// The amount for a key, or for all others; a mistake if there is none, unless not `strict`.
    fn pick<T: Copy>(
        &mut self,
        limit: &LimitDraft,
        field: &str,
        amount: &Amount<T>,
        attribute: AttributeId,
        key: Option<&Key>,
        strict: bool,
    ) -> Option<At<T>> {
        let name = Arc::clone(self.attributes.name(attribute));
        let is_tier = &*name == "tier";
        let strangers = self.tenants.and_then(|tenants| tenants.strangers());
        let instead = strangers.filter(|_| is_tier).map(word);
        let picked = amount.at(key, instead.as_ref());
        let (None, Some(by), true) = (picked, amount.by(), strict) else { return picked };
        let missing = match key {
            Some(Key::Word(word)) => {
                format!("for {name} {}", quoted(&String::from_utf8_lossy(word)))
            }
            Some(Key::Path(pattern)) => format!("for path {}", quoted(&pattern.to_string())),
            None => match (self.uncovered_tier(amount), strangers.filter(|_| is_tier)) {
                (Some(tier), _) => format!("for tier {} of the tenants file", quoted(tier)),
                (None, Some(tier)) => {
                    format!("for tier {}, that of requests without a known key", quoted(tier))
                }
                (None, None) => format!("for any other {name}"),
            },
        };
        let advice = if is_tier && self.tenants.is_none() {
            "add default: …, or tenants with unknown: {tier: …}"
        } else {
            "add default: …"
        };
        self.mistake(limit, by.span, &format!("{field} has nothing {missing}; {advice}"));
        None
    }

    /// A tier of the tenants file for which the amount has no entry.
    fn uncovered_tier<T: Copy>(&self, amount: &Amount<T>) -> Option<&'c str> {
        let tenants = self.tenants.filter(|tenants| tenants.strangers().is_none())?;
        let by = amount.by().filter(|by| &**self.attributes.name(by.attribute) == "tier")?;
        tenants.file.table.tiers().find(|tier| by.find(&word(tier)).is_none())
    }

    /// The limit of a rate.
    fn rated(&mut self, limit: &LimitDraft, rate: At<Quota>, size: Option<At<u32>>) -> Option<u32> {
        let size = size.map_or(rate.value.count(), |size| size.value);
        match make(limit, rate.value, size) {
            Ok(made) => self.divided(limit, made, Some(rate.value), size),
            Err(error) => {
                self.mistake(limit, rate.span, &error.to_string());
                None
            }
        }
    }

    /// The number of a limit, once it has its shares if it is split.
    fn divided(
        &mut self,
        limit: &LimitDraft,
        made: Limit,
        rate: Option<Quota>,
        size: u32,
    ) -> Option<u32> {
        let divided = self.limits.divide(limit, made, rate, size);
        divided.map_err(|(span, what)| self.mistake(limit, span, &what)).ok()
    }

    /// The limit of a number of slots.
    fn held(&mut self, limit: &LimitDraft, slots: At<u32>) -> Option<u32> {
        let lease = limit.tuning.lease;
        match Limit::concurrency(slots.value, lease.value) {
            Ok(made) => self.divided(limit, made, None, slots.value),
            Err(error @ QuotaError::PeriodOutOfRange { .. }) => {
                self.mistake(limit, lease.span, &format!("lease: {error}"));
                None
            }
            Err(_) => {
                self.mistake(limit, slots.span, &too_many_slots(slots.value));
                None
            }
        }
    }

    fn per(&mut self, limit: &LimitDraft) -> Arc<[Per]> {
        let attributes: Vec<Vec<AttributeId>> =
            limit.per.iter().map(|(_, attributes)| attributes.clone()).collect();
        if let Some(per) = self.pers.get(&attributes) {
            return Arc::clone(per);
        }
        let is_ours = |source: &Source| {
            self.tenants.is_some() && (&*source.name == "tenant" || &*source.name == "tier")
        };
        let per = limit.per.iter().map(|(_, ids)| {
            let sources: Vec<Source> = ids.iter().map(|id| self.source(*id)).collect();
            Per { always_shared: sources.iter().any(is_ours), sources }
        });
        let per: Arc<[Per]> = per.collect();
        self.pers.insert(attributes, Arc::clone(&per));
        per
    }

    fn source(&self, id: AttributeId) -> Source {
        Source { secret: self.is_secret(id), id, name: Arc::clone(self.attributes.name(id)) }
    }

    /// Whether the attribute's values may be credentials.
    fn is_secret(&self, id: AttributeId) -> bool {
        let is_key = self.tenants.is_some_and(|tenants| tenants.draft.from == id);
        is_key || is_secret(self.attributes.name(id))
    }

    fn cost(&self, limit: &LimitDraft) -> CostOf {
        match &limit.cost {
            CostDraft::Caller => CostOf::Caller,
            CostDraft::Attribute(attribute, _) => CostOf::Attribute(*attribute),
            CostDraft::Policy(Amount::Same(cost)) => CostOf::Policy(Select::Same(cost.value)),
            CostDraft::Policy(Amount::By(by)) => {
                let name = self.attributes.name(by.attribute);
                let entries = by.values.iter().map(|keyed| (keyed.key.clone(), keyed.amount.value));
                // One unit is what a request costs unless somebody says otherwise.
                let default = by.default.map(|default| default.value).unwrap_or_default();
                CostOf::Policy(Select::by(by.attribute, name, entries, default))
            }
        }
    }

    fn mistake(&mut self, limit: &LimitDraft, span: Span, what: &str) {
        self.report.mistake(self.policy, span, format!("{}: {what}", limit.owner()));
    }
}

fn word(text: &str) -> Key {
    Key::Word(text.as_bytes().into())
}

/// Of a lease that was read without a mistake, only the number of slots can be refused.
pub(crate) fn too_many_slots(slots: u32) -> String {
    format!("{slots} at a time are more than are told apart; the most is {LOG_ENTRIES_MAX}")
}

/// What the size of an algorithm's bucket is called.
pub(crate) fn size_name(algorithm: Algorithm) -> &'static str {
    if algorithm == Algorithm::LeakyBucket { "queue" } else { "burst" }
}

/// A limit by rate. The size is its burst or queue; others have none.
fn make(limit: &LimitDraft, rate: Quota, size: u32) -> Result<Limit, QuotaError> {
    limit_of(limit.algorithm, rate, size, limit.tuning.max_delay, limit.tuning.align)
}

/// The same, of an algorithm; what means nothing to it is not looked at.
pub(crate) fn limit_of(
    algorithm: Algorithm,
    rate: Quota,
    size: u32,
    max_delay: Option<Micros>,
    align: Align,
) -> Result<Limit, QuotaError> {
    match algorithm {
        Algorithm::SlidingWindow => Ok(Limit::sliding_window(rate)),
        Algorithm::TokenBucket => Limit::token_bucket(rate, size),
        Algorithm::LeakyBucket => Limit::leaky_bucket(rate, size, max_delay),
        Algorithm::FixedWindow => Ok(Limit::fixed_window(rate, align)),
        Algorithm::SlidingLog => Limit::sliding_log(rate),
        Algorithm::Concurrency => unreachable!("a concurrency limit has no rate"),
    }
}
