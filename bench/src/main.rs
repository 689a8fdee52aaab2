//! tollgate beside its peers: nanoseconds per decision and bytes per key, in one run.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml -- [--quick] [--only SUBSTRING]`
//!
//! A full run writes `docs/benchmarks.md`; `--quick` (fewer keys and rounds) and `--only` (the measurements
//! whose label contains the text: `memory 10M governor`, `keyed 1M zipf floor`, `asked`, `colliding`,
//! `policy limitador`) only print.

mod again;
mod allocator;
mod asked;
mod colliding;
mod contender;
mod floor;
mod governor;
mod limitador;
mod memory;
mod policy;
mod throttlecrab;
mod timing;
mod tollgate;
mod traffic;

use std::iter;
use std::time::Instant;

use colliding::Waits;
use contender::{Contender, Entrant, KEYED, POLICIES};
use memory::Footprint;
use timing::Timing;
use tollgate_bench::report::{self, ABSENT, Bar, Reached, Table, kibibytes};
use traffic::Distribution;

const SIZES: [Size; 3] = [
    Size { keys: 1_000, name: "1k", title: "1 thousand keys" },
    Size { keys: 1_000_000, name: "1M", title: "1 million keys" },
    Size { keys: 10_000_000, name: "10M", title: "10 million keys" },
];

const INTRODUCTION: &str = "\
# Benchmarks

tollgate beside its peers, in one process and one run: [governor](https://docs.rs/governor) with its keyed limiter, the
[limitador](https://docs.rs/limitador) and [throttlecrab](https://docs.rs/throttlecrab) libraries with their memory stores, and
a *floor* written for the purpose: a bare table of 128-bit fingerprints and one atomic word each, which finds, reads the clock
and compare-and-swaps, and does nothing else a rate limiter has to do. (Its table is on the heap; tollgate asks for large pages
and fetches ahead, and so can be quicker where memory is what counts.)

Machines are noisy, so read the ratios and not the nanoseconds. Contenders take turns within short rounds and the best round
of each counts. With a million keys and more, ratios between contenders move by a quarter from run to run on a virtual machine:
whose memory is how far from the core is settled when it is given out. So what tollgate must reach is asked in seven processes,
with only those in them whom it is about, and their median counts; the tables before that are of one process, with all. Keys are
13 bytes (every 15 beyond the first 15 cost tollgate one more step of its hash) and all of them are known to the
contender before it is timed; what is asked is drawn beforehand, the same for all. The quota is too large for a denial. Whatever
a contender's interface makes its user build for a decision (an owned string, a context) is part of the decision. Run it again,
from the root of the repository, with

```sh
cargo xtask bench
```

In the tables, *÷ floor* is how many times the floor's time a decision takes, *governor ÷* how many times as fast as governor
it is, and *2 ÷ 1* how much more two threads get done than one. Each thread has a core of its own. With two threads the
nanoseconds are each thread's, so that threads which do not hinder each other show the same figure as one. *32 at a time* are the
states of the row above, in the same memory.

What is between the marks below is written by that command.
";

/// From what a contender needs for this many keys we tell whether it can be asked to hold more.
const PROBE_KEYS: usize = 1_000_000;
const MOST_BYTES: f64 = 12.0 * 1024.0 * 1024.0 * 1024.0;
const MOST_SECONDS: f64 = 180.0;

/// What the rows of ours begin with.
const OURS: &str = "tollgate";

const MOST_KEYS: usize = SIZES[2].keys;

struct Size {
    keys: usize,
    name: &'static str,
    title: &'static str,
}

struct Options {
    quick: bool,
    only: Option<String>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, keys] = &arguments[..]
        && first == memory::ARGUMENT
    {
        return memory::run_child(name, keys);
    }
    if let [first, size, rounds] = &arguments[..]
        && first == asked::ARGUMENT
    {
        return asked::run_child(size, rounds);
    }
    let options = Options::parse(arguments);
    let circumstances = report::circumstances(&peers());
    println!("{circumstances}");

    let (mut tables, mut since) = (Vec::new(), Instant::now());
    let mut add = |table: Table| {
        println!("{table}");
        eprintln!("{}: {:.0} s", table.title, since.elapsed().as_secs_f64());
        tables.push(table);
        since = Instant::now();
    };
    let mut reached = Vec::new();
    options.memory(&mut reached).into_iter().for_each(&mut add);
    for size in options.sizes() {
        options.keyed(size, &mut add);
    }
    options.asked(&mut reached).into_iter().for_each(&mut add);
    options.colliding(&mut reached).into_iter().for_each(&mut add);
    // Last, because the memory it frees stays with the process and would be missing for 10 million keys.
    options.policy(&mut reached).into_iter().for_each(&mut add);
    report::reach_table(reached).into_iter().for_each(&mut add);
    if !options.quick && options.only.is_none() {
        let tables: Vec<String> = tables.iter().map(Table::to_string).collect();
        report::write("bench", INTRODUCTION, &format!("{circumstances}\n{}", tables.join("\n")));
    }
}

impl Options {
    fn parse(arguments: Vec<String>) -> Self {
        let mut options = Self { quick: false, only: None };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            match (argument.as_str(), arguments.len()) {
                ("--quick", _) => options.quick = true,
                ("--only", 1..) => options.only = arguments.next(),
                _ => {
                    eprintln!("unexpected {argument:?}; usage: [--quick] [--only SUBSTRING]");
                    std::process::exit(2);
                }
            }
        }
        options
    }

    fn wants(&self, label: &str) -> bool {
        self.only.as_ref().is_none_or(|only| label.contains(only))
    }

    fn sizes(&self) -> &'static [Size] {
        if self.quick { &SIZES[..2] } else { &SIZES }
    }

    fn rounds(&self) -> usize {
        if self.quick { 8 } else { 25 }
    }

    fn processes(&self) -> usize {
        if self.quick { 3 } else { 7 }
    }

    /// What is asked of one keyed limit.
    fn asked(&self, reached: &mut Vec<Reached>) -> Option<Table> {
        if !self.wants("asked") {
            return None;
        }
        let (table, figures) = asked::measure(self.sizes(), self.processes(), self.rounds());
        reached.extend(figures);
        Some(table)
    }

    /// Bytes per key, from fresh processes.
    fn memory(&self, reached: &mut Vec<Reached>) -> Option<Table> {
        let mut rows = Vec::new();
        let mut notes = Vec::new();
        for entrant in KEYED {
            let mut row = vec![entrant.name.to_owned()];
            for size in self.sizes() {
                let label = format!("memory {} {}", size.name, entrant.name);
                let footprint = self.wants(&label).then(|| {
                    eprintln!("{label}");
                    fits(entrant, size).map(|()| memory::measure(entrant, size.keys))
                });
                row.extend(bytes_per_key(footprint.as_ref(), size));
                if let Some(Ok(footprint)) = &footprint
                    && entrant.name.starts_with(OURS)
                    && size.keys == MOST_KEYS
                {
                    reached.push(Reached {
                        what: format!("{}: bytes of a key, {}", entrant.name, size.title),
                        measured: footprint.resident_bytes / size.keys as f64,
                        bar: Bar::AtMost(48.0),
                    });
                }
                notes.extend(footprint.and_then(Result::err));
            }
            rows.push(row);
        }
        rows.retain(|row| row[1..].iter().any(|cell| cell != ABSENT));
        let columns = self.sizes().iter();
        let header = columns
            .flat_map(|size| ["heap", "resident"].map(|kind| format!("{}, {kind}", size.name)));
        notes.insert(0, "*Heap* is what was asked of the allocator, *resident* what the process grew by; at 1 thousand keys the pages of the second say nothing.".to_owned());
        (!rows.is_empty()).then(|| Table {
            title: "Bytes per key".to_owned(),
            header: iter::once("contender".to_owned()).chain(header).collect(),
            rows,
            notes,
        })
    }

    /// Keys that somebody chose, beside random ones.
    fn colliding(&self, reached: &mut Vec<Reached>) -> Option<Table> {
        if !self.wants("colliding") {
            return None;
        }
        eprintln!("colliding: inserting");
        let kinds = [("random", colliding::random()), ("chosen to collide", colliding::chosen())];
        let held = kinds.each_ref().map(|(_, keys)| {
            (tollgate::build_token_bucket(keys), Distribution::Uniform.traffic(keys))
        });
        let mut waits = [Waits::WORST; 2];
        for round in 0..self.rounds() {
            for (waits, (contender, traffic)) in waits.iter_mut().zip(&held) {
                let window = traffic.chunks(colliding::KEYS).cycle().nth(round);
                let window = window.expect("a cycle has no end");
                *waits = waits.better(Waits::measure(&**contender, window));
            }
        }
        let [random, chosen] = waits;
        reached.push(Reached {
            what: "keys chosen to collide: p99 ÷ random ones'".to_owned(),
            measured: chosen.p99_nanos as f64 / random.p99_nanos as f64,
            bar: Bar::AtMost(2.0),
        });
        let row = |((name, _), waits): (&(&str, Vec<String>), &Waits)| {
            vec![
                (*name).to_owned(),
                waits.p50_nanos.to_string(),
                waits.p99_nanos.to_string(),
                ratio(Some(waits.p99_nanos as f64), Some(random.p99_nanos as f64)),
            ]
        };
        Some(Table {
            title: "1 million keys that collide under a public hash".to_owned(),
            header: ["keys", "p50 ns", "p99 ns", "p99 ÷ random"].map(str::to_owned).into(),
            rows: kinds.iter().zip(&waits).map(row).collect(),
            notes: vec!["tollgate, token_bucket. Each decision is timed by itself, and what reading the clock twice takes is part of it. Chosen keys are strings of `Aa` and `BB`, which all have one hash in Java; random ones have as many letters. Asked for is a p99 of at most twice that of random keys.".to_owned()],
        })
    }

    /// The whole decision of a policy.
    fn policy(&self, reached: &mut Vec<Reached>) -> Option<Table> {
        let label = |entrant: &Entrant| format!("policy {}", entrant.name);
        let entrants: Vec<_> =
            POLICIES.iter().filter(|entrant| self.wants(&label(entrant))).collect();
        if entrants.is_empty() {
            return None;
        }
        let users = traffic::keys(1_000_000);
        let contenders = build(&entrants, &users);
        let contenders: Vec<&dyn Contender> =
            contenders.iter().map(|contender| &**contender).collect();
        let traffic = Distribution::Uniform.traffic(&users);
        eprintln!("policy");
        let [timings] = timing::compare(&contenders, &traffic, [1], self.rounds());
        let row_of = |name| entrants.iter().position(|entrant| entrant.name == name);
        let baseline = row_of("limitador");
        if let (Some(limitador), Some(ours)) = (baseline, row_of(OURS)) {
            reached.push(Reached {
                what: "a policy of 50 limits: times as fast as limitador".to_owned(),
                measured: timings[limitador].wall_nanos / timings[ours].wall_nanos,
                bar: Bar::AtLeast(8.0),
            });
        }
        let row = |((entrant, contender), timing): ((&&Entrant, &&dyn Contender), &Timing)| {
            let asked = &traffic[..10_000];
            // This thread is new to the contender, and tollgate looks closely at the first requests of one.
            contender.decide_all(asked);
            let (_, count) = allocator::count(|| contender.decide_all(asked));
            vec![
                entrant.name.to_owned(),
                nanos(timing.wall_nanos),
                nanos(timing.cpu_nanos),
                ratio(baseline.map(|row| timings[row].wall_nanos), Some(timing.wall_nanos)),
                format!("{:.2}", count.allocations as f64 / asked.len() as f64),
            ]
        };
        Some(Table {
            title: format!(
                "A policy of {} limits, {} of which apply, 1 million users, one thread",
                policy::LIMITS,
                policy::APPLY
            ),
            header: ["contender", "ns", "CPU ns", "times as fast as limitador", "allocations"]
                .map(str::to_owned)
                .into(),
            rows: entrants.iter().zip(&contenders).zip(&timings).map(row).collect(),
            notes: vec!["tollgate allocates every ten seconds alone, for the list of who sent most. All users were known to limitador before those limits were added that do not apply, since that takes it more than a minute otherwise.".to_owned()],
        })
    }

    /// One keyed limit. All contenders are held at once, so that they can take turns.
    fn keyed(&self, size: &Size, add: &mut impl FnMut(Table)) {
        let label = |distribution: Distribution, entrant: &Entrant| {
            format!("keyed {} {} {}", size.name, distribution.name(), entrant.name)
        };
        let wanted = |entrant: &&Entrant| {
            Distribution::ALL.iter().any(|distribution| self.wants(&label(*distribution, entrant)))
        };
        let (mut entrants, mut notes) = (Vec::new(), Vec::new());
        for entrant in KEYED.iter().filter(wanted) {
            match fits(entrant, size) {
                Ok(()) => entrants.push(entrant),
                Err(note) => notes.push(note),
            }
        }
        if entrants.is_empty() {
            return;
        }
        eprintln!("keyed {}: inserting", size.name);
        let keys = traffic::keys(size.keys);
        let contenders = build(&entrants, &keys);
        for distribution in Distribution::ALL {
            let (names, contenders): (Vec<&str>, Vec<&dyn Contender>) = entrants
                .iter()
                .zip(&contenders)
                .filter(|(entrant, _)| self.wants(&label(distribution, entrant)))
                .flat_map(|(entrant, contender)| {
                    iter::once((entrant.name, &**contender)).chain(contender.in_batches())
                })
                .unzip();
            if names.is_empty() {
                continue;
            }
            eprintln!("keyed {} {}", size.name, distribution.name());
            let traffic = distribution.traffic(&keys);
            let [one, two] = timing::compare(&contenders, &traffic, [1, 2], self.rounds());
            let mut table = keyed_table(&names, &one, &two);
            table.title = format!("{}, {}", size.title, distribution.name());
            table.notes.extend(notes.iter().cloned());
            add(table);
        }
    }
}

fn build(entrants: &[&Entrant], keys: &[String]) -> Vec<Box<dyn Contender>> {
    entrants.iter().map(|entrant| (entrant.build)(keys)).collect()
}

/// Whether the machine and our patience suffice for that many keys; if not, the footnote that says so.
fn fits(entrant: &Entrant, size: &Size) -> Result<(), String> {
    if size.keys <= PROBE_KEYS {
        return Ok(());
    }
    let times = (size.keys / PROBE_KEYS) as f64;
    let probe = memory::measure(entrant, PROBE_KEYS);
    let (bytes, seconds) = (probe.resident_bytes * times, probe.build_seconds * times);
    let available = kibibytes("/proc/meminfo", "MemAvailable:") * 1024.0;
    if bytes <= MOST_BYTES.min(available / 2.0) && seconds <= MOST_SECONDS {
        return Ok(());
    }
    Err(format!(
        "{} was not measured with {}, which would take it some {:.0} GiB and {seconds:.0} seconds to insert.",
        entrant.name,
        size.title,
        bytes / (1024.0 * 1024.0 * 1024.0)
    ))
}

/// A row for each contender with one thread, then for each with two. The caller gives it a title.
fn keyed_table(names: &[&str], one: &[Timing], two: &[Timing]) -> Table {
    let row_of = |name| names.iter().position(|one| *one == name);
    let (floor, governor) = (row_of("floor"), row_of("governor"));
    let row = |threads: usize, timings: &[Timing], row: usize| {
        let wall = |row: usize| timings[row].wall_nanos;
        vec![
            names[row].to_owned(),
            threads.to_string(),
            nanos(wall(row)),
            nanos(timings[row].cpu_nanos),
            ratio(Some(wall(row)), floor.map(wall)),
            ratio(governor.map(wall), Some(wall(row))),
            ratio(Some(threads as f64 * one[row].wall_nanos), Some(wall(row))),
        ]
    };
    let rows = 0..names.len();
    Table {
        title: String::new(),
        header: ["contender", "threads", "ns", "CPU ns", "÷ floor", "governor ÷", "2 ÷ 1"]
            .map(str::to_owned)
            .into(),
        rows: rows.clone().map(|n| row(1, one, n)).chain(rows.map(|n| row(2, two, n))).collect(),
        notes: busy(two).then(|| BUSY.to_owned()).into_iter().collect(),
    }
}

const BUSY: &str = "**The machine was busy:** no contender had two cores to itself in any round, so the wall time of two threads and *2 ÷ 1* say nothing here.";

/// Whether even the contender that waits least was kept off its cores.
fn busy(timings: &[Timing]) -> bool {
    timings.iter().all(|timing| timing.wall_nanos > 1.25 * timing.cpu_nanos)
}

fn bytes_per_key(footprint: Option<&Result<Footprint, String>>, size: &Size) -> [String; 2] {
    match footprint {
        Some(Ok(footprint)) => [footprint.heap_bytes, footprint.resident_bytes]
            .map(|bytes| format!("{:.0}", bytes / size.keys as f64)),
        _ => [ABSENT, ABSENT].map(str::to_owned),
    }
}

fn nanos(nanos: f64) -> String {
    format!("{nanos:.0}")
}

fn ratio(dividend: Option<f64>, divisor: Option<f64>) -> String {
    match dividend.zip(divisor) {
        Some((dividend, divisor)) => format!("{:.2}", dividend / divisor),
        None => ABSENT.to_owned(),
    }
}

fn peers() -> Vec<String> {
    ["governor", "limitador", "throttlecrab"]
        .map(|peer| format!("{peer} {}", locked_version(peer)))
        .into()
}

fn locked_version(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let entry =
        lock.split_once(&format!("name = \"{package}\"\nversion = \"")).map(|(_, rest)| rest);
    entry.and_then(|rest| rest.split('"').next()).unwrap_or(ABSENT)
}
