//! Instructions per decision, counted under callgrind and recorded in the repository.
//!
//! Seconds depend on the machine and on what else it does; instructions depend on the code and the
//! compiler alone, so a change of cost shows as a change of a line. Each algorithm runs N and then
//! 2 N decisions, and the difference is divided by N: what starting the program costs cancels out.
//! Nanoseconds are measured in the same way and written beside, for orientation; nothing is held to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::parts;
use crate::shell;

/// Where the counts are kept, seen from the root.
const PAGE: &str = "docs/instructions.md";

/// Enough that a stray instruction in N decisions vanishes, few enough to take a second.
const DECISIONS: u64 = 100_000;

/// Decisions that are timed, of which the quickest of so many runs counts: others share the machine, and
/// noise only ever adds.
const TIMED_DECISIONS: u64 = 5_000_000;
const TIMED_RUNS: usize = 25;

/// How far a count may be from the recorded one: what the layout of a build moves by itself.
const TOLERANCE_PERCENT: u64 = 2;

/// Counts, shows what moved, and writes the page.
pub(crate) fn record() -> Result<(), String> {
    let before = recorded().unwrap_or_default();
    let now = measure()?;
    for difference in differences(&before, &now) {
        eprintln!("{difference}");
    }
    let page = page_of(&now, &time_all(&now)?);
    fs::write(shell::root().join(PAGE), page)
        .map_err(|error| format!("cannot write {PAGE}: {error}"))?;
    eprintln!("wrote {PAGE}");
    Ok(())
}

/// Counts, and fails when a count is not what the page says.
pub(crate) fn check() -> Result<(), String> {
    let before = recorded()?;
    let now = measure()?;
    let differences = differences(&before, &now);
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!(
        "instructions per decision are not what {PAGE} says:\n  {}\nif that is meant, run \
         `cargo xtask bench decide` and commit the page{}",
        differences.join("\n  "),
        compiler_note(&before, &now)
    ))
}

/// Counts of every algorithm, and who compiled it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    compiler: String,
    costs: Vec<Cost>,
}

/// Instructions per decision, in tenths, since a mix of answers rarely costs a whole number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cost {
    algorithm: String,
    tenths: u64,
}

impl Cost {
    fn text(&self) -> String {
        tenths_as_text(self.tenths)
    }

    fn is_near(&self, other: &Self) -> bool {
        self.tenths.abs_diff(other.tenths) * 100 <= self.tenths * TOLERANCE_PERCENT
    }
}

fn tenths_as_text(tenths: u64) -> String {
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn recorded() -> Result<Counts, String> {
    let text = fs::read_to_string(shell::root().join(PAGE)).map_err(|error| {
        format!("cannot read {PAGE}: {error}; `cargo xtask bench decide` writes it")
    })?;
    Ok(counts_of(&text))
}

fn measure() -> Result<Counts, String> {
    parts::require(parts::FOR_INSTRUCTION_COUNTS)?;
    let build = ["build", "--release", "--package", "tollgate-core", "--example", "decide_cost"];
    shell::run(&mut shell::cargo(&build))?;
    let program = program();
    let listed = shell::output(Command::new(&program).arg("--list"))?;
    let mut costs = Vec::new();
    for algorithm in listed.split_whitespace() {
        let cost = measure_one(&program, algorithm)?;
        eprintln!("{algorithm}: {} instructions per decision", cost.text());
        costs.push(cost);
    }
    Ok(Counts { compiler: compiler()?, costs })
}

fn program() -> PathBuf {
    shell::target_dir().join("release/examples/decide_cost")
}

/// Tenths of a nanosecond per decision of each algorithm that was counted, in their order.
fn time_all(counts: &Counts) -> Result<Vec<u64>, String> {
    let time = |cost: &Cost| {
        let (mut once, mut twice) = (Duration::MAX, Duration::MAX);
        for _ in 0..TIMED_RUNS {
            once = once.min(time_one(&cost.algorithm, TIMED_DECISIONS)?);
            twice = twice.min(time_one(&cost.algorithm, 2 * TIMED_DECISIONS)?);
        }
        let tenths = twice.saturating_sub(once).as_nanos() as u64 * 10 / TIMED_DECISIONS;
        eprintln!("{}: {} ns per decision", cost.algorithm, tenths_as_text(tenths));
        Ok(tenths)
    };
    counts.costs.iter().map(time).collect()
}

fn time_one(algorithm: &str, decisions: u64) -> Result<Duration, String> {
    let mut command = Command::new(program());
    command.arg(algorithm).arg(decisions.to_string());
    let start = now();
    shell::output(&mut command)?;
    Ok(start.elapsed())
}

#[expect(clippy::disallowed_methods, reason = "how long a program ran is told by a clock")]
fn now() -> Instant {
    Instant::now()
}

fn measure_one(program: &Path, algorithm: &str) -> Result<Cost, String> {
    let once = instructions(program, algorithm, DECISIONS)?;
    let twice = instructions(program, algorithm, 2 * DECISIONS)?;
    let difference = twice.checked_sub(once).ok_or_else(|| {
        format!(
            "{algorithm}: {DECISIONS} decisions took {once} instructions, twice as many only \
             {twice}; decide_cost must run as many as it is told to"
        )
    })?;
    let tenths = (difference * 10 + DECISIONS / 2) / DECISIONS;
    Ok(Cost { algorithm: algorithm.to_owned(), tenths })
}

fn instructions(program: &Path, algorithm: &str, decisions: u64) -> Result<u64, String> {
    let folder = shell::target_dir().join("callgrind");
    fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let profile: PathBuf = folder.join(format!("{algorithm}.{decisions}"));
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", profile.display()));
    shell::output(command.arg(program).arg(algorithm).arg(decisions.to_string()))?;
    let text = fs::read_to_string(&profile)
        .map_err(|error| format!("cannot read {}: {error}", profile.display()))?;
    total_of(&text).ok_or_else(|| format!("{} holds no line `totals: N`", profile.display()))
}

/// The total of a callgrind profile.
fn total_of(profile: &str) -> Option<u64> {
    profile.lines().rev().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
}

fn compiler() -> Result<String, String> {
    let version = shell::output(Command::new("rustc").arg("--version"))?;
    Ok(format!("{} for {}", version.trim(), std::env::consts::ARCH))
}

fn page_of(counts: &Counts, nanos_tenths: &[u64]) -> String {
    let mut text = format!(
        "# Instructions per decision\n\
         \n\
         Counted under callgrind by `cargo xtask bench decide`, which writes this page;\n\
         `cargo xtask bench decide --check` fails when a count is off by more than\n\
         {TOLERANCE_PERCENT} %. Nanoseconds are of the machine that wrote it, with the loop around a decision; at\n\
         most 15 are asked for. They are not compared. With `+apply` the log is changed as was decided.\n\
         \n\
         Compiler: {}\n\
         \n\
         | work | instructions per decision | ns |\n\
         |---|---|---|\n",
        counts.compiler
    );
    for (cost, nanos) in counts.costs.iter().zip(nanos_tenths) {
        let (count, nanos) = (cost.text(), tenths_as_text(*nanos));
        text += &format!("| `{}` | {count} | {nanos} |\n", cost.algorithm);
    }
    text
}

fn counts_of(page: &str) -> Counts {
    let compiler = page.lines().find_map(|line| line.strip_prefix("Compiler: "));
    Counts {
        compiler: compiler.unwrap_or_default().to_owned(),
        costs: page.lines().filter_map(cost_of).collect(),
    }
}

fn cost_of(row: &str) -> Option<Cost> {
    let (algorithm, rest) = row.strip_prefix("| `")?.split_once("` | ")?;
    let (whole, tenth) = rest.split(" |").next()?.split_once('.')?;
    let tenths = whole.parse::<u64>().ok()? * 10 + tenth.parse::<u64>().ok()?;
    Some(Cost { algorithm: algorithm.to_owned(), tenths })
}

/// One sentence for each algorithm whose cost moved, came or went.
fn differences(before: &Counts, now: &Counts) -> Vec<String> {
    let find = |counts: &Counts, name: &str| {
        counts.costs.iter().find(|cost| cost.algorithm == name).cloned()
    };
    let mut sentences = Vec::new();
    for cost in &now.costs {
        let name = &cost.algorithm;
        match find(before, name) {
            None => sentences.push(format!("{name}: {} and not recorded", cost.text())),
            Some(old) if old.is_near(cost) => {}
            Some(old) => {
                sentences.push(format!("{name}: {} recorded, {} now", old.text(), cost.text()));
            }
        }
    }
    let gone = before.costs.iter().filter(|cost| find(now, &cost.algorithm).is_none());
    sentences.extend(
        gone.map(|cost| format!("{}: recorded, and decide_cost does not list it", cost.algorithm)),
    );
    sentences
}

fn compiler_note(before: &Counts, now: &Counts) -> String {
    if before.compiler == now.compiler {
        return String::new();
    }
    format!(" (the page is of {}, this is {})", before.compiler, now.compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(costs: &[(&str, u64)]) -> Counts {
        let cost = |&(name, tenths): &(&str, u64)| Cost { algorithm: name.to_owned(), tenths };
        Counts {
            compiler: "rustc 1.95.0 for x86_64".into(),
            costs: costs.iter().map(cost).collect(),
        }
    }

    #[test]
    fn a_page_reads_back_as_it_was_written() {
        let counts = counts(&[("token_bucket", 613), ("sliding_log", 10_000), ("concurrency", 5)]);
        assert_eq!(counts_of(&page_of(&counts, &[11, 12, 13])), counts);
    }

    #[test]
    fn a_count_may_move_by_two_percent_and_no_more() {
        let before = counts(&[("token_bucket", 1000)]);
        for tenths in [980, 1000, 1020] {
            assert_eq!(differences(&before, &counts(&[("token_bucket", tenths)])), [""; 0]);
        }
        assert_eq!(
            differences(&before, &counts(&[("token_bucket", 1021)])),
            ["token_bucket: 100.0 recorded, 102.1 now"]
        );
        assert_eq!(
            differences(&before, &counts(&[("token_bucket", 979)])),
            ["token_bucket: 100.0 recorded, 97.9 now"]
        );
    }

    #[test]
    fn an_algorithm_that_came_or_went_is_a_difference() {
        let before = counts(&[("token_bucket", 1000)]);
        let now = counts(&[("fixed_window", 400)]);
        assert_eq!(
            differences(&before, &now),
            [
                "fixed_window: 40.0 and not recorded",
                "token_bucket: recorded, and decide_cost does not list it"
            ]
        );
    }

    #[test]
    fn the_total_is_read_from_a_profile() {
        let profile = "version: 1\nevents: Ir\nfn=(1) main\n3 17\ntotals: 1234567\n";
        assert_eq!(total_of(profile), Some(1_234_567));
        assert_eq!(total_of("version: 1\n"), None);
    }

    #[test]
    fn another_compiler_is_named_beside_the_difference() {
        let before = counts(&[]);
        let now = Counts { compiler: "rustc 1.96.0 for x86_64".into(), ..before.clone() };
        assert_eq!(compiler_note(&before, &before), "");
        assert_eq!(
            compiler_note(&before, &now),
            " (the page is of rustc 1.95.0 for x86_64, this is rustc 1.96.0 for x86_64)"
        );
    }
}
