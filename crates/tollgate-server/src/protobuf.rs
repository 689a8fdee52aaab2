//! Protocol buffers, written: numbered fields, one after the other.

/// Writes fields behind each other.
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn varint(&mut self, number: u8, value: u64) {
        self.number(u64::from(number) << 3);
        self.number(value);
    }

    /// A zero that is not written is read as a zero.
    pub(crate) fn varint_unless_zero(&mut self, number: u8, value: u64) {
        if value != 0 {
            self.varint(number, value);
        }
    }

    pub(crate) fn double(&mut self, number: u8, value: f64) {
        self.number(u64::from(number) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn fixed(&mut self, number: u8, value: u64) {
        self.number(u64::from(number) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, number: u8, bytes: &[u8]) {
        self.number(u64::from(number) << 3 | 2);
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn message(&mut self, number: u8, write: impl FnOnce(&mut Writer<'_>)) {
        self.number(u64::from(number) << 3 | 2);
        // The length stands before the message and is known after it. Most are one byte long.
        self.0.push(0);
        let start = self.0.len();
        write(&mut Writer(self.0));
        let length = self.0.len() - start;
        if length < 0x80 {
            self.0[start - 1] = length as u8;
        } else {
            let mut longer = Vec::new();
            Writer(&mut longer).number(length as u64);
            self.0.splice(start - 1..start, longer);
        }
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
