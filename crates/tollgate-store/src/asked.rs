//! An answer that is there, or on its way.
//!
//! Memory answers at once, Redis after a round trip. What is on its way needs no runtime to arrive:
//! it can be awaited under any executor, or waited for by a thread that has none.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// What a store was asked. Await it, or [`wait`](Self::wait) for it.
#[must_use = "nothing is known before the answer is there"]
pub enum Asked<T> {
    /// The answer.
    Ready(T),
    /// The answer, later: within the deadline of the store.
    Waiting(Waiting<T>),
}

/// An answer on its way.
#[must_use = "nothing is known before the answer is there"]
pub struct Waiting<T>(Pin<Box<dyn Future<Output = T> + Send>>);

impl<T> Waiting<T> {
    /// What `answer` will be.
    pub fn new(answer: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Box::pin(answer))
    }

    /// Blocks this thread until the answer is there.
    pub fn wait(self) -> T {
        block_on(self)
    }
}

impl<T: 'static> Asked<T> {
    /// What `answer` will be.
    pub fn later(answer: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Waiting(Waiting::new(answer))
    }

    /// Blocks this thread until the answer is there; not at all if it is.
    #[inline]
    pub fn wait(self) -> T {
        match self {
            Self::Ready(answer) => answer,
            Self::Waiting(waiting) => waiting.wait(),
        }
    }

    /// The same, made into something else when it is there.
    pub fn map<U: 'static>(self, make: impl FnOnce(T) -> U + Send + 'static) -> Asked<U> {
        match self {
            Self::Ready(answer) => Asked::Ready(make(answer)),
            Self::Waiting(waiting) => Asked::later(async { make(waiting.await) }),
        }
    }
}

impl<T> Future for Waiting<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.0.as_mut().poll(context)
    }
}

impl<T> IntoFuture for Asked<T> {
    type Output = T;
    type IntoFuture = Answering<T>;

    fn into_future(self) -> Answering<T> {
        Answering(Some(self))
    }
}

/// The future of an [`Asked`].
pub struct Answering<T>(Option<Asked<T>>);

// Nothing is pinned inside: what waits is in a box of its own.
impl<T> Unpin for Answering<T> {}

impl<T> Future for Answering<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Some(Asked::Waiting(waiting)) => Pin::new(waiting).poll(context),
            _ => match self.0.take() {
                Some(Asked::Ready(answer)) => Poll::Ready(answer),
                _ => panic!("an answer was asked for again after it had been given"),
            },
        }
    }
}

impl<T> fmt::Debug for Asked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Asked::Ready",
            Self::Waiting(_) => "Asked::Waiting",
        })
    }
}

impl<T> fmt::Debug for Waiting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

impl<T> fmt::Debug for Answering<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}

/// Runs a future on this thread, which sleeps while there is nothing to be done.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_answer_that_is_there_is_not_waited_for() {
        assert_eq!(Asked::Ready(7).wait(), 7);
        assert_eq!(Asked::Ready(7).map(|answer| answer + 1).wait(), 8);
        assert_eq!(block_on(Asked::Ready(7).into_future()), 7);
    }

    #[test]
    fn an_answer_that_another_thread_gives_later_arrives_without_a_runtime() {
        /// Ready when the other thread has sent something; wakes nobody before.
        struct Given(mpsc::Receiver<u32>, Option<mpsc::Sender<Waker>>);
        impl Future for Given {
            type Output = u32;
            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
                if let Some(wakers) = self.1.take() {
                    wakers.send(context.waker().clone()).expect("the giver is there");
                    return Poll::Pending;
                }
                self.0.try_recv().map_or(Poll::Pending, Poll::Ready)
            }
        }
        let (answers, given) = mpsc::channel();
        let (wakers, asked) = mpsc::channel::<Waker>();
        let giver = thread::spawn(move || {
            let waker = asked.recv().expect("somebody waits");
            answers.send(7).expect("somebody waits");
            waker.wake();
        });
        let waiting = Asked::later(Given(given, Some(wakers)));
        assert_eq!(waiting.map(|answer| answer * 2).wait(), 14);
        giver.join().expect("it gave");
    }
}
