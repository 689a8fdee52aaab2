//! The Redis store beside the server it asks: what a decision costs Redis, and what tollgate adds.
//!
//! `cargo xtask bench redis [--quick]`
//!
//! A full run writes its section of `docs/benchmarks.md`; `--quick` (shorter rounds, and fewer) only prints.

mod load;
mod server;

use std::time::Duration;

use load::{Load, Paced};
use server::{Redis, Spent};
use tollgate_bench::process::keep_to_core;
use tollgate_bench::report::{self, ABSENT, Bar, Reached, Table};
use tollgate_core::{Limit, Micros, Quota};

const INTRODUCTION: &str = "\
## The Redis store

One `redis-server` on loopback, and the store in another process with many callers on one thread. Beside it
`redis-benchmark -P 16` sends the same script to the same server with the same arguments, as quickly as it can: that is as much
as this server decides. The two take turns within short rounds and medians count, but where it says otherwise. *Redis CPU* is
the time the server process spends on a core, for each decision. (`redis-benchmark` cannot send a zero byte: where the store's
argument has one, it sends MessagePack's nil.) Run it again with

```sh
cargo xtask bench redis
```

which writes what is between the marks below.
";

/// Callers that ask at the same time.
const CALLERS: usize = 1_024;

/// Keys that they ask about.
const KEYS: u32 = 100_000;

/// Waits are looked at in rounds so many times as many, and as short.
const SLICES: usize = 40;

/// What others may have of our cores at a time for a round to count as undisturbed.
const STOP_MAX: Duration = Duration::from_micros(200);

struct Options {
    rounds: usize,
    round: Duration,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = match &arguments[..] {
        [] => false,
        [only] if only == "--quick" => true,
        _ => {
            eprintln!("usage: redis [--quick]");
            std::process::exit(2);
        }
    };
    let (rounds, round) = if quick { (3, 1) } else { (9, 2) };
    let options = Options { rounds, round: Duration::from_secs(round) };
    let redis = Redis::start();
    let circumstances = report::circumstances(&[format!("redis-server {}", redis.version())]);
    println!("{circumstances}");
    let mut reached = Vec::new();
    let mut tables = vec![
        options.strict(&redis, &mut reached),
        options.leased(&redis, &mut reached),
        options.waits(&mut reached),
        denied(&options, &redis, &mut reached),
        memory(&redis, &mut reached),
    ];
    tables.extend(report::reach_table(reached));
    let text: Vec<String> = tables.iter().map(Table::to_string).collect();
    println!("{}", text.join("\n"));
    if !quick {
        report::write("redis", INTRODUCTION, &format!("{circumstances}\n{}", text.join("\n")));
    }
}

/// A limit that nobody reaches. No number of it has a zero byte, since `redis-benchmark` could not send it.
fn wide() -> Limit {
    let quota = Quota::new(17, Micros::new(1_037)).expect("16,000 a second");
    Limit::token_bucket(quota, 1_000_000_001).expect("it refills in a day")
}

impl Options {
    /// One limit and three, each decision a call.
    fn strict(&self, redis: &Redis, reached: &mut Vec<Reached>) -> Table {
        eprintln!("strict");
        let one = Load::new(redis, &[wide()], KEYS, false);
        let three = Load::new(redis, &[wide(), wide(), wide()], KEYS, false);
        let mut spent: [Vec<Spent>; 3] = Default::default();
        for _ in 0..self.rounds {
            spent[0].push(redis.of_script_alone(one.arguments(), KEYS, self.round));
            spent[1].push(redis.spent(|| one.run(CALLERS, self.round)));
            spent[2].push(redis.spent(|| three.run(CALLERS, self.round)));
        }
        let [alone, one, three] = spent.map(|rounds| Spent::median(&rounds));
        let reach = |what: &str, measured, bar| Reached { what: what.to_owned(), measured, bar };
        reached.extend([
            reach(
                "strict: decisions a second ÷ redis-benchmark -P 16",
                one.per_second / alone.per_second,
                Bar::AtLeast(0.9),
            ),
            reach(
                "strict: Redis CPU ÷ the script's own",
                one.cpu_micros / alone.cpu_micros,
                Bar::AtMost(1.0),
            ),
            reach(
                "three limits: Redis CPU ÷ one limit's",
                three.cpu_micros / one.cpu_micros,
                Bar::AtMost(2.2),
            ),
        ]);
        let row = |name: &str, spent: &Spent| {
            vec![
                name.to_owned(),
                format!("{:.0}", spent.per_second),
                format!("{:.2}", spent.cpu_micros),
                spent.own_cpu_micros.map_or(ABSENT.to_owned(), |micros| format!("{micros:.2}")),
                format!("{:.3}", spent.commands),
            ]
        };
        Table {
            title: format!("Strict, {CALLERS} callers, {KEYS} keys"),
            header: ["who asks", "a second", "Redis CPU µs", "own CPU µs", "commands"]
                .map(str::to_owned)
                .into(),
            rows: vec![
                row("redis-benchmark -P 16, the same script", &alone),
                row("tollgate, one limit", &one),
                row("tollgate, three limits", &three),
            ],
            notes: vec!["Each figure but the first is for one decision.".to_owned()],
        }
    }

    /// Hot keys whose units are taken in advance.
    fn leased(&self, redis: &Redis, reached: &mut Vec<Reached>) -> Table {
        eprintln!("leased");
        const HOT: u32 = 100;
        let strict = Load::new(redis, &[wide()], HOT, false);
        let leased = Load::new(redis, &[wide()], HOT, true);
        let mut spent: [Vec<Spent>; 2] = Default::default();
        for _ in 0..self.rounds {
            spent[0].push(redis.spent(|| strict.run(CALLERS, self.round)));
            spent[1].push(redis.spent(|| leased.run(CALLERS, self.round)));
        }
        let [strict, leased] = spent.map(|rounds| Spent::median(&rounds));
        let (admitted, most) = self.over_admission();
        let reach = |what: &str, measured, bar| Reached { what: what.to_owned(), measured, bar };
        reached.extend([
            reach(
                "leased: decisions for each command ÷ strict",
                strict.commands / leased.commands,
                Bar::AtLeast(20.0),
            ),
            reach(
                "leased: decisions a second ÷ strict",
                leased.per_second / strict.per_second,
                Bar::AtLeast(10.0),
            ),
            reach(
                "leased: admitted by four nodes ÷ what the limit allows",
                admitted as f64 / most as f64,
                Bar::AtMost(1.0),
            ),
        ]);
        let row = |name: &str, spent: &Spent| {
            vec![
                name.to_owned(),
                format!("{:.0}", spent.per_second),
                format!("{:.4}", spent.commands),
            ]
        };
        Table {
            title: format!("Leased, {CALLERS} callers, {HOT} keys"),
            header: ["sync", "a second", "commands for each"].map(str::to_owned).into(),
            rows: vec![row("strict", &strict), row("leased", &leased)],
            notes: vec![format!(
                "Four nodes that asked without a pause for one bucket of 20,000 that refills by 2,000 a second were given {admitted} units in {:.0?}, of the {most} that there were.",
                self.round
            )],
        }
    }

    /// What four nodes admit of one bucket, and what they may.
    fn over_admission(&self) -> (u64, u64) {
        // Nobody has used anything of it before.
        let redis = &Redis::start();
        let limit = Limit::token_bucket(Quota::per_second(2_000), 20_000).expect("it refills");
        let nodes: Vec<Load> = (0..4).map(|_| Load::of_one_key(redis, limit, true)).collect();
        let start = std::time::Instant::now();
        let admitted: u64 = std::thread::scope(|scope| {
            let running: Vec<_> =
                nodes.iter().map(|node| scope.spawn(|| node.run(16, self.round).allowed)).collect();
            running.into_iter().map(|node| node.join().expect("a node runs to its end")).sum()
        });
        let most = 20_000 + start.elapsed().as_micros() as u64 * 2_000 / 1_000_000;
        (admitted, most)
    }

    /// What a check takes when Redis is half busy.
    fn waits(&self, reached: &mut Vec<Reached>) -> Table {
        eprintln!("waits");
        let (rate, rounds) = std::thread::scope(|scope| {
            // The core it is kept to is that of this thread, and of the store's, which it starts.
            scope.spawn(|| self.waits_of_rounds()).join().expect("it asks to its end")
        });
        let [alone, ours] = rounds.each_ref().map(|rounds| Waits::of(rounds, |_| true));
        let is_undisturbed = |round: &Paced| round.stop <= STOP_MAX;
        let [alone_undisturbed, ours_undisturbed] =
            rounds.each_ref().map(|rounds| Waits::of(rounds, is_undisturbed));
        reached.push(Reached {
            what: "p99 of a check at half of saturation, undisturbed rounds, µs".to_owned(),
            measured: ours_undisturbed.p99_micros,
            bar: Bar::AtMost(1_000.0),
        });
        let row = |name: &str, undisturbed: &Waits, all: &Waits| {
            vec![
                name.to_owned(),
                format!("{rate:.0}"),
                format!("{} of {}", undisturbed.rounds, all.rounds),
                format!("{:.0}", undisturbed.p50_micros),
                format!("{:.0}", undisturbed.p99_micros),
                format!("{:.0}", all.p50_micros),
                format!("{:.0}", all.p99_micros),
            ]
        };
        let header = [
            "who asks",
            "checks a second",
            "undisturbed rounds",
            "p50 µs",
            "p99 µs",
            "all rounds: p50 µs",
            "p99 µs",
        ];
        Table {
            title: "Waits at half of saturation".to_owned(),
            header: header.map(str::to_owned).into(),
            rows: vec![
                row("a bare connection, the same script", &alone_undisturbed, &alone),
                row("tollgate", &ours_undisturbed, &ours),
            ],
            notes: vec![format!(
                "Asked at that rate whether or not answers came, what is due every 100 µs at once; a wait counts from when a question should have been asked. Redis has a core to itself, and who asks has another, and never sleeps. Rounds are of {:?}; one is undisturbed if nobody else had either core for more than {STOP_MAX:?} at a time while Redis or who asks was ready to go on, as the system's own accounts of processor time tell. Each figure is of all checks of such rounds together.",
                self.round / SLICES as u32
            )],
        }
    }

    /// The rate that is half of saturation, and what was seen at it over a bare connection and by the store.
    fn waits_of_rounds(&self) -> (f64, [Vec<Paced>; 2]) {
        let redis = Redis::start_on_core(1);
        keep_to_core(None, 0).expect("every machine has a core");
        let load = Load::new(&redis, &[wide()], KEYS, false);
        let rate = redis.spent(|| load.run(CALLERS, self.round)).per_second / 2.0;
        let round = self.round / SLICES as u32;
        let watched = |ask: &dyn Fn() -> Paced| {
            let before = redis.held_up();
            let paced = ask();
            // All that held Redis up in a round may have been one stop.
            Paced { stop: paced.stop.max(redis.held_up() - before), ..paced }
        };
        let mut rounds: [Vec<Paced>; 2] = Default::default();
        for _ in 0..self.rounds * SLICES {
            rounds[0].push(watched(&|| load.paced_alone(&redis, rate, round)));
            rounds[1].push(watched(&|| load.paced(rate, round)));
        }
        (rate, rounds)
    }
}

/// How long answers took.
struct Waits {
    rounds: usize,
    p50_micros: f64,
    p99_micros: f64,
}

impl Waits {
    /// Of all checks of the rounds that count.
    fn of(rounds: &[Paced], counts: impl Fn(&Paced) -> bool) -> Self {
        let counted: Vec<&Paced> = rounds.iter().filter(|round| counts(round)).collect();
        let mut waits: Vec<Duration> =
            counted.iter().flat_map(|round| &round.waits).copied().collect();
        waits.sort();
        let at = |share: f64| {
            let wait = waits.get((waits.len() as f64 * share) as usize);
            wait.map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e6)
        };
        Self { rounds: counted.len(), p50_micros: at(0.5), p99_micros: at(0.99) }
    }
}

/// A flood from keys that are denied.
fn denied(options: &Options, redis: &Redis, reached: &mut Vec<Reached>) -> Table {
    eprintln!("denied");
    let limit = Limit::sliding_window(Quota::per_hour(1));
    let load = Load::new(redis, &[limit], 100, false);
    load.run(CALLERS, options.round / 10);
    let spent = redis.spent(|| load.run(CALLERS, options.round));
    reached.push(Reached {
        what: "a flood from denied keys: commands for 100 decisions".to_owned(),
        measured: spent.commands * 100.0,
        bar: Bar::AtMost(1.0),
    });
    Table {
        title: "A flood from 100 keys that are denied".to_owned(),
        header: ["decisions a second", "commands for 100"].map(str::to_owned).into(),
        rows: vec![vec![
            format!("{:.0}", spent.per_second),
            format!("{:.3}", spent.commands * 100.0),
        ]],
        notes: Vec::new(),
    }
}

/// What a key takes of Redis's memory.
fn memory(redis: &Redis, reached: &mut Vec<Reached>) -> Table {
    eprintln!("memory");
    let quota = Quota::per_minute(60);
    let limits = [
        ("sliding_window", Limit::sliding_window(quota)),
        ("token_bucket", Limit::token_bucket(quota, 10).expect("it refills")),
        (
            "leaky_bucket",
            Limit::leaky_bucket(quota, 10, Some(Micros::from_secs(5))).expect("it drains"),
        ),
        ("fixed_window", Limit::fixed_window(quota, tollgate_core::Align::Clock)),
    ];
    let hash = redis.bytes_of_two_field_hash();
    let mut rows = vec![vec!["a hash of two fields".to_owned(), format!("{hash}")]];
    let mut largest = 0;
    for (name, limit) in limits {
        let bytes = redis.bytes_of_a_key(&limit);
        largest = largest.max(bytes);
        rows.push(vec![name.to_owned(), format!("{bytes}")]);
    }
    reached.push(Reached {
        what: "bytes of a key in Redis, ÷ a hash of two fields".to_owned(),
        measured: largest as f64 / hash as f64,
        bar: Bar::AtMost(1.0),
    });
    Table {
        title: "Memory of a key in Redis".to_owned(),
        header: ["state", "bytes"].map(str::to_owned).into(),
        rows,
        notes: vec!["As MEMORY USAGE tells, with the name of the key; each has a TTL.".to_owned()],
    }
}
