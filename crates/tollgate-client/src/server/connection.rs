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
    pub(super) fn new(host: &str, token: Option<HeaderValue>) -> Self {
        Self { host: host.to_owned(), token, open: None }
    }

    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Posts `body`. Over a kept connection that the server has closed meanwhile nothing was sent; then it goes over a
    /// new one.
    pub(super) async fn ask(&mut self, path: &str, body: String) -> Result<Reply, String> {
        let mut request = self.request(path, body)?;
        loop {
            let (open, is_kept) = self.opened().await.map_err(|error| told(&*error))?;
            match open.sender.try_send_request(request).await {
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

    /// A connection, and whether it was there before.
    async fn opened(&mut self) -> Result<(&mut Open, bool), Box<dyn Error + Send + Sync>> {
        let is_kept = match &mut self.open {
            Some(open) => open.sender.ready().await.is_ok(),
            None => false,
        };
        if !is_kept {
            let stream = TcpStream::connect(&*self.host).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let task = tokio::spawn(connection).abort_handle();
            self.open = Some(Open { sender, task });
        }
        Ok((self.open.as_mut().expect("it was just made, or was kept"), is_kept))
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// The connection that was kept ends as something is sent over it, and so does every new one.
    #[tokio::test]
    async fn what_was_not_sent_goes_over_one_new_connection_and_no_more() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut connection = Connection::new(&listener.local_addr().unwrap().to_string(), None);

        let (ours, _theirs) = tokio::io::duplex(1);
        let (sender, kept) = http1::handshake(TokioIo::new(ours)).await.unwrap();
        let mut kept = Some(Box::pin(kept));
        let task = tokio::spawn(async {}).abort_handle();
        connection.open = Some(Open { sender, task });
        poll_fn(|context| {
            let begun = kept.as_mut().map(|kept| kept.as_mut().poll(context));
            assert!(matches!(begun, Some(Poll::Pending)), "it waits for something to send");
            Poll::Ready(())
        })
        .await;

        let mut asked = pin!(connection.ask("/", String::new()));
        let mut dials = 0;
        let answer = poll_fn(|context| {
            let answer = asked.as_mut().poll(context);
            kept = None;
            if listener.accept().is_ok() {
                dials += 1;
                assert_eq!(dials, 1, "it dials again and again");
            }
            answer
        })
        .await;
        answer.unwrap_err();
        assert_eq!(dials, 1);
    }
}
