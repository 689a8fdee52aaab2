//! Checks: what may a request do, as told by whoever asks for it.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;

use http::StatusCode;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use smallvec::SmallVec;
use tollgate::http::{fields, json, query, status};
use tollgate::{Asked, Cost, Keys, Request, Verdict, Waiting};

use super::object::Object;
use crate::attributes::are_one;
use crate::bounds::{ATTRIBUTE_BYTES_MAX, ATTRIBUTES_MAX, BATCH_BYTES_MAX, BATCH_MAX};
use crate::delivery::giving;
use crate::gate::Gate;
use crate::http1::{self, Answer};
use crate::leases::Given;

/// One check, as it is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check<'a> {
    #[serde(borrow, default)]
    pub(super) attributes: Attributes<'a>,
    #[serde(default)]
    pub(super) cost: Units,
}

/// Names and values, in the order sent.
#[derive(Debug, Default)]
pub(crate) struct Attributes<'a>(pub(super) SmallVec<[Attribute<'a>; FEW]>);

/// Attributes of a check that need no allocation: more of them would be moved around for those who send few.
const FEW: usize = 2;

pub(crate) type Attribute<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

/// What a check costs: one unless said.
#[derive(Debug)]
pub(crate) struct Units(pub(crate) Cost);

impl Default for Units {
    fn default() -> Self {
        Self(Cost::ONE)
    }
}

const EXAMPLE: &str = r#"send for example {"attributes": {"user": "42"}, "cost": 1}"#;
const NOT_A_COST: &str = "a whole number from 0 to 4294967295";

/// `GET /v1/check?user=42&cost=1`.
pub(super) fn by_query(text: &str, gate: &Arc<Gate>) -> Asked<Answer> {
    answer(Check::from_query(text), gate)
}

/// `POST /v1/check`.
pub(super) fn by_body(body: &[u8], gate: &Arc<Gate>) -> Asked<Answer> {
    answer(Check::from_body(body), gate)
}

fn answer(check: Result<Check<'_>, String>, gate: &Arc<Gate>) -> Asked<Answer> {
    match check {
        Ok(check) => check.answer(gate),
        Err(sentence) => Asked::Ready(refusal(&sentence)),
    }
}

/// The answer to what cannot be read as a check.
pub(super) fn refusal(sentence: &str) -> Answer {
    http1::problem(StatusCode::BAD_REQUEST, sentence)
}

/// `POST /v1/check/batch`: each check on its own, the answers in the same order.
pub(super) fn batch(body: &[u8], gate: &Arc<Gate>) -> Asked<Answer> {
    let refused = |status, sentence: &str| Asked::Ready(http1::problem(status, sentence));
    let (checks, count) = match serde_json::from_slice(body) {
        Ok(Batch { checks, count }) => (checks, count),
        Err(error) => {
            let sentence = format!("{error}; send an array of checks, {EXAMPLE} each");
            return refused(StatusCode::BAD_REQUEST, &sentence);
        }
    };
    if count > BATCH_MAX {
        let sentence = format!("there are {count} checks in it; {BATCH_MAX} may be");
        return refused(StatusCode::PAYLOAD_TOO_LARGE, &sentence);
    }
    if is_long(&checks, gate) {
        let sentence = format!(
            "the answer would have more than {BATCH_BYTES_MAX} bytes, since so many limits apply; \
             nothing was decided, ask in smaller batches"
        );
        return refused(StatusCode::PAYLOAD_TOO_LARGE, &sentence);
    }
    let mut keys = Keys::default();
    let (mut body, mut given) = (vec![b'['], Vec::new());
    let mut rest: Vec<(Asked<Verdict>, Keys)> = Vec::new();
    for Object(check) in &checks {
        let asked = check.ask(|request| gate.limiter.ask_showing(request, &mut keys));
        match asked {
            Asked::Ready(verdict) if rest.is_empty() => {
                given.extend(write_next(&mut body, verdict, &keys, gate));
            }
            // All are asked before the first answer is waited for, so that they travel together.
            asked => rest.push((asked, mem::take(&mut keys))),
        }
    }
    if rest.is_empty() {
        return Asked::Ready(written(body, given));
    }
    let gate = Arc::clone(gate);
    Asked::later(async move {
        for (asked, keys) in rest {
            given.extend(write_next(&mut body, asked.await, &keys, &gate));
        }
        written(body, given)
    })
}

/// Adds the next verdict of a batch.
fn write_next(
    body: &mut Vec<u8>,
    mut verdict: Verdict,
    keys: &Keys,
    gate: &Arc<Gate>,
) -> Option<Given> {
    if body.len() > 1 {
        body.push(b',');
    }
    write(body, &mut verdict, keys, gate)
}

/// The answer to a batch of which all verdicts are in.
fn written(mut body: Vec<u8>, given: Vec<Given>) -> Answer {
    body.push(b']');
    giving(http1::json(StatusCode::OK, body), given)
}

/// Writes a verdict to the end of `body`; a lease that belongs to it is given with the answer.
pub(super) fn write(
    body: &mut Vec<u8>,
    verdict: &mut Verdict,
    keys: &Keys,
    gate: &Arc<Gate>,
) -> Option<Given> {
    let given = verdict.take_lease().map(|lease| Given::new(lease, gate));
    json::write(body, verdict, keys, given.as_ref().map(Given::name));
    given
}

/// The checks of a batch, and how many there are: those beyond what may be are counted, not kept.
struct Batch<'a> {
    checks: Vec<Object<Check<'a>>>,
    count: usize,
}

/// What is said of one limit at most, beside its key; of a check itself it is less.
const LIMIT_BYTES: usize = 350;

/// A byte of a value is up to three in a key.
const ENCODED: usize = 3;

/// Whether more would be said of these checks than an answer may hold. Looked at before anything is
/// charged: a caller who gets no answer must not have paid.
fn is_long(checks: &[Object<Check<'_>>], gate: &Gate) -> bool {
    // Nearly always it is seen at once that there is room.
    let limits = gate.limiter.with_policy(|policy| policy.rules().len());
    let values = checks.iter().map(|Object(check)| check.attributes.bytes()).sum::<usize>();
    if (checks.len() * LIMIT_BYTES + values * ENCODED) * (1 + limits) <= BATCH_BYTES_MAX {
        return false;
    }
    let mut bytes = 0;
    checks.iter().any(|Object(check)| {
        let keys = check.ask(|request| gate.limiter.keys(request));
        bytes += LIMIT_BYTES + keys.iter().map(|key| LIMIT_BYTES + key.len()).sum::<usize>();
        bytes > BATCH_BYTES_MAX
    })
}

impl<'a> Check<'a> {
    /// What a body asks for, or the sentence that says why it cannot be read.
    pub(super) fn from_body(body: &'a [u8]) -> Result<Self, String> {
        let read = serde_json::from_slice(body);
        read.map(|Object(check)| check).map_err(|error| format!("{error}; {EXAMPLE}"))
    }

    /// The same of a query.
    pub(super) fn from_query(text: &'a str) -> Result<Self, String> {
        let mut check = Self { attributes: Attributes::default(), cost: Units::default() };
        let mut costs = 0;
        for (name, value) in query::pairs(text) {
            let Some(name) = as_text(name) else {
                return Err("a name in the query is not UTF-8 text".to_owned());
            };
            if name != "cost" {
                check.attributes.add(name, value)?;
                continue;
            }
            costs += 1;
            let digits = std::str::from_utf8(&value).unwrap_or_default();
            check.cost = Units(digits.parse().map_err(|error| format!("cost: {error}"))?);
        }
        if costs > 1 {
            return Err("the cost is sent twice".to_owned());
        }
        Ok(check)
    }

    /// Decides, and answers with everything there is to say.
    fn answer(&self, gate: &Arc<Gate>) -> Asked<Answer> {
        let mut keys = Keys::default();
        let tell = |verdict: &mut Verdict, keys: &Keys| {
            let spread = self.spread(verdict, gate);
            told(verdict, keys, spread, gate)
        };
        match self.ask(|request| gate.limiter.check_showing(request, &mut keys, tell)) {
            Ok(answer) => Asked::Ready(answer),
            Err(waiting) => Asked::Waiting(self.answer_later(waiting, keys, gate)),
        }
    }

    /// Answers with everything there is to say when the verdict is there.
    pub(super) fn answer_later(
        &self,
        waiting: Waiting<Verdict>,
        keys: Keys,
        gate: &Arc<Gate>,
    ) -> Waiting<Answer> {
        let (gate, spread) = (Arc::clone(gate), gate.spread(&self.attributes.0));
        Waiting::new(async move { told(&mut waiting.await, &keys, spread, &gate) })
    }

    /// What spreads the wait that a verdict tells, if it may tell one.
    pub(super) fn spread(&self, verdict: &Verdict, gate: &Gate) -> u64 {
        if verdict.is_allowed() { 0 } else { gate.spread(&self.attributes.0) }
    }

    /// Asks what `question` asks of a request.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&Request<'_>) -> T) -> T {
        let attributes: SmallVec<[(&str, &[u8]); 8]> =
            self.attributes.0.iter().map(|(name, value)| (&**name, &**value)).collect();
        question(&Request { cost: self.cost.0, ..Request::new(&attributes) })
    }
}

/// The answer to one check.
pub(super) fn told(verdict: &mut Verdict, keys: &Keys, spread: u64, gate: &Arc<Gate>) -> Answer {
    let mut body = Vec::with_capacity(512);
    let given = write(&mut body, verdict, keys, gate);
    let mut answer = http1::json(status(verdict), body);
    fields::insert(answer.headers_mut(), verdict, gate.limiter.now(), spread);
    giving(answer, Vec::from_iter(given))
}

fn as_text(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

impl<'a> Attributes<'a> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Attribute<'a>> {
        self.0.iter()
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(_, value)| value.len()).sum()
    }

    fn add(&mut self, name: Cow<'a, str>, value: Cow<'a, [u8]>) -> Result<(), String> {
        if self.0.len() >= ATTRIBUTES_MAX {
            return Err(format!("a check may have {ATTRIBUTES_MAX} attributes"));
        }
        if self.bytes() + value.len() > ATTRIBUTE_BYTES_MAX {
            return Err(format!("the attributes of a check may have {ATTRIBUTE_BYTES_MAX} bytes"));
        }
        if self.0.iter().any(|(known, _)| are_one(known, &name)) {
            return Err(format!("attribute {name:?} is sent twice"));
        }
        self.0.push((name, value));
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Batch<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Array<'a>(PhantomData<&'a str>);
        impl<'de: 'a, 'a> Visitor<'de> for Array<'a> {
            type Value = Batch<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of checks")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
                let mut checks = Vec::new();
                while checks.len() < BATCH_MAX
                    && let Some(check) = array.next_element()?
                {
                    checks.push(check);
                }
                let mut count = checks.len();
                while array.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Batch { checks, count })
            }
        }
        deserializer.deserialize_seq(Array(PhantomData))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<'a>(PhantomData<&'a str>);
        impl<'de: 'a, 'a> Visitor<'de> for Pairs<'a> {
            type Value = Attributes<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of names and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut attributes = Attributes::default();
                while let Some((Text(name), Text(value))) = map.next_entry::<Text<'de>, _>()? {
                    let value = match value {
                        Cow::Borrowed(value) => Cow::Borrowed(value.as_bytes()),
                        Cow::Owned(value) => Cow::Owned(value.into_bytes()),
                    };
                    attributes.add(name, value).map_err(A::Error::custom)?;
                }
                Ok(attributes)
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// A text, or a number or truth value as it is written.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;
        impl<'de> Visitor<'de> for Value {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a whole number, true or false")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_bool<E: de::Error>(self, truth: bool) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(if truth { "true" } else { "false" })))
            }
        }
        deserializer.deserialize_any(Value)
    }
}

impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Units;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(NOT_A_COST)
            }

            fn visit_u64<E: de::Error>(self, units: u64) -> Result<Units, E> {
                let units = u32::try_from(units);
                let units = units.map_err(|_| {
                    E::custom(format_args!("a cost is {NOT_A_COST}, and this is more"))
                })?;
                Ok(Units(Cost::new(units)))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

/// What a body or query can be read as. For tests and fuzzing.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAs {
    pub is_body: bool,
    /// Checks of a batch.
    pub batch: usize,
    pub is_query: bool,
}

/// Reads a check in every way there is. For tests and fuzzing.
#[doc(hidden)]
pub fn read_checks(bytes: &[u8]) -> ReadAs {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    ReadAs {
        is_body: serde_json::from_slice::<Object<Check<'_>>>(bytes).is_ok(),
        batch: serde_json::from_slice::<Batch<'_>>(bytes).map_or(0, |batch| batch.count),
        is_query: Check::from_query(text).is_ok(),
    }
}
