//! What single keys are allowed instead, as all nodes share it.

use std::time::Duration;

use tollgate_core::{Micros, Timestamp};
use tollgate_harness::{Clock, Flavour, Setup, eventually};
use tollgate_store::redis::{OVERRIDES_MAX, RedisStore, Servers, SharedOverride, Sharing};

use super::{every_server, open, open_all, open_at};
use crate::places::settings;

fn lasting(text: &str) -> SharedOverride {
    SharedOverride { text: text.to_owned(), until: None }
}

fn until(text: &str, until: Timestamp) -> SharedOverride {
    SharedOverride { until: Some(until), ..lasting(text) }
}

fn put(store: &RedisStore, key: &str, one: &SharedOverride) -> Sharing {
    store.share_override(key, Some(one)).wait()
}

/// All there are, in the order of their keys.
fn all(store: &RedisStore) -> Vec<(String, String)> {
    let shared = eventually("they are read", || store.shared_overrides().wait());
    let mut list = shared.list;
    list.sort();
    list
}

#[test]
fn an_override_is_changed_once_and_read_by_all() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let (one, other) = (one.redis(), other.redis());
        assert_eq!(put(one, "api:a", &lasting("x")), Sharing::Changed);
        assert_eq!(put(other, "api:a", &lasting("x")), Sharing::Unchanged);
        assert_eq!(put(other, "api:a", &lasting("y")), Sharing::Changed);
        assert_eq!(other.restore_override("api:a", &lasting("x")).wait(), Sharing::Unchanged);
        assert_eq!(other.restore_override("api:b", &lasting("z")).wait(), Sharing::Changed);
        assert_eq!(all(one), [("api:a", "y"), ("api:b", "z")].map(|(k, v)| (k.into(), v.into())));
        assert_eq!(one.share_override("api:a", None).wait(), Sharing::Changed);
        assert_eq!(one.share_override("api:a", None).wait(), Sharing::Unchanged);
        assert_eq!(all(other).len(), 1);
    }
}

#[test]
fn there_are_only_so_many_and_all_of_them_are_read() {
    let server = tollgate_harness::Server::start(Flavour::Redis);
    let subject = open_at(&server);
    let store = subject.redis();
    let keys: Vec<String> = (0..OVERRIDES_MAX).map(|number| format!("api:{number}")).collect();
    for some in keys.chunks(500) {
        let asked: Vec<_> =
            some.iter().map(|key| store.share_override(key, Some(&lasting(key)))).collect();
        assert!(asked.into_iter().all(|it| it.wait() == Sharing::Changed));
    }
    assert_eq!(put(store, "api:more", &lasting("x")), Sharing::TooMany);
    assert_eq!(put(store, "api:7", &lasting("x")), Sharing::Changed, "it is there already");
    assert_eq!(all(store).len(), OVERRIDES_MAX);
    assert_eq!(store.share_override("api:8", None).wait(), Sharing::Changed);
    assert_eq!(put(store, "api:more", &lasting("x")), Sharing::Changed, "there is room");
}

#[test]
fn an_override_whose_time_is_over_is_not_kept() {
    for server in every_server() {
        let settings = settings(Servers::Single(server.url()));
        let subject = open(settings.clone());
        let store = subject.redis();
        let past = Timestamp::from_micros(store.shared_now().as_micros() - 1_000_000);
        for number in 0..300 {
            put(store, &format!("api:{number}"), &until("x", past));
        }
        let soon = store.shared_now().plus(Micros::from_secs(3_600));
        put(store, "api:lasting", &lasting("x"));
        put(store, "api:soon", &until("x", soon));
        let keys: Vec<String> = all(store).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["api:lasting", "api:soon"]);
        let name = format!("{}:{{%}}:%overrides", settings.prefix);
        assert_eq!(server.command(&["HLEN", &name]).integer(), 3, "with the version");
        // One that had an end, and no longer has.
        put(store, "api:soon", &until("y", past));
        put(store, "api:soon", &lasting("z"));
        put(store, "api:other", &lasting("x"));
        assert_eq!(all(store).len(), 3);
    }
}

#[test]
fn nodes_see_when_redis_has_lost_them() {
    for server in every_server() {
        let subject = open_at(&server);
        let store = subject.redis();
        let version = || store.shared_overrides().wait().expect("an answer").version;
        let at_first = version();
        put(store, "api:a", &lasting("x"));
        let one = version();
        put(store, "api:b", &lasting("x"));
        let two = version();
        assert!(one.follows(at_first) && two.follows(one) && two.began_with(one));
        assert!(!one.follows(two), "a replica took over");
        server.command(&["FLUSHALL"]);
        assert!(!version().follows(two), "all are gone");
        eventually("another moment", || {
            server.command(&["FLUSHALL"]);
            put(store, "api:c", &lasting("x"));
            (!version().began_with(two)).then_some(())
        });
        assert!(!version().follows(two), "and others were put since");
    }
}

#[test]
fn the_time_by_which_they_end_is_that_of_redis() {
    const HOUR: Duration = Duration::from_secs(3_600);
    for flavour in Flavour::ALL {
        let clock = Clock::new();
        clock.set_ahead(HOUR);
        let server = Setup::new(flavour).clock(&clock).start();
        let subject = open_at(&server);
        let store = subject.redis();
        let is_near = |ahead: Micros| {
            let apart = ahead.as_micros().abs_diff(HOUR.as_micros() as u64);
            apart < 60_000_000
        };
        eventually("it is heard", || is_near(store.shared_now().since(store.now())).then_some(()));
    }
}
