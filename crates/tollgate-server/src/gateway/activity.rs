//! What goes on on a client's connection, and how long it may go on so.
//!
//! Timers cost more than most of what a request needs. So nothing is timed by itself: whatever moves
//! leaves a mark, and now and then somebody looks which marks are new. Whoever is too slow is found
//! between one and two of its times.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Duration, Instant, Sleep, sleep};
use tollgate::{Gateway, Micros};

use super::bounds::{LATE_GRACE, UNHEARD_AT_MOST};
use crate::delivery::{Fate, Presence};
use crate::moment::moment;

/// Marks of one connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Bytes that came and went, and those that came.
    moved: AtomicU64,
    read: AtomicU64,
    /// How many had come when the last request ended. Those after them are the next one's.
    read_at_end: AtomicU64,
    /// Requests whose head has come.
    begun: AtomicU64,
    /// Those of them whose response has not begun. How long they may take is not for us to say.
    waiting: AtomicUsize,
    /// Those that have not ended, or whose response has not.
    under_way: AtomicUsize,
    /// Those that have not ended.
    coming: AtomicUsize,
    /// Whether somebody waits for what the client says next, and so would notice if it left.
    is_listened_to: AtomicBool,
    /// Whether somebody should look if the client is there.
    is_doubted: AtomicBool,
    /// When they must have ended, those of them that must.
    deadlines: Mutex<Vec<Instant>>,
    /// Whether a line of a head ended otherwise than lines do.
    is_sloppy: AtomicBool,
    /// Whether HTTP/2 is spoken, and which head of it has begun and not ended, if not zero.
    is_framed: AtomicBool,
    framed_head: AtomicU64,
}

impl Activity {
    /// Whether the head of a request was one that others may read otherwise: some end lines at every
    /// line feed, as we do, and some only where a carriage return stands before it.
    pub(super) fn is_sloppy(&self) -> bool {
        self.is_sloppy.load(Ordering::Relaxed)
    }

    /// Whether a request is under way and nobody listens to its client. It has sent more than that request,
    /// which is looked at when it is answered, and until then nobody reads on.
    fn is_unheard(&self) -> bool {
        !self.is_listened_to.load(Ordering::Relaxed) && self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Whether there is nobody any more who could be answered. Who says nothing more is taken for gone, as
    /// where somebody listens, but for one whose request is still to be read.
    fn has_lost(&self, client: Presence) -> bool {
        match client {
            Presence::There => false,
            Presence::Silent => self.coming.load(Ordering::Relaxed) == 0,
            Presence::Gone => true,
        }
    }

    fn deadlines(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        self.move_on(bytes);
    }

    fn move_on(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A request or its response, as long as it has not ended.
#[derive(Debug)]
pub(super) struct UnderWay {
    activity: Arc<Activity>,
    is_answered: bool,
    is_body: bool,
    deadline: Option<Instant>,
}

impl UnderWay {
    /// A request has come, which must have ended by then; it is the so-and-so-manieth.
    pub(super) fn begin(activity: &Arc<Activity>, deadline: Option<Instant>) -> (Self, u64) {
        activity.waiting.fetch_add(1, Ordering::Relaxed);
        activity.under_way.fetch_add(1, Ordering::Relaxed);
        if let Some(deadline) = deadline {
            activity.deadlines().push(deadline);
        }
        let number = activity.begun.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::clone(activity);
        (Self { activity, is_answered: false, is_body: false, deadline }, number)
    }

    /// The body of a request comes, be it after the response.
    pub(super) fn body(activity: &Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::Relaxed);
        activity.coming.fetch_add(1, Ordering::Relaxed);
        Self { activity: Arc::clone(activity), is_answered: true, is_body: true, deadline: None }
    }

    /// Its response has begun.
    pub(super) fn answered(&mut self) {
        if !self.is_answered {
            self.is_answered = true;
            self.activity.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.answered();
        let activity = &self.activity;
        if self.is_body {
            activity.coming.fetch_sub(1, Ordering::Relaxed);
        }
        if activity.under_way.fetch_sub(1, Ordering::Relaxed) == 1 {
            activity.read_at_end.store(activity.read.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if let Some(deadline) = self.deadline {
            let mut deadlines = activity.deadlines();
            let place = deadlines.iter().position(|it| *it == deadline);
            place.map(|place| deadlines.swap_remove(place));
        }
    }
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The head of a request takes too long.
    SlowHead,
    /// Nothing happens.
    Idle,
    /// A request should have ended, and whoever could say so is not asked: nobody reads the response.
    Late,
}

/// Looks at marks.
#[derive(Debug)]
pub(super) struct Watch {
    activity: Arc<Activity>,
    /// How long a head may take.
    head: Option<Duration>,
    idle: Option<Duration>,
    total: Option<Duration>,
    seen: Seen,
    quiet_since: Instant,
    /// Which head had begun before the last look and not ended, if not zero.
    begun_head: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    moved: u64,
    begun: u64,
}

impl Watch {
    pub(super) fn new(activity: &Arc<Activity>, settings: &Gateway, has_heads: bool) -> Self {
        Self {
            activity: Arc::clone(activity),
            head: has_heads.then(|| duration(settings.headers_timeout)),
            idle: settings.idle_timeout.map(duration),
            total: settings.total_timeout.map(duration),
            seen: Seen::default(),
            quiet_since: moment(),
            begun_head: 0,
        }
    }

    /// How long until the next look; for ever if there is nothing to look for.
    pub(super) fn pause(&self) -> Option<Duration> {
        [self.head, self.idle, self.total].into_iter().flatten().min()
    }

    /// Looks; tells whether the connection has to end.
    pub(super) fn look(&mut self) -> Option<Cut> {
        let now = moment();
        let Activity { moved, read, read_at_end, begun, waiting, under_way, .. } = &*self.activity;
        let (moved, begun) = (moved.load(Ordering::Relaxed), begun.load(Ordering::Relaxed));
        if self.activity.deadlines().iter().any(|deadline| *deadline + LATE_GRACE <= now) {
            return Some(Cut::Late);
        }
        let (has_moved, has_asked) = (moved != self.seen.moved, begun != self.seen.begun);
        self.seen = Seen { moved, begun };
        if has_moved || has_asked || waiting.load(Ordering::Relaxed) > 0 {
            self.quiet_since = now;
        } else if self.idle.is_some_and(|most| now - self.quiet_since >= most) {
            return Some(Cut::Idle);
        }
        let head = if self.activity.is_framed.load(Ordering::Relaxed) {
            self.activity.framed_head.load(Ordering::Relaxed)
        } else {
            let has_begun = under_way.load(Ordering::Relaxed) == 0
                && read.load(Ordering::Relaxed) != read_at_end.load(Ordering::Relaxed);
            if has_begun { begun + 1 } else { 0 }
        };
        if self.head.is_some() && head != 0 && head == self.begun_head {
            return Some(Cut::SlowHead);
        }
        self.begun_head = head;
        None
    }
}

pub(super) fn duration(time: Micros) -> Duration {
    Duration::from_micros(time.as_micros())
}

/// A stream whose bytes leave marks.
pub(super) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
    /// Whether several slices are one write, as far as we say. Who speaks HTTP/2 asks that before it
    /// has written anything. If they are, a body of 256 bytes, which that of a refusal has, is the end
    /// of a write; if not, only one of 1,024, and answers to requests that came together go together.
    is_vectored: bool,
    lines: Lines,
    /// Where in HTTP/2 what comes is, if that is spoken.
    frames: Option<Frames>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, activity: &Arc<Activity>, is_http2: bool) -> Self {
        activity.is_framed.store(is_http2, Ordering::Relaxed);
        let (activity, frames) = (Arc::clone(activity), is_http2.then(Frames::new));
        Self { stream, activity, is_vectored: !is_http2, lines: Lines::new(), frames }
    }

    fn noted(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.is_vectored = true;
        if let Poll::Ready(Ok(bytes)) = written {
            self.activity.move_on(bytes);
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let new = &buffer.filled()[before..];
        self.activity.read(new.len());
        self.activity.is_listened_to.store(read.is_pending(), Ordering::Relaxed);
        if let Watched { frames: Some(frames), activity, .. } = &mut *self {
            frames.pass(new);
            activity.framed_head.store(frames.unfinished_head(), Ordering::Relaxed);
            return read;
        }
        // What comes while no body does begins with the head of a request, or goes on with it.
        if self.activity.coming.load(Ordering::Relaxed) > 0 {
            self.lines = Lines::new();
        } else if self.lines.has_bare_feed(new) {
            self.activity.is_sloppy.store(true, Ordering::Relaxed);
        }
        read
    }
}

/// Follows what a client says in HTTP/2 from frame to frame (RFC 9113, section 4.1), to see which heads have begun.
struct Frames {
    /// What was read of the first bytes of a frame.
    start: [u8; 9],
    read: usize,
    /// How many bytes come before the next frame.
    left: usize,
    heads: u64,
    is_in_head: bool,
    /// Whether the head ends with this frame.
    is_last: bool,
}

impl Frames {
    const HEADERS: u8 = 1;
    const CONTINUATION: u8 = 9;
    const END_HEADERS: u8 = 4;

    fn new() -> Self {
        let left = super::PREFACE.len();
        Self { start: [0; 9], read: 0, left, heads: 0, is_in_head: false, is_last: false }
    }

    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let now = bytes.len().min(self.start.len() - self.read);
                self.start[self.read..][..now].copy_from_slice(&bytes[..now]);
                bytes = &bytes[now..];
                self.read += now;
                if self.read < self.start.len() {
                    return;
                }
                self.begin();
            }
            let now = bytes.len().min(self.left);
            bytes = &bytes[now..];
            self.left -= now;
            if self.left == 0 && self.is_last {
                (self.is_in_head, self.is_last) = (false, false);
            }
        }
    }

    fn begin(&mut self) {
        let [a, b, c, kind, flags, ..] = self.start;
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        self.read = 0;
        if kind == Self::HEADERS {
            self.heads += 1;
            self.is_in_head = true;
        }
        let is_of_head = matches!(kind, Self::HEADERS | Self::CONTINUATION);
        self.is_last = is_of_head && flags & Self::END_HEADERS != 0;
    }

    /// The number of a head that has begun and not ended; zero if there is none.
    fn unfinished_head(&self) -> u64 {
        if self.is_in_head { self.heads } else { 0 }
    }
}

/// Follows the heads of HTTP/1.1 from line to line.
struct Lines {
    /// The byte before those that come.
    last: u8,
    /// Whether a head that has begun says that a body follows.
    has_body: bool,
}

impl Lines {
    fn new() -> Self {
        Self { last: b'\r', has_body: false }
    }

    /// Whether a line of these heads ends in a line feed alone. What lies behind the end of a head is another one, if
    /// it has no body. A body is not looked at.
    fn has_bare_feed(&mut self, heads: &[u8]) -> bool {
        let before = self.last;
        let Some(last) = heads.last() else { return false };
        self.last = *last;
        let (mut head, mut line) = (0, 0);
        for end in memchr::memchr_iter(b'\n', heads) {
            if end.checked_sub(1).map_or(before, |before| heads[before]) != b'\r' {
                return true;
            }
            if end == line + 1 {
                let is_all = end + 1 == heads.len();
                if !is_all && (self.has_body || tells_of_body(&heads[head..line])) {
                    *self = Self::new();
                    return false;
                }
                self.has_body = false;
                head = end + 1;
            }
            line = end + 1;
        }
        self.has_body |= tells_of_body(&heads[head..]);
        false
    }
}

fn tells_of_body(head: &[u8]) -> bool {
    let names: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];
    head.split(|byte| *byte == b'\n').any(|line| {
        names.iter().any(|name| {
            line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
        })
    })
}

pin_project! {
    /// A connection whose stream is [`Watched`]. As long as nobody listens to its client, that is looked for now and
    /// then.
    pub(super) struct Attentive<C> {
        #[pin]
        connection: C,
        activity: Arc<Activity>,
        pause: Option<Pin<Box<Sleep>>>,
    }
}

impl<C> Attentive<C> {
    pub(super) fn new(connection: C, activity: &Arc<Activity>) -> Self {
        Self { connection, activity: Arc::clone(activity), pause: None }
    }

    pub(super) fn connection(self: Pin<&mut Self>) -> Pin<&mut C> {
        self.project().connection
    }
}

impl<C: Future> Future for Attentive<C> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let mut this = self.project();
        loop {
            if let Poll::Ready(ended) = this.connection.as_mut().poll(context) {
                return Poll::Ready(ended);
            }
            if !this.activity.is_unheard() {
                *this.pause = None;
                return Poll::Pending;
            }
            let pause = this.pause.get_or_insert_with(|| Box::pin(sleep(UNHEARD_AT_MOST)));
            ready!(pause.as_mut().poll(context));
            *this.pause = None;
            // The connection flushes its stream whenever it goes on.
            this.activity.is_doubted.store(true, Ordering::Relaxed);
        }
    }
}

impl<S: AsyncWrite + Fate + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.is_vectored && self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.activity.is_doubted.load(Ordering::Relaxed) {
            self.activity.is_doubted.store(false, Ordering::Relaxed);
            if self.activity.has_lost(self.stream.presence()) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::advance;

    use super::*;

    const HEAD: Duration = Duration::from_secs(30);
    const IDLE: Duration = Duration::from_secs(60);

    fn watch(activity: &Arc<Activity>) -> Watch {
        Watch::new(activity, &Gateway::default(), true)
    }

    async fn look_later(watch: &mut Watch) -> Option<Cut> {
        let pause = watch.pause().expect("there is something to look for");
        assert_eq!(pause, HEAD);
        advance(pause).await;
        watch.look()
    }

    #[test]
    fn lines_of_a_head_end_in_two_bytes() {
        for head in [
            "",
            "\n",
            "GET / HT",
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "content-length: 5\r\n\r\nbo\ndy",
        ] {
            assert!(!Lines::new().has_bare_feed(head.as_bytes()), "{head:?}");
        }
        for head in
            ["GET / HTTP/1.1\nhost: a\r\n\r\n", "GET / HTTP/1.1\r\nhost: a\n\r\n", "a: b\n\n"]
        {
            assert!(Lines::new().has_bare_feed(head.as_bytes()), "{head:?}");
        }
        // In two pieces, wherever they are cut, and behind another.
        let (first, body) = ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "Content-Length: 3\r\n\r\nb\ny");
        for (heads, expected) in [
            (format!("{first}GET / HTTP/1.1\r\nHost: a\n\r\n"), true),
            (format!("{first}{first}"), false),
            (format!("{first}POST / HTTP/1.1\r\n{body}"), false),
            (format!("POST / HTTP/1.1\r\n{body}"), false),
        ] {
            for cut in 0..heads.len() {
                // That a body follows is missed if the word for it comes in two pieces; and one that comes by
                // itself is seen to be one elsewhere.
                let is_odd = !expected && heads[..cut].contains("POST");
                let mut lines = Lines::new();
                let (one, other) = heads.as_bytes().split_at(cut);
                let is_bare = lines.has_bare_feed(one) | lines.has_bare_feed(other);
                assert!(is_bare == expected || is_odd, "{:?}", heads.split_at(cut));
            }
        }
    }

    #[tokio::test]
    async fn http2_is_told_that_slices_are_one_write_once_it_writes() {
        let activity = Arc::default();
        let (near, _far) = tokio::io::duplex(64);
        assert!(Watched::new(near, &activity, false).is_write_vectored());
        let (near, _far) = tokio::io::duplex(64);
        let mut stream = Watched::new(near, &activity, true);
        assert!(!stream.is_write_vectored());
        stream.write_all(b"settings").await.unwrap();
        assert!(stream.is_write_vectored());
    }

    #[test]
    fn heads_are_followed_from_frame_to_frame_however_they_are_cut() {
        let frame = |kind: u8, flags: u8, length: u8| {
            let start = [0, 0, length, kind, flags, 0, 0, 0, 1];
            [&start[..], &vec![kind; length.into()]].concat()
        };
        // A head in one frame, a ping, a head in three frames, a body, and a head of nothing.
        let said = [
            (super::super::PREFACE.to_vec(), 0),
            (frame(4, 0, 0), 0),
            (frame(Frames::HEADERS, 4, 20), 0),
            (frame(6, 0, 8), 0),
            (frame(Frames::HEADERS, 1, 5), 2),
            (frame(Frames::CONTINUATION, 0, 0), 2),
            (frame(Frames::CONTINUATION, 4, 3), 0),
            (frame(0, 4, 200), 0),
            (frame(Frames::HEADERS, 0, 0), 3),
            (frame(Frames::CONTINUATION, 4, 0), 0),
        ];
        for size in [1, 2, 7, 9, 10, 1000] {
            let mut frames = Frames::new();
            for (bytes, expected) in &said {
                bytes.chunks(size).for_each(|piece| frames.pass(piece));
                assert_eq!(frames.unfinished_head(), *expected, "{size} bytes at a time");
            }
        }
        let mut frames = Frames::new();
        frames.pass(super::super::PREFACE);
        frames.pass(&frame(Frames::HEADERS, 4, 20)[..15]);
        assert_eq!(frames.unfinished_head(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_comes_byte_by_byte_is_given_up() {
        let activity = Arc::default();
        let mut watch = watch(&activity);
        activity.read(1);
        assert_eq!(look_later(&mut watch).await, None);
        activity.read(1);
        assert_eq!(look_later(&mut watch).await, Some(Cut::SlowHead));
        activity.is_framed.store(true, Ordering::Relaxed);
        let mut watch = Watch::new(&activity, &Gateway::default(), true);
        for (head, expected) in [(0, None), (1, None), (2, None), (0, None), (3, None)] {
            activity.framed_head.store(head, Ordering::Relaxed);
            activity.read(1);
            assert_eq!(look_later(&mut watch).await, expected, "it is another one each time");
        }
        activity.read(1);
        assert_eq!(look_later(&mut watch).await, Some(Cut::SlowHead));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_may_rest_between_requests_for_a_while() {
        let activity = Arc::default();
        let mut watch = watch(&activity);
        activity.read(100);
        drop(UnderWay::begin(&activity, None));
        activity.move_on(100);
        assert_eq!(look_later(&mut watch).await, None);
        assert_eq!(look_later(&mut watch).await, None);
        assert_eq!(look_later(&mut watch).await, Some(Cut::Idle));
        assert_eq!(IDLE, 2 * HEAD);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_has_not_begun_is_waited_for_and_one_that_stalls_is_not() {
        let activity = Arc::default();
        let mut watch = watch(&activity);
        activity.move_on(100);
        let (mut request, number) = UnderWay::begin(&activity, None);
        assert_eq!(number, 0);
        for _ in 0..10 {
            assert_eq!(look_later(&mut watch).await, None);
        }
        request.answered();
        assert_eq!(look_later(&mut watch).await, None);
        assert_eq!(look_later(&mut watch).await, Some(Cut::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_gets_on_is_never_cut_however_slow() {
        let activity = Arc::default();
        let mut watch = watch(&activity);
        let (mut request, _) = UnderWay::begin(&activity, None);
        request.answered();
        for _ in 0..10 {
            activity.move_on(1);
            assert_eq!(look_later(&mut watch).await, None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_and_goes_for_one_request_is_not_the_head_of_the_next() {
        let activity = Arc::default();
        let mut watch = watch(&activity);
        activity.read(100);
        let (request, _) = UnderWay::begin(&activity, None);
        let body = UnderWay::body(&activity);
        assert_eq!(look_later(&mut watch).await, None);
        // The response has ended, and more of the request comes.
        drop(request);
        for _ in 0..4 {
            activity.read(1);
            assert_eq!(look_later(&mut watch).await, None);
        }
        activity.read(1);
        drop(body);
        activity.move_on(100);
        assert_eq!(look_later(&mut watch).await, None);
        assert_eq!(look_later(&mut watch).await, None);
        assert_eq!(look_later(&mut watch).await, Some(Cut::Idle), "it rests, and is not slow");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_should_have_ended_is_cut_though_bytes_move() {
        let activity = Arc::default();
        let total = Duration::from_secs(10);
        let mut settings = Gateway::default();
        settings.total_timeout = Some(Micros::from_secs(10));
        let mut watch = Watch::new(&activity, &settings, true);
        assert_eq!(watch.pause(), Some(total));
        let (mut request, _) = UnderWay::begin(&activity, Some(moment() + total));
        request.answered();
        activity.move_on(1);
        advance(total / 2).await;
        assert_eq!(watch.look(), None);
        activity.move_on(1);
        advance(total / 2).await;
        assert_eq!(watch.look(), None, "it is told so first");
        advance(LATE_GRACE).await;
        assert_eq!(watch.look(), Some(Cut::Late));
        drop(request);
        assert_eq!(watch.look(), None);
    }
}
