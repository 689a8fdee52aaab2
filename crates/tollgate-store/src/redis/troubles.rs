//! Telling what goes wrong with Redis, without telling it for every request.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::bounds::{TROUBLE_PAUSE, TROUBLES_MAX};

/// What was told of late of each server.
#[derive(Debug, Default)]
pub(super) struct Troubles(Mutex<HashMap<String, Vec<Told>>>);

#[derive(Debug)]
struct Told {
    kind: String,
    done: String,
    at: Instant,
}

impl Troubles {
    /// Whether a kind of trouble with a server, and what is done about it, is to be told: once a minute.
    pub(super) fn is_news(&self, server: &str, kind: &str, done: &str, now: Instant) -> bool {
        let is_recent = |it: &Told| now.duration_since(it.at) < TROUBLE_PAUSE;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = all.get_mut(server) {
            told.retain(is_recent);
            let is_told = told.iter().any(|it| (&*it.kind, &*it.done) == (kind, done));
            if is_told || told.len() >= TROUBLES_MAX {
                return false;
            }
        } else {
            // Servers come and go, and those that went are not kept.
            all.retain(|_, told| told.iter().any(is_recent));
        }
        let told = Told { kind: kind.to_owned(), done: done.to_owned(), at: now };
        all.entry(server.to_owned()).or_default().push(told);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn each_kind_of_trouble_with_each_server_is_told_once_a_minute() {
        let (troubles, start) = (Troubles::default(), clock::moment());
        let every =
            [("a", "OOM", "x"), ("a", "timeout", "x"), ("a", "timeout", "y"), ("b", "OOM", "x")];
        for (server, kind, done) in every {
            assert!(troubles.is_news(server, kind, done, start));
        }
        for (server, kind, done) in every.repeat(3) {
            assert!(!troubles.is_news(server, kind, done, start), "by turns");
        }
        let later = start + TROUBLE_PAUSE;
        assert!(troubles.is_news("a", "OOM", "x", later));
        assert!(!troubles.is_news("a", "OOM", "x", later));
    }

    #[test]
    fn a_server_that_thinks_of_ever_new_errors_is_not_listened_to_and_others_are() {
        let (troubles, start) = (Troubles::default(), clock::moment());
        let told = |server| {
            let is_told = |kind: &u32| troubles.is_news(server, &format!("E{kind}"), "", start);
            (0..1_000).filter(is_told).count()
        };
        assert_eq!((told("a"), told("b")), (TROUBLES_MAX, TROUBLES_MAX));
    }

    #[test]
    fn servers_that_went_are_forgotten() {
        let (troubles, start) = (Troubles::default(), clock::moment());
        assert!(troubles.is_news("a", "OOM", "", start));
        assert!(troubles.is_news("b", "OOM", "", start + TROUBLE_PAUSE));
        assert_eq!(troubles.0.lock().unwrap().keys().collect::<Vec<_>>(), ["b"]);
    }
}
