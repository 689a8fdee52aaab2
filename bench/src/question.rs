//! What is asked, and how an answer is told when it comes.
//!
//! Requests are spelled out before anything is timed, one for each key, all of one length. Answers are looked
//! at only as far as it takes to tell where they end and that nothing was refused: a client that did more would
//! be slower than the servers it measures.

use memchr::{memchr_iter, memmem};

/// How many keys are asked about, in turn.
pub const KEYS: usize = 100_000;

/// A million are allowed in so many seconds: no key is as good as new when it is asked about again.
const YEAR: &str = "31536000";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// `PING`, of a Redis server.
    Ping,
    /// `CL.THROTTLE`, as redis-cell has it.
    ClThrottle,
    /// `TG.CHECK`, of tollgate's policy.
    TgCheck,
    /// `THROTTLE`, of throttlecrab.
    Throttle,
    /// `POST /v1/check`, of tollgate's policy.
    PostCheck,
    /// `POST /throttle`, of throttlecrab.
    PostThrottle,
    /// `ShouldRateLimit`, of Envoy's rate limit service.
    ShouldRateLimit,
    /// `Throttle`, of throttlecrab.
    GrpcThrottle,
    /// `GET /` with an API key, of whatever is behind a proxy.
    Get,
    /// The same over HTTP/2.
    Get2,
}

/// A question spelled out for every key.
pub struct Script {
    framing: Framing,
    /// What is sent when a connection is new. It ends with a question about the first key.
    pub opening: Vec<u8>,
    requests: Vec<u8>,
    size: usize,
}

#[derive(Clone, Copy)]
enum Framing {
    /// Every answer is so many lines, and starts like this.
    Resp {
        lines: usize,
        start: &'static [u8],
    },
    Http1,
    /// HTTP/2, whose answers end with their data.
    Http2,
    /// HTTP/2, whose answers end with trailers.
    Grpc,
}

impl Script {
    pub fn new(question: Question) -> Self {
        let spell = |n: usize| question.spell(&key_of(n));
        let first = spell(0);
        let opening = match question.framing() {
            Framing::Http2 => http2::opening_get(KEY_FIELD, &key_of(0)),
            Framing::Grpc => http2::opening_post(question.grpc_path(), &first),
            Framing::Resp { .. } | Framing::Http1 => first.clone(),
        };
        let requests: Vec<u8> = (0..KEYS).flat_map(spell).collect();
        assert_eq!(requests.len(), KEYS * first.len(), "requests are all of one length");
        Self { framing: question.framing(), opening, requests, size: first.len() }
    }

    /// Requests about so many keys, from the `first` on, as far as the last key.
    fn of_keys(&self, first: usize, count: usize) -> &[u8] {
        let end = (first + count).min(KEYS);
        &self.requests[first * self.size..end * self.size]
    }
}

/// What carries the key of a `GET`.
pub const KEY_FIELD: &str = "x-api-key";

fn key_of(number: usize) -> String {
    format!("user:{number:08}")
}

impl Question {
    fn framing(self) -> Framing {
        match self {
            Self::Ping => Framing::Resp { lines: 1, start: b"+PONG\r\n" },
            Self::ClThrottle => Framing::Resp { lines: 6, start: b"*5\r\n:0\r\n" },
            Self::Throttle => Framing::Resp { lines: 6, start: b"*5\r\n:1\r\n" },
            Self::TgCheck => Framing::Resp { lines: 9, start: b"*7\r\n:1\r\n" },
            Self::PostCheck | Self::PostThrottle | Self::Get => Framing::Http1,
            Self::ShouldRateLimit | Self::GrpcThrottle => Framing::Grpc,
            Self::Get2 => Framing::Http2,
        }
    }

    fn grpc_path(self) -> &'static str {
        match self {
            Self::GrpcThrottle => "/throttlecrab.RateLimiter/Throttle",
            _ => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        }
    }

    fn spell(self, key: &str) -> Vec<u8> {
        let command = |words: &[&str]| {
            let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
            let words: Vec<String> = words.collect();
            format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
        };
        let post = |path: &str, body: &str| {
            let length = body.len();
            format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
                .into_bytes()
        };
        match self {
            Self::Ping => command(&["PING"]),
            Self::ClThrottle => command(&["CL.THROTTLE", key, "1000000", "1000000", YEAR]),
            Self::Throttle => command(&["THROTTLE", key, "1000000", "1000000", YEAR]),
            Self::TgCheck => command(&["TG.CHECK", "user", key]),
            Self::PostCheck => {
                post("/v1/check", &format!(r#"{{"attributes": {{"user": "{key}"}}}}"#))
            }
            Self::PostThrottle => post(
                "/throttle",
                &format!(
                    r#"{{"key": "{key}", "max_burst": 1000000, "count_per_period": 1000000, "period": {YEAR}}}"#
                ),
            ),
            Self::ShouldRateLimit => {
                let entry = [protobuf(1, b"user"), protobuf(2, key.as_bytes())].concat();
                let descriptor = protobuf(1, &entry);
                http2::post(&[protobuf(1, b"bench"), protobuf(2, &descriptor)].concat())
            }
            Self::GrpcThrottle => {
                // A million as a varint, for fields 2 and 3; a year and 1 for 4 and 5.
                let numbers = b"\x10\xC0\x84\x3D\x18\xC0\x84\x3D\x20\x80\xE7\x84\x0F\x28\x01";
                http2::post(&[protobuf(1, key.as_bytes()), numbers.to_vec()].concat())
            }
            Self::Get => format!("GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n{KEY_FIELD}: {key}\r\n\r\n")
                .into_bytes(),
            Self::Get2 => http2::get(key),
        }
    }
}

/// A field of bytes, shorter than 128.
fn protobuf(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128);
    let mut field = vec![number << 3 | 2, length.expect("fields here are short")];
    field.extend_from_slice(bytes);
    field
}

/// What has been said over one connection.
#[derive(Default)]
pub struct Conversation {
    /// Questions asked since the opening.
    asked: u32,
    /// Answers that came, for a protocol that answers in order.
    answered: u32,
    /// Lines of an answer that has not ended.
    lines: usize,
    /// An answer that has not ended, where it must be looked at as a whole.
    unread: Vec<u8>,
}

impl Conversation {
    /// Writes so many questions, about the keys from `first` on. Returns the number of the first question:
    /// the opening's is 0.
    pub fn ask(&mut self, script: &Script, first: usize, count: usize, out: &mut Vec<u8>) -> u32 {
        let number = self.asked + 1;
        let (mut key, mut left) = (first % KEYS, count);
        while left > 0 {
            let requests = script.of_keys(key, left);
            let start = out.len();
            out.extend_from_slice(requests);
            let written = requests.len() / script.size;
            if let Framing::Http2 | Framing::Grpc = script.framing {
                for request in out[start..].chunks_exact_mut(script.size) {
                    self.asked += 1;
                    http2::number(request, self.asked);
                }
            } else {
                self.asked += written as u32;
            }
            left -= written;
            key = (key + written) % KEYS;
        }
        number
    }

    /// Notes the numbers of the questions that are answered with these bytes. What must be said in turn goes to
    /// `out`.
    pub fn hear(
        &mut self,
        script: &Script,
        bytes: &[u8],
        answered: &mut Vec<u32>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        match script.framing {
            Framing::Resp { lines, start } => {
                if self.lines == 0 && bytes.len() >= start.len() && !bytes.starts_with(start) {
                    return Err(unexpected(bytes));
                }
                let seen = self.lines + memchr_iter(b'\n', bytes).count();
                let whole = (seen / lines) as u32;
                answered.extend(self.answered..self.answered + whole);
                self.answered += whole;
                self.lines = seen % lines;
                Ok(())
            }
            Framing::Http1 => {
                self.unread.extend_from_slice(bytes);
                let mut at = 0;
                while let Some(length) = http1_length(&self.unread[at..])? {
                    at += length;
                    answered.push(self.answered);
                    self.answered += 1;
                }
                self.unread.drain(..at);
                Ok(())
            }
            Framing::Http2 | Framing::Grpc => {
                let is_grpc = matches!(script.framing, Framing::Grpc);
                self.unread.extend_from_slice(bytes);
                let mut at = 0;
                while let Some(length) = http2::hear(&self.unread[at..], is_grpc, answered, out)? {
                    at += length;
                }
                self.unread.drain(..at);
                Ok(())
            }
        }
    }
}

/// The length of the response that these bytes start with, if it is whole.
fn http1_length(bytes: &[u8]) -> Result<Option<usize>, String> {
    const START: &[u8] = b"HTTP/1.1 200 ";
    if bytes.len() >= START.len() && !bytes.starts_with(START) {
        return Err(unexpected(bytes));
    }
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let head = &bytes[..end + 2];
    let field = head.split_inclusive(|byte| *byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(b"content-length:".len())?;
        name.eq_ignore_ascii_case(b"content-length:").then_some(value)
    });
    let length = field.and_then(|value| str::from_utf8(value).ok()?.trim().parse::<usize>().ok());
    let whole = end + 4 + length.ok_or_else(|| unexpected(bytes))?;
    Ok((bytes.len() >= whole).then_some(whole))
}

fn unexpected(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(300)];
    format!("unexpected answer: {}", String::from_utf8_lossy(shown).escape_debug())
}

/// As much of HTTP/2 as asking takes.
mod http2 {
    use super::unexpected;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;

    /// In DATA and HEADERS; the bit of an acknowledgement in SETTINGS and PING.
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;

    const FRAME: usize = 9;

    /// The fields of a call, after the first one of a connection: `:method POST` and `:scheme http` of the
    /// static table, and what the opening put in the dynamic one.
    const CALL_FIELDS: &[u8] = b"\x83\x86\xC1\xC0\xBF\xBE";

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    fn text(text: &str) -> Vec<u8> {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
        [&[length.expect("fields here are short")], text.as_bytes()].concat()
    }

    /// The preface, and a window that is never exhausted.
    fn preface() -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        bytes.extend(frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
        bytes
    }

    /// The preface and the `first` call with its fields spelled out.
    pub(super) fn opening_post(path: &str, first: &[u8]) -> Vec<u8> {
        let mut fields = b"\x83\x86".to_vec();
        fields.extend([vec![0x44], text(path)].concat());
        fields.extend([vec![0x41], text("127.0.0.1")].concat());
        fields.extend([vec![0x5F], text("application/grpc")].concat());
        fields.extend([vec![0x40], text("te"), text("trailers")].concat());
        let mut bytes = preface();
        bytes.extend(frame(HEADERS, END_HEADERS, 1, &fields));
        bytes.extend_from_slice(&first[FRAME + CALL_FIELDS.len()..]);
        bytes
    }

    /// A call with this message, on stream 1.
    pub(super) fn post(message: &[u8]) -> Vec<u8> {
        let mut data = vec![0];
        data.extend_from_slice(&(message.len() as u32).to_be_bytes());
        data.extend_from_slice(message);
        let mut bytes = frame(HEADERS, END_HEADERS, 1, CALL_FIELDS);
        bytes.extend(frame(DATA, END_STREAM, 1, &data));
        bytes
    }

    /// The preface and the first `GET /`, with its fields spelled out.
    pub(super) fn opening_get(name: &str, value: &str) -> Vec<u8> {
        let mut fields = b"\x82\x86\x84".to_vec();
        fields.extend([vec![0x41], text("127.0.0.1")].concat());
        fields.extend([vec![0x40], text(name), text(value)].concat());
        let mut bytes = preface();
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields));
        bytes
    }

    /// `GET /`, on stream 1, with another value for the field of the opening.
    pub(super) fn get(value: &str) -> Vec<u8> {
        let fields = [b"\x82\x86\x84\xBF\x0F\x2F", &text(value)[..]].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields)
    }

    /// Gives a request its stream.
    pub(super) fn number(request: &mut [u8], number: u32) {
        let stream = (2 * number + 1).to_be_bytes();
        let mut rest = request;
        while let Some((head, after)) = rest.split_first_chunk_mut::<FRAME>() {
            head[FRAME - 4..].copy_from_slice(&stream);
            rest = &mut after[payload_length(head)..];
        }
    }

    fn payload_length(head: &[u8; FRAME]) -> usize {
        u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize
    }

    /// Takes one frame from the start of `bytes` and returns its length, if it is whole.
    pub(super) fn hear(
        bytes: &[u8],
        is_grpc: bool,
        answered: &mut Vec<u32>,
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>, String> {
        let Some((head, rest)) = bytes.split_first_chunk::<FRAME>() else { return Ok(None) };
        let length = payload_length(head);
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let (kind, flags) = (head[3], head[4]);
        let ends = flags & END_STREAM != 0;
        let is_expected = match kind {
            // Both services say first that it is allowed: field 1 is 1.
            DATA if is_grpc => {
                payload.is_empty() || !ends && payload.get(5..7) == Some(b"\x08\x01")
            }
            // `:status 200`; nginx says first that it has no dynamic table.
            HEADERS if !is_grpc => {
                payload.strip_prefix(b"\x20").unwrap_or(payload).starts_with(b"\x88")
            }
            DATA | HEADERS | SETTINGS | PING | WINDOW_UPDATE | CONTINUATION => true,
            _ => false,
        };
        match kind {
            _ if !is_expected => return Err(unexpected(bytes)),
            DATA | HEADERS if ends => {
                let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                answered.push((stream - 1) / 2);
            }
            SETTINGS | PING if !ends => {
                let echo = if kind == PING { payload } else { &[] };
                out.extend(frame(kind, END_STREAM, 0, echo));
            }
            _ => {}
        }
        Ok(Some(FRAME + length))
    }
}
