//! Time, read here and nowhere else in the client.

use std::time::SystemTime;

use tokio::time::Instant;

/// Now, as timers count it. Waits, deadlines and windows are measured by it.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// What a server's date is compared with.
#[expect(clippy::disallowed_methods, reason = "a server that sends no date is compared with ours")]
pub(crate) fn date() -> SystemTime {
    SystemTime::now()
}

/// Waits until then. Whoever drops it no longer waits, and nothing else happens.
pub(crate) async fn wait_until(moment: Instant) {
    tokio::time::sleep_until(moment).await;
}
