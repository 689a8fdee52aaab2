//! What tollgate-client promises, tested through its public surface.

mod budget;
mod retry;
mod support;
