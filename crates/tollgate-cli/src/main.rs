//! The `tollgate` command: arguments in, one command run, an exit code out.
//!
//! Each command is a file of its own: what it takes, with an example in its help, and what it does.
//! Data goes to standard output and messages to standard error. The code is 0 when it worked, 1
//! when it failed, 2 when it was asked for something that cannot be, 3 when a check was denied.

mod bounds;
mod check;
mod choose;
mod client;
mod compare;
mod completions;
mod explain;
mod keys;
mod man;
mod nftables;
mod output;
mod policy_file;
mod schema;
mod serve;
mod top;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tikv_jemallocator::Jemalloc;

/// Connections have buffers of which they rarely use more than the beginning. This allocator keeps its own
/// notes elsewhere, so that the rest of a buffer is never touched and takes no memory.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const EXAMPLES: &str = "\
Examples:
  tollgate serve                                   decide requests, by a policy to try things with
  tollgate validate policy.yaml                    every mistake, with its place
  tollgate compare 10/minute --traffic boundary    what each algorithm would do
  tollgate choose                                  which one to take
  tollgate help compare                            more about a command";

/// Rate limits that tell every request exactly when it may pass
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Check(check::Arguments),
    Keys(keys::Arguments),
    Top(top::Arguments),
    Validate(validate::Arguments),
    Explain(explain::Arguments),
    Nftables(nftables::Arguments),
    Schema(schema::Arguments),
    Compare(compare::Arguments),
    Choose(choose::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Keys(arguments) => keys::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Validate(arguments) => validate::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Nftables(arguments) => nftables::run(&arguments),
        Command::Schema(arguments) => schema::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Choose(arguments) => choose::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Man(arguments) => man::run(&arguments),
    };
    done.map_or_else(output::Failure::exit, |()| ExitCode::SUCCESS)
}
