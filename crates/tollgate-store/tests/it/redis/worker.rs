//! A node in a process of its own: this test binary, told by its environment to be one.
//!
//! It is asked line by line on its standard input, and answers each with a line of its own.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tollgate_core::{Algorithm, Micros};
use tollgate_harness::Clock;
use tollgate_store::redis::{RedisSettings, Servers};

use super::open;
use crate::places::settings;
use crate::support::{Order, limit_over};

/// What every line of a worker's begins with; the test runner prints others.
const MARK: &str = "worker: ";

/// Where the worker's store is.
const SERVERS: &str = "TOLLGATE_TEST_SERVERS";
const PREFIX: &str = "TOLLGATE_TEST_PREFIX";

/// What a worker is asked to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) algorithm: Algorithm,
    pub(super) key: u64,
    pub(super) count: u32,
    pub(super) period: Micros,
    pub(super) attempts: u32,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) admitted: u32,
    /// What the last answer said.
    pub(super) remaining: u32,
    /// Requests that were settled without Redis, so far.
    pub(super) settled: u64,
}

/// A worker's process; it ends with this.
pub(super) struct Worker {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one, with a wall clock of its own if one is given.
    pub(super) fn start(settings: &RedisSettings, clock: Option<&Clock>) -> Self {
        let servers = match &settings.servers {
            Servers::Single(url) => url.clone(),
            Servers::Cluster(urls) => urls.join(" "),
            Servers::Sentinel { .. } => unreachable!("no test asks for it"),
        };
        let program = env::current_exe().expect("a running program is a file");
        let mut command = Command::new(program);
        let test = "redis::worker::a_process_that_is_told_so_is_a_node";
        command.args(["--exact", test, "--nocapture"]);
        command.env(SERVERS, servers).env(PREFIX, &settings.prefix);
        command.envs(clock.into_iter().flat_map(Clock::environment));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program starts again");
        let requests = process.stdin.take().expect("it was asked for");
        let answers = BufReader::new(process.stdout.take().expect("it was asked for"));
        Self { process, requests, answers }
    }

    /// Asks it to do something; it begins at once.
    pub(super) fn ask(&mut self, job: &Job) {
        let Job { algorithm, key, count, period, attempts } = job;
        let place = Algorithm::ALL.iter().position(|it| it == algorithm);
        let place = place.expect("one of all");
        let period = period.as_micros();
        writeln!(self.requests, "{place} {key} {count} {period} {attempts}").expect("it listens");
    }

    /// What came of what it was asked first and has not told yet.
    pub(super) fn hear(&mut self) -> Done {
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.answers.read_line(&mut line).expect("it answers");
            assert_ne!(length, 0, "the worker has ended");
            // The runner begins the line of a test with its name.
            if let Some((_, answer)) = line.split_once(MARK) {
                let numbers: Vec<u64> = numbers(answer);
                let [admitted, remaining, settled] = numbers[..] else { panic!("{line}") };
                let (admitted, remaining) = (admitted as u32, remaining as u32);
                return Done { admitted, remaining, settled };
            }
        }
    }

    pub(super) fn run(&mut self, job: &Job) -> Done {
        self.ask(job);
        self.hear()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

/// Other tests run this; by itself it does nothing.
#[test]
fn a_process_that_is_told_so_is_a_node() {
    let Ok(servers) = env::var(SERVERS) else { return };
    let servers = match servers.contains(' ') {
        true => Servers::Cluster(servers.split(' ').map(str::to_owned).collect()),
        false => Servers::Single(servers),
    };
    let prefix = env::var(PREFIX).expect("it is given with the servers");
    let subject = open(RedisSettings { prefix, ..settings(servers) });
    for line in io::stdin().lines() {
        let numbers = numbers(&line.expect("lines of text"));
        let [algorithm, key, count, period, attempts] = numbers[..] else { panic!("{numbers:?}") };
        let limit =
            limit_over(Algorithm::ALL[algorithm as usize], count as u32, Micros::new(period));
        let order = Order::new(key, subject.enroll(limit));
        let (mut admitted, mut remaining, mut left) = (0, 0, attempts);
        while left > 0 {
            // Several at once, so that they share pipelines and race with each other too.
            let together = left.min(8);
            let ask = |_| order.with_charge(|charge| subject.store.take(&[*charge]));
            let asked: Vec<_> = (0..together).map(ask).collect();
            for asked in asked {
                let taken = asked.wait().taken()[0];
                admitted += u32::from(taken.is_allowed());
                remaining = taken.decision().map_or(0, |it| it.remaining);
            }
            left -= together;
        }
        println!("{MARK}{admitted} {remaining} {}", subject.redis().settled());
    }
}
