//! Rate limit policies: YAML text to a compiled policy, with every mistake at its place.

mod address;
mod attribute;
pub mod bounds;
mod compile;
mod condition;
mod decode;
mod hash;
mod index;
mod lint;
mod mistake;
mod path;
mod policy;
mod request;
mod rule;
mod schema;
mod select;
mod settings;
mod suggest;
mod tenants;
mod words;
mod yaml;

pub use address::{Cidr, CidrError};
pub use mistake::{Mistake, Mistakes, Place, Warning, WarningCode};
pub use policy::{ExplainedValue, Explanation, Policy, Standing};
pub use request::{Admission, Charge, Charges, ListEntry, Missing, Request, Scratch, Values};
pub use rule::{Mode, OnStoreFailure, Per, Rule, Source};
pub use schema::schema;
pub use settings::{
    ClientIp, HeaderGeneration, Listen, Listener, MemoryStore, RedisServers, RedisStore, Settings,
    Store, Tenants, Tls, Unknown,
};
