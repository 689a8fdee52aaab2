//! Wall clocks that are wrong, and are set while they are read.

use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::server::Folder;

const SHIM: &str = include_str!("clock_shim.c");

/// The wall clock of the processes that are given it: right until it is set.
#[derive(Debug)]
pub struct Clock {
    file: File,
    folder: Folder,
}

impl Clock {
    /// A clock that is right.
    pub fn new() -> Self {
        let folder = Folder::new();
        let mut options = File::options();
        let file = options.create(true).write(true).truncate(true).open(folder.0.join("clock"));
        let clock = Self { file: file.expect("the folder is ours"), folder };
        clock.set(0);
        clock
    }

    /// Sets it ahead of the machine's, for processes that run already too. Valkey goes by the time
    /// it read last for another moment.
    pub fn set_ahead(&self, by: Duration) {
        self.set(i64::try_from(by.as_micros()).expect("less than an age"));
    }

    /// Sets it behind the machine's.
    pub fn set_behind(&self, by: Duration) {
        self.set(-i64::try_from(by.as_micros()).expect("less than an age"));
    }

    /// The variables that give a process this clock, whatever it is: a server, or a tollgate. They
    /// hold for its start, and the clock must outlive that.
    pub fn environment(&self) -> [(String, String); 2] {
        let text = |path: PathBuf| path.into_os_string().into_string().expect("a path of text");
        [
            ("LD_PRELOAD".to_owned(), text(library())),
            ("TOLLGATE_CLOCK_FILE".to_owned(), text(self.folder.0.join("clock"))),
        ]
    }

    fn set(&self, micros: i64) {
        self.file.write_all_at(&micros.to_ne_bytes(), 0).expect("the folder is ours");
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// The shim, compiled once and kept beside the program that runs, in the target folder.
fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        SHIM.hash(&mut hasher);
        let program = env::current_exe().expect("a running program is a file");
        let library = program.with_file_name(format!("clock-shim-{:016x}.so", hasher.finish()));
        if !library.exists() {
            compile(&library);
        }
        library
    });
    library.clone()
}

fn compile(library: &PathBuf) {
    // Another process may be at it too: whoever renames last leaves the same.
    let folder = Folder::new();
    let source = folder.0.join("clock_shim.c");
    fs::write(&source, SHIM).expect("the folder is ours");
    let unfinished = library.with_extension(std::process::id().to_string());
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"]).arg(&unfinished).arg(&source);
    let output = cc.output().unwrap_or_else(|error| {
        panic!("there is no cc, and `cargo xtask test` installs it: {error}")
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(&unfinished, library).expect("the target folder is ours");
}
