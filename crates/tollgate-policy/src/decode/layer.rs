//! `layer`: what a limit counts, and what may be asked of that.

use tollgate_core::Algorithm;

use super::cost::CostDraft;
use super::limit::{HowMuch, ShardsDraft, Tuning};
use super::{Amount, Decoder, Fields};
use crate::attribute::AttributeId;
use crate::layer::Layer;
use crate::mistake::Span;
use crate::rule::{OnDenied, Settle};
use crate::yaml::{Kind, Node};

/// What is known of a limit while the rest is still being read; what has a mistake is not there.
pub(super) struct Known<'d> {
    pub(super) algorithm: Algorithm,
    pub(super) per: Option<&'d [(Span, Vec<AttributeId>)]>,
    pub(super) how_much: Option<&'d HowMuch>,
    pub(super) tuning: Option<&'d Tuning>,
    pub(super) cost: Option<&'d (CostDraft, Option<Settle>)>,
    pub(super) shards: Option<&'d ShardsDraft>,
}

impl Decoder<'_, '_, '_> {
    /// What a limit with this `when` counts. Of WebSockets, whether open ones or their messages goes
    /// by how much of them is allowed.
    pub(super) fn layer(&mut self, fields: &Fields<'_>, owner: &str) -> Option<Layer> {
        let Some(Kind::Map(when)) = fields.get("when").map(|node| &node.kind) else {
            return Some(Layer::Request);
        };
        let Some((_, node)) = when.iter().find(|(name, _)| name.text == "layer") else {
            return Some(Layer::Request);
        };
        let of_sockets = if fields.has("concurrency") { Layer::Socket } else { Layer::Message };
        let words = [Layer::Request, Layer::Connection, of_sockets, Layer::Stream];
        let words = words.map(|it| (it.name(), it));
        self.one_of(node, owner, "layer", &words)
    }

    pub(super) fn on_denied(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
        layer: Option<Layer>,
    ) -> Option<OnDenied> {
        let Some(node) = fields.get("on_denied") else { return Some(OnDenied::default()) };
        let words = [OnDenied::Close, OnDenied::Delay].map(|word| (word.name(), word));
        let said = self.one_of(node, owner, "on_denied", &words);
        let wrong = match layer {
            Some(Layer::Request | Layer::Connection) => {
                "on_denied is for messages; write when: {layer: websocket} or {layer: stream}, or \
                 leave it out"
            }
            Some(Layer::Socket) => {
                "on_denied means nothing to concurrency: a WebSocket too many is not opened"
            }
            Some(Layer::Message | Layer::Fragment | Layer::Stream) | None => return said,
        };
        self.mistake(fields.span("on_denied"), owner, wrong);
        said
    }

    /// What is not known of a connection or a message cannot be counted by, and who cannot be held
    /// cannot be delayed.
    pub(super) fn check_layer(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
        layer: Layer,
        known: &Known<'_>,
    ) {
        if layer == Layer::Request {
            return;
        }
        if known.algorithm == Algorithm::LeakyBucket {
            let instead = match layer {
                Layer::Message | Layer::Stream => "take token_bucket and on_denied: delay",
                _ => "take token_bucket",
            };
            let sentence =
                format!("a leaky_bucket holds requests, and not {}; {instead}", layer.plural());
            self.mistake(fields.span("algorithm"), owner, sentence);
        }
        if let Some((_, Some(_))) = known.cost {
            let sentence = format!("settle is for requests; {} have no response", layer.plural());
            self.mistake(fields.span("cost"), owner, sentence);
        }
        if let (Layer::Stream, Some(HowMuch::Slots(_))) = (layer, known.how_much) {
            let sentence = "layer: stream counts messages; write concurrency without it: a request \
                            holds its slot until its response has ended";
            self.mistake(fields.span("concurrency"), owner, sentence);
        }
        match (layer, known.cost) {
            (Layer::Connection, _) => self.check_connection(fields, owner, known),
            (Layer::Message | Layer::Stream, Some((CostDraft::Attribute(attribute, span), _)))
                if &**self.attributes.name(*attribute) != "bytes" =>
            {
                let sentence = "a message costs what the policy says, or its length: write a number, \
                                or cost: {attribute: bytes}";
                self.mistake(*span, owner, sentence);
            }
            (Layer::Socket, Some((CostDraft::Attribute(_, span), _))) => {
                let sentence =
                    "a WebSocket that is opened holds a number of slots; write that number";
                self.mistake(*span, owner, sentence);
            }
            _ => {}
        }
    }

    fn check_connection(&mut self, fields: &Fields<'_>, owner: &str, known: &Known<'_>) {
        for (span, id) in self.asked_for(fields.get("when"), known) {
            let name = self.attributes.name(id).to_string();
            if name != "client_ip" {
                let sentence = format!(
                    "a connection has no {name}: all that is known when it is accepted is client_ip"
                );
                self.mistake(span, owner, sentence);
            }
        }
    }

    /// Every attribute that a limit asks for, and where.
    fn asked_for(&self, when: Option<&Node>, known: &Known<'_>) -> Vec<(Span, AttributeId)> {
        let mut asked = Vec::new();
        if let Some(Kind::Map(when)) = when.map(|node| &node.kind) {
            let named = when.iter().map(|(name, _)| name);
            let found =
                named.filter_map(|name| Some((name.span, self.attributes.find(&name.text)?)));
            asked.extend(found.filter(|(_, id)| &**self.attributes.name(*id) != "layer"));
        }
        for (span, ids) in known.per.into_iter().flatten() {
            asked.extend(ids.iter().map(|id| (*span, *id)));
        }
        match known.how_much {
            Some(HowMuch::Rates(rates)) => asked.extend(rates.iter().filter_map(asked_by)),
            Some(HowMuch::Slots(slots)) => asked.extend(asked_by(slots)),
            None => {}
        }
        asked.extend(known.tuning.iter().flat_map(|tuning| &tuning.sizes).filter_map(asked_by));
        match known.cost {
            Some((CostDraft::Policy(cost), _)) => asked.extend(asked_by(cost)),
            Some((CostDraft::Attribute(attribute, span), _)) => asked.push((*span, *attribute)),
            Some((CostDraft::Caller, _)) | None => {}
        }
        asked.extend(known.shards.map(|shards| (shards.span, shards.by)));
        asked
    }
}

fn asked_by<T: Copy>(amount: &Amount<T>) -> Option<(Span, AttributeId)> {
    amount.by().map(|by| (by.span, by.attribute))
}
