//! Nanoseconds per decision.
//!
//! Others share the machine, so a turn is short (tens of milliseconds for all but the slowest), contenders take
//! turns within a round, and the best round counts: noise only ever adds.

use std::sync::Barrier;
use std::time::Instant;

use tollgate_bench::measure::on_core_nanos;
use tollgate_bench::process::keep_to_core;

use crate::contender::Contender;
use crate::traffic::DRAWS;

/// Decisions per thread and round: what fits in the time, but no more than the most. A power of two, so that
/// windows of the traffic never straddle its end.
const ROUND_NANOS: usize = 300_000_000;
const MOST_DECISIONS: usize = 1 << 19;
const _: () = assert!(DRAWS.is_multiple_of(MOST_DECISIONS));

/// What one decision took.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Per thread, from the first thread's start to the last one's end. Were each thread's own time taken, the
    /// best round would be the one in which the threads happened to run one after the other.
    pub wall_nanos: f64,
    /// Mean over the threads of the time they were on a core.
    pub cpu_nanos: f64,
}

impl Timing {
    const WORST: Self = Self { wall_nanos: f64::INFINITY, cpu_nanos: f64::INFINITY };

    fn better(self, other: Self) -> Self {
        Self {
            wall_nanos: self.wall_nanos.min(other.wall_nanos),
            cpu_nanos: self.cpu_nanos.min(other.cpu_nanos),
        }
    }
}

/// The best of `rounds` for each contender, in their order, for each number of threads, in theirs.
pub fn compare<const N: usize>(
    contenders: &[&dyn Contender],
    traffic: &[String],
    threads: [usize; N],
    rounds: usize,
) -> [Vec<Timing>; N] {
    let windows: Vec<usize> =
        contenders.iter().map(|contender| window(*contender, traffic)).collect();
    let mut best = [(); N].map(|()| vec![Timing::WORST; contenders.len()]);
    // Every turn and every thread goes through another window of the traffic, lest it find its keys in the cache.
    let mut first = 0;
    for _ in 0..rounds {
        for (best, threads) in best.iter_mut().zip(threads) {
            for ((best, contender), window) in best.iter_mut().zip(contenders).zip(&windows) {
                let windows = traffic.chunks(*window).cycle().skip(first).take(threads);
                *best = best.better(time(*contender, windows));
                first += threads;
            }
        }
    }
    best
}

/// How many decisions this contender makes per round.
fn window(contender: &dyn Contender, traffic: &[String]) -> usize {
    const TRIED: usize = 1024;
    let start = Instant::now();
    contender.decide_all(&traffic[..TRIED]);
    let fitting = ROUND_NANOS * TRIED / (start.elapsed().as_nanos() as usize).max(1);
    1 << fitting.clamp(TRIED, MOST_DECISIONS).ilog2()
}

/// One turn: a thread for each of the windows.
fn time<'a>(contender: &dyn Contender, windows: impl Iterator<Item = &'a [String]>) -> Timing {
    let windows: Vec<&[String]> = windows.collect();
    let start = Barrier::new(windows.len());
    let runs: Vec<Run> = std::thread::scope(|scope| {
        let handles: Vec<_> = windows
            .iter()
            .enumerate()
            .map(|(core, window)| {
                scope.spawn({
                    let start = &start;
                    move || Run::measure(contender, window, start, core)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("no contender panics")).collect()
    });
    let start = runs.iter().map(|run| run.start).min().expect("there is a thread");
    let end = runs.iter().map(|run| run.end).max().expect("there is a thread");
    let cpu_nanos: f64 = runs.iter().map(|run| run.cpu_nanos).sum();
    let decisions = windows[0].len() as f64;
    Timing {
        wall_nanos: (end - start).as_nanos() as f64 / decisions,
        cpu_nanos: cpu_nanos / decisions / runs.len() as f64,
    }
}

/// What one thread did.
struct Run {
    start: Instant,
    end: Instant,
    cpu_nanos: f64,
}

impl Run {
    fn measure(contender: &dyn Contender, window: &[String], start: &Barrier, core: usize) -> Self {
        // Two threads that were started together are else on one core for as long as a round takes.
        keep_to_core(None, core).expect("there are as many cores as threads");
        // The contender before us left the caches full of its own.
        contender.decide_all(&window[..window.len() / 8]);
        start.wait();
        let (start, cpu) = (Instant::now(), on_core_nanos());
        let allowed = contender.decide_all(window);
        let (end, cpu_nanos) = (Instant::now(), on_core_nanos() - cpu);
        assert_eq!(allowed, window.len(), "the quota is too large for a denial");
        Self { start, end, cpu_nanos }
    }
}
