//! How long until a moment, in whatever way it is written.
//!
//! Vendors write seconds (some with decimals), seconds or milliseconds since 1970, durations as Go
//! prints them, ISO 8601 and the dates of HTTP. None of these can be mistaken for another: a number
//! of seconds that would be thirty years is a date.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bounds::WAIT_MAX;

/// Seconds from here on are since 1970: as a wait they would be more than thirty years.
const EPOCH_SECONDS_FROM: u64 = 1_000_000_000;

/// From here on they are milliseconds since 1970: as seconds they would be past the year 5000.
const EPOCH_MILLIS_FROM: u64 = 100_000_000_000;

/// How long after `now` that is; at most [`WAIT_MAX`], and nothing if it has passed.
pub(super) fn wait(text: &str, now: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let text = text.trim();
    let wait = match decimal(text) {
        Some(number) => match number.as_secs() {
            ..EPOCH_SECONDS_FROM => number,
            EPOCH_SECONDS_FROM..EPOCH_MILLIS_FROM => until(UNIX_EPOCH.checked_add(number), now()),
            EPOCH_MILLIS_FROM.. => until(UNIX_EPOCH.checked_add(number / 1_000), now()),
        },
        None => duration(text).or_else(|| {
            let moment = iso(text).or_else(|| httpdate::parse_http_date(text).ok())?;
            Some(until(Some(moment), now()))
        })?,
    };
    Some(wait.min(WAIT_MAX))
}

/// So many milliseconds, at most [`WAIT_MAX`].
pub(super) fn millis(text: &str) -> Option<Duration> {
    Some((decimal(text.trim())? / 1_000).min(WAIT_MAX))
}

/// A moment that cannot be told is too far away for any wait.
fn until(moment: Option<SystemTime>, now: SystemTime) -> Duration {
    moment.map_or(WAIT_MAX, |moment| moment.duration_since(now).unwrap_or_default())
}

/// `12`, `0.5`, `2.0`: digits, and perhaps a point and digits, as so many seconds. More than can be
/// counted is the most.
fn decimal(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let seconds = whole.parse().unwrap_or(u64::MAX);
    let nanos = fraction.bytes().chain(*b"00000000").take(9);
    let nanos = nanos.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos.into())))
}

/// `1m30s`, `6m0s`, `20ms`, `1.5s`: numbers, each with its unit.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        sum = sum.saturating_add(of_unit(decimal(number)?, unit)?);
        rest = tail;
    }
    (!text.is_empty()).then_some(sum)
}

/// A number of seconds as the same number of another unit.
fn of_unit(seconds: Duration, unit: &str) -> Option<Duration> {
    let times = |factor| seconds.checked_mul(factor).unwrap_or(Duration::MAX);
    match unit {
        "ns" => Some(seconds / 1_000_000_000),
        "us" | "µs" | "μs" => Some(seconds / 1_000_000),
        "ms" => Some(seconds / 1_000),
        "s" => Some(seconds),
        "m" => Some(times(60)),
        "h" => Some(times(3_600)),
        "d" => Some(times(86_400)),
        _ => None,
    }
}

/// `2026-11-16T06:33:19.5Z`, with an offset, without seconds or with a space as people write it; UTC
/// if it does not say.
fn iso(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut date = date.split('-');
    let (year, month, day) =
        (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
    if date.next().is_some()
        || !(1..=12).contains(&month)
        || !(1..=days_of(year, month)).contains(&day)
    {
        return None;
    }
    let zone = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (time, zone) = time.split_at(zone);
    let mut time = time.split(':');
    let (hour, minute) = (number(time.next()?, 2)?, number(time.next()?, 2)?);
    let second = decimal(time.next().unwrap_or("0"))?;
    // A leap second is the last of its minute.
    if time.next().is_some() || hour > 23 || minute > 59 || second.as_secs() > 60 {
        return None;
    }
    let seconds =
        days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 - offset(zone)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(seconds).ok()?) + second)
}

/// Exactly so many digits.
fn number(text: &str, digits: usize) -> Option<i64> {
    let is_number = text.len() == digits && text.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Seconds ahead of UTC.
fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.bytes().next() {
        None => return Some(0),
        Some(b'Z' | b'z') => return (zone.len() == 1).then_some(0),
        Some(b'-') => -1,
        Some(_) => 1,
    };
    let digits = zone[1..].replace(':', "");
    let (hours, minutes) = digits.split_at_checked(2)?;
    let (hours, minutes) =
        (number(hours, 2)?, if minutes.is_empty() { 0 } else { number(minutes, 2)? });
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01. Years are counted from March, so that a leap day is the last of its year.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-16T06:33:19Z.
    const NOW: u64 = 1_794_810_799;

    #[track_caller]
    fn check(text: &str, expected: Option<f64>) {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        assert_eq!(wait(text, || now), expected.map(Duration::from_secs_f64), "{text}");
    }

    #[test]
    fn a_wait_is_read_however_it_is_written() {
        for (text, seconds) in [
            ("0", 0.0),
            ("12", 12.0),
            (" 12 ", 12.0),
            ("2.0", 2.0),
            ("0.25", 0.25),
            ("64.570", 64.57),
            ("1794810829", 30.0),
            ("1794810829.5", 30.5),
            ("1794810829500", 30.5),
            ("20ms", 0.02),
            ("1s", 1.0),
            ("1.5s", 1.5),
            ("1m30s", 90.0),
            ("6m0s", 360.0),
            ("1h2m3s", 3_723.0),
            ("12µs", 0.000_012),
            ("2026-11-16T06:33:49Z", 30.0),
            ("2026-11-16T06:33:49.5Z", 30.5),
            ("2026-11-16T07:33:49+01:00", 30.0),
            ("2026-11-16T05:03:49-0130", 30.0),
            ("2026-11-16 06:33:49", 30.0),
            ("2026-11-16T06:34Z", 41.0),
            ("Mon, 16 Nov 2026 06:33:49 GMT", 30.0),
            ("Monday, 16-Nov-26 06:33:49 GMT", 30.0),
            ("Mon Nov 16 06:33:49 2026", 30.0),
        ] {
            check(text, Some(seconds));
        }
    }

    #[test]
    fn a_moment_that_has_passed_is_no_wait() {
        for text in [
            "1794810000",
            "2026-11-16T06:33:18Z",
            "2000-02-29T00:00:00Z",
            "Thu, 01 Jan 1970 00:00:00 GMT",
        ] {
            check(text, Some(0.0));
        }
    }

    #[test]
    fn an_absurd_wait_is_capped() {
        let most = WAIT_MAX.as_secs_f64();
        for text in [
            "86401",
            "999999999",
            "99999999999",
            "99999999999999999999999999",
            "9999999999h",
            "18446744073709551615d18446744073709551615d",
            "9999-12-31T23:59:59Z",
            "Fri, 31 Dec 9999 23:59:59 GMT",
        ] {
            check(text, Some(most));
        }
    }

    #[test]
    fn what_is_no_wait_is_not_read() {
        for text in [
            "",
            " ",
            "-1",
            "+5",
            "1e3",
            "0x10",
            "NaN",
            "inf",
            ".5",
            "5.",
            "1.2.3",
            "soon",
            "1w",
            "s",
            "m30s",
            "1m30",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-16T24:00:00Z",
            "2026-11-16T06:60Z",
            "2026-11-16",
            "2026-11-16T06:33:19Zulu",
            "2026-11-16T06:33:19+1",
            "26-11-16T06:33:19Z",
            "2026-11-16T06:33:19+é",
            "Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn milliseconds_are_read_with_decimals() {
        assert_eq!(millis("69000"), Some(Duration::from_secs(69)));
        assert_eq!(millis("1.5"), Some(Duration::from_micros(1_500)));
        assert_eq!(millis("99999999999999999999"), Some(WAIT_MAX));
        assert_eq!(millis("-1"), None);
    }

    #[test]
    fn days_are_counted_as_the_dates_of_http_count_them() {
        for day in (0..100_000).step_by(17) {
            let moment = UNIX_EPOCH + Duration::from_secs(day * 86_400 + 3);
            let text = httpdate::fmt_http_date(moment);
            let month = [
                "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
            ]
            .iter()
            .position(|&name| name == &text[8..11])
            .unwrap();
            let iso_text = format!("{}-{:02}-{}T00:00:03Z", &text[12..16], month + 1, &text[5..7]);
            assert_eq!(iso(&iso_text), Some(moment), "{iso_text}");
        }
    }
}
