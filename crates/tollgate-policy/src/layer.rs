//! What a limit counts: requests, or what is below and above them.
//!
//! Limits of different layers never meet. They are filed apart, so that asking about a request costs
//! nothing for limits of connections or messages.

use std::fmt;

/// What is asked about, and what a limit counts.
///
/// A policy has four words for them: `layer: websocket` with `concurrency` counts the sockets that are
/// open, with a `rate` the messages that clients send over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layer {
    /// A request; what limits without a `layer` count.
    #[default]
    Request,
    /// A connection that is being accepted. Nothing is known of it but `client_ip`: what else is
    /// sent is ignored, nobody's key is looked up, and of `deny` and `exempt` only those entries
    /// count that ask for `client_ip` alone.
    Connection,
    /// A WebSocket that is being opened, with the attributes of the request that opens it and
    /// `connection`, a name of the socket.
    Socket,
    /// A message of a WebSocket, with the attributes of the socket and `bytes`, how long the message
    /// is.
    Message,
    /// More of a message that was asked about when it began and whose length nobody knew: `bytes` of it.
    /// Only limits by length count it, since to others it is no message.
    Fragment,
    /// An event of a `text/event-stream` or a message of gRPC that passes, with the attributes of the
    /// request, `stream`, a name of the stream, `direction`, which is `up` from the client or `down` to
    /// it, and `bytes`, how long it is.
    Stream,
}

impl Layer {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Request,
        Self::Connection,
        Self::Socket,
        Self::Message,
        Self::Fragment,
        Self::Stream,
    ];

    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Connection => "connection",
            Self::Socket | Self::Message | Self::Fragment => "websocket",
            Self::Stream => "stream",
        }
    }

    /// What there are of it, in a sentence.
    pub(crate) const fn plural(self) -> &'static str {
        match self {
            Self::Request => "requests",
            Self::Connection => "connections",
            Self::Socket => "open WebSockets",
            Self::Message => "messages of WebSockets",
            Self::Fragment => "fragments of messages",
            Self::Stream => "messages of streams",
        }
    }

    /// One of it, in a sentence.
    pub(crate) const fn singular(self) -> &'static str {
        match self {
            Self::Request => "a request",
            Self::Connection => "a connection",
            Self::Socket => "a WebSocket being opened",
            Self::Message => "a message",
            Self::Fragment => "more of a message that was counted when it began",
            Self::Stream => "a message of a stream",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
