//! Requests that two servers in a row could understand differently.
//!
//! Whatever comes, the server behind the gateway gets exactly the requests that were judged, each with one
//! length: what is ambiguous gets 400 and the end of the connection.

use crate::gateway::Gateway;
use crate::gateway::client::Answer;
use crate::gateway::upstream::Request;

/// Every request costs one of so many, also when one day ends and the next begins.
const POLICY: &str =
    "limits: [{name: all, rate: 1000000/day, algorithm: fixed_window, align: key}]";

/// One exchange. In `sent`, `|` is the end of a line. `expected` is what comes of it, separated by
/// spaces: `/path=body` is a request that reaches the server and is answered; `400` is a refusal, of
/// which the server sees nothing, or never the end; `end` is the end of the connection. If there is
/// none, the connection is fit for another request.
struct Case {
    sent: &'static str,
    expected: &'static str,
}

fn case(sent: &'static str, expected: &'static str) -> Case {
    Case { sent, expected }
}

fn check(cases: &[Case]) {
    let gateway = Gateway::start(POLICY);
    let mut wrong = Vec::new();
    for Case { sent, expected } in cases {
        let before = left(&gateway);
        gateway.upstream.take_requests();
        let (seen, reached) = exchange(&gateway, sent);
        let judged = before - left(&gateway) - 1;
        if seen != *expected || reached > judged {
            wrong.push(format!(
                "{sent:?}\n  expected {expected}, seen {seen}; {reached} requests, {judged} judged"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How many requests may still be sent.
fn left(gateway: &Gateway) -> u64 {
    gateway.ask("GET /left").remaining().expect("it is told")
}

/// What comes of some bytes, in the words of a [`Case`], and how many requests reached the server.
fn exchange(gateway: &Gateway, sent: &str) -> (String, u64) {
    let mut client = gateway.connect();
    // One request more, to see whether the connection is still understood.
    let after = "GET /after HTTP/1.1|Host: a|Connection: close||";
    client.send(format!("{sent}{after}").replace('|', "\r\n"));
    let answers: Vec<Answer> = std::iter::from_fn(|| client.next()).collect();
    let log = gateway.upstream.log();
    assert_eq!(log.faults, Vec::<String>::new(), "{sent:?}");
    // One that does not come to its end is answered by nobody.
    let mut whole = log.requests.iter().filter(|it| it.is_whole).map(told);
    let told = answers.iter().map(|answer| match answer.status {
        200 => whole.next().unwrap_or_else(|| panic!("answered by nobody: {sent:?}")),
        status => status.to_string(),
    });
    let mut words: Vec<String> = told.collect();
    assert_eq!(whole.next(), None, "not answered: {sent:?}");
    match words.last() {
        Some(last) if last == "/after=" => drop(words.pop()),
        _ => words.push("end".to_owned()),
    }
    (words.join(" "), log.requests.len() as u64)
}

fn told(request: &Request) -> String {
    format!("{}={}", request.target, request.body.escape_ascii())
}

#[test]
fn a_length_is_one_number_and_nothing_else() {
    check(&[
        case("POST / HTTP/1.1|Host: a|Content-Length: 5||hello", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 0||", "/="),
        case("POST / HTTP/1.1|Host: a||", "/="),
        case("POST / HTTP/1.1|Host: a|Content-Length:5||hello", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 005||hello", "/=hello"),
        case(
            "POST / HTTP/1.1|Host: a|Content-Length: 5||helloGET /b HTTP/1.1|Host: a||",
            "/=hello /b=",
        ),
        case("POST / HTTP/1.1|Host: a|Content-Length: 5|Content-Length: 5||hello", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 5|Content-Length: 6||hello!", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 6|Content-Length: 5||hello!", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 5, 5||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 5, 6||hello!", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: +5||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: -5||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 0x5||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 5e0||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 5.0||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 5 ||hello", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Content-Length: \t5\t||hello", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 5 5||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: \"5\"||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: ||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: \u{665}||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 18446744073709551616||hello", "400 end"),
        case("POST / HTTP/1.1|Host: a|Content-Length: 18446744073709551615||hello", "431 end"),
        case(
            "POST / HTTP/1.1|Host: a|Content-Length: 99999999999999999999999999||hello",
            "400 end",
        ),
        case("POST / HTTP/1.1|Host: a|Content_Length: 5||GET /b HTTP/1.1|Host: a||", "/= /b="),
        case("GET / HTTP/1.1|Host: a|Content-Length: 5||hello", "/=hello"),
    ]);
}

#[test]
fn chunked_is_said_in_one_way_or_not_understood() {
    check(&[
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0||", "/=hello"),
        case("POST / HTTP/1.1|Host: a|transfer-encoding: CHUNKED||5|hello|0||", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked ||5|hello|0||", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding:\tchunked\t||5|hello|0||", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked\x0b||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: \x0bchunked||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked\0||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: \u{a0}chunked||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: xchunked||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunkedx||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked;q=1||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: \"chunked\"||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: ||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: identity||5|hello|0||", "400 end"),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked, identity||5|hello|0||",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: identity, chunked||5|hello|0||",
            "400 end",
        ),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: gzip, chunked||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked, chunked||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked,||5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: ,chunked||5|hello|0||", "400 end"),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: identity||5|hello|0||",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: identity|Transfer-Encoding: chunked||5|hello|0||",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: chunked||5|hello|0||",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Transfer-Encoding: x||5|hello|0||",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Transfer_Encoding: chunked||GET /b HTTP/1.1|Host: a||",
            "/= /b=",
        ),
        case("POST / HTTP/1.0|Host: a|Transfer-Encoding: chunked||5|hello|0||", "400 end"),
        case(
            "POST / HTTP/1.0|Host: a|Connection: keep-alive|Content-Length: 5||helloGET /b HTTP/1.1|Host: a||",
            "/=hello /b=",
        ),
        case("GET / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0||", "/=hello"),
    ]);
}

#[test]
fn of_a_length_and_chunks_neither_smuggles_a_request() {
    check(&[
        // Chunks count, and nothing that follows is believed to be a request.
        // CL.TE: whoever went by the length would see /b as a request of its own.
        case(
            "POST / HTTP/1.1|Host: a|Content-Length: 6|Transfer-Encoding: chunked||0||GET /b HTTP/1.1|Host: a||",
            "/= end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|Content-Length: 6||0||GET /b HTTP/1.1|Host: a||",
            "/= end",
        ),
        // TE.CL: whoever went by the chunks would.
        case(
            "POST / HTTP/1.1|Host: a|Content-Length: 4|Transfer-Encoding: chunked||21|GET /b HTTP/1.1|Host: a||xxxxx|0||",
            "/=GET /b HTTP/1.1\\r\\nHost: a\\r\\n\\r\\nxxxxx end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Content-Length: 4|Transfer-Encoding: xchunked||1e|GET /b HTTP/1.1|Host: a||",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Content-Length: 4|Transfer-Encoding : chunked||1e|GET /b HTTP/1.1|Host: a||",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Content-Length: 4|Transfer-Encoding: identity||1234",
            "400 end",
        ),
        case(
            "POST / HTTP/1.0|Host: a|Content-Length: 4|Transfer-Encoding: chunked||1234",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Connection: content-length|Content-Length: 28||GET /b HTTP/1.1|Host: a||",
            "/=GET /b HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Connection: transfer-encoding|Transfer-Encoding: chunked||5|hello|0||",
            "/=hello",
        ),
    ]);
}

#[test]
fn chunks_are_measured_exactly() {
    check(&[
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||2|he|3|llo|0||", "/=hello"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0005|hello|00||", "/=hello"),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||A|0123456789|0||",
            "/=0123456789",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0||GET /b HTTP/1.1|Host: a||",
            "/=hello /b=",
        ),
        // Extensions are left out.
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;a=b|hello|0;c||", "/=hello"),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;a=\"b;c\"|hello|0||",
            "/=hello",
        ),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;a=\nb|hello|0||", "400 end"),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;a=\"\n0||GET /b HTTP/1.1|Host: a||",
            "400 end",
        ),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;\rb|hello|0||", "400 end"),
        // Sizes that are none.
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0x5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||-5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||+5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|||hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5 5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked|| 5|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5_0|hello|0||", "400 end"),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||10000000000000005|hello|0||",
            "400 end",
        ),
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||ffffffffffffffffff|hello|0||",
            "400 end",
        ),
        // Chunks that are longer than they say, or end otherwise.
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||4|hello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello\n0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello\r\r0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5\nhello|0||", "400 end"),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5\rhello|0||", "400 end"),
        // What stands between the last chunk and an empty line is trailers, whatever it looks like.
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0|\nGET /b HTTP/1.1|Host: a||",
            "/=hello",
        ),
        // Trailers cannot say how long the request is, or whose.
        case(
            "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0|Content-Length: 50||",
            "/=hello",
        ),
        case(
            "POST / HTTP/1.1|Host: a|TE: trailers|Trailer: Transfer-Encoding, Content-Length|Transfer-Encoding: chunked||5|hello|0|Transfer-Encoding: chunked|Content-Length: 50||",
            "/=hello",
        ),
        case("POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||5|hello|0|A : b||", "400 end"),
    ]);
}

#[test]
fn a_head_is_made_of_lines_and_fields() {
    check(&[
        // Line ends.
        case("GET / HTTP/1.1\nHost: a\n\nGET /b HTTP/1.1|Host: a||", "/= end"),
        case("GET / HTTP/1.1|Host: a||GET /b HTTP/1.1\nHost: a\n\n", "/= end"),
        case("GET / HTTP/1.1|Host: a||GET /b HTTP/1.1|Host: a||", "/= /b="),
        case("GET / HTTP/1.1\rHost: a|||", "400 end"),
        case("GET / HTTP/1.1|Host: a\r|||", "400 end"),
        case("GET / HTTP/1.1|Host: a|X: b\rContent-Length: 50||", "400 end"),
        case("GET / HTTP/1.1|Host: a|X: b\nContent-Length: 5||hello", "/=hello end"),
        case("GET / HTTP/1.1|Host: a|X: b\0||", "400 end"),
        case("GET / HTTP/1.1|Host: a|X\0: b||", "400 end"),
        // Fields that go on in the next line.
        case("GET / HTTP/1.1|Host: a|X: b| c||", "400 end"),
        case("GET / HTTP/1.1|Host: a|Transfer-Encoding:| chunked||0||", "400 end"),
        case("GET / HTTP/1.1|Host: a| X: b||", "400 end"),
        case("GET / HTTP/1.1| Host: a||", "400 end"),
        // Names.
        case("GET / HTTP/1.1|Host: a|X : b||", "400 end"),
        case("GET / HTTP/1.1|Host : a||", "400 end"),
        case("GET / HTTP/1.1|Host: a|X\t: b||", "400 end"),
        case("GET / HTTP/1.1|Host: a|: b||", "400 end"),
        case("GET / HTTP/1.1|Host: a|X||", "400 end"),
        case("GET / HTTP/1.1|Host: a|X Y: b||", "400 end"),
        case("GET / HTTP/1.1|Host: a|\u{dc}: b||", "400 end"),
        // Empty lines before a request are skipped, as they should be.
        case("||GET / HTTP/1.1|Host: a||", "/="),
    ]);
}

#[test]
fn a_request_has_one_line_and_one_host() {
    check(&[
        case("GET /\nHost: a\n\n", "400 end"),
        case("GET /|", "400 end"),
        case("GET / |", "400 end"),
        case("GET|", "400 end"),
        case("GET / HTTP/1.1 |Host: a||", "400 end"),
        case("GET  / HTTP/1.1|Host: a||", "400 end"),
        case("GET / b HTTP/1.1|Host: a||", "400 end"),
        case("GET\t/\tHTTP/1.1|Host: a||", "400 end"),
        case(" GET / HTTP/1.1|Host: a||", "400 end"),
        case("GET / HTTP/1.2|Host: a||", "400 end"),
        case("GET / HTTP/2.0|Host: a||", "400 end"),
        case("GET / HTTP/0.9|Host: a||", "400 end"),
        case("GET / http/1.1|Host: a||", "400 end"),
        case("GET / HTTP/1.1x|Host: a||", "400 end"),
        case("GET / HTTP/11|Host: a||", "400 end"),
        case("G\0T / HTTP/1.1|Host: a||", "400 end"),
        case("GET /\0 HTTP/1.1|Host: a||", "400 end"),
        case("GET /\x7f HTTP/1.1|Host: a||", "400 end"),
        case("GET b HTTP/1.1|Host: a||", "400"),
        case("GET ?b HTTP/1.1|Host: a||", "400 end"),
        case("GET \\b HTTP/1.1|Host: a||", "400 end"),
        case("GET /b#c HTTP/1.1|Host: a||", "/b="),
        case("OPTIONS * HTTP/1.1|Host: a||", "*="),
        case("GET * HTTP/1.1|Host: a||", "400 end"),
        case("CONNECT /b HTTP/1.1|Host: a||", "400 end"),
        // Whom it is for.
        case("GET http://a/b HTTP/1.1|Host: a||", "/b="),
        case("GET http://a HTTP/1.1|Host: a||", "/="),
        case("GET http://a?b HTTP/1.1|Host: a||", "/?b="),
        case("GET http://b/ HTTP/1.1|Host: a||", "400"),
        case("GET http://a@b/ HTTP/1.1|Host: a||", "400 end"),
        case("GET http://a/ HTTP/1.1||", "/="),
        case("GET / HTTP/1.1||", "400"),
        case("GET / HTTP/1.0||", "/= end"),
        case("GET / HTTP/1.1|Host: a|Host: a||", "400"),
        case("GET / HTTP/1.1|Host: a|Host: b||", "400"),
        case("GET / HTTP/1.1|Host: ||", "400 end"),
        case("GET / HTTP/1.1|Host: a, b||", "400 end"),
        case("GET / HTTP/1.1|Host: a b||", "400 end"),
        case("GET / HTTP/1.1|Host: a/b||", "400 end"),
        case("GET / HTTP/1.1|Host: a:b||", "400 end"),
    ]);
}
