//! Envoy's rate limit service without gRPC: the same call as JSON, for callers that have nothing
//! else (a Lua filter, curl).
//!
//! Bodies are the JSON form of the messages: names in camelCase or as in the `.proto` files,
//! 64-bit numbers as strings, what is zero left out of answers. As with Envoy's own service the
//! status is that of the decision: 200, or 429 when something is over its limit; what is no call is
//! 400.

use std::borrow::Cow;

use http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use tollgate::Asked;
use tollgate::envoy::{self, Descriptor, Override, Unit};

use crate::gate::Gate;
use crate::grpc::{Question, UNITS, Unread, unit_numbered};
use crate::http::Object;
use crate::http1::{self, Answer};

/// Answers a call.
pub(crate) fn answer(body: &[u8], gate: &Gate) -> Asked<Answer> {
    match decide(body, gate) {
        Ok(response) => response.map(|response| {
            let status =
                if response.is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            http1::json(status, written(&Response::from(&response)))
        }),
        Err(why) => {
            let body = written(&json!({ "code": 3, "message": why }));
            Asked::Ready(http1::json(StatusCode::BAD_REQUEST, body))
        }
    }
}

fn decide(body: &[u8], gate: &Gate) -> Result<Asked<envoy::Response>, String> {
    let Object(request): Object<Request> =
        serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let question = request.into_question().map_err(|unread| unread.to_string())?;
    question.ask(&gate.limiter).map_err(|error| error.to_string())
}

fn written(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("strings and numbers are always JSON")
}

/// `null` is a field that is not there.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Request {
    domain: Option<String>,
    descriptors: Option<Vec<Object<AskedDescriptor>>>,
    #[serde(default, alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AskedDescriptor {
    entries: Option<Vec<Object<Entry>>>,
    limit: Option<Object<AskedLimit>>,
    #[serde(default, alias = "hits_addend", deserialize_with = "number")]
    hits_addend: Option<u64>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AskedLimit {
    #[serde(default, alias = "requests_per_unit", deserialize_with = "number")]
    requests_per_unit: Option<u32>,
    unit: Option<AskedUnit>,
    #[serde(default, alias = "unit_multiplier", deserialize_with = "number")]
    unit_multiplier: Option<u32>,
}

/// The value of an enumeration: by its name, or by its number.
#[derive(Deserialize)]
#[serde(untagged)]
enum AskedUnit {
    Number(u64),
    Name(String),
}

/// A number, or the digits of one in a string.
fn number<'de, D, N>(deserializer: D) -> Result<Option<N>, D::Error>
where
    D: Deserializer<'de>,
    N: TryFrom<u64>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Digits(String),
    }
    let number = match Option::<Written>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Written::Number(number)) => Some(number),
        Some(Written::Digits(digits)) if digits.starts_with('+') => None,
        Some(Written::Digits(digits)) => digits.parse().ok(),
    };
    let fitting = number.and_then(|number| N::try_from(number).ok());
    fitting.map(Some).ok_or_else(|| serde::de::Error::custom("a number is out of range"))
}

impl Request {
    fn into_question(self) -> Result<Question<'static>, Unread> {
        let domain = self.domain.unwrap_or_default();
        let mut question = Question::new(domain.into(), self.hits_addend.unwrap_or(0));
        for Object(asked) in self.descriptors.into_iter().flatten() {
            let text = |text: Option<String>| Cow::Owned(text.unwrap_or_default());
            let entries = asked.entries.into_iter().flatten();
            let entries = entries.map(|Object(Entry { key, value })| (text(key), text(value)));
            let descriptor = Descriptor {
                entries: &[],
                limit: asked.limit.map(|Object(limit)| limit.into_override()).transpose()?,
                hits: asked.hits_addend,
                is_negative_hits: asked.is_negative_hits.unwrap_or(false),
            };
            question.add(entries, descriptor)?;
        }
        Ok(question)
    }
}

impl AskedLimit {
    fn into_override(self) -> Result<Override, Unread> {
        let unit = self.unit.and_then(|unit| match unit {
            AskedUnit::Number(number) => unit_numbered(number),
            AskedUnit::Name(name) => {
                UNITS.into_iter().find_map(|(known, unit)| (known == name).then_some(unit))
            }
        });
        Ok(Override {
            requests_per_unit: self.requests_per_unit.unwrap_or(0),
            unit: unit.ok_or(Unread::NoUnit)?,
            unit_multiplier: self.unit_multiplier.unwrap_or(0),
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    overall_code: &'static str,
    statuses: Vec<Status<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<Header<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<serde_json::Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<CurrentLimit<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CurrentLimit<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_multiplier: Option<u32>,
}

#[derive(Serialize)]
struct Header<'a> {
    key: &'a str,
    value: &'a str,
}

impl<'a> From<&'a envoy::Response> for Response<'a> {
    fn from(response: &'a envoy::Response) -> Self {
        let headers = response.headers.iter();
        Self {
            overall_code: code(response.is_over),
            statuses: response.statuses.iter().map(Status::from).collect(),
            response_headers_to_add: headers.map(|(key, value)| Header { key, value }).collect(),
            dynamic_metadata: response.metadata.as_ref().map(map),
        }
    }
}

impl<'a> From<&'a envoy::Status> for Status<'a> {
    fn from(status: &'a envoy::Status) -> Self {
        Self {
            code: code(status.is_over),
            current_limit: status.current_limit.as_ref().map(|limit| CurrentLimit {
                name: limit.name.as_deref(),
                requests_per_unit: limit.requests_per_unit,
                unit: name_of(limit.unit),
                unit_multiplier: limit.unit_multiplier,
            }),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status.seconds_until_reset.map(|seconds| format!("{seconds}s")),
        }
    }
}

const fn code(is_over: bool) -> &'static str {
    if is_over { "OVER_LIMIT" } else { "OK" }
}

fn name_of(unit: Unit) -> &'static str {
    let mut units = UNITS.into_iter();
    units.find_map(|(name, known)| (known == unit).then_some(name)).expect("every unit has a name")
}

fn map(map: &envoy::Metadata) -> serde_json::Value {
    map.iter().map(|(name, value)| ((*name).to_owned(), json(value))).collect()
}

fn json(value: &envoy::Value) -> serde_json::Value {
    match value {
        envoy::Value::Bool(is) => (*is).into(),
        envoy::Value::Number(number) => (*number).into(),
        envoy::Value::Text(text) => text.as_str().into(),
        envoy::Value::List(list) => list.iter().map(json).collect(),
        envoy::Value::Map(members) => map(members),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tollgate::Limiter;

    use super::*;
    use crate::grpc::{full_response, json_of};

    fn gate() -> Gate {
        let limits = "limits: [{name: login, per: [client_ip], rate: 5/minute}]";
        Gate::new(Limiter::from_yaml(limits).expect("a policy")).0
    }

    async fn answered(body: &str) -> (u16, Value) {
        let (head, body) = answer(body.as_bytes(), &gate()).await.into_parts();
        (head.status.as_u16(), serde_json::from_slice(&body).expect("JSON"))
    }

    #[tokio::test]
    async fn a_call_may_be_written_in_any_way_that_its_messages_can() {
        let ok = json!({"overallCode": "OK", "statuses": [{"code": "OK"}]});
        let calls = [
            r#"{"domain": "a", "descriptors": [{"entries": [{"key": "b"}]}]}"#,
            r#"{"domain": "a", "hitsAddend": 1, "descriptors": [{"hitsAddend": "7"}]}"#,
            r#"{"domain": "a", "hits_addend": "1", "descriptors": [{"hits_addend": 7}]}"#,
            r#"{"domain": "a", "hitsAddend": null, "descriptors": [{"entries": null}]}"#,
            r#"{"domain": "a", "descriptors": [{"isNegativeHits": true}]}"#,
            r#"{"domain": "a", "descriptors": [{"is_negative_hits": false}]}"#,
        ];
        for call in calls {
            assert_eq!(answered(call).await, (200, ok.clone()), "{call}");
        }
        for limit in [
            r#"{"requestsPerUnit": 9, "unit": "HOUR", "unitMultiplier": 2}"#,
            r#"{"requests_per_unit": 9, "unit": 3, "unit_multiplier": "2"}"#,
        ] {
            let limit: AskedLimit = serde_json::from_str(limit).expect("a limit");
            let read = limit.into_override();
            let expected = Override { requests_per_unit: 9, unit: Unit::Hour, unit_multiplier: 2 };
            assert_eq!(read, Ok(expected));
        }
    }

    #[tokio::test]
    async fn what_is_no_call_is_400_with_the_reason() {
        for body in [
            "",
            "[]",
            r#"["a", [{"entries": [{"key": "k", "value": "v"}]}], 1]"#,
            r#"{"domain": "a", "descriptors": [[[{"key": "k", "value": "v"}], null, null, null]]}"#,
            r#"{"domain": "a", "descriptors": [{"entries": [["k", "v"]]}]}"#,
            r#"{"domain": "a", "descriptors": [{"limit": [9, "HOUR", 2]}]}"#,
            "{",
            r#"{"domain": 1}"#,
            r#"{"domain": "a"}"#,
            r#"{"domain": "", "descriptors": [{}]}"#,
            r#"{"domain": "a", "descriptors": [{}], "else": 1}"#,
            r#"{"domain": "a", "domain": "b", "descriptors": [{}]}"#,
            r#"{"domain": "a", "descriptors": [{}], "hitsAddend": -1}"#,
            r#"{"domain": "a", "descriptors": [{}], "hitsAddend": 1.5}"#,
            r#"{"domain": "a", "descriptors": [{}], "hitsAddend": 4294967296}"#,
            r#"{"domain": "a", "descriptors": [{}], "hitsAddend": "0x10"}"#,
            r#"{"domain": "a", "descriptors": [{}], "hitsAddend": "+2"}"#,
            r#"{"domain": "a", "descriptors": [{"limit": {"unit": "EON"}}]}"#,
            r#"{"domain": "a", "descriptors": [{"limit": {"requestsPerUnit": 3}}]}"#,
        ] {
            let (code, answer) = answered(body).await;
            assert_eq!((code, &answer["code"]), (400, &json!(3)), "{body}");
            assert!(answer["message"].as_str().is_some_and(|why| !why.is_empty()), "{body}");
        }
    }

    #[test]
    fn an_answer_is_the_json_of_the_message_that_grpc_sends() {
        let response = full_response();
        let written: Value =
            serde_json::from_slice(&written(&Response::from(&response))).expect("JSON");
        assert_eq!(written, json_of(&response));
    }
}
