//! A thousand clients are denied at the same moment by a limit of a hundred a second. How they come back decides how long it
//! takes until all are through, and what the server goes through meanwhile.
//!
//! `storm [--picture FILE] [SEED…]` lets them, on a clock of its own, and prints a table: for each habit the worst of all
//! seeds. The same seeds bring the same figures. `cargo xtask bench client` writes them into the documentation.

mod api;
mod chance;
mod clock;
mod habit;
mod picture;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use api::Api;
use habit::Habit;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

/// Who are denied at once.
const CLIENTS: usize = 1_000;

/// What is allowed in a second.
const LIMIT: usize = 100;

/// In how much time they could all be through.
const IDEAL: Duration = Duration::from_secs((CLIENTS / LIMIT) as u64);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (picture, seeds) = match &arguments[..] {
        [flag, file, seeds @ ..] if flag == "--picture" => (Some(file), seeds),
        seeds => (None, seeds),
    };
    let seeds: Result<Vec<u64>, _> = seeds.iter().map(|seed| seed.parse()).collect();
    let Ok(mut seeds) = seeds else {
        eprintln!("usage: storm [--picture FILE] [SEED…]");
        return ExitCode::from(2);
    };
    if seeds.is_empty() {
        seeds.push(1);
    }
    match tell(picture.map(String::as_str), &seeds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tell(picture: Option<&str>, seeds: &[u64]) -> Result<(), Box<dyn Error>> {
    println!(
        "| how they come back | all through after | × ideal | requests sent per success | in the busiest second |"
    );
    println!("|---|--:|--:|--:|--:|");
    let mut told = Vec::new();
    for habit in Habit::ALL {
        let mut storms = Vec::new();
        for &seed in seeds {
            storms.push(Storm::run(habit, seed)?);
        }
        println!("{}", row(habit, &storms));
        told.extend(storms.into_iter().next().map(|storm| (habit, storm)));
    }
    if let Some(file) = picture {
        std::fs::write(file, picture::of(&told))?;
    }
    Ok(())
}

/// The worst of several storms, figure by figure.
fn row(habit: Habit, storms: &[Storm]) -> String {
    let worst = |figure: fn(&Storm) -> f64| storms.iter().map(figure).fold(0.0, f64::max);
    let lost = storms.iter().map(|storm| storm.lost).max().unwrap_or(0);
    let note = if lost == 0 { String::new() } else { format!(" ({lost} gave up)") };
    format!(
        "| {} | {:.1} s{note} | {:.2} | {:.2} | {:.0} |",
        habit.name(),
        worst(Storm::seconds),
        worst(Storm::seconds) / IDEAL.as_secs_f64(),
        worst(Storm::requests_per_success),
        worst(|storm| storm.busiest_second() as f64),
    )
}

/// What came of one storm. Counted from the moment in which all were denied, without the requests that were.
pub(crate) struct Storm {
    took: Duration,
    /// Who were told to stop trying, by themselves.
    lost: usize,
    /// When requests arrived, after those that were all denied.
    arrivals: Vec<Duration>,
}

impl Storm {
    fn run(habit: Habit, seed: u64) -> Result<Self, Box<dyn Error>> {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        runtime.block_on(async {
            let api = Api::that_is_used_up(LIMIT)?;
            let mut clients = JoinSet::new();
            for client in habit.clients(&api, seed, CLIENTS) {
                clients.spawn(client);
            }
            let through = clients.join_all().await;
            let lost = through.iter().filter(|is_through| !**is_through).count();
            let mut arrivals = api.arrivals();
            // The first of each was denied; that is where this begins.
            let denied = arrivals.drain(..CLIENTS).filter(Duration::is_zero).count();
            assert_eq!(denied, CLIENTS, "all of them ask at once");
            let took = api.last_success();
            Ok(Self { took, lost, arrivals })
        })
    }

    fn seconds(&self) -> f64 {
        self.took.as_secs_f64()
    }

    fn requests_per_success(&self) -> f64 {
        self.arrivals.len() as f64 / (CLIENTS - self.lost).max(1) as f64
    }

    /// The most that arrived within a second, whenever that began.
    fn busiest_second(&self) -> usize {
        let within = |(number, start): (usize, &Duration)| {
            let later = &self.arrivals[number..];
            later.partition_point(|after| *after < *start + Duration::from_secs(1))
        };
        self.arrivals.iter().enumerate().map(within).max().unwrap_or(0)
    }
}
