//! Telling what Redis refuses, without telling it for every request.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::bounds::{REFUSAL_KINDS_MAX, REFUSAL_PAUSE};

/// Which kinds of refusal were told of late, and when.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Vec<(String, Instant)>>);

impl Refusals {
    /// Whether an error is to be told: once a minute for each kind, which is its first word.
    pub(super) fn is_news(&self, error: &str, now: Instant) -> bool {
        let kind = error.split(' ').next().unwrap_or_default();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|(_, at)| now.duration_since(*at) < REFUSAL_PAUSE);
        let is_news = told.len() < REFUSAL_KINDS_MAX && told.iter().all(|(other, _)| other != kind);
        if is_news {
            told.push((kind.to_owned(), now));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn each_kind_of_refusal_is_told_once_a_minute() {
        let (refusals, start) = (Refusals::default(), clock::moment());
        assert!(refusals.is_news("OOM command not allowed", start));
        assert!(refusals.is_news("NOPERM this user", start));
        for _ in 0..3 {
            assert!(!refusals.is_news("OOM command not allowed", start));
            assert!(!refusals.is_news("NOPERM another user", start), "by turns");
        }
        let later = start + REFUSAL_PAUSE;
        assert!(refusals.is_news("OOM command not allowed", later));
        assert!(!refusals.is_news("OOM command not allowed", later));
    }

    #[test]
    fn a_server_that_thinks_of_ever_new_errors_is_not_listened_to() {
        let (refusals, start) = (Refusals::default(), clock::moment());
        let told = (0..1_000).filter(|kind| refusals.is_news(&format!("E{kind} no"), start));
        assert_eq!(told.count(), REFUSAL_KINDS_MAX);
    }
}
