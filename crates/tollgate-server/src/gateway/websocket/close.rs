//! The ends of a socket that we tell.

use super::bounds::REASON_BYTES_MAX;
use super::frames::Fault;

/// Why we end a socket, as a close frame says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Close {
    code: u16,
    reason: String,
}

impl Close {
    /// What the server is told, masked as a client's frame: the client is leaving.
    pub(crate) const TO_SERVER: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];

    /// Nobody did anything wrong; it is over.
    pub(crate) fn away(reason: &str) -> Self {
        Self::new(1001, reason)
    }

    /// A limit, or another rule of the policy, does not let a message through.
    pub(crate) fn refused(reason: &str) -> Self {
        Self::new(1008, reason)
    }

    /// We are unwell: the client may come again.
    pub(crate) fn unwell(reason: &str) -> Self {
        Self::new(1013, reason)
    }

    fn new(code: u16, reason: &str) -> Self {
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        Self { code, reason: reason[..end].to_owned() }
    }

    /// The frame that tells the client.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let length = u8::try_from(2 + self.reason.len()).expect("a reason is short");
        let mut frame = vec![0x88, length];
        frame.extend_from_slice(&self.code.to_be_bytes());
        frame.extend_from_slice(self.reason.as_bytes());
        frame
    }
}

impl From<Fault> for Close {
    fn from(fault: Fault) -> Self {
        let code = match fault {
            Fault::Protocol(_) => 1002,
            Fault::TooLong => 1009,
        };
        Self::new(code, &fault.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_where_a_character_ends() {
        let long = "ä".repeat(100);
        let frame = Close::refused(&long).frame();
        assert_eq!(frame[..4], [0x88, 124, 0x03, 0xf0], "1008 and 122 bytes");
        assert_eq!(str::from_utf8(&frame[4..]), Ok(&*"ä".repeat(61)));
    }
}
