//! `tollgate keys`: what is left to single callers, and what they are allowed instead.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use tollgate::Clock;
use tollgate_core::{KeyBuf, Micros, Quota, Timestamp};

use crate::client::AdminDoor;
use crate::output::{self, Failure, Format, Palette, Tone};

const EXAMPLES: &str = "\
Examples:
  tollgate keys get api:acme
  tollgate keys reset login:203.0.113.7
  tollgate keys list --denied
  tollgate keys list --busy --over minute
  tollgate keys ban api:acme --for 1h
  tollgate keys unban api:acme
  tollgate keys override api:acme --rate 900/minute --for 1h
  tollgate keys override api:acme --remove";

/// Look at single keys of a running server, reset them, ban them, allow them something else
///
/// A key is a limit with the values it counts by, as `tollgate check` and `tollgate explain` show it.
/// Asked is the server's admin door.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What is left to a key
    Get {
        /// The key, such as api:acme
        key: KeyBuf,
        #[command(flatten)]
        door: Door,
    },
    /// Forget what a key has consumed
    Reset {
        /// The key, such as api:acme
        key: KeyBuf,
        #[command(flatten)]
        door: Door,
    },
    /// List keys
    List {
        #[command(flatten)]
        which: Which,
        /// Over how long
        #[arg(long, value_enum, default_value_t, conflicts_with = "overrides")]
        over: Over,
        #[command(flatten)]
        door: Door,
    },
    /// Allow a key nothing
    Ban {
        /// The key, such as api:acme
        key: KeyBuf,
        /// For how long, such as 1h; until `unban` unless said
        #[arg(long = "for", value_name = "TIME")]
        time: Option<Micros>,
        #[command(flatten)]
        door: Door,
    },
    /// Take a ban back: what the policy says counts again
    Unban {
        /// The key, such as api:acme
        key: KeyBuf,
        #[command(flatten)]
        door: Door,
    },
    /// Allow a key something else than the policy does
    Override {
        /// The key, such as api:acme
        key: KeyBuf,
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        door: Door,
    },
}

/// Which keys.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Those denied most often, by this server
    #[arg(long)]
    denied: bool,
    /// Those that send most, to this server
    #[arg(long)]
    busy: bool,
    /// Those that are allowed something else
    #[arg(long)]
    overrides: bool,
}

/// The last minute, hour or day.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Over {
    Minute,
    #[default]
    Hour,
    Day,
}

impl Over {
    const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

/// What a key is allowed.
#[derive(Debug, Args)]
struct Change {
    /// How many in how much time, such as 900/minute
    #[arg(long)]
    rate: Option<Quota>,
    /// How many at once, of a token_bucket
    #[arg(long, value_name = "N")]
    burst: Option<u32>,
    /// How many may wait, of a leaky_bucket
    #[arg(long, value_name = "N")]
    queue: Option<u32>,
    /// How many at a time, of a concurrency limit
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// For how long, such as 1h; until it is removed unless said
    #[arg(long = "for", value_name = "TIME")]
    time: Option<Micros>,
    /// Take it back: what the policy says counts again
    #[arg(long, conflicts_with_all = ["rate", "burst", "queue", "concurrency", "time"])]
    remove: bool,
}

/// Whom to ask.
#[derive(Debug, Args)]
struct Door {
    #[command(flatten)]
    admin: AdminDoor,
    /// For whom to write
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Get { key, door } => {
            let told = door.ask(&format!("GET /v1/keys/{}", in_path(key)), "")?;
            door.show(&told, in_words)
        }
        Command::Reset { key, door } => {
            let told = door.ask(&format!("DELETE /v1/keys/{}", in_path(key)), "")?;
            door.show(&told, |told| match told["was_known"] == true {
                true => format!("{key} begins anew\n"),
                false => format!("{key} had consumed nothing\n"),
            })
        }
        Command::List { which, over, door } if which.denied => {
            let told = door.ask(&format!("GET /v1/keys?denied=1&over={}", over.name()), "")?;
            door.show(&told, |told| frequent(told, "denied", "denied"))
        }
        Command::List { which, over, door } if which.busy => {
            let told = door.ask(&format!("GET /v1/keys?busy=1&over={}", over.name()), "")?;
            door.show(&told, |told| frequent(told, "requests", "requests"))
        }
        Command::List { door, .. } => door.show(&door.ask("GET /v1/overrides", "")?, overrides),
        Command::Ban { key, time, door } => door.show(&ban(&door.admin, key, *time)?, in_words),
        Command::Unban { key, door } => {
            let told = door.ask(&format!("GET /v1/keys/{}", in_path(key)), "")?;
            // What else it may be allowed instead is not taken back by mistake.
            if told["override"]["ban"] != true {
                let other = told["override"].is_object();
                let advice =
                    if other { "; `keys override KEY --remove` ends its override" } else { "" };
                return Err(Failure::Failed(format!("{key} is not banned{advice}")));
            }
            take_back(key, door)
        }
        Command::Override { key, change, door } if change.remove => take_back(key, door),
        Command::Override { key, change, door } => {
            let body = change.body()?;
            let told = door.ask(&format!("PUT /v1/overrides/{}", in_path(key)), &body)?;
            door.show(&told, in_words)
        }
    }
}

/// Has a key allowed nothing, for a time or until that is taken back.
pub(crate) fn ban(door: &AdminDoor, key: &KeyBuf, time: Option<Micros>) -> Result<Value, Failure> {
    let mut body = json!({"ban": true});
    if let Some(time) = time {
        body["ttl_ms"] = time.as_millis_up().into();
    }
    door.ask(&format!("PUT /v1/overrides/{}", in_path(key)), &body.to_string())
}

/// Ends what a key is allowed instead, be it nothing.
fn take_back(key: &KeyBuf, door: &Door) -> Result<(), Failure> {
    let told = door.ask(&format!("DELETE /v1/overrides/{}", in_path(key)), "")?;
    door.show(&told, |_| format!("{key} is allowed what the policy says\n"))
}

/// A key as a part of a path. Of what a key is written with, only percent signs mean something there.
pub(crate) fn in_path(key: &KeyBuf) -> String {
    key.to_string().replace('%', "%25")
}

impl Change {
    fn body(&self) -> Result<String, Failure> {
        let mut body = json!({});
        if let Some(rate) = self.rate {
            body["rate"] = rate.to_string().into();
        }
        let numbers =
            [("burst", self.burst), ("queue", self.queue), ("concurrency", self.concurrency)];
        for (field, number) in numbers {
            if let Some(number) = number {
                body[field] = number.into();
            }
        }
        if body == json!({}) {
            let sentence =
                "say what the key is allowed, for example --rate 900/minute, or --remove";
            return Err(Failure::Usage(sentence.to_owned()));
        }
        if let Some(time) = self.time {
            body["ttl_ms"] = time.as_millis_up().into();
        }
        Ok(body.to_string())
    }
}

impl Door {
    fn ask(&self, request: &str, body: &str) -> Result<Value, Failure> {
        self.admin.ask(request, body)
    }

    fn show(&self, told: &Value, in_words: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        match self.output {
            Format::Text => output::data(in_words(told)),
            Format::Json => output::data(format!("{told:#}\n")),
        }
    }
}

/// What a server told of a key.
fn in_words(told: &Value) -> String {
    let palette = Palette::of_stdout();
    let key = output::visible(told["key"].as_str().unwrap_or_default());
    let mut text = palette.paint(Tone::Strong, &key) + "\n";
    for limit in told["limits"].as_array().into_iter().flatten() {
        let figure = |name: &str| limit[name].as_u64().map_or("?".into(), |it| it.to_string());
        let rate = output::visible(limit["rate"].as_str().unwrap_or("at a time"));
        let mut line = format!("  {rate}: {} of {} left", figure("remaining"), figure("limit"));
        if let Some(wait) = limit["reset_after_ms"].as_u64().filter(|wait| *wait > 0) {
            let wait = output::time(Micros::from_millis(wait));
            line += &format!(", whole again in {wait}");
        }
        if limit["shadow"] == true {
            line += " (shadow)";
        }
        text += &format!("{line}\n");
    }
    if told["override"].is_object() {
        text += &format!("  override: {}\n", change_in_words(&told["override"]));
    }
    text
}

/// What a key is allowed instead: `rate 900/minute, burst 50, ends in 42s`.
fn change_in_words(change: &Value) -> String {
    let ends = change["until_ms"].as_u64().map(|until| {
        let until = Timestamp::from_micros(Micros::from_millis(until).as_micros());
        format!("ends in {}", output::time(until.since(Clock::system().now())))
    });
    let fields = change
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "key" && *name != "until_ms");
    let fields = fields.map(|(name, value)| match value.as_str() {
        None if name == "ban" => "banned".to_owned(),
        Some(text) => output::visible(&format!("{name} {text}")),
        None => output::visible(&format!("{name} {value}")),
    });
    fields.chain(ends).collect::<Vec<_>>().join(", ")
}

/// The keys to which something happened most often, which is the member `counted` of each.
fn frequent(told: &Value, counted: &str, what: &str) -> String {
    let number = |of: &Value| of.as_u64().unwrap_or_default();
    let period = output::time(Micros::from_millis(number(&told["period_ms"])));
    let mut text = format!("{} {what} in the last {period}\n", number(&told[counted]));
    for one in told["keys"].as_array().into_iter().flatten() {
        let key = output::visible(one["key"].as_str().unwrap_or_default());
        text += &format!("{:>10}  {key}", number(&one[counted]));
        if number(&one["error"]) > 0 {
            text += &format!(" (up to {} of them others')", number(&one["error"]));
        }
        if one["obeys"] == false {
            text += " (does not wait as told)";
        }
        text.push('\n');
    }
    text
}

fn overrides(told: &Value) -> String {
    let overrides = told["overrides"].as_array().into_iter().flatten();
    let lines = overrides.map(|one| {
        let key = output::visible(one["key"].as_str().unwrap_or_default());
        format!("{key}: {}\n", change_in_words(one))
    });
    lines.collect()
}
