use std::fmt::Write;

use super::*;
use crate::random::Random;

const TEXT: u8 = 0x81;
const BEGIN: u8 = 0x01;
const MORE: u8 = 0x00;
const LAST: u8 = 0x80;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// The header of a client's frame with so many bytes behind it.
fn header(first: u8, payload: u64) -> Vec<u8> {
    let mut header = match u16::try_from(payload) {
        Ok(short @ 0..=125) => vec![first, MASKED | short as u8],
        Ok(medium) => [&[first, MASKED | 126][..], &medium.to_be_bytes()].concat(),
        Err(_) => [&[first, MASKED | 127][..], &payload.to_be_bytes()].concat(),
    };
    header.extend_from_slice(b"mask");
    header
}

fn frame(first: u8, payload: usize) -> Vec<u8> {
    let mut frame = header(first, payload as u64);
    frame.resize(frame.len() + payload, 0xff);
    frame
}

/// What is told of bytes that arrive in these pieces, and how many of them are frames.
fn told<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> (String, usize) {
    let (mut frames, mut told, mut passed) = (FromClient::default(), String::new(), 0);
    let mut waiting = Vec::new();
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            let bytes = match frames.next(&waiting) {
                Ok(Next::Unknown) => break,
                Ok(Next::Payload(bytes)) => bytes,
                Ok(Next::Frame(frame)) => {
                    write!(told, "{:?} {}, ", frame.kind, frame.payload).unwrap();
                    frame.header
                }
                Err(fault) => {
                    write!(told, "{fault}").unwrap();
                    return (told, passed);
                }
            };
            waiting.drain(..bytes);
            passed += bytes;
        }
        assert!(waiting.len() < HEADER_BYTES_MAX, "only a part of a header waits for more");
    }
    (told, passed)
}

fn check(frames: &[Vec<u8>], expected: &str) {
    let bytes = frames.concat();
    assert_eq!(told([&bytes[..]]).0, expected);
    let one_by_one = told(bytes.chunks(1));
    assert_eq!(one_by_one.0, expected, "byte by byte");
}

#[test]
fn messages_and_what_is_between_their_fragments_are_told_apart() {
    check(&[frame(TEXT, 0), frame(0x82, 5)], "Message 0, Message 5, ");
    check(&[frame(TEXT, 125), frame(TEXT, 126)], "Message 125, Message 126, ");
    check(&[frame(TEXT, 0xffff), frame(TEXT, 0x1_0000)], "Message 65535, Message 65536, ");
    check(
        &[frame(BEGIN, 1), frame(PING, 2), frame(MORE, 3), frame(PONG, 0), frame(LAST, 4)],
        "Message 1, Control 2, Fragment(1) 3, Control 0, Fragment(2) 4, ",
    );
    check(
        &[frame(0x02, 0), frame(LAST, 0), frame(TEXT, 1), frame(CLOSE, 2)],
        "Message 0, Fragment(1) 0, Message 1, Close 2, ",
    );
    // The length need not be in its shortest form.
    check(
        &[vec![TEXT, MASKED | 126, 0, 1, 0, 0, 0, 0, b'x'], frame(PING, 0)],
        "Message 1, Control 0, ",
    );
}

#[test]
fn what_the_protocol_forbids_is_a_fault() {
    let unmasked = vec![TEXT, 1, b'x'];
    check(&[frame(TEXT, 1), unmasked], "Message 1, a frame of a client must be masked");
    for reserved in [0x40, 0x20, 0x10] {
        check(&[frame(TEXT | reserved, 1)], "a reserved bit is set");
    }
    for opcode in [0x3, 0x4, 0x5, 0x6, 0x7, 0xb, 0xc, 0xd, 0xe, 0xf] {
        check(&[frame(0x80 | opcode, 1)], "an opcode is reserved");
    }
    for control in [CLOSE, PING, PONG] {
        check(&[header(control, 126)], "a control frame may have 125 bytes");
        check(&[frame(control & !FINAL, 1)], "a control frame is fragmented");
    }
    for more in [MORE, LAST] {
        check(&[frame(TEXT, 1), frame(more, 1)], "Message 1, a message goes on that has not begun");
    }
    check(&[frame(BEGIN, 1), frame(TEXT, 1)], "Message 1, a message begins within another");
    check(&[header(TEXT, 1 << 63)], "a length has its highest bit set");
}

#[test]
fn a_message_that_is_too_long_is_a_fault_before_it_arrives() {
    let too_long = "a message may have 16777216 bytes";
    let most = MESSAGE_BYTES_MAX;
    assert_eq!(told([&header(TEXT, most)[..]]).0, "Message 16777216, ");
    check(&[header(TEXT, most + 1)], too_long);
    check(&[header(TEXT, 1 << 30)], too_long);
    check(&[header(TEXT, (1 << 63) - 1)], too_long);
    check(&[frame(BEGIN, 9), header(MORE, most - 8)], &format!("Message 9, {too_long}"));
    check(&[frame(BEGIN, 9), header(MORE, (1 << 63) - 1)], &format!("Message 9, {too_long}"));
    // Control frames are no part of it.
    check(
        &[frame(BEGIN, 9), frame(PING, 9), header(LAST, most - 9)],
        "Message 9, Control 9, Fragment(1) 16777207, ",
    );
}

impl Random {
    /// Cuts bytes at random.
    fn cut<'b>(&mut self, mut bytes: &'b [u8]) -> Vec<&'b [u8]> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(1 + self.below(bytes.len().min(40)));
            pieces.push(piece);
            bytes = rest;
        }
        pieces
    }
}

#[test]
fn how_bytes_are_cut_makes_no_difference() {
    let mut random = Random::new(0x5eed);
    for _ in 0..2_000 {
        let (mut bytes, mut is_open) = (Vec::new(), false);
        for _ in 0..random.below(12) {
            let first = match random.below(4) {
                0 => [PING, PONG][random.below(2)],
                _ if is_open => [MORE, LAST][random.below(2)],
                _ => [TEXT, BEGIN][random.below(2)],
            };
            let payload = [0, 1, 125, 126, 300][random.below(5)];
            is_open = if first & CONTROL != 0 { is_open } else { first & FINAL == 0 };
            bytes.extend(frame(first, if first & CONTROL != 0 { payload % 126 } else { payload }));
        }
        let whole = told([&bytes[..]]);
        assert_eq!(whole.1, bytes.len(), "all of it are frames: {}", whole.0);
        assert_eq!(told(random.cut(&bytes)), whole);
    }
}

#[test]
fn any_bytes_are_frames_or_a_fault_however_they_are_cut() {
    let mut random = Random::new(0xf00d);
    for _ in 0..20_000 {
        let length = random.below(64);
        // Half of them are masked frames that begin well, so that more than the first byte matters.
        let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        if let [first, second, ..] = &mut bytes[..]
            && random.below(2) == 0
        {
            (*first, *second) = ([TEXT, BEGIN, PING][random.below(3)], MASKED | *second);
        }
        let whole = told([&bytes[..]]);
        assert!(whole.1 <= bytes.len());
        assert_eq!(told(random.cut(&bytes)), whole);
    }
}

#[test]
fn of_a_server_only_the_ends_of_frames_are_known() {
    // A server's frames are not masked, but where they end is clear if they are.
    let frames = [vec![0x82, 126, 1, 44], vec![7; 300], vec![0x89, 0], frame(0xc5, 200)].concat();
    let ends = [304, 306, frames.len()];
    for length in 0..=frames.len() {
        let (mut server, mut passed, mut waiting) = (FromServer::default(), 0, Vec::new());
        for byte in &frames[..length] {
            waiting.push(*byte);
            let more = server.pass(&waiting);
            waiting.drain(..more);
            passed += more;
        }
        assert!(length - passed < HEADER_BYTES_MAX, "only a part of a header is held back");
        let at_end = passed == 0 || ends.contains(&passed);
        assert_eq!(server.is_between_frames(), at_end, "at {passed} of {length}");
        let mut at_once = FromServer::default();
        assert_eq!(at_once.pass(&frames[..length]), passed);
    }
}

#[test]
fn what_is_left_of_a_servers_frame_is_passed_and_nothing_behind_it() {
    let mut server = FromServer::default();
    assert_eq!(server.pass(&[0x82, 5, 1, 2]), 4);
    assert_eq!(server.pass_rest(&[3]), 1);
    assert!(!server.is_between_frames());
    assert_eq!(server.pass_rest(&[4, 5, 0x82, 5]), 2);
    assert!(server.is_between_frames());
}
