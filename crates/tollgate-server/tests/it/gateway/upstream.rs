//! A server that writes down every byte it is sent, and forgives nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Longer than any test waits for something to happen when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a free port, until it is dropped.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    record: Arc<Record>,
    is_over: Arc<AtomicBool>,
}

/// What was sent to a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// The bytes of each connection.
    pub(crate) connections: Vec<Vec<u8>>,
    /// How many of the connections have not ended.
    pub(crate) open: usize,
    /// The requests, in the order in which their heads came.
    pub(crate) requests: Vec<Request>,
    /// What was no request.
    pub(crate) faults: Vec<String>,
    /// How many requests came.
    pub(crate) count: usize,
}

/// Fields with their values; names are in small letters.
pub(crate) type Fields = Vec<(String, String)>;

/// A request as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    /// Whether it came to its end.
    pub(crate) is_whole: bool,
    /// The first has 1.
    number: usize,
}

impl Request {
    /// The only value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(known, _)| known == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert_eq!(values.next(), None, "{name} is there twice");
        value
    }
}

#[derive(Default)]
struct Record {
    log: Mutex<Log>,
    changed: Condvar,
}

impl Record {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no test panics with it")
    }

    fn change<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let changed = change(&mut self.log());
        self.changed.notify_all();
        changed
    }
}

impl Upstream {
    /// Starts a server that does this with each request of which the head has come. What it leaves of
    /// the body is read then, and the connection goes on.
    pub(crate) fn start(answer: impl Fn(&mut Exchange) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (record, is_over) = (Arc::<Record>::default(), Arc::<AtomicBool>::default());
        let (recorded, ended, answer) =
            (Arc::clone(&record), Arc::clone(&is_over), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (record, answer) = (Arc::clone(&recorded), Arc::clone(&answer));
                let stream = stream.expect("a connection");
                thread::spawn(move || serve(stream, &record, &*answer));
            }
        });
        Self { address, record, is_over }
    }

    /// What came so far.
    pub(crate) fn log(&self) -> Log {
        self.record.log().clone()
    }

    /// The requests that came so far, none of which was odd.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let log = self.log();
        assert_eq!(log.faults, Vec::<String>::new());
        log.requests
    }

    /// Forgets what came so far.
    pub(crate) fn take_requests(&self) -> Vec<Request> {
        let taken = self.requests();
        self.record.log().requests.drain(..taken.len());
        taken
    }

    /// Waits until what came is so.
    pub(crate) fn wait(&self, what: &str, mut is_so: impl FnMut(&Log) -> bool) -> Log {
        let waiting =
            self.record.changed.wait_timeout_while(self.record.log(), PATIENCE, |log| !is_so(log));
        let (log, waited) = waiting.expect("no test panics with it");
        assert!(!waited.timed_out(), "waited for long, and in vain: {what}; there is {log:?}");
        log.clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // So that it looks.
        drop(TcpStream::connect(self.address));
    }
}

/// One connection.
fn serve(stream: TcpStream, record: &Arc<Record>, answer: &dyn Fn(&mut Exchange)) {
    let number = record.change(|log| {
        log.connections.push(Vec::new());
        log.open += 1;
        log.connections.len() - 1
    });
    let wire = Wire { stream, read: Vec::new(), record: Arc::clone(record), number };
    if let Err(Over::Fault(fault)) = wire.serve(answer) {
        record.change(|log| log.faults.push(fault));
    }
    record.change(|log| log.open -= 1);
}

/// Why a connection does not go on.
#[derive(Debug)]
enum Over {
    /// It ended, or was ended.
    Closed,
    /// What came is no request.
    Fault(String),
}

struct Wire {
    stream: TcpStream,
    /// What was read and not yet looked at.
    read: Vec<u8>,
    record: Arc<Record>,
    number: usize,
}

/// How long a body is.
#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunked,
}

impl Wire {
    fn serve(mut self, answer: &dyn Fn(&mut Exchange)) -> Result<(), Over> {
        loop {
            let head = self.until(b"\r\n\r\n")?;
            let request = parse_head(&head).map_err(Over::Fault)?;
            let framing = framing(&request).map_err(Over::Fault)?;
            let number = self.record.change(|log| {
                log.count += 1;
                log.requests.push(Request { number: log.count, ..request.clone() });
                log.count
            });
            let mut exchange = Exchange { wire: self, request, number, framing, is_over: false };
            answer(&mut exchange);
            exchange.read_body()?;
            if exchange.is_over {
                return Ok(());
            }
            self = exchange.wire;
        }
    }

    /// Everything up to and with `end`.
    fn until(&mut self, end: &[u8]) -> Result<Vec<u8>, Over> {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end) {
                return Ok(self.read.drain(..at + end.len()).collect());
            }
            self.read_more()?;
        }
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>, Over> {
        while self.read.len() < length {
            self.read_more()?;
        }
        Ok(self.read.drain(..length).collect())
    }

    fn read_more(&mut self) -> Result<(), Over> {
        let mut bytes = [0; 16 * 1024];
        let length = self.stream.read(&mut bytes).unwrap_or(0);
        if length == 0 {
            return Err(Over::Closed);
        }
        self.read.extend_from_slice(&bytes[..length]);
        self.record.change(|log| {
            log.connections[self.number].extend_from_slice(&bytes[..length]);
        });
        Ok(())
    }

    /// The rest of a chunked body, and its trailers.
    fn chunks(&mut self) -> Result<(Vec<u8>, Fields), Over> {
        let mut body = Vec::new();
        loop {
            let line = self.until(b"\r\n")?;
            let size = std::str::from_utf8(&line[..line.len() - 2]).unwrap_or("?");
            let is_hex = !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_hexdigit());
            let Some(size) = usize::from_str_radix(size, 16).ok().filter(|_| is_hex) else {
                return Err(Over::Fault(format!("not the size of a chunk: {size:?}")));
            };
            if size == 0 {
                break;
            }
            body.extend(self.take(size)?);
            if self.take(2)? != b"\r\n" {
                return Err(Over::Fault("a chunk is longer than its size".to_owned()));
            }
        }
        let mut trailers = Vec::new();
        loop {
            let line = self.until(b"\r\n")?;
            if line == b"\r\n" {
                return Ok((body, trailers));
            }
            trailers.push(parse_field(&line[..line.len() - 2]).map_err(Over::Fault)?);
        }
    }
}

/// A request of which the head has come, to be answered.
pub(crate) struct Exchange {
    wire: Wire,
    /// All but its body.
    pub(crate) request: Request,
    number: usize,
    framing: Framing,
    is_over: bool,
}

impl Exchange {
    /// Reads the request to its end and answers it with 200 and a word.
    pub(crate) fn ok(&mut self) {
        if self.body().is_some() {
            self.answer(200, "ok");
        }
    }

    /// The rest of the request's body; none if the connection ends before it does.
    pub(crate) fn body(&mut self) -> Option<Vec<u8>> {
        match self.read_body() {
            Ok(body) => Some(body),
            Err(Over::Closed) => {
                self.is_over = true;
                None
            }
            Err(Over::Fault(fault)) => {
                self.is_over = true;
                self.wire.record.change(|log| log.faults.push(fault));
                None
            }
        }
    }

    /// Sends a whole answer.
    pub(crate) fn answer(&mut self, status: u16, body: &str) {
        let length = body.len();
        self.send(format!("HTTP/1.1 {status} Such\r\ncontent-length: {length}\r\n\r\n{body}"));
    }

    /// Sends bytes; whether they were taken.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// What comes next, whatever it is; nothing at the end of the connection.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        self.framing = Framing::Length(0);
        if self.wire.read.is_empty() && self.wire.read_more().is_err() {
            self.is_over = true;
        }
        std::mem::take(&mut self.wire.read)
    }

    /// Waits until the other side has closed the connection.
    pub(crate) fn wait_for_end(&mut self) {
        while self.wire.read_more().is_ok() {}
        self.close();
    }

    /// Closes the connection when the request has been seen to.
    pub(crate) fn close(&mut self) {
        self.is_over = true;
        self.framing = Framing::Length(0);
    }

    fn read_body(&mut self) -> Result<Vec<u8>, Over> {
        if self.is_over {
            return Ok(Vec::new());
        }
        let (body, trailers) = match self.framing {
            Framing::Length(length) => (self.wire.take(length)?, Vec::new()),
            Framing::Chunked => self.wire.chunks()?,
        };
        self.framing = Framing::Length(0);
        self.wire.record.change(|log| {
            let known = log.requests.iter_mut().find(|it| it.number == self.number);
            if let Some(request) = known.filter(|it| !it.is_whole) {
                request.body.clone_from(&body);
                request.trailers = trailers;
                request.is_whole = true;
            }
        });
        Ok(body)
    }
}

/// A head, which ends with an empty line.
fn parse_head(head: &[u8]) -> Result<Request, String> {
    let odd = |what: &str| format!("{what}: {}", head.escape_ascii());
    let head_lines = head.strip_suffix(b"\r\n\r\n").ok_or_else(|| odd("no head"))?;
    let text = std::str::from_utf8(head_lines).map_err(|_| odd("not text"))?;
    let mut lines = text.split("\r\n");
    let line: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, "HTTP/1.1"] = line[..] else { return Err(odd("not a request's line")) };
    let is_target = target.starts_with('/') || target == "*";
    if !method.bytes().all(is_token)
        || !is_target
        || !target.bytes().all(|it| it.is_ascii_graphic())
    {
        return Err(odd("not a request's line"));
    }
    let fields = lines.map(|line| parse_field(line.as_bytes())).collect::<Result<_, _>>()?;
    let (method, target) = (method.to_owned(), target.to_owned());
    Ok(Request { method, target, fields, ..Request::default() })
}

fn parse_field(line: &[u8]) -> Result<(String, String), String> {
    let odd = || format!("not a field: {}", line.escape_ascii());
    let text = std::str::from_utf8(line).map_err(|_| odd())?;
    let (name, value) = text.split_once(": ").or_else(|| text.split_once(':')).ok_or_else(odd)?;
    let is_plain = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte) || byte >= 0x80;
    if name.is_empty() || !name.bytes().all(is_token) || !value.bytes().all(is_plain) {
        return Err(odd());
    }
    Ok((name.to_ascii_lowercase(), value.to_owned()))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// How long the body of a request is, which it says at most once; for whom it is it says exactly once.
fn framing(request: &Request) -> Result<Framing, String> {
    let values = |name: &str| {
        let values = request.fields.iter().filter(|(known, _)| known == name);
        values.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    let [_] = values("host")[..] else { return Err(format!("not one host: {request:?}")) };
    let odd = || format!("not one length: {request:?}");
    match (&values("content-length")[..], &values("transfer-encoding")[..]) {
        ([], []) => Ok(Framing::Length(0)),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().map(Framing::Length).map_err(|_| odd())
        }
        ([], ["chunked"]) => Ok(Framing::Chunked),
        _ => Err(odd()),
    }
}
