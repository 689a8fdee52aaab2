//! `tollgate completions`: what a shell needs to complete the command line.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::output::{self, Failure};

const EXAMPLES: &str = "\
Examples:
  tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish";

/// Print the completions for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut command = crate::Arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "tollgate", &mut script);
    output::data(script)
}
