//! tollgate's server beside others: CPU time of the server per decision, over sockets on loopback, in one run.
//!
//! `cargo xtask bench server [--quick] [--only SUBSTRING]`
//!
//! A full run writes its section of `docs/benchmarks.md`; `--quick` (fewer questions and rounds) and `--only`
//! (the measurements whose label contains the text: `resp 16 tollgate`, `grpc hyper`, `p99 http`, `idle resp`)
//! only print.

mod contender;
mod floor;
mod idle;
mod process;
mod timing;

use std::path::PathBuf;

use contender::{Contender, GRPC, HTTP, RESP};
use process::{Program, Programs};
use timing::{Cost, Fleet};
use tollgate_bench::load::Shape;
use tollgate_bench::process::{raise_limits, version_of, waited_for_a_core};
use tollgate_bench::report::{self, ABSENT, Bar, Reached, Table};
use tollgate_bench::serve::Protocol;

const INTRODUCTION: &str = "\
## The server

`tollgate serve` beside servers that speak the same protocols, each a process of its own on loopback, asked by one thread of
another process. What counts is the CPU time of the server, user and system, per decision: it tells how many decisions a core
can make, whatever the client and the network do. Servers take turns within short rounds, and of each the round in which it
spent least counts; requests a second and waits are of that same round.

The limit of tollgate is a token bucket in memory, too large for a denial, asked about 100,000 keys in turn;
[throttlecrab-server](https://docs.rs/throttlecrab-server) is asked for the same. `redis-server` only answers `PING`: that is what the protocol costs in a
server known to be fast. The *bare* servers are written for the purpose with the libraries that tollgate is made of: they read
a request, answer a constant and decide nothing, on one thread. In the tables *÷ floor* is how many times the CPU time of the
first row a server spends, and *throttlecrab ÷* how many times as much throttlecrab spends. Run it again with

```sh
cargo xtask bench server
```

which writes what is between the marks below.
";

/// One table of CPU per decision.
struct Work {
    label: &'static str,
    title: &'static str,
    shape: Shape,
    contenders: &'static [Contender],
    /// Questions in a round.
    questions: usize,
    /// What tollgate must reach: CPU at most so many times the floor's, and throttlecrab's.
    reach: Reach,
}

#[derive(Clone, Copy)]
struct Reach {
    times_floor: f64,
    times_throttlecrab: f64,
}

const fn pipelined(in_flight: usize) -> Shape {
    Shape { connections: 50, in_flight, in_batches: true }
}

const WORKS: [Work; 5] = [
    Work {
        label: "resp 1",
        title: "Redis protocol, 50 connections, one command at a time",
        shape: pipelined(1),
        contenders: RESP,
        questions: 50_000,
        reach: Reach { times_floor: 1.25, times_throttlecrab: 1.0 },
    },
    Work {
        label: "resp 16",
        title: "Redis protocol, 50 connections, 16 commands at a time",
        shape: pipelined(16),
        contenders: RESP,
        questions: 200_000,
        reach: Reach { times_floor: 1.5, times_throttlecrab: 1.0 },
    },
    Work {
        label: "resp 64",
        title: "Redis protocol, 50 connections, 64 commands at a time",
        shape: pipelined(64),
        contenders: RESP,
        questions: 400_000,
        reach: Reach { times_floor: 2.0, times_throttlecrab: 0.25 },
    },
    Work {
        label: "grpc",
        title: "gRPC, one connection, 64 calls under way",
        shape: Shape { connections: 1, in_flight: 64, in_batches: false },
        contenders: GRPC,
        questions: 50_000,
        reach: Reach { times_floor: 1.3, times_throttlecrab: 0.7 },
    },
    Work {
        label: "http",
        title: "HTTP/1.1, 50 connections, kept alive",
        shape: pipelined(1),
        contenders: HTTP,
        questions: 50_000,
        reach: Reach { times_floor: 1.4, times_throttlecrab: 0.6 },
    },
];

/// What a check may take at half of saturation, 99 times of 100, in microseconds.
const P99_MAX_MICROS: f64 = 1000.0;

/// What a connection that says nothing may take of the server's memory.
const IDLE_MAX_KIBIBYTES: f64 = 20.0;
const IDLE_CONNECTIONS: usize = 10_000;

/// How much of its time on a core a client may wait for one before what it saw is not of the servers.
const BUSY: f64 = 0.05;

struct Options {
    quick: bool,
    only: Option<String>,
    programs: Programs,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, address] = &arguments[..]
        && first == floor::ARGUMENT
    {
        return floor::run_child(name, address);
    }
    if let Err(sentence) = Options::parse(arguments).and_then(|options| options.run()) {
        eprintln!("error: {sentence}");
        std::process::exit(1);
    }
}

impl Options {
    fn parse(arguments: Vec<String>) -> Result<Self, String> {
        const USAGE: &str = "usage: server TOLLGATE THROTTLECRAB [--quick] [--only SUBSTRING]";
        let mut arguments = arguments.into_iter();
        let mut program = || arguments.next().map(PathBuf::from).ok_or(USAGE);
        let programs = Programs { tollgate: program()?, throttlecrab: program()? };
        let mut options = Self { quick: false, only: None, programs };
        while let Some(argument) = arguments.next() {
            match (argument.as_str(), arguments.len()) {
                ("--quick", _) => options.quick = true,
                ("--only", 1..) => options.only = arguments.next(),
                _ => return Err(format!("unexpected {argument:?}; {USAGE}")),
            }
        }
        Ok(options)
    }

    fn run(&self) -> Result<(), String> {
        raise_limits()?;
        let peers = [
            format!("redis-server {}", version_of("redis-server".as_ref())),
            format!("throttlecrab-server {}", version_of(&self.programs.throttlecrab)),
        ];
        let circumstances = report::circumstances(&peers);
        println!("{circumstances}");
        let mut fleet = Fleet::new(&self.programs);
        let (mut tables, mut reached) = (Vec::new(), Vec::new());
        let mut add = |table: Option<Table>| {
            if let Some(table) = table {
                println!("{table}");
                tables.push(table.to_string());
            }
        };
        for work in &WORKS {
            add(self.cost(work, &mut fleet, &mut reached)?);
        }
        add(self.waits(&mut fleet, &mut reached)?);
        drop(fleet);
        add(self.idle(&mut reached)?);
        add(report::reach_table(reached));
        let waited = waited_for_a_core();
        let busy = if waited > BUSY {
            format!(
                "\n**The machine was busy:** for every second on a core the client waited {waited:.1} seconds for one, so requests a second and waits say nothing here.\n"
            )
        } else {
            String::new()
        };
        println!("{busy}");
        if !self.quick && self.only.is_none() {
            report::write(
                "server",
                INTRODUCTION,
                &format!("{circumstances}\n{}", tables.join("\n") + &busy),
            );
        }
        Ok(())
    }

    fn wanted<'a>(&self, what: &str, contenders: &'a [Contender]) -> Vec<&'a Contender> {
        let wants = |contender: &&Contender| {
            let label = format!("{what} {}", contender.name);
            self.only.as_ref().is_none_or(|only| label.contains(only.as_str()))
        };
        let wanted: Vec<&Contender> = contenders.iter().filter(wants).collect();
        if !wanted.is_empty() {
            eprintln!("{what}");
        }
        wanted
    }

    fn rounds(&self) -> usize {
        if self.quick { 3 } else { 12 }
    }

    fn questions(&self, work: &Work) -> usize {
        if self.quick { work.questions / 2 } else { work.questions }
    }

    /// CPU per decision.
    fn cost(
        &self,
        work: &Work,
        fleet: &mut Fleet,
        reached: &mut Vec<Reached>,
    ) -> Result<Option<Table>, String> {
        let contenders = self.wanted(work.label, work.contenders);
        if contenders.is_empty() {
            return Ok(None);
        }
        let costs = fleet.compare(&contenders, work.shape, self.questions(work), self.rounds())?;
        let cpu_of = |wanted: &dyn Fn(&Contender) -> bool| {
            let at = contenders.iter().position(|contender| wanted(contender))?;
            Some(costs[at].cpu_micros)
        };
        let floor = cpu_of(&|contender| contender.name == work.contenders[0].name);
        let throttlecrab = cpu_of(&|contender| contender.program == Program::Throttlecrab);
        let row = |(contender, cost): (&&Contender, &Cost)| {
            vec![
                contender.name.to_owned(),
                format!("{:.2}", cost.cpu_micros),
                ratio(Some(cost.cpu_micros), floor),
                ratio(throttlecrab, Some(cost.cpu_micros)),
                format!("{:.0}", cost.per_second),
                format!("{:.0}", cost.p50_micros),
                format!("{:.0}", cost.p99_micros),
            ]
        };
        let rows = contenders.iter().zip(&costs).map(row).collect();
        let ours = contenders.iter().zip(&costs);
        for (contender, cost) in ours.filter(|(it, _)| it.program == Program::Tollgate) {
            let bars = [
                (work.contenders[0].name, floor, work.reach.times_floor),
                ("throttlecrab", throttlecrab, work.reach.times_throttlecrab),
            ];
            reached.extend(bars.into_iter().filter_map(|(of, cpu, most)| {
                Some(Reached {
                    what: format!("{}, {}: CPU ÷ {of}", work.label, contender.name),
                    measured: cost.cpu_micros / cpu?,
                    bar: Bar::AtMost(most),
                })
            }));
        }
        let header =
            ["server", "CPU µs", "÷ floor", "throttlecrab ÷", "a second", "p50 µs", "p99 µs"];
        Ok(Some(Table {
            title: work.title.to_owned(),
            header: header.map(str::to_owned).into(),
            rows,
            notes: Vec::new(),
        }))
    }

    /// What a check takes, end to end, when the server is half busy.
    fn waits(
        &self,
        fleet: &mut Fleet,
        reached: &mut Vec<Reached>,
    ) -> Result<Option<Table>, String> {
        let mut rows = Vec::new();
        for work in WORKS.iter().filter(|work| !work.label.contains('6')) {
            let label = format!("p99 {}", work.label);
            for contender in self.wanted(&label, work.contenders) {
                let waits =
                    fleet.wait(contender, work.shape, self.questions(work), self.rounds())?;
                rows.push(vec![
                    format!("{}, {}", work.label, contender.name),
                    format!("{:.0}", waits.per_second),
                    format!("{:.0}", waits.p50_micros),
                    format!("{:.0}", waits.p99_micros),
                ]);
                if contender.program == Program::Tollgate {
                    reached.push(Reached {
                        what: format!("{}, {}: p99 µs at half load", work.label, contender.name),
                        measured: waits.p99_micros,
                        bar: Bar::AtMost(P99_MAX_MICROS),
                    });
                }
            }
        }
        Ok((!rows.is_empty()).then(|| Table {
            title: "Waits at half of saturation".to_owned(),
            header: ["server", "a second", "p50 µs", "p99 µs"].map(str::to_owned).into(),
            rows,
            notes: vec![
                "Asked at half the rate that each answered when saturated, whether or not it kept up; a wait counts from when a question should have been asked. The best round of each."
                    .to_owned(),
            ],
        }))
    }

    /// Memory of connections that say nothing.
    fn idle(&self, reached: &mut Vec<Reached>) -> Result<Option<Table>, String> {
        let connections = if self.quick { IDLE_CONNECTIONS / 10 } else { IDLE_CONNECTIONS };
        let mut rows = Vec::new();
        for (label, protocol, contenders) in [
            ("resp", Protocol::Resp, RESP),
            ("http", Protocol::Http, HTTP),
            ("grpc", Protocol::Grpc, GRPC),
        ] {
            for contender in self.wanted(&format!("idle {label}"), contenders) {
                let server = process::start(contender.program, &self.programs)?;
                let kibibytes = idle::measure(&server, contender, protocol, connections)
                    .map_err(|error| format!("{}: {error}", contender.name))?;
                rows.push(vec![format!("{label}, {}", contender.name), format!("{kibibytes:.1}")]);
                if contender.program == Program::Tollgate {
                    reached.push(Reached {
                        what: format!("{label}, {}: KiB of an idle connection", contender.name),
                        measured: kibibytes,
                        bar: Bar::AtMost(IDLE_MAX_KIBIBYTES),
                    });
                }
            }
        }
        Ok((!rows.is_empty()).then(|| Table {
            title: format!("Memory of {connections} idle connections"),
            header: ["server", "KiB each"].map(str::to_owned).into(),
            rows,
            notes: vec!["What the resident set of a fresh server grew by, after each connection had asked one question.".to_owned()],
        }))
    }
}

fn ratio(dividend: Option<f64>, divisor: Option<f64>) -> String {
    match dividend.zip(divisor) {
        Some((dividend, divisor)) => format!("{:.2}", dividend / divisor),
        None => ABSENT.to_owned(),
    }
}
