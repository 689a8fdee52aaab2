//! Ports nobody else has.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::bounds::{PORT_COUNT, PORT_FIRST};

/// A port for a program that cannot choose one itself. Never the same twice in a while, so that a
/// server that was killed finds its own free when it comes back.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side begin at different places.
    let start = std::process::id().wrapping_mul(619);
    (0..PORT_COUNT)
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % u32::from(PORT_COUNT))
        .map(|offset| PORT_FIRST + u16::try_from(offset).expect("below PORT_COUNT"))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("some port is free")
}
