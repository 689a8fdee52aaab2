//! Requests that come all the time while a server fails, one limit for each thing that can be done
//! about it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tollgate_core::{Algorithm, Micros, Outcome};
use tollgate_harness::eventually;
use tollgate_store::redis::RedisSettings;
use tollgate_store::{Store, Taken};

use super::{lasting, open, time};
use crate::support::{Order, Subject};

/// How long a check may take here. Longer than in production, since this machine does much else.
pub(super) const TIMEOUT: Duration = Duration::from_millis(100);

/// How long two threads may wait for a processor, the one that keeps the deadline and the one that
/// asked. A twentieth of that is usual, but other tests run beside this one. It is less than the deadline,
/// so that a check that waits for two deadlines is seen.
const SCHEDULING: Duration = Duration::from_millis(90);
const _: () = assert!(SCHEDULING.as_millis() < TIMEOUT.as_millis());

/// Units of the limit that each node has its share of when Redis fails.
pub(super) const UNITS: u32 = 100;

/// What a node may admit of them by itself: there are two nodes, it is told.
pub(super) const SHARE: u32 = UNITS / 2;

/// Soon after a server is well, requests are counted again.
const BACK: Micros = Micros::from_secs(2);

/// What happens to a server.
pub(super) struct Fault<F, M> {
    /// Makes it fail, and returns when it does or did.
    pub(super) fail: F,
    /// Makes it well again; nothing if it is by itself.
    pub(super) mend: Option<M>,
    /// How many units may be admitted in all.
    pub(super) most: u32,
}

#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Well,
    Failing,
    /// So long that the server is left alone.
    LeftAlone,
    /// Well again, or nearly, and not known to be.
    Mending,
    Over,
}

struct Load {
    subject: Subject<Store>,
    allowed: Order,
    denied: Order,
    shared: Order,
    probe: Order,
    phase: AtomicU8,
    admitted: AtomicU32,
    waits: Mutex<Vec<(u8, Micros)>>,
}

/// Lets requests come from two threads while a fault comes and goes. Every check is answered in time
/// and as its limit says, a server that fails is never taken for one that denies, and no more is
/// admitted than the docs say.
pub(super) fn endure(
    settings: RedisSettings,
    keys: [u64; 4],
    fault: Fault<impl FnOnce(), impl FnOnce()>,
) {
    let settings = RedisSettings { timeout: TIMEOUT, nodes: Some(2), ..settings };
    let load = Load::new(open(settings), keys);
    load.until_counted();
    thread::scope(|scope| {
        let threads = [scope.spawn(|| load.run()), scope.spawn(|| load.run())];
        load.until_checked(200);
        load.enter(Phase::Failing);
        let settled = load.subject.redis().settled();
        let until_settled = |many| {
            eventually("requests are settled without Redis", || {
                (load.subject.redis().settled() >= settled + many).then_some(())
            });
        };
        (fault.fail)();
        until_settled(1);
        if let Some(mend) = fault.mend {
            until_settled(50);
            load.enter(Phase::LeftAlone);
            load.until_checked(500);
            load.enter(Phase::Mending);
            mend();
        }
        let took = time(|| load.until_counted());
        load.until_checked(100);
        load.enter(Phase::Over);
        assert!(threads.into_iter().all(|thread| thread.join().is_ok()), "a check went wrong");
        assert!(took <= BACK, "back after {took:?}");
    });
    load.judge(fault.most);
}

impl Load {
    fn new(subject: Subject<Store>, keys: [u64; 4]) -> Self {
        let ample = subject.enroll(lasting(Algorithm::TokenBucket, 10_000_000));
        let limit = subject.enroll(lasting(Algorithm::FixedWindow, UNITS));
        Self {
            allowed: Order::new(keys[0], ample).allowed_on_failure(),
            denied: Order::new(keys[1], ample).denied_on_failure(),
            shared: Order::new(keys[2], limit),
            probe: Order::new(keys[3], ample).denied_on_failure(),
            subject,
            phase: AtomicU8::new(Phase::Well as u8),
            admitted: AtomicU32::new(0),
            waits: Mutex::new(Vec::new()),
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    fn run(&self) {
        while self.phase.load(Ordering::SeqCst) != Phase::Over as u8 {
            assert!(self.check(&self.allowed).is_allowed());
            let denied = self.check(&self.denied);
            let is_over_limit = |it: tollgate_core::Decision| it.outcome != ALLOWED;
            assert!(!denied.decision().is_some_and(is_over_limit), "{denied:?}");
            assert_eq!(denied.is_allowed(), denied.decision().is_some());
            if self.check(&self.shared).is_allowed() {
                self.admitted.fetch_add(1, Ordering::SeqCst);
            }
            // Otherwise there would be millions of them as soon as nobody is asked.
            thread::park_timeout(Duration::from_micros(300));
        }
    }

    fn check(&self, order: &Order) -> Taken {
        let phase = self.phase.load(Ordering::SeqCst);
        let before = self.subject.clock.now();
        let taken = self.subject.take_one(order);
        let wait = self.subject.clock.now().since(before);
        self.waits.lock().expect("nobody panicked").push((phase, wait));
        taken
    }

    /// Waits until Redis counts.
    fn until_counted(&self) {
        eventually("Redis counts", || self.subject.take_one(&self.probe).decision());
    }

    /// Waits until so many more checks were answered.
    fn until_checked(&self, many: usize) {
        let checks = || self.waits.lock().expect("nobody panicked").len();
        let before = checks();
        eventually("checks are answered", || (checks() >= before + many).then_some(()));
    }

    /// How long the checks of a phase took, the fastest first.
    fn waits_of(&self, phase: Phase) -> Vec<Micros> {
        let waits = self.waits.lock().expect("nobody panicked");
        let of_phase = waits.iter().filter(|(of, _)| *of == phase as u8);
        let mut waits: Vec<Micros> = of_phase.map(|(_, wait)| *wait).collect();
        waits.sort();
        waits
    }

    /// Few checks wait for a deadline, and no share of all would show them: the slowest is judged.
    fn judge(&self, most: u32) {
        for phase in [Phase::Well, Phase::Failing, Phase::LeftAlone, Phase::Mending] {
            let waits = self.waits_of(phase);
            let Some(slowest) = waits.last() else { continue };
            println!("{phase:?}: {} checks, the slowest took {slowest:?}", waits.len());
            assert!(Duration::from(*slowest) <= TIMEOUT + SCHEDULING, "{phase:?}: {slowest:?}");
            if phase == Phase::LeftAlone {
                let middle = waits[waits.len() / 2];
                assert!(middle <= Micros::from_millis(1), "{middle:?}");
            }
        }
        let admitted = self.admitted.load(Ordering::SeqCst);
        assert!(admitted <= most, "{admitted} of at most {most}");
        assert!(admitted >= SHARE.min(most), "{admitted}");
    }
}

const ALLOWED: Outcome = Outcome::Allowed { delay: Micros::ZERO };
