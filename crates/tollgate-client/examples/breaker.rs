//! A breaker around a database: when it does not work, nobody waits for it, and it is not made worse.
//!
//! Run it with `cargo run -p tollgate-client --example breaker`.

use tokio::time::{Duration, sleep};
use tollgate_client::{Breaker, CallError};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let breaker = Breaker::new()
        .open_for(Duration::from_millis(50))
        .slow_calls(Duration::from_secs(1), 50)
        .on_change(|change| println!("{}: {:?}, {:?}", change.key, change.to, change.reason));
    let database = breaker.circuit("database");

    let (mut asked, mut answered) = (0, 0);
    while answered < 3 {
        // The database is down for the first six questions.
        let answer = database.call(async || {
            asked += 1;
            query(asked).await
        });
        match answer.await {
            Ok(name) => {
                answered += 1;
                println!("the answer is {name}");
            }
            Err(CallError::Failed(error)) => println!("asked, and {error}"),
            Err(CallError::Open(open)) => {
                // Here a service answers 503, or with what it remembers. This one has time.
                println!("not asked");
                sleep(open.retry_after.unwrap_or_default()).await;
            }
        }
    }
    assert_eq!(asked, 9);
}

async fn query(number: u32) -> Result<&'static str, &'static str> {
    if number <= 6 { Err("the connection was refused") } else { Ok("Ada") }
}
