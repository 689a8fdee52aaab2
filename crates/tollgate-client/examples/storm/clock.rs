//! The clock of the simulation: it stands still while anybody has something to do, and then goes on to what is waited for.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) async fn wait(duration: Duration) {
    sleep_until(now() + duration).await;
}
