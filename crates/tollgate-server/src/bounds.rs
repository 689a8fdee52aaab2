//! How much of anything a door takes.
