//! Whatever comes in gets a clear error or a right answer.

use std::collections::{HashMap, HashSet};

use tollgate_core::bounds::{EXACT_MAX, LOG_ENTRIES_MAX};
use tollgate_core::lua::Answer;
use tollgate_core::{
    Algorithm, Align, Cost, Key, Limit, Micros, Outcome, Quota, QuotaError, Shown, Timestamp, Value,
};

use crate::support::{START, Subject, period};

const YEAR: Micros = Micros::from_secs(365 * 86_400);

/// Every algorithm on a count and a period, which its bounds allow.
fn every_limit(count: u32, period: Micros) -> Vec<Limit> {
    let quota = Quota::new(count, period).expect("a period in range");
    let few = count.min(LOG_ENTRIES_MAX);
    vec![
        Limit::sliding_window(quota),
        Limit::token_bucket(quota, count).expect("it refills in a period"),
        Limit::leaky_bucket(quota, count, None).expect("it drains in a period"),
        Limit::fixed_window(quota, Align::Clock),
        Limit::fixed_window(quota, Align::Key),
        Limit::sliding_log(Quota::new(few, period).expect("the same period")).expect("a log"),
        Limit::concurrency(few, period).expect("slots"),
    ]
}

#[test]
fn a_cost_is_decimal_digits_and_nothing_else() {
    for text in [
        "",
        "-1",
        "+1",
        "NaN",
        "inf",
        "1.5",
        "1e400",
        "1e3",
        "0x10",
        "١",
        " 1",
        "1 ",
        "1_000",
        "18446744073709551615",
        "4294967296",
        "99999999999999999999999999",
    ] {
        let error = text.parse::<Cost>().expect_err(text).to_string();
        let sentence = format!("cost {text:?} is not a whole number from 0 to 4294967295");
        assert_eq!(error, sentence);
    }
    assert_eq!("0".parse(), Ok(Cost::PEEK));
    assert_eq!("007".parse(), Ok(Cost::new(7)));
    assert_eq!("4294967295".parse(), Ok(Cost::new(u32::MAX)));
}

#[test]
fn a_cost_beyond_what_is_counted_is_an_error() {
    assert!(Cost::try_from(u64::MAX).is_err());
    assert!(Cost::try_from(1 << 32).is_err());
    assert_eq!(Cost::try_from(u64::from(u32::MAX)), Ok(Cost::new(u32::MAX)));
}

#[test]
fn what_is_not_a_rate_is_called_so() {
    for text in [
        "",
        "5",
        "/",
        "5/",
        "/minute",
        "-1/minute",
        "+1/minute",
        "1.5/second",
        "NaN/second",
        "0x10/second",
        "1e3/second",
        "5/minuet",
        "5//minute",
        "5/minute/",
        " 5/minute",
        "5/minute ",
        "5 per minute",
        "5/-1s",
        "5/99999999999999999999s",
        "5/1.5s",
        "5/m s",
    ] {
        let error = text.parse::<Quota>().expect_err(text).to_string();
        let sentence = format!("{text:?} is not a rate; write for example 5/minute or 1000/90s");
        assert_eq!(error, sentence);
    }
}

#[test]
fn a_count_beyond_what_is_counted_is_an_error() {
    let error = "4294967296/second".parse::<Quota>().expect_err("too large").to_string();
    assert_eq!(error, "4294967296 is more than can be counted; the most is 4294967295");
    assert_eq!("4294967295/second".parse(), Ok(Quota::per_second(u32::MAX)));
}

#[test]
fn a_window_of_nothing_or_of_ten_years_is_an_error() {
    for text in ["5/0s", "5/0", "5/999us", "5/10y", "5/3651d", "5/366d", "5/8761h"] {
        assert!(text.parse::<Quota>().is_err(), "{text}");
    }
    for period in [Micros::ZERO, Micros::new(999), Micros::from_secs(10 * 365 * 86_400)] {
        let error = Quota::new(5, period).expect_err("out of range");
        assert_eq!(error, QuotaError::PeriodOutOfRange { period });
        assert_eq!(Limit::concurrency(5, period), Err(error));
    }
    for text in ["5/1ms", "5/ms", "5/year", "5/365d", "5/1y", "5/12mo"] {
        assert!(text.parse::<Quota>().is_ok(), "{text}");
    }
}

#[test]
fn a_limit_of_nothing_denies_everything_for_ever_and_answers_a_peek() {
    for limit in every_limit(0, Micros::from_secs(1)) {
        for now in [0, START, Timestamp::END.as_micros()].map(Timestamp::from_micros) {
            let mut subject = Subject::new(limit);
            for cost in [1, 2, u32::MAX] {
                let decision = subject.decide(now, Cost::new(cost));
                assert_eq!(decision.outcome, Outcome::TooCostly, "{limit:?}");
                assert_eq!((decision.limit, decision.remaining), (0, 0));
            }
            assert!(subject.peek(now).is_allowed(), "{limit:?}");
        }
    }
}

#[test]
fn a_bucket_that_would_never_refill_is_an_error() {
    let never = [(Quota::per_second(0), 1), (Quota::new(1, YEAR).expect("a year"), 101)];
    for (quota, burst) in never {
        let error = QuotaError::RefillTooSlow { quota, burst };
        assert_eq!(Limit::token_bucket(quota, burst), Err(error.clone()));
        assert_eq!(Limit::leaky_bucket(quota, burst, None), Err(error));
    }
    assert!(Limit::token_bucket(Quota::new(1, YEAR).expect("a year"), 100).is_ok());
    assert!(Limit::token_bucket(Quota::new(1, YEAR).expect("a year"), u32::MAX).is_err());
}

#[test]
fn numbers_of_no_bucket_are_refused_though_an_empty_one_could_hold_them() {
    let period = YEAR.as_micros();
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for (per_unit, per_micro) in [(u64::MAX, 1), (1 << 62, 1), (0, 1), (1, 0), (1, u64::MAX)] {
            let numbers = [per_unit, per_micro, 0, period, 0];
            assert_eq!(Limit::from_numbers(algorithm, numbers), None, "{numbers:?}");
        }
        let empty = [1, 1, 0, period, 0];
        assert!(Limit::from_numbers(algorithm, empty).is_some());
    }
}

#[test]
fn a_log_longer_than_logs_get_is_an_error() {
    let error = QuotaError::LogTooLong { count: LOG_ENTRIES_MAX + 1 };
    assert_eq!(Limit::sliding_log(Quota::per_hour(LOG_ENTRIES_MAX + 1)), Err(error.clone()));
    assert_eq!(Limit::concurrency(LOG_ENTRIES_MAX + 1, YEAR), Err(error));
    assert!(Limit::sliding_log(Quota::per_hour(LOG_ENTRIES_MAX)).is_ok());
}

#[test]
fn the_first_and_the_last_moment_of_time_are_counted_like_any_other() {
    for micros in [0, 1, START, Timestamp::END.as_micros() - 1, u64::MAX] {
        let now = Timestamp::from_micros(micros);
        for limit in every_limit(5, Micros::from_secs(60)) {
            let mut subject = Subject::new(limit);
            let first = subject.decide(now, Cost::new(5));
            assert!(first.is_allowed() && first.remaining == 0, "{limit:?} {now:?}");
            assert!(!first.reset_after.is_zero(), "{limit:?} {now:?}");
            let second = subject.decide(now, Cost::ONE);
            assert!(!second.is_allowed(), "{limit:?} {now:?}");
            let wait = second.retry_after();
            let minute = now.as_micros() % 60_000_000;
            let expected = match limit.algorithm() {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => Some(12_000_000),
                // In the first microsecond of the next minute, a fifth of five has begun to fade.
                Algorithm::SlidingWindow => Some(60_000_000 - minute + 1),
                Algorithm::FixedWindow if is_by_key(&limit) => Some(60_000_000),
                Algorithm::FixedWindow => Some(60_000_000 - minute),
                Algorithm::SlidingLog => Some(60_000_000),
                Algorithm::Concurrency => None,
            };
            assert_eq!(wait, expected.map(Micros::new), "{limit:?} {now:?}");
        }
    }
}

fn is_by_key(limit: &Limit) -> bool {
    format!("{limit:?}").contains("Key")
}

#[test]
fn from_the_first_moment_to_the_last_everything_is_whole_again() {
    for limit in every_limit(5, Micros::from_secs(60)) {
        let mut subject = Subject::new(limit);
        subject.decide(Timestamp::EPOCH, Cost::new(5));
        assert_eq!(subject.peek(Timestamp::END).remaining, 5, "{limit:?}");
    }
}

#[test]
fn from_the_last_moment_to_the_first_nobody_waits_more_than_a_few_periods() {
    for limit in every_limit(5, Micros::from_secs(60)) {
        let mut subject = Subject::new(limit);
        subject.decide(Timestamp::END, Cost::new(5));
        let decision = subject.decide(Timestamp::EPOCH, Cost::ONE);
        assert!(!decision.is_allowed(), "{limit:?}");
        let wait = decision.reset_after.as_micros();
        assert!(wait <= 3 * period(&limit), "{limit:?} waits {wait}");
        assert_eq!(subject.peek(Timestamp::EPOCH.plus(decision.reset_after)).remaining, 5);
    }
}

#[test]
fn the_largest_costs_are_denied_and_forced_ones_never_wrap_around() {
    for period in [Micros::from_millis(1), YEAR] {
        for count in [1, 1_000, u32::MAX - 1] {
            for limit in every_limit(count, period) {
                let mut subject = Subject::new(limit);
                let now = Timestamp::from_micros(START);
                let huge = Cost::new(u32::MAX);
                let denial = subject.decide(now, huge);
                assert_eq!(denial.outcome, Outcome::TooCostly, "{limit:?}");
                assert_eq!(denial.remaining, limit.capacity(), "nothing was charged");
                for _ in 0..100 {
                    assert_eq!(subject.force(now, huge).0.remaining, 0, "{limit:?}");
                    subject.punish(now, Cost::new(limit.capacity()));
                }
                assert!(!subject.decide(now, Cost::ONE).is_allowed(), "{limit:?}");
                assert!(!subject.peek(now).is_allowed(), "{limit:?}");
            }
        }
    }
}

#[test]
fn a_refund_of_a_forced_charge_that_was_cut_off_gives_back_what_was_charged() {
    for period in [Micros::from_millis(1), YEAR] {
        for count in [1, 1_000, u32::MAX] {
            for limit in every_limit(count, period) {
                let now = Timestamp::from_micros(START);
                let mut subject = Subject::new(limit);
                subject.decide(now, Cost::ONE);
                let before = subject.peek(now);
                let charges = [0; 3].map(|_| subject.force(now, Cost::new(u32::MAX)).1);
                charges.iter().rev().for_each(|charged| subject.refund(now, charged));
                assert_eq!(subject.peek(now), before, "{limit:?}");
            }
        }
    }
}

#[test]
fn no_wait_is_longer_than_all_of_time() {
    let limit = Limit::token_bucket(Quota::new(1, YEAR).expect("a year"), 100).expect("a bucket");
    let mut subject = Subject::new(limit);
    subject.force(Timestamp::from_micros(START), Cost::new(u32::MAX));
    let decision = subject.peek(Timestamp::from_micros(START - 3_600_000_000));
    assert_eq!(decision.reset_after, Micros::new(EXACT_MAX));
}

#[test]
fn the_largest_bucket_is_exact_to_the_microsecond() {
    let limit = Limit::token_bucket(Quota::per_second(u32::MAX), u32::MAX).expect("the largest");
    let mut subject = Subject::new(limit);
    let now = Timestamp::from_micros(START);
    assert_eq!(subject.decide(now, Cost::new(u32::MAX)).remaining, 0);
    // 4,294.967295 come back in a microsecond.
    for (micros, back) in [(1, 4_294), (2, 8_589), (999_999, 4_294_963_000), (1_000_000, u32::MAX)]
    {
        assert_eq!(subject.peek(now.plus(Micros::new(micros))).remaining, back);
    }
}

fn key_text(limit: &str, values: &[&[u8]]) -> String {
    let values: Vec<Value<'_>> = values.iter().map(|bytes| Value::new(bytes)).collect();
    Key { limit, values: &values }.text(|_secret| 0)
}

#[test]
fn different_names_and_values_never_share_a_key() {
    let bytes: [&[u8]; 14] = [
        b"",
        b"a",
        b"b",
        b":",
        b"a:b",
        b"%",
        b"%3A",
        b"%3a",
        b"\0",
        b"\r\n",
        b"\xff",
        b"\xc3\xbc",
        b"{",
        b"}",
    ];
    let names = ["a", "a:b", "a%3Ab", "", "{a}"];
    let mut seen: HashMap<String, (&str, Vec<&[u8]>)> = HashMap::new();
    let mut check = |limit: &'static str, values: &[&'static [u8]]| {
        let text = key_text(limit, values);
        assert!(text.is_ascii() && !text.contains(char::is_whitespace), "{text:?}");
        let other = seen.insert(text.clone(), (limit, values.to_vec()));
        assert_eq!(other, None, "{limit:?} with {values:?} is {text}, too");
    };
    for limit in names {
        check(limit, &[]);
        for first in bytes {
            check(limit, &[first]);
            for second in bytes {
                check(limit, &[first, second]);
                check(limit, &[first, second, b""]);
                check(limit, &[first, second, b"a:b"]);
            }
        }
    }
    assert_eq!(seen.len(), names.len() * (1 + 14 + 3 * 14 * 14));
}

#[test]
fn what_is_missing_or_secret_or_from_elsewhere_is_another_value() {
    let plain = Value::new(b"a");
    let values = [
        Value::MISSING,
        Value::new(b""),
        Value::new(b"%"),
        Value::new(b"%1."),
        Value::new(b"%n1."),
        Value::new(b"%h00000000000000000000000000000000"),
        Value { shown: Shown::IsHash, ..Value::new(&[0xFF; 16]) },
        plain,
        Value { source: 1, ..plain },
        Value { source: 11, ..plain },
        Value { source: 1, ..Value::new(b"1.a") },
        Value { source: 1, ..Value::MISSING },
        // Bytes that look like the mark of a source, and the other way round.
        Value { source: 12, ..Value::new(b"") },
        Value::new(b"\x12."),
        Value::secret(b"a"),
        Value { source: 1, ..Value::secret(b"a") },
    ];
    let text = |value| Key { limit: "l", values: &[value] }.text(|_secret| 0);
    let texts: HashSet<String> = values.into_iter().map(text).collect();
    assert_eq!(texts.len(), values.len(), "{texts:?}");
}

#[test]
fn every_shard_is_a_value_of_its_own_and_no_value_looks_like_one() {
    let text = |value| Key { limit: "l", values: &[value] }.text(|_secret| 3);
    assert_eq!(text(Value::shard(3)), "l:%s3");
    assert_eq!(text(Value::shard(255)), "l:%s255");
    let shards = (0..=u8::MAX).map(Value::shard);
    let alike = (0..=u8::MAX).flat_map(|number| {
        let shard = Value::shard(number);
        [
            Value { source: 0, ..shard },
            Value { source: 254, ..shard },
            Value { bytes: Some(b"3!"), ..shard },
            Value { bytes: None, ..shard },
        ]
    });
    let texts = [b"%s3".as_slice(), b"s3", b"3", b"%"].map(Value::new);
    let values: HashSet<Value<'_>> = shards.chain(alike).chain(texts).collect();
    let texts: HashSet<String> = values.iter().copied().map(text).collect();
    assert_eq!(texts.len(), values.len());
    let secret = text(Value { shown: Shown::AsHash, ..Value::shard(3) });
    assert!(!texts.contains(&secret), "{secret}");
}

#[test]
fn every_byte_has_one_way_to_be_written_in_a_key() {
    let texts: HashSet<String> = (0..=u8::MAX).map(|byte| key_text("bytes", &[&[byte]])).collect();
    assert_eq!(texts.len(), 256);
}

#[test]
fn a_value_of_a_mebibyte_is_a_key_like_any_other() {
    let (plain, odd) = (vec![b'a'; 1 << 20], vec![0xff; 1 << 20]);
    let text = |value: &[u8]| key_text("k", &[value]);
    assert_eq!(text(&plain).len(), 2 + (1 << 20));
    assert_eq!(text(&odd).len(), 2 + 3 * (1 << 20));
    assert_ne!(text(&plain), text(&plain[1..]));
}

#[test]
fn a_reply_that_is_not_ours_is_not_read_as_an_answer() {
    let good = [0, 5, 4, 12, 12, -1, 0, 1, 7, 0];
    assert!(Answer::from_fields(good).is_some());
    for (place, bad) in [(0, 3), (0, -1), (1, -1), (1, 1 << 32), (2, -1), (3, -1), (6, -1)] {
        let mut fields = good;
        fields[place] = bad;
        assert_eq!(Answer::from_fields(fields), None, "field {place} is {bad}");
    }
}
