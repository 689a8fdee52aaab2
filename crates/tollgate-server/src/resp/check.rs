//! `TG.CHECK`: what the policy says.
//!
//! `TG.CHECK name value … [COST n]` answers allowed, limit, remaining, milliseconds until a retry
//! would work or −1, milliseconds until the limit is whole, the limit's name, and milliseconds to
//! hold an allowed request. The limit that is told of is the one that denies for longest, or, of an
//! allowed request, the one with the smallest share left. When no limit has figures to tell, the
//! name is a word in parentheses that says why, and the figures are −1: no limit's name has
//! parentheses.

use std::cmp::Reverse;
use std::str;

use smallvec::SmallVec;
use tollgate::bounds::TOGETHER;
use tollgate::{Answer, Cost, Decision, End, Limiter, Micros, Request, Ruling, Verdict};

use super::reply::{Complaint, Replies, Shown};
use super::throttle::number;
use crate::attributes::are_one;

/// Checks that follow each other in one read, to be asked together.
#[derive(Default)]
pub(super) struct Batch<'b> {
    /// Those of all, behind each other.
    attributes: SmallVec<[(&'b str, &'b [u8]); 2 * TOGETHER]>,
    /// Where the attributes of each end, and what it costs.
    checks: SmallVec<[(usize, Cost); TOGETHER]>,
}

impl<'b> Batch<'b> {
    /// Reads the words after the command's name, and asks if there are enough.
    pub(super) fn push(
        &mut self,
        words: &[&'b [u8]],
        limiter: &Limiter,
        replies: &mut Replies<'_>,
    ) -> Result<(), Complaint> {
        let before = self.attributes.len();
        let cost = self.read(words).inspect_err(|_| self.attributes.truncate(before))?;
        self.checks.push((self.attributes.len(), cost));
        // Where answers come later there is nothing to fetch.
        if self.checks.len() == TOGETHER || limiter.store().memory().is_none() {
            self.ask(limiter, replies);
        }
        Ok(())
    }

    /// Asks what has not been asked, each check on its own, and replies in their order.
    #[inline]
    pub(super) fn ask(&mut self, limiter: &Limiter, replies: &mut Replies<'_>) {
        if !self.checks.is_empty() {
            self.ask_all(limiter, replies);
        }
    }

    fn ask_all(&mut self, limiter: &Limiter, replies: &mut Replies<'_>) {
        let mut start = 0;
        let request = |(end, cost): &(usize, Cost)| {
            let attributes = &self.attributes[start..*end];
            start = *end;
            Request { cost: *cost, end: End::Unknown, ..Request::new(attributes) }
        };
        let requests: SmallVec<[Request<'_>; TOGETHER]> = self.checks.iter().map(request).collect();
        if !limiter.check_each(&requests, |verdict| reply(verdict, replies)) {
            requests.iter().for_each(|request| replies.write_when(limiter.ask(request), reply));
        }
        drop(requests);
        self.attributes.clear();
        self.checks.clear();
    }

    /// Pairs of name and value, of which one may be the cost.
    fn read(&mut self, words: &[&'b [u8]]) -> Result<Cost, Complaint> {
        let (pairs, []) = words.as_chunks() else {
            return Err(Complaint::new(format_args!(
                "an attribute is a name and a value, and here is a name without one"
            )));
        };
        let first = self.attributes.len();
        let mut cost = None;
        for &[name, value] in pairs {
            let is_repeated = if name.eq_ignore_ascii_case(b"cost") {
                cost.replace(number("cost", value)?).is_some()
            } else {
                let Ok(text) = str::from_utf8(name) else {
                    let name = Shown(name);
                    let sentence = format_args!("the attribute name {name} is not UTF-8");
                    return Err(Complaint::new(sentence));
                };
                let is_known =
                    self.attributes[first..].iter().any(|(known, _)| are_one(known, text));
                self.attributes.push((text, value));
                is_known
            };
            if is_repeated {
                let name = Shown(name);
                return Err(Complaint::new(format_args!("{name} is given twice; once is enough")));
            }
        }
        Ok(cost.map_or(Cost::ONE, Cost::new))
    }
}

fn reply(verdict: &Verdict, replies: &mut Replies<'_>) {
    if let Err(complaint) = tell(verdict, replies) {
        replies.error(&complaint);
    }
}

fn tell(verdict: &Verdict, replies: &mut Replies<'_>) -> Result<(), Complaint> {
    let told = match verdict.ruling() {
        Ruling::Allowed => verdict.tightest(),
        Ruling::Denied => denier(verdict),
        Ruling::Uncounted | Ruling::Exempt | Ruling::Blocked | Ruling::UnknownKey => None,
        Ruling::BadCost => {
            return Err(Complaint::new(format_args!(
                "a limit takes its cost from an attribute, and what was sent there is not a whole \
                 number from 0 to {}",
                u32::MAX
            )));
        }
    };
    let told = told.and_then(|answer| Some((answer, answer.decision()?)));
    let figures = told.as_ref().map(|(_, decision)| decision);
    let name =
        told.as_ref().map_or_else(|| why_none(verdict), |(answer, _)| &**answer.rule().name());
    replies.array(7);
    replies.integer(i64::from(verdict.is_allowed()));
    replies.integer(figures.map_or(-1, |decision| decision.limit.into()));
    replies.integer(figures.map_or(-1, |decision| decision.remaining.into()));
    replies.integer(verdict.retry_after().map_or(-1, millis));
    replies.integer(figures.and_then(Answer::reset_of).map_or(-1, millis));
    replies.bulk(name.as_bytes());
    replies.integer(millis(verdict.delay()));
    Ok(())
}

fn millis(wait: Micros) -> i64 {
    wait.as_millis_up() as i64
}

/// The limit that denies for longest; the first of several.
fn denier(verdict: &Verdict) -> Option<Answer<'_>> {
    let wait = |decision: &Decision| decision.retry_after().map_or(u64::MAX, Micros::as_micros);
    verdict
        .answers()
        .filter(|answer| answer.is_enforced() && !answer.is_allowed())
        .filter_map(|answer| Some((wait(&answer.decision()?), answer)))
        .min_by_key(|(wait, _)| Reverse(*wait))
        .map(|(_, answer)| answer)
}

/// Why no limit has figures to tell.
fn why_none(verdict: &Verdict) -> &'static str {
    match verdict.ruling() {
        Ruling::Exempt => "(exempt)",
        Ruling::Blocked => "(blocked)",
        Ruling::UnknownKey => "(unknown-key)",
        Ruling::Allowed if !verdict.answers().any(|answer| answer.is_enforced()) => "(none)",
        Ruling::Allowed | Ruling::Denied | Ruling::Uncounted | Ruling::BadCost => "(uncounted)",
    }
}
