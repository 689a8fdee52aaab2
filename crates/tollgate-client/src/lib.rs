//! A caller that plays by the rules.
//!
//! Limiting is a conversation. A server says how much may still be sent; a client that listens
//! never hits the wall, and one that was refused comes back when it was told to, not before.
//!
//! [`Budget`] is what a response says, whoever the vendor is.

pub mod bounds;
mod budget;

pub use budget::{Allowance, Budget, Unit};
