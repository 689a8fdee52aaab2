//! Everything has a bound: memory under floods, odd keys, the ends of time and of numbers.

use tollgate_core::{
    Algorithm, Align, Cost, Key, KeyBuf, Limit, Micros, Outcome, Quota, Timestamp, Value,
};
use tollgate_store::bounds::{LIMITS_MAX, LOGS_FORGOTTEN_MAX, MAX_BYTES_MIN};
use tollgate_store::{Charge, Clock, MemoryStore, Taken};

use crate::support::{Order, START, Subject, limit_of, limit_over};

const HOUR: Micros = Micros::from_secs(3_600);

mod floods {
    use super::*;

    #[test]
    fn a_flood_of_keys_leaves_memory_within_its_bound_and_a_key_at_its_limit_denied() {
        check_flood(Algorithm::TokenBucket, 1 << 20, 800_000);
        check_flood(Algorithm::SlidingWindow, 2 << 20, 800_000);
        check_flood(Algorithm::FixedWindow, 1 << 20, 400_000);
        check_flood(Algorithm::LeakyBucket, 1 << 20, 400_000);
        check_flood(Algorithm::SlidingLog, 1 << 20, 400_000);
        check_flood(Algorithm::Concurrency, 1 << 20, 400_000);
    }

    fn check_flood(algorithm: Algorithm, max_bytes: usize, keys: u64) {
        // Unoptimised, this takes long enough with some tens of thousands.
        let scale = if cfg!(debug_assertions) { 16 } else { 1 };
        let (max_bytes, keys) = (max_bytes / scale, keys / scale as u64);
        let subject = Subject::of_size(max_bytes);
        let limit = subject.enroll(limit_over(algorithm, 5, HOUR));
        let limited = Order::new(u64::MAX, limit);
        subject.charge(&limited.costing_all());
        for key in 0..keys {
            let taken = subject.take_one(&Order::new(key, limit));
            assert!(taken.receipt().is_some(), "{algorithm}: {taken:?} to key {key}");
            if key % 64 == 0 {
                assert!(!subject.decide(&limited).is_allowed(), "{algorithm} at key {key}");
                let bytes = subject.store.bytes();
                assert!(bytes <= max_bytes, "{algorithm}: {bytes} bytes at key {key}");
            }
        }
        let bytes = subject.store.bytes();
        assert!(bytes > max_bytes / 4 * 3, "{algorithm}: only {bytes} bytes were used");
    }

    #[test]
    fn newcomers_push_out_those_who_used_least() {
        // Some keys have used nine of ten, and a flood of others uses one each.
        for algorithm in Algorithm::ALL {
            let subject = Subject::of_size(64 << 10);
            let limit = subject.enroll(limit_over(algorithm, 10, HOUR));
            let heavy = |key: u64| Order::new(1 << 40 | key, limit);
            let heavies = 100;
            for key in 0..heavies {
                subject.charge(&heavy(key).costing(9));
            }
            for key in 0..4_000 {
                subject.take_one(&Order::new(key, limit));
            }
            for key in 0..heavies {
                assert_eq!(subject.remaining(&heavy(key)), 1, "{algorithm}");
            }
        }
    }

    #[test]
    fn keys_that_are_forgotten_before_their_time_are_counted() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingLog] {
            let subject = Subject::of_size(64 << 10);
            let limit = subject.enroll(limit_over(algorithm, 10, HOUR));
            let keys = 4_000;
            for key in 0..keys {
                subject.take_one(&Order::new(key, limit));
            }
            let gone = keys - subject.store.keys() as u64;
            let evicted = subject.store.evicted();
            // A log is forgotten before its key is.
            assert!(gone > 0 && evicted >= gone && evicted <= keys, "{algorithm}: {evicted}");
        }
    }

    #[test]
    fn vacant_states_go_before_anything_else() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingWindow, Algorithm::FixedWindow]
        {
            // As many as there is room for, three quarters of them soon vacant.
            let subject = Subject::of_size(64 << 10);
            let short = subject.enroll(limit_over(algorithm, 10, Micros::from_secs(1)));
            let long = subject.enroll(limit_over(algorithm, 10, HOUR));
            let keys = 1_500;
            for key in 0..keys {
                subject.charge(&Order::new(key, if key % 4 == 0 { long } else { short }));
            }
            assert_eq!(subject.store.keys(), keys as usize, "{algorithm}");
            subject.advance(Micros::from_secs(3));
            for newcomer in 0..400 {
                subject.charge(&Order::new(1 << 40 | newcomer, long).costing(9));
            }
            for key in (0..keys).step_by(4) {
                let left = subject.remaining(&Order::new(key, long));
                assert_eq!(left, 9, "{algorithm}: key {key} of {keys} was forgotten");
            }
            for newcomer in 0..400 {
                assert_eq!(subject.remaining(&Order::new(1 << 40 | newcomer, long)), 1);
            }
        }
    }

    #[test]
    fn when_everybody_is_at_the_limit_the_newcomer_is_settled_as_its_charge_says() {
        for algorithm in Algorithm::ALL {
            let subject = Subject::of_size(64 << 10);
            let limit = subject.enroll(limit_over(algorithm, 2, HOUR));
            let mut keys = 0;
            let all = |key: u64| Order::new(key, limit).costing_all();
            while subject.take_one(&all(keys)).decision().is_some() {
                keys += 1;
                assert!(keys < 10_000, "{algorithm}: somebody at the limit was forgotten");
            }
            for key in 0..keys {
                assert!(!subject.decide(&all(key)).is_allowed(), "{algorithm}: {key} of {keys}");
            }

            let newcomer = all(keys);
            assert_eq!(subject.take_one(&newcomer), Taken::Uncounted { is_allowed: true });
            let refused = newcomer.denied_on_failure();
            assert_eq!(subject.take_one(&refused), Taken::Uncounted { is_allowed: false });
            assert!(!Taken::Uncounted { is_allowed: false }.is_allowed());

            // A refusal denies the whole request; admitted, it goes on uncounted by that limit.
            assert!(subject.reset(0));
            let known = Order::new(0, limit);
            let denied = subject.take(&[known, refused]);
            assert!(denied[0].is_allowed() && !denied[1].is_allowed());
            let admitted = subject.take(&[known, newcomer]);
            assert!(admitted.iter().all(Taken::is_allowed), "{algorithm}");
            // A counter has its slot still; a log that was taken down has to find room again.
            let is_counted = admitted.iter().any(|taken| taken.receipt().is_some());
            assert!(is_counted || matches!(limit.limit(), Limit::Logged(_)), "{algorithm}");
        }
    }

    #[test]
    fn a_request_that_a_known_key_denies_pushes_nobody_out_for_an_unknown_one() {
        for algorithm in Algorithm::ALL {
            let subject = Subject::of_size(64 << 10);
            let limit = subject.enroll(limit_over(algorithm, 5, HOUR));
            let limited = Order::new(1 << 40, limit);
            subject.charge(&limited.costing_all());
            for key in 0..4_000 {
                subject.take_one(&Order::new(key, limit));
            }
            let used = |key: &u64| subject.remaining(&Order::new(*key, limit)) == 4;
            let kept: Vec<u64> = (0..4_000).filter(used).collect();
            for key in 10_000..12_000 {
                let unknown = Order::new(key, limit);
                let answers = subject.take(&[unknown, limited]);
                assert!(answers[0].is_allowed() && !answers[1].is_allowed());
                // Nothing was taken, so everything is left.
                assert_eq!(answers[0].decision().map(|told| told.remaining), Some(5));
                assert_eq!(answers[0].receipt(), None);
            }
            assert!(kept.iter().all(used), "{algorithm}: a denied request pushed somebody out");
        }
    }

    #[test]
    fn a_peek_needs_no_room() {
        let subject = Subject::of_size(64 << 10);
        let limit = subject.enroll(limit_over(Algorithm::FixedWindow, 1, HOUR));
        for key in 0..3_000 {
            subject.take_one(&Order::new(key, limit));
        }
        let unknown = Order::new(9_999_999, limit);
        assert_eq!(subject.take_one(&unknown), Taken::Uncounted { is_allowed: true });
        assert_eq!(subject.peek(&unknown).remaining, 1);
        assert_eq!(subject.decide(&unknown.costing(2)).outcome, Outcome::TooCostly);
    }
}

mod logs {
    use super::*;

    #[test]
    fn the_entries_of_logs_count() {
        let subject = Subject::in_memory();
        let limit = subject.enroll(limit_over(Algorithm::SlidingLog, 1_000, HOUR));
        let empty = subject.store.bytes();
        for _ in 0..1_000 {
            subject.charge(&Order::new(1, limit));
        }
        let full = subject.store.bytes();
        assert!(full - empty >= 16_000, "a thousand entries of sixteen bytes or more");
        assert!(subject.reset(1));
        assert!(subject.store.bytes() < empty + 1_000, "entries that are gone take nothing");
    }

    #[test]
    fn many_long_logs_stay_within_the_bound_and_those_at_their_limit_stay_shut() {
        let max_bytes = 512 << 10;
        let subject = Subject::of_size(max_bytes);
        let limit = subject.enroll(limit_over(Algorithm::SlidingLog, 500, HOUR));
        let limited = Order::new(0, limit);
        for _ in 0..500 {
            subject.charge(&limited);
        }
        for round in 0..60_u64 {
            for key in 1..300 {
                subject.take_one(&Order::new(key, limit));
            }
            assert!(!subject.decide(&limited).is_allowed(), "round {round}");
            let bytes = subject.store.bytes();
            assert!(bytes <= max_bytes, "{bytes} bytes in round {round}");
        }
    }

    #[test]
    fn logs_that_have_ended_make_room_for_new_ones() {
        let subject = Subject::of_size(256 << 10);
        let limit = subject.enroll(limit_over(Algorithm::SlidingLog, 20, Micros::from_secs(1)));
        for generation in 0..20_u64 {
            for key in 0..1_000 {
                let order = Order::new(generation << 32 | key, limit);
                for _ in 0..2 {
                    let taken = subject.take_one(&order);
                    assert!(taken.receipt().is_some(), "{taken:?} in generation {generation}");
                }
            }
            subject.advance(Micros::from_secs(2));
        }
    }

    #[test]
    fn a_log_may_grow_at_the_cost_of_logs_that_lose_less() {
        let subject = Subject::of_size(256 << 10);
        let limit = subject.enroll(limit_over(Algorithm::SlidingLog, 100, HOUR));
        for key in 0..3_000 {
            subject.charge(&Order::new(key, limit));
        }
        let busy = Order::new(1 << 40, limit);
        for unit in 0..100 {
            assert!(subject.take_one(&busy).receipt().is_some(), "unit {unit} was not counted");
        }
        assert!(!subject.decide(&busy).is_allowed());
    }

    #[test]
    fn a_log_that_grows_takes_the_room_of_a_few_others_at_a_time() {
        let subject = Subject::of_size(128 << 10);
        let limit = subject.enroll(limit_over(Algorithm::SlidingLog, 10_000, HOUR));
        for key in 0..1_000 {
            subject.charge(&Order::new(key, limit));
        }
        let known = || {
            let used = |key: &u64| subject.remaining(&Order::new(*key, limit)) < 10_000;
            (0..1_000).filter(used).count()
        };
        let long = Order::new(1 << 40, limit);
        let at_first = known();
        let mut before = at_first;
        for unit in 0..1_200 {
            subject.take_one(&long);
            let after = known();
            assert!(before - after <= LOGS_FORGOTTEN_MAX, "{before} to {after} at unit {unit}");
            before = after;
        }
        assert!(before < at_first / 2, "of {at_first} logs {before} are left");
    }

    #[test]
    fn long_logs_leave_room_for_counted_keys() {
        let subject = Subject::of_size(1 << 20);
        let log = subject.enroll(Limit::sliding_log(Quota::per_day(100_000)).unwrap());
        for key in 0..8 {
            for _ in 0..8_000 {
                subject.take_one(&Order::new(1 << 40 | key, log));
            }
        }
        let counted = subject.enroll(Limit::sliding_window(Quota::per_day(2)));
        let allowed = |key: u64| {
            (0..4).filter(|_| subject.take_one(&Order::new(key, counted)).is_allowed()).count()
        };
        let keys = 4_000;
        assert_eq!((0..keys).map(allowed).sum::<usize>(), 2 * keys as usize);
    }

    #[test]
    fn a_flood_of_counted_keys_leaves_room_for_logs() {
        let subject = Subject::of_size(256 << 10);
        let counter = subject.enroll(limit_over(Algorithm::FixedWindow, 5, HOUR));
        let login = subject.enroll(limit_over(Algorithm::SlidingLog, 5, HOUR));
        for key in 0..12_000 {
            subject.take_one(&Order::new(key, counter));
        }
        for key in 0..20 {
            let order = Order::new(1 << 40 | key, login);
            let admitted = (0..10).filter(|_| subject.decide(&order).is_allowed()).count();
            assert_eq!(admitted, 5);
        }
        assert!(subject.store.bytes() <= 256 << 10);
    }
}

mod keys {
    use super::*;

    /// Spends one unit of two on every key; whoever shares a state with another is left with none.
    fn check_different(keys: &[Key<'_>]) {
        for algorithm in Algorithm::ALL {
            let subject = Subject::in_memory();
            let limit = subject.enroll(limit_of(algorithm, 2));
            let take = |key: &Key<'_>| subject.store.take_one(&Charge::new(*key, &limit));
            for remaining in [1, 0] {
                for key in keys {
                    let taken = take(key);
                    let left = taken.decision().map(|decision| decision.remaining);
                    assert_eq!(left, Some(remaining), "{algorithm} {key:?}");
                }
            }
            for key in keys {
                assert!(!take(key).is_allowed());
                assert!(subject.store.reset(key) && take(key).is_allowed());
            }
        }
    }

    #[test]
    fn keys_of_any_bytes_are_limited_each_on_its_own() {
        let megabyte = vec![b'x'; 1 << 20];
        let mut other_megabyte = megabyte.clone();
        other_megabyte[1 << 19] = b'y';
        let values = [
            [Value::new(b"")],
            [Value::new(b"\0")],
            [Value::new(b"\0\0")],
            [Value::new(b"\0\0\0\0\0\0\0\0")],
            [Value::new(b"\xff\xfe\xc0\x80")],
            [Value::new(b"\xff\xfe\xc0\x80\0")],
            [Value::new("\u{202e}\r\n'); redis.call".as_bytes())],
            [Value::new(b"{}")],
            [Value::new(&megabyte)],
            [Value::new(&other_megabyte)],
            [Value::new(&megabyte[1..])],
            [Value::MISSING],
        ];
        let keys: Vec<Key<'_>> =
            values.iter().map(|values| Key { limit: "limit", values }).collect();
        check_different(&keys);
    }

    #[test]
    fn keys_that_differ_only_in_where_parts_are_cut_are_different() {
        let lists: [&[&[u8]]; 14] = [
            &[],
            &[b""],
            &[b"", b""],
            &[b"a:b", b"c"],
            &[b"a", b"b:c"],
            &[b"a:b:c"],
            &[b"a:b:c", b""],
            &[b"", b"a:b:c"],
            &[b"12345678", b"1234567"],
            &[b"1234567", b"81234567"],
            &[b"123456781234567"],
            &[b"12345678", b"12345678"],
            &[b"1234567812345678"],
            &[b"12345678", b"", b"12345678"],
        ];
        let values: Vec<Vec<Value<'_>>> =
            lists.iter().map(|list| list.iter().map(|bytes| Value::new(bytes)).collect()).collect();
        let mut keys: Vec<Key<'_>> =
            values.iter().map(|values| Key { limit: "limit", values }).collect();
        keys.push(Key { limit: "limita", values: &[] });
        keys.push(Key { limit: "", values: &values[1] });
        keys.push(Key { limit: "", values: &[] });
        check_different(&keys);
    }

    #[test]
    fn long_parts_that_spell_out_other_parts_are_different() {
        // Parts around the lengths that hashes like to treat differently, ending as a length, a
        // missing value or a source might be written.
        let mut parts: Vec<Vec<u8>> = Vec::new();
        for length in [7, 8, 9, 15, 16, 247, 248, 252, 253, 254, 255, 256, 260, 264] {
            for last in [0, 1, 8, 253, 254, 255] {
                let mut part = vec![0; length];
                part[length - 1] = last;
                parts.push(part);
            }
        }
        let single: Vec<[Value<'_>; 1]> = parts.iter().map(|part| [Value::new(part)]).collect();
        let doubled: Vec<[Value<'_>; 2]> =
            parts.iter().map(|part| [Value::new(part), Value::new(b"")]).collect();
        let key = |values| Key { limit: "limit", values };
        let mut keys: Vec<Key<'_>> = single.iter().map(|values| key(&values[..])).collect();
        keys.extend(doubled.iter().map(|values| key(&values[..])));
        check_different(&keys);
    }

    #[test]
    fn what_is_missing_or_from_another_source_is_different() {
        let from = |source, value: Value<'static>| [Value { source, ..value }];
        let values = [
            from(0, Value::new(b"")),
            from(1, Value::new(b"")),
            from(0, Value::MISSING),
            from(1, Value::MISSING),
            from(255, Value::MISSING),
            from(0, Value::new(b"a")),
            from(1, Value::new(b"a")),
            from(2, Value::new(b"a")),
            from(255, Value::new(b"a")),
        ];
        let mut keys: Vec<Key<'_>> =
            values.iter().map(|values| Key { limit: "limit", values }).collect();
        let twice = [Value::MISSING, Value::MISSING];
        keys.push(Key { limit: "limit", values: &twice });
        check_different(&keys);
    }

    #[test]
    fn what_is_shown_of_a_secret_value_finds_its_state_again() {
        let subject = Subject::in_memory();
        let limit = subject.enroll(limit_of(Algorithm::FixedWindow, 3));
        let secret = [Value { source: 1, ..Value::secret(b"an API key") }];
        let key = Key { limit: "limit", values: &secret };
        assert!(subject.store.take_one(&Charge::new(key, &limit)).is_allowed());
        let shown: KeyBuf = subject.store.key_text(&key).parse().unwrap();
        let hashed = shown.values();
        let key_again = Key { limit: shown.limit(), values: &hashed };
        assert_eq!(subject.store.key_text(&key_again), subject.store.key_text(&key));
        let look = Charge { cost: Cost::PEEK, ..Charge::new(key_again, &limit) };
        assert_eq!(subject.store.take_one(&look).decision().unwrap().remaining, 2);
        assert!(subject.store.reset(&key_again));
        let look = Charge { cost: Cost::PEEK, ..Charge::new(key, &limit) };
        assert_eq!(subject.store.take_one(&look).decision().unwrap().remaining, 3);
    }
}

mod ends_of_time_and_numbers {
    use super::*;

    #[test]
    fn a_limit_holds_at_the_first_and_at_the_last_moment() {
        for algorithm in Algorithm::ALL {
            for moment in [Timestamp::EPOCH, Timestamp::from_micros(1), Timestamp::END] {
                let subject = Subject::in_memory();
                subject.clock.set(moment);
                let order = Order::new(1, subject.enroll(limit_of(algorithm, 3)));
                let admitted = (0..9).filter(|_| subject.decide(&order).is_allowed()).count();
                assert_eq!(admitted, 3, "{algorithm} at {moment:?}");
                assert_eq!(subject.remaining(&order), 0, "{algorithm} at {moment:?}");
            }
        }
    }

    #[test]
    fn at_the_end_of_time_nobody_is_forgotten_who_is_at_the_limit() {
        for algorithm in Algorithm::ALL {
            let subject = Subject::of_size(64 << 10);
            subject.clock.set(Timestamp::END);
            let limit = subject.enroll(limit_of(algorithm, 1));
            let limited = Order::new(u64::MAX, limit);
            subject.charge(&limited);
            for key in 0..3_000 {
                subject.take_one(&Order::new(key, limit));
                assert!(!subject.decide(&limited).is_allowed(), "{algorithm} at key {key}");
            }
        }
    }

    #[test]
    fn a_clock_that_jumps_from_end_to_end_locks_nobody_out_for_longer_than_a_period() {
        for algorithm in Algorithm::ALL {
            let subject = Subject::in_memory();
            let order = Order::new(1, subject.enroll(limit_of(algorithm, 3)));
            subject.clock.set(Timestamp::END);
            subject.charge(&order.costing_all());
            subject.clock.set(Timestamp::EPOCH);
            assert!(!subject.decide(&order).is_allowed(), "{algorithm}");
            // One period until the clock has caught up, and at most two until all is given back.
            subject.advance(Micros::from_secs(180));
            assert_eq!(subject.remaining(&order), 3, "{algorithm}");
        }
    }

    #[test]
    fn the_largest_costs_are_counted_and_never_wrap() {
        let most = u32::MAX;
        let quota = Quota::per_day(most);
        let limits = [
            Limit::sliding_window(quota),
            Limit::token_bucket(quota, most).expect("a bucket"),
            Limit::leaky_bucket(quota, most, None).expect("a queue"),
            Limit::fixed_window(quota, Align::Clock),
        ];
        for limit in limits {
            let subject = Subject::in_memory();
            let order = Order::new(1, subject.enroll(limit));
            assert!(subject.decide(&order.costing(most)).is_allowed(), "{limit:?}");
            assert_eq!(subject.remaining(&order), 0, "{limit:?}");
            let punished = order.costing(most).counting_denied();
            for _ in 0..5 {
                assert!(!subject.decide(&punished).is_allowed(), "{limit:?}");
                assert_eq!(subject.remaining(&order), 0, "{limit:?}");
            }
        }
    }

    #[test]
    fn a_refund_of_the_largest_cost_gives_back_no_more_than_the_limit() {
        for algorithm in Algorithm::ALL {
            let most = if crate::support::is_logged(algorithm) { 100_000 } else { u32::MAX };
            let subject = Subject::in_memory();
            let order = Order::new(1, subject.enroll(limit_of(algorithm, most)));
            let receipt = subject.charge(&order.costing(most));
            assert!(subject.store.refund(&receipt), "{algorithm}");
            assert_eq!(subject.remaining(&order), most, "{algorithm}");
        }
    }
}

mod sizes {
    use super::*;

    #[test]
    fn a_million_live_keys_take_at_most_forty_eight_bytes_each() {
        let store = MemoryStore::new(Clock::manual(START)).expect("the default size");
        let limit = |algorithm| store.enroll(limit_over(algorithm, 5, HOUR)).expect("two limits");
        let limits = [limit(Algorithm::TokenBucket), limit(Algorithm::SlidingWindow)];
        for key in 0..1_000_000_u64 {
            let order = Order::new(key, limits[key as usize % 2]);
            order.with_charge(|charge| store.take_one(charge));
        }
        assert_eq!(store.keys(), 1_000_000);
        let bytes_a_key = store.bytes().div_ceil(store.keys());
        assert!(bytes_a_key <= 48, "{bytes_a_key} bytes a key");
    }

    #[test]
    fn the_length_of_a_key_costs_nothing() {
        let subject = Subject::in_memory();
        let limit = subject.enroll(limit_of(Algorithm::SlidingWindow, 5));
        let value = vec![b'x'; 1 << 20];
        let before = subject.store.bytes();
        let key = Key { limit: "limit", values: &[Value::new(&value)] };
        assert!(subject.store.take_one(&Charge::new(key, &limit)).is_allowed());
        assert_eq!((subject.store.keys(), subject.store.bytes()), (1, before));
    }

    #[test]
    fn a_store_is_never_smaller_than_it_can_work_with() {
        let subject = Subject::of_size(0);
        let limit = subject.enroll(limit_over(Algorithm::FixedWindow, 5, HOUR));
        for key in 0..5_000 {
            subject.take_one(&Order::new(key, limit));
        }
        assert!(subject.store.keys() > 1_000);
        assert!(subject.store.bytes() <= MAX_BYTES_MIN);
    }

    #[test]
    fn more_memory_than_there_is_is_an_error_and_not_the_end() {
        let error = MemoryStore::with_max_bytes(Clock::manual(START), usize::MAX)
            .expect_err("more than any machine has");
        assert!(error.to_string().contains("lower max_bytes"), "{error}");
    }

    #[test]
    fn states_name_limits_up_to_the_last_and_one_more_is_an_error() {
        let subject = Subject::in_memory();
        let quota = |count| Limit::fixed_window(Quota::per_day(count), Align::Clock);
        let limits: Vec<_> = (1..=LIMITS_MAX as u32).map(|n| subject.enroll(quota(n))).collect();
        let error = subject.store.enroll(quota(0)).expect_err("one too many");
        assert!(error.to_string().contains("can tell no more apart"), "{error}");
        assert_eq!(subject.enroll(quota(7)), limits[6], "a known one is no new one");

        // Whatever number its limit has, a state is carried over from it.
        for number in [0, 1, 1_023, 1_024, LIMITS_MAX / 2, LIMITS_MAX - 2] {
            let (old, new) = (limits[number], limits[LIMITS_MAX - 1]);
            let (old, new) = (Order::new(number as u64, old), Order::new(number as u64, new));
            assert!(subject.decide(&old.costing_all()).is_allowed());
            let left = new.limit.limit().capacity() - old.limit.limit().capacity();
            assert_eq!(subject.remaining(&new), left, "limit {number}");
            assert!(subject.decide(&Order { cost: Cost::new(left), ..new }).is_allowed());
            assert!(!subject.decide(&old).is_allowed());
        }
    }
}
