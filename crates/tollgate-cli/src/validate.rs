//! `tollgate validate`: every mistake in a policy, and what is probably not meant.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tollgate_policy::{Mistake, Mistakes, Place, Policy, Warning};
use tollgate_server::policy_file::{self, Loaded, NoPolicy};

use crate::output::{self, Failure, Format};

const EXAMPLES: &str = "\
Examples:
  tollgate validate policy.yaml
  tollgate validate --output json policies/*.yaml";

/// Check policies: every mistake at once, with its place and what would be right
///
/// Files that a policy names are looked for beside it: tenants, certificates, tokens, the folder of the
/// audit log. One that a server could not use is a mistake. Tenants files may be given as well. Ends
/// with 1 if a policy has a mistake or cannot be read; warnings alone do not fail.
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

/// What became of one of the files.
enum Checked {
    Valid(Box<Loaded>),
    Wrong(NoPolicy),
    /// It is no policy, but the tenants file of this one, which is valid, so it is too.
    TenantsOf(PathBuf),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let checked = check(&arguments.files);
    let files = arguments.files.iter().zip(&checked);
    match arguments.output {
        Format::Text => {
            output::data(files.map(|(file, checked)| in_words(file, checked)).collect::<String>())?;
        }
        Format::Json => {
            let reports = files.map(|(file, checked)| in_json(file, checked)).collect();
            output::data(format!("{:#}\n", Value::Array(reports)))?;
        }
    }
    let is_policy = |checked: &&Checked| !matches!(checked, Checked::TenantsOf(_));
    let policies = checked.iter().filter(is_policy).count();
    let wrong = checked.iter().filter_map(|checked| match checked {
        Checked::Wrong(why) => Some(why),
        Checked::Valid(_) | Checked::TenantsOf(_) => None,
    });
    let sentence = match (&wrong.collect::<Vec<&NoPolicy>>()[..], policies) {
        ([], _) => return Ok(()),
        ([NoPolicy::Mistakes(_)], 1) => "the policy has mistakes".to_owned(),
        ([NoPolicy::Unreadable { .. }], 1) => "the policy cannot be read".to_owned(),
        (wrong, all) => format!("{} of {all} policies are not valid", wrong.len()),
    };
    Err(Failure::Failed(sentence))
}

/// Checks every file. Whoever gives a folder's files gives tenants files among them, and those were
/// checked with the policies that name them.
fn check(files: &[PathBuf]) -> Vec<Checked> {
    let policies: Vec<_> = files.iter().map(|file| policy_file::read_trying(file)).collect();
    let named = files.iter().zip(&policies).filter_map(|(file, policy)| {
        let tenants = policy.as_ref().ok()?.policy.settings().tenants.as_ref()?;
        Some((fs::canonicalize(file.with_file_name(&tenants.file)).ok()?, file.clone()))
    });
    let named: HashMap<PathBuf, PathBuf> = named.collect();
    let checked = files.iter().zip(policies).map(|(file, policy)| {
        let place = fs::canonicalize(file).ok();
        match (place.and_then(|place| named.get(&place)), policy) {
            (Some(by), _) => Checked::TenantsOf(by.clone()),
            (None, Ok(loaded)) => Checked::Valid(Box::new(loaded)),
            (None, Err(why)) => Checked::Wrong(why),
        }
    });
    checked.collect()
}

fn in_words(file: &Path, checked: &Checked) -> String {
    let text = match checked {
        Checked::Valid(loaded) => valid_in_words(file, loaded),
        Checked::Wrong(NoPolicy::Mistakes(mistakes)) => mistakes.to_string(),
        Checked::Wrong(NoPolicy::Unreadable { path, why }) => {
            format!("{}: cannot be read: {why}", path.display())
        }
        Checked::TenantsOf(policy) => {
            format!("{}: valid, the tenants file of {}", file.display(), policy.display())
        }
    };
    text.lines().map(|line| output::visible(line) + "\n").collect()
}

fn valid_in_words(file: &Path, loaded: &Loaded) -> String {
    let policy = &loaded.policy;
    let warnings: Vec<&Warning> = warnings(loaded).collect();
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

fn warnings(loaded: &Loaded) -> impl Iterator<Item = &Warning> {
    loaded.policy.warnings().iter().chain(loaded.descriptors.warnings())
}

/// How many limits are written: those of several rates are one.
fn limits(policy: &Policy) -> usize {
    policy.rules().chunk_by(|one, next| one.limit_name() == next.limit_name()).count()
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn in_json(file: &Path, checked: &Checked) -> Value {
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
    let (unreadable, mistakes, warnings) = match checked {
        Checked::Valid(loaded) => (None, None, warnings(loaded).collect()),
        Checked::Wrong(NoPolicy::Mistakes(mistakes)) => (None, Some(mistakes), Vec::new()),
        Checked::Wrong(NoPolicy::Unreadable { why, .. }) => (Some(why), None, Vec::new()),
        Checked::TenantsOf(_) => (None, None, Vec::new()),
    };
    json!({
        "file": file.display().to_string(),
        "valid": unreadable.is_none() && mistakes.is_none(),
        "unreadable": unreadable,
        "mistakes": mistakes.into_iter().flatten().map(mistake).collect::<Vec<Value>>(),
        "more_mistakes": mistakes.map_or(0, Mistakes::untold),
        "warnings": warnings.into_iter().map(warning).collect::<Vec<Value>>(),
    })
}
