//! Telling of requests that were refused, to whoever keeps a record of them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tollgate_core::{Micros, Timestamp};
use tollgate_policy::Mode;
use tollgate_store::Clock;

use crate::metrics::Turn;
use crate::observe::Said;
use crate::verdict::{Ruling, wait_of};

/// Keeps a record of requests that were refused.
pub trait DenialSink: Send + Sync {
    /// Is called by whoever decides, with a request waiting: it must not wait for anything itself.
    fn refused(&self, denial: &Denial<'_>);
}

/// A request that was refused.
pub struct Denial<'d> {
    /// When.
    pub at: Timestamp,
    /// What became of it; nothing that may go on.
    pub ruling: Ruling,
    /// For how many such requests it stands: when very many are refused, some are told of.
    pub weight: u32,
    /// Shows each limit that refuses it.
    limits: &'d dyn Fn(&mut ShowLimit<'_>),
    /// Shows each value that is known of its sender.
    sender: &'d dyn Fn(&mut ShowValue<'_>),
}

/// Is shown the key of a limit, and the wait that it tells.
type ShowLimit<'s> = dyn FnMut(&str, Option<Micros>) + 's;

/// Is shown the name of an attribute, and its value.
pub(crate) type ShowValue<'s> = dyn FnMut(&str, &str) + 's;

impl Denial<'_> {
    /// Shows each limit that refuses the request to `show`: the key it counts under, as it may be
    /// shown, and the shortest wait after which it would let it through, if one helps. The texts are
    /// made for this, so who does not want them does not pay for them.
    pub fn each_limit(&self, mut show: impl FnMut(&str, Option<Micros>)) {
        (self.limits)(&mut show);
    }

    /// Shows what is known of the sender to `show`, if no limit was asked: what the `deny` list
    /// asked about, or the key that is not known, and the address; each by the name of the attribute
    /// and written as in keys.
    pub fn each_value(&self, mut show: impl FnMut(&str, &str)) {
        (self.sender)(&mut show);
    }
}

impl fmt::Debug for Denial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denial")
            .field("at", &self.at)
            .field("ruling", &self.ruling)
            .field("weight", &self.weight)
            .finish_non_exhaustive()
    }
}

/// Whoever keeps a record, if anybody does.
#[derive(Default)]
pub(crate) struct Record(OnceLock<Arc<dyn DenialSink>>);

impl Record {
    /// Is kept by the first who wants to.
    pub(crate) fn keep(&self, sink: Arc<dyn DenialSink>) {
        self.0.get_or_init(|| sink);
    }

    /// Tells of a request that was refused since its limits could not count: as one of many such if
    /// there are many.
    #[cold]
    pub(crate) fn tell<'a>(
        &self,
        clock: &Clock,
        ruling: Ruling,
        said: &(impl Iterator<Item = Said<'a>> + Clone),
        write: impl Fn(usize, &mut String),
    ) {
        if self.0.get().is_some() {
            let now = clock.now();
            self.tell_of(now, Turn::weight_of_denial(now), ruling, said, write);
        }
    }

    /// The same of one that was refused before any limit was asked.
    #[cold]
    pub(crate) fn tell_unasked(
        &self,
        clock: &Clock,
        ruling: Ruling,
        sender: &dyn Fn(&mut ShowValue<'_>),
    ) {
        if let (Ruling::Blocked | Ruling::UnknownKey, Some(sink)) = (ruling, self.0.get()) {
            let at = clock.now();
            let weight = Turn::weight_of_denial(at);
            if weight > 0 {
                sink.refused(&Denial { at, ruling, weight, limits: &|_| {}, sender });
            }
        }
    }

    /// The same of one that was looked at, and stands for so many. The keys of what `said` something are
    /// `write`'s to write, by their place.
    pub(crate) fn tell_of<'a>(
        &self,
        at: Timestamp,
        weight: u32,
        ruling: Ruling,
        said: &(impl Iterator<Item = Said<'a>> + Clone),
        write: impl Fn(usize, &mut String),
    ) {
        let Some(sink) = self.0.get().filter(|_| weight > 0) else { return };
        let limits = |show: &mut ShowLimit<'_>| {
            let mut text = String::new();
            for Said { place, mode, taken, .. } in said.clone() {
                if mode == Mode::Enforce && !taken.is_allowed() {
                    text.clear();
                    write(place, &mut text);
                    show(&text, taken.decision().and_then(|decision| wait_of(decision.outcome)));
                }
            }
        };
        sink.refused(&Denial { at, ruling, weight, limits: &limits, sender: &|_| {} });
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Record").field(&self.0.get().is_some()).finish()
    }
}
