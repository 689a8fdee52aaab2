//! Requests that were charged before it was known what they cost.
//!
//! A reservation is settled once, whoever asks for that how often at the same time; everybody is told
//! what the first was told, for a while. One that nobody settles is forgotten when it ends, and what was
//! reserved stays charged: whoever went away without a word has used something, and to give it back
//! would let callers who never settle go without limits. So nothing has to happen at the end, and
//! nothing is lost if we are gone by then.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use tollgate::http::json;
use tollgate::{Asked, Cost, Keys, Limiter, Micros, Verdict};

use crate::bounds::{RESERVATIONS_BYTES_MAX, RESERVATIONS_MAX, SETTLED_KEPT};
use crate::tickets::Tickets;

/// Reservations by name.
#[derive(Debug)]
pub(crate) struct Reservations {
    tickets: Tickets<Arc<Reservation>>,
    used: Arc<Used>,
}

/// What is taken of the bounds.
#[derive(Debug, Default)]
struct Used {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

/// The right to keep one more reservation, until it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    used: Arc<Used>,
    bytes: usize,
}

/// What a reservation takes beside its keys, and what one limit adds to that, as it is kept or told.
const BASE_BYTES: usize = 2_048;
const LIMIT_BYTES: usize = 768;

#[derive(Debug)]
struct Reservation {
    /// What is to be settled, until somebody does.
    open: Mutex<Option<(Verdict, Keys)>>,
    /// What they are told.
    answer: watch::Sender<Option<Bytes>>,
    _room: Room,
}

impl Reservations {
    pub(crate) fn new() -> Self {
        Self { tickets: Tickets::new(), used: Arc::default() }
    }

    /// Room for what was said to a request, if there is any.
    pub(crate) fn room(&self, verdict: &Verdict, keys: &Keys, limiter: &Limiter) -> Option<Room> {
        self.tickets.forget_ended(limiter.now());
        let key_bytes: usize = keys.iter().map(str::len).sum();
        let bytes = BASE_BYTES + LIMIT_BYTES * verdict.answers().len() + key_bytes;
        let count_before = self.used.count.fetch_add(1, Ordering::AcqRel);
        let bytes_before = self.used.bytes.fetch_add(bytes, Ordering::AcqRel);
        let room = Room { used: Arc::clone(&self.used), bytes };
        let fits =
            count_before < RESERVATIONS_MAX && bytes_before + bytes <= RESERVATIONS_BYTES_MAX;
        fits.then_some(room)
    }

    /// How many are kept, those included that have ended and are not forgotten yet.
    pub(crate) fn count(&self) -> usize {
        self.tickets.count()
    }

    /// Keeps what was charged until it is settled, or `ttl` has passed. `write` is shown the verdict
    /// with the name that settles it.
    pub(crate) fn keep(
        &self,
        verdict: Verdict,
        keys: Keys,
        room: Room,
        ttl: Micros,
        limiter: &Limiter,
        write: impl FnOnce(&Verdict, &Keys, &str),
    ) {
        let now = limiter.now();
        self.tickets.keep(now, now.plus(ttl), |name| {
            write(&verdict, &keys, name);
            let open = Mutex::new(Some((verdict.kept(), keys)));
            Arc::new(Reservation { open, answer: watch::Sender::new(None), _room: room })
        });
    }

    /// Makes `cost` of what was reserved, unless that was done before; tells what was told then.
    /// Nothing if the name is unknown, or has ended.
    pub(crate) fn settle(&self, name: &str, cost: Cost, limiter: &Limiter) -> Asked<Option<Bytes>> {
        let now = limiter.now();
        let found = self.tickets.with(name, |reservation, ends_at| {
            if *ends_at < now {
                return None;
            }
            let mut open = reservation.open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.is_some() {
                *ends_at = now.plus(SETTLED_KEPT).max(*ends_at);
            }
            Some((open.take(), Arc::clone(reservation)))
        });
        let Some((open, reservation)) = found.flatten() else { return Asked::Ready(None) };
        let mut answers = reservation.answer.subscribe();
        if let Some((verdict, keys)) = open {
            match limiter.settle(verdict, cost) {
                Asked::Ready(verdict) => reservation.tell(&verdict, &keys),
                // Whoever asked may go away before the answer is there, and others wait for it too.
                Asked::Waiting(waiting) => {
                    tokio::spawn(async move { reservation.tell(&waiting.await, &keys) });
                }
            }
        }
        if let Some(answer) = &*answers.borrow() {
            return Asked::Ready(Some(answer.clone()));
        }
        Asked::later(async move {
            let answer = answers.wait_for(Option::is_some).await.ok()?;
            answer.clone()
        })
    }
}

impl Reservation {
    fn tell(&self, verdict: &Verdict, keys: &Keys) {
        let mut body = Vec::with_capacity(512);
        json::write_settled(&mut body, verdict, keys);
        self.answer.send_replace(Some(body.into()));
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.used.count.fetch_sub(1, Ordering::AcqRel);
        self.used.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tollgate::{Clock, MemoryStore, Policy, Request, Timestamp};

    use super::*;

    const MINUTE: Micros = Micros::from_secs(60);
    const ATTRIBUTES: [(&str, &[u8]); 1] = [("user", b"42")];

    /// A thousand units a day for everybody, and the clock it goes by.
    fn limiter() -> (Limiter, Clock) {
        let text =
            "limits: [{ name: tokens, per: [user], rate: 1000/day, algorithm: fixed_window }]";
        let policy = Policy::parse("policy.yaml", text, &mut |_: &str| Err("no file".to_owned()));
        let clock = Clock::manual(Timestamp::from_micros(1_760_054_400_000_000));
        let store = MemoryStore::with_max_bytes(clock.clone(), 1 << 20).expect("a megabyte");
        (Limiter::new(policy.expect("a policy"), store).expect("one limit"), clock)
    }

    fn reserve(reservations: &Reservations, limiter: &Limiter, cost: u32) -> Option<String> {
        let mut keys = Keys::default();
        let request = Request { cost: Cost::new(cost), ..Request::new(&ATTRIBUTES) };
        let verdict = limiter.ask_showing(&request, &mut keys).wait();
        let room = reservations.room(&verdict, &keys, limiter)?;
        let mut named = String::new();
        reservations.keep(verdict, keys, room, MINUTE, limiter, |_, _, name| named.push_str(name));
        Some(named)
    }

    fn settle(
        reservations: &Reservations,
        limiter: &Limiter,
        name: &str,
        cost: u32,
    ) -> Option<Bytes> {
        reservations.settle(name, Cost::new(cost), limiter).wait()
    }

    fn left(limiter: &Limiter) -> u32 {
        let verdict = limiter.check(&Request { cost: Cost::PEEK, ..Request::new(&ATTRIBUTES) });
        let decision = verdict.answers().next().and_then(|answer| answer.decision());
        decision.expect("the limit applies").remaining
    }

    #[test]
    fn what_is_never_settled_stays_charged_and_its_name_ends() {
        let (reservations, (limiter, clock)) = (Reservations::new(), limiter());
        let name = reserve(&reservations, &limiter, 300).unwrap();
        clock.advance(MINUTE);
        clock.advance(Micros::new(1));
        assert_eq!(settle(&reservations, &limiter, &name, 1), None);
        assert_eq!(left(&limiter), 700);
        // Whoever comes next makes it go, and its room with it.
        reserve(&reservations, &limiter, 0).unwrap();
        assert_eq!(reservations.used.count.load(Ordering::Acquire), 1);
    }

    #[test]
    fn until_its_last_moment_a_reservation_is_settled_and_then_told_of_for_a_minute() {
        let (reservations, (limiter, clock)) = (Reservations::new(), limiter());
        let name = reserve(&reservations, &limiter, 300).unwrap();
        clock.advance(MINUTE);
        let told = settle(&reservations, &limiter, &name, 100).unwrap();
        assert_eq!(left(&limiter), 900);
        clock.advance(MINUTE);
        assert_eq!(
            settle(&reservations, &limiter, &name, 500),
            Some(told),
            "as the first was told"
        );
        assert_eq!(left(&limiter), 900);
        clock.advance(Micros::new(1));
        assert_eq!(settle(&reservations, &limiter, &name, 100), None);
    }

    #[test]
    fn of_many_who_settle_at_once_one_does_and_all_are_told_the_same() {
        let (reservations, (limiter, _)) = (Reservations::new(), limiter());
        let mut used = 0;
        for round in 0..50 {
            let name = &reserve(&reservations, &limiter, 10).unwrap();
            let told: Vec<_> = thread::scope(|scope| {
                let settle = |cost| {
                    let (reservations, limiter) = (&reservations, &limiter);
                    scope.spawn(move || reservations.settle(name, Cost::new(cost), limiter).wait())
                };
                let threads = [3, 3, 3, 3].map(settle);
                threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
            });
            assert!(told.iter().all(|answer| *answer == told[0]), "{round}: {told:?}");
            used += 3;
            assert_eq!(left(&limiter), 1_000 - used);
        }
    }

    #[test]
    fn there_are_so_many_reservations_at_a_time_and_room_again_when_some_have_ended() {
        let (reservations, (limiter, clock)) = (Reservations::new(), limiter());
        let mut kept = 0;
        while reserve(&reservations, &limiter, 0).is_some() {
            kept += 1;
        }
        assert!((10_000..=RESERVATIONS_MAX).contains(&kept), "{kept}");
        assert!(reservations.used.bytes.load(Ordering::Acquire) <= RESERVATIONS_BYTES_MAX);
        clock.advance(MINUTE);
        clock.advance(Micros::new(1));
        for _ in 0..kept {
            assert!(reserve(&reservations, &limiter, 0).is_some());
        }
        assert!(reservations.used.count.load(Ordering::Acquire) <= RESERVATIONS_MAX);
    }
}
