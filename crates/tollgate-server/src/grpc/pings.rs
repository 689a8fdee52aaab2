//! When a silent client is asked whether it is there.
//!
//! hyper notes for every frame when it came, and looks at the clock a few times a call. For pings a
//! minute apart it is enough to know when the connection was last polled.

use std::cell::Cell;
use std::pin::Pin;
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use hyper_util::rt::TokioTimer;

use crate::moment::moment;

thread_local! {
    /// When a connection was last polled on this thread.
    static POLLED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Notes that a connection is polled now.
pub(super) fn note_poll() {
    POLLED_AT.set(Some(moment().into_std()));
}

/// The timer of a connection that is polled by [`note_poll`]'s caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollTimer;

impl Timer for PollTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep(duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep_until(deadline)
    }

    fn now(&self) -> Instant {
        POLLED_AT.get().unwrap_or_else(|| moment().into_std())
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        TokioTimer::new().reset(sleep, deadline);
    }
}
