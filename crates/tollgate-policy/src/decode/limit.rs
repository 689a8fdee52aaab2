//! One limit.

use std::collections::HashMap;

use tollgate_core::{Algorithm, Align, Cost, Micros, Quota, QuotaError};

use super::amount::{Amount, At};
use super::cost::CostDraft;
use super::layer::Known;
use super::{Decoder, Fields};
use crate::attribute::AttributeId;
use crate::bounds::{
    FIRST_MAX, NAME_BYTES_MAX, PER_MAX, QUOTE_CHARACTERS_MAX, RATES_MAX, SHARDS_RANGE,
};
use crate::condition::Condition;
use crate::layer::Layer;
use crate::mistake::{Span, quoted};
use crate::rule::{Mode, OnDenied, OnExhausted, OnStoreFailure, Settle, SyncMode};
use crate::yaml::{Kind, Node, Word};

pub(super) const LIMIT_FIELDS: [&str; 19] = [
    "name",
    "when",
    "per",
    "rate",
    "burst",
    "queue",
    "max_delay",
    "algorithm",
    "align",
    "concurrency",
    "lease",
    "cost",
    "on_exhausted",
    "on_denied",
    "mode",
    "on_store_failure",
    "count_denied",
    "sync",
    "shards",
];
pub(super) const FIRST_FIELDS: [&str; 1] = ["first"];
pub(super) const SHARDS_FIELDS: [&str; 2] = ["count", "by"];

/// How long a slot is held by somebody who died, unless the policy says otherwise.
const LEASE: Micros = Micros::from_secs(60);

/// What the policy says of one limit.
#[derive(Debug)]
pub(crate) struct LimitDraft {
    pub(crate) name: Word,
    pub(crate) layer: Layer,
    pub(crate) when: Vec<Condition>,
    /// Each with the attributes that are tried in turn.
    pub(crate) per: Vec<(Span, Vec<AttributeId>)>,
    pub(crate) algorithm: Algorithm,
    pub(crate) how_much: HowMuch,
    pub(crate) tuning: Tuning,
    pub(crate) cost: CostDraft,
    /// Where the response says what it cost, if the cost is only reserved.
    pub(crate) settle: Option<Settle>,
    pub(crate) on_exhausted: OnExhausted,
    pub(crate) on_denied: OnDenied,
    pub(crate) mode: Mode,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) count_denied: bool,
    pub(crate) sync: SyncMode,
    /// Where it says how nodes agree, or is to say.
    pub(crate) sync_span: Span,
    pub(crate) shards: Option<ShardsDraft>,
}

impl LimitDraft {
    /// The name of this limit in a sentence.
    pub(crate) fn owner(&self) -> String {
        format!("limit {:?}", self.name.text)
    }
}

/// How a limit is split.
#[derive(Debug)]
pub(crate) struct ShardsDraft {
    /// Where it says so.
    pub(crate) span: Span,
    pub(crate) count: At<u16>,
    pub(crate) by: AttributeId,
}

/// How much a limit allows.
#[derive(Debug)]
pub(crate) enum HowMuch {
    /// So many in so much time, once or several times over.
    Rates(Vec<Amount<Quota>>),
    /// So many at a time.
    Slots(Amount<u32>),
}

/// What only some algorithms ask for.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// The burst or queue of each rate; none if the rate's own count is meant.
    pub(crate) sizes: Vec<Amount<u32>>,
    pub(crate) max_delay: Option<Micros>,
    pub(crate) align: Align,
    pub(crate) lease: At<Micros>,
}

impl Decoder<'_, '_, '_> {
    /// One limit, the `number`th, after those that have these names. Nothing if it is too broken to
    /// be compiled.
    pub(super) fn limit(
        &mut self,
        node: &Node,
        number: usize,
        names: &mut HashMap<String, Span>,
    ) -> Option<LimitDraft> {
        let numbered = format!("limit {number}");
        let fields = self.fields_of_limit(node, &numbered)?;
        let name = self.name(&fields, &numbered);
        let owner = name.as_ref().map_or(numbered, |name| format!("limit {:?}", name.text));
        if let Some(name) = &name {
            self.check_name(name, &owner, names);
        }
        self.report_unknown_fields(&fields, &owner);
        let layer = self.layer(&fields, &owner);
        let when = fields.get("when").map(|node| self.when(node, &owner));
        let per = fields.get("per").and_then(|node| self.per(node, &owner));
        let algorithm = self.algorithm(&fields, &owner);
        let how_much = self.how_much(&fields, &owner);
        let mode = self.mode(&fields, &owner);
        let on_store_failure = self.on_store_failure(&fields, &owner);
        let count_denied = self.switch(&fields, &owner, "count_denied");
        let sync = self.sync(&fields, &owner);
        let shards = self.shards(&fields, &owner, per.as_deref().unwrap_or_default());
        let cost = self.cost(&fields, &owner);
        let on_exhausted = self.on_exhausted(&fields, &owner, cost.as_ref());
        let on_denied = self.on_denied(&fields, &owner, layer);
        let tuning = self.tuning(&fields, &owner, how_much.as_ref());
        let algorithm = algorithm?;
        let settles = matches!(cost, Some((_, Some(_))));
        self.check_fit(&fields, &owner, algorithm, count_denied.unwrap_or(false));
        if settles {
            self.check_settle(&fields, &owner, algorithm);
        }
        if sync == Some(SyncMode::Leased) {
            self.check_lease(&fields, &owner, algorithm, count_denied.unwrap_or(false), settles);
        }
        let known = Known {
            algorithm,
            per: per.as_deref(),
            how_much: how_much.as_ref(),
            tuning: tuning.as_ref(),
            cost: cost.as_ref(),
            shards: shards.as_ref().and_then(Option::as_ref),
        };
        if let Some(layer) = layer {
            self.check_layer(&fields, &owner, layer, &known);
        }
        let (cost, settle) = cost?;
        Some(LimitDraft {
            name: name?,
            layer: layer?,
            when: when.unwrap_or_default(),
            per: per.unwrap_or_default(),
            algorithm,
            how_much: how_much?,
            tuning: tuning?,
            cost,
            settle,
            on_exhausted: on_exhausted?,
            on_denied: on_denied?,
            mode: mode?,
            on_store_failure: on_store_failure?,
            count_denied: count_denied?,
            sync: sync?,
            sync_span: fields.span("sync"),
            shards: shards?,
        })
    }

    /// The fields, known or not: unknown ones are told once the limit's name is known.
    fn fields_of_limit<'n>(&mut self, node: &'n Node, owner: &str) -> Option<Fields<'n>> {
        if let Kind::Map(entries) = &node.kind {
            return Some(Fields { entries, span: node.span });
        }
        let found = self.described(node);
        let sentence =
            format!("a limit is a map, as in {{name: api, rate: 5/minute}}; found {found}");
        self.mistake(node.span, owner, sentence);
        None
    }

    fn report_unknown_fields(&mut self, fields: &Fields<'_>, owner: &str) {
        for (key, _) in fields.entries() {
            if !LIMIT_FIELDS.contains(&key.text.as_str()) {
                self.unknown_field(key, owner, &LIMIT_FIELDS);
            }
        }
    }

    fn name(&mut self, fields: &Fields<'_>, owner: &str) -> Option<Word> {
        let node = self.required(fields, owner, "name", "login")?;
        let text = self.text(node, owner, "name")?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_plain) {
            let sentence = format!(
                "name {} is not 1 to {NAME_BYTES_MAX} letters, digits, dots, tildes, dashes or \
                 underscores",
                quoted(text)
            );
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(Word { span: node.span, text: text.to_owned() })
    }

    /// No two limits have one name: their counts would be one.
    fn check_name(&mut self, name: &Word, owner: &str, names: &mut HashMap<String, Span>) {
        if let Some(first) = names.get(&name.text) {
            let sentence = format!(
                "another limit has this name, in line {}; names tell counts apart",
                first.line
            );
            self.mistake(name.span, owner, sentence);
        } else {
            names.insert(name.text.clone(), name.span);
        }
    }

    fn per(&mut self, node: &Node, owner: &str) -> Option<Vec<(Span, Vec<AttributeId>)>> {
        if let Kind::Scalar(scalar) = &node.kind
            && !node.is_nothing()
        {
            let sentence = format!("per is a list; write per: [{}]", quoted(&scalar.text));
            self.mistake(node.span, owner, sentence);
            return None;
        }
        let list = self.list(node, owner, "per")?;
        if list.len() > PER_MAX {
            let sentence = format!("per names {} attributes; the most is {PER_MAX}", list.len());
            self.mistake(node.span, owner, sentence);
            return None;
        }
        let mut per: Vec<(Span, Vec<AttributeId>)> = Vec::with_capacity(list.len());
        for node in list {
            let Some(sources) = self.sources(node, owner) else { continue };
            if per.iter().any(|(_, others)| *others == sources) {
                self.mistake(node.span, owner, "per names this twice; once is enough");
                continue;
            }
            per.push((node.span, sources));
        }
        Some(per)
    }

    /// One attribute, or the first of several that is there.
    fn sources(&mut self, node: &Node, owner: &str) -> Option<Vec<AttributeId>> {
        if !matches!(node.kind, Kind::Map(_)) {
            return self.attribute(node, owner, "per").map(|attribute| vec![attribute]);
        }
        let fields = self.fields(node, owner, &FIRST_FIELDS)?;
        let first = self.required(&fields, owner, "first", "[header:x-api-key, client_ip]")?;
        let list = self.list(first, owner, "first")?;
        if list.is_empty() || list.len() > FIRST_MAX {
            let sentence = format!("first names {} attributes, not 1 to {FIRST_MAX}", list.len());
            self.mistake(first.span, owner, sentence);
            return None;
        }
        let read: Vec<_> = list.iter().map(|node| self.attribute(node, owner, "first")).collect();
        read.into_iter().collect()
    }

    /// How the limit counts; `concurrency` needs no further word.
    fn algorithm(&mut self, fields: &Fields<'_>, owner: &str) -> Option<Algorithm> {
        let slots = fields.has("concurrency");
        let Some(node) = fields.get("algorithm") else {
            return Some(if slots { Algorithm::Concurrency } else { Algorithm::default() });
        };
        let mut words = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm)).to_vec();
        words.push(("gcra", Algorithm::TokenBucket));
        let algorithm = self.one_of(node, owner, "algorithm", &words)?;
        if slots && algorithm != Algorithm::Concurrency {
            let sentence = format!("concurrency and algorithm {algorithm} do not go together");
            self.mistake(node.span, owner, sentence);
            return None;
        }
        if !slots && algorithm == Algorithm::Concurrency {
            let sentence =
                "concurrency is missing; write how many at a time, as in concurrency: 10";
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(algorithm)
    }

    fn how_much(&mut self, fields: &Fields<'_>, owner: &str) -> Option<HowMuch> {
        match (fields.get("rate"), fields.get("concurrency")) {
            (Some(rate), None) => self.rates(rate, owner).map(HowMuch::Rates),
            (None, Some(slots)) => {
                let read = &mut |decoder: &mut Decoder<'_, '_, '_>, node: &Node| {
                    decoder.count(node, owner, "concurrency")
                };
                self.amount(slots, owner, "concurrency", read).map(HowMuch::Slots)
            }
            (Some(_), Some(_)) => {
                let sentence = "rate and concurrency are two limits; write a limit for each";
                self.mistake(fields.span("concurrency"), owner, sentence);
                None
            }
            (None, None) => {
                // An algorithm that asks for concurrency has said so already.
                let says_concurrency = fields.get("algorithm").is_some_and(|node| {
                    matches!(&node.kind, Kind::Scalar(scalar) if scalar.text == "concurrency")
                });
                if !says_concurrency {
                    self.required(fields, owner, "rate", "100/minute");
                }
                None
            }
        }
    }

    fn rates(&mut self, node: &Node, owner: &str) -> Option<Vec<Amount<Quota>>> {
        let nodes = match &node.kind {
            Kind::List(list) if list.is_empty() || list.len() > RATES_MAX => {
                let sentence = format!("rate names {} rates, not 1 to {RATES_MAX}", list.len());
                self.mistake(node.span, owner, sentence);
                return None;
            }
            Kind::List(list) => list,
            Kind::Scalar(_) | Kind::Map(_) => std::slice::from_ref(node),
        };
        let read = &mut |decoder: &mut Decoder<'_, '_, '_>, node: &Node| decoder.quota(node, owner);
        let rates: Vec<_> =
            nodes.iter().map(|node| self.amount(node, owner, "rate", read)).collect();
        rates.into_iter().collect()
    }

    /// A rate.
    pub(crate) fn quota(&mut self, node: &Node, owner: &str) -> Option<Quota> {
        let text = self.text(node, owner, "rate")?;
        match text.parse::<Quota>() {
            Ok(quota) => Some(quota),
            Err(error) => {
                let sentence = match (error, rate_in_full(text)) {
                    (QuotaError::NotARate { .. }, Some(meant)) => {
                        format!("rate {} is not a rate; write {meant}", quoted(text))
                    }
                    (QuotaError::NotARate { .. }, None) => {
                        format!("rate {}", QuotaError::NotARate { text: shortened(text) })
                    }
                    (error, _) => format!("rate {}: {error}", quoted(text)),
                };
                self.mistake(node.span, owner, sentence);
                None
            }
        }
    }

    /// A whole number that fits 32 bits.
    pub(crate) fn count(&mut self, node: &Node, owner: &str, field: &str) -> Option<u32> {
        let text = self.text(node, owner, field)?;
        let number = text.parse::<Cost>().ok().map(Cost::units);
        if number.is_none() {
            let sentence =
                format!("{field} {} is not a whole number from 0 to {}", quoted(text), u32::MAX);
            self.mistake(node.span, owner, sentence);
        }
        number
    }

    fn tuning(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
        how_much: Option<&HowMuch>,
    ) -> Option<Tuning> {
        let rates = match how_much {
            Some(HowMuch::Rates(rates)) => Some(rates.len()),
            Some(HowMuch::Slots(_)) => Some(1),
            None => None,
        };
        let field = if fields.has("queue") { "queue" } else { "burst" };
        let sizes = match fields.get(field) {
            Some(node) => self.sizes(node, owner, field, rates),
            None => Some(Vec::new()),
        };
        let max_delay = match fields.get("max_delay") {
            Some(node) => self.duration(node, owner, "max_delay").map(Some),
            None => Some(None),
        };
        let lease = match fields.get("lease") {
            Some(node) => {
                self.duration(node, owner, "lease").map(|value| At { value, span: node.span })
            }
            None => Some(At { value: LEASE, span: fields.span }),
        };
        let words = [("clock", Align::Clock), ("key", Align::Key)];
        let align = match fields.get("align") {
            Some(node) => self.one_of(node, owner, "align", &words),
            None => Some(Align::default()),
        };
        Some(Tuning { sizes: sizes?, max_delay: max_delay?, align: align?, lease: lease? })
    }

    /// The burst or queue of each rate.
    fn sizes(
        &mut self,
        node: &Node,
        owner: &str,
        field: &str,
        rates: Option<usize>,
    ) -> Option<Vec<Amount<u32>>> {
        let nodes = match &node.kind {
            Kind::List(list) => list,
            Kind::Scalar(_) | Kind::Map(_) => std::slice::from_ref(node),
        };
        let read =
            &mut |decoder: &mut Decoder<'_, '_, '_>, node: &Node| decoder.count(node, owner, field);
        let sizes: Vec<_> =
            nodes.iter().map(|node| self.amount(node, owner, field, read)).collect();
        let sizes: Option<Vec<_>> = sizes.into_iter().collect();
        let (sizes, rates) = (sizes?, rates?);
        if sizes.len() != rates {
            let sentence = format!(
                "{field} has {} where rate has {rates}; write one for each rate, as in [10, 100]",
                sizes.len()
            );
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(sizes)
    }

    fn mode(&mut self, fields: &Fields<'_>, owner: &str) -> Option<Mode> {
        let words = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow)];
        match fields.get("mode") {
            Some(node) => self.one_of(node, owner, "mode", &words),
            None => Some(Mode::default()),
        }
    }

    fn on_store_failure(&mut self, fields: &Fields<'_>, owner: &str) -> Option<OnStoreFailure> {
        let words = [
            ("allow", OnStoreFailure::Allow),
            ("deny", OnStoreFailure::Deny),
            ("local", OnStoreFailure::Local),
        ];
        match fields.get("on_store_failure") {
            Some(node) => self.one_of(node, owner, "on_store_failure", &words),
            None => Some(OnStoreFailure::default()),
        }
    }

    fn sync(&mut self, fields: &Fields<'_>, owner: &str) -> Option<SyncMode> {
        let words = [("strict", SyncMode::Strict), ("leased", SyncMode::Leased)];
        match fields.get("sync") {
            Some(node) => self.one_of(node, owner, "sync", &words),
            None => Some(SyncMode::default()),
        }
    }

    /// What is taken ahead must still be worth the same when it is spent, and must be asked for.
    fn check_lease(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
        algorithm: Algorithm,
        count_denied: bool,
        settles: bool,
    ) {
        let span = fields.span("sync");
        if !matches!(algorithm, Algorithm::TokenBucket | Algorithm::FixedWindow) {
            let sentence = format!(
                "sync: leased does not go with {algorithm}; write algorithm: token_bucket or \
                 fixed_window, or sync: strict"
            );
            self.mistake(span, owner, sentence);
        } else if count_denied {
            let sentence = "sync: leased does not go with count_denied, because the store does not \
                            hear of what a node denies; write sync: strict";
            self.mistake(span, owner, sentence);
        } else if settles {
            let sentence = "sync: leased does not go with settle, because what a response costs may \
                            be more than the node has taken ahead; write sync: strict";
            self.mistake(span, owner, sentence);
        }
    }

    /// Settling takes more than was reserved, or gives some of it back, when others have been counted
    /// in between. A log would then hold more than its rate, and those in a queue stay where they are.
    fn check_settle(&mut self, fields: &Fields<'_>, owner: &str, algorithm: Algorithm) {
        use Algorithm::{FixedWindow, SlidingWindow, TokenBucket};
        if !matches!(algorithm, SlidingWindow | TokenBucket | FixedWindow) {
            let sentence = format!(
                "settle does not go with {algorithm}; it is for sliding_window, token_bucket and \
                 fixed_window"
            );
            self.mistake(fields.span("cost"), owner, sentence);
        }
    }

    /// The inner `None` if the limit is not split, the outer if that cannot be read.
    fn shards(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
        per: &[(Span, Vec<AttributeId>)],
    ) -> Option<Option<ShardsDraft>> {
        let Some(node) = fields.get("shards") else { return Some(None) };
        let inner = self.fields(node, owner, &SHARDS_FIELDS)?;
        let count = self.required(&inner, owner, "count", "10");
        let by = self.required(&inner, owner, "by", "client_ip");
        let count = count.and_then(|node| self.shard_count(node, owner));
        let by_node = by?;
        let by = self.attribute(by_node, owner, "by")?;
        if per.iter().any(|(_, sources)| sources.contains(&by)) {
            let name = self.attributes.name(by);
            let sentence = format!(
                "shards go by {name}, and so does per: each count would be on one shard and have \
                 its share only; name another attribute"
            );
            self.mistake(by_node.span, owner, sentence);
            return None;
        }
        Some(Some(ShardsDraft { span: fields.span("shards"), count: count?, by }))
    }

    fn shard_count(&mut self, node: &Node, owner: &str) -> Option<At<u16>> {
        let text = self.text(node, owner, "count")?;
        let (least, most) = (SHARDS_RANGE.start(), SHARDS_RANGE.end());
        let count = text.parse::<Cost>().ok().map(Cost::units);
        if count.is_none_or(|count| !SHARDS_RANGE.contains(&count)) {
            let text = quoted(text);
            let sentence =
                format!("count {text} of shards is not a whole number from {least} to {most}");
            self.mistake(node.span, owner, sentence);
            return None;
        }
        count.map(|count| At { value: count as u16, span: node.span })
    }

    pub(crate) fn switch(&mut self, fields: &Fields<'_>, owner: &str, field: &str) -> Option<bool> {
        match fields.get(field) {
            Some(node) => self.one_of(node, owner, field, &[("true", true), ("false", false)]),
            None => Some(false),
        }
    }

    /// Fields that mean nothing to the limit's algorithm would only look as if they did.
    fn check_fit(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
        algorithm: Algorithm,
        count_denied: bool,
    ) {
        use Algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
        let fits: [(&str, &[Algorithm]); 6] = [
            ("burst", &[TokenBucket]),
            ("queue", &[LeakyBucket]),
            ("max_delay", &[LeakyBucket]),
            ("align", &[FixedWindow]),
            ("lease", &[Concurrency]),
            ("count_denied", &[SlidingWindow, TokenBucket, FixedWindow]),
        ];
        for (field, algorithms) in fits {
            let says_nothing = field == "count_denied" && !count_denied;
            if !fields.has(field) || algorithms.contains(&algorithm) || says_nothing {
                continue;
            }
            let names: Vec<&str> = algorithms.iter().map(|algorithm| algorithm.name()).collect();
            let sentence =
                format!("{field} means nothing to {algorithm}; it is for {}", names.join(", "));
            self.mistake(fields.span(field), owner, sentence);
        }
        if fields.has("shards") && algorithm == LeakyBucket {
            let sentence = "a leaky_bucket cannot be split, because each of several queues would let \
                            a request go on at the same time; take token_bucket";
            self.mistake(fields.span("shards"), owner, sentence);
        }
    }
}

/// The rate that is meant by one like `5/sec`, `10/min` or `100/hr`.
fn rate_in_full(text: &str) -> Option<Quota> {
    let (count, time) = text.split_once('/')?;
    format!("{count}/{}", time_in_full(time)?).parse().ok()
}

/// A time whose unit is shortened in a way that people write and we do not read, in full.
pub(super) fn time_in_full(time: &str) -> Option<String> {
    const UNITS: [(&str, &str); 5] =
        [("sec", "second"), ("min", "minute"), ("hr", "hour"), ("wk", "week"), ("yr", "year")];
    let unit = time.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ' ');
    let number = &time[..time.len() - unit.len()];
    let singular = unit.strip_suffix('s').unwrap_or(unit);
    let (_, full) = UNITS.iter().find(|(short, _)| *short == singular)?;
    Some(format!("{number}{full}"))
}

/// The user's text, cut if it is long, for a sentence that quotes it by itself.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_with_a_unit_that_people_shorten_is_given_in_full() {
        let check = |text: &str, meant: Option<&str>| {
            assert_eq!(rate_in_full(text).map(|rate| rate.to_string()).as_deref(), meant, "{text}");
        };
        check("5/sec", Some("5/second"));
        check("10/min", Some("10/minute"));
        check("100/hr", Some("100/hour"));
        check("1000/90 secs", Some("1000/90s"));
        check("7/2wks", Some("7/14d"));
        check("1/yr", Some("1/year"));
        for text in ["5/minuet", "5/0sec", "5 /min", "-5/min", "sec", "5/", "5/9 9sec", "5/\u{e9}"]
        {
            check(text, None);
        }
    }
}
