//! A connection to the server, made when it is needed and kept.

use std::error::Error;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::worker::Reply;
use crate::bounds::SERVER_ANSWER_BYTES_MAX;

type Body = Full<Bytes>;

#[derive(Debug)]
pub(super) struct Connection {
    host: String,
    token: Option<HeaderValue>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    sender: SendRequest<Body>,
    task: AbortHandle,
}

impl Drop for Open {
    /// Whoever is left without an answer would otherwise be waited for by nobody, for ever.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    pub(super) fn new(host: &str, token: Option<&str>) -> Self {
        Self { host: host.to_owned(), token: token.and_then(bearer), open: None }
    }

    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Posts `body`. Over a connection that the server has closed meanwhile nothing was sent; then a new
    /// one is made, once.
    pub(super) async fn ask(&mut self, path: &str, body: String) -> Result<Reply, String> {
        let mut request = self.request(path, body)?;
        let is_kept = self.open.as_ref().is_some_and(|open| !open.sender.is_closed());
        loop {
            let sender = self.opened().await.map_err(|error| told(&*error))?;
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let answer = read(response).await;
                    if answer.is_err() {
                        self.close();
                    }
                    return answer;
                }
                Err(mut failed) => {
                    self.close();
                    match failed.take_message() {
                        Some(unsent) if is_kept => request = unsent,
                        _ => return Err(told(failed.error())),
                    }
                }
            }
        }
    }

    async fn opened(&mut self) -> Result<&mut SendRequest<Body>, Box<dyn Error + Send + Sync>> {
        let is_usable = match &mut self.open {
            Some(open) => open.sender.ready().await.is_ok(),
            None => false,
        };
        if !is_usable {
            let stream = TcpStream::connect(&*self.host).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let task = tokio::spawn(connection).abort_handle();
            self.open = Some(Open { sender, task });
        }
        Ok(&mut self.open.as_mut().expect("it was just made, or is usable").sender)
    }

    fn request(&self, path: &str, body: String) -> Result<Request<Body>, String> {
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.parse().map_err(|error| told(&error))?;
        let host = HeaderValue::try_from(&*self.host).map_err(|error| told(&error))?;
        let fields = request.headers_mut();
        fields.insert(HOST, host);
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        fields.extend(self.token.clone().map(|token| (AUTHORIZATION, token)));
        Ok(request)
    }
}

async fn read(response: http::Response<hyper::body::Incoming>) -> Result<Reply, String> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, SERVER_ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| told(&*error))?.to_bytes();
    // What is no JSON is an answer of somebody else; its status tells enough.
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Reply { status: head.status, body })
}

/// A token as a field has it.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// An error with what it comes from.
pub(super) fn told(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        told = format!("{told}: {error}");
        source = error.source();
    }
    told
}
