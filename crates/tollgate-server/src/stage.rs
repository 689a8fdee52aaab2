//! How far along a process is between its start and its end.

use tokio::sync::watch;

/// What may be asked of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Everything.
    Ready,
    /// Everything still, but nobody new should come.
    Unready,
    /// What was already asked is answered; then connections are closed.
    Draining,
}

/// Tells everybody how far we are.
#[derive(Debug)]
pub(crate) struct Stages(watch::Sender<Stage>);

impl Stages {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Stage::Ready))
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.0.send_replace(stage);
    }

    pub(crate) fn is_ready(&self) -> bool {
        *self.0.borrow() == Stage::Ready
    }

    pub(crate) fn watch(&self) -> Drain {
        Drain(self.0.subscribe())
    }
}

/// Waits for the end.
#[derive(Clone, Debug)]
pub(crate) struct Drain(watch::Receiver<Stage>);

impl Drain {
    /// Returns when no more requests should be taken from a connection.
    pub(crate) async fn started(&mut self) {
        self.reached(Stage::Draining).await;
    }

    /// Returns when nobody new should come.
    pub(crate) async fn unready(&mut self) {
        self.reached(Stage::Unready).await;
    }

    async fn reached(&mut self, stage: Stage) {
        // Whoever would tell us of another stage is gone only when everything is over.
        let _ = self.0.wait_for(|now| *now >= stage).await;
    }
}
