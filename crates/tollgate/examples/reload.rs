//! A policy replaced while requests are being decided.
//!
//! Run it with `cargo run -p tollgate --example reload`.

use std::error::Error;
use std::thread;

use tollgate::{Limiter, Policy, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::from_yaml("limits: [{name: api, per: [user], rate: 60/hour}]")?;
    let admitted = |tries: u32| {
        let request = Request::new(&[("user", b"42")]);
        (0..tries).filter(|_| limiter.check(&request).is_allowed()).count()
    };
    println!("60 an hour: {} of 100 requests are allowed", admitted(100));

    // What was consumed stays consumed, so ten more are all there are.
    limiter.replace_policy(policy("limits: [{name: api, per: [user], rate: 70/hour}]")?)?;
    println!("raised to 70: {} of 100 requests are allowed", admitted(100));

    // A policy with a mistake is none, and the one in force stays in force.
    if let Err(mistakes) = policy("limits: [{name: api, per: [user], rate: 80/huor}]") {
        println!("{mistakes}");
    }
    println!("still 70: {} of 100 requests are allowed", admitted(100));

    // Requests under way finish under the policy they began with: nobody waits, nothing is lost.
    thread::scope(|scope| {
        let busy = scope.spawn(|| admitted(10_000));
        for rate in [80, 90, 100] {
            let text = format!("limits: [{{name: api, per: [user], rate: {rate}/hour}}]");
            limiter.replace_policy(policy(&text)?)?;
        }
        println!("raised to 100 under load: {} of 10000", busy.join().unwrap_or_default());
        Ok::<(), Box<dyn Error>>(())
    })
}

fn policy(text: &str) -> Result<Policy, tollgate::Mistakes> {
    Policy::parse("policy.yaml", text, &mut |_| Err("there are no other files".to_owned()))
}
