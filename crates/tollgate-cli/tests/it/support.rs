//! Real processes for end-to-end tests: the server, what asks it, and what stands behind.
//!
//! Everything listens on loopback, on ports nobody else has, and ends with the test. Nothing waits
//! for a time: what is not there yet is tried again, so often that only what never comes fails.

pub(crate) mod app;
pub(crate) mod http;
pub(crate) mod parts;
pub(crate) mod process;
pub(crate) mod server;

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

/// How long something is waited for in all, in steps of [`STEP`].
const TRIES: u32 = 3_000;
const STEP: Duration = Duration::from_millis(10);

/// Tries until there is a value, or fails the test.
pub(crate) fn eventually<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    within(TRIES, what, attempt)
}

/// The same for what is promised within a second.
pub(crate) fn within_a_second(what: &str, mut attempt: impl FnMut() -> bool) {
    within(100, what, || attempt().then_some(()));
}

fn within<T>(tries: u32, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..tries {
        if let Some(value) = attempt() {
            return value;
        }
        thread::sleep(STEP);
    }
    panic!("waited for {:?}, and in vain: {what}", tries * STEP)
}

/// A port for a program that cannot choose one itself. It is below those that the system gives to
/// outgoing connections, so that none of them takes it before the program does.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 1_000).expect("below 1000") * 11;
    (0..COUNT)
        .map(|_| FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("some port is free")
}

/// Waits until somebody listens there.
pub(crate) fn until_open(address: SocketAddr) {
    eventually(&format!("somebody listens at {address}"), || TcpStream::connect(address).ok());
}

pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A file of the examples, with other ports than it names. Every port must be in it.
pub(crate) fn example_with_ports(file: &str, ports: &[(u16, u16)]) -> String {
    let path = crate::root().join("examples").join(file);
    with_ports(&fs::read_to_string(&path).expect("the example is there"), ports)
}

/// A text with other numbers where it has these.
pub(crate) fn with_ports(text: &str, ports: &[(u16, u16)]) -> String {
    let mut changed = String::new();
    let mut found = Vec::new();
    // All at once, since a new number may look like another old one, and whole numbers only.
    for piece in text.split_inclusive(|character: char| !character.is_ascii_digit()) {
        let number = piece.trim_end_matches(|character: char| !character.is_ascii_digit());
        let known = ports.iter().find(|(written, _)| number == written.to_string());
        let Some((written, wanted)) = known else {
            changed += piece;
            continue;
        };
        found.push(written);
        changed += &format!("{wanted}{}", &piece[number.len()..]);
    }
    for (written, _) in ports {
        assert!(found.contains(&written), "port {written} is not named in {text}");
    }
    changed
}

/// Copies a folder with everything in it.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the folder is ours");
    for entry in fs::read_dir(from).expect("the folder is there") {
        let entry = entry.expect("the folder can be listed");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("the folder is ours");
        }
    }
}
