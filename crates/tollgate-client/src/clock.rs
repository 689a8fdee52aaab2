//! Time, read here and nowhere else in the client.

use tokio::time::Instant;

/// Now, as timers count it. Waits, deadlines and windows are measured by it.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits until then. Whoever drops it no longer waits, and nothing else happens.
pub(crate) async fn wait_until(moment: Instant) {
    tokio::time::sleep_until(moment).await;
}
