//! Whether we are ready, as gRPC's health service tells it.

use http::{Request, Response};
use tokio::sync::mpsc;
use tonic::codegen::{Service, tokio_stream::wrappers::ReceiverStream};
use tonic::{Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::SERVICE;
use super::arriving::Arriving;
use super::body::Body;
use super::bounds::MESSAGE_BYTES_MAX;
use crate::gate::Gate;
use crate::stage::Drain;

pub(super) const PATH: &str = "/grpc.health.v1.Health/";

/// Whose health may be asked for: ours, that of the service by its name, and by the name that
/// Envoy's own implementation gives it.
const NAMES: [&str; 3] = ["", SERVICE, "ratelimit"];

pub(super) async fn answer(request: Request<Arriving>, gate: &Gate) -> Response<Body> {
    let health = Health { is_ready: gate.stages.is_ready(), drain: gate.stages.watch() };
    let mut server = HealthServer::new(health).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let Ok(response) = server.call(request).await;
    response.map(|body| Body::stream(body, gate.stages.watch()))
}

/// Our health at the moment of a call, and how it goes on.
struct Health {
    is_ready: bool,
    drain: Drain,
}

impl Health {
    fn now(&self, name: &str) -> ServingStatus {
        match (NAMES.contains(&name), self.is_ready) {
            (false, _) => ServingStatus::ServiceUnknown,
            (true, true) => ServingStatus::Serving,
            (true, false) => ServingStatus::NotServing,
        }
    }
}

#[async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        match self.now(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("there is no such service")),
            status => Ok(tonic::Response::new(told(status))),
        }
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let now = self.now(&request.get_ref().service);
        let (sender, receiver) = mpsc::channel(2);
        let _ = sender.send(Ok(told(now))).await;
        let mut drain = self.drain.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = drain.unready() => {}
                () = sender.closed() => return,
            }
            if now == ServingStatus::Serving {
                let _ = sender.send(Ok(told(ServingStatus::NotServing))).await;
            }
            // The stream is held open until it is cut when we drain.
            sender.closed().await;
        });
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
