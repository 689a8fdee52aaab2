//! Requests that wait for their turn, on two clocks that stand still until they are moved.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use tokio::runtime::Builder;
use tollgate::Limiter;
use tollgate::http::TollgateLayer;
use tollgate::http::layer::{ResponseFuture, Tollgate};
use tower_layer::Layer;
use tower_service::Service;

use super::{Door, Yes, get, left};

/// One a second, and so the moments are whole seconds.
const SLOW: &str = "limits: [{name: slow, rate: 1/second, algorithm: leaky_bucket, queue: 100}]";

type Future = ResponseFuture<Yes, Full<Bytes>>;

/// Sends requests, and polls them as a runtime does: when they are new, and when they are woken.
struct Crowd {
    door: Door,
    service: Tollgate<Yes>,
    waiting: Vec<Waiting>,
    sent: usize,
    at: u64,
}

struct Waiting {
    number: usize,
    future: Pin<Box<Future>>,
    woken: Arc<Woken>,
}

/// How often somebody was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Crowd {
    fn new(door: Door) -> Self {
        let service = door.layer.layer(Yes);
        Self { door, service, waiting: Vec::new(), sent: 0, at: 0 }
    }

    /// Sends a request; tells its number.
    fn send(&mut self, path: &str) -> usize {
        let number = self.sent;
        self.sent += 1;
        let future = Box::pin(self.service.call(get(path)));
        let woken = Arc::new(Woken(AtomicUsize::new(1)));
        self.waiting.push(Waiting { number, future, woken });
        number
    }

    fn send_many(&mut self, requests: usize) {
        for _ in 0..requests {
            self.send("/");
        }
    }

    /// The client of a request goes away.
    fn drop(&mut self, number: usize) {
        self.waiting.retain(|it| it.number != number);
    }

    /// Polls whoever was woken, until nobody is; tells who went on, and with which status.
    fn run(&mut self) -> Vec<(usize, u16)> {
        let mut done = Vec::new();
        loop {
            let is_woken = |it: &Waiting| it.woken.0.swap(0, Ordering::Relaxed) > 0;
            let Some(index) = self.waiting.iter().position(is_woken) else { return done };
            let Waiting { number, future, woken } = &mut self.waiting[index];
            let waker = Waker::from(Arc::clone(woken));
            if let Poll::Ready(response) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                done.push((*number, response.expect("infallible").status().as_u16()));
                self.waiting.remove(index);
            }
        }
    }

    /// Who goes on in each of the next seconds.
    async fn seconds(&mut self, seconds: u64) -> Vec<(u64, usize)> {
        let mut went = Vec::new();
        for _ in 0..seconds {
            went.extend(self.run().into_iter().map(|(number, status)| {
                assert_eq!(status, 200);
                (self.at, number)
            }));
            self.door.advance("1s").await;
            self.at += 1;
        }
        went
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_held_for_their_delay_and_go_on_in_order() {
    let mut crowd = Crowd::new(Door::new(SLOW));
    crowd.send_many(4);
    assert_eq!(crowd.seconds(5).await, [(0, 0), (1, 1), (2, 2), (3, 3)]);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_held_until_its_moment_and_not_longer() {
    let policy = "limits: [{name: slow, rate: 4/second, algorithm: leaky_bucket, queue: 9}]";
    let mut crowd = Crowd::new(Door::new(policy));
    crowd.send_many(2);
    assert_eq!(crowd.run(), [(0, 200)]);
    crowd.door.advance("249ms").await;
    assert_eq!(crowd.run(), []);
    crowd.door.advance("1ms").await;
    // A timer of the runtime may be a millisecond late.
    crowd.door.advance("1ms").await;
    assert_eq!(crowd.run(), [(1, 200)]);
}

#[tokio::test(start_paused = true)]
async fn a_layer_tells_how_many_it_holds_and_for_how_long_it_held_those_that_went_on() {
    let mut crowd = Crowd::new(Door::new(SLOW));
    crowd.send_many(4);
    crowd.run();
    assert_eq!(crowd.door.layer.held().now, 3);
    crowd.drop(3);
    crowd.seconds(4).await;
    let held = crowd.door.layer.held();
    assert_eq!((held.now, held.shed, held.waited.count), (0, 0, 2));
    assert!((held.waited.sum - 3.0).abs() < 0.01, "one and two seconds: {}", held.waited.sum);
}

#[tokio::test(start_paused = true)]
async fn the_response_of_a_held_request_has_the_fields_too() {
    let door = Door::new(SLOW);
    let mut service = door.layer.layer(Yes);
    let first = super::send(&mut service, get("/")).await;
    let held = super::send(&mut service, get("/")).await;
    assert_eq!(
        (first.field("x-ratelimit-remaining"), held.field("x-ratelimit-remaining")),
        ("99", "98")
    );
    assert_eq!(held.text, "yes");
}

#[tokio::test(start_paused = true)]
async fn when_the_queue_is_full_a_request_is_refused_at_once() {
    let policy = "limits: [{name: slow, rate: 1/second, algorithm: leaky_bucket, queue: 2}]";
    let mut crowd = Crowd::new(Door::new(policy));
    crowd.send_many(3);
    assert_eq!(crowd.run(), [(0, 200), (2, 429)]);
    assert_eq!(crowd.waiting.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn when_a_client_goes_away_those_behind_it_move_up() {
    let mut crowd = Crowd::new(Door::new(SLOW));
    crowd.send_many(5);
    assert_eq!(crowd.run(), [(0, 200)]);
    crowd.drop(2);
    assert_eq!(crowd.seconds(5).await, [(1, 1), (2, 3), (3, 4)]);
}

#[tokio::test(start_paused = true)]
async fn who_comes_after_that_stands_behind_them() {
    let mut crowd = Crowd::new(Door::new(SLOW));
    crowd.send_many(4);
    assert_eq!(crowd.run(), [(0, 200)]);
    crowd.drop(1);
    crowd.send("/");
    assert_eq!(crowd.seconds(5).await, [(1, 2), (2, 3), (3, 4)], "each a second after the other");
}

#[tokio::test(start_paused = true)]
async fn those_in_front_of_it_and_those_of_other_keys_stay_where_they_are() {
    let policy = "limits: [{name: slow, per: [path], rate: 1/second, algorithm: leaky_bucket, \
                  queue: 9}]";
    let mut crowd = Crowd::new(Door::new(policy));
    for path in ["/a", "/b", "/a", "/b", "/a", "/b"] {
        crowd.send(path);
    }
    assert_eq!(crowd.run(), [(0, 200), (1, 200)]);
    crowd.drop(4);
    assert_eq!(crowd.seconds(4).await, [(1, 2), (1, 3), (2, 5)]);
}

#[tokio::test(start_paused = true)]
async fn a_costly_request_that_goes_away_moves_those_behind_it_up_by_what_it_cost() {
    let policy = "limits: [{name: slow, rate: 1/second, algorithm: leaky_bucket, queue: 100, \
                  cost: {by: path, values: {/costly: 3}}}]";
    let mut crowd = Crowd::new(Door::new(policy));
    for path in ["/", "/costly", "/", "/"] {
        crowd.send(path);
    }
    assert_eq!(crowd.run(), [(0, 200)]);
    crowd.drop(1);
    crowd.send("/");
    assert_eq!(crowd.seconds(5).await, [(1, 2), (2, 3), (3, 4)]);
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_wakes_one_other_and_not_all() {
    let mut crowd = Crowd::new(Door::new(SLOW));
    crowd.send_many(50);
    crowd.run();
    crowd.drop(1);
    let woken: Vec<usize> = crowd
        .waiting
        .iter()
        .filter(|it| it.woken.0.load(Ordering::Relaxed) > 0)
        .map(|it| it.number)
        .collect();
    assert_eq!(woken, [2]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_gets_its_place_back_and_nothing_else() {
    let door = Door::new(
        "limits: [{name: api, rate: 10/hour, algorithm: fixed_window}, \
         {name: slow, rate: 1/second, algorithm: leaky_bucket, queue: 5}]",
    );
    let mut crowd = Crowd::new(door);
    crowd.send_many(3);
    assert_eq!(left(&crowd.door.limiter), [7, 2]);
    crowd.drop(2);
    // Otherwise sending and going away would be free of charge.
    assert_eq!(left(&crowd.door.limiter), [7, 3]);
    crowd.seconds(3).await;
    assert_eq!(left(&crowd.door.limiter), [7, 5], "who went on has nothing to give back");
}

#[tokio::test(start_paused = true)]
async fn beyond_the_bound_a_request_is_refused_and_pays_nothing() {
    let mut door = Door::new(
        "limits: [{name: api, rate: 10/hour, algorithm: fixed_window}, {name: jobs, concurrency: 9}, \
         {name: slow, rate: 1/second, algorithm: leaky_bucket, queue: 8}]",
    );
    door.layer = door.layer.max_held(2);
    let mut service = door.layer.layer(Yes);
    let mut crowd = Crowd::new(door);
    crowd.send_many(3);
    let before = left(&crowd.door.limiter);
    assert_eq!(before, [7, 6, 5]);
    let answer = super::send(&mut service, get("/")).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!(answer.json()["type"], kind);
    assert!(!answer.field("ratelimit-policy").is_empty());
    assert_eq!(left(&crowd.door.limiter), before);
    crowd.drop(1);
    let number = crowd.send("/");
    assert_eq!(crowd.seconds(4).await, [(0, 0), (1, 2), (2, number)], "there is room again");
}

#[tokio::test(start_paused = true)]
async fn a_request_behind_two_queues_waits_for_both() {
    let policy = "limits: [\
        {name: each, per: [path], rate: 1/second, algorithm: leaky_bucket, queue: 9}, \
        {name: all, rate: 2/second, algorithm: leaky_bucket, queue: 9}]";
    let mut crowd = Crowd::new(Door::new(policy));
    for path in ["/a", "/b", "/a", "/c", "/c"] {
        crowd.send(path);
    }
    // Of all: 0, 0.5, 1, 1.5, 2. Of each: /a 0 and 1, /b 0, /c 0 and 1.
    assert_eq!(crowd.seconds(4).await, [(0, 0), (1, 1), (1, 2), (2, 3), (2, 4)]);
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_layer_hold_in_one_queue() {
    let door = Door::new(SLOW);
    let other = door.layer.clone().max_held(1_000).layer(Yes);
    let mut crowd = Crowd::new(door);
    crowd.send("/");
    crowd.send("/");
    crowd.service = other;
    crowd.send("/");
    crowd.run();
    crowd.drop(1);
    assert_eq!(crowd.seconds(3).await, [(1, 2)]);
}

/// Clients come and go at random; a model says who goes on when.
#[tokio::test(start_paused = true)]
async fn whoever_comes_and_goes_releases_keep_their_order_and_their_distance() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let mut crowd = Crowd::new(Door::new(SLOW));
        // Who waits, in order; and the second from which on the next may go.
        let (mut queue, mut next) = (Vec::<usize>::new(), 0);
        for _ in 0..60 {
            let mut expected = Vec::new();
            for _ in 0..dice.roll(4) {
                if dice.roll(3) == 0 && !queue.is_empty() {
                    let gone = queue.remove(dice.roll(queue.len()));
                    crowd.drop(gone);
                } else if queue.is_empty() && crowd.at >= next {
                    // It goes on at once, and what goes away then is only its response.
                    next = crowd.at + 1;
                    expected.push((crowd.at, crowd.send("/")));
                } else {
                    queue.push(crowd.send("/"));
                }
                // Sometimes everybody has heard of a change before there is another.
                if dice.roll(2) == 0 && crowd.at < next && expected.is_empty() {
                    assert_eq!(crowd.run(), [], "seed {seed}");
                }
            }
            if crowd.at >= next && !queue.is_empty() {
                next = crowd.at + 1;
                expected.push((crowd.at, queue.remove(0)));
            }
            assert_eq!(crowd.seconds(1).await, expected, "seed {seed}, second {}", crowd.at);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_can_be_held_and_all_go_away() {
    let policy = "limits: [{name: slow, rate: 1/second, algorithm: leaky_bucket, queue: 20000}]";
    let mut crowd = Crowd::new(Door::new(policy));
    crowd.send_many(10_002);
    let refused = crowd.waiting.pop().expect("the last");
    assert_eq!(refused.future.await.expect("infallible").status(), 503);
    // From the end, where nobody has to move up, and then some from the front.
    while crowd.waiting.len() > 300 {
        crowd.waiting.pop();
    }
    crowd.waiting.clear();
    // The first went on: its second is not over.
    assert_eq!(left(&crowd.door.limiter), [19_999]);
    let next = crowd.send("/");
    assert_eq!(crowd.seconds(2).await, [(1, next)]);
}

#[test]
fn threads_that_hold_and_let_go_at_once_leave_nobody_behind() {
    let policy = "limits: [{name: slow, rate: 2000/second, algorithm: leaky_bucket, queue: 5000}]";
    let limiter = Arc::new(Limiter::from_yaml(policy).expect("a policy"));
    let layer = TollgateLayer::new(limiter);
    let runtime = || Builder::new_current_thread().enable_time().build().expect("a runtime");
    std::thread::scope(|threads| {
        for seed in 0..4 {
            let layer = &layer;
            threads.spawn(move || {
                runtime().block_on(async {
                    let (mut dice, mut held) = (Dice(seed), Vec::new());
                    for _ in 0..250 {
                        held.push(Box::pin(layer.layer(Yes).call(get("/"))));
                        let some = dice.roll(held.len());
                        match dice.roll(3) {
                            0 => drop(held.swap_remove(some)),
                            1 if super::poll_once(&mut held[some]).is_ready() => {
                                drop(held.swap_remove(some));
                            }
                            _ => tokio::task::yield_now().await,
                        }
                    }
                    for future in held {
                        assert_eq!(future.await.expect("infallible").status(), StatusCode::OK);
                    }
                });
            });
        }
    });
    // If anybody were still counted, there would be no room for one more.
    let mut one = layer.max_held(1).layer(Yes);
    runtime().block_on(async {
        for _ in 0..9 {
            // Whatever becomes of the first, the second has to wait.
            drop(one.call(get("/")));
            assert_eq!(one.call(get("/")).await.expect("infallible").status(), StatusCode::OK);
        }
    });
}

/// A generator whose numbers are good enough to choose by.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % sides as u64) as usize
    }
}
