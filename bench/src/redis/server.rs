//! The server that is asked, watched from outside.

use std::ffi::OsString;
use std::net::TcpStream;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;
use std::time::{Duration, Instant};

use tollgate_bench::process::keep_to_core;
use tollgate_bench::report::{cpu_nanos, median};
use tollgate_core::{Limit, lua};
use tollgate_harness::{Flavour, Proxy, Reply, Server};

use crate::load::{Done, Load};

/// A redis-server of the benchmark's own.
pub struct Redis(Server);

/// What some decisions took, for each.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    pub per_second: f64,
    /// Of the server.
    pub cpu_micros: f64,
    /// Of this process, if it was the one that asked.
    pub own_cpu_micros: Option<f64>,
    pub commands: f64,
}

impl Redis {
    /// One that has a core to itself: whoever asks is kept to another.
    pub fn start() -> Self {
        let server = Server::start(Flavour::Redis);
        keep_to_core(Some(server.process_id()), 1).expect("the machine has two cores");
        Self(server)
    }

    pub fn process_id(&self) -> u32 {
        self.0.process_id()
    }

    pub fn version(&self) -> String {
        self.0.version()
    }

    pub fn url(&self) -> String {
        self.0.url()
    }

    /// Somebody between it and its clients, who can be slow.
    pub fn proxy(&self) -> Proxy {
        Proxy::start(self.0.address())
    }

    /// It takes connections and commands from now on, and answers none of them.
    pub fn hang(&self) {
        self.0.stop();
    }

    /// It answers again.
    pub fn go_on(&self) {
        self.0.cont();
    }

    /// What is spent while `work` decides.
    pub fn spent(&self, work: impl FnOnce() -> Done) -> Spent {
        let own = std::process::id();
        let before = (self.cpu_micros(), cpu_nanos(own, None) / 1e3, self.calls());
        let Done { decisions, elapsed, .. } = work();
        let after = (self.cpu_micros(), cpu_nanos(own, None) / 1e3, self.calls());
        let each = |figure: f64| figure / decisions as f64;
        Spent {
            per_second: decisions as f64 / elapsed.as_secs_f64(),
            cpu_micros: each(after.0 - before.0),
            own_cpu_micros: Some(each(after.1 - before.1)),
            commands: each(after.2 - before.2),
        }
    }

    /// What the script takes when `redis-benchmark` sends it so often, with these arguments. It cannot send a zero
    /// byte, so a zero goes as what the script takes alike, and is as long.
    pub fn of_script_alone(&self, arguments: [Vec<u8>; 2], keys: u32, count: f64) -> Spent {
        const NIL: u8 = 0xc0;
        let sendable = |bytes: Vec<u8>| -> Vec<u8> {
            bytes.into_iter().map(|byte| if byte == 0 { NIL } else { byte }).collect()
        };
        let arguments = arguments.map(|argument| OsString::from_vec(sendable(argument)));
        let sha = &self.load(lua::TAKE);
        self.benchmark(sha, &arguments, keys, count as u64)
    }

    /// Makes a script known; what it is called by.
    pub fn load(&self, script: &str) -> String {
        match self.0.command(&["SCRIPT", "LOAD", script]) {
            Reply::Text(sha) => String::from_utf8_lossy(&sha.0).into_owned(),
            other => panic!("the script is none: {other:?}"),
        }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.0.port())).expect("Redis listens");
        stream.set_nodelay(true).expect("an option of every socket");
        stream
    }

    fn benchmark(&self, sha: &str, arguments: &[OsString], keys: u32, count: u64) -> Spent {
        let before = (self.cpu_micros(), self.calls());
        let start = Instant::now();
        let mut command = Command::new("redis-benchmark");
        command.args([
            "-h",
            "127.0.0.1",
            "-p",
            &self.0.port().to_string(),
            "-P",
            "16",
            "-c",
            "50",
            "-q",
        ]);
        command.args(["-n", &count.to_string(), "-r", &keys.to_string()]);
        command.args(["EVALSHA", sha, "1", "tollgate:{__rand_int__}:bench"]).args(arguments);
        let output = command.output().expect("redis-benchmark comes with redis-tools");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let elapsed = start.elapsed();
        let calls = self.calls() - before.1;
        assert!(calls >= count as f64, "{calls} of {count} calls were made");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let per_second = text
            .rsplit_once(" requests per second")
            .and_then(|(before, _)| before.rsplit([' ', ':', '\r']).next()?.parse().ok());
        Spent {
            per_second: per_second.unwrap_or(count as f64 / elapsed.as_secs_f64()),
            cpu_micros: (self.cpu_micros() - before.0) / calls,
            own_cpu_micros: None,
            commands: 1.0,
        }
    }

    /// What the state of a limit takes after one charge.
    pub fn bytes_of_a_key(&self, limit: &Limit) -> u64 {
        let load = Load::of_one_key(self, *limit, false);
        load.run(1, Duration::from_millis(20));
        self.usage(&load.name(0))
    }

    pub fn bytes_of_two_field_hash(&self) -> u64 {
        let name = "tollgate:{203.0.113.7}:login";
        self.0.command(&["HSET", name, "tokens", "9.5833", "updated_at", "1760000000.123456"]);
        self.0.command(&["PEXPIRE", name, "60000"]);
        self.usage(name)
    }

    fn usage(&self, name: &str) -> u64 {
        match self.0.command(&["MEMORY", "USAGE", name]) {
            Reply::Integer(bytes) => bytes as u64,
            other => panic!("{name} is not there: {other:?}"),
        }
    }

    fn cpu_micros(&self) -> f64 {
        cpu_nanos(self.0.process_id(), None) / 1e3
    }

    /// Scripts that were called so far.
    fn calls(&self) -> f64 {
        let Reply::Text(text) = self.0.command(&["INFO", "commandstats"]) else { return 0.0 };
        let text = String::from_utf8_lossy(&text.0).into_owned();
        let calls = |line: &str| {
            let rest = line
                .strip_prefix("cmdstat_evalsha:calls=")
                .or(line.strip_prefix("cmdstat_eval:calls="))?;
            rest.split(',').next()?.parse::<f64>().ok()
        };
        text.lines().filter_map(calls).sum()
    }
}

impl Spent {
    /// The median of each figure on its own.
    pub fn median(rounds: &[Self]) -> Self {
        let median = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure));
        Self {
            per_second: median(|spent| spent.per_second),
            cpu_micros: median(|spent| spent.cpu_micros),
            own_cpu_micros: rounds[0]
                .own_cpu_micros
                .map(|_| median(|spent| spent.own_cpu_micros.unwrap_or_default())),
            commands: median(|spent| spent.commands),
        }
    }
}
