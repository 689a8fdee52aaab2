//! What tollgate-core promises, tested through its public surface.

mod bad_input;
mod examples;
mod properties;
mod support;
mod twin;
