//! `tollgate man`: the manual, from the same definition as the help.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
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
    write_pages(&command, folder)
}

/// Writes the page of a command, and those of the commands it has.
fn write_pages(command: &Command, folder: &Path) -> Result<(), Failure> {
    let man = Man::new(command.clone());
    fs::write(folder.join(man.get_filename()), page(&man)?).map_err(|error| {
        Failure::Failed(format!("cannot write pages into {}: {error}", folder.display()))
    })?;
    let mut inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
    inner.try_for_each(|inner| write_pages(inner, folder))
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
