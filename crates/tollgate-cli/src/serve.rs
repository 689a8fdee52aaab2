//! `tollgate serve`: the doors that a policy opens, until it is told to stop.

use std::env;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tollgate_server::{Door, Server, Source, StartError};
use tracing::Level;

use crate::output::{self, Failure};

const EXAMPLES: &str = "\
Examples:
  tollgate serve                               a built-in policy, to try things with
  tollgate serve -c policy.yaml                a policy of your own, loaded anew when it changes
  tollgate serve -c policy.yaml --log debug    say more; also TOLLGATE_LOG=debug
  kill -HUP PID                                load the policy now
  kill -TERM PID                               answer what was asked, then end";

/// Where the level stands if no flag says it.
const LEVEL: &str = "TOLLGATE_LOG";

/// Where whoever starts several of us may say how many.
const REPLICAS: &str = "TOLLGATE_REPLICAS";

/// Decide requests: as a reverse proxy, or asked over HTTP, gRPC and the Redis protocol
///
/// Without a policy a built-in one is served, in memory and on loopback. Logs go to standard
/// error: text on a terminal, one JSON object a line otherwise. TOLLGATE_REPLICAS says how many
/// servers share the requests: several that each count for themselves are warned of.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The policy
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How much to say; without it TOLLGATE_LOG, or info
    #[arg(long, value_enum, value_name = "LEVEL")]
    log: Option<LogLevel>,
    /// How to say it; without it text on a terminal and JSON otherwise
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    start_logging(arguments)?;
    let source = arguments.config.clone().map_or(Source::Quickstart, Source::File);
    let failed = |error: StartError| Failure::Failed(error.to_string());
    let replicas = replicas()?;
    let server = Server::bind(source).map_err(failed)?;
    if replicas > 1 && !server.shares_states() {
        tracing::warn!(
            replicas,
            "each replica counts for itself, so that together they allow {replicas} times every limit; \
             let them share a store in Redis: docs/redis.md"
        );
    }
    if arguments.config.is_none() {
        output::message(&what_to_try(&server));
    }
    server.run().map_err(failed)
}

/// How many of us there are, as far as we are told.
fn replicas() -> Result<u32, Failure> {
    let Ok(told) = env::var(REPLICAS) else { return Ok(1) };
    told.parse().map_err(|_| Failure::Usage(format!("{REPLICAS} is {told:?}; it may be a number")))
}

fn what_to_try(server: &Server) -> String {
    let at = |wanted| {
        let found = server.addresses().find(|(door, _)| *door == wanted);
        found.expect("the built-in policy opens it").1
    };
    let (gateway, http, resp) = (at(Door::Gateway), at(Door::Http), at(Door::Resp));
    format!(
        "serving a built-in policy: 5 requests a minute for each user. Try, in another terminal:\n\
         \n  \
         for i in $(seq 8); do curl -i http://{gateway}/; done\n  \
         curl -i 'http://{http}/v1/check?user=42'\n  \
         redis-cli -p {} CL.THROTTLE user:42 4 5 60\n\
         \n\
         A policy of your own: tollgate serve -c policy.yaml\n",
        resp.port()
    )
}

fn start_logging(arguments: &Arguments) -> Result<(), Failure> {
    let level = match (arguments.log, env::var(LEVEL)) {
        (Some(level), _) => level,
        (None, Ok(name)) => LogLevel::from_str(&name, true).map_err(|_| {
            let right = "error, warn, info, debug or trace";
            Failure::Usage(format!("{LEVEL} is {name:?}; it may be {right}"))
        })?,
        (None, Err(_)) => LogLevel::Info,
    };
    let is_terminal = io::stderr().is_terminal();
    let unless_told = if is_terminal { LogFormat::Text } else { LogFormat::Json };
    let logs = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_target(false)
        .with_max_level(level.level())
        .with_ansi(is_terminal && env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()));
    match arguments.log_format.unwrap_or(unless_told) {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}

impl LogLevel {
    const fn level(self) -> Level {
        match self {
            Self::Error => Level::ERROR,
            Self::Warn => Level::WARN,
            Self::Info => Level::INFO,
            Self::Debug => Level::DEBUG,
            Self::Trace => Level::TRACE,
        }
    }
}
