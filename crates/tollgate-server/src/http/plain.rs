//! Checks as nearly everybody asks for them.
//!
//! Much of what a check used to cost over HTTP was for what HTTP can do and a check does not need. A request that
//! uses none of that (see [`Plain`]) is read and answered here, and those that came together with one write. The first
//! request that is not plain, or does not arrive at once, goes to `http1.rs`, and its connection with it, for good:
//! whatever is unusual is judged in one place only. A connection that waits holds no buffers.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::mem::{self, MaybeUninit};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::UNIX_EPOCH;

use bytes::{Buf, Bytes, BytesMut};
use http::StatusCode;
use httparse::{Header, Request, Status};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::coop::consume_budget;
use tokio::time::timeout;
use tollgate::http::{fields, number_before, status};
use tollgate::{Keys, Verdict, Waiting};

use super::check::{self, Check};
use crate::bounds::{
    ANSWERS_BYTES_MAX, ANSWERS_ROOM_MAX, PLAIN_FIELDS_MAX, PLAIN_READ, PLAIN_REST_MAX,
};
use crate::connection::Visitor;
use crate::delivery::Undelivered;
use crate::gate::Gate;
use crate::http1::{self, Answer};
use crate::moment::time_of_day;

/// Answers plain checks until there is something else to do: what was read of it is returned with the stream, nothing
/// if the connection is over.
pub(super) async fn serve<S>(
    stream: S,
    visitor: &Visitor,
    undelivered: &Undelivered,
) -> Option<(Bytes, S)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut line = Line { stream, input: BytesMut::new(), output: Vec::new() };
    match line.serve(visitor, undelivered).await {
        Ok(Next::HandOver) => Some((line.input.freeze(), line.stream)),
        Ok(Next::Close) => {
            // A client that cannot be told so is gone.
            let _ = line.stream.shutdown().await;
            None
        }
        Err(error) => {
            http1::tell_of(&error, visitor);
            None
        }
    }
}

/// What is to be done with a connection after the last plain check.
enum Next {
    HandOver,
    Close,
}

/// A connection with what has arrived and what is to be written.
struct Line<S> {
    stream: S,
    input: BytesMut,
    output: Vec<u8>,
}

thread_local! {
    /// Empty buffers of a connection that went idle, for the next that does not.
    static SPARE: Cell<(BytesMut, Vec<u8>)> = Cell::default();
}

impl<S: AsyncRead + AsyncWrite + Unpin> Line<S> {
    async fn serve(&mut self, visitor: &Visitor, undelivered: &Undelivered) -> io::Result<Next> {
        let mut drain = visitor.gate.stages.watch();
        loop {
            let mut has_asked = false;
            let mut disturbed = pin!(http1::disturbed(&mut drain, false));
            let is_draining = loop {
                match self.receive(disturbed.as_mut()).await? {
                    Received::Bytes => {}
                    Received::End => return Ok(Next::Close),
                    Received::Disturbed { is_draining } => break is_draining,
                }
                has_asked = true;
                while !self.answer(visitor, undelivered).await? {
                    let completed = timeout(PLAIN_REST_MAX, self.complete()).await;
                    if !completed.unwrap_or(Ok(false))? {
                        return Ok(Next::HandOver);
                    }
                }
                if !self.input.is_empty() {
                    return Ok(Next::HandOver);
                }
            };
            if is_draining || !has_asked {
                return Ok(Next::Close);
            }
        }
    }

    /// Waits for the first bytes of a request.
    async fn receive(
        &mut self,
        mut disturbed: Pin<&mut impl Future<Output = bool>>,
    ) -> io::Result<Received> {
        let Self { stream, input, output } = self;
        poll_fn(|context| {
            if input.capacity() == 0 {
                (*input, *output) = SPARE.take();
            }
            input.reserve(PLAIN_READ);
            if let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(context) {
                let received = |bytes| if bytes == 0 { Received::End } else { Received::Bytes };
                return Poll::Ready(read.map(received));
            }
            // Idle connections are many, and each may be idle for long.
            let (input, output) = (mem::take(input), mem::take(output));
            debug_assert!(input.is_empty() && output.is_empty(), "the next to use them is another");
            if output.capacity() <= ANSWERS_ROOM_MAX {
                SPARE.set((input, output));
            }
            let is_disturbed = disturbed.as_mut().poll(context);
            is_disturbed.map(|is_draining| Ok(Received::Disturbed { is_draining }))
        })
        .await
    }

    /// Reads the rest of what has begun to arrive, which usually is right behind; false if there is none, or it is
    /// too long for a plain check.
    async fn complete(&mut self) -> io::Result<bool> {
        while Seen::of(&self.input) == Seen::Begun {
            self.input.reserve(PLAIN_READ);
            if self.input.len() >= PLAIN_READ || self.stream.read_buf(&mut self.input).await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Answers the plain checks that have arrived, up to the first that is not; false if what is left may
    /// become one.
    async fn answer(&mut self, visitor: &Visitor, undelivered: &Undelivered) -> io::Result<bool> {
        while is_plain_here(visitor) {
            let plain = match Seen::of(&self.input) {
                Seen::Whole(plain) => plain,
                Seen::Begun if !self.input.is_empty() => {
                    self.send().await?;
                    return Ok(false);
                }
                Seen::Begun | Seen::Unusual => break,
            };
            let waiting = plain.check.answer(&visitor.gate, undelivered, &mut self.output);
            self.input.advance(plain.length);
            if let Some(waiting) = waiting {
                // Those before do not wait for it.
                self.send().await?;
                let mut answer = waiting.await;
                undelivered.take(&mut answer);
                write(&mut self.output, &answer);
            }
            // Whoever asks for very much at once does not keep others waiting.
            consume_budget().await;
            if self.output.len() > ANSWERS_BYTES_MAX {
                self.send().await?;
            }
        }
        self.send().await?;
        Ok(true)
    }

    async fn send(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.stream.flush().await?;
            self.output.clear();
        }
        Ok(())
    }
}

/// What a connection waited for.
enum Received {
    Bytes,
    /// The client has said its last.
    End,
    /// It is time to see whether anybody asked, or to go.
    Disturbed {
        is_draining: bool,
    },
}

/// Whether requests are only to be answered: nobody has to show a token, no traces are collected, and a
/// client is not to be told that the connection will close.
fn is_plain_here(visitor: &Visitor) -> bool {
    let gate = &visitor.gate;
    visitor.entrance.token().is_none() && !gate.traces.are_collected() && gate.stages.is_ready()
}

/// What bytes begin with.
#[derive(Debug, PartialEq, Eq)]
enum Seen<'i> {
    Whole(Plain<'i>),
    /// Something that may be plain when more of it is here.
    Begun,
    Unusual,
}

/// A check by `GET /v1/check?…` or `POST /v1/check` in HTTP/1.1 that has arrived whole, body included, in which no
/// field changes what its bytes mean or what is to be done with its connection.
#[derive(Debug, PartialEq, Eq)]
struct Plain<'i> {
    check: Asks<'i>,
    /// Bytes of the request.
    length: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Asks<'i> {
    Query(&'i str),
    Body(&'i [u8]),
}

impl<'i> Seen<'i> {
    fn of(bytes: &'i [u8]) -> Self {
        let mut fields = [const { MaybeUninit::uninit() }; PLAIN_FIELDS_MAX];
        let mut request = Request::new(&mut []);
        match request.parse_with_uninit_headers(bytes, &mut fields) {
            Ok(Status::Complete(head)) => {
                Self::after_head(&request, bytes, head).unwrap_or(Self::Unusual)
            }
            Ok(Status::Partial) => Self::Begun,
            Err(_) => Self::Unusual,
        }
    }

    /// What is seen in a request whose head has so many bytes; nothing if it is unusual.
    fn after_head(request: &Request<'_, 'i>, bytes: &'i [u8], head: usize) -> Option<Self> {
        let target = request.path?.strip_prefix("/v1/check")?;
        let body_length = plain_body_length(request.headers)?;
        let (check, length) = match (request.method?, request.version?) {
            ("GET", 1) if body_length == 0 => {
                let query = if target.is_empty() { target } else { target.strip_prefix('?')? };
                (Asks::Query(is_common(query).then_some(query)?), head)
            }
            ("POST", 1) if target.is_empty() => {
                let length = head.checked_add(body_length)?;
                match bytes.get(head..length) {
                    Some(body) => (Asks::Body(body), length),
                    None if length <= PLAIN_READ => return Some(Self::Begun),
                    None => return None,
                }
            }
            _ => return None,
        };
        Some(Self::Whole(Plain { check, length }))
    }
}

/// Fields that say how to read what follows, or what else to do.
const UNUSUAL: [&str; 5] = ["te", "expect", "upgrade", "trailer", "transfer-encoding"];

/// The length of the body under these fields; none unless they are plain: they say it once at most, name one host
/// and ask for nothing.
fn plain_body_length(fields: &[Header<'_>]) -> Option<usize> {
    let (mut length, mut hosts) = (None, 0);
    for field in fields {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        match field.name.len() {
            4 if is("host") => hosts += 1,
            14 if is("content-length") => {
                let digits = std::str::from_utf8(field.value).ok()?;
                let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
                let known = length.replace(is_number.then(|| digits.parse().ok())??);
                if known.is_some() {
                    return None;
                }
            }
            10 if is("connection") && !field.value.eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            2 | 6 | 7 | 17 if UNUSUAL.iter().any(|name| is(name)) => return None,
            _ => {}
        }
    }
    (hosts == 1).then(|| length.unwrap_or(0))
}

/// Whether a query has only letters, digits and what else is usual in one.
fn is_common(query: &str) -> bool {
    query
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%&=+:/@!$'()*,;?".contains(&byte))
}

impl Asks<'_> {
    /// Answers, as nearly always can be done at once: then what is said is written to the end of `out`. Otherwise the
    /// answer is to be waited for.
    fn answer(
        &self,
        gate: &Arc<Gate>,
        undelivered: &Undelivered,
        out: &mut Vec<u8>,
    ) -> Option<Waiting<Answer>> {
        let check = match self {
            Self::Query(query) => Check::from_query(query),
            Self::Body(body) => Check::from_body(body),
        };
        let check = match check {
            Ok(check) => check,
            Err(sentence) => {
                undelivered.hold(Vec::new());
                write(out, &check::refusal(&sentence));
                return None;
            }
        };
        SCRATCH.with_borrow_mut(|scratch| {
            let Scratch { keys, body } = scratch;
            // Whatever became of the answer before, nothing of it is told to anybody else.
            body.clear();
            let tell = |verdict: &mut Verdict, keys: &Keys| {
                let given = check::write(body, verdict, keys, gate);
                undelivered.hold(Vec::from_iter(given));
                write_status(out, status(verdict));
                write_field(out, "content-type", b"application/json");
                let spread = check.spread(verdict, gate);
                fields::write(out, verdict, gate.limiter.now(), spread);
                write_end(out, body);
            };
            let told = check.ask(|request| gate.limiter.check_showing(request, keys, tell));
            let waiting = told.err().map(|it| check.answer_later(it, mem::take(keys), gate));
            // What is said is longer than the keys that it names.
            if body.capacity() > ANSWERS_ROOM_MAX {
                *scratch = Scratch::default();
            }
            waiting
        })
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// What an answer is put together in.
#[derive(Default)]
struct Scratch {
    keys: Keys,
    body: Vec<u8>,
}

/// Writes an answer as HTTP/1.1 has it.
fn write(out: &mut Vec<u8>, answer: &Answer) {
    write_status(out, answer.status());
    for (name, value) in answer.headers() {
        write_field(out, name.as_str(), value.as_bytes());
    }
    write_end(out, answer.body());
}

fn write_status(out: &mut Vec<u8>, status: StatusCode) {
    if status == StatusCode::OK {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes the last fields of an answer, and its body.
fn write_end(out: &mut Vec<u8>, body: &[u8]) {
    let mut digits = [0; 20];
    let start = number_before(&mut digits, body.len() as u64);
    write_field(out, "content-length", &digits[start..]);
    DATE.with_borrow_mut(|date| write_field(out, "date", date.now().as_bytes()));
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

thread_local! {
    static DATE: RefCell<Date> = const { RefCell::new(Date { second: 0, text: String::new() }) };
}

/// The date as HTTP writes it, which is worth keeping for a second.
struct Date {
    second: u64,
    text: String,
}

impl Date {
    fn now(&mut self) -> &str {
        let now = time_of_day();
        let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if self.second != second || self.text.is_empty() {
            *self = Self { second, text: httpdate::fmt_http_date(now) };
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tollgate::{Limiter, Listener};

    use super::*;
    use crate::bounds::HEAD_MAX;
    use crate::door::{Door, Entrance};
    use crate::gate::Gate;
    use crate::random::Random;
    use crate::stage::Stage;

    const POLICY: &str = "limits: [{ name: api, per: [user], rate: 5/hour }]";

    fn gate() -> Arc<Gate> {
        Arc::new(Gate::new(Limiter::from_yaml(POLICY).expect("a policy")).0)
    }

    fn visitor(gate: Arc<Gate>) -> Visitor {
        let peer = SocketAddr::from(([127, 0, 0, 1], 0));
        let entrance = Entrance::new(Door::Http, &Listener::at(peer), Path::new("policy.yaml"));
        Visitor {
            peer,
            entrance: Arc::new(entrance.expect("no files")),
            gate,
            pool: Arc::default(),
        }
    }

    /// What is left to others of what one end of a pipe said; nothing if the connection is over.
    fn serving(gate: &Arc<Gate>) -> (DuplexStream, JoinHandle<Option<Bytes>>) {
        let (client, ours) = duplex(1 << 16);
        let visitor = visitor(Arc::clone(gate));
        let serving = tokio::spawn(async move {
            let undelivered = Undelivered::default();
            serve(ours, &visitor, &undelivered).await.map(|(unread, _)| unread)
        });
        (client, serving)
    }

    async fn pass(time: Duration) {
        let _ = timeout(time, pending::<()>()).await;
    }

    /// A request with these fields beside its host.
    fn request(line: &str, fields: &str, body: &str) -> String {
        format!("{line} HTTP/1.1\r\nhost: a\r\n{fields}\r\n{body}")
    }

    fn check_plain(line: &str, fields: &str, body: &str, expected: Asks<'_>) {
        let bytes = request(line, fields, body);
        let expected = Seen::Whole(Plain { check: expected, length: bytes.len() });
        assert_eq!(Seen::of(bytes.as_bytes()), expected, "{bytes}");
        let more = bytes.clone() + "GET";
        assert_eq!(Seen::of(more.as_bytes()), expected, "{more}");
        for end in 0..bytes.len() {
            assert_eq!(Seen::of(&bytes.as_bytes()[..end]), Seen::Begun, "{end} bytes of {bytes}");
        }
    }

    #[test]
    fn a_plain_check_is_seen_when_all_of_it_is_here() {
        check_plain("GET /v1/check", "", "", Asks::Query(""));
        check_plain("GET /v1/check?", "accept: */*\r\n", "", Asks::Query(""));
        check_plain("GET /v1/check?user=4%202&cost=0", "", "", Asks::Query("user=4%202&cost=0"));
        check_plain("GET /v1/check", "Content-Length: 0\r\n", "", Asks::Query(""));
        check_plain("GET /v1/check", "connection: Keep-Alive\r\n", "", Asks::Query(""));
        check_plain("POST /v1/check", "content-length: 2\r\n", "{}", Asks::Body(b"{}"));
        check_plain("POST /v1/check", "", "", Asks::Body(b""));
    }

    #[test]
    fn whatever_is_unusual_is_left_to_others() {
        let check = |line: &str, fields: &str, body: &str| {
            let bytes = request(line, fields, body);
            assert_eq!(Seen::of(bytes.as_bytes()), Seen::Unusual, "{bytes}");
        };
        for line in [
            "HEAD /v1/check",
            "PUT /v1/check",
            "get /v1/check",
            "GET /v1/checks",
            "GET /v1/check/batch",
            "GET /v1/check#a",
            "GET /v1/check?a=\"b\"",
            "GET /v1/check?a=é",
            "GET http://a/v1/check",
            "GET  /v1/check",
            "POST /v1/check?user=42",
        ] {
            check(line, "", "");
        }
        for fields in [
            "host: a\r\n",
            "connection: close\r\n",
            "connection: keep-alive, te\r\n",
            "expect: 100-continue\r\n",
            "Upgrade: h2c\r\n",
            "te: trailers\r\n",
            "trailer: a\r\n",
            "transfer-encoding: chunked\r\n",
            "transfer-encoding: identity\r\ncontent-length: 2\r\n",
            "content-length: 2\r\ncontent-length: 2\r\n",
            "content-length: 2, 2\r\n",
            "content-length: +2\r\n",
            "content-length: \r\n",
            "content-length: 99999999999999999999\r\n",
            "content-length: 18446744073709551615\r\n",
            "content-length : 2\r\n",
            "a: b\r\n c\r\n",
        ] {
            check("POST /v1/check", fields, "{}");
        }
        check("GET /v1/check", "content-length: 2\r\n", "{}");
        check("POST /v1/check", "content-length: 5000\r\n", "{}");
        check("GET /v1/check", &"a: b\r\n".repeat(PLAIN_FIELDS_MAX), "");
        for head in ["GET /v1/check HTTP/1.1\r\n\r\n", "GET /v1/check HTTP/1.0\r\nhost: a\r\n\r\n"]
        {
            assert_eq!(Seen::of(head.as_bytes()), Seen::Unusual, "{head}");
        }
    }

    /// What is answered to a check by the door as a whole, without its date.
    async fn answered(fields: &str) -> String {
        let (mut client, ours) = duplex(1 << 16);
        let serving = tokio::spawn(crate::http::serve(ours, visitor(gate())));
        for (line, body) in [
            ("GET /v1/check?user=42&cost=0", ""),
            ("GET /v1/check?user=42&cost=9", ""),
            ("GET /v1/check?cost=x", ""),
            ("POST /v1/check", r#"{"attributes": {"user": "42"}, "cost": 0}"#),
            ("POST /v1/check", "{"),
        ] {
            let fields = format!("{fields}content-length: {}\r\n", body.len());
            client.write_all(request(line, &fields, body).as_bytes()).await.expect("room");
        }
        client.shutdown().await.expect("open");
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.expect("the end");
        serving.await.expect("no panic");
        let (dates, rest): (Vec<&str>, Vec<&str>) =
            answers.lines().partition(|line| line.starts_with("date: "));
        assert_eq!(dates.len(), 5, "{answers}");
        assert!(dates.iter().all(|date| date.ends_with(" GMT")), "{answers}");
        rest.join("\n")
    }

    #[tokio::test]
    async fn a_check_is_answered_the_same_however_it_is_asked_for() {
        let plain = answered("").await;
        assert!(plain.starts_with("HTTP/1.1 200 OK\ncontent-type: application/json\n"), "{plain}");
        assert_eq!(plain, answered("te: trailers\r\n").await);
    }

    /// What the door says in a whole conversation whose bytes come in pieces, without dates. Where traces are
    /// collected nothing is plain.
    async fn conversation(pieces: &[&[u8]], is_traced: bool) -> String {
        let gate = Arc::new(Gate::new(Limiter::from_yaml("limits: []").expect("a policy")).0);
        gate.traces.set_share(u32::from(is_traced));
        let (mut client, ours) = duplex(1 << 16);
        let serving = tokio::spawn(crate::http::serve(ours, visitor(gate)));
        for piece in pieces {
            // Who was answered that it makes no sense is not heard any more.
            let _ = client.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let _ = client.shutdown().await;
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.expect("text");
        serving.await.expect("no panic");
        answers.lines().filter(|line| !line.starts_with("date: ")).collect::<Vec<_>>().join("\n")
    }

    impl Random {
        /// Requests, most of them plain, of which some bytes are other ones.
        fn conversation(&mut self) -> Vec<u8> {
            const LINES: [&str; 6] = [
                "GET /v1/check?user=42",
                "GET /v1/check",
                "POST /v1/check",
                "POST /v1/check",
                "HEAD /v1/check",
                "GET /openapi",
            ];
            const FIELDS: [&str; 6] = [
                "",
                "accept: */*\r\n",
                "connection: keep-alive\r\n",
                "connection: close\r\n",
                "transfer-encoding: chunked\r\n",
                "content-length: 1\r\n",
            ];
            const BYTES: &[u8] = b"\r\n \t:;,/?#%\"{}01aZ\0\x7F\xC3";
            let mut said = Vec::new();
            for _ in 0..=self.below(3) {
                let line = LINES[self.below(LINES.len())];
                let body = if line.starts_with("POST") { "{}" } else { "" };
                // Nearly always none of the unusual ones.
                let choices = 3 + self.below(8) / 7 * 3;
                let field = FIELDS[self.below(choices)];
                let fields = format!("{field}content-length: {}\r\n", body.len());
                said.extend_from_slice(request(line, &fields, body).as_bytes());
            }
            for _ in 0..self.below(4) {
                let (at, byte) = (self.below(said.len()), BYTES[self.below(BYTES.len())]);
                match self.below(4) {
                    0 => said.insert(at, byte),
                    1 => drop(said.remove(at)),
                    2 => said.truncate(at.max(8)),
                    _ => said[at] = byte,
                }
            }
            said
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_taken_for_plain_that_is_not() {
        let mut random = Random::new(0x9E37_79B9_7F4A_7C15);
        let mut are_plain = 0;
        for _ in 0..500 {
            let said = random.conversation();
            let (one, two) = said.split_at(random.below(said.len()));
            let (whole, pieces): (&[&[u8]], &[&[u8]]) = (&[&said], &[one, two]);
            let full = [conversation(whole, true).await, conversation(pieces, true).await];
            let said_so = pieces.iter().map(|piece| piece.escape_ascii().to_string());
            let said_so: Vec<String> = said_so.collect();
            assert_eq!(conversation(whole, false).await, full[0], "{said_so:?}");
            // Whether nonsense is answered depends on how it is cut.
            let plain = conversation(pieces, false).await;
            assert!(full.contains(&plain), "{said_so:?}: {plain}; not {full:?}");
            are_plain += u32::from(matches!(Seen::of(&said), Seen::Whole(_)));
        }
        assert!(are_plain > 100, "{are_plain} began with a plain one");
    }

    #[tokio::test]
    async fn those_that_came_together_are_answered_in_order_and_the_rest_is_left() {
        let (mut client, serving) = serving(&gate());
        let ask = |user: u32| request(&format!("GET /v1/check?user={user}"), "", "");
        let unusual = request("GET /openapi.json", "", "");
        let said = [ask(1), ask(1), ask(2), unusual.clone(), ask(3)].concat();
        client.write_all(said.as_bytes()).await.expect("room");
        let unread = serving.await.expect("no panic").expect("the connection goes on");
        assert_eq!(unread, (unusual + &ask(3)).as_bytes());
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.expect("the end");
        let remaining: Vec<&str> =
            answers.lines().filter(|line| line.starts_with("x-ratelimit-remaining")).collect();
        assert_eq!(remaining, ["4", "3", "4"].map(|left| format!("x-ratelimit-remaining: {left}")));
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_request_is_waited_for_a_little_and_then_left_to_others() {
        let (mut client, serving) = serving(&gate());
        let ask = request("POST /v1/check", "content-length: 2\r\n", "{}");
        let (head, body) = ask.split_at(ask.len() - 2);
        client.write_all(head.as_bytes()).await.expect("room");
        pass(PLAIN_REST_MAX / 2).await;
        client.write_all(format!("{body}{head}").as_bytes()).await.expect("room");
        pass(PLAIN_REST_MAX / 2).await;
        assert!(!serving.is_finished(), "the second has half its time left");
        pass(PLAIN_REST_MAX).await;
        let unread = serving.await.expect("no panic").expect("the connection goes on");
        assert_eq!(unread, head.as_bytes());
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.expect("the end");
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 1, "{answers}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_byte_by_byte_is_not_plain() {
        let (mut client, serving) = serving(&gate());
        let ask = request("GET /v1/check", "", "");
        let mut said = 0;
        for byte in ask.as_bytes() {
            if serving.is_finished() {
                break;
            }
            client.write_all(&[*byte]).await.expect("room");
            pass(PLAIN_REST_MAX / 4).await;
            said += 1;
        }
        assert!(said < 8, "{said} bytes were waited for");
        assert!(serving.await.expect("no panic").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_pipeline_is_plain_to_its_end() {
        let (mut client, serving) = serving(&gate());
        let asks = request("GET /v1/check?user=42", "", "").repeat(200);
        assert!(asks.len() > 2 * PLAIN_READ);
        client.write_all(asks.as_bytes()).await.expect("room");
        let mut answers = Vec::new();
        while answers.windows(8).filter(|bytes| *bytes == b"HTTP/1.1").count() < 200 {
            assert_ne!(client.read_buf(&mut answers).await.expect("bytes"), 0);
        }
        assert!(!serving.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_nobody_asks_is_closed() {
        let (mut client, serving) = serving(&gate());
        pass(HEAD_MAX / 2).await;
        client.write_all(request("GET /v1/check", "", "").as_bytes()).await.expect("room");
        pass(HEAD_MAX).await;
        assert!(!serving.is_finished(), "somebody asked in that time");
        pass(HEAD_MAX).await;
        assert!(serving.is_finished(), "nobody did in this");
        assert_eq!(serving.await.expect("no panic"), None);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the end");
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1);
    }

    #[tokio::test]
    async fn connections_are_closed_when_we_drain_and_told_so_before() {
        let gate = gate();
        let (mut client, told) = serving(&gate);
        gate.stages.enter(Stage::Unready);
        let ask = request("GET /v1/check", "", "");
        client.write_all(ask.as_bytes()).await.expect("room");
        let unread = told.await.expect("no panic").expect("others say that we are about to go");
        assert_eq!(unread, ask.as_bytes());
        let (_client, closed) = serving(&gate);
        gate.stages.enter(Stage::Draining);
        assert_eq!(closed.await.expect("no panic"), None);
    }

    #[tokio::test]
    async fn an_idle_connection_holds_no_buffers() {
        let (client, ours) = duplex(1 << 10);
        let mut line = Line { stream: ours, input: BytesMut::new(), output: Vec::new() };
        let size = size_of_val(&line.serve(&visitor(gate()), &Undelivered::default()));
        assert!(size <= 1 << 10, "a connection waits in {size} bytes");
        let disturbed = pin!(async { true });
        let received = line.receive(disturbed).await.expect("no error");
        assert!(matches!(received, Received::Disturbed { is_draining: true }));
        assert_eq!((line.input.capacity(), line.output.capacity()), (0, 0));
        drop(client);
    }
}
