//! The Redis protocol door: what is answered, however the bytes come.

mod commands;
mod docs;
mod hostile;
mod sockets;

use std::sync::Arc;

use tollgate::{Clock, Limiter, MemoryStore, Micros, Policy, Timestamp};
use tollgate_server::conversation;

/// A midnight in 2025, so that a window of any length begins with the test.
const MIDNIGHT: Timestamp = Timestamp::from_micros(1_760_054_400_000_000);

const POLICY: &str = "
tenants: { from: key, file: tenants.yaml, unknown: refuse }
limits:
  - { name: api, per: [user], rate: 60/minute, algorithm: token_bucket, burst: 10 }
  - { name: daily, per: [user], rate: 20/day, algorithm: fixed_window }
  - { name: queue, per: [job], rate: 1/second, algorithm: leaky_bucket, queue: 3 }
  - { name: slots, per: [job], concurrency: 1 }
  - { name: tried, per: [trial], rate: 1/minute, mode: shadow }
  - { name: sized, per: [upload], rate: 100/minute, cost: { attribute: bytes } }
exempt: [{ user: monitor }]
deny: [{ user: mallory }]
";

/// What is asked, on a clock that stands still until it is moved.
struct Counter {
    limiter: Limiter,
    store: Arc<MemoryStore>,
    clock: Clock,
}

impl Counter {
    fn new(policy: &str) -> Self {
        Self::of_size(policy, 1 << 20)
    }

    fn of_size(policy: &str, max_bytes: usize) -> Self {
        let tenants = |_: &str| Ok("keys: { good: { tenant: acme } }".to_owned());
        let policy = Policy::parse("policy.yaml", policy, &mut { tenants });
        let policy = policy.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let clock = Clock::manual(MIDNIGHT);
        let store = MemoryStore::with_max_bytes(clock.clone(), max_bytes).expect("a megabyte");
        let store = Arc::new(store);
        let limiter = Limiter::new(policy, Arc::clone(&store)).expect("a few limits");
        Self { limiter, store, clock }
    }

    /// The reply to bytes that come at once.
    fn raw(&self, bytes: &[u8]) -> String {
        let replies = conversation(&self.limiter, None, &[bytes]).escape_ascii().to_string();
        replies.replace(r"\'", "'")
    }

    /// The replies to some lines, as redis-cli shows them.
    fn ask(&self, lines: &str) -> String {
        let input = lines.lines().map(|line| line.trim().to_owned() + "\r\n").collect::<String>();
        shown(&conversation(&self.limiter, None, &[input.as_bytes()]))
    }

    fn advance(&self, by: &str) {
        self.clock.advance(by.parse::<Micros>().expect("a time"));
    }
}

/// Replies in one line each, arrays in brackets.
fn shown(mut bytes: &[u8]) -> String {
    let mut lines = Vec::new();
    while !bytes.is_empty() {
        let reply;
        (reply, bytes) = Reply::read(bytes);
        lines.push(reply.text());
    }
    lines.join("\n")
}

/// A reply as a client reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Nil,
    Array(Vec<Reply>),
    Map(Vec<Reply>),
}

impl Reply {
    fn read(bytes: &[u8]) -> (Self, &[u8]) {
        let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a whole line");
        let (line, rest) = (str::from_utf8(&bytes[1..end]).expect("text"), &bytes[end + 2..]);
        let number = || line.parse::<i64>().expect("a number");
        match bytes[0] {
            b'+' => (Self::Simple(line.to_owned()), rest),
            b'-' => (Self::Error(line.to_owned()), rest),
            b':' => (Self::Integer(number()), rest),
            b'_' => (Self::Nil, rest),
            b'$' if number() == -1 => (Self::Nil, rest),
            b'$' => {
                let (text, rest) = rest.split_at(number() as usize);
                let text = text.escape_ascii().to_string();
                (Self::Bulk(text), rest.strip_prefix(b"\r\n").expect("a line end"))
            }
            b'*' => {
                let (elements, rest) = Self::read_some(number(), rest);
                (Self::Array(elements), rest)
            }
            b'%' => {
                let (elements, rest) = Self::read_some(2 * number(), rest);
                (Self::Map(elements), rest)
            }
            other => panic!("no reply begins with {:?}", other as char),
        }
    }

    fn read_some(count: i64, mut bytes: &[u8]) -> (Vec<Self>, &[u8]) {
        let mut elements = Vec::new();
        for _ in 0..count {
            let element;
            (element, bytes) = Self::read(bytes);
            elements.push(element);
        }
        (elements, bytes)
    }

    fn text(&self) -> String {
        let joined =
            |elements: &[Self]| elements.iter().map(Self::text).collect::<Vec<_>>().join(", ");
        match self {
            Self::Simple(text) | Self::Bulk(text) => text.clone(),
            Self::Error(text) => format!("-{text}"),
            Self::Integer(number) => number.to_string(),
            Self::Nil => "nil".to_owned(),
            Self::Array(elements) => format!("[{}]", joined(elements)),
            Self::Map(elements) => format!("{{{}}}", joined(elements)),
        }
    }
}
