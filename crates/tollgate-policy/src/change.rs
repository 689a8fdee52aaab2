//! What a single key is allowed instead.
//!
//! It is written with the fields of an override in a tenants file, and means the same. But a key has
//! no tier: what a limit says by tier, or by anything else, must be said by the change too. And a key may
//! be allowed nothing at all.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Algorithm, Align, Limit, Micros, Quota};

use crate::attribute::Attributes;
use crate::bounds::CHANGE_BYTES_MAX;
use crate::compile::{limit_of, size_name, too_many_slots};
use crate::decode::{Amount, Decoder, HowMuch, LimitDraft};
use crate::mistake::{Mistakes, Report, Source, Span};
use crate::policy::Policy;
use crate::tenants::{OVERRIDE_FIELDS, Override, one_override};
use crate::yaml;

const BAN: &str = "ban";

/// What one key is allowed; what is not said stays as its limit says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Change {
    /// How many in how much time.
    pub rate: Option<Quota>,
    /// How many at once, of a token bucket.
    pub burst: Option<u32>,
    /// How many may wait, of a leaky bucket.
    pub queue: Option<u32>,
    /// How many at a time, of a concurrency limit.
    pub concurrency: Option<u32>,
    /// Nothing, whatever the limit says; then the others are not said.
    pub is_ban: bool,
}

impl Change {
    /// Reads a change from JSON or YAML, `{"rate": "900/minute", "burst": 50}`, with one more field if
    /// it is there: a number of milliseconds called `also`.
    pub fn parse(text: &str, also: &'static str) -> Result<(Self, Option<u64>), Mistakes> {
        let mut report = Report::default();
        let source = Source::new("override", text);
        let read = read(&source, &mut report, also);
        report.finish()?;
        Ok(read.expect("what has no mistake was read"))
    }
}

fn read(
    source: &Source<'_>,
    report: &mut Report,
    also: &'static str,
) -> Option<(Change, Option<u64>)> {
    const OWNER: &str = "override";
    if source.text.len() > CHANGE_BYTES_MAX {
        let sentence = format!("an override has at most {CHANGE_BYTES_MAX} bytes");
        report.mistake(source, Span::START, sentence);
        return None;
    }
    let root = yaml::read(source, report).ok()?;
    let mut decoder = Decoder::new(source, report);
    let [rate, burst, queue, concurrency] = OVERRIDE_FIELDS;
    let fields = decoder.fields(&root, OWNER, &[rate, burst, queue, concurrency, BAN, also])?;
    let told = fields.get(also).map(|node| (node.span, decoder.text(node, OWNER, also)));
    let millis = match told {
        Some((span, text)) => {
            let millis = text?.parse().ok();
            if millis.is_none() {
                let sentence = format!("{also} is not a whole number of milliseconds");
                decoder.mistake(span, OWNER, sentence);
            }
            Some(millis?)
        }
        None => None,
    };
    if let Some(node) = fields.get(BAN) {
        let is_alone = OVERRIDE_FIELDS.iter().all(|field| fields.get(field).is_none());
        if decoder.switch(&fields, OWNER, BAN)? && is_alone {
            return Some((Change { is_ban: true, ..Change::default() }, millis));
        }
        let sentence = "ban is true and goes alone; leave it out to allow the key something";
        decoder.mistake(node.span, OWNER, sentence);
        return None;
    }
    let said = one_override(&fields, OWNER, root.span, &mut decoder)?;
    for (field, count) in
        [("rate", said.rate.len()), ("burst", said.burst.len()), ("queue", said.queue.len())]
    {
        if count > 1 {
            // Each rate of a limit has keys of its own.
            let sentence = format!("{field} has {count} where a key has 1");
            decoder.mistake(fields.span(field), OWNER, sentence);
        }
    }
    let change = Change {
        rate: said.rate.first().copied(),
        burst: said.burst.first().copied(),
        queue: said.queue.first().copied(),
        concurrency: said.concurrency,
        is_ban: false,
    };
    Some((change, millis))
}

impl fmt::Display for Change {
    /// As JSON, which [`Change::parse`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = self.rate.map(|rate| format!("\"{rate}\""));
        let numbers =
            [("burst", self.burst), ("queue", self.queue), ("concurrency", self.concurrency)];
        let numbers =
            numbers.into_iter().filter_map(|(field, number)| Some((field, number?.to_string())));
        let ban = self.is_ban.then(|| (BAN, "true".to_owned()));
        let fields = quoted.map(|rate| ("rate", rate)).into_iter().chain(numbers).chain(ban);
        let fields: Vec<String> =
            fields.map(|(field, value)| format!("\"{field}\":{value}")).collect();
        write!(f, "{{{}}}", fields.join(","))
    }
}

impl From<&Change> for Override {
    fn from(change: &Change) -> Self {
        Self {
            rate: change.rate.into_iter().collect(),
            burst: change.burst.into_iter().collect(),
            queue: change.queue.into_iter().collect(),
            concurrency: change.concurrency,
        }
    }
}

/// What a limit says of one of its rates, as far as that is the same for everybody.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    amount: BaseAmount,
    max_delay: Option<Micros>,
    align: Align,
    lease: Micros,
}

#[derive(Clone, Debug)]
enum BaseAmount {
    /// A rate, and its burst or queue unless that goes by the rate.
    Rate(Said<Quota>, Option<Said<u32>>),
    Slots(Said<u32>),
}

/// One for all, or by the attribute of this name.
#[derive(Clone, Debug)]
enum Said<T> {
    Same(T),
    By(Arc<str>),
}

impl<T: Copy> Said<T> {
    fn of(amount: &Amount<T>, attributes: &Attributes) -> Self {
        match amount {
            Amount::Same(amount) => Self::Same(amount.value),
            Amount::By(by) => Self::By(Arc::clone(attributes.name(by.attribute))),
        }
    }

    fn value(&self, field: &str, is_sharded: bool) -> Result<T, String> {
        match self {
            // What it says is for all shards together, and a key is of one of them.
            _ if is_sharded => {
                Err(format!("{field} must be said too, because the limit is split into shards"))
            }
            Self::Same(value) => Ok(*value),
            Self::By(name) => {
                Err(format!("{field} must be said too, because the limit has it by {name}"))
            }
        }
    }
}

impl Base {
    /// What `limit` says of its `number`th rate.
    pub(crate) fn of(limit: &LimitDraft, number: usize, attributes: &Attributes) -> Self {
        let amount = match &limit.how_much {
            HowMuch::Rates(rates) => {
                let size = limit.tuning.sizes.get(number);
                let size = size.map(|size| Said::of(size, attributes));
                BaseAmount::Rate(Said::of(&rates[number], attributes), size)
            }
            HowMuch::Slots(slots) => BaseAmount::Slots(Said::of(slots, attributes)),
        };
        let tuning = &limit.tuning;
        let (max_delay, align, lease) = (tuning.max_delay, tuning.align, tuning.lease.value);
        Self { amount, max_delay, align, lease }
    }

    fn changed(
        &self,
        algorithm: Algorithm,
        change: &Change,
        is_sharded: bool,
    ) -> Result<(Limit, Option<Quota>), String> {
        Override::from(change).fits(algorithm)?;
        match &self.amount {
            BaseAmount::Slots(slots) => {
                let slots = match change.concurrency {
                    Some(slots) => slots,
                    None => slots.value("concurrency", is_sharded)?,
                };
                let made = Limit::concurrency(slots, self.lease);
                Ok((made.map_err(|_| too_many_slots(slots))?, None))
            }
            BaseAmount::Rate(rate, size) => {
                let rate = match change.rate {
                    Some(rate) => rate,
                    None => rate.value("rate", is_sharded)?,
                };
                let size = match (change.burst.or(change.queue), size) {
                    (Some(size), _) => size,
                    (None, Some(size)) => size.value(size_name(algorithm), is_sharded)?,
                    (None, None) => rate.count(),
                };
                let made = limit_of(algorithm, rate, size, self.max_delay, self.align);
                Ok((made.map_err(|error| error.to_string())?, Some(rate)))
            }
        }
    }
}

impl Policy {
    /// The limit of a key, and its rate as it is told, that one of the [`rules`](Self::rules) becomes
    /// by a change; or why the change means nothing to it. A ban is no limit, and is not asked about.
    pub fn changed(&self, rule: usize, change: &Change) -> Result<(Limit, Option<Quota>), String> {
        let rule = &self.rules()[rule];
        let changed = rule.details.base.changed(rule.algorithm, change, rule.is_sharded);
        changed.map_err(|why| format!("override of {:?}: {why}", &*rule.name))
    }
}
