//! Prints how right `sliding_window` is, as the table of `docs/algorithms.md`.

/// A limit of 100: at 10, a single request is already 10 %.
const COUNT: u32 = 100;
const SEED: u64 = 1;

fn main() -> Result<(), tollgate_core::QuotaError> {
    print!("{}", tollgate_sim::accuracy(COUNT, SEED)?);
    Ok(())
}
