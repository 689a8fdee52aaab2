//! What several tests need.

use tokio::time::Instant;

/// Now, on the clock of the test, which stands still until everybody waits.
pub(crate) fn now() -> Instant {
    Instant::now()
}
