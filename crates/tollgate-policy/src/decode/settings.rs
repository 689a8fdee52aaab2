//! The sections about the process: doors, store, addresses, tenants, headers.

use std::net::SocketAddr;

use tollgate_core::{Cost, Micros};

use super::limit::time_in_full;
use super::{Decoder, Document, Fields, NamedFile, TenantsDraft, is_token};
use crate::address::Cidr;
use crate::bounds::{
    IPV6_PREFIX_RANGE, MEMORY_BYTES_MIN, NAME_BYTES_MAX, NODES_MAX, REDIS_SERVERS_MAX,
    STORE_TIMEOUT_MICROS_RANGE, TENANT_BYTES_MAX,
};
use crate::mistake::{Span, WarningCode, quoted};
use crate::server_url::{self, Names};
use crate::settings::{
    Charging, ClientIp, DescriptorSettings, EncodedSlash, ForwardedIn, HeaderGeneration, Likeness,
    Listen, Listener, MemoryStore, Paths, RedisServers, RedisStore, ResponseHeaders, Settings,
    Store, Tenants, Tls, Unknown,
};
use crate::suggest::closest;
use crate::yaml::{Kind, Node, Word};

pub(super) const LISTEN_FIELDS: [&str; 5] = ["http", "grpc", "admin", "gateway", "resp"];
pub(super) const LISTENER_FIELDS: [&str; 3] = ["address", "tls", "token_file"];
pub(super) const TLS_FIELDS: [&str; 3] = ["cert", "key", "client_ca"];
pub(super) const STORE_FIELDS: [&str; 2] = ["memory", "redis"];
pub(super) const MEMORY_FIELDS: [&str; 2] = ["max_bytes", "snapshot"];
pub(super) const REDIS_FIELDS: [&str; 5] = ["url", "cluster", "sentinel", "timeout", "prefix"];
pub(super) const SENTINEL_FIELDS: [&str; 2] = ["master", "nodes"];
pub(super) const CLIENT_IP_FIELDS: [&str; 4] =
    ["trusted_proxies", "header", "proxy_protocol", "ipv6_prefix"];
pub(super) const PATHS_FIELDS: [&str; 4] = ["trailing_slash", "params", "case", "encoded_slash"];
pub(super) const TENANTS_FIELDS: [&str; 3] = ["from", "file", "unknown"];
pub(super) const UNKNOWN_FIELDS: [&str; 1] = ["tier"];
pub(super) const DESCRIPTORS_FIELDS: [&str; 7] = [
    "path",
    "shadow",
    "quota",
    "merge_domains",
    "response_headers",
    "dynamic_metadata",
    "charging",
];

impl Decoder<'_, '_, '_> {
    pub(super) fn settings(&mut self, fields: &Fields<'_>, document: &mut Document) {
        if let Some(node) = fields.get("listen") {
            document.settings.listen = self.listen(node);
        }
        if let Some(node) = fields.get("gateway") {
            document.settings.gateway = self.gateway(node);
        }
        if let Some(store) = fields.get("store").and_then(|node| self.store(node)) {
            document.settings.store = store;
        }
        if let Some(node) = fields.get("nodes") {
            document.settings.nodes = self.nodes(node);
            self.check_nodes(fields.span("nodes"), &document.settings);
        }
        if let Some(node) = fields.get("client_ip") {
            document.settings.client_ip = self.client_ip(node);
        }
        if let Some(node) = fields.get("paths") {
            self.paths = self.paths(node);
        }
        document.settings.paths = self.paths;
        self.gateway = document.settings.listen.gateway_if_wanted().map(|it| it.address);
        if let Some(node) = fields.get("upstream") {
            document.settings.upstream = self.upstream(node);
        }
        document.has_tenants = fields.has("tenants");
        if let Some((tenants, draft)) = fields.get("tenants").and_then(|node| self.tenants(node)) {
            document.settings.tenants = Some(tenants);
            document.tenants = Some(draft);
        }
        if let Some(headers) = fields.get("headers").and_then(|node| self.headers(node)) {
            document.settings.headers = headers;
        }
        if let Some(node) = fields.get("descriptors") {
            document.settings.descriptors = self.descriptors(node);
        }
        if let Some(node) = fields.get("observe") {
            document.settings.observe = self.observe(node, document.has_tenants);
        }
        self.check_gateway(fields, &document.settings.listen);
    }

    /// How many nodes share the limits.
    fn nodes(&mut self, node: &Node) -> Option<u32> {
        let text = self.text(node, "", "nodes")?;
        let nodes = text.parse::<Cost>().ok().map(Cost::units);
        let nodes = nodes.filter(|nodes| (1..=NODES_MAX).contains(nodes));
        if nodes.is_none() {
            let text = quoted(text);
            let sentence = format!("nodes {text} is not a whole number from 1 to {NODES_MAX}");
            self.mistake(node.span, "", sentence);
        }
        nodes
    }

    fn check_nodes(&mut self, span: Span, settings: &Settings) {
        if let (Store::Memory(_), Some(nodes @ 2..)) = (&settings.store, settings.nodes) {
            let sentence = format!(
                "each of the {nodes} nodes counts in its own memory, so together they allow {nodes} \
                 times every limit; let them share a store, as in store: redis://127.0.0.1:6379"
            );
            self.warning(span, WarningCode::CountsApart, sentence);
        }
    }

    fn listen(&mut self, node: &Node) -> Listen {
        let mut listen = Listen { is_written: true, ..Listen::default() };
        let Some(fields) = self.fields(node, "listen", &LISTEN_FIELDS) else { return listen };
        let mut taken: Vec<(SocketAddr, &str)> = Vec::new();
        for door in LISTEN_FIELDS {
            let Some(node) = fields.get(door) else { continue };
            let Some(listener) = self.listener(node, door) else { continue };
            // Port 0 is any free port, which is never the same one twice.
            let other = taken.iter().find(|(address, _)| *address == listener.address);
            if let Some((address, other)) = other.filter(|(address, _)| address.port() != 0) {
                let sentence = format!("{address} is taken by listen.{other}; use another port");
                self.mistake(node.span, &format!("listen.{door}"), sentence);
            }
            taken.push((listener.address, door));
            self.check_exposure(door, &listener, node.span);
            let place = match door {
                "http" => &mut listen.http,
                "grpc" => &mut listen.grpc,
                "admin" => &mut listen.admin,
                "gateway" => &mut listen.gateway,
                _ => &mut listen.resp,
            };
            *place = Some(listener);
        }
        listen
    }

    /// Beyond this machine, whoever can ask a decision door can spend what others are allowed, and
    /// whoever can ask the admin door can do anything.
    fn check_exposure(&mut self, door: &str, listener: &Listener, span: Span) {
        let certificates = listener.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let is_guarded = listener.token_file.is_some() || certificates;
        let address = listener.address;
        if address.ip().to_canonical().is_loopback() || door == "gateway" {
            return;
        }
        if door == "admin" && listener.token_file.is_none() {
            let sentence =
                format!("{address} can be reached from outside, so it needs a token_file");
            self.mistake(span, "listen.admin", sentence);
        } else if !is_guarded {
            let sentence = format!(
                "listen.{door}: whoever can reach {address} can spend everybody's limits; \
                 give it a token_file or tls with client_ca"
            );
            self.warning(span, WarningCode::OpenDoor, sentence);
        }
    }

    fn listener(&mut self, node: &Node, door: &str) -> Option<Listener> {
        let owner = format!("listen.{door}");
        if !matches!(node.kind, Kind::Map(_)) {
            let address = self.socket_address(node, &owner)?;
            return Some(Listener { address, tls: None, token_file: None });
        }
        let fields = self.fields(node, &owner, &LISTENER_FIELDS)?;
        let tls = fields.get("tls").and_then(|node| self.tls(node, &owner));
        let token_file =
            fields.get("token_file").and_then(|node| self.file(node, &owner, "token_file"));
        let address = self.required(&fields, &owner, "address", "127.0.0.1:8080")?;
        let address = self.socket_address(address, &owner)?;
        Some(Listener { address, tls, token_file })
    }

    fn socket_address(&mut self, node: &Node, owner: &str) -> Option<SocketAddr> {
        let text = self.text(node, owner, "an address")?;
        let address = text.parse().ok();
        if address.is_none() {
            let text = quoted(text);
            let sentence = format!(
                "{text} is not an address and a port; write for example 127.0.0.1:8080 or [::1]:8080"
            );
            self.mistake(node.span, owner, sentence);
        }
        address
    }

    fn tls(&mut self, node: &Node, owner: &str) -> Option<Tls> {
        let owner = format!("{owner}.tls");
        let fields = self.fields(node, &owner, &TLS_FIELDS)?;
        let client_ca =
            fields.get("client_ca").and_then(|node| self.file(node, &owner, "client_ca"));
        let cert = self.required(&fields, &owner, "cert", "server.pem");
        let key = self.required(&fields, &owner, "key", "server.key");
        let cert = self.file(cert?, &owner, "cert");
        let key = self.file(key?, &owner, "key");
        Some(Tls { cert: cert?, key: key?, client_ca })
    }

    /// The name of a file.
    pub(super) fn file(&mut self, node: &Node, owner: &str, field: &str) -> Option<String> {
        let text = self.text(node, owner, field)?;
        if text.is_empty() {
            self.mistake(node.span, owner, format!("{field} names no file"));
            return None;
        }
        let name = Word { span: node.span, text: text.to_owned() };
        self.files.push(NamedFile { owner: owner.to_owned(), name });
        Some(text.to_owned())
    }

    /// A field that must be there; the example says how it could look.
    pub(crate) fn required<'n>(
        &mut self,
        fields: &Fields<'n>,
        owner: &str,
        field: &str,
        example: &str,
    ) -> Option<&'n Node> {
        let node = fields.get(field);
        // A slip of this very name has been told as an unknown field.
        let is_told =
            || fields.entries().iter().any(|(key, _)| closest(&key.text, [field]).is_some());
        if node.is_none() && !is_told() {
            let sentence = format!("{field} is missing; write for example {field}: {example}");
            self.mistake(fields.span, owner, sentence);
        }
        node
    }

    fn store(&mut self, node: &Node) -> Option<Store> {
        if !matches!(node.kind, Kind::Map(_)) {
            return match self.text(node, "", "store")? {
                "memory" => Some(Store::Memory(MemoryStore::default())),
                text if text.contains("://") => {
                    let url = self.redis_url(node, "", "store", Names::Server)?;
                    Some(Store::Redis(RedisStore::at(RedisServers::Single(url))))
                }
                text => {
                    let advice =
                        "is not a store; write memory or for example redis://127.0.0.1:6379";
                    self.url_mistake(node, "", "store", text, advice);
                    None
                }
            };
        }
        let fields = self.fields(node, "store", &STORE_FIELDS)?;
        match (fields.get("memory"), fields.get("redis")) {
            (Some(node), None) => self.memory_store(node),
            (None, Some(node)) => self.redis_store(node),
            _ => {
                self.mistake(node.span, "store", "write one of memory and redis");
                None
            }
        }
    }

    fn memory_store(&mut self, node: &Node) -> Option<Store> {
        if node.is_nothing() {
            return Some(Store::Memory(MemoryStore::default()));
        }
        let owner = "store.memory";
        let fields = self.fields(node, owner, &MEMORY_FIELDS)?;
        let max_bytes = fields.get("max_bytes").and_then(|node| self.memory_size(node, owner));
        let snapshot = fields.get("snapshot").and_then(|node| self.file(node, owner, "snapshot"));
        Some(Store::Memory(MemoryStore { max_bytes, snapshot }))
    }

    fn memory_size(&mut self, node: &Node, owner: &str) -> Option<u64> {
        let text = self.text(node, owner, "max_bytes")?;
        let quoted = quoted(text);
        let Some(bytes) = read_size(text) else {
            let sentence =
                format!("max_bytes {quoted} is not a size; write for example 512MiB or 1GiB");
            self.mistake(node.span, owner, sentence);
            return None;
        };
        if bytes < MEMORY_BYTES_MIN {
            let sentence = format!("max_bytes {quoted} is too little; the least is 1MiB");
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(bytes)
    }

    fn redis_store(&mut self, node: &Node) -> Option<Store> {
        let owner = "store.redis";
        let fields = self.fields(node, owner, &REDIS_FIELDS)?;
        let timeout = fields.get("timeout").and_then(|node| self.store_timeout(node, owner));
        let prefix = fields.get("prefix").and_then(|node| self.key_prefix(node, owner));
        let servers = match (fields.get("url"), fields.get("cluster"), fields.get("sentinel")) {
            (Some(url), None, None) => {
                RedisServers::Single(self.redis_url(url, owner, "url", Names::Server)?)
            }
            (None, Some(nodes), None) => {
                RedisServers::Cluster(self.redis_urls(nodes, owner, "cluster", Names::Member)?)
            }
            (None, None, Some(sentinel)) => self.sentinel(sentinel)?,
            _ => {
                self.mistake(node.span, owner, "write one of url, cluster and sentinel");
                return None;
            }
        };
        let defaults = RedisStore::at(servers);
        Some(Store::Redis(RedisStore {
            timeout: timeout.unwrap_or(defaults.timeout),
            prefix: prefix.unwrap_or(defaults.prefix),
            servers: defaults.servers,
        }))
    }

    fn store_timeout(&mut self, node: &Node, owner: &str) -> Option<Micros> {
        let timeout = self.duration(node, owner, "timeout")?;
        if !STORE_TIMEOUT_MICROS_RANGE.contains(&timeout.as_micros()) {
            let (least, most) = STORE_TIMEOUT_MICROS_RANGE.into_inner();
            let (least, most) = (Micros::new(least), Micros::new(most));
            let sentence = format!("a timeout of {timeout} is outside {least} to {most}");
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(timeout)
    }

    fn key_prefix(&mut self, node: &Node, owner: &str) -> Option<String> {
        let text = self.text(node, owner, "prefix")?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-:/".contains(&byte);
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(plain) {
            let text = quoted(text);
            let sentence =
                format!("prefix {text} is not 1 to {NAME_BYTES_MAX} letters, digits or ._~-:/");
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(text.to_owned())
    }

    fn redis_url(&mut self, node: &Node, owner: &str, field: &str, names: Names) -> Option<String> {
        let text = self.text(node, owner, field)?;
        if let Err(wrong) = server_url::check(text, names) {
            self.url_mistake(node, owner, field, text, wrong);
            return None;
        }
        Some(text.to_owned())
    }

    fn redis_urls(
        &mut self,
        node: &Node,
        owner: &str,
        field: &str,
        names: Names,
    ) -> Option<Vec<String>> {
        let list = self.list(node, owner, field)?;
        if list.is_empty() {
            self.mistake(node.span, owner, format!("{field} names no server"));
            return None;
        }
        if list.len() > REDIS_SERVERS_MAX {
            let sentence = format!(
                "{field} names {} servers; the most is {REDIS_SERVERS_MAX}, and a few are enough to \
                 find the others by",
                list.len()
            );
            self.mistake(node.span, owner, sentence);
            return None;
        }
        let read = |node| self.redis_url(node, owner, field, names);
        let urls: Vec<_> = list.iter().map(read).collect();
        urls.into_iter().collect()
    }

    /// A mistake about a URL: who logs in, and with what, is nobody's business.
    pub(super) fn url_mistake(
        &mut self,
        node: &Node,
        owner: &str,
        field: &str,
        text: &str,
        wrong: &str,
    ) {
        let Some(shown) = server_url::hidden(text) else {
            self.mistake(node.span, owner, format!("{field} {} {wrong}", quoted(text)));
            return;
        };
        // What it logs in with cannot be told from the rest, so the line is not shown either.
        let owner = if owner.is_empty() { String::new() } else { format!("{owner}: ") };
        let sentence = format!("{owner}{field} {} {wrong}", quoted(&shown));
        self.report.unseen_mistake(self.source, node.span, sentence);
    }

    fn sentinel(&mut self, node: &Node) -> Option<RedisServers> {
        let owner = "store.redis.sentinel";
        let fields = self.fields(node, owner, &SENTINEL_FIELDS)?;
        let master = self.required(&fields, owner, "master", "limits");
        let nodes = self.required(&fields, owner, "nodes", "[redis://10.0.0.1:26379]");
        let master = self.master(master?, owner);
        let nodes = self.redis_urls(nodes?, owner, "nodes", Names::Sentinel);
        Some(RedisServers::Sentinel { master: master?, nodes: nodes? })
    }

    /// What the Sentinels call the master.
    fn master(&mut self, node: &Node, owner: &str) -> Option<String> {
        let text = self.text(node, owner, "master")?;
        if text.is_empty() {
            self.mistake(node.span, owner, "master is empty; write for example master: limits");
            return None;
        }
        if text.contains("://") {
            let wrong = "is a URL; write what the Sentinels call the master, for example limits";
            self.url_mistake(node, owner, "master", text, wrong);
            return None;
        }
        Some(text.to_owned())
    }

    fn client_ip(&mut self, node: &Node) -> ClientIp {
        let mut client_ip = ClientIp::default();
        let owner = "client_ip";
        let Some(fields) = self.fields(node, owner, &CLIENT_IP_FIELDS) else { return client_ip };
        if let Some(list) =
            fields.get("trusted_proxies").and_then(|node| self.list(node, owner, "trusted_proxies"))
        {
            let blocks = list.iter().filter_map(|node| self.block(node, owner));
            client_ip.trusted_proxies = blocks.collect();
        }
        let words = [
            ("x-forwarded-for", ForwardedIn::XForwardedFor),
            ("forwarded", ForwardedIn::Forwarded),
        ];
        let header = fields.get("header");
        if let Some(header) = header.and_then(|node| self.one_of(node, owner, "header", &words)) {
            client_ip.header = header;
        }
        let words = [("on", true), ("off", false)];
        let switch = fields.get("proxy_protocol");
        if let Some(is_on) =
            switch.and_then(|node| self.one_of(node, owner, "proxy_protocol", &words))
        {
            client_ip.proxy_protocol = is_on;
        }
        self.check_trust(&fields, &client_ip);
        if let Some(prefix) = fields.get("ipv6_prefix").and_then(|node| self.ipv6_prefix(node)) {
            client_ip.ipv6_prefix = prefix;
        }
        client_ip
    }

    fn check_trust(&mut self, fields: &Fields<'_>, client_ip: &ClientIp) {
        if !client_ip.trusted_proxies.is_empty() {
            return;
        }
        let says_so =
            [("header", fields.has("header")), ("proxy_protocol", client_ip.proxy_protocol)];
        for (field, _) in says_so.into_iter().filter(|(_, says_so)| *says_so) {
            let sentence = format!(
                "client_ip.{field} is not used, because nobody is believed; name your proxies under \
                 trusted_proxies"
            );
            self.warning(fields.span(field), WarningCode::NobodyTrusted, sentence);
        }
    }

    fn ipv6_prefix(&mut self, node: &Node) -> Option<u8> {
        let text = self.text(node, "client_ip", "ipv6_prefix")?;
        let number = text.parse().ok().filter(|number| IPV6_PREFIX_RANGE.contains(number));
        if number.is_none() {
            let text = quoted(text);
            let sentence = format!("ipv6_prefix {text} is not a whole number from 32 to 128");
            self.mistake(node.span, "client_ip", sentence);
        }
        number
    }

    /// A block of addresses.
    pub(super) fn block(&mut self, node: &Node, owner: &str) -> Option<Cidr> {
        let text = self.text(node, owner, "a block of addresses")?;
        match text.parse() {
            Ok(block) => Some(block),
            Err(error) => {
                self.mistake(node.span, owner, format!("{} {error}", quoted(text)));
                None
            }
        }
    }

    fn paths(&mut self, node: &Node) -> Paths {
        let owner = "paths";
        let defaults = Paths::default();
        let Some(fields) = self.fields(node, owner, &PATHS_FIELDS) else { return defaults };
        let mut likeness = |field: &str| {
            let words = [("same", Likeness::Same), ("apart", Likeness::Apart)];
            fields.get(field).and_then(|node| self.one_of(node, owner, field, &words))
        };
        let trailing_slash = likeness("trailing_slash").unwrap_or(defaults.trailing_slash);
        let params = likeness("params").unwrap_or(defaults.params);
        let case = likeness("case").unwrap_or(defaults.case);
        let words = [("refuse", EncodedSlash::Refuse), ("keep", EncodedSlash::Keep)];
        let slash = fields.get("encoded_slash");
        let slash = slash.and_then(|node| self.one_of(node, owner, "encoded_slash", &words));
        let encoded_slash = slash.unwrap_or(defaults.encoded_slash);
        Paths { trailing_slash, params, case, encoded_slash }
    }

    fn tenants(&mut self, node: &Node) -> Option<(Tenants, TenantsDraft)> {
        let owner = "tenants";
        let fields = self.fields(node, owner, &TENANTS_FIELDS)?;
        let from_node = self.required(&fields, owner, "from", "header:x-api-key");
        let file_node = self.required(&fields, owner, "file", "tenants.yaml");
        let unknown = fields.get("unknown").map_or(Some(None), |node| self.unknown(node));
        let from = from_node.and_then(|node| self.attribute(node, owner, "from"));
        let file = file_node.and_then(|node| self.file(node, owner, "file"));
        let (from, file, unknown) = (from?, file?, unknown?);
        let name = self.attributes.name(from).to_string();
        if name == "tenant" || name == "tier" {
            let sentence = format!("from cannot be {name}, which is what is looked up");
            self.mistake(from_node?.span, owner, sentence);
        }
        let draft = TenantsDraft {
            from,
            file: Word { span: file_node?.span, text: file.clone() },
            unknown: unknown.clone(),
        };
        let unknown = unknown.map_or(Unknown::Refuse, |tier| Unknown::Tier(tier.text));
        Some((Tenants { from: name, file, unknown }, draft))
    }

    /// The tier of strangers, or nothing to refuse them.
    fn unknown(&mut self, node: &Node) -> Option<Option<Word>> {
        let owner = "tenants";
        if let Kind::Scalar(scalar) = &node.kind {
            if scalar.text == "refuse" {
                return Some(None);
            }
            let found = self.described(node);
            let sentence = format!("unknown cannot be {found}; write refuse or {{tier: free}}");
            self.mistake(node.span, owner, sentence);
            return None;
        }
        let fields = self.fields(node, "tenants.unknown", &UNKNOWN_FIELDS)?;
        let node = self.required(&fields, "tenants.unknown", "tier", "free")?;
        let text = self.text(node, "tenants.unknown", "tier")?;
        if text.is_empty() || text.len() > TENANT_BYTES_MAX {
            let sentence = format!("a tier's name has 1 to {TENANT_BYTES_MAX} bytes");
            self.mistake(node.span, "tenants.unknown", sentence);
            return None;
        }
        Some(Some(Word { span: node.span, text: text.to_owned() }))
    }

    fn headers(&mut self, node: &Node) -> Option<Vec<HeaderGeneration>> {
        if matches!(&node.kind, Kind::Scalar(scalar) if scalar.text == "off") {
            return Some(Vec::new());
        }
        let list = self.list(node, "", "headers")?;
        if let [only] = list
            && matches!(&only.kind, Kind::Scalar(scalar) if scalar.text == "off")
        {
            return Some(Vec::new());
        }
        let words = HeaderGeneration::ALL.map(|generation| (generation.name(), generation));
        let mut generations: Vec<HeaderGeneration> = Vec::new();
        for node in list {
            let Some(generation) = self.one_of(node, "headers", "a generation", &words) else {
                continue;
            };
            if generations.contains(&generation) {
                let sentence = format!("{} is written twice", generation.name());
                self.mistake(node.span, "headers", sentence);
                continue;
            }
            if let Some(other) = generations.iter().find(|other| other.conflicts(generation)) {
                let (one, other) = (generation.name(), other.name());
                let sentence = format!(
                    "headers: {other} and {one} write different things into one field; clients \
                     will understand neither for certain"
                );
                self.warning(node.span, WarningCode::HeadersConflict, sentence);
            }
            generations.push(generation);
        }
        Some(generations)
    }

    fn descriptors(&mut self, node: &Node) -> Option<DescriptorSettings> {
        let defaults = DescriptorSettings::default();
        if !matches!(node.kind, Kind::Map(_)) {
            let path = self.file(node, "", "descriptors")?;
            return Some(DescriptorSettings { path, ..defaults });
        }
        let owner = "descriptors";
        let fields = self.fields(node, owner, &DESCRIPTORS_FIELDS)?;
        let mut is_set = |field: &str| {
            let node = fields.get(field)?;
            self.one_of(node, owner, field, &[("true", true), ("false", false)])
        };
        let shadow = is_set("shadow").unwrap_or(defaults.shadow);
        let quota = is_set("quota").unwrap_or(defaults.quota);
        let merge_domains = is_set("merge_domains").unwrap_or(defaults.merge_domains);
        let dynamic_metadata = is_set("dynamic_metadata").unwrap_or(defaults.dynamic_metadata);
        let response_headers =
            fields.get("response_headers").and_then(|node| self.response_headers(node, owner));
        let words = [
            ("every", Charging::Every),
            ("unless_over", Charging::UnlessOver),
            ("all_or_nothing", Charging::AllOrNothing),
        ];
        let charging = fields.get("charging");
        let charging = charging.and_then(|node| self.one_of(node, owner, "charging", &words));
        let path = self.required(&fields, owner, "path", "./envoy/")?;
        Some(DescriptorSettings {
            path: self.file(path, owner, "path")?,
            shadow,
            quota,
            merge_domains,
            response_headers,
            dynamic_metadata,
            charging: charging.unwrap_or(defaults.charging),
        })
    }

    fn response_headers(&mut self, node: &Node, owner: &str) -> Option<ResponseHeaders> {
        let field = "response_headers";
        let Kind::List(names) = &node.kind else {
            let is_on = self.one_of(node, owner, field, &[("true", true), ("false", false)])?;
            return is_on.then(ResponseHeaders::default);
        };
        let [limit, remaining, reset] = &names[..] else {
            let sentence = format!(
                "{field} has {} names; write three, as in \
                 [RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset]",
                names.len()
            );
            self.mistake(node.span, owner, sentence);
            return None;
        };
        let limit = self.header_name(limit, owner, "RateLimit-Limit");
        let remaining = self.header_name(remaining, owner, "RateLimit-Remaining");
        let reset = self.header_name(reset, owner, "RateLimit-Reset");
        Some(ResponseHeaders { limit: limit?, remaining: remaining?, reset: reset? })
    }

    pub(super) fn header_name(
        &mut self,
        node: &Node,
        owner: &str,
        example: &str,
    ) -> Option<String> {
        let text = self.text(node, owner, "a header's name")?;
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_token) {
            let sentence =
                format!("{} is not a header's name; write for example {example}", quoted(text));
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(text.to_owned())
    }

    /// A stretch of time.
    pub(crate) fn duration(&mut self, node: &Node, owner: &str, field: &str) -> Option<Micros> {
        let text = self.text(node, owner, field)?;
        let time = text.parse().ok();
        if time.is_none() {
            let meant = time_in_full(text).and_then(|time| time.parse::<Micros>().ok());
            let advice = meant.map_or_else(
                || "for example 10ms, 90s, 5m or 1h".to_owned(),
                |meant| meant.to_string(),
            );
            let text = quoted(text);
            self.mistake(node.span, owner, format!("{field} {text} is not a time; write {advice}"));
        }
        time
    }
}

/// Reads `512MiB`, `1GB`, or a plain number of bytes.
fn read_size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.strip_prefix(' ').unwrap_or(unit) {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}
