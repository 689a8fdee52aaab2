//! Limits of connections, of WebSockets and of their messages, apart from those of requests; and costs
//! that are settled afterwards.

use std::fmt::Write;

use tollgate_policy::{
    Admission, Charges, Layer, Missing, OnDenied, OnExhausted, Policy, Request, Rule, Scratch,
    Settle, Standing,
};

use crate::{Attributes, ask, policy, policy_with};

const LAYERS: &str = "
listen: { gateway: 127.0.0.1:0 }
upstream: http://127.0.0.1:3000
deny:
  - { client_ip: 192.0.2.66 }
  - { tenant: absent, client_ip: 198.51.100.1 }
exempt:
  - { client_ip: { cidr: [10.0.0.0/8] } }
  - { path: /free }
limits:
  - { name: conn-rate, when: { layer: connection }, per: [client_ip], rate: 20/second }
  - { name: requests, when: { path: /api/** }, per: [client_ip], rate: 10/second }
  - { name: conns, when: { layer: connection, client_ip: { cidr: [203.0.113.0/24] } }, per: [client_ip], concurrency: 100 }
  - { name: sockets, when: { layer: websocket }, per: [client_ip], concurrency: 5 }
  - { name: messages, when: { layer: websocket, path: /api/** }, per: [client_ip], rate: 100/second, on_denied: delay }
  - { name: bytes, when: { layer: websocket }, per: [connection], rate: 1000000/second, cost: { attribute: bytes } }
  - { name: said, when: { layer: request, path: /api/** }, rate: 1000/second }
  - { name: events, when: { layer: stream, direction: down }, per: [stream], rate: 10/second, on_denied: delay }
  - { name: flow, when: { layer: stream }, per: [client_ip], rate: 1000000/second, cost: { attribute: bytes } }
";

fn ask_at(policy: &Policy, layer: Layer, attributes: &Attributes<'_>) -> String {
    ask(policy, &Request { missing: Missing::Shared, layer, ..Request::new(attributes) })
}

#[test]
fn each_layer_meets_its_own_limits_only() {
    let policy = policy(LAYERS);
    assert_eq!(policy.warnings(), []);
    let all: [(&str, &[u8]); 4] = [
        ("client_ip", b"203.0.113.7"),
        ("path", b"/api/items"),
        ("connection", b"17"),
        ("bytes", b"512"),
    ];
    let check = |layer, expected: &str| assert_eq!(ask_at(&policy, layer, &all), expected);
    check(Layer::Connection, "conn-rate 20/second [203.0.113.7] 1; conns slots [203.0.113.7] 1");
    check(Layer::Request, "requests 10/second [203.0.113.7] 1; said 1000/second [] 1");
    check(Layer::Socket, "sockets slots [203.0.113.7] 1");
    check(Layer::Message, "messages 100/second [203.0.113.7] 1; bytes 1000000/second [17] 512");
    check(Layer::Fragment, "bytes 1000000/second [17] 512");
    let layers: Vec<Layer> = policy.rules().iter().map(Rule::layer).collect();
    let (connection, request) = (Layer::Connection, Layer::Request);
    let (socket, message, stream) = (Layer::Socket, Layer::Message, Layer::Stream);
    assert_eq!(layers[..7], [connection, request, connection, socket, message, message, request]);
    assert_eq!(layers[7..], [stream, stream]);
    let denied: Vec<OnDenied> = policy.rules().iter().map(Rule::on_denied).collect();
    assert_eq!(denied[4..6], [OnDenied::Delay, OnDenied::Close]);
}

#[test]
fn a_message_of_a_stream_is_counted_by_stream_direction_and_length() {
    let policy = policy(LAYERS);
    let ask = |direction: &[u8]| {
        let attributes: [(&str, &[u8]); 5] = [
            ("stream", b"s-1"),
            ("direction", direction),
            ("bytes", b"512"),
            ("client_ip", b"203.0.113.7"),
            ("path", b"/api/items"),
        ];
        ask_at(&policy, Layer::Stream, &attributes)
    };
    let flow = "flow 1000000/second [203.0.113.7] 512";
    assert_eq!(ask(b"down"), format!("events 10/second [s-1] 1; {flow}"));
    assert_eq!(ask(b"up"), flow);
    assert!(policy.has_limits_of(Layer::Stream));
    assert!(!crate::policy("limits: [{ name: it, rate: 5/minute }]").has_limits_of(Layer::Stream));
}

#[test]
fn a_connection_is_counted_by_prefix() {
    let policy = policy(LAYERS);
    let told = ask_at(&policy, Layer::Connection, &[("client_ip", b"2001:db8:0:12ff::9")]);
    assert_eq!(told, "conn-rate 20/second [2001:db8:0:1200::] 1");
}

#[test]
fn entries_of_lists_that_ask_for_the_address_alone_hold_for_connections_too() {
    let policy = policy(LAYERS);
    let check = |layer, ip: &str, path: &str, expected: &str| {
        let attributes: [(&str, &[u8]); 2] =
            [("client_ip", ip.as_bytes()), ("path", path.as_bytes())];
        let told = ask_at(&policy, layer, &attributes);
        assert!(told.starts_with(expected), "{layer:?} {ip} {path}: {told}");
    };
    for layer in [Layer::Connection, Layer::Request, Layer::Socket, Layer::Message] {
        check(layer, "192.0.2.66", "/api", "blocked");
        check(layer, "10.1.2.3", "/api", "exempt");
    }
    // What is not known yet cannot be lacking.
    check(Layer::Connection, "198.51.100.1", "/api", "conn-rate");
    check(Layer::Connection, "203.0.113.7", "/free", "conn-rate");
    for layer in [Layer::Request, Layer::Socket, Layer::Message] {
        check(layer, "198.51.100.1", "/api", "blocked");
        check(layer, "203.0.113.7", "/free", "exempt");
    }
}

#[test]
fn a_connection_is_nobodys_and_a_message_is_of_whom_the_request_was() {
    let text = "
listen: { gateway: 127.0.0.1:0 }
upstream: http://127.0.0.1:3000
tenants: { from: header:x-api-key, file: t, unknown: refuse }
limits:
  - { name: conns, when: { layer: connection }, per: [client_ip], concurrency: 100 }
  - { name: messages, when: { layer: websocket }, per: [tenant], rate: { pro: 100/second } }
";
    let policy = policy_with(text, "keys: { KEY: { tenant: acme, tier: pro } }");
    let ip: (&str, &[u8]) = ("client_ip", b"203.0.113.7");
    let key: (&str, &[u8]) = ("header:x-api-key", b"KEY");
    assert_eq!(ask_at(&policy, Layer::Connection, &[ip]), "conns slots [203.0.113.7] 1");
    assert_eq!(ask_at(&policy, Layer::Message, &[ip]), "unknown key");
    assert_eq!(ask_at(&policy, Layer::Message, &[ip, key]), "messages 100/second [acme] 1");
}

#[test]
fn a_message_whose_length_is_not_a_number_is_refused() {
    let policy = policy(LAYERS);
    let told = ask_at(&policy, Layer::Message, &[("connection", b"17"), ("bytes", b"many")]);
    assert_eq!(told, "bad cost");
}

#[test]
fn it_is_explained_why_limits_of_other_layers_do_not_apply() {
    let policy = policy(LAYERS);
    let attributes: [(&str, &[u8]); 1] = [("path", b"/api/items")];
    let why = |layer| {
        let request = Request { missing: Missing::Shared, layer, ..Request::new(&attributes) };
        let explained =
            policy.explain(&request).into_iter().map(|explanation| match explanation.standing {
                Standing::Applies { .. } => "applies".to_owned(),
                Standing::DoesNotApply(why) => why,
            });
        explained.collect::<Vec<String>>()
    };
    assert_eq!(
        why(Layer::Request),
        [
            "it counts connections, and this is a request",
            "applies",
            "it counts connections, and this is a request",
            "it counts open WebSockets, and this is a request",
            "it counts messages of WebSockets, and this is a request",
            "it counts messages of WebSockets, and this is a request",
            "applies",
            "it counts messages of streams, and this is a request",
            "it counts messages of streams, and this is a request",
        ]
    );
    assert_eq!(why(Layer::Stream)[1], "it counts requests, and this is a message of a stream");
    assert_eq!(why(Layer::Message)[1], "it counts requests, and this is a message");
    assert_eq!(
        why(Layer::Socket)[4],
        "it counts messages of WebSockets, and this is a WebSocket being opened"
    );
    assert_eq!(
        why(Layer::Fragment)[4..6],
        [
            "it counts messages of WebSockets, and this is more of a message that was counted when it \
             began",
            "applies"
        ]
    );
    assert_eq!(why(Layer::Connection)[3], "it counts open WebSockets, and this is a connection");
}

#[test]
fn a_request_costs_nothing_for_limits_of_other_layers() {
    let mut text = String::from("listen: { gateway: 127.0.0.1:0 }\nupstream: http://h\nlimits:\n");
    for number in 0..1_000 {
        let _ = writeln!(
            text,
            "  - {{ name: c{number}, when: {{ layer: connection }}, rate: 5/minute }}"
        );
        let _ = writeln!(
            text,
            "  - {{ name: m{number}, when: {{ layer: websocket, path: /** }}, rate: 5/minute }}"
        );
    }
    text += "  - { name: requests, when: { path: /** }, rate: 5/minute }\n";
    let policy = policy(&text);
    let attributes: [(&str, &[u8]); 1] = [("path", b"/a")];
    let alone = crate::policy("limits: [{ name: requests, when: { path: /** }, rate: 5/minute }]");
    let request = Request::new(&attributes);
    assert_eq!(policy.work(&request), alone.work(&request));
    let mut scratch = Scratch::default();
    let request = Request { layer: Layer::Message, ..request };
    let mut charges = Charges::new();
    let Admission::Charged = policy.admit(&request, &mut scratch, &mut charges) else { panic!() };
    assert_eq!(charges.len(), 1_000);
}

#[test]
fn what_is_reserved_is_charged_and_where_it_is_settled_is_told() {
    let policy = policy(
        "listen: { gateway: 127.0.0.1:0 }
upstream: http://127.0.0.1:3000
limits:
  - { name: llm, rate: 100000/minute, algorithm: token_bucket, cost: { reserve: 1000, settle: { json: usage.total_tokens } }, on_exhausted: cut }
  - { name: header, rate: 100000/minute, cost: { reserve: 5, settle: { header: X-Tokens-Used } } }
  - { name: body, rate: 100000/minute, algorithm: fixed_window, cost: { reserve: 1, settle: { body: bytes } }, on_exhausted: finish }
  - { name: plain, rate: 5/minute }
",
    );
    assert_eq!(policy.warnings(), []);
    assert_eq!(
        crate::ask_http(&policy, &[]),
        "llm 100000/minute [] 1000; header 100000/minute [] 5; body 100000/minute [] 1; \
         plain 5/minute [] 1"
    );
    let [llm, header, body, plain] = policy.rules() else { panic!() };
    let names = ["usage", "total_tokens"].map(Box::from);
    assert_eq!(llm.settle(), Some(&Settle::Json(Box::new(names))));
    assert_eq!(header.settle(), Some(&Settle::Header("x-tokens-used".into())));
    assert_eq!((body.settle(), plain.settle()), (Some(&Settle::Body), None));
    assert_eq!(llm.on_exhausted(), OnExhausted::Cut);
    assert_eq!((header.on_exhausted(), body.on_exhausted()), Default::default());
}

#[test]
fn doors_that_never_see_a_response_are_named() {
    let check = |listen: &str, doors: &str| {
        let policy = policy(&format!(
            "{listen}\nlimits: [{{ name: llm, rate: 9/minute, cost: {{ reserve: 1, settle: {{ body: bytes }} }} }}]"
        ));
        let told: Vec<&str> =
            policy.warnings().iter().map(tollgate_policy::Warning::sentence).collect();
        let sentence =
            "limit \"llm\" costs what is reserved at these doors, which never see a response: ";
        assert_eq!(told, [format!("{sentence}{doors}")], "{listen}");
    };
    check("listen: { http: 127.0.0.1:8080, resp: 127.0.0.1:6380 }", "http (forward-auth), resp");
    check("", "http (forward-auth), grpc; both are open unless listen is written");
}

#[test]
fn every_mistake_of_a_limit_of_connections_is_told_at_once() {
    let text = "
limits:
  - name: conns
    when: { layer: connection, path: /api/**, tenant: present }
    per: [client_ip, tenant]
    rate: { pro: 5/minute, default: 2/minute }
    cost: { by: plan, values: { a: 2 } }
    shards: { count: 2, by: user }
    on_denied: close
";
    let mistakes = crate::parse(text).unwrap_err();
    let told: Vec<String> = mistakes
        .iter()
        .map(|it| format!("{}:{} {}", it.place().line, it.place().column, it.sentence()))
        .collect();
    let lacks = |place: &str, name: &str| {
        format!(
            "{place} limit \"conns\": a connection has no {name}: all that is known when it is \
             accepted is client_ip"
        )
    };
    let expected = [
        lacks("4:32", "path"),
        lacks("4:47", "tenant"),
        lacks("5:22", "tenant"),
        lacks("6:11", "tier"),
        lacks("7:11", "plan"),
        lacks("8:5", "user"),
        "9:5 limit \"conns\": on_denied is for messages; write when: {layer: websocket} or \
         {layer: stream}, or leave it out"
            .to_owned(),
    ];
    assert_eq!(told, expected);
}
