//! Certificates of servers, and what TLS and HTTP/2 say in other ways.

use http::Response;
use http_body_util::BodyExt;

use super::ends::{Client, Pipe, Server, soon};
use crate::grpc::client::stop;
use crate::server::{Running, with_doors};
use crate::tls::Authority;

#[tokio::test]
async fn a_server_is_believed_if_its_certificate_is_its_own_and_of_somebody_we_trust() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let mut known = Server::start(true, Some(&authority.sign("127.0.0.1"))).await;
    let other_name = Server::start(true, Some(&authority.sign("other.example"))).await;
    let unknown = Server::start(false, Some(&stranger.sign("127.0.0.1"))).await;
    let speaks_no_tls = Server::start(false, None).await.url.replace("http://", "https://");
    let routes: String = [&known.url, &other_name.url, &unknown.url, &speaks_no_tls]
        .iter()
        .enumerate()
        .map(|(number, url)| format!("  - {{ when: {{ path: /{number} }}, to: {url} }}\n"))
        .collect();
    let policy = format!("upstream:\n{routes}gateway: {{ ca: ca.pem }}\nlimits: []");
    let files = [("ca.pem", &*authority.cert)];
    let gateway = Running::with_files(&with_doors(&["gateway"], &policy), &files);
    let mut client = Client::connect(&gateway, true, None).await;
    for path in ["/1", "/2", "/3"] {
        let request = client.post(path, Pipe::new().1);
        let response = soon(client.send(request)).await.unwrap();
        assert_eq!(response.status(), 502, "{path}");
    }
    let request = client.post("/0", Pipe::new().1);
    let response = client.send(request);
    let arrived = known.next().await;
    arrived.answer.send(Response::new(Pipe::new().1)).unwrap();
    assert_eq!(soon(response).await.unwrap().status(), 200);
    stop(gateway).await;
}

#[tokio::test]
async fn a_server_hears_by_which_way_a_request_came() {
    let authority = Authority::new();
    let own = authority.sign("localhost");
    let files = [("a.pem", &*own.cert), ("a.key", &*own.key)];
    let mut servers = [Server::start(false, None).await, Server::start(true, None).await];
    let policy = format!(
        "listen: {{ gateway: {{ address: 127.0.0.1:0, tls: {{ cert: a.pem, key: a.key }} }} }}\n\
         upstream:\n  - {{ when: {{ path: /0 }}, to: {} }}\n  - {{ to: {} }}\nlimits: []",
        servers[0].url, servers[1].url
    );
    let gateway = Running::with_files(&policy, &files);
    for is_http2 in [false, true] {
        let mut client = Client::connect(&gateway, is_http2, Some(&authority)).await;
        for (number, server) in servers.iter_mut().enumerate() {
            let mut request = client.post(&format!("/{number}"), Pipe::new().1);
            for cookie in ["a=1", "b=2"] {
                request.headers_mut().append("cookie", cookie.parse().unwrap());
            }
            let response = client.send(request);
            let arrived = server.next().await;
            let (head, body) = arrived.request.into_parts();
            let host = match number {
                0 => head.headers["host"].to_str().unwrap(),
                _ => head.uri.authority().expect("HTTP/2 has one").as_str(),
            };
            assert_eq!(host, "a.example");
            assert_eq!(head.headers.get("host").is_some(), number == 0);
            let via = if is_http2 { "2 tollgate" } else { "1.1 tollgate" };
            for (name, value) in [
                ("via", via),
                ("cookie", "a=1; b=2"),
                ("x-forwarded-for", "127.0.0.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "a.example"),
                ("forwarded", "for=127.0.0.1;host=\"a.example\";proto=https"),
            ] {
                let values: Vec<_> = head.headers.get_all(name).iter().collect();
                assert_eq!(values, [value], "{name}");
            }
            assert!(soon(body.collect()).await.unwrap().to_bytes().is_empty());
            arrived.answer.send(Response::new(Pipe::new().1)).unwrap();
            let response = soon(response).await.unwrap();
            let via = if number == 0 { "1.1 tollgate" } else { "2 tollgate" };
            assert_eq!(response.headers()["via"], via);
        }
    }
    stop(gateway).await;
}
