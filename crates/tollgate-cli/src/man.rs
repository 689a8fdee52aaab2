//! `tollgate man`: the manual, from the same definition as the help.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::output::{self, Failure};

const EXAMPLES: &str = "\
Examples:
  tollgate man | man -l -                       read it
  tollgate man --dir ~/.local/share/man/man1    install a page for each command";

/// Print the manual page
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Write a page for each command into this folder instead
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let command = crate::Arguments::command();
    if let Some(folder) = &arguments.dir {
        return clap_mangen::generate_to(command, folder).map_err(|error| {
            Failure::Failed(format!("cannot write pages into {}: {error}", folder.display()))
        });
    }
    let mut page = Vec::new();
    let rendered = Man::new(command).render(&mut page);
    rendered.map_err(|error| Failure::Failed(format!("cannot make the page: {error}")))?;
    output::data(page)
}
