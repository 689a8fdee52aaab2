//! `tollgate check`: asks a running server.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use tollgate_core::{Cost, Micros};

use crate::client::{Reply, Server};
use crate::output::{self, Failure, Format, Palette, Tone};

const EXAMPLES: &str = "\
Examples:
  tollgate check user=42
  tollgate check --cost 500 tenant=acme path=/v1/chat/completions
  tollgate check --server http://10.0.0.5:8080 --token-file token.txt --output json user=42
  tollgate check user=42 && ./send-the-mail";

/// Ask a running server whether a request may go on
///
/// Ends with 0 if it may and with 3 if it may not.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What is known of the request
    #[arg(value_name = "NAME=VALUE")]
    attributes: Vec<String>,
    /// Where the server takes decisions over HTTP
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// What the request costs; 0 only looks
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    cost: Cost,
    /// The token that the server asks for
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// For whom to write
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut attributes = Map::new();
    for pair in &arguments.attributes {
        let named = pair.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, value) = named.ok_or_else(|| {
            Failure::Usage(format!("{pair:?} is not NAME=VALUE; write for example user=42"))
        })?;
        if attributes.insert(name.to_owned(), value.into()).is_some() {
            return Err(Failure::Usage(format!("{name:?} is given twice; once is enough")));
        }
    }
    let body = json!({"attributes": attributes, "cost": arguments.cost.units()}).to_string();
    let server = Server { url: &arguments.server, token_file: arguments.token_file.as_deref() };
    let Reply { status, body } = server.ask("POST /v1/check", &body)?;
    let verdict: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Some(is_allowed) = verdict["allowed"].as_bool() else {
        let why = verdict["detail"].as_str().unwrap_or("what it answered is not a decision");
        let why = output::visible(why);
        return Err(Failure::Failed(format!("{} answered {status}: {why}", arguments.server)));
    };
    match arguments.output {
        Format::Text => output::data(in_words(&verdict))?,
        Format::Json => output::data(format!("{verdict:#}\n"))?,
    }
    if is_allowed { Ok(()) } else { Err(Failure::Denied) }
}

fn in_words(verdict: &Value) -> String {
    let palette = Palette::of_stdout();
    let is_allowed = verdict["allowed"] == true;
    let wait = |of: &Value| {
        let millis = of["retry_after_ms"].as_u64()?;
        Some(format!("in {}", output::time(Micros::from_millis(millis))))
    };
    let said = match (is_allowed, verdict["reason"].as_str(), wait(verdict)) {
        (true, ..) => "allowed".to_owned(),
        (false, Some(reason), _) => format!("refused: {}", output::visible(reason)),
        (false, None, Some(wait)) => format!("denied; it would be allowed {wait}"),
        (false, None, None) => "denied".to_owned(),
    };
    let tone = if is_allowed { Tone::Good } else { Tone::Bad };
    let mut text = palette.paint(tone, &said) + "\n";
    for limit in verdict["limits"].as_array().into_iter().flatten() {
        let figure = |name: &str| limit[name].as_u64().map_or("?".into(), |it| it.to_string());
        let key = output::visible(limit["key"].as_str().unwrap_or_default());
        let mut line = format!("  {key}: {} of {} left", figure("remaining"), figure("limit"));
        if limit["allowed"] == false {
            line += if limit["shadow"] == true { ", would deny (shadow)" } else { ", denies" };
        }
        text += &format!("{line}\n");
    }
    if let Some(lease) = verdict["lease"].as_str() {
        text += &format!("  lease: {}\n", output::visible(lease));
    }
    text
}
