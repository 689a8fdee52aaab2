//! Whether a server is there, as far as those can tell who asked it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::ServerError;
use crate::breaker::{Breaker, Circuit, Permit};
use crate::clock;

/// The circuit of a server. A server that is away is asked again every second; who asks meanwhile need not wait.
///
/// Questions that are under way together travel together and fail together: that is one failure, however many they are.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    circuit: Circuit,
    /// When the last failure was counted.
    failed_at: Arc<Mutex<Option<Instant>>>,
}

/// A question that is under way.
#[derive(Debug)]
pub(super) struct Question {
    permit: Permit,
    began: Instant,
}

impl Asked {
    pub(super) fn new(host: &str) -> Self {
        let breaker = Breaker::new().successes(1).open_for(Duration::from_secs(1));
        Self { circuit: breaker.circuit(host), failed_at: Arc::default() }
    }

    pub(super) fn begin(&self) -> Result<Question, ServerError> {
        let began = clock::now();
        let permit = self.circuit.enter_at(began);
        let permit = permit.map_err(|open| ServerError::Away { why: open.to_string() })?;
        Ok(Question { permit, began })
    }

    pub(super) fn end<T>(&self, question: Question, answer: &Result<T, ServerError>) {
        let Question { permit, began } = question;
        match answer {
            // Whoever says that a question is wrong is there.
            Ok(_) | Err(ServerError::Refused { .. }) => permit.succeeded(),
            Err(ServerError::Away { .. } | ServerError::Unwilling { .. }) => {
                if self.is_another_failure(began) { permit.failed() } else { permit.not_made() }
            }
        }
    }

    /// Whether what began then and has failed now is not the failure that was counted last.
    fn is_another_failure(&self, began: Instant) -> bool {
        let mut failed_at = self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_another = failed_at.is_none_or(|failed_at| failed_at <= began);
        if is_another {
            *failed_at = Some(clock::now());
        }
        is_another
    }
}
