//! The project's own commands, run as `cargo xtask …`.
//!
//! What a fresh machine lacks is installed or named here, and what the house rules ask is held
//! here. Nothing of this is shipped, and it depends on nothing but the standard library: it must
//! build in a moment on a machine that has Rust and nothing else.

mod bench;
mod fuzz;
mod parts;
mod shell;
mod suite;
mod tidy;

use std::env;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [ARGUMENT…]        install what tests need, run them all (given arguments: one `cargo test`)
  tidy                    check the house rules
  ci                      format, clippy, tidy and test, as .ci/run does
  bench [NAME] [-- ARG…]  measure tollgate beside its peers (given no name: instructions as well)
  bench server [-- ARG…]  measure the server beside others, over sockets, into docs/benchmarks.md
  bench redis [-- ARG…]   measure the Redis store beside redis-benchmark, into docs/benchmarks.md
  bench gateway [-- ARG…] measure the gateway beside other proxies, into docs/benchmarks.md
  bench observe [-- ARG…] measure what counting costs, with and without it, into docs/benchmarks.md
  bench client [-- ARG…]  let clients storm a limit, and measure their layer, into docs/benchmarks.md
  bench decide [--check]  count instructions per decision into docs/instructions.md, or compare
  screenshots             take the pictures of the dashboard in docs/images anew
  soak [SECONDS]          everything at once at the gateway, for two minutes unless told otherwise
  fuzz TARGET [SECONDS]   fuzz policy, path, key, snapshot, resp, check or settle, for a minute unless told otherwise
";

fn main() -> ExitCode {
    let arguments: Result<Vec<String>, _> =
        env::args_os().skip(1).map(std::ffi::OsString::into_string).collect();
    let Some(request) = arguments.ok().and_then(|arguments| Request::parse(&arguments)) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match request.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// What was asked for on the command line.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Help,
    Test(Vec<String>),
    Tidy,
    Ci,
    BenchEverything,
    BenchPeers(Vec<String>),
    BenchServer(Vec<String>),
    BenchRedis(Vec<String>),
    BenchGateway(Vec<String>),
    BenchObserve(Vec<String>),
    BenchClient(Vec<String>),
    CountInstructions,
    CheckInstructions,
    Screenshots,
    Soak { seconds: u32 },
    Fuzz { target: String, seconds: u32 },
}

impl Request {
    fn parse(arguments: &[String]) -> Option<Self> {
        let (command, rest) = arguments.split_first()?;
        let words: Vec<&str> = rest.iter().map(String::as_str).collect();
        // What follows `--` is for others, be it a cry for help.
        let mut ours = words.iter().take_while(|word| **word != "--");
        if ours.any(|word| matches!(*word, "--help" | "-h")) {
            return Some(Self::Help);
        }
        match (command.as_str(), words.as_slice()) {
            ("help" | "--help" | "-h", []) => Some(Self::Help),
            ("test", _) => Some(Self::Test(rest.to_vec())),
            ("tidy", []) => Some(Self::Tidy),
            ("ci", []) => Some(Self::Ci),
            ("bench", []) => Some(Self::BenchEverything),
            ("bench", ["decide"]) => Some(Self::CountInstructions),
            ("bench", ["decide", "--check"]) => Some(Self::CheckInstructions),
            ("bench", ["decide", ..]) => None,
            ("bench", ["server", ..]) => Some(Self::BenchServer(without_separator(&rest[1..]))),
            ("bench", ["redis", ..]) => Some(Self::BenchRedis(without_separator(&rest[1..]))),
            ("bench", ["gateway", ..]) => Some(Self::BenchGateway(without_separator(&rest[1..]))),
            ("bench", ["observe", ..]) => Some(Self::BenchObserve(without_separator(&rest[1..]))),
            ("bench", ["client", ..]) => Some(Self::BenchClient(without_separator(&rest[1..]))),
            ("bench", _) => Some(Self::BenchPeers(without_separator(rest))),
            ("screenshots", []) => Some(Self::Screenshots),
            ("soak", []) => Some(Self::Soak { seconds: 120 }),
            ("soak", [seconds]) => Some(Self::Soak { seconds: seconds.parse().ok()? }),
            ("fuzz", [target]) => Self::fuzz(target, "60"),
            ("fuzz", [target, seconds]) => Self::fuzz(target, seconds),
            _ => None,
        }
    }

    fn fuzz(target: &str, seconds: &str) -> Option<Self> {
        let seconds = seconds.parse().ok()?;
        let target = fuzz::TARGETS.contains(&target).then(|| target.to_owned())?;
        Some(Self::Fuzz { target, seconds })
    }

    fn run(self) -> Result<(), String> {
        match self {
            Self::Help => {
                print!("{USAGE}");
                Ok(())
            }
            Self::Test(arguments) => suite::run(&arguments),
            Self::Tidy => tidy::run(),
            // The steps are spelled once, in the script, so that the two cannot drift apart.
            Self::Ci => shell::run(Command::new(".ci/run").current_dir(shell::root())),
            Self::BenchEverything => {
                bench::against_peers(&[])?;
                bench::decide::record()
            }
            Self::BenchPeers(arguments) => bench::against_peers(&arguments),
            Self::BenchServer(arguments) => bench::server::run(&arguments),
            Self::BenchRedis(arguments) => bench::redis_store(&arguments),
            Self::BenchGateway(arguments) => bench::gateway::run(&arguments),
            Self::BenchObserve(arguments) => bench::observe::run(&arguments),
            Self::BenchClient(arguments) => bench::client::run(&arguments),
            Self::CountInstructions => bench::decide::record(),
            Self::CheckInstructions => bench::decide::check(),
            Self::Screenshots => suite::screenshots(),
            Self::Soak { seconds } => suite::soak(seconds),
            Self::Fuzz { target, seconds } => fuzz::run(&target, seconds),
        }
    }
}

/// The first `--` only parts our arguments from the benchmark's; it is not one of either.
fn without_separator(arguments: &[String]) -> Vec<String> {
    let mut arguments = arguments.to_vec();
    if let Some(at) = arguments.iter().position(|argument| argument == "--") {
        arguments.remove(at);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn check(line: &str, expected: &Option<Request>) {
        assert_eq!(Request::parse(&words(line)), *expected, "cargo xtask {line}");
    }

    #[test]
    fn every_command_is_understood() {
        check("help", &Some(Request::Help));
        check("--help", &Some(Request::Help));
        check("test", &Some(Request::Test(vec![])));
        check("tidy", &Some(Request::Tidy));
        check("ci", &Some(Request::Ci));
        check("bench", &Some(Request::BenchEverything));
        check("bench decide", &Some(Request::CountInstructions));
        check("bench decide --check", &Some(Request::CheckInstructions));
        let fuzz = |seconds| Some(Request::Fuzz { target: "key".to_owned(), seconds });
        check("fuzz key", &fuzz(60));
        check("fuzz key 5", &fuzz(5));
        check("screenshots", &Some(Request::Screenshots));
        check("soak", &Some(Request::Soak { seconds: 120 }));
        check("soak 5", &Some(Request::Soak { seconds: 5 }));
    }

    #[test]
    fn arguments_of_test_and_bench_are_passed_on() {
        check(
            "test -p tollgate-core -- --nocapture",
            &Some(Request::Test(words("-p tollgate-core -- --nocapture"))),
        );
        check("bench store -- --keys 1000", &Some(Request::BenchPeers(words("store --keys 1000"))));
        check("bench server", &Some(Request::BenchServer(vec![])));
        check("bench server -- --quick", &Some(Request::BenchServer(words("--quick"))));
        check("bench redis --quick", &Some(Request::BenchRedis(words("--quick"))));
        check("bench gateway --quick", &Some(Request::BenchGateway(words("--quick"))));
        check("bench observe --quick", &Some(Request::BenchObserve(words("--quick"))));
        check("bench client -- --quick", &Some(Request::BenchClient(words("--quick"))));
        check("bench server --only resp", &Some(Request::BenchServer(words("--only resp"))));
    }

    #[test]
    fn every_command_can_be_asked_for_help() {
        for command in ["test", "tidy", "ci", "bench", "bench decide", "fuzz", "test -p xtask"] {
            check(&format!("{command} --help"), &Some(Request::Help));
            check(&format!("{command} -h"), &Some(Request::Help));
        }
        check("test -- --help", &Some(Request::Test(words("-- --help"))));
        check("bench store -- --help", &Some(Request::BenchPeers(words("store --help"))));
    }

    #[test]
    fn anything_else_gets_the_usage() {
        for line in [
            "",
            "tydi",
            "tidy now",
            "ci fast",
            "bench decide --chekc",
            "fuzz",
            "fuzz kye",
            "help me",
            "fuzz key -- --help",
        ] {
            check(line, &None);
        }
    }
}
