//! Deterministic replay of traffic against rate limits, on a simulated clock.
//!
//! Which algorithm fits is easier to see than to argue. This crate sends the same arrivals through
//! all six algorithms of `tollgate-core` and tells what each let through: when, how much at most in
//! any stretch of one period, and what it had to remember for that. It does no input or output and
//! reads no clock: a comparison is a function of its [`Scenario`], the same on every machine.
//!
//! ```
//! use tollgate_core::{Algorithm, Quota};
//! use tollgate_sim::{Scenario, Traffic};
//!
//! // Ten requests in the last second of a minute, ten in the first second of the next.
//! let scenario = Scenario::new(Quota::per_minute(10), Traffic::Boundary);
//! let comparison = scenario.compare()?;
//!
//! assert_eq!(comparison.lane(Algorithm::FixedWindow).most_in_any_window, 20);
//! assert_eq!(comparison.lane(Algorithm::SlidingLog).most_in_any_window, 10);
//! # Ok::<(), tollgate_sim::ScenarioError>(())
//! ```
//!
//! A limit and arrivals of your own are replayed by a [`Trial`]:
//!
//! ```
//! use tollgate_core::{Limit, Micros, Quota, Timestamp};
//! use tollgate_sim::{Arrival, Trial, Verdict};
//!
//! let quota = Quota::per_minute(60);
//! let trial = Trial::new(Limit::leaky_bucket(quota, 2, None)?, quota.period());
//! let at = Timestamp::from_micros(1_760_000_000_000_000);
//! let lane = trial.replay(&[Arrival { at, client: 0 }; 3]);
//!
//! let verdicts: Vec<Verdict> = lane.events.iter().map(|event| event.verdict).collect();
//! assert_eq!(verdicts[0], Verdict::Allowed);
//! assert_eq!(verdicts[1], Verdict::Delayed { delay: Micros::from_secs(1) });
//! assert_eq!(verdicts[2], Verdict::Denied { retry_after: Some(Micros::from_secs(1)) });
//! # Ok::<(), tollgate_core::QuotaError>(())
//! ```
//!
//! [`accuracy()`] measures how often the estimate of `sliding_window` is wrong; the table in
//! `docs/algorithms.md` is its output. Two examples can be run:
//!
//! ```text
//! cargo run -p tollgate-sim --example boundary    # the comparison above, in words
//! cargo run -p tollgate-sim --example accuracy    # the table, as Markdown
//! ```

mod accuracy;
pub mod bounds;
mod random;
mod scenario;
mod traffic;
mod trial;

pub use accuracy::{Accuracy, AccuracyTable, Judgement, Pattern, accuracy};
pub use scenario::{Comparison, Scenario, ScenarioError};
pub use traffic::{Arrival, Traffic, TrafficError};
pub use trial::{Event, Lane, Trial, Verdict};
