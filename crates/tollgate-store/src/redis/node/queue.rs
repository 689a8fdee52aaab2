//! Calls that wait for one server, in the order of their deadlines.
//!
//! Most come in that order. Those that another server sent on are older, and those that were made
//! with time left over from an earlier call may be.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::redis::bounds::{INBOX_MAX, QUEUE_MAX};
use crate::redis::call::Job;

/// What is not sent yet, the oldest deadline first.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Job>);

impl Queue {
    /// Adds a call; it comes back if too much is waiting.
    pub(super) fn push(&mut self, job: Job) -> Result<(), Job> {
        if self.0.len() >= QUEUE_MAX - INBOX_MAX {
            return Err(job);
        }
        self.put_back(job);
        Ok(())
    }

    /// Adds a call that was sent and did not run. There is always room for it, since those are few.
    pub(super) fn put_back(&mut self, job: Job) {
        if self.0.back().is_none_or(|last| last.deadline <= job.deadline) {
            return self.0.push_back(job);
        }
        let place = self.0.partition_point(|other| other.deadline <= job.deadline);
        self.0.insert(place, job);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The oldest deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|job| job.deadline)
    }

    /// Takes the call that has the least time left.
    pub(super) fn pop(&mut self) -> Option<Job> {
        self.0.pop_front()
    }

    /// Takes a call whose deadline has passed.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<Job> {
        self.0.pop_front_if(|job| job.deadline <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;
    use crate::redis::call::Call;
    use crate::redis::words::Words;

    fn job(deadline: Instant) -> Job {
        Job::new(Call { script: None, words: Words::new(), slot: 0, late: None }, deadline).0
    }

    #[test]
    fn whoever_has_the_least_time_left_is_first_whenever_it_came() {
        let start = clock::moment();
        let mut queue = Queue::default();
        for millis in [5, 7, 3, 9, 1, 7, 2] {
            assert!(queue.push(job(start + Duration::from_millis(millis))).is_ok());
        }
        queue.put_back(job(start + Duration::from_millis(4)));
        let order = std::iter::from_fn(|| queue.pop()).map(|job| job.deadline - start);
        let order: Vec<_> = order.map(|left| left.as_millis()).collect();
        assert_eq!(order, [1, 2, 3, 4, 5, 7, 7, 9]);
    }

    #[test]
    fn no_deadline_that_has_passed_stays_behind_one_that_has_not() {
        let start = clock::moment();
        let mut queue = Queue::default();
        for millis in [8, 3, 9, 2, 7] {
            assert!(queue.push(job(start + Duration::from_millis(millis))).is_ok());
        }
        let now = start + Duration::from_millis(3);
        assert_eq!(std::iter::from_fn(|| queue.pop_expired(now)).count(), 2);
        assert_eq!(queue.deadline(), Some(start + Duration::from_millis(7)));
    }

    #[test]
    fn both_queues_together_are_bounded() {
        let start = clock::moment();
        let mut queue = Queue::default();
        let taken = (0..=QUEUE_MAX).take_while(|_| queue.push(job(start)).is_ok()).count();
        assert_eq!(taken + INBOX_MAX, QUEUE_MAX);
    }
}
