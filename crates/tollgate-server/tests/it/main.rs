//! The doors, asked from outside.

mod grpc;
