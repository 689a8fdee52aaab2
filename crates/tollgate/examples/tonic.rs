//! A gRPC service in tonic with a limiter around it: whoever calls too often is told so in gRPC.
//!
//! Run it with `cargo run -p tollgate --features tower --example tonic`.

use std::error::Error;
use std::sync::Arc;

use tokio::net::TcpListener;
use tollgate::Limiter;
use tollgate::http::TollgateLayer;
use tonic::Code;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A path of gRPC is `/package.Service/Method`.
const POLICY: &str = "
limits:
  - { name: checks, when: { path: /grpc.health.v1.Health/Check }, per: [client_ip], rate: 3/minute }
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = TollgateLayer::new(Arc::new(Limiter::from_yaml(POLICY)?))
        .peer(|parts| Some(parts.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    // Health checks, since they need no files of their own; any service of yours is the same.
    let (_, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = Server::builder().layer(limits).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for _ in 0..3 {
        let answer = client.check(HealthCheckRequest::default()).await?;
        println!("ok, {:?} left", answer.metadata().get("x-ratelimit-remaining"));
    }
    let Err(refusal) = client.check(HealthCheckRequest::default()).await else {
        return Err("the limit holds nobody".into());
    };
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    println!("{}: {}", refusal.code(), refusal.message());
    println!("Retry-After: {:?}", refusal.metadata().get("retry-after"));
    Ok(())
}
