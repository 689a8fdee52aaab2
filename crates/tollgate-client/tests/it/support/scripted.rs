//! A server that answers over HTTP what a test says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::StatusCode;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tollgate_client::{Client, Connect};

use super::running::LONG;

type Script = dyn Fn(&Value) -> (u16, Value) + Send + Sync;

/// As long as the test's runtime.
#[derive(Clone)]
pub(crate) struct Scripted {
    address: SocketAddr,
    script: Arc<Script>,
    calls: Arc<Mutex<Vec<Value>>>,
    is_held: Arc<watch::Sender<bool>>,
}

impl Scripted {
    /// Answers with the status and the body that `script` makes of a call's body.
    pub(crate) async fn start(
        script: impl Fn(&Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let scripted = Self {
            address: listener.local_addr().expect("it is bound"),
            script: Arc::new(script),
            calls: Arc::default(),
            is_held: Arc::new(watch::Sender::new(false)),
        };
        let this = scripted.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(this.clone().serve(stream));
            }
        });
        scripted
    }

    pub(crate) fn client(&self) -> Connect {
        let connect = Client::connect(&format!("http://{}", self.address));
        connect.expect("an address").deadline(LONG)
    }

    /// The bodies of all calls that arrived.
    pub(crate) fn calls(&self) -> Vec<Value> {
        self.calls.lock().expect("nobody panics with it").clone()
    }

    /// Calls arrive, but are not answered until this is taken back.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.send_replace(is_held);
    }

    async fn serve(self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).await.ok().filter(|bytes| *bytes > 0)?;
                if line == "\r\n" {
                    break;
                }
                if let Some(told) = line.to_lowercase().strip_prefix("content-length:") {
                    length = told.trim().parse().ok()?;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.ok()?;
            let body = serde_json::from_slice(&body).ok()?;
            let (status, answer) = (self.script)(&body);
            self.calls.lock().expect("nobody panics with it").push(body);
            self.is_held.subscribe().wait_for(|is_held| !is_held).await.ok()?;
            let status = StatusCode::from_u16(status).expect("a status");
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all((head + &answer).as_bytes()).await.ok()?;
        }
    }
}

/// A verdict that allows.
pub(crate) fn allowed() -> Value {
    serde_json::json!({"allowed": true, "limits": []})
}
