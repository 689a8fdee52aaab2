//! A rate limiter to embed: policy and store in, verdict out, never an error.
//!
//! ```
//! use tollgate::{Limiter, Request};
//!
//! let limiter = Limiter::from_yaml("limits: [{name: login, per: [client_ip], rate: 5/minute}]")?;
//! let verdict = limiter.check(&Request::new(&[("client_ip", b"203.0.113.7")]));
//! assert!(verdict.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Policy`] says which limits apply to a request and how much each allows; a [`MemoryStore`]
//! remembers what was used; the [`Limiter`] asks both. A request under several limits pays all of
//! them or none, a denied one changes nothing, and every [`Verdict`] tells what is left and, if the
//! answer is no, the shortest wait after which it would be yes:
//!
//! ```
//! # use tollgate::{Limiter, Request};
//! # let limiter = Limiter::from_yaml("limits: [{name: post, per: [user], rate: 1/second}]")?;
//! # let request = Request::new(&[("user", b"42")]);
//! # limiter.check(&request);
//! let verdict = limiter.check(&request);
//! if let Some(wait) = verdict.retry_after() {
//!     println!("come back in {} ms", wait.as_millis_up());
//! }
//! for answer in verdict.answers() {
//!     println!("{}: {:?}", answer.rule().name(), answer.decision());
//! }
//! # assert!(!verdict.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The policy is replaced while requests are being decided with [`Limiter::replace_policy`]: one
//! pointer swap, and what keys have consumed stays consumed.

pub mod bounds;
mod denial;
pub mod envoy;
pub mod explain;
pub mod http;
mod limiter;
pub mod metrics;
pub mod observe;
mod operator;
mod overrides;
pub mod play;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "tower")]
mod slots;
mod verdict;

pub use denial::{Denial, DenialSink};
pub use limiter::{Keys, Lease, Limiter, LimiterError, Pinned};
pub use metrics::Metrics;
pub use operator::Look;
pub use overrides::{KeyRefused, Override};
#[cfg(feature = "tower")]
pub use slots::{Slot, Slots};
pub use tollgate_core::{
    Algorithm, Cost, Counter, Decision, Key, KeyBuf, KeyError, Limit, Micros, Outcome, Quota,
    Timestamp, Value, Word,
};
pub use tollgate_policy::{
    Audit as AuditSettings, Change, Cidr, ClientIp, EncodedSlash, End, ForwardedIn, Gateway,
    HeaderGeneration, Layer, Likeness, Listen, Listener, Missing, Mistake, Mistakes, Mode,
    OnDenied, OnExhausted, OnStoreFailure, Otlp, Paths, Policy, Request, Route, Rule, Scheme,
    Settings, Settle, ShownKeys, Source, Store as StoreSettings, Target, Warning,
};
pub use tollgate_store::{
    Answers, Asked, Charge, Clock, Enrolled, MemoryStore, Store, Taken, TooManyLimits,
    Unreservable, Waiting, snapshot,
};
pub use verdict::{Answer, Ruling, Verdict};

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
