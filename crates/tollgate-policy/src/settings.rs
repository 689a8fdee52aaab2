//! The part of a policy that is about the process rather than about requests.

use std::fmt;
use std::net::SocketAddr;

use tollgate_core::{Micros, Quota};

use crate::address::Cidr;
use crate::mistake::without_passwords;
use crate::upstream::Route;

/// Where to listen, what to stand in front of, where to keep states, and what to tell clients.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// `listen`.
    pub listen: Listen,
    /// `upstream`: where the gateway sends what it lets through. Of these the first that stands for a
    /// request is taken ([`Policy::route`](crate::Policy::route)); none if there is no upstream.
    pub upstream: Vec<Route>,
    /// `gateway`.
    pub gateway: Gateway,
    /// `store`.
    pub store: Store,
    /// `nodes`: how many nodes share the limits; those that were last seen if it does not say.
    pub nodes: Option<u32>,
    /// `client_ip`.
    pub client_ip: ClientIp,
    /// `paths`.
    pub paths: Paths,
    /// `tenants`.
    pub tenants: Option<Tenants>,
    /// `headers`, in the order written; empty for `off`.
    pub headers: Vec<HeaderGeneration>,
    /// `descriptors`.
    pub descriptors: Option<DescriptorSettings>,
    /// `observe`.
    pub observe: Observe,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            upstream: Vec::new(),
            gateway: Gateway::default(),
            store: Store::default(),
            nodes: None,
            client_ip: ClientIp::default(),
            paths: Paths::default(),
            tenants: None,
            headers: vec![HeaderGeneration::Draft11, HeaderGeneration::XRateLimit],
            descriptors: None,
            observe: Observe::default(),
        }
    }
}

impl Settings {
    /// Where the gateway is opened, if it is: it needs something to stand in front of.
    pub fn gateway_listener(&self) -> Option<Listener> {
        self.listen.gateway_if_wanted().filter(|_| !self.upstream.is_empty())
    }
}

/// The addresses of the doors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listen {
    /// Whether the policy has a `listen` section. If it has, a door that is not named there stays
    /// closed; if it has none, the server opens what it opens by default.
    pub is_written: bool,
    /// Decisions over HTTP.
    pub http: Option<Listener>,
    /// Envoy's rate limit service.
    pub grpc: Option<Listener>,
    /// Dashboard, metrics, health and the admin API.
    pub admin: Option<Listener>,
    /// The reverse proxy.
    pub gateway: Option<Listener>,
    /// The Redis protocol.
    pub resp: Option<Listener>,
}

impl Listen {
    /// Where a gateway is opened in front of an upstream. Without a `listen` section that is on loopback.
    pub(crate) fn gateway_if_wanted(&self) -> Option<Listener> {
        let unasked = || Listener::at(SocketAddr::from(([127, 0, 0, 1], 8000)));
        self.gateway.clone().or_else(|| (!self.is_written).then(unasked))
    }
}

/// One door.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listener {
    /// Address and port.
    pub address: SocketAddr,
    /// Certificates, if it speaks TLS.
    pub tls: Option<Tls>,
    /// The file that holds the token callers must show.
    pub token_file: Option<String>,
}

impl Listener {
    /// A door at `address` that asks for nothing.
    pub const fn at(address: SocketAddr) -> Self {
        Self { address, tls: None, token_file: None }
    }
}

/// The PEM files of a listener, as the policy names them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// The certificate chain.
    pub cert: String,
    /// Its private key.
    pub key: String,
    /// Who signs the certificates of clients; without it clients need none.
    pub client_ca: Option<String>,
}

/// How the gateway goes about what it passes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gateway {
    /// How long an upstream may take to accept a connection.
    pub connect_timeout: Micros,
    /// How long a client may take to send the head of a request, and an upstream to answer with
    /// that of its response.
    pub headers_timeout: Micros,
    /// How long nothing may happen on a connection before it is closed; none for ever.
    pub idle_timeout: Option<Micros>,
    /// How long a request may take from its first byte to the last of its response; none for ever.
    pub total_timeout: Option<Micros>,
    /// How many requests may be held at a time; those beyond are refused.
    pub max_held: u32,
    /// The header that names a request to whom it is passed on, in small letters; none for no
    /// header.
    pub request_id: Option<String>,
    /// The file that says who signs the certificates of servers behind `https`; without it those
    /// whom the system trusts.
    pub ca: Option<String>,
}

impl Default for Gateway {
    fn default() -> Self {
        Self {
            connect_timeout: Micros::from_secs(1),
            headers_timeout: Micros::from_secs(30),
            idle_timeout: Some(Micros::from_secs(60)),
            total_timeout: None,
            max_held: 10_000,
            request_id: Some("x-request-id".to_owned()),
            ca: None,
        }
    }
}

/// Where states are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis or Valkey.
    Redis(RedisStore),
}

impl Default for Store {
    fn default() -> Self {
        Self::Memory(MemoryStore::default())
    }
}

/// The embedded store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStore {
    /// How much memory it may take; the store's own default if not said.
    pub max_bytes: Option<u64>,
    /// The file in which states survive a restart.
    pub snapshot: Option<String>,
}

/// A store in Redis or Valkey.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStore {
    /// Which servers.
    pub servers: RedisServers,
    /// How long a check may take: 10 ms unless said, since Envoy gives up after 20.
    pub timeout: Micros,
    /// What every key begins with: `tollgate` unless said.
    pub prefix: String,
}

impl RedisStore {
    pub(crate) fn at(servers: RedisServers) -> Self {
        Self { servers, timeout: Micros::from_millis(10), prefix: "tollgate".to_owned() }
    }
}

/// How the servers of a Redis store are found; each is a `redis` or `rediss` URL.
#[derive(Clone, PartialEq, Eq)]
pub enum RedisServers {
    /// One server; also as a `redis+unix` or `unix` URL.
    Single(String),
    /// Some nodes of a Cluster.
    Cluster(Vec<String>),
    /// The master that Sentinels agree on.
    Sentinel {
        /// Its name.
        master: String,
        /// The Sentinels, by URLs whose user, password and database are the master's.
        nodes: Vec<String>,
    },
}

impl fmt::Debug for RedisServers {
    /// Without passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |urls: &[String]| -> Vec<String> {
            urls.iter().map(|url| without_passwords(url)).collect()
        };
        match self {
            Self::Single(url) => f.debug_tuple("Single").field(&without_passwords(url)).finish(),
            Self::Cluster(nodes) => f.debug_tuple("Cluster").field(&shown(nodes)).finish(),
            Self::Sentinel { master, nodes } => f
                .debug_struct("Sentinel")
                .field("master", master)
                .field("nodes", &shown(nodes))
                .finish(),
        }
    }
}

/// How a client's address is found and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientIp {
    /// Who is believed when it says for whom it asks; nobody unless said.
    pub trusted_proxies: Vec<Cidr>,
    /// Where they say it; no other header is read.
    pub header: ForwardedIn,
    /// Whether they begin their connections to the gateway by saying it, in the PROXY protocol,
    /// version 1 or 2.
    pub proxy_protocol: bool,
    /// How many bits of an IPv6 address tell clients apart. [`Policy::admit`](crate::Policy::admit)
    /// sees to it; a door hands in the whole address, which conditions are tested on.
    pub ipv6_prefix: u8,
}

impl Default for ClientIp {
    fn default() -> Self {
        Self {
            trusted_proxies: Vec::new(),
            header: ForwardedIn::default(),
            proxy_protocol: false,
            ipv6_prefix: 56,
        }
    }
}

/// The header in which proxies say for whom they ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedIn {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded`.
    Forwarded,
}

/// Which ways to write a path are one path to the doors that face clients, and so one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paths {
    /// `/login/` and `/login`; the same unless said.
    pub trailing_slash: Likeness,
    /// `/login;a=1` and `/login`; the same unless said.
    pub params: Likeness,
    /// `/Login` and `/login`; apart unless said.
    pub case: Likeness,
    /// What becomes of `%2F` and `%5C`; refused unless said.
    pub encoded_slash: EncodedSlash,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            trailing_slash: Likeness::Same,
            params: Likeness::Same,
            case: Likeness::Apart,
            encoded_slash: EncodedSlash::Refuse,
        }
    }
}

/// Whether two ways to write a path are one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// They are.
    Same,
    /// They are two.
    Apart,
}

/// What becomes of a path with an encoded slash or backslash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodedSlash {
    /// It is a bad request: a slash to some servers, a part of a name to others.
    Refuse,
    /// It is part of a name.
    Keep,
}

/// Who the caller is, by an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tenants {
    /// The attribute that carries the key.
    pub from: String,
    /// The file of keys, as the policy names it.
    pub file: String,
    /// What a key outside the file, or none at all, means.
    pub unknown: Unknown,
}

/// What a request without a known key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Refused; also if the policy does not say.
    Refuse,
    /// Of this tier, and of no tenant.
    Tier(String),
}

/// A generation of rate limit fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderGeneration {
    /// `draft-11`: `RateLimit-Policy` and `RateLimit` as structured lists.
    Draft11,
    /// `x-ratelimit`.
    XRateLimit,
    /// `draft-07`: `RateLimit` as one dictionary.
    Draft07,
    /// `draft-06`: three fields and `RateLimit-Policy`.
    Draft06,
    /// `draft-03`: three fields.
    Draft03,
}

impl HeaderGeneration {
    /// All of them, newest first.
    pub const ALL: [Self; 5] =
        [Self::Draft11, Self::XRateLimit, Self::Draft07, Self::Draft06, Self::Draft03];

    /// Its name in a policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Draft11 => "draft-11",
            Self::XRateLimit => "x-ratelimit",
            Self::Draft07 => "draft-07",
            Self::Draft06 => "draft-06",
            Self::Draft03 => "draft-03",
        }
    }

    /// Whether two generations write different things into one field. `RateLimit-Policy` is a
    /// list of names in the newest and of numbers in the others; `RateLimit-Limit` lists its
    /// windows in the oldest only.
    pub(crate) const fn conflicts(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Draft11, Self::Draft07 | Self::Draft06)
                | (Self::Draft07 | Self::Draft06, Self::Draft11)
                | (Self::Draft06, Self::Draft03)
                | (Self::Draft03, Self::Draft06)
        )
    }
}

/// Where the files of Envoy's rate limit service are, and what that service takes from its
/// environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DescriptorSettings {
    /// The folder with the files.
    pub path: String,
    /// Whether nothing is ever over its limit, whatever the files say.
    pub shadow: bool,
    /// Whether every limit is a quota: a call is over only when all of them are.
    pub quota: bool,
    /// Whether several files may describe one domain.
    pub merge_domains: bool,
    /// The fields sent to clients, if any are.
    pub response_headers: Option<ResponseHeaders>,
    /// Whether Envoy is told in its dynamic metadata what was asked and what is over its quota.
    pub dynamic_metadata: bool,
    /// What is charged when something is over its limit.
    pub charging: Charging,
}

/// The names of the fields that tell a client of its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHeaders {
    /// How many are allowed.
    pub limit: String,
    /// How many are left.
    pub remaining: String,
    /// The seconds until the limit is whole again.
    pub reset: String,
}

impl Default for ResponseHeaders {
    fn default() -> Self {
        let name = |name: &str| name.to_owned();
        Self {
            limit: name("RateLimit-Limit"),
            remaining: name("RateLimit-Remaining"),
            reset: name("RateLimit-Reset"),
        }
    }
}

/// What a call is charged when one of its descriptors is over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charging {
    /// `every`: every descriptor, as Envoy's rate limit service does.
    #[default]
    Every,
    /// `unless_over`: those that are over it only.
    UnlessOver,
    /// `all_or_nothing`: nothing.
    AllOrNothing,
}

/// What is told of requests, and to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observe {
    /// How the values of keys are shown.
    pub keys: ShownKeys,
    /// Whether headroom is told by tenant of the tenants file.
    pub tenants: bool,
    /// Where denials and admin actions are written down, if they are.
    pub audit: Option<Audit>,
    /// Where metrics and traces are sent, if they are.
    pub otlp: Option<Otlp>,
}

/// How the values of keys are shown to people. API keys, headers and cookies are hashed in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownKeys {
    /// As they are.
    #[default]
    Plain,
    /// Every value as its keyed hash.
    Hashed,
}

/// The audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// The file, as the policy names it.
    pub file: String,
    /// How many of a million denials are written down: all unless said.
    pub sample: u32,
    /// How many lines of denials are written at most: 100 a second unless said.
    pub rate: Quota,
}

impl Audit {
    /// All denials into `file`, at most 100 lines a second.
    pub fn into_file(file: String) -> Self {
        Self { file, sample: 1_000_000, rate: Quota::per_second(100) }
    }
}

/// Where metrics and traces are sent by the OpenTelemetry protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Otlp {
    /// An `http` or `https` URL, with a path if it is not the root.
    pub endpoint: String,
    /// How often metrics are sent: every ten seconds unless said.
    pub interval: Micros,
    /// Of how many of a million requests a trace is sent: none unless said.
    pub traces: u32,
}

impl Otlp {
    /// Metrics to `endpoint`, every ten seconds.
    pub fn to(endpoint: String) -> Self {
        Self { endpoint, interval: Micros::from_secs(10), traces: 0 }
    }
}
