//! A client that sends any bytes, and reads answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Longer than any test waits for a byte when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A connection, and what was read of it and not yet looked at.
pub(crate) struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

/// An answer over HTTP/1.1.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names are in small letters.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The first value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// What the limit that has the smallest share left has left.
    pub(crate) fn remaining(&self) -> Option<u64> {
        self.field("x-ratelimit-remaining")?.parse().ok()
    }
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time is set");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time is set");
        stream.set_nodelay(true).expect("it is set");
        Self { stream, read: Vec::new() }
    }

    /// Sends bytes to somebody who reads them.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("it reads");
    }

    /// Sends bytes to somebody who may have closed the connection; whether it has not.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Says that nothing more is sent.
    pub(crate) fn end(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("it is open");
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> Answer {
        self.next().expect("an answer, not the end of the connection")
    }

    /// The next answer; none if the connection ends first.
    pub(crate) fn next(&mut self) -> Option<Answer> {
        let (status, fields) = self.head()?;
        let mut answer = Answer { status, fields, body: Vec::new() };
        if status < 200 || matches!(status, 204 | 304) {
            return Some(answer);
        }
        if answer.field("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk()? {
                answer.body.extend(chunk);
            }
        } else if let Some(length) = answer.field("content-length") {
            let length = length.parse().expect("a length is a number");
            answer.body = self.take(length)?;
        } else {
            answer.body = self.rest();
        }
        Some(answer)
    }

    /// The next head, without a body; none if the connection ends first.
    pub(crate) fn head(&mut self) -> Option<(u16, Vec<(String, String)>)> {
        let head = self.until(b"\r\n\r\n")?;
        let head = String::from_utf8(head).expect("a head is text");
        let (line, fields) = head.split_once("\r\n").expect("a head has a line");
        let status = line.strip_prefix("HTTP/1.").and_then(|it| it.get(2..5)?.parse().ok());
        let pairs = fields.lines().filter_map(|field| field.split_once(": "));
        let pairs = pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        Some((status.unwrap_or_else(|| panic!("no status: {line}")), pairs.collect()))
    }

    /// The next chunk; nothing after the last one. None if the connection ends first.
    pub(crate) fn chunk(&mut self) -> Option<Option<Vec<u8>>> {
        let size = String::from_utf8(self.until(b"\r\n")?).expect("a size is text");
        let size = usize::from_str_radix(size.trim_end(), 16).expect("a size is a number");
        if size == 0 {
            while self.until(b"\r\n")? != b"\r\n" {}
            return Some(None);
        }
        let chunk = self.take(size)?;
        assert_eq!(self.take(2)?, b"\r\n");
        Some(Some(chunk))
    }

    /// So many bytes; none if the connection ends first.
    pub(crate) fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.read.len() < length {
            self.read_more()?;
        }
        Some(self.read.drain(..length).collect())
    }

    /// Everything until the connection ends.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.read_more().is_some() {}
        std::mem::take(&mut self.read)
    }

    /// Waits so long for the end of the connection; whether it has come.
    pub(crate) fn ends_within(&mut self, wait: Duration) -> bool {
        self.stream.set_read_timeout(Some(wait)).expect("a time is set");
        let mut bytes = [0; 1024];
        let has_ended = match self.stream.read(&mut bytes) {
            Ok(length) => {
                self.read.extend_from_slice(&bytes[..length]);
                length == 0
            }
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        };
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a time is set");
        has_ended
    }

    /// Sends the same again and again, until it is not taken for a while; how often it was.
    pub(crate) fn flood(&mut self, bytes: &[u8], times: usize, wait: Duration) -> usize {
        self.stream.set_write_timeout(Some(wait)).expect("a time is set");
        let taken = (0..times).take_while(|_| self.try_send(bytes)).count();
        self.stream.set_write_timeout(Some(PATIENCE)).expect("a time is set");
        taken
    }

    /// Waits for the end of the connection, before which nothing more may come.
    pub(crate) fn expect_end(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "not the end: {}", String::from_utf8_lossy(&rest));
    }

    /// For so long nothing may come, nor the end of the connection.
    pub(crate) fn expect_silence(&mut self, length: Duration) {
        self.stream.set_read_timeout(Some(length)).expect("a time is set");
        let heard = self.stream.peek(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(heard, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{heard:?}");
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a time is set");
    }

    /// Everything up to and with `end`; none if the connection ends first.
    pub(crate) fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end) {
                return Some(self.read.drain(..at + end.len()).collect());
            }
            self.read_more()?;
        }
    }

    /// Reads what there is; none at the end.
    fn read_more(&mut self) -> Option<()> {
        let mut bytes = [0; 16 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => None,
            Ok(length) => {
                self.read.extend_from_slice(&bytes[..length]);
                Some(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("waited for long, and in vain, after {}", self.read.escape_ascii())
            }
            // Whoever has sent too much is cut off by a reset.
            Err(_) => None,
        }
    }
}
