//! A policy on disk, with the files it names.

use std::error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tollgate::bounds::{POLICY_BYTES_MAX, TENANTS_BYTES_MAX};
use tollgate::envoy::{DescriptorSettings, Descriptors};
use tollgate::{Policy, Settings};

use crate::bounds::{DESCRIPTOR_FILES_MAX, DESCRIPTORS_BYTES_MAX};
use crate::files;
use crate::watched::Look;

/// A policy, and the descriptors of Envoy's rate limit service that it names.
#[derive(Debug)]
pub struct Loaded {
    /// What the file says.
    pub policy: Policy,
    /// What the files of its `descriptors` folder say; nothing if it names none.
    pub descriptors: Descriptors,
}

/// Why there is no policy.
#[derive(Debug)]
pub enum NoPolicy {
    /// A file cannot be read.
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why, as the end of a sentence.
        why: String,
    },
    /// What they say is not a policy.
    Mistakes(tollgate::Mistakes),
}

impl fmt::Display for NoPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, why } => {
                write!(f, "{} cannot be read: {why}", path.display())
            }
            Self::Mistakes(mistakes) => mistakes.fmt(f),
        }
    }
}

impl error::Error for NoPolicy {}

/// Reads the policy at `path`. Files it names are looked for beside it.
pub fn read(path: &Path) -> Result<Loaded, NoPolicy> {
    read_noting(path, &mut Look::default())
}

/// The same, and tries the other files that the policy names, such as certificates and tokens, as a
/// server does when it starts: one that cannot be used is a mistake.
pub fn read_trying(path: &Path) -> Result<Loaded, NoPolicy> {
    let mut unusable = |settings: &Settings| files::that_cannot_be_used(settings, path);
    read_with(path, &mut Look::default(), &mut unusable)
}

/// Reads it, noting what everything that is read looks like, also what is not there.
pub(crate) fn read_noting(path: &Path, look: &mut Look) -> Result<Loaded, NoPolicy> {
    read_with(path, look, &mut |_| Vec::new())
}

fn read_with(
    path: &Path,
    look: &mut Look,
    unusable: &mut dyn FnMut(&Settings) -> Vec<(String, String)>,
) -> Result<Loaded, NoPolicy> {
    look.note(path);
    let text = text_of(path, POLICY_BYTES_MAX).map_err(|why| unreadable(path, why))?;
    let mut read = |file: &str| {
        let file = beside(path, file);
        look.note(&file);
        text_of(&file, TENANTS_BYTES_MAX)
    };
    let name = path.display().to_string();
    let policy = Policy::parse_trying(&name, &text, &mut read, unusable);
    let policy = policy.map_err(NoPolicy::Mistakes)?;
    if let Some(file) = &policy.settings().gateway.ca {
        look.note(&beside(path, file));
    }
    let descriptors = match &policy.settings().descriptors {
        Some(settings) => read_descriptors(path, settings, look)?,
        None => Descriptors::default(),
    };
    Ok(Loaded { policy, descriptors })
}

/// Reads the `.yaml` files of a folder, in the order of their names. Hidden ones are not for us:
/// Kubernetes keeps there what the others point to.
fn read_descriptors(
    policy: &Path,
    settings: &DescriptorSettings,
    look: &mut Look,
) -> Result<Descriptors, NoPolicy> {
    let folder = beside(policy, &settings.path);
    look.note(&folder);
    let cannot = |error: io::Error| unreadable(&folder, error.to_string());
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        let is_ours = name.to_str().is_some_and(|name| {
            !name.starts_with('.') && (name.ends_with(".yaml") || name.ends_with(".yml"))
        });
        if is_ours {
            files.push(folder.join(name));
        }
    }
    if files.len() > DESCRIPTOR_FILES_MAX {
        let why = format!("it holds more than {DESCRIPTOR_FILES_MAX} files");
        return Err(unreadable(&folder, why));
    }
    files.sort();
    files.iter().for_each(|file| look.note(file));
    let (mut texts, mut room) = (Vec::new(), DESCRIPTORS_BYTES_MAX);
    for file in files {
        let text = text_of(&file, room).map_err(|why| unreadable(&file, why))?;
        room -= text.len();
        texts.push((file.display().to_string(), text));
    }
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (&**name, &**text)).collect();
    Descriptors::parse(&texts, settings.merge_domains).map_err(NoPolicy::Mistakes)
}

fn unreadable(path: &Path, why: String) -> NoPolicy {
    NoPolicy::Unreadable { path: path.to_owned(), why }
}

/// Where a file is that the policy at `path` names.
pub(crate) fn beside(path: &Path, file: &str) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(file)
}

/// The text of a file, if it is text and not longer than `most`; otherwise why not, as the end of a
/// sentence.
pub(crate) fn text_of(path: &Path, most: usize) -> Result<String, String> {
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
