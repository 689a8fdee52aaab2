//! What is told of the client's doings.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::runtime::Builder;
use tollgate_client::{Attempt, Breaker, Budget, Circuit, Retry, Throttle};

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

impl GaugeFn for Line {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        unreachable!("nothing is known of others")
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

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.line(key))
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

    lane.pass()
        .await
        .expect("one goes")
        .refused(&Budget::read(&fields("Retry-After: 1000"), SystemTime::UNIX_EPOCH));
    lane.pass().await.expect_err("it would wait for too long");
}

/// Circuits in every state, and calls that they do not let through.
fn circuits() -> Vec<Circuit> {
    let breaker = Breaker::new().failures(1).successes(1).open_for(Duration::ZERO);
    let [forced, half_open, closed, gone] = ["a", "b", "c", "d"].map(|key| {
        let circuit = breaker.circuit(key);
        circuit.enter().expect("it is closed").failed();
        circuit
    });
    forced.force_open(true);
    forced.enter().expect_err("it is open");
    let probe = half_open.enter().expect("it is half open");
    half_open.enter().expect_err("one is under way");
    drop(probe);
    closed.enter().expect("it is half open").succeeded();
    gone.enter().expect("it is half open").failed();
    let open = Breaker::new().failures(1).circuit("e");
    open.enter().expect("it is closed").failed();
    drop((breaker, gone));
    vec![forced, half_open, closed, open]
}

/// A listener panics when a second change is not told yet, and the circuit goes.
#[test]
fn a_circuit_that_is_gone_is_in_no_state() {
    let book = Book::default();
    metrics::with_local_recorder(&book, || {
        let changed: Arc<Mutex<Option<Circuit>>> = Arc::default();
        let circuit = Arc::clone(&changed);
        let breaker = Breaker::new().on_change(move |_| {
            let circuit = circuit.lock().expect("nobody panics with it").take();
            circuit.expect("it is known before it changes").force_open(false);
            panic!("on purpose");
        });
        let circuit = breaker.circuit("a");
        *changed.lock().unwrap() = Some(circuit.clone());
        catch_unwind(AssertUnwindSafe(|| circuit.force_open(true))).unwrap_err();
    });
    let book = book.0.lock().unwrap();
    let states: Vec<_> =
        book.iter().filter(|(name, _)| name.starts_with("tollgate_client_circuits")).collect();
    assert!(!states.is_empty() && states.iter().all(|(_, sum)| **sum as i64 == 0), "{states:?}");
}

#[test]
fn what_happens_is_counted_without_a_host_in_it() {
    let book = Book::default();
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let circuits = metrics::with_local_recorder(&book, || {
        runtime.block_on(async {
            doings().await;
            circuits()
        })
    });
    let book = book.0.lock().unwrap();
    let counts: Vec<(&str, u64)> = book.iter().map(|(name, sum)| (&**name, *sum as u64)).collect();
    let waited = book["tollgate_client_retry_wait_seconds"] as u64;
    assert!((2..=5).contains(&waited), "{counts:?}");
    assert_eq!(
        counts,
        [
            ("tollgate_client_circuit_changes_total closed", 1),
            ("tollgate_client_circuit_changes_total forced_open", 1),
            ("tollgate_client_circuit_changes_total half_open", 3),
            ("tollgate_client_circuit_changes_total open", 6),
            ("tollgate_client_circuits forced_open", 1),
            ("tollgate_client_circuits half_open", 1),
            ("tollgate_client_circuits open", 1),
            ("tollgate_client_given_up_total deadline", 1),
            ("tollgate_client_given_up_total retries", 1),
            ("tollgate_client_not_made_total open", 2),
            ("tollgate_client_not_made_total throttled", 1),
            ("tollgate_client_retries_total refused", 2),
            ("tollgate_client_retry_wait_seconds", waited),
            ("tollgate_client_throttled_seconds", 7),
        ]
    );
    drop(circuits);
}
