//! What is told of the client's doings.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::runtime::Builder;
use tollgate_client::{Attempt, Breaker, Budget, Retry, Throttle};

use crate::support::{SECOND, fields};

/// Every metric by its name and labels, and what was added to it.
#[derive(Clone, Debug, Default)]
struct Book(Arc<Mutex<BTreeMap<String, f64>>>);

#[derive(Debug)]
struct Line(Book, String);

impl Line {
    fn add(&self, value: f64) {
        *self.0.0.lock().expect("nobody panics with it").entry(self.1.clone()).or_default() +=
            value;
    }
}

impl CounterFn for Line {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {
        unreachable!("nothing is counted by others")
    }
}

impl HistogramFn for Line {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Book {
    fn line(&self, key: &Key) -> Arc<Line> {
        let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
        Arc::new(Line(self.clone(), [&[key.name()], &*labels].concat().join(" ")))
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.line(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.line(key))
    }
}

async fn doings() {
    let wait = SECOND;
    let refused = || async { Attempt::Refused { last: (), wait } };
    Retry::new().retries(2).run(refused).await;
    let failed = || async { Attempt::Failed { last: (), wait: Some(1_000 * SECOND) } };
    Retry::new().run(failed).await;

    let lane = Throttle::new().lane("a");
    let closed = Budget::read(&fields("Retry-After: 7"), SystemTime::UNIX_EPOCH);
    lane.pass().await.expect("nothing is known").refused(&closed);
    lane.pass().await.expect("it need not wait for long");

    let circuit = Breaker::new().failures(1).circuit("a");
    circuit.enter().expect("it is closed").failed();
}

#[test]
fn what_happens_is_counted_without_a_host_in_it() {
    let book = Book::default();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&book, || runtime.block_on(doings()));
    let book = book.0.lock().unwrap();
    let counts: Vec<(&str, u64)> = book.iter().map(|(name, sum)| (&**name, *sum as u64)).collect();
    let waited = book["tollgate_client_retry_wait_seconds"] as u64;
    assert!((2..=5).contains(&waited), "{counts:?}");
    assert_eq!(
        counts,
        [
            ("tollgate_client_circuit_changes_total open", 1),
            ("tollgate_client_given_up_total deadline", 1),
            ("tollgate_client_given_up_total retries", 1),
            ("tollgate_client_retries_total refused", 2),
            ("tollgate_client_retry_wait_seconds", waited),
            ("tollgate_client_throttled_seconds", 7),
        ]
    );
}
