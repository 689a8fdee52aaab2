//! Tables, in the terminal and in `docs/benchmarks.md`.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What stands for a figure that was not measured.
pub const ABSENT: &str = "–";

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

/// The machine, the compiler and the peers, if there are any, as a Markdown list.
pub fn circumstances(peers: &[String]) -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    // Also those that this process keeps off.
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let memory = kibibytes("/proc/meminfo", "MemTotal:") / (1024.0 * 1024.0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let rustc = Command::new("rustc").arg("--version").output().map(|output| output.stdout);
    let peers = match peers {
        [] => String::new(),
        peers => format!("- Peers: {}\n", peers.join(", ")),
    };
    format!(
        "- Machine: {}, {cores} cores, {memory:.0} GiB, Linux {}\n- Compiler: {}\n{peers}",
        model.map_or("unknown CPU", |(_, model)| model),
        kernel.trim(),
        String::from_utf8_lossy(&rustc.unwrap_or_default()).trim(),
    )
}

/// A figure of a `/proc` file whose lines read `name: value kB`.
pub fn kibibytes(file: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in {file}: this needs Linux"))
}

/// A figure beside what it must be.
pub struct Reached {
    pub what: String,
    pub measured: f64,
    pub bar: Bar,
}

/// What a figure must be.
#[derive(Clone, Copy)]
pub enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

/// All figures that must be something; nothing if there are none.
pub fn reach_table(reached: Vec<Reached>) -> Option<Table> {
    let row = |Reached { what, measured, bar }: Reached| {
        let (bar, sign, is_met) = match bar {
            Bar::AtMost(most) => (most, "≤", measured <= most),
            Bar::AtLeast(least) => (least, "≥", measured >= least),
        };
        let figure = |it: f64| {
            if measured.max(bar) < 10.0 { format!("{it:.2}") } else { format!("{it:.0}") }
        };
        let met = if is_met { "yes" } else { "**no**" };
        vec![what, figure(measured), format!("{sign} {}", figure(bar)), met.to_owned()]
    };
    (!reached.is_empty()).then(|| Table {
        title: "What tollgate must reach".to_owned(),
        header: ["of tollgate", "measured", "asked", "reached"].map(str::to_owned).into(),
        rows: reached.into_iter().map(row).collect(),
        notes: Vec::new(),
    })
}

/// The time that the threads of a process have spent on a core, in nanoseconds, user and system: those with this name, or
/// all of them.
pub fn cpu_nanos(process: u32, thread: Option<&str>) -> f64 {
    // What a thread is doing right now is not in its figure until it sleeps.
    std::thread::sleep(std::time::Duration::from_millis(5));
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten().map(|task| task.path());
    let is_wanted = |task: &PathBuf| {
        let name = || std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        thread.is_none_or(|thread| name().trim_end() == thread)
    };
    let nanos = |task: PathBuf| {
        let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.filter(is_wanted).filter_map(nanos).sum()
}

/// The figure in the middle.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Replaces what is between the marks of this section in `docs/benchmarks.md`. Where there are none they are
/// added at the end, below the introduction.
pub fn write(section: &str, introduction: &str, text: &str) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md"));
    let mut page = std::fs::read_to_string(path).unwrap_or_default();
    let [begin_mark, end_mark] = ["begin", "end"].map(|end| format!("<!-- {section}:{end} -->"));
    if !page.contains(&begin_mark) {
        page += &format!("\n{introduction}\n{begin_mark}\n{end_mark}\n");
    }
    let (Some(begin), Some(end)) = (page.find(&begin_mark), page.find(&end_mark)) else {
        panic!("{} has the mark {begin_mark} and not {end_mark}", path.display());
    };
    let (before, after) = (&page[..begin], &page[end..]);
    let page = format!("{before}{begin_mark}\n\n{text}\n{after}");
    let written = std::fs::create_dir_all(path.with_file_name(""))
        .and_then(|()| std::fs::write(path, page.trim_start()));
    written.unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
}
