//! `tollgate explain`: which limits a request meets, what they would say, and why others do not
//! apply.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tollgate::explain::{Explained, Stands, as_doors_tell};
use tollgate::http::json::write_explained;
use tollgate::{Answer, Clock, Limiter, MemoryStore, Missing, Outcome, Request, Ruling, Verdict};
use tollgate_core::Cost;
use tollgate_policy::{KnownBy, Layer, Policy};

use crate::output::{self, Failure, Format, Palette, Tone};
use crate::policy_file;

const EXAMPLES: &str = "\
Examples:
  tollgate explain -c policy.yaml method=POST path=/login client_ip=203.0.113.7
  tollgate explain -c policy.yaml --door http path=/api/items header:x-api-key=secret
  tollgate explain -c policy.yaml --layer connection client_ip=203.0.113.7
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
    /// Which way it comes in; unless said http if the policy has an upstream or a gateway, else api
    #[arg(long, value_enum)]
    door: Option<Door>,
    /// What it is
    #[arg(long, value_enum, default_value_t)]
    layer: Kind,
    /// For whom to write
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Door {
    /// Over the API: a limit per something that was not sent does not apply
    Api,
    /// From a client over HTTP, as at the gateway: all who lack it are counted together
    #[value(alias = "gateway")]
    Http,
}

impl Door {
    /// The one that the policy's requests come in by, as far as it says.
    fn of(policy: &Policy) -> Self {
        let settings = policy.settings();
        let has_gateway = settings.listen.gateway.is_some() || !settings.upstream.is_empty();
        if has_gateway { Self::Http } else { Self::Api }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Http => "http",
        }
    }

    /// Whom what is told is told, behind the door's name.
    const fn whose(self) -> &'static str {
        match self {
            Self::Api => "as a caller of the API is told",
            Self::Http => "as a client of the gateway is told",
        }
    }
}

/// What limits of the different layers of a policy count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A request
    #[default]
    Request,
    /// A connection to the gateway, of which only client_ip is known
    Connection,
    /// A WebSocket that is being opened
    Websocket,
    /// A message that a client sends over a WebSocket, of so many bytes=…
    Message,
    /// An event or a gRPC message that passes, of so many bytes=…, direction=up or down
    Stream,
}

impl Kind {
    const fn layer(self) -> Layer {
        match self {
            Self::Request => Layer::Request,
            Self::Connection => Layer::Connection,
            Self::Websocket => Layer::Socket,
            Self::Message => Layer::Message,
            Self::Stream => Layer::Stream,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Connection => "connection",
            Self::Websocket => "websocket",
            Self::Message => "message",
            Self::Stream => "stream",
        }
    }
}

/// What is asked about.
#[derive(Clone, Copy, Debug)]
struct Asked {
    door: Door,
    kind: Kind,
}

impl Asked {
    fn of(arguments: &Arguments, policy: &Policy) -> Result<Self, Failure> {
        let kind = arguments.layer;
        let door = match (arguments.door, kind) {
            (door, Kind::Request) => door.unwrap_or_else(|| Door::of(policy)),
            (None | Some(Door::Http), _) => Door::Http,
            (Some(Door::Api), _) => {
                let name = kind.name();
                let sentence = format!(
                    "--layer {name} is nothing that the API is asked about; leave --door api out"
                );
                return Err(Failure::Usage(sentence));
            }
        };
        Ok(Self { door, kind })
    }

    fn in_words(self) -> String {
        let Self { door, kind } = self;
        format!("door {}, layer {}: {}\n", door.name(), kind.name(), door.whose())
    }
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
    let asked = Asked::of(arguments, &policy)?;
    let missing = match asked.door {
        Door::Api => Missing::Skip,
        Door::Http => Missing::Shared,
    };
    let (cost, layer) = (arguments.cost, asked.kind.layer());
    let request = Request { cost, missing, layer, ..Request::new(&attributes) };
    let limiter = limiter_of(policy)?;
    let verdict = limiter.check(&request);
    let explained = Explained::new(&limiter, &request, verdict);
    match arguments.output {
        Format::Text => output::data(asked.in_words() + &in_words(&explained)),
        Format::Json => output::data(format!("{:#}\n", in_json(asked, &explained))),
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
        Outcome::Allowed { delay } => format!("allowed after {}", output::time(delay)),
        Outcome::Denied { retry_after: Some(wait) } => format!("denied for {}", output::time(wait)),
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

fn in_json(asked: Asked, explained: &Explained) -> Value {
    let mut text = Vec::new();
    write_explained(&mut text, explained);
    let mut told: Value = serde_json::from_slice(&text).expect("what we write is JSON");
    (told["door"], told["layer"]) = (json!(asked.door.name()), json!(asked.kind.name()));
    told
}
