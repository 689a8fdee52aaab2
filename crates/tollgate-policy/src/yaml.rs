//! YAML as a tree in which every value knows its place.
//!
//! Only what a policy needs: one document, maps with plain keys, lists and scalars, all of which
//! are text here. Aliases are refused, because a few lines of them can stand for billions of
//! values; so are tags, which would mean nothing. Depth and size are bounded before memory is.

use std::collections::HashSet;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span as EventSpan, StrInput};

use crate::bounds::{DEPTH_MAX, POLICY_MARKS_MAX};
use crate::mistake::{Report, Source, Span, quoted};

/// One value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Word, Node)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// Written without quotes.
    pub(crate) plain: bool,
}

/// A key of a map and its place.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    pub(crate) span: Span,
    pub(crate) text: String,
}

impl Node {
    /// Whether nothing is written where a value could be.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(&self.kind, Kind::Scalar(Scalar { text, plain: true })
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The name of a field of a map, where it is written.
    pub(crate) fn field(&self, name: &str) -> Option<&Word> {
        let Kind::Map(entries) = &self.kind else { return None };
        entries.iter().map(|(key, _)| key).find(|key| key.text == name)
    }
}

/// The text cannot be read on; why is in the report.
#[derive(Debug)]
pub(crate) struct Unreadable;

/// Reads a whole text as one value. What is wrong with it goes to the report.
pub(crate) fn read(source: &Source<'_>, report: &mut Report) -> Result<Node, Unreadable> {
    let mut reader = Reader::open(source, report, POLICY_MARKS_MAX)?;
    let root = reader.node(0)?;
    reader.close()?;
    Ok(root)
}

/// Hands out the values of a text one after the other.
pub(crate) struct Reader<'s, 't, 'm> {
    parser: Parser<'t, StrInput<'t>>,
    source: &'s Source<'t>,
    report: &'m mut Report,
}

impl<'s, 't, 'm> Reader<'s, 't, 'm> {
    /// Checks a text and goes to the start of its document.
    pub(crate) fn open(
        source: &'s Source<'t>,
        report: &'m mut Report,
        most_marks: usize,
    ) -> Result<Self, Unreadable> {
        let parser = Parser::new_from_str(source.text);
        let mut reader = Self { parser, source, report };
        if let Some((span, code)) = control_character(source.text) {
            return reader
                .stop(span, format!("a control character (0x{code:02x}) is written here"));
        }
        if has_more_marks(source.text, most_marks) {
            let sentence = format!(
                "the file has more than {most_marks} commas, colons, brackets and lines, the most"
            );
            return reader.stop(Span::START, sentence);
        }
        loop {
            match reader.next()? {
                (Event::StreamStart, _) => {}
                (Event::DocumentStart(_), _) => return Ok(reader),
                _ => return reader.stop(Span::START, "the file is empty"),
            }
        }
    }

    /// Goes to the end of the text, which must hold nothing more.
    pub(crate) fn close(&mut self) -> Result<(), Unreadable> {
        loop {
            match self.next()? {
                (Event::DocumentEnd, _) => {}
                (Event::StreamEnd, _) => return Ok(()),
                (_, span) => {
                    return self.stop(span, "a second document begins here; write one to a file");
                }
            }
        }
    }

    /// Goes to the start of the next document; false if there is none.
    pub(crate) fn next_document(&mut self) -> Result<bool, Unreadable> {
        loop {
            match self.next()? {
                (Event::DocumentEnd, _) => {}
                (Event::DocumentStart(_), _) => return Ok(true),
                (Event::StreamEnd, _) => return Ok(false),
                (_, span) => return self.stop(span, "a document ends before this"),
            }
        }
    }

    /// The next value, whole.
    pub(crate) fn node(&mut self, depth: usize) -> Result<Node, Unreadable> {
        let (event, span) = self.next()?;
        self.node_of(event, span, depth)
    }

    /// If the next value is a map, steps into it, so that [`Reader::key`] reads its keys;
    /// otherwise reads the value whole and hands it out.
    pub(crate) fn enter_map(&mut self, depth: usize) -> Result<Option<Node>, Unreadable> {
        match self.next()? {
            (Event::MappingStart(_, None), _) => Ok(None),
            (event, span) => self.node_of(event, span, depth).map(Some),
        }
    }

    /// The next key of the map that was stepped into; `None` at its end. A key that is no text is
    /// told and skipped with its value.
    pub(crate) fn key(&mut self, depth: usize) -> Result<Option<Word>, Unreadable> {
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(None);
            }
            let key = self.node_of(event, span, depth)?;
            match key.kind {
                Kind::Scalar(scalar) => {
                    return Ok(Some(Word { span: key.span, text: scalar.text }));
                }
                Kind::List(_) | Kind::Map(_) => {
                    self.mistake(key.span, "a list or a map is used as a name; a name is text");
                    self.node(depth)?;
                }
            }
        }
    }

    pub(crate) fn report(&mut self) -> &mut Report {
        self.report
    }

    pub(crate) fn mistake(&mut self, span: Span, sentence: impl Into<String>) {
        self.report.mistake(self.source, span, sentence);
    }

    fn node_of(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Unreadable> {
        if depth > DEPTH_MAX {
            let sentence = format!("lists and maps nest deeper than {DEPTH_MAX} here");
            return self.stop(span, sentence);
        }
        let kind = match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return self.stop(span, "a tag (!…) is written here; a policy has none");
            }
            Event::Scalar(text, style, _, None) => {
                Kind::Scalar(Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain })
            }
            Event::SequenceStart(_, None) => return self.list(span.start(), depth),
            Event::MappingStart(_, None) => return self.map(span.start(), depth),
            Event::Alias(_) => {
                return self.stop(span, "an alias (*…) is written here; write its value out");
            }
            _ => return self.stop(span, "a value is missing here"),
        };
        Ok(Node { span, kind })
    }

    fn list(&mut self, span: Span, depth: usize) -> Result<Node, Unreadable> {
        let mut values = Vec::new();
        loop {
            let (event, place) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(Node { span, kind: Kind::List(values) });
            }
            values.push(self.node_of(event, place, depth + 1)?);
        }
    }

    fn map(&mut self, span: Span, depth: usize) -> Result<Node, Unreadable> {
        let mut entries: Vec<(Word, Node)> = Vec::new();
        let mut known = HashSet::new();
        while let Some(key) = self.key(depth + 1)? {
            let value = self.node(depth + 1)?;
            // Most maps are short, and searching those is quicker than hashing their keys.
            let is_new = if entries.len() < 16 {
                entries.iter().all(|(other, _)| other.text != key.text)
            } else {
                if known.is_empty() {
                    known.extend(entries.iter().map(|(other, _)| other.text.clone()));
                }
                known.insert(key.text.clone())
            };
            if is_new {
                entries.push((key, value));
            } else {
                let first = entries.iter().find(|(other, _)| other.text == key.text);
                let line = first.map_or(0, |(other, _)| other.span.line);
                // In a file of keys, a name may be one.
                let name =
                    if self.source.secret { "this name".to_owned() } else { quoted(&key.text) };
                self.mistake(
                    key.span,
                    format!("{name} is written twice; the first is in line {line}"),
                );
            }
        }
        Ok(Node { span, kind: Kind::Map(entries) })
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Unreadable> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, place(span))),
            Some(Err(error)) => {
                let (span, sentence) = self.what_is_wrong(&error);
                self.stop(span, sentence)
            }
            None => self.stop(Span::START, "the text ends too early"),
        }
    }

    /// What does not read as YAML, and where. What is written by mistake most is told in our words.
    fn what_is_wrong(&self, error: &ScanError) -> (Span, String) {
        let at = *error.marker();
        let text = self.source.text;
        let offset = text.char_indices().nth(at.index()).map_or(text.len(), |(offset, _)| offset);
        let (before, rest) = text.split_at(offset);
        let span = place(EventSpan::empty(at));
        if rest.starts_with('*') && error.info().contains("anchor") {
            let end = rest.find([' ', ',', ']', '}', '\r', '\n']).unwrap_or(rest.len());
            // In a file of keys, any value may be one.
            let value =
                if self.source.secret { "\"*…\"".to_owned() } else { quoted(&rest[..end]) };
            return (span, format!("a value that begins with * needs quotes; write {value}"));
        }
        let plain = (span, format!("this does not read as YAML: {}", error.info()));
        let Some(open) = open_bracket(before) else { return plain };
        let Bracket { opening, closing, .. } = open;
        // A line that is not indented further than that of the bracket is hardly meant to be inside.
        let is_outside = span.line > open.span.line && indent_at(text, offset) <= open.indent;
        let until = if rest.trim().is_empty() {
            String::new()
        } else if rest.starts_with([']', '}']) && !rest.starts_with(closing) {
            format!(" before line {}, column {}", span.line, span.column)
        } else if is_outside {
            format!(" before line {}", span.line)
        } else {
            return plain;
        };
        (open.span, format!("this {opening} is not closed{until}; write {closing} where it ends"))
    }

    fn stop<T>(&mut self, span: Span, sentence: impl Into<String>) -> Result<T, Unreadable> {
        self.report.mistake(self.source, span, sentence);
        Err(Unreadable)
    }
}

/// A bracket that begins a list or a map.
struct Bracket {
    opening: char,
    closing: char,
    span: Span,
    /// How far its line is indented.
    indent: usize,
}

/// The innermost bracket that is open at the end of a text.
fn open_bracket(text: &str) -> Option<Bracket> {
    let mut open = Vec::new();
    for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => open.push(span),
            Event::SequenceEnd | Event::MappingEnd => drop(open.pop()),
            _ => {}
        }
    }
    // Lists and maps that are written without brackets begin with nothing.
    let start = open.into_iter().rfind(|span| !span.is_empty())?.start;
    let (offset, opening) = text.char_indices().nth(start.index())?;
    let closing = match opening {
        '[' => ']',
        '{' => '}',
        _ => return None,
    };
    let span = place(EventSpan::empty(start));
    Some(Bracket { opening, closing, span, indent: indent_at(text, offset) })
}

/// How far the line at an offset is indented.
fn indent_at(text: &str, offset: usize) -> usize {
    let line = text[..offset].rfind('\n').map_or(0, |end| end + 1);
    text[line..].len() - text[line..].trim_start_matches(' ').len()
}

/// From the scanner's way of counting to ours. A value over several lines is pointed at where it
/// begins.
fn place(span: EventSpan) -> Span {
    let on_one_line = span.start.line() == span.end.line();
    let length = if on_one_line { span.end.col().saturating_sub(span.start.col()) } else { 1 };
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Span {
        line: number(span.start.line().max(1)),
        column: number(span.start.col() + 1),
        length: number(length),
    }
}

/// The first character that no policy has a reason to hold, and its place.
fn control_character(text: &str) -> Option<(Span, u8)> {
    let is_control = |byte: &u8| matches!(byte, 0..=8 | 11 | 12 | 14..=31 | 127);
    let offset = text.as_bytes().iter().position(is_control)?;
    let line_start = text[..offset].rfind('\n').map_or(0, |end| end + 1);
    let line = text[..line_start].bytes().filter(|byte| *byte == b'\n').count() + 1;
    let column = text[line_start..offset].chars().count() + 1;
    Some((Span { line: line as u32, column: column as u32, length: 1 }, text.as_bytes()[offset]))
}

/// Whether the text holds more characters that may begin or end a value than `most`.
fn has_more_marks(text: &str, most: usize) -> bool {
    let is_mark = |byte: &&u8| matches!(byte, b',' | b':' | b'[' | b']' | b'{' | b'}' | b'\n');
    // Most texts are too short to hold so many, and are not searched.
    text.len() > most && text.as_bytes().iter().filter(is_mark).count() > most
}
