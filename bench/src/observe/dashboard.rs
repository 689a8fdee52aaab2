//! What an open dashboard costs a server that decides 100,000 times a second.
//!
//! A page asks once a second, which is lost among the decisions of that second. So here it asks many times as often, in turns
//! with nobody asking, and what that adds is divided by as much.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_bench::load::{Load, Shape};
use tollgate_bench::question::{Question, Script};
use tollgate_bench::report::{Bar, Reached, Table};
use tollgate_bench::serve::{Protocol, Server};

const DECISIONS_A_SECOND: f64 = 100_000.0;
const TURN_SECONDS: f64 = 2.0;

/// How often the page asks here, every second.
const ASKED_A_SECOND: f64 = 20.0;

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
    let mut turn = |page: Option<&mut Page>| -> Result<(f64, f64, f64), String> {
        let start = server.cpu_nanos();
        let (seconds, asked) = decide(&mut load, page)?;
        Ok(((server.cpu_nanos() - start) / 1e9 / seconds, asked / seconds, seconds))
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    turn(None)?;
    for _ in 0..rounds.div_ceil(2) {
        without.push(turn(None)?);
        with.push(turn(Some(&mut page))?);
    }
    let median = |of: &dyn Fn(&(f64, f64, f64)) -> f64, turns: &[(f64, f64, f64)]| {
        let mut figures: Vec<f64> = turns.iter().map(of).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let [busy, idle] = [&with, &without].map(|turns| median(&|turn| turn.0, turns) * 100.0);
    let rate = median(&|turn| DECISIONS_A_SECOND * TURN_SECONDS / turn.2, &with);
    let asked = median(&|turn| turn.1, &with);
    let percent = (busy - idle) / asked;
    reached.push(Reached {
        what: "an open dashboard: % of a core".to_owned(),
        measured: percent,
        bar: Bar::AtMost(PERCENT_MAX),
    });
    let header = ["decisions a second", "% of a core", "with pages", "pages", "% a page"];
    Ok(Table {
        title: "An open dashboard".to_owned(),
        header: header.map(str::to_owned).into(),
        rows: vec![vec![
            format!("{rate:.0}"),
            format!("{idle:.1}"),
            format!("{busy:.1}"),
            format!("{asked:.1}"),
            format!("{percent:.2}"),
        ]],
        notes: vec![
            "Asked by the Redis protocol, 16 at a time. A page asks for what is live and for the busiest keys, once a second; medians of turns of two seconds.".to_owned(),
        ],
    })
}

/// Decides for a turn while the page, if there is one, asks; returns the seconds, and how often it asked.
fn decide(load: &mut Load<'_>, page: Option<&mut Page>) -> Result<(f64, f64), String> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = page.map(|page| scope.spawn(|| page.ask_until(&is_over)));
        let questions = (DECISIONS_A_SECOND * TURN_SECONDS) as usize;
        let taken = load.at_rate(DECISIONS_A_SECOND, questions);
        is_over.store(true, Ordering::Relaxed);
        let asked = asking.map_or(Ok(0.0), |asking| asking.join().expect("it does not panic"))?;
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
