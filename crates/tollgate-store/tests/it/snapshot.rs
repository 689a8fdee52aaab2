//! States kept across restarts, and files that cannot be trusted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tollgate_core::{Algorithm, Key, Limit, Micros, Timestamp, Value};
use tollgate_store::snapshot::{self, Keeper, Restored, SnapshotError};
use tollgate_store::{MemoryStore, Taken};

use crate::support::{Order, Rng, START, Subject, limit_of, limit_over};

const MAX_BYTES: usize = 4 << 20;

/// A folder of a test's own, which goes when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-store-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of all files, in order.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the folder of this test");
        let name = |entry: io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("a plain name")
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a store would leave behind.
fn bytes_of(subject: &Subject) -> Vec<u8> {
    snapshot::write(&subject.store, Vec::new()).expect("to memory")
}

/// A store that goes on from `bytes`, on a clock of its own that shows the same time.
fn restored(bytes: &[u8], now: Timestamp) -> Subject {
    let subject = Subject::in_memory();
    subject.clock.set(now);
    let store = snapshot::read(bytes, subject.clock.clone(), MAX_BYTES).expect("a good snapshot");
    Subject { store, ..subject }
}

fn why_not(bytes: &[u8]) -> SnapshotError {
    let subject = Subject::in_memory();
    snapshot::read(bytes, subject.clock, MAX_BYTES).expect_err("a bad snapshot")
}

/// A store with a state of every algorithm.
fn one_of_each() -> Subject {
    let subject = Subject::in_memory();
    for (key, algorithm) in (0..).zip(Algorithm::ALL) {
        let limit = subject.enroll(limit_of(algorithm, 5));
        subject.charge(&Order::new(key, limit).costing(2));
        subject.charge(&Order::new(key, limit));
    }
    subject
}

mod round_trips {
    use super::*;

    #[test]
    fn a_restart_changes_no_decision() {
        for seed in 0..12 {
            let mut rng = Rng::new(seed);
            let subject = Subject::in_memory();
            let limits: Vec<Limit> = (0..30)
                .map(|_| {
                    let algorithm = rng.pick(&Algorithm::ALL[..5]);
                    let period = rng.pick(&[1_000, 1_000_000, 90_000_000, 3_600_000_000]);
                    limit_over(algorithm, 1 + rng.below(9) as u32, Micros::new(period))
                })
                .collect();
            step(&mut rng, &limits, 300, &[&subject]);
            let later = restored(&bytes_of(&subject), subject.clock.now());
            // The limits are enrolled anew, in another order.
            for limit in limits.iter().rev() {
                later.enroll(*limit);
            }
            step(&mut rng, &limits, 300, &[&subject, &later]);
        }
    }

    /// Random requests, the same to each of `subjects`, which must answer alike.
    fn step(rng: &mut Rng, limits: &[Limit], times: u32, subjects: &[&Subject]) {
        for _ in 0..times {
            let many = 1 + rng.below(3);
            let now = subjects[0].clock.now().plus(Micros::new(rng.below(2_000_000)));
            let wanted: Vec<(usize, u32)> = (0..many)
                .map(|_| (rng.below(limits.len() as u64) as usize, rng.below(4) as u32))
                .collect();
            let mut told = Vec::new();
            for subject in subjects {
                subject.clock.set(now);
                let order = |(key, units): &(usize, u32)| {
                    Order::new(*key as u64, subject.enroll(limits[*key])).costing(*units)
                };
                let orders: Vec<Order> = wanted.iter().map(order).collect();
                let decisions = subject.take(&orders).iter().map(Taken::decision).collect();
                told.push(decisions);
            }
            let told: Vec<Vec<_>> = told;
            assert!(told.windows(2).all(|two| two[0] == two[1]), "{told:#?}");
        }
    }

    #[test]
    fn held_slots_are_not_kept_because_whoever_held_them_is_gone() {
        let subject = one_of_each();
        let later = restored(&bytes_of(&subject), START);
        for (key, algorithm) in (0..).zip(Algorithm::ALL) {
            let order = Order::new(key, later.enroll(limit_of(algorithm, 5)));
            let left = if algorithm == Algorithm::Concurrency { 5 } else { 2 };
            assert_eq!(later.remaining(&order), left, "{algorithm}");
        }
        assert_eq!(later.store.keys(), 5);
    }

    #[test]
    fn secret_values_are_shown_alike_before_and_after() {
        let subject = one_of_each();
        let later = restored(&bytes_of(&subject), START);
        let secret = [Value::secret(b"an API key")];
        let key = Key { limit: "limit", values: &secret };
        let shown = subject.store.key_text(&key);
        assert_eq!(later.store.key_text(&key), shown);
        assert!(!shown.contains("API"), "{shown}");
        assert_ne!(Subject::in_memory().store.key_text(&key), shown, "another store's secret");
    }

    #[test]
    fn a_quota_changed_across_a_restart_keeps_what_was_consumed() {
        for algorithm in Algorithm::ALL.into_iter().filter(|it| *it != Algorithm::Concurrency) {
            let subject = Subject::in_memory();
            let old = subject.enroll(limit_of(algorithm, 60));
            subject.charge(&Order::new(1, old).costing(60));
            let later = restored(&bytes_of(&subject), START);
            let new = Order::new(1, later.enroll(limit_of(algorithm, 70)));
            assert_eq!(later.remaining(&new), 10, "{algorithm}");
        }
    }

    #[test]
    fn what_became_vacant_meanwhile_is_not_kept() {
        let subject = one_of_each();
        let empty = Subject::in_memory();
        for algorithm in Algorithm::ALL {
            empty.enroll(limit_of(algorithm, 5));
        }
        assert!(bytes_of(&subject).len() > bytes_of(&empty).len());
        subject.advance(Micros::from_secs(121));
        assert_eq!(bytes_of(&subject).len(), bytes_of(&empty).len());
    }

    #[test]
    fn a_clock_that_is_behind_after_the_restart_locks_nobody_out_for_long() {
        let subject = Subject::in_memory();
        for (key, algorithm) in (0..).zip(&Algorithm::ALL[..5]) {
            let order = Order::new(key, subject.enroll(limit_of(*algorithm, 5)));
            subject.charge(&order.costing_all());
        }
        // A year back, as a machine without a battery may be.
        let year = 365 * 86_400 * 1_000_000;
        let later = restored(&bytes_of(&subject), Timestamp::from_micros(START.as_micros() - year));
        for (key, algorithm) in (0..).zip(&Algorithm::ALL[..5]) {
            let order = Order::new(key, later.enroll(limit_of(*algorithm, 5)));
            assert!(!later.decide(&order).is_allowed(), "{algorithm}");
        }
        later.advance(Micros::from_secs(180));
        for (key, algorithm) in (0..).zip(&Algorithm::ALL[..5]) {
            let order = Order::new(key, later.enroll(limit_of(*algorithm, 5)));
            assert_eq!(later.remaining(&order), 5, "{algorithm}");
        }
    }

    #[test]
    fn a_snapshot_of_many_blocks_is_read_whole_and_in_order_only() {
        let subject = Subject::in_memory();
        let limit = subject.enroll(limit_of(Algorithm::SlidingWindow, 5));
        for key in 0..5_000 {
            subject.charge(&Order::new(key, limit).costing(1 + key as u32 % 4));
        }
        let bytes = bytes_of(&subject);
        let later = restored(&bytes, START);
        let limit = later.enroll(limit_of(Algorithm::SlidingWindow, 5));
        for key in 0..5_000 {
            assert_eq!(later.remaining(&Order::new(key, limit)), 4 - key as u32 % 4, "key {key}");
        }

        // Magic and version, then blocks of a header, their bytes and a checksum.
        let block = 5 + (64 << 10) + 16;
        let (start, first, second) = (12, 12 + block, 12 + 2 * block);
        assert!(bytes.len() > second, "at least three blocks");
        let exchanged =
            [&bytes[..start], &bytes[first..second], &bytes[start..first], &bytes[second..]];
        let missing = [&bytes[..first], &bytes[second..]];
        let doubled = [&bytes[..second], &bytes[first..]];
        let cut_between = &bytes[..second];
        let all = [exchanged.concat(), missing.concat(), doubled.concat(), cut_between.to_vec()];
        for bytes in all {
            assert!(matches!(why_not(&bytes), SnapshotError::Damaged { .. }));
        }
    }

    #[test]
    fn a_snapshot_from_a_larger_store_fits_into_a_smaller_one() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingLog] {
            let subject = Subject::in_memory();
            let limit = subject.enroll(limit_of(algorithm, 10));
            for key in 0..5_000 {
                subject.charge(&Order::new(key, limit));
            }
            let limited = Order::new(1 << 40, limit);
            for _ in 0..10 {
                subject.charge(&limited);
            }
            let (bytes, max_bytes) = (bytes_of(&subject), 64 << 10);
            let store = snapshot::read(&bytes[..], subject.clock.clone(), max_bytes)
                .expect("what fits is taken");
            let later = Subject { store, ..subject };
            assert!(later.store.bytes() <= max_bytes, "{algorithm}: {}", later.store.bytes());
            assert!(later.store.keys() > 100, "{algorithm}: {}", later.store.keys());
            let limited = Order::new(1 << 40, later.enroll(limit_of(algorithm, 10)));
            assert!(!later.decide(&limited).is_allowed(), "{algorithm}");
        }
    }
}

mod bad_files {
    use super::*;

    /// Puts `bytes` where a snapshot is expected: the store must start empty, and the file must be
    /// found under another name.
    fn check_set_aside(folder: &Folder, bytes: &[u8], what: &str) -> SnapshotError {
        let path = folder.file("state");
        fs::write(&path, bytes).expect("a small file");
        let (subject, outcome) = restore(&path);
        let Restored::SetAside { why, to: Some(to) } = outcome else {
            panic!("{what}: {outcome:?}");
        };
        assert_eq!(fs::read(&to).expect("the file set aside"), bytes, "{what}");
        assert!(!path.exists(), "{what}");
        assert_eq!(subject.store.keys(), 0, "{what}");
        let limit = subject.enroll(limit_of(Algorithm::SlidingWindow, 5));
        assert_eq!(subject.remaining(&Order::new(0, limit)), 5, "{what}");
        fs::remove_file(&to).expect("the file set aside");
        why
    }

    #[test]
    fn a_snapshot_with_any_byte_changed_is_set_aside() {
        let (folder, good) = (Folder::new(), bytes_of(&one_of_each()));
        for place in 0..good.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[place] ^= flip;
                check_set_aside(&folder, &bytes, &format!("byte {place} flipped by {flip:#x}"));
            }
        }
    }

    #[test]
    fn a_snapshot_cut_short_anywhere_is_set_aside() {
        let (folder, good) = (Folder::new(), bytes_of(&one_of_each()));
        for length in 0..good.len() {
            check_set_aside(&folder, &good[..length], &format!("cut to {length} bytes"));
        }
    }

    #[test]
    fn a_snapshot_with_something_behind_it_is_set_aside() {
        let (folder, good) = (Folder::new(), bytes_of(&one_of_each()));
        for tail in [&b"\0"[..], b"x", &good] {
            let why = check_set_aside(&folder, &[&good, tail].concat(), "a tail");
            assert!(why.to_string().contains("something follows"), "{why}");
        }
    }

    #[test]
    fn a_snapshot_of_another_format_is_set_aside_and_its_version_told() {
        let (folder, good) = (Folder::new(), bytes_of(&one_of_each()));
        let version = u32::from_le_bytes([good[8], good[9], good[10], good[11]]);
        for other in [0, version - 1, version + 1, u32::MAX] {
            let mut bytes = good.clone();
            bytes[8..12].copy_from_slice(&other.to_le_bytes());
            let why = check_set_aside(&folder, &bytes, "another version");
            let is_told = matches!(why, SnapshotError::OtherFormat { version } if version == other);
            assert!(is_told, "{why:?}");
            assert!(why.to_string().contains(&other.to_string()), "{why}");
        }
    }

    #[test]
    fn an_empty_file_and_one_of_something_else_are_set_aside() {
        let folder = Folder::new();
        check_set_aside(&folder, b"", "nothing");
        check_set_aside(&folder, b"tollgate", "a name and no more");
        check_set_aside(&folder, b"listen:\n  http: 127.0.0.1:8080\n", "a policy");
        check_set_aside(&folder, &[0; 4_096], "zeroes");
    }

    #[test]
    fn files_set_aside_do_not_overwrite_each_other() {
        let folder = Folder::new();
        let path = folder.file("state");
        for bad in ["one", "two", "three"] {
            fs::write(&path, bad).expect("a small file");
            let (_, outcome) = restore(&path);
            let Restored::SetAside { to: Some(to), .. } = outcome else { panic!("{outcome:?}") };
            assert_eq!(fs::read_to_string(&to).expect("the file set aside"), bad);
        }
        assert_eq!(folder.names().len(), 3);
    }

    #[test]
    fn a_file_that_cannot_be_set_aside_stays_and_that_is_told() {
        let folder = Folder::new();
        let path = folder.file("state");
        for number in 1..1_000 {
            fs::write(folder.file(&format!("state.damaged-{number}")), "old").expect("a file");
        }
        fs::write(&path, "rubbish").expect("a small file");
        let (subject, outcome) = restore(&path);
        assert!(matches!(outcome, Restored::SetAside { to: None, .. }), "{outcome:?}");
        assert_eq!(subject.store.keys(), 0);
        assert!(path.exists());
    }

    #[test]
    fn what_cannot_be_read_is_an_error_with_its_source() {
        let folder = Folder::new();
        let path = folder.file("state");
        fs::create_dir(&path).expect("a folder where a file should be");
        let (subject, outcome) = restore(&path);
        let Restored::SetAside { why, .. } = outcome else { panic!("{outcome:?}") };
        assert!(std::error::Error::source(&why).is_some(), "{why:?}");
        assert_eq!(subject.store.keys(), 0);
    }

    #[test]
    fn no_file_at_all_is_no_mistake() {
        let folder = Folder::new();
        let (_, outcome) = restore(&folder.file("state"));
        assert!(matches!(outcome, Restored::Nothing), "{outcome:?}");
        let (_, outcome) = restore(&folder.file("no such folder/state"));
        assert!(matches!(outcome, Restored::Nothing), "{outcome:?}");
    }

    #[test]
    fn rubbish_never_panics_whoever_reads_it() {
        let good = bytes_of(&one_of_each());
        let mut rng = Rng::new(11);
        for _ in 0..3_000 {
            // All of it random, or random from somewhere on, or a good one with some bytes changed.
            let kept = rng.pick(&[0, 8, 12, 17, good.len()]);
            let kept = if rng.one_in(3) { rng.below(good.len() as u64) as usize } else { kept };
            let mut bytes = good[..kept].to_vec();
            if kept < good.len() {
                bytes.extend((0..rng.below(400)).map(|_| rng.next() as u8));
            }
            for _ in 0..1 + rng.below(4) {
                if !bytes.is_empty() {
                    let place = rng.below(bytes.len() as u64) as usize;
                    bytes[place] ^= 1 + rng.below(255) as u8;
                }
            }
            let clock = Subject::of_size(0).clock;
            let read = snapshot::read(&bytes[..], clock, 0);
            assert!(read.is_err() || bytes == good, "{bytes:?}");
        }
    }

    #[test]
    fn rubbish_behind_checksums_that_fit_is_refused_or_read_as_it_is() {
        let whole = bytes_of(&one_of_each());
        // What is sealed, without the name, the version, the header of its one block and its checksum.
        let payload = &whole[17..whole.len() - 16];
        assert_eq!(snapshot::sealed(payload), whole);
        // In a store of so many groups no two keys are neighbours, and all are written in one order.
        let read = |bytes: &[u8]| snapshot::read(bytes, Subject::of_size(0).clock, 256 << 20);
        let written = |store: &MemoryStore| snapshot::write(store, Vec::new()).expect("to memory");
        let mut rng = Rng::new(13);
        let mut read_well = 0;
        for _ in 0..5_000 {
            let mut bytes = payload.to_vec();
            for _ in 0..1 + rng.below(3) {
                let place = rng.below(bytes.len() as u64) as usize;
                let random = rng.next() as u8;
                bytes[place] = rng.pick(&[0, 1, 4, 5, 0x7F, 0xFF, random]);
            }
            if let Ok(store) = read(&snapshot::sealed(&bytes)) {
                read_well += 1;
                let once = written(&store);
                let again = read(&once).expect("what was written is read");
                assert_eq!(written(&again), once, "{bytes:?}");
            }
        }
        assert!(read_well > 500, "{read_well}");
    }
}

/// A store that goes on from the file at `path`, and what became of it.
fn restore(path: &Path) -> (Subject, Restored) {
    let subject = Subject::in_memory();
    let (store, outcome) =
        MemoryStore::restore(path, subject.clock.clone(), MAX_BYTES).expect("a few megabytes");
    (Subject { store, ..subject }, outcome)
}

mod saving {
    use super::*;

    #[test]
    fn what_was_saved_is_found_again() {
        let folder = Folder::new();
        let path = folder.file("state");
        one_of_each().store.save(&path).expect("a file of our own");
        assert_eq!(folder.names(), ["state"], "nothing is left beside it");
        let (later, outcome) = restore(&path);
        assert!(matches!(outcome, Restored::Keys(5)), "{outcome:?}");
        let order = Order::new(0, later.enroll(limit_of(Algorithm::SlidingWindow, 5)));
        assert_eq!(later.remaining(&order), 2);
        assert!(path.exists(), "a good snapshot stays where it is");
    }

    #[test]
    fn saving_from_several_threads_at_once_leaves_one_whole_snapshot() {
        let folder = Folder::new();
        let path = folder.file("state");
        let subject = one_of_each();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        subject.store.save(&path).expect("a file of our own");
                    }
                });
            }
        });
        let (_, outcome) = restore(&path);
        assert!(matches!(outcome, Restored::Keys(5)), "{outcome:?}");
    }

    #[cfg(unix)]
    #[test]
    fn only_we_can_read_a_snapshot() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new();
        let path = folder.file("state");
        one_of_each().store.save(&path).expect("a file of our own");
        let mode = fs::metadata(&path).expect("the snapshot").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_later_snapshot_replaces_an_earlier_one() {
        let folder = Folder::new();
        let path = folder.file("state");
        let subject = Subject::in_memory();
        let order = Order::new(1, subject.enroll(limit_of(Algorithm::TokenBucket, 5)));
        for left in [4, 3, 2] {
            subject.charge(&order);
            subject.store.save(&path).expect("a file of our own");
            let (later, _) = restore(&path);
            let order = Order::new(1, later.enroll(limit_of(Algorithm::TokenBucket, 5)));
            assert_eq!(later.remaining(&order), left);
        }
    }

    /// Saving must fail, say why, and leave the snapshot that was there before.
    fn check_keeps_the_old_one(folder: &Folder, make_it_fail: impl FnOnce(&Path)) {
        let path = folder.file("state");
        let subject = one_of_each();
        subject.store.save(&path).expect("a file of our own");
        let before = fs::read(&path).expect("the snapshot");
        make_it_fail(&path);
        subject.charge(&Order::new(9, subject.enroll(limit_of(Algorithm::TokenBucket, 5))));
        let error = subject.store.save(&path).expect_err("it was made to fail");
        assert!(matches!(error, SnapshotError::Io(_)), "{error:?}");
        assert!(std::error::Error::source(&error).is_some(), "{error:?}");
        assert_eq!(fs::read(&path).expect("the snapshot"), before);
        let order = Order::new(9, subject.enroll(limit_of(Algorithm::TokenBucket, 5)));
        assert!(subject.decide(&order).is_allowed(), "the store goes on");
    }

    #[test]
    fn a_full_disk_leaves_the_old_snapshot() {
        let folder = Folder::new();
        // The file written aside lies on a device that is always full.
        check_keeps_the_old_one(&folder, |path| {
            symlink("/dev/full", path.with_extension("new")).expect("a link");
        });
        assert_eq!(folder.names(), ["state"], "half a snapshot is not left lying about");
    }

    #[test]
    fn a_place_that_cannot_be_written_to_leaves_the_old_snapshot() {
        let folder = Folder::new();
        check_keeps_the_old_one(&folder, |path| {
            fs::create_dir(path.with_extension("new")).expect("a folder in the way");
        });
    }

    #[test]
    fn a_folder_is_no_place_for_a_snapshot() {
        let folder = Folder::new();
        let path = folder.file("state");
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("kept"), "").expect("a file in it");
        let error = one_of_each().store.save(&path).expect_err("a folder is in the way");
        assert!(matches!(error, SnapshotError::Io(_)), "{error:?}");
        assert!(path.join("kept").exists());
        assert_eq!(folder.names(), ["state"]);

        let nowhere = folder.file("state/kept/snapshot");
        one_of_each().store.save(&nowhere).expect_err("a file is no folder");
    }

    #[test]
    fn a_folder_that_cannot_be_flushed_has_the_snapshot_all_the_same() {
        const NAME: &str =
            "snapshot::saving::a_folder_that_cannot_be_flushed_has_the_snapshot_all_the_same";
        const NOBODY: u32 = 65_534;
        let folder = Folder::new();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o300)).expect("our folder");
        if File::open(&folder.0).is_ok() {
            // Nothing is closed to the superuser, so somebody else has to try.
            let mut again = Command::new(std::env::current_exe().expect("this program has a path"));
            let again = again.args(["--exact", NAME]).uid(NOBODY).gid(NOBODY).output();
            let output = again.expect("this program can be run by anybody");
            assert!(output.status.success(), "{output:?}");
            return;
        }
        one_of_each().store.save(&folder.file("states")).expect("it is written, and in its place");
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).expect("our folder");
        assert_eq!(folder.names(), ["states"]);
    }

    #[test]
    fn limits_that_no_state_names_are_not_saved() {
        let subject = one_of_each();
        let before = bytes_of(&subject).len();
        for count in 1_000..2_000 {
            subject.enroll(limit_of(Algorithm::TokenBucket, count));
        }
        assert_eq!(bytes_of(&subject).len(), before);
    }

    #[test]
    fn a_full_disk_is_an_error_to_whoever_writes() {
        let subject = one_of_each();
        let full = || OpenOptions::new().write(true).open("/dev/full").expect("a device of Linux");
        let error = snapshot::write(&subject.store, full()).expect_err("nothing fits");
        let SnapshotError::Io(error) = error else { panic!("{error:?}") };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        // What is buffered fails when the buffer is emptied, which is the caller's to do.
        let buffered = snapshot::write(&subject.store, BufWriter::new(full()));
        buffered.expect("it all fits into the buffer").into_inner().expect_err("and nowhere else");
    }

    #[test]
    fn a_crash_before_the_new_snapshot_had_its_name_leaves_the_old_one() {
        let folder = Folder::new();
        let path = folder.file("state");
        let subject = one_of_each();
        subject.store.save(&path).expect("a file of our own");
        let whole = fs::read(&path).expect("the snapshot");
        // As far as it came, from nothing to all of it.
        for length in [0, 1, whole.len() / 2, whole.len()] {
            fs::write(path.with_extension("new"), &whole[..length]).expect("a file beside it");
            let (_, outcome) = restore(&path);
            assert!(matches!(outcome, Restored::Keys(5)), "{outcome:?} with {length} bytes");
        }
        subject.store.save(&path).expect("the half one is no obstacle");
        assert_eq!(folder.names(), ["state"]);
    }
}

mod keeping {
    use super::*;

    /// Starts a keeper; its reports come out of the channel.
    fn keep(
        store: &Arc<MemoryStore>,
        path: &Path,
        every: Duration,
    ) -> (Keeper, mpsc::Receiver<Result<(), SnapshotError>>) {
        let (send, reports) = mpsc::channel();
        let report = move |result| drop(send.send(result));
        let keeper = Keeper::start(store.clone(), path.to_owned(), every, report);
        (keeper.expect("a thread"), reports)
    }

    fn left_in(path: &Path) -> u32 {
        let (later, outcome) = restore(path);
        assert!(matches!(outcome, Restored::Keys(1)), "{outcome:?}");
        later.remaining(&Order::new(1, later.enroll(limit_of(Algorithm::TokenBucket, 5))))
    }

    #[test]
    fn a_keeper_saves_again_and_again() {
        let folder = Folder::new();
        let path = folder.file("state");
        let Subject { store, .. } = Subject::in_memory();
        let store = Arc::new(store);
        let limit = store.enroll(limit_of(Algorithm::TokenBucket, 5)).expect("one limit");
        let (keeper, reports) = keep(&store, &path, Duration::from_millis(1));
        for left in [4, 3, 2] {
            Order::new(1, limit).with_charge(|charge| store.take_one(charge));
            // The attempt under way may have begun before the charge; the one after it has not.
            while reports.try_recv().is_ok() {}
            reports.recv().expect("a report").expect("a file of our own");
            reports.recv().expect("a report").expect("a file of our own");
            assert_eq!(left_in(&path), left);
        }
        drop(keeper);
        assert_eq!(folder.names(), ["state"]);
    }

    #[test]
    fn a_keeper_saves_once_more_when_it_is_dropped() {
        let folder = Folder::new();
        let path = folder.file("state");
        let Subject { store, .. } = Subject::in_memory();
        let store = Arc::new(store);
        let limit = store.enroll(limit_of(Algorithm::TokenBucket, 5)).expect("one limit");
        let (keeper, reports) = keep(&store, &path, Duration::from_secs(3_600));
        Order::new(1, limit).with_charge(|charge| store.take_one(charge));
        drop(keeper);
        let said: Vec<bool> = reports.iter().map(|report| report.is_ok()).collect();
        assert_eq!(said, [true], "one attempt, and the channel is closed");
        assert_eq!(left_in(&path), 4);
    }

    #[test]
    fn a_keeper_that_fails_says_so_and_goes_on() {
        let folder = Folder::new();
        let path = folder.file("not yet there/state");
        let Subject { store, .. } = Subject::in_memory();
        let (keeper, reports) = keep(&Arc::new(store), &path, Duration::from_millis(1));
        reports.recv().expect("a report").expect_err("there is no such folder");
        fs::create_dir(path.parent().expect("a folder")).expect("a folder");
        let has_recovered = reports.iter().any(|report| report.is_ok());
        assert!(has_recovered);
        drop(keeper);
        assert!(path.exists());
    }
}

#[test]
fn logs_and_counters_know_their_own() {
    // Both kinds of state beside each other, so that neither reader strays into the other's bytes.
    let subject = Subject::in_memory();
    for key in 0..100 {
        let algorithm = Algorithm::ALL[key as usize % 5];
        let order = Order::new(key, subject.enroll(limit_of(algorithm, 20)));
        for _ in 0..=key % 7 {
            subject.charge(&order);
        }
    }
    let later = restored(&bytes_of(&subject), START);
    for key in 0..100 {
        let algorithm = Algorithm::ALL[key as usize % 5];
        let order = Order::new(key, later.enroll(limit_of(algorithm, 20)));
        assert_eq!(later.remaining(&order), 19 - key as u32 % 7, "{algorithm} key {key}");
    }
}
