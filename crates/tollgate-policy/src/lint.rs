//! What is allowed and probably not meant.
//!
//! A warning is told when the policy does what it says, but hardly what its author wants. Each has
//! a stable code; [`WarningCode`] says what every one of them means.

mod clients;

use tollgate_core::{Algorithm, Quota};

use crate::attribute::{AttributeId, Attributes, Origin, is_secret};
use crate::bounds::LOG_ENTRIES_WARNED;
use crate::compile::size_name;
use crate::condition::{Condition, HIDDEN, Test};
use crate::decode::{Amount, At, By, CostDraft, Document, HowMuch, Key, LimitDraft};
use crate::layer::Layer;
use crate::mistake::{Report, Source, Span, WarningCode, quoted};
use crate::path::Pattern;
use crate::rule::{Mode, SyncMode};
use crate::settings::{Listen, Store};
use crate::tenants::Tenancy;

/// Looks over a policy that has no mistakes.
pub(crate) struct Lint<'c, 't> {
    pub(crate) policy: &'c Source<'t>,
    pub(crate) report: &'c mut Report,
    pub(crate) attributes: &'c Attributes,
    pub(crate) document: &'c Document,
    pub(crate) tenants: Option<Tenancy<'c>>,
}

impl Lint<'_, '_> {
    pub(crate) fn look(&mut self) {
        for limit in &self.document.limits {
            self.varies_at_will(limit);
            self.no_tenants(limit);
            self.gateway_cannot_tell(limit);
            self.always_denied(limit);
            self.log_grows(limit);
            match limit.layer {
                Layer::Request => self.doors(limit),
                _ => self.no_gateway(limit),
            }
            self.client_sets_cost(limit);
            self.tiers(limit);
            self.needs_redis(limit);
        }
        for tier in &self.document.tiers {
            self.unknown_tier(&tier.text, tier.span);
        }
    }

    fn needs_redis(&mut self, limit: &LimitDraft) {
        if !matches!(self.document.settings.store, Store::Memory(_)) {
            return;
        }
        let owner = limit.owner();
        if limit.sync == SyncMode::Leased {
            let sentence = format!(
                "{owner} has sync: leased, which does nothing with store: memory: there every \
                 request is decided here"
            );
            self.warn(limit.sync_span, WarningCode::NeedsRedis, sentence);
        }
        if let Some(shards) = &limit.shards {
            let sentence = format!(
                "{owner} is split into shards, which is of no use with store: memory: it only \
                 denies some callers too early"
            );
            self.warn(shards.span, WarningCode::NeedsRedis, sentence);
        }
    }

    fn warn(&mut self, span: Span, code: WarningCode, sentence: impl Into<String>) {
        self.report.warning(self.policy, span, code, sentence);
    }

    fn varies_at_will(&mut self, limit: &LimitDraft) {
        for (span, sources) in &limit.per {
            let chosen = sources.iter().find(|id| self.is_at_will(**id, &limit.when));
            if let Some(id) = chosen {
                let name = self.attributes.name(*id);
                let sentence = format!(
                    "{} counts by {name}, which a client can change with every request to start \
                     afresh; count by client_ip, or by tenant",
                    limit.owner()
                );
                self.warn(*span, WarningCode::VariesAtWill, sentence);
            }
        }
    }

    /// Whether a client may put what it likes into an attribute and still meet the limit.
    fn is_at_will(&self, id: AttributeId, when: &[Condition]) -> bool {
        let is_checked = self
            .tenants
            .is_some_and(|tenants| tenants.draft.from == id && tenants.strangers().is_none());
        let is_pinned = when.iter().any(|condition| {
            condition.attribute == id
                && match &condition.test {
                    Test::OneOf(_) | Test::Method(_) => true,
                    Test::Path(patterns) => patterns.iter().all(Pattern::is_literal),
                    Test::Host(hosts) => hosts.iter().all(|host| !host.below),
                    _ => false,
                }
        });
        let is_client = Origin::of(self.attributes.name(id)) == Origin::Client;
        is_client && !is_checked && !is_pinned
    }

    fn always_denied(&mut self, limit: &LimitDraft) {
        let counts = self.counts(limit);
        for count in counts.iter().filter(|count| count.most == 0) {
            let (whom, denied) = whose_denied(limit, &[count]);
            let sentence = format!("{} allows nothing{whom}: {denied}", limit.owner());
            self.warn(count.span, WarningCode::AlwaysDenied, sentence);
        }
        let CostDraft::Policy(Amount::Same(cost)) = &limit.cost else { return };
        let units = cost.value.units();
        let shards = limit.shards.as_ref().map_or(1, |shards| u32::from(shards.count.value));
        let is_short = |count: &&Count| count.most > 0 && count.most / shards < units;
        let short: Vec<&Count> = counts.iter().filter(is_short).collect();
        if !short.is_empty() {
            let (whom, denied) = whose_denied(limit, &short);
            let (holds, denied) = match shards {
                1 => ("never holds", denied.as_str()),
                _ => ("has shards that never hold", "callers on those are always denied"),
            };
            let sentence = format!(
                "{} {holds} the {units} units that a request costs{whom}: {denied}",
                limit.owner()
            );
            self.warn(cost.span, WarningCode::AlwaysDenied, sentence);
        }
    }

    /// Every number that bounds what can be taken at once.
    fn counts(&self, limit: &LimitDraft) -> Vec<Count> {
        match &limit.how_much {
            HowMuch::Rates(rates) if limit.tuning.sizes.is_empty() => {
                rates.iter().flat_map(|rate| self.counts_of(rate, Quota::count)).collect()
            }
            HowMuch::Rates(_) => limit
                .tuning
                .sizes
                .iter()
                .flat_map(|size| self.counts_of(size, |size| size))
                .collect(),
            HowMuch::Slots(slots) => self.counts_of(slots, |slots| slots),
        }
    }

    fn counts_of<T: Copy>(&self, amount: &Amount<T>, most: impl Fn(T) -> u32) -> Vec<Count> {
        let count = |at: At<T>, whom| Count { most: most(at.value), span: at.span, whom };
        let by = match amount {
            Amount::Same(at) => return vec![count(*at, None)],
            Amount::By(by) => by,
        };
        let name = self.attributes.name(by.attribute);
        let is_key = self.tenants.is_some_and(|tenants| tenants.draft.from == by.attribute);
        let is_secret = is_key || is_secret(name);
        let values = by.values.iter().map(|keyed| {
            let value = if is_secret { HIDDEN.to_owned() } else { quoted(&keyed.word.text) };
            count(keyed.amount, Some(format!("{name} {value}")))
        });
        let default = by.default.map(|at| count(at, Some(format!("any other {name}"))));
        values.chain(default).collect()
    }

    fn log_grows(&mut self, limit: &LimitDraft) {
        if limit.algorithm != Algorithm::SlidingLog {
            return;
        }
        let shards = limit.shards.as_ref().map_or(1, |shards| u32::from(shards.count.value));
        for count in self.counts(limit) {
            let most = count.most.div_ceil(shards);
            if most <= LOG_ENTRIES_WARNED {
                continue;
            }
            let sentence = format!(
                "{} remembers up to {most} requests for every key; sliding_window remembers two \
                 numbers",
                limit.owner()
            );
            self.warn(count.span, WarningCode::LogGrows, sentence);
        }
    }

    fn doors(&mut self, limit: &LimitDraft) {
        let listen = &self.document.settings.listen;
        let (code, doors) = match limit.algorithm {
            Algorithm::LeakyBucket => (WarningCode::OnlyMeters, open_doors(listen, "http")),
            Algorithm::Concurrency => {
                (WarningCode::SkipsConcurrency, open_doors(listen, "http (forward-auth)"))
            }
            _ if limit.settle.is_some() => {
                (WarningCode::OnlyReserves, open_doors(listen, "http (forward-auth)"))
            }
            _ => return,
        };
        if doors.is_empty() {
            return;
        }
        let (owner, doors) = (limit.owner(), doors.join(", "));
        // Who wrote no door would look for them in vain.
        let why = if listen.is_written { "" } else { "; both are open unless listen is written" };
        let sentence = match code {
            WarningCode::OnlyMeters => format!(
                "{owner} cannot hold requests at these doors, only say for how long to: {doors}{why}"
            ),
            WarningCode::OnlyReserves => format!(
                "{owner} costs what is reserved at these doors, which never see a response: \
                 {doors}{why}"
            ),
            _ => format!(
                "{owner} is skipped at these doors, which never learn when a request ends: \
                 {doors}{why}"
            ),
        };
        self.warn(limit.name.span, code, sentence);
    }

    fn no_gateway(&mut self, limit: &LimitDraft) {
        let settings = &self.document.settings;
        let is_open_unasked = !settings.listen.is_written && !settings.upstream.is_empty();
        if settings.listen.gateway.is_none() && !is_open_unasked {
            let (owner, counted) = (limit.owner(), limit.layer.plural());
            let who = match limit.layer {
                Layer::Stream => "the gateway and the tower layer see",
                _ => "the gateway sees",
            };
            let sentence = format!(
                "{owner} counts {counted}, which only {who}, and listen.gateway is not set"
            );
            self.warn(limit.name.span, WarningCode::GatewayIdle, sentence);
        }
    }

    fn client_sets_cost(&mut self, limit: &LimitDraft) {
        let CostDraft::Attribute(attribute, span) = &limit.cost else { return };
        let name = self.attributes.name(*attribute);
        if Origin::of(name) == Origin::Client {
            let sentence = format!("{} lets the client say in {name} what it costs", limit.owner());
            self.warn(*span, WarningCode::ClientSetsCost, sentence);
        }
    }

    fn tiers(&mut self, limit: &LimitDraft) {
        match &limit.how_much {
            HowMuch::Rates(rates) => {
                for by in rates.iter().filter_map(Amount::by) {
                    self.tiers_of(limit, "rate", by);
                }
            }
            HowMuch::Slots(slots) => {
                if let Some(by) = slots.by() {
                    self.tiers_of(limit, "concurrency", by);
                }
            }
        }
        for by in limit.tuning.sizes.iter().filter_map(Amount::by) {
            self.tiers_of(limit, size_name(limit.algorithm), by);
        }
        if let CostDraft::Policy(Amount::By(by)) = &limit.cost {
            self.tiers_of(limit, "cost", by);
        }
    }

    fn tiers_of<T: Copy>(&mut self, limit: &LimitDraft, field: &str, by: &By<T>) {
        if &**self.attributes.name(by.attribute) != "tier" {
            return;
        }
        for keyed in &by.values {
            self.unknown_tier(&keyed.word.text, keyed.word.span);
        }
        let Some(tenants) = self.tenants.filter(|_| by.default.is_none()) else { return };
        let instead = match (field, tenants.strangers()) {
            ("cost", _) => "costs 1".to_owned(),
            (_, Some(strangers)) => format!("gets what tier {} gets", quoted(strangers)),
            (_, None) => return,
        };
        let is_missing = |tier: &&str| by.find(&Key::Word(tier.as_bytes().into())).is_none();
        for tier in tenants.file.table.tiers().filter(is_missing) {
            let sentence = format!(
                "{}: {field} has nothing for tier {} of the tenants file, which {instead}",
                limit.owner(),
                quoted(tier)
            );
            self.warn(by.span, WarningCode::TierFallsBack, sentence);
        }
    }

    fn unknown_tier(&mut self, tier: &str, span: Span) {
        let Some(tenants) = self.tenants else { return };
        let is_known = tenants.strangers() == Some(tier)
            || tenants.file.table.tiers().any(|known| known == tier);
        if !is_known {
            let sentence = format!("no key of the tenants file has tier {}", quoted(tier));
            self.warn(span, WarningCode::UnknownTier, sentence);
        }
    }
}

/// Doors that answer and let go. Without a `listen` section the first two are open.
fn open_doors(listen: &Listen, http: &'static str) -> Vec<&'static str> {
    let mut doors = Vec::new();
    if listen.http.is_some() || !listen.is_written {
        doors.push(http);
    }
    if listen.grpc.is_some() || !listen.is_written {
        doors.push("grpc");
    }
    if listen.resp.is_some() {
        doors.push("resp");
    }
    doors
}

/// A number that bounds what can be taken at once.
struct Count {
    most: u32,
    span: Span,
    /// Whose requests, as in `tier "free"`; nothing if it is for all.
    whom: Option<String>,
}

/// Whose requests these are, to go on a sentence with, and that they are denied.
fn whose_denied(limit: &LimitDraft, counts: &[&Count]) -> (String, String) {
    let whoms: Option<Vec<&str>> = counts.iter().map(|count| count.whom.as_deref()).collect();
    let (whom, requests) = match whoms.as_deref() {
        Some([only]) => (format!(" for {only}"), "every such request"),
        Some([first, rest @ ..]) => {
            (format!(" for {first} and {} more", rest.len()), "every such request")
        }
        _ => (String::new(), "every request it applies to"),
    };
    let verb = match limit.mode {
        Mode::Enforce => "is",
        Mode::Shadow => "would be",
    };
    (whom, format!("{requests} {verb} denied"))
}
