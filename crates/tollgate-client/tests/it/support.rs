//! What several tests need.

#[cfg(feature = "reqwest")]
pub(crate) mod peer;
#[cfg(feature = "server")]
pub(crate) mod running;
#[cfg(feature = "server")]
pub(crate) mod scripted;
#[cfg(feature = "tower")]
pub(crate) mod server;

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Now, on the clock of the test, which stands still until everybody waits.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// So much time passes at once, on a clock that runs.
#[cfg(feature = "server")]
pub(crate) async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Chance from a seed, so that what failed once fails again.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Fields as they are written, one a line.
pub(crate) fn fields(lines: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in lines.lines() {
        let (name, value) = line.split_once(':').expect("a field has a colon");
        let name: HeaderName = name.trim().parse().expect("a name of a field");
        fields.append(name, HeaderValue::from_str(value.trim()).expect("a value of a field"));
    }
    fields
}
