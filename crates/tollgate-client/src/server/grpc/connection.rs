//! One HTTP/2 connection, made when it is needed and shared by all who ask.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::bounds::SERVER_ANSWER_BYTES_MAX;
use crate::server::ServerError;
use crate::server::connection::{bearer, told};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// `UNAVAILABLE`: the server is about to stop, or somebody before it does not find it.
const UNAVAILABLE: u16 = 14;

type Body = Full<Bytes>;

#[derive(Debug)]
pub(super) struct Connection {
    host: String,
    token: Option<HeaderValue>,
    open: Mutex<Option<Arc<Open>>>,
    /// Held by the one who dials: a server that comes back is not met by all at once.
    dialling: tokio::sync::Mutex<()>,
}

/// A connection, as long as somebody has it.
#[derive(Debug)]
struct Open {
    sender: SendRequest<Body>,
    task: AbortHandle,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    pub(super) fn new(host: &str, token: Option<&str>) -> Self {
        Self {
            host: host.to_owned(),
            token: token.and_then(bearer),
            open: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    /// Whoever asks from now on does so over another connection; those who wait go on.
    pub(super) fn leave(&self) {
        *self.kept() = None;
    }

    /// Sends a framed message, and returns the one that comes back. A call that was not sent, since the server
    /// has closed the connection meanwhile, is sent over a new one, once.
    pub(super) async fn ask(
        &self,
        message: Vec<u8>,
        patience: Duration,
    ) -> Result<Bytes, ServerError> {
        let mut request = self.request(message, patience)?;
        let mut may_be_stale = self.kept().is_some();
        loop {
            let open = self.opened().await.map_err(|error| away(&*error))?;
            match open.sender.clone().try_send_request(request).await {
                Ok(response) => return read(response).await,
                Err(mut failed) => {
                    self.leave_this(&open);
                    match failed.take_message() {
                        Some(unsent) if may_be_stale => request = unsent,
                        _ => return Err(away(failed.error())),
                    }
                    may_be_stale = false;
                }
            }
        }
    }

    async fn opened(&self) -> Result<Arc<Open>, Box<dyn Error + Send + Sync>> {
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let _dialling = self.dialling.lock().await;
        // Somebody else may have been quicker.
        if let Some(open) = self.usable() {
            return Ok(open);
        }
        let stream = TcpStream::connect(&*self.host).await?;
        stream.set_nodelay(true)?;
        let io = TokioIo::new(stream);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        let task = tokio::spawn(connection).abort_handle();
        let open = Arc::new(Open { sender, task });
        *self.kept() = Some(Arc::clone(&open));
        Ok(open)
    }

    fn usable(&self) -> Option<Arc<Open>> {
        self.kept().as_ref().filter(|open| !open.sender.is_closed()).cloned()
    }

    fn leave_this(&self, open: &Arc<Open>) {
        let mut kept = self.kept();
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, open)) {
            *kept = None;
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, message: Vec<u8>, patience: Duration) -> Result<Request<Body>, ServerError> {
        let mut request = Request::new(Full::new(Bytes::from(message)));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        let uri = format!("http://{}{METHOD}", self.host).parse();
        *request.uri_mut() = uri.map_err(|error: http::uri::InvalidUri| away(&error))?;
        let fields = request.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert(TE, HeaderValue::from_static("trailers"));
        fields.extend(timeout(patience).map(|timeout| (GRPC_TIMEOUT, timeout)));
        fields.extend(self.token.clone().map(|token| (AUTHORIZATION, token)));
        Ok(request)
    }
}

/// At most eight digits and a unit; longer than that is no timeout.
fn timeout(patience: Duration) -> Option<HeaderValue> {
    let millis = patience.as_millis();
    if millis > 99_999_999 { None } else { HeaderValue::try_from(format!("{millis}m")).ok() }
}

async fn read(response: Response<Incoming>) -> Result<Bytes, ServerError> {
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(ServerError::Away { why: format!("it answered {}", head.status) });
    }
    let body = Limited::new(body, SERVER_ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| away(&*error))?;
    // Where there is nothing else to say, the status is among the fields.
    let trailers = body.trailers().filter(|fields| fields.contains_key(GRPC_STATUS));
    let fields = trailers.unwrap_or(&head.headers);
    match status(fields) {
        Some(0) => Ok(body.to_bytes()),
        Some(code) => Err(refused(code, message(fields, code))),
        None => Err(ServerError::Away { why: "it answered without a gRPC status".to_owned() }),
    }
}

fn status(fields: &HeaderMap) -> Option<u16> {
    fields.get(GRPC_STATUS)?.to_str().ok()?.parse().ok()
}

fn message(fields: &HeaderMap, code: u16) -> String {
    let message = fields.get(GRPC_MESSAGE).and_then(|message| message.to_str().ok());
    message.map_or_else(|| format!("gRPC status {code}"), str::to_owned)
}

fn refused(status: u16, why: String) -> ServerError {
    match status {
        UNAVAILABLE => ServerError::Away { why },
        _ => ServerError::Refused { status, why },
    }
}

fn away(error: &dyn Error) -> ServerError {
    ServerError::Away { why: told(error) }
}
