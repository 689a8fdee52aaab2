//! Bytes that no client of good will sends, and bytes that come in pieces.

use tollgate_server::conversation;

use super::{Counter, POLICY};

/// Whole conversations: right and wrong commands, arrays and lines, and ends of every kind.
const STREAMS: &[&[u8]] = &[
    b"PING\r\n*1\r\n$4\r\nPING\r\n\r\n*0\r\nECHO 'a b'\n",
    b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n2\r\n$1\r\n1\r\n$1\r\n1\r\nCL.THROTTLE k 2 1 1\r\n\
      CL.THROTTLE k 2 1 1 9\r\nPING\r\nCL.THROTTLE k 2 1 1\r\n",
    b"*5\r\n$8\r\nTG.CHECK\r\n$3\r\nkey\r\n$4\r\ngood\r\n$4\r\nuser\r\n$4\r\n\r\n\0\xff\r\n\
      TG.CHECK key good user 42 COST 3\r\nTG.CHECK user\r\n",
    b"HELLO 3\r\nCLIENT GETNAME\r\nCOMMAND DOCS\r\nRESET\r\nCOMMAND\r\nQUIT\r\nPING\r\n",
    b"PING\r\n*2\r\n$4\r\nECHO\r\n*1\r\n$1\r\nx\r\n",
    b"PING\r\n*1\r\n$-5\r\nPING\r\n",
    b"CL.THROTTLE k 2 1 1\r\n*2147483647\r\nPING\r\n",
    b"PING\r\nECHO \"a\r\nPING\r\n",
    b"CL.THROTTLE k 2 1 1\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PING\r\n*1\r\n$4\r\nPINGPING\r\n",
];

#[test]
fn replies_do_not_depend_on_how_the_bytes_are_cut() {
    for stream in STREAMS {
        let replies = |pieces: &[&[u8]]| {
            conversation(&Counter::new(POLICY).limiter, None, pieces).escape_ascii().to_string()
        };
        let expected = replies(&[stream]);
        assert!(!expected.is_empty());
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(replies(&single), expected, "byte by byte");
        for cut in 0..stream.len() {
            let (first, second) = stream.split_at(cut);
            assert_eq!(replies(&[first, second]), expected, "cut at {cut}");
        }
    }
}

/// Says that bytes get this reply, after which the connection is closed.
fn check_last(bytes: &[u8], expected: &str) {
    let bytes = [bytes, b"\r\nPING\r\nPING\r\n"].concat();
    assert_eq!(Counter::new(POLICY).raw(&bytes), expected);
}

#[test]
fn what_is_no_command_gets_an_error_and_is_closed() {
    let words = "-ERR Protocol error: invalid multibulk length; a command has at most 259 words";
    let bytes = "-ERR Protocol error: invalid bulk length; a command has at most 65536 bytes";
    let line = "-ERR Protocol error: too big inline request; a command has at most 65536 bytes";
    let end = r"\r\n";
    check_last(b"*2147483647", &format!("{words}{end}"));
    check_last(b"*1\r\n$-5", &format!("{bytes}{end}"));
    check_last(b"*1\r\n$2147483647", &format!("{bytes}{end}"));
    check_last(
        &b"*1\r\n".repeat(1_000),
        &format!("-ERR Protocol error: expected '$', got '*'{end}"),
    );
    check_last(b"*1\r\n\xff", &format!(r"-ERR Protocol error: expected '$', got '\\xff'{end}"));
    check_last(&vec![b'x'; 1 << 20], &format!("{line}{end}"));
    check_last(b"ECHO 'x", &format!("-ERR Protocol error: unbalanced quotes in request{end}"));
    check_last(
        b"*1\r\n$1\r\nxx",
        &format!("-ERR Protocol error: expected CRLF after a bulk string{end}"),
    );
}

#[test]
fn a_web_request_is_closed_without_a_word() {
    for request in
        ["GET / HTTP/1.1\r\nHost: a", "POST /x HTTP/1.1", "OPTIONS * HTTP/1.1", "PRI * HTTP/2.0"]
    {
        check_last(request.as_bytes(), "");
        check_last(format!("PING\r\n{request}").as_bytes(), r"+PONG\r\n");
    }
}

#[test]
fn a_wrong_command_leaves_the_connection_alive() {
    for wrong in [
        &b"NO"[..],
        b"\x00\x01\x02",
        b"\xff\xfe",
        b"TG.CHECK a",
        b"CL.THROTTLE",
        b"*1\r\n$0\r\n",
        b"*1\r\n$2\r\n\r\n",
        b"x');redis.call('FLUSHALL')--",
    ] {
        let told = Counter::new(POLICY).raw(&[wrong, b"\r\nPING\r\n"].concat());
        assert!(told.starts_with("-ERR ") && told.ends_with(r"\r\n+PONG\r\n"), "{told}");
        assert_eq!(told.matches(r"\r\n").count(), 2, "an error is one line: {told}");
    }
}

#[test]
fn keys_are_different_whatever_bytes_they_hold() {
    let counter = Counter::new(POLICY);
    let keys: [&[u8]; 7] =
        [b"", b"\0", b"a:b", b"a%3Ab", b"\r\nFLUSHALL\r\n", b"{a}b", b"'); redis.call('x')"];
    for key in keys {
        let mut asked = format!("*5\r\n$11\r\nCL.THROTTLE\r\n${}\r\n", key.len()).into_bytes();
        asked.extend([key, b"\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n"].concat());
        assert_eq!(counter.raw(&asked), r"*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n");
    }
}

#[test]
fn garbage_is_answered_or_closed_and_never_breaks_anything() {
    let mut random = Random(0x5eed);
    let alphabet: &[&[u8]] = &[
        b"*",
        b"$",
        b"\r\n",
        b"\n",
        b"1",
        b"3",
        b"5",
        b"-",
        b"CL.THROTTLE",
        b"TG.CHECK",
        b"PING",
        b" ",
        b"$4\r\nPING\r\n",
        b"*1\r\n",
        b"k 1 1 1",
        b"COST",
        b"\0",
        b"\xff",
        b"'",
        b"\"",
        b"HELLO 3",
        b"CLIENT",
        b"COMMAND",
        b"$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n",
    ];
    for _ in 0..1_000 {
        let pieces: Vec<&[u8]> =
            (0..random.below(40)).map(|_| alphabet[random.below(alphabet.len())]).collect();
        let whole = pieces.concat();
        let replies =
            |pieces: &[&[u8]]| conversation(&Counter::new("limits: []").limiter, None, pieces);
        assert_eq!(replies(&pieces), replies(&[&whole]), "{}", whole.escape_ascii());
    }
}

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

#[test]
fn many_short_commands_with_long_replies_are_answered_bit_by_bit() {
    let counter = Counter::new(POLICY);
    let one = conversation(&counter.limiter, None, &[b"COMMAND\r\n"]);
    let many = conversation(&counter.limiter, None, &[&b"COMMAND\r\n".repeat(1_000)]);
    assert!(many == one.repeat(1_000));
}
