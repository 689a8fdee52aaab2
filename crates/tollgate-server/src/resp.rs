//! The Redis protocol: any Redis client in any language is an SDK.
