//! Numbers and quoted text, written without an allocation of their own.

/// Writes a number in decimal.
pub(super) fn number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Writes a JSON string.
pub(super) fn json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            // Escaped so that no browser takes a body for a page.
            0..=0x1F | b'<' | b'>' | 0x7F => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&hexadecimal(byte));
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Writes a string of a structured field. These hold printable ASCII only; what is not is written
/// as in a URL, so that two names stay two.
pub(super) fn field_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => {
                out.push(b'%');
                out.extend_from_slice(&hexadecimal(byte));
            }
        }
    }
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
