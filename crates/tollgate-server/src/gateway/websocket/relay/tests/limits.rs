//! Messages under limits.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_message_too_many_closes_the_socket_with_the_limits_name() {
    let limits = "  - {name: talk, when: {layer: websocket}, per: [connection], rate: 2/minute}";
    let mut talk = Talk::new(limits).await;
    talk.client_sends(&[text("one"), text("two"), text("three"), text("four")]).await;
    talk.server_gets(&[text("one"), text("two")]).await;
    talk.closes(1008, "limit \"talk\" exceeded").await;
}

#[tokio::test(start_paused = true)]
async fn fragments_are_one_message_and_control_frames_between_them_are_their_own() {
    let limits = "  - {name: talk, when: {layer: websocket}, rate: 4/minute}";
    let mut talk = Talk::new(limits).await;
    let three = [
        frame(BEGIN, b"a"),
        frame(PING, b""),
        frame(MORE, b"b"),
        frame(PONG, b"c"),
        frame(MORE, b""),
        frame(LAST, b"d"),
        text("four"),
    ];
    talk.client_sends(&three).await;
    talk.client_sends(&[frame(BEGIN, b"five")]).await;
    talk.server_gets(&three).await;
    talk.closes(1008, "limit \"talk\" exceeded").await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_pings_is_limited() {
    for ping in [PING, PONG] {
        let limits = "  - {name: talk, when: {layer: websocket}, rate: 3/minute}";
        let mut talk = Talk::new(limits).await;
        talk.client_sends(&vec![frame(ping, b"x"); 1_000]).await;
        talk.server_gets(&vec![frame(ping, b"x"); 3]).await;
        talk.closes(1008, "limit \"talk\" exceeded").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_in_very_many_fragments_counts_again() {
    let limits = "  - {name: talk, when: {layer: websocket}, rate: 2/minute}";
    for payload in [&b""[..], b"x"] {
        let mut talk = Talk::new(limits).await;
        let paid = 2 * FRAGMENTS_A_MESSAGE as usize;
        let mut fragments = vec![frame(MORE, payload); paid + 100];
        fragments[0] = frame(BEGIN, payload);
        talk.client_sends(&fragments).await;
        talk.server_gets(&fragments[..paid]).await;
        talk.closes(1008, "limit \"talk\" exceeded").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_frame_is_never_denied() {
    let limits = "  - {name: talk, when: {layer: websocket}, rate: 1/minute}
  - {name: bytes, when: {layer: websocket}, rate: 3/minute, cost: {attribute: bytes}}";
    let mut talk = Talk::new(limits).await;
    let sent = [text("one"), frame(CLOSE, b"\x03\xe8goodbye")];
    // What follows a close frame is nobody's.
    talk.client_sends(&[sent.concat(), text("two")]).await;
    talk.server_gets(&sent).await;
    talk.server_sends(&closing(1000, "")).await;
    talk.client_gets(&closing(1000, "")).await;
    talk.server.shutdown().await.unwrap();
    talk.has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn bytes_are_charged_as_frames_announce_them() {
    let limits = "  - {name: bytes, when: {layer: websocket}, per: [connection], rate: 10/minute, cost: {attribute: bytes}}";
    let mut talk = Talk::new(limits).await;
    talk.client_sends(&[text("12345"), text("12345"), text("")]).await;
    talk.server_gets(&[text("12345"), text("12345"), text("")]).await;
    talk.client_sends(&[text("1")]).await;
    talk.closes(1008, "limit \"bytes\" exceeded").await;

    // A fragmented message is its fragments together, and what is between them counts too.
    let mut talk = Talk::new(limits).await;
    let fits = [frame(BEGIN, b"123"), frame(PING, b"45"), frame(MORE, b"6789"), frame(MORE, b"")];
    talk.client_sends(&[fits.concat(), frame(LAST, b"01")]).await;
    talk.server_gets(&fits).await;
    talk.closes(1008, "limit \"bytes\" exceeded").await;

    // The header is enough: nothing of it need arrive.
    let mut talk = Talk::new(limits).await;
    talk.client_sends(&[frame(TEXT, &[0; 11])[..6].to_vec()]).await;
    talk.closes(1008, "limit \"bytes\" exceeded").await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_must_wait_is_passed_on_when_it_may_and_paid_once() {
    let limits = "  - {name: talk, when: {layer: websocket}, rate: 1/second, algorithm: token_bucket, on_denied: delay}";
    let mut talk = Talk::new(limits).await;
    let began = moment();
    talk.client_sends(&[text("0"), text("1"), text("2"), text("3")]).await;
    for number in 0..4 {
        talk.server_gets(&[text(&number.to_string())]).await;
        let late = began.elapsed().checked_sub(Duration::from_secs(number)).expect("no sooner");
        assert!(late < TICK * 4, "{number} is {late:?} late");
        // Meanwhile the server can say what it wants.
        talk.server_sends(&[0x81, 1, b'x']).await;
        talk.client_gets(&[0x81, 1, b'x']).await;
    }
    talk.server_gets_nothing_for(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn more_of_a_message_waits_too() {
    let limits = "  - {name: bytes, when: {layer: websocket}, rate: 10/second, algorithm: token_bucket, cost: {attribute: bytes}, on_denied: delay}";
    let mut talk = Talk::new(limits).await;
    let began = moment();
    let fragments = [frame(BEGIN, &[1; 10]), frame(MORE, &[2; 5]), frame(LAST, &[3; 10])];
    talk.client_sends(&fragments).await;
    talk.server_gets(&fragments[..2]).await;
    assert!(began.elapsed() >= Duration::from_millis(500));
    talk.server_gets(&fragments[2..]).await;
    assert!(began.elapsed() >= Duration::from_millis(1_500));
    assert!(began.elapsed() < Duration::from_millis(1_500) + TICK * 8);
}

#[tokio::test(start_paused = true)]
async fn what_no_wait_helps_closes_the_socket() {
    let limits = "  - {name: bytes, when: {layer: websocket}, rate: 10/second, cost: {attribute: bytes}, on_denied: delay}";
    let mut talk = Talk::new(limits).await;
    talk.client_sends(&[text("12345678901")]).await;
    talk.closes(1008, "limit \"bytes\" exceeded").await;
}

#[tokio::test(start_paused = true)]
async fn of_several_limits_the_strictest_has_its_way() {
    let slow = "  - {name: slow, when: {layer: websocket}, rate: 1/second, on_denied: delay}";
    let slower = "  - {name: slower, when: {layer: websocket}, rate: 1/minute, algorithm: fixed_window, align: key, on_denied: delay}";
    let strict = "  - {name: strict, when: {layer: websocket}, rate: 1/hour}";
    let shadow = "  - {name: shadow, when: {layer: websocket}, rate: 1/hour, mode: shadow}";
    let mut talk = Talk::new(&[slow, slower, strict].join("\n")).await;
    talk.client_sends(&[text("one"), text("two")]).await;
    talk.server_gets(&[text("one")]).await;
    talk.closes(1008, "limit \"strict\" exceeded").await;

    let mut talk = Talk::new(&[slow, slower, shadow].join("\n")).await;
    talk.client_sends(&[text("one"), text("two")]).await;
    talk.server_gets(&[text("one")]).await;
    talk.server_gets_nothing_for(Duration::from_secs(59)).await;
    talk.server_gets(&[text("two")]).await;
}

#[tokio::test(start_paused = true)]
async fn every_message_meets_the_policy_in_force() {
    let limits = |rate: &str| {
        format!("  - {{name: talk, when: {{layer: websocket}}, per: [connection], rate: {rate}}}")
    };
    let house = House::new(&limits("2/hour"));
    let mut talk = house.talk(None).await;
    talk.client_sends(&[text("one"), text("two")]).await;
    talk.server_gets(&[text("one"), text("two")]).await;
    house.gate.limiter.replace_policy(policy(&limits("3/hour"))).unwrap();
    talk.client_sends(&[text("three"), text("four")]).await;
    talk.server_gets(&[text("three")]).await;
    talk.closes(1008, "limit \"talk\" exceeded").await;
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_may_ask_what_the_old_one_did_not() {
    let house = House::new("  - {name: all, when: {layer: websocket}, rate: 100/hour}");
    let of = |who| [("x-user", who)];
    let (mut ann, mut bob) =
        (house.talk_as(&of("ann"), None).await, house.talk_as(&of("bob"), None).await);
    let each = "  - {name: each, when: {layer: websocket, query:room: '1'}, per: ['header:x-user'], rate: 1/hour}";
    house.gate.limiter.replace_policy(policy(each)).unwrap();
    for talk in [&mut ann, &mut bob] {
        talk.client_sends(&[text("one")]).await;
        talk.server_gets(&[text("one")]).await;
    }
    ann.client_sends(&[text("two")]).await;
    ann.closes(1008, "limit \"each\" exceeded").await;
}

#[tokio::test(start_paused = true)]
async fn who_is_blocked_while_the_socket_is_open_is_closed() {
    let house = House::new("  []");
    let mut talk = house.talk(None).await;
    let blocked = format!("deny: [{{client_ip: {PEER}}}]");
    let blocked = Policy::parse("policy", &blocked, &mut |_: &str| Err(String::new())).unwrap();
    house.gate.limiter.replace_policy(blocked).unwrap();
    talk.client_sends(&[text("one")]).await;
    talk.closes(1008, "the client is blocked").await;
}

#[tokio::test(start_paused = true)]
async fn without_limits_nothing_is_closed() {
    let mut talk = Talk::new("  - {name: requests, rate: 1/hour}").await;
    for _ in 0..10 {
        talk.client_sends(&[text("one")]).await;
        talk.server_gets(&[text("one")]).await;
        sleep(Duration::from_secs(60)).await;
    }
}
