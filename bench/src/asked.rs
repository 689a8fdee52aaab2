//! What is asked of one keyed limit.
//!
//! Whose memory is how far from a core is settled when a process is given it, so with a million keys and more two
//! processes see different ratios. Each figure is therefore the median of several processes, in which only those whom it
//! is about take turns.

use tollgate_bench::report::{Bar, Reached, Table, median};

use crate::contender::{Contender, KEYED};
use crate::traffic::{self, Distribution};
use crate::{SIZES, Size, again, timing};

/// The hidden argument with which this program runs itself.
pub const ARGUMENT: &str = "--measure-asked";

const FLOOR: &str = "floor";
const OURS: &str = "tollgate, token_bucket";
const OURS_IN_BATCHES: &str = "tollgate, 32 at a time";
const GOVERNOR: &str = "governor";

/// The time that one way to decide takes, divided by that of another.
struct Asked {
    size: &'static str,
    distribution: Distribution,
    what: &'static str,
    dividend: Way,
    divisor: Way,
    bar: Bar,
}

/// Who decides, and with how many threads.
type Way = (&'static str, usize);

const ASKED: [Asked; 7] = [
    asked("1k", Distribution::Uniform, FASTER, (GOVERNOR, 1), (OURS, 1), Bar::AtLeast(1.0)),
    asked("1k", Distribution::Uniform, THREADS, (OURS, 1), (OURS, 2), Bar::AtLeast(1.6)),
    asked("1M", Distribution::Uniform, FASTER, (GOVERNOR, 1), (OURS, 1), Bar::AtLeast(4.0)),
    asked("1M", Distribution::Zipf, FASTER, (GOVERNOR, 1), (OURS, 1), Bar::AtLeast(4.0)),
    asked("10M", Distribution::Uniform, FASTER, (GOVERNOR, 1), (OURS, 1), Bar::AtLeast(5.0)),
    asked("10M", Distribution::Uniform, ABOVE, (OURS, 1), (FLOOR, 1), Bar::AtMost(2.5)),
    asked(
        "10M",
        Distribution::Uniform,
        BATCHES,
        (OURS, 1),
        (OURS_IN_BATCHES, 1),
        Bar::AtLeast(2.0),
    ),
];

const FASTER: &str = "token_bucket, times as fast as governor";
const THREADS: &str = "token_bucket, two threads ÷ one";
const ABOVE: &str = "token_bucket, ÷ floor";
const BATCHES: &str = "32 at a time, times as fast as one by one";

const fn asked(
    size: &'static str,
    distribution: Distribution,
    what: &'static str,
    dividend: Way,
    divisor: Way,
    bar: Bar,
) -> Asked {
    Asked { size, distribution, what, dividend, divisor, bar }
}

/// Measures in `processes` of its own, of so many rounds each; the figures of them all, and their medians.
pub fn measure(sizes: &[Size], processes: usize, rounds: usize) -> (Table, Vec<Reached>) {
    let (mut rows, mut reached) = (Vec::new(), Vec::new());
    for size in sizes {
        eprintln!("asked {}", size.name);
        let of_processes: Vec<Vec<f64>> = (0..processes).map(|_| run(size, rounds)).collect();
        for (number, asked) in of(size).enumerate() {
            let measured: Vec<f64> = of_processes.iter().map(|ratios| ratios[number]).collect();
            let what = format!("{}, {}: {}", size.title, asked.distribution.name(), asked.what);
            let cells = measured.iter().map(|ratio| format!("{ratio:.2}"));
            rows.push(std::iter::once(what.clone()).chain(cells).collect());
            reached.push(Reached { what, measured: median(measured), bar: asked.bar });
        }
    }
    let header = (1..=processes).map(|number| number.to_string());
    let table = Table {
        title: "One keyed limit, process by process".to_owned(),
        header: std::iter::once("of tollgate".to_owned()).chain(header).collect(),
        rows,
        notes: vec!["In each of them only those take turns whom the figures are about.".to_owned()],
    };
    (table, reached)
}

fn of(size: &Size) -> impl Iterator<Item = &'static Asked> {
    ASKED.iter().filter(|asked| asked.size == size.name)
}

/// What a fresh process measures, in the order of what is asked.
fn run(size: &Size, rounds: usize) -> Vec<f64> {
    let ratios = again::numbers(&[ARGUMENT, size.name, &rounds.to_string()]);
    assert_eq!(ratios.len(), of(size).count(), "measuring what is asked of {}", size.name);
    ratios
}

/// The child's side: prints the ratios.
pub fn run_child(size: &str, rounds: &str) {
    let size = SIZES.iter().find(|one| one.name == size).expect("the parent knows it");
    let rounds = rounds.parse().expect("the parent passed a number");
    let keys = traffic::keys(size.keys);
    let takes_part =
        |name| of(size).any(|asked| [asked.dividend.0, asked.divisor.0].contains(&name));
    let built: Vec<(&str, Box<dyn Contender>)> = KEYED
        .iter()
        .filter(|entrant| takes_part(entrant.name))
        .map(|entrant| (entrant.name, (entrant.build)(&keys)))
        .collect();
    let (names, contenders): (Vec<&str>, Vec<&dyn Contender>) = built
        .iter()
        .flat_map(|(name, contender)| [Some((*name, &**contender)), contender.in_batches()])
        .flatten()
        .filter(|(name, _)| takes_part(name))
        .unzip();
    for distribution in Distribution::ALL {
        let asked: Vec<&Asked> = of(size).filter(|one| one.distribution == distribution).collect();
        if asked.is_empty() {
            continue;
        }
        let traffic = distribution.traffic(&keys);
        let timings = match asked.iter().any(|one| [one.dividend.1, one.divisor.1].contains(&2)) {
            true => timing::compare(&contenders, &traffic, [1, 2], rounds).to_vec(),
            false => timing::compare(&contenders, &traffic, [1], rounds).to_vec(),
        };
        // For whoever runs this one process: governor moves more than we do.
        for (name, timing) in names.iter().zip(&timings[0]) {
            eprintln!("{} {name} {:.1}", distribution.name(), timing.wall_nanos);
        }
        for asked in asked {
            let nanos = |(name, threads): Way| {
                let place = names.iter().position(|one| *one == name).expect("it takes part");
                timings[threads - 1][place].wall_nanos / threads as f64
            };
            println!("{}", nanos(asked.dividend) / nanos(asked.divisor));
        }
    }
    // Taking millions of entries apart would only take time.
    std::mem::forget(built);
}
