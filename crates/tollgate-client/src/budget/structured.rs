//! Structured fields (RFC 9651), as far as budgets are written in them: lists and dictionaries of
//! plain items with parameters. A field with anything else in it is malformed to us.
//!
//! They are read in one pass and nothing is kept but what somebody asks for. That a field is malformed is known at its
//! end: until then what was read of it must not be believed.

/// An item. Text is as it was written, without its quotes; since only `"` and `\` can be escaped, and must be,
/// what is written differently is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Integer(i64),
    /// In thousandths.
    Decimal(i64),
    String(&'a [u8]),
    Token(&'a [u8]),
    /// As written, in base64.
    Bytes(&'a [u8]),
    Boolean(bool),
}

/// What somebody wants to know of an item and its parameters, of which the last of a name counts.
pub(super) trait Member<'a> {
    fn begin(item: Item<'a>) -> Self;

    fn learn(&mut self, name: &'a [u8], item: Item<'a>);
}

impl<'a> Item<'a> {
    /// A number that is not negative, rounded down.
    pub(super) fn count(self) -> Option<u64> {
        match self {
            Self::Integer(number) => u64::try_from(number).ok(),
            Self::Decimal(thousandths) => u64::try_from(thousandths).ok().map(|it| it / 1_000),
            _ => None,
        }
    }

    /// A name, as text or as token, as it was written.
    pub(super) fn name(self) -> Option<&'a [u8]> {
        match self {
            Self::String(name) | Self::Token(name) => Some(name),
            _ => None,
        }
    }
}

/// An item whose parameters nobody wants to know.
impl<'a> Member<'a> for Item<'a> {
    fn begin(item: Item<'a>) -> Self {
        item
    }

    fn learn(&mut self, _: &'a [u8], _: Item<'a>) {}
}

/// A name as it is meant.
pub(super) fn unescaped(name: &[u8]) -> String {
    let mut meant = String::with_capacity(name.len());
    let mut is_escaped = false;
    for &byte in name {
        is_escaped = byte == b'\\' && !is_escaped;
        if !is_escaped {
            meant.push(byte.into());
        }
    }
    meant
}

/// `"a";q=1, "b";q=2`, one by one; `None` if it is malformed.
pub(super) fn list<'a, M: Member<'a>>(value: &'a [u8], mut each: impl FnMut(M)) -> Option<()> {
    Reader::of(value).members(|reader| {
        let mut member = M::begin(reader.item()?);
        reader.parameters(&mut member)?;
        each(member);
        Some(())
    })
}

/// `limit=100, remaining=50`, one by one; a key alone is true. `None` if it is malformed.
pub(super) fn dictionary<'a, M: Member<'a>>(
    value: &'a [u8],
    mut each: impl FnMut(&'a [u8], M),
) -> Option<()> {
    Reader::of(value).members(|reader| {
        let (key, item) = reader.pair()?;
        let mut member = M::begin(item);
        reader.parameters(&mut member)?;
        each(key, member);
        Some(())
    })
}

/// What is left to read. A method that finds something else than it should gives `None`.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn of(mut value: &'a [u8]) -> Self {
        while let [b' ', rest @ ..] | [rest @ .., b' '] = value {
            value = rest;
        }
        Self { rest: value }
    }

    fn members(mut self, mut read: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        let is_space = |byte| matches!(byte, b' ' | b'\t');
        while !self.rest.is_empty() {
            read(&mut self)?;
            self.take_while(is_space);
            if self.rest.is_empty() {
                break;
            }
            self.expect(b',')?;
            self.take_while(is_space);
            // A comma at the end is a mistake.
            if self.rest.is_empty() {
                return None;
            }
        }
        Some(())
    }

    fn parameters<M: Member<'a>>(&mut self, member: &mut M) -> Option<()> {
        while self.skip(b';') {
            self.take_while(|byte| byte == b' ');
            let (name, item) = self.pair()?;
            member.learn(name, item);
        }
        Some(())
    }

    fn pair(&mut self) -> Option<(&'a [u8], Item<'a>)> {
        let key = self.key()?;
        let item = if self.skip(b'=') { self.item()? } else { Item::Boolean(true) };
        Some((key, item))
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        matches!(self.rest.first()?, b'a'..=b'z' | b'*').then_some(())?;
        let is_part = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*');
        Some(self.take_while(is_part))
    }

    fn item(&mut self) -> Option<Item<'a>> {
        match self.rest.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b':' => self.bytes(),
            b'?' => self.boolean(),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => {
                let is_token =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
                Some(Item::Token(self.take_while(is_token)))
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Item<'a>> {
        let sign = if self.skip(b'-') { -1 } else { 1 };
        let (whole, digits) = self.digits();
        if !self.skip(b'.') {
            return (1..=15).contains(&digits).then(|| Item::Integer(sign * whole));
        }
        let (fraction, decimals) = self.digits();
        let unit = match decimals {
            1 => 100,
            2 => 10,
            3 => 1,
            _ => return None,
        };
        let is_decimal = (1..=12).contains(&digits);
        is_decimal.then(|| Item::Decimal(sign * (whole * 1_000 + fraction * unit)))
    }

    /// Digits, as a number if they are not too many, and how many there are.
    fn digits(&mut self) -> (i64, usize) {
        let mut number = 0_i64;
        let digits = self.take_while(|byte| {
            let is_digit = byte.is_ascii_digit();
            if is_digit {
                number = number.wrapping_mul(10).wrapping_add(i64::from(byte - b'0'));
            }
            is_digit
        });
        (number, digits.len())
    }

    fn string(&mut self) -> Option<Item<'a>> {
        self.expect(b'"')?;
        let mut end = 0;
        loop {
            match *self.rest.get(end)? {
                b'"' => break,
                b'\\' if matches!(self.rest.get(end + 1)?, b'"' | b'\\') => end += 2,
                b'\\' => return None,
                b' '..=b'~' => end += 1,
                _ => return None,
            }
        }
        let (text, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Some(Item::String(text))
    }

    fn bytes(&mut self) -> Option<Item<'a>> {
        self.expect(b':')?;
        let text = self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        self.expect(b':')?;
        Some(Item::Bytes(text))
    }

    fn boolean(&mut self) -> Option<Item<'a>> {
        self.expect(b'?')?;
        if self.skip(b'1') {
            return Some(Item::Boolean(true));
        }
        self.expect(b'0').map(|()| Item::Boolean(false))
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        self.skip(wanted).then_some(())
    }

    /// Whether it comes next; then it is read.
    fn skip(&mut self, wanted: u8) -> bool {
        match self.rest {
            [first, rest @ ..] if *first == wanted => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn take_while(&mut self, mut is_part: impl FnMut(u8) -> bool) -> &'a [u8] {
        let mut end = 0;
        while self.rest.get(end).is_some_and(|byte| is_part(*byte)) {
            end += 1;
        }
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }
}

#[cfg(test)]
mod tests;
