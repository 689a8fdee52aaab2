//! A thousand tasks that all call at once what allows a hundred a second.

use std::time::Duration;

use http::{HeaderMap, Request};
use tokio::task::JoinSet;
use tollgate::http::{fields, status};
use tollgate::{Clock, Limiter, MemoryStore, Policy};
use tollgate_client::{ClientLayer, Retry, Rules};
use tollgate_core::{Cost, Limit, Micros, Quota, Timestamp, Word};
use tower_layer::Layer;
use tower_service::Service;

use crate::support::server::{Answer, Arrival, Server, answer};
use crate::support::{SECOND, now};

/// How a server that allows 100 a second tells that.
#[derive(Clone, Copy, Debug)]
enum Tells {
    /// As tollgate does, which decides as well.
    Tollgate,
    /// `Retry-After` on a refusal, in whole seconds, and nothing else.
    RetryAfter,
    /// The same to the millisecond.
    RetryAfterMs,
    /// `X-RateLimit-*`, with the seconds until the window ends.
    Window,
    /// Nothing at all.
    Nothing,
}

#[derive(Debug, PartialEq, Eq)]
struct Storm {
    took: Duration,
    succeeded: usize,
    sent: usize,
    /// Of those after the first moment, in which all arrive.
    busiest_second: usize,
}

const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

/// The real thing: its limit, its fields, and its spread of the waits it tells.
fn tollgate() -> impl FnMut(usize, &Arrival) -> Answer {
    let text = "limits: [{ name: a, rate: 100/second, algorithm: token_bucket }]";
    let policy = Policy::parse("policy", text, &mut |_| Err("there are no files".to_owned()));
    let clock = Clock::manual(START);
    let store = MemoryStore::with_max_bytes(clock.clone(), 1 << 20).expect("there is room");
    let limiter = Limiter::new(policy.expect("a policy"), store).expect("it is one limit");
    move |_, arrival| {
        clock.set(START.plus(arrival.after.into()));
        let verdict = limiter.check(&tollgate::Request::new(&[]));
        let mut told = HeaderMap::new();
        fields::insert(&mut told, &verdict, limiter.now(), 0x5eed << 48);
        let line = |(name, value): (_, &http::HeaderValue)| {
            format!("{name}: {}", value.to_str().expect("it is text"))
        };
        let lines: Vec<String> = told.iter().map(line).collect();
        answer(status(&verdict).as_u16(), &lines.join("\n"))
    }
}

fn server(tells: Tells) -> Server {
    let takes = Duration::from_millis(20);
    if matches!(tells, Tells::Tollgate) {
        return Server::new(takes, tollgate());
    }
    let limit = match tells {
        Tells::Window => Limit::fixed_window(Quota::per_second(100), Default::default()),
        _ => Limit::token_bucket(Quota::per_second(100), 100).expect("a bucket"),
    };
    let Limit::Counter(limit) = limit else { unreachable!("it is counted") };
    let mut word = Word::VACANT;
    Server::new(takes, move |_, arrival| {
        let next = limit.decide(word, START.plus(arrival.after.into()), Cost::ONE);
        word = next.word;
        let decision = next.decision;
        let status = if decision.is_allowed() { 200 } else { 429 };
        let wait = decision.retry_after().map(Micros::as_secs_up);
        let retry = wait.map(|wait| format!("Retry-After: {wait}\n")).unwrap_or_default();
        let left = decision.remaining;
        let fields = match tells {
            Tells::RetryAfter => retry,
            Tells::RetryAfterMs => {
                let wait = decision.retry_after().map(Micros::as_millis_up);
                wait.map(|wait| format!("Retry-After-Ms: {wait}")).unwrap_or_default()
            }
            Tells::Window => {
                let reset = decision.reset_after.as_secs_up();
                format!(
                    "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: {left}\nX-RateLimit-Reset: {reset}"
                )
            }
            Tells::Nothing | Tells::Tollgate => String::new(),
        };
        answer(status, &fields)
    })
}

async fn storm(tells: Tells, seed: u64) -> Storm {
    let server = server(tells);
    let rules = Rules::new().retry(Retry::new().seed(seed));
    let client = ClientLayer::new(rules).layer(server.clone());
    let start = now();
    let mut tasks = JoinSet::new();
    for _ in 0..1_000 {
        let mut client = client.clone();
        tasks.spawn(async move {
            let mut request = Request::new(String::new());
            *request.uri_mut() = "http://api.example.com/".parse().expect("a URI");
            client.call(request).await.expect("there is an answer").status().as_u16()
        });
    }
    let answers = tasks.join_all().await;
    let succeeded = answers.iter().filter(|status| **status == 200).count();
    let took = now() - start;
    let arrivals = server.arrivals();
    let later = arrivals.iter().filter(|arrival| !arrival.after.is_zero());
    let mut seconds = vec![0; took.as_secs() as usize + 1];
    later.for_each(|arrival| seconds[arrival.after.as_secs() as usize] += 1);
    let busiest_second = seconds.into_iter().max().unwrap_or(0);
    Storm { took, succeeded, sent: arrivals.len(), busiest_second }
}

/// A hundred of the first thousand get through, and nine hundred are denied at once. They complete
/// within 1.3 times what the limit takes, with at most 1.5 requests for each, and no second sees more
/// than twice the limit.
#[tokio::test(start_paused = true)]
async fn a_thousand_who_are_denied_at_once_get_through_in_order() {
    for tells in [Tells::Tollgate, Tells::RetryAfter, Tells::RetryAfterMs, Tells::Window] {
        for seed in 0..2 {
            let storm = storm(tells, seed).await;
            let told = format!("{tells:?}, seed {seed}: {storm:?}");
            assert_eq!(storm.succeeded, 1_000, "{told}");
            assert!(storm.took <= 13 * SECOND, "{told}");
            assert!(storm.sent - 1_000 <= 900 * 3 / 2, "{told}");
            assert!(storm.busiest_second <= 200, "{told}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_brings_the_same_storm() {
    for tells in [Tells::Tollgate, Tells::RetryAfterMs] {
        assert_eq!(storm(tells, 7).await, storm(tells, 7).await, "{tells:?}");
    }
}

/// Who is told nothing cannot know; but it does not make things worse.
#[tokio::test(start_paused = true)]
async fn a_thousand_who_are_told_nothing_send_a_fifth_more_at_most() {
    let storm = storm(Tells::Nothing, 1).await;
    assert!(storm.succeeded >= 100 && storm.sent <= 1_220, "{} sent", storm.sent);
}
