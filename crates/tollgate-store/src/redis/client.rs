//! The one file that knows the client library: addresses, connections and pipelines.
//!
//! Connections speak RESP3. Its greeting is a round trip, so a server that accepts connections and
//! answers none is seen for what it is; and we are told when a connection that nobody uses is gone.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo};
use redis::{IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo};
use redis::{RedisError, Value};
use tokio::sync::Notify;

use super::bounds::ERROR_BYTES_MAX;
use super::call::Reply;
use super::words::Words;

/// Where a server is and how it is greeted. Shown without user and password.
#[derive(Clone)]
pub(super) struct Address(Arc<ConnectionInfo>);

impl Address {
    /// Reads a URL; the error tells what is wrong and nothing of what it holds.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let info = url.into_connection_info().map_err(|error| match error.detail() {
            Some(detail) => detail.to_owned(),
            None => error.to_string(),
        })?;
        let greeting = info.redis_settings().clone();
        let greeting = greeting.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        // A pipeline is one write. The library would let it wait until the one before is confirmed.
        let tcp = TcpSettings::default().set_nodelay(true);
        Ok(Self(Arc::new(info.set_redis_settings(greeting).set_tcp_settings(tcp))))
    }

    /// Another server with the same users, and TLS if this one has it.
    pub(super) fn sibling(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let place = match self.0.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self(Arc::new(self.info().set_addr(place)))
    }

    /// What a server means by this host and port; one that names no host means its own.
    pub(super) fn neighbour(&self, host: &str, port: u16) -> Option<Self> {
        let host = if host.is_empty() || host == "?" { self.host()? } else { host };
        Some(self.sibling(host, port))
    }

    pub(super) fn is_place_of(&self, other: &Self) -> bool {
        self.0.addr() == other.0.addr()
    }

    /// The same server, asked for no database and with credentials only if wanted.
    pub(super) fn plain(&self, with_credentials: bool) -> Self {
        let mut greeting = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        if with_credentials {
            let settings = self.0.redis_settings();
            if let Some(user) = settings.username() {
                greeting = greeting.set_username(user);
            }
            if let Some(password) = settings.password() {
                greeting = greeting.set_password(password);
            }
        }
        Self(Arc::new(self.info().set_redis_settings(greeting)))
    }

    fn info(&self) -> ConnectionInfo {
        ConnectionInfo::clone(&self.0)
    }

    pub(super) fn has_credentials(&self) -> bool {
        self.0.redis_settings().password().is_some()
    }

    pub(super) fn database(&self) -> i64 {
        self.0.redis_settings().db()
    }

    /// The host, unless this is a socket in the file system.
    pub(super) fn host(&self) -> Option<&str> {
        match self.0.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
            _ => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.addr().fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Commands that go out together.
pub(super) struct Pipeline(redis::Pipeline);

impl Pipeline {
    pub(super) fn with_capacity(commands: usize) -> Self {
        Self(redis::Pipeline::with_capacity(commands))
    }

    /// Adds a command: first `before`, then `words`.
    pub(super) fn push(&mut self, before: &[&[u8]], words: &Words) {
        let bytes = before.iter().map(|word| word.len()).sum::<usize>() + words.bytes();
        let mut command = Cmd::with_capacity(before.len() + words.len(), bytes);
        for word in before.iter().copied().chain(words.iter()) {
            command.arg(word);
        }
        self.0.add_command(command);
    }
}

/// What a server answers to one command: a reply, or an error with its code in front.
pub(super) type Answered = Result<Reply, String>;

/// A connection that many may use at once. It closes when the last copy goes.
#[derive(Clone)]
pub(super) struct Connection {
    inner: MultiplexedConnection,
    gone: Arc<Notify>,
}

impl Connection {
    /// Connects and greets, however long it takes; the error says what went wrong.
    pub(super) async fn open(address: &Address) -> Result<Self, String> {
        let gone = Arc::new(Notify::new());
        let told = Arc::clone(&gone);
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    told.notify_one();
                }
                Ok::<_, ()>(())
            });
        let client = Client::open(address.info()).map_err(|error| sentence(&error))?;
        let connect = client.get_multiplexed_async_connection_with_config(&settings);
        let inner = connect.await.map_err(|error| {
            let why = sentence(&error);
            match why.starts_with("NOAUTH ") && !address.has_credentials() {
                true => format!("{why} (the URL has no password)"),
                false => why,
            }
        })?;
        Ok(Self { inner, gone })
    }

    /// Sends commands together; the answers are as many, or the connection broke.
    pub(super) fn send(
        &self,
        pipeline: Pipeline,
    ) -> impl Future<Output = Result<Vec<Answered>, String>> + Send + use<> {
        let mut inner = self.inner.clone();
        async move {
            let sent = inner.send_packed_commands(&pipeline.0, 0, pipeline.0.len()).await;
            let values = sent.map_err(|error| sentence(&error))?;
            Ok(values.into_iter().map(answered).collect())
        }
    }

    /// Sends one command.
    pub(super) async fn ask(&self, words: &Words) -> Result<Answered, String> {
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.push(&[], words);
        let mut answers = self.send(pipeline).await?;
        answers.pop().ok_or_else(|| "no answer".to_owned())
    }

    /// Waits until the connection is gone.
    pub(super) async fn gone(&self) {
        self.gone.notified().await;
    }
}

/// The name that Redis knows a script by.
pub(super) fn sha1(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

fn sentence(error: &RedisError) -> String {
    cut(match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    })
}

/// An error in no more bytes than are worth telling.
fn cut(mut error: String) -> String {
    if error.len() > ERROR_BYTES_MAX {
        error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
        error.push('…');
    }
    error
}

fn answered(value: Value) -> Answered {
    match value {
        Value::ServerError(error) => Err(cut(match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().to_owned(),
        })),
        value => Ok(reply(value)),
    }
}

fn reply(value: Value) -> Reply {
    let list = |values: Vec<Value>| Reply::List(values.into_iter().map(reply).collect());
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(integer) => Reply::Integer(integer),
        Value::BulkString(bytes) | Value::BigNumber(bytes) => Reply::Bytes(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => {
            Reply::Bytes(text.into_bytes())
        }
        Value::Okay => Reply::Bytes(b"OK".to_vec()),
        Value::Array(values) | Value::Set(values) | Value::Push { data: values, .. } => {
            list(values)
        }
        Value::Map(pairs) => {
            list(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())
        }
        Value::Attribute { data, .. } => reply(*data),
        Value::Double(number) => Reply::Bytes(number.to_string().into_bytes()),
        Value::Boolean(flag) => Reply::Integer(i64::from(flag)),
        Value::ServerError(error) => Reply::Bytes(error.code().as_bytes().to_vec()),
        _ => Reply::Nil,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_user_and_password() {
        for (url, shown) in [
            ("redis://10.0.0.1", "10.0.0.1:6379"),
            ("redis://user:secret@10.0.0.1:7000/2", "10.0.0.1:7000"),
            ("rediss://:secret@redis.example:7000", "redis.example:7000"),
            ("redis+unix:///run/redis.sock?user=user&pass=secret&db=1", "/run/redis.sock"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), shown);
        }
    }

    #[test]
    fn what_is_wrong_with_a_url_is_told_without_its_secrets() {
        for url in ["http://:secret@host", "redis://:secret@host/x", "redis://u:secret@", "secret"]
        {
            let error = Address::parse(url).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_is_sent_does_not_wait_for_what_was_sent_before() {
        let address = Address::parse("redis://10.0.0.1").unwrap();
        let siblings = [address.sibling("10.0.0.2", 7000), address.plain(false)];
        for address in siblings.iter().chain([&address]) {
            assert!(address.0.tcp_settings().nodelay(), "{address}");
        }
    }

    #[test]
    fn siblings_keep_credentials_and_tls() {
        let seed = Address::parse("rediss://user:secret@seed:7000/3").unwrap();
        let sibling = seed.sibling("10.0.0.2", 7001);
        assert_eq!(sibling.to_string(), "10.0.0.2:7001");
        assert!(sibling.has_credentials());
        assert_eq!(sibling.database(), 3);
        assert!(matches!(sibling.0.addr(), ConnectionAddr::TcpTls { .. }));
        assert!(!sibling.plain(false).has_credentials());
        assert_eq!(sibling.plain(true).database(), 0);
    }
}
