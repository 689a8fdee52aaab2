//! Protocol buffers: numbered fields, one after the other.

use super::Unread;

/// The value of a field, as far as it is told by the bytes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'a> {
    Varint(u64),
    /// A text, a list of bytes or a message.
    Bytes(&'a [u8]),
    /// A number of fixed size, which none of our messages has.
    Fixed,
}

/// The fields of a message.
#[derive(Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            // Groups, which this generation of the language does not have.
            _ => return None,
        };
        let number = key >> 3;
        (number != 0).then_some((number, field))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), Unread>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        Some(self.field().ok_or(Unread::Malformed))
    }
}

/// Writes fields behind each other.
pub(super) struct Writer<'a>(pub(super) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(super) fn varint(&mut self, number: u8, value: u64) {
        self.number(u64::from(number) << 3);
        self.number(value);
    }

    /// A zero that is not written is read as a zero.
    pub(super) fn varint_unless_zero(&mut self, number: u8, value: u64) {
        if value != 0 {
            self.varint(number, value);
        }
    }

    pub(super) fn double(&mut self, number: u8, value: f64) {
        self.number(u64::from(number) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, number: u8, bytes: &[u8]) {
        self.number(u64::from(number) << 3 | 2);
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn message(&mut self, number: u8, write: impl FnOnce(&mut Writer<'_>)) {
        self.number(u64::from(number) << 3 | 2);
        let start = self.0.len();
        write(&mut Writer(self.0));
        // The length stands before the message and is known after it. Most are one byte long.
        let end = self.0.len();
        self.number((end - start) as u64);
        let length_bytes = self.0.len() - end;
        self.0[start..].rotate_right(length_bytes);
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
