//! Pipelines on their way, and how long they take.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::redis::call::Job;
use crate::redis::client::Answered;

pub(super) type Answers = Pin<Box<dyn Future<Output = Result<Vec<Answered>, String>> + Send>>;

/// A pipeline on its way. Its calls have deadlines of their own, and some had little time left when
/// they were sent: what that says of the server is asked of the flight's own time in the air.
pub(super) struct Flight {
    pub(super) answers: Answers,
    pub(super) jobs: Vec<Job>,
    launched_at: Instant,
    /// The oldest deadline that has not passed.
    deadline: Option<Instant>,
    /// When it has been in the air for longer than any call may take.
    overdue_at: Instant,
    is_overdue: bool,
}

impl Flight {
    /// Sends `jobs` now; a call may take `longest`.
    pub(super) fn new(answers: Answers, jobs: Vec<Job>, now: Instant, longest: Duration) -> Self {
        let mut flight = Self {
            answers,
            jobs,
            launched_at: now,
            deadline: None,
            overdue_at: now + longest,
            is_overdue: false,
        };
        flight.find_deadline();
        flight
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// Whether somebody waits for it whose deadline has not passed.
    pub(super) fn is_open(&self) -> bool {
        self.deadline.is_some()
    }

    pub(super) fn time_in_air(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.launched_at)
    }

    /// Tells callers whose deadline has passed, and how many they are.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return 0;
        }
        let mut timeouts = 0;
        for job in self.jobs.iter_mut().filter(|job| job.is_open() && job.deadline <= now) {
            job.time_out();
            timeouts += 1;
        }
        self.find_deadline();
        timeouts
    }

    /// Whether it became overdue since this was last asked.
    pub(super) fn became_overdue(&mut self, now: Instant) -> bool {
        let was_overdue = self.is_overdue;
        self.is_overdue = was_overdue || self.overdue_at <= now;
        self.is_overdue && !was_overdue
    }

    /// When there is something to tell or to find.
    pub(super) fn next(&self) -> Option<Instant> {
        let overdue_at = (!self.is_overdue).then_some(self.overdue_at);
        self.deadline.into_iter().chain(overdue_at).min()
    }

    fn find_deadline(&mut self) {
        let open = self.jobs.iter().filter(|job| job.is_open());
        self.deadline = open.map(|job| job.deadline).min();
    }
}

/// How long the next flight will take, going by recent ones. It follows a slow one at once, and fast
/// ones by a quarter each: a call that is not sent is known not to have run, which is better than one
/// that runs and is answered too late.
#[derive(Debug)]
pub(super) struct FlightTime {
    expected: Duration,
    /// No more than this is ever expected, so that a call that was just made is worth sending
    /// however slow the last flight was.
    most: Duration,
}

impl FlightTime {
    /// Nothing is known yet; a call may take `longest`.
    pub(super) fn new(longest: Duration) -> Self {
        Self { expected: Duration::ZERO, most: longest - longest / 4 }
    }

    /// A flight took so long.
    pub(super) fn landed(&mut self, took: Duration) {
        let faster = self.expected.saturating_sub(took);
        self.expected = (self.expected - faster / 4).max(took).min(self.most);
    }

    /// Whether a call with so much time left is worth sending. If nothing is in the air it is, since
    /// there is no other way to learn that flights are faster now.
    pub(super) fn allows(&self, left: Duration, is_idle: bool) -> bool {
        !left.is_zero() && (is_idle || left >= self.expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::redis::call::Call;
    use crate::redis::words::Words;

    const LONGEST: Duration = Duration::from_millis(10);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A flight that never lands, of calls with so much time left.
    fn flight(now: Instant, left: &[u64]) -> Flight {
        let job = |left: &u64| {
            let call = Call { script: None, words: Words::new(), slot: 0, late: None };
            Job::new(call, now + millis(*left)).0
        };
        Flight::new(Box::pin(std::future::pending()), left.iter().map(job).collect(), now, LONGEST)
    }

    #[test]
    fn callers_hear_of_their_own_deadlines() {
        let now = clock::moment();
        let mut flight = flight(now, &[4, 2, 9]);
        assert_eq!(flight.next(), Some(now + millis(2)));
        assert_eq!(flight.expire(now + millis(1)), 0);
        assert_eq!(flight.expire(now + millis(4)), 2);
        assert_eq!(flight.next(), Some(now + millis(9)));
        assert_eq!(flight.expire(now + millis(9)), 1);
        assert!(!flight.is_open());
    }

    #[test]
    fn a_flight_is_overdue_by_its_own_time_in_the_air_and_once() {
        let now = clock::moment();
        let mut flight = flight(now, &[1]);
        assert_eq!(flight.expire(now + millis(1)), 1);
        assert!(!flight.became_overdue(now + millis(9)), "its call had little time left");
        assert_eq!(flight.next(), Some(now + LONGEST));
        assert!(flight.became_overdue(now + LONGEST));
        assert!(!flight.became_overdue(now + LONGEST));
        assert!(flight.is_overdue());
        assert_eq!(flight.next(), None);
    }

    #[test]
    fn a_call_with_less_time_than_a_flight_takes_is_not_worth_sending() {
        let mut time = FlightTime::new(LONGEST);
        assert!(time.allows(millis(1), false), "nothing is known yet");
        time.landed(millis(4));
        assert!(time.allows(millis(4), false));
        assert!(!time.allows(millis(3), false));
        time.landed(millis(6));
        assert!(!time.allows(millis(5), false), "a slow flight counts at once");
    }

    #[test]
    fn if_nothing_is_in_the_air_a_call_is_sent_unless_it_is_too_late() {
        let mut time = FlightTime::new(LONGEST);
        time.landed(millis(500));
        assert!(time.allows(Duration::from_nanos(1), true));
        assert!(!time.allows(Duration::ZERO, true));
    }

    #[test]
    fn a_call_that_was_just_made_is_worth_sending_however_slow_the_last_flight_was() {
        let mut time = FlightTime::new(LONGEST);
        time.landed(millis(500));
        assert!(time.allows(millis(8), false));
    }

    #[test]
    fn fast_flights_make_up_for_a_slow_one() {
        let mut time = FlightTime::new(LONGEST);
        time.landed(millis(500));
        (0..10).for_each(|_| time.landed(Duration::from_micros(100)));
        assert!(time.allows(millis(1), false));
    }
}
