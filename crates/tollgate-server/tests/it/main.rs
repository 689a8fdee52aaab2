//! The doors, asked from outside.

mod admin;
mod forward_auth;
mod grpc;
mod http;
mod resp;
mod server;
mod tls;
