//! The application behind a proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// An application that answers every request with 200, and counts them. Of a request's fields,
/// those called `x-reply-…` come back without that prefix.
pub(crate) struct App {
    pub(crate) port: u16,
    requests: Arc<AtomicUsize>,
}

impl App {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let requests = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&requests);
        // It ends with the process: a thread that waits costs nothing.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let count = Arc::clone(&count);
                thread::spawn(move || serve(stream, &count));
            }
        });
        Self { port, requests }
    }

    /// How many requests have come through.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Serves a connection until the client has gone.
fn serve(stream: TcpStream, count: &AtomicUsize) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let fields = || head.lines().filter_map(|line| line.split_once(':'));
        let length = fields().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0);
        std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink()).ok()?;
        count.fetch_add(1, Ordering::Relaxed);
        let mut answer = String::from("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n");
        for (name, value) in fields() {
            if let Some(name) = name.to_ascii_lowercase().strip_prefix("x-reply-") {
                answer += &format!("{name}:{value}\r\n");
            }
        }
        writer.write_all(format!("{answer}\r\napp").as_bytes()).ok()?;
    }
}
