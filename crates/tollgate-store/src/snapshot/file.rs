//! Snapshots on disk: found at start, kept while running, left at shutdown.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::format::{self, SnapshotError};
use crate::clock::Clock;
use crate::memory::{MemoryStore, Unreservable};

/// What became of the snapshot of an earlier run.
#[derive(Debug)]
pub enum Restored {
    /// There was none.
    Nothing,
    /// Its states are in force.
    Keys(usize),
    /// It could not be used; the store started empty.
    SetAside {
        /// What is wrong with it.
        why: SnapshotError,
        /// Where it is now; nowhere else if it could not be moved.
        to: Option<PathBuf>,
    },
}

impl MemoryStore {
    /// A store that goes on from the snapshot at `path`, if there is one that can be used.
    pub fn restore(
        path: &Path,
        clock: Clock,
        max_bytes: usize,
    ) -> Result<(Self, Restored), Unreservable> {
        let why = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Self::with_max_bytes(clock, max_bytes)?, Restored::Nothing));
            }
            Err(error) => SnapshotError::Io(error),
            Ok(file) => match format::read(BufReader::new(file), clock.clone(), max_bytes) {
                Ok(store) => {
                    let keys = store.keys();
                    return Ok((store, Restored::Keys(keys)));
                }
                Err(SnapshotError::Unreservable(error)) => return Err(error),
                Err(error) => error,
            },
        };
        // A file that could not be read this time may be whole: it stays where it is.
        let to = if matches!(why, SnapshotError::Io(_)) { None } else { set_aside(path) };
        Ok((Self::with_max_bytes(clock, max_bytes)?, Restored::SetAside { why, to }))
    }

    /// Writes a snapshot to `path`. Until it is whole, the one that was there stays.
    pub fn save(&self, path: &Path) -> Result<(), SnapshotError> {
        // Two at a time would write to one file.
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let aside = with_ending(path, "new");
        let written = self.write_aside(&aside, path);
        if written.is_err() {
            // Half a snapshot is of no use, and the disk may be full.
            let _ = fs::remove_file(&aside);
        }
        written
    }

    fn write_aside(&self, aside: &Path, path: &Path) -> Result<(), SnapshotError> {
        let file = format::write(self, BufWriter::new(create_private(aside)?))?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(aside, path)?;
        // Whether the new name outlives a power failure is for the folder to say, and some cannot be
        // asked. Either way there is one whole snapshot, and from now on it is this one.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let _ = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Saves a store again and again, and once more when dropped.
#[derive(Debug)]
pub struct Keeper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Saves `store` to `path` every so often. `report` hears of every attempt, so that one that
    /// failed is said and counted; the store goes on in any case.
    pub fn start(
        store: Arc<MemoryStore>,
        path: PathBuf,
        every: Duration,
        report: impl Fn(Result<(), SnapshotError>) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let keep = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                report(store.save(&path));
            }
            report(store.save(&path));
        };
        let thread = thread::Builder::new().name("tollgate-snapshot".to_owned()).spawn(keep)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its own thread; there is nothing left to save.
            let _ = thread.join();
        }
    }
}

/// A new file that only we can read: a snapshot holds the secret that keeps keys apart.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Moves a file that cannot be used out of the way, without overwriting one moved before.
fn set_aside(path: &Path) -> Option<PathBuf> {
    let free = |number: &u32| !with_ending(path, &format!("damaged-{number}")).exists();
    let to = with_ending(path, &format!("damaged-{}", (1..1_000).find(free)?));
    fs::rename(path, &to).ok().map(|()| to)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}
