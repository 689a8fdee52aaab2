//! `tollgate validate`: every mistake in a policy, and what is probably not meant.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tollgate_policy::{Mistake, Mistakes, Place, Policy, Warning};

use crate::output::{self, Failure, Format};
use crate::policy_file::{self, NoPolicy};

const EXAMPLES: &str = "\
Examples:
  tollgate validate policy.yaml
  tollgate validate --output json policies/*.yaml";

/// Check policies: every mistake at once, with its place and what would be right
///
/// Files that a policy names are looked for beside it. Ends with 1 if a policy has a mistake or
/// cannot be read; warnings alone do not fail.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The policies
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// For whom to write
    #[arg(long, value_enum, default_value_t)]
    output: Format,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut reports = Vec::new();
    let mut wrong = Vec::new();
    for file in &arguments.files {
        let policy = policy_file::read(file);
        match arguments.output {
            Format::Text => output::data(in_words(file, &policy))?,
            Format::Json => reports.push(in_json(file, &policy)),
        }
        wrong.extend(policy.err());
    }
    if arguments.output == Format::Json {
        output::data(format!("{:#}\n", Value::Array(reports)))?;
    }
    let sentence = match (&wrong[..], arguments.files.len()) {
        ([], _) => return Ok(()),
        ([NoPolicy::Mistakes(_)], 1) => "the policy has mistakes".to_owned(),
        ([NoPolicy::Unreadable(_)], 1) => "the policy cannot be read".to_owned(),
        (wrong, all) => format!("{} of {all} policies are not valid", wrong.len()),
    };
    Err(Failure::Failed(sentence))
}

fn in_words(file: &Path, policy: &Result<Policy, NoPolicy>) -> String {
    let text = match policy {
        Ok(policy) => valid_in_words(file, policy),
        Err(NoPolicy::Mistakes(mistakes)) => mistakes.to_string(),
        Err(NoPolicy::Unreadable(why)) => format!("{}: cannot be read: {why}", file.display()),
    };
    text.lines().map(|line| output::visible(line) + "\n").collect()
}

fn valid_in_words(file: &Path, policy: &Policy) -> String {
    let warnings = policy.warnings();
    let mut text: String = warnings.iter().map(|warning| format!("{warning}\n")).collect();
    text += &format!("{}: valid, {}", file.display(), counted(limits(policy), "limit"));
    if policy.tenant_keys() > 0 {
        text += &format!(", {}", counted(policy.tenant_keys(), "API key"));
    }
    if !warnings.is_empty() {
        text += &format!(", {}", counted(warnings.len(), "warning"));
    }
    text
}

/// How many limits are written: those of several rates are one.
fn limits(policy: &Policy) -> usize {
    policy.rules().chunk_by(|one, next| one.limit_name() == next.limit_name()).count()
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn in_json(file: &Path, policy: &Result<Policy, NoPolicy>) -> Value {
    let at =
        |place: &Place| json!({"file": place.file, "line": place.line, "column": place.column});
    let mistake =
        |mistake: &Mistake| json!({"at": at(mistake.place()), "message": mistake.sentence()});
    let warning = |warning: &Warning| {
        json!({
            "code": warning.code().name(),
            "at": at(warning.place()),
            "message": warning.sentence(),
        })
    };
    let (unreadable, mistakes, warnings) = match policy {
        Ok(policy) => (None, None, policy.warnings()),
        Err(NoPolicy::Mistakes(mistakes)) => (None, Some(mistakes), &[][..]),
        Err(NoPolicy::Unreadable(why)) => (Some(why), None, &[][..]),
    };
    json!({
        "file": file.display().to_string(),
        "valid": policy.is_ok(),
        "unreadable": unreadable,
        "mistakes": mistakes.into_iter().flatten().map(mistake).collect::<Vec<Value>>(),
        "more_mistakes": mistakes.map_or(0, Mistakes::untold),
        "warnings": warnings.iter().map(warning).collect::<Vec<Value>>(),
    })
}
