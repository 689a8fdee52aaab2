//! Clocks that are wrong: those of nodes, and Redis's own.

use std::time::Duration;

use tollgate_core::{Algorithm, Micros};
use tollgate_harness::{Clock, Flavour, Server, Setup, eventually};
use tollgate_store::redis::Servers;

use super::every_server;
use super::worker::{Job, Worker};
use crate::places::settings;
use crate::support::{Order, limit_over};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn nodes_whose_clocks_are_an_hour_apart_decide_the_same() {
    for server in every_server() {
        let settings = settings(Servers::Single(server.url()));
        let (ahead, behind) = (Clock::new(), Clock::new());
        ahead.set_ahead(HOUR / 2);
        behind.set_behind(HOUR / 2);
        let mut workers = [&ahead, &behind].map(|clock| Worker::start(&settings, Some(clock)));
        for (key, algorithm) in (0..).zip(Algorithm::ALL) {
            // Ten a day: what an hour gives back is less than one.
            let period = Micros::from_secs(86_400);
            let job = Job { algorithm, key, count: 10, period, attempts: 3 };
            for (turn, left) in [7, 4, 1].into_iter().enumerate() {
                let done = workers[turn % 2].run(&job);
                assert_eq!((done.admitted, done.remaining), (3, left), "{algorithm} {turn}");
            }
            let done = workers.each_mut().map(|worker| worker.run(&job));
            assert_eq!(done.map(|it| it.admitted).iter().sum::<u32>(), 1, "{algorithm}");
        }
    }
}

/// A server whose clock can be set.
struct Skewed {
    server: Server,
    clock: Clock,
    right: Server,
}

impl Skewed {
    fn start(flavour: Flavour) -> Self {
        let clock = Clock::new();
        let server = Setup::new(flavour).clock(&clock).start();
        Self { server, clock, right: Server::start(flavour) }
    }

    /// Sets the clock, and waits until the server has seen it.
    fn set(&self, ahead: Duration) {
        self.clock.set_ahead(ahead);
        let seconds = |server: &Server| -> i64 {
            server.command(&["TIME"]).list()[0].text().parse().expect("seconds")
        };
        let ahead = ahead.as_secs() as i64;
        eventually("the server has seen the new time", || {
            let apart = seconds(&self.server) - seconds(&self.right);
            (apart.abs_diff(ahead) < 60).then_some(())
        });
    }

    /// How many of many requests are admitted, by a node that remembers nothing.
    fn admitted(&self, algorithm: Algorithm, key: u64) -> u32 {
        let subject = open_at_prefix(&self.server);
        let order = Order::new(key, subject.enroll(limit(algorithm)));
        (0..3 * COUNT).map(|_| u32::from(subject.decide(&order).is_allowed())).sum()
    }

    /// How long somebody is told to wait.
    fn wait(&self, algorithm: Algorithm, key: u64) -> Option<Micros> {
        let subject = open_at_prefix(&self.server);
        let order = Order::new(key, subject.enroll(limit(algorithm)));
        subject.decide(&order).retry_after()
    }
}

/// Five a quarter of an hour.
const COUNT: u32 = 5;
const PERIOD: Duration = Duration::from_secs(900);

fn limit(algorithm: Algorithm) -> tollgate_core::Limit {
    limit_over(algorithm, COUNT, Micros::from_secs(PERIOD.as_secs()))
}

fn open_at_prefix(server: &Server) -> crate::support::Subject<tollgate_store::Store> {
    super::open(tollgate_store::redis::RedisSettings {
        prefix: "skewed".to_owned(),
        ..settings(Servers::Single(server.url()))
    })
}

#[test]
fn when_redis_own_clock_steps_extra_is_what_the_step_is_worth_and_nobody_is_locked_out() {
    for flavour in Flavour::ALL {
        let skewed = Skewed::start(flavour);
        for (key, algorithm) in (0..).zip(Algorithm::ALL) {
            skewed.set(2 * HOUR);
            assert_eq!(skewed.admitted(algorithm, key), COUNT, "{algorithm}");
            // Forth by an hour: all of it has come back, once.
            skewed.set(3 * HOUR);
            assert_eq!(skewed.admitted(algorithm, key), COUNT, "{algorithm} forth");
            // Back by an hour: nothing extra.
            skewed.set(2 * HOUR);
            assert_eq!(skewed.admitted(algorithm, key), 0, "{algorithm} back");
            let wait = skewed.wait(algorithm, key);
            // The step costs a period at most, and the wait there would have been anyway another.
            let longest = Micros::from_secs(2 * PERIOD.as_secs());
            assert!(wait.is_none_or(|wait| wait <= longest), "{algorithm}: {wait:?}");
            skewed.set(2 * HOUR + 2 * PERIOD);
            assert!(skewed.admitted(algorithm, key) > 0, "{algorithm} a little later");
            skewed.set(Duration::ZERO);
        }
    }
}
