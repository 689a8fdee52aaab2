//! Why a request would go on or not, as this server stands.

use http::StatusCode;
use serde::Deserialize;
use tollgate::explain::{Explained, as_doors_tell};
use tollgate::http::json::write_explained;
use tollgate::{Missing, Request};

use crate::gate::Gate;
use crate::http::{Attributes, Object};
use crate::http1::{self, Answer};

/// What is sent: what is known of a request, and which way it comes in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    #[serde(borrow)]
    attributes: Attributes<'a>,
    #[serde(default)]
    door: Door,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Door {
    #[default]
    Api,
    Http,
}

/// `POST /v1/explain`. Nothing is charged for it, and nothing counted.
pub(super) async fn answer(body: &[u8], gate: &Gate) -> Answer {
    let Asked { attributes, door } = match serde_json::from_slice(body) {
        Ok(Object(asked)) => asked,
        Err(error) => {
            let example = r#"{"attributes": {"path": "/login"}, "door": "http"}"#;
            let sentence = format!("{error}; send for example {example}");
            return http1::problem(StatusCode::BAD_REQUEST, &sentence);
        }
    };
    let told: Vec<_> = attributes.iter().map(|(name, value)| as_doors_tell(name, value)).collect();
    let told: Vec<(&str, &[u8])> = told.iter().map(|(name, value)| (&**name, *value)).collect();
    let missing = match door {
        Door::Api => Missing::Skip,
        Door::Http => Missing::Shared,
    };
    let request = Request { missing, ..Request::new(&told) };
    let verdict = gate.limiter.peek(&request).await;
    let mut body = Vec::with_capacity(1_024);
    write_explained(&mut body, &Explained::new(&gate.limiter, &request, verdict));
    http1::json(StatusCode::OK, body)
}
