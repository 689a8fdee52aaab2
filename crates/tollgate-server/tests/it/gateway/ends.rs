//! Both ends of a way through the gateway, in either version, with TLS and without.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tollgate_server::Door;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;

use crate::server::Running;
use crate::tls::{self, Authority, Signed};

const PATIENCE: Duration = Duration::from_secs(20);

/// A body that is sent as a test says.
pub(crate) type Piped = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

/// Where the parts of such a body go in. It ends when this is dropped.
pub(crate) struct Pipe(mpsc::Sender<Result<Frame<Bytes>, Infallible>>);

impl Pipe {
    pub(crate) fn new() -> (Self, Piped) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), StreamBody::new(ReceiverStream::new(receiver)))
    }

    pub(crate) async fn send(&self, bytes: impl Into<Bytes>) {
        self.0.send(Ok(Frame::data(bytes.into()))).await.expect("it is read");
    }

    /// The trailer, and the end.
    pub(crate) async fn end(self, name: &'static str, value: &'static str) {
        let value = value.parse().expect("a value");
        let trailers = HeaderMap::from_iter([(name.parse().expect("a name"), value)]);
        self.0.send(Ok(Frame::trailers(trailers))).await.expect("it is read");
    }
}

/// The next part of a body, which comes by itself.
pub(crate) async fn next(body: &mut Incoming) -> Option<Frame<Bytes>> {
    let frame = timeout(PATIENCE, body.frame()).await.expect("something comes");
    frame.map(|frame| frame.expect("the body does not break off"))
}

/// The next bytes of a body, as text.
pub(crate) async fn next_text(body: &mut Incoming) -> String {
    let bytes = next(body).await.expect("it goes on").into_data().expect("it has not ended");
    String::from_utf8(bytes.to_vec()).expect("it is text")
}

/// What comes, as long as it is no longer than a test waits.
pub(crate) async fn soon<T>(coming: impl Future<Output = T>) -> T {
    timeout(PATIENCE, coming).await.expect("it comes")
}

/// A client's connection to the gateway.
pub(crate) enum Client {
    Http1(conn::http1::SendRequest<Piped>),
    Http2(conn::http2::SendRequest<Piped>),
}

impl Client {
    /// Connects; with TLS if there is somebody to trust.
    pub(crate) async fn connect(
        gateway: &Running,
        is_http2: bool,
        trusted: Option<&Authority>,
    ) -> Self {
        let stream = TcpStream::connect(gateway.address(Door::Gateway)).await.expect("it listens");
        let Some(trusted) = trusted else { return Self::over(stream, is_http2).await };
        let protocol: &[u8] = if is_http2 { b"h2" } else { b"http/1.1" };
        let config = Arc::new(tls::client(trusted, None, protocol));
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TlsConnector::from(config).connect(name, stream).await.expect("it is trusted");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
        Self::over(stream, is_http2).await
    }

    async fn over<S>(stream: S, is_http2: bool) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        if is_http2 {
            let shaken = conn::http2::handshake(TokioExecutor::new(), stream).await;
            let (requests, connection) = shaken.expect("it speaks HTTP/2");
            tokio::spawn(connection);
            return Self::Http2(requests);
        }
        let (requests, connection) = conn::http1::handshake(stream).await.expect("it speaks HTTP");
        tokio::spawn(connection);
        Self::Http1(requests)
    }

    /// A request with a body, for this host and path.
    pub(crate) fn post(&self, path: &str, body: Piped) -> Request<Piped> {
        let request = match self {
            Self::Http1(_) => Request::post(path).header("host", "a.example"),
            Self::Http2(_) => Request::post(format!("http://a.example{path}")),
        };
        request.body(body).expect("a request")
    }

    /// Sends a request; the response comes whether or not it is waited for.
    pub(crate) fn send(
        &mut self,
        request: Request<Piped>,
    ) -> oneshot::Receiver<Response<Incoming>> {
        let (answered, answer) = oneshot::channel();
        let sent: std::pin::Pin<Box<dyn Future<Output = _> + Send>> = match self {
            Self::Http1(requests) => Box::pin(requests.send_request(request)),
            Self::Http2(requests) => Box::pin(requests.send_request(request)),
        };
        tokio::spawn(async move {
            let response = sent.await.expect("an answer");
            let _ = answered.send(response);
        });
        answer
    }
}

/// A request that has come to a server, and where its response goes.
pub(crate) struct Arrived {
    pub(crate) request: Request<Incoming>,
    pub(crate) answer: oneshot::Sender<Response<Piped>>,
}

/// A server of one version.
pub(crate) struct Server {
    pub(crate) url: String,
    arrivals: mpsc::UnboundedReceiver<Arrived>,
}

impl Server {
    /// Starts one; with TLS if it has a certificate.
    pub(crate) async fn start(is_http2: bool, own: Option<&Signed>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let protocol: &[u8] = if is_http2 { b"h2" } else { b"http/1.1" };
        let acceptor = own.map(|own| TlsAcceptor::from(Arc::new(config(own, &[protocol]))));
        let scheme = match (is_http2, own) {
            (_, Some(_)) => "https",
            (true, None) => "h2c",
            (false, None) => "http",
        };
        let (arrived, arrivals) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, arrived) = (acceptor.clone(), arrived.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => serve(stream, is_http2, arrived).await,
                        // Who does not trust it goes away.
                        Some(acceptor) => {
                            let Ok(stream) = acceptor.accept(stream).await else { return };
                            serve(stream, is_http2, arrived).await;
                        }
                    }
                });
            }
        });
        Self { url: format!("{scheme}://{address}"), arrivals }
    }

    /// The next request, as soon as its head has come.
    pub(crate) async fn next(&mut self) -> Arrived {
        soon(self.arrivals.recv()).await.expect("it goes on")
    }
}

async fn serve<S>(stream: S, is_http2: bool, arrived: mpsc::UnboundedSender<Arrived>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let (answer, answered) = oneshot::channel();
        // A test that is over waits for nothing.
        let _ = arrived.send(Arrived { request, answer });
        answered
    });
    let stream = TokioIo::new(stream);
    let _ = if is_http2 {
        http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
    } else {
        http1::Builder::new().serve_connection(stream, service).await
    };
}

/// How a server shows this certificate, and speaks one of these.
pub(crate) fn config(own: &Signed, protocols: &[&[u8]]) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::Pkcs8(own.key_der.clone().into());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring knows them")
        .with_no_client_auth()
        .with_single_cert(vec![own.der.clone()], key)
        .expect("they belong together");
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    config
}
