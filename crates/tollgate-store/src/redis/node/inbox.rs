//! Calls on their way from their callers to the tasks of servers.
//!
//! To wake a task's thread takes as long as to send a call; and a task that is woken for the first of several calls
//! sends that one alone. So calls are put in, and then the [`Doorbell`] is rung for all servers: for each call, or once
//! for as many as were put in while it was held.
//!
//! What must stay true: after a ring, every call that was put in before it is taken out, or its caller hears that
//! nobody takes it out any more; and after a call was put in, somebody rings.

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::redis::bounds::{BATCH_MAX, INBOX_MAX};
use crate::redis::call::Job;

/// Where callers put calls in. When it goes, the task hears that there will be no more.
pub(super) struct Inbox(Arc<Shared>);

/// Where the task takes them out. When it goes, so do the calls in it, and their callers hear of that.
pub(super) struct Outbox(Arc<Shared>);

/// Tells the tasks of all servers that there are calls for them.
#[derive(Default)]
pub(in crate::redis) struct Doorbell {
    /// Those who will ring it when they have put in what they have.
    holders: AtomicUsize,
    /// Whether anybody is to be told, so that those who ring in vain need no lock.
    is_due: AtomicBool,
    /// Where something was put in since it was last rung.
    filled: Mutex<Vec<Arc<Shared>>>,
}

/// While it is there, what is asked of the store waits until there is enough for a pipeline; when it goes, the rest is
/// sent together. Whoever asks something else meanwhile waits too, so it is for as long as it takes to ask.
pub struct Together<'s>(&'s Doorbell);

struct Shared {
    doorbell: Arc<Doorbell>,
    content: Mutex<Content>,
}

struct Content {
    jobs: Vec<Job>,
    /// The task, if it waits.
    waker: Option<Waker>,
    has_callers: bool,
    has_task: bool,
}

/// Both ends, for callers who will ring this doorbell.
pub(super) fn inbox(doorbell: &Arc<Doorbell>) -> (Inbox, Outbox) {
    let content = Content { jobs: Vec::new(), waker: None, has_callers: true, has_task: true };
    let shared = Shared { doorbell: Arc::clone(doorbell), content: Mutex::new(content) };
    let shared = Arc::new(shared);
    (Inbox(Arc::clone(&shared)), Outbox(shared))
}

impl Inbox {
    /// Puts a call in, of which the task hears at the next ring; it comes back if too many are in it, or nobody
    /// takes them out any more.
    pub(super) fn put(&self, job: Job) -> Result<(), Job> {
        let mut content = self.0.content();
        if content.jobs.len() >= INBOX_MAX || !content.has_task {
            return Err(job);
        }
        content.jobs.push(job);
        // Before anybody else can put one in: who is not the first relies on this.
        if content.jobs.len() == 1 {
            self.0.doorbell.filled().push(Arc::clone(&self.0));
            self.0.doorbell.is_due.store(true, Ordering::SeqCst);
        }
        // As many as are sent at a time wait for nobody, however much is asked together.
        let is_enough = content.jobs.len() == BATCH_MAX;
        drop(content);
        if is_enough {
            self.0.wake();
        }
        Ok(())
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.0.content().has_callers = false;
        self.0.wake();
    }
}

impl Outbox {
    /// Waits for calls and takes all of them out; false if there will be none any more.
    pub(super) async fn take(&self, jobs: &mut Vec<Job>) -> bool {
        poll_fn(|context| {
            let mut content = self.0.content();
            if !content.jobs.is_empty() {
                jobs.append(&mut content.jobs);
                return Poll::Ready(true);
            }
            if !content.has_callers {
                return Poll::Ready(false);
            }
            content.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let mut content = self.0.content();
        content.has_task = false;
        let jobs = mem::take(&mut content.jobs);
        drop(content);
        // Their callers are woken by that, and may do anything.
        drop(jobs);
    }
}

impl Doorbell {
    /// Has it held until the result goes.
    pub(in crate::redis) fn hold(&self) -> Together<'_> {
        self.holders.fetch_add(1, Ordering::SeqCst);
        Together(self)
    }

    /// Wakes the tasks that there are calls for, or leaves that to who holds it.
    pub(in crate::redis) fn ring(&self) {
        // Who let go before this was read looks for calls after it: one of both sees the other.
        if self.holders.load(Ordering::SeqCst) == 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        if !self.is_due.load(Ordering::SeqCst) {
            return;
        }
        let mut list = self.filled();
        self.is_due.store(false, Ordering::SeqCst);
        let filled = mem::take(&mut *list);
        // Those who put something in take their own lock before this one.
        drop(list);
        filled.iter().for_each(|inbox| inbox.wake());
    }

    fn filled(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        self.filled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        self.0.holders.fetch_sub(1, Ordering::SeqCst);
        // Also if others hold it still: what is due was due before they have what they want.
        self.0.wake();
    }
}

impl fmt::Debug for Together<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").finish_non_exhaustive()
    }
}

impl Shared {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let waker = self.content().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Wake};

    use super::*;
    use crate::clock;
    use crate::redis::call::{Call, Failure, Pending};
    use crate::redis::words::Words;

    /// A task that takes calls out when it is polled.
    struct Task {
        outbox: Outbox,
        wakes: Arc<Wakes>,
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Task {
        fn start(doorbell: &Arc<Doorbell>) -> (Inbox, Self) {
            let (inbox, outbox) = inbox(doorbell);
            (inbox, Self { outbox, wakes: Arc::default() })
        }

        /// How many calls it takes out; nothing if it must wait, and not one if there will be none.
        fn poll(&self) -> Option<usize> {
            let mut jobs = Vec::new();
            let waker = Waker::from(Arc::clone(&self.wakes));
            let taken = pin!(self.outbox.take(&mut jobs)).poll(&mut Context::from_waker(&waker));
            match taken {
                Poll::Ready(is_open) => {
                    assert_eq!(is_open, !jobs.is_empty());
                    Some(jobs.len())
                }
                Poll::Pending => None,
            }
        }

        fn wakes(&self) -> usize {
            self.wakes.0.load(Ordering::Relaxed)
        }
    }

    fn put(inbox: &Inbox) -> Pending {
        let call = Call { script: None, words: Words::new(), slot: 0, late: None };
        let (job, pending) = Job::new(call, clock::moment());
        assert!(inbox.put(job).is_ok());
        pending
    }

    #[test]
    fn a_task_is_woken_once_for_all_calls_before_a_ring() {
        let doorbell = Arc::default();
        let (inbox, task) = Task::start(&doorbell);
        assert_eq!(task.poll(), None);
        let _calls = [put(&inbox), put(&inbox), put(&inbox)];
        assert_eq!(task.wakes(), 0);
        doorbell.ring();
        doorbell.ring();
        assert_eq!((task.wakes(), task.poll(), task.poll()), (1, Some(3), None));
    }

    #[test]
    fn who_holds_the_doorbell_rings_for_all() {
        let doorbell = Arc::default();
        let (inbox, task) = Task::start(&doorbell);
        assert_eq!(task.poll(), None);
        let (one, other) = (doorbell.hold(), doorbell.hold());
        let _call = put(&inbox);
        doorbell.ring();
        assert_eq!(task.wakes(), 0);
        drop(one);
        assert_eq!((task.wakes(), task.poll(), task.poll()), (1, Some(1), None));
        drop(other);
        let _call = put(&inbox);
        assert_eq!(task.wakes(), 1);
        doorbell.ring();
        assert_eq!((task.wakes(), task.poll()), (2, Some(1)));
    }

    #[test]
    fn enough_for_a_pipeline_waits_for_nobody_who_holds_the_doorbell() {
        let doorbell = Arc::default();
        let (inbox, task) = Task::start(&doorbell);
        assert_eq!(task.poll(), None);
        let together = doorbell.hold();
        let mut calls: Vec<_> = (1..BATCH_MAX).map(|_| put(&inbox)).collect();
        assert_eq!(task.wakes(), 0);
        calls.push(put(&inbox));
        assert_eq!((task.wakes(), task.poll()), (1, Some(BATCH_MAX)));
        drop(together);
    }

    #[test]
    fn one_ring_is_for_all_servers() {
        let doorbell = Arc::default();
        let servers = [Task::start(&doorbell), Task::start(&doorbell), Task::start(&doorbell)];
        let tasks = servers.each_ref().map(|(_, task)| task);
        assert_eq!(tasks.map(Task::poll), [None; 3]);
        let _calls = [put(&servers[0].0), put(&servers[2].0)];
        doorbell.ring();
        assert_eq!(tasks.map(Task::wakes), [1, 0, 1]);
    }

    #[test]
    fn calls_that_come_while_the_task_is_busy_are_seen_before_it_waits() {
        let doorbell = Arc::default();
        let (inbox, task) = Task::start(&doorbell);
        let _call = put(&inbox);
        doorbell.ring();
        assert_eq!((task.wakes(), task.poll(), task.poll()), (0, Some(1), None));
        let _call = put(&inbox);
        doorbell.ring();
        assert_eq!((task.wakes(), task.poll()), (1, Some(1)));
    }

    #[test]
    fn callers_of_a_task_that_went_hear_of_it() {
        let doorbell = Arc::default();
        let (inbox, task) = Task::start(&doorbell);
        let mut pending = pin!(put(&inbox));
        drop(task);
        let answer = pending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(answer, Poll::Ready(Err(Failure::Lost)));
        let call = Call { script: None, words: Words::new(), slot: 0, late: None };
        assert!(inbox.put(Job::new(call, clock::moment()).0).is_err());
    }

    #[test]
    fn a_task_whose_callers_went_takes_what_they_left_and_ends() {
        let doorbell = Arc::default();
        let (inbox, task) = Task::start(&doorbell);
        assert_eq!(task.poll(), None);
        let _call = put(&inbox);
        drop(inbox);
        assert_eq!((task.wakes(), task.poll(), task.poll()), (1, Some(1), Some(0)));
    }
}
