//! A rate limiter to embed: policy and store in, verdict out, never an error.
