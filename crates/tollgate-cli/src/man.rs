//! `tollgate man`: the manual, from the same definition as the help.

use std::fs;
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
    let mut command = crate::Arguments::command();
    let Some(folder) = &arguments.dir else {
        return output::data(page(&Man::new(command))?);
    };
    command = command.disable_help_subcommand(true);
    command.build();
    let pages = command.get_subcommands().cloned().map(Man::new).collect::<Vec<_>>();
    for man in pages.iter().chain([&Man::new(command)]) {
        fs::write(folder.join(man.get_filename()), page(man)?).map_err(|error| {
            Failure::Failed(format!("cannot write pages into {}: {error}", folder.display()))
        })?;
    }
    Ok(())
}

/// A page whose examples stand where readers of manuals look for them. What follows the help is a
/// section called EXTRA otherwise, and in ours these are always examples.
fn page(man: &Man) -> Result<String, Failure> {
    let mut page = Vec::new();
    let rendered = man.render(&mut page);
    rendered.map_err(|error| Failure::Failed(format!("cannot make the page: {error}")))?;
    let page = String::from_utf8(page).expect("our help is text");
    Ok(page.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n"))
}
