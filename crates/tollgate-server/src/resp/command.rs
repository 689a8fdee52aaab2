//! The commands there are, and what is told of them.

use super::reply::{Complaint, Replies, Shown};
use crate::bounds::COMMAND_WORDS_MAX;

/// Something a client can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Throttle,
    Check,
    Ping,
    Echo,
    Hello,
    Auth,
    Select,
    Commands,
    Client,
    Info,
    Reset,
    Quit,
}

/// What is known of a command before it is carried out.
pub(super) struct Entry {
    pub(super) command: Command,
    /// In capitals.
    pub(super) name: &'static str,
    /// The fewest and the most words, its name among them.
    words: (usize, usize),
    /// Which word is a key; zero if none is.
    key: i64,
    /// Whether it is answered before the client has shown its token.
    pub(super) is_open: bool,
    summary: &'static str,
}

/// In the order in which a name is looked for.
const ENTRIES: [Entry; 12] = [
    Entry {
        key: 1,
        ..Entry::new(
            Command::Throttle,
            "CL.THROTTLE",
            (5, 6),
            "Asks a limit that the caller brings along",
        )
    },
    Entry::new(Command::Check, "TG.CHECK", (1, MANY), "Asks the limits of the policy"),
    Entry::new(Command::Ping, "PING", (1, 2), "Answers PONG, or the message"),
    Entry::new(Command::Echo, "ECHO", (2, 2), "Answers the message"),
    Entry::new(Command::Hello, "HELLO", (1, 7), "Chooses the protocol, and tells who is here")
        .open(),
    Entry::new(Command::Auth, "AUTH", (2, 3), "Shows the token of this door").open(),
    Entry::new(Command::Select, "SELECT", (2, 2), "Chooses the database, of which there is one"),
    Entry::new(Command::Commands, "COMMAND", (1, MANY), "Tells of the commands there are"),
    Entry::new(Command::Client, "CLIENT", (2, MANY), "Names this connection"),
    Entry::new(Command::Info, "INFO", (1, MANY), "Tells of the server"),
    Entry::new(Command::Reset, "RESET", (1, 1), "Makes the connection as it was at first").open(),
    Entry::new(Command::Quit, "QUIT", (1, MANY), "Closes the connection").open(),
];

const MANY: usize = COMMAND_WORDS_MAX;

impl Entry {
    const fn new(
        command: Command,
        name: &'static str,
        words: (usize, usize),
        summary: &'static str,
    ) -> Self {
        Self { command, name, words, key: 0, is_open: false, summary }
    }

    const fn open(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// The command of this name, in letters of any case.
    #[inline]
    pub(super) fn find(name: &[u8]) -> Option<&'static Self> {
        ENTRIES.iter().find(|entry| name.eq_ignore_ascii_case(entry.name.as_bytes()))
    }

    /// Whether so many words can be right.
    pub(super) fn check_words(&self, count: usize) -> Result<(), Complaint> {
        let (fewest, most) = self.words;
        if (fewest..=most).contains(&count) {
            return Ok(());
        }
        let name = Shown(self.name.as_bytes());
        Err(Complaint::new(format_args!("wrong number of arguments for {name} command")))
    }

    /// The number of words as Redis tells it: negative if there may be more.
    fn arity(&self) -> i64 {
        let (fewest, most) = self.words;
        if fewest == most { fewest as i64 } else { -(fewest as i64) }
    }

    fn tell(&self, replies: &mut Replies<'_>) {
        replies.array(6);
        replies.bulk(self.name.to_ascii_lowercase().as_bytes());
        replies.integer(self.arity());
        replies.array(1);
        replies.simple("fast");
        // The first key, the last one, and how far they are apart.
        (0..3).for_each(|_| replies.integer(self.key));
    }

    fn document(&self, replies: &mut Replies<'_>) {
        replies.bulk(self.name.to_ascii_lowercase().as_bytes());
        replies.map(3);
        for (field, text) in [("summary", self.summary), ("since", "0.1.0"), ("group", "tollgate")]
        {
            replies.bulk(field.as_bytes());
            replies.bulk(text.as_bytes());
        }
    }
}

/// Answers `COMMAND`: with all of them, their number, or what is known of some.
pub(super) fn tell(words: &[&[u8]], replies: &mut Replies<'_>) -> Result<(), Complaint> {
    let Some((what, names)) = words.split_first() else {
        replies.array(ENTRIES.len());
        ENTRIES.iter().for_each(|entry| entry.tell(replies));
        return Ok(());
    };
    let is = |name: &str| what.eq_ignore_ascii_case(name.as_bytes());
    if is("COUNT") && names.is_empty() {
        replies.integer(ENTRIES.len() as i64);
    } else if is("INFO") && names.is_empty() {
        return tell(&[], replies);
    } else if is("INFO") {
        replies.array(names.len());
        for name in names {
            match Entry::find(name) {
                Some(entry) => entry.tell(replies),
                None => replies.null(),
            }
        }
    } else if is("DOCS") {
        let wanted = |entry: &&Entry| {
            let is_it = |name: &&[u8]| name.eq_ignore_ascii_case(entry.name.as_bytes());
            names.is_empty() || names.iter().any(is_it)
        };
        replies.map(ENTRIES.iter().filter(wanted).count());
        ENTRIES.iter().filter(wanted).for_each(|entry| entry.document(replies));
    } else {
        let what = Shown(what);
        return Err(Complaint::new(format_args!("unknown subcommand {what} of COMMAND")));
    }
    Ok(())
}
