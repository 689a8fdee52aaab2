//! The client: a storm beside other habits, and what the rules cost when there is none.
//!
//! `cargo xtask bench client [--quick]`
//!
//! A full run writes its section of `docs/benchmarks.md` and the picture; `--quick` (fewer rounds, one seed) only prints.

mod cost;

use std::path::Path;
use std::process::Command;

use cost::Kind;
use tollgate_bench::report::{self, Bar, Reached, Table};

const INTRODUCTION: &str = "\
## The client

A thousand clients are denied at the same moment by a limit of a hundred a second; after ten seconds all could be through. The
clock is simulated, so the figures depend on the seeds alone, and the limit is tollgate's own, with the fields and the spread of
waits that its server tells. Counted is what comes after the thousand requests that were denied; a busiest second may begin at
any moment. Clients of `tollgate-client` in one process share what they know, and give up after five retries; all others are on
their own, read nothing of what they are told, and never give up. Each figure is the worst of all seeds. The picture is in
[A polite client](client.md). Run it again with

```sh
cargo xtask bench client
```

which writes what is between the marks below.
";

const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images/polite-client.svg");

const SEEDS: u32 = 10;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (storm, quick) = match words[..] {
        ["--send", kind, with_layer, requests] => {
            let requests = requests.parse().expect("a number of requests");
            return cost::send_only(kind, with_layer == "true", requests);
        }
        [storm] => (storm, false),
        [storm, "--quick"] => (storm, true),
        _ => {
            eprintln!("usage: client STORM [--quick]");
            std::process::exit(2);
        }
    };
    let circumstances = report::circumstances(&[]);
    let mut reached = Vec::new();
    let mut tables =
        vec![storms(Path::new(storm), quick, &mut reached), costs(quick, &mut reached)];
    tables.extend(report::reach_table(reached));
    let text: Vec<String> = tables.iter().map(Table::to_string).collect();
    println!("{}", text.join("\n"));
    if !quick {
        report::write("client", INTRODUCTION, &format!("{circumstances}\n{}", text.join("\n")));
    }
}

/// Lets the example tell, which has a clock that can be simulated.
fn storms(program: &Path, quick: bool, reached: &mut Vec<Reached>) -> Table {
    let mut command = Command::new(program);
    if quick {
        command.arg("1");
    } else {
        command.args(["--picture", PICTURE]).args((1..=SEEDS).map(|seed| seed.to_string()));
    }
    let output = command.output().expect("the example can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("a table is text");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = text.lines().filter(|line| !line.starts_with("|-")).map(cells);
    let header = lines.next().expect("a table has a header");
    let rows: Vec<Vec<String>> = lines.collect();
    let ours = rows.first().expect("we come first");
    for (what, column, most) in [
        ("a storm: time ÷ ideal", 2, 1.3),
        ("a storm: requests per success", 3, 1.5),
        ("a storm: in the busiest second", 4, 200.0),
    ] {
        let measured = ours[column].parse().expect("a figure");
        reached.push(Reached { what: what.to_owned(), measured, bar: Bar::AtMost(most) });
    }
    let seeds = if quick { 1 } else { SEEDS };
    let notes = vec![format!("The worst of {seeds} seeds, figure by figure.")];
    Table { title: "A thousand clients, denied at once".to_owned(), header, rows, notes }
}

fn costs(quick: bool, reached: &mut Vec<Reached>) -> Table {
    let rounds = if quick { 100 } else { 1_000 };
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let cost = cost::measure(kind, rounds);
        let what = match kind {
            Kind::Silent => "the answer says nothing of a budget",
            Kind::Told => "the answer says that plenty is left",
        };
        rows.push(vec![
            what.to_owned(),
            format!("{:.0}", cost.nanos),
            format!("{:.0}", cost.instructions),
        ]);
        reached.push(Reached {
            what: format!("the layer, when {what}: ns"),
            measured: cost.nanos,
            bar: Bar::AtMost(1_000.0),
        });
    }
    Table {
        title: "What the layer adds to a request that needs nothing".to_owned(),
        header: ["", "ns", "instructions"].map(str::to_owned).into(),
        rows,
        notes: vec!["With the layer less without it, in turns, around a client that has the answer already.".to_owned()],
    }
}
