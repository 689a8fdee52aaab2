//! The client: one thread over many connections, asking as fast as it is answered or at a rate.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::thread::set_current_timer_slack;
use rustix::time::Timespec;

use crate::question::{Conversation, Script};

/// A server that says nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(10);

const SILENCE: &str = "no answer came";

/// How questions are spread over connections.
#[derive(Clone, Copy)]
pub struct Shape {
    pub connections: usize,
    /// Questions under way on each connection.
    pub in_flight: usize,
    /// Whether a connection waits for all its answers before it asks again, as clients do that pipeline.
    pub in_batches: bool,
}

/// What who asks at a rate does in between.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// As most clients do. Where nobody has a core to itself, the cores are then the servers'.
    Sleeps,
    /// Looks for answers without a pause, on a core of its own. A server that wakes us sends an interrupt to another
    /// core for every answer, which no client elsewhere costs it.
    Looks,
}

/// A connection.
pub struct Link {
    stream: TcpStream,
    conversation: Conversation,
    /// When each question was asked, or should have been; the first is of number `base`.
    asked_at: VecDeque<Instant>,
    base: u32,
    in_flight: usize,
}

impl Link {
    /// Connects, asks one question, and waits for its answer.
    pub fn open(address: SocketAddr, script: &Script) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("connecting to {address}: {error}");
        let stream = TcpStream::connect(address).map_err(cannot)?;
        stream.set_nodelay(true).map_err(cannot)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(cannot)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(cannot)?;
        let mut link = Self {
            stream,
            conversation: Conversation::default(),
            asked_at: VecDeque::new(),
            base: 1,
            in_flight: 0,
        };
        (&link.stream).write_all(&script.opening).map_err(cannot)?;
        let (mut answered, mut buffer) = (Vec::new(), vec![0; 4096]);
        while answered.is_empty() {
            link.hear(script, &mut buffer, &mut answered)?;
        }
        Ok(link)
    }

    fn ask(
        &mut self,
        script: &Script,
        first: usize,
        count: usize,
        at: Instant,
    ) -> Result<(), String> {
        let mut out = Vec::with_capacity(8192);
        self.conversation.ask(script, first, count, &mut out);
        self.asked_at.extend(std::iter::repeat_n(at, count));
        self.in_flight += count;
        self.stream.write_all(&out).map_err(|error| format!("asking: {error}"))
    }

    fn hear(
        &mut self,
        script: &Script,
        buffer: &mut [u8],
        answered: &mut Vec<u32>,
    ) -> Result<(), String> {
        let length = match self.stream.read(buffer) {
            Ok(0) => return Err("the server closed a connection".to_owned()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(format!("waiting for an answer: {error}")),
        };
        let mut out = Vec::new();
        self.conversation.hear(script, &buffer[..length], answered, &mut out)?;
        if !out.is_empty() {
            self.stream.write_all(&out).map_err(|error| format!("acknowledging: {error}"))?;
        }
        Ok(())
    }

    /// How long the answers took that came `now`.
    fn note(&mut self, answered: &[u32], now: Instant, nanos: &mut Vec<u32>) {
        for number in answered {
            let waited = now - self.asked_at[(number - self.base) as usize];
            nanos.push(u32::try_from(waited.as_nanos()).unwrap_or(u32::MAX));
        }
        self.in_flight -= answered.len();
        if self.in_flight == 0 {
            self.base += self.asked_at.len() as u32;
            self.asked_at.clear();
        }
    }
}

/// A server's clients.
pub struct Load<'a> {
    script: &'a Script,
    shape: Shape,
    epoll: OwnedFd,
    links: Vec<Link>,
    /// Where in the keys we are.
    key: usize,
    buffer: Vec<u8>,
}

/// What a number of questions took.
#[derive(Default)]
pub struct Taken {
    pub seconds: f64,
    /// Of each question, unordered.
    nanos: Vec<u32>,
}

impl Taken {
    /// The wait, in microseconds, that so many of a hundred questions did not exceed.
    pub fn percentile(&mut self, percent: usize) -> f64 {
        let at = (self.nanos.len() * percent / 100).min(self.nanos.len() - 1);
        f64::from(*self.nanos.select_nth_unstable(at).1) / 1000.0
    }

    /// Takes the questions of another turn for its own.
    pub fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.nanos.extend(other.nanos);
    }
}

impl<'a> Load<'a> {
    pub fn connect(address: SocketAddr, script: &'a Script, shape: Shape) -> Result<Self, String> {
        let links = (0..shape.connections).map(|_| Link::open(address, script));
        let links = links.collect::<Result<Vec<Link>, String>>()?;
        let cannot = |error| format!("epoll: {error}");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?;
        for (number, link) in links.iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, &link.stream, data, epoll::EventFlags::IN).map_err(cannot)?;
        }
        Ok(Self { script, shape, epoll, links, key: 0, buffer: vec![0; 1 << 16] })
    }

    /// Asks as fast as the server answers.
    pub fn saturate(&mut self, questions: usize) -> Result<Taken, String> {
        let start = Instant::now();
        let mut nanos = Vec::with_capacity(questions);
        let mut unasked = questions;
        for number in 0..self.links.len() {
            unasked -= self.ask(number, self.shape.in_flight.min(unasked), Instant::now())?;
        }
        while nanos.len() < questions {
            for number in self.ready(PATIENCE)? {
                let now = self.hear(number, &mut nanos)?;
                let in_flight = self.links[number].in_flight;
                if in_flight == 0 || !self.shape.in_batches {
                    let room = (self.shape.in_flight - in_flight).min(unasked);
                    unasked -= self.ask(number, room, now)?;
                }
            }
        }
        Ok(Taken { seconds: start.elapsed().as_secs_f64(), nanos })
    }

    /// Asks so many times a second, whether or not the server keeps up. A question that finds no connection
    /// free waits, and its wait counts from when it should have been asked.
    pub fn at_rate(
        &mut self,
        per_second: f64,
        questions: usize,
        between: Between,
    ) -> Result<Taken, String> {
        // Otherwise the system takes its time to wake us: longer than an answer takes.
        set_current_timer_slack(NonZeroU64::new(1)).expect("every thread has one");
        let start = Instant::now();
        let mut nanos = Vec::with_capacity(questions);
        let due_at = |asked: usize| start + Duration::from_secs_f64(asked as f64 / per_second);
        let (mut asked, mut heard_at) = (0, start);
        while nanos.len() < questions {
            let now = Instant::now();
            while asked < questions
                && due_at(asked) <= now
                && let Some(number) = self.free(asked)
            {
                asked += self.ask(number, 1, due_at(asked))?;
            }
            // One that is due and was not asked waits for a connection, and that for an answer.
            let pause = match between {
                Between::Looks => Duration::ZERO,
                Between::Sleeps if asked < questions && due_at(asked) > now => due_at(asked) - now,
                Between::Sleeps => PATIENCE,
            };
            for number in self.ready(pause)? {
                heard_at = self.hear(number, &mut nanos)?;
            }
            if now.saturating_duration_since(heard_at) > PATIENCE {
                return Err(SILENCE.to_owned());
            }
        }
        Ok(Taken { seconds: start.elapsed().as_secs_f64(), nanos })
    }

    /// A connection that may be asked, the first from this one on.
    fn free(&self, from: usize) -> Option<usize> {
        let count = self.links.len();
        let mut numbers = (0..count).map(|number| (from + number) % count);
        numbers.find(|number| self.links[*number].in_flight < self.shape.in_flight)
    }

    /// The connections that have something to read, as soon as there are some or this much time has passed.
    fn ready(&mut self, pause: Duration) -> Result<Vec<usize>, String> {
        let mut events = Vec::with_capacity(64);
        let mut waited = Ok(0);
        if !pause.is_zero() {
            // epoll itself knows whole milliseconds alone.
            let timeout = Timespec::try_from(pause).expect("it is short");
            waited = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout));
        }
        let at_once = Some(&Timespec::default());
        match waited.and_then(|_| epoll::wait(&self.epoll, spare_capacity(&mut events), at_once)) {
            Ok(0) if pause >= PATIENCE => Err(SILENCE.to_owned()),
            Ok(_) => {
                Ok(events.iter().map(|event: &epoll::Event| event.data.u64() as usize).collect())
            }
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(format!("waiting: {error}")),
        }
    }

    /// Returns how many were asked.
    fn ask(&mut self, number: usize, count: usize, at: Instant) -> Result<usize, String> {
        if count > 0 {
            self.links[number].ask(self.script, self.key, count, at)?;
            self.key += count;
        }
        Ok(count)
    }

    /// Returns when it heard.
    fn hear(&mut self, number: usize, nanos: &mut Vec<u32>) -> Result<Instant, String> {
        let link = &mut self.links[number];
        let mut answered = Vec::with_capacity(64);
        link.hear(self.script, &mut self.buffer, &mut answered)?;
        let now = Instant::now();
        link.note(&answered, now, nanos);
        Ok(now)
    }
}
