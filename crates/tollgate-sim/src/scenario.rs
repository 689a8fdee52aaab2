//! The same traffic through all six algorithms.

use std::error::Error;
use std::fmt;

use tollgate_core::{Algorithm, Quota, QuotaError, Timestamp};

use crate::bounds::COUNT_MAX;
use crate::{Lane, Traffic, Trial};

/// Everything a comparison depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What every algorithm is to enforce.
    pub quota: Quota,
    /// What a token bucket holds, and how many a leaky bucket queues.
    pub burst: u32,
    /// What is sent.
    pub traffic: Traffic,
    /// Which of the many possible instances of that traffic.
    pub seed: u64,
}

/// What each algorithm made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// What was compared.
    pub scenario: Scenario,
    /// When simulated time begins: a boundary of the wall clock's windows.
    pub origin: Timestamp,
    /// One lane for each algorithm, in the order of [`Algorithm::ALL`].
    pub lanes: Vec<Lane>,
}

impl Scenario {
    /// A quota with its whole count as burst, and the first instance of the traffic.
    pub const fn new(quota: Quota, traffic: Traffic) -> Self {
        Self { quota, burst: quota.count(), traffic, seed: 1 }
    }

    /// Sends the traffic through all six algorithms.
    pub fn compare(&self) -> Result<Comparison, ScenarioError> {
        let &Self { quota, burst, traffic, seed } = self;
        if quota.count() > COUNT_MAX {
            return Err(ScenarioError::QuotaTooLarge { quota });
        }
        let arrivals = traffic.arrivals(quota, seed);
        let lanes = Algorithm::ALL.into_iter().map(|algorithm| {
            let trial = Trial::of(algorithm, quota, burst)?;
            Ok(trial.play(&arrivals, |event| traffic.comes_back(quota, event)))
        });
        let lanes = lanes
            .collect::<Result<_, QuotaError>>()
            .map_err(|source| ScenarioError::NotALimit { source })?;
        Ok(Comparison { scenario: *self, origin: Traffic::origin(quota), lanes })
    }
}

impl Comparison {
    /// What this algorithm made of it.
    pub fn lane(&self, algorithm: Algorithm) -> &Lane {
        let lane = self.lanes.iter().find(|lane| lane.algorithm == algorithm);
        lane.expect("a comparison has a lane for each algorithm")
    }
}

/// Why a scenario cannot be played.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The quota counts further than a comparison shows.
    QuotaTooLarge {
        /// What was asked for.
        quota: Quota,
    },
    /// Some algorithm cannot enforce the quota with this burst.
    NotALimit {
        /// Why not.
        source: QuotaError,
    },
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QuotaTooLarge { quota } => write!(
                f,
                "{quota} is too much to show request by request; compare a smaller count, up to \
                 {COUNT_MAX}: the shape is the same"
            ),
            Self::NotALimit { source } => write!(f, "{source}"),
        }
    }
}

impl Error for ScenarioError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::QuotaTooLarge { .. } => None,
            Self::NotALimit { source } => Some(source),
        }
    }
}
