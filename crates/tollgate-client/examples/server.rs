//! A service asks tollgate's server whether a request may go on: a check, and a call to a language model whose cost is
//! known at its end. The server is in this process, so that the example needs nothing else.
//!
//! Run it with `cargo run -p tollgate-client --features server --example server`.

use std::error::Error;
use std::time::Duration;
use std::{env, fs, process, thread};

use tollgate_client::{Check, Client, Fallback};
use tollgate_core::{Limit, Quota};
use tollgate_server::{Door, Server, Source};

const POLICY: &str = "\
listen: { http: \"127.0.0.1:0\" }
limits:
  - { name: api, per: [user], rate: 3/hour, algorithm: token_bucket }
  - { name: tokens, per: [model], rate: 1000/hour, algorithm: token_bucket }
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = serve()?;
    // Should the server be away, each process counts for itself.
    let limit = Limit::token_bucket(Quota::per_hour(3), 3)?;
    let fallback = Fallback::Limit { limit, per: vec!["user".to_owned()] };
    let deadline = Duration::from_secs(5);
    // One for a process: checks that are made at the same time travel together.
    let client = Client::connect(&url)?.deadline(deadline).fallback(fallback).start();

    let ada = Check::new(&[("user", "ada")], 1)?;
    for number in 1..=4 {
        let verdict = client.check(&ada).await;
        let comes_back = verdict.retry_after.unwrap_or_default().as_secs();
        println!("request {number}: {}, {:?}", verdict.is_allowed, verdict.source);
        assert_eq!(verdict.is_allowed, number <= 3);
        assert_eq!(comes_back > 0, !verdict.is_allowed, "who is denied is told when to come back");
    }

    // What it will cost is a guess; what it did cost is charged in the end.
    let guess = Check::new(&[("model", "large")], 800)?;
    let reserved = client.reserve(&guess, Duration::from_secs(60)).await;
    let reservation = reserved.reservation.ok_or("there was enough")?;
    assert!(!client.check(&guess).await.is_allowed, "nobody else has the rest");
    println!("settled: {}", client.settle(&reservation, 150).await?);
    assert!(client.check(&guess).await.is_allowed, "what was not used is there again");
    Ok(())
}

/// What `tollgate serve policy.yaml` does, until this process ends.
fn serve() -> Result<String, Box<dyn Error>> {
    let policy = env::temp_dir().join(format!("tollgate-example-{}.yaml", process::id()));
    fs::write(&policy, POLICY)?;
    let server = Server::bind(Source::File(policy.clone()));
    fs::remove_file(policy)?;
    let server = server?;
    let http = server.addresses().find(|(door, _)| *door == Door::Http);
    let (_, address) = http.ok_or("the policy says where it listens")?;
    thread::spawn(|| server.run_until(std::future::pending::<()>()));
    Ok(format!("http://{address}"))
}
