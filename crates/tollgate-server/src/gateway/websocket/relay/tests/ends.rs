//! How sockets end.

use super::*;

const LIMIT: &str = "  - {name: talk, when: {layer: websocket}, rate: 1/minute}";

#[tokio::test(start_paused = true)]
async fn wrong_frames_close_the_socket_and_reach_nobody() {
    let check = async |sent: &[u8], code: u16, reason: &str| {
        let mut talk = Talk::new("  []").await;
        talk.client_sends(&[text("fine"), sent.to_vec()]).await;
        talk.server_gets(&[text("fine")]).await;
        talk.closes(code, reason).await;
    };
    check(&[TEXT, 1, b'x'], 1002, "a frame of a client must be masked").await;
    check(&frame(0xc1, b"compressed"), 1002, "a reserved bit is set").await;
    check(&frame(0x83, b"x"), 1002, "an opcode is reserved").await;
    check(&frame(MORE, b"x"), 1002, "a message goes on that has not begun").await;
    let gigabyte = [&[0x82, 0xff][..], &(1_u64 << 30).to_be_bytes(), &[0; 4]].concat();
    check(&gigabyte, 1009, "a message may have 16777216 bytes").await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_frame_within_a_message_closes_the_socket_between_frames() {
    let mut talk = Talk::new("  []").await;
    talk.client_sends(&[frame(BEGIN, b"one"), text("two")]).await;
    talk.server_gets(&[frame(BEGIN, b"one")]).await;
    talk.closes(1002, "a message begins within another").await;
}

#[tokio::test(start_paused = true)]
async fn our_close_frame_is_never_inside_of_a_frame_of_the_server() {
    let mut talk = Talk::new(LIMIT).await;
    let message = [&[0x82, 126, 0x03, 0xe8][..], &[7; 1_000]].concat();
    talk.server_sends(&message[..600]).await;
    talk.client_gets(&message[..600]).await;
    talk.client_sends(&[text("one"), text("two")]).await;
    talk.server_gets(&[text("one"), Close::TO_SERVER.to_vec()]).await;
    // What follows the frame comes too late.
    talk.server_sends(&[&message[600..], &message].concat()).await;
    talk.client_gets(&message[600..]).await;
    talk.client_gets(&closing(1008, "limit \"talk\" exceeded")).await;
    talk.has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn half_a_header_of_the_server_is_no_frame() {
    let mut talk = Talk::new(LIMIT).await;
    talk.server_sends(&[0x81, 1, b'x', 0x82, 126, 0x03]).await;
    talk.client_gets(&[0x81, 1, b'x']).await;
    talk.client_sends(&[text("one"), text("two")]).await;
    talk.server_gets(&[text("one")]).await;
    talk.closes(1008, "limit \"talk\" exceeded").await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_ends_its_frame_is_not_waited_for() {
    let mut talk = Talk::new(LIMIT).await;
    talk.server_sends(&[0x82, 9, 7]).await;
    talk.client_gets(&[0x82, 9, 7]).await;
    talk.client_sends(&[text("one"), text("two")]).await;
    talk.server_gets(&[text("one"), Close::TO_SERVER.to_vec()]).await;
    talk.has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn where_nothing_passes_the_socket_is_closed() {
    let idle = Duration::from_secs(60);
    let mut talk = House::new("  []").talk(Some(idle)).await;
    let began = moment();
    for _ in 0..3 {
        sleep(idle * 3 / 4).await;
        talk.client_sends(&[frame(PING, b"")]).await;
        sleep(idle * 3 / 4).await;
        talk.server_sends(&[0x8a, 0]).await;
        talk.client_gets(&[0x8a, 0]).await;
        talk.server_gets(&[frame(PING, b"")]).await;
    }
    talk.client_gets(&closing(1001, "nothing was sent for too long")).await;
    let quiet = began.elapsed() - idle * 9 / 2;
    assert!(quiet >= idle && quiet < idle + Duration::from_millis(10), "{quiet:?}");
    talk.server_gets(&[Close::TO_SERVER.to_vec()]).await;
    talk.has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_stays_half_sent_is_cut_off_without_a_close_frame_inside_of_it() {
    let mut talk = House::new("  []").talk(Some(Duration::from_secs(60))).await;
    talk.client_sends(&[text("hello")[..8].to_vec()]).await;
    talk.server_gets(&[text("hello")[..8].to_vec()]).await;
    talk.client_gets(&closing(1001, "nothing was sent for too long")).await;
    talk.has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn sockets_are_told_when_the_server_stops() {
    let house = House::new("  []");
    let mut talk = house.talk(None).await;
    talk.client_sends(&[text("one")]).await;
    talk.server_gets(&[text("one")]).await;
    house.gate.stages.enter(crate::stage::Stage::Draining);
    talk.closes(1001, "the server is going away").await;
}

#[tokio::test(start_paused = true)]
async fn what_the_server_said_before_it_left_arrives() {
    let mut talk = Talk::new("  []").await;
    let last = [&[0x81, 3][..], b"bye", &closing(1011, "sorry")].concat();
    talk.server_sends(&last).await;
    talk.server.shutdown().await.unwrap();
    talk.client_gets(&last).await;
    talk.has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_server_said_arrives_though_it_reads_no_more() {
    let Talk { mut client, mut server, relaying } = Talk::new("  []").await;
    let last = closing(1011, "sorry");
    server.write_all(&last).await.unwrap();
    drop(server);
    client.write_all(&text("anybody there?")).await.unwrap();
    read(&mut client, &last).await;
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    drop(client);
    relaying.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_more_hears_the_servers_last_words() {
    let mut talk = Talk::new("  []").await;
    talk.client_sends(&[text("one")]).await;
    talk.client.shutdown().await.unwrap();
    talk.server_gets(&[text("one")]).await;
    assert_eq!(talk.server.read(&mut [0]).await.unwrap(), 0, "it hears that the client is done");
    talk.server_sends(&closing(1000, "bye")).await;
    talk.client_gets(&closing(1000, "bye")).await;
    talk.has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_a_close_frame_is_not_waited_for() {
    let mut talk = Talk::new("  []").await;
    talk.client_sends(&[frame(CLOSE, b"")]).await;
    talk.server_gets(&[frame(CLOSE, b"")]).await;
    talk.has_ended().await;
}
