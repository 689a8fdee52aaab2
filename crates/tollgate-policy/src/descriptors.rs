//! The files of Envoy's rate limit service: domains of nested descriptors, each with its limits.

/// A unit of time, as these files and Envoy write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// `second`.
    Second,
    /// `minute`.
    Minute,
    /// `hour`.
    Hour,
    /// `day`.
    Day,
    /// `week`.
    Week,
    /// `month`: 30 days.
    Month,
    /// `year`: 365 days.
    Year,
}

/// What the files of a folder say.
#[derive(Clone, Debug, Default)]
pub struct Descriptors {}
