//! What holds for every command.

use std::fs;
use std::process::Stdio;

use crate::{Folder, command, example, tollgate};

const COMMANDS: [&str; 12] = [
    "serve",
    "check",
    "keys",
    "top",
    "validate",
    "explain",
    "nftables",
    "schema",
    "compare",
    "choose",
    "completions",
    "man",
];

/// Commands of commands.
const INNER: [&str; 6] =
    ["keys-get", "keys-reset", "keys-list", "keys-override", "keys-ban", "keys-unban"];

#[test]
fn every_command_is_in_the_help_and_has_help_with_an_example() {
    let overview = tollgate(&["--help"]).stdout;
    for name in COMMANDS {
        assert!(overview.contains(&format!("\n  {name} ")), "{name} is not in the help");
        for help in [tollgate(&[name, "--help"]), tollgate(&["help", name])] {
            assert_eq!(help.code, Some(0));
            let (_, examples) = help.stdout.split_once("Examples:\n").expect("there are examples");
            assert!(examples.starts_with(&format!("  tollgate {name}")), "{examples}");
        }
    }
    let listed = overview.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    // A summary that needs a second line goes on further to the right.
    let names = listed.lines().filter_map(|line| line.strip_prefix("  "));
    let names = names.filter(|line| !line.starts_with(' '));
    let names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, [&COMMANDS[..], &["help"]].concat(), "a command is not tested here");
}

#[test]
fn without_a_command_the_help_goes_to_standard_error() {
    let run = tollgate(&[]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(run.stderr.contains("Usage: tollgate"));
}

#[test]
fn an_unknown_command_is_a_mistake_in_usage() {
    let run = tollgate(&["compere"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(run.stderr.contains("compere"), "{}", run.stderr);
}

#[test]
fn completions_name_every_command_in_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = tollgate(&["completions", shell]);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{shell}");
        for name in COMMANDS {
            assert!(run.stdout.contains(name), "{shell} does not complete {name}");
        }
    }
    assert_eq!(tollgate(&["completions", "cmd"]).code, Some(2));
}

#[test]
fn the_manual_names_every_command() {
    let run = tollgate(&["man"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    assert!(run.stdout.contains(".TH tollgate 1"), "{}", run.stdout);
    check_examples(&run.stdout);
    for name in COMMANDS {
        assert!(run.stdout.contains(&format!("tollgate\\-{name}(1)")), "{name} is not in it");
    }
}

#[test]
fn the_manual_has_a_page_for_each_command_in_a_folder() {
    let folder = Folder::new();
    let run = tollgate(&["man", "--dir", &folder.path("")]);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "", ""));
    let pages = COMMANDS.map(|name| format!("tollgate-{name}.1"));
    for page in pages.iter().map(String::as_str).chain(["tollgate.1"]) {
        let text = fs::read_to_string(folder.path(page)).expect("there is such a page");
        check_examples(&text);
    }
    for name in INNER {
        let text = fs::read_to_string(folder.path(&format!("tollgate-{name}.1")));
        assert!(text.is_ok_and(|text| text.contains("\\-\\-token\\-file")), "{name}");
    }
    let pages = COMMANDS.len() + INNER.len() + 1;
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), pages);
    let run = tollgate(&["man", "--dir", &folder.path("missing")]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.starts_with("error: cannot write pages into "), "{}", run.stderr);
}

fn check_examples(page: &str) {
    assert!(page.contains("\n.SH EXAMPLES\n  tollgate "), "{page}");
    assert!(!page.contains("EXTRA"), "{page}");
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    // More than a pipe holds, so that writing goes on after the reader left.
    let long = ["compare", "200/minute", "--traffic", "retry-storm", "--output", "json"];
    let schema = &["schema"][..];
    for arguments in [&long[..], schema, &["completions", "zsh"], &["man"], &["--help"]] {
        let mut child = command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let messages = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*messages), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn there_is_no_colour_where_nobody_looks() {
    let login = example("login.yaml");
    let explain = ["explain", "-c", &login, "method=POST", "path=/login", "client_ip=192.0.2.1"];
    for arguments in [&["compare", "10/minute"][..], &explain, &["validate", &login]] {
        for no_color in [None, Some(""), Some("1")] {
            let mut run = command(arguments);
            run.env_remove("NO_COLOR").env("TERM", "xterm-256color");
            run.envs(no_color.map(|value| ("NO_COLOR", value)));
            let output = run.output().unwrap();
            assert_eq!(output.status.code(), Some(0));
            assert!(!output.stdout.contains(&0x1b), "{arguments:?}, NO_COLOR is {no_color:?}");
        }
    }
}
