//! Circuits, on a clock that is moved by hand.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{advance, timeout};
use tollgate_client::{Breaker, CallError, Change, Circuit, Permit, Reason, State, bounds};

use crate::support::SECOND;

fn circuit() -> Circuit {
    Breaker::new().circuit("test")
}

pub(crate) fn enter(circuit: &Circuit) -> Permit {
    circuit.enter().expect("the circuit lets it through")
}

pub(crate) fn fail(circuit: &Circuit, times: u32) {
    (0..times).for_each(|_| enter(circuit).failed());
}

pub(crate) fn succeed(circuit: &Circuit, times: u32) {
    (0..times).for_each(|_| enter(circuit).succeeded());
}

/// A breaker that writes down every change of its circuits.
pub(crate) fn told(breaker: Breaker) -> (Circuit, impl Fn() -> Vec<(State, State, Reason)>) {
    let changes: Arc<Mutex<Vec<Change>>> = Arc::default();
    let listener = Arc::clone(&changes);
    let breaker = breaker.on_change(move |change| {
        listener.lock().expect("nobody panics with it").push(change.clone());
    });
    let changes = move || {
        let changes = changes.lock().expect("nobody panics with it");
        changes.iter().map(|change| (change.from, change.to, change.reason)).collect()
    };
    (breaker.circuit("test"), changes)
}

#[tokio::test(start_paused = true)]
async fn five_failures_open_it_thirty_seconds_rest_it_three_successes_close_it() {
    let (circuit, changes) = told(Breaker::new());
    fail(&circuit, 4);
    assert_eq!(circuit.state(), State::Closed);
    fail(&circuit, 1);
    assert_eq!(circuit.state(), State::Open);
    let open = circuit.enter().unwrap_err();
    assert_eq!(open.retry_after, Some(30 * SECOND));
    assert_eq!(
        open.to_string(),
        "test does not work of late and was not called; try again in 30000 ms"
    );

    advance(30 * SECOND).await;
    assert_eq!(circuit.state(), State::HalfOpen);
    succeed(&circuit, 2);
    assert_eq!(circuit.state(), State::HalfOpen);
    succeed(&circuit, 1);
    assert_eq!(circuit.state(), State::Closed);
    assert_eq!(
        changes(),
        [
            (State::Closed, State::Open, Reason::Failures),
            (State::Open, State::HalfOpen, Reason::Rested),
            (State::HalfOpen, State::Closed, Reason::Recovered),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_success_between_failures_keeps_it_closed() {
    let circuit = circuit();
    for _ in 0..3 {
        fail(&circuit, 4);
        succeed(&circuit, 1);
    }
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_failure_while_half_open_opens_it_again() {
    let (circuit, changes) = told(Breaker::new());
    fail(&circuit, 5);
    advance(30 * SECOND).await;
    let late = enter(&circuit);
    succeed(&circuit, 1);
    fail(&circuit, 1);
    assert_eq!(circuit.enter().unwrap_err().retry_after, Some(30 * SECOND));
    advance(30 * SECOND).await;
    // What was let through before the last opening tells nothing about now.
    let probe = enter(&circuit);
    late.failed();
    assert_eq!(circuit.state(), State::HalfOpen);
    probe.succeeded();
    assert_eq!(changes().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn no_more_are_let_through_to_see_than_are_needed() {
    let circuit = circuit();
    fail(&circuit, 5);
    advance(30 * SECOND).await;
    let mut probes: Vec<Permit> = (0..3).map(|_| enter(&circuit)).collect();
    let shut = circuit.enter().unwrap_err();
    assert_eq!((shut.retry_after, shut.reason), (None, Reason::Rested));
    probes.pop().unwrap().succeeded();
    assert!(circuit.enter().is_err(), "two are under way, and one went well");
    drop(probes.pop());
    probes.push(enter(&circuit));
    assert!(circuit.enter().is_err());
    probes.into_iter().for_each(Permit::succeeded);
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn it_opens_when_half_of_the_calls_fail() {
    let (circuit, changes) = told(Breaker::new());
    for _ in 0..9 {
        succeed(&circuit, 1);
        fail(&circuit, 1);
    }
    succeed(&circuit, 1);
    assert_eq!(circuit.state(), State::Closed, "nineteen calls tell too little");
    fail(&circuit, 1);
    assert_eq!(changes(), [(State::Closed, State::Open, Reason::FailureRate)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_older_than_the_window_is_forgotten() {
    let circuit = circuit();
    for _ in 0..9 {
        fail(&circuit, 1);
        succeed(&circuit, 1);
        advance(SECOND).await;
    }
    advance(60 * SECOND).await;
    for _ in 0..12 {
        succeed(&circuit, 3);
        fail(&circuit, 1);
        advance(SECOND).await;
    }
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn it_opens_when_too_many_calls_are_slow() {
    let (circuit, changes) = told(Breaker::new().slow_calls(SECOND, 80).window(60 * SECOND, 5));
    let slow = async |by: Duration| {
        let permit = enter(&circuit);
        advance(by).await;
        permit.succeeded();
    };
    slow(SECOND).await;
    for _ in 0..3 {
        slow(2 * SECOND).await;
    }
    assert_eq!(circuit.state(), State::Closed);
    slow(2 * SECOND).await;
    assert_eq!(changes(), [(State::Closed, State::Open, Reason::SlowCalls)]);
}

#[tokio::test(start_paused = true)]
async fn refusals_open_it_when_they_persist_and_not_before() {
    let (circuit, changes) = told(Breaker::new());
    // A burst that is refused is nothing unusual.
    (0..1_000).for_each(|_| enter(&circuit).refused());
    advance(59 * SECOND).await;
    enter(&circuit).refused();
    assert_eq!(circuit.state(), State::Closed);
    succeed(&circuit, 1);
    for _ in 0..12 {
        enter(&circuit).refused();
        advance(5 * SECOND).await;
    }
    assert_eq!(circuit.state(), State::Closed);
    enter(&circuit).refused();
    assert_eq!(changes(), [(State::Closed, State::Open, Reason::Refusals)]);
    let told = circuit.enter().unwrap_err().to_string();
    assert_eq!(
        told,
        "test has refused everything of late and was not called; try again in 30000 ms"
    );
}

#[tokio::test(start_paused = true)]
async fn it_can_be_forced_open() {
    let (circuit, changes) = told(Breaker::new());
    let under_way = enter(&circuit);
    circuit.force_open(true);
    circuit.force_open(true);
    for shut in [circuit.enter().unwrap_err(), circuit.check().unwrap_err()] {
        assert_eq!((shut.retry_after, shut.reason), (None, Reason::Forced));
        assert_eq!(shut.to_string(), "test was not called: its circuit was opened by hand");
    }
    advance(3_600 * SECOND).await;
    assert_eq!(circuit.state(), State::ForcedOpen);
    under_way.succeeded();
    circuit.force_open(false);
    circuit.force_open(false);
    assert_eq!(circuit.state(), State::HalfOpen);
    succeed(&circuit, 3);
    assert_eq!(
        changes(),
        [
            (State::Closed, State::ForcedOpen, Reason::Forced),
            (State::ForcedOpen, State::HalfOpen, Reason::Forced),
            (State::HalfOpen, State::Closed, Reason::Recovered),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn every_key_has_a_circuit_of_its_own() {
    let breaker = Breaker::new();
    fail(&breaker.circuit("a"), 5);
    assert_eq!(breaker.circuit("a").state(), State::Open);
    assert_eq!(breaker.clone().circuit("a").state(), State::Open);
    assert_eq!(breaker.circuit("b").state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn circuits_that_nobody_uses_any_more_make_room() {
    let breaker = Breaker::new();
    for number in 0..bounds::KEYS_MAX {
        let circuit = breaker.circuit(&number.to_string());
        match number % 3 {
            0 => fail(&circuit, 1),
            1 => fail(&circuit, 5),
            _ => enter(&circuit).refused(),
        }
    }
    fail(&breaker.circuit("late"), 5);
    assert_eq!(breaker.circuit("late").state(), State::Closed, "there is no room");
    advance(60 * SECOND).await;
    fail(&breaker.circuit("late"), 5);
    assert_eq!(breaker.circuit("late").state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_or_panics_gives_its_place_back() {
    let circuit = circuit();
    fail(&circuit, 5);
    advance(30 * SECOND).await;
    for _ in 0..10 {
        let hangs = circuit.call(async || pending::<Result<(), ()>>().await);
        timeout(SECOND, hangs).await.unwrap_err();
    }
    for _ in 0..10 {
        let circuit = circuit.clone();
        let panics =
            async move { circuit.call(async || -> Result<(), ()> { panic!("on purpose") }).await };
        assert!(tokio::spawn(panics).await.unwrap_err().is_panic());
    }
    for _ in 0..3 {
        assert_eq!(circuit.call(async || Ok::<_, ()>(1)).await, Ok(1));
    }
    assert_eq!(circuit.state(), State::Closed);
    assert_eq!(circuit.call(async || Err::<(), _>("no")).await, Err(CallError::Failed("no")));
}
