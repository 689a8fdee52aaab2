//! Numbers and quoted text, written without an allocation of their own.

/// Writes a number in decimal.
#[inline]
pub(super) fn number(out: &mut Vec<u8>, number: u64) {
    number_behind(out, [], number);
}

/// Writes some bytes and behind them a number in decimal.
#[inline]
pub(super) fn number_behind<const N: usize>(out: &mut Vec<u8>, before: [u8; N], number: u64) {
    // Of any number as much as of the longest is copied, and the rest forgotten: a copy of a length that is
    // known beforehand costs next to nothing, any other a call.
    const LONGEST: usize = 20;
    let mut digits = [0; 2 * LONGEST];
    let start = number_before(&mut digits[..LONGEST], number);
    let length = out.len() + N + LONGEST - start;
    let copied: &[u8; LONGEST] = digits[start..].first_chunk().expect("there is room behind");
    out.reserve(N + LONGEST);
    out.extend_from_slice(&before);
    out.extend_from_slice(copied);
    out.truncate(length);
}

/// Writes a number in decimal to the end of `room`, which has twenty bytes at least; tells where it
/// begins.
#[inline]
pub fn number_before(room: &mut [u8], mut number: u64) -> usize {
    let mut start = room.len();
    while number >= 10 {
        start -= 2;
        let two = (number % 100) as usize;
        room[start..start + 2].copy_from_slice(&PAIRS[2 * two..2 * two + 2]);
        number /= 100;
    }
    // A leading zero of a pair is not written, but the only digit of zero is.
    if number > 0 || start == room.len() {
        start -= 1;
        room[start] = b'0' + number as u8;
    }
    start
}

/// All numbers of two digits: dividing by a hundred takes no longer than dividing by ten.
const PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut number = 0;
    while number < 100 {
        pairs[2 * number] = b'0' + (number / 10) as u8;
        pairs[2 * number + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    pairs
};

/// Writes a JSON string.
pub(super) fn json_string(out: &mut Vec<u8>, text: &str) {
    quoted(
        out,
        text,
        |byte| ODD_IN_JSON[usize::from(byte)],
        |out, byte| match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&hexadecimal(byte));
            }
        },
    );
}

/// The bytes that are escaped. Some are so beyond need, so that no browser takes a body for a page.
const ODD_IN_JSON: [bool; 256] = {
    let (mut odd, mut byte) = ([false; 256], 0);
    while byte < 256 {
        odd[byte] = matches!(byte as u8, 0..=0x1F | b'"' | b'\\' | b'<' | b'>' | 0x7F);
        byte += 1;
    }
    odd
};

/// Writes a string of a structured field. These hold printable ASCII only; what is not is written
/// as in a URL, so that two names stay two.
pub(super) fn field_string(out: &mut Vec<u8>, text: &str) {
    let is_odd = |byte: u8| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\');
    quoted(out, text, is_odd, |out, byte| match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        _ => {
            out.push(b'%');
            out.extend_from_slice(&hexadecimal(byte));
        }
    });
}

/// Writes a text in quotes, whose odd bytes `escape` writes. Most texts have none, and are copied as
/// they are.
fn quoted(
    out: &mut Vec<u8>,
    text: &str,
    is_odd: impl Fn(u8) -> bool,
    escape: impl Fn(&mut Vec<u8>, u8),
) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| is_odd(*byte)) {
        out.extend_from_slice(&rest[..at]);
        escape(out, rest[at]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// Two digits, in capitals.
pub(super) fn hexadecimal(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

/// The byte that two digits after a percent sign stand for.
pub(super) fn percent_decoded(digits: &[u8]) -> Option<u8> {
    let &[high, low, ..] = digits else { return None };
    let value = |digit: u8| (digit as char).to_digit(16);
    Some((value(high)? * 16 + value(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        for value in [0, 1, 9, 10, 99, 100, 4_294_967_295, u64::MAX] {
            assert_eq!(written(|out| number(out, value)), value.to_string());
            assert_eq!(written(|out| number_behind(out, *b";t=", value)), format!(";t={value}"));
        }
    }

    #[test]
    fn any_text_survives_json() {
        let text: String = (0..=0x2FF).filter_map(char::from_u32).collect();
        let json = written(|out| json_string(out, &text));
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        assert!(!json.contains(['<', '>']));
    }

    #[test]
    fn any_text_makes_a_string_that_structured_fields_can_hold() {
        let text: String = (0..=0x2FF).filter_map(char::from_u32).collect();
        let field = written(|out| field_string(out, &text));
        let item: sfv::Item = sfv::Parser::new(&field).parse().unwrap();
        let held = item.bare_item.as_string().unwrap().as_str();
        assert!(held.starts_with("%00%01") && held.ends_with("%CB%BF"), "{held}");
        assert!(held.contains("!\"#") && held.contains("[\\]"), "{held}");
    }
}
