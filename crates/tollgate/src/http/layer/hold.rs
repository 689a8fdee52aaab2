//! Requests that wait for their turn.
//!
//! A leaky bucket says how long each request has to wait, and its refund says that one request fewer
//! waits. In between, whoever waits here has a place in the queue of its state: a moment at which it
//! goes on, and a length, which is how much later its coming made all others. When it goes away before
//! its moment, those behind it move up by that length, so that they and the bucket agree on when the
//! next one goes.
//!
//! Everyone has a timer for the moment it was told last, which is never too early: moments only move
//! up. Of those that have moved up only the first is woken. It is told its new moment, and when it goes
//! on it wakes the next: a queue moves up one by one, and a request that goes away costs no more than one
//! that goes on. So timers are as many as requests are held, which is bounded, and there are no tasks.
//!
//! Between its decision and its place in the queue a request is known to the bucket and not here. If
//! another goes away in that instant, it does not move up, and may share its moment with the next that
//! comes: two at once, and none before them, which is never more than the rate in all.
//!
//! With a store that others use, their requests stand in the same queue and cannot be moved up. There
//! a place that is given up stays empty: it is not refunded.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tollgate_store::{Claim, Receipt, Taken};

use super::Shared;
use crate::metrics::{HeldCount, Live};
use crate::{Micros, Verdict};

/// Who is held.
pub(super) struct Holding {
    held: Mutex<Held>,
    shed: AtomicU64,
    waited: Live,
}

#[derive(Default)]
struct Held {
    requests: usize,
    tickets: u64,
    /// By state; in the order of their moments, and none is empty.
    queues: HashMap<u128, VecDeque<Waiter>>,
}

struct Waiter {
    ticket: u64,
    moment: Instant,
    /// Which moment it was told last, and how to tell it of another; nothing before it asked.
    told: Option<(Instant, Waker)>,
}

/// The right to go on at some moment. Dropped before that, its places are given up.
pub(super) struct Ticket {
    shared: Arc<Shared>,
    number: u64,
    places: Places,
    drawn_at: Instant,
    /// The last of its places' moments, as far as it was told.
    moment: Instant,
    has_come: bool,
}

/// A place in the queue of one state.
struct Place {
    receipt: Receipt,
    moment: Instant,
    length: Duration,
}

type Places = SmallVec<[Place; 1]>;
type Wakers = SmallVec<[Waker; 1]>;

impl Ticket {
    /// A ticket for a request that has to wait. If too many wait there is none, and what the request
    /// was charged is given back.
    pub(super) fn draw(shared: &Arc<Shared>, verdict: &Verdict) -> Option<Self> {
        let drawn_at = sleep(Duration::ZERO).deadline();
        let moment = sleep(duration(verdict.delay())).deadline();
        let is_alone = shared.limiter.store().memory().is_some();
        let places = if is_alone { places(verdict) } else { Places::new() };
        let number = shared.holding.lock().join(&places, shared.max_held);
        if number.is_none() {
            shared.holding.shed.fetch_add(1, Ordering::Relaxed);
            shared.holding.give_up(&places);
            give_back(shared, verdict, is_alone);
        }
        let shared = Arc::clone(shared);
        number.map(|number| Self { shared, number, places, drawn_at, moment, has_come: false })
    }

    /// The timer to [`poll`](Self::poll) with.
    pub(super) fn timer(&self) -> Sleep {
        sleep_until(self.moment)
    }

    /// Ready when its moment has come.
    pub(super) fn poll(
        &mut self,
        mut timer: Pin<&mut Sleep>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        self.shared.holding.lock().tell(self.number, &mut self.places, context.waker());
        if let Some(moment) = self.places.iter().map(|place| place.moment).max() {
            self.moment = moment;
        }
        if timer.deadline() != self.moment {
            timer.as_mut().reset(self.moment);
        }
        ready!(timer.poll(context));
        self.has_come = true;
        let waited = self.moment.saturating_duration_since(self.drawn_at);
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.shared.holding.waited.add(micros, 1);
        Poll::Ready(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Self { shared, number, places, has_come, .. } = self;
        shared.holding.lock().leave(*number, places);
        if *has_come {
            return shared.holding.wake_next(places);
        }
        shared.holding.give_up(places);
        // After those behind have moved up: whoever comes in between finds one place too many taken,
        // and not one too few.
        for place in places {
            drop(shared.limiter.store().refund(&Claim::new(place.receipt, None, 0)));
        }
    }
}

impl Default for Holding {
    fn default() -> Self {
        Self { held: Mutex::default(), shed: AtomicU64::new(0), waited: Live::of_waits() }
    }
}

impl Holding {
    pub(super) fn count(&self) -> HeldCount {
        HeldCount {
            now: self.lock().requests,
            shed: self.shed.load(Ordering::Relaxed),
            waited: self.waited.tell(),
        }
    }

    /// Lets those behind places that nobody needs move up.
    fn give_up(&self, places: &Places) {
        self.lock().move_up(places);
        self.wake_next(places);
    }

    /// Wakes whoever stands first behind each of these places, if it has moved up.
    fn wake_next(&self, places: &Places) {
        let wakers: Wakers = self.lock().next_movers(places);
        // What wakes may be anything, and is not called under a lock.
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// The number of another ticket, unless there are `most` already.
    fn join(&mut self, places: &Places, most: usize) -> Option<u64> {
        if self.requests >= most {
            return None;
        }
        self.requests += 1;
        self.tickets += 1;
        for place in places {
            let queue = self.queues.entry(place.receipt.state()).or_default();
            let waiter = Waiter { ticket: self.tickets, moment: place.moment, told: None };
            // Nearly always at the end, unless two came at once.
            queue.insert(behind(queue, place.moment), waiter);
        }
        Some(self.tickets)
    }

    /// Tells a ticket the moments of its places, and remembers whom to tell when they change.
    fn tell(&mut self, ticket: u64, places: &mut Places, waker: &Waker) {
        for place in places {
            let Some((queue, index)) = self.find(ticket, place) else { continue };
            let waiter = &mut queue[index];
            place.moment = waiter.moment;
            match &mut waiter.told {
                Some((told, known)) => {
                    *told = waiter.moment;
                    known.clone_from(waker);
                }
                None => waiter.told = Some((waiter.moment, waker.clone())),
            }
        }
    }

    /// Takes a ticket out of its queues, and tells it the moments that its places had in the end.
    fn leave(&mut self, ticket: u64, places: &mut Places) {
        self.requests -= 1;
        for place in places {
            let Some((queue, index)) = self.find(ticket, place) else { continue };
            let waiter = queue.remove(index);
            let is_last = queue.is_empty();
            place.moment = waiter.map_or(place.moment, |waiter| waiter.moment);
            if is_last {
                self.queues.remove(&place.receipt.state());
            }
        }
    }

    fn move_up(&mut self, places: &Places) {
        for place in places {
            let Some(queue) = self.queues.get_mut(&place.receipt.state()) else { continue };
            let start = behind(queue, place.moment);
            for waiter in queue.range_mut(start..) {
                let earlier = waiter.moment.checked_sub(place.length);
                waiter.moment = earlier.map_or(place.moment, |it| it.max(place.moment));
            }
        }
    }

    fn next_movers(&mut self, places: &Places) -> Wakers {
        let mut wakers = Wakers::new();
        for place in places {
            let Some(queue) = self.queues.get(&place.receipt.state()) else { continue };
            let next = queue.partition_point(|waiter| waiter.moment < place.moment);
            if let Some(Waiter { moment, told: Some((told, waker)), .. }) = queue.get(next)
                && told != moment
            {
                wakers.push(waker.clone());
            }
        }
        wakers
    }

    /// Where a ticket stands that has this place, or had it before it moved up.
    fn find(&mut self, ticket: u64, place: &Place) -> Option<(&mut VecDeque<Waiter>, usize)> {
        let queue = self.queues.get_mut(&place.receipt.state())?;
        let index = (0..behind(queue, place.moment)).rev().find(|&it| queue[it].ticket == ticket);
        debug_assert!(index.is_some(), "who holds a ticket stands in its queues");
        index.map(|index| (queue, index))
    }
}

/// Where in a queue those begin whose moment is later.
fn behind(queue: &VecDeque<Waiter>, moment: Instant) -> usize {
    queue.partition_point(|waiter| waiter.moment <= moment)
}

/// The queues in which a request has to wait.
fn places(verdict: &Verdict) -> Places {
    let entries = verdict.answers().zip(&verdict.taken).filter(|(answer, _)| answer.is_enforced());
    let waiting = entries.filter(|(_, entry)| entry.taken.delay() > Micros::ZERO);
    let place = |taken: &Taken| {
        let (delay, owed) = (taken.delay(), taken.decision()?.reset_after);
        Some(Place {
            receipt: taken.receipt()?,
            moment: sleep(duration(delay)).deadline(),
            // What the bucket owes in all, without what it owed before.
            length: duration(owed).saturating_sub(duration(delay)),
        })
    };
    waiting.filter_map(|(_, entry)| place(&entry.taken)).collect()
}

/// Gives back what a request was charged that cannot be held. Where others share the store they stand
/// behind it already, and its place in the queue stays empty.
fn give_back(shared: &Shared, verdict: &Verdict, is_alone: bool) {
    for (place, entry) in verdict.taken.iter().enumerate() {
        if let Some(receipt) = entry.taken.receipt()
            && (is_alone || entry.taken.delay() == Micros::ZERO)
        {
            let claim = Claim::new(receipt, verdict.origin.as_ref(), place);
            drop(shared.limiter.store().refund(&claim));
        }
    }
}

fn duration(time: Micros) -> Duration {
    Duration::from_micros(time.as_micros())
}
