//! The gateway beside other proxies: CPU time of the proxy per request, in front of one server, in one run.
//!
//! `cargo xtask bench gateway [--quick]`
//!
//! A full run writes its section of `docs/benchmarks.md`; `--quick` (fewer and smaller rounds) only prints.

mod bodies;
mod client;
mod proxy;

use std::ops::{Div, Sub};
use std::path::PathBuf;

use bodies::Way;
use client::{CONNECTIONS, CONNECTIONS_2, STREAMS};
use proxy::{Programs, Proxy, Running};
use tollgate_bench::load::{Between, Link, Load, Shape, Taken};
use tollgate_bench::process::{First, keep_to_core, raise_limits};
use tollgate_bench::question::{Question, Script};
use tollgate_bench::report::{self, Bar, Reached, Table, median};

const INTRODUCTION: &str = "\
## The gateway

`tollgate serve` as a reverse proxy, beside nginx and Envoy, each with one thread that serves, all in front of the same nginx that
answers a few bytes from memory. Connections are kept alive on both sides; to the server everybody speaks HTTP/1.1. Clients are
`wrk` (HTTP/1.1) and `h2load` (HTTP/2 without TLS), which ask as fast as they are answered. What counts is the CPU time of the
proxy, user and system, per request. Proxies take turns within short rounds, and medians count; where two are compared, that of
what was seen round by round.

Nobody is denied, but where it says so. tollgate has a token bucket for each address, a sliding window for each API key and a
fixed window for all; nginx has three zones of `limit_req` for the same; Envoy has one bucket of its local rate limit filter.
nginx adds `X-Forwarded-For` and `X-Forwarded-Proto`, as it is usually told to. Run it again with

```sh
cargo xtask bench gateway
```

which writes what is between the marks below.
";

/// What is spoken by clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
}

impl Version {
    const ALL: [Self; 2] = [Self::Http1, Self::Http2];

    fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }

    fn question(self) -> Question {
        match self {
            Self::Http1 => Question::Get,
            Self::Http2 => Question::Get2,
        }
    }

    fn shape(self) -> Shape {
        let (connections, in_flight) = match self {
            Self::Http1 => (CONNECTIONS, 1),
            Self::Http2 => (CONNECTIONS_2, STREAMS),
        };
        Shape { connections, in_flight, in_batches: false }
    }
}

/// Those whose waits are compared take turns so many times in a round.
const TURNS: usize = 8;

/// What a gateway may add to the waits of all but one request in a hundred, in microseconds.
const P99_MAX: f64 = 1_000.0;

/// What was seen of waits.
struct Seen {
    /// Half of saturation, in requests a second.
    rate: f64,
    among_others: Both,
    /// Nothing, where other programs cannot be kept from the cores.
    before_others: Option<Both>,
}

/// Waits of the server itself, and through the gateway.
type Both = [Taken; 2];

/// What a proxy spent, for each request.
#[derive(Clone, Copy)]
struct Spent {
    cpu_micros: f64,
    per_second: f64,
}

struct Bench {
    programs: Programs,
    upstream: Running,
    rounds: usize,
    /// Questions in a round of waits.
    questions: usize,
    idle_connections: usize,
    body_bytes: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [tollgate, envoy] => run(tollgate, envoy, false),
        [tollgate, envoy, "--quick"] => run(tollgate, envoy, true),
        _ => Err("usage: gateway TOLLGATE ENVOY [--quick]".to_owned()),
    };
    if let Err(sentence) = ended {
        eprintln!("error: {sentence}");
        std::process::exit(1);
    }
}

fn run(tollgate: &str, envoy: &str, quick: bool) -> Result<(), String> {
    raise_limits()?;
    let programs = Programs { tollgate: PathBuf::from(tollgate), envoy: PathBuf::from(envoy) };
    let peers = [
        format!("nginx {}", proxy::nginx_version()),
        format!("Envoy {}", programs.envoy_version()),
    ];
    let circumstances = report::circumstances(&peers);
    println!("{circumstances}");
    let upstream = Running::upstream()?;
    let bench = if quick {
        let (rounds, questions) = (3, 10_000);
        let (idle_connections, body_bytes) = (1_000, 1 << 28);
        Bench { programs, upstream, rounds, questions, idle_connections, body_bytes }
    } else {
        let (rounds, questions) = (15, 30_000);
        let (idle_connections, body_bytes) = (10_000, 1 << 30);
        Bench { programs, upstream, rounds, questions, idle_connections, body_bytes }
    };
    let mut reached = Vec::new();
    let mut tables = Vec::new();
    for version in Version::ALL {
        tables.push(bench.costs(version, &mut reached)?);
    }
    tables.push(bench.waits(&mut reached)?);
    tables.push(bench.idle(&mut reached)?);
    tables.push(bench.bodies(&mut reached)?);
    tables.extend(report::reach_table(reached));
    let text = tables.iter().map(Table::to_string).collect::<Vec<_>>().join("\n");
    println!("{text}");
    if !quick {
        report::write("gateway", INTRODUCTION, &format!("{circumstances}\n{text}"));
    }
    Ok(())
}

impl Bench {
    fn start(&self, proxy: Proxy) -> Result<Running, String> {
        // To the server everybody speaks HTTP/1.1.
        Running::proxy(proxy, &self.programs, self.upstream.address(Version::Http1))
            .map_err(|error| format!("{}: {error}", proxy.name()))
    }

    /// CPU per request.
    fn costs(&self, version: Version, reached: &mut Vec<Reached>) -> Result<Table, String> {
        eprintln!("{}", version.name());
        let running = Proxy::ALL.map(|proxy| self.start(proxy));
        let running: Vec<Running> = running.into_iter().collect::<Result<_, _>>()?;
        let mut rounds: [Vec<Spent>; Proxy::ALL.len()] = Default::default();
        for _ in 0..self.rounds {
            for ((proxy, running), rounds) in Proxy::ALL.iter().zip(&running).zip(&mut rounds) {
                let spent = round(*proxy, running, version);
                rounds.push(spent.map_err(|error| format!("{}: {error}", proxy.name()))?);
            }
        }
        let at = |proxy: Proxy| {
            let place = Proxy::ALL.iter().position(|one| *one == proxy);
            place.expect("all are there")
        };
        type Compare = fn(f64, f64) -> f64;
        let comparisons: [(&str, Compare, Proxy, Bar); 4] = [
            (
                "three limits: CPU ÷ nginx with limit_req",
                f64::div,
                Proxy::NginxLimiting,
                Bar::AtMost(1.3),
            ),
            (
                "three limits: CPU ÷ Envoy with local rate limit",
                f64::div,
                Proxy::EnvoyLimiting,
                Bar::AtMost(0.7),
            ),
            ("what three limits add, CPU µs", f64::sub, Proxy::Tollgate, Bar::AtMost(2.0)),
            (
                "denied for each allowed, in the same CPU time",
                f64::div,
                Proxy::TollgateDenying,
                Bar::AtLeast(1.5),
            ),
        ];
        for (what, compare, other, bar) in comparisons {
            // Of every round on its own: what the machine does to one of two that take turns it does to the other.
            let pairs = rounds[at(Proxy::TollgateLimiting)].iter().zip(&rounds[at(other)]);
            let compared = pairs.map(|(ours, other)| compare(ours.cpu_micros, other.cpu_micros));
            let what = format!("{}, {what}", version.name());
            reached.push(Reached { what, measured: median(compared), bar });
        }
        let spent = rounds.map(|rounds| Spent::median(&rounds));
        let [nginx, envoy] =
            [Proxy::NginxLimiting, Proxy::EnvoyLimiting].map(|proxy| spent[at(proxy)].cpu_micros);
        let row = |(proxy, spent): (&Proxy, &Spent)| {
            vec![
                proxy.name().to_owned(),
                format!("{:.2}", spent.cpu_micros),
                format!("{:.2}", spent.cpu_micros / nginx),
                format!("{:.2}", spent.cpu_micros / envoy),
                format!("{:.0}", spent.per_second),
            ]
        };
        let under_way = match version {
            Version::Http1 => format!("{CONNECTIONS} connections"),
            Version::Http2 => format!("{CONNECTIONS_2} connections with {STREAMS} streams each"),
        };
        Ok(Table {
            title: format!("{}, {under_way}", version.name()),
            header: ["proxy", "CPU µs", "÷ nginx, limiting", "÷ Envoy, limiting", "a second"]
                .map(str::to_owned)
                .into(),
            rows: Proxy::ALL.iter().zip(&spent).map(row).collect(),
            notes: Vec::new(),
        })
    }

    /// What a request takes, end to end, when the gateway is half busy, beside what it takes without it.
    fn waits(&self, reached: &mut Vec<Reached>) -> Result<Table, String> {
        let mut rows = Vec::new();
        for version in Version::ALL {
            eprintln!("waits, {}", version.name());
            let Seen { rate, among_others, before_others } = std::thread::scope(|scope| {
                // The cores it is kept to are those of this thread, and of what it starts meanwhile.
                scope.spawn(|| self.waits_in_turns(version)).join().expect("it asks to its end")
            })?;
            let mut added = |place: &str, taken: Both| {
                let micros = taken.map(|mut taken| [50, 99].map(|at| taken.percentile(at)));
                for (name, micros) in ["the server itself", "tollgate"].iter().zip(micros) {
                    let name = format!("{}, {name}, {place}", version.name());
                    let micros = micros.map(|micros| format!("{micros:.0}"));
                    rows.push([vec![name, format!("{rate:.0}")], micros.into()].concat());
                }
                let [[_, alone], [_, ours]] = micros;
                // Where the server itself answers so late, the difference would tell of the machine.
                (place.to_owned(), if alone < P99_MAX { ours - alone } else { ours })
            };
            let mut counts = added("among other programs", among_others);
            if let Some(taken) = before_others {
                counts = added("before other programs", taken);
            }
            let (place, measured) = counts;
            let what = format!("{}, p99 added at half of saturation, {place}, µs", version.name());
            reached.push(Reached { what, measured, bar: Bar::AtMost(P99_MAX) });
        }
        Ok(Table {
            title: "Waits at half of saturation".to_owned(),
            header: ["who is asked", "a second", "p50 µs", "p99 µs"].map(str::to_owned).into(),
            rows,
            notes: vec![format!(
                "Of all questions, in turns of {}. Asked by one thread of this program, about 100,000 API keys in turn, at half the rate that came through the gateway when it was saturated (the median of {} rounds), whether or not answers came; a wait counts from when a question should have been asked. Who asks has a core to itself and never sleeps, so that nobody has to wake it; the gateway, with three limits, and the server behind it share another. Then all again, with the threads of those two before those of other programs (SCHED_FIFO): on two cores a program that wants one for some milliseconds takes it from one of them.",
                self.questions / TURNS,
                self.rounds,
            )],
        })
    }

    /// Asks the server and the gateway in turn, on a core of this thread's own.
    fn waits_in_turns(&self, version: Version) -> Result<Seen, String> {
        keep_to_core(None, 1)?;
        let upstream = Running::upstream()?;
        let behind = upstream.address(Version::Http1);
        let gateway = Running::proxy(Proxy::TollgateLimiting, &self.programs, behind)?;
        keep_to_core(None, 0)?;
        let script = Script::new(version.question());
        let connect = |to: &Running| Load::connect(to.address(version), &script, version.shape());
        let mut loads = [connect(&upstream)?, connect(&gateway)?];
        let saturated = (0..self.rounds).map(|_| {
            let seconds = loads[1].saturate(self.questions)?.seconds;
            Ok(self.questions as f64 / seconds)
        });
        let rate = median(saturated.collect::<Result<Vec<f64>, String>>()?) / 2.0;
        let mut take_turns = || -> Result<Both, String> {
            let mut both = Both::default();
            for _ in 0..self.rounds * TURNS {
                for (load, taken) in loads.iter_mut().zip(&mut both) {
                    taken.add(load.at_rate(rate, self.questions / TURNS, Between::Looks)?);
                }
            }
            Ok(both)
        };
        let among_others = take_turns()?;
        // Who asks never sleeps, and the system lets nobody who goes before all others have a core for ever.
        let before_others = match First::of([upstream.process.id(), gateway.process.id()]) {
            Ok(_first) => Some(take_turns()?),
            Err(why) => {
                eprintln!("other programs cannot be kept from the cores: {why}");
                None
            }
        };
        Ok(Seen { rate, among_others, before_others })
    }

    /// Memory of connections that say nothing.
    fn idle(&self, reached: &mut Vec<Reached>) -> Result<Table, String> {
        let count = self.idle_connections;
        let mut rows = Vec::new();
        for version in Version::ALL {
            eprintln!("idle, {}", version.name());
            let gateway = self.start(Proxy::TollgateLimiting)?;
            let script = Script::new(version.question());
            let open = || Link::open(gateway.address(version), &script);
            // What the first ones bring about is not theirs.
            let _first: Vec<Link> = (0..10).map(|_| open()).collect::<Result<_, _>>()?;
            let before = gateway.process.resident_kibibytes();
            let _links: Vec<Link> = (0..count).map(|_| open()).collect::<Result<_, _>>()?;
            let each = (gateway.process.resident_kibibytes() - before) / count as f64;
            rows.push(vec![version.name().to_owned(), format!("{each:.1}")]);
            reached.push(Reached {
                what: format!("{}, KiB of an idle connection", version.name()),
                measured: each,
                bar: Bar::AtMost(20.0),
            });
        }
        Ok(Table {
            title: format!("Memory of {count} idle connections"),
            header: ["clients speak", "KiB each"].map(str::to_owned).into(),
            rows,
            notes: vec!["What the resident set of a fresh gateway grew by, after each connection had asked once.".to_owned()],
        })
    }

    /// Memory while large bodies pass.
    fn bodies(&self, reached: &mut Vec<Reached>) -> Result<Table, String> {
        /// What is kept of a body: buffers of both connections, whatever its length.
        const MOST_MEBIBYTES: f64 = 4.0;
        let upstream = bodies::serve()?;
        let mut rows = Vec::new();
        for version in Version::ALL {
            for (way, name) in [(Way::Up, "to the server"), (Way::Down, "to the client")] {
                let what = format!("{}, {name}", version.name());
                eprintln!("bodies, {what}");
                let gateway = Running::proxy(Proxy::TollgateLimiting, &self.programs, upstream)?;
                let pass = |bytes| {
                    bodies::pass(gateway.address(version), version, way, bytes)
                        .map_err(|error| format!("a body, {what}: {error}"))
                };
                // What the first request brings about is not the body's.
                pass(1)?;
                let before = gateway.process.resident_kibibytes();
                pass(self.body_bytes)?;
                let grew = (gateway.process.peak_kibibytes() - before) / 1024.0;
                rows.push(vec![what.clone(), format!("{grew:.1}")]);
                reached.push(Reached {
                    what: format!("{what}: MiB that a large body takes"),
                    measured: grew,
                    bar: Bar::AtMost(MOST_MEBIBYTES),
                });
            }
        }
        Ok(Table {
            title: format!("Memory of a body of {} MiB", self.body_bytes >> 20),
            header: ["which way", "MiB at most"].map(str::to_owned).into(),
            rows,
            notes: vec!["What the resident set of the gateway grew by at its peak. Whoever receives pauses after the first piece, so that a gateway which keeps what nobody takes would be seen.".to_owned()],
        })
    }
}

impl Spent {
    /// The median of each figure on its own.
    fn median(rounds: &[Self]) -> Self {
        Self {
            cpu_micros: median(rounds.iter().map(|spent| spent.cpu_micros)),
            per_second: median(rounds.iter().map(|spent| spent.per_second)),
        }
    }
}

/// One turn of one proxy, which must answer as it should.
fn round(proxy: Proxy, running: &Running, version: Version) -> Result<Spent, String> {
    let before = running.process.cpu_nanos();
    let answered = client::ask(version, running.address(version), 1)?;
    let nanos = running.process.cpu_nanos() - before;
    let requests = answered.allowed + answered.refused;
    let is_right = match proxy {
        // The first request may pass.
        Proxy::TollgateDenying => answered.allowed <= 1.0,
        _ => answered.refused == 0.0,
    };
    if !is_right {
        return Err(format!("of {requests} requests {} were refused", answered.refused));
    }
    Ok(Spent { cpu_micros: nanos / 1000.0 / requests, per_second: requests / answered.seconds })
}
