//! How clients come back after they were denied.

use std::pin::Pin;
use std::time::Duration;

use http::{Request, StatusCode};
use tollgate_client::{ClientLayer, Retry, Rules};
use tower_layer::Layer;
use tower_service::Service;

use crate::api::Api;
use crate::chance::Chance;
use crate::clock;

/// What a first wait is, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// This crate, in so many processes.
    Rules {
        processes: usize,
    },
    Immediate,
    Fixed,
    Exponential,
    EqualJitter,
    DecorrelatedJitter,
}

/// A client until it is through, or gives up.
type Client = Pin<Box<dyn Future<Output = bool> + Send>>;

impl Habit {
    pub(crate) const ALL: [Self; 8] = [
        Self::Rules { processes: 1 },
        Self::Rules { processes: 10 },
        Self::Rules { processes: 1_000 },
        Self::Immediate,
        Self::Fixed,
        Self::Exponential,
        Self::EqualJitter,
        Self::DecorrelatedJitter,
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Rules { processes: 1 } => "tollgate-client".to_owned(),
            Self::Rules { processes } => format!("tollgate-client, in {processes} processes"),
            Self::Immediate => "at once".to_owned(),
            Self::Fixed => "after a second".to_owned(),
            Self::Exponential => "exponential, no jitter".to_owned(),
            Self::EqualJitter => "exponential, equal jitter".to_owned(),
            Self::DecorrelatedJitter => "decorrelated jitter".to_owned(),
        }
    }

    pub(crate) fn clients(self, api: &Api, seed: u64, count: usize) -> Vec<Client> {
        if let Self::Rules { processes } = self {
            return polite(api, seed, count, processes);
        }
        let client =
            |number| -> Client { Box::pin(stubborn(api.clone(), self, Chance::new(seed, number))) };
        (0..count).map(client).collect()
    }

    /// How long to wait before a retry, the first of which is number 0, after the wait before.
    fn wait(self, retry: i32, before: Duration, chance: &mut Chance) -> Duration {
        let doubled = FIRST.mul_f64(2_f64.powi(retry.min(5))).min(MOST);
        match self {
            Self::Immediate => Duration::ZERO,
            Self::Fixed => FIRST,
            Self::Exponential => doubled,
            Self::EqualJitter => doubled / 2 + (doubled / 2).mul_f64(chance.part()),
            Self::DecorrelatedJitter => {
                let most = (before * 3).max(FIRST);
                (FIRST + (most - FIRST).mul_f64(chance.part())).min(MOST)
            }
            Self::Rules { .. } => unreachable!("the rules wait by themselves"),
        }
    }
}

/// Tries until it is through, however long that takes, and reads nothing of what it is told.
async fn stubborn(api: Api, habit: Habit, mut chance: Chance) -> bool {
    let mut before = FIRST;
    for retry in 0.. {
        if api.ask().await.status() == StatusCode::OK {
            return true;
        }
        before = habit.wait(retry, before, &mut chance);
        clock::wait(before).await;
    }
    unreachable!("there are enough numbers")
}

/// As many processes, each with its share of the clients, which know what the others of theirs do.
fn polite(api: &Api, seed: u64, count: usize, processes: usize) -> Vec<Client> {
    let process = |number: usize| {
        let mut chance = Chance::new(seed, number);
        let rules = Rules::new().retry(Retry::new().seed(chance.next()));
        ClientLayer::new(rules).layer(api.of(chance.next()))
    };
    let processes: Vec<_> = (0..processes).map(process).collect();
    let client = |number: usize| -> Client {
        let mut client = processes[number % processes.len()].clone();
        Box::pin(async move {
            let request = Request::get("http://api.example.com/").body(()).expect("a request");
            client.call(request).await.is_ok_and(|response| response.status() == StatusCode::OK)
        })
    };
    (0..count).map(client).collect()
}
