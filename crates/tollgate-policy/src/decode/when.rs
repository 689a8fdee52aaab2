//! `when`, and the entries of `exempt` and `deny`: what must hold of a request.

use super::{Decoder, Fields, ListDraft};
use crate::address::CidrSet;
use crate::condition::{Condition, HostPattern, Test, canonical_host, canonical_method};
use crate::layer::Layer;
use crate::mistake::{WarningCode, quoted};
use crate::path::Pattern;
use crate::suggest::closest;
use crate::yaml::{Kind, Node, Scalar, Word};

pub(super) const TEST_FIELDS: [&str; 2] = ["not", "cidr"];

impl Decoder<'_, '_, '_> {
    /// The entries of `exempt` or `deny`.
    pub(super) fn condition_list(&mut self, fields: &Fields<'_>, name: &str) -> Vec<ListDraft> {
        let list = fields.get(name).and_then(|node| self.list(node, "", name)).unwrap_or_default();
        let mut entries = Vec::with_capacity(list.len());
        for (number, node) in list.iter().enumerate() {
            let owner = format!("{name}[{}]", number + 1);
            if let Kind::Map(entries) = &node.kind
                && let Some((name, _)) = entries.iter().find(|(name, _)| name.text == "layer")
            {
                let sentence = "layer is for limits; an entry that asks for client_ip alone holds \
                                for connections too";
                self.mistake(name.span, &owner, sentence);
            }
            let conditions = self.when(node, &owner);
            if matches!(&node.kind, Kind::Map(entries) if entries.is_empty()) {
                let sentence = "this would hold for every request; write a condition, for example \
                                {client_ip: {cidr: [10.0.0.0/8]}}";
                self.mistake(node.span, &owner, sentence);
            }
            entries.push(ListDraft { span: node.span, conditions });
        }
        entries
    }

    /// A map of conditions, all of which must hold; `layer` is none of them.
    pub(super) fn when(&mut self, node: &Node, owner: &str) -> Vec<Condition> {
        let Kind::Map(entries) = &node.kind else {
            let found = self.described(node);
            let sentence = format!(
                "conditions are a map, as in {{method: POST, path: /login}}; found {found}"
            );
            self.mistake(node.span, owner, sentence);
            return Vec::new();
        };
        let mut conditions = Vec::with_capacity(entries.len());
        for (name, value) in entries.iter().filter(|(name, _)| name.text != "layer") {
            self.check_for_layer(name, value, owner);
            let Some(attribute) = self.attribute_named(&name.text, name.span, owner) else {
                continue;
            };
            if let Some(test) = self.test(&name.text, value, owner) {
                conditions.push(Condition { attribute, test });
            }
        }
        conditions
    }

    /// A limit with a slip of `layer` would be one of requests that no request meets.
    fn check_for_layer(&mut self, name: &Word, value: &Node, owner: &str) {
        let is_layer = |text: &str| Layer::ALL.iter().any(|layer| layer.name() == text);
        let says_layer = matches!(&value.kind, Kind::Scalar(scalar) if is_layer(&scalar.text));
        if says_layer && closest(&name.text, ["layer"]).is_some() {
            let text = quoted(&name.text);
            let sentence =
                format!("no door of tollgate fills in {text}; did you mean layer? ({owner})");
            self.warning(name.span, WarningCode::MisspeltAttribute, sentence);
        }
    }

    fn test(&mut self, name: &str, node: &Node, owner: &str) -> Option<Test> {
        match &node.kind {
            Kind::Scalar(_) if node.is_nothing() => {
                let sentence = format!("{name} asks for nothing; write a value, present or absent");
                self.mistake(node.span, owner, sentence);
                None
            }
            // In quotes they are values like any other.
            Kind::Scalar(Scalar { text, plain: true }) if text == "present" => Some(Test::Present),
            Kind::Scalar(Scalar { text, plain: true }) if text == "absent" => Some(Test::Absent),
            Kind::Scalar(_) => self.values(name, std::slice::from_ref(node), owner),
            Kind::List(values) if values.is_empty() => {
                let sentence = format!("{name} fits no request, because its list is empty");
                self.mistake(node.span, owner, sentence);
                None
            }
            Kind::List(values) => self.values(name, values, owner),
            Kind::Map(_) => self.test_by_name(name, node, owner),
        }
    }

    /// `{not: …}` or `{cidr: […]}`.
    fn test_by_name(&mut self, name: &str, node: &Node, owner: &str) -> Option<Test> {
        let fields = self.fields(node, owner, &TEST_FIELDS)?;
        match (fields.get("not"), fields.get("cidr")) {
            (Some(inner), None) => self.test(name, inner, owner).map(Box::new).map(Test::Not),
            (None, Some(blocks)) => {
                let blocks = match &blocks.kind {
                    Kind::List(list) if list.is_empty() => {
                        self.mistake(blocks.span, owner, "cidr names no block of addresses");
                        return None;
                    }
                    Kind::List(list) => list,
                    Kind::Scalar(_) | Kind::Map(_) => std::slice::from_ref(blocks),
                };
                let read: Vec<_> = blocks.iter().map(|node| self.block(node, owner)).collect();
                let blocks: Option<Vec<_>> = read.into_iter().collect();
                Some(Test::Cidr(Box::new(CidrSet::new(blocks?))))
            }
            (Some(_), Some(_)) => {
                let sentence =
                    format!("{name} says both not and cidr; write {{not: {{cidr: […]}}}}");
                self.mistake(node.span, owner, sentence);
                None
            }
            // What was written instead has been told.
            (None, None) if !fields.entries().is_empty() => None,
            (None, None) => {
                let sentence = format!("{name} asks for nothing; write not or cidr");
                self.mistake(node.span, owner, sentence);
                None
            }
        }
    }

    /// Any of several values, in the way their attribute is compared.
    pub(super) fn values(&mut self, name: &str, nodes: &[Node], owner: &str) -> Option<Test> {
        let mut texts = Vec::with_capacity(nodes.len());
        for node in nodes {
            let text = self.text(node, owner, name)?;
            let is_word = matches!(&node.kind, Kind::Scalar(Scalar { plain: true, .. }));
            if nodes.len() > 1 && is_word && (text == "present" || text == "absent") {
                let sentence =
                    format!("{text} stands alone, outside a list; in quotes it is a value");
                self.mistake(node.span, owner, sentence);
                return None;
            }
            texts.push((node, text));
        }
        match name {
            "path" => {
                let paths = self.paths;
                let read = |text: &str| Pattern::read(text, paths);
                self.read_all(&texts, owner, read).map(Test::Path)
            }
            "host" => self.read_all(&texts, owner, read_host).map(Test::Host),
            "method" => {
                let methods = self.read_all(&texts, owner, read_method)?;
                Some(Test::Method(methods.iter().map(|method| self.word(method)).collect()))
            }
            "client_ip" => {
                let blocks = self.read_all(&texts, owner, read_address)?;
                Some(Test::Cidr(Box::new(CidrSet::new(blocks))))
            }
            _ => {
                if name == "tier" {
                    let word = |(node, text): &(&Node, &str)| Word {
                        span: node.span,
                        text: (*text).to_owned(),
                    };
                    self.tiers.extend(texts.iter().map(word));
                }
                let words = texts.iter().map(|(_, text)| self.word(text.as_bytes()));
                Some(Test::OneOf(words.collect()))
            }
        }
    }

    /// Reads every text, and tells of every one that cannot be read.
    fn read_all<T>(
        &mut self,
        texts: &[(&Node, &str)],
        owner: &str,
        read: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Option<Vec<T>> {
        let mut values = Vec::with_capacity(texts.len());
        for (node, text) in texts {
            match read(text) {
                Ok(value) => values.push(value),
                Err(wrong) => self.mistake(node.span, owner, format!("{} {wrong}", quoted(text))),
            }
        }
        (values.len() == texts.len()).then_some(values)
    }
}

/// A host as it is compared: in small letters, without port.
pub(super) fn read_host(text: &str) -> Result<HostPattern, &'static str> {
    let (name, below) = match text.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (text, false),
    };
    if name.contains('*') {
        return Err("is not a host; * stands only at its front, as in *.example.com");
    }
    let canonical = canonical_host(name.as_bytes());
    let is_address = name.ends_with(']');
    if !is_address && canonical.len() < name.strip_suffix('.').unwrap_or(name).len() {
        return Err("names a port; a host is compared without it");
    }
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(byte);
    if canonical.is_empty() || !canonical.iter().all(is_plain) {
        return Err("is not a host; write for example example.com or *.example.com");
    }
    Ok(HostPattern { name: canonical.as_slice().into(), below })
}

/// A method in capitals.
pub(super) fn read_method(text: &str) -> Result<Box<[u8]>, &'static str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("is not a method; write for example GET");
    }
    Ok(canonical_method(text.as_bytes()).as_slice().into())
}

fn read_address(text: &str) -> Result<crate::address::Cidr, &'static str> {
    if text.contains('/') {
        return Err("is a block of addresses; write {cidr: […]} around it");
    }
    text.parse().map_err(|_| "is not an address; write for example 203.0.113.7 or {cidr: […]}")
}
