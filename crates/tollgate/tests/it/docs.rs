//! docs/http-fields.md shows what is sent.
//!
//! An `http` block there is the answer to one request of a client, under the policy of the page and
//! the `headers` that the line before it names: `<!-- request 4, headers [draft-11] -->`.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::Value;
use tollgate::http::problem::{self, Form};
use tollgate::http::{fields, status};

use crate::Gate;

const PAGE: &str = include_str!("../../../../docs/http-fields.md");

/// In the middle of all hashes, so that the page shows what spreading does.
const SPREAD: u64 = 1 << 63;

/// The text of the first block of a language in a part of the page.
fn block<'p>(part: &'p str, language: &str) -> &'p str {
    let start = format!("```{language}\n");
    let (_, rest) = part.split_once(&start).expect("a block of the language");
    rest.split_once("```").expect("a block ends").0
}

/// What is answered: the status line, the fields in the order of their names, the body.
#[derive(Debug, PartialEq)]
struct Shown {
    status: String,
    fields: Vec<(String, String)>,
    body: Option<Value>,
}

impl Shown {
    /// As the page has it.
    fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
        let (status, lines) = head.split_once('\n').expect("a status line");
        let pair = |line: &str| {
            let (name, value) = line.split_once(": ").expect("a field");
            (name.to_ascii_lowercase(), value.to_owned())
        };
        let mut fields: Vec<(String, String)> = lines.lines().map(pair).collect();
        fields.sort_unstable();
        let body = (!body.is_empty()).then(|| serde_json::from_str(body).expect("JSON"));
        Self { status: status.to_owned(), fields, body }
    }

    /// As it is, for the `number`th request.
    fn answer(policy: &str, number: u32) -> Self {
        let gate = Gate::new(policy);
        gate.admitted(number - 1, &[]);
        let verdict = gate.check(&[]);
        let mut headers = HeaderMap::new();
        fields::insert(&mut headers, &verdict, gate.limiter.now(), SPREAD);
        let body = (!verdict.is_allowed()).then(|| {
            headers.insert(CONTENT_TYPE, Form::Problem.content_type());
            let mut body = Vec::new();
            problem::write(&mut body, &verdict, Form::Problem);
            serde_json::from_slice(&body).expect("JSON")
        });
        let text = |value: &http::HeaderValue| value.to_str().expect("ASCII").to_owned();
        let mut fields: Vec<(String, String)> =
            headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        fields.sort_unstable();
        Self { status: format!("HTTP/1.1 {}", status(&verdict)), fields, body }
    }
}

#[test]
fn every_answer_on_the_page_is_what_is_sent() {
    let policy = block(PAGE, "yaml");
    let parts = PAGE.split("<!-- request ").skip(1);
    assert_eq!(parts.clone().count(), PAGE.matches("```http").count(), "each has its line");
    for part in parts {
        let (mark, _) = part.split_once(" -->").unwrap();
        let (number, headers) = mark.split_once(", headers ").unwrap();
        let policy = format!("headers: {headers}\n{policy}");
        let answer = Shown::answer(&policy, number.parse().unwrap());
        assert_eq!(answer, Shown::read(block(part, "http")), "{mark}");
    }
}

#[test]
fn the_page_names_every_generation_and_every_field() {
    for generation in tollgate::HeaderGeneration::ALL.map(tollgate::HeaderGeneration::name) {
        assert!(PAGE.contains(&format!("| `{generation}` |")), "{generation}");
    }
    let page = PAGE.to_ascii_lowercase();
    for field in fields::ALL {
        assert!(page.contains(&format!("\n{field}: ")), "{field} has no example");
    }
}
