//! What one decision costs, for an instruction counter to tell.
//!
//! `decide_cost ALGORITHM N` decides N times and prints nothing; `--list` names the algorithms;
//! without arguments each is run a thousand times. It reads no clock: seconds depend on the machine,
//! instructions on the code alone (`cargo xtask bench decide` counts them).

use std::hint::black_box;
use std::process::ExitCode;

use tollgate_core::{
    Algorithm, Align, ChargeId, Cost, Limit, Log, Micros, Quota, QuotaError, Timestamp, Word,
};

/// Keys that take turns: enough to differ, few enough to stay in the cache.
const KEYS: u64 = 64;

/// Between two decisions. A key comes round every 64 × 250 µs = 16 ms, a little less often than it
/// is allowed to.
const STEP: Micros = Micros::new(250);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            for algorithm in Algorithm::ALL {
                let allowed = run(algorithm, 1_000);
                println!("{algorithm}: 1000 decisions, {allowed} allowed");
            }
        }
        ["--list"] => Algorithm::ALL.iter().for_each(|algorithm| println!("{algorithm}")),
        [algorithm, decisions] => match (algorithm.parse(), decisions.parse()) {
            (Ok(algorithm), Ok(decisions)) => drop(black_box(run(algorithm, decisions))),
            _ => return usage(),
        },
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: decide_cost [--list | ALGORITHM DECISIONS]");
    ExitCode::from(2)
}

/// Decides so many times, and tells how many were allowed.
fn run(algorithm: Algorithm, decisions: u64) -> u64 {
    match limit_of(algorithm).expect("a limit well within the bounds") {
        Limit::Counter(limit) => {
            let mut words = [Word::VACANT; KEYS as usize];
            for_each_request(decisions, |place, now, cost| {
                let word = black_box(words[place]);
                let transition = black_box(&limit).decide(word, now, cost);
                words[place] = transition.word;
                black_box(transition.decision).is_allowed()
            })
        }
        Limit::Logged(limit) => {
            let mut logs: Vec<Log> = (0..KEYS).map(|_| Log::default()).collect();
            let mut id = 0;
            for_each_request(decisions, |place, now, cost| {
                id += 1;
                let log = &mut logs[place];
                let transition = black_box(&limit).decide(log, now, cost, ChargeId(id));
                log.apply(transition.change);
                black_box(transition.decision).is_allowed()
            })
        }
    }
}

fn for_each_request(
    decisions: u64,
    mut is_allowed: impl FnMut(usize, Timestamp, Cost) -> bool,
) -> u64 {
    let mut now = Timestamp::from_micros(1_760_000_000_000_000);
    let mut allowed = 0;
    for number in 0..decisions {
        now = now.plus(STEP);
        // Every eighth key asks for twice as much, and so is denied now and then.
        let cost = Cost::new(1 + u32::from(number % 8 == 7));
        let place = (number % KEYS) as usize;
        allowed += u64::from(is_allowed(place, black_box(now), black_box(cost)));
    }
    allowed
}

/// About what each key asks for, in the form each algorithm has it.
fn limit_of(algorithm: Algorithm) -> Result<Limit, QuotaError> {
    let quota = Quota::per_second(66);
    match algorithm {
        Algorithm::SlidingWindow => Ok(Limit::sliding_window(quota)),
        Algorithm::TokenBucket => Limit::token_bucket(Quota::per_minute(4_000), 20),
        Algorithm::LeakyBucket => Limit::leaky_bucket(Quota::per_minute(4_000), 20, None),
        Algorithm::FixedWindow => Ok(Limit::fixed_window(quota, Align::Clock)),
        Algorithm::SlidingLog => Limit::sliding_log(quota),
        Algorithm::Concurrency => Limit::concurrency(66, Micros::from_secs(1)),
    }
}
