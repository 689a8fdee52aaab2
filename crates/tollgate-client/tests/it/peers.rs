//! The rules around reqwest, against servers that others wrote.

use std::sync::atomic::Ordering;

use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::task::JoinSet;
use tollgate_client::{ClientMiddleware, Rules};

use crate::reqwest::Counted;
use crate::support::peer::Peer;

/// A client under the rules, and how many requests it has really sent.
fn client() -> (ClientWithMiddleware, Counted) {
    let counted = Counted::default();
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(ClientMiddleware::new(Rules::new()))
        .with(counted.clone())
        .build();
    (client, counted)
}

/// So many at once; tells how they ended.
async fn get_all(client: &ClientWithMiddleware, peer: &Peer, count: usize) -> Vec<u16> {
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let request = client.get(peer.url());
        tasks.spawn(
            async move { request.send().await.map_or(0, |answer| answer.status().as_u16()) },
        );
    }
    tasks.join_all().await
}

/// One request tells what there is. From then on three times as many as a window has go through, none of them
/// refused: whoever counts them is express-rate-limit itself.
async fn check_express(headers: &'static str) {
    let peer = Peer::express(headers, 20, 1_000);
    let (client, counted) = client();
    assert_eq!(get_all(&client, &peer, 1).await, [200], "{headers}");
    assert_eq!(get_all(&client, &peer, 60).await, [200; 60], "{headers}");
    let sent = counted.0.load(Ordering::Relaxed);
    assert_eq!(sent, 61, "{headers}: some were refused and sent again");
}

#[tokio::test]
async fn express_rate_limit_is_understood_in_each_of_its_header_modes() {
    let modes = ["legacy", "draft-6", "draft-7", "draft-8"];
    let mut tasks = JoinSet::new();
    for headers in modes {
        tasks.spawn(check_express(headers));
    }
    tasks.join_all().await;
}

/// nginx says no and not a word more, be it with 429 or with the 503 that it has by default. Six pass at once; the
/// others come back after a while, and get through. Five of 503 in a row are a server that does not work, so there
/// are fewer of these.
#[tokio::test]
async fn nginx_that_tells_nothing_is_asked_again_later() {
    for (status, count) in [(429, 10), (503, 7)] {
        let peer = Peer::nginx(status);
        let (client, counted) = client();
        assert_eq!(get_all(&client, &peer, count).await, vec![200; count], "{status}");
        let sent = counted.0.load(Ordering::Relaxed);
        assert!((count + 1..=2 * count).contains(&sent), "{status}: {sent} were sent for {count}");
    }
}
