//! What is allowed and probably not meant.
//!
//! A warning is told when the policy does what it says, but hardly what its author wants. Each has
//! a stable code; [`WarningCode`] says what every one of them means.

use tollgate_core::{Algorithm, Cost};

use crate::attribute::{AttributeId, Attributes, Origin};
use crate::bounds::LOG_ENTRIES_WARNED;
use crate::condition::{Condition, Test};
use crate::decode::{Amount, At, By, CostDraft, Document, HowMuch, Key, LimitDraft};
use crate::mistake::{Report, Source, Span, WarningCode, quoted};
use crate::path::Pattern;
use crate::settings::Listen;
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
            self.always_denied(limit);
            self.log_grows(limit);
            self.doors(limit);
            self.client_sets_cost(limit);
            self.tiers(limit);
        }
        for tier in &self.document.tiers {
            self.unknown_tier(&tier.text, tier.span);
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
        let counts = counts(limit);
        for count in counts.iter().filter(|count| count.value == 0) {
            let sentence =
                format!("{} allows nothing here: every request is denied", limit.owner());
            self.warn(count.span, WarningCode::AlwaysDenied, sentence);
        }
        let CostDraft::Policy(Amount::Same(cost)) = &limit.cost else { return };
        let least = counts.iter().map(|count| count.value).min().unwrap_or(u32::MAX);
        if cost.value > Cost::new(least) && least > 0 {
            let sentence = format!(
                "{} never holds the {} units a request costs: every request is denied",
                limit.owner(),
                cost.value.units()
            );
            self.warn(cost.span, WarningCode::AlwaysDenied, sentence);
        }
    }

    fn log_grows(&mut self, limit: &LimitDraft) {
        if limit.algorithm != Algorithm::SlidingLog {
            return;
        }
        for count in counts(limit).iter().filter(|count| count.value > LOG_ENTRIES_WARNED) {
            let sentence = format!(
                "{} remembers up to {} requests for every key; sliding_window remembers two numbers",
                limit.owner(),
                count.value
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
            _ => return,
        };
        if doors.is_empty() {
            return;
        }
        let (owner, doors) = (limit.owner(), doors.join(", "));
        let sentence = match code {
            WarningCode::OnlyMeters => format!(
                "{owner} cannot hold requests at these doors, only say for how long to: {doors}"
            ),
            _ => format!(
                "{owner} is skipped at these doors, which never learn when a request ends: {doors}"
            ),
        };
        self.warn(limit.name.span, code, sentence);
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
    }

    fn tiers_of<T: Copy>(&mut self, limit: &LimitDraft, field: &str, by: &By<T>) {
        if &**self.attributes.name(by.attribute) != "tier" {
            return;
        }
        for keyed in &by.values {
            self.unknown_tier(&keyed.word.text, keyed.word.span);
        }
        let Some(tenants) = self.tenants.filter(|_| by.default.is_none()) else { return };
        let Some(strangers) = tenants.strangers() else { return };
        let is_missing = |tier: &&str| by.find(&Key::Word(tier.as_bytes().into())).is_none();
        for tier in tenants.file.table.tiers().filter(is_missing) {
            let sentence = format!(
                "{}: {field} has nothing for tier {} of the tenants file, which gets what tier {} \
                 gets",
                limit.owner(),
                quoted(tier),
                quoted(strangers)
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

/// Every number that bounds what can be taken at once.
fn counts(limit: &LimitDraft) -> Vec<At<u32>> {
    let mut counts = Vec::new();
    match &limit.how_much {
        HowMuch::Rates(rates) if limit.tuning.sizes.is_empty() => {
            for rate in rates {
                let ats = amounts(rate).into_iter();
                counts.extend(ats.map(|at| At { value: at.value.count(), span: at.span }));
            }
        }
        HowMuch::Rates(_) => counts.extend(limit.tuning.sizes.iter().flat_map(amounts)),
        HowMuch::Slots(slots) => counts.extend(amounts(slots)),
    }
    counts
}

fn amounts<T: Copy>(amount: &Amount<T>) -> Vec<At<T>> {
    match amount {
        Amount::Same(at) => vec![*at],
        Amount::By(by) => by.values.iter().map(|keyed| keyed.amount).chain(by.default).collect(),
    }
}
