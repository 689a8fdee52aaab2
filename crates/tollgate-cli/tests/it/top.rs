//! `tollgate top` in a terminal of its own, asking a real server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::server::Server;
use crate::support::{eventually, free_port, http, local};
use crate::{Folder, command, tollgate};

const POLICY: &str = "
listen:
  http: 127.0.0.1:0
  admin: { address: 127.0.0.1:0, token_file: token.txt }
limits:
  - { name: api, per: [user], rate: 2/hour }
";

/// A server at which `anna` was denied.
fn start(folder: &Folder) -> Server {
    start_with(folder, POLICY)
}

fn start_with(folder: &Folder, policy: &str) -> Server {
    folder.write("token.txt", "s3cret");
    let server = Server::start(Path::new(&folder.write("policy.yaml", policy)));
    for _ in 0..5 {
        server.get("http", "/v1/check?user=anna");
    }
    assert_eq!(server.get("http", "/v1/check?user=anna").json()["allowed"], false);
    server
}

fn arguments(folder: &Folder, server: &Server) -> Vec<String> {
    let (address, token) = (server.address("admin"), folder.path("token.txt"));
    ["top", "--server", &format!("http://{address}"), "--token-file", &token]
        .map(str::to_owned)
        .into()
}

/// A terminal that `script` made, with a shell in it that says how the terminal is before and after.
struct Terminal {
    script: Child,
    keyboard: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Runs the command; its process is numbered in the file `pid` of this folder.
    fn start(folder: &Folder, arguments: &[String]) -> Self {
        let line = format!(
            "stty rows 40 cols 120; echo before $(stty -g); \
             sh -c 'echo $$ > {}; exec {} {}'; echo ended $?; echo after $(stty -g)",
            folder.path("pid"),
            env!("CARGO_BIN_EXE_tollgate"),
            arguments.join(" "),
        );
        let mut script = Command::new("script");
        script.args(["-qfc", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut script = script.spawn().expect("util-linux is there");
        let keyboard = script.stdin.take().expect("it is piped");
        let mut screen = script.stdout.take().expect("it is piped");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&shown);
        thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                sink.lock().expect("nobody panics with it").extend_from_slice(&bytes[..count]);
            }
        });
        Self { script, keyboard, shown }
    }

    /// Everything that was written to it.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("nobody panics with it")).into_owned()
    }

    fn shows(&self, text: &str) {
        eventually(&format!("{text:?} is shown"), || self.text().contains(text).then_some(()));
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal is there");
    }

    /// The terminal is as it was, and the command ended well.
    fn is_restored(&mut self) {
        self.shows("ended 0");
        eventually("the terminal is gone", || self.script.try_wait().expect("it is our child"));
        let text = self.text();
        let state = |name: &str| {
            let line = text.lines().find_map(|line| line.split_once(name)).expect("it is told");
            line.1.trim().to_owned()
        };
        assert_eq!(state("before "), state("after "));
        // The page was drawn on another screen, which was left, and the cursor is back.
        for (on, off) in [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")] {
            let last = (text.rfind(on), text.rfind(off));
            assert!(last.0.is_some() && last.0 < last.1, "{on:?} {last:?}");
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn it_shows_a_denied_key_resets_it_and_leaves_the_terminal_as_it_was() {
    let folder = Folder::new();
    let server = start(&folder);
    let mut terminal = Terminal::start(&folder, &arguments(&folder, &server));
    terminal.shows("api:anna");
    terminal.press("r");
    terminal.shows("reset api:anna, so that it begins anew?");
    terminal.press("y");
    terminal.shows("api:anna begins anew");
    assert_eq!(server.get("http", "/v1/check?user=anna").json()["allowed"], true);
    terminal.press("q");
    terminal.is_restored();
}

#[test]
fn it_bans_a_key() {
    let folder = Folder::new();
    let server = start(&folder);
    let mut terminal = Terminal::start(&folder, &arguments(&folder, &server));
    terminal.shows("api:anna");
    terminal.press("x");
    terminal.shows("ban api:anna, so that it is allowed nothing?");
    terminal.press("y");
    terminal.shows("api:anna is banned, until: tollgate keys unban api:anna");
    // It goes away by itself, once it was read.
    eventually("what can be pressed is told again", || {
        let text = terminal.text();
        let (_, after) = text.rsplit_once("keys unban api:anna")?;
        after.contains("? help").then_some(())
    });
    terminal.press("q");
    terminal.is_restored();
    let address = format!("http://{}", server.address("admin"));
    let door = ["--server", &address, "--token-file", &folder.path("token.txt")];
    let listed = tollgate(&[&["keys", "list", "--overrides"][..], &door].concat());
    assert_eq!(listed.stdout, "api:anna: banned\n");
}

#[test]
fn a_server_that_tells_millions_of_nothing_takes_no_memory() {
    let listener = TcpListener::bind(local(0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let body = format!(r#"{{"limits":[{}{{}}]}}"#, "{},".repeat(5_000_000));
        for client in listener.incoming() {
            let mut client = client.expect("it is open");
            let _ = client.read(&mut [0; 1_024]);
            // The client may have had enough of it.
            let _ = write!(client, "HTTP/1.1 200 OK\r\n\r\n{body}");
        }
    });
    let line = format!("ulimit -v 400000; exec \"$0\" top --once --server http://{address}");
    let mut shell = Command::new("sh");
    let run = crate::run(shell.args(["-c", &line, env!("CARGO_BIN_EXE_tollgate")]), "");
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    assert!(run.stdout.starts_with("tollgate  at http://"), "{}", run.stdout);
}

#[test]
fn a_signal_ends_it_with_the_terminal_as_it_was() {
    let folder = Folder::new();
    let server = start(&folder);
    let mut terminal = Terminal::start(&folder, &arguments(&folder, &server));
    terminal.shows("api:anna");
    let process = std::fs::read_to_string(folder.path("pid")).unwrap();
    let sent = Command::new("kill").args(["-TERM", process.trim()]).status().unwrap();
    assert!(sent.success());
    terminal.is_restored();
}

#[test]
fn a_server_that_goes_away_is_told_and_asked_again() {
    let folder = Folder::new();
    // The server comes back at the same address, which nobody else takes meanwhile.
    let policy =
        POLICY.replace("address: 127.0.0.1:0", &format!("address: {}", local(free_port())));
    let mut server = start_with(&folder, &policy);
    let mut terminal = Terminal::start(&folder, &arguments(&folder, &server));
    terminal.shows("api:anna");
    server.process.kill();
    terminal.shows("trying again");
    let server = Server::start(Path::new(&folder.path("policy.yaml")));
    for _ in 0..4 {
        server.get("http", "/v1/check?user=bert");
    }
    terminal.shows("api:bert");
    terminal.press("q");
    terminal.is_restored();
}

#[test]
fn a_wrong_token_is_told() {
    let folder = Folder::new();
    let server = start(&folder);
    let arguments = arguments(&folder, &server);
    folder.write("wrong.txt", "other");
    let wrong: Vec<String> =
        arguments.iter().map(|argument| argument.replace("token.txt", "wrong.txt")).collect();
    let mut terminal = Terminal::start(&folder, &wrong);
    terminal.shows("answered 401 Unauthorized");
    terminal.press("q");
    terminal.is_restored();
    let wrong: Vec<&str> = wrong.iter().map(String::as_str).chain(["--once"]).collect();
    let run = tollgate(&wrong);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.contains("answered 401 Unauthorized"), "{}", run.stderr);
}

#[test]
fn a_page_is_printed_without_a_terminal() {
    let folder = Folder::new();
    let server = start(&folder);
    let name = "a\u{1b}[31m漢".bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    for _ in 0..4 {
        http::get(server.address("http"), &format!("/v1/check?user={name}"), &[]);
    }
    let arguments = arguments(&folder, &server);
    // What limits counted is told as of the last whole second.
    let page = eventually("what happened is told", || {
        let run = crate::run(command(&[]).args(&arguments).arg("--once"), "");
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let limit = run.stdout.lines().find(|line| line.starts_with("  api "))?;
        let words: Vec<&str> = limit.split_whitespace().collect();
        (words[3..5] == ["4", "6"]).then_some(run.stdout)
    });
    for part in [
        "tollgate 0.1.0 at http://127.0.0.1:",
        "\nallowed ",
        "\nmost denied keys of the last hour: 6 denied\n",
        "  api:a%1B%5B31m%E6%BC%A2\n",
        "\nstore   2 keys, ",
        "\npolicy  loaded ",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    assert!(!page.contains('\u{1b}'), "{page:?}");
    assert!(page.lines().all(|line| line == line.trim_end()), "{page}");
}
