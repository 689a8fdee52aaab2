//! Telling what goes wrong with Redis, without telling it for every request.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::bounds::{TROUBLE_PAUSE, TROUBLES_MAX};

/// What was told of late, of whom, and when.
#[derive(Debug, Default)]
pub(super) struct Troubles(Mutex<Vec<Told>>);

#[derive(Debug)]
struct Told {
    server: String,
    kind: String,
    at: Instant,
}

impl Troubles {
    /// Whether a kind of trouble with a server is to be told: once a minute.
    pub(super) fn is_news(&self, server: &str, kind: &str, now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|it| now.duration_since(it.at) < TROUBLE_PAUSE);
        let is_new = told.iter().all(|it| (&*it.server, &*it.kind) != (server, kind));
        let is_news = told.len() < TROUBLES_MAX && is_new;
        if is_news {
            told.push(Told { server: server.to_owned(), kind: kind.to_owned(), at: now });
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn each_kind_of_trouble_with_each_server_is_told_once_a_minute() {
        let (troubles, start) = (Troubles::default(), clock::moment());
        let every = [("a", "OOM"), ("a", "timeout"), ("b", "OOM")];
        for (server, kind) in every {
            assert!(troubles.is_news(server, kind, start));
        }
        for (server, kind) in every.repeat(3) {
            assert!(!troubles.is_news(server, kind, start), "by turns");
        }
        let later = start + TROUBLE_PAUSE;
        assert!(troubles.is_news("a", "OOM", later));
        assert!(!troubles.is_news("a", "OOM", later));
    }

    #[test]
    fn a_server_that_thinks_of_ever_new_errors_is_not_listened_to() {
        let (troubles, start) = (Troubles::default(), clock::moment());
        let told = (0..1_000).filter(|kind| troubles.is_news("a", &format!("E{kind}"), start));
        assert_eq!(told.count(), TROUBLES_MAX);
    }
}
