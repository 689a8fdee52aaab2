//! What tollgate-core promises, tested through its public surface.

mod bad_input;
mod examples;
mod keys;
mod leases;
mod properties;
mod scripts;
mod support;
mod twin;
