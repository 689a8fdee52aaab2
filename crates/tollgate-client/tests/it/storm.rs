//! A thousand tasks that all call at once what allows a hundred a second.

use std::time::Duration;

use http::Request;
use tokio::task::JoinSet;
use tollgate_client::{ClientLayer, Rules};
use tollgate_core::{Cost, Limit, Micros, Quota, Timestamp, Word};
use tower_layer::Layer;
use tower_service::Service;

use crate::support::server::{Answer, Server, answer};
use crate::support::{SECOND, now};

/// How a server that allows 100 a second tells that.
#[derive(Clone, Copy, Debug)]
enum Tells {
    /// Every generation's worth of fields.
    Everything,
    /// `Retry-After` on a refusal, in whole seconds, and nothing else.
    RetryAfter,
    /// The same to the millisecond.
    RetryAfterMs,
    /// `X-RateLimit-*`, with the seconds until the window ends.
    Window,
    /// Nothing at all.
    Nothing,
}

struct Storm {
    took: Duration,
    succeeded: usize,
    sent: usize,
    /// Of those after the first moment, in which all arrive.
    busiest_second: usize,
}

async fn storm(tells: Tells) -> Storm {
    let limit = match tells {
        Tells::Window => Limit::fixed_window(Quota::per_second(100), Default::default()),
        _ => Limit::token_bucket(Quota::per_second(100), 100).expect("a bucket"),
    };
    let Limit::Counter(limit) = limit else { unreachable!("it is counted") };
    let mut word = Word::VACANT;
    let server = Server::new(Duration::from_millis(20), move |_, arrival| -> Answer {
        let at = Timestamp::from_micros(1_760_000_000_000_000).plus(arrival.after.into());
        let next = limit.decide(word, at, Cost::ONE);
        word = next.word;
        let decision = next.decision;
        let status = if decision.is_allowed() { 200 } else { 429 };
        let wait = decision.retry_after().map(Micros::as_secs_up);
        let retry = wait.map(|wait| format!("Retry-After: {wait}\n")).unwrap_or_default();
        let left = decision.remaining;
        let fields = match tells {
            Tells::Everything => {
                let next = decision.next_after.unwrap_or_default().as_secs_up();
                format!(
                    "{retry}RateLimit-Policy: \"a\";q=100;w=1\nRateLimit: \"a\";r={left};t={next}"
                )
            }
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
            Tells::Nothing => String::new(),
        };
        answer(status, &fields)
    });
    let client = ClientLayer::new(Rules::new()).layer(server.clone());
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
    for tells in [Tells::Everything, Tells::RetryAfter, Tells::RetryAfterMs, Tells::Window] {
        let Storm { took, succeeded, sent, busiest_second } = storm(tells).await;
        let told = format!("{tells:?}: {took:?}, {sent} sent, {busiest_second} in one second");
        assert_eq!(succeeded, 1_000, "{told}");
        assert!(took <= 13 * SECOND, "{told}");
        assert!(sent - 1_000 <= 900 * 3 / 2, "{told}");
        assert!(busiest_second <= 200, "{told}");
    }
}

/// Who is told nothing cannot know; but it does not make things worse.
#[tokio::test(start_paused = true)]
async fn a_thousand_who_are_told_nothing_send_a_fifth_more_at_most() {
    let storm = storm(Tells::Nothing).await;
    assert!(storm.succeeded >= 100 && storm.sent <= 1_220, "{} sent", storm.sent);
}
