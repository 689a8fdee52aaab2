//! Now, as the timers of connections count it. Pauses and deadlines are measured by it, never states.

use tokio::time::Instant;

pub(crate) fn moment() -> Instant {
    Instant::now()
}
