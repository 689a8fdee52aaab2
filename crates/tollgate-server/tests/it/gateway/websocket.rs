//! WebSockets through the gateway, between a client and a server that people use.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, Response, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::server;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async, client_async};
use tollgate_harness::{Flavour, Server};
use tollgate_server::Door;

use crate::grpc::client::stop;
use crate::server::{Running, with_doors};

const PATIENCE: Duration = Duration::from_secs(60);

type Socket = WebSocketStream<TcpStream>;

/// A gateway and a server behind it, which answers every message with the same.
struct House {
    running: Running,
    /// How sockets ended for the server.
    ends: mpsc::UnboundedReceiver<Option<u16>>,
    upstream: SocketAddr,
}

impl House {
    async fn new(limits: &str) -> Self {
        Self::with("", limits).await
    }

    async fn with(settings: &str, limits: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let upstream = listener.local_addr().expect("an address");
        let (ended, ends) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(echo(stream, ended.clone()));
            }
        });
        let running = Running::with_files(&policy(upstream, settings, limits), &[]);
        Self { running, ends, upstream }
    }

    async fn connect(&self) -> Result<Socket, Box<Response<Option<Vec<u8>>>>> {
        let address = self.running.address(Door::Gateway);
        let mut request = format!("ws://{address}/chat").into_client_request().expect("a request");
        let offer = HeaderValue::from_static("permessage-deflate");
        request.headers_mut().insert("sec-websocket-extensions", offer);
        let stream = TcpStream::connect(address).await.expect("it listens");
        match timeout(PATIENCE, client_async(request, stream)).await.expect("an answer") {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => Err(response),
            Err(other) => panic!("{other}"),
        }
    }

    async fn open(&self) -> Socket {
        self.connect().await.expect("it is opened")
    }

    /// The server heard that the client went away.
    async fn client_went_away(&mut self) {
        let ended = timeout(PATIENCE, self.ends.recv()).await.expect("in time").expect("an end");
        assert_eq!(ended, Some(1001));
    }
}

fn policy(upstream: SocketAddr, settings: &str, limits: &str) -> String {
    with_doors(&["gateway"], &format!("upstream: http://{upstream}\n{settings}\nlimits:\n{limits}"))
}

/// Answers every message with the same. No extension is offered to it.
async fn echo(stream: TcpStream, ended: mpsc::UnboundedSender<Option<u16>>) {
    // The signature is the library's.
    #[allow(clippy::result_large_err)]
    let look = |request: &server::Request, response: server::Response| {
        assert!(!request.headers().contains_key("sec-websocket-extensions"));
        Ok(response)
    };
    let Ok(mut socket) = accept_hdr_async(stream, look).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Text(_) | Message::Binary(_) => drop(socket.send(message).await),
            Message::Close(close) => {
                let _ = ended.send(close.map(|close| close.code.into()));
            }
            _ => {}
        }
    }
}

async fn send(socket: &mut Socket, message: Message) {
    socket.send(message).await.expect("it is open");
}

async fn next(socket: &mut Socket) -> Message {
    let next = timeout(PATIENCE, socket.next()).await.expect("in time");
    next.expect("no end without a close frame").expect("a message")
}

async fn echoes(socket: &mut Socket, text: &str) {
    send(socket, Message::text(text)).await;
    assert_eq!(next(socket).await, Message::text(text));
}

/// The next that comes is the end, with this code and reason.
async fn closes(mut socket: Socket, code: u16, reason: &str) {
    let Message::Close(Some(close)) = next(&mut socket).await else { panic!("no close frame") };
    assert_eq!((close.code, close.reason.as_str()), (CloseCode::from(code), reason));
    let end = timeout(PATIENCE, socket.next()).await.expect("in time");
    assert!(end.is_none_or(|end| end.is_err()), "nothing follows");
}

fn fragment(opcode: Data, text: &'static str, is_last: bool) -> Message {
    Message::Frame(Frame::message(text.as_bytes(), OpCode::Data(opcode), is_last))
}

#[tokio::test]
async fn a_message_too_many_closes_the_socket() {
    let limits = "  - {name: talk, when: {layer: websocket}, per: [connection], rate: 3/hour}";
    let mut house = House::new(limits).await;
    let (mut one, mut another) = (house.open().await, house.open().await);
    for socket in [&mut one, &mut another] {
        for text in ["one", "two", "three"] {
            echoes(socket, text).await;
        }
    }
    send(&mut one, Message::text("four")).await;
    closes(one, 1008, "limit \"talk\" exceeded").await;
    house.client_went_away().await;
    drop(another);
    stop(house.running).await;
}

#[tokio::test]
async fn a_message_that_must_wait_closes_nothing_and_arrives_when_it_may() {
    let limits = |rate: &str| {
        format!(
            "  - {{name: talk, when: {{layer: websocket}}, rate: {rate}, algorithm: token_bucket, burst: 1, on_denied: delay}}"
        )
    };
    let house = House::new(&limits("10/second")).await;
    let mut socket = house.open().await;
    for text in ["one", "two", "three"] {
        echoes(&mut socket, text).await;
    }
    drop(socket);
    stop(house.running).await;

    let house = House::new(&limits("1/hour")).await;
    let mut socket = house.open().await;
    echoes(&mut socket, "one").await;
    send(&mut socket, Message::text("two")).await;
    let nothing = timeout(Duration::from_millis(200), socket.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    drop(socket);
    stop(house.running).await;
}

#[tokio::test]
async fn fragments_are_one_message_of_all_their_bytes_and_pings_between_them_are_others() {
    let limits = "  - {name: talk, when: {layer: websocket}, per: [connection], rate: 3/hour}
  - {name: bytes, when: {layer: websocket}, per: [connection], rate: 12/hour, cost: {attribute: bytes}}";
    let mut house = House::new(limits).await;
    let mut socket = house.open().await;
    send(&mut socket, fragment(Data::Text, "hel", false)).await;
    send(&mut socket, Message::Ping("ping"[..].into())).await;
    send(&mut socket, fragment(Data::Continue, "lo", true)).await;
    assert_eq!(next(&mut socket).await, Message::Pong("ping"[..].into()));
    assert_eq!(next(&mut socket).await, Message::text("hello"));
    echoes(&mut socket, "123").await;
    send(&mut socket, Message::text("")).await;
    closes(socket, 1008, "limit \"talk\" exceeded").await;
    house.client_went_away().await;

    let mut socket = house.open().await;
    send(&mut socket, fragment(Data::Binary, "1234567890", false)).await;
    send(&mut socket, fragment(Data::Continue, "123", true)).await;
    closes(socket, 1008, "limit \"bytes\" exceeded").await;
    stop(house.running).await;
}

#[tokio::test]
async fn a_flood_of_pings_is_closed() {
    let limits = "  - {name: talk, when: {layer: websocket}, rate: 20/hour}";
    let mut house = House::new(limits).await;
    let mut socket = house.open().await;
    for _ in 0..1_000 {
        if socket.feed(Message::Ping("x"[..].into())).await.is_err() {
            break;
        }
    }
    let _ = socket.flush().await;
    let mut pongs = 0;
    let reason = loop {
        match next(&mut socket).await {
            Message::Pong(_) => pongs += 1,
            Message::Close(Some(close)) => break close.reason,
            other => panic!("{other}"),
        }
    };
    assert_eq!(reason.as_str(), "limit \"talk\" exceeded");
    assert!(pongs <= 20, "{pongs}");
    house.client_went_away().await;
    drop(socket);
    stop(house.running).await;
}

#[tokio::test]
async fn wrong_frames_close_the_socket_and_reach_nobody() {
    let mut house = House::new("  []").await;
    let gigabyte = [&[0x82, 0xff][..], &(1_u64 << 30).to_be_bytes(), b"mask"].concat();
    let wrong: [(&[u8], _, _); 3] = [
        (b"\x81\x05hello", 1002, "a frame of a client must be masked"),
        (&gigabyte, 1009, "a message may have 16777216 bytes"),
        (b"\xc1\x81mask?", 1002, "a reserved bit is set"),
    ];
    for (bytes, code, reason) in wrong {
        let mut socket = house.open().await;
        echoes(&mut socket, "fine").await;
        socket.get_mut().write_all(bytes).await.unwrap();
        closes(socket, code, reason).await;
        house.client_went_away().await;
    }
    stop(house.running).await;
}

#[tokio::test]
async fn a_message_in_single_bytes_counts_as_more_than_one() {
    let limits = "  - {name: talk, when: {layer: websocket}, rate: 4/hour}";
    let mut house = House::new(limits).await;
    let mut socket = house.open().await;
    let fragments = [&b"\x01\x81mask?"[..], &b"\x00\x81mask?".repeat(10_000)].concat();
    // It may be closed before all of them are there.
    let _ = socket.get_mut().write_all(&fragments).await;
    closes(socket, 1008, "limit \"talk\" exceeded").await;
    house.client_went_away().await;
    stop(house.running).await;
}

#[tokio::test]
async fn a_socket_too_many_is_refused_until_another_is_closed() {
    let limits = "  - {name: sockets, when: {layer: websocket}, per: [client_ip], concurrency: 1}";
    let house = House::new(limits).await;
    let mut socket = house.open().await;
    echoes(&mut socket, "one").await;
    let refused = house.connect().await.expect_err("it is one too many");
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(refused.headers()["retry-after"], "1");
    // Ended properly, or just gone.
    for is_proper in [true, false] {
        if is_proper {
            socket.close(None).await.unwrap();
            while let Some(Ok(_)) = socket.next().await {}
        }
        drop(socket);
        let free = async {
            loop {
                if let Ok(socket) = house.connect().await {
                    break socket;
                }
            }
        };
        socket = timeout(PATIENCE, free).await.expect("the slot is back");
        echoes(&mut socket, "another").await;
    }
    drop(socket);
    stop(house.running).await;
}

#[tokio::test]
async fn a_new_policy_holds_for_sockets_that_are_open() {
    let limit = |rate: &str| {
        format!("  - {{name: talk, when: {{layer: websocket}}, per: [connection], rate: {rate}}}")
    };
    let house = House::new(&limit("100000/hour")).await;
    let mut socket = house.open().await;
    echoes(&mut socket, "one").await;
    let strict = policy(house.upstream, "", &limit("1/hour"));
    house.running.folder.write("policy.yaml", &strict);
    let closed = async {
        loop {
            send(&mut socket, Message::text("again")).await;
            if let Message::Close(close) = next(&mut socket).await {
                break close.expect("a reason");
            }
        }
    };
    let close = timeout(PATIENCE, closed).await.expect("the new policy is in force");
    assert_eq!(close.reason.as_str(), "limit \"talk\" exceeded");
    stop(house.running).await;
}

/// A gateway that counts in Redis, and a socket that was opened when Redis was reached.
async fn at_redis(redis: &Server) -> (House, Socket) {
    let store = format!("store: {{redis: {{url: '{}', timeout: 10s}}}}", redis.url());
    let limits = "  - {name: talk, when: {layer: websocket}, rate: 4/hour, on_store_failure: deny}
  - {name: sockets, when: {layer: websocket}, concurrency: 1, on_store_failure: deny}";
    let house = House::with(&store, limits).await;
    let reached = async {
        loop {
            match house.connect().await {
                Ok(socket) => break socket,
                Err(refused) => assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE),
            }
        }
    };
    let socket = timeout(PATIENCE, reached).await.expect("Redis is reached");
    (house, socket)
}

#[tokio::test]
async fn a_message_that_nobody_can_count_is_no_fault_of_the_client() {
    let redis = Server::start(Flavour::Redis);
    let (house, mut socket) = at_redis(&redis).await;
    echoes(&mut socket, "one").await;
    drop(redis);
    send(&mut socket, Message::text("two")).await;
    closes(socket, 1013, "a limit cannot be counted; try again later").await;
    stop(house.running).await;
}

#[tokio::test]
async fn messages_are_counted_in_redis_too() {
    let redis = Server::start(Flavour::Redis);
    let (house, mut socket) = at_redis(&redis).await;
    assert!(house.connect().await.is_err(), "one is open");
    for text in ["one", "two", "three", "four"] {
        echoes(&mut socket, text).await;
    }
    send(&mut socket, Message::text("five")).await;
    closes(socket, 1008, "limit \"talk\" exceeded").await;
    stop(house.running).await;
}

#[tokio::test]
async fn sockets_are_told_that_the_server_stops() {
    let mut house = House::new("  []").await;
    let mut socket = house.open().await;
    echoes(&mut socket, "one").await;
    house.running.begin_to_stop();
    closes(socket, 1001, "the server is going away").await;
    house.client_went_away().await;
    stop(house.running).await;
}
