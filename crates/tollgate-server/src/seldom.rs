//! Futures that rarely have anything to say.
//!
//! A connection waits for its next bytes, and besides for timers and for the end of the process.
//! Whenever bytes come all of these would be asked, though hardly ever has anything happened to the
//! others; on a small request that is a tenth of the work.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;

pin_project! {
    /// A future that is polled only when it was woken itself, not whenever its task was.
    pub(crate) struct Seldom<F> {
        #[pin]
        future: F,
        bell: Arc<Bell>,
        // What the future is given to wake.
        waker: Waker,
    }
}

/// Rings for a task, and remembers for whom.
struct Bell {
    has_rung: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F> Seldom<F> {
    pub(crate) fn new(future: F) -> Self {
        // Nobody wakes it before it was polled once.
        let bell = Arc::new(Bell { has_rung: AtomicBool::new(true), task: Mutex::default() });
        let waker = Waker::from(Arc::clone(&bell));
        Self { future, bell, waker }
    }
}

impl<F: Future> Future for Seldom<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let mut task = this.bell.task.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *task {
            Some(known) => known.clone_from(context.waker()),
            None => *task = Some(context.waker().clone()),
        }
        drop(task);
        // Looked at after the task is known: whoever rings in between wakes it.
        if !this.bell.has_rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn it_is_asked_when_it_was_woken_and_not_when_others_were() {
        let (send, receive) = oneshot::channel::<u32>();
        let asked = AtomicUsize::new(0);
        let mut receive = std::pin::pin!(receive);
        let mut seldom = std::pin::pin!(Seldom::new(poll_fn(|context| {
            asked.fetch_add(1, Ordering::Relaxed);
            receive.as_mut().poll(context)
        })));
        let others = async {
            for _ in 0..10 {
                yield_now().await;
            }
            send.send(7).expect("somebody waits");
            std::future::pending::<()>().await;
        };
        let received = tokio::select! {
            biased;
            received = seldom.as_mut() => received,
            () = others => unreachable!("it never ends"),
        };
        assert_eq!(received, Ok(7));
        assert_eq!(asked.load(Ordering::Relaxed), 2, "at first, and when there was an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_in_it_ends_it_in_time() {
        let pause = std::time::Duration::from_secs(5);
        let start = crate::moment::moment();
        let timer = tokio::time::timeout(pause, std::future::pending::<()>());
        assert!(Seldom::new(timer).await.is_err());
        assert_eq!(crate::moment::moment() - start, pause);
    }
}
