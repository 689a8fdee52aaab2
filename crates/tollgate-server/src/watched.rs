//! Files that may change under us.
//!
//! They are looked at again and again rather than watched: that also sees a symlink swapped three
//! folders up, as Kubernetes does it, and works on every file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What some files looked like, each at one moment.
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
    /// Looks at one more file or folder, through symlinks. It is to be read after this: what changes
    /// from now on looks different, also while it is read.
    pub(crate) fn note(&mut self, path: &Path) {
        self.0.push((path.to_owned(), Seen::at(path)));
    }

    /// The same files as they look now.
    pub(crate) fn again(&self) -> Self {
        Self(self.0.iter().map(|(path, _)| (path.clone(), Seen::at(path))).collect())
    }
}

impl Seen {
    fn at(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(path).ok()?;
        let identity = (metadata.dev(), metadata.ino());
        Some(Self { modified: metadata.modified().ok(), length: metadata.len(), identity })
    }
}
