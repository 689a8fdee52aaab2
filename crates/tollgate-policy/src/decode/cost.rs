//! What a request costs, and where its response says what it has cost.

use tollgate_core::Cost;

use super::amount::{Amount, BY_FIELDS};
use super::{Decoder, Fields};
use crate::attribute::AttributeId;
use crate::bounds::{JSON_NAMES_MAX, JSON_PATH_BYTES_MAX};
use crate::mistake::{Span, quoted};
use crate::rule::{OnExhausted, Settle};
use crate::yaml::{Kind, Node};

pub(super) const COST_FIELDS: [&str; 1] = ["attribute"];
pub(super) const RESERVE_FIELDS: [&str; 2] = ["reserve", "settle"];
pub(super) const SETTLE_FIELDS: [&str; 3] = ["json", "header", "body"];

/// What a request costs under a limit.
#[derive(Debug)]
pub(crate) enum CostDraft {
    /// What the caller says.
    Caller,
    /// What the policy says.
    Policy(Amount<Cost>),
    /// What an attribute holds.
    Attribute(AttributeId, Span),
}

impl Decoder<'_, '_, '_> {
    /// What is charged, and how it is settled if it is.
    pub(super) fn cost(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
    ) -> Option<(CostDraft, Option<Settle>)> {
        let Some(node) = fields.get("cost") else { return Some((CostDraft::Caller, None)) };
        let read = &mut |decoder: &mut Decoder<'_, '_, '_>, node: &Node| {
            decoder.count(node, owner, "cost").map(Cost::new)
        };
        let Kind::Map(entries) = &node.kind else {
            let cost = self.amount(node, owner, "cost", read).map(CostDraft::Policy);
            return cost.map(|cost| (cost, None));
        };
        let says = |words: &[&str]| entries.iter().any(|(key, _)| words.contains(&&*key.text));
        if says(&BY_FIELDS) {
            let by = self.amount_by(node, owner, "cost", read)?;
            return Some((CostDraft::Policy(Amount::By(by)), None));
        }
        if says(&RESERVE_FIELDS) {
            return self.reserve(node, owner);
        }
        if !says(&COST_FIELDS) {
            let sentence = "cost is a number, {attribute: tokens}, {by: path, values: {/search: 5}} \
                            or {reserve: 1000, settle: {json: usage.total_tokens}}";
            self.mistake(node.span, owner, sentence);
            return None;
        }
        let fields = self.fields(node, owner, &COST_FIELDS)?;
        let attribute = fields.get("attribute")?;
        let span = attribute.span;
        let attribute = self.attribute(attribute, owner, "attribute")?;
        Some((CostDraft::Attribute(attribute, span), None))
    }

    fn reserve(&mut self, node: &Node, owner: &str) -> Option<(CostDraft, Option<Settle>)> {
        let fields = self.fields(node, owner, &RESERVE_FIELDS)?;
        let reserve = self.required(&fields, owner, "reserve", "1000");
        let settle = self.required(&fields, owner, "settle", "{json: usage.total_tokens}");
        let settle = settle.and_then(|node| self.settle(node, owner));
        let reserve = reserve?;
        let read = &mut |decoder: &mut Decoder<'_, '_, '_>, node: &Node| {
            let units = decoder.count(node, owner, "reserve")?;
            if units == 0 {
                let sentence = "reserve 0 would hold nothing back; write what a request costs most \
                                of the time";
                decoder.mistake(node.span, owner, sentence);
            }
            Some(Cost::new(units))
        };
        if !matches!(reserve.kind, Kind::Scalar(_)) {
            let found = self.described(reserve);
            self.mistake(reserve.span, owner, format!("reserve is one number; found {found}"));
            return None;
        }
        let reserve = self.amount(reserve, owner, "reserve", read)?;
        Some((CostDraft::Policy(reserve), Some(settle?)))
    }

    fn settle(&mut self, node: &Node, owner: &str) -> Option<Settle> {
        let fields = self.fields(node, owner, &SETTLE_FIELDS)?;
        match (fields.get("json"), fields.get("header"), fields.get("body")) {
            (Some(node), None, None) => self.json_path(node, owner).map(Settle::Json),
            (None, Some(node), None) => {
                let name = self.header_name(node, owner, "X-Tokens-Used")?;
                Some(Settle::Header(name.to_ascii_lowercase().into()))
            }
            (None, None, Some(node)) => {
                self.one_of(node, owner, "body", &[("bytes", ())]).map(|()| Settle::Body)
            }
            // What was written instead has been told.
            (None, None, None) if !fields.entries().is_empty() => None,
            _ => {
                let sentence = "settle goes by one of json, header and body, as in \
                                {json: usage.total_tokens}";
                self.mistake(node.span, owner, sentence);
                None
            }
        }
    }

    /// Names with dots between them.
    fn json_path(&mut self, node: &Node, owner: &str) -> Option<Box<[Box<str>]>> {
        let text = self.text(node, owner, "json")?;
        let names: Box<[Box<str>]> = text.split('.').map(Box::from).collect();
        let is_name = |name: &str| !name.is_empty() && name != "$" && !name.contains(['[', ']']);
        if !names.iter().all(|name| is_name(name)) {
            let text = quoted(text);
            let sentence = format!(
                "json {text} is not a path; write names with dots between them, as in \
                 usage.total_tokens"
            );
            self.mistake(node.span, owner, sentence);
            return None;
        }
        if names.len() > JSON_NAMES_MAX || text.len() > JSON_PATH_BYTES_MAX {
            let sentence = format!(
                "json has {} names of {} bytes; the most are {JSON_NAMES_MAX} names and \
                 {JSON_PATH_BYTES_MAX} bytes",
                names.len(),
                text.len()
            );
            self.mistake(node.span, owner, sentence);
            return None;
        }
        Some(names)
    }

    /// What becomes of a response that outgrows the limit; it must be told while it grows.
    pub(super) fn on_exhausted(
        &mut self,
        fields: &Fields<'_>,
        owner: &str,
        cost: Option<&(CostDraft, Option<Settle>)>,
    ) -> Option<OnExhausted> {
        let Some(node) = fields.get("on_exhausted") else { return Some(OnExhausted::default()) };
        let words = [OnExhausted::Finish, OnExhausted::Cut].map(|word| (word.name(), word));
        let said = self.one_of(node, owner, "on_exhausted", &words);
        match cost {
            Some((_, None)) => {
                let sentence = "on_exhausted means nothing to a cost that is known from the start; \
                                write cost: {reserve: 1000, settle: {json: usage.total_tokens}}";
                self.mistake(fields.span("on_exhausted"), owner, sentence);
            }
            Some((_, Some(Settle::Header(_)))) if said == Some(OnExhausted::Cut) => {
                let sentence = "on_exhausted: cut is for a cost that grows with the response, and a \
                                header tells it once; settle by json or body, or write finish";
                self.mistake(node.span, owner, sentence);
            }
            _ => {}
        }
        said
    }
}
