//! A service in axum with a limiter around it: one line, and where to find a client's address.
//!
//! Run it with `cargo run -p tollgate --features tower --example axum`.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate::Limiter;
use tollgate::http::TollgateLayer;

const POLICY: &str = "
limits:
  - { name: hello, when: { path: /hello }, per: [client_ip], rate: 3/minute }
  - { name: reports, when: { path: /reports/** }, per: [user], concurrency: 2 }
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = TollgateLayer::new(Arc::new(Limiter::from_yaml(POLICY)?))
        .peer(|parts| Some(parts.extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()))
        // What only the service knows of a request. A real one has this from a session.
        .attributes(|parts, added| {
            if let Some(user) = parts.headers.get("x-user") {
                added.add("user", user);
            }
        });
    let service = Router::new()
        .route("/hello", get(async || "hello\n"))
        .route("/reports/{name}", get(async || "a report\n"))
        .layer(limits)
        .into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, service).await });

    for _ in 0..4 {
        println!("{}\n", curl(address, "/hello").await?);
    }
    println!("{}", curl(address, "/reports/sales").await?);
    Ok(())
}

/// The answer to one request, as it comes over the wire.
async fn curl(server: SocketAddr, path: &str) -> Result<String, Box<dyn Error>> {
    let mut connection = TcpStream::connect(server).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {server}\r\nX-User: ada\r\nAccept: text/plain\r\n\
         Connection: close\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer)
}
