//! The Redis store beside the server it asks: what a decision costs Redis, and what tollgate adds.
//!
//! `cargo xtask bench redis [--quick]`
//!
//! A full run writes its section of `docs/benchmarks.md`; `--quick` (shorter rounds, and fewer) only prints.

mod load;
mod server;

use std::time::Duration;

use load::{Load, Waits};
use server::{Redis, Spent};
use tollgate_bench::process::{First, keep_to_core};
use tollgate_bench::report::{self, ABSENT, Bar, Reached, Table, median};
use tollgate_core::{Limit, Micros, Quota};

const INTRODUCTION: &str = "\
## The Redis store

One `redis-server` on loopback, and the store in another process with many callers on one thread. Beside it
`redis-benchmark -P 16` sends the same script to the same server with the same arguments, as quickly as it can: that is as much
as this server decides. Redis has a core to itself, and who asks has another. The two take turns within short rounds; what one
needs of the other is told round by round, and medians count, but where it says otherwise. Keys are asked about again before
their state is as good as none, so Redis need not expire them meanwhile. *Redis CPU* is the time the server
process spends on a core, for each decision. (`redis-benchmark` cannot send a zero byte: where the store's
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

/// Those whose waits are compared take turns so many times in a round.
const TURNS: u32 = 40;

/// What a check is to stay below.
const BAR: Duration = Duration::from_millis(1);

/// How long a check may take when Redis does not answer: what it is unless somebody says otherwise.
const DEADLINE: Duration = Duration::from_millis(10);

/// How often something is wrong with Redis, in each round.
const FAULTS: usize = 4;

/// Checks a second meanwhile.
const FAULTY_RATE: f64 = 10_000.0;

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
    keep_to_core(None, 0).expect("every machine has a core");
    let redis = Redis::start();
    let circumstances = report::circumstances(&[format!("redis-server {}", redis.version())]);
    println!("{circumstances}");
    let mut reached = Vec::new();
    let mut tables = vec![
        options.strict(&redis, &mut reached),
        options.leased(&redis, &mut reached),
        options.waits(&mut reached),
        options.faults(&mut reached),
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

/// A limit that nobody reaches, and so slow to refill that keys are there when they are asked about again: a Redis that
/// expires and makes as many as are asked about stops for that, a millisecond or more at a time. No
/// number of it has a zero byte, since `redis-benchmark` could not send it.
fn wide() -> Limit {
    let quota = Quota::new(1, Micros::new(29_100_037)).expect("one in half a minute");
    Limit::token_bucket(quota, 100_000_001).expect("it refills in a century")
}

impl Options {
    /// One limit and three, each decision a call.
    fn strict(&self, redis: &Redis, reached: &mut Vec<Reached>) -> Table {
        eprintln!("strict");
        let one = Load::new(redis, &[wide()], KEYS, false);
        let three = Load::new(redis, &[wide(), wide(), wide()], KEYS, false);
        let mut spent: [Vec<Spent>; 3] = Default::default();
        let round = self.round / 2;
        let mut count = 20_000.0;
        for _ in 0..self.rounds * 2 {
            let alone = redis.of_script_alone(one.arguments(), KEYS, count);
            count = alone.per_second * round.as_secs_f64();
            spent[0].push(alone);
            spent[1].push(redis.spent(|| one.run(CALLERS, round)));
            spent[2].push(redis.spent(|| three.run(CALLERS, round)));
        }
        let ratio = |of: usize, to: usize, figure: fn(&Spent) -> f64| {
            median(spent[of].iter().zip(&spent[to]).map(|(of, to)| figure(of) / figure(to)))
        };
        let reach = |what: &str, measured, bar| Reached { what: what.to_owned(), measured, bar };
        reached.extend([
            reach(
                "strict: decisions a second ÷ redis-benchmark -P 16",
                ratio(1, 0, |spent| spent.per_second),
                Bar::AtLeast(0.9),
            ),
            reach(
                "strict: Redis CPU ÷ the script's own",
                ratio(1, 0, |spent| spent.cpu_micros),
                Bar::AtMost(1.0),
            ),
            reach(
                "three limits: Redis CPU ÷ one limit's",
                ratio(2, 1, |spent| spent.cpu_micros),
                Bar::AtMost(2.2),
            ),
        ]);
        let [alone, one, three] = spent.map(|rounds| Spent::median(&rounds));
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
        const AMONG: &str = "among other programs";
        const BEFORE: &str = "before other programs";
        eprintln!("waits");
        // Nobody else has a connection to it, or keys in it.
        let redis = Redis::start();
        let load = Load::new(&redis, &[wide()], KEYS, false);
        let saturated = || redis.spent(|| load.run(CALLERS, self.round / 4)).per_second;
        let rate = median((0..self.rounds).map(|_| saturated())) / 2.0;
        let mut rows = Vec::new();
        let mut row = |name: String, mut waits: Waits| {
            waits.sort();
            let [p50, p99] = [0.5, 0.99].map(|share| micros_at(&waits, share));
            let late = waits.len() - waits.partition_point(|wait| *wait <= BAR);
            let late = late as f64 * 100.0 / waits.len() as f64;
            let figures = [format!("{p50:.0}"), format!("{p99:.0}"), format!("{late:.2} %")];
            rows.push([vec![name, format!("{rate:.0}")], figures.into()].concat());
            p99
        };
        let mut p99_of = |place: &str| {
            let [alone, ours] = self.turns(&redis, &load, rate);
            row(format!("a bare connection, {place}"), alone);
            row(format!("tollgate, {place}"), ours)
        };
        let (mut place, mut p99) = (AMONG, p99_of(AMONG));
        let first = First::of([std::process::id(), redis.process_id()]);
        match &first {
            Ok(_) => (place, p99) = (BEFORE, p99_of(BEFORE)),
            Err(why) => eprintln!("other programs cannot be kept from the cores: {why}"),
        }
        reached.push(Reached {
            what: format!("p99 of a check at half of saturation, {place}, µs"),
            measured: p99,
            bar: Bar::AtMost(BAR.as_secs_f64() * 1e6),
        });
        let header = ["who asks", "checks a second", "p50 µs", "p99 µs", "over a millisecond"];
        Table {
            title: "Waits at half of saturation".to_owned(),
            header: header.map(str::to_owned).into(),
            rows,
            notes: vec![format!(
                "Of all checks. They are asked at that rate, half of the median of {} rounds as quick as can be, whether or not answers come, what is due every 100 µs at once; a wait counts from when a question should have been asked. Who asks sleeps in between, as servers do. The bare connection is one that the same script is asked over, by one thread: as soon as this server and this machine can answer. The two take turns of {:?}. Then both again, with all threads of Redis and of the benchmark before those of other programs (SCHED_FIFO): on two cores a program that wants one for some milliseconds takes it from Redis or from who asks.",
                self.rounds,
                self.round / TURNS,
            )],
        }
    }

    /// Waits over a bare connection, and of tollgate.
    fn turns(&self, redis: &Redis, load: &Load, rate: f64) -> [Waits; 2] {
        let turn = self.round / TURNS;
        let mut waits: [Waits; 2] = Default::default();
        for _ in 0..self.rounds * TURNS as usize {
            waits[0].extend(load.paced_alone(redis, rate, turn));
            waits[1].extend(load.paced(rate, turn));
        }
        waits
    }

    /// How long after its deadline a check is told that Redis does not answer.
    fn faults(&self, reached: &mut Vec<Reached>) -> Table {
        eprintln!("faults");
        let redis = Redis::start();
        let proxy = redis.proxy();
        let hung = self.late(&redis.url(), || redis.hang(), || redis.go_on());
        let slow = self.late(
            &proxy.url(),
            || proxy.delay_replies(Duration::from_millis(200)),
            || proxy.delay_replies(Duration::ZERO),
        );
        let mut rows = Vec::new();
        for (name, asked, mut late) in [("hung", hung.0, hung.1), ("200 ms slow", slow.0, slow.1)] {
            late.sort();
            let p99 = micros_at(&late, 0.99);
            rows.push(vec![
                name.to_owned(),
                asked.to_string(),
                late.len().to_string(),
                format!("{:.0}", micros_at(&late, 0.5)),
                format!("{p99:.0}"),
            ]);
            reached.push(Reached {
                what: format!("Redis {name}: p99 of a check after its deadline, µs"),
                measured: p99,
                bar: Bar::AtMost(5_000.0),
            });
        }
        let header = ["Redis is", "checks", "that waited", "after the deadline: p50 µs", "p99 µs"];
        Table {
            title: format!(
                "Checks with a deadline of {DEADLINE:?} while Redis does not answer in time"
            ),
            header: header.map(str::to_owned).into(),
            rows,
            notes: vec![format!(
                "{} times, for 100 ms each, under {FAULTY_RATE:.0} checks a second. Those that waited did so for more than a millisecond; the others were told at once, since the store had learned that it is no use to ask.",
                self.rounds * FAULTS
            )],
        }
    }

    /// Checks that were asked while something was wrong, and of those that waited how long after the deadline
    /// they were told.
    fn late(&self, url: &str, begin: impl Fn(), end: impl Fn()) -> (usize, Waits) {
        let load = Load::with_deadline(url.to_owned(), &[wide()], KEYS, false, DEADLINE);
        let mut waits = Waits::new();
        for _ in 0..self.rounds * FAULTS {
            load.paced(FAULTY_RATE, Duration::from_millis(20));
            begin();
            waits.extend(load.paced(FAULTY_RATE, Duration::from_millis(100)));
            end();
            load.until_answered();
        }
        let waited = waits.iter().filter(|wait| **wait > Duration::from_millis(1));
        (waits.len(), waited.map(|wait| wait.saturating_sub(DEADLINE)).collect())
    }
}

/// The wait that so large a share is shorter than, the shortest being the first.
fn micros_at(waits: &Waits, share: f64) -> f64 {
    let wait = waits.get((waits.len() as f64 * share) as usize);
    wait.map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e6)
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
