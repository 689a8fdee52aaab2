//! `CL.THROTTLE`: limits that the caller brings along.
//!
//! `CL.THROTTLE key max_burst count period [quantity]` asks a token bucket of `max_burst + 1` units
//! that refills at `count` every `period` seconds, and answers as redis-cell does: limited, limit,
//! remaining, seconds until a retry would work or −1, seconds until the bucket is full.

use std::collections::{HashMap, VecDeque};
use std::slice;
use std::sync::{PoisonError, RwLock};

use smallvec::SmallVec;
use tollgate::{Charge, Cost, Enrolled, Key, Limit, Limiter, Micros, Quota, Store, Taken, Value};

use super::reply::{Complaint, Replies, Shown};
use crate::bounds::{THROTTLES_MAX, THROTTLES_TOLD_MAX};

/// Where the keys of this command live. No limit of a policy has a name with parentheses, so none
/// counts the same states.
pub(crate) const KEY_SPACE: &str = "(CL.THROTTLE)";

/// What is asked of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spec {
    max_burst: u32,
    count: u32,
    period_secs: u32,
}

/// One question, read and known to make sense.
#[derive(Clone, Copy)]
pub(super) struct Question<'b> {
    key: &'b [u8],
    limit: Enrolled,
    cost: Cost,
}

/// The limits that callers have asked for, as the store knows them.
#[derive(Debug, Default)]
pub(crate) struct Throttles {
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    limits: HashMap<Spec, Enrolled>,
    /// Those that are newest, with their rates: what there is to tell of a key.
    newest: VecDeque<(Quota, Enrolled)>,
}

/// The limit that was asked for last on a connection, which mostly is the one asked for next.
pub(super) type Last = Option<(Spec, Enrolled)>;

impl<'b> Question<'b> {
    /// Reads the words after the command's name.
    pub(super) fn read(
        words: &[&'b [u8]],
        last: &mut Last,
        throttles: &Throttles,
        store: &Store,
    ) -> Result<Self, Complaint> {
        let [key, max_burst, count, period, rest @ ..] = words else {
            unreachable!("the number of words was looked at");
        };
        let spec = Spec {
            max_burst: number("max_burst", max_burst)?,
            count: number("count", count)?,
            period_secs: number("period", period)?,
        };
        let cost = rest.first().map_or(Ok(1), |quantity| number("quantity", quantity))?;
        let limit = match last {
            Some((known, limit)) if *known == spec => *limit,
            _ => {
                let limit = throttles.find_or_enroll(spec, store)?;
                *last = Some((spec, limit));
                limit
            }
        };
        Ok(Self { key, limit, cost: Cost::new(cost) })
    }
}

impl Throttles {
    fn find_or_enroll(&self, spec: Spec, store: &Store) -> Result<Enrolled, Complaint> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = known.limits.get(&spec) {
            return Ok(*limit);
        }
        drop(known);
        let (rate, limit) = spec.limit()?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = !known.limits.contains_key(&spec);
        if known.limits.len() >= THROTTLES_MAX && is_new {
            return Err(Complaint::new(format_args!(
                "{THROTTLES_MAX} different limits were asked for already, and no other is taken; \
                 write limits that differ by caller into the policy, and ask with TG.CHECK"
            )));
        }
        let limit = store.enroll(limit).map_err(|error| Complaint::new(format_args!("{error}")))?;
        known.limits.insert(spec, limit);
        if is_new {
            known.newest.push_front((rate, limit));
            known.newest.truncate(THROTTLES_TOLD_MAX);
        }
        Ok(limit)
    }

    /// The newest of the limits, with their rates.
    pub(crate) fn newest(&self) -> VecDeque<(Quota, Enrolled)> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).newest.clone()
    }
}

impl Spec {
    fn limit(self) -> Result<(Quota, Limit), Complaint> {
        let Self { max_burst, count, period_secs } = self;
        let Some(burst) = max_burst.checked_add(1) else {
            return Err(Complaint::new(format_args!("max_burst is at most {}", u32::MAX - 1)));
        };
        if count == 0 || period_secs == 0 {
            return Err(Complaint::new(format_args!("count and period are at least 1")));
        }
        let quota = Quota::new(count, Micros::from_secs(period_secs.into()));
        quota
            .and_then(|quota| Ok((quota, Limit::token_bucket(quota, burst)?)))
            .map_err(|error| Complaint::new(format_args!("{error}")))
    }
}

/// Digits and nothing else: no sign, no fraction, no exponent, no hexadecimal.
pub(super) fn number(name: &str, word: &[u8]) -> Result<u32, Complaint> {
    let is_digits = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    let fold = |number: Option<u32>, digit: &u8| {
        number?.checked_mul(10)?.checked_add(u32::from(digit - b'0'))
    };
    is_digits.then(|| word.iter().fold(Some(0), fold)).flatten().ok_or_else(|| {
        let (shown, most) = (Shown(word), u32::MAX);
        Complaint::new(format_args!("{name} {shown} is not a whole number from 0 to {most}"))
    })
}

/// Questions whose memory is fetched together. The store fetches no more at a time.
const BATCH: usize = 32;

/// Questions that follow each other in one read, to be asked together.
#[derive(Default)]
pub(super) struct Batch<'b>(SmallVec<[Question<'b>; BATCH]>);

impl<'b> Batch<'b> {
    /// Adds a question, and asks if there are enough.
    pub(super) fn push(
        &mut self,
        question: Question<'b>,
        limiter: &Limiter,
        replies: &mut Replies<'_>,
    ) {
        self.0.push(question);
        if self.0.len() == BATCH {
            self.ask(limiter, replies);
        }
    }

    /// Asks what has not been asked, each question on its own, and replies in their order.
    pub(super) fn ask(&mut self, limiter: &Limiter, replies: &mut Replies<'_>) {
        if self.0.is_empty() {
            return;
        }
        let (store, tally) = (limiter.store(), limiter.tally());
        let whose: SmallVec<[Value<'b>; BATCH]> =
            self.0.iter().map(|question| Value::new(question.key)).collect();
        let charge = |(question, whose)| {
            let Question { limit, cost, .. }: &Question<'b> = question;
            Charge { cost: *cost, ..Charge::new(key(whose), limit) }
        };
        let charges: SmallVec<[Charge<'_>; BATCH]> =
            self.0.iter().zip(&whose).map(charge).collect();
        if let Some(memory) = store.memory() {
            let mut questions = self.0.iter().zip(&whose);
            memory.take_each(&charges, |taken| {
                let (question, whose) = questions.next().expect("one answer to each question");
                tally.count(&key(whose), &taken);
                reply(&question.limit, question.cost, &taken, replies);
            });
        } else {
            let kept = |question: &Question<'b>| {
                let whose: Box<[u8]> = question.key.into();
                (question.limit, question.cost, whose)
            };
            let asked: Vec<(Enrolled, Cost, Box<[u8]>)> = self.0.iter().map(kept).collect();
            replies.write_when(store.take_each(&charges), move |answers, replies| {
                for ((limit, cost, whose), taken) in asked.iter().zip(answers.taken()) {
                    tally.count(&key(&Value::new(whose)), taken);
                    reply(limit, *cost, taken, replies);
                }
            });
        }
        drop(charges);
        self.0.clear();
    }
}

/// What somebody is counted under.
fn key<'a>(whose: &'a Value<'a>) -> Key<'a> {
    Key { limit: KEY_SPACE, values: slice::from_ref(whose) }
}

fn reply(limit: &Enrolled, cost: Cost, taken: &Taken, replies: &mut Replies<'_>) {
    let burst = limit.limit().capacity();
    let (limited, remaining, retry_secs, reset_secs) = match taken.decision() {
        Some(decision) => (
            !decision.is_allowed(),
            decision.remaining,
            decision.retry_after().map_or(-1, |wait| wait.as_secs_up() as i64),
            decision.reset_after.as_secs_up(),
        ),
        // Memory is full of keys at their limits. A key that cannot be remembered is told what a
        // new one is told.
        None => (false, burst.saturating_sub(cost.units()), -1, 0),
    };
    replies.array(5);
    replies.integer(i64::from(limited));
    replies.integer(burst.into());
    replies.integer(remaining.into());
    replies.integer(retry_secs);
    replies.integer(reset_secs as i64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_digits_and_nothing_else() {
        for (word, expected) in
            [("0", 0), ("1", 1), ("007", 7), ("4294967295", u32::MAX), ("0000000000001", 1)]
        {
            assert_eq!(number("count", word.as_bytes()), Ok(expected), "{word}");
        }
        for word in [
            "",
            "-1",
            "+1",
            "1.5",
            "1e3",
            "NaN",
            "inf",
            "0x10",
            " 1",
            "1 ",
            "1_000",
            "4294967296",
            "18446744073709551615",
            "99999999999999999999999999",
            "１",
        ] {
            assert!(number("count", word.as_bytes()).is_err(), "{word}");
        }
    }
}
