//! The doors, asked from outside.

mod admin;
mod audit;
mod forward_auth;
mod gateway;
mod gone;
mod grpc;
mod hosts;
mod http;
mod keys;
mod metrics;
mod observe;
mod redis;
mod reserve;
mod resp;
mod server;
mod throttled;
mod tls;
