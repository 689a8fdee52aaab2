//! What the two benchmarks share: `tollgate-bench` decides in one process, `server` asks over sockets.

pub mod report;
