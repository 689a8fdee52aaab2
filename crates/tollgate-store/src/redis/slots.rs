//! Which slot of a Cluster a key lies in.

/// How many slots a Cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: of its hash tag, if it has one.
pub(super) fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// What stands between the first `{` and the next `}`, if anything does; otherwise the whole key.
fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = || {
        let start = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[start..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[start..start + length])
    };
    tag().unwrap_or(key)
}

/// CRC-16/XMODEM, as Redis Cluster has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    const POLYNOMIAL: u16 = 0x1021;
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_as_the_specification_says() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b""), 0);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"foo{bar}"), slot(b"bar"));
    }

    #[test]
    fn a_hash_tag_is_the_first_pair_of_braces_with_something_between() {
        for (key, tag) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
            ("foo}bar{", "foo}bar{"),
        ] {
            assert_eq!(hash_tag(key.as_bytes()).escape_ascii().to_string(), tag, "{key}");
        }
    }
}
