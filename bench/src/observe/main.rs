//! What it costs to be seen: the same code with and without counting, in one run.
//!
//! `cargo xtask bench observe [--quick]`
//!
//! A full run writes its section of `docs/benchmarks.md`; `--quick` (fewer rounds) only prints.

mod dashboard;
mod decide;

use std::path::{Path, PathBuf};
use std::process::Command;

use decide::{WORKS, Work};
use tollgate_bench::load::{Load, Shape};
use tollgate_bench::measure::instructions;
use tollgate_bench::process::raise_limits;
use tollgate_bench::question::{KEYS, Question, Script};
use tollgate_bench::report::{self, Bar, Reached, Table, median};
use tollgate_bench::serve::{Protocol, Server};

const INTRODUCTION: &str = "\
## What it costs to be seen

Everything that tollgate tells of itself (metrics, who is denied and who sends most, users by the day, early returns, tenants,
history) is counted where decisions are made. Here the same code is built a second time with `--cfg uncounted`, which leaves all of that
out, and the two take turns: in this process by the time a thread is on a core, of which the best turn counts; and as servers by
their CPU time, user and system, of which medians count, of what is added that of pairs of turns. Servers are started anew for
each round, so that what differs from start to start meets both alike, and know all keys before they are measured. In process there are 1,000
users, each known before: with many more it is the memory of the machine that is measured. The servers are those of the section
on the server, asked over 50 connections by HTTP and with 64 calls under way by gRPC. Run it again with

```sh
cargo xtask bench observe
```

which writes what is between the marks below.
";

/// What counting may add to a decision in process, in nanoseconds.
const NANOS_MAX: f64 = 25.0;

/// What it may add to the CPU time of a server, in percent.
const PERCENT_MAX: f64 = 5.0;

/// Decisions that are counted under callgrind, where they take fifty times as long.
const COUNTED: u32 = 200_000;

/// What is asked of the servers, so many times in a turn: few, so that what else the machine does meets both alike.
const QUESTIONS: usize = 5_000;
const TURNS_A_ROUND: usize = 10;
const ASKED: [(&str, Question, Protocol, Shape); 2] = [
    (
        "HTTP",
        Question::PostCheck,
        Protocol::Http,
        Shape { connections: 50, in_flight: 1, in_batches: true },
    ),
    (
        "gRPC",
        Question::ShouldRateLimit,
        Protocol::Grpc,
        Shape { connections: 1, in_flight: 64, in_batches: false },
    ),
];

/// The program that counts, and the one that does not.
type Both = [PathBuf; 2];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().expect("a number");
    let (servers, uncounted, quick) = match words[..] {
        ["--time", work, turns] => return println!("{}", Work::named(work).time(number(turns))),
        ["--run", work, decisions] => return Work::named(work).run(number(decisions)),
        [counted, uncounted, own] => ([counted, uncounted], own, false),
        [counted, uncounted, own, "--quick"] => ([counted, uncounted], own, true),
        _ => {
            eprintln!("usage: observe TOLLGATE TOLLGATE-UNCOUNTED OBSERVE-UNCOUNTED [--quick]");
            std::process::exit(2);
        }
    };
    let own = std::env::current_exe().expect("we are a program");
    let measured = run(&[own, uncounted.into()], &servers.map(PathBuf::from), quick);
    if let Err(sentence) = measured {
        eprintln!("error: {sentence}");
        std::process::exit(1);
    }
}

fn run(programs: &Both, servers: &Both, quick: bool) -> Result<(), String> {
    raise_limits()?;
    let rounds = if quick { 4 } else { 20 };
    let circumstances = report::circumstances(&[]);
    let mut reached = Vec::new();
    let mut tables = vec![
        in_process(programs, rounds, &mut reached),
        served(servers, rounds, &mut reached)?,
        dashboard::table(&servers[0], rounds, &mut reached)?,
    ];
    tables.extend(report::reach_table(reached));
    let text: Vec<String> = tables.iter().map(Table::to_string).collect();
    println!("{circumstances}\n{}", text.join("\n"));
    if !quick {
        report::write("observe", INTRODUCTION, &format!("{circumstances}\n{}", text.join("\n")));
    }
    Ok(())
}

fn in_process(programs: &Both, rounds: usize, reached: &mut Vec<Reached>) -> Table {
    let mut rows = Vec::new();
    for work in WORKS {
        eprintln!("{}", work.title);
        let mut best = [f64::INFINITY; 2];
        for _ in 0..rounds {
            for (best, program) in best.iter_mut().zip(programs) {
                *best = best.min(time(program, work));
            }
        }
        let [with, without] = best;
        let counted = programs
            .each_ref()
            .map(|program| instructions(program, &["--run", work.name], COUNTED));
        rows.push(vec![
            work.title.to_owned(),
            format!("{with:.0}"),
            format!("{without:.0}"),
            format!("{:.0}", with - without),
            format!("{:.0}", counted[0]),
            format!("{:.0}", counted[1]),
            format!("{:.0}", counted[0] - counted[1]),
        ]);
        reached.push(Reached {
            what: format!("{}: ns for being seen", work.title),
            measured: with - without,
            bar: Bar::AtMost(NANOS_MAX),
        });
    }
    let header = ["a decision", "ns", "without", "added", "instructions", "without", "added"];
    Table {
        title: "In process".to_owned(),
        header: header.map(str::to_owned).into(),
        rows,
        notes: Vec::new(),
    }
}

fn time(program: &Path, work: Work) -> f64 {
    let output = Command::new(program).args(["--time", work.name, "30"]).output();
    let output = output.expect("the program can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("a number is text");
    text.trim().parse().expect("a number")
}

fn served(programs: &Both, rounds: usize, reached: &mut Vec<Reached>) -> Result<Table, String> {
    let mut rows = Vec::new();
    for (title, question, protocol, shape) in ASKED {
        eprintln!("{title}");
        let script = Script::new(question);
        let connect = |server: &Server| Load::connect(server.address(protocol), &script, shape);
        let (mut with, mut without, mut added) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let servers = [Server::tollgate(&programs[0])?, Server::tollgate(&programs[1])?];
            let mut loads = [connect(&servers[0])?, connect(&servers[1])?];
            for load in &mut loads {
                load.saturate(KEYS)?;
            }
            let mut turn = |which: usize| -> Result<f64, String> {
                let (load, server) = (&mut loads[which], &servers[which]);
                // The one before it left the caches full of its own.
                load.saturate(QUESTIONS / 10)?;
                let start = server.cpu_nanos();
                load.saturate(QUESTIONS)?;
                Ok((server.cpu_nanos() - start) / 1000.0 / QUESTIONS as f64)
            };
            for number in 0..TURNS_A_ROUND {
                let (first, second) = (number % 2, 1 - number % 2);
                let mut costs = [0.0; 2];
                for which in [first, second] {
                    costs[which] = turn(which)?;
                }
                with.push(costs[0]);
                without.push(costs[1]);
                added.push((costs[0] / costs[1] - 1.0) * 100.0);
            }
        }
        let [with, without, percent] = [with, without, added].map(median);
        rows.push(vec![
            title.to_owned(),
            format!("{with:.2}"),
            format!("{without:.2}"),
            format!("{percent:.1}"),
        ]);
        reached.push(Reached {
            what: format!("{title}: % of the server's CPU for being seen"),
            measured: percent,
            bar: Bar::AtMost(PERCENT_MAX),
        });
    }
    Ok(Table {
        title: "As a server".to_owned(),
        header: ["asked by", "CPU µs", "without", "added %"].map(str::to_owned).into(),
        rows,
        notes: Vec::new(),
    })
}
