//! One server and everything that waits for it.
//!
//! A [`Node`] is what callers hold: a queue, and whether it is any use to queue. The other end of the
//! queue is a task on the I/O thread. It sends what has gathered as one pipeline, a few pipelines at
//! a time, so that calls are batched exactly when the server is the slower one. What must stay true:
//!
//! - A call that may have run is not sent again. Sent again are calls that the server says it did not
//!   run: it does not know the script, or the keys are elsewhere.
//! - A caller hears of the deadline when it passes, whatever the connection does.
//! - A call that is past its deadline, that nobody waits for, or whose answer would come too late
//!   going by recent flights, is not sent.
//! - A server that is asked for more than it can do is not unwell: it is judged by how long flights
//!   are in the air, never by how long calls waited before.

mod flight;
mod queue;

use std::fmt;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tracing::{info, warn};

use self::flight::{Flight, FlightTime};
use self::queue::Queue;
use super::bounds::{BATCH_MAX, FLIGHTS_MAX, HOPS_MAX, INBOX_MAX};
use super::breaker::Breaker;
use super::call::{Call, Failure, Job, Pending};
use super::client::{Address, Answered, Connection, Pipeline};
use super::fleet::Shared;
use super::meaning::{Meaning, Place, hint};
use super::panics::has_panicked;
use super::sentinel::Sentinels;
use super::words::Words;
use crate::clock;

/// A server as its callers see it.
pub(super) struct Node {
    status: Arc<Status>,
    inbox: mpsc::Sender<Job>,
}

/// How a server is found.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// It is always there.
    Fixed(Address),
    /// Wherever the Sentinels say that the master is.
    Master(Arc<Sentinels>),
}

/// One server, in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Where it is, or was when it was last reached.
    pub address: String,
    /// Whether it gets calls.
    pub is_well: bool,
    /// Calls sent.
    pub calls: u64,
    /// Pipelines they were sent in.
    pub pipelines: u64,
    /// How long they were on their way, all together.
    pub time_in_air: Duration,
    /// Calls that were not answered within their deadline.
    pub timeouts: u64,
    /// Calls that were not answered because the connection broke, or answered with an error: the
    /// server is unwell, or refuses.
    pub failures: u64,
    /// Calls that were not sent.
    pub not_sent: u64,
}

/// What callers, the task and the metrics share.
#[derive(Debug)]
pub(super) struct Status {
    address: Mutex<String>,
    is_open: AtomicBool,
    /// Wakes the task to find the server again.
    suspected: Notify,
    calls: AtomicU64,
    pipelines: AtomicU64,
    micros_in_air: AtomicU64,
    timeouts: AtomicU64,
    failures: AtomicU64,
    not_sent: AtomicU64,
}

impl Node {
    /// Starts the task that serves the node. It ends when nobody holds the node any more.
    pub(super) fn start(way: Way, fleet: &Arc<Shared>) -> Arc<Self> {
        let (inbox, outbox) = mpsc::channel(INBOX_MAX);
        let status = Arc::new(Status::new(way.to_string()));
        let (told, shared) = (Arc::clone(&status), Arc::clone(fleet));
        // Timers are made where they ring, so the task makes its own.
        fleet.runtime().spawn(async move { Server::new(way, shared, told, outbox).serve().await });
        Arc::new(Self { status, inbox })
    }

    pub(super) fn status(&self) -> &Arc<Status> {
        &self.status
    }

    pub(super) fn send(&self, call: Call, deadline: Instant) -> Pending {
        if self.status.is_open() {
            self.status.not_sent.fetch_add(1, Ordering::Relaxed);
            return Pending::NOT_SENT;
        }
        let (job, pending) = Job::new(call, deadline);
        self.forward(job);
        pending
    }

    /// Takes a call that was made already.
    pub(super) fn forward(&self, job: Job) {
        if let Err(refused) = self.inbox.try_send(job) {
            self.status.reject(refused.into_inner());
        }
    }
}

impl Status {
    fn new(address: String) -> Self {
        Self {
            address: Mutex::new(address),
            is_open: AtomicBool::new(false),
            suspected: Notify::new(),
            calls: AtomicU64::new(0),
            pipelines: AtomicU64::new(0),
            micros_in_air: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            not_sent: AtomicU64::new(0),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    pub(super) fn address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The server may not be the right one any more.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    pub(super) fn health(&self) -> Health {
        let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Health {
            address: self.address(),
            is_well: !self.is_open(),
            calls: total(&self.calls),
            pipelines: total(&self.pipelines),
            time_in_air: Duration::from_micros(total(&self.micros_in_air)),
            timeouts: total(&self.timeouts),
            failures: total(&self.failures),
            not_sent: total(&self.not_sent),
        }
    }

    fn set_address(&self, address: String) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// Calls without a reply so far.
    fn unanswered(&self) -> u64 {
        let counters = [&self.timeouts, &self.failures, &self.not_sent];
        counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    fn reject(&self, job: Job) {
        self.not_sent.fetch_add(1, Ordering::Relaxed);
        job.settle(Err(Failure::NotSent));
    }

    fn lose(&self, jobs: impl IntoIterator<Item = Job>) {
        for job in jobs {
            // Whoever was told of the deadline is counted already.
            self.failures.fetch_add(u64::from(job.is_open()), Ordering::Relaxed);
            job.settle(Err(Failure::Lost));
        }
    }
}

impl Way {
    async fn connect(&self, patience: Duration) -> Result<(Connection, String), String> {
        match self {
            Self::Fixed(address) => Ok((Connection::open(address).await?, address.to_string())),
            Self::Master(sentinels) => sentinels.connect(patience).await,
        }
    }

    /// What this server means by a place.
    pub(super) fn neighbour(&self, place: &Place<'_>) -> Option<Address> {
        match self {
            Self::Fixed(address) => address.neighbour(place.host, place.port),
            Self::Master(_) => None,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address) => address.fmt(f),
            Self::Master(sentinels) => sentinels.fmt(f),
        }
    }
}

/// The task's side of a node.
struct Server {
    way: Way,
    fleet: Arc<Shared>,
    status: Arc<Status>,
    inbox: mpsc::Receiver<Job>,
    is_closed: bool,
    /// What came in last; empty between two steps.
    arrived: Vec<Job>,
    waiting: Queue,
    flights: Vec<Flight>,
    flight_time: FlightTime,
    connection: Option<Connection>,
    breaker: Breaker,
    look: Option<Pin<Box<dyn Future<Output = Look> + Send>>>,
    /// Rings no later than the oldest deadline, if it is set.
    alarm: Pin<Box<Sleep>>,
    is_set: bool,
    /// Calls without a reply when the server was last well.
    unanswered: u64,
}

/// What a look at a server found.
struct Look {
    /// The connection, if it is any good, and where it goes.
    connection: Option<(Connection, Option<String>)>,
    verdict: Result<(), String>,
}

impl Server {
    fn new(way: Way, fleet: Arc<Shared>, status: Arc<Status>, inbox: mpsc::Receiver<Job>) -> Self {
        let now = clock::moment();
        let flight_time = FlightTime::new(fleet.timeout());
        Self {
            way,
            fleet,
            status,
            inbox,
            is_closed: false,
            arrived: Vec::with_capacity(BATCH_MAX),
            waiting: Queue::default(),
            flights: Vec::new(),
            flight_time,
            connection: None,
            breaker: Breaker::new(now),
            look: None,
            alarm: Box::pin(sleep_until(now)),
            is_set: false,
            unanswered: 0,
        }
    }

    /// Runs until nobody holds the node any more. What panics is a mistake of ours, most likely in
    /// what is done with a late reply, and no reason to do without the server from then on.
    async fn serve(mut self) {
        while has_panicked(self.run()).await {
            self = self.start_over();
        }
    }

    /// Begins anew, with a look after a pause. Whoever waited hears that the call may have run.
    fn start_over(self) -> Self {
        let Self { way, fleet, status, inbox, .. } = self;
        let mut server = Self::new(way, fleet, status, inbox);
        let now = clock::moment();
        server.breaker.look_started(now);
        server.breaker.look_failed(now, random());
        server.opened("the task that serves it panicked");
        server
    }

    async fn run(&mut self) {
        while !self.is_done() {
            self.launch();
            let due = self.breaker.due().filter(|_| self.look.is_none());
            tokio::select! {
                biased;
                (index, answers) = landed(&mut self.flights) => self.land(index, answers),
                // Before what comes in, which under load is always something.
                () = self.alarm.as_mut(), if self.is_set => self.expire(clock::moment()),
                count = self.inbox.recv_many(&mut self.arrived, BATCH_MAX), if !self.is_closed => {
                    self.is_closed = count == 0;
                    self.arrive();
                }
                look = ready(&mut self.look) => self.looked(look),
                () = gone(self.connection.as_ref()) => self.disconnected("the connection was closed"),
                () = self.status.suspected.notified() => self.look_again(),
                () = until(due) => self.start_look(),
            }
        }
    }

    /// Whether nobody can send any more and nobody waits.
    fn is_done(&self) -> bool {
        let is_open = || self.flights.iter().any(Flight::is_open);
        self.is_closed && self.waiting.is_empty() && !is_open()
    }

    fn arrive(&mut self) {
        if self.breaker.is_open() {
            return self.arrived.drain(..).for_each(|job| self.status.reject(job));
        }
        for job in self.arrived.drain(..) {
            if let Err(job) = self.waiting.push(job) {
                self.status.reject(job);
            }
        }
        if let Some(oldest) = self.waiting.deadline() {
            self.set_alarm(oldest);
        }
    }

    /// Sends what is waiting, as far as there is room for it.
    fn launch(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        // What is overdue keeps its place: behind it nothing would come any sooner.
        for in_air in self.flights.len()..FLIGHTS_MAX {
            let Some(connection) = self.connection.clone() else { return };
            let now = clock::moment();
            let jobs = self.next_batch(now, in_air == 0);
            if jobs.is_empty() {
                return;
            }
            let pipeline = pipeline_of(&jobs);
            self.status.pipelines.fetch_add(1, Ordering::Relaxed);
            self.status.calls.fetch_add(jobs.len() as u64, Ordering::Relaxed);
            let answers = Box::pin(connection.send(pipeline));
            self.flights.push(Flight::new(answers, jobs, now, self.fleet.timeout()));
        }
    }

    fn next_batch(&mut self, now: Instant, is_idle: bool) -> Vec<Job> {
        let mut batch = Vec::with_capacity(self.waiting.len().min(BATCH_MAX));
        while batch.len() < BATCH_MAX
            && let Some(job) = self.waiting.pop()
        {
            let left = job.deadline.saturating_duration_since(now);
            if !self.flight_time.allows(left, is_idle) {
                self.status.reject(job);
            } else if job.is_awaited() {
                batch.push(job);
            }
        }
        batch
    }

    fn land(&mut self, index: usize, answers: Result<Vec<Answered>, String>) {
        let flight = self.flights.remove(index);
        let answers = match answers {
            Ok(answers) => answers,
            Err(why) => {
                self.status.lose(flight.jobs);
                return self.disconnected(&why);
            }
        };
        let took = flight.time_in_air(clock::moment());
        self.status.micros_in_air.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        self.flight_time.landed(took);
        let is_overdue = flight.is_overdue();
        let mut unwell = None;
        let mut again = Vec::new();
        let mut answers = answers.into_iter();
        for mut job in flight.jobs {
            if job.asking {
                answers.next();
                job.asking = false;
            }
            match answers.next() {
                Some(Ok(reply)) => job.settle(Ok(reply)),
                Some(Err(error)) => self.refused(job, error, &mut unwell, &mut again),
                None => self.status.lose([job]),
            }
        }
        again.into_iter().for_each(|job| self.waiting.put_back(job));
        match unwell {
            Some(why) => self.failed(&why),
            None if !is_overdue => self.breaker.succeeded(),
            None => {}
        }
    }

    /// An error is the caller's answer, unless it only says that the call must be sent otherwise.
    fn refused(
        &mut self,
        mut job: Job,
        error: String,
        unwell: &mut Option<String>,
        again: &mut Vec<Job>,
    ) {
        let may_go_on = job.is_open() && job.hops < HOPS_MAX;
        job.hops += 1;
        match Meaning::of(&error) {
            Meaning::NoScript if may_go_on => {
                job.with_text = true;
                return again.push(job);
            }
            Meaning::Moved(place) if may_go_on && self.fleet.is_cluster() => {
                if let Some(node) = self.fleet.moved(&place, &self.way) {
                    return node.forward(job);
                }
            }
            Meaning::Ask(place) if may_go_on && self.fleet.is_cluster() => {
                if let Some(node) = self.fleet.node_at(&place, &self.way) {
                    job.asking = true;
                    return node.forward(job);
                }
            }
            Meaning::TryAgain => return job.settle(Err(Failure::TryAgain)),
            Meaning::Unwell => {
                self.status.failures.fetch_add(1, Ordering::Relaxed);
                unwell.get_or_insert_with(|| error.clone());
            }
            Meaning::Misplaced => {
                self.status.failures.fetch_add(1, Ordering::Relaxed);
                unwell.get_or_insert_with(|| error.clone());
                self.connection = None;
                self.breaker.look_soon(clock::moment());
            }
            _ => {
                self.status.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        let error = match hint(&error, self.fleet.is_cluster()) {
            Some(hint) => format!("{error} ({hint})"),
            None => error,
        };
        job.settle(Err(Failure::Refused(error)));
    }

    /// Tells callers whose deadline has passed.
    fn expire(&mut self, now: Instant) {
        self.is_set = false;
        let mut is_stuck = false;
        while let Some(job) = self.waiting.pop_expired(now) {
            self.status.reject(job);
            is_stuck |= self.connection.is_none();
        }
        let mut failures = u32::from(is_stuck);
        for flight in &mut self.flights {
            self.status.timeouts.fetch_add(flight.expire(now), Ordering::Relaxed);
            failures += u32::from(flight.became_overdue(now));
        }
        for _ in 0..failures {
            self.failed("no reply within the deadline");
        }
        let next = self.flights.iter().filter_map(Flight::next).chain(self.waiting.deadline());
        if let Some(next) = next.min() {
            self.set_alarm(next);
        }
    }

    fn set_alarm(&mut self, deadline: Instant) {
        if !self.is_set || deadline < self.alarm.deadline() {
            self.alarm.as_mut().reset(deadline);
            self.is_set = true;
        }
    }

    fn failed(&mut self, why: &str) {
        if self.breaker.failed(clock::moment(), random()) {
            self.opened(why);
        }
    }

    fn disconnected(&mut self, why: &str) {
        // The other pipelines of a connection that broke tell the same again.
        if self.connection.take().is_some() && self.breaker.disconnected(clock::moment(), random())
        {
            self.opened(why);
        }
    }

    fn look_again(&mut self) {
        self.connection = None;
        self.breaker.look_soon(clock::moment());
    }

    fn start_look(&mut self) {
        self.breaker.look_started(clock::moment());
        let probe = self.fleet.probe(&self.status);
        let (timeout, patience) = (self.fleet.timeout(), self.fleet.patience());
        let looking = look(self.way.clone(), self.connection.clone(), probe, timeout, patience);
        self.look = Some(Box::pin(looking));
    }

    fn looked(&mut self, look: Look) {
        self.look = None;
        let Look { connection, verdict } = look;
        if let Some((_, Some(address))) = &connection {
            // What was sent over an older connection has no way back.
            let older = mem::take(&mut self.flights);
            self.status.lose(older.into_iter().flat_map(|flight| flight.jobs));
            self.status.set_address(address.clone());
        }
        self.connection = connection.map(|(connection, _)| connection);
        match verdict {
            Ok(()) => {
                if self.breaker.look_passed() {
                    self.closed();
                }
            }
            Err(why) => {
                if self.breaker.look_failed(clock::moment(), random()) {
                    self.opened(&why);
                } else {
                    self.stayed_open(&why);
                }
            }
        }
    }

    fn opened(&mut self, why: &str) {
        self.status.is_open.store(true, Ordering::Relaxed);
        self.fleet.unwell();
        warn!(
            server = %self.status.address(),
            why,
            "redis is unreachable or unwell; limits are settled by on_store_failure until it is back"
        );
        // That it stays so is told a minute from now.
        self.fleet.is_news(&self.status);
        self.unanswered = self.status.unanswered();
        while let Some(job) = self.waiting.pop() {
            self.status.reject(job);
        }
    }

    /// Tells once a minute why a server is still of no use: that may be a mistake in the policy, which no
    /// waiting mends, and another one than at the beginning.
    fn stayed_open(&self, why: &str) {
        if self.fleet.is_news(&self.status) {
            warn!(
                server = %self.status.address(),
                why,
                "redis is still unreachable or unwell; limits are settled by on_store_failure"
            );
        }
    }

    fn closed(&mut self) {
        self.status.is_open.store(false, Ordering::Relaxed);
        let unanswered = self.status.unanswered() - self.unanswered;
        info!(server = %self.status.address(), unanswered, "redis is back");
    }
}

fn pipeline_of(jobs: &[Job]) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(jobs.len());
    let nothing = Words::new();
    // One text makes a script known to all calls after it.
    let mut told: Vec<&str> = Vec::new();
    for job in jobs {
        if job.asking {
            pipeline.push(&[b"ASKING"], &nothing);
        }
        match job.script {
            Some(script) if job.with_text && !told.contains(&script.sha.as_str()) => {
                told.push(&script.sha);
                pipeline.push(&[b"EVAL", script.text.as_bytes()], &job.words);
            }
            Some(script) => pipeline.push(&[b"EVALSHA", script.sha.as_bytes()], &job.words),
            None => pipeline.push(&[], &job.words),
        }
    }
    pipeline
}

/// Dials unless there is a connection, then probes. A server that is slower than calls may be is not
/// well, but its connection is: what is late may still come over it.
async fn look(
    way: Way,
    connection: Option<Connection>,
    probe: Words,
    longest: Duration,
    patience: Duration,
) -> Look {
    let looking = async {
        let (connection, address) = match connection {
            Some(connection) => (connection, None),
            None => way.connect(patience).await.map(|(connection, at)| (connection, Some(at)))?,
        };
        let asked_at = clock::moment();
        let answer = connection.ask(&probe).await?;
        let took = clock::moment() - asked_at;
        Ok(((connection, address), verdict_on(answer, took, longest)))
    };
    let unanswered = || format!("no answer within {} ms", patience.as_millis());
    match timeout(patience, looking).await.unwrap_or_else(|_| Err(unanswered())) {
        Ok((connection, Ok(()))) => Look { connection: Some(connection), verdict: Ok(()) },
        Ok((connection, Err((why, keeps)))) => {
            Look { connection: keeps.then_some(connection), verdict: Err(why) }
        }
        Err(why) => Look { connection: None, verdict: Err(why) },
    }
}

/// Why a server is unwell, and whether its connection is worth keeping.
fn verdict_on(answer: Answered, took: Duration, longest: Duration) -> Result<(), (String, bool)> {
    if took > longest {
        return Err((format!("a probe took {} ms", took.as_millis()), true));
    }
    let Err(error) = answer else { return Ok(()) };
    match Meaning::of(&error) {
        Meaning::Unwell => Err((error, true)),
        Meaning::Misplaced => Err((error, false)),
        // Whoever says anything else to a probe is there and would take calls.
        _ => Ok(()),
    }
}

/// The first pipeline that has its answers. Every one is polled, since that is what sends it.
async fn landed(flights: &mut [Flight]) -> (usize, Result<Vec<Answered>, String>) {
    poll_fn(|context| {
        for (index, flight) in flights.iter_mut().enumerate() {
            if let Poll::Ready(answers) = flight.answers.as_mut().poll(context) {
                return Poll::Ready((index, answers));
            }
        }
        Poll::Pending
    })
    .await
}

async fn ready(look: &mut Option<Pin<Box<dyn Future<Output = Look> + Send>>>) -> Look {
    match look {
        Some(look) => look.await,
        None => std::future::pending().await,
    }
}

async fn gone(connection: Option<&Connection>) {
    match connection {
        Some(connection) => connection.gone().await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(deadline: Instant) -> (Job, Pending) {
        Job::new(Call { script: None, words: Words::new(), slot: 0, late: None }, deadline)
    }

    #[test]
    fn a_call_that_timed_out_and_is_then_lost_is_counted_once() {
        let status = Status::new("somewhere".to_owned());
        let (mut late, _late) = job(clock::moment());
        late.time_out();
        status.lose([late]);
        assert_eq!(status.health().failures, 0);
        let (on_time, _on_time) = job(clock::moment());
        status.lose([on_time]);
        assert_eq!(status.health().failures, 1);
    }
}
