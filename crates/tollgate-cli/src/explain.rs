//! `tollgate explain`: which limits a request meets, what they would say, and why others do not
//! apply.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::Value;
use tollgate::explain::{Explained, Stands, as_doors_tell};
use tollgate::http::json::write_explained;
use tollgate::{Answer, Clock, Limiter, MemoryStore, Missing, Outcome, Request, Ruling, Verdict};
use tollgate_core::Cost;
use tollgate_policy::{KnownBy, Policy};

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

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let policy = policy_file::read_valid(&arguments.config)?;
    let attributes = arguments
        .attributes
        .iter()
        .map(|pair| {
            let named = pair.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) = named.ok_or_else(|| not_a_pair(pair))?;
            Ok(as_doors_tell(name, value.as_bytes()))
        })
        .collect::<Result<Vec<(Cow<'_, str>, &[u8])>, Failure>>()?;
    let attributes: Vec<(&str, &[u8])> =
        attributes.iter().map(|(name, value)| (&**name, *value)).collect();
    let missing = match arguments.door {
        Door::Api => Missing::Skip,
        Door::Http => Missing::Shared,
    };
    let request = Request { cost: arguments.cost, missing, ..Request::new(&attributes) };
    let limiter = limiter_of(policy)?;
    let verdict = limiter.check(&request);
    let explained = Explained::new(&limiter, &request, verdict);
    match arguments.output {
        Format::Text => output::data(in_words(&explained)),
        Format::Json => output::data(format!("{:#}\n", in_json(&explained))),
    }
}

fn not_a_pair(text: &str) -> Failure {
    Failure::Usage(format!("{text:?} is not NAME=VALUE; write for example path=/login"))
}

fn limiter_of(policy: Policy) -> Result<Limiter, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::Failed(error.to_string());
    let store = MemoryStore::new(Clock::system()).map_err(|error| failed(&error))?;
    Limiter::new(policy, Arc::new(store)).map_err(|error| failed(&error))
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

fn in_words(explained: &Explained) -> String {
    let palette = Palette::of_stdout();
    let limits = &explained.limits;
    let width = limits.iter().map(|limit| limit.name.chars().count()).max().unwrap_or(0);
    let mut text = caller_in_words(explained);
    for limit in limits {
        let name = palette.paint(Tone::Strong, &format!("{:width$}", limit.name));
        match &limit.standing {
            Stands::Applies(applied) => {
                text += &format!("{name}  {}\n", applied.terms);
                let key = applied.key.iter().map(|key| format!("key {key}"));
                let said = explained.answer(applied).into_iter().map(|answer| {
                    let tone = if answer.is_allowed() { Tone::Good } else { Tone::Bad };
                    palette.paint(tone, &sentence(&answer))
                });
                for more in key.chain(said).chain(applied.note.map(str::to_owned)) {
                    text += &format!("{:width$}  {more}\n", "");
                }
            }
            Stands::DoesNotApply(why) => {
                let why = format!("does not apply: {}", output::visible(why));
                let why = palette.paint(Tone::Quiet, &why);
                text += &format!("{name}  {why}\n");
            }
        }
    }
    let tone = if explained.verdict.is_allowed() { Tone::Good } else { Tone::Bad };
    text + &format!("{}\n", palette.paint(tone, &ruling_in_words(&explained.verdict)))
}

/// A line of its own, unless nobody spoke of tenants.
fn caller_in_words(caller: &Explained) -> String {
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

fn in_json(explained: &Explained) -> Value {
    let mut text = Vec::new();
    write_explained(&mut text, explained);
    serde_json::from_slice(&text).expect("what we write is JSON")
}
