//! Tables, in the terminal and in `docs/benchmarks.md`.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::process::Command;

use crate::memory::kibibytes;

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

/// What stands for a figure that was not measured.
pub const ABSENT: &str = "–";

const INTRODUCTION: &str = "\
# Benchmarks

tollgate beside its peers, in one process and one run: [governor](https://docs.rs/governor) with its keyed limiter, the
[limitador](https://docs.rs/limitador) and [throttlecrab](https://docs.rs/throttlecrab) libraries with their memory stores, and
a *floor* written for the purpose: a bare table of 128-bit fingerprints and one atomic word each, which finds, reads the clock
and compare-and-swaps, and does nothing else a rate limiter has to do.

Machines are noisy, so read the ratios and not the nanoseconds. Contenders take turns within short rounds and the best round
of each counts. Keys are 13 bytes and all of them are known to the contender before it is timed; what is asked is drawn
beforehand, the same for all. The quota is too large for a denial. Whatever a contender's interface makes its user build for a
decision (an owned string, a context) is part of the decision. Run it again, from the root of the repository, with

```sh
cargo run --release --manifest-path bench/Cargo.toml
```

In the tables, *÷ floor* is how many times the floor's time a decision takes, *governor ÷* how many times as fast as governor
it is, and *2 ÷ 1* how much more two threads get done than one. With two threads the nanoseconds are each thread's, so
that threads which do not hinder each other show the same figure as one.

What is between the two marks in this file is written by that command.
";

/// Prints as Markdown, which is also what the terminal shows.
pub struct Table {
    pub title: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub notes: Vec<String>,
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| lines().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        writeln!(f, "### {}\n", self.title)?;
        for (number, line) in lines().enumerate() {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                // Names to the left, figures to the right.
                match column {
                    0 => write!(f, "| {cell:<width$} ")?,
                    _ => write!(f, "| {cell:>width$} ")?,
                }
            }
            writeln!(f, "|")?;
            if number == 0 {
                write!(f, "|{}", "-".repeat(widths[0] + 2))?;
                for width in &widths[1..] {
                    write!(f, "|{}:", "-".repeat(width + 1))?;
                }
                writeln!(f, "|")?;
            }
        }
        for note in &self.notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}

/// The machine, the compiler and the peers, as a Markdown list.
pub fn circumstances() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = kibibytes("/proc/meminfo", "MemTotal:") / (1024.0 * 1024.0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let rustc = Command::new("rustc").arg("--version").output().map(|output| output.stdout);
    let peers = ["governor", "limitador", "throttlecrab"]
        .map(|peer| format!("{peer} {}", locked_version(peer)))
        .join(", ");
    format!(
        "- Machine: {}, {cores} cores, {memory:.0} GiB, Linux {}\n- Compiler: {}\n- Peers: {peers}\n",
        model.map_or("unknown CPU", |(_, model)| model),
        kernel.trim(),
        String::from_utf8_lossy(&rustc.unwrap_or_default()).trim(),
    )
}

/// Replaces what is between the marks in `docs/benchmarks.md`, which is made if it is not there.
pub fn write(text: &str) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md"));
    let page = std::fs::read_to_string(path)
        .unwrap_or_else(|_| format!("{INTRODUCTION}\n{BEGIN}\n{END}\n"));
    let (Some(begin), Some(end)) = (page.find(BEGIN), page.find(END)) else {
        panic!("{} must have the marks {BEGIN} and {END}", path.display());
    };
    let (before, after) = (&page[..begin], &page[end..]);
    let written = std::fs::create_dir_all(path.with_file_name(""))
        .and_then(|()| std::fs::write(path, format!("{before}{BEGIN}\n\n{text}\n{after}")));
    written.unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
}

fn locked_version(package: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let entry =
        lock.split_once(&format!("name = \"{package}\"\nversion = \"")).map(|(_, rest)| rest);
    entry.and_then(|rest| rest.split('"').next()).unwrap_or(ABSENT)
}
