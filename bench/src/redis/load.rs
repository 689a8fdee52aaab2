//! Callers that ask, each for one decision after the other.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::num::NonZeroU64;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tollgate_core::{ChargeId, Cost, Key, Limit, Value, lua};
use tollgate_store::redis::{RedisSettings, RedisStore, Servers};
use tollgate_store::{Answers, Asked, Charge, Enrolled};

use crate::server::Redis;

/// Callers of one store.
#[derive(Clone)]
pub struct Load(Arc<Questions>);

/// What they ask.
struct Questions {
    store: RedisStore,
    limits: Vec<(&'static str, Enrolled)>,
    keys: u32,
    is_leased: bool,
}

/// What came of asking.
pub struct Done {
    pub decisions: u64,
    pub allowed: u64,
    pub elapsed: Duration,
}

/// How long each of many answers took, from when its question should have been asked.
pub type Waits = Vec<Duration>;

/// How far apart callers at a rate ask: a few at once, as a server does that looks at its sockets so often.
const BEAT: Duration = Duration::from_micros(100);

const NAMES: [&str; 3] = ["bench", "bench-2", "bench-3"];

impl Load {
    pub fn new(redis: &Redis, limits: &[Limit], keys: u32, is_leased: bool) -> Self {
        // What is measured is how quick answers are, not how many are in time.
        Self::with_deadline(redis.url(), limits, keys, is_leased, Duration::from_secs(5))
    }

    pub fn with_deadline(
        url: String,
        limits: &[Limit],
        keys: u32,
        is_leased: bool,
        deadline: Duration,
    ) -> Self {
        let settings = RedisSettings {
            servers: Servers::Single(url),
            timeout: deadline,
            prefix: "tollgate".to_owned(),
            nodes: None,
        };
        let store = RedisStore::open(settings).expect("the URL is one of Redis");
        let enroll = |limit: &Limit| store.enroll(*limit).expect("a handful of limits");
        let limits = NAMES.into_iter().zip(limits.iter().map(enroll)).collect();
        let load = Self(Arc::new(Questions { store, limits, keys, is_leased }));
        // Until the first answer the server may not be reached yet.
        load.until_answered();
        load
    }

    /// Asks until there is an answer.
    pub fn until_answered(&self) {
        while !self.is_answered() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn of_one_key(redis: &Redis, limit: Limit, is_leased: bool) -> Self {
        Self::new(redis, &[limit], 1, is_leased)
    }

    fn is_answered(&self) -> bool {
        let before = self.0.store.settled();
        self.0.ask(0, Cost::PEEK).wait();
        self.0.store.settled() == before
    }

    /// What the store tells the script about a key, besides its name: the time, which is the server's own, and
    /// the charge.
    pub fn arguments(&self) -> [Vec<u8>; 2] {
        let limit = self.0.limits[0].1.limit();
        [Vec::new(), lua::Charge::new(limit, Cost::ONE, ChargeId(0)).argument()]
    }

    /// What a key is called in Redis.
    pub fn name(&self, key: u32) -> String {
        format!("tollgate:{{{}}}:{}", name_of(key), NAMES[0])
    }

    /// So many callers ask until the time is over.
    pub fn run(&self, callers: usize, time: Duration) -> Done {
        let done = Rc::new((Cell::new(0), Cell::new(0)));
        let local = LocalSet::new();
        let start = Instant::now();
        for caller in 0..callers as u64 {
            let (questions, done) = (Arc::clone(&self.0), Rc::clone(&done));
            local.spawn_local(async move {
                let mut random = (caller + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                while start.elapsed() < time {
                    // Whoever is answered at once must let others ask, and look at the time.
                    for _ in 0..16 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let answers =
                            questions.ask((random >> 32) as u32 % questions.keys, Cost::ONE).await;
                        let is_allowed = answers.taken().iter().all(|taken| taken.is_allowed());
                        done.0.set(done.0.get() + 1);
                        done.1.set(done.1.get() + u64::from(is_allowed));
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        runtime().block_on(local);
        Done { decisions: done.0.get(), allowed: done.1.get(), elapsed: start.elapsed() }
    }

    /// Asks so many times a second, whether or not answers come.
    pub fn paced(&self, per_second: f64, time: Duration) -> Waits {
        let mut waits = Waits::new();
        let mut unanswered = FuturesUnordered::new();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        pace(per_second, time, thread::park_timeout, |due| {
            for &(number, due_at) in due {
                let asked = self.0.ask(self.key_of(number), Cost::ONE);
                unanswered.push(async move {
                    asked.await;
                    due_at
                });
            }
            // Of many only those are looked at that were answered.
            while let Poll::Ready(Some(due_at)) = Pin::new(&mut unanswered).poll_next(&mut context)
            {
                waits.push(due_at.elapsed());
            }
            unanswered.is_empty()
        });
        waits
    }

    /// The same script asked at the same rate over a bare connection, and its answers counted: as soon as this
    /// server, and this machine, can answer.
    pub fn paced_alone(&self, redis: &Redis, per_second: f64, time: Duration) -> Waits {
        const LINES: usize = lua::ANSWER_FIELDS + 1;
        let sha = redis.load(lua::TAKE);
        let [now, charge] = self.arguments();
        let stream = redis.connect();
        stream.set_nonblocking(true).expect("an option of every socket");
        let (mut waits, mut unanswered) = (Waits::new(), VecDeque::new());
        let (mut commands, mut buffer, mut lines) = (Vec::new(), vec![0; 1 << 16], 0);
        let sleep = |most: Duration| {
            let most = Timespec::try_from(most).expect("a beat");
            // Waking early is no harm.
            let _ = poll(&mut [PollFd::new(&stream, PollFlags::IN)], Some(&most));
        };
        pace(per_second, time, sleep, |due| {
            for &(number, due_at) in due {
                let name = self.name(self.key_of(number));
                let words: [&[u8]; 6] =
                    [b"EVALSHA", sha.as_bytes(), b"1", name.as_bytes(), &now, &charge];
                write_command(&mut commands, &words);
                unanswered.push_back(due_at);
            }
            if !commands.is_empty() {
                let written = if_ready((&stream).write(&commands));
                commands.drain(..written);
            }
            let read = if_ready((&stream).read(&mut buffer));
            lines += memchr::memchr_iter(b'\n', &buffer[..read]).count();
            waits.extend(unanswered.drain(..lines / LINES).map(|due_at: Instant| due_at.elapsed()));
            lines %= LINES;
            unanswered.is_empty()
        });
        waits
    }

    fn key_of(&self, number: u32) -> u32 {
        number.wrapping_mul(2_654_435_761) % self.0.keys
    }
}

/// Calls `ask` again and again, on every beat with the numbers of what became due since the last and when each was,
/// and in between, with none, when `sleep` ends sooner than it may; until the time is over and it says that everything
/// is answered.
fn pace(
    per_second: f64,
    time: Duration,
    sleep: impl Fn(Duration),
    mut ask: impl FnMut(&[(u32, Instant)]) -> bool,
) {
    // Otherwise the system takes its time to wake us: half a beat.
    set_current_timer_slack(NonZeroU64::new(1)).expect("every thread has one");
    let start = Instant::now();
    let due_at = |number: u32| start + Duration::from_secs_f64(f64::from(number) / per_second);
    let (mut next, mut beat_at, mut due) = (0, start, Vec::new());
    loop {
        let now = Instant::now();
        let is_over = now - start > time;
        due.clear();
        if now >= beat_at {
            beat_at = now + BEAT;
            while !is_over && due_at(next) <= now {
                due.push((next, due_at(next)));
                next += 1;
            }
        }
        if ask(&due) && is_over {
            return;
        }
        sleep(beat_at.saturating_duration_since(Instant::now()));
    }
}

/// Who asks, asleep until there is something to ask or an answer.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn write_command(commands: &mut Vec<u8>, words: &[&[u8]]) {
    commands.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        commands.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        commands.extend_from_slice(word);
        commands.extend_from_slice(b"\r\n");
    }
}

/// How many bytes a socket took or gave, none if it was not ready.
fn if_ready(result: io::Result<usize>) -> usize {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        result => match result.expect("Redis reads and answers") {
            0 => panic!("Redis closed the connection"),
            count => count,
        },
    }
}

impl Questions {
    fn ask(&self, key: u32, cost: Cost) -> Asked<Answers> {
        let name = name_of(key);
        let values = [Value::new(name.as_bytes())];
        let charge = |(limit, enrolled)| {
            let charge = Charge::new(Key { limit, values: &values }, enrolled);
            Charge { cost, is_leased: self.is_leased, ..charge }
        };
        let charges: Vec<Charge<'_>> =
            self.limits.iter().map(|(limit, enrolled)| charge((*limit, enrolled))).collect();
        self.store.take(&charges)
    }
}

/// As `redis-benchmark` writes a random number.
fn name_of(key: u32) -> String {
    format!("{key:012}")
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime of one thread")
}
