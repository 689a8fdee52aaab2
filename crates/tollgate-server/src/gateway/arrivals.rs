//! Connections as they come in, before a byte of TLS.
//!
//! Nothing is known of one but whose it is, and it is not answered: who may not come in is cut off.
//! Whoever is cut off may be many and come often, so the log is told once in a while how many.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::{Answer, Layer, Limiter, Missing, Request, Ruling, Slot, Slots};
use tollgate::{Timestamp, Verdict};

use super::bounds::CLOSED_TOLD_EVERY;

/// Asks the limits of connections.
#[derive(Debug)]
pub(crate) struct Arrivals {
    limiter: Arc<Limiter>,
    slots: Arc<Slots>,
    closed: Mutex<Closed>,
}

/// Connections that were not let in.
#[derive(Debug, Default)]
struct Closed {
    /// When the log was told of them.
    told_at: Option<Timestamp>,
    /// How many there were since then.
    since: u64,
}

/// A connection that was let in. Dropped, it makes room for another.
#[derive(Debug)]
pub(crate) struct Stay {
    /// What it holds of limits on connections that are open.
    _slot: Option<Slot>,
}

impl Arrivals {
    pub(crate) fn new(limiter: Arc<Limiter>, slots: Arc<Slots>) -> Self {
        Self { limiter, slots, closed: Mutex::default() }
    }

    /// Asks about a connection of `client`; nothing if it is to be closed.
    pub(crate) async fn admit(&self, client: IpAddr) -> Option<Stay> {
        let client = client.to_canonical();
        let text = client.to_string();
        let attributes = [("client_ip", text.as_bytes())];
        let request = Request {
            missing: Missing::Shared,
            layer: Layer::Connection,
            ..Request::new(&attributes)
        };
        let mut verdict = self.limiter.ask(&request).await;
        if verdict.is_allowed() {
            return Some(Stay { _slot: self.slots.hold(&mut verdict) });
        }
        tracing::debug!(%client, ruling = ?verdict.ruling(), "a connection is closed at once");
        // Of those on the policy's own list there is nothing to tell.
        if verdict.ruling() != Ruling::Blocked {
            self.count_closed(&verdict);
        }
        None
    }

    fn count_closed(&self, verdict: &Verdict) {
        let now = self.limiter.now();
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.since += 1;
        if closed.told_at.is_some_and(|told_at| now < told_at.plus(CLOSED_TOLD_EVERY)) {
            return;
        }
        let denies = |answer: &Answer<'_>| answer.is_enforced() && !answer.is_allowed();
        let limit = verdict.answers().find(denies).map(|answer| &**answer.rule().name());
        tracing::warn!(connections = closed.since, limit, "connections are closed at once");
        *closed = Closed { told_at: Some(now), since: 0 };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate::{Clock, MemoryStore, Micros, Policy};

    use super::*;

    /// What connections meet, and the clock that the limits go by.
    fn arrivals(policy: &str) -> (Arrivals, Clock) {
        let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
        let store = MemoryStore::with_max_bytes(clock.clone(), 1 << 20).expect("a megabyte");
        let policy = Policy::parse("policy.yaml", policy, &mut |_| Err(String::new()));
        let policy = policy.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let limiter = Limiter::new(policy, store).expect("a handful of limits");
        let limiter = Arc::new(limiter);
        let slots = Arc::new(Slots::new(Arc::clone(&limiter)));
        (Arrivals::new(limiter, slots), clock)
    }

    async fn admit(arrivals: &Arrivals, client: &str) -> Option<Stay> {
        arrivals.admit(client.parse().expect("an address")).await
    }

    const GATEWAY: &str = "listen: {gateway: 127.0.0.1:0}\nupstream: http://127.0.0.1:3000";

    #[tokio::test]
    async fn connections_of_one_address_come_in_at_its_rate() {
        let limit = "{name: a, when: {layer: connection}, per: [client_ip], rate: 2/second}";
        let (arrivals, clock) = arrivals(&format!("{GATEWAY}\nlimits: [{limit}]"));
        assert!(admit(&arrivals, "203.0.113.7").await.is_some());
        assert!(admit(&arrivals, "::ffff:203.0.113.7").await.is_some());
        assert!(admit(&arrivals, "203.0.113.7").await.is_none());
        assert!(admit(&arrivals, "203.0.113.8").await.is_some(), "another address");
        let in_one_prefix = ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:1::3"];
        let mut let_in = 0;
        for client in in_one_prefix {
            let_in += usize::from(admit(&arrivals, client).await.is_some());
        }
        assert_eq!(let_in, 2, "one client has all of its prefix");
        clock.advance(Micros::from_secs(2));
        assert!(admit(&arrivals, "203.0.113.7").await.is_some());
    }

    #[tokio::test]
    async fn so_many_connections_are_open_at_a_time_and_one_that_ends_makes_room() {
        let limit = "{name: a, when: {layer: connection}, per: [client_ip], concurrency: 2}";
        let (arrivals, _) = arrivals(&format!("{GATEWAY}\nlimits: [{limit}]"));
        let first = admit(&arrivals, "203.0.113.7").await;
        let second = admit(&arrivals, "203.0.113.7").await;
        assert!(first.is_some() && second.is_some());
        assert!(admit(&arrivals, "203.0.113.7").await.is_none());
        assert!(admit(&arrivals, "203.0.113.8").await.is_some(), "another address");
        drop(first);
        let third = admit(&arrivals, "203.0.113.7").await;
        assert!(third.is_some());
        assert!(admit(&arrivals, "203.0.113.7").await.is_none(), "it made room for one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_keeps_its_place_for_as_long_as_it_lasts() {
        let limit = "{name: a, when: {layer: connection}, concurrency: 1, lease: 30s}";
        let (arrivals, clock) = arrivals(&format!("{GATEWAY}\nlimits: [{limit}]"));
        let stay = admit(&arrivals, "203.0.113.7").await;
        for _ in 0..600 {
            clock.advance(Micros::from_secs(1));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(admit(&arrivals, "203.0.113.8").await.is_none(), "ten minutes later");
        drop(stay);
        assert!(admit(&arrivals, "203.0.113.8").await.is_some());
    }

    #[tokio::test]
    async fn lists_of_addresses_hold_for_connections() {
        let lists = "deny: [{client_ip: 203.0.113.66}]\nexempt: [{client_ip: 203.0.113.1}]";
        let limit = "{name: a, when: {layer: connection}, rate: 1/minute}";
        let (arrivals, _) = arrivals(&format!("{GATEWAY}\n{lists}\nlimits: [{limit}]"));
        assert!(admit(&arrivals, "203.0.113.66").await.is_none());
        assert!(admit(&arrivals, "203.0.113.7").await.is_some());
        assert!(admit(&arrivals, "203.0.113.7").await.is_none());
        assert!(admit(&arrivals, "203.0.113.1").await.is_some());
    }

    #[tokio::test]
    async fn limits_of_requests_and_those_in_shadow_keep_no_connection_out() {
        let limits = "[{name: a, rate: 1/minute}, \
                      {name: b, when: {layer: connection}, rate: 1/minute, mode: shadow}]";
        let (arrivals, _) = arrivals(&format!("{GATEWAY}\nlimits: {limits}"));
        for _ in 0..3 {
            assert!(admit(&arrivals, "203.0.113.7").await.is_some());
        }
        let request = arrivals.limiter.check(&Request::new(&[]));
        assert!(request.is_allowed(), "no connection was charged as a request");
    }

    #[tokio::test]
    async fn the_log_is_told_once_in_a_while_of_those_who_were_kept_out() {
        let limit = "{name: a, when: {layer: connection}, rate: 1/year}";
        let lists = "deny: [{client_ip: 203.0.113.66}]";
        let (arrivals, clock) = arrivals(&format!("{GATEWAY}\n{lists}\nlimits: [{limit}]"));
        let untold = || arrivals.closed.lock().expect("no panic").since;
        let _stay = admit(&arrivals, "203.0.113.7").await;
        for expected in [0, 1, 2] {
            assert!(admit(&arrivals, "203.0.113.7").await.is_none());
            assert_eq!(untold(), expected, "the first is told at once");
        }
        assert!(admit(&arrivals, "203.0.113.66").await.is_none());
        assert_eq!(untold(), 2, "who is listed is not counted");
        clock.advance(CLOSED_TOLD_EVERY);
        assert!(admit(&arrivals, "203.0.113.7").await.is_none());
        assert_eq!(untold(), 0, "all of them are told");
    }
}
