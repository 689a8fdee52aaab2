//! Where rate limit states live: the memory store and its conformance suite.
