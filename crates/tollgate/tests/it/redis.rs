//! A limiter whose states are in Redis: it waits, and says what one in memory says.

use std::time::Duration;

use tollgate::envoy::{Call, Charging, Descriptor, DescriptorSettings, Descriptors};
use tollgate::observe::Span;
use tollgate::redis::{RedisSettings, RedisStore, Servers};
use tollgate::{
    Asked, Clock, Cost, Limiter, MemoryStore, Micros, Override, Request, Ruling, Store,
};
use tollgate_harness::{Flavour, Server, eventually};

use crate::{MIDNIGHT, parse};

/// A limiter in memory and one in Redis, on one clock.
struct Twins {
    memory: Limiter,
    redis: Limiter,
    clock: Clock,
}

impl Twins {
    fn new(server: &Server, policy: &str) -> Self {
        let clock = Clock::manual(MIDNIGHT);
        let settings = RedisSettings {
            servers: Servers::Single(server.url()),
            // For machines that are busy with other tests.
            timeout: Duration::from_secs(10),
            prefix: "twin".to_owned(),
            nodes: None,
        };
        let store = RedisStore::open_at(settings, clock.clone()).expect("a URL of the harness");
        let limiter = |store: Store| Limiter::new(parse(policy), store).expect("a few limits");
        let redis = limiter(store.clone().into());
        let memory = MemoryStore::with_max_bytes(clock.clone(), 1 << 20).expect("a megabyte");
        // Until then every limit is settled without it.
        eventually("Redis is reached", || {
            let before = store.settled();
            let peek = Request { cost: Cost::PEEK, ..Request::new(&[("user", b"nobody")]) };
            redis.check(&peek);
            (store.settled() == before).then_some(())
        });
        Self { memory: limiter(memory.into()), redis, clock }
    }

    fn load(&self, files: &str, settings: &DescriptorSettings) {
        for limiter in [&self.memory, &self.redis] {
            let descriptors = Descriptors::parse(&[("d.yaml", files)], false).expect("descriptors");
            limiter.replace_descriptors(descriptors, settings).expect("a few limits");
        }
    }
}

const POLICY: &str = "limits: [{name: api, per: [user], rate: 3/minute}, \
                      {name: all, rate: 5/minute, algorithm: token_bucket}, \
                      {name: jobs, when: {job: present}, per: [user], concurrency: 1}]";

#[test]
fn a_verdict_from_redis_is_the_one_from_memory() {
    let server = Server::start(Flavour::Redis);
    let twins = Twins::new(&server, POLICY);
    for number in 0..60u32 {
        let user = [b'a' + (number * 7 % 3) as u8];
        let attributes: [(&str, &[u8]); 1] = [("user", &user)];
        let request = Request { cost: Cost::new(number % 4), ..Request::new(&attributes) };
        let [memory, redis] = [&twins.memory, &twins.redis].map(|limiter| limiter.check(&request));
        assert_eq!(format!("{redis:?}"), format!("{memory:?}"), "request {number}");
        twins.clock.advance(Micros::from_millis(u64::from(number) * 331 % 9_000));
    }
}

#[test]
fn what_is_given_back_in_redis_is_there_in_the_end() {
    let server = Server::start(Flavour::Redis);
    let twins = Twins::new(&server, POLICY);
    let request = Request { cost: Cost::new(3), ..Request::new(&[("user", b"42")]) };
    let verdict = twins.redis.check(&request);
    assert!(verdict.is_allowed() && !twins.redis.check(&request).is_allowed());
    twins.redis.refund(verdict);
    // Nobody is told when that is done.
    eventually("it is given back", || twins.redis.check(&request).is_allowed().then_some(()));
    assert!(!twins.redis.check(&request).is_allowed(), "once");
}

#[test]
fn nobody_asks_redis_about_a_request_that_no_limit_applies_to() {
    let server = Server::start(Flavour::Redis);
    let twins = Twins::new(&server, "limits: [{name: api, per: [user], rate: 1/minute}]");
    let nobody = twins.redis.ask(&Request::new(&[]));
    assert!(matches!(&nobody, Asked::Ready(verdict) if verdict.is_allowed()));
    let somebody = twins.redis.ask(&Request::new(&[("user", b"42")]));
    assert!(matches!(somebody, Asked::Waiting(_)));
    assert!(somebody.wait().is_allowed());
}

#[test]
fn a_lease_from_redis_is_renewed_and_released_once() {
    let server = Server::start(Flavour::Redis);
    let twins = Twins::new(&server, POLICY);
    let job = Request::new(&[("user", b"42"), ("job", b"1")]);
    let lease = twins.redis.check(&job).take_lease().expect("a slot is held");
    assert_eq!(twins.redis.check(&job).ruling(), Ruling::Denied);
    assert!(twins.redis.renew(&lease).wait() == Some(true));
    assert!(twins.redis.release(lease).wait() == Some(true));
    assert!(twins.redis.check(&job).take_lease().is_some());
}

#[test]
fn calls_of_envoy_are_answered_from_redis_as_from_memory() {
    const FILES: &str = "
domain: d
descriptors:
  - { key: window, rate_limit: { unit: minute, requests_per_unit: 3, name: windows } }
  - { key: bucket, rate_limit: { unit: minute, requests_per_unit: 4, algorithm: token_bucket } }
  - { key: quota, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: free, rate_limit: { unlimited: true } }
";
    const KEYS: [&str; 6] = ["window", "bucket", "quota", "shadow", "free", "unknown"];
    let server = Server::start(Flavour::Redis);
    let twins = Twins::new(&server, POLICY);
    for charging in [Charging::Every, Charging::UnlessOver, Charging::AllOrNothing] {
        let mut settings = DescriptorSettings::default();
        (settings.charging, settings.dynamic_metadata) = (charging, true);
        twins.load(FILES, &settings);
        for number in 0..120u64 {
            let who = ["1", "2"][(number / 3 % 2) as usize];
            let entries = [number % 6, number / 2 % 6].map(|key| [(KEYS[key as usize], who)]);
            let descriptor = |entries, hits| Descriptor { entries, hits, ..Descriptor::default() };
            let descriptors =
                [descriptor(&entries[0], Some(number % 5)), descriptor(&entries[1], None)];
            let descriptors = &descriptors[..1 + (number % 2) as usize];
            let call = Call { domain: "d", descriptors, hits: 1 };
            let [memory, redis] = [&twins.memory, &twins.redis]
                .map(|limiter| limiter.rate_limit(&call).expect("a call").wait());
            assert_eq!(redis, memory, "{charging:?}, call {number}: {descriptors:?}");
            twins.clock.advance(Micros::from_millis(number * 331 % 9_000));
        }
        twins.clock.advance(Micros::from_secs(3_600));
    }
}

#[test]
fn who_is_denied_and_does_not_wait_is_told_of_redis_as_of_memory() {
    let server = Server::start(Flavour::Redis);
    let twins = Twins::new(&server, "limits: [{name: api, per: [user], rate: 1/minute}]");
    let files = "{domain: shop, descriptors: [{key: user, \
                 rate_limit: {unit: hour, requests_per_unit: 1}}]}";
    let told = |limiter: &Limiter| {
        let told = limiter.most_denied(Span::Hour);
        let keys = told.keys.into_iter().map(|it| (it.key, it.denied, it.early, it.first_seen));
        (keys.collect::<Vec<_>>(), told.denied, limiter.storm().early)
    };
    for user in [b"a", b"b", b"a", b"a", b"b", b"a"] {
        twins.clock.advance(Micros::from_secs(1));
        for limiter in [&twins.memory, &twins.redis] {
            limiter.check(&Request::new(&[("user", user)]));
        }
    }
    for charging in [Charging::Every, Charging::AllOrNothing] {
        let mut settings = DescriptorSettings::default();
        settings.charging = charging;
        twins.load(files, &settings);
        for _ in 0..3 {
            twins.clock.advance(Micros::from_secs(1));
            let entries = [Descriptor { entries: &[("user", "carl")], ..Descriptor::default() }];
            let call = Call { domain: "shop", descriptors: &entries, hits: 1 };
            for limiter in [&twins.memory, &twins.redis] {
                limiter.rate_limit(&call).expect("a call").wait();
            }
        }
    }
    assert_eq!(told(&twins.redis), told(&twins.memory));
    let (keys, denied, early) = told(&twins.redis);
    let keys: Vec<_> =
        keys.iter().map(|(key, denied, early, _)| (&**key, *denied, *early)).collect();
    let carl = "envoy%3A1:shop:user:carl";
    assert_eq!(keys, [(carl, 5, 4), ("api:a", 3, 2), ("api:b", 1, 0)]);
    assert_eq!((denied, early), (9, 6));
    let last =
        |limiter: &Limiter| limiter.recent(&"api:a".parse().expect("a key")).first().copied();
    assert_eq!(last(&twins.redis), last(&twins.memory));
    assert!(last(&twins.redis).is_some_and(|last| !last.is_allowed));
}

#[test]
fn a_banned_client_in_a_loop_costs_redis_nothing_and_is_told_of_as_in_memory() {
    let server = Server::start(Flavour::Redis);
    let twins = Twins::new(&server, POLICY);
    for limiter in [&twins.memory, &twins.redis] {
        for (key, ban) in
            [("api:a", r#"{"ban":true,"until_ms":1790000000000}"#), ("api:b", r#"{"ban":true}"#)]
        {
            let one = Override::from_json(key.parse().expect("a key"), ban).expect("a ban");
            limiter.put_override(one).expect("a key of the policy");
        }
    }
    for number in 0..20 {
        let attributes: [(&str, &[u8]); 1] = [("user", [b"a", b"b"][number % 2])];
        let request = Request::new(&attributes);
        let redis = twins.redis.ask(&request);
        assert!(matches!(redis, Asked::Ready(_)), "nobody is asked");
        let (redis, memory) = (redis.wait(), twins.memory.check(&request));
        assert_eq!(redis.ruling(), Ruling::Denied);
        assert_eq!(format!("{redis:?}"), format!("{memory:?}"));
        twins.clock.advance(Micros::from_millis(10));
    }
    let told = |limiter: &Limiter| {
        let keys = limiter.most_denied(Span::Minute).keys.into_iter();
        keys.map(|it| (it.key, it.denied)).collect::<Vec<_>>()
    };
    assert_eq!(told(&twins.redis), [("api:a".to_owned(), 10), ("api:b".to_owned(), 10)]);
    assert_eq!(told(&twins.memory), told(&twins.redis));
    let charged = twins.redis.check(&Request::new(&[("user", b"c")]));
    let all = charged.answers().nth(1).and_then(|all| all.decision());
    assert_eq!(all.map(|all| all.remaining), Some(4), "the others were charged nothing");
}
