//! One request over one connection to a server.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Uri};
use http::{Method, Request, Response, Version};
use http_body::Body;
use rustix::io::Errno;
use tokio::time::{Duration, timeout};
use tollgate::{Scheme, Target};

use super::body::{Arriving, BoxError, Progress, Sending};
use super::doubt;
use super::pool::{Loan, Upstream, Way};
use super::targets::Targets;
use super::wire::{Lost, Wire};

/// Why there is no response.
pub(super) struct Failed {
    /// Whether nothing of the request was sent.
    pub(super) is_unsent: bool,
    pub(super) why: Trouble,
}

/// What went wrong with a server.
pub(super) enum Trouble {
    /// There is no connection.
    Unreachable(io::Error),
    /// The connection ended before there was a response.
    Broken(BoxError),
    /// There was none in time.
    Late,
    /// The client did not send all of its request.
    Unfinished,
    /// The request stopped half way, and who of the two does not get on is not known.
    Stalled,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "no connection: {error}"),
            Self::Broken(error) => write!(f, "the connection broke: {error}"),
            Self::Late => f.write_str("no response in time"),
            Self::Unfinished => f.write_str("the request did not come to its end"),
            Self::Stalled => f.write_str("the request stopped half way"),
        }
    }
}

impl Failed {
    /// Tells of a server that failed, unless it was the client who did, or we.
    pub(super) fn tell(&self, targets: &Targets, target: &Target) {
        match &self.why {
            Trouble::Unfinished | Trouble::Stalled => {}
            Trouble::Unreachable(error) if is_exhausted(error) => {}
            why => targets.failed(target, why),
        }
    }
}

/// Sends the request that is in `slot` over a connection and waits for the head of the response. If
/// there is none, and the request was not sent or does no harm when it is sent twice, it is back in
/// its place. (It is large, and moving it about costs more than most of what is done to it.)
pub(super) async fn exchange(
    way: Way,
    slot: &mut Option<Request<Sending>>,
    upstream: &Arc<Upstream>,
    patience: Duration,
) -> Result<Response<Arriving>, Failed> {
    match way {
        Way::Wire(wire) => ask(wire, slot, upstream, patience).await,
        // In a box, so that a request that goes the other way needs no room for it.
        Way::Loan(loan) => Box::pin(send(loan, slot, upstream, patience)).await,
    }
}

/// The same for a request that has no body. It does not leave its place, unless it must not be sent again.
async fn ask(
    wire: Wire,
    slot: &mut Option<Request<Sending>>,
    upstream: &Arc<Upstream>,
    patience: Duration,
) -> Result<Response<Arriving>, Failed> {
    let request = slot.as_mut().expect("there is a request to send");
    debug_assert!(matches!(request.body(), Sending::Nothing), "others are sent otherwise");
    address(request, false, &upstream.target);
    measure(request, false);
    let (may_be_sent_again, is_unsent, why) = match timeout(patience, wire.ask(request, upstream))
        .await
    {
        Ok(Ok(response)) => return Ok(response.map(Arriving::Wire)),
        Ok(Err(Lost::Unsent(error))) => (true, true, Trouble::Broken(error.into())),
        Ok(Err(Lost::Unanswered(error))) => {
            (is_safe(request.method()), false, Trouble::Broken(error.into()))
        }
        Ok(Err(Lost::Misanswered(malformed))) => (false, false, Trouble::Broken(malformed.into())),
        Err(_) => (false, false, Trouble::Late),
    };
    if !may_be_sent_again {
        *slot = None;
    }
    Err(Failed { is_unsent, why })
}

/// The same for any request.
async fn send(
    mut loan: Loan,
    slot: &mut Option<Request<Sending>>,
    upstream: &Upstream,
    patience: Duration,
) -> Result<Response<Arriving>, Failed> {
    let request = slot.as_mut().expect("there is a request to send");
    address(request, loan.is_http2(), &upstream.target);
    measure(request, loan.is_http2());
    let spare = Spare::of(request, loan.is_http2());
    let progress = request.body().progress();
    if let Some(progress) = progress.as_ref().filter(|_| loan.is_http2()) {
        progress.keep();
    }
    let request = slot.take().expect("it was there a moment ago");
    let answer = {
        let mut sent = pin!(loan.send(request));
        loop {
            match timeout(patience, sent.as_mut()).await {
                Ok(answer) => break Some(answer),
                // The server may wait for the rest of the request, and so do we.
                Err(_) if progress.as_ref().is_some_and(|it| it.has_moved()) => {}
                Err(_) => break None,
            }
        }
    };
    match answer {
        Some(Ok(response)) => {
            progress.iter().for_each(|it| it.forget());
            if !loan.is_http2()
                && !response.body().is_end_stream()
                && doubt::is_unclear(response.headers())
            {
                let why = Trouble::Broken("where the response ends is not clear".into());
                return Err(Failed { is_unsent: false, why });
            }
            Ok(response.map(|body| Arriving::Over { body, loan, request: progress }))
        }
        Some(Err(_)) if progress.as_ref().is_some_and(|it| it.has_failed()) => {
            Err(Failed { is_unsent: false, why: Trouble::Unfinished })
        }
        Some(Err(mut error)) => {
            let unsent = error.take_message();
            let is_unsent = unsent.is_some();
            let is_unseen = is_unseen(error.error());
            *slot = unsent.or_else(|| spare?.again(progress.as_deref(), is_unseen));
            Err(Failed { is_unsent, why: Trouble::Broken(error.into_error().into()) })
        }
        None => {
            let is_half = progress.is_some_and(|it| !it.has_ended());
            let why = if is_half { Trouble::Stalled } else { Trouble::Late };
            Err(Failed { is_unsent: false, why })
        }
    }
}

/// What is left of a request that was sent, if it may have to be sent again. Its fields are written
/// down, which takes less than half of what a second map of them does.
struct Spare {
    method: Method,
    uri: Uri,
    /// `name:value` in every line; `name;value` if nobody may remember the value.
    fields: Vec<u8>,
    body: Sending,
}

impl Spare {
    /// Of a request with a body that is still to come only if there may be a use for it.
    fn of(request: &Request<Sending>, is_http2: bool) -> Option<Self> {
        let body = match request.body() {
            Sending::Nothing => Sending::Nothing,
            Sending::Again(bytes) => Sending::Again(bytes.clone()),
            Sending::Passing { .. } if is_http2 => Sending::Nothing,
            Sending::Passing { .. } => return None,
        };
        let mut fields = Vec::with_capacity(FIELDS_BYTES);
        for (name, value) in request.headers() {
            fields.extend_from_slice(name.as_str().as_bytes());
            fields.push(if value.is_sensitive() { b';' } else { b':' });
            fields.extend_from_slice(value.as_bytes());
            fields.push(b'\n');
        }
        let (method, uri) = (request.method().clone(), request.uri().clone());
        Some(Self { method, uri, fields, body })
    }

    /// The request once more, if the server has not looked at it, or sending both does no more than
    /// sending one; and its body, if there was one.
    fn again(mut self, progress: Option<&Progress>, is_unseen: bool) -> Option<Request<Sending>> {
        if is_unseen && let Some(progress) = progress {
            self.body = Sending::Again(progress.whole()?);
            return Some(self.into_request());
        }
        let is_all = progress.is_none() && matches!(self.body, Sending::Nothing);
        (is_unseen || is_safe(&self.method) && is_all).then(|| self.into_request())
    }

    fn into_request(self) -> Request<Sending> {
        const WRITTEN: &str = "it was written from one";
        let mut request = Request::new(self.body);
        (*request.method_mut(), *request.uri_mut()) = (self.method, self.uri);
        for line in self.fields.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let end = line.iter().position(|byte| matches!(byte, b':' | b';')).expect(WRITTEN);
            let name = HeaderName::from_bytes(&line[..end]).expect(WRITTEN);
            let mut value = HeaderValue::from_bytes(&line[end + 1..]).expect(WRITTEN);
            value.set_sensitive(line[end] == b';');
            request.headers_mut().append(name, value);
        }
        request
    }
}

/// What the fields of most requests take.
const FIELDS_BYTES: usize = 768;

/// Whether a server says that it has not looked at a request: it ends its connection with those that
/// came before, or has too many.
fn is_unseen(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        let is_left_behind = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (is_left_behind || is_refused)
    })
}

/// Whether sending a request twice does no more than sending it once.
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Says for whom a request is in the way of its version: in a field of its own, or in the URI.
fn address(request: &mut Request<Sending>, is_http2: bool, target: &Target) {
    let path = request.uri().path_and_query().cloned();
    let path = match path {
        None => PathAndQuery::from_static("/"),
        // A path that was left out behind a host cannot be left out here.
        Some(path) if path.as_str().starts_with('?') => {
            let path = PathAndQuery::try_from(format!("/{}", path.as_str()));
            path.expect("a slash may stand before a query")
        }
        Some(path) => path,
    };
    if is_http2 {
        *request.version_mut() = Version::HTTP_2;
        let scheme = if target.scheme() == Scheme::Https { "https" } else { "http" };
        let host = request.headers_mut().remove(HOST);
        let uri = request.uri();
        let is_whole = uri.authority().is_some() && uri.path_and_query() == Some(&path);
        if is_whole && uri.scheme_str() == Some(scheme) {
            return;
        }
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        let host = host.or_else(|| uri.authority().cloned()).unwrap_or_else(|| authority(target));
        let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(path);
        *request.uri_mut() = uri.build().expect("every part was one");
        return;
    }
    *request.version_mut() = Version::HTTP_11;
    if !request.headers().contains_key(HOST) {
        let host = request.uri().authority().cloned().unwrap_or_else(|| authority(target));
        let host = HeaderValue::from_str(host.as_str()).expect("an authority is printable");
        request.headers_mut().insert(HOST, host);
    }
    if request.uri().authority().is_some() {
        *request.uri_mut() = Uri::from(path);
    }
}

/// Says how long a request is, as we know it and not as it was told.
fn measure(request: &mut Request<Sending>, is_http2: bool) {
    let length = request.body().size_hint().exact();
    let is_empty = matches!(request.body(), Sending::Nothing);
    let headers = request.headers_mut();
    headers.remove(TRANSFER_ENCODING);
    match length {
        // Most requests have no body, and say nothing of it.
        Some(_) if is_empty && !headers.contains_key(CONTENT_LENGTH) => {}
        Some(length) => drop(headers.insert(CONTENT_LENGTH, length.into())),
        None => {
            headers.remove(CONTENT_LENGTH);
            if !is_http2 {
                // It would otherwise be taken for granted that a GET has no body.
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
    }
}

fn authority(target: &Target) -> Authority {
    let (host, port) = (target.host(), target.port());
    let text =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    text.parse().expect("a host of a policy is one of an authority")
}

/// Whether an error is ours: there are no more files, or ports, to be had.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_sent_again_is_the_same() {
        let mut secret = HeaderValue::from_static("a;b: c");
        secret.set_sensitive(true);
        let mut request = Request::new(Sending::Nothing);
        *request.method_mut() = Method::HEAD;
        *request.uri_mut() = Uri::from_static("/a?b");
        let headers = request.headers_mut();
        headers.append(HOST, HeaderValue::from_static("a:80"));
        headers.append("x-odd", HeaderValue::from_bytes(b"\xFF:\t;").expect("a value"));
        headers.append("x-odd", HeaderValue::from_static(""));
        headers.append("x-secret", secret);
        let spare = Spare::of(&request, false).expect("it has no body");
        let again = spare.again(None, false).expect("it does no harm");
        assert_eq!((again.method(), again.uri()), (request.method(), request.uri()));
        assert_eq!(again.headers(), request.headers());
        assert!(
            again.headers()["x-secret"].is_sensitive() && !again.headers()[HOST].is_sensitive()
        );
        *request.method_mut() = Method::DELETE;
        let sent = |is_unseen| Spare::of(&request, false).and_then(|it| it.again(None, is_unseen));
        assert!(sent(false).is_none() && sent(true).is_some());
    }
}
