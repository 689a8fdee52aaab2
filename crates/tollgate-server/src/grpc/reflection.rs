//! What can be asked here, told to tools such as grpcurl.

use std::pin::Pin;
use std::sync::LazyLock;

use http::{Request, Response};
use tonic::codegen::Service;
use tonic_reflection::server::Builder;

use super::arriving::Arriving;
use super::body::Body;
use super::bounds::MESSAGE_BYTES_MAX;
use crate::gate::Gate;

/// The files of `proto/`, compiled.
const FILES: &[u8] = include_bytes!("../../proto/descriptors.bin");

const V1: &str = "/grpc.reflection.v1.ServerReflection/";
const V1ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/";

type Answering = Pin<Box<dyn Future<Output = Response<tonic::body::Body>> + Send>>;
type Answer = Box<dyn Fn(Request<Arriving>) -> Answering + Send + Sync>;

/// The two generations of the service, v1 and v1alpha.
static GENERATIONS: LazyLock<[Answer; 2]> = LazyLock::new(|| {
    let builder = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(FILES)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = builder().build_v1().expect("the files were compiled");
    let v1alpha = builder().build_v1alpha().expect("the files were compiled");
    [
        boxed(v1.max_decoding_message_size(MESSAGE_BYTES_MAX)),
        boxed(v1alpha.max_decoding_message_size(MESSAGE_BYTES_MAX)),
    ]
});

pub(super) fn is_asked(path: &str) -> bool {
    path.starts_with(V1) || path.starts_with(V1ALPHA)
}

pub(super) async fn answer(request: Request<Arriving>, gate: &Gate) -> Response<Body> {
    let [v1, v1alpha] = &*GENERATIONS;
    let generation = if request.uri().path().starts_with(V1) { v1 } else { v1alpha };
    let response = generation(request).await;
    response.map(|body| Body::stream(body, gate.stages.watch()))
}

/// The services have types without a name.
fn boxed<S>(service: S) -> Answer
where
    S: Service<
            Request<Arriving>,
            Response = Response<tonic::body::Body>,
            Error = std::convert::Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    Box::new(move |request| {
        let call = service.clone().call(request);
        Box::pin(async move {
            let Ok(response) = call.await;
            response
        })
    })
}
