//! What is sent together, on a clock of the test's own.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Runtime;
use tokio::task::yield_now;
use tokio::time::advance;
use tollgate_harness::{Flavour, Server, eventually};

use super::*;
use crate::redis::bounds::{COMPANY, SHORT_FLIGHT, SMALL_FLIGHTS_MAX};
use crate::redis::call::Reply;

/// A server, and who asks it on a clock that stands still.
struct Asking {
    server: Server,
    runtime: Runtime,
    node: Arc<Node>,
    deadline: Instant,
}

impl Asking {
    /// The server has answered once, in no time.
    fn start() -> Self {
        let server = Server::start(Flavour::Redis);
        let servers = Servers::Single(server.url());
        let (seeds, longest) = (servers.addresses().unwrap(), Duration::from_secs(5));
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (shared, now) = runtime.block_on(async {
            let shared = Shared::start(&servers, &seeds, longest, "test", Handle::current());
            (shared, clock::moment())
        });
        let node = Arc::clone(shared.map.load().route(0).expect("one server has all slots"));
        let asking = Self { server, runtime, node, deadline: now + longest };
        asking.answers(vec![asking.ask()]);
        asking
    }

    fn ask(&self) -> Pending {
        let words = ["GET", "n"].iter().collect();
        let call = Call { script: None, words, slot: 0, late: None };
        let pending = self.node.send(call, self.deadline);
        self.work();
        pending
    }

    /// Lets the server's task do whatever it can. Somebody is busy all the time, since otherwise the clock
    /// would go on to the next deadline.
    fn work(&self) {
        self.runtime.block_on(async {
            for _ in 0..1_000 {
                yield_now().await;
            }
        });
    }

    fn answers(&self, mut pending: Vec<Pending>) {
        let context = &mut Context::from_waker(Waker::noop());
        eventually("everybody is answered", || {
            self.work();
            pending.retain_mut(|pending| match Pin::new(pending).poll(context) {
                Poll::Ready(answer) => answer != Ok(Reply::Nil),
                Poll::Pending => true,
            });
            pending.is_empty().then_some(())
        });
    }

    /// Calls and pipelines since `before`.
    fn sent_since(&self, before: &Health) -> (usize, usize) {
        let now = self.node.status().health();
        ((now.calls - before.calls) as usize, (now.pipelines - before.pipelines) as usize)
    }
}

#[test]
fn what_is_asked_one_by_one_goes_out_at_once_and_then_in_company() {
    let asking = Asking::start();
    let before = asking.node.status().health();
    asking.server.stop();
    let mut pending = Vec::new();
    for asked in 1..=SMALL_FLIGHTS_MAX {
        pending.push(asking.ask());
        assert_eq!(asking.sent_since(&before), (asked, asked));
    }
    for _ in 1..COMPANY {
        pending.push(asking.ask());
        assert_eq!(asking.sent_since(&before), (SMALL_FLIGHTS_MAX, SMALL_FLIGHTS_MAX));
    }
    pending.push(asking.ask());
    let sent = asking.sent_since(&before);
    assert_eq!(sent, (SMALL_FLIGHTS_MAX + COMPANY, SMALL_FLIGHTS_MAX + 1));
    asking.server.cont();
    asking.answers(pending);
}

#[test]
fn a_call_that_nobody_joins_goes_out_when_something_lands() {
    let asking = Asking::start();
    let before = asking.node.status().health();
    asking.server.stop();
    let pending: Vec<_> = (0..=SMALL_FLIGHTS_MAX).map(|_| asking.ask()).collect();
    assert_eq!(asking.sent_since(&before), (SMALL_FLIGHTS_MAX, SMALL_FLIGHTS_MAX));
    asking.server.cont();
    asking.answers(pending);
    assert_eq!(asking.sent_since(&before), (SMALL_FLIGHTS_MAX + 1, SMALL_FLIGHTS_MAX + 1));
}

#[test]
fn a_server_that_has_not_answered_for_long_is_asked_again_by_whoever_comes() {
    let asking = Asking::start();
    let before = asking.node.status().health();
    asking.server.stop();
    let mut pending: Vec<_> = (0..=SMALL_FLIGHTS_MAX).map(|_| asking.ask()).collect();
    asking.runtime.block_on(advance(SHORT_FLIGHT));
    pending.push(asking.ask());
    assert_eq!(asking.sent_since(&before), (SMALL_FLIGHTS_MAX + 2, SMALL_FLIGHTS_MAX + 1));
    asking.server.cont();
    asking.answers(pending);
}

#[test]
fn a_server_that_is_far_away_is_asked_without_waiting_for_company() {
    let asking = Asking::start();
    asking.server.stop();
    let far = asking.ask();
    asking.runtime.block_on(advance(SHORT_FLIGHT));
    asking.server.cont();
    asking.answers(vec![far]);
    let before = asking.node.status().health();
    asking.server.stop();
    let pending: Vec<_> = (0..=SMALL_FLIGHTS_MAX).map(|_| asking.ask()).collect();
    assert_eq!(asking.sent_since(&before), (SMALL_FLIGHTS_MAX + 1, SMALL_FLIGHTS_MAX + 1));
    asking.server.cont();
    asking.answers(pending);
}
