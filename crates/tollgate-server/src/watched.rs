//! Files that may change under us.
//!
//! They are looked at again and again rather than watched: that also sees a symlink swapped three
//! folders up, as Kubernetes does it, and works on every file system.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

/// What some files looked like at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look(Vec<(PathBuf, Option<Seen>)>);

/// What tells one content of a path from another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    modified: Option<SystemTime>,
    length: u64,
    identity: (u64, u64),
}

impl Look {
    /// Looks at files and folders, through symlinks.
    pub(crate) fn at(paths: &[PathBuf]) -> Self {
        let look = |path: &PathBuf| (path.clone(), fs::metadata(path).ok().map(|it| Seen::of(&it)));
        Self(paths.iter().map(look).collect())
    }
}

impl Seen {
    fn of(metadata: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let identity = (metadata.dev(), metadata.ino());
        Self { modified: metadata.modified().ok(), length: metadata.len(), identity }
    }
}
