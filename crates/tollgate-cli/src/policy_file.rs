//! A policy on disk, for commands that can do nothing without one.

use std::path::Path;

use tollgate_policy::Policy;
use tollgate_server::policy_file;

use crate::output::Failure;

/// Reads the policy at `path`.
pub(crate) fn read_valid(path: &Path) -> Result<Policy, Failure> {
    let loaded = policy_file::read(path).map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(loaded.policy)
}
