//! Retries, on a clock that is moved by hand.

use std::cell::RefCell;
use std::future::{Future, pending};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tollgate_client::{Attempt, Backoff, Breaker, Retry, Throttle};

use crate::support::{SECOND, now};

/// The moments at which it was tried, from the first on.
async fn tries(retry: &Retry, answer: impl Fn(usize) -> Attempt<usize>) -> Vec<Duration> {
    let moments: RefCell<Vec<Instant>> = RefCell::default();
    let last = retry
        .run(|| {
            moments.borrow_mut().push(now());
            let number = moments.borrow().len();
            let answer = answer(number);
            async move { answer }
        })
        .await;
    let moments = moments.into_inner();
    assert_eq!(last, moments.len(), "the last attempt is what is returned");
    moments.iter().map(|moment| *moment - moments[0]).collect()
}

fn gaps(moments: &[Duration]) -> Vec<Duration> {
    moments.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn failed(last: usize) -> Attempt<usize> {
    Attempt::Failed { last, wait: None }
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_not_tried_again() {
    assert_eq!(tries(&Retry::new(), Attempt::Done).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn five_retries_wait_up_to_twice_as_long_each_time() {
    for _ in 0..20 {
        let gaps = gaps(&tries(&Retry::new(), failed).await);
        assert_eq!(gaps.len(), 5);
        for (gap, ceiling) in gaps.iter().zip([1, 2, 4, 8, 16]) {
            // A timer goes off at a whole millisecond.
            assert!(*gap <= ceiling * SECOND + Duration::from_millis(1), "{gap:?} of {ceiling} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waits_are_spread_over_all_there_is() {
    let retry = Retry::new().retries(1);
    let mut quarters = [0; 4];
    for _ in 0..400 {
        tokio::time::advance(SECOND).await;
        let gap = gaps(&tries(&retry, failed).await)[0].as_millis();
        quarters[(gap as usize / 250).min(3)] += 1;
    }
    assert!(quarters.iter().all(|&count| count > 60), "{quarters:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_was_told_is_never_cut_short() {
    for refused in [true, false] {
        let wait = 7 * SECOND;
        let moments = tries(&Retry::new(), |last| match (last, refused) {
            (4.., _) => Attempt::Done(last),
            (_, true) => Attempt::Refused { last, wait },
            (_, false) => Attempt::Failed { last, wait: Some(wait) },
        })
        .await;
        for (gap, jitter) in gaps(&moments).iter().zip([1, 2, 4]) {
            let most = wait + jitter * SECOND + Duration::from_millis(1);
            assert!((wait..=most).contains(gap), "{gap:?}");
        }
    }
}

/// All who are told a few milliseconds come back together, however they spread those; the second time they
/// are told so they know.
#[tokio::test(start_paused = true)]
async fn a_short_wait_that_did_not_help_is_followed_by_a_long_one() {
    let wait = Duration::from_millis(10);
    let mut longest = [Duration::ZERO; 4];
    for seed in 0..200 {
        let retry = Retry::new().retries(4).seed(seed);
        let moments = tries(&retry, |last| Attempt::Refused { last, wait }).await;
        for (longest, gap) in longest.iter_mut().zip(gaps(&moments)) {
            assert!(gap >= wait, "{gap:?}");
            *longest = gap.max(*longest);
        }
    }
    assert!(longest[0] <= 2 * wait + Duration::from_millis(2), "{longest:?}");
    for (longest, ceiling) in longest[1..].iter().zip([2, 4, 8]) {
        assert!((ceiling - 1..=ceiling).contains(&longest.as_secs()), "{longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_could_not_begin_in_time_is_not_waited_for() {
    let retry = Retry::new().deadline(10 * SECOND);
    let started = now();
    let refused = |last| Attempt::Refused { last, wait: 11 * SECOND };
    assert_eq!(tries(&retry, refused).await.len(), 1);
    assert_eq!(now() - started, Duration::ZERO);

    let refused = |last| Attempt::Refused { last, wait: 3 * SECOND };
    let moments = tries(&retry.retries(100), refused).await;
    assert!((2..=4).contains(&moments.len()), "{moments:?}");
    assert!(*moments.last().unwrap() <= 10 * SECOND + Duration::from_millis(1), "{moments:?}");
}

#[tokio::test(start_paused = true)]
async fn when_everything_fails_a_fifth_of_the_requests_are_retries() {
    let retry = Retry::new().backoff(Backoff::new(Duration::ZERO, Duration::ZERO));
    let mut sent = 0;
    for _ in 0..1_000 {
        sent += tries(&retry, failed).await.len();
    }
    // The ten that time had saved are spent as well, and no more: no time passes here but the
    // milliseconds to which timers are rounded.
    assert!((1_200..=1_220).contains(&sent), "{sent} were sent for 1,000");
}

#[tokio::test(start_paused = true)]
async fn who_sends_little_may_retry() {
    let retry = Retry::new().backoff(Backoff::new(Duration::ZERO, Duration::ZERO));
    for _ in 0..20 {
        assert_eq!(tries(&retry, failed).await.len(), 6);
        tokio::time::advance(5 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_says_when_is_not_counted_and_one_that_does_not_is() {
    let none = Backoff::new(Duration::ZERO, Duration::ZERO);
    let sent = async |wait| {
        let retry = Retry::new().backoff(none).share(0);
        let mut sent = 0;
        for _ in 0..20 {
            sent += tries(&retry, |last| Attempt::Refused { last, wait }).await.len();
        }
        sent
    };
    assert_eq!(sent(Duration::from_millis(1)).await, 20 * 6);
    assert_eq!(sent(Duration::ZERO).await, 20 + 10);
}

#[tokio::test(start_paused = true)]
async fn clones_share_what_may_be_retried() {
    let retry = Retry::new().backoff(Backoff::new(Duration::ZERO, Duration::ZERO)).share(0);
    let mut sent = 0;
    for _ in 0..20 {
        sent += tries(&retry.clone(), failed).await.len();
    }
    assert_eq!(sent, 20 + 10);
}

#[tokio::test(start_paused = true)]
async fn a_result_is_an_attempt() {
    let mut answers = vec![Ok(1), Err("lost"), Err("lost")];
    let attempt = || {
        let answer = answers.pop().expect("there is one more");
        async move { answer.into() }
    };
    assert_eq!(Retry::new().run(attempt).await, Ok(1));
}

/// Dropped while it waits, and while it attempts: nothing goes on, and nothing is lost to others.
#[tokio::test(start_paused = true)]
async fn a_retry_may_be_dropped_at_any_moment() {
    let retry = Retry::new();
    let count = RefCell::new(0);
    let waits = retry.run(|| {
        *count.borrow_mut() += 1;
        async { Attempt::Refused { last: (), wait: 60 * SECOND } }
    });
    timeout(SECOND, waits).await.unwrap_err();
    assert_eq!(*count.borrow(), 1);

    let hangs = retry.run(pending::<Attempt<()>>);
    timeout(SECOND, hangs).await.unwrap_err();
    tokio::time::advance(600 * SECOND).await;
    assert_eq!(*count.borrow(), 1);
    assert_eq!(tries(&retry, failed).await.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn the_longest_times_there_are_do_no_harm() {
    let backoff = Backoff::new(Duration::MAX, Duration::MAX);
    let retry = Retry::new().deadline(Duration::MAX).backoff(backoff);
    let refused = |last| Attempt::Refused { last, wait: Duration::MAX };
    assert_eq!(tries(&retry, refused).await.len(), 1);
    let circuit = Breaker::new()
        .open_for(Duration::MAX)
        .refused_for(Duration::MAX)
        .window(Duration::MAX, 20)
        .circuit("test");
    (0..5).for_each(|_| circuit.enter().unwrap().failed());
    assert!(circuit.enter().is_err());
    Throttle::new().wait_max(Duration::MAX).lane("test").pass().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_retry_can_be_spawned() {
    fn is_send<T: Send>(future: T) -> T {
        future
    }
    fn run(retry: &Retry) -> impl Future<Output = Result<u8, ()>> {
        retry.run(|| async { Ok(7).into() })
    }
    assert_eq!(is_send(run(&Retry::new())).await, Ok(7));
}
