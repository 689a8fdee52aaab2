//! Deterministic replay of traffic against rate limits, on a simulated clock.
