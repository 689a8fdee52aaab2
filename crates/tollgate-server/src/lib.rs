//! The doors around one limiter.
//!
//! A door turns bytes from a socket into a request, asks the [`tollgate::Limiter`], and turns the
//! verdict into the answer its protocol has for it.

mod bounds;
mod gate;
mod resp;
