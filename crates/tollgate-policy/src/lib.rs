//! Rate limit policies: YAML text to a compiled policy, with every mistake at its place.
//!
//! A policy says which requests are limited, per what they are counted, how much is allowed and by
//! which algorithm. This crate reads one ([`Policy::parse`]), and then says of each request what
//! applies to it ([`Policy::admit`]). It takes text and gives answers: it opens no file, reads no
//! clock and keeps no counts. Counting is the work of a store, for which every answer holds what to
//! count: a [`Limit`](tollgate_core::Limit), the values it is counted by, and what it costs.
//!
//! ```
//! use tollgate_policy::{Admission, Charges, Policy, Request, Scratch};
//!
//! let text = "
//! limits:
//!   - name: login
//!     when: { method: POST, path: /login }
//!     per: [client_ip]
//!     rate: 5/minute
//!
//!   - name: api
//!     when: { path: /api/** }
//!     per: [user]
//!     rate: { by: plan, values: { free: 60/minute, pro: 600/minute }, default: 10/minute }
//! ";
//! // The policy names no other file; the caller would read it.
//! let mut read = |file: &str| Err(format!("{file} is not to be read"));
//! let policy = Policy::parse("policy.yaml", text, &mut read)?;
//!
//! let attributes: [(&str, &[u8]); 3] =
//!     [("path", b"/api/items"), ("user", b"42"), ("plan", b"pro")];
//! let (mut scratch, mut charges) = (Scratch::default(), Charges::new());
//! let admission = policy.admit(&Request::new(&attributes), &mut scratch, &mut charges);
//! assert!(matches!(admission, Admission::Charged), "the policy exempts and denies nobody");
//! assert_eq!(charges.len(), 1);
//! assert_eq!(&**charges[0].rule.name(), "api");
//! assert_eq!(charges[0].values[0].bytes, Some(b"42" as &[u8]));
//! assert_eq!(policy.rate(charges[0].limit).map(|rate| rate.to_string()).as_deref(), Some("600/minute"));
//! # Ok::<(), tollgate_policy::Mistakes>(())
//! ```
//!
//! # Mistakes
//!
//! A policy that is wrong is refused whole, with everything that is wrong in it, each with its
//! place, what is wrong and what would be right:
//!
//! ```
//! # use tollgate_policy::Policy;
//! let text = "limits:\n  - name: login\n    rate: 5/minuet\n";
//! let mistakes = Policy::parse("policy.yaml", text, &mut |_| Err(String::new())).unwrap_err();
//! assert_eq!(
//!     mistakes.to_string(),
//!     "\
//! policy.yaml:3:11: limit \"login\": rate \"5/minuet\" is not a rate; write for example 5/minute or 1000/90s
//!   |
//! 3 |     rate: 5/minuet
//!   |           ^^^^^^^^"
//! );
//! ```
//!
//! What is allowed and probably not meant is a [`Warning`], with a stable code ([`WarningCode`]).
//!
//! # What a request meets
//!
//! A request meets limits of requests. Doors also ask about connections, WebSockets and messages, with
//! a [`Layer`]; those meet limits of their own.
//!
//! In this order: the `deny` list, the `exempt` list, the lookup of its key if there is a `tenants`
//! section, and then every limit whose conditions hold, in the order of the policy.
//!
//! - A condition on an attribute that the request lacks does not hold, except `absent` and `not`.
//! - Methods and hosts are compared without regard to case, hosts without port; paths by segments
//!   (`*` and `{name}` for one, `**` for any number); addresses as addresses; all else byte by byte.
//! - A pattern stands for what is written, and for the one form that the policy's `paths` bring it
//!   into ([`Paths::fold`]). Doors that face clients hand in paths in that form; what others hand in
//!   is matched as it is.
//! - What a request lacks and a limit counts by is one value shared by all who lack it
//!   ([`Missing::Shared`]), or keeps the limit from applying ([`Missing::Skip`]). Requests without a
//!   known key have no tenant, and share that lack at every door.
//! - `client_ip` is counted by its IPv6 prefix, and IPv4 by its usual text however it was written.
//!   Conditions are tested on the whole address.
//! - A limit with `shards` is counted under one more value, the shard that the caller is on, and
//!   by its share ([`Shards`]).
//! - A limit's own `cost` beats the caller's; a peek (cost 0) stays a peek. An attribute that says
//!   what a request costs counts as 1 when missing, and is an error of the request when it is not a
//!   whole number ([`Admission::BadCost`]); but a limit in shadow is then skipped, and one that does
//!   not apply is not asked.
//!
//! Finding what applies costs what applies: every limit is filed under the condition that fewest
//! others share, so ten thousand limits on different paths, hosts or values cost a request hardly
//! more than ten.

mod address;
mod attribute;
pub mod bounds;
mod change;
mod compile;
mod condition;
mod decode;
mod descriptors;
mod hash;
mod index;
mod layer;
mod lint;
mod mistake;
mod named;
mod path;
mod policy;
mod request;
mod rule;
mod schema;
mod select;
mod server_url;
mod settings;
mod shards;
mod suggest;
mod tenants;
mod upstream;
mod words;
mod yaml;

pub use address::{Cidr, CidrError};
pub use change::Change;
pub use descriptors::{DescriptorLimit, DescriptorRule, Descriptors, Domain, Unit};
pub use layer::Layer;
pub use mistake::{Mistake, Mistakes, Place, Warning, WarningCode};
pub use named::Named;
pub use policy::{Caller, ExplainedValue, Explanation, KnownBy, Policy, Standing};
pub use request::{Admission, Charge, Charges, End, ListEntry, Missing, Request, Scratch, Values};
pub use rule::{Mode, OnDenied, OnExhausted, OnStoreFailure, Per, Rule, Settle, Source, SyncMode};
pub use schema::schema;
pub use settings::{
    Audit, Charging, ClientIp, DescriptorSettings, EncodedSlash, ForwardedIn, Gateway,
    HeaderGeneration, Likeness, Listen, Listener, MemoryStore, Observe, Otlp, Paths, RedisServers,
    RedisStore, ResponseHeaders, Settings, ShownKeys, Store, Tenants, Tls, Unknown,
};
pub use shards::Shards;
pub use upstream::{Route, Scheme, Target};
