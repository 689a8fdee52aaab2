//! A policy on disk, with the files it names.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use tollgate_policy::bounds::{POLICY_BYTES_MAX, TENANTS_BYTES_MAX};
use tollgate_policy::{Mistakes, Policy};

use crate::output::Failure;

/// Why there is no policy.
pub(crate) enum NoPolicy {
    /// The file cannot be read, for a reason that ends a sentence.
    Unreadable(String),
    /// What it says is not a policy.
    Mistakes(Mistakes),
}

/// Reads the policy at `path`. Files it names are looked for beside it.
pub(crate) fn read(path: &Path) -> Result<Policy, NoPolicy> {
    let text = text_of(path, POLICY_BYTES_MAX).map_err(NoPolicy::Unreadable)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut read = |file: &str| text_of(&folder.join(file), TENANTS_BYTES_MAX);
    let name = path.display().to_string();
    Policy::parse(&name, &text, &mut read).map_err(NoPolicy::Mistakes)
}

/// The same for a command that can do nothing without a policy.
pub(crate) fn read_valid(path: &Path) -> Result<Policy, Failure> {
    read(path).map_err(|error| match error {
        NoPolicy::Unreadable(why) => {
            Failure::Failed(format!("{} cannot be read: {why}", path.display()))
        }
        NoPolicy::Mistakes(mistakes) => Failure::Failed(mistakes.to_string()),
    })
}

/// The text of a file, if it is text and not longer than `most`.
fn text_of(path: &Path, most: usize) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    // A file may grow while it is read, or have no length at all, so its length is not asked for.
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > most {
        return Err(format!("it is longer than {most} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        format!("it is not UTF-8 text, at byte {}", error.utf8_error().valid_up_to() + 1)
    })
}
