//! Files that a policy names besides those that say what it allows: certificates, tokens, the audit log.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tollgate::Settings;

use crate::bounds::SECRET_FILE_BYTES_MAX;
use crate::door::{self, Entrance};
use crate::policy_file::{beside, text_of};
use crate::tls;

/// A file that a policy names.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// As it is written there.
    name: String,
    path: PathBuf,
}

impl Named {
    /// A file that the policy at `policy` names.
    pub(crate) fn by(policy: &Path, name: &str) -> Self {
        Self { name: name.to_owned(), path: beside(policy, name) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds, if that is text and no longer than secrets are.
    pub(crate) fn text(&self) -> Result<String, Unusable> {
        text_of(&self.path, SECRET_FILE_BYTES_MAX)
            .map_err(|why| self.unusable(format!("cannot be read: {why}")))
    }

    /// Says what is wrong with it, by the end of a sentence.
    pub(crate) fn unusable(&self, why: impl Into<String>) -> Unusable {
        Unusable { file: self.clone(), why: why.into() }
    }
}

/// A file that cannot be used, and why. As text it is a sentence.
#[derive(Clone, Debug)]
pub(crate) struct Unusable {
    file: Named,
    why: String,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file.path.display(), self.why)
    }
}

/// A sentence for each of them, in a line of its own.
pub(crate) fn sentences(unusable: &[Unusable]) -> String {
    unusable.iter().map(ToString::to_string).collect::<Vec<String>>().join("\n")
}

/// Every file that would keep a server from starting, by the name that it has in the policy at `policy`,
/// each with the end of a sentence. Nothing is left behind.
pub(crate) fn that_cannot_be_used(settings: &Settings, policy: &Path) -> Vec<(String, String)> {
    let doors = door::opened_by(settings).into_iter();
    let locks = doors.filter_map(|(door, listener)| Entrance::new(door, &listener, policy).err());
    let named = |name: &String| Named::by(policy, name);
    let ca = settings.gateway.ca.as_ref().map(named);
    let ca = ca.and_then(|file| tls::vouching(&file).err());
    let audit = settings.observe.audit.as_ref().map(|audit| named(&audit.file));
    let audit = audit.and_then(|file| {
        let error = try_appending(file.path()).err()?;
        Some(file.unusable(format!("cannot be written: {error}")))
    });
    let unusable = locks.flatten().chain(ca).chain(audit);
    unusable.map(|it| (it.file.name, it.why)).collect()
}

/// Whether a file can be appended to, or made: who looks makes none.
fn try_appending(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        // To open one of these waits for whoever reads it, perhaps for ever.
        Ok(there) if there.file_type().is_fifo() => {
            Err(io::Error::new(ErrorKind::InvalidInput, "it is a pipe, not a file"))
        }
        Ok(_) => OpenOptions::new().append(true).open(path).map(drop),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            let is_folder = fs::metadata(folder).is_ok_and(|there| there.is_dir());
            if is_folder {
                Ok(())
            } else {
                Err(io::Error::new(ErrorKind::NotFound, "there is no such folder"))
            }
        }
        Err(error) => Err(error),
    }
}
