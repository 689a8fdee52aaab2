//! What is known and what is looked at: answers of the server and keys that are pressed go in, a page
//! comes out of it. Nothing here waits, asks or draws.

use std::collections::VecDeque;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::told::{Key, Keys, Live, Second};
use crate::bounds::{TOP_SAID_ANSWERS, TOP_SEARCH_LETTERS_MAX, TOP_SECONDS_MAX};

/// Which keys are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum List {
    #[default]
    Denied,
    Busy,
}

/// Over how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Span {
    Minute,
    #[default]
    Hour,
    Day,
}

impl Span {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

/// The keys to be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) list: List,
    pub(super) span: Span,
}

/// Which table the arrows move in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Focus {
    Limits,
    #[default]
    Keys,
}

/// What can be done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Forget what it has consumed.
    Reset,
    /// Allow it nothing.
    Ban,
}

/// What a pressed key means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Watching,
    /// It is a letter of what is searched for.
    Searching,
    /// It is the answer to whether this shall be done to this key.
    Asking(Deed, String),
    /// It ends the help.
    Help,
}

/// What is to be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Quit,
    List(Wanted),
    Do(Deed, String),
}

/// One answer of the server: how everything is, and the keys that were asked for.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) live: Live,
    pub(super) wanted: Wanted,
    pub(super) keys: Keys,
}

/// Everything that a page shows.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) server: String,
    /// Whether the page is for paper: nothing can be pressed.
    pub(super) is_printed: bool,
    /// The last answer, without its seconds.
    pub(super) live: Option<Live>,
    /// The last seconds, oldest first.
    pub(super) seconds: VecDeque<Second>,
    /// The keys that are wanted, once they have come.
    pub(super) keys: Option<Keys>,
    /// Why the last question was not answered.
    pub(super) trouble: Option<String>,
    /// What came of the last order, and for how many answers it is still shown.
    pub(super) said: Option<(String, u8)>,
    pub(super) wanted: Wanted,
    pub(super) focus: Focus,
    pub(super) mode: Mode,
    pub(super) search: String,
    /// Rows in which the arrows are, of the limits and of the keys that are shown.
    pub(super) limit: usize,
    pub(super) key: usize,
}

impl Model {
    pub(super) fn new(server: &str) -> Self {
        Self { server: server.to_owned(), ..Self::default() }
    }

    /// The server answered, or did not.
    pub(super) fn answered(&mut self, answer: Result<Answer, String>) {
        match answer {
            Ok(Answer { live, wanted, keys }) => {
                self.trouble = None;
                self.said =
                    self.said.take().and_then(|(said, more)| Some((said, more.checked_sub(1)?)));
                self.remember(live);
                // An answer that crossed with a press of a key is to a question of before.
                if wanted == self.wanted {
                    self.list_anew(keys);
                }
                self.stay_within();
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    /// An order was carried out, or was not.
    pub(super) fn say(&mut self, text: String) {
        self.said = Some((text, TOP_SAID_ANSWERS - 1));
    }

    /// What came of the last order, if that is still news.
    pub(super) fn said(&self) -> Option<&str> {
        self.said.as_ref().map(|(said, _)| said.as_str())
    }

    /// Adds the seconds that are new. Numbers begin anew with the server.
    fn remember(&mut self, mut live: Live) {
        let before = self.live.as_ref().filter(|before| before.started_ms == live.started_ms);
        let known = before.map(|before| before.second);
        let told = std::mem::take(&mut live.seconds);
        live.limits.retain(|limit| !limit.is_idle_remainder());
        let new = known.map_or(u64::MAX, |known| live.second.saturating_sub(known));
        if new > told.len() as u64 {
            self.seconds.clear();
        }
        let new = usize::try_from(new).unwrap_or(usize::MAX).min(told.len());
        self.seconds.extend(&told[told.len() - new..]);
        let excess = self.seconds.len().saturating_sub(TOP_SECONDS_MAX);
        self.seconds.drain(..excess);
        self.live = Some(live);
    }

    /// Whoever has moved to a key stays with it when others pass it by.
    fn list_anew(&mut self, keys: Keys) {
        let chosen = self.shown_keys().get(self.key).map(|key| key.key.clone());
        self.keys = Some(keys);
        let place = self.shown_keys().iter().position(|key| Some(&key.key) == chosen.as_ref());
        self.key = place.filter(|_| self.key > 0).unwrap_or(self.key);
    }

    /// The keys that are shown: those with what is searched for.
    pub(super) fn shown_keys(&self) -> Vec<&Key> {
        let search = self.search.to_lowercase();
        let keys = self.keys.iter().flat_map(|keys| &keys.keys);
        keys.filter(|key| key.key.to_lowercase().contains(&search)).collect()
    }

    /// What becomes of a pressed key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Option<Order> {
        self.said = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(Order::Quit);
        }
        let order = match &self.mode {
            Mode::Watching => self.watch(key.code),
            Mode::Searching => {
                self.search(key.code);
                None
            }
            Mode::Asking(deed, asked) => {
                let order = Order::Do(*deed, asked.clone());
                self.mode = Mode::Watching;
                matches!(key.code, KeyCode::Char('y' | 'Y')).then_some(order)
            }
            Mode::Help => {
                self.mode = Mode::Watching;
                (key.code == KeyCode::Char('q')).then_some(Order::Quit)
            }
        };
        self.stay_within();
        order
    }

    fn watch(&mut self, code: KeyCode) -> Option<Order> {
        match code {
            KeyCode::Char('q') => return Some(Order::Quit),
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => (self.mode, self.focus) = (Mode::Searching, Focus::Keys),
            KeyCode::Esc => self.search.clear(),
            KeyCode::Tab | KeyCode::BackTab | KeyCode::Left | KeyCode::Right => {
                self.focus = match self.focus {
                    Focus::Limits => Focus::Keys,
                    Focus::Keys => Focus::Limits,
                }
            }
            KeyCode::Up | KeyCode::Char('k') => self.go(|row| row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(|row| row.saturating_add(1)),
            KeyCode::PageUp => self.go(|row| row.saturating_sub(10)),
            KeyCode::PageDown => self.go(|row| row.saturating_add(10)),
            KeyCode::Home => self.go(|_| 0),
            KeyCode::End => self.go(|_| usize::MAX),
            KeyCode::Char('d') => return self.list(Wanted { list: List::Denied, ..self.wanted }),
            KeyCode::Char('b') => return self.list(Wanted { list: List::Busy, ..self.wanted }),
            KeyCode::Char('m') => return self.list(Wanted { span: Span::Minute, ..self.wanted }),
            KeyCode::Char('h') => return self.list(Wanted { span: Span::Hour, ..self.wanted }),
            KeyCode::Char('y') => return self.list(Wanted { span: Span::Day, ..self.wanted }),
            KeyCode::Char('r') => self.ask(Deed::Reset),
            KeyCode::Char('x') => self.ask(Deed::Ban),
            _ => {}
        }
        None
    }

    /// Asks whether this shall be done to the key that the arrows are at, if they are at one.
    fn ask(&mut self, deed: Deed) {
        let chosen = self.shown_keys().get(self.key).map(|key| key.key.clone());
        self.mode = chosen.map_or(Mode::Watching, |key| Mode::Asking(deed, key));
    }

    fn search(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::Watching,
            KeyCode::Esc => (self.mode, self.search) = (Mode::Watching, String::new()),
            KeyCode::Backspace => drop(self.search.pop()),
            KeyCode::Char(letter) if self.search.chars().count() < TOP_SEARCH_LETTERS_MAX => {
                self.search.push(letter);
            }
            _ => {}
        }
    }

    fn list(&mut self, wanted: Wanted) -> Option<Order> {
        let is_new = self.wanted != wanted;
        if is_new {
            (self.wanted, self.keys, self.key) = (wanted, None, 0);
        }
        is_new.then_some(Order::List(wanted))
    }

    fn go(&mut self, to: impl Fn(usize) -> usize) {
        let row = match self.focus {
            Focus::Limits => &mut self.limit,
            Focus::Keys => &mut self.key,
        };
        *row = to(*row);
    }

    /// The arrows never leave their tables, however short these become.
    fn stay_within(&mut self) {
        let limits = self.live.as_ref().map_or(0, |live| live.limits.len());
        self.limit = self.limit.min(limits.saturating_sub(1));
        self.key = self.key.min(self.shown_keys().len().saturating_sub(1));
    }
}
