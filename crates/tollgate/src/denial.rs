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
}

/// Is shown the key of a limit, and the wait that it tells.
type ShowLimit<'s> = dyn FnMut(&str, Option<Micros>) + 's;

impl Denial<'_> {
    /// Shows each limit that refuses the request to `show`: the key it counts under, as it may be
    /// shown, and the shortest wait after which it would let it through, if one helps. The texts are
    /// made for this, so who does not want them does not pay for them.
    pub fn each_limit(&self, mut show: impl FnMut(&str, Option<Micros>)) {
        (self.limits)(&mut show);
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

    /// Tells of a request that was refused before its limits said anything, or since they could not: as
    /// one of many such if there are many.
    #[cold]
    pub(crate) fn tell<'a>(
        &self,
        clock: &Clock,
        ruling: Ruling,
        said: &(impl Iterator<Item = Said<'a>> + Clone),
        write: impl Fn(usize, &mut String),
    ) {
        let is_refused = matches!(ruling, Ruling::Uncounted | Ruling::Blocked | Ruling::UnknownKey);
        if is_refused && self.0.get().is_some() {
            let now = clock.now();
            self.tell_of(now, Turn::weight_of_denial(now), ruling, said, write);
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
        sink.refused(&Denial { at, ruling, weight, limits: &limits });
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Record").field(&self.0.get().is_some()).finish()
    }
}
