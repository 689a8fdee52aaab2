//! The gateway beside other proxies.

use super::as_argument;
use crate::parts;

/// Builds or installs what is measured, and measures it with the given arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    parts::require(parts::FOR_GATEWAY_BENCHMARK)?;
    let mut all = vec![as_argument(&super::tollgate()?)?, as_argument(&parts::envoy()?)?];
    all.extend_from_slice(arguments);
    super::run("gateway", &all)
}
