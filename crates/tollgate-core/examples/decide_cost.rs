//! What one decision costs, for an instruction counter to tell.
//!
//! `decide_cost WORK N` decides N times and prints nothing. The work is an algorithm; of those that keep
//! a log also `ALGORITHM+apply`, with what each decision does to the log. `--list` names all; without
//! arguments each is run a thousand times. It reads no clock: seconds depend on the machine,
//! instructions on the code alone (`cargo xtask bench decide` counts them).

use std::hint::black_box;
use std::process::ExitCode;

use tollgate_core::{
    Algorithm, Align, ChargeId, Cost, Counter, Limit, Log, Logged, Micros, Quota, QuotaError,
    Timestamp, Word,
};

/// Keys that take turns: enough to differ, few enough to stay in the cache.
const KEYS: u64 = 64;

/// What a work ends with that includes what a decision does.
const APPLY: &str = "+apply";

/// Between two decisions. A key comes round every 64 × 250 µs = 16 ms, a little less often than it
/// is allowed to.
const STEP: Micros = Micros::new(250);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            for work in works() {
                let allowed = run(&work, 1_000).expect("a work of the list");
                println!("{work}: 1000 decisions, {allowed} allowed");
            }
        }
        ["--list"] => works().iter().for_each(|work| println!("{work}")),
        [work, decisions] => match decisions.parse().map(|decisions| run(work, decisions)) {
            Ok(Some(allowed)) => drop(black_box(allowed)),
            _ => return usage(),
        },
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: decide_cost [--list | WORK DECISIONS]");
    ExitCode::from(2)
}

/// What `run` can be asked for.
fn works() -> Vec<String> {
    let logged = [Algorithm::SlidingLog, Algorithm::Concurrency];
    let alone = Algorithm::ALL.iter().map(Algorithm::to_string);
    alone.chain(logged.iter().map(|algorithm| format!("{algorithm}{APPLY}"))).collect()
}

/// Decides so many times, and tells how many were allowed; nothing if there is no such work.
fn run(work: &str, decisions: u64) -> Option<u64> {
    let (algorithm, applies) = match work.strip_suffix(APPLY) {
        Some(algorithm) => (algorithm, true),
        None => (work, false),
    };
    match (limit_of(algorithm.parse().ok()?).expect("a limit well within the bounds"), applies) {
        (Limit::Counter(limit), false) => Some(decide_counter(&limit, decisions)),
        (Limit::Counter(_), true) => None,
        (Limit::Logged(limit), false) => Some(decide_full_log(&limit, decisions)),
        (Limit::Logged(limit), true) => Some(decide_log(&limit, decisions)),
    }
}

#[inline(never)]
fn decide_counter(limit: &Counter, decisions: u64) -> u64 {
    let mut words = [Word::VACANT; KEYS as usize];
    for_each_request(decisions, |place, now, cost| {
        let word = black_box(words[place]);
        let transition = black_box(limit).decide(word, now, cost);
        words[place] = transition.word;
        black_box(transition.decision).is_allowed()
    })
}

fn logs() -> Vec<Log> {
    (0..KEYS).map(|_| Log::default()).collect()
}

/// Decides, and does what was decided.
#[inline(never)]
fn decide_log(limit: &Logged, decisions: u64) -> u64 {
    let (mut logs, mut id) = (logs(), 0);
    for_each_request(decisions, |place, now, cost| {
        id += 1;
        let transition = black_box(limit).decide(&logs[place], now, cost, ChargeId(id));
        logs[place].apply(transition.change);
        black_box(transition.decision).is_allowed()
    })
}

/// Decides about logs that are as full as they stay, again and again at the same moment of each. Those
/// moments are as many rounds apart as there are keys, so that logs of all ages are asked.
#[inline(never)]
fn decide_full_log(limit: &Logged, decisions: u64) -> u64 {
    const ROUNDS: u64 = 100;
    let (mut logs, mut id) = (logs(), 0);
    let mut moments = [Timestamp::EPOCH; KEYS as usize];
    for_each_request((ROUNDS + KEYS) * KEYS, |place, now, cost| {
        let round = id / KEYS;
        id += 1;
        if round < ROUNDS + place as u64 {
            let transition = limit.decide(&logs[place], now, cost, ChargeId(id));
            logs[place].apply(transition.change);
            moments[place] = now.plus(Micros::new(KEYS * STEP.as_micros()));
        }
        true
    });
    for_each_request(decisions, |place, _, cost| {
        let transition = black_box(limit).decide(&logs[place], moments[place], cost, ChargeId(0));
        black_box(transition).decision.is_allowed()
    })
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
