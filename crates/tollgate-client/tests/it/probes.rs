//! Calls that are to see whether something works again.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, advance};
use tollgate_client::{Breaker, Change, Circuit, Permit, Reason, State};

use crate::breaker::{enter, fail, succeed, told};
use crate::support::{Random, SECOND, now};

#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_end_loses_its_place_and_counts_when_it_ends_after_all() {
    let (circuit, changes) = told(Breaker::new());
    fail(&circuit, 5);
    advance(30 * SECOND).await;
    let mut stuck: Vec<Permit> = (0..3).map(|_| enter(&circuit)).collect();
    advance(30 * SECOND).await;
    assert!(circuit.enter().is_err(), "they may still end");
    advance(SECOND).await;
    let probes: Vec<Permit> = (0..3).map(|_| enter(&circuit)).collect();
    assert!(circuit.enter().is_err());
    // They have no place to give back.
    drop(stuck.pop());
    assert!(circuit.enter().is_err());
    stuck.into_iter().for_each(Permit::succeeded);
    assert_eq!(circuit.state(), State::HalfOpen);
    probes.into_iter().for_each(Permit::succeeded);
    assert_eq!(circuit.state(), State::Closed);
    assert_eq!(changes().len(), 3, "{:?}", changes());
}

#[tokio::test(start_paused = true)]
async fn what_hangs_is_not_called_ever_more() {
    let (circuit, _) = told(Breaker::new().open_for(SECOND));
    fail(&circuit, 5);
    let mut under_way = Vec::new();
    for _ in 0..30 {
        advance(SECOND).await;
        under_way.extend((0..5).filter_map(|_| circuit.enter().ok()));
    }
    assert_eq!(under_way.len(), 3);
}

/// Calls that take longer than the circuit was open are slow, not stuck: their success closes it.
#[tokio::test(start_paused = true)]
async fn what_works_slowly_is_found_to_work() {
    let (circuit, changes) = told(Breaker::new());
    fail(&circuit, 5);
    let mut under_way: Vec<(Instant, Permit)> = Vec::new();
    for _ in 0..120 {
        advance(SECOND).await;
        let (done, rest) =
            under_way.into_iter().partition(|(began, _)| now() - *began >= 45 * SECOND);
        under_way = rest;
        let done: Vec<(Instant, Permit)> = done;
        done.into_iter().for_each(|(_, permit)| permit.succeeded());
        under_way.extend(circuit.enter().ok().map(|permit| (now(), permit)));
    }
    assert_eq!(circuit.state(), State::Closed, "{:?}", changes());
    assert_eq!(changes().len(), 3, "{:?}", changes());
}

#[tokio::test(start_paused = true)]
async fn a_quiet_time_between_calls_is_no_call_that_does_not_end() {
    let (circuit, changes) = told(Breaker::new());
    fail(&circuit, 5);
    advance(30 * SECOND).await;
    succeed(&circuit, 1);
    advance(31 * SECOND).await;
    [enter(&circuit), enter(&circuit)].into_iter().for_each(Permit::succeeded);
    assert_eq!(changes().last(), Some(&(State::HalfOpen, State::Closed, Reason::Recovered)));

    circuit.force_open(true);
    circuit.force_open(false);
    advance(31 * SECOND).await;
    let probes = [enter(&circuit), enter(&circuit), enter(&circuit)];
    probes.into_iter().for_each(Permit::succeeded);
    assert_eq!(circuit.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn what_still_is_slow_stays_open() {
    for (percent, slow_ones, expected) in
        [(50, 1, State::Closed), (50, 2, State::Open), (80, 2, State::Closed), (80, 3, State::Open)]
    {
        let (circuit, changes) = told(Breaker::new().slow_calls(SECOND, percent));
        fail(&circuit, 5);
        advance(30 * SECOND).await;
        for number in 0..3 {
            let Ok(permit) = circuit.enter() else { break };
            advance(if number < slow_ones { 20 * SECOND } else { SECOND }).await;
            permit.succeeded();
        }
        assert_eq!(circuit.state(), expected, "{slow_ones} of 3 at {percent}: {:?}", changes());
        if expected == State::Open {
            let last = (State::HalfOpen, State::Open, Reason::SlowCalls);
            assert_eq!(changes().last(), Some(&last));
        }
    }
}

/// A host that hangs is found out even if its callers have timeouts of their own outside.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_after_a_long_time_was_slow() {
    let (circuit, changes) = told(Breaker::new().slow_calls(SECOND, 50).window(600 * SECOND, 5));
    for _ in 0..20 {
        drop(enter(&circuit));
    }
    assert_eq!(circuit.state(), State::Closed, "who goes away at once tells nothing");
    for _ in 0..5 {
        let permit = enter(&circuit);
        advance(10 * SECOND).await;
        drop(permit);
    }
    assert_eq!(changes(), [(State::Closed, State::Open, Reason::SlowCalls)]);
    advance(30 * SECOND).await;
    let probes: Vec<Permit> = (0..2).map(|_| enter(&circuit)).collect();
    advance(10 * SECOND).await;
    drop(probes);
    assert_eq!(circuit.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn whoever_refuses_works_unless_refusals_have_opened_it() {
    let (circuit, _) = told(Breaker::new());
    fail(&circuit, 5);
    advance(30 * SECOND).await;
    (0..3).for_each(|_| enter(&circuit).refused());
    assert_eq!(circuit.state(), State::Closed);

    let (circuit, changes) = told(Breaker::new().refused_for(SECOND));
    for _ in 0..9 {
        enter(&circuit).refused();
        advance(SECOND).await;
    }
    assert_eq!(circuit.state(), State::Closed, "nine are not enough, however long they take");
    enter(&circuit).refused();
    assert_eq!(circuit.state(), State::Open);
    advance(30 * SECOND).await;
    succeed(&circuit, 1);
    enter(&circuit).refused();
    assert_eq!(changes().last(), Some(&(State::HalfOpen, State::Open, Reason::Refusals)));
}

/// The first change is still being told when the second is made: the second is told after it, and whoever made it
/// does not wait for that.
#[test]
fn changes_are_told_in_their_order() {
    let (begins, begun) = channel();
    let (ends, ended) = channel();
    let (begins, ended) = (Mutex::new(begins), Mutex::new(ended));
    let changes: Arc<Mutex<Vec<State>>> = Arc::default();
    let written = Arc::clone(&changes);
    let circuit = Breaker::new()
        .on_change(move |change| {
            if change.to == State::Open {
                begins.lock().expect("nobody panics with it").send(()).expect("somebody waits");
                let ended = ended.lock().expect("nobody panics with it");
                ended.recv_timeout(60 * SECOND).expect("somebody tells");
            }
            written.lock().expect("nobody panics with it").push(change.to);
        })
        .circuit("test");
    thread::scope(|scope| {
        scope.spawn(|| fail(&circuit, 5));
        begun.recv_timeout(60 * SECOND).unwrap();
        circuit.force_open(true);
        ends.send(()).unwrap();
    });
    assert_eq!(*changes.lock().unwrap(), [State::Open, State::ForcedOpen]);
}

/// A listener takes so long that more changes are made than are kept for it.
#[test]
fn what_is_told_ends_with_how_it_is_however_many_changes_there_are() {
    let changes: Arc<Mutex<Vec<Change>>> = Arc::default();
    let circuit: Arc<OnceLock<Circuit>> = Arc::default();
    let (written, changed) = (Arc::clone(&changes), Arc::clone(&circuit));
    let breaker = Breaker::new().on_change(move |change| {
        let mut written = written.lock().expect("nobody panics with it");
        written.push(change.clone());
        if written.len() == 1 {
            let circuit = changed.get().expect("it is known before it changes");
            (0..1_201).for_each(|number| circuit.force_open(number % 2 == 1));
        }
    });
    let circuit = circuit.get_or_init(|| breaker.circuit("test"));
    circuit.force_open(true);
    assert_eq!(circuit.state(), State::HalfOpen);
    let changes = changes.lock().unwrap();
    assert!(changes.windows(2).all(|pair| pair[0].to == pair[1].from), "{changes:?}");
    assert_eq!(changes.last().map(|change| change.to), Some(State::HalfOpen));
}

#[tokio::test(start_paused = true)]
async fn who_listens_hears_of_circuits_that_were_made_before_it_as_well() {
    let breaker = Breaker::new();
    drop(breaker.circuit("test"));
    let (circuit, changes) = told(breaker);
    circuit.force_open(true);
    assert_eq!(changes().len(), 1);
}

/// Random histories: whatever calls do, and whenever they are dropped, there are never more than
/// three to see, and never fewer than there could be.
#[tokio::test(start_paused = true)]
async fn a_place_to_see_never_leaks() {
    let mut seen = 0;
    for seed in 0..500 {
        let mut random = Random(seed);
        let (circuit, changes) = told(Breaker::new());
        // Calls under way, each with the number of changes before it and when it began, and those of the present
        // state that went well.
        let mut calls: Vec<(Permit, usize, Instant)> = Vec::new();
        let (mut state, mut successes) = (0, 0);
        for _ in 0..200 {
            match random.below(10) {
                0..4 => {
                    let entered = circuit.enter();
                    if changes().len() != state {
                        (state, successes) = (changes().len(), 0);
                    }
                    // One that takes longer has lost its place.
                    let has_place = |began: Instant| now() - began <= 30 * SECOND;
                    let here =
                        calls.iter().filter(|(_, of, began)| *of == state && has_place(*began));
                    let here = here.count();
                    let is_expected = match circuit.state() {
                        State::Closed => true,
                        State::HalfOpen => here + successes < 3,
                        State::Open | State::ForcedOpen => false,
                    };
                    assert_eq!(entered.is_ok(), is_expected, "seed {seed}: {here}, {successes}");
                    seen += usize::from(is_expected && circuit.state() == State::HalfOpen);
                    calls.extend(entered.ok().map(|permit| (permit, state, now())));
                }
                kind @ 4..9 if !calls.is_empty() => {
                    let (permit, of, _) =
                        calls.swap_remove(random.below(calls.len() as u64) as usize);
                    match kind {
                        4 | 5 => {
                            permit.succeeded();
                            successes += usize::from(of == state);
                        }
                        6 | 7 => permit.failed(),
                        _ => drop(permit),
                    }
                }
                _ => match random.below(8) {
                    0 => circuit.force_open(true),
                    1 | 2 => circuit.force_open(false),
                    _ => advance(Duration::from_secs(random.below(20))).await,
                },
            }
            if changes().len() != state {
                (state, successes) = (changes().len(), 0);
            }
        }
        calls.clear();
        circuit.force_open(false);
        advance(31 * SECOND).await;
        succeed(&circuit, 3);
        assert_eq!(circuit.state(), State::Closed, "seed {seed}");
    }
    assert!(seen > 1_000, "only {seen} were let through to see");
}
