//! What limits are owed for a request whose cost its response tells.
//!
//! A reserve was charged when the request came. A bill follows the response by, and when it is dropped,
//! which happens once and whatever ends the response, brings the charges to what is known then. So
//! nothing has to be told when a response ends, and none is forgotten.
//!
//! Where nothing is known the reserve stays charged: whoever hangs up in time would otherwise go
//! without limits. Only a failure of the service that says nothing is given back whole.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use ::http::{HeaderMap, Response};
use bytes::{Buf, Bytes};
use http_body::Frame;
use smallvec::SmallVec;
use tollgate_store::{Claim, Origin, Receipt};

use crate::http::settle::{CostReader, Form};
use crate::{Asked, Cost, Limiter, Mode, OnExhausted, Rule, Settle, Taken, Verdict, Waiting};

/// What a request has cost, where its service knows: an extension that it adds to the response. It
/// counts for every limit whose cost is settled, whatever the response says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent(pub Cost);

/// The charges of one request that are to be settled.
pub(super) struct Bill {
    limiter: Arc<Limiter>,
    origin: Option<Arc<Origin>>,
    items: SmallVec<[Item; 1]>,
    /// One for each way in which the response tells its cost.
    meters: SmallVec<[Meter; 1]>,
    /// Whether the service failed, and so what costs nothing unless it is told.
    has_failed: bool,
    /// Charges on their way, and for which items.
    charging: SmallVec<[(usize, Waiting<Taken>); 1]>,
    /// The limit that the response has outgrown, if it is to end then.
    outgrown: Option<Arc<str>>,
}

/// What one limit was charged.
struct Item {
    limit: Arc<str>,
    place: usize,
    meter: usize,
    /// Names what can still be changed; nothing while that is on its way, or if nobody knows.
    receipt: Option<Receipt>,
    charged: Cost,
    is_cut: bool,
}

/// Tells what a response cost so far.
struct Meter {
    settle: Settle,
    reading: Reading,
}

enum Reading {
    /// What was said, if something was.
    Said(Option<Cost>),
    Json(Box<CostReader>),
    Bytes(u64),
}

/// Whether some limit waits to be told what a request cost.
pub(super) fn is_awaited(verdict: &Verdict) -> bool {
    // The first of them is at hand, and true of few.
    verdict.answers().any(|answer| is_settled(answer.rule()))
}

/// Whether some limit looks for that in the body of the response.
pub(super) fn is_in_body(verdict: &Verdict) -> bool {
    verdict.answers().any(|answer| matches!(answer.rule().settle(), Some(Settle::Json(_))))
}

fn is_settled(rule: &Rule) -> bool {
    rule.has_own_cost() && rule.settle().is_some()
}

impl Bill {
    /// What is owed if the request comes to nothing: nothing.
    pub(super) fn of_failure(limiter: Arc<Limiter>, verdict: &Verdict) -> Self {
        Self::new(limiter, verdict, true, |_| Reading::Said(None))
    }

    /// What is owed for a response, as far as its head tells.
    pub(super) fn of<R>(limiter: Arc<Limiter>, verdict: &Verdict, response: &Response<R>) -> Self {
        let spent = response.extensions().get().map(|&Spent(cost)| cost);
        let headers = response.headers();
        Self::new(limiter, verdict, response.status().is_server_error(), |settle| match settle {
            _ if spent.is_some() => Reading::Said(spent),
            Settle::Header(name) => Reading::Said(said(headers, name)),
            Settle::Json(path) if is_plain(headers) => {
                let kind = headers.get(CONTENT_TYPE).map(AsRef::as_ref);
                Reading::Json(Box::new(CostReader::new(path, Form::of(kind))))
            }
            Settle::Json(_) => Reading::Said(None),
            Settle::Body => Reading::Bytes(0),
        })
    }

    fn new(
        limiter: Arc<Limiter>,
        verdict: &Verdict,
        has_failed: bool,
        read: impl Fn(&Settle) -> Reading,
    ) -> Self {
        let (mut items, mut meters) = (SmallVec::new(), SmallVec::<[Meter; 1]>::new());
        for (place, (answer, entry)) in verdict.answers().zip(&verdict.taken).enumerate() {
            let rule = answer.rule();
            // A limit in shadow may have denied what went on, and was not charged for it.
            let (Some(settle), Some(receipt), true) =
                (rule.settle(), entry.taken.receipt(), entry.taken.is_allowed())
            else {
                continue;
            };
            let known = meters.iter().position(|meter| meter.settle == *settle);
            let meter = known.unwrap_or(meters.len());
            if known.is_none() {
                meters.push(Meter { settle: settle.clone(), reading: read(settle) });
            }
            items.push(Item {
                limit: Arc::clone(rule.name()),
                place,
                meter,
                charged: Claim::new(receipt, None, place).cost(),
                receipt: Some(receipt),
                is_cut: rule.on_exhausted() == OnExhausted::Cut && rule.mode() == Mode::Enforce,
            });
        }
        let origin = verdict.origin.clone();
        Self {
            limiter,
            origin,
            items,
            meters,
            has_failed,
            charging: SmallVec::new(),
            outgrown: None,
        }
    }

    /// Reads a part of the response that passes, and charges what it adds where that is not left to
    /// the end.
    pub(super) fn read<D: Buf + From<Bytes>>(&mut self, frame: Frame<D>) -> Frame<D> {
        let frame = self.measure(frame);
        for item in 0..self.items.len() {
            let is_behind = self.cost(&self.items[item]) > self.items[item].charged;
            if !self.items[item].is_cut || !is_behind {
                continue;
            }
            match self.charge(item) {
                Some(Asked::Ready(taken)) => self.note(item, &taken),
                Some(Asked::Waiting(waiting)) => self.charging.push((item, waiting)),
                None => {}
            }
        }
        frame
    }

    fn measure<D: Buf + From<Bytes>>(&mut self, frame: Frame<D>) -> Frame<D> {
        if let Some(trailers) = frame.trailers_ref() {
            self.meters.iter_mut().for_each(|meter| meter.read_trailers(trailers));
            return frame;
        }
        let is_text = |meter: &Meter| matches!(meter.reading, Reading::Json(_));
        match frame.into_data() {
            Ok(mut data) if self.meters.iter().any(is_text) => {
                // What is in one piece already is not copied.
                let bytes = data.copy_to_bytes(data.remaining());
                self.meters.iter_mut().for_each(|meter| meter.read(&bytes, bytes.len()));
                Frame::data(bytes.into())
            }
            Ok(data) => {
                self.meters.iter_mut().for_each(|meter| meter.read(&[], data.remaining()));
                Frame::data(data)
            }
            Err(frame) => frame,
        }
    }

    /// Ready when it is known of everything that was charged what came of it: with the limit that is
    /// past its end then, if there is one.
    pub(super) fn poll_charged(&mut self, context: &mut Context<'_>) -> Poll<Option<&Arc<str>>> {
        while let Some((item, waiting)) = self.charging.last_mut() {
            let (item, taken) = (*item, ready!(Pin::new(waiting).poll(context)));
            self.charging.pop();
            self.note(item, &taken);
        }
        Poll::Ready(self.outgrown.as_ref())
    }

    /// Brings what an item was charged to what is known now; nothing if it is that already.
    fn charge(&mut self, item: usize) -> Option<Asked<Taken>> {
        let cost = self.cost(&self.items[item]);
        let Self { limiter, origin, items, .. } = self;
        let item = &mut items[item];
        let charged = mem::replace(&mut item.charged, cost);
        let claim = Claim::new(item.receipt.take()?, origin.as_ref(), item.place);
        // What was charged as it passed has no receipt, and stays charged.
        let open = u64::from(claim.cost().units()) + u64::from(cost.units());
        let open = cost_of(open.saturating_sub(u64::from(charged.units())));
        (open != claim.cost()).then(|| limiter.store().settle(&claim, open))
    }

    fn note(&mut self, item: usize, taken: &Taken) {
        let item = &mut self.items[item];
        item.receipt = taken.open_receipt();
        if !taken.is_allowed() {
            self.outgrown = Some(Arc::clone(&item.limit));
        }
    }

    fn cost(&self, item: &Item) -> Cost {
        let unsaid = if self.has_failed { Cost::PEEK } else { item.charged };
        self.meters[item.meter].cost().unwrap_or(unsaid)
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        for item in 0..self.items.len() {
            // What is on its way gets there whether somebody waits for the answer or not.
            drop(self.charge(item));
        }
    }
}

impl Meter {
    fn read(&mut self, bytes: &[u8], length: usize) {
        match &mut self.reading {
            Reading::Said(_) => {}
            Reading::Json(reader) => reader.read(bytes),
            Reading::Bytes(passed) => *passed += length as u64,
        }
    }

    fn read_trailers(&mut self, trailers: &HeaderMap) {
        if let (Settle::Header(name), Reading::Said(unsaid @ None)) =
            (&self.settle, &mut self.reading)
        {
            *unsaid = said(trailers, name);
        }
    }

    fn cost(&self) -> Option<Cost> {
        match &self.reading {
            Reading::Said(cost) => *cost,
            Reading::Json(reader) => reader.so_far(),
            Reading::Bytes(passed) => Some(cost_of(*passed)),
        }
    }
}

/// So many units, or the most there are.
fn cost_of(units: u64) -> Cost {
    Cost::new(u32::try_from(units).unwrap_or(u32::MAX))
}

/// The cost in the one field of this name.
fn said(headers: &HeaderMap, name: &str) -> Option<Cost> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    value.to_str().ok()?.trim().parse().ok()
}

/// Whether a body can be read as it is.
pub(super) fn is_plain(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_none_or(|coding| coding == "identity")
}
