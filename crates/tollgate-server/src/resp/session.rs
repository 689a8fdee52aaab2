//! One connection's side of the protocol, without the connection.
//!
//! Bytes in, bytes out: everything that has arrived is decided as a batch, and its replies lie
//! behind each other, in the order of the commands. Where the store answers later all questions are
//! asked before the first answer is waited for, and what comes behind them is not held up. A command that is wrong gets an error and the
//! next one is read; bytes that are no command get one, and there is no next.

use std::mem;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tollgate::Limiter;

use super::check;
use super::command::{self, Command, Entry};
use super::parse::{self, Garbage, Words};
use super::reply::{Complaint, Output, Protocol, Replies, Shown};
use super::throttle::{self, Last, Question, Throttles, number};
use crate::bounds::CLIENT_NAME_BYTES_MAX;
use crate::token::Token;

/// What is known of one client.
pub(super) struct Session {
    id: u64,
    protocol: Protocol,
    /// The token that it has shown.
    shown: Option<Arc<Token>>,
    /// Bytes of a line that has not arrived as a whole, in which its end is not.
    scanned: usize,
    /// What it calls itself.
    name: Box<[u8]>,
    last_throttle: Last,
}

/// Whom a session asks.
pub(super) struct Desk<'g> {
    pub(super) limiter: &'g Limiter,
    pub(super) throttles: &'g Throttles,
    /// What a client must show before it may ask.
    pub(super) token: Option<&'g Arc<Token>>,
}

/// Questions that have been read and not asked: of one kind at a time, since replies come in the order of
/// the commands.
#[derive(Default)]
struct Unasked<'b> {
    throttles: throttle::Batch<'b>,
    checks: check::Batch<'b>,
}

impl Unasked<'_> {
    #[inline]
    fn ask(&mut self, limiter: &Limiter, replies: &mut Replies<'_>) {
        self.throttles.ask(limiter, replies);
        self.checks.ask(limiter, replies);
    }
}

/// What is to be done after the replies were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Bring more bytes.
    More,
    /// Come back: there are commands left, and replies enough for now.
    Again,
    /// Close the connection.
    Close,
}

/// The version of Redis whose protocol this is. Clients look at it to see what they may send.
const REDIS_VERSION: &str = "7.0.0";

impl Session {
    /// A client that has just come; `id` is its own as long as the process lives.
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            protocol: Protocol::default(),
            shown: None,
            scanned: 0,
            name: Box::default(),
            last_throttle: None,
        }
    }

    /// Carries out the commands in `input`, takes them out of it and puts the replies to them
    /// behind `output`.
    pub(super) fn feed(
        &mut self,
        input: &mut BytesMut,
        output: &mut Output,
        desk: &Desk<'_>,
    ) -> Flow {
        self.look_at_token(desk);
        let mut taken = 0;
        let mut words = Words::new();
        let mut unasked = Unasked::default();
        let flow = loop {
            if output.is_full() {
                break Flow::Again;
            }
            match parse::command(&input[taken..], &mut self.scanned, &mut words) {
                Ok(Some(length)) => taken += length,
                Ok(None) => break Flow::More,
                Err(Garbage::Http) => break Flow::Close,
                Err(garbage) => {
                    let mut replies = Replies::new(output, self.protocol);
                    unasked.ask(desk.limiter, &mut replies);
                    replies.error(&Complaint::new(format_args!("Protocol error: {garbage}")));
                    break Flow::Close;
                }
            }
            if let Some((name, words)) = words.split_first()
                && self.answer(name, words, &mut unasked, output, desk) == Flow::Close
            {
                break Flow::Close;
            }
        };
        unasked.ask(desk.limiter, &mut Replies::new(output, self.protocol));
        drop((words, unasked));
        input.advance(taken);
        flow
    }

    fn answer<'b>(
        &mut self,
        name: &[u8],
        words: &[&'b [u8]],
        unasked: &mut Unasked<'b>,
        output: &mut Output,
        desk: &Desk<'_>,
    ) -> Flow {
        let Desk { limiter, throttles, .. } = *desk;
        let mut replies = Replies::new(output, self.protocol);
        let entry = self.look_up(name, words.len(), desk).and_then(|entry| {
            match entry.command {
                Command::Throttle => {
                    let last = &mut self.last_throttle;
                    let question = Question::read(words, last, throttles, limiter.store())?;
                    unasked.checks.ask(limiter, &mut replies);
                    unasked.throttles.push(question, limiter, &mut replies);
                }
                Command::Check => {
                    unasked.throttles.ask(limiter, &mut replies);
                    unasked.checks.push(words, limiter, &mut replies)?;
                }
                _ => return Ok(Some(entry)),
            }
            Ok(None)
        });
        let Some(entry) = entry.transpose() else { return Flow::More };
        // Replies come in the order of the commands.
        unasked.ask(limiter, &mut replies);
        let done = entry.and_then(|entry| self.carry_out(entry.command, words, output, desk));
        if let Err(complaint) = &done {
            Replies::new(output, self.protocol).error(complaint);
        }
        done.unwrap_or(Flow::More)
    }

    /// The command that is meant, if this client may ask for it.
    #[inline]
    fn look_up(
        &self,
        name: &[u8],
        words: usize,
        desk: &Desk<'_>,
    ) -> Result<&'static Entry, Complaint> {
        let entry = Entry::find(name);
        if !self.is_admitted(desk) && entry.is_none_or(|entry| !entry.is_open) {
            return Err(Complaint::coded("NOAUTH", format_args!("Authentication required.")));
        }
        let Some(entry) = entry else {
            return Err(Complaint::new(format_args!("unknown command {}", Shown(name))));
        };
        entry.check_words(1 + words)?;
        Ok(entry)
    }

    fn carry_out(
        &mut self,
        command: Command,
        words: &[&[u8]],
        output: &mut Output,
        desk: &Desk<'_>,
    ) -> Result<Flow, Complaint> {
        let mut replies = Replies::new(output, self.protocol);
        match (command, words) {
            (Command::Throttle | Command::Check, _) => {
                unreachable!("questions are asked in batches")
            }
            (Command::Ping, []) => replies.simple("PONG"),
            (Command::Ping | Command::Echo, _) => replies.bulk(words[0]),
            (Command::Hello, _) => self.hello(words, output, desk)?,
            (Command::Auth, _) => {
                self.admit(words.last().copied().unwrap_or_default(), desk)?;
                replies.simple("OK");
            }
            (Command::Select, _) => {
                if number("database", words[0])? != 0 {
                    let sentence = format_args!("DB index is out of range; there is database 0");
                    return Err(Complaint::new(sentence));
                }
                replies.simple("OK");
            }
            (Command::Commands, _) => command::tell(words, &mut replies)?,
            (Command::Client, _) => self.client(words, &mut replies)?,
            (Command::Info, _) => replies.bulk(info(desk.limiter).as_bytes()),
            (Command::Reset, _) => {
                *self = Self::new(self.id);
                replies.simple("RESET");
            }
            (Command::Quit, _) => {
                replies.simple("OK");
                return Ok(Flow::Close);
            }
        }
        Ok(Flow::More)
    }

    /// Whether a client shows the token. Which user it says it is does not matter.
    fn admit(&mut self, shown: &[u8], desk: &Desk<'_>) -> Result<(), Complaint> {
        let Some(token) = desk.token else {
            let sentence = format_args!("AUTH was sent, but this door asks for no token");
            return Err(Complaint::new(sentence));
        };
        if !token.matches(shown) {
            return Err(Complaint::coded("WRONGPASS", format_args!("this is not the token")));
        }
        self.shown = Some(Arc::clone(token));
        Ok(())
    }

    /// A token that was changed must be shown anew. One that was only read again is the same.
    fn look_at_token(&mut self, desk: &Desk<'_>) {
        if !self.is_admitted(desk)
            && let (Some(shown), Some(token)) = (&self.shown, desk.token)
        {
            self.shown = (shown == token).then(|| Arc::clone(token));
        }
    }

    /// Whether it has shown the token, or need not.
    #[inline]
    fn is_admitted(&self, desk: &Desk<'_>) -> bool {
        let is_it = |token| self.shown.as_ref().is_some_and(|shown| Arc::ptr_eq(shown, token));
        desk.token.is_none_or(is_it)
    }

    /// `HELLO [protocol [AUTH user token] [SETNAME name]]`
    fn hello(
        &mut self,
        words: &[&[u8]],
        output: &mut Output,
        desk: &Desk<'_>,
    ) -> Result<(), Complaint> {
        let (protocol, mut options) = match words {
            [] => (self.protocol, words),
            [b"2", options @ ..] => (Protocol::Resp2, options),
            [b"3", options @ ..] => (Protocol::Resp3, options),
            [_, ..] => {
                let sentence = format_args!("unsupported protocol version; there are 2 and 3");
                return Err(Complaint::coded("NOPROTO", sentence));
            }
        };
        let (mut token, mut name) = (None, None);
        while let Some(option) = options.first() {
            options = match options {
                [word, _user, shown, rest @ ..] if word.eq_ignore_ascii_case(b"AUTH") => {
                    token = Some(*shown);
                    rest
                }
                [word, given, rest @ ..] if word.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(client_name(given)?);
                    rest
                }
                _ => {
                    let option = Shown(option);
                    return Err(Complaint::new(format_args!("syntax error in HELLO at {option}")));
                }
            };
        }
        if let Some(shown) = token {
            self.admit(shown, desk)?;
        }
        if !self.is_admitted(desk) {
            let sentence = format_args!("show the token first, as in HELLO 3 AUTH default token");
            return Err(Complaint::coded("NOAUTH", sentence));
        }
        self.protocol = protocol;
        self.name = name.unwrap_or(mem::take(&mut self.name));
        self.introduce(&mut Replies::new(output, protocol));
        Ok(())
    }

    fn introduce(&self, replies: &mut Replies<'_>) {
        let texts = [("server", "tollgate"), ("version", REDIS_VERSION), ("mode", "standalone")];
        replies.map(7);
        for (field, text) in texts.into_iter().chain([("role", "master")]) {
            replies.bulk(field.as_bytes());
            replies.bulk(text.as_bytes());
        }
        replies.bulk(b"proto");
        replies.integer(match self.protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        });
        replies.bulk(b"id");
        replies.integer(self.id as i64);
        replies.bulk(b"modules");
        replies.array(0);
    }

    fn client(&mut self, words: &[&[u8]], replies: &mut Replies<'_>) -> Result<(), Complaint> {
        let is = |name: &str| words[0].eq_ignore_ascii_case(name.as_bytes());
        match &words[1..] {
            [] if is("ID") => replies.integer(self.id as i64),
            [] if is("GETNAME") && self.name.is_empty() => replies.null(),
            [] if is("GETNAME") => replies.bulk(&self.name),
            [name] if is("SETNAME") => {
                self.name = client_name(name)?;
                replies.simple("OK");
            }
            // What these ask for is so, or makes no difference here.
            [_, _] if is("SETINFO") => replies.simple("OK"),
            [_] if is("NO-EVICT") || is("NO-TOUCH") => replies.simple("OK"),
            _ => {
                let what = Shown(words[0]);
                let sentence = format_args!("unknown subcommand {what} of CLIENT, or other words");
                return Err(Complaint::new(sentence));
            }
        }
        Ok(())
    }
}

fn client_name(name: &[u8]) -> Result<Box<[u8]>, Complaint> {
    if name.len() > CLIENT_NAME_BYTES_MAX || !name.iter().all(u8::is_ascii_graphic) {
        return Err(Complaint::new(format_args!(
            "a client's name is at most {CLIENT_NAME_BYTES_MAX} letters, digits and signs, without \
             spaces"
        )));
    }
    Ok(name.into())
}

fn info(limiter: &Limiter) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut info = format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\n\
         tollgate_version:{version}\r\n\r\n\
         # Persistence\r\nloading:0\r\n\r\n\
         # Replication\r\nrole:master\r\n"
    );
    // What is kept elsewhere is told of there.
    if let Some(memory) = limiter.store().memory() {
        let (bytes, keys) = (memory.bytes(), memory.keys());
        info += &format!(
            "\r\n# Memory\r\nused_memory:{bytes}\r\n\r\n\
             # Keyspace\r\ndb0:keys={keys},expires={keys},avg_ttl=0\r\n"
        );
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Arc<Token> {
        Arc::new(Token::read(text).expect("a token"))
    }

    /// Says that a session gets these replies while this token is asked for.
    fn check(session: &mut Session, token: &Arc<Token>, commands: &str, expected: &str) {
        let limiter = Limiter::from_yaml("limits: []").expect("a policy");
        let desk = Desk { limiter: &limiter, throttles: &Throttles::default(), token: Some(token) };
        let mut output = Output::default();
        session.feed(&mut commands.as_bytes().into(), &mut output, &desk);
        assert_eq!(output.bytes().escape_ascii().to_string(), expected);
    }

    #[test]
    fn a_token_that_changes_must_be_shown_anew() {
        let mut session = Session::new(1);
        check(&mut session, &token("old"), "AUTH old\nPING\n", r"+OK\r\n+PONG\r\n");
        check(&mut session, &token("old"), "PING\n", r"+PONG\r\n");
        let new = token("new");
        let refusal = r"-NOAUTH Authentication required.\r\n";
        check(&mut session, &new, "PING\n", refusal);
        check(&mut session, &token("old"), "PING\n", refusal);
        check(&mut session, &new, "AUTH new\nPING\n", r"+OK\r\n+PONG\r\n");
        check(&mut session, &new, "RESET\nPING\n", &format!(r"+RESET\r\n{refusal}"));
    }
}
