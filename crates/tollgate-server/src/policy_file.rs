//! A policy on disk, with the files it names.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use tollgate::Policy;
use tollgate::bounds::{POLICY_BYTES_MAX, TENANTS_BYTES_MAX};

/// Why there is no policy.
#[derive(Debug)]
pub enum NoPolicy {
    /// The file cannot be read, for a reason that ends a sentence.
    Unreadable(String),
    /// What it says is not a policy.
    Mistakes(tollgate::Mistakes),
}

/// Reads the policy at `path`. Files it names are looked for beside it.
pub fn read(path: &Path) -> Result<Policy, NoPolicy> {
    read_noting(path, &mut Vec::new())
}

/// The same, adding every file that was looked for to `looked_for`, also those that are not there.
pub(crate) fn read_noting(path: &Path, looked_for: &mut Vec<PathBuf>) -> Result<Policy, NoPolicy> {
    looked_for.push(path.to_owned());
    let text = text_of(path, POLICY_BYTES_MAX).map_err(NoPolicy::Unreadable)?;
    let mut read = |file: &str| {
        let file = beside(path, file);
        looked_for.push(file.clone());
        text_of(&file, TENANTS_BYTES_MAX)
    };
    let name = path.display().to_string();
    Policy::parse(&name, &text, &mut read).map_err(NoPolicy::Mistakes)
}

/// Where a file is that the policy at `path` names.
pub(crate) fn beside(path: &Path, file: &str) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(file)
}

/// The text of a file, if it is text and not longer than `most`; otherwise why not, as the end of a
/// sentence.
pub(crate) fn text_of(path: &Path, most: usize) -> Result<String, String> {
    // Opening a pipe would wait for somebody to write to it.
    if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return Err("it is not a file".to_owned());
    }
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

impl NoPolicy {
    /// The whole story, for people.
    pub fn told_of(&self, path: &Path) -> String {
        match self {
            Self::Unreadable(why) => format!("{} cannot be read: {why}", path.display()),
            Self::Mistakes(mistakes) => mistakes.to_string(),
        }
    }
}
