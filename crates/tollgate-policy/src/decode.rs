//! From the tree of values to what the policy says, checked.
//!
//! Everything that is wrong is told, not only the first: a decoder that meets a mistake reports it
//! and goes on with the next field. What it hands out is complete only if the report is clean.

mod amount;
mod cost;
mod gateway;
mod layer;
mod limit;
mod observe;
mod settings;
mod when;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::attribute::{AttributeId, Attributes};
use crate::bounds::{ATTRIBUTE_BYTES_MAX, LIMITS_MAX};
use crate::condition::{self, Condition};
use crate::mistake::{Report, Source, Span, WarningCode, quoted};
use crate::settings::{Paths, Settings};
use crate::suggest::{closest, distance};
use crate::yaml::{Kind, Node, Word};

pub(crate) use amount::{Amount, At, By, Key};
pub(crate) use cost::CostDraft;
pub(crate) use limit::{HowMuch, LimitDraft};

/// Every field of every map of a policy, by the map; the schema names the same ones.
#[cfg(test)]
pub(crate) const FIELDS: [(&str, &[&str]); 30] = [
    ("policy", &POLICY_FIELDS),
    ("listen", &settings::LISTEN_FIELDS),
    ("route", &gateway::ROUTE_FIELDS),
    ("route_when", &gateway::ROUTE_WHEN_FIELDS),
    ("gateway", &gateway::GATEWAY_FIELDS),
    ("listener", &settings::LISTENER_FIELDS),
    ("tls", &settings::TLS_FIELDS),
    ("store", &settings::STORE_FIELDS),
    ("memory", &settings::MEMORY_FIELDS),
    ("redis", &settings::REDIS_FIELDS),
    ("sentinel", &settings::SENTINEL_FIELDS),
    ("client_ip", &settings::CLIENT_IP_FIELDS),
    ("paths", &settings::PATHS_FIELDS),
    ("tenants", &settings::TENANTS_FIELDS),
    ("unknown", &settings::UNKNOWN_FIELDS),
    ("descriptors", &settings::DESCRIPTORS_FIELDS),
    ("observe", &observe::OBSERVE_FIELDS),
    ("audit", &observe::AUDIT_FIELDS),
    ("otlp", &observe::OTLP_FIELDS),
    ("limit", &limit::LIMIT_FIELDS),
    ("first", &limit::FIRST_FIELDS),
    ("shards", &limit::SHARDS_FIELDS),
    ("by", &amount::BY_FIELDS),
    ("cost", &cost::COST_FIELDS),
    ("reserve", &cost::RESERVE_FIELDS),
    ("settle", &cost::SETTLE_FIELDS),
    ("test", &when::TEST_FIELDS),
    ("tenants_file", &crate::tenants::FILE_FIELDS),
    ("tenants_key", &crate::tenants::KEY_FIELDS),
    ("override", &crate::tenants::OVERRIDE_FIELDS),
];

const POLICY_FIELDS: [&str; 14] = [
    "listen",
    "upstream",
    "gateway",
    "store",
    "nodes",
    "client_ip",
    "paths",
    "tenants",
    "exempt",
    "deny",
    "limits",
    "headers",
    "descriptors",
    "observe",
];

/// What a policy file says.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) settings: Settings,
    pub(crate) tenants: Option<TenantsDraft>,
    /// Whether there is a `tenants` section, readable or not.
    pub(crate) has_tenants: bool,
    pub(crate) exempt: Vec<ListDraft>,
    pub(crate) deny: Vec<ListDraft>,
    pub(crate) limits: Vec<LimitDraft>,
    /// Tiers that conditions speak of.
    pub(crate) tiers: Vec<Word>,
    /// Every file that is named.
    pub(crate) files: Vec<NamedFile>,
}

/// A file, where a policy names it.
#[derive(Debug)]
pub(crate) struct NamedFile {
    /// Whose it is: `listen.http`.
    pub(crate) owner: String,
    pub(crate) name: Word,
}

/// The `tenants` section.
#[derive(Debug)]
pub(crate) struct TenantsDraft {
    pub(crate) from: AttributeId,
    pub(crate) file: Word,
    /// The tier of a request without a known key; `None` refuses it.
    pub(crate) unknown: Option<Word>,
}

/// An entry of `exempt` or `deny`.
#[derive(Debug)]
pub(crate) struct ListDraft {
    pub(crate) span: Span,
    pub(crate) conditions: Vec<Condition>,
}

/// Reads what the tree says.
pub(crate) struct Decoder<'s, 't, 'm> {
    pub(crate) source: &'s Source<'t>,
    pub(crate) report: &'m mut Report,
    pub(crate) attributes: Attributes,
    tiers: Vec<Word>,
    files: Vec<NamedFile>,
    /// Where the gateway listens, to which it must not send anything itself.
    gateway: Option<SocketAddr>,
    /// What is one path, also in the patterns that follow.
    paths: Paths,
    /// Values that conditions ask for, each once.
    words: HashSet<condition::Word>,
}

impl<'s, 't, 'm> Decoder<'s, 't, 'm> {
    pub(crate) fn new(source: &'s Source<'t>, report: &'m mut Report) -> Self {
        Self {
            source,
            report,
            attributes: Attributes::default(),
            tiers: Vec::new(),
            files: Vec::new(),
            gateway: None,
            paths: Paths::default(),
            words: HashSet::new(),
        }
    }

    pub(crate) fn document(&mut self, root: &Node) -> Document {
        let mut document = Document::default();
        let Some(fields) = self.fields(root, "", &POLICY_FIELDS) else { return document };
        self.settings(&fields, &mut document);
        document.exempt = self.condition_list(&fields, "exempt");
        document.deny = self.condition_list(&fields, "deny");
        document.limits = self.limits(&fields);
        document.tiers = std::mem::take(&mut self.tiers);
        document.files = std::mem::take(&mut self.files);
        document
    }

    fn limits(&mut self, fields: &Fields<'_>) -> Vec<LimitDraft> {
        let Some(list) = fields.get("limits").and_then(|node| self.list_of_limits(node)) else {
            if !fields.has("limits") {
                let sentence = "the policy has no limits, so it lets everything through";
                self.warning(Span::START, WarningCode::NoLimits, sentence);
            }
            return Vec::new();
        };
        if let Some(first_beyond) = list.get(LIMITS_MAX) {
            let sentence = format!("{} limits are more than {LIMITS_MAX}, the most", list.len());
            self.mistake(first_beyond.span, "limits", sentence);
            return Vec::new();
        }
        if list.is_empty() {
            let sentence = "the list of limits is empty, so everything is let through";
            self.warning(fields.span("limits"), WarningCode::NoLimits, sentence);
        }
        let mut limits = Vec::with_capacity(list.len());
        let mut names = HashMap::new();
        for (number, node) in list.iter().enumerate() {
            limits.extend(self.limit(node, number + 1, &mut names));
        }
        limits
    }

    /// The limits; many write a map from name to limit first.
    fn list_of_limits<'n>(&mut self, node: &'n Node) -> Option<&'n [Node]> {
        let entries = match &node.kind {
            Kind::List(limits) => return Some(limits),
            Kind::Map(entries) => &entries[..],
            Kind::Scalar(_) => &[],
        };
        let is_name = |(key, value): &&(Word, Node)| {
            matches!(value.kind, Kind::Map(_)) && !limit::LIMIT_FIELDS.contains(&key.text.as_str())
        };
        let name =
            entries.iter().find(is_name).map_or("login".into(), |(key, _)| quoted(&key.text));
        let sentence = format!(
            "limits is a list, and found {}; write each limit as in \
             - {{ name: {name}, rate: 5/minute }}",
            self.described(node)
        );
        self.mistake(node.span, "", sentence);
        None
    }

    /// A value that conditions may share.
    fn word(&mut self, bytes: &[u8]) -> condition::Word {
        if let Some(word) = self.words.get(bytes) {
            return Arc::clone(word);
        }
        let word: condition::Word = bytes.into();
        self.words.insert(Arc::clone(&word));
        word
    }

    /// A mistake, told of its owner: `limit "login"`, or nobody.
    pub(crate) fn mistake(&mut self, span: Span, owner: &str, what: impl std::fmt::Display) {
        let sentence = if owner.is_empty() { what.to_string() } else { format!("{owner}: {what}") };
        self.report.mistake(self.source, span, sentence);
    }

    pub(crate) fn warning(&mut self, span: Span, code: WarningCode, what: impl Into<String>) {
        self.report.warning(self.source, span, code, what);
    }

    /// The fields of a map, all of which must be known.
    pub(crate) fn fields<'n>(
        &mut self,
        node: &'n Node,
        owner: &str,
        known: &[&'static str],
    ) -> Option<Fields<'n>> {
        let Kind::Map(entries) = &node.kind else {
            let fields = known.join(", ");
            let found = self.described(node);
            let sentence = format!("a map is expected here, of {fields}; found {found}");
            self.mistake(node.span, owner, sentence);
            return None;
        };
        for (key, _) in entries {
            if !known.contains(&key.text.as_str()) {
                self.unknown_field(key, owner, known);
            }
        }
        Some(Fields { entries, span: node.span })
    }

    fn unknown_field(&mut self, key: &Word, owner: &str, known: &[&'static str]) {
        // In a file of keys, what is out of place may be a key.
        let name = if self.source.secret { "this".to_owned() } else { quoted(&key.text) };
        let advice = match closest(&key.text, known.iter().copied()) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("the fields here are {}", known.join(", ")),
        };
        self.mistake(key.span, owner, format!("{name} is not a field; {advice}"));
    }

    /// What is written at a node, to follow "found" in a sentence.
    fn described(&self, node: &Node) -> String {
        match &node.kind {
            Kind::Scalar(_) if node.is_nothing() => "nothing".to_owned(),
            Kind::Scalar(_) if self.source.secret => "one value".to_owned(),
            Kind::Scalar(scalar) => quoted(&scalar.text),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
        }
    }

    /// The values of a list.
    pub(crate) fn list<'n>(
        &mut self,
        node: &'n Node,
        owner: &str,
        field: &str,
    ) -> Option<&'n [Node]> {
        if let Kind::List(values) = &node.kind {
            return Some(values);
        }
        let found = self.described(node);
        self.mistake(node.span, owner, format!("{field} is a list, as in [a, b]; found {found}"));
        None
    }

    /// The text of a scalar.
    pub(crate) fn text<'n>(&mut self, node: &'n Node, owner: &str, field: &str) -> Option<&'n str> {
        match &node.kind {
            Kind::Scalar(scalar) if !node.is_nothing() => Some(&scalar.text),
            _ => {
                let found = self.described(node);
                self.mistake(node.span, owner, format!("{field} is one value; found {found}"));
                None
            }
        }
    }

    /// One of several words.
    pub(crate) fn one_of<T: Copy>(
        &mut self,
        node: &Node,
        owner: &str,
        field: &str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(node, owner, field)?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*meaning);
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let advice = match closest(text, names.iter().copied()) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("write one of {}", names.join(", ")),
        };
        let text = quoted(text);
        self.mistake(node.span, owner, format!("{field} cannot be {text}; {advice}"));
        None
    }

    /// The name of an attribute.
    pub(crate) fn attribute(
        &mut self,
        node: &Node,
        owner: &str,
        field: &str,
    ) -> Option<AttributeId> {
        let text = self.text(node, owner, field)?;
        self.attribute_named(text, node.span, owner)
    }

    pub(crate) fn attribute_named(
        &mut self,
        name: &str,
        span: Span,
        owner: &str,
    ) -> Option<AttributeId> {
        let wrong = what_is_wrong_with_attribute(name);
        if let Some(wrong) = wrong {
            self.mistake(span, owner, format!("{} {wrong}", quoted(name)));
            return None;
        }
        if let Some(meant) = probably_meant(name) {
            let name = quoted(name);
            let sentence =
                format!("no door of tollgate fills in {name}; did you mean {meant}? ({owner})");
            self.warning(span, WarningCode::MisspeltAttribute, sentence);
        }
        Some(self.attributes.intern(name))
    }
}

/// What is wrong with an attribute's name, to follow the quoted name in a sentence.
fn what_is_wrong_with_attribute(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("is no name of an attribute; write for example client_ip");
    }
    if name.len() > ATTRIBUTE_BYTES_MAX {
        return Some("is longer than an attribute's name may be, 256 bytes");
    }
    if name.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
        return Some("is no name of an attribute, because it holds a space");
    }
    match name.split_once(':') {
        Some(("header" | "query" | "cookie", "")) => {
            Some("names nothing after the colon; write for example header:x-api-key")
        }
        Some(("header", field)) if !field.bytes().all(is_token) => {
            Some("holds a character that no header's name has")
        }
        _ => None,
    }
}

/// Whether a byte may be part of a header's name.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Attributes that the doors fill in.
const BUILT_IN: [&str; 6] = ["client_ip", "method", "path", "host", "tenant", "tier"];
/// What the names of further ones begin with.
const BUILT_IN_KINDS: [&str; 3] = ["header", "query", "cookie"];

/// The attribute a name is a slip of, if it is close to one that the doors fill in.
fn probably_meant(name: &str) -> Option<String> {
    let near = |text: &str, word: &str| {
        let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_'], "");
        text != word && (plain(text) == plain(word) || distance(text, word) == 1)
    };
    if name.len() > 40 || BUILT_IN.contains(&name) {
        return None;
    }
    if let Some((kind, rest)) = name.split_once(':') {
        let kind = BUILT_IN_KINDS.into_iter().find(|word| near(kind, word))?;
        return Some(format!("{kind}:{rest}"));
    }
    BUILT_IN.into_iter().find(|word| near(name, word)).map(str::to_owned)
}

/// The fields of one map.
pub(crate) struct Fields<'n> {
    entries: &'n [(Word, Node)],
    span: Span,
}

impl<'n> Fields<'n> {
    /// What is written at a field, also if that is nothing.
    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(key, _)| key.text == name).map(|(_, value)| value)
    }

    /// Whether every field is one of these.
    pub(crate) fn are_among(&self, known: &[&str]) -> bool {
        self.entries.iter().all(|(key, _)| known.contains(&key.text.as_str()))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Where a field's name is written; where the map is, if it is not.
    pub(crate) fn span(&self, name: &str) -> Span {
        let entry = self.entries.iter().find(|(key, _)| key.text == name);
        entry.map_or(self.span, |(key, _)| key.span)
    }

    pub(crate) fn entries(&self) -> &'n [(Word, Node)] {
        self.entries
    }
}
