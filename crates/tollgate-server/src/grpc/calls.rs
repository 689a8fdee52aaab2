//! Calls that have arrived.
//!
//! Nearly all are answered at once: their message is there, and so is the store. A task for each would
//! cost more than the decision, so they are begun by their connection, and only those that have to wait
//! become tasks. They are begun when the connection has read everything, since it writes whatever there
//! is whenever it is asked for the next call: begun one by one, each would be a write of its own.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Waker};

use hyper::rt::Executor;

use super::pings::note_poll;
use crate::door::{Door, Starter};

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    /// Those of the connection that is being polled on this thread.
    static ARRIVED: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what arrives until [`begun_by`] begins it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals;

impl<C> Executor<C> for Arrivals
where
    C: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: C) {
        let call: Call = Box::pin(call);
        ARRIVED.with_borrow_mut(|arrived| arrived.push(call));
    }
}

/// The connection, with the calls that it brings begun. A connection that ends has brought some, too.
pub(super) fn begun_by<C: Future>(mut connection: Pin<&mut C>) -> impl Future<Output = C::Output> {
    poll_fn(move |context| {
        note_poll();
        let ended = connection.as_mut().poll(context);
        begin(ARRIVED.take());
        ended
    })
}

fn begin(calls: Vec<Call>) {
    for mut call in calls {
        // Whom to wake it is told by its task, which asks it once more.
        if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            Starter(Door::Grpc).execute(call);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use tokio::sync::{mpsc, oneshot};
    use tokio::task::yield_now;

    use super::*;

    /// Brings a call that is answered at once, and one that waits until it is told to go on.
    fn bringing(answers: mpsc::UnboundedSender<&'static str>) -> oneshot::Sender<()> {
        let (tell, told) = oneshot::channel();
        let at_once = answers.clone();
        Arrivals.execute(async move { at_once.send("at once").expect("somebody listens") });
        Arrivals.execute(async move {
            told.await.expect("told");
            answers.send("later").expect("somebody listens");
        });
        tell
    }

    #[tokio::test]
    async fn calls_are_answered_at_once_or_when_they_can_be() {
        let (answers, mut answered) = mpsc::unbounded_channel();
        let (polled, mut tells) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let connection = pin!(async {
                polled.send(bringing(answers)).expect("somebody listens");
                pending::<()>().await;
            });
            begun_by(connection).await;
        });
        let tell = tells.recv().await.expect("it is polled");
        assert_eq!(answered.recv().await, Some("at once"));
        yield_now().await;
        assert!(answered.is_empty(), "the other waits");
        tell.send(()).expect("it waits");
        assert_eq!(answered.recv().await, Some("later"));
    }

    #[tokio::test]
    async fn what_a_connection_brings_at_its_end_is_begun() {
        let (answers, mut answered) = mpsc::unbounded_channel();
        let tell = begun_by(pin!(async { bringing(answers) })).await;
        assert_eq!(answered.recv().await, Some("at once"));
        tell.send(()).expect("it waits");
        assert_eq!(answered.recv().await, Some("later"));
    }
}
