//! What every store must do. Each test runs over every store there is.

use tollgate_core::{Algorithm, Cost, Key, Limit, Micros, Outcome, Timestamp, Value};
use tollgate_store::{Charge, Claim, Enrolled, Mode, Store, Taken};

use crate::model::{Charged, Model};
use crate::places::{self, Places};
use crate::support::{self, Asked as _, Order, Rng, START, is_logged, limit_of, limit_over};

/// Any store.
type Subject = support::Subject<Store>;

/// One of each store, empty.
pub(crate) fn every_store() -> impl Iterator<Item = Subject> {
    let places = Places::start();
    (0..places.count()).map(move |place| places.subject(place))
}

/// An empty store of each kind with each algorithm.
pub(crate) fn every_algorithm() -> impl Iterator<Item = (Subject, Algorithm)> {
    let places = Places::start();
    (0..places.count() * Algorithm::ALL.len()).map(move |number| {
        (places.subject(number % places.count()), Algorithm::ALL[number / places.count()])
    })
}

/// An empty store of each kind with each two algorithms.
fn every_two_algorithms() -> impl Iterator<Item = (Subject, Algorithm, Algorithm)> {
    let places = Places::start();
    let pairs = Algorithm::ALL.into_iter().flat_map(|one| Algorithm::ALL.map(|two| (one, two)));
    let pairs: Vec<_> = pairs.collect();
    (0..places.count() * pairs.len()).map(move |number| {
        let (first, second) = pairs[number / places.count()];
        (places.subject(number % places.count()), first, second)
    })
}

const MINUTE: Micros = Micros::from_secs(60);

mod traces {
    use super::*;

    #[test]
    fn a_store_answers_as_the_pure_functions_do_in_every_field() {
        let mut seen = Seen::default();
        let places = Places::start();
        for place in 0..places.count() {
            // A call to a server takes a hundred times as long as one to memory.
            let seeds = if place == 0 { 240 } else { 24 };
            for seed in 0..seeds {
                Trace::new(places.subject(place), seed).run(200, &mut seen);
            }
        }
        let rare = [
            seen.denials,
            seen.too_costly,
            seen.shadow_denials,
            seen.punished,
            seen.withheld,
            seen.duplicates,
            seen.refunds,
            seen.renewals,
            seen.resets,
            seen.changes_of_quota,
            seen.changes_of_algorithm,
            seen.steps_back,
        ];
        assert!(rare.iter().all(|&times| times >= 200), "the traces are too tame: {seen:#?}");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn so_does_the_master_under_sentinels() {
        use tollgate_harness::{Flavour, Sentinel};
        use tollgate_store::redis::Servers;

        for flavour in Flavour::ALL {
            let sentinel = Sentinel::start(flavour);
            for seed in 0..6 {
                let (master, nodes) = (sentinel.name().to_owned(), sentinel.urls());
                let subject = places::subject_at(Servers::Sentinel { master, nodes });
                Trace::new(subject, seed).run(200, &mut Seen::default());
            }
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn so_does_a_cluster_but_for_the_waits_of_limits_that_another_slot_denied() {
        use tollgate_harness::{Cluster, Flavour};
        use tollgate_store::redis::Servers;

        for flavour in Flavour::ALL {
            let cluster = Cluster::start(flavour);
            for seed in 0..12 {
                let subject = places::subject_at(Servers::Cluster(cluster.urls()));
                // Once a server knows the scripts, calls come one after the other.
                let limit = subject.enroll(limit_of(Algorithm::TokenBucket, 1));
                for key in 100..130 {
                    let claim = subject.charge(&Order::new(key, limit));
                    assert!(subject.refund(&claim));
                }
                let mut trace = Trace::new(subject, seed);
                // What was taken and given back again stands at another moment, and under the quota
                // of now: whole again at the same time, unless the clock goes back.
                (trace.is_split, trace.steps_back, trace.changes_quotas) = (true, false, false);
                trace.run(200, &mut Seen::default());
            }
        }
    }

    /// What the traces came across.
    #[derive(Debug, Default)]
    struct Seen {
        denials: u64,
        too_costly: u64,
        shadow_denials: u64,
        punished: u64,
        /// Allowed, and not charged because another limit denied.
        withheld: u64,
        /// Requests that name a key more than once.
        duplicates: u64,
        refunds: u64,
        renewals: u64,
        resets: u64,
        changes_of_quota: u64,
        changes_of_algorithm: u64,
        steps_back: u64,
    }

    const KEYS: u64 = 6;

    /// Some keys, and what happens to them in a store and in the model.
    struct Trace {
        subject: Subject,
        model: Model,
        rng: Rng,
        limits: Vec<Enrolled>,
        charged: Vec<(Claim, Charged)>,
        /// Whether the clock goes back, and whether quotas change. Both at once only where a state is
        /// the limit's own: one that is as good under the next quota is not carried over in Redis, so
        /// a time that is too far ahead is brought back there a little earlier than in the model.
        steps_back: bool,
        changes_quotas: bool,
        /// Whether keys are on different servers, and what one of them took is given back when
        /// another denies.
        is_split: bool,
    }

    impl Trace {
        /// Every key is charged once before anything else happens. From then on none is new, so no
        /// vacant state is given away that a clock going back would bring back to life.
        fn new(subject: Subject, seed: u64) -> Self {
            let mut rng = Rng::new(seed);
            let start = match rng.below(8) {
                0 => Timestamp::from_micros(rng.below(MINUTE.as_micros())),
                1 => Timestamp::from_micros(Timestamp::END.as_micros() - rng.below(1 << 27)),
                _ => START,
            };
            subject.clock.set(start);
            let limits = (0..KEYS).map(|key| {
                let algorithm = Algorithm::ALL[(seed + key) as usize % 6];
                subject.enroll(random_limit(&mut rng, algorithm))
            });
            let limits: Vec<Enrolled> = limits.collect();
            let orders = (0..KEYS).zip(&limits).map(|(key, limit)| Order::new(key, *limit));
            let orders: Vec<Order> = orders.collect();
            let model = Model::default();
            let (is_odd, is_memory) = (seed % 2 == 1, subject.forgets_what_is_vacant());
            let mut trace = Self {
                subject,
                model,
                rng,
                limits,
                charged: Vec::new(),
                steps_back: is_memory || is_odd,
                changes_quotas: is_memory || !is_odd,
                is_split: false,
            };
            orders.chunks(1).for_each(|order| trace.compare(order, &mut Seen::default()));
            trace
        }

        fn run(mut self, steps: u32, seen: &mut Seen) {
            (0..steps).for_each(|_| self.step(seen));
        }

        fn step(&mut self, seen: &mut Seen) {
            self.move_clock(seen);
            let key = self.rng.below(KEYS);
            match self.rng.below(40) {
                0 => self.change(key, seen),
                1 => {
                    let now = self.subject.clock.now();
                    let was_known = self.model.reset(key, now);
                    let is_forgotten = self.subject.reset(key);
                    if was_known || self.subject.forgets_what_is_vacant() {
                        assert_eq!(is_forgotten, was_known, "reset of {key} at {now:?}");
                    }
                    seen.resets += 1;
                }
                2..=6 if !self.charged.is_empty() => self.give_back(seen),
                _ => {
                    let many = 1 + self.rng.pick(&[0, 0, 1, 2, 3]);
                    let mut orders: Vec<Order> = (0..many).map(|_| self.order()).collect();
                    if self.is_split {
                        // What is punished after it was taken, and then given back, is told so.
                        orders.sort_by_key(|order| order.key);
                        orders.dedup_by_key(|order| order.key);
                    }
                    self.compare(&orders, seen);
                }
            }
        }

        fn move_clock(&mut self, seen: &mut Seen) {
            let now = self.subject.clock.now().as_micros();
            let next = match self.rng.below(60) {
                0 if self.steps_back => now.saturating_sub(self.rng.below(300_000_000)),
                1 if self.steps_back => now.saturating_sub(self.rng.below(3)),
                2 => now + self.rng.below(300_000_000),
                3..=20 => now,
                _ => now + self.rng.below(3_000_000),
            };
            seen.steps_back += u64::from(next < now);
            self.subject.clock.set(Timestamp::from_micros(next));
        }

        fn change(&mut self, key: u64, seen: &mut Seen) {
            let algorithm = self.limits[key as usize].limit().algorithm();
            let algorithm = match self.rng.one_in(3) {
                true => self.rng.pick(&Algorithm::ALL),
                false => algorithm,
            };
            let old = self.limits[key as usize];
            let new = self.subject.enroll(random_limit(&mut self.rng, algorithm));
            let is_other = old.limit().algorithm() != new.limit().algorithm();
            if !is_other && !self.changes_quotas {
                return;
            }
            seen.changes_of_algorithm += u64::from(is_other);
            seen.changes_of_quota += u64::from(old != new && !is_other);
            self.limits[key as usize] = new;
        }

        fn order(&mut self) -> Order {
            let key = self.rng.below(KEYS);
            let limit = self.limits[key as usize];
            let most = limit.limit().capacity();
            let units = match self.rng.below(20) {
                0 => 0,
                1 => most,
                2 => most + 1,
                3 => u32::MAX,
                4 | 5 => 1 + self.rng.below(u64::from(most)) as u32,
                _ => 1,
            };
            let order = Order::new(key, limit).costing(units);
            let order = if self.rng.one_in(4) { order.in_shadow() } else { order };
            if self.rng.one_in(4) { order.counting_denied() } else { order }
        }

        fn compare(&mut self, orders: &[Order], seen: &mut Seen) {
            let now = self.subject.clock.now();
            let expected = self.model.take(orders, now);
            let taken = self.subject.claim(orders);
            let is_denied = expected
                .iter()
                .zip(orders)
                .any(|(it, order)| order.mode == Mode::Enforce && !it.decision.is_allowed());
            assert_eq!(taken.len(), orders.len());
            for ((expected, (taken, claim)), order) in expected.iter().zip(taken).zip(orders) {
                let decision = expected.decision;
                let counts = order.count_denied && !is_logged(order.limit.limit().algorithm());
                let told = taken.decision().expect("every store here counts");
                if self.is_split && is_denied && decision.is_allowed() && !counts {
                    let promised =
                        |it: tollgate_core::Decision| (it.outcome, it.limit, it.remaining);
                    assert_eq!(promised(told), promised(decision), "{order:?}\nof {orders:#?}");
                } else {
                    assert_eq!(told, decision, "{order:?}\nof {orders:#?}");
                }
                let is_charged = claim.is_some();
                assert_eq!(is_charged, expected.charged.is_some(), "{order:?}\nof {orders:#?}");
                self.charged.extend(claim.zip(expected.charged));

                let denied = matches!(decision.outcome, Outcome::Denied { .. });
                seen.denials += u64::from(denied);
                seen.too_costly += u64::from(decision.outcome == Outcome::TooCostly);
                seen.shadow_denials += u64::from(denied && order.mode == Mode::Shadow);
                seen.punished += u64::from(denied && counts);
                seen.withheld += u64::from(is_denied && decision.is_allowed());
            }
            let again = |(place, order): (usize, &Order)| {
                orders[..place].iter().any(|earlier| earlier.key == order.key)
            };
            seen.duplicates += u64::from(orders.iter().enumerate().any(again));
        }

        /// Gives a charge back, or renews it. That of a counter is given back once, since it could
        /// not tell; a log can.
        fn give_back(&mut self, seen: &mut Seen) {
            let place = match self.rng.one_in(2) {
                true => self.charged.len() - 1,
                false => self.rng.below(self.charged.len() as u64) as usize,
            };
            let (claim, charged) = self.charged[place].clone();
            let now = self.subject.clock.now();
            if self.rng.one_in(3) {
                let is_renewed = self.model.renew(&charged, now);
                assert_eq!(self.subject.renew(&claim), is_renewed, "{charged:?} {now:?}");
                seen.renewals += u64::from(is_renewed);
                return;
            }
            if !charged.is_logged() || self.rng.one_in(2) {
                self.charged.swap_remove(place);
            }
            let is_refunded = self.model.refund(&charged, now);
            assert_eq!(self.subject.refund(&claim), is_refunded, "{charged:?} {now:?}");
            seen.refunds += u64::from(is_refunded);
        }
    }

    /// A limit whose end is soon reached, and which is soon whole again.
    fn random_limit(rng: &mut Rng, algorithm: Algorithm) -> Limit {
        let count = 1 + rng.below(9) as u32;
        let period = Micros::new(rng.pick(&[1_000, 1_000_000, 7_000_001, 60_000_000]));
        limit_over(algorithm, count, period)
    }

    #[test]
    fn keys_that_come_and_go_are_decided_as_if_none_were_ever_forgotten() {
        for algorithm in Algorithm::ALL {
            // Some thousands of keys in room for some hundreds, nearly all of them vacant at any
            // time. The clock only goes forth.
            let subject = support::Subject::of_size(64 << 10);
            let mut model = Model::default();
            let mut rng = Rng::new(7);
            let limit = subject.enroll(limit_over(algorithm, 3, Micros::from_millis(50)));
            for _ in 0..30_000 {
                subject.advance(Micros::new(rng.below(2_000)));
                // Most keys come once or twice and never again; a few are always busy.
                let key = if rng.one_in(3) { rng.below(8) } else { rng.below(20_000) };
                let order = Order::new(key, limit).costing(rng.below(5) as u32);
                let expected = model.take(&[order], subject.clock.now())[0].decision;
                assert_eq!(subject.decide(&order), expected, "{algorithm} {order:?}");
            }
        }
    }
}

#[test]
fn a_charge_that_says_its_limits_name_is_taken_from_the_same_state() {
    for subject in every_store() {
        let limit = subject.enroll(limit_of(Algorithm::FixedWindow, 2));
        let values = [Value::new(b"203.0.113.7")];
        let plain = Charge::new(Key { limit: "login", values: &values }, &limit);
        let named = Charge { named: subject.store.named("login"), ..plain };
        let allowed =
            [plain, named, plain].map(|charge| subject.store.take_one(&charge).is_allowed());
        assert_eq!(allowed, [true, true, false]);
    }
}

mod requests_under_several_limits {
    use super::*;

    #[test]
    fn a_request_refused_by_one_limit_is_not_charged_to_another() {
        for (subject, first, second) in every_two_algorithms() {
            let generous = Order::new(1, subject.enroll(limit_of(first, 5))).costing(2);
            let strict = Order::new(2, subject.enroll(limit_of(second, 1)));
            subject.charge(&strict);
            let untouched = subject.peek(&generous);
            for orders in [[generous, strict], [strict, generous]] {
                let taken = subject.take(&orders);
                let told = |order: &Order| {
                    let place = orders.iter().position(|it| it.key == order.key);
                    taken[place.expect("one of the two")].decision().expect("there is room")
                };
                assert!(!told(&strict).is_allowed(), "{first} and {second}");
                assert_eq!(told(&generous), untouched, "{first} and {second}");
                assert!(taken.iter().all(|taken| taken.receipt().is_none()));
                assert_eq!(subject.peek(&generous), untouched, "{first} and {second}");
            }
        }
    }

    #[test]
    fn a_request_that_all_limits_allow_is_charged_to_each_of_them() {
        for (subject, first, second) in every_two_algorithms() {
            let one = Order::new(1, subject.enroll(limit_of(first, 5))).costing(2);
            let other = Order::new(2, subject.enroll(limit_of(second, 7))).costing(3);
            let taken = subject.take(&[one, other]);
            assert!(taken.iter().all(Taken::is_allowed), "{first} and {second}");
            assert_eq!([subject.remaining(&one), subject.remaining(&other)], [3, 4]);
        }
    }

    #[test]
    fn a_request_under_no_limit_is_told_nothing() {
        for subject in every_store() {
            assert!(subject.take(&[]).is_empty());
        }
    }

    #[test]
    fn new_keys_of_one_request_never_share_a_state() {
        for subject in every_store() {
            // Each request brings four new keys, each of which takes a different number of units.
            let limit = subject.enroll(limit_of(Algorithm::FixedWindow, 10));
            let order = |request: u64, place: u64| {
                Order::new(request * 4 + place, limit).costing(place as u32 + 1)
            };
            for request in 0..500 {
                let orders = [0, 1, 2, 3].map(|place| order(request, place));
                let remaining = |taken: &Taken| taken.decision().map(|it| it.remaining);
                let told: Vec<_> = subject.take(&orders).iter().map(remaining).collect();
                assert_eq!(told, [Some(9), Some(8), Some(7), Some(6)], "request {request}");
            }
            for key in 0..2_000 {
                let left = subject.remaining(&Order::new(key, limit));
                assert_eq!(left, 9 - (key % 4) as u32, "key {key}");
            }
        }
    }

    #[test]
    fn a_key_named_twice_in_a_request_pays_twice_or_not_at_all() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5))).costing(2);
            assert!(subject.take(&[order, order]).iter().all(Taken::is_allowed));
            assert_eq!(subject.remaining(&order), 1, "{algorithm}");

            let one = order.costing(1);
            let taken = subject.take(&[one, one]);
            let allowed = [&taken[0], &taken[1]].map(Taken::is_allowed);
            assert_eq!(allowed, [true, false], "{algorithm}");
            assert_eq!(subject.remaining(&order), 1, "{algorithm}");
        }
    }

    #[test]
    fn a_limit_in_shadow_denies_nothing_and_tells_what_it_would_have_said() {
        for (subject, first, second) in every_two_algorithms() {
            let shadow = Order::new(1, subject.enroll(limit_of(first, 1))).in_shadow();
            let enforced = Order::new(2, subject.enroll(limit_of(second, 5)));
            assert!(subject.take(&[shadow, enforced]).iter().all(Taken::is_allowed));
            assert_eq!([subject.remaining(&shadow), subject.remaining(&enforced)], [0, 4]);

            let expected = subject.decide(&shadow);
            let taken = subject.take(&[shadow, enforced]);
            assert_eq!(taken[0].decision(), Some(expected), "{first} and {second}");
            assert!(!expected.is_allowed() && taken[1].is_allowed(), "{first} and {second}");
            assert_eq!(subject.remaining(&enforced), 3, "{first} and {second}");
        }
    }

    #[test]
    fn a_limit_in_shadow_is_not_charged_for_a_request_that_another_denies() {
        for (subject, first, second) in every_two_algorithms() {
            let shadow = Order::new(1, subject.enroll(limit_of(first, 5))).in_shadow();
            let enforced = Order::new(2, subject.enroll(limit_of(second, 1)));
            subject.charge(&enforced);
            let taken = subject.take(&[shadow, enforced]);
            assert!(taken[0].is_allowed() && !taken[1].is_allowed(), "{first} and {second}");
            assert_eq!(subject.remaining(&shadow), 5, "{first} and {second}");
        }
    }
}

mod counting_denied_requests {
    use super::*;

    fn counting(subject: &Subject, algorithm: Algorithm) -> Order {
        Order::new(1, subject.enroll(limit_of(algorithm, 4))).counting_denied()
    }

    #[test]
    fn hammering_a_counter_that_counts_denied_requests_keeps_it_shut() {
        for (subject, algorithm) in every_algorithm().filter(|(_, it)| !is_logged(*it)) {
            let order = counting(&subject, algorithm);
            subject.charge(&order.costing_all());
            let first = subject.decide(&order);
            let second = subject.decide(&order);
            assert!(!second.is_allowed(), "{algorithm}");
            // A fixed window ends when it ends, whatever was counted in it.
            let is_longer = second.reset_after > first.reset_after;
            assert!(is_longer || algorithm == Algorithm::FixedWindow, "{algorithm}");
        }
    }

    #[test]
    fn a_log_never_counts_denied_requests() {
        for (subject, algorithm) in every_algorithm().filter(|(_, it)| is_logged(*it)) {
            let order = counting(&subject, algorithm);
            subject.charge(&order.costing(3));
            let denied = subject.decide(&order.costing(2));
            assert!(!denied.is_allowed());
            assert_eq!(subject.remaining(&order), 1, "{algorithm}");

            // Nor one that it allows itself, and another limit denies.
            let shut = Order::new(2, subject.enroll(limit_of(Algorithm::TokenBucket, 1)));
            subject.charge(&shut);
            let taken = subject.take(&[order, shut]);
            assert!(taken[0].is_allowed() && !taken[1].is_allowed());
            assert_eq!(subject.remaining(&order), 1, "{algorithm}");
        }
    }

    #[test]
    fn a_counter_that_counts_denied_requests_is_charged_whoever_denies() {
        for (subject, algorithm) in every_algorithm().filter(|(_, it)| !is_logged(*it)) {
            let order = counting(&subject, algorithm);
            let shut = Order::new(2, subject.enroll(limit_of(Algorithm::TokenBucket, 1)));
            subject.charge(&shut);
            let taken = subject.take(&[order, shut]);
            assert!(taken[0].is_allowed() && !taken[1].is_allowed());
            assert_eq!(taken[0].decision().map(|it| it.remaining), Some(3), "{algorithm}");
            assert!(taken[0].receipt().is_none(), "a penalty is not given back");
            assert_eq!(subject.remaining(&order), 3, "{algorithm}");
        }
    }

    #[test]
    fn in_shadow_it_is_charged_for_what_it_would_have_denied_alone_or_beside_others() {
        for (subject, algorithm) in every_algorithm().filter(|(_, it)| !is_logged(*it)) {
            let shadow = counting(&subject, algorithm).in_shadow();
            let open = Order::new(2, subject.enroll(limit_of(Algorithm::TokenBucket, 9)));
            let beside = Order { key: 3, ..shadow };
            subject.charge(&shadow.costing_all());
            subject.charge(&beside.costing_all());
            let alone = subject.take(&[shadow]);
            let together = subject.take(&[beside, open]);
            assert!(together[1].is_allowed());
            assert_eq!(alone[0].decision(), together[0].decision(), "{algorithm}");
            assert_eq!(subject.peek(&shadow), subject.peek(&beside), "{algorithm}");
        }
    }

    #[test]
    fn what_could_never_be_allowed_is_never_charged() {
        for (subject, algorithm) in every_algorithm() {
            let order = counting(&subject, algorithm);
            subject.charge(&order);
            assert_eq!(subject.decide(&order.costing(5)).outcome, Outcome::TooCostly);
            assert_eq!(subject.remaining(&order), 3, "{algorithm}");
        }
    }
}

mod refunds {
    use super::*;

    #[test]
    fn a_refund_gives_back_exactly_what_was_taken() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            subject.charge(&order.costing(2));
            let before = subject.peek(&order);
            let receipt = subject.charge(&order.costing(3));
            assert_eq!(subject.remaining(&order), 0, "{algorithm}");
            assert!(subject.refund(&receipt), "{algorithm}");
            assert_eq!(subject.peek(&order), before, "{algorithm}");
        }
    }

    #[test]
    fn a_charge_of_a_log_is_given_back_once_however_often_it_is_asked() {
        for (subject, algorithm) in every_algorithm().filter(|(_, it)| is_logged(*it)) {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let receipt = subject.charge(&order.costing(2));
            subject.charge(&order.costing(2));
            assert!(subject.refund(&receipt), "{algorithm}");
            assert!(!subject.refund(&receipt), "{algorithm}");
            assert_eq!(subject.remaining(&order), 3, "{algorithm}");
        }
    }

    #[test]
    fn a_refund_that_comes_twice_gives_nobody_more_than_the_limit() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let receipt = subject.charge(&order.costing(3));
            subject.refund(&receipt);
            assert!(!subject.refund(&receipt), "{algorithm}");
            assert_eq!(subject.remaining(&order), 5, "{algorithm}");
        }
    }

    #[test]
    fn a_denial_has_nothing_to_give_back() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 1)));
            subject.charge(&order);
            for order in [order, order.costing(2), order.costing(0)] {
                assert_eq!(subject.take_one(&order).receipt(), None, "{algorithm} {order:?}");
            }
        }
    }

    #[test]
    fn a_refund_after_time_gave_everything_back_gives_nothing() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let receipt = subject.charge(&order.costing(3));
            subject.advance(Micros::from_secs(121));
            subject.charge(&order.costing(4));
            let before = subject.peek(&order);
            assert!(!subject.refund(&receipt), "{algorithm}");
            assert_eq!(subject.peek(&order), before, "{algorithm}");
        }
    }

    #[test]
    fn a_refund_of_a_lease_or_a_log_entry_that_has_ended_says_that_nothing_was_left() {
        for (subject, algorithm) in every_algorithm().filter(|(_, it)| is_logged(*it)) {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let receipt = subject.charge(&order);
            subject.advance(MINUTE);
            assert!(!subject.refund(&receipt), "{algorithm}");
        }
    }

    #[test]
    fn a_bucket_gives_back_no_more_than_time_has_left_of_the_charge() {
        for subject in every_store() {
            for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
                // One unit comes back every ten seconds.
                let order = Order::new(1, subject.enroll(limit_of(algorithm, 6)));
                let receipt = subject.charge(&order.costing(4));
                subject.advance(Micros::from_secs(30));
                subject.charge(&order.costing(2));
                assert_eq!(subject.remaining(&order), 3, "{algorithm}");
                assert!(subject.refund(&receipt), "{algorithm}");
                assert_eq!(subject.remaining(&order), 4, "one of four was left: {algorithm}");
                subject.reset(1);
            }
        }
    }

    #[test]
    fn a_refund_finds_its_charge_after_the_quota_changed() {
        for (subject, algorithm) in every_algorithm() {
            let old = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let new = Order::new(1, subject.enroll(limit_of(algorithm, 9)));
            let receipt = subject.charge(&old.costing(3));
            subject.charge(&new.costing(2));
            assert_eq!(subject.remaining(&new), 4, "{algorithm}");
            assert!(subject.refund(&receipt), "{algorithm}");
            assert_eq!(subject.remaining(&new), 7, "{algorithm}");
        }
    }

    #[test]
    fn a_refund_gives_nothing_to_a_state_that_another_algorithm_started_afresh() {
        for (subject, first, second) in every_two_algorithms().filter(|(_, a, b)| a != b) {
            let old = Order::new(1, subject.enroll(limit_of(first, 5)));
            let new = Order::new(1, subject.enroll(limit_of(second, 5)));
            let receipt = subject.charge(&old.costing(2));
            subject.charge(&new.costing(3));
            assert!(!subject.refund(&receipt), "{first} to {second}");
            assert_eq!(subject.remaining(&new), 2, "{first} to {second}");
        }
    }

    #[test]
    fn a_refund_to_a_key_that_was_reset_gives_nothing() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let receipt = subject.charge(&order);
            subject.reset(1);
            assert!(!subject.refund(&receipt), "{algorithm}");
            assert_eq!(subject.remaining(&order), 5, "{algorithm}");
        }
    }
}

mod leases {
    use super::*;

    fn one_slot(subject: &Subject) -> Order {
        Order::new(1, subject.enroll(limit_of(Algorithm::Concurrency, 1)))
    }

    #[test]
    fn a_slot_that_is_released_is_free_at_once() {
        for subject in every_store() {
            let order = one_slot(&subject);
            let lease = subject.charge(&order);
            assert!(!subject.decide(&order).is_allowed());
            assert!(subject.refund(&lease));
            assert!(subject.decide(&order).is_allowed());
            assert!(!subject.refund(&lease), "the second holder keeps the slot");
            assert!(!subject.decide(&order).is_allowed());
        }
    }

    #[test]
    fn a_slot_whose_holder_died_comes_back_when_its_lease_ends_and_not_before() {
        for subject in every_store() {
            let order = one_slot(&subject);
            let lease = subject.charge(&order);
            subject.advance(Micros::new(MINUTE.as_micros() - 1));
            assert!(!subject.decide(&order).is_allowed());
            subject.advance(Micros::new(1));
            assert!(!subject.renew(&lease), "too late to renew");
            assert!(subject.decide(&order).is_allowed());
        }
    }

    #[test]
    fn a_lease_that_is_renewed_holds_for_its_whole_time_again() {
        for subject in every_store() {
            let order = one_slot(&subject);
            let lease = subject.charge(&order);
            for _ in 0..3 {
                subject.advance(Micros::from_secs(59));
                assert!(subject.renew(&lease));
            }
            subject.advance(Micros::new(MINUTE.as_micros() - 1));
            assert!(!subject.decide(&order).is_allowed());
            subject.advance(Micros::new(1));
            assert!(subject.decide(&order).is_allowed());
        }
    }

    #[test]
    fn a_lease_that_was_released_cannot_be_renewed() {
        for subject in every_store() {
            let order = one_slot(&subject);
            let lease = subject.charge(&order);
            subject.refund(&lease);
            assert!(!subject.renew(&lease));
            assert!(subject.decide(&order).is_allowed());
        }
    }

    #[test]
    fn a_charge_of_a_counter_has_no_lease_to_renew() {
        for (subject, algorithm) in every_algorithm().filter(|(_, it)| !is_logged(*it)) {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let receipt = subject.charge(&order);
            assert!(!subject.renew(&receipt), "{algorithm}");
            assert_eq!(subject.remaining(&order), 4, "{algorithm}");
        }
    }
}

mod resets {
    use super::*;

    #[test]
    fn a_key_that_is_reset_is_as_one_never_seen() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let neighbour = Order { key: 2, ..order };
            let unseen = subject.peek(&order);
            subject.charge(&order.costing_all());
            subject.charge(&neighbour.costing(2));
            assert!(subject.reset(1), "{algorithm}");
            assert_eq!(subject.peek(&order), unseen, "{algorithm}");
            assert_eq!(subject.remaining(&neighbour), 3, "{algorithm}");
        }
    }

    #[test]
    fn a_key_of_which_nothing_is_known_has_nothing_to_reset() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            assert!(!subject.reset(1), "never seen: {algorithm}");
            subject.charge(&order);
            assert!(subject.reset(1), "{algorithm}");
            assert!(!subject.reset(1), "reset already: {algorithm}");
            subject.charge(&order);
            subject.advance(Micros::from_secs(121));
            if subject.forgets_what_is_vacant() {
                assert!(!subject.reset(1), "vacant, and so as good as never seen: {algorithm}");
            }
        }
    }
}

mod changes_of_limit {
    use super::*;

    #[test]
    fn sixty_a_minute_used_up_and_raised_to_seventy_leaves_ten() {
        for (subject, algorithm) in every_algorithm() {
            let old = Order::new(1, subject.enroll(limit_of(algorithm, 60)));
            let new = Order::new(1, subject.enroll(limit_of(algorithm, 70)));
            subject.charge(&old.costing(60));
            assert_eq!(subject.remaining(&new), 10, "{algorithm}");
            assert!(subject.decide(&new.costing(10)).is_allowed(), "{algorithm}");
            assert!(!subject.decide(&new).is_allowed(), "{algorithm}");
        }
    }

    #[test]
    fn a_limit_lowered_below_what_was_used_denies_until_time_has_given_it_back() {
        for (subject, algorithm) in every_algorithm() {
            let old = Order::new(1, subject.enroll(limit_of(algorithm, 60)));
            let new = Order::new(1, subject.enroll(limit_of(algorithm, 10)));
            subject.charge(&old.costing(40));
            let denied = subject.decide(&new);
            assert!(!denied.is_allowed() && denied.remaining == 0, "{algorithm}");
            subject.advance(denied.reset_after);
            assert_eq!(subject.remaining(&new), 10, "{algorithm}");
        }
    }

    #[test]
    fn another_algorithm_starts_afresh_and_so_does_the_way_back() {
        for (subject, first, second) in every_two_algorithms().filter(|(_, a, b)| a != b) {
            let old = Order::new(1, subject.enroll(limit_of(first, 5)));
            let new = Order::new(1, subject.enroll(limit_of(second, 5)));
            subject.charge(&old.costing_all());
            assert_eq!(subject.decide(&new).remaining, 4, "{first} to {second}");
            assert_eq!(subject.decide(&old).remaining, 4, "{second} to {first}");
        }
    }

    #[test]
    fn another_algorithm_in_a_request_that_is_denied_charges_nothing_either() {
        for (subject, first, second) in every_two_algorithms().filter(|(_, a, b)| a != b) {
            let old = Order::new(1, subject.enroll(limit_of(first, 5)));
            let new = Order::new(1, subject.enroll(limit_of(second, 5)));
            let shut = Order::new(2, subject.enroll(limit_of(Algorithm::TokenBucket, 1)));
            subject.charge(&old.costing(2));
            subject.charge(&shut);
            let taken = subject.take(&[new, shut]);
            assert!(taken[0].is_allowed() && !taken[1].is_allowed(), "{first} to {second}");
            assert_eq!(subject.remaining(&new), 5, "{first} to {second}");
            // Whoever comes next under the old limit must find a state that makes sense.
            assert!(subject.decide(&old).is_allowed(), "{second} to {first}");
        }
    }

    #[test]
    fn what_had_ended_under_a_shorter_period_does_not_come_back_under_a_longer_one() {
        for (subject, algorithm) in every_algorithm() {
            let short = limit_over(algorithm, 5, Micros::from_secs(1));
            let short = Order::new(1, subject.enroll(short));
            let long = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            subject.charge(&short.costing_all());
            subject.advance(Micros::from_secs(2));
            assert_eq!(subject.remaining(&long), 5, "{algorithm}");
        }
    }

    #[test]
    fn looking_at_a_key_under_two_quotas_by_turns_does_not_keep_it_from_refilling() {
        for subject in every_store() {
            let bucket = |quota| Limit::token_bucket(quota, 1).unwrap();
            let slow = Order::new(1, subject.enroll(bucket(tollgate_core::Quota::per_second(1))));
            let quick = Order::new(1, subject.enroll(bucket(tollgate_core::Quota::per_second(2))));
            subject.charge(&slow);
            for _ in 0..9 {
                subject.advance(Micros::from_millis(100));
                assert_eq!(subject.remaining(&quick), 0);
                assert!(!subject.decide(&slow).is_allowed());
            }
            subject.advance(Micros::from_millis(100));
            assert_eq!((subject.remaining(&quick), subject.remaining(&slow)), (1, 1));
        }
    }

    #[test]
    fn a_key_under_two_quotas_by_turns_is_one_key() {
        for (subject, algorithm) in every_algorithm() {
            let one = Order::new(1, subject.enroll(limit_of(algorithm, 10)));
            let other = Order::new(1, subject.enroll(limit_of(algorithm, 12)));
            let turns = [one, other].into_iter().cycle().take(30);
            let admitted = turns.filter(|order| subject.decide(order).is_allowed()).count();
            assert_eq!(admitted, 12, "{algorithm}");
        }
    }
}

mod requests_that_take_nothing {
    use super::*;

    #[test]
    fn a_peek_changes_nothing_and_stores_nothing() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let unseen = subject.peek(&order);
            assert!(unseen.is_allowed() && unseen.remaining == 5, "{algorithm}");
            assert!(subject.keys().is_none_or(|keys| keys == 0), "{algorithm}");

            subject.charge(&order.costing(2));
            let before = subject.peek(&order);
            assert_eq!(subject.peek(&order), before, "{algorithm}");
            assert_eq!(before.remaining, 3, "{algorithm}");
        }
    }

    #[test]
    fn a_cost_above_the_limit_is_never_charged_and_stores_nothing() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            for units in [6, u32::MAX] {
                let decision = subject.decide(&order.costing(units));
                assert_eq!(decision.outcome, Outcome::TooCostly, "{algorithm}");
                assert_eq!(decision.remaining, 5, "{algorithm}");
            }
            assert!(subject.keys().is_none_or(|keys| keys == 0), "{algorithm}");

            subject.charge(&order.costing(2));
            subject.decide(&order.costing(6));
            assert_eq!(subject.remaining(&order), 3, "{algorithm}");
        }
    }

    #[test]
    fn a_limit_of_nothing_denies_everything_and_stores_nothing() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 0)));
            for _ in 0..3 {
                assert_eq!(subject.decide(&order).outcome, Outcome::TooCostly, "{algorithm}");
            }
            assert!(subject.keys().is_none_or(|keys| keys == 0), "{algorithm}");
        }
    }

    #[test]
    fn beside_charges_of_the_same_key_they_see_what_was_taken_before_them() {
        for (subject, algorithm) in every_algorithm() {
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 5)));
            let peek = order.costing(0);
            let taken = subject.take(&[peek, order, peek, order.costing(2), peek]);
            let remaining = |taken: &Taken| taken.decision().map_or(0, |it| it.remaining);
            let told: Vec<u32> = taken.iter().map(remaining).collect();
            assert_eq!(told, [5, 4, 4, 2, 2], "{algorithm}");
        }
    }
}

#[test]
fn requests_taken_each_on_their_own_are_decided_one_after_the_other() {
    for (subject, algorithm) in every_algorithm() {
        let limit = subject.enroll(limit_of(algorithm, 5));
        let mut model = Model::default();
        let mut rng = Rng::new(3);
        let orders: Vec<Order> = (0..200)
            .map(|_| Order::new(rng.below(20), limit).costing(rng.below(4) as u32))
            .collect();
        let expected: Vec<_> =
            orders.iter().map(|order| Some(model.take(&[*order], START)[0].decision)).collect();
        // A Redis that does not know the script yet is sent some of them again, behind what came meanwhile.
        subject.decide(&Order::new(99, limit).costing(0));
        let told: Vec<_> = subject.take_each(&orders).iter().map(Taken::decision).collect();
        assert_eq!(told, expected, "{algorithm}");
    }
}

#[test]
fn whether_a_request_is_allowed_can_be_asked_for_alone() {
    for algorithm in Algorithm::ALL {
        let subject = support::Subject::in_memory();
        let limit = subject.enroll(limit_of(algorithm, 5));
        let mut model = Model::default();
        let mut rng = Rng::new(5);
        for _ in 0..200 {
            let order = Order::new(rng.below(20), limit).costing(rng.below(7) as u32);
            let order = if rng.one_in(4) { order.counting_denied() } else { order };
            let expected = model.take(&[order], START)[0].decision.is_allowed();
            let is_allowed = order.with_charge(|charge| subject.store.allows(charge));
            assert_eq!(is_allowed, expected, "{algorithm} {order:?}");
        }
    }
}

#[test]
fn equal_limits_are_one_and_keep_one_state() {
    for (subject, algorithm) in every_algorithm() {
        let first = subject.enroll(limit_of(algorithm, 5));
        let second = subject.enroll(limit_of(algorithm, 5));
        assert_eq!(first, second);
        subject.charge(&Order::new(1, first));
        assert_eq!(subject.remaining(&Order::new(1, second)), 4);
        assert_eq!(second.limit().capacity(), 5);
        assert_eq!(Order::new(1, second).cost, Cost::ONE);
    }
}
