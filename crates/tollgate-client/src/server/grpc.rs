//! A client of tollgate's own server, over gRPC: the call that Envoy makes, and no other.
//!
//! What is asked are descriptors, which the server finds in its `descriptors` files. Calls of different callers
//! share a connection, each a stream of its own, and are never made one call: in one call a descriptor may
//! replace another's limit (`replaces`, quotas, `charging`), and a stranger's must not.

mod connection;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use self::connection::Connection;
pub use self::wire::{Descriptors, DescriptorsError};
use super::fallback::Local;
use super::{Asked, Connect, ServerError, Source, Verdict};
use crate::bounds::SERVER_QUEUE_MAX;
use crate::clock;

/// Asks a tollgate server, or whoever speaks Envoy's protocol, over gRPC. Clones share its connection.
///
/// ```no_run
/// use tollgate_client::{Client, Descriptors};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect("http://127.0.0.1:8081")?.start_grpc();
/// let anna = Descriptors::new("shop", &[&[("user", "anna")]], 1)?;
/// let verdict = client.check(&anna).await;
/// if !verdict.is_allowed {
///     println!("come back in {:?}", verdict.retry_after);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct GrpcClient {
    connection: Arc<Connection>,
    deadline: Duration,
    asked: Asked,
    places: Arc<Semaphore>,
    local: Arc<Local>,
}

impl GrpcClient {
    /// Makes the client. A connection is made with the first check, in the tokio runtime of that.
    pub(super) fn start(connect: Connect) -> Self {
        Self {
            connection: Arc::new(Connection::new(&connect.host, connect.token.clone())),
            deadline: connect.deadline,
            asked: Asked::new(&connect.host),
            places: Arc::new(Semaphore::new(SERVER_QUEUE_MAX)),
            local: Arc::new(Local::new(connect.fallback)),
        }
    }

    /// Whether a request may go on: whether it is within the limits of all its descriptors. `limits` of the
    /// verdict has one answer for each descriptor, in their order. If the server does not say so in time, the
    /// fallback does; a limit of it is per keys of entries.
    ///
    /// It may be dropped at any moment; what the server has charged by then stays charged.
    pub async fn check(&self, descriptors: &Descriptors) -> Verdict {
        match self.ask(descriptors, descriptors.to_message()).await {
            Ok(verdict) => verdict,
            Err(error) => {
                let value_of = |name: &str| descriptors.value(name);
                self.local.decide(&error, value_of, descriptors.hits(), clock::now())
            }
        }
    }

    /// A check that charges a guess, to be [settled](Self::settle). What was denied, or allowed by the fallback, has
    /// nothing to settle.
    pub async fn reserve(&self, descriptors: &Descriptors) -> (Verdict, Option<Reserved>) {
        let verdict = self.check(descriptors).await;
        let is_charged = verdict.is_allowed && verdict.source == Source::Server;
        let reserved = is_charged.then(|| Reserved { descriptors: descriptors.clone() });
        (verdict, reserved)
    }

    /// Brings a reservation to what was really used: gives back what it took too much, or takes what it took too
    /// little. False if that was more than there is; of a bucket it is then not taken.
    ///
    /// The protocol knows no reservations: nothing tells a settlement that is sent twice from two of them, so it is
    /// sent once, whatever becomes of it. What is never settled stays charged.
    pub async fn settle(&self, reserved: Reserved, used: u32) -> Result<bool, ServerError> {
        let Reserved { descriptors } = reserved;
        match descriptors.to_settlement(used) {
            None => Ok(true),
            Some(message) => {
                self.ask(&descriptors, message).await.map(|verdict| verdict.is_allowed)
            }
        }
    }

    /// Asks, within the deadline, unless the server is known to be away.
    async fn ask(
        &self,
        descriptors: &Descriptors,
        message: Vec<u8>,
    ) -> Result<Verdict, ServerError> {
        let away = |why: String| ServerError::Away { why };
        let question = self.asked.begin()?;
        let Ok(_place) = self.places.try_acquire() else {
            return Err(away("too many checks wait for it".to_owned()));
        };
        let asked = self.connection.ask(message, self.deadline).await;
        let verdict = asked.and_then(|answer| {
            let verdict = descriptors.verdict(&answer);
            verdict.ok_or_else(|| away("it answered what is no verdict".to_owned()))
        });
        self.asked.end(question, &verdict);
        verdict
    }
}

/// What the server has charged, to be settled once.
#[derive(Debug)]
#[must_use = "what is not settled stays charged"]
pub struct Reserved {
    descriptors: Descriptors,
}
