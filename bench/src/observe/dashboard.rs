//! What an open dashboard costs a server that decides 100,000 times a second.
//!
//! The admin door has a thread of its own, so its time on a core is what pages cost. One asks once a second; here it asks many
//! times as often, and what that takes is divided by as much.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_bench::load::{Between, Load, Shape};
use tollgate_bench::question::{Question, Script};
use tollgate_bench::report::{Bar, Reached, Table};
use tollgate_bench::serve::{Protocol, Server};

const DECISIONS_A_SECOND: f64 = 100_000.0;
const TURN_SECONDS: f64 = 2.0;

/// How often the page asks here, every second.
const ASKED_A_SECOND: f64 = 20.0;

/// The thread that answers it.
const THREAD: &str = "tollgate-admin";

/// What an open page may take of a core, in percent.
const PERCENT_MAX: f64 = 1.0;

/// What the busiest keys are, over the last minute: the longest list that a page asks for every second.
const KEYS: &str = "/v1/keys?busy=1&over=minute";

pub fn table(program: &Path, rounds: usize, reached: &mut Vec<Reached>) -> Result<Table, String> {
    eprintln!("dashboard");
    let server = Server::tollgate(program)?;
    let script = Script::new(Question::TgCheck);
    let shape = Shape { connections: 50, in_flight: 16, in_batches: true };
    let mut load = Load::connect(server.address(Protocol::Resp), &script, shape)?;
    let mut page = Page::open(server.address(Protocol::Admin))?;
    // Until then there is little to tell.
    load.at_rate(DECISIONS_A_SECOND, DECISIONS_A_SECOND as usize, Between::Sleeps)?;
    let (mut rates, mut percents) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = server.thread_cpu_nanos(THREAD);
        let (seconds, asked) = decide(&mut load, &mut page)?;
        percents.push((server.thread_cpu_nanos(THREAD) - start) / 1e9 / asked * 100.0);
        rates.push(DECISIONS_A_SECOND * TURN_SECONDS / seconds);
    }
    let [rate, percent] = [rates, percents].map(crate::median);
    reached.push(Reached {
        what: "an open dashboard: % of a core".to_owned(),
        measured: percent,
        bar: Bar::AtMost(PERCENT_MAX),
    });
    Ok(Table {
        title: "An open dashboard".to_owned(),
        header: ["decisions a second", "% of a core"].map(str::to_owned).into(),
        rows: vec![vec![format!("{rate:.0}"), format!("{percent:.2}")]],
        notes: vec![
            "Asked by the Redis protocol, 16 at a time. A page asks for what is live and for the busiest keys, once a second; medians of turns of two seconds.".to_owned(),
        ],
    })
}

/// Decides for a turn while the page asks; returns the seconds, and how often it asked.
fn decide(load: &mut Load<'_>, page: &mut Page) -> Result<(f64, f64), String> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| page.ask_until(&is_over));
        let questions = (DECISIONS_A_SECOND * TURN_SECONDS) as usize;
        let taken = load.at_rate(DECISIONS_A_SECOND, questions, Between::Sleeps);
        is_over.store(true, Ordering::Relaxed);
        let asked = asking.join().expect("it does not panic")?;
        Ok((taken?.seconds, asked))
    })
}

/// What an open page asks.
struct Page {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    /// The second that it knows of.
    second: u64,
}

impl Page {
    fn open(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))?;
        Ok(Self { stream: BufReader::new(stream), address, second: 0 })
    }

    fn ask_until(&mut self, is_over: &AtomicBool) -> Result<f64, String> {
        let start = Instant::now();
        let mut asked = 0.0;
        while !is_over.load(Ordering::Relaxed) {
            // Always a second that is told, as if one had passed.
            let live = self.ask(&format!("/v1/live?after={}", self.second.saturating_sub(1)))?;
            let second = live.split_once("\"second\":").map(|(_, rest)| rest);
            let digits = second.and_then(|rest| rest.split([',', '}']).next());
            self.second = digits.and_then(|text| text.trim().parse().ok()).ok_or("no second")?;
            self.ask(KEYS)?;
            asked += 1.0;
            let next = start + Duration::from_secs_f64(asked / ASKED_A_SECOND);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(asked)
    }

    fn ask(&mut self, path: &str) -> Result<String, String> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        self.try_ask(&request).map_err(|error| format!("asking for {path}: {error}"))
    }

    fn try_ask(&mut self, request: &str) -> std::io::Result<String> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (mut head, mut length) = (String::new(), 0);
        loop {
            head.clear();
            self.stream.read_line(&mut head)?;
            let line = head.trim_end().to_ascii_lowercase();
            if line.starts_with("http/") && !line.contains(" 200") {
                return Err(std::io::Error::other(line));
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        String::from_utf8(body).map_err(std::io::Error::other)
    }
}
