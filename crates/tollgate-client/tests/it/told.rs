//! What people can read of the client's doings: events of `tracing`.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use tokio::runtime::Builder;
use tokio::time::advance;
use tollgate_client::{Attempt, Breaker, Budget, Retry, Throttle};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{SECOND, fields};

/// Every event, a line each: what it says, and its fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(pub(crate) Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tollgate_client")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = event.metadata().level();
        self.0
            .lock()
            .expect("nobody panics with it")
            .push(format!("{level} {}{}", line.says, line.of));
    }
}

#[derive(Default)]
struct Line {
    says: String,
    of: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.says = format!("{value:?}"),
            name => write!(self.of, " {name}={value:?}").expect("there is room for text"),
        }
    }
}

async fn doings() {
    let wait = SECOND;
    let refused = || async { Attempt::Refused { last: (), wait } };
    Retry::new().retries(2).seed(7).run(refused).await;
    let failed = || async { Attempt::Failed { last: (), wait: Some(1_000 * SECOND) } };
    Retry::new().run(failed).await;

    let throttle = Throttle::new().wait_max(10 * SECOND);
    let lane = throttle.lane("a");
    let closed = |seconds: &str| {
        Budget::read(&fields(&format!("Retry-After: {seconds}")), SystemTime::UNIX_EPOCH)
    };
    lane.pass().await.expect("nothing is known").refused(&closed("7"));
    let pass = lane.pass().await.expect("it need not wait for long");
    let waiting = tokio::spawn({
        let lane = lane.clone();
        async move { lane.pass().await.map(drop) }
    });
    // It begins to wait.
    tokio::task::yield_now().await;
    advance(SECOND).await;
    pass.refused(&closed("60"));
    waiting.await.expect("it does not panic").expect_err("it would wait for too long");

    let circuit = Breaker::new().failures(1).successes(1).circuit("db");
    circuit.enter().expect("it is closed").failed();
    advance(30 * SECOND).await;
    circuit.enter().expect("it is half open").succeeded();
    circuit.force_open(true);
}

#[test]
fn every_wait_retry_and_change_is_told() {
    let lines = Lines::default();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    tracing::subscriber::with_default(lines.clone(), || {
        // Who first tells of something, on whatever thread, decides whether anybody listens to it: so all
        // is told once before it counts.
        runtime.block_on(doings());
        tracing::callsite::rebuild_interest_cache();
        lines.0.lock().unwrap().clear();
        runtime.block_on(doings());
    });
    let lines = lines.0.lock().unwrap();
    // How long a retry waits is chance, and a timer may be late by a millisecond.
    let without_figures = |line: &String| {
        let words = line.split(' ').map(|word| match word.split_once("_ms=") {
            Some((name, _)) => format!("{name}_ms"),
            None => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let told: Vec<String> = lines.iter().map(without_figures).collect();
    assert_eq!(
        told,
        [
            r#"DEBUG tries again number=1 wait_ms cause="refused""#,
            r#"DEBUG tries again number=2 wait_ms cause="refused""#,
            r#"DEBUG does not try again retries=2 why="retries""#,
            r#"DEBUG does not try again retries=0 why="deadline""#,
            "DEBUG waited for its budget waited_ms has_passed=true",
            "DEBUG waited for its budget waited_ms has_passed=false",
            r#"DEBUG was not made why="throttled""#,
            r#"INFO a circuit changed key=db from="closed" to="open" reason=Failures"#,
            r#"INFO a circuit changed key=db from="open" to="half_open" reason=Rested"#,
            r#"INFO a circuit changed key=db from="half_open" to="closed" reason=Recovered"#,
            r#"INFO a circuit changed key=db from="closed" to="forced_open" reason=Forced"#,
        ]
    );
}
