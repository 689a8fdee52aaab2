//! What a response says its request cost, read out of its body as that passes by.
//!
//! The body goes through in pieces of any size and is not kept: what is remembered is where in the
//! document we are, which is a few words whatever the body holds. Strings may be as long and nesting as
//! deep as they like; only the objects on the way to the number are looked into.
//!
//! ```
//! use tollgate::Cost;
//! use tollgate::http::settle::{CostReader, Form};
//!
//! let mut reader = CostReader::new(&["usage", "total_tokens"], Form::of(Some(b"application/json")));
//! reader.read(br#"{"choices": [{"text": "hello"}], "usage": {"total_to"#);
//! reader.read(br#"kens": 42}}"#);
//! assert_eq!(reader.finish(), Some(Cost::new(42)));
//! ```
//!
//! Of a document with the same name twice the last counts, as it does to most who read JSON. Of several
//! documents, or events, the last that has a cost. A number is a cost if it is whole, not negative and
//! written in digits alone; one above the largest cost counts as that. A document that is cut off, or
//! that we see to be broken, says nothing.

use tollgate_core::Cost;

/// How a response's body is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON: one document, or one after the other.
    Json,
    /// Server-sent events whose data is JSON, or something else such as `[DONE]`.
    Events,
}

impl Form {
    /// The form of a body with this `Content-Type`. What is none of ours is read as JSON, and says
    /// nothing.
    pub fn of(content_type: Option<&[u8]>) -> Self {
        let essence = content_type.and_then(|it| it.split(|byte| *byte == b';').next());
        let is_events = |it: &[u8]| it.trim_ascii().eq_ignore_ascii_case(b"text/event-stream");
        if essence.is_some_and(is_events) { Self::Events } else { Self::Json }
    }
}

/// Looks for the cost in a body that passes by. Bodies that are compressed are to be left alone.
#[derive(Clone, Debug)]
pub struct CostReader {
    documents: Documents,
    /// How events are told apart, if there are any.
    lines: Option<Lines>,
    /// Bytes of the mark that a text may begin with, or none if there is none.
    mark: usize,
    is_begun: bool,
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl CostReader {
    /// Looks for a number under these names, from the outermost in.
    pub fn new(path: &[impl AsRef<str>], form: Form) -> Self {
        Self {
            documents: Documents::new(path),
            lines: (form == Form::Events).then(Lines::default),
            mark: 0,
            is_begun: false,
        }
    }

    /// Reads the next piece of the body.
    pub fn read(&mut self, mut bytes: &[u8]) {
        while !self.is_begun
            && let Some((first, rest)) = bytes.split_first()
        {
            if BYTE_ORDER_MARK.get(self.mark) == Some(first) {
                (self.mark, bytes) = (self.mark + 1, rest);
                continue;
            }
            self.is_begun = true;
            // Half a mark is none.
            let mark = self.mark % BYTE_ORDER_MARK.len();
            self.read_text(&BYTE_ORDER_MARK[..mark]);
        }
        self.read_text(bytes);
    }

    fn read_text(&mut self, bytes: &[u8]) {
        match &mut self.lines {
            Some(lines) => lines.read(bytes, &mut self.documents),
            None => self.documents.read(bytes),
        }
    }

    /// What the body so far says the request cost: what was told last, if it was told.
    pub fn so_far(&self) -> Option<Cost> {
        self.documents.told
    }

    /// What the body said the request cost, when all of it was read.
    pub fn finish(mut self) -> Option<Cost> {
        self.documents.end();
        self.documents.told
    }
}

/// Tells the data of server-sent events from the rest.
#[derive(Clone, Debug, Default)]
struct Lines {
    place: Place,
    /// The last byte ended a line, and a line feed after it belongs to that end.
    is_after_return: bool,
}

/// Where in a line we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// So far it could be the name of a data field: so many bytes of it.
    Name(usize),
    /// After the colon of a data field, where one space does not count.
    AfterColon,
    /// In its data.
    Data,
    /// In a line that is none.
    Other,
}

impl Default for Place {
    fn default() -> Self {
        Self::Name(0)
    }
}

const DATA: &[u8] = b"data";

impl Lines {
    fn read(&mut self, mut bytes: &[u8], documents: &mut Documents) {
        while let Some((&first, rest)) = bytes.split_first() {
            let is_after_return = std::mem::take(&mut self.is_after_return);
            match (first, self.place) {
                (b'\n', _) if is_after_return => bytes = rest,
                (b'\r' | b'\n', _) => {
                    self.end_line(documents);
                    self.is_after_return = first == b'\r';
                    bytes = rest;
                }
                (_, Place::Name(known)) => {
                    self.place = match first {
                        b':' if known == DATA.len() => Place::AfterColon,
                        byte if DATA.get(known) == Some(&byte) => Place::Name(known + 1),
                        _ => Place::Other,
                    };
                    bytes = rest;
                }
                (b' ', Place::AfterColon) => (self.place, bytes) = (Place::Data, rest),
                (_, Place::AfterColon) => self.place = Place::Data,
                (_, Place::Data | Place::Other) => {
                    let line = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
                    let (line, rest) = bytes.split_at(line.unwrap_or(bytes.len()));
                    if self.place == Place::Data {
                        documents.read(line);
                    }
                    bytes = rest;
                }
            }
        }
    }

    fn end_line(&mut self, documents: &mut Documents) {
        match std::mem::take(&mut self.place) {
            // An empty line ends an event, and so what it has told.
            Place::Name(0) => documents.end(),
            // Lines of data are one text, in lines.
            Place::AfterColon | Place::Data => documents.read(b"\n"),
            Place::Name(_) | Place::Other => {}
        }
    }
}

/// Looks for the number in JSON documents, one after the other.
#[derive(Clone, Debug)]
struct Documents {
    path: Box<[Box<str>]>,
    state: State,
    /// Objects on the path that we are inside of; none between documents.
    level: usize,
    /// What this document says so far.
    found: Option<Cost>,
    /// What the last document said that said something.
    told: Option<Cost>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before a value: of a name that is the next of the path, or of one that is not.
    Value { is_wanted: bool },
    /// After `{`, or a comma in an object.
    BeforeName { may_end: bool },
    /// In a name.
    Name(Name),
    /// After a name.
    BeforeColon { is_wanted: bool },
    /// After a value in an object.
    AfterValue,
    /// In the number that is looked for; nothing if it is no cost.
    Number { cost: Option<u32>, digits: Digits },
    /// In a number, `true`, `false` or `null` that is not looked for.
    Scalar,
    /// In a value that is not looked for: so many brackets deep, and whether in a string.
    Skipped { depth: u64, quotes: Quotes },
    /// Nothing more is read of this document.
    Broken,
}

/// What a number has begun with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    None,
    Zero,
    Some,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quotes {
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

/// A name that is being read: how much of the wanted one it has shown to be.
#[derive(Clone, Copy, Debug)]
struct Name {
    /// So many bytes of it; none if it is another.
    matched: Option<usize>,
    escape: Escape,
    /// The first half of a character that is written as two.
    high: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// `\u`, with so many digits that make this value.
    Hex {
        digits: u8,
        value: u32,
    },
}

impl Documents {
    fn new(path: &[impl AsRef<str>]) -> Self {
        Self {
            path: path.iter().map(|name| name.as_ref().into()).collect(),
            state: State::Value { is_wanted: true },
            level: 0,
            found: None,
            told: None,
        }
    }

    /// What comes from now on is another document. One that is not whole has told nothing.
    fn end(&mut self) {
        self.state = State::Value { is_wanted: true };
        (self.level, self.found) = (0, None);
    }

    fn read(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            match &mut self.state {
                State::Broken => return,
                State::Skipped { quotes: Quotes::Inside, .. } => {
                    // Most of a body is strings.
                    let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                    let Some(end) = end else { return };
                    self.skip(bytes[end]);
                    bytes = &bytes[end + 1..];
                    continue;
                }
                State::Skipped { .. } => self.skip(byte),
                State::Name(name) => {
                    let wanted = self.path[self.level - 1].as_bytes();
                    if let Some(is_wanted) = name.read(byte, wanted) {
                        self.state = State::BeforeColon { is_wanted };
                    }
                }
                State::Number { .. } | State::Scalar => {
                    if is_end_of_scalar(byte) {
                        self.end_scalar();
                        // It is part of what comes next.
                        continue;
                    }
                    if let State::Number { cost, digits } = &mut self.state {
                        (*cost, *digits) = next_digit(*cost, *digits, byte);
                    }
                }
                _ if byte.is_ascii_whitespace() => {}
                State::Value { is_wanted } => {
                    let is_wanted = *is_wanted;
                    self.begin_value(byte, is_wanted);
                }
                State::BeforeName { may_end } => match byte {
                    b'"' => self.state = State::Name(Name::new()),
                    b'}' if *may_end => self.leave(),
                    _ => self.state = State::Broken,
                },
                State::BeforeColon { is_wanted } => match byte {
                    b':' => {
                        let is_wanted = *is_wanted;
                        if is_wanted {
                            // The last of a name that comes twice counts, whatever it is.
                            self.found = None;
                        }
                        self.state = State::Value { is_wanted };
                    }
                    _ => self.state = State::Broken,
                },
                State::AfterValue => match byte {
                    b',' => self.state = State::BeforeName { may_end: false },
                    b'}' => self.leave(),
                    _ => self.state = State::Broken,
                },
            }
            bytes = rest;
        }
    }

    fn begin_value(&mut self, byte: u8, is_wanted: bool) {
        let is_last = self.level == self.path.len();
        self.state = match byte {
            b'{' if is_wanted && !is_last => {
                self.level += 1;
                State::BeforeName { may_end: true }
            }
            b'{' | b'[' => State::Skipped { depth: 1, quotes: Quotes::Outside },
            b'"' => State::Skipped { depth: 0, quotes: Quotes::Inside },
            b'-' | b'0'..=b'9' if is_wanted && is_last => {
                let (cost, digits) = next_digit(Some(0), Digits::None, byte);
                State::Number { cost, digits }
            }
            b'-' | b'0'..=b'9' | b'a'..=b'z' => State::Scalar,
            _ => State::Broken,
        };
    }

    fn skip(&mut self, byte: u8) {
        let State::Skipped { depth, quotes } = &mut self.state else { return };
        *quotes = match (*quotes, byte) {
            (Quotes::Outside, b'"') | (Quotes::Escaped, _) => Quotes::Inside,
            (Quotes::Inside, b'"') => Quotes::Outside,
            (Quotes::Inside, b'\\') => Quotes::Escaped,
            (Quotes::Outside, b'{' | b'[') => {
                *depth += 1;
                Quotes::Outside
            }
            (Quotes::Outside, b'}' | b']') => {
                *depth -= 1;
                Quotes::Outside
            }
            (same, _) => same,
        };
        if (*depth, *quotes) == (0, Quotes::Outside) {
            self.end_value();
        }
    }

    fn end_scalar(&mut self) {
        if let State::Number { cost, .. } = self.state {
            self.found = cost.map(Cost::new);
        }
        self.end_value();
    }

    fn end_value(&mut self) {
        self.state = match self.level {
            0 => State::Value { is_wanted: true },
            _ => State::AfterValue,
        };
    }

    /// Leaves an object on the path; the outermost of them is the document.
    fn leave(&mut self) {
        self.level -= 1;
        if self.level == 0 {
            self.told = self.found.take().or(self.told);
        }
        self.end_value();
    }
}

const fn is_end_of_scalar(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b',' | b'}' | b']' | b'{' | b'[' | b'"' | b':')
}

/// A cost with one more byte of its number; nothing if that is none then.
fn next_digit(cost: Option<u32>, digits: Digits, byte: u8) -> (Option<u32>, Digits) {
    let (true, Some(cost)) = (byte.is_ascii_digit() && digits != Digits::Zero, cost) else {
        return (None, digits);
    };
    let digits = match (digits, byte) {
        (Digits::None, b'0') => Digits::Zero,
        _ => Digits::Some,
    };
    (Some(cost.saturating_mul(10).saturating_add(u32::from(byte - b'0'))), digits)
}

impl Name {
    const fn new() -> Self {
        Self { matched: Some(0), escape: Escape::None, high: None }
    }

    /// Reads the next byte; tells whether it is the wanted name when that was its end.
    fn read(&mut self, byte: u8, wanted: &[u8]) -> Option<bool> {
        match (self.escape, byte) {
            (Escape::None, b'"') => {
                return Some(self.high.is_none() && self.matched == Some(wanted.len()));
            }
            (Escape::None, b'\\') => self.escape = Escape::Begun,
            (Escape::None, byte) => self.add(&[byte], wanted),
            (Escape::Begun, b'u') => self.escape = Escape::Hex { digits: 0, value: 0 },
            (Escape::Begun, byte) => {
                self.escape = Escape::None;
                match unescaped(byte) {
                    Some(byte) => self.add(&[byte], wanted),
                    None => self.matched = None,
                }
            }
            (Escape::Hex { digits, value }, byte) => match char::from(byte).to_digit(16) {
                Some(digit) if digits < 3 => {
                    self.escape = Escape::Hex { digits: digits + 1, value: value * 16 + digit };
                }
                Some(digit) => {
                    self.escape = Escape::None;
                    self.add_unit(value * 16 + digit, wanted);
                }
                None => {
                    // No digit: the name is none, and where it ends is told by what this byte is.
                    (self.matched, self.escape) = (None, Escape::None);
                    return self.read(byte, wanted);
                }
            },
        }
        None
    }

    /// Adds what `\u` names, which may be half of a character.
    fn add_unit(&mut self, unit: u32, wanted: &[u8]) {
        let code = match (self.high.take(), unit) {
            (None, 0xd800..=0xdbff) => {
                self.high = Some(unit);
                return;
            }
            (Some(high), 0xdc00..=0xdfff) => 0x1_0000 + ((high - 0xd800) << 10) + (unit - 0xdc00),
            (None, unit) => unit,
            (Some(_), _) => {
                self.matched = None;
                return;
            }
        };
        match char::from_u32(code) {
            Some(character) => self.add(character.encode_utf8(&mut [0; 4]).as_bytes(), wanted),
            None => self.matched = None,
        }
    }

    fn add(&mut self, bytes: &[u8], wanted: &[u8]) {
        let is_next =
            |matched: usize| wanted[matched..].starts_with(bytes).then_some(matched + bytes.len());
        // Half of a character, and then something else than its other half.
        let is_whole = self.high.take().is_none();
        self.matched = self.matched.filter(|_| is_whole).and_then(is_next);
    }
}

const fn unescaped(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' | b'/' => byte,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}
