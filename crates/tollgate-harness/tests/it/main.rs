//! What the harness promises to those who test with it.

mod clock;
mod proxy;
mod server;
