//! One HTTP/2 connection, made when it is needed and shared by all who ask.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use crate::bounds::SERVER_ANSWER_BYTES_MAX;
use crate::clock;
use crate::server::ServerError;
use crate::server::connection::told;
use crate::server::worker::Reply;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The question is wrong: the server would answer another.
const INVALID_ARGUMENT: u16 = 3;
const RESOURCE_EXHAUSTED: u16 = 8;
const OUT_OF_RANGE: u16 = 11;

/// The server answers others, but not us, or speaks of something else.
const PERMISSION_DENIED: u16 = 7;
const UNIMPLEMENTED: u16 = 12;
const UNAUTHENTICATED: u16 = 16;

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
    pub(super) fn new(host: &str, token: Option<HeaderValue>) -> Self {
        Self {
            host: host.to_owned(),
            token,
            open: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    /// Sends a framed message, and returns the one that comes back. A call that was not sent, since the server
    /// has closed the connection meanwhile, is sent over a new one, once.
    pub(super) async fn ask(
        &self,
        message: Vec<u8>,
        patience: Duration,
    ) -> Result<Bytes, ServerError> {
        let deadline = clock::now() + patience;
        let mut request = self.request(message, patience)?;
        let mut may_be_stale = self.kept().is_some();
        loop {
            let opened = timeout_at(deadline, self.opened()).await;
            let open = opened.map_err(|_| ServerError::late(patience))?.map_err(|e| away(&*e))?;
            let answered = async {
                let response = open.sender.clone().try_send_request(request).await?;
                Ok(read(response).await)
            };
            match timeout_at(deadline, answered).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(failed)) => {
                    let mut failed: TrySendError<_> = failed;
                    self.leave(&open);
                    match failed.take_message() {
                        Some(unsent) if may_be_stale => request = unsent,
                        _ => return Err(away(failed.error())),
                    }
                    may_be_stale = false;
                }
                Err(_) => {
                    // New calls need not wait for what does not answer.
                    self.leave(&open);
                    return Err(ServerError::late(patience));
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

    /// Whoever asks from now on does so over another connection than this; those who wait go on.
    fn leave(&self, open: &Arc<Open>) {
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
        return Err(ServerError::of(&Reply { status: head.status, body: Value::Null }));
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
        INVALID_ARGUMENT | RESOURCE_EXHAUSTED | OUT_OF_RANGE => {
            ServerError::Refused { status, why }
        }
        PERMISSION_DENIED | UNIMPLEMENTED | UNAUTHENTICATED => {
            ServerError::Unwilling { status, why }
        }
        _ => ServerError::Away { why },
    }
}

fn away(error: &dyn Error) -> ServerError {
    ServerError::Away { why: told(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_whether_the_server_or_the_token_or_the_question_is_wrong() {
        let wrong = |status| match refused(status, String::new()) {
            ServerError::Refused { .. } => "question",
            ServerError::Unwilling { .. } => "token",
            ServerError::Away { .. } => "server",
        };
        for status in 1..=17 {
            let expected = match status {
                3 | 8 | 11 => "question",
                7 | 12 | 16 => "token",
                _ => "server",
            };
            assert_eq!(wrong(status), expected, "{status}");
        }
    }
}
