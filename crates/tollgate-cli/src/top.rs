//! `tollgate top`: how a running server is, live in a terminal.
//!
//! Whatever happens comes over one channel: keys from the terminal, answers from the thread that asks
//! the server, signals. A [`Model`](model::Model) takes it in, and the page is drawn anew. The terminal
//! is as it was before, however this ends.

mod figures;
mod model;
mod page;
#[cfg(test)]
mod tests;
mod told;

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use clap::Args;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, KeyEvent, KeyEventKind};
use ratatui::{DefaultTerminal, Terminal};
use tokio::signal::unix::{SignalKind, signal};
use tollgate_core::KeyBuf;

use crate::client::{self, AdminDoor};
use crate::keys;
use crate::output::{self, Failure, Palette};
use model::{Answer, Deed, List, Model, Order, Wanted};

const EXAMPLES: &str = "\
Examples:
  tollgate top
  tollgate top --server http://10.0.0.7:8082 --token-file token
  tollgate top --once | head -40";

/// How often the server is asked.
const PAUSE: Duration = Duration::from_secs(1);

/// Watch a running server: what it allows and denies, whom, how fast, and how it is
///
/// Asked is the server's admin door, once a second. Press ? for what can be pressed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    door: AdminDoor,
    /// Print one page, and end: for scripts, and where there is no terminal
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let door = &arguments.door;
    client::host(&door.server)?;
    if arguments.once {
        return output::data(printed(door)?);
    }
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let sentence = "this is no terminal; --once prints one page anywhere";
        return Err(Failure::Usage(sentence.to_owned()));
    }
    watch(door).map_err(|error| Failure::Failed(format!("the terminal fails: {error}")))
}

/// One page, as large as it must be.
fn printed(door: &AdminDoor) -> Result<String, Failure> {
    let mut model = Model { is_printed: true, ..Model::new(&door.server) };
    model.answered(Ok(ask(door, None, Wanted::default())?));
    let (width, height) = page::wanted_size(&model);
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(page) = terminal.draw(|frame| page::draw(frame, &model, Palette::plain()));
    let lines = page::lines_drawn(page.buffer);
    Ok(lines.join("\n").trim_end().to_owned() + "\n")
}

/// What happens.
enum Event {
    Pressed(KeyEvent),
    /// The terminal is otherwise than it was.
    Resized,
    Answered(Result<Box<Answer>, String>),
    /// What came of an order.
    Said(String),
    /// Somebody who tells of events has ended, or was told to.
    Ended,
}

/// Tells of events, and at last that no more will come, be it by a panic.
struct Teller(Sender<Event>);

impl Drop for Teller {
    fn drop(&mut self) {
        // Nobody listens any more when all is over.
        let _ = self.0.send(Event::Ended);
    }
}

/// A terminal that is ours, until this is dropped.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> io::Result<Self> {
        // A terminal of which we got only half is given back too.
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // After a panic the terminal is restored already, and shows what the panic says.
        if !thread::panicking() {
            ratatui::restore();
        }
    }
}

/// Shows the page until somebody wants no more of it.
fn watch(door: &AdminDoor) -> io::Result<()> {
    let palette = Palette::of_stdout();
    let mut model = Model::new(&door.server);
    let (events, happened) = mpsc::channel();
    let (orders, ordered) = mpsc::channel();
    let mut screen = Screen::take()?;
    let teller = || Teller(events.clone());
    spawn_signals(teller())?;
    let (keys, answers, door) = (teller(), teller(), door.clone());
    // They end with the process: nothing hurries who waits for a key, or for a server.
    thread::spawn(move || tell_keys(&keys));
    thread::spawn(move || tell_answers(&door, &ordered, &answers));
    loop {
        screen.0.draw(|frame| page::draw(frame, &model, palette))?;
        let Ok(event) = happened.recv() else { return Ok(()) };
        match event {
            Event::Resized => {}
            Event::Pressed(key) => match model.press(key) {
                Some(Order::Quit) => return Ok(()),
                // Who asks has said so itself if it is no longer there.
                Some(order) => drop(orders.send(order)),
                None => {}
            },
            Event::Answered(answer) => model.answered(answer.map(|answer| *answer)),
            Event::Said(text) => model.say(text),
            Event::Ended => return Ok(()),
        }
    }
}

/// A signal that would end us leaves time to restore the terminal.
fn spawn_signals(teller: Teller) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut terminate, mut hang_up, mut interrupt) = {
        let _inside = runtime.enter();
        let of = |kind| signal(kind);
        (of(SignalKind::terminate())?, of(SignalKind::hangup())?, of(SignalKind::interrupt())?)
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        drop(teller);
    });
    Ok(())
}

fn tell_keys(teller: &Teller) {
    while let Ok(event) = event::read() {
        let told = match event {
            event::Event::Key(key) if key.kind != KeyEventKind::Release => {
                teller.0.send(Event::Pressed(key))
            }
            event::Event::Resize(..) => teller.0.send(Event::Resized),
            _ => Ok(()),
        };
        if told.is_err() {
            return;
        }
    }
}

/// Asks once a second, and whenever something is ordered.
fn tell_answers(door: &AdminDoor, orders: &Receiver<Order>, teller: &Teller) {
    let (mut after, mut wanted) = (None, Wanted::default());
    loop {
        let answer = ask(door, after, wanted).map(Box::new);
        after = answer.as_ref().map_or(after, |answer| Some(answer.live.second));
        if teller.0.send(Event::Answered(answer.map_err(sentence))).is_err() {
            return;
        }
        match orders.recv_timeout(PAUSE) {
            Ok(Order::List(now)) => wanted = now,
            Ok(Order::Do(deed, key)) => {
                let said = done(door, deed, &key).unwrap_or_else(sentence);
                if teller.0.send(Event::Said(said)).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Order::Quit) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn ask(door: &AdminDoor, after: Option<u64>, wanted: Wanted) -> Result<Answer, Failure> {
    let after = after.map_or_else(String::new, |after| format!("?after={after}"));
    let live = door.told(&format!("GET /v1/live{after}"))?;
    let which = match wanted.list {
        List::Denied => "denied",
        List::Busy => "busy",
    };
    let span = wanted.span.name();
    let keys = door.told(&format!("GET /v1/keys?{which}=1&over={span}"))?;
    Ok(Answer { live, wanted, keys })
}

/// Does something to a key, and says what came of it.
fn done(door: &AdminDoor, deed: Deed, key: &str) -> Result<String, Failure> {
    let key: KeyBuf = key.parse().map_err(|error| Failure::Failed(format!("{key}: {error}")))?;
    match deed {
        Deed::Reset => {
            let told = door.ask(&format!("DELETE /v1/keys/{}", keys::in_path(&key)), "")?;
            Ok(match told["was_known"] == true {
                true => format!("{key} begins anew"),
                false => format!("{key} had consumed nothing"),
            })
        }
        Deed::Ban => {
            keys::ban(door, &key, None)?;
            Ok(format!("{key} is banned, until: tollgate keys unban {key}"))
        }
    }
}

/// What there is to say of a question that was not answered.
fn sentence(failure: Failure) -> String {
    match failure {
        Failure::Usage(text) | Failure::Failed(text) => text,
        Failure::Denied | Failure::ReaderLeft => String::new(),
    }
}
