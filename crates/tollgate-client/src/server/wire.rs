//! What is sent and read: see `docs/http-api.md`.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::bounds::{CHECK_ATTRIBUTES_MAX, CHECK_BYTES_MAX, RESERVATION_MAX};

/// What a server is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    attributes: Vec<(String, String)>,
    cost: u32,
}

impl Check {
    /// What is known of a request, and what it costs; 0 only looks.
    pub fn new(attributes: &[(&str, &str)], cost: u32) -> Result<Self, CheckError> {
        if attributes.len() > CHECK_ATTRIBUTES_MAX {
            return Err(CheckError::TooMany { count: attributes.len() });
        }
        let bytes = attributes.iter().map(|(_, value)| value.len()).sum();
        if bytes > CHECK_BYTES_MAX {
            return Err(CheckError::TooLong { bytes });
        }
        for (number, (name, _)) in attributes.iter().enumerate() {
            if attributes[..number].iter().any(|(earlier, _)| earlier == name) {
                return Err(CheckError::Twice { name: (*name).to_owned() });
            }
        }
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Ok(Self { attributes: attributes.iter().map(owned).collect(), cost })
    }

    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn to_json(&self) -> String {
        json!({"attributes": self.attributes(), "cost": self.cost}).to_string()
    }

    pub(super) fn to_reserve_json(&self, ttl: Duration) -> String {
        // What the server would not take is not left to the fallback.
        let ttl_ms = ttl.min(RESERVATION_MAX).as_millis().max(1) as u64;
        json!({"attributes": self.attributes(), "cost": self.cost, "ttl_ms": ttl_ms}).to_string()
    }

    fn attributes(&self) -> Map<String, Value> {
        let attributes = self.attributes.iter();
        attributes.map(|(name, value)| (name.clone(), value.as_str().into())).collect()
    }
}

/// Why something cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckError {
    /// There are too many attributes.
    TooMany {
        /// How many.
        count: usize,
    },
    /// Their values are too long.
    TooLong {
        /// How many bytes together.
        bytes: usize,
    },
    /// An attribute is there twice.
    Twice {
        /// Which.
        name: String,
    },
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { count } => {
                write!(f, "a check has {count} attributes; {CHECK_ATTRIBUTES_MAX} may be")
            }
            Self::TooLong { bytes } => {
                write!(f, "the values of a check have {bytes} bytes; {CHECK_BYTES_MAX} may be")
            }
            Self::Twice { name } => write!(f, "the attribute {name:?} is there twice"),
        }
    }
}

impl std::error::Error for CheckError {}

/// Whether a request may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// It may, after `delay`.
    pub is_allowed: bool,
    /// If not, the shortest wait that works, if one does and is known.
    pub retry_after: Option<Duration>,
    /// How long to hold it first.
    pub delay: Duration,
    /// Why it was refused, if not by a limit: `uncounted`, `blocked`, `unknown_key` or `bad_cost`.
    pub reason: Option<String>,
    /// What every limit that applied said.
    pub limits: Vec<LimitAnswer>,
    /// Names the slots it holds, to be released when the work ends.
    pub lease: Option<String>,
    /// Names what was reserved, to be settled when the cost is known.
    pub reservation: Option<String>,
    /// Who says so.
    pub source: Source,
    /// If the fallback, why the server did not.
    pub why_fallback: Option<String>,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The server.
    Server,
    /// The fallback, since the server did not answer.
    Fallback,
}

/// What one limit said. Figures that nobody knows are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    /// Its name.
    pub name: String,
    /// The key it counts under.
    pub key: String,
    /// Whether the request is within it.
    pub is_allowed: bool,
    /// How much can be taken at once when nothing was.
    pub limit: Option<u64>,
    /// How much can be taken now.
    pub remaining: Option<u64>,
    /// The shortest wait that works.
    pub retry_after: Option<Duration>,
    /// How long until it is whole again.
    pub reset_after: Option<Duration>,
    /// Whether it only watches.
    pub is_shadow: bool,
}

impl Verdict {
    pub(super) fn of_fallback(is_allowed: bool, why: String) -> Self {
        Self {
            is_allowed,
            retry_after: None,
            delay: Duration::ZERO,
            reason: None,
            limits: Vec::new(),
            lease: None,
            reservation: None,
            source: Source::Fallback,
            why_fallback: Some(why),
        }
    }

    /// Reads the answer to a check, if it is one.
    pub(super) fn read(body: &mut Value) -> Option<Self> {
        let limits = body["limits"].as_array()?.iter().map(LimitAnswer::read).collect();
        Some(Self {
            is_allowed: body["allowed"].as_bool()?,
            retry_after: millis(&body["retry_after_ms"]),
            delay: millis(&body["delay_ms"]).unwrap_or_default(),
            reason: text(body["reason"].take()),
            limits,
            lease: text(body["lease"].take()),
            reservation: text(body["reservation"].take()),
            source: Source::Server,
            why_fallback: None,
        })
    }
}

impl LimitAnswer {
    fn read(body: &Value) -> Self {
        Self {
            name: body["name"].as_str().unwrap_or_default().to_owned(),
            key: body["key"].as_str().unwrap_or_default().to_owned(),
            is_allowed: body["allowed"].as_bool().unwrap_or(true),
            limit: body["limit"].as_u64(),
            remaining: body["remaining"].as_u64(),
            retry_after: millis(&body["retry_after_ms"]),
            reset_after: millis(&body["reset_after_ms"]),
            is_shadow: body["shadow"].as_bool().unwrap_or(false),
        }
    }
}

pub(super) fn settle_json(reservation: &str, cost: u32) -> String {
    json!({"reservation": reservation, "cost": cost}).to_string()
}

pub(super) fn lease_json(lease: &str) -> String {
    json!({"lease": lease}).to_string()
}

fn millis(value: &Value) -> Option<Duration> {
    value.as_u64().map(Duration::from_millis)
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}
