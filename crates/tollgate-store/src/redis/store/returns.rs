//! What is given back to Redis, or settled there: sent whether somebody waits for the answer or not.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tollgate_core::{ChargeId, Cost, Limit, Logged, Micros, lua};

use super::request::{Item, Items, Places, read};
use super::{Inner, REFUND, SETTLE, UNKNOWN, is_concurrency};
use crate::asked::Asked;
use crate::charge::{Receipt, Taken};
use crate::fingerprint::Fingerprint;
use crate::redis::bounds::{RELEASE_PAUSE, RELEASE_TRIES, RELEASES_MAX};
use crate::redis::call::{Call, Failure, Reply};
use crate::redis::script::Script;
use crate::redis::words::Words;
use crate::store::Origin;

/// What becomes of what Redis does not hear of.
const NOT_GIVEN_BACK: &str =
    "slots come back when it answers, or when their lease ends; the rest stays charged";
const NOT_SETTLED: &str = "what was reserved may stay charged";

/// Why a release is tried no longer.
const UNANSWERED: &str = "Redis took none of many tries";
const TOO_MANY: &str = "too many others are being tried again";

/// Something to be given back to a key.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) script: Option<&'static Script>,
    pub(super) words: Words,
    pub(super) slot: u16,
    /// The key, if it may have been denied for what is given back. Nobody who is denied a slot is told
    /// to wait, and so is always asked about.
    pub(super) denied: Option<Fingerprint>,
    /// For how long it is held at most, if it is of a log: that knows what was given back before, so it
    /// can be tried again.
    pub(super) held_for: Option<Micros>,
}

/// Something that is being given back, until this goes.
pub(super) struct Underway(Arc<watch::Sender<usize>>);

impl Inner {
    /// Releases slots, sooner or later, that may have been taken by a call whose answer is not known.
    pub(super) fn release_unheard(self: &Arc<Self>, items: &Items, places: &Places) {
        for &place in places {
            let Item { limit, cost, id, .. } = items.list[place];
            let Limit::Logged(limit @ Logged::Concurrency(_)) = &limit.limit else { continue };
            let back = lua::Return::GiveBack { limit, id, held: cost, units: cost };
            let change = self.change_of(items, place, &back);
            self.fleet.spawn(release(Arc::downgrade(self), change, RELEASE_PAUSE));
        }
    }

    pub(super) fn give_back(
        self: &Arc<Self>,
        items: &Items,
        place: usize,
        receipt: &Receipt,
    ) -> Asked<Option<bool>> {
        let Receipt { cost, at, mark, .. } = *receipt;
        match &items.list[place].limit.limit {
            Limit::Counter(limit) => {
                let receipt = &tollgate_core::Receipt { at, cost, debt_before: mark };
                self.send_back(items, place, &lua::Return::Refund { limit, receipt })
            }
            Limit::Logged(limit) => {
                let (id, held, units) = (ChargeId(mark), cost, cost);
                self.send_back(items, place, &lua::Return::GiveBack { limit, id, held, units })
            }
        }
    }

    pub(super) fn send_back(
        self: &Arc<Self>,
        items: &Items,
        place: usize,
        back: &lua::Return<'_>,
    ) -> Asked<Option<bool>> {
        self.change(self.change_of(items, place, back))
    }

    fn change_of(&self, items: &Items, place: usize, back: &lua::Return<'_>) -> Change {
        let name = items.names.get(place).as_bytes();
        let words = self.words(name, &back.argument());
        let Item { limit, key, .. } = items.list[place];
        Change {
            script: Some(&*REFUND),
            words,
            slot: self.fleet.slot(name),
            denied: (!is_concurrency(&limit.limit)).then_some(key),
            held_for: match back {
                lua::Return::GiveBack { limit: Logged::Concurrency(limit), .. } => {
                    Some(limit.lease())
                }
                lua::Return::GiveBack { limit: Logged::SlidingLog(limit), .. } => {
                    Some(Micros::new(limit.numbers()[1]))
                }
                _ => None,
            },
        }
    }

    /// A call about one key.
    fn words(&self, name: &[u8], argument: &[u8]) -> Words {
        let mut words = Words::with_capacity(256);
        words.push_number(1);
        words.push(name);
        self.push_now(&mut words);
        words.push(argument);
        words
    }

    /// Gives something back to a key in Redis, whether somebody waits for the answer or not: a call
    /// that nobody waits for is not sent, and whoever releases a slot need not stay to hear of it.
    pub(super) fn change(self: &Arc<Self>, change: Change) -> Asked<Option<bool>> {
        self.forget_denial(change.denied);
        let pending = self.fleet.send(change.call());
        let (told, answer) = oneshot::channel();
        let (inner, underway) = (Arc::downgrade(self), Underway::new(&self.underway));
        self.fleet.spawn(async move {
            let answer = pending.await;
            if let Some(inner) = inner.upgrade() {
                // Who was denied meanwhile may have been so before it was given back.
                inner.forget_denial(change.denied);
                if let Err(failure) = &answer {
                    inner.fleet.tell(change.slot, failure, NOT_GIVEN_BACK);
                }
            }
            // Whoever went away does not want to know.
            let _ = told.send(is_changed(&answer));
            drop(underway);
            if answer.is_err() {
                release(inner, change, RELEASE_PAUSE).await;
            }
        });
        Asked::later(async { answer.await.ok().flatten() })
    }

    fn forget_denial(&self, key: Option<Fingerprint>) {
        if let Some(key) = key {
            self.denials.forget(key, self.clock.now());
        }
    }

    /// Sends a settlement, which gets there whether somebody waits for the answer or not.
    pub(super) fn send_settlement(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        place: usize,
        receipt: &Receipt,
        cost: Cost,
    ) -> Asked<Taken> {
        let Items { names, list } = &origin.items;
        let (name, Item { limit, key, .. }) = (names.get(place).as_bytes(), list[place]);
        let charged = tollgate_core::Receipt {
            at: receipt.at,
            cost: receipt.cost,
            debt_before: receipt.mark,
        };
        let more_id = ChargeId(self.last_id.fetch_add(1, Ordering::Relaxed));
        let (limit, receipt, id) = (&limit.limit, &charged, ChargeId(receipt.mark));
        let settlement = lua::Settlement { limit, receipt, id, cost, more_id };
        let words = self.words(name, &settlement.argument());
        let slot = self.fleet.slot(name);
        let pending = self.fleet.send(Call { script: Some(&SETTLE), words, slot, late: None });
        let (told, answer) = oneshot::channel();
        let (inner, origin) = (Arc::downgrade(self), Arc::clone(origin));
        let underway = Underway::new(&self.underway);
        self.fleet.spawn(async move {
            let reply = pending.await;
            drop(underway);
            let Some(inner) = inner.upgrade() else { return };
            inner.denials.forget(key, inner.clock.now());
            let tell = |failure: &Failure| inner.fleet.tell(slot, failure, NOT_SETTLED);
            let reply = reply.inspect_err(tell).ok();
            let places = SmallVec::from_slice(&[place]);
            let taken = reply.and_then(|reply| read(&origin.items, &places, &reply)?.pop());
            // Whoever went away does not want to know.
            let _ = told.send(taken);
        });
        Asked::later(async { answer.await.ok().flatten().unwrap_or(UNKNOWN) })
    }

    /// What is left of a key whose units are leased.
    pub(super) fn look_at_leased(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        place: usize,
    ) -> Asked<Taken> {
        let Items { names, list } = &origin.items;
        let Item { key, leasable, .. } = &list[place];
        let Some(limit) = leasable else { return Asked::Ready(UNKNOWN) };
        let asked = self.leased.take(*key, names.get(place), limit, Cost::PEEK);
        let (inner, origin) = (Arc::clone(self), Arc::clone(origin));
        asked.map(move |answer| inner.read_leased(&origin.items, place, answer).unwrap_or(UNKNOWN))
    }
}

impl Underway {
    pub(super) fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(Arc::clone(count))
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Change {
    fn call(&self) -> Call {
        Call { script: self.script, words: self.words.clone(), slot: self.slot, late: None }
    }
}

/// Tries again to release what Redis did not answer to, so that it is not held until its lease ends.
/// Should it have been released before, there is nothing left to release.
async fn release(store: Weak<Inner>, change: Change, pause: Duration) {
    let Some(held_for) = change.held_for else { return };
    let Some(inner) = store.upgrade() else { return };
    let has_room = inner.releases.fetch_add(1, Ordering::Relaxed) < RELEASES_MAX;
    drop(inner);
    let given_up = if has_room {
        let trying = try_to_release(&store, &change, pause);
        // What has ended by itself is not held any more, however long Redis is away.
        let is_over = timeout(held_for.into(), trying).await.unwrap_or(true);
        (!is_over).then_some(UNANSWERED)
    } else {
        Some(TOO_MANY)
    };
    if let Some(inner) = store.upgrade() {
        inner.releases.fetch_sub(1, Ordering::Relaxed);
        if let Some(why) = given_up {
            inner.fleet.tell_unreleased(change.slot, why);
        }
    }
}

/// Tries until Redis answers; false if it never did. What is not sent, since it is away, is no try: an
/// outage may be longer than all of them.
async fn try_to_release(store: &Weak<Inner>, change: &Change, pause: Duration) -> bool {
    let mut pauses = interval(pause);
    // Tries that took long are not made up for by others that follow each other at once.
    pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first of them is over at once.
    pauses.tick().await;
    let mut tries = 0;
    while tries < RELEASE_TRIES {
        pauses.tick().await;
        let Some(inner) = store.upgrade() else { return true };
        let pending = inner.fleet.send(change.call());
        drop(inner);
        match pending.await {
            Ok(_) => return true,
            Err(Failure::NotSent) => {}
            Err(_) => tries += 1,
        }
    }
    false
}

/// Whether something came of a return or a removal; nothing if nobody can tell.
fn is_changed(answer: &Result<Reply, Failure>) -> Option<bool> {
    match answer.as_ref().ok()? {
        Reply::Integer(changed) => Some(*changed > 0),
        Reply::List(changed) => Some(matches!(changed[..], [Reply::Integer(1..)])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;
    use tollgate_core::{Key, Value};
    use tollgate_harness::{Flavour, Proxy, Server, eventually};

    use super::*;
    use crate::charge::Charge;
    use crate::redis::fleet::Servers;
    use crate::redis::fleet::told::Lines;
    use crate::redis::store::{RedisSettings, RedisStore};
    use crate::store::Claim;

    const PAUSE: Duration = Duration::from_millis(1);

    /// A slot in Redis, held by a store that reaches it through a proxy; and what gives it back.
    struct Held {
        server: Server,
        proxy: Proxy,
        store: RedisStore,
        change: Change,
    }

    impl Held {
        fn under(lease: Micros) -> Self {
            let server = Server::start(Flavour::Redis);
            let proxy = Proxy::start(server.address());
            let settings = RedisSettings {
                servers: Servers::Single(proxy.url()),
                timeout: Duration::from_secs(5),
                prefix: "test".to_owned(),
                nodes: None,
            };
            let store = RedisStore::open(settings).expect("a URL of the harness");
            let limit = Limit::concurrency(1, lease).expect("a modest limit");
            let limit = store.enroll(limit).expect("it is the only one");
            let values = [Value::new(b"somebody")];
            let charge = Charge::new(Key { limit: "slots", values: &values }, &limit);
            let mut answers = store.take(&[charge]).wait();
            let receipt = answers.taken[0].take_receipt().expect("it is free");
            let Claim { receipt, origin } = Claim::new(receipt, answers.origin(), 0);
            let (origin, place) = origin.expect("Redis counted it");
            let Limit::Logged(logged) = &limit.limit else { unreachable!("slots are logged") };
            let (id, held) = (ChargeId(receipt.mark), receipt.cost);
            let back = lua::Return::GiveBack { limit: logged, id, held, units: held };
            let change = store.0.change_of(&origin.items, place, &back);
            Self { server, proxy, store, change }
        }

        /// Releases it twice, in vain; how often it is told that this was given up.
        fn given_up(&self) -> usize {
            let runtime = Builder::new_current_thread().enable_time().build().unwrap();
            let lines = Lines::of(|| {
                for _ in 0..2 {
                    let store = Arc::downgrade(&self.store.0);
                    runtime.block_on(release(store, self.change.clone(), PAUSE));
                }
            });
            lines.count("a release is given up")
        }

        fn lose_redis(&self) {
            self.proxy.refuse();
            self.proxy.cut();
            let is_away = || (!self.store.health()[0].is_well).then_some(());
            eventually("Redis is away", is_away);
        }
    }

    #[test]
    fn a_slot_is_released_when_redis_is_back_however_long_it_was_away() {
        let held = Held::under(Micros::from_secs(3_600));
        held.lose_redis();
        let Held { server, proxy, store, change } = held;
        let before = store.health()[0].not_sent;
        store.0.fleet.spawn(release(Arc::downgrade(&store.0), change, PAUSE));
        eventually("it was tried more often than a try is worth", || {
            let tried = store.health()[0].not_sent - before;
            (tried > 2 * u64::from(RELEASE_TRIES)).then_some(())
        });
        proxy.heal();
        eventually("the slot is free", || {
            let held = server.command(&["EXISTS", "test:{somebody}:slots"]).integer();
            (held == 0).then_some(())
        });
        eventually("it is forgotten", || {
            (store.0.releases.load(Ordering::Relaxed) == 0).then_some(())
        });
    }

    #[test]
    fn what_has_ended_by_its_lease_is_not_tried_any_longer() {
        let held = Held::under(Micros::from_millis(100));
        held.lose_redis();
        let Held { store, change, .. } = held;
        let (told, ended) = oneshot::channel();
        let trying = release(Arc::downgrade(&store.0), change, PAUSE);
        store.0.fleet.spawn(async {
            trying.await;
            let _ = told.send(());
        });
        ended.blocking_recv().expect("it ends while Redis is away");
        assert!(!store.health()[0].is_well);
    }

    #[test]
    fn no_more_releases_are_tried_again_than_are_bounded() {
        let held = Held::under(Micros::from_secs(3_600));
        held.store.0.releases.store(RELEASES_MAX, Ordering::Relaxed);
        assert_eq!(held.given_up(), 1, "and told of once");
        assert_eq!(held.store.0.releases.load(Ordering::Relaxed), RELEASES_MAX);
        let is_held = held.server.command(&["EXISTS", "test:{somebody}:slots"]).integer();
        assert_eq!(is_held, 1, "its lease must do");
    }

    #[test]
    fn releases_that_redis_takes_none_of_are_given_up_and_told_of_once() {
        let held = Held::under(Micros::from_secs(3_600));
        held.server.command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
        assert_eq!(held.given_up(), 1);
    }
}
