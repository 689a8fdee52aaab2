//! docs/cli.md shows what the command does.
//!
//! A `console` block is a session: after each line that begins with `$ ` comes what it prints, and
//! `$ echo $?` shows how it ended; without that it must have worked. `…` stands for any text. Lines
//! of `sh` blocks that begin with `tollgate` must work. A `yaml` block with a file name is that
//! file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::{Folder, Run, root, run, tollgate};

const PAGE: &str = include_str!("../../../../docs/cli.md");

/// One fenced block of a page: what follows the opening fence, and what stands inside.
struct Block<'p> {
    info: &'p str,
    lines: Vec<&'p str>,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            let inside = lines.by_ref().take_while(|line| line.trim_start() != "```");
            blocks.push(Block { info, lines: inside.collect() });
        }
    }
    blocks
}

/// One command of a session, with what is shown of it.
struct Step<'p> {
    command: &'p str,
    printed: String,
}

fn steps<'p>(session: &[&'p str]) -> Vec<Step<'p>> {
    let mut steps: Vec<Step<'p>> = Vec::new();
    for line in session {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command, printed: String::new() }),
            (None, Some(step)) => step.printed += &format!("{line}\n"),
            (None, None) => panic!("a session begins with a command, not with {line:?}"),
        }
    }
    steps
}

/// A folder that looks like the root of the repository and may be written to.
fn folder_like_the_root() -> Folder {
    let folder = Folder::with(&[]);
    let examples = fs::canonicalize(root().join("examples")).expect("there are examples");
    symlink(examples, folder.path("examples")).expect("the folder is ours");
    folder
}

/// Runs a line as a person would type it, both streams together as a terminal shows them.
fn shell(line: &str, folder: &Folder) -> Run {
    let binary = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let beside = binary.parent().into_iter().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(beside.chain(std::env::split_paths(&path)));
    let path = path.expect("the folder of a binary has no colon in its name");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec 2>&1; {line}")]);
    run(shell.env("PATH", path).current_dir(&folder.0), "")
}

/// Whether a text is as it is shown, where `…` stands for anything.
fn is_as_shown(text: &str, shown: &str) -> bool {
    let Some((first, rest)) = shown.split_once('…') else { return text == shown };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = rest.split('…').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some((_, after)) = text.split_once(piece) else { return false };
        text = after;
    }
    text.ends_with(last)
}

#[test]
fn every_example_of_the_page_prints_what_is_shown_and_ends_as_stated() {
    let folder = folder_like_the_root();
    let mut run_so_far = 0;
    for Block { info, lines } in blocks(PAGE) {
        match info.split_once(' ').unwrap_or((info, "")) {
            ("yaml", file) if !file.is_empty() => {
                folder.write(file, lines.join("\n") + "\n");
            }
            ("sh", _) => {
                for line in lines.iter().filter(|line| line.starts_with("tollgate")) {
                    let run = shell(line, &folder);
                    assert_eq!(run.code, Some(0), "{line}: {}", run.stdout);
                    run_so_far += 1;
                }
            }
            ("console", _) => run_so_far += follow(&steps(&lines), &folder),
            _ => {}
        }
    }
    assert!(run_so_far > 15, "only {run_so_far} examples were found");
}

/// Runs a session; tells how many commands that were.
fn follow(session: &[Step<'_>], folder: &Folder) -> usize {
    let mut followed = 0;
    for (number, step) in session.iter().enumerate() {
        if step.command == "echo $?" {
            continue;
        }
        let next = session.get(number + 1).filter(|next| next.command == "echo $?");
        let code = next.map_or(0, |next| next.printed.trim().parse().expect("a code is shown"));
        let run = shell(step.command, folder);
        let shown = &step.printed;
        assert!(is_as_shown(&run.stdout, shown), "$ {}\n{}", step.command, run.stdout);
        assert_eq!(run.code, Some(code), "$ {}", step.command);
        followed += 1;
    }
    followed
}

#[test]
fn every_command_has_its_section() {
    let help = tollgate(&["--help"]).stdout;
    let listed = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for name in names.filter(|name| !name.is_empty() && *name != "help") {
        assert!(PAGE.contains(&format!("\n## `{name}`\n")), "{name} has no section");
        assert!(PAGE.contains(&format!("\n`tollgate {name}")), "{name} has no line of usage");
    }
}

#[test]
fn dots_stand_for_any_text() {
    assert!(is_as_shown("abc", "abc") && !is_as_shown("abc", "ab"));
    assert!(is_as_shown("key %h01\nend\n", "key %h…\nend\n"));
    assert!(is_as_shown("a1b2c", "a…b…c") && !is_as_shown("a1c", "a…b…c"));
    assert!(is_as_shown("", "…") && !is_as_shown("ab", "…a"));
}
