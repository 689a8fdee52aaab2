//! Why a request would go on or not: which limits apply to it, under which keys, what they say, and why
//! the others do not apply.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;
use tollgate_core::{Algorithm, Cost, Decision, Outcome};
use tollgate_policy::{
    Admission, Caller, Charges, Explanation, KnownBy, Request, Rule, Scratch, Standing, SyncMode,
};
use tollgate_store::{Asked, Charge, Taken};

use crate::limiter::{InForce, Limiter, asked, ruled, ruled_out};
use crate::overrides::Override;
use crate::verdict::{Answer, Entry, Ruling, Verdict};

/// A request with everything there is to say about it.
#[derive(Debug)]
pub struct Explained {
    /// Whose it is, if that is known.
    pub tenant: Option<String>,
    /// Of which tier they are, if that is known.
    pub tier: Option<String>,
    /// Who says so.
    pub known_by: KnownBy,
    /// Every limit of the policy, in its order.
    pub limits: Vec<ExplainedLimit>,
    /// What becomes of the request.
    pub verdict: Verdict,
}

/// One limit, and what there is to say of it.
#[derive(Debug)]
pub struct ExplainedLimit {
    /// Its name.
    pub name: String,
    /// Whether it applies.
    pub standing: Stands,
}

/// Whether a limit applies to a request.
#[derive(Debug)]
pub enum Stands {
    /// It does.
    Applies(Applied),
    /// It does not, and why.
    DoesNotApply(String),
}

/// A limit that applies to a request.
#[derive(Debug)]
pub struct Applied {
    /// How much it allows to this key, in words: `5/minute, sliding_log`.
    pub terms: String,
    /// What the key is allowed instead of what the policy says, by an operator's word.
    pub changed: Option<Override>,
    /// The key that it counts under; none if the request was ruled out before it was asked.
    pub key: Option<String>,
    /// What the doors that answer and let go make of it.
    pub note: Option<&'static str>,
    /// How nodes share it.
    pub sync: SyncMode,
    /// Which of its shards the key is of, if it is split.
    pub shard: Option<u8>,
    /// Which of the verdict's answers is its own; none if it was not asked.
    answer: Option<usize>,
}

impl Explained {
    /// Explains a request that `verdict` is the answer to.
    pub fn new(limiter: &Limiter, request: &Request<'_>, verdict: Verdict) -> Self {
        let in_force = &*verdict.policy;
        let policy = &in_force.policy;
        let Caller { tenant, tier, known_by } = policy.caller(request);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let now = limiter.store().shared_now();
        let mut keys = in_force.keys(request, limiter.store()).into_iter();
        let limit = |explanation: Explanation<'_>| ExplainedLimit {
            name: explanation.rule.name().to_string(),
            standing: match explanation.standing {
                Standing::DoesNotApply(why) => Stands::DoesNotApply(why),
                Standing::Applies { limit, cost, shard, .. } => {
                    let rule = explanation.rule;
                    // Of a request with a key that is banned the other limits are not asked.
                    let mut answers = verdict.answers();
                    let asked =
                        answers.position(|answer| answer.rule_number() == explanation.rule_index);
                    let limit = asked.map_or(limit, |place| verdict.taken[place].limit as usize);
                    let key = keys.next();
                    let changed = key.as_deref().and_then(|key| in_force.overrides.of(key, now));
                    Stands::Applies(Applied {
                        terms: terms(in_force, limit, rule, cost) + &among_nodes(rule, shard),
                        changed: changed.cloned(),
                        key,
                        note: at_doors(rule.algorithm()),
                        sync: rule.sync(),
                        shard,
                        answer: asked,
                    })
                }
            },
        };
        let limits = policy.explain(request).into_iter().map(limit).collect();
        Self { tenant: tenant.map(text), tier: tier.map(text), known_by, limits, verdict }
    }

    /// What a limit that applies said; nothing if it was not asked.
    pub fn answer(&self, applied: &Applied) -> Option<Answer<'_>> {
        self.verdict.answers().nth(applied.answer?)
    }
}

/// What a door hands on of something that is known of a request, where people write it as they see it:
/// names of header fields have no case, and a path is matched without its query.
pub fn as_doors_tell<'a>(name: &'a str, value: &'a [u8]) -> (Cow<'a, str>, &'a [u8]) {
    let is_field = name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("header:"));
    let query = value.iter().position(|byte| *byte == b'?').filter(|_| name == "path");
    let name = if is_field { name.to_ascii_lowercase().into() } else { name.into() };
    (name, query.map_or(value, |query| &value[..query]))
}

fn terms(in_force: &InForce, limit: usize, rule: &Rule, cost: Cost) -> String {
    let capacity = in_force.enrolled[limit].limit().capacity();
    let rate = in_force.rate(limit);
    let how_much = rate.map_or_else(|| format!("{capacity} at a time"), |rate| rate.to_string());
    let at_once = rate
        .filter(|rate| rate.count() != capacity)
        .map_or_else(String::new, |_| format!(", {capacity} at once"));
    let cost = if cost == Cost::ONE { String::new() } else { format!(", cost {}", cost.units()) };
    format!("{how_much}{at_once}, {}{cost}", rule.algorithm().name())
}

/// What is different about a limit that nodes share in another way than usual.
fn among_nodes(rule: &Rule, shard: Option<u8>) -> String {
    let sync = match rule.sync() {
        SyncMode::Strict => String::new(),
        SyncMode::Leased => ", leased".to_owned(),
    };
    let shard = rule.shards().zip(shard).map_or_else(String::new, |(shards, number)| {
        format!(", shard {number} of {} by {}", shards.count(), shards.by().name())
    });
    sync + &shard
}

fn at_doors(algorithm: Algorithm) -> Option<&'static str> {
    match algorithm {
        Algorithm::LeakyBucket => {
            Some("held back by the gateway and the layer; other doors only say for how long to")
        }
        Algorithm::Concurrency => Some(
            "skipped by doors that never learn when a request ends: forward-auth, Envoy, the Redis \
             protocol",
        ),
        Algorithm::SlidingWindow
        | Algorithm::TokenBucket
        | Algorithm::FixedWindow
        | Algorithm::SlidingLog => None,
    }
}

impl Limiter {
    /// What would become of a request. Nothing is charged, and nothing is counted: nobody asked but an
    /// operator. Of a request that costs more than one unit above what is left, nobody tells for how
    /// long it would have to wait. Of one with a key that is banned, the limits that it is banned under
    /// answer alone, as they would.
    pub fn peek(&self, request: &Request<'_>) -> Asked<Verdict> {
        let policy = self.in_force();
        let (mut scratch, mut charges) = (Scratch::default(), Charges::new());
        let admission = policy.policy.admit(request, &mut scratch, &mut charges);
        let Admission::Charged = admission else {
            let (ruling, taken) = (ruled_out(&admission), SmallVec::new());
            let policy = Guard::from_inner(Arc::clone(&policy));
            return Asked::Ready(Verdict { ruling, taken, origin: None, policy });
        };
        let costs: Vec<Cost> = charges.iter().map(|charge| charge.cost).collect();
        let bans = policy.override_charges(&mut charges, self.store());
        let places: Vec<(u32, u32)> =
            charges.iter().map(|charge| (charge.rule_index as u32, charge.limit as u32)).collect();
        if !bans.are_none() {
            let entry = |(place, taken): &(usize, Taken)| {
                let (rule, limit) = places[*place];
                Entry { rule, limit, taken: *taken }
            };
            let taken = bans.iter().map(entry).collect();
            let policy = Guard::from_inner(Arc::clone(&policy));
            return Asked::Ready(Verdict { ruling: Ruling::Denied, taken, origin: None, policy });
        }
        let look = |charge| Charge { cost: Cost::PEEK, ..asked(&policy, charge) };
        let asked: Vec<Charge<'_>> = charges.iter().map(look).collect();
        let answers = self.store().take_each(&asked);
        let policy = Arc::clone(&policy);
        answers.map(move |answers| {
            let (mut ruling, mut taken) = (Ruling::Allowed, SmallVec::new());
            let told = answers.taken().iter().zip(costs);
            let told = told.map(|(said, cost)| would_say(said, cost));
            for ((rule, limit), said) in places.into_iter().zip(told) {
                ruling = ruled(ruling, &policy.policy.rules()[rule as usize], &said);
                taken.push(Entry { rule, limit, taken: said });
            }
            Verdict { ruling, taken, origin: None, policy: Guard::from_inner(policy) }
        })
    }
}

/// What a limit that was only looked at would say to a request of this cost.
fn would_say(looked: &Taken, cost: Cost) -> Taken {
    let Some((decision, receipt)) = looked.decision().zip(looked.open_receipt()) else {
        return *looked;
    };
    let Decision { limit, remaining, next_after, .. } = decision;
    let outcome = match cost.units() {
        0 => decision.outcome,
        units if units <= remaining => Outcome::Allowed { delay: decision.delay() },
        units if units > limit => Outcome::TooCostly,
        units => Outcome::Denied { retry_after: next_after.filter(|_| units == remaining + 1) },
    };
    Taken::Decided { decision: Decision { outcome, ..decision }, receipt }
}
