//! What is wrong with a policy, and where.
//!
//! The first line of every mistake is `file:line:column: sentence`, so that editors and people
//! find it; the line of the policy follows with a caret under the words that are meant. Text from
//! the file is escaped before it is shown: a policy must not be able to paint a terminal. What may
//! be a credential is not shown at all: no line of a tenants file, no password of a URL, and of a store
//! no field that is named like one.

use std::cell::OnceCell;
use std::fmt;

use crate::bounds::{MISTAKES_MAX, QUOTE_CHARACTERS_MAX, SNIPPET_LINE_BYTES_MAX, WARNINGS_MAX};

/// Where in which file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as the caller named it.
    pub file: String,
    /// The line, from one.
    pub line: usize,
    /// The column, from one, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// One thing that is wrong.
///
/// As text it is what a compiler would print:
///
/// ```text
/// policy.yaml:14:11: limit "login": rate "5/minuet" is not a rate; write for example 5/minute or 1000/90s
///    |
/// 14 |     rate: 5/minuet
///    |           ^^^^^^^^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    place: Place,
    sentence: String,
    snippet: Option<String>,
}

impl Mistake {
    /// Where.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What is wrong and what would be right, in one line.
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// The line of the policy with carets under what is meant, if it may be shown.
    pub fn snippet(&self) -> Option<&str> {
        self.snippet.as_deref()
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.sentence)?;
        self.snippet.iter().try_for_each(|snippet| write!(f, "\n{snippet}"))
    }
}

impl std::error::Error for Mistake {}

/// Everything that is wrong with a policy, in the order of its text. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    list: Vec<Mistake>,
    untold: usize,
}

impl Mistakes {
    /// One by one.
    pub fn iter(&self) -> std::slice::Iter<'_, Mistake> {
        self.list.iter()
    }

    /// How many there are beyond those that are listed; not zero only for files that are wrong
    /// from end to end.
    pub fn untold(&self) -> usize {
        self.untold
    }
}

impl<'m> IntoIterator for &'m Mistakes {
    type Item = &'m Mistake;
    type IntoIter = std::slice::Iter<'m, Mistake>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, mistake) in self.list.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{mistake}")?;
        }
        if self.untold > 0 {
            write!(f, "\nand {} more mistakes", self.untold)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// Which warning it is. The names stay the same from version to version, so that a program may
/// tell warnings apart by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarningCode {
    /// `varies-at-will`: a limit counts by something that a client can change with every request,
    /// so a client that does is never limited.
    VariesAtWill,
    /// `log-grows`: a `sliding_log` may remember more than 10,000 requests for each key.
    LogGrows,
    /// `always-denied`: a limit of nothing, or a cost that the limit never holds, be it for some
    /// requests only.
    AlwaysDenied,
    /// `only-meters`: a `leaky_bucket` at a door that cannot hold a request: it reports the delay.
    OnlyMeters,
    /// `skips-concurrency`: a `concurrency` limit and a door that never learns when a request ends:
    /// there the limit is not enforced.
    SkipsConcurrency,
    /// `client-sets-cost`: a limit's cost is read from something the client sends.
    ClientSetsCost,
    /// `tier-falls-back`: a tier of the tenants file has no entry of its own where others do.
    TierFallsBack,
    /// `unknown-tier`: the policy speaks of a tier that no key of the tenants file has.
    UnknownTier,
    /// `misspelt-attribute`: an attribute's name is one letter away from one the doors know.
    MisspeltAttribute,
    /// `headers-conflict`: two generations of header fields that use one field name.
    HeadersConflict,
    /// `gateway-idle`: a gateway without an upstream, or without a gateway an upstream or what only a
    /// gateway does.
    GatewayIdle,
    /// `open-door`: decisions are offered beyond this machine to whoever asks.
    OpenDoor,
    /// `no-tenants`: a limit counts by tenant, and nothing looks tenants up: at HTTP doors nobody has
    /// one, and all are counted together.
    NoTenants,
    /// `gateway-cannot-tell`: a limit counts by what only callers of the API say, and at the gateway
    /// clients are not told apart.
    GatewayCannotTell,
    /// `no-limits`: the policy limits nothing.
    NoLimits,
    /// `needs-redis`: a limit says how nodes agree or how it is split, and the store is this process's
    /// own memory.
    NeedsRedis,
    /// `counts-apart`: there are several nodes, and each counts in its own memory.
    CountsApart,
    /// `route-never-taken`: a route of the upstream stands behind one that stands for all that it does.
    RouteNeverTaken,
    /// `nobody-trusted`: the policy says how proxies tell for whom they ask, and trusts none.
    NobodyTrusted,
    /// `only-reserves`: a limit's cost is settled by the response, and there is a door that never sees
    /// one: there what is reserved is the cost.
    OnlyReserves,
    /// `metric-ignored`: a descriptor asks for a metric by what callers send.
    MetricIgnored,
}

impl WarningCode {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::VariesAtWill,
        Self::LogGrows,
        Self::AlwaysDenied,
        Self::OnlyMeters,
        Self::SkipsConcurrency,
        Self::ClientSetsCost,
        Self::TierFallsBack,
        Self::UnknownTier,
        Self::MisspeltAttribute,
        Self::HeadersConflict,
        Self::GatewayIdle,
        Self::OpenDoor,
        Self::NoTenants,
        Self::GatewayCannotTell,
        Self::NoLimits,
        Self::NeedsRedis,
        Self::CountsApart,
        Self::RouteNeverTaken,
        Self::NobodyTrusted,
        Self::OnlyReserves,
        Self::MetricIgnored,
    ];

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::VariesAtWill => "varies-at-will",
            Self::LogGrows => "log-grows",
            Self::AlwaysDenied => "always-denied",
            Self::OnlyMeters => "only-meters",
            Self::SkipsConcurrency => "skips-concurrency",
            Self::ClientSetsCost => "client-sets-cost",
            Self::TierFallsBack => "tier-falls-back",
            Self::UnknownTier => "unknown-tier",
            Self::MisspeltAttribute => "misspelt-attribute",
            Self::HeadersConflict => "headers-conflict",
            Self::GatewayIdle => "gateway-idle",
            Self::OpenDoor => "open-door",
            Self::NoTenants => "no-tenants",
            Self::GatewayCannotTell => "gateway-cannot-tell",
            Self::NoLimits => "no-limits",
            Self::NeedsRedis => "needs-redis",
            Self::CountsApart => "counts-apart",
            Self::RouteNeverTaken => "route-never-taken",
            Self::NobodyTrusted => "nobody-trusted",
            Self::OnlyReserves => "only-reserves",
            Self::MetricIgnored => "metric-ignored",
        }
    }
}

impl fmt::Display for WarningCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Something that is allowed and probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    code: WarningCode,
    place: Place,
    sentence: String,
}

impl Warning {
    /// Which warning.
    pub fn code(&self) -> WarningCode {
        self.code
    }

    /// Where.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What will happen, and what to do about it.
    pub fn sentence(&self) -> &str {
        &self.sentence
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: warning[{}]: {}", self.place, self.code, self.sentence)
    }
}

/// A stretch of one line, from one, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) line: u32,
    pub(crate) column: u32,
    pub(crate) length: u32,
}

impl Span {
    /// The beginning of a file.
    pub(crate) const START: Self = Self { line: 1, column: 1, length: 0 };

    /// Its first character: all that is pointed at of a list or a map.
    pub(crate) fn start(self) -> Self {
        Self { length: 1, ..self }
    }
}

/// A text being read, by its name.
#[derive(Debug)]
pub(crate) struct Source<'t> {
    pub(crate) name: &'t str,
    pub(crate) text: &'t str,
    /// Whether its lines must not be shown.
    pub(crate) secret: bool,
    line_starts: OnceCell<Vec<usize>>,
}

impl<'t> Source<'t> {
    pub(crate) fn new(name: &'t str, text: &'t str) -> Self {
        Self { name, text, secret: false, line_starts: OnceCell::new() }
    }

    pub(crate) fn secret(name: &'t str, text: &'t str) -> Self {
        Self { secret: true, ..Self::new(name, text) }
    }

    pub(crate) fn place(&self, span: Span) -> Place {
        let file = self.name.chars().flat_map(escaped).collect();
        Place { file, line: span.line as usize, column: span.column as usize }
    }

    fn line(&self, number: u32) -> Option<&'t str> {
        let start = *self.line_starts().get(number.checked_sub(1)? as usize)?;
        Some(self.text[start..].lines().next().unwrap_or(""))
    }

    fn line_starts(&self) -> &[usize] {
        self.line_starts.get_or_init(|| {
            let ends = self.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
            std::iter::once(0).chain(ends.map(|(end, _)| end + 1)).collect()
        })
    }

    /// The span, or the end of the text if it lies behind that: what is missing from a last line
    /// that was not ended, the scanner looks for in the next.
    fn within(&self, span: Span) -> Span {
        let last = self.line_starts().len() as u32;
        if span.line <= last {
            return span;
        }
        let column = self.line(last).map_or(1, |line| line.chars().count() as u32 + 1);
        Span { line: last, column, length: 0 }
    }

    /// Whether a line stands under `store`, or may do so since the policy is one map in braces.
    fn is_of_store(&self, number: u32) -> bool {
        let is_inside =
            |line: &&str| line.starts_with([' ', '\t', '#', '-', ']', '}']) || line.is_empty();
        let mut above = (1..=number).rev().filter_map(|number| self.line(number));
        let top = above.find(|line| !is_inside(line)).unwrap_or("");
        top.starts_with('{') || top.trim_start_matches(['"', '\'']).starts_with("store")
    }

    fn snippet(&self, span: Span) -> Option<String> {
        const SHOWN: usize = 96;
        let line = self.line(span.line).filter(|line| line.len() <= SNIPPET_LINE_BYTES_MAX)?;
        let mut line: Vec<char> = starred(line).chars().collect();
        if self.is_of_store(span.line)
            && let Some(first) = secret_from(&line)
        {
            line[first..].fill('*');
        }
        // A line too long to show is cut around the place that is meant.
        let column = (span.column.saturating_sub(1) as usize).min(line.len());
        let first = if line.len() > SHOWN { column.saturating_sub(SHOWN / 3) } else { 0 };
        let shown: String =
            line[first..].iter().take(SHOWN).map(|&letter| visible(letter)).collect();
        let room = (shown.chars().count() - (column - first).min(shown.chars().count())).max(1);
        let number = span.line.to_string();
        let margin = " ".repeat(number.len());
        let blank = " ".repeat(column - first);
        let carets = "^".repeat((span.length as usize).clamp(1, room));
        Some(format!("{margin} |\n{number} | {shown}\n{margin} | {blank}{carets}"))
    }
}

/// Tabs would move the caret away from its word, and other controls move whatever they like.
fn visible(letter: char) -> char {
    match letter {
        '\t' => ' ',
        _ if letter.is_control() || is_invisible(letter) => '\u{FFFD}',
        _ => letter,
    }
}

/// Characters that have no looks of their own but change how their neighbours look.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}')
}

fn escaped(letter: char) -> impl Iterator<Item = char> {
    let unsafe_to_show = letter.is_control() || is_invisible(letter);
    let escape = unsafe_to_show.then(|| letter.escape_unicode());
    let plain = (!unsafe_to_show).then_some(letter);
    escape.into_iter().flatten().chain(plain)
}

/// Where the value begins of the first field in a line that is named like a secret. What follows is not
/// shown, to the end of the line: a password may hold whatever ends a value elsewhere.
fn secret_from(line: &[char]) -> Option<usize> {
    let mut name = String::new();
    for (place, &letter) in line.iter().enumerate() {
        match letter {
            ':' if ["pass", "secret", "token"].iter().any(|word| name.contains(word)) => {
                let spaces = line[place + 1..].iter().take_while(|it| **it == ' ').count();
                return Some(place + 1 + spaces);
            }
            ' ' | '"' | '\''
                if line[place..].iter().find(|it| !" \"'".contains(**it)) == Some(&':') => {}
            _ if letter.is_alphanumeric() || "_-".contains(letter) => {
                name.extend(letter.to_lowercase());
            }
            _ => name.clear(),
        }
    }
    None
}

/// The text with `mask` of what stands before the `@` of a URL, of every value behind its `?`, and of
/// what is behind `pass=` or `password=`: to the last `@` there is, and to the next space or quote,
/// since a password that is not encoded as it should be may hold anything.
fn masked(text: &str, mask: impl Fn(&str) -> String) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme) = rest.find("://") {
        let (before, after) = rest.split_at(scheme + 3);
        let end = after.find("://").unwrap_or(after.len());
        let user = after[..end].rfind('@').unwrap_or(0);
        shown.push_str(before);
        if user > 0 {
            shown += &mask(&after[..user]);
        }
        rest = &after[user..];
    }
    let text = with_masked_queries(&(shown + rest), &mask);
    let starts = ["pass=", "password="].map(|word| text.find(word).map(|at| at + word.len()));
    let Some(start) = starts.into_iter().flatten().min() else { return text };
    let (before, after) = text.split_at(start);
    let end = after.find([' ', '"', '\'']).unwrap_or(after.len());
    format!("{before}{}{}", mask(&after[..end]), &after[end..])
}

fn with_masked_queries(text: &str, mask: &impl Fn(&str) -> String) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme) = rest.find("://") {
        let end = rest[scheme..].find([' ', '"', '\'']).map_or(rest.len(), |end| scheme + end);
        let (url, after) = rest.split_at(end);
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        shown.push_str(place);
        for (number, part) in query.split('&').enumerate().filter(|_| place.len() < url.len()) {
            shown.push(if number == 0 { '?' } else { '&' });
            match part.split_once('=') {
                Some((name, value)) => shown += &format!("{name}={}", mask(value)),
                None if part.is_empty() => {}
                None => shown += &mask(part),
            }
        }
        rest = after;
    }
    shown + rest
}

/// The text with its passwords starred out, letter for letter.
fn starred(text: &str) -> String {
    masked(text, |hidden| hidden.chars().map(|_| '*').collect())
}

/// The text without its passwords.
pub(crate) fn without_passwords(text: &str) -> String {
    masked(text, |_| "…".to_owned())
}

/// The user's text in quotes, escaped, without passwords, and cut if it is long.
pub(crate) fn quoted(text: &str) -> String {
    let text = without_passwords(text);
    match text.char_indices().nth(QUOTE_CHARACTERS_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    mistakes: Vec<(usize, Span, Mistake)>,
    warnings: Vec<(usize, Span, Warning)>,
    untold: usize,
    /// Which of several files is being read.
    file: usize,
}

impl Report {
    /// What follows is of the next of several files: it is told behind what is of those before.
    pub(crate) fn begin_file(&mut self, number: usize) {
        self.file = number;
    }

    pub(crate) fn mistake(&mut self, source: &Source<'_>, span: Span, sentence: impl Into<String>) {
        if self.mistakes.len() >= MISTAKES_MAX {
            self.untold += 1;
            return;
        }
        let span = source.within(span);
        let sentence = sentence.into().chars().flat_map(escaped).collect();
        let snippet = if source.secret { None } else { source.snippet(span) };
        let mistake = Mistake { place: source.place(span), sentence, snippet };
        // The policy's own mistakes come before those of the files it names.
        self.mistakes.push((self.file + usize::from(source.secret), span, mistake));
    }

    /// A mistake whose line must not be shown.
    pub(crate) fn unseen_mistake(
        &mut self,
        source: &Source<'_>,
        span: Span,
        sentence: impl Into<String>,
    ) {
        self.mistake(source, span, sentence);
        if let Some((_, _, mistake)) = self.mistakes.last_mut() {
            mistake.snippet = None;
        }
    }

    pub(crate) fn warning(
        &mut self,
        source: &Source<'_>,
        span: Span,
        code: WarningCode,
        sentence: impl Into<String>,
    ) {
        if self.warnings.len() < WARNINGS_MAX {
            let sentence = sentence.into().chars().flat_map(escaped).collect();
            let warning = Warning { code, place: source.place(span), sentence };
            self.warnings.push((self.file + usize::from(source.secret), span, warning));
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// The warnings, or the mistakes if there are any; each in the order of the text.
    pub(crate) fn finish(mut self) -> Result<Vec<Warning>, Mistakes> {
        if !self.mistakes.is_empty() {
            self.mistakes.sort_by_key(|(file, span, _)| (*file, *span));
            let list = self.mistakes.into_iter().map(|(_, _, mistake)| mistake).collect();
            return Err(Mistakes { list, untold: self.untold });
        }
        self.warnings.sort_by_key(|(file, span, _)| (*file, *span));
        Ok(self.warnings.into_iter().map(|(_, _, warning)| warning).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snippet(text: &str, column: u32, length: u32) -> String {
        Source::new("p", text).snippet(Span { line: 1, column, length }).unwrap()
    }

    #[test]
    fn a_snippet_points_at_the_word() {
        assert_eq!(snippet("rate: 5/minuet", 7, 8), "  |\n1 | rate: 5/minuet\n  |       ^^^^^^^^");
    }

    #[test]
    fn a_snippet_never_points_past_its_line_by_more_than_one() {
        assert_eq!(snippet("rate:", 6, 9), "  |\n1 | rate:\n  |      ^");
        assert_eq!(snippet("", 1, 0), "  |\n1 | \n  | ^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_word() {
        let line = format!("{}WORD{}", "a".repeat(500), "b".repeat(500));
        let shown = snippet(&line, 501, 4);
        assert!(shown.lines().all(|line| line.chars().count() < 110), "{shown}");
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1].find("WORD"), lines[2].find("^^^^"));
    }

    #[test]
    fn passwords_and_escapes_are_not_shown() {
        let line = "store: redis://user:s3cret@host:6379 # \u{1b}[31m\u{202e}";
        let shown = snippet(line, 8, 5);
        assert!(shown.contains("redis://***********@host:6379"), "{shown}");
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{202e}'), "{shown}");
        assert_eq!(quoted("a\u{1b}[0m\n"), "\"a\\u{1b}[0m\\n\"");
        assert!(quoted(&"x".repeat(10_000)).len() < 100);
    }

    #[test]
    fn no_value_behind_the_question_mark_of_a_url_is_shown() {
        let line = "store: redis+unix:///x.sock?db=7&passwd=s3cret&s3cret # why?no=t";
        let shown = snippet(line, 8, 5);
        assert!(
            shown.contains("redis+unix:///x.sock?db=*&passwd=******&****** # why?no=t"),
            "{shown}"
        );
        assert_eq!(quoted("unix:///x?passwd=s3cret&db=7"), "\"unix:///x?passwd=…&db=…\"");
        assert_eq!(quoted("http://a/b?"), "\"http://a/b?\"");
    }

    #[test]
    fn below_store_no_field_that_is_named_like_a_secret_is_shown() {
        for text in [
            "store: { redis: { url: redis://h, password: s3cret } }",
            "store: {redis: {Pass: 's3, cret', x: 1}}",
            "store:\n  redis:\n    # it is s3\n\n    auth_token : s3cret",
            "'store': { \"client-secret\": \"s3\" }",
            "{ store: { redis: { passwd: s3cret } } }",
        ] {
            let source = Source::new("p", text);
            let line = text.lines().count() as u32;
            let shown = source.snippet(Span { line, column: 1, length: 1 }).unwrap();
            assert!(!shown.contains("s3"), "{shown}");
            assert!(shown.contains("store") || shown.contains("auth_token : *"), "{shown}");
        }
        for text in
            ["listen: { http: { token_file: t } }", "store: redis://h", "a: 1\nb: { secret: t }"]
        {
            let line = text.lines().count() as u32;
            let source = Source::new("p", text);
            let shown = source.snippet(Span { line, column: 1, length: 1 }).unwrap();
            assert!(!shown.contains('*'), "{shown}");
        }
    }
}
