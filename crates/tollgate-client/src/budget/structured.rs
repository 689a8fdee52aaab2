//! Structured fields (RFC 9651), as far as budgets are written in them: lists and dictionaries of
//! plain items with parameters. A field with anything else in it is malformed to us.

use std::borrow::Cow;

/// An item with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member<'a> {
    pub(super) item: Item<'a>,
    parameters: Vec<(&'a str, Item<'a>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Integer(i64),
    /// In thousandths.
    Decimal(i64),
    String(Cow<'a, str>),
    Token(&'a str),
    /// As written, in base64.
    Bytes(&'a str),
    Boolean(bool),
}

impl Member<'_> {
    /// The last of that name counts.
    pub(super) fn parameter(&self, name: &str) -> Option<&Item<'_>> {
        self.parameters.iter().rev().find(|(key, _)| *key == name).map(|(_, item)| item)
    }

    /// A parameter that is a whole number and not negative.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.parameter(name)?.count()
    }
}

impl Item<'_> {
    /// A number that is not negative, rounded down.
    pub(super) fn count(&self) -> Option<u64> {
        match *self {
            Self::Integer(number) => u64::try_from(number).ok(),
            Self::Decimal(thousandths) => u64::try_from(thousandths).ok().map(|it| it / 1_000),
            _ => None,
        }
    }

    /// A name, as text or as token.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            Self::Token(token) => Some(token),
            _ => None,
        }
    }
}

/// `"a";q=1, "b";q=2`.
pub(super) fn list(text: &str) -> Option<Vec<Member<'_>>> {
    Reader::of(text).members(|reader| {
        let item = reader.item()?;
        Some(Member { item, parameters: reader.parameters()? })
    })
}

/// `limit=100, remaining=50`; a key alone is true.
pub(super) fn dictionary(text: &str) -> Option<Vec<(&str, Member<'_>)>> {
    Reader::of(text).members(|reader| {
        let (key, item) = reader.pair()?;
        Some((key, Member { item, parameters: reader.parameters()? }))
    })
}

/// The text that is left to read. A method that finds something else than it should gives `None`.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn of(text: &'a str) -> Self {
        Self { rest: text.trim_matches(' ') }
    }

    fn members<T>(mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut members = Vec::new();
        while !self.rest.is_empty() {
            members.push(read(&mut self)?);
            self.take_while(|byte| matches!(byte, b' ' | b'\t'));
            if self.rest.is_empty() {
                break;
            }
            self.expect(',')?;
            self.take_while(|byte| matches!(byte, b' ' | b'\t'));
            // A comma at the end is a mistake.
            if self.rest.is_empty() {
                return None;
            }
        }
        Some(members)
    }

    fn parameters(&mut self) -> Option<Vec<(&'a str, Item<'a>)>> {
        // Few have more.
        let mut parameters = Vec::with_capacity(if self.rest.starts_with(';') { 4 } else { 0 });
        while self.expect(';').is_some() {
            self.take_while(|byte| byte == b' ');
            parameters.push(self.pair()?);
        }
        Some(parameters)
    }

    fn pair(&mut self) -> Option<(&'a str, Item<'a>)> {
        let key = self.key()?;
        let item = if self.expect('=').is_some() { self.item()? } else { Item::Boolean(true) };
        Some((key, item))
    }

    fn key(&mut self) -> Option<&'a str> {
        matches!(self.rest.as_bytes().first()?, b'a'..=b'z' | b'*').then_some(())?;
        let is_part = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*');
        Some(self.take_while(is_part))
    }

    fn item(&mut self) -> Option<Item<'a>> {
        match self.rest.as_bytes().first()? {
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
        let sign = if self.expect('-').is_some() { -1 } else { 1 };
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        if self.expect('.').is_none() {
            let is_integer = (1..=15).contains(&whole.len());
            let number =
                whole.bytes().take(15).fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
            return is_integer.then_some(Item::Integer(sign * number));
        }
        let fraction = self.take_while(|byte| byte.is_ascii_digit());
        if !(1..=12).contains(&whole.len()) || !(1..=3).contains(&fraction.len()) {
            return None;
        }
        let thousandths: i64 = format!("{whole}{fraction:0<3}").parse().ok()?;
        Some(Item::Decimal(sign * thousandths))
    }

    fn string(&mut self) -> Option<Item<'a>> {
        self.expect('"')?;
        let plain =
            self.take_while(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\');
        if self.expect('"').is_some() {
            return Some(Item::String(Cow::Borrowed(plain)));
        }
        let mut text = plain.to_owned();
        let mut chars = self.rest.char_indices();
        loop {
            match chars.next()? {
                (at, '"') => {
                    self.rest = &self.rest[at + 1..];
                    return Some(Item::String(Cow::Owned(text)));
                }
                (_, '\\') => match chars.next()?.1 {
                    escaped @ ('"' | '\\') => text.push(escaped),
                    _ => return None,
                },
                (_, plain @ ' '..='~') => text.push(plain),
                _ => return None,
            }
        }
    }

    fn bytes(&mut self) -> Option<Item<'a>> {
        self.expect(':')?;
        let text = self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        self.expect(':')?;
        Some(Item::Bytes(text))
    }

    fn boolean(&mut self) -> Option<Item<'a>> {
        self.expect('?')?;
        if self.expect('1').is_some() {
            return Some(Item::Boolean(true));
        }
        self.expect('0').map(|()| Item::Boolean(false))
    }

    fn expect(&mut self, wanted: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(wanted)?;
        Some(())
    }

    /// As many bytes as are a part of it, all of them ASCII.
    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'a str {
        let end = self.rest.bytes().position(|byte| !is_part(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }
}

#[cfg(test)]
mod tests;
