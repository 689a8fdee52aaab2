//! Now, as the timers of connections count it, and the time of day, which answers are dated by. Pauses and deadlines
//! are measured by the first, and states by neither.

use std::time::SystemTime;

use tokio::time::Instant;

pub(crate) fn moment() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "nothing is decided by it")]
pub(crate) fn time_of_day() -> SystemTime {
    SystemTime::now()
}
