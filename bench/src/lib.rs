//! What the benchmarks share: `tollgate-bench` decides in one process, the others ask over sockets.

pub mod load;
pub mod measure;
pub mod process;
pub mod question;
pub mod report;
pub mod serve;
