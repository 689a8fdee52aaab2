//! Which server of a route is next, and which are left out because they fail.
//!
//! A server has failed if it takes no connection, or breaks off before it has answered; what it
//! answers is no failure, since clients can ask for errors. Whoever fails several times in a row is
//! left out for a while, and for longer each time. The first request after that is its trial.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tokio::time::{Duration, Instant};
use tollgate::{Route, Target};

use super::bounds::{
    ATTEMPTS_MAX, FAILURES_MAX, LEFT_OUT, LEFT_OUT_MAX, TURNS, UPSTREAMS_TOLD_MAX,
};
use crate::moment::moment;

/// The servers to try, in this order.
pub(super) type Line<'r> = SmallVec<[&'r Target; ATTEMPTS_MAX]>;

/// What is known of all servers.
#[derive(Debug)]
pub(crate) struct Targets {
    turns: [AtomicUsize; TURNS],
    failing: Mutex<HashMap<Target, Failing>>,
    /// How many are failing, for those who would rather not wait.
    count: AtomicUsize,
    /// How often servers have failed, as far as there is room for them.
    failures: Mutex<HashMap<Target, u64>>,
}

/// A server of the policy, in figures.
#[derive(Debug)]
pub(crate) struct TargetCount {
    pub(crate) url: String,
    pub(crate) failures: u64,
    pub(crate) is_left_out: bool,
}

/// A server that failed when it was last asked.
#[derive(Debug, Default)]
struct Failing {
    in_a_row: u32,
    failed_at: Option<Instant>,
    left_out: Option<LeftOut>,
}

#[derive(Clone, Copy, Debug)]
struct LeftOut {
    until: Instant,
    length: Duration,
    /// Somebody asks it meanwhile, to see whether it works again.
    is_on_trial: bool,
}

impl Default for Targets {
    fn default() -> Self {
        let turns = [const { AtomicUsize::new(0) }; TURNS];
        Self {
            turns,
            failing: Mutex::default(),
            count: AtomicUsize::new(0),
            failures: Mutex::default(),
        }
    }
}

impl Targets {
    /// The servers of a route, beginning with the one whose turn it is. Those that are left out come
    /// last: if all are, somebody must be asked.
    pub(super) fn line<'r>(&self, route: &'r Route) -> Line<'r> {
        let targets = route.targets();
        let [only] = targets else {
            let turn = self.turns[route.number() % TURNS].fetch_add(1, Ordering::Relaxed);
            let (behind, ahead) = targets.split_at(turn % targets.len());
            return self.sorted(ahead.iter().chain(behind));
        };
        Line::from_iter([only])
    }

    fn sorted<'r>(&self, targets: impl Iterator<Item = &'r Target> + Clone) -> Line<'r> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return targets.take(ATTEMPTS_MAX).collect();
        }
        let now = moment();
        let mut failing = self.lock();
        let is_out = |target: &&Target| {
            let left_out = failing.get(*target).and_then(|it| it.left_out);
            left_out.is_some_and(|it| it.until > now)
        };
        let others = targets.clone().filter(|it| !is_out(it));
        let line: Line<'r> = others.chain(targets.filter(is_out)).take(ATTEMPTS_MAX).collect();
        // One request is enough to try whoever was left out; others wait for what comes of it.
        let first = line.first().and_then(|first| failing.get_mut(*first)?.left_out.as_mut());
        if let Some(left_out) = first.filter(|it| it.until <= now) {
            left_out.until = now + left_out.length;
            left_out.is_on_trial = true;
        }
        line
    }

    /// A server has answered.
    pub(super) fn worked(&self, target: &Target) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut failing = self.lock();
        let before = failing.remove(target);
        self.count.store(failing.len(), Ordering::Relaxed);
        drop(failing);
        if before.is_some_and(|it| it.left_out.is_some()) {
            tracing::info!(upstream = %target, "a server is back");
        }
    }

    /// A server took no connection, or broke off before it had answered.
    pub(super) fn failed(&self, target: &Target, why: &dyn std::fmt::Display) {
        self.count_failure(target);
        let now = moment();
        let mut failing = self.lock();
        if !failing.contains_key(target) {
            // Servers of policies that are long gone.
            let is_recent = |at: Instant| now - at < 2 * LEFT_OUT_MAX;
            failing.retain(|_, it| it.failed_at.is_some_and(is_recent));
        }
        let known = failing.entry(target.clone()).or_default();
        known.in_a_row = known.in_a_row.saturating_add(1);
        known.failed_at = Some(now);
        let is_out = known.left_out.is_some_and(|it| it.until > now && !it.is_on_trial);
        let length = if known.in_a_row >= FAILURES_MAX && !is_out {
            let longer = |it: LeftOut| (it.length * 2).min(LEFT_OUT_MAX);
            let length = known.left_out.map_or(LEFT_OUT, longer);
            known.left_out = Some(LeftOut { until: now + length, length, is_on_trial: false });
            Some(length)
        } else {
            None
        };
        self.count.store(failing.len(), Ordering::Relaxed);
        drop(failing);
        tracing::debug!(upstream = %target, %why, "a server failed");
        if let Some(length) = length {
            let seconds = length.as_secs();
            tracing::warn!(upstream = %target, %why, seconds, "a server fails and is left out");
        }
    }

    fn count_failure(&self, target: &Target) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = failures.get_mut(target) {
            *count += 1;
        } else if failures.len() < UPSTREAMS_TOLD_MAX {
            failures.insert(target.clone(), 1);
        }
    }

    /// The servers of these routes in figures, each once and no more than some. What others have failed
    /// is forgotten.
    pub(crate) fn tell(&self, routes: &[Route]) -> Vec<TargetCount> {
        let mut seen = HashSet::new();
        let targets = routes.iter().flat_map(Route::targets).filter(|it| seen.insert(*it));
        let targets: Vec<&Target> = targets.take(UPSTREAMS_TOLD_MAX).collect();
        let now = moment();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.retain(|target, _| seen.contains(target));
        let failing = self.lock();
        let is_left_out = |target: &Target| {
            let left_out = failing.get(target).and_then(|it| it.left_out);
            left_out.is_some_and(|it| it.until > now)
        };
        let told = targets.into_iter().map(|target| TargetCount {
            url: target.to_string(),
            failures: failures.get(target).copied().unwrap_or_default(),
            is_left_out: is_left_out(target),
        });
        told.collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Target, Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;
    use tollgate::Policy;

    use super::*;

    fn policy(upstream: &str) -> Policy {
        let text = format!("upstream: {upstream}\nlimits: []");
        let no_files = |_: &str| Err("there are none".to_owned());
        Policy::parse("policy.yaml", &text, &mut { no_files }).expect("a policy")
    }

    const THREE: &str = "[http://a, http://b, http://c]";

    /// The hosts in the order in which they would be tried.
    fn line(targets: &Targets, policy: &Policy) -> String {
        let route = policy.route("", "/").expect("a route");
        targets.line(route).iter().map(|it| it.host()).collect()
    }

    #[test]
    fn servers_take_turns() {
        let (targets, policy) = (Targets::default(), policy(THREE));
        let lines: Vec<_> = (0..4).map(|_| line(&targets, &policy)).collect();
        assert_eq!(lines, ["abc", "bca", "cab", "abc"]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_again_and_again_comes_last_until_it_is_tried_again() {
        let (targets, policy) = (Targets::default(), policy(THREE));
        let route = policy.route("", "/").expect("a route");
        let b = &route.targets()[1];
        targets.failed(b, &"refused");
        targets.failed(b, &"refused");
        targets.worked(b);
        for _ in 0..FAILURES_MAX - 1 {
            targets.failed(b, &"refused");
        }
        assert_eq!(line(&targets, &policy), "abc", "one that worked starts anew");
        targets.failed(b, &"refused");
        assert_eq!(line(&targets, &policy), "cab");
        assert_eq!(line(&targets, &policy), "cab");
        assert_eq!(line(&targets, &policy), "acb");
        advance(LEFT_OUT).await;
        assert_eq!(line(&targets, &policy), "bca", "its trial");
        targets.failed(b, &"refused");
        advance(LEFT_OUT).await;
        assert_eq!(line(&targets, &policy), "cab", "longer each time");
        advance(LEFT_OUT).await;
        targets.worked(b);
        let lines: Vec<_> = (0..3).map(|_| line(&targets, &policy)).collect();
        assert_eq!(lines, ["abc", "bca", "cab"]);
    }

    #[tokio::test(start_paused = true)]
    async fn servers_of_the_policy_are_told_of_with_their_failures() {
        let (targets, before) = (Targets::default(), policy(THREE));
        let b = &before.route("", "/").expect("a route").targets()[1];
        for _ in 0..FAILURES_MAX {
            targets.failed(b, &"refused");
        }
        let tell = |policy: &Policy| -> Vec<(String, u64, bool)> {
            let told = targets.tell(&policy.settings().upstream);
            told.into_iter().map(|it| (it.url, it.failures, it.is_left_out)).collect()
        };
        let failures = u64::from(FAILURES_MAX);
        let told = tell(&before);
        assert_eq!((told.len(), &told[1].0), (3, &b.to_string()));
        assert_eq!((told[1].1, told[1].2, told[0].1), (failures, true, 0));
        advance(LEFT_OUT).await;
        assert!(!tell(&before)[1].2, "it has its trial");
        assert_eq!(tell(&policy("http://a")).len(), 1, "one that is gone is not told of");
    }

    #[tokio::test(start_paused = true)]
    async fn if_all_fail_all_are_asked() {
        let (targets, policy) = (Targets::default(), policy(THREE));
        let route = policy.route("", "/").expect("a route");
        for target in route.targets() {
            for _ in 0..FAILURES_MAX {
                targets.failed(target, &"refused");
            }
        }
        let lines: Vec<_> = (0..3).map(|_| line(&targets, &policy)).collect();
        assert_eq!(lines, ["abc", "bca", "cab"]);
    }
}
