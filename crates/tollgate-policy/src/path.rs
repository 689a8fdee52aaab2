//! Path patterns, one by one and thousands at a time.
//!
//! A pattern is segments between slashes: `*` or `{name}` stands for one segment that is not
//! empty, `**` for any number of segments, none included, and anything else for itself. A path is
//! matched as it comes; making `/x/../login` and `/login` the same is the work of the doors, and so
//! is folding together what the policy takes for one path. A pattern is folded here, in the same
//! way, and keeps standing for what is written as well: callers of the API send what they like.
//!
//! The two matchers here, [`Pattern::matches`] and [`PathTree::find`], must always agree.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use crate::bounds::PATTERN_BYTES_MAX;
use crate::settings::{Likeness, Paths};
use crate::words::WordTable;

/// One path pattern. Two are equal if they stand for the same paths: names in braces make no
/// difference.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    text: Box<str>,
    segments: Box<[Segment]>,
    /// As it is written, if that is not its one form.
    written: Option<Box<Pattern>>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.segments == other.segments
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.segments.hash(state);
    }
}

/// What one place of a pattern stands for. The order is that of precision: when two patterns match
/// one path, the one that is more precise at the first place where they differ is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Segment {
    Literal(Box<[u8]>),
    One,
    Any,
}

impl Pattern {
    /// Reads a pattern, or says what is wrong with it, to follow the quoted pattern in a sentence.
    pub(crate) fn read(text: &str, paths: Paths) -> Result<Self, &'static str> {
        let written = Self::read_written(text)?;
        let folded = Self::read_written(&paths.fold(Cow::Borrowed(text)))?;
        if folded == written {
            return Ok(written);
        }
        Ok(Self { written: Some(Box::new(written)), ..folded })
    }

    fn read_written(text: &str) -> Result<Self, &'static str> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err("is longer than a pattern may be, 4096 bytes");
        }
        let Some(rest) = text.strip_prefix('/') else {
            return Err("is not a path pattern; a path begins with /, for example /api/**");
        };
        if text.contains(['?', '#']) {
            return Err("holds ? or #, which no path does; match a query by query:name");
        }
        let segments: Result<Vec<Segment>, &str> = rest.split('/').map(Segment::read).collect();
        let segments = segments?;
        let inner = &segments[..segments.len() - 1];
        if inner.contains(&Segment::Literal(Box::default())) {
            return Err("holds //, which no path does once a door has tidied it; write one /");
        }
        Ok(Self { text: text.into(), segments: tidied(segments).into(), written: None })
    }

    /// The pattern in its one form, and as it is written if that is another.
    pub(crate) fn forms(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.written.as_deref()].into_iter().flatten()
    }

    /// Whether the pattern stands for one path only, in whatever form.
    pub(crate) fn is_literal(&self) -> bool {
        self.segments.iter().all(|segment| matches!(segment, Segment::Literal(_)))
    }

    /// The path that a literal pattern stands for in this form, as [`without_slash`] gives it.
    pub(crate) fn literal(&self) -> Option<&[u8]> {
        self.is_literal().then(|| without_slash(self.text.as_bytes()))
    }

    /// Whether the pattern tells no path from another, or hardly: it holds no word.
    pub(crate) fn is_wordless(&self) -> bool {
        self.segments.iter().all(|segment| matches!(segment, Segment::One | Segment::Any))
    }

    /// Orders patterns so that of those which match one path the most precise comes first.
    pub(crate) fn compare_precision(&self, other: &Self) -> Ordering {
        let shared = self.segments.len().min(other.segments.len());
        let by_segment = self.segments[..shared].cmp(&other.segments[..shared]);
        // `/a/**` also stands for all that `/a/**/b` does, but `/a` for one path of `/a/**`.
        let ends_open = shared > 0 && self.segments[shared - 1] == Segment::Any;
        let by_length = self.segments.len().cmp(&other.segments.len());
        by_segment.then(if ends_open { by_length.reverse() } else { by_length })
    }

    /// Whether the pattern stands for `path`.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        let segments: SmallVec<[&[u8]; 16]> = split(path).collect();
        self.forms().any(|form| form.stands_for(&segments))
    }

    /// How many bytes its one form has.
    pub(crate) fn length(&self) -> usize {
        self.text.len()
    }

    /// Whether the pattern stands for every path that `other` does; no may also mean that this is
    /// hard to tell.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let segments: Vec<&Segment> = other.segments.iter().collect();
        self.is_made_of(&segments, Segment::covers)
    }

    fn stands_for(&self, segments: &[&[u8]]) -> bool {
        self.is_made_of(segments, Segment::stands_for)
    }

    /// Whether `segments` can be dealt out to those of the pattern in order, as `fits` says: one to
    /// each, and any number to `**`.
    fn is_made_of<T: Copy>(&self, segments: &[T], fits: impl Fn(&Segment, T) -> bool) -> bool {
        let (mut place, mut at) = (0, 0);
        // Where the last `**` was, and how much it has swallowed. Only the last one ever needs to
        // swallow more: what an earlier one left over is left over for the later one as well.
        let mut retry: Option<(usize, usize)> = None;
        while at < segments.len() {
            match self.segments.get(place) {
                Some(Segment::Any) => {
                    retry = Some((place, at));
                    place += 1;
                    continue;
                }
                Some(segment) if fits(segment, segments[at]) => {
                    place += 1;
                    at += 1;
                    continue;
                }
                _ => {}
            }
            let Some((any, swallowed)) = retry else { return false };
            retry = Some((any, swallowed + 1));
            place = any + 1;
            at = swallowed + 1;
        }
        self.segments[place..].iter().all(|segment| *segment == Segment::Any)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.written.as_ref().map_or(&self.text, |written| &written.text))
    }
}

impl Segment {
    fn read(text: &str) -> Result<Self, &'static str> {
        match text {
            "*" => return Ok(Self::One),
            "**" => return Ok(Self::Any),
            "." | ".." => {
                return Err("holds . or .., which no path does once a door has tidied it");
            }
            _ => {}
        }
        if let Some(name) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            if name.is_empty() || !name.bytes().all(plain) {
                return Err("has braces that hold no name; write for example /users/{id}");
            }
            return Ok(Self::One);
        }
        if text.contains(['*', '{', '}']) {
            return Err(
                "has *, { or } inside a segment; each stands for a whole one, as in /users/{id}",
            );
        }
        Ok(Self::Literal(text.as_bytes().into()))
    }

    /// Whether it stands for whatever `other` stands for.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (Self::One, Self::One) => true,
            (Self::One, Self::Literal(word)) => !word.is_empty(),
            (Self::Literal(one), Self::Literal(other)) => one == other,
            (Self::One | Self::Literal(_), _) => false,
        }
    }

    fn stands_for(&self, segment: &[u8]) -> bool {
        match self {
            Self::Literal(word) => **word == *segment,
            Self::One => !segment.is_empty(),
            Self::Any => true,
        }
    }
}

impl Paths {
    /// The one form of all paths that are one path here: what a limit matches and counts, where
    /// what is sent on stays as it was sent. The path is tidy: without empty segments, `.` and `..`.
    ///
    /// ```
    /// use tollgate_policy::Paths;
    /// assert_eq!(Paths::default().fold("/login;a=1/".into()), "/login");
    /// ```
    pub fn fold<'p>(&self, path: Cow<'p, str>) -> Cow<'p, str> {
        let mut path = path;
        if self.params == Likeness::Same
            // Most paths are told at first sight to have none.
            && path.bytes().any(|byte| matches!(byte, b';' | b'%'))
            && path.split('/').any(|it| name(it).len() < it.len())
        {
            path = Cow::Owned(without_params(&path));
        }
        if self.trailing_slash == Likeness::Same && path.len() > 1 && path.ends_with('/') {
            path = match path {
                Cow::Borrowed(path) => Cow::Borrowed(&path[..path.len() - 1]),
                Cow::Owned(mut path) => {
                    path.pop();
                    Cow::Owned(path)
                }
            };
        }
        if self.case == Likeness::Same && path.contains(|letter: char| letter.is_ascii_uppercase())
        {
            path.to_mut().make_ascii_lowercase();
        }
        path
    }
}

/// A segment without its parameters. An encoded semicolon begins them as well: some proxies decode
/// it on the way to a server that takes parameters off.
fn name(segment: &str) -> &str {
    let encoded = segment.as_bytes().windows(3).position(|it| it.eq_ignore_ascii_case(b"%3B"));
    let plain = segment.find(';');
    let end = encoded.into_iter().chain(plain).min().unwrap_or(segment.len());
    &segment[..end]
}

/// The path without parameters. A segment of nothing else is none: `/;a=1/login` is `/login`.
fn without_params(path: &str) -> String {
    let mut bare = String::with_capacity(path.len());
    let mut segments = path.split('/').skip(1).map(name).peekable();
    while let Some(name) = segments.next() {
        if !name.is_empty() || segments.peek().is_none() {
            bare.push('/');
            bare.push_str(name);
        }
    }
    bare
}

/// `**` twice in a row says no more than once, but would be tried twice.
fn tidied(mut segments: Vec<Segment>) -> Vec<Segment> {
    segments.dedup_by(|later, earlier| *later == Segment::Any && *earlier == Segment::Any);
    segments
}

/// A path without its first slash. A path that lacks it is read as if it had it, so that nobody
/// slips past `/**` by leaving it out.
pub(crate) fn without_slash(path: &[u8]) -> &[u8] {
    path.strip_prefix(b"/").unwrap_or(path)
}

fn split(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    without_slash(path).split(|byte| *byte == b'/')
}

/// Many patterns, each with a number, asked about together: a path costs as many steps as it has
/// segments, times the wildcards that lie along it, however many patterns there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathTree {
    nodes: Vec<Node>,
    /// From a node and a word to the next node.
    words: WordTable,
    /// Numbers of the patterns that end at nodes where several do.
    ends: Vec<Vec<u32>>,
}

#[derive(Clone, Debug)]
struct Node {
    /// Where any one segment leads; [`NOWHERE`] if nowhere.
    one: u32,
    /// Where `**` leads.
    any: u32,
    ends: Ends,
    /// Whether it was reached by `**`: then it stays reached whatever segments follow.
    stays: bool,
    /// Whether any word leads on from here.
    has_words: bool,
}

/// The numbers of the patterns that end at a node.
#[derive(Clone, Copy, Debug)]
enum Ends {
    None,
    One(u32),
    /// Which list of them.
    Several(u32),
}

const NOWHERE: u32 = u32::MAX;

impl PathTree {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds one form of a pattern under a number.
    pub(crate) fn insert(&mut self, pattern: &Pattern, number: u32) {
        if self.nodes.is_empty() {
            self.add_node(false);
        }
        let mut at = 0;
        for segment in &pattern.segments {
            at = self.child(at, segment);
        }
        let node = &mut self.nodes[at as usize];
        match node.ends {
            Ends::None => node.ends = Ends::One(number),
            Ends::One(first) => {
                node.ends = Ends::Several(self.ends.len() as u32);
                self.ends.push(vec![first, number]);
            }
            Ends::Several(list) => self.ends[list as usize].push(number),
        }
    }

    fn child(&mut self, at: u32, segment: &Segment) -> u32 {
        let next = self.nodes.len() as u32;
        let node = &mut self.nodes[at as usize];
        let child = match segment {
            Segment::Literal(word) => {
                node.has_words = true;
                self.words.change(at, word, |known| known.unwrap_or(next))
            }
            Segment::One => *get_or_set(&mut node.one, next),
            Segment::Any => *get_or_set(&mut node.any, next),
        };
        if child == next {
            self.add_node(*segment == Segment::Any);
        }
        child
    }

    fn add_node(&mut self, stays: bool) {
        let ends = Ends::None;
        self.nodes.push(Node { one: NOWHERE, any: NOWHERE, ends, stays, has_words: false });
    }

    /// Calls `found` with the numbers of all patterns that stand for `path`; a number under which
    /// several patterns were added may come several times. Answers how many nodes were looked at.
    pub(crate) fn find(&self, path: &[u8], mut found: impl FnMut(&[u32])) -> usize {
        if self.nodes.is_empty() {
            return 0;
        }
        let mut here = Reached::new();
        let mut next = Reached::new();
        let mut steps = 0;
        self.reach(&mut here, 0);
        for segment in split(path) {
            for &at in &here {
                steps += 1;
                let node = &self.nodes[at as usize];
                if node.stays {
                    self.reach(&mut next, at);
                }
                if node.has_words
                    && let Some(child) = self.words.get(at, segment)
                {
                    self.reach(&mut next, child);
                }
                if node.one != NOWHERE && !segment.is_empty() {
                    self.reach(&mut next, node.one);
                }
            }
            std::mem::swap(&mut here, &mut next);
            next.clear();
            if here.is_empty() {
                return steps;
            }
        }
        for &at in &here {
            match self.nodes[at as usize].ends {
                Ends::None => {}
                Ends::One(number) => found(&[number]),
                Ends::Several(list) => found(&self.ends[list as usize]),
            }
        }
        steps
    }

    /// Adds a node, and what a `**` behind it reaches by swallowing nothing.
    fn reach(&self, reached: &mut Reached, at: u32) {
        if reached.contains(&at) {
            return;
        }
        reached.push(at);
        let any = self.nodes[at as usize].any;
        if any != NOWHERE {
            self.reach(reached, any);
        }
    }
}

fn get_or_set(place: &mut u32, value: u32) -> &mut u32 {
    if *place == NOWHERE {
        *place = value;
    }
    place
}

type Reached = SmallVec<[u32; 8]>;
