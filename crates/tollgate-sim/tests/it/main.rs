//! What the simulator says about the algorithms, and that it always says the same.

mod accuracy;
mod scenario;
