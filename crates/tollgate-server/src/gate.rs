//! What all doors share.

use tollgate::Limiter;

/// What every door asks.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) limiter: Limiter,
}
