//! `upstream` and `gateway`: where the gateway sends what it lets through, and how patiently.

use tollgate_core::{Cost, Micros};

use super::{Decoder, Fields};
use crate::bounds::{
    GATEWAY_TIMEOUT_MICROS_RANGE, HELD_MAX, ROUTE_COMPARISONS_MAX, ROUTE_PATTERNS_MAX, ROUTES_MAX,
    TARGETS_MAX,
};
use crate::condition::{HostPattern, Test};
use crate::mistake::{WarningCode, quoted};
use crate::path::Pattern;
use crate::settings::{Gateway, Listen};
use crate::upstream::{Route, Target};
use crate::yaml::{Kind, Node, Scalar};

pub(super) const ROUTE_FIELDS: [&str; 2] = ["when", "to"];
pub(super) const ROUTE_WHEN_FIELDS: [&str; 2] = ["host", "path"];
pub(super) const GATEWAY_FIELDS: [&str; 7] = [
    "connect_timeout",
    "headers_timeout",
    "idle_timeout",
    "total_timeout",
    "max_held",
    "request_id",
    "ca",
];

const OWNER: &str = "gateway";

impl Decoder<'_, '_, '_> {
    /// Routes, of which a URL or a list of them is one for everything. What has a mistake is left
    /// out.
    pub(super) fn upstream(&mut self, node: &Node) -> Vec<Route> {
        let is_map = |node: &Node| matches!(node.kind, Kind::Map(_));
        let routes = match &node.kind {
            Kind::List(list) if list.iter().any(is_map) => list,
            Kind::Map(_) => {
                let sentence = "routes are a list; write - before each, as in \
                                - { when: { path: /api/** }, to: http://127.0.0.1:3000 }";
                self.mistake(node.span, "upstream", sentence);
                return Vec::new();
            }
            Kind::Scalar(_) | Kind::List(_) => {
                let targets = self.targets(node, "", "upstream");
                let place = self.source.place(node.span);
                let route = |targets| Route {
                    place,
                    number: 0,
                    hosts: Vec::new(),
                    paths: Vec::new(),
                    targets,
                };
                return targets.map(route).into_iter().collect();
            }
        };
        if routes.len() > ROUTES_MAX {
            let sentence = format!("{} routes are more than {ROUTES_MAX}, the most", routes.len());
            self.mistake(node.span, "upstream", sentence);
            return Vec::new();
        }
        let mut read: Vec<Route> = Vec::with_capacity(routes.len());
        let mut compared: usize = 0;
        for (number, node) in routes.iter().enumerate() {
            let Some(route) = self.route(node, number) else { continue };
            let covers = |earlier: &&Route| {
                compared = compared.saturating_add(earlier.length() * route.length());
                compared <= ROUTE_COMPARISONS_MAX && earlier.covers(&route)
            };
            if let Some(earlier) = read.iter().find(covers) {
                let sentence = format!(
                    "route {} of upstream is never taken, because route {} stands for all that it \
                     does; write it before that one",
                    number + 1,
                    earlier.number + 1
                );
                self.warning(node.span.start(), WarningCode::RouteNeverTaken, sentence);
            }
            read.push(route);
        }
        read
    }

    fn route(&mut self, node: &Node, number: usize) -> Option<Route> {
        let owner = format!("upstream[{}]", number + 1);
        let fields = self.fields(node, &owner, &ROUTE_FIELDS)?;
        let when = match fields.get("when") {
            Some(node) => self.route_when(node, &owner),
            None => Some((Vec::new(), Vec::new())),
        };
        let to = self.required(&fields, &owner, "to", "http://127.0.0.1:3000");
        let targets = self.targets(to?, &owner, "to");
        let (hosts, paths) = when?;
        let place = self.source.place(node.span);
        Some(Route { place, number, hosts, paths, targets: targets? })
    }

    fn route_when(&mut self, node: &Node, owner: &str) -> Option<(Vec<HostPattern>, Vec<Pattern>)> {
        let fields = self.fields(node, owner, &ROUTE_WHEN_FIELDS)?;
        let hosts = self.route_patterns(&fields, owner, "host", "example.com");
        let paths = self.route_patterns(&fields, owner, "path", "/api/**");
        let hosts = match hosts? {
            Some(Test::Host(hosts)) => hosts,
            _ => Vec::new(),
        };
        let paths = match paths? {
            Some(Test::Path(paths)) => paths,
            _ => Vec::new(),
        };
        Some((hosts, paths))
    }

    /// One pattern or a list of them: which route is taken otherwise goes by their order. The inner
    /// `None` if there is no condition, the outer if it cannot be read.
    fn route_patterns(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
        name: &str,
        example: &str,
    ) -> Option<Option<Test>> {
        let Some(node) = fields.get(name) else { return Some(None) };
        let nodes = match &node.kind {
            Kind::Scalar(Scalar { text, plain: true }) if text == "present" || text == "absent" => {
                &[]
            }
            Kind::Scalar(_) if !node.is_nothing() => std::slice::from_ref(node),
            Kind::List(nodes) => &nodes[..],
            Kind::Scalar(_) | Kind::Map(_) => &[],
        };
        if nodes.is_empty() {
            let sentence = format!(
                "{name} of a route is one or a list, as in {example}; what is not meant goes to a \
                 route before it"
            );
            self.mistake(node.span, owner, sentence);
            return None;
        }
        if nodes.len() > ROUTE_PATTERNS_MAX {
            let sentence =
                format!("{name} names {}; the most is {ROUTE_PATTERNS_MAX}", nodes.len());
            self.mistake(node.span, owner, sentence);
            return None;
        }
        self.values(name, nodes, owner).map(Some)
    }

    /// One server or a list of them.
    fn targets(&mut self, node: &Node, owner: &str, field: &str) -> Option<Vec<Target>> {
        let nodes = match &node.kind {
            Kind::List(list) if list.is_empty() => {
                let sentence =
                    format!("{field} names no server; write for example http://127.0.0.1:3000");
                self.mistake(node.span, owner, sentence);
                return None;
            }
            Kind::List(list) if list.len() > TARGETS_MAX => {
                let sentence =
                    format!("{field} names {} servers; the most is {TARGETS_MAX}", list.len());
                self.mistake(node.span, owner, sentence);
                return None;
            }
            Kind::List(list) => list,
            Kind::Scalar(_) | Kind::Map(_) => std::slice::from_ref(node),
        };
        let mut targets: Vec<Target> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let Some(target) = self.target(node, owner, field) else { continue };
            if targets.contains(&target) {
                self.mistake(node.span, owner, format!("{field} names this server twice"));
            }
            targets.push(target);
        }
        (targets.len() == nodes.len()).then_some(targets)
    }

    fn target(&mut self, node: &Node, owner: &str, field: &str) -> Option<Target> {
        let text = self.text(node, owner, field)?;
        match Target::read(text) {
            Ok(target) => {
                if let Some(own) = self.gateway.filter(|own| target.is_at(*own)) {
                    let sentence = format!(
                        "{field} {} is the gateway itself, which listens at {own} and would send \
                         every request to itself; name the server behind it, or open it elsewhere, \
                         as in listen: {{ gateway: 127.0.0.1:8001 }}",
                        quoted(text)
                    );
                    self.mistake(node.span, owner, sentence);
                }
                Some(target)
            }
            Err(wrong) => {
                self.url_mistake(node, owner, field, text, wrong);
                None
            }
        }
    }

    pub(super) fn gateway(&mut self, node: &Node) -> Gateway {
        let mut gateway = Gateway::default();
        let Some(fields) = self.fields(node, OWNER, &GATEWAY_FIELDS) else { return gateway };
        if let Some(timeout) = self.timeout(&fields, "connect_timeout") {
            gateway.connect_timeout = timeout;
        }
        if let Some(timeout) = self.timeout(&fields, "headers_timeout") {
            gateway.headers_timeout = timeout;
        }
        if let Some(timeout) = self.timeout_or_off(&fields, "idle_timeout") {
            gateway.idle_timeout = timeout;
        }
        if let Some(timeout) = self.timeout_or_off(&fields, "total_timeout") {
            gateway.total_timeout = timeout;
        }
        if let Some(held) = fields.get("max_held").and_then(|node| self.max_held(node)) {
            gateway.max_held = held;
        }
        if is_off(&fields, "request_id") {
            gateway.request_id = None;
        } else if let Some(node) = fields.get("request_id") {
            let name = self.header_name(node, OWNER, "X-Request-Id");
            gateway.request_id = name.map(|name| name.to_ascii_lowercase());
        }
        gateway.ca = fields.get("ca").and_then(|node| self.file(node, OWNER, "ca"));
        gateway
    }

    fn timeout(&mut self, fields: &Fields<'_>, field: &str) -> Option<Micros> {
        let node = fields.get(field)?;
        if is_off(fields, field) {
            let sentence = format!("{field} cannot be off; write for example 30s");
            self.mistake(node.span, OWNER, sentence);
            return None;
        }
        let timeout = self.duration(node, OWNER, field)?;
        if !GATEWAY_TIMEOUT_MICROS_RANGE.contains(&timeout.as_micros()) {
            let (least, most) = GATEWAY_TIMEOUT_MICROS_RANGE.into_inner();
            let (least, most) = (Micros::new(least), Micros::new(most));
            let sentence = format!("{field} {timeout} is outside {least} to {most}");
            self.mistake(node.span, OWNER, sentence);
            return None;
        }
        Some(timeout)
    }

    /// The inner `None` for `off`.
    fn timeout_or_off(&mut self, fields: &Fields<'_>, field: &str) -> Option<Option<Micros>> {
        if is_off(fields, field) {
            return Some(None);
        }
        self.timeout(fields, field).map(Some)
    }

    fn max_held(&mut self, node: &Node) -> Option<u32> {
        let text = self.text(node, OWNER, "max_held")?;
        let held = text.parse::<Cost>().ok().map(Cost::units);
        let held = held.filter(|held| (1..=HELD_MAX).contains(held));
        if held.is_none() {
            let text = quoted(text);
            let sentence = format!("max_held {text} is not a whole number from 1 to {HELD_MAX}");
            self.mistake(node.span, OWNER, sentence);
        }
        held
    }

    /// What is said of the gateway means nothing unless it is open and has something behind it.
    pub(super) fn check_gateway(&mut self, fields: &Fields<'_>, listen: &Listen) {
        let is_open_unasked = !listen.is_written && fields.has("upstream");
        let is_open = listen.gateway.is_some() || is_open_unasked;
        if listen.gateway.is_some() && !fields.has("upstream") {
            let sentence = "listen.gateway stays closed, because there is no upstream to send to";
            self.warning(fields.span("listen"), WarningCode::GatewayIdle, sentence);
        }
        for section in ["upstream", "gateway"] {
            if !is_open && fields.has(section) {
                let sentence = format!("{section} is not used, because listen.gateway is not set");
                self.warning(fields.span(section), WarningCode::GatewayIdle, sentence);
            }
        }
    }
}

fn is_off(fields: &Fields<'_>, field: &str) -> bool {
    let node = fields.get(field);
    node.is_some_and(|node| matches!(&node.kind, Kind::Scalar(scalar) if scalar.text == "off"))
}
