//! What is told of servers that are away, on a clock of the test's own.

use std::fmt::Debug;
use std::sync::Mutex;

use tokio::time::sleep;
use tollgate_harness::free_port;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::redis::bounds::TROUBLE_PAUSE;

/// What is said, a sentence each.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// What `work` says on this thread.
    pub(crate) fn of(work: impl FnOnce()) -> Self {
        let lines = Self::default();
        tracing::subscriber::with_default(lines.clone(), || {
            // Who first tells of something, on whatever thread, decides whether anybody listens to it.
            tracing::callsite::rebuild_interest_cache();
            work();
        });
        lines
    }

    pub(crate) fn count(&self, start: &str) -> usize {
        let lines = self.0.lock().expect("nobody panics with it");
        lines.iter().filter(|line| line.starts_with(start)).count()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tollgate_store")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Line(self));
    }
}

struct Line<'l>(&'l Lines);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.0.lock().expect("nobody panics with it").push(format!("{value:?}"));
        }
    }
}

#[test]
fn that_a_server_is_away_is_told_at_once_and_then_once_a_minute() {
    const MINUTES: u32 = 3;
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let servers = Servers::Single(format!("redis://127.0.0.1:{}", free_port()));
    let timeout = Duration::from_millis(10);
    let lines = Lines::of(|| {
        runtime.block_on(async {
            let seeds = servers.addresses().unwrap();
            let _shared = Shared::start(&servers, &seeds, timeout, "test", Handle::current());
            sleep(TROUBLE_PAUSE * MINUTES + TROUBLE_PAUSE / 2).await;
        });
    });
    assert_eq!(lines.count("redis is unreachable"), 1);
    assert_eq!(lines.count("redis is still unreachable"), MINUTES as usize);
}
