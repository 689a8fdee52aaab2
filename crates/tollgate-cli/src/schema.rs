//! `tollgate schema`: what editors need to complete and check a policy.

use clap::Args;

use crate::output::{self, Failure};

const EXAMPLES: &str = "\
Examples:
  tollgate schema > tollgate.schema.json
  # then, in the first line of a policy, for editors with a YAML language server:
  # yaml-language-server: $schema=tollgate.schema.json";

/// Print the JSON Schema of a policy
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<(), Failure> {
    output::data(tollgate_policy::schema())
}
