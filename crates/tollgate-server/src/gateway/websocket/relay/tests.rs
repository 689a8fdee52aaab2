//! A client and a server with a relay between them, on a clock that nobody waits for.

mod ends;
mod limits;
mod slots;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response};
use tokio::io::{DuplexStream, duplex};
use tokio::task::JoinHandle;
use tollgate::{Clock, Limiter, MemoryStore, Micros, Policy, Slots, Timestamp};

use super::*;
use crate::gate::Gate;
use crate::gateway::body::Coming;
use crate::moment::moment;

const TEXT: u8 = 0x81;
const BEGIN: u8 = 0x01;
const MORE: u8 = 0x00;
const LAST: u8 = 0x80;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));

/// Bytes that wait between us and either side.
const ROOM: usize = 64 * 1024;

/// How often the store's clock follows tokio's.
const TICK: Duration = Duration::from_millis(25);

/// A client's frame.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = match u16::try_from(payload.len()) {
        Ok(short @ 0..=125) => vec![first, 0x80 | short as u8],
        Ok(medium) => [&[first, 0x80 | 126][..], &medium.to_be_bytes()].concat(),
        Err(_) => [&[first, 0x80 | 127][..], &(payload.len() as u64).to_be_bytes()].concat(),
    };
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

fn text(payload: &str) -> Vec<u8> {
    frame(TEXT, payload.as_bytes())
}

fn closing(code: u16, reason: &str) -> Vec<u8> {
    let mut frame = vec![CLOSE, 2 + reason.len() as u8];
    frame.extend_from_slice(&code.to_be_bytes());
    frame.extend_from_slice(reason.as_bytes());
    frame
}

fn policy(limits: &str) -> Policy {
    let text = format!("listen: {{gateway: 127.0.0.1:0}}\nupstream: http://a\nlimits:\n{limits}");
    Policy::parse("policy", &text, &mut |_: &str| Err("there are none".to_owned()))
        .expect("a policy")
}

/// A request that opens a socket.
fn opening(headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::get("/chat?room=1").header("host", "example.org");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

/// A gate whose clock goes with tokio's.
struct House {
    gate: Arc<Gate>,
    slots: Arc<Slots>,
}

impl House {
    fn new(limits: &str) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_000_000_000_000));
        let store = MemoryStore::new(clock.clone()).expect("memory");
        let gate = Gate::new(Limiter::new(policy(limits), store).expect("few limits")).0;
        let slots = Arc::new(Slots::new(Arc::clone(&gate.limiter)));
        tokio::spawn(async move {
            let (began, at) = (moment(), clock.now());
            loop {
                sleep(TICK).await;
                clock.set(at.plus(Micros::new(began.elapsed().as_micros() as u64)));
            }
        });
        Self { gate: Arc::new(gate), slots }
    }

    async fn open(&self, headers: &[(&str, &str)]) -> Result<Socket, Response<Coming>> {
        Socket::open(&self.gate, &self.slots, &opening(headers), PEER).await
    }

    async fn talk(&self, idle: Option<Duration>) -> Talk {
        self.talk_as(&[], idle).await
    }

    async fn talk_as(&self, headers: &[(&str, &str)], idle: Option<Duration>) -> Talk {
        let socket = self.open(headers).await.ok().expect("it may be opened");
        let (client, ours) = duplex(ROOM);
        let (server, theirs) = duplex(ROOM);
        let relaying = tokio::spawn(relay(ours, theirs, socket, idle));
        Talk { client, server, relaying }
    }
}

/// A socket and both its ends.
struct Talk {
    client: DuplexStream,
    server: DuplexStream,
    relaying: JoinHandle<()>,
}

impl Talk {
    async fn new(limits: &str) -> Self {
        House::new(limits).talk(None).await
    }

    async fn client_sends(&mut self, frames: &[Vec<u8>]) {
        self.client.write_all(&frames.concat()).await.expect("room");
    }

    async fn server_sends(&mut self, bytes: &[u8]) {
        self.server.write_all(bytes).await.expect("room");
    }

    /// The next bytes that the server gets are these.
    async fn server_gets(&mut self, frames: &[Vec<u8>]) {
        read(&mut self.server, &frames.concat()).await;
    }

    async fn client_gets(&mut self, bytes: &[u8]) {
        read(&mut self.client, bytes).await;
    }

    /// Nothing comes to the server for so long.
    async fn server_gets_nothing_for(&mut self, long: Duration) {
        let got = timeout(long, self.server.read_u8()).await;
        assert!(got.is_err(), "{got:?}");
    }

    /// The last that the client gets is this, and the server is told that it leaves.
    async fn closes(mut self, code: u16, reason: &str) {
        self.client_gets(&closing(code, reason)).await;
        self.server_gets(&[Close::TO_SERVER.to_vec()]).await;
        self.has_ended().await;
    }

    /// Both sides have ended, and so has the relay.
    async fn has_ended(self) {
        let Self { mut client, mut server, relaying } = self;
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("the end");
        assert!(rest.is_empty(), "to the client: {rest:?}");
        server.read_to_end(&mut rest).await.expect("the end");
        assert!(rest.is_empty(), "to the server: {rest:?}");
        drop((client, server));
        timeout(CLOSING_MAX * 2, relaying).await.expect("in time").expect("no panic");
    }
}

async fn read(from: &mut DuplexStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    timeout(Duration::from_secs(600), from.read_exact(&mut got))
        .await
        .expect("in time")
        .expect("bytes");
    assert_eq!(got, expected);
}

#[tokio::test(start_paused = true)]
async fn what_both_sides_send_is_passed_on_as_it_is() {
    let mut talk = Talk::new("  - {name: all, when: {layer: websocket}, rate: 1000/second}").await;
    let long = vec![7; 3 * ROOM / 4];
    let sent = [
        text("hello"),
        frame(BEGIN, b"he"),
        frame(PING, b"?"),
        frame(MORE, b""),
        frame(LAST, b"llo"),
        frame(0x82, &long),
        frame(PONG, b""),
    ];
    for byte in sent.concat() {
        talk.client.write_all(&[byte]).await.unwrap();
    }
    talk.server_gets(&sent).await;
    // What a server sends is nobody's business, right or wrong.
    let frames =
        [&[0x82, 126, 1, 0][..], &[9; 256], &[0x8a, 0], &[0xff, 0x80, 0, 0, 0, 0]].concat();
    talk.server_sends(&frames).await;
    talk.client_gets(&frames).await;
    talk.client_sends(&[frame(CLOSE, &[0x03, 0xe8])]).await;
    talk.server_gets(&[frame(CLOSE, &[0x03, 0xe8])]).await;
    talk.server_sends(&[0x88, 2, 0x03, 0xe8]).await;
    talk.client_gets(&[0x88, 2, 0x03, 0xe8]).await;
    talk.server.shutdown().await.unwrap();
    talk.has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn who_reads_nothing_is_sent_no_more_than_there_is_room_for() {
    let Talk { mut client, mut server, relaying: _relaying } = Talk::new("  []").await;
    let moment = Duration::from_secs(1);
    let message = frame(0x82, &[0; 1_000]);
    let mut from_client = 0;
    while let Ok(Ok(sent)) = timeout(moment, client.write(&message)).await {
        from_client += sent;
        // Frames must follow each other whole.
        if sent < message.len() {
            break;
        }
    }
    assert!(from_client <= 2 * ROOM + 2 * super::super::bounds::RELAYED_BYTES, "{from_client}");
    let mut from_server = 0;
    while let Ok(Ok(sent)) = timeout(moment, server.write(&[0; 1_000])).await {
        from_server += sent;
    }
    assert!(from_server <= 2 * ROOM + 2 * super::super::bounds::RELAYED_BYTES, "{from_server}");
}
