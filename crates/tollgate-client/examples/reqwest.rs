//! reqwest with the rules around it: a refusal is waited out, without a word in the code that calls.
//!
//! Run it with `cargo run -p tollgate-client --features reqwest --example reqwest`.

use std::error::Error;
use std::net::SocketAddr;

use reqwest_middleware::ClientBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tollgate_client::{ClientMiddleware, Retry, Rules};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = serve().await?;

    let rules = Rules::new().retry(Retry::new().retries(3));
    let client =
        ClientBuilder::new(reqwest::Client::new()).with(ClientMiddleware::new(rules)).build();

    let answer = client.get(format!("http://{server}/things")).send().await?;
    println!("{}: {}", answer.status(), answer.text().await?);
    Ok(())
}

/// Refuses the first request for a tenth of a second, and answers the others.
async fn serve() -> Result<SocketAddr, Box<dyn Error>> {
    const REFUSED: &str = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nRetry-After-Ms: 100\r\n\
                           Connection: close\r\nContent-Length: 0\r\n\r\n";
    const ANSWERED: &str =
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10\r\n\r\nall things";
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let mut answer = REFUSED;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4_096];
            // A request this short comes in one piece, and a failure is the client's to see.
            if stream.read(&mut request).await.is_ok()
                && stream.write_all(answer.as_bytes()).await.is_ok()
            {
                println!("served {}", answer.lines().next().unwrap_or_default());
                answer = ANSWERED;
            }
        }
    });
    Ok(address)
}
