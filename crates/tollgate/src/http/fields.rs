//! The fields of a response that tell a client how much it may still send.
//!
//! Which generations are sent is the policy's `headers`. A limit in shadow is in none of them: a
//! client that held itself to it would be limited after all. Neither is what is left of a
//! concurrency limit, because it is out of date when the response arrives: by then the slot of the
//! request that is being answered is free again. The limit as such is announced, as a policy of
//! `concurrent-requests`, which is what that unit is for, and without a window, as it has none.
//!
//! Whoever is denied is told when to come back, whatever the generations: see [`insert`].

use std::cell::RefCell;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ::http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use bytes::Bytes;
use smallvec::SmallVec;
use tollgate_core::{Decision, Limit, Micros, Quota, Timestamp};
use tollgate_policy::HeaderGeneration;

use super::text::{field_string, number, number_behind};
use crate::bounds::{POLICIES_KEPT, SPREAD_PERCENT};
use crate::verdict::{Absence, decided_at, share_left};
use crate::{Answer, Verdict};

/// `RateLimit-Policy`.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `RateLimit`.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `RateLimit-Limit`.
pub const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
/// `RateLimit-Remaining`.
pub const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
/// `RateLimit-Reset`.
pub const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
/// `X-RateLimit-Limit`.
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// `X-RateLimit-Remaining`.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// `X-RateLimit-Reset`.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// `X-RateLimit-Retry-After`.
pub const X_RATELIMIT_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
/// `Retry-After-Ms`.
pub const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Every field that [`insert`] may write. A proxy removes those that a client sent.
pub const ALL: [HeaderName; 11] = [
    RATELIMIT_POLICY,
    RATELIMIT,
    RATELIMIT_LIMIT,
    RATELIMIT_REMAINING,
    RATELIMIT_RESET,
    X_RATELIMIT_LIMIT,
    X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET,
    X_RATELIMIT_RETRY_AFTER,
    RETRY_AFTER,
    RETRY_AFTER_MS,
];

/// Writes the fields for a verdict, in place of any of the same names.
///
/// `now` is the store's time, for the one field that is a moment ([`Limiter::now`]), where the verdict does not
/// know itself when it was right. `spread` is a
/// hash of whoever is asking: a denied client is told to come back after the wait that works and up
/// to 30 % later, each at its own moment, so that those who were denied together do not return
/// together. The same client is told the same. Nobody is told less than the wait, and where no wait
/// helps there is no `Retry-After`. Where none is known (a concurrency limit) it is a second.
///
/// [`Limiter::now`]: crate::Limiter::now
pub fn insert(headers: &mut HeaderMap, verdict: &Verdict, now: Timestamp, spread: u64) {
    let mut values = Values { text: Vec::with_capacity(ROOM), fields: SmallVec::new() };
    tell(&mut values, verdict, now, spread);
    values.insert_into(headers);
}

/// Writes the same fields as HTTP/1.1 has them, a line each, to the end of `out`.
pub fn write(out: &mut Vec<u8>, verdict: &Verdict, now: Timestamp, spread: u64) {
    let is_of_names = |generation: &&HeaderGeneration| **generation != HeaderGeneration::XRateLimit;
    let generations = &verdict.policy.policy.settings().headers;
    if generations.iter().filter(is_of_names).count() <= 1 {
        return tell(&mut Lines(out), verdict, now, spread);
    }
    // Of several generations that know the same names, the last is written in the place of the first.
    let mut headers = HeaderMap::new();
    insert(&mut headers, verdict, now, spread);
    for (name, value) in &headers {
        Lines(out).add(name, |out| out.extend_from_slice(value.as_bytes()));
    }
}

fn tell(fields: &mut impl Fields, verdict: &Verdict, now: Timestamp, spread: u64) {
    let retry = verdict.absence().map(|absence| Retry::new(absence, spread));
    if let Some(retry) = &retry {
        fields.add(&RETRY_AFTER, |out| number(out, retry.seconds));
        fields.add(&RETRY_AFTER_MS, |out| number(out, retry.millis));
    }
    let told = Told::new(verdict, now, retry);
    for generation in &verdict.policy.policy.settings().headers {
        match generation {
            HeaderGeneration::Draft11 => told.draft_11(fields),
            HeaderGeneration::XRateLimit => told.x_ratelimit(fields),
            HeaderGeneration::Draft07 => told.draft_07(fields),
            HeaderGeneration::Draft06 => told.draft_06(fields),
            HeaderGeneration::Draft03 => told.draft_03(fields),
            _ => unreachable!("every generation is written"),
        }
    }
}

/// What the fields of a request under three or four limits take.
const ROOM: usize = 384;

/// When a denied client is told to come back.
#[derive(Clone, Copy)]
struct Retry {
    seconds: u64,
    millis: u64,
}

impl Retry {
    fn new(absence: Absence, spread: u64) -> Self {
        const SECOND: Micros = Micros::from_secs(1);
        match absence {
            Absence::For(wait) => {
                let wait = spread_over(wait, spread);
                Self { seconds: wait.as_secs_up(), millis: wait.as_millis_up() }
            }
            // There is nothing to be exact about, so nothing is rounded up either.
            Absence::Guessed => {
                Self { seconds: 1, millis: spread_over(SECOND, spread).as_millis_up() }
            }
        }
    }
}

/// The wait, and a part of what may be added to it: as large a part as `spread` is of all numbers.
fn spread_over(wait: Micros, spread: u64) -> Micros {
    let most = u128::from(wait.as_micros()) * u128::from(SPREAD_PERCENT) / 100;
    let added = (most * u128::from(spread)) >> 64;
    Micros::new(wait.as_micros().saturating_add(added as u64))
}

/// What there is to tell.
struct Told<'v> {
    verdict: &'v Verdict,
    now: Timestamp,
    retry: Option<Retry>,
    /// Every rate limit that is enforced and could count, and what it decided.
    rates: SmallVec<[(Answer<'v>, Decision); 4]>,
}

impl<'v> Told<'v> {
    fn new(verdict: &'v Verdict, now: Timestamp, retry: Option<Retry>) -> Self {
        let answers = verdict.answers().filter(Answer::is_enforced);
        let rates = answers.filter(|answer| answer.rate().is_some());
        // A wait is counted from when it was told; from later it would end in the second after its own.
        let now = decided_at(&verdict.taken).unwrap_or(now);
        let mut told = Self { verdict, now, retry, rates: SmallVec::new() };
        told.rates.extend(rates.filter_map(|answer| Some((answer, answer.decision()?))));
        told
    }

    /// Two lists over every limit that applied.
    fn draft_11(&self, fields: &mut impl Fields) {
        let spelled = &self.verdict.policy.spelled;
        fields.add_policies(spelled, self.enforced());
        fields.add_list(&RATELIMIT, self.rates.iter(), |out, (answer, decision)| {
            out.extend_from_slice(spelled.name_and_remaining(*answer));
            number(out, u64::from(decision.remaining));
            // Nothing more is to come to a limit that is whole. And a client is not told of a time
            // beyond the one at which it should try again.
            let wait = decision.next_after.map_or(0, Micros::as_secs_up);
            if wait > 0 && self.retry.is_none_or(|retry| wait <= retry.seconds) {
                number_behind(out, *b";t=", wait);
            }
        });
    }

    /// The tightest limit, as most services tell it today.
    fn x_ratelimit(&self, fields: &mut impl Fields) {
        if let Some(retry) = self.retry {
            fields.add(&X_RATELIMIT_RETRY_AFTER, |out| number(out, retry.seconds));
        }
        let Some(decision) = self.tightest() else { return };
        fields.add(&X_RATELIMIT_LIMIT, |out| number(out, u64::from(decision.limit)));
        fields.add(&X_RATELIMIT_REMAINING, |out| number(out, u64::from(decision.remaining)));
        if let Some(wait) = Answer::reset_of(decision) {
            let reset = self.now.plus(wait).as_micros().div_ceil(1_000_000);
            fields.add(&X_RATELIMIT_RESET, |out| number(out, reset));
        }
    }

    /// The tightest limit as one dictionary, and the windows of all.
    fn draft_07(&self, fields: &mut impl Fields) {
        if let Some(decision) = self.tightest() {
            fields.add(&RATELIMIT, |out| {
                out.extend_from_slice(b"limit=");
                number(out, u64::from(decision.limit));
                out.extend_from_slice(b", remaining=");
                number(out, u64::from(decision.remaining));
                out.extend_from_slice(b", reset=");
                number(out, self.reset(decision));
            });
        }
        fields.add_list(&RATELIMIT_POLICY, self.windows(), push_window);
    }

    /// The tightest limit in three fields, and the windows of all in a fourth.
    fn draft_06(&self, fields: &mut impl Fields) {
        if let Some(decision) = self.tightest() {
            fields.add(&RATELIMIT_LIMIT, |out| number(out, u64::from(decision.limit)));
            self.remaining_and_reset(fields, decision);
        }
        fields.add_list(&RATELIMIT_POLICY, self.windows(), push_window);
    }

    /// The tightest limit in three fields, the windows of all in the first of them.
    fn draft_03(&self, fields: &mut impl Fields) {
        let Some(decision) = self.tightest() else { return };
        fields.add(&RATELIMIT_LIMIT, |out| {
            number(out, u64::from(decision.limit));
            for window in self.windows() {
                out.extend_from_slice(b", ");
                push_window(out, window);
            }
        });
        self.remaining_and_reset(fields, decision);
    }

    fn remaining_and_reset(&self, fields: &mut impl Fields, decision: &Decision) {
        fields.add(&RATELIMIT_REMAINING, |out| number(out, u64::from(decision.remaining)));
        fields.add(&RATELIMIT_RESET, |out| number(out, self.reset(decision)));
    }

    /// Seconds until more can be taken, as the older drafts tell them. They require the figure, so
    /// one beyond the time to try again is brought back to that.
    fn reset(&self, decision: &Decision) -> u64 {
        let wait = decision.next_after.map_or(0, Micros::as_secs_up);
        self.retry.map_or(wait, |retry| wait.min(retry.seconds))
    }

    fn enforced(&self) -> impl Iterator<Item = Answer<'_>> + Clone {
        self.verdict.answers().filter(Answer::is_enforced)
    }

    /// The rates whose window is one that a field can tell.
    fn windows(&self) -> impl Iterator<Item = (u32, u64)> {
        let rates = self.enforced().filter_map(|answer| answer.rate());
        rates.filter_map(|rate| Some((rate.count(), whole_seconds(rate)?)))
    }

    /// As [`Verdict::tightest`] has it.
    fn tightest(&self) -> Option<&Decision> {
        let decisions = self.rates.iter().map(|(_, decision)| decision);
        decisions.min_by_key(|decision| share_left(decision))
    }
}

/// The parameter that says what remains.
const REMAINING: &[u8] = b";r=";

/// What is said of limits whoever asks, spelled out once for all requests.
#[derive(Debug)]
pub(crate) struct Spelled {
    /// No other has it.
    id: u64,
    /// Names of rules, in quotes, and how it is said of one what remains: `"name";r=`.
    names: Vec<Box<[u8]>>,
    /// How much limits allow.
    amounts: Vec<Box<[u8]>>,
    /// Their rates as they are written; nothing of concurrency limits.
    rates: Vec<Option<Box<str>>>,
}

impl Spelled {
    pub(crate) fn new<'p>(
        names: impl Iterator<Item = &'p str>,
        limits: impl Iterator<Item = (&'p Limit, Option<Quota>)>,
    ) -> Self {
        let name = |name: &str| {
            written(|out| {
                field_string(out, name);
                out.extend_from_slice(REMAINING);
            })
        };
        let spell = |(limit, rate): (&Limit, Option<Quota>)| {
            let amount = written(|out| push_amount(out, limit, rate));
            (amount, rate.map(|rate| rate.to_string().into()))
        };
        static SPELLED: AtomicU64 = AtomicU64::new(0);
        let id = SPELLED.fetch_add(1, Ordering::Relaxed);
        let (amounts, rates) = limits.map(spell).unzip();
        Self { id, names: names.map(name).collect(), amounts, rates }
    }

    /// The rate of a limit; none of a concurrency limit.
    pub(super) fn rate(&self, answer: Answer<'_>) -> Option<&str> {
        self.rates[answer.limit_number()].as_deref()
    }

    fn name_and_remaining(&self, answer: Answer<'_>) -> &[u8] {
        &self.names[answer.rule_number()]
    }

    /// What a limit allows, with its name.
    fn push_policy(&self, out: &mut Vec<u8>, answer: Answer<'_>) {
        let name = self.name_and_remaining(answer);
        out.extend_from_slice(&name[..name.len() - REMAINING.len()]);
        out.extend_from_slice(&self.amounts[answer.limit_number()]);
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Box<[u8]> {
    let mut out = Vec::new();
    write(&mut out);
    out.into()
}

/// The rate as written and a burst beside it, or the slots of a concurrency limit.
fn push_amount(out: &mut Vec<u8>, limit: &Limit, rate: Option<Quota>) {
    let Some(rate) = rate else {
        parameter(out, "q", u64::from(limit.capacity()));
        out.extend_from_slice(b";qu=\"concurrent-requests\"");
        return;
    };
    parameter(out, "q", u64::from(rate.count()));
    if let Some(window) = whole_seconds(rate) {
        parameter(out, "w", window);
    }
    if limit.capacity() != rate.count() {
        parameter(out, "tollgate-burst", u64::from(limit.capacity()));
    }
}

/// The window, if it is whole seconds: fields know no others, and 5 every millisecond told as 5
/// every second would slow an obedient client down a thousandfold.
fn whole_seconds(rate: Quota) -> Option<u64> {
    let micros = rate.period().as_micros();
    micros.is_multiple_of(1_000_000).then_some(micros / 1_000_000)
}

fn push_window(out: &mut Vec<u8>, (count, window): (u32, u64)) {
    number(out, u64::from(count));
    parameter(out, "w", window);
}

fn parameter(out: &mut Vec<u8>, name: &str, value: u64) {
    out.push(b';');
    out.extend_from_slice(name.as_bytes());
    out.push(b'=');
    number(out, value);
}

/// Where fields are written to.
trait Fields {
    /// Adds a field, whose value is `write`'s to write; none if that writes nothing.
    fn add(&mut self, name: &HeaderName, write: impl FnOnce(&mut Vec<u8>));

    /// A field that lists something, unless there is nothing to list.
    fn add_list<T>(
        &mut self,
        name: &HeaderName,
        items: impl Iterator<Item = T>,
        write: impl FnMut(&mut Vec<u8>, T),
    ) {
        self.add(name, |out| push_list(out, items, write));
    }

    /// The field that lists what limits allow, whatever became of the request.
    fn add_policies<'v>(
        &mut self,
        spelled: &Spelled,
        answers: impl Iterator<Item = Answer<'v>> + Clone,
    ) {
        self.add_list(&RATELIMIT_POLICY, answers, |out, answer| {
            spelled.push_policy(out, answer);
        });
    }
}

fn push_list<T>(
    out: &mut Vec<u8>,
    items: impl Iterator<Item = T>,
    mut push: impl FnMut(&mut Vec<u8>, T),
) {
    for (place, item) in items.enumerate() {
        if place > 0 {
            out.extend_from_slice(b", ");
        }
        push(out, item);
    }
}

/// Values of fields. Those that are written lie one behind the other, so that all of them are one allocation.
struct Values {
    text: Vec<u8>,
    fields: SmallVec<[(HeaderName, Value); 12]>,
}

enum Value {
    /// One that was written here.
    Written(Range<usize>),
    /// One that is written already.
    Known(HeaderValue),
}

impl Fields for Values {
    fn add(&mut self, name: &HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.text.len();
        write(&mut self.text);
        if self.text.len() > start {
            self.fields.push((name.clone(), Value::Written(start..self.text.len())));
        }
    }

    fn add_policies<'v>(
        &mut self,
        spelled: &Spelled,
        answers: impl Iterator<Item = Answer<'v>> + Clone,
    ) {
        let known = POLICIES.with_borrow_mut(|known| known.find(spelled, answers));
        self.fields.extend(known.map(|value| (RATELIMIT_POLICY, Value::Known(value))));
    }
}

impl Values {
    /// From where they are: so many are not moved about for nothing.
    fn insert_into(&mut self, headers: &mut HeaderMap) {
        let text = Bytes::from(mem::take(&mut self.text));
        headers.reserve(self.fields.len());
        for (name, value) in self.fields.drain(..) {
            let value = match value {
                Value::Written(range) => HeaderValue::from_maybe_shared(text.slice(range))
                    .expect("only printable ASCII was written"),
                Value::Known(value) => value,
            };
            headers.insert(name, value);
        }
    }
}

thread_local! {
    /// Each thread has its own, since what all share is slow to be counted.
    static POLICIES: RefCell<Policies> = const { RefCell::new(Policies([const { None }; POLICIES_KEPT])) };
}

/// What limits allow, for the requests that came last: many are under the same.
struct Policies([Option<Known>; POLICIES_KEPT]);

struct Known {
    /// Whose words they are.
    spelled: u64,
    /// By rule and limit.
    limits: SmallVec<[(usize, usize); 4]>,
    value: HeaderValue,
}

impl Policies {
    /// The value that lists these limits, unless there are none.
    fn find<'v>(
        &mut self,
        spelled: &Spelled,
        answers: impl Iterator<Item = Answer<'v>> + Clone,
    ) -> Option<HeaderValue> {
        let numbers = |answer: Answer<'_>| (answer.rule_number(), answer.limit_number());
        let first = answers.clone().next()?.limit_number();
        let place = &mut self.0[first % POLICIES_KEPT];
        if let Some(known) = place
            && known.spelled == spelled.id
            && known.limits.iter().copied().eq(answers.clone().map(numbers))
        {
            return Some(known.value.clone());
        }
        let push_policy = |out: &mut Vec<u8>, answer| spelled.push_policy(out, answer);
        let value = written(|out| push_list(out, answers.clone(), push_policy));
        let value = HeaderValue::from_maybe_shared(Bytes::from(value));
        let value = value.expect("only printable ASCII was written");
        let limits = answers.map(numbers).collect();
        *place = Some(Known { spelled: spelled.id, limits, value: value.clone() });
        Some(value)
    }
}

/// Lines of fields as they are sent.
struct Lines<'o>(&'o mut Vec<u8>);

impl Fields for Lines<'_> {
    fn add(&mut self, name: &HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let Self(out) = self;
        let start = out.len();
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        let value = out.len();
        write(out);
        match out.len() > value {
            true => out.extend_from_slice(b"\r\n"),
            false => out.truncate(start),
        }
    }
}
