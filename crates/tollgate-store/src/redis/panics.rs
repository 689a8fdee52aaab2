//! Tasks that go on after a panic.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Waits for a future; whether it panicked. After that nothing of it is used any more but what others
/// hold too.
pub(super) async fn has_panicked(future: impl Future<Output = ()>) -> bool {
    let mut running = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
        Ok(poll) => poll.map(|()| false),
        Err(_) => Poll::Ready(true),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_told_and_not_passed_on() {
        assert!(has_panicked(async { panic!("as a mistake of ours would") }).await);
        assert!(!has_panicked(async {}).await);
    }
}
