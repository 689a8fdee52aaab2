//! Real servers for tests and benchmarks, and what goes wrong with them.
//!
//! A store is only as good as it is with the servers people run, so none of them is imitated: a
//! [`Server`] is a Redis or a Valkey in a process of its own, [`Sentinel`] and [`Cluster`] are several. Everything listens on loopback, on
//! ports nobody else has, keeps its files in a folder of its own, and is gone when its value is
//! dropped. What cannot be had or does not start is a panic that says so: whoever calls this is a
//! test.

mod bounds;
mod clock;
mod cluster;
mod parts;
mod port;
mod proxy;
mod resp;
mod sentinel;
mod server;
mod tls;
mod wait;

pub use clock::Clock;
pub use cluster::{Cluster, Migration};
pub use parts::Flavour;
pub use port::free_port;
pub use proxy::Proxy;
pub use resp::{Client, Reply, Text, write_command};
pub use sentinel::Sentinel;
pub use server::{Server, Setup};
pub use tls::Certificates;
pub use wait::eventually;
