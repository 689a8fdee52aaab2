//! The gRPC door, asked over real sockets.

pub(crate) mod client;
pub(crate) mod frames;

use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use prost::Message;
use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tollgate_server::Door;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::{v1, v1alpha};

use client::{Answer, Client, SHOULD_RATE_LIMIT, client, compiled, framed, request, stop};

use crate::server::Running;

const POLICY: &str = "listen: {grpc: 127.0.0.1:0}\nlimits: []\n";
const WITH_FILES: &str = "listen: {grpc: 127.0.0.1:0}\nlimits: []\ndescriptors: ./envoy/\n";

/// What a test asks when it only wants to know whether it is answered.
fn anything() -> Bytes {
    request(&json!({"domain": "shop", "descriptors": [{"entries": [{"key": "a", "value": "b"}]}]}))
}

async fn still_answers(running: &Running) {
    let answer = client(running).await.should_rate_limit(anything()).await;
    assert_eq!(answer.response(), json!({"overallCode": "OK", "statuses": [{"code": "OK"}]}));
}

#[tokio::test]
async fn a_descriptor_that_no_file_names_is_a_bare_ok() {
    let running = Running::with_files(POLICY, &[]);
    still_answers(&running).await;
    stop(running).await;
}

#[tokio::test]
async fn a_message_that_comes_in_many_frames_is_put_together() {
    let running = Running::with_files(POLICY, &[]);
    let whole = anything();
    let pieces: Vec<Bytes> = whole.chunks(3).map(Bytes::copy_from_slice).collect();
    let answer = client(&running).await.call_in_pieces(SHOULD_RATE_LIMIT, pieces).await;
    assert_eq!(answer.response()["overallCode"], "OK");
    stop(running).await;
}

#[tokio::test]
async fn what_is_no_call_is_refused_with_the_reason() {
    let running = Running::with_files(POLICY, &[]);
    let client = client(&running).await;
    let mut two = anything().to_vec();
    two.extend_from_slice(&anything());
    let mut truncated = anything().to_vec();
    truncated.pop();
    let mut compressed = anything().to_vec();
    compressed[0] = 1;
    let many = vec![json!({"entries": [{"key": "a", "value": "b"}]}); 10_000];
    let no_unit = json!({"entries": [{"key": "a"}], "limit": {"requestsPerUnit": 3}});
    let cases = [
        (Bytes::new(), "3", "there is no message"),
        (truncated.into(), "3", "there is not exactly one whole message"),
        (two.into(), "3", "there is not exactly one whole message"),
        (framed(b"\xff\xff"), "3", "the message is not a RateLimitRequest"),
        (compressed.into(), "12", "compressed messages are not read here"),
        (request(&json!({"descriptors": [{}]})), "3", "rate limit domain must not be empty"),
        (request(&json!({"domain": "a"})), "3", "rate limit descriptor list must not be empty"),
        (
            request(&json!({"domain": "a", "descriptors": many})),
            "3",
            "too many descriptors in one call",
        ),
        (
            request(&json!({"domain": "a", "descriptors": [no_unit]})),
            "3",
            "a descriptor's limit has no unit of time",
        ),
        (framed(&vec![0; 300 << 10]), "8", "the message is larger than 256 KiB"),
    ];
    for (body, code, message) in cases {
        let answer = client.should_rate_limit(body).await;
        assert_eq!((answer.field("grpc-status"), answer.field("grpc-message")), (code, message));
        assert_eq!(answer.field("grpc-accept-encoding"), "identity");
        assert_eq!(answer.status, 200);
    }
    assert_eq!(client.should_rate_limit(anything()).await.response()["overallCode"], "OK");
    stop(running).await;
}

#[tokio::test]
async fn a_message_of_64_megabytes_is_refused_before_it_is_sent() {
    let running = Running::with_files(POLICY, &[]);
    let client = client(&running).await;
    let body = framed(&vec![0; 64 << 20]);
    let answer = client.should_rate_limit(body).await;
    assert_eq!(answer.field("grpc-status"), "8");
    assert_eq!(client.should_rate_limit(anything()).await.response()["overallCode"], "OK");
    stop(running).await;
}

#[tokio::test]
async fn what_is_not_grpc_gets_415_and_what_is_not_here_is_unimplemented() {
    let running = Running::with_files(POLICY, &[]);
    let client = client(&running).await;
    for content_type in ["application/json", "application/grpc-web", "application/grpcx"] {
        let with = |request: http::request::Builder| request.header("content-type", content_type);
        assert_eq!(client.call(SHOULD_RATE_LIMIT, anything(), with).await.status, 415);
    }
    let with = |request: http::request::Builder| {
        request.method("GET").header("content-type", "application/grpc")
    };
    assert_eq!(client.call(SHOULD_RATE_LIMIT, Bytes::new(), with).await.status, 415);
    for path in ["/", "/envoy.service.ratelimit.v3.RateLimitService/Other", "/a/b"] {
        let answer = client.call(path, anything(), client::grpc).await;
        assert_eq!((answer.status, answer.field("grpc-status")), (200, "12"), "{path}");
    }
    stop(running).await;
}

#[tokio::test]
async fn a_door_with_a_token_wants_it_for_everything_but_health() {
    let policy = "listen: {grpc: {address: 127.0.0.1:0, token_file: token}}\nlimits: []\n";
    let running = Running::with_files(policy, &[("token", "open-sesame\n")]);
    let client = client(&running).await;
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let shown = [None, Some("Bearer open"), Some("open-sesame"), Some("Basic open-sesame")];
    for shown in shown {
        for path in [SHOULD_RATE_LIMIT, reflection, "/a/b"] {
            let with = |request| shown_to(client::grpc(request), shown);
            let answer = client.call(path, anything(), with).await;
            assert_eq!(answer.field("grpc-status"), "16", "{path} {shown:?}");
        }
    }
    for shown in ["Bearer open-sesame", "bearer  open-sesame"] {
        let with = |request| shown_to(client::grpc(request), Some(shown));
        let answer = client.call(SHOULD_RATE_LIMIT, anything(), with).await;
        assert_eq!(answer.response()["overallCode"], "OK", "{shown}");
    }
    let with = |request| {
        let once = shown_to(client::grpc(request), Some("Bearer open-sesame"));
        shown_to(once, Some("Bearer open-sesame"))
    };
    let answer = client.call(SHOULD_RATE_LIMIT, anything(), with).await;
    assert_eq!(answer.field("grpc-status"), "16", "shown twice");
    assert_eq!(health(&client, "").await, Ok(ServingStatus::Serving));
    stop(running).await;
}

fn shown_to(request: http::request::Builder, shown: Option<&str>) -> http::request::Builder {
    match shown {
        Some(shown) => request.header("authorization", shown),
        None => request,
    }
}

async fn health(client: &Client, service: &str) -> Result<ServingStatus, String> {
    let asked = HealthCheckRequest { service: service.to_owned() };
    let body = framed(&asked.encode_to_vec());
    let answer = client.call("/grpc.health.v1.Health/Check", body, client::grpc).await;
    match answer.field("grpc-status") {
        "0" => Ok(HealthCheckResponse::decode(answer.message()).expect("a message").status()),
        code => Err(code.to_owned()),
    }
}

#[tokio::test]
async fn health_is_told_for_the_server_and_for_the_service() {
    let running = Running::with_files(POLICY, &[]);
    let client = client(&running).await;
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(health(&client, service).await, Ok(ServingStatus::Serving), "{service}");
    }
    assert_eq!(health(&client, "shop").await, Err("5".to_owned()));
    stop(running).await;
}

#[tokio::test]
async fn who_watches_our_health_hears_that_we_are_leaving_and_does_not_hold_us() {
    let mut running = Running::with_files(POLICY, &[]);
    let client = client(&running).await;
    let body = framed(&HealthCheckRequest::default().encode_to_vec());
    let response = client.open("/grpc.health.v1.Health/Watch", Full::new(body)).await;
    let mut body = response.into_body();
    let mut next = async || body.frame().await.expect("a frame").expect("no error");
    let status = |frame: hyper::body::Frame<Bytes>| {
        let data = frame.into_data().expect("a message");
        HealthCheckResponse::decode(&data[5..]).expect("a message").status()
    };
    assert_eq!(status(next().await), ServingStatus::Serving);
    running.begin_to_stop();
    assert_eq!(status(next().await), ServingStatus::NotServing);
    let trailers = next().await.into_trailers().expect("the end");
    assert_eq!(trailers["grpc-status"], "14");
    stop(running).await;
}

#[tokio::test]
async fn reflection_tells_what_can_be_asked_here() {
    let running = Running::with_files(POLICY, &[]);
    let client = client(&running).await;

    let list = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let services = reflect(&client, list).await;
    let v1::server_reflection_response::MessageResponse::ListServicesResponse(list) = services
    else {
        panic!("not a list: {services:?}")
    };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }

    let files = ["envoy.service.ratelimit.v3.RateLimitService", "google.protobuf.Struct"];
    for symbol in files {
        let asked =
            v1::server_reflection_request::MessageRequest::FileContainingSymbol(symbol.to_owned());
        let found = reflect(&client, asked).await;
        assert!(
            matches!(
                found,
                v1::server_reflection_response::MessageResponse::FileDescriptorResponse(_)
            ),
            "{found:?}"
        );
    }
    stop(running).await;
}

async fn reflect(
    client: &Client,
    asked: v1::server_reflection_request::MessageRequest,
) -> v1::server_reflection_response::MessageResponse {
    let asked = v1::ServerReflectionRequest { message_request: Some(asked), ..Default::default() };
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let answer = client.call(path, framed(&asked.encode_to_vec()), client::grpc).await;
    let answer = v1::ServerReflectionResponse::decode(answer.message()).expect("a message");
    answer.message_response.expect("an answer")
}

#[tokio::test]
async fn the_older_reflection_is_there_for_older_tools() {
    let running = Running::with_files(POLICY, &[]);
    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let asked =
        v1alpha::ServerReflectionRequest { message_request: Some(list), ..Default::default() };
    let path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
    let body = framed(&asked.encode_to_vec());
    let answer = client(&running).await.call(path, body, client::grpc).await;
    let answer = v1alpha::ServerReflectionResponse::decode(answer.message()).expect("a message");
    assert!(matches!(
        answer.message_response,
        Some(v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(_))
    ));
    stop(running).await;
}

#[test]
fn the_compiled_files_are_those_of_proto() {
    let files = compiled();
    let there = include_bytes!("../../proto/descriptors.bin");
    let there = protox::prost_reflect::prost_types::FileDescriptorSet::decode(&there[..]);
    if there.as_ref() != Ok(&files) {
        let right = concat!(env!("CARGO_TARGET_TMPDIR"), "/descriptors.bin");
        std::fs::write(right, files.encode_to_vec()).expect("written");
        panic!("proto/descriptors.bin is not what the files beside it say; {right} is");
    }
    DescriptorPool::from_file_descriptor_set(files).expect("whole: every import is there");
}

#[tokio::test]
async fn garbage_is_closed_and_others_are_answered() {
    let running = Running::with_files(POLICY, &[]);
    let cases: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x00\x01\x02\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"*1\r\n$4\r\nPING\r\n",
    ];
    for garbage in cases {
        let mut stream = TcpStream::connect(running.address(Door::Grpc)).await.expect("connected");
        stream.write_all(garbage).await.expect("written");
        let mut rest = Vec::new();
        // Closed, by whatever means.
        let _ = stream.read_to_end(&mut rest).await;
    }
    still_answers(&running).await;
    stop(running).await;
}

#[tokio::test]
async fn a_half_closed_connection_is_closed_and_others_are_answered() {
    let running = Running::with_files(POLICY, &[]);
    let beginnings = [Vec::new(), frames::opening(), frames::call(1, &anything())];
    for beginning in beginnings {
        let mut stream = TcpStream::connect(running.address(Door::Grpc)).await.expect("connected");
        stream.write_all(&beginning).await.expect("written");
        stream.shutdown().await.expect("half closed");
        let mut rest = Vec::new();
        // Closed, by whatever means.
        let _ = stream.read_to_end(&mut rest).await;
    }
    still_answers(&running).await;
    stop(running).await;
}

/// Set in a process that runs one flood and nothing else.
const ALONE: &str = "TOLLGATE_TEST_ALONE";

/// Runs the flood of the test of this name in a process of its own: how much memory is taken can be
/// told only where no other test takes some.
fn check_flood(test: &str, attack: impl Fn(u32) -> Vec<u8> + Send + 'static) {
    if std::env::var_os(ALONE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return runtime.expect("a runtime").block_on(flood(attack));
    }
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", &format!("grpc::{test}"), "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Sends so much of `attack` that keeping any of it would show, and asks meanwhile and afterwards.
async fn flood(attack: impl Fn(u32) -> Vec<u8> + Send + 'static) {
    const PIECES: u32 = 200_000;
    const GROWTH_MAX: usize = 64 << 20;
    let running = Running::with_files(POLICY, &[]);
    still_answers(&running).await;
    let before = resident_bytes();
    let stream = TcpStream::connect(running.address(Door::Grpc)).await.expect("connected");
    let (mut answers, mut stream) = stream.into_split();
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while answers.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    });
    let flooding = tokio::spawn(async move {
        stream.write_all(&frames::opening()).await.expect("written");
        for start in (0..PIECES).step_by(1_000) {
            let pieces: Vec<u8> = (start..start + 1_000).flat_map(&attack).collect();
            // Being thrown out is one right answer.
            if stream.write_all(&pieces).await.is_err() {
                return;
            }
        }
    });
    still_answers(&running).await;
    flooding.await.expect("no panic");
    reading.await.expect("no panic");
    still_answers(&running).await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "grew by {growth} bytes");
    stop(running).await;
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("readable");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * 4096
}

#[test]
fn a_flood_of_calls_that_are_reset_at_once_is_borne() {
    check_flood("a_flood_of_calls_that_are_reset_at_once_is_borne", |n| {
        [frames::headers(2 * n + 1), frames::reset(2 * n + 1)].concat()
    });
}

#[test]
fn a_flood_of_whole_calls_that_are_reset_is_borne() {
    check_flood("a_flood_of_whole_calls_that_are_reset_is_borne", |n| {
        let stream = 2 * n + 1;
        let data = frames::frame(frames::DATA, 1, stream, &anything());
        [frames::headers(stream), data, frames::reset(stream)].concat()
    });
}

#[test]
fn a_flood_of_pings_is_borne() {
    check_flood("a_flood_of_pings_is_borne", |_| frames::frame(frames::PING, 0, 0, &[0; 8]));
}

#[test]
fn a_flood_of_settings_is_borne() {
    check_flood("a_flood_of_settings_is_borne", |_| frames::frame(frames::SETTINGS, 0, 0, &[]));
}

#[test]
fn a_flood_of_header_fields_that_never_end_is_borne() {
    check_flood("a_flood_of_header_fields_that_never_end_is_borne", |n| match n {
        0 => frames::frame(frames::HEADERS, 0, 1, &frames::fields()),
        _ => frames::frame(frames::CONTINUATION, 0, 1, &frames::field("a", "b")),
    });
}

#[test]
fn a_flood_of_empty_data_is_borne() {
    check_flood("a_flood_of_empty_data_is_borne", |n| match n {
        0 => frames::headers(1),
        _ => frames::frame(frames::DATA, 0, 1, &[]),
    });
}

/// What was charged is known from what remains: a call that was charged and not answered shows.
#[tokio::test]
async fn stopping_under_load_loses_no_call() {
    const CLIENTS: usize = 4;
    const IN_FLIGHT: usize = 16;
    const LIMIT: u64 = 1_000_000_000;
    let file = format!(
        "domain: shop\ndescriptors: [{{key: a, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}]"
    );
    let running = Running::with_files(WITH_FILES, &[("envoy/shop.yaml", &file)]);
    let remaining = |answer: Answer| {
        let response = answer.response();
        assert_eq!(response["overallCode"], "OK");
        response["statuses"][0]["limitRemaining"].as_u64().expect("a number")
    };
    let busy = Arc::new(Barrier::new(CLIENTS * IN_FLIGHT + 1));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let client = client(&running).await;
        for _ in 0..IN_FLIGHT {
            let (client, busy) = (client.clone(), Arc::clone(&busy));
            calls.spawn(async move {
                let (mut answered, mut least) = (0, LIMIT);
                while let Some(answer) = client.unless_stopping(anything()).await {
                    (answered, least) = (answered + 1, least.min(remaining(answer)));
                    if answered == 20 {
                        busy.wait().await;
                    }
                }
                (answered, least)
            });
        }
    }
    busy.wait().await;
    stop(running).await;
    let ended = calls.join_all().await;
    let answered: u64 = ended.iter().map(|(answered, _)| answered).sum();
    let least = ended.iter().map(|(_, least)| *least).min();
    assert_eq!(Some(LIMIT - answered), least);
}

#[tokio::test]
async fn a_limit_of_a_file_is_over_when_it_is_used_up() {
    let file = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 2, name: calm}}\n";
    let running = Running::with_files(WITH_FILES, &[("envoy/shop.yaml", file)]);
    let client = client(&running).await;
    let asked = request(&json!({"domain": "shop", "descriptors": [
        {"entries": [{"key": "user", "value": "ada"}]},
        {"entries": [{"key": "other", "value": "ada"}]},
    ]}));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let mut response = client.should_rate_limit(asked.clone()).await.response();
        let status = response["statuses"][0].as_object_mut().expect("a status");
        let reset = status.remove("durationUntilReset").expect("a reset");
        assert!(reset.as_str().is_some_and(|reset| reset.ends_with('s')), "{reset}");
        seen.push(response);
    }
    let limit = json!({"name": "calm", "requestsPerUnit": 2, "unit": "YEAR"});
    let expected = |overall: &str, status: Value| json!({"overallCode": overall, "statuses": [status, {"code": "OK"}]});
    assert_eq!(
        seen,
        [
            expected("OK", json!({"code": "OK", "currentLimit": limit, "limitRemaining": 1})),
            expected("OK", json!({"code": "OK", "currentLimit": limit})),
            expected("OVER_LIMIT", json!({"code": "OVER_LIMIT", "currentLimit": limit})),
        ]
    );
    stop(running).await;
}
