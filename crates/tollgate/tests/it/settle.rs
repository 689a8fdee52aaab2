//! What a response says its request cost, however it arrives; and charges settled by it.

use serde_json::Value;
use tollgate::Cost;
use tollgate::http::settle::{CostReader, Form};

const PATH: [&str; 2] = ["usage", "total_tokens"];

fn read(form: Form, pieces: &[&[u8]]) -> Option<u32> {
    let mut reader = CostReader::new(&PATH, form);
    pieces.iter().for_each(|piece| reader.read(piece));
    reader.finish().map(Cost::units)
}

/// Read whole, byte by byte and in every two pieces, all of which must tell the same.
fn check(form: Form, body: &[u8], cost: Option<u32>) {
    let shown = body.escape_ascii();
    assert_eq!(read(form, &[body]), cost, "{shown}");
    assert_eq!(read(form, &body.chunks(1).collect::<Vec<_>>()), cost, "{shown}, byte by byte");
    for place in 0..body.len() {
        let (one, two) = body.split_at(place);
        assert_eq!(read(form, &[one, two]), cost, "{shown}, split at {place}");
    }
}

fn json(body: &str, cost: Option<u32>) {
    check(Form::Json, body.as_bytes(), cost);
}

fn events(body: &str, cost: Option<u32>) {
    check(Form::Events, body.as_bytes(), cost);
}

#[test]
fn the_number_is_found_wherever_it_is_in_a_document() {
    json(r#"{"usage":{"total_tokens":42}}"#, Some(42));
    json(
        r#" { "id" : 7 , "usage" : { "x" : [ 1 , { } ] , "total_tokens" : 0 } , "y" : 1 } "#,
        Some(0),
    );
    json("{\"usage\":\n{\"total_tokens\":\r\n42\t}\n}", Some(42));
    json(r#"{"a":"}{\"usage\"","usage":{"total_tokens":42},"b":"\\"}"#, Some(42));
    json("\u{feff}{\"usage\":{\"total_tokens\":42}}", Some(42));
    json(r#"{"a":{"usage":{"total_tokens":1}},"total_tokens":2}"#, None);
    json(r#"[{"usage":{"total_tokens":1}}]"#, None);
    json(r#"{"usage":[{"total_tokens":1}]}"#, None);
    json(r#"{"usage":{"total_tokens":{"total_tokens":1}}}"#, None);
    json(r#"{"usage":7,"total_tokens":8}"#, None);
    json(r#"{"usage":"usage"}"#, None);
    for body in ["", " ", "7", "null", "{}", "[]", "\"usage\"", "<html>42</html>"] {
        json(body, None);
    }
}

#[test]
fn a_name_is_the_same_however_it_is_written() {
    json(r#"{"\u0075s\u0061ge":{"total\u005ftokens":42}}"#, Some(42));
    for other in [r"usag", r"usagee", r"Usage", r"usage\u0000", r"\ud83dusage", r"usage\ud83d"] {
        json(&format!(r#"{{"{other}":{{"total_tokens":42}}}}"#), None);
    }
    let mut reader = CostReader::new(&["größe/🦀\"\n"], Form::Json);
    reader.read(r#"{"gr\u00f6\u00DFe\/\ud83e\udd80\"\n":5}"#.as_bytes());
    assert_eq!(reader.finish(), Some(Cost::new(5)));
    let mut reader = CostReader::new(&["größe/🦀\"\n"], Form::Json);
    reader.read("{\"größe/🦀\\\"\\n\":6}".as_bytes());
    assert_eq!(reader.finish(), Some(Cost::new(6)));
}

#[test]
fn only_whole_numbers_that_are_not_negative_are_costs_and_the_largest_is_the_most() {
    for (number, cost) in [
        ("0", Some(0)),
        ("4294967295", Some(u32::MAX)),
        ("4294967296", Some(u32::MAX)),
        ("99999999999999999999999999999999999999999", Some(u32::MAX)),
        ("-1", None),
        ("-0", None),
        ("1.5", None),
        ("1.0", None),
        ("1e3", None),
        ("1e400", None),
        ("007", None),
        ("00", None),
        ("0x10", None),
        ("NaN", None),
        ("\"42\"", None),
        ("null", None),
        ("true", None),
        ("[42]", None),
        ("+1", None),
    ] {
        json(&format!(r#"{{"usage":{{"total_tokens":{number}}}}}"#), cost);
        json(&format!(r#"{{"usage":{{"total_tokens":{number} , "x":1}}}}"#), cost);
    }
}

#[test]
fn of_a_name_that_comes_twice_the_last_counts_whatever_it_is() {
    json(r#"{"usage":{"total_tokens":1,"total_tokens":2}}"#, Some(2));
    json(r#"{"usage":{"total_tokens":1},"usage":{"total_tokens":2}}"#, Some(2));
    json(r#"{"usage":{"total_tokens":1,"total_tokens":null}}"#, None);
    json(r#"{"usage":{"total_tokens":1},"usage":null}"#, None);
    json(r#"{"usage":{"total_tokens":1},"usage":{}}"#, None);
}

#[test]
fn a_document_that_is_cut_off_or_broken_says_nothing() {
    let whole = r#"{"usage":{"total_tokens":42}}"#;
    for end in 0..whole.len() {
        json(&whole[..end], None);
    }
    for broken in [
        r#"{"usage" {"total_tokens":42}}"#,
        r#"{"usage":{"total_tokens" 42}}"#,
        r#"{"usage":{"total_tokens":42]}"#,
        r#"{"a":1 "usage":{"total_tokens":42}}"#,
        r#"{"a":1,,"usage":{"total_tokens":42}}"#,
        r#"{usage:{"total_tokens":42}}"#,
        r#"}{"usage":{"total_tokens":42}}"#,
        r#"{"usage":{"total_tokens":42},}"#,
    ] {
        json(broken, None);
    }
}

#[test]
fn of_documents_one_after_the_other_the_last_that_has_a_cost_counts() {
    let lines =
        "{\"usage\":{\"total_tokens\":1}}\n{\"usage\":{\"total_tokens\":2}}\n{\"done\":true}\n7\n";
    json(lines, Some(2));
}

#[test]
fn of_a_stream_of_events_the_last_that_has_a_cost_counts() {
    let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\n\
                  data: {\"choices\":[],\"usage\":{\"total_tokens\":42}}\n\n\
                  data: [DONE]\n\n";
    events(stream, Some(42));
    events(&stream.replace('\n', "\r\n"), Some(42));
    events(&stream.replace('\n', "\r"), Some(42));
    events(&stream.replace("data: ", "data:"), Some(42));
    events(&format!("\u{feff}{stream}"), Some(42));
    events(stream.trim_end(), Some(42));
    // A running sum, as some send it.
    let sums = "event: delta\ndata: {\"usage\":{\"total_tokens\":1}}\nid: 7\n\n\
                : comment\n\n\
                event: delta\ndata: {\"usage\":{\"total_tokens\":2}}\n\n";
    events(sums, Some(2));
    let in_lines = "data: {\"usage\":\ndata: {\"total_tokens\":\ndata\ndata:  3}}\n\n";
    events(in_lines, Some(3));
    events("data: {\"usage\":\n\ndata: {\"total_tokens\":3}}\n\n", None);
    events("date: {\"usage\":{\"total_tokens\":3}}\n\n", None);
    events("datas: {\"usage\":{\"total_tokens\":3}}\n\n", None);
    events("{\"usage\":{\"total_tokens\":3}}\n\n", None);
    // What is broken ends with its event.
    events("data: {nonsense\n\ndata: {\"usage\":{\"total_tokens\":3}}\n\n", Some(3));
    events("data: {\"usage\":{\"total_tokens\":3}}\n\ndata: {\"usage\":{\"total_tok", Some(3));
}

#[test]
fn what_was_told_so_far_is_known_before_the_end() {
    let mut reader = CostReader::new(&PATH, Form::Events);
    assert_eq!(reader.so_far(), None);
    for sum in [10, 20] {
        reader.read(format!("data: {{\"usage\":{{\"total_tokens\":{sum}}}}}\n\n").as_bytes());
        assert_eq!(reader.so_far(), Some(Cost::new(sum)));
    }
}

#[test]
fn the_form_is_told_by_the_content_type() {
    for (content_type, form) in [
        (None, Form::Json),
        (Some(&b"application/json"[..]), Form::Json),
        (Some(b"text/event-stream"), Form::Events),
        (Some(b"Text/Event-Stream ; charset=utf-8"), Form::Events),
        (Some(b"text/event-streams"), Form::Json),
    ] {
        assert_eq!(Form::of(content_type), form, "{content_type:?}");
    }
}

#[test]
fn neither_depth_nor_length_is_remembered() {
    let mut reader = CostReader::new(&PATH, Form::Json);
    reader.read(br#"{"deep":"#);
    let (open, close) = ([b'['; 4096], [b']'; 4096]);
    (0..1_000).for_each(|_| reader.read(&open));
    (0..1_000).for_each(|_| reader.read(&close));
    reader.read(br#","long":""#);
    (0..1_000).for_each(|_| reader.read(&[b'x'; 4096]));
    reader.read(br#"","#);
    reader.read(b"\"");
    (0..1_000).for_each(|_| reader.read(&[b'k'; 4096]));
    reader.read(br#"":1,"usage":{"total_tokens":42}}"#);
    assert_eq!(reader.finish(), Some(Cost::new(42)));
}

/// Random numbers that are the same in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn pick<'c>(&mut self, choices: &[&'c str]) -> &'c str {
        choices[self.below(choices.len())]
    }

    fn document(&mut self, depth: usize) -> String {
        let space = self.pick(&["", "", " ", "\n"]);
        let kind = match depth {
            0 => 4,
            1..=4 => self.below(7),
            _ => self.below(3),
        };
        match kind {
            0 => self.pick(&["0", "7", "42", "-1", "1.5", "1e2", "4294967295"]).to_owned(),
            1 => self.pick(&["null", "true", "false"]).to_owned(),
            2 => format!("\"{}\"", self.pick(&["", "usage", "\\\"", "}\\\\", "]{", "\\u0022"])),
            3 => {
                let values: Vec<String> =
                    (0..self.below(4)).map(|_| self.document(depth + 1)).collect();
                format!("[{}]", values.join(&format!(",{space}")))
            }
            _ => {
                let names = ["usage", "usage", "total_tokens", "\\u0075sage", "x", "us\\\"age"];
                let pairs: Vec<String> = (0..self.below(5))
                    .map(|_| {
                        let name = self.pick(&names);
                        format!("{space}\"{name}\"{space}:{space}{}", self.document(depth + 1))
                    })
                    .collect();
                format!("{{{}{space}}}", pairs.join(","))
            }
        }
    }
}

#[test]
fn random_documents_say_what_a_reader_of_whole_documents_finds() {
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    let mut found = 0;
    for _ in 0..40_000 {
        let document = rng.document(0);
        let value: Value = serde_json::from_str(&document).unwrap();
        let expected = value.get("usage").and_then(|usage| usage.get("total_tokens"));
        let expected = expected.and_then(Value::as_u64).map(|cost| cost as u32);
        let place = rng.below(document.len() + 1);
        let (one, two) = document.as_bytes().split_at(place);
        assert_eq!(read(Form::Json, &[one, two]), expected, "{document}");
        found += u32::from(expected.is_some());
    }
    assert!(found > 200, "the documents are too tame: {found}");
}

#[test]
fn random_bytes_say_the_same_in_any_pieces() {
    let mut rng = Rng(0xD1B5_4A32_D192_ED03);
    let pieces = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "\\u",
        "d83d",
        "0",
        "42",
        "-",
        "usage",
        "\"usage\":{",
        "\"total_tokens\":",
        "data: ",
        "data",
        "\n",
        "\r",
        "\n\n",
        "\u{feff}",
        " ",
    ];
    for _ in 0..20_000 {
        let body: String = (0..rng.below(24)).map(|_| rng.pick(&pieces)).collect();
        for form in [Form::Json, Form::Events] {
            let whole = read(form, &[body.as_bytes()]);
            let bytes: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
            assert_eq!(read(form, &bytes), whole, "{form:?}: {}", body.escape_debug());
            let (one, two) = body.as_bytes().split_at(rng.below(body.len() + 1));
            assert_eq!(read(form, &[one, two]), whole, "{form:?}: {}", body.escape_debug());
        }
    }
}

mod verdicts {
    use tollgate::{Cost, Rule, Verdict};

    use crate::{Gate, left};

    const POLICY: &str = "
limits:
  - { name: tokens, per: [user], rate: 1000/day, algorithm: token_bucket }
  - { name: hourly, per: [user], rate: 200/hour }
  - { name: calls, per: [user], rate: 10/day, algorithm: fixed_window, cost: 1 }
  - { name: watched, per: [user], rate: 50/day, mode: shadow, algorithm: fixed_window }
  - { name: slots, per: [worker], concurrency: 2, cost: 1 }
";
    const ADA: [(&str, &str); 1] = [("user", "ada")];

    fn settle(gate: &Gate, verdict: Verdict, cost: u32) -> Verdict {
        gate.limiter.settle(verdict, Cost::new(cost)).wait()
    }

    #[test]
    fn every_limit_that_was_charged_the_reserve_is_settled_and_tells_what_is_left() {
        let gate = Gate::new(POLICY);
        let verdict = gate.check_costing(40, &ADA);
        assert_eq!(left(&verdict), [960, 160, 9, 10]);
        let less = settle(&gate, verdict, 15);
        assert!(less.is_allowed());
        assert_eq!(left(&less), [985, 185, 9, 35], "calls have a cost of their own");
        assert_eq!(gate.left(&ADA), left(&less));
        let more = settle(&gate, gate.check_costing(5, &ADA), 300);
        assert_eq!(left(&more), [685, 0, 8, 0]);
        assert_eq!(crate::deniers(&more), ["hourly", "watched"], "as a peek says");
        assert!(more.is_allowed(), "what went on went on");
        assert!(!gate.allows(&ADA));
    }

    #[test]
    fn a_settled_verdict_has_nothing_to_refund() {
        let gate = Gate::new(POLICY);
        let settled = settle(&gate, gate.check_costing(40, &ADA), 15);
        gate.limiter.refund(settled);
        assert_eq!(gate.left(&ADA), [985, 185, 9, 35]);
    }

    #[test]
    fn a_denied_request_has_nothing_to_settle() {
        let gate = Gate::new(POLICY);
        let denied = settle(&gate, gate.check_costing(500, &ADA), 3);
        assert!(!denied.is_allowed());
        assert_eq!(gate.left(&ADA), [1000, 200, 10, 50]);
    }

    #[test]
    fn a_limit_in_shadow_that_denied_was_not_charged_and_is_not_settled() {
        let gate = Gate::new(POLICY);
        let settled = settle(&gate, gate.check_costing(60, &ADA), 70);
        assert_eq!(left(&settled), [930, 130, 9, 50]);
    }

    #[test]
    fn slots_stay_held_until_they_are_released_before_or_after_the_settlement() {
        let gate = Gate::new(POLICY);
        let both = [("user", "ada"), ("worker", "7")];
        let mut taken_before = gate.check_costing(10, &both);
        let lease = taken_before.take_lease().expect("a slot is held");
        assert_eq!(left(&settle(&gate, taken_before, 4)), [996, 196, 9, 46, 1]);
        assert_eq!(gate.limiter.release(lease).wait(), Some(true));
        assert_eq!(gate.left(&[("worker", "7")]), [2]);

        let mut settled = settle(&gate, gate.check_costing(10, &both), 4);
        let lease = settled.take_lease().expect("a slot is still held");
        assert_eq!(gate.left(&[("worker", "7")]), [1]);
        assert_eq!(gate.limiter.release(lease).wait(), Some(true));
        assert_eq!(gate.left(&[("worker", "7")]), [2]);
    }

    #[test]
    fn each_limit_can_be_settled_at_a_cost_of_its_own() {
        let gate = Gate::new(POLICY);
        let verdict = gate.check_costing(10, &ADA);
        let cost = |rule: &Rule| match &*rule.name().to_string() {
            "tokens" => Some(Cost::new(100)),
            "calls" => Some(Cost::new(3)),
            _ => None,
        };
        let settled = gate.limiter.settle_each(verdict, cost).wait();
        assert_eq!(left(&settled), [900, 190, 7, 40]);
    }

    #[test]
    fn a_limit_whose_cost_is_to_be_settled_is_settled_though_it_says_what_to_reserve() {
        let gate = Gate::new(
            "
limits:
  - name: llm
    per: [user]
    rate: 1000/day
    algorithm: token_bucket
    cost: { reserve: 100, settle: { json: usage.total_tokens } }
",
        );
        let verdict = gate.check(&ADA);
        assert_eq!(left(&verdict), [900]);
        assert_eq!(left(&settle(&gate, verdict, 30)), [970]);
    }

    #[test]
    fn a_policy_replaced_meanwhile_keeps_what_is_settled() {
        let gate = Gate::new(POLICY);
        let verdict = gate.check_costing(40, &ADA).kept();
        let wider = POLICY.replace("1000/day", "2000/day");
        gate.limiter.replace_policy(crate::parse(&wider)).unwrap();
        settle(&gate, verdict, 10);
        assert_eq!(gate.left(&ADA), [1990, 190, 9, 40]);
    }
}
