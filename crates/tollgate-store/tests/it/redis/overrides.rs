//! What single keys are allowed instead, as all nodes share it.

use std::time::Duration;

use tollgate_core::{Micros, Timestamp};
use tollgate_harness::{Clock, Flavour, Setup, eventually};
use tollgate_store::redis::{
    OVERRIDES_MAX, OverridesVersion, RedisStore, Servers, SharedOverride, Sharing,
};

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

fn texts(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(key, text)| (key.to_string(), text.to_string())).collect()
}

fn version(store: &RedisStore) -> OverridesVersion {
    eventually("they are read", || store.shared_overrides().wait()).version
}

/// Puts what a node knew at a version, where another was seen.
fn restore(
    store: &RedisStore,
    list: &[(&str, &str)],
    lost: OverridesVersion,
    seen: OverridesVersion,
) -> Option<usize> {
    let list = list.iter().map(|(key, text)| (key.to_string(), lasting(text))).collect();
    store.restore_overrides(list, lost, seen).wait()
}

#[test]
fn an_override_is_changed_once_and_read_by_all() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let (one, other) = (one.redis(), other.redis());
        assert_eq!(put(one, "api:a", &lasting("x")), Sharing::Changed);
        assert_eq!(put(other, "api:a", &lasting("x")), Sharing::Unchanged);
        assert_eq!(put(other, "api:a", &lasting("y")), Sharing::Changed);
        assert_eq!(put(other, "api:b", &lasting("z")), Sharing::Changed);
        assert_eq!(all(one), texts(&[("api:a", "y"), ("api:b", "z")]));
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
fn who_reads_all_of_them_sees_that_those_went_whose_time_is_over() {
    for server in every_server() {
        let subject = open_at(&server);
        let store = subject.redis();
        put(store, "api:over", &until("x", Timestamp::from_micros(1_000_000)));
        let before = version(store);
        assert_eq!(store.share_override("api:nobody", None).wait(), Sharing::Unchanged);
        assert_eq!(all(store), []);
        assert!(version(store) > before);
    }
}

#[test]
fn what_was_lost_is_put_again_unless_somebody_has_changed_it_meanwhile() {
    for server in every_server() {
        let [one, other] = open_all(&server);
        let (one, other) = (one.redis(), other.redis());
        let known = [("api:a", "x"), ("api:b", "x")];
        for (key, text) in known {
            assert_eq!(put(one, key, &lasting(text)), Sharing::Changed);
        }
        let lost = version(one);
        server.command(&["FLUSHALL"]);
        let seen = version(one);
        // A beginning is told by its millisecond, and a quick server does all of this within one.
        eventually("another moment", || {
            server.command(&["FLUSHALL"]);
            put(other, "api:a", &lasting("newer"));
            (!version(one).began_with(lost)).then_some(())
        });
        assert_eq!(restore(one, &known, lost, seen), None, "it is not as it was seen");
        assert_eq!(all(one), texts(&[("api:a", "newer")]));
        assert_eq!(restore(one, &known, lost, version(one)), Some(1));
        assert_eq!(all(other), texts(&[("api:a", "newer"), ("api:b", "x")]));
    }
}

#[test]
fn a_replica_that_took_over_gets_what_it_had_not_heard_of() {
    for server in every_server() {
        let settings = settings(Servers::Single(server.url()));
        let subject = open(settings.clone());
        let store = subject.redis();
        let name = format!("{}:{{%}}:%overrides", settings.prefix);
        put(store, "api:a", &lasting("x"));
        let replicated = server.command(&["HGET", &name, "%version"]).text();
        put(store, "api:a", &lasting("y"));
        let lost = version(store);
        server.command(&["HSET", &name, "api:a", "x", "%version", &replicated]);
        let shared = store.shared_overrides().wait().expect("an answer");
        assert!(!shared.hold(lost));
        assert_eq!(restore(store, &[("api:a", "y")], lost, shared.version), Some(1));
        let shared = store.shared_overrides().wait().expect("an answer");
        assert!(shared.hold(lost) && shared.list == texts(&[("api:a", "y")]));
    }
}

#[test]
fn what_one_node_has_put_again_is_not_put_by_those_who_know_less() {
    for server in every_server() {
        let subject = open_at(&server);
        let store = subject.redis();
        put(store, "api:a", &lasting("x"));
        let earlier = version(store);
        store.share_override("api:a", None).wait();
        let later = version(store);
        put(store, "api:b", &lasting("x"));
        let latest = version(store);
        server.command(&["FLUSHALL"]);
        assert_eq!(restore(store, &[], later, version(store)), Some(0));
        let shared = store.shared_overrides().wait().expect("an answer");
        assert!(shared.hold(earlier) && shared.hold(later), "it was removed, and stays so");
        assert!(!shared.hold(latest), "and who knows more puts that too");
        assert_eq!(restore(store, &[("api:b", "x")], latest, shared.version), Some(1));
        let shared = store.shared_overrides().wait().expect("an answer");
        assert!(shared.hold(latest) && shared.list == texts(&[("api:b", "x")]));
    }
}

#[test]
fn as_many_as_there_may_be_are_put_again() {
    let server = tollgate_harness::Server::start(Flavour::Redis);
    let subject = open_at(&server);
    let store = subject.redis();
    let keys: Vec<String> = (0..=OVERRIDES_MAX).map(|number| format!("api:{number}")).collect();
    let list: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "x")).collect();
    put(store, "api:lost", &lasting("x"));
    let lost = version(store);
    server.command(&["FLUSHALL"]);
    assert_eq!(restore(store, &list, lost, version(store)), Some(OVERRIDES_MAX));
    assert_eq!(all(store).len(), OVERRIDES_MAX);
}

#[test]
fn nodes_see_when_redis_has_lost_them() {
    for server in every_server() {
        let subject = open_at(&server);
        let store = subject.redis();
        let version = || version(store);
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
