//! `tollgate explain`: which limits a request meets, what they would say, and why others do not
//! apply.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tollgate::{Answer, Clock, Limiter, MemoryStore, Missing, Outcome, Request, Ruling, Verdict};
use tollgate_core::{Algorithm, Cost, Micros};
use tollgate_policy::{Caller, Explanation, KnownBy, Policy, Rule, Standing, SyncMode};

use crate::output::{self, Failure, Format, Palette, Tone};
use crate::policy_file;

const EXAMPLES: &str = "\
Examples:
  tollgate explain -c policy.yaml method=POST path=/login client_ip=203.0.113.7
  tollgate explain -c policy.yaml --door http path=/api/items header:x-api-key=secret
  tollgate explain -c policy.yaml --cost 500 --output json tenant=acme path=/v1/chat/completions";

/// Say which limits apply to a request, under which key, what they would decide, and why the
/// others do not apply
///
/// Nothing is asked of a running server: what is decided is what a first request would be told.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The policy
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// What is known of the request: client_ip=…, path=…, header:x-api-key=…, anything=…
    #[arg(value_name = "NAME=VALUE")]
    attributes: Vec<String>,
    /// What the request costs
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    cost: Cost,
    /// Which way the request comes in
    #[arg(long, value_enum, default_value_t)]
    door: Door,
    /// For whom to write
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Door {
    /// Over the API: a limit per something that was not sent does not apply
    #[default]
    Api,
    /// From a client over HTTP: all who lack it are counted together
    Http,
}

/// Whom the request is taken for.
struct Taken {
    tenant: Option<String>,
    tier: Option<String>,
    known_by: KnownBy,
}

/// One limit and what there is to say of it.
struct Line {
    name: String,
    told: Told,
}

enum Told {
    /// What is said of it and how it sounds; nothing if the request was ruled out before it was
    /// asked.
    Applies {
        terms: String,
        said: Option<Said>,
        note: Option<&'static str>,
        sync: SyncMode,
        shard: Option<u8>,
    },
    DoesNotApply(String),
}

struct Said {
    key: String,
    sentence: String,
    tone: Tone,
    figures: Value,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let policy = policy_file::read_valid(&arguments.config)?;
    let attributes = arguments
        .attributes
        .iter()
        .map(|pair| {
            let named = pair.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) = named.ok_or_else(|| not_a_pair(pair))?;
            Ok((as_doors_call_it(name), as_doors_hand_it_on(name, value).as_bytes()))
        })
        .collect::<Result<Vec<(String, &[u8])>, Failure>>()?;
    let attributes: Vec<(&str, &[u8])> =
        attributes.iter().map(|(name, value)| (&**name, *value)).collect();
    let missing = match arguments.door {
        Door::Api => Missing::Skip,
        Door::Http => Missing::Shared,
    };
    let request = Request { cost: arguments.cost, missing, ..Request::new(&attributes) };
    let limiter = limiter_of(policy)?;
    let verdict = limiter.check(&request);
    let (caller, lines) = limiter.with_policy(|policy| {
        let caller = taken_for(policy, &request);
        (caller, explained(policy, &limiter, &request, &verdict))
    });
    match arguments.output {
        Format::Text => output::data(in_words(&caller, &lines, &verdict)),
        Format::Json => output::data(format!("{:#}\n", in_json(&caller, &lines, &verdict))),
    }
}

fn not_a_pair(text: &str) -> Failure {
    Failure::Usage(format!("{text:?} is not NAME=VALUE; write for example path=/login"))
}

/// Header names have no case; the doors hand them on in small letters.
fn as_doors_call_it(name: &str) -> String {
    if name.to_ascii_lowercase().starts_with("header:") {
        name.to_ascii_lowercase()
    } else {
        name.to_owned()
    }
}

/// A path is matched without its query, which people leave on when they paste one.
fn as_doors_hand_it_on<'v>(name: &str, value: &'v str) -> &'v str {
    let query = value.find('?').filter(|_| name == "path");
    query.map_or(value, |query| &value[..query])
}

fn limiter_of(policy: Policy) -> Result<Limiter, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::Failed(error.to_string());
    let store = MemoryStore::new(Clock::system()).map_err(|error| failed(&error))?;
    Limiter::new(policy, Arc::new(store)).map_err(|error| failed(&error))
}

fn taken_for(policy: &Policy, request: &Request<'_>) -> Taken {
    let Caller { tenant, tier, known_by } = policy.caller(request);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Taken { tenant: tenant.map(text), tier: tier.map(text), known_by }
}

fn explained(
    policy: &Policy,
    limiter: &Limiter,
    request: &Request<'_>,
    verdict: &Verdict,
) -> Vec<Line> {
    // A request that was ruled out has neither keys nor answers.
    let mut said = limiter.keys(request).into_iter().zip(verdict.answers()).map(|(key, answer)| {
        let tone = if answer.is_allowed() { Tone::Good } else { Tone::Bad };
        Said { key, sentence: sentence(&answer), tone, figures: figures(&answer) }
    });
    let mut line = |explanation: Explanation<'_>| Line {
        name: explanation.rule.name().to_string(),
        told: match explanation.standing {
            Standing::DoesNotApply(why) => Told::DoesNotApply(why),
            Standing::Applies { limit, cost, shard, .. } => {
                let rule = explanation.rule;
                let terms =
                    terms(policy, limit, rule.algorithm().name(), cost) + &among_nodes(rule, shard);
                let (note, sync) = (at_doors(rule.algorithm()), rule.sync());
                Told::Applies { terms, said: said.next(), note, sync, shard }
            }
        },
    };
    policy.explain(request).into_iter().map(&mut line).collect()
}

/// What the doors that answer and let go make of a limit.
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

fn terms(policy: &Policy, limit: usize, algorithm: &str, cost: Cost) -> String {
    let rate = policy.rate(limit).map_or_else(
        || format!("{} at a time", policy.limits()[limit].capacity()),
        |rate| rate.to_string(),
    );
    let capacity = policy.limits()[limit].capacity();
    let at_once = policy
        .rate(limit)
        .filter(|rate| rate.count() != capacity)
        .map_or_else(String::new, |_| format!(", {capacity} at once"));
    let cost = if cost == Cost::ONE { String::new() } else { format!(", cost {}", cost.units()) };
    format!("{rate}{at_once}, {algorithm}{cost}")
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

fn sentence(answer: &Answer<'_>) -> String {
    let Some(decision) = answer.decision() else { return "could not be counted".to_owned() };
    let outcome = match decision.outcome {
        Outcome::Allowed { delay } if delay.is_zero() => "allowed".to_owned(),
        Outcome::Allowed { delay } => format!("allowed after {delay}"),
        Outcome::Denied { retry_after: Some(wait) } => format!("denied for {wait}"),
        Outcome::Denied { retry_after: None } => "denied".to_owned(),
        Outcome::TooCostly => "denied: it costs more than the limit ever holds".to_owned(),
    };
    let shadow = if answer.is_enforced() { "" } else { " (shadow: reported, not enforced)" };
    format!("{outcome}, {} of {} left{shadow}", decision.remaining, decision.limit)
}

fn in_words(caller: &Taken, lines: &[Line], verdict: &Verdict) -> String {
    let palette = Palette::of_stdout();
    let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let mut text = caller_in_words(caller);
    for line in lines {
        let name = palette.paint(Tone::Strong, &format!("{:width$}", line.name));
        match &line.told {
            Told::Applies { terms, said, note, .. } => {
                text += &format!("{name}  {terms}\n");
                let said = said.iter().flat_map(|said| {
                    [format!("key {}", said.key), palette.paint(said.tone, &said.sentence)]
                });
                for more in said.chain(note.map(str::to_owned)) {
                    text += &format!("{:width$}  {more}\n", "");
                }
            }
            Told::DoesNotApply(why) => {
                let why = format!("does not apply: {}", output::visible(why));
                let why = palette.paint(Tone::Quiet, &why);
                text += &format!("{name}  {why}\n");
            }
        }
    }
    let tone = if verdict.is_allowed() { Tone::Good } else { Tone::Bad };
    text + &format!("{}\n", palette.paint(tone, &ruling_in_words(verdict)))
}

/// A line of its own, unless nobody spoke of tenants.
fn caller_in_words(caller: &Taken) -> String {
    let called = |what: &str, name: &Option<String>| match name {
        Some(name) => format!("{what} {}", output::visible(name)),
        None => format!("no {what}"),
    };
    let by = match caller.known_by {
        KnownBy::TenantsFile => "by its key in the tenants file",
        KnownBy::Nobody => "as all without a key of the tenants file",
        KnownBy::Sender if caller.tenant.is_none() && caller.tier.is_none() => {
            return String::new();
        }
        KnownBy::Sender => "as sent",
    };
    let (tenant, tier) = (called("tenant", &caller.tenant), called("tier", &caller.tier));
    format!("caller: {tenant}, {tier}, {by}\n")
}

fn ruling_in_words(verdict: &Verdict) -> String {
    let ruling = match verdict.ruling() {
        Ruling::Allowed if verdict.answers().len() == 0 => "allowed: no limit applies",
        Ruling::Allowed => "allowed",
        Ruling::Denied => "denied",
        Ruling::Uncounted => "denied: a limit could not be counted",
        Ruling::Exempt => "allowed: the request is on the exempt list",
        Ruling::Blocked => "denied: the request is on the deny list",
        Ruling::UnknownKey => "denied: its API key is unknown",
        Ruling::BadCost => "denied: what it says it costs is not a whole number",
    };
    format!("verdict: {ruling}")
}

fn in_json(caller: &Taken, lines: &[Line], verdict: &Verdict) -> Value {
    let line = |line: &Line| match &line.told {
        Told::Applies { said, note, sync, shard, .. } => {
            let key = said.as_ref().map(|said| &said.key);
            let mut told = json!({"name": line.name, "applies": true, "key": key, "note": note});
            if *sync == SyncMode::Leased {
                told["sync"] = json!(sync.name());
            }
            if let Some(number) = shard {
                told["shard"] = json!(number);
            }
            if let (Value::Object(told), Some(Said { figures: Value::Object(figures), .. })) =
                (&mut told, said)
            {
                told.extend(figures.clone());
            }
            told
        }
        Told::DoesNotApply(why) => json!({"name": line.name, "applies": false, "why": why}),
    };
    json!({
        "allowed": verdict.is_allowed(),
        "ruling": verdict.ruling().name(),
        "retry_after_ms": verdict.retry_after().map(Micros::as_millis_up),
        "delay_ms": verdict.delay().as_millis_up(),
        "tenant": caller.tenant,
        "tier": caller.tier,
        "limits": lines.iter().map(line).collect::<Vec<Value>>(),
    })
}

fn figures(answer: &Answer<'_>) -> Value {
    let decision = answer.decision();
    json!({
        "allowed": answer.is_allowed(),
        "limit": decision.map(|decision| decision.limit),
        "remaining": decision.map(|decision| decision.remaining),
        "retry_after_ms": decision.and_then(|decision| decision.retry_after()).map(Micros::as_millis_up),
        "reset_after_ms": decision.map(|decision| decision.reset_after.as_millis_up()),
        "next_after_ms": decision.and_then(|decision| decision.next_after).map(Micros::as_millis_up),
        "delay_ms": decision.map(|decision| decision.delay().as_millis_up()),
        "algorithm": answer.rule().algorithm().name(),
        "rate": answer.rate().map(|rate| rate.to_string()),
        "shadow": !answer.is_enforced(),
    })
}
