//! The thread that writes lines to a file.
//!
//! Nobody waits for it: lines that it has not got to yet are queued, and beyond a bound dropped. What the
//! disk does not take is dropped too, since it would otherwise be kept in memory for ever.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryIter, sync_channel};
use std::thread;

use super::bounds::{CHANGES_QUEUED, CLOSE_MAX, DENIALS_QUEUED, NOTHING_QUEUED, WRITE_BYTES};
use super::{Counts, Kind};

/// Hands lines to the thread.
#[derive(Debug)]
pub(super) struct Writer {
    orders: SyncSender<Order>,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
}

/// Becomes ready when a thread has written all that it was handed.
#[derive(Debug)]
pub(super) struct Ending(Receiver<()>);

/// A part of the queue that its lines have to themselves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    Denials,
    Changes,
    Nothing,
}

impl Room {
    /// How many lines each holds, in the order of their numbers.
    const SIZES: [usize; 3] = [DENIALS_QUEUED, CHANGES_QUEUED, NOTHING_QUEUED];
}

/// What is known of the queue at both ends.
#[derive(Debug, Default)]
struct Queue {
    /// How many lines are in each room.
    lines: [AtomicUsize; Room::SIZES.len()],
    /// Whether it was said that there is no room in it.
    is_full: AtomicBool,
}

enum Order {
    Write(Kind, Room, String),
    /// Looks whether the file is still where it was.
    Look,
}

impl Writer {
    /// Opens a file, and starts the thread that appends to it.
    pub(super) fn start(path: &Path, counts: &Arc<Counts>) -> io::Result<(Self, Ending)> {
        let log = LogFile::open(path)?;
        let (orders, ordered) = sync_channel(Room::SIZES.iter().sum());
        let (ended, ending) = sync_channel(0);
        let queue = Arc::new(Queue::default());
        let writing = Writing { log, queue: Arc::clone(&queue), counts: Arc::clone(counts) };
        thread::Builder::new().name("audit".to_owned()).spawn(move || {
            writing.run(&ordered);
            drop(ended);
        })?;
        Ok((Self { orders, queue, counts: Arc::clone(counts) }, Ending(ending)))
    }

    /// Has a line written, if there is room for it.
    pub(super) fn write(&self, kind: Kind, room: Room, line: String) {
        let lines = &self.queue.lines[room as usize];
        let is_full = lines.fetch_add(1, Ordering::Relaxed) >= Room::SIZES[room as usize];
        if is_full || self.orders.try_send(Order::Write(kind, room, line)).is_err() {
            lines.fetch_sub(1, Ordering::Relaxed);
            self.full();
        }
    }

    fn full(&self) {
        self.counts.dropped();
        if !self.queue.is_full.swap(true, Ordering::Relaxed) {
            tracing::error!("the audit log is written too slowly; lines are dropped and counted");
        }
    }

    /// Has the file looked for where it should be, in case nothing is written for long.
    pub(super) fn look(&self) {
        // A thread that is busy writing looks by itself.
        let _ = self.orders.try_send(Order::Look);
    }
}

impl Ending {
    /// Waits until everything is written, for as long as that may take. Whoever can still hand in lines
    /// must be gone.
    pub(super) fn wait(self) {
        if self.0.recv_timeout(CLOSE_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("the audit log is written too slowly; its last lines are lost");
        }
    }
}

/// The thread.
struct Writing {
    log: LogFile,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
}

impl Writing {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(first) = orders.recv() {
            let (text, kinds) = self.collect(first, orders.try_iter());
            self.log.look();
            if kinds.is_empty() {
                continue;
            }
            let written = self.log.append(text.as_bytes());
            for (number, kind) in kinds.into_iter().enumerate() {
                if number < written { self.counts.wrote(kind) } else { self.counts.dropped() }
            }
        }
    }

    /// What is to be written at once.
    fn collect(&self, first: Order, others: TryIter<'_, Order>) -> (String, Vec<Kind>) {
        let (mut text, mut kinds) = (String::new(), Vec::new());
        for order in std::iter::once(first).chain(others) {
            let Order::Write(kind, room, line) = order else { continue };
            if self.queue.lines[room as usize].fetch_sub(1, Ordering::Relaxed) == 1 {
                self.queue.is_full.store(false, Ordering::Relaxed);
            }
            text += &line;
            kinds.push(kind);
            if text.len() >= WRITE_BYTES {
                break;
            }
        }
        (text, kinds)
    }
}

/// A file that is appended to, and opened anew when it is not where it was.
struct LogFile {
    path: PathBuf,
    file: File,
    /// Whether a line was begun that the disk had no room for.
    is_torn: bool,
    /// What went wrong last, and was said, if it still does.
    said: Option<io::ErrorKind>,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: opened(path)?, is_torn: false, said: None })
    }

    /// Opens the file anew if somebody moved or removed it.
    fn look(&mut self) {
        if is_same(fs::metadata(&self.path), self.file.metadata()) {
            return;
        }
        match opened(&self.path) {
            Ok(file) => (self.file, self.is_torn) = (file, false),
            // What is moved away is still better written to than nothing.
            Err(error) => self.fails(&error),
        }
    }

    /// Writes some lines, and says how many are there as a whole.
    fn append(&mut self, lines: &[u8]) -> usize {
        if self.is_torn {
            match write_all(&mut self.file, b"\n") {
                (_, None) => self.is_torn = false,
                (_, Some(error)) => {
                    self.fails(&error);
                    return 0;
                }
            }
        }
        let (written, error) = write_all(&mut self.file, lines);
        let written = &lines[..written];
        self.is_torn = written.last().is_some_and(|byte| *byte != b'\n');
        match error {
            Some(error) => self.fails(&error),
            None if self.said.take().is_some() => {
                tracing::info!(file = ?self.path, "the audit log is written again");
            }
            None => {}
        }
        written.iter().filter(|byte| **byte == b'\n').count()
    }

    fn fails(&mut self, error: &io::Error) {
        if self.said != Some(error.kind()) {
            let file = &self.path;
            tracing::error!(?file, %error, "cannot write the audit log; lines are dropped and counted");
        }
        self.said = Some(error.kind());
    }
}

/// How many bytes were written, and what went wrong if not all were.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Opens a file to append to it. One that is not there is made, for its owner alone.
fn opened(path: &Path) -> io::Result<File> {
    // To open one of these waits for whoever reads it, perhaps for ever.
    if fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe, not a file"));
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn is_same(there: io::Result<Metadata>, ours: io::Result<Metadata>) -> bool {
    let identity = |it: Metadata| (it.dev(), it.ino());
    there.ok().map(identity) == ours.ok().map(identity)
}
