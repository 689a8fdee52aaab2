//! The tracked tree in memory.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::shell;

/// Paths from the root, with `/` between folders, and what the files hold. A file that is not text
/// is there with nothing in it.
#[derive(Debug)]
pub(super) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// What git tracks or would track: a rule broken in a new file shows before it is committed.
    pub(super) fn tracked() -> Result<Self, String> {
        let mut git = Command::new("git");
        git.current_dir(shell::root());
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = shell::output(&mut git)
            .map_err(|error| format!("the house rules are checked on what git tracks: {error}"))?;
        Ok(Self::read(listed.split_terminator('\0')))
    }

    fn read<'a>(paths: impl Iterator<Item = &'a str>) -> Self {
        let mut files = BTreeMap::new();
        for path in paths {
            // A file deleted and not yet committed is still listed.
            let Ok(bytes) = fs::read(shell::root().join(path)) else { continue };
            files.insert(path.to_owned(), String::from_utf8(bytes).unwrap_or_default());
        }
        Self { files }
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let owned = |&(path, text): &(&str, &str)| (path.to_owned(), text.to_owned());
        Self { files: files.iter().map(owned).collect() }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Files below a folder, named from that folder on.
    pub(super) fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter_map(move |(path, text)| {
            Some((path.strip_prefix(folder)?.strip_prefix('/')?, text))
        })
    }

    pub(super) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Whether a link may point there: a file, or a folder with files in it.
    pub(super) fn has(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.below(path).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The paths are given, not asked of git: tests also run where a tree came without its history.
    #[test]
    fn files_are_read_from_the_root_and_deleted_ones_are_left_out() {
        let tree = Tree::read(["Cargo.toml", "xtask/src/main.rs", "xtask/src/gone.rs"].into_iter());
        assert!(tree.text("Cargo.toml").unwrap().starts_with("[workspace]"));
        assert!(tree.has("xtask/src/main.rs") && !tree.has("xtask/src/gone.rs"));
    }

    #[test]
    fn a_folder_is_there_when_a_file_is_in_it() {
        let tree = Tree::of(&[("docs/pictures/a.svg", "")]);
        assert!(tree.has("docs") && tree.has("docs/pictures"));
        assert!(!tree.has("doc") && !tree.has("docs/pictures/b.svg"));
        assert_eq!(tree.below("docs").collect::<Vec<_>>(), [("pictures/a.svg", "")]);
    }
}
