//! Whose connection it is, as a proxy says before anything else: the PROXY protocol, versions 1 and 2.
//!
//! Whether a connection begins with a header depends on its peer alone, never on what it sends:
//! guessing would let whoever reaches us be whomever it likes. A trusted proxy that speaks the
//! protocol begins with one every time, and is cut off otherwise. From anybody else none is
//! expected, and one that comes is not a request.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;
use tollgate::ClientIp;

use super::bounds::PROXY_HEADER_BYTES_MAX;
use crate::bounds::HANDSHAKE_MAX;
use crate::prefixed::Prefixed;

/// Whether a connection of this peer begins with a header.
pub(crate) fn is_expected(peer: IpAddr, settings: &ClientIp) -> bool {
    let peer = peer.to_canonical();
    settings.proxy_protocol && settings.trusted_proxies.iter().any(|block| block.contains(peer))
}

/// Reads the header that a connection must begin with: whose it is, unless it is the proxy's own, and
/// the stream behind it. The proxy speaks for itself when it looks whether we are alive, and when it
/// does not know for whom it speaks.
pub(crate) async fn read<S: AsyncRead + Unpin>(
    mut stream: S,
) -> io::Result<(Option<SocketAddr>, Prefixed<S>)> {
    let (header, seen) = timeout(HANDSHAKE_MAX, read_header(&mut stream)).await??;
    // What else came is copied, so that no room for a long header stays behind.
    let unread = Bytes::copy_from_slice(&seen[header.length..]);
    Ok((header.source, Prefixed::new(unread, stream)))
}

async fn read_header<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<(Header, BytesMut)> {
    let mut seen = BytesMut::with_capacity(FEW_BYTES);
    loop {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        if let Some(header) = Header::parse(&seen).map_err(invalid)? {
            return Ok((header, seen));
        }
        if stream.read_buf(&mut seen).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Enough for nearly every header.
const FEW_BYTES: usize = 256;

/// What every header of version 1 begins with, and how long the standard lets it be.
const TEXT: &[u8] = b"PROXY ";
const TEXT_BYTES_MAX: usize = 107;

/// What every header of version 2 begins with, and how much of it comes before addresses.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const FIXED_BYTES: usize = 16;

/// Version 2, and whether the proxy speaks for itself or for somebody.
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;

/// How many bytes the names of two unix sockets take.
const UNIX_BYTES: usize = 216;

const TOO_SHORT: &str = "the PROXY header is too short for its addresses";

#[derive(Debug, PartialEq, Eq)]
struct Header {
    /// How many bytes it has.
    length: usize,
    /// Whose connection it is, if not that of whoever sent the header.
    source: Option<SocketAddr>,
}

impl Header {
    /// The header that `seen` begins with; nothing if there is more of it to come. A mistake is said
    /// with its first byte.
    fn parse(seen: &[u8]) -> Result<Option<Self>, &'static str> {
        let may_begin = |prefix: &[u8]| seen.iter().zip(prefix).all(|(one, other)| one == other);
        if may_begin(SIGNATURE) {
            Self::parse_binary(seen)
        } else if may_begin(TEXT) {
            Self::parse_text(seen)
        } else {
            Err("the connection does not begin with a PROXY header")
        }
    }

    /// Version 1, a line: `PROXY TCP4 203.0.113.7 10.0.0.1 56324 443`.
    fn parse_text(seen: &[u8]) -> Result<Option<Self>, &'static str> {
        const BAD: &str = "the line after PROXY is not one of the PROXY protocol";
        let Some(length) = seen.iter().take(TEXT_BYTES_MAX).position(|byte| *byte == b'\n') else {
            let is_long = seen.len() >= TEXT_BYTES_MAX;
            return if is_long { Err("the PROXY line is too long") } else { Ok(None) };
        };
        let line = seen[TEXT.len()..length].strip_suffix(b"\r").ok_or(BAD)?;
        let family = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        let rest = line[family.len()..].strip_prefix(b" ");
        let source = match (family, rest) {
            // What follows may be anything, except for another end of the line.
            (b"UNKNOWN", _) if !line.contains(&b'\r') => None,
            (b"TCP4", Some(rest)) => Some(written_source::<Ipv4Addr>(rest).ok_or(BAD)?),
            (b"TCP6", Some(rest)) => Some(written_source::<Ipv6Addr>(rest).ok_or(BAD)?),
            _ => return Err(BAD),
        };
        Ok(Some(Self { length: length + 1, source }))
    }

    /// Version 2, in bytes. What follows the addresses is for others.
    fn parse_binary(seen: &[u8]) -> Result<Option<Self>, &'static str> {
        let Some((fixed, rest)) = seen.split_first_chunk::<FIXED_BYTES>() else { return Ok(None) };
        let [.., command, family, high, low] = *fixed;
        let rest_length = usize::from(u16::from_be_bytes([high, low]));
        if !matches!(command, LOCAL | PROXY) {
            return Err("the PROXY header is of a version or has a command that nobody knows");
        }
        if FIXED_BYTES + rest_length > PROXY_HEADER_BYTES_MAX {
            return Err("the PROXY header is too long");
        }
        let Some(rest) = rest.get(..rest_length) else { return Ok(None) };
        // Over what the client came to the proxy makes no difference: a stream (1) or datagrams (2).
        let source = match family {
            _ if command == LOCAL => None,
            0x00 => None,
            0x11 | 0x12 => Some(source_in::<4>(rest).ok_or(TOO_SHORT)?),
            0x21 | 0x22 => Some(source_in::<16>(rest).ok_or(TOO_SHORT)?),
            0x31 | 0x32 if rest_length >= UNIX_BYTES => None,
            0x31 | 0x32 => return Err(TOO_SHORT),
            _ => return Err("the PROXY header has addresses of a kind that nobody knows"),
        };
        Ok(Some(Self { length: FIXED_BYTES + rest_length, source }))
    }
}

/// Two addresses and two ports: whose connection it is, and which of theirs it reached.
fn source_in<const N: usize>(block: &[u8]) -> Option<SocketAddr>
where
    IpAddr: From<[u8; N]>,
{
    let (from, block) = block.split_first_chunk::<N>()?;
    let (_to, block) = block.split_first_chunk::<N>()?;
    let &[high, low, _, _, ..] = block else { return None };
    Some(source(*from, u16::from_be_bytes([high, low])))
}

/// The same in words.
fn written_source<A: FromStr + Into<IpAddr>>(text: &[u8]) -> Option<SocketAddr> {
    let words: Vec<&str> = std::str::from_utf8(text).ok()?.split(' ').collect();
    let &[from, to, from_port, to_port] = &words[..] else { return None };
    let (from, _to): (A, A) = (from.parse().ok()?, to.parse().ok()?);
    let (port, _to) = (written_port(from_port)?, written_port(to_port)?);
    Some(source(from, port))
}

/// A port as the standard has it: digits, and no zeros before them.
fn written_port(text: &str) -> Option<u16> {
    let port: u16 = text.parse().ok()?;
    (port.to_string() == text).then_some(port)
}

fn source(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into().to_canonical(), port)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    /// A header of version 2.
    fn binary(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let mut header = [&SIGNATURE[..], &[command, family]].concat();
        header.extend_from_slice(&u16::try_from(block.len()).expect("short").to_be_bytes());
        header.extend_from_slice(block);
        header
    }

    /// From 203.0.113.7:4711 to 10.0.0.1:443, and the same over IPv6.
    const IPV4: [u8; 12] = [203, 0, 113, 7, 10, 0, 0, 1, 0x12, 0x67, 1, 0xBB];
    const IPV6: [u8; 36] = {
        let mut block = [0; 36];
        [block[0], block[1], block[2], block[3], block[15]] = [0x20, 0x01, 0x0D, 0xB8, 7];
        [block[31], block[32], block[33], block[34], block[35]] = [1, 0x12, 0x67, 1, 0xBB];
        block
    };
    /// An extension that nobody reads here.
    const TLV: [u8; 8] = [0xEA, 0, 5, b'h', b'e', b'l', b'l', b'o'];

    /// Headers as they should be, and whose connection they say it is.
    fn good() -> Vec<(Vec<u8>, Option<&'static str>)> {
        let mut mapped = IPV6;
        mapped[..16].copy_from_slice(&Ipv4Addr::new(203, 0, 113, 7).to_ipv6_mapped().octets());
        let mut good: Vec<(Vec<u8>, Option<&str>)> = vec![
            (binary(PROXY, 0x11, &IPV4), Some("203.0.113.7:4711")),
            (binary(PROXY, 0x12, &IPV4), Some("203.0.113.7:4711")),
            (binary(PROXY, 0x11, &[&IPV4[..], &TLV].concat()), Some("203.0.113.7:4711")),
            (binary(PROXY, 0x21, &IPV6), Some("[2001:db8::7]:4711")),
            (binary(PROXY, 0x22, &[&IPV6[..], &TLV].concat()), Some("[2001:db8::7]:4711")),
            (binary(PROXY, 0x21, &mapped), Some("203.0.113.7:4711")),
            (binary(PROXY, 0x31, &[0; UNIX_BYTES]), None),
            (binary(PROXY, 0x00, &[]), None),
            (binary(PROXY, 0x00, &TLV), None),
            (binary(LOCAL, 0x00, &[]), None),
            (binary(LOCAL, 0x11, &IPV4), None),
            (binary(LOCAL, 0xFF, &TLV), None),
            (binary(LOCAL, 0x00, &[7; PROXY_HEADER_BYTES_MAX - FIXED_BYTES]), None),
        ];
        for (line, source) in [
            ("PROXY TCP4 203.0.113.7 10.0.0.1 4711 443", Some("203.0.113.7:4711")),
            ("PROXY TCP4 255.255.255.255 255.255.255.255 65535 0", Some("255.255.255.255:65535")),
            ("PROXY TCP6 2001:db8::7 ::1 4711 443", Some("[2001:db8::7]:4711")),
            ("PROXY TCP6 ::ffff:203.0.113.7 ::1 4711 443", Some("203.0.113.7:4711")),
            ("PROXY UNKNOWN", None),
            ("PROXY UNKNOWN whatever \u{e9} is here", None),
        ] {
            good.push((format!("{line}\r\n").into_bytes(), source));
        }
        let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(TEXT_BYTES_MAX - 16));
        assert_eq!(longest.len(), TEXT_BYTES_MAX, "as long as it may be");
        good.push((longest.into_bytes(), None));
        good
    }

    /// What is no header however it goes on.
    fn bad() -> Vec<Vec<u8>> {
        let mut bad = vec![
            binary(0x11, 0x11, &IPV4),
            binary(0x31, 0x11, &IPV4),
            binary(0x22, 0x11, &IPV4),
            binary(PROXY, 0x11, &IPV4[..11]),
            binary(PROXY, 0x11, &[]),
            binary(PROXY, 0x21, &IPV6[..35]),
            binary(PROXY, 0x31, &[0; UNIX_BYTES - 1]),
            binary(PROXY, 0x10, &IPV4),
            binary(PROXY, 0x13, &IPV4),
            binary(PROXY, 0x01, &[]),
            binary(PROXY, 0x41, &[0; 64]),
            binary(LOCAL, 0x00, &[7; PROXY_HEADER_BYTES_MAX - FIXED_BYTES + 1]),
            b"\r\n\r\n\0\r\nQUIX\n".to_vec(),
            b"\x16\x03\x01\x02\0\x01".to_vec(),
        ];
        for line in [
            "GET / HTTP/1.1",
            "PRI * HTTP/2.0",
            "proxy TCP4 203.0.113.7 10.0.0.1 4711 443",
            "PROXY",
            "PROXY ",
            "PROXY  TCP4 203.0.113.7 10.0.0.1 4711 443",
            "PROXY tcp4 203.0.113.7 10.0.0.1 4711 443",
            "PROXY TCP5 203.0.113.7 10.0.0.1 4711 443",
            "PROXY TCP4",
            "PROXY TCP4 ",
            "PROXY TCP4 203.0.113.7 10.0.0.1 4711",
            "PROXY TCP4 203.0.113.7 10.0.0.1 4711 443 ",
            "PROXY TCP4 203.0.113.7 10.0.0.1 4711 443 1",
            "PROXY TCP4 203.0.113.7  10.0.0.1 4711 443",
            "PROXY TCP4 203.0.113.07 10.0.0.1 4711 443",
            "PROXY TCP4 203.0.113 10.0.0.1 4711 443",
            "PROXY TCP4 2001:db8::7 ::1 4711 443",
            "PROXY TCP6 203.0.113.7 10.0.0.1 4711 443",
            "PROXY TCP6 fe80::1%eth0 ::1 4711 443",
            "PROXY TCP6 [2001:db8::7] ::1 4711 443",
            "PROXY TCP4 203.0.113.7 10.0.0.1 65536 443",
            "PROXY TCP4 203.0.113.7 10.0.0.1 04711 443",
            "PROXY TCP4 203.0.113.7 10.0.0.1 +4711 443",
            "PROXY TCP4 203.0.113.7 10.0.0.1 -1 443",
            "PROXY TCP4 203.0.113.7 10.0.0.1 4711 x",
            "PROXY TCP4 203.0.113.7 nobody 4711 443",
            "PROXY TCP4 203.0.113.7\t10.0.0.1 4711 443",
            "PROXY TCP4 203.0.113.7 10.0.0.1 4711 443\r",
            "PROXY TCP4 203.0.113.7 10.0.0.1 4711 443\0",
            "PROXY TCP4 \u{e9} 10.0.0.1 4711 443",
            "PROXY UNKNOWNS",
            "PROXY UNKNOWN\rGET / HTTP/1.1",
        ] {
            bad.push(format!("{line}\r\n").into_bytes());
        }
        bad.push(b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 443\n".to_vec());
        bad.push(b"PROXY UNKNOWN\nGET / HTTP/1.1\r\n".to_vec());
        bad.push(format!("PROXY UNKNOWN {}\r\n", "x".repeat(TEXT_BYTES_MAX - 15)).into_bytes());
        bad
    }

    #[test]
    fn a_header_says_whose_connection_it_is() {
        for (header, source) in good() {
            let source = source.map(|source| source.parse().unwrap());
            let expected = Header { length: header.len(), source };
            assert_eq!(Header::parse(&header), Ok(Some(expected)), "{}", header.escape_ascii());
        }
    }

    #[test]
    fn a_header_that_is_not_all_there_is_waited_for_and_what_follows_it_is_left_alone() {
        for (header, _) in good() {
            for length in 0..header.len() {
                let begun = &header[..length];
                assert_eq!(Header::parse(begun), Ok(None), "{}", begun.escape_ascii());
            }
            for next in [&b"GET / HTTP/1.1\r\n"[..], b"\n", &header] {
                let followed = [&header[..], next].concat();
                assert_eq!(Header::parse(&followed), Header::parse(&header));
            }
        }
    }

    #[test]
    fn what_is_not_a_header_is_refused() {
        for bytes in bad() {
            assert!(Header::parse(&bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }

    /// SplitMix64, so that a failure can be had again.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((mixed ^ (mixed >> 31)) % bound as u64) as usize
        }

        /// A header, good or bad, with bytes changed, taken out or put in.
        fn mangled(&mut self, headers: &[Vec<u8>]) -> Vec<u8> {
            let mut bytes = headers[self.below(headers.len())].clone();
            for _ in 0..self.below(4) {
                let at = self.below(bytes.len());
                match self.below(4) {
                    0 => bytes[at] = self.below(256) as u8,
                    1 => bytes[at] ^= 1 << self.below(8),
                    2 => bytes.insert(at, b" \r\n0:.\0"[self.below(7)]),
                    _ => bytes.truncate(at + 1),
                }
            }
            bytes
        }
    }

    #[test]
    fn whatever_the_bytes_and_however_they_come_the_answer_is_the_same() {
        let mut random = Random(5);
        let mut headers = bad();
        headers.extend(good().into_iter().map(|(header, _)| header));
        for _ in 0..20_000 {
            let bytes = random.mangled(&headers);
            let whole = Header::parse(&bytes);
            if let Ok(Some(header)) = &whole {
                assert!(header.length <= bytes.len() && header.length <= PROXY_HEADER_BYTES_MAX);
                assert_eq!(Header::parse(&bytes[..header.length]), whole);
            }
            let begun = Header::parse(&bytes[..random.below(bytes.len() + 1)]);
            let is_alike =
                begun == Ok(None) || begun == whole || (begun.is_err() && whole.is_err());
            assert!(is_alike, "{}: {begun:?}, then {whole:?}", bytes.escape_ascii());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_whatever_pieces_it_comes_the_header_is_taken_off_and_the_rest_is_there() {
        let mut random = Random(7);
        for (header, source) in good() {
            for room in [1, 7, 64, 8192] {
                let rest: Vec<u8> = (0..random.below(600)).map(|number| number as u8).collect();
                let (mut far, near) = duplex(room);
                let sent = [&header[..], &rest].concat();
                let sending = tokio::spawn(async move { far.write_all(&sent).await });
                let (found, mut stream) = read(near).await.unwrap();
                assert_eq!(found, source.map(|source| source.parse().unwrap()));
                let mut left = Vec::new();
                stream.read_to_end(&mut left).await.unwrap();
                assert_eq!(left, rest);
                sending.await.unwrap().unwrap();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_does_not_say_for_whom_it_speaks_is_cut_off() {
        for bytes in bad() {
            let (mut far, near) = duplex(8192);
            far.write_all(&bytes).await.unwrap();
            let error = read(near).await.map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{}", bytes.escape_ascii());
        }
        for said in [&b""[..], b"PROXY TCP4 203.0.113.7", &SIGNATURE[..]] {
            let (mut far, near) = duplex(64);
            far.write_all(said).await.unwrap();
            let cut_off = timeout(2 * HANDSHAKE_MAX, read(near)).await.unwrap();
            assert_eq!(cut_off.map(|_| ()).unwrap_err().kind(), io::ErrorKind::TimedOut);
            let (mut far, near) = duplex(64);
            far.write_all(said).await.unwrap();
            drop(far);
            let error = read(near).await.map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_header_is_expected_of_trusted_proxies_only_and_if_the_policy_says_so() {
        for (proxy_protocol, peer, expected) in [
            ("on", "10.0.0.1", true),
            ("on", "::ffff:10.0.0.1", true),
            ("on", "203.0.113.7", false),
            ("off", "10.0.0.1", false),
        ] {
            let policy = format!(
                "client_ip: {{trusted_proxies: [10.0.0.0/8], proxy_protocol: {proxy_protocol}}}\n\
                 limits: []"
            );
            let limiter = tollgate::Limiter::from_yaml(&policy).unwrap();
            let peer = peer.parse().unwrap();
            let found = limiter.with_policy(|it| is_expected(peer, &it.settings().client_ip));
            assert_eq!(found, expected, "{peer} {proxy_protocol}");
        }
    }
}
