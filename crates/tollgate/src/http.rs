//! HTTP around a verdict: what a request says, and what is answered.
//!
//! Pure functions on borrowed bytes, without sockets, clocks or a runtime, for whoever faces
//! clients. On the way in, [`path`] and [`client`] settle what is ambiguous and [`extract`] collects
//! what the policy asks about; on the way out there are a [`status`], the [`fields`] of every
//! response, and a body: a [`problem`] for clients, or [`json`] for callers of the decision API.
//!
//! With the feature `tower` there is `TollgateLayer`, which does all of this around a service, and
//! waits on tokio's timers.
//!
//! ```
//! use http::{HeaderMap, StatusCode};
//! use tollgate::http::{fields, status};
//! use tollgate::{Limiter, Request};
//!
//! let limiter = Limiter::from_yaml("limits: [{name: login, rate: 1/minute}]")?;
//! let request = Request::new(&[]);
//! limiter.check(&request);
//!
//! let verdict = limiter.check(&request);
//! assert_eq!(status(&verdict), StatusCode::TOO_MANY_REQUESTS);
//! let mut headers = HeaderMap::new();
//! fields::insert(&mut headers, &verdict, limiter.now(), 0);
//! assert_eq!(headers["ratelimit-policy"], "\"login\";q=1;w=60");
//! assert!(headers.contains_key("retry-after"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod client;
mod extract;
pub mod fields;
pub mod json;
#[cfg(feature = "tower")]
pub mod layer;
pub mod path;
pub mod problem;
pub mod query;
pub mod settle;
mod text;

use ::http::StatusCode;

use crate::{Ruling, Verdict};

pub use extract::{Attributes, BadRequest, Sent, extract};
#[cfg(feature = "tower")]
pub use layer::{Peer, Spent, TollgateLayer};
pub use text::number_before;

/// The status that a verdict is answered with, where it is not passed on.
///
/// 429 means "you send too much" and 503 "we are unwell"; they are never mixed.
pub const fn status(verdict: &Verdict) -> StatusCode {
    match verdict.ruling {
        Ruling::Allowed | Ruling::Exempt => StatusCode::OK,
        Ruling::Denied => StatusCode::TOO_MANY_REQUESTS,
        Ruling::Uncounted => StatusCode::SERVICE_UNAVAILABLE,
        Ruling::Blocked => StatusCode::FORBIDDEN,
        Ruling::UnknownKey => StatusCode::UNAUTHORIZED,
        Ruling::BadCost => StatusCode::BAD_REQUEST,
    }
}
