//! `tollgate compare`: the same requests through every algorithm, side by side.

mod axis;
mod json;
mod lanes;
mod picture;

use std::fs;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tollgate_core::Quota;
use tollgate_sim::{Scenario, Traffic};

use crate::output::{self, Failure, Format, Palette};

const EXAMPLES: &str = "\
Examples:
  tollgate compare 10/minute --traffic boundary
  tollgate compare 100/second --traffic poisson --seed 7 --svg lanes.svg
  tollgate compare 60/minute --burst 10 --traffic burst --output json

Traffic:
  boundary     the whole quota just before a window ends, and again just after
  burst        one and a half quotas at once, again after three quarters of a period
  steady       one after the other, three requests where the quota has two
  poisson      the same number, but independent and at random
  retry-storm  two clients for each unit, all at once, who come back until they are served";

/// Show what each algorithm would do to the same requests, on a simulated clock
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// How many requests in how much time, such as 10/minute or 1000/90s
    rate: Quota,
    /// How clients behave
    #[arg(long, default_value = "boundary", value_parser = traffic_parser())]
    traffic: Traffic,
    /// What a token bucket holds and how many a leaky bucket queues; the rate's count unless given
    #[arg(long, value_name = "N")]
    burst: Option<u32>,
    /// Another seed is another instance of the same kind of traffic
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Also draw a picture into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// For people, or for programs
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "text|json",
        hide_possible_values = true
    )]
    output: Format,
}

fn traffic_parser() -> impl TypedValueParser<Value = Traffic> {
    PossibleValuesParser::new(Traffic::ALL.map(Traffic::name))
        .try_map(|name| name.parse::<Traffic>())
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let scenario = Scenario {
        quota: arguments.rate,
        burst: arguments.burst.unwrap_or(arguments.rate.count()),
        traffic: arguments.traffic,
        seed: arguments.seed,
    };
    let comparison = scenario.compare().map_err(|error| Failure::Usage(error.to_string()))?;
    if let Some(file) = &arguments.svg {
        let written = fs::write(file, picture::draw(&comparison));
        written.map_err(|error| {
            Failure::Failed(format!("cannot write {}: {error}", file.display()))
        })?;
        output::message(&format!("drew {}", file.display()));
    }
    output::data(match arguments.output {
        Format::Text => lanes::write(&comparison, Palette::of_stdout()),
        Format::Json => json::write(&comparison),
    })
}
