//! HTTP: one request run to its end, sent again where that is safe, or failed with a typed error.

use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Error, ErrorKind, Outcome, header, refused, retry_after, told};
use crate::text::{luck, quoted};

const CONNECT: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30); // the server keeps idle connections longer
const SILENCE: Duration = Duration::from_secs(60); // a healthy server sends at least a comment within this period
const LATER: [u16; 7] = [408, 425, 429, 500, 502, 503, 504];
// temporary, but not within a retry period
const NOT_LATER: [&str; 3] = ["PRODUCER_LIMIT", "STREAM_QUOTA", "TOO_MANY_SUBSCRIPTIONS"];

pub(crate) const JSON_TYPE: &str = "application/json";
pub(crate) const RECORDS_TYPE: &str = "application/vnd.polynya.records+json";

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// The policy for temporary failures. The pause doubles from `pause` to `pause_max`, with jitter; a longer Retry-After of
/// the server wins, up to `retry_after_max`. Retries stop `total` after the first failure in a row.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// How long failures in a row are tried again.
    pub total: Duration,
    /// The first pause.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The longest Retry-After that is waited for.
    pub retry_after_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            total: Duration::from_secs(60),
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
            retry_after_max: Duration::from_secs(300),
        }
    }
}

/// Consecutive failures: the pause after each, and when to give up.
pub(crate) struct Backoff {
    retry: Retry,
    since: Option<Instant>,
    times: u32,
}

impl Backoff {
    pub fn new(retry: Retry) -> Self {
        Self { retry, since: None, times: 0 }
    }

    /// Reset after a success.
    pub fn passed(&mut self) {
        self.since = None;
        self.times = 0;
    }

    /// How long to wait after a failure, or none to give up.
    pub fn pause(&mut self, retry_after: Duration) -> Option<Duration> {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let longest = self.retry.pause.saturating_mul(1 << self.times.min(30)).min(self.retry.pause_max);
        self.times += 1;
        let luck = luck();
        let asked = retry_after.min(self.retry.retry_after_max).mul_f64(1.0 + luck / 10.0);
        let pause = longest.mul_f64(0.2 + 0.8 * luck).max(asked);
        (now - since + pause <= self.retry.total).then_some(pause)
    }
}

/// One request. `target` is path and query, percent-encoded.
pub(crate) struct Request {
    pub method: Method,
    pub target: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
}

impl Request {
    pub fn new(method: Method, target: String) -> Self {
        Self { method, target, headers: Vec::new(), body: Bytes::new() }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }
}

/// A complete response.
pub(crate) struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    /// A header that a success must have.
    pub fn required(&self, name: &str, what: &str) -> Result<String, Error> {
        let value = header(&self.headers, name);
        if value.is_empty() {
            let message = format!("{what}: the response lacks {name}; check that the URL is a Durable Streams server");
            let mut error = Error::new(ErrorKind::AnswerDamaged, message);
            error.details().status = self.status;
            return Err(error);
        }
        Ok(value.to_owned())
    }

    pub fn is_true(&self, name: &str) -> bool {
        header(&self.headers, name).eq_ignore_ascii_case("true")
    }
}

/// The last attempt of a request that failed.
pub(crate) enum Failed {
    /// No response, or an incomplete one. `sent`: the server may have received the request.
    Broken { why: String, sent: bool },
    /// A response that is no success.
    Replied(Reply),
}

#[derive(PartialEq, Clone, Copy)]
pub(crate) enum Verdict {
    Nothing,
    Perhaps,
    Never,
}

impl Failed {
    pub fn broken(why: impl Into<String>) -> Self {
        Self::Broken { why: why.into(), sent: true }
    }

    /// The consequence of the failure for the request.
    pub fn verdict(&self) -> Verdict {
        let reply = match self {
            Self::Broken { sent, .. } => return if *sent { Verdict::Perhaps } else { Verdict::Nothing },
            Self::Replied(reply) => reply,
        };
        let outcome = header(&reply.headers, "stream-outcome");
        if !LATER.contains(&reply.status) {
            return if outcome == "unknown" { Verdict::Perhaps } else { Verdict::Never };
        }
        let code = told(reply.status, &reply.headers, &reply.body).code;
        if NOT_LATER.contains(&code.as_str()) {
            Verdict::Never
        } else if outcome == "refused" || reply.status == 425 || reply.status == 429 {
            Verdict::Nothing
        } else {
            Verdict::Perhaps
        }
    }

    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Broken { .. } => Duration::ZERO,
            Self::Replied(reply) => retry_after(&reply.headers),
        }
    }

    /// The error when retries end. `perhaps`: an attempt may have been applied.
    pub fn error(&self, what: &str, perhaps: bool) -> Error {
        let kind = if perhaps { ErrorKind::OutcomeUnknown } else { ErrorKind::Unavailable };
        match self {
            Self::Broken { why, sent } => {
                let how = if *sent { "no response" } else { "the server is unreachable" };
                Error::new(kind, format!("{what}: {how}: {why}"))
            }
            Self::Replied(reply) => {
                let mut error = self.refusal(reply, what);
                error.details().kind = kind;
                error.details().outcome = if perhaps { Outcome::Unknown } else { Outcome::Refused };
                error
            }
        }
    }

    fn refusal(&self, reply: &Reply, what: &str) -> Error {
        refused(reply.status, &reply.headers, &reply.body, what)
    }
}

/// A response whose body is read in pieces.
pub(crate) struct Opened {
    pub headers: HeaderMap,
    body: Incoming,
}

impl Opened {
    /// The next bytes; none at the end. Cancelling a wait loses nothing.
    pub async fn read(&mut self) -> Result<Option<Bytes>, Failed> {
        loop {
            match timeout(SILENCE, self.body.frame()).await {
                Err(_) => return Err(Failed::broken(format!("no byte in {} s", SILENCE.as_secs()))),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Failed::broken(reasons(&error))),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

pub(crate) struct Transport {
    pool: Pool<Connector, Full<Bytes>>,
    servers: Vec<String>,
    server: AtomicUsize,
    token: RwLock<Option<HeaderValue>>,
    pub retry: Retry,
}

impl Transport {
    pub fn new(servers: &str, token: Option<&str>, retry: Retry, root_pem: Option<&[u8]>) -> Result<Self, Error> {
        let servers = servers.split(',').map(server_of).collect::<Result<Vec<_>, _>>()?;
        let connector = connector(&servers, root_pem)?;
        let pool =
            Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build(connector);
        let made = Self { pool, servers, server: AtomicUsize::new(0), token: RwLock::new(None), retry };
        made.set_token(token)?;
        Ok(made)
    }

    pub fn set_token(&self, token: Option<&str>) -> Result<(), Error> {
        let value = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        let mut value =
            value.map_err(|_| Error::new(ErrorKind::Invalid, "the token has characters that a header cannot carry"))?;
        if let Some(value) = &mut value {
            value.set_sensitive(true);
        }
        *self.token.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = value;
        Ok(())
    }

    /// Send a request until it succeeds, and return what `take` makes of the reply; it is told whether an earlier attempt
    /// may have been applied. A damaged reply is a failed attempt.
    pub async fn send<T>(
        &self,
        request: &Request,
        what: &str,
        repeatable: bool,
        mut take: impl FnMut(Reply, bool) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut backoff = Backoff::new(self.retry);
        let reads = request.method == Method::GET || request.method == Method::HEAD;
        let mut perhaps = false;
        loop {
            let mut damage = None;
            let failed = match self.attempt(request).await? {
                Ok(reply) => match take(reply, perhaps) {
                    Err(error) if error.kind() == ErrorKind::AnswerDamaged => {
                        let why = error.message().to_owned();
                        damage = Some(error);
                        Failed::broken(why)
                    }
                    done => return done,
                },
                Err(failed) => failed,
            };
            let verdict = failed.verdict();
            if let (Verdict::Never, Failed::Replied(reply)) = (verdict, &failed) {
                let mut error = refused(reply.status, &reply.headers, &reply.body, what);
                if perhaps && !reads {
                    error.details().outcome = Outcome::Unknown;
                }
                return Err(error);
            }
            perhaps |= verdict == Verdict::Perhaps;
            let pause = if repeatable || !perhaps { backoff.pause(failed.retry_after()) } else { None };
            match pause {
                Some(pause) => sleep(pause).await,
                None => return Err(damage.unwrap_or_else(|| failed.error(what, perhaps && !reads))),
            }
        }
    }

    async fn attempt(&self, request: &Request) -> Result<Result<Reply, Failed>, Error> {
        let (status, opened) = match self.open_any(request).await? {
            Ok(opened) => opened,
            Err(failed) => return Ok(Err(failed)),
        };
        Ok(match whole(status, opened).await {
            Ok(reply) if (200..300).contains(&status) || status == 304 => Ok(reply),
            Ok(reply) => {
                if status == 503 {
                    self.next_server();
                }
                Err(Failed::Replied(reply))
            }
            Err(failed) => Err(failed),
        })
    }

    /// Send a request once. A status other than 200 is read to its end.
    pub async fn open(&self, request: &Request) -> Result<Result<Opened, Failed>, Error> {
        Ok(match self.open_any(request).await? {
            Ok((200, opened)) => Ok(opened),
            Ok((status, opened)) => Err(whole(status, opened).await.map_or_else(|failed| failed, Failed::Replied)),
            Err(failed) => Err(failed),
        })
    }

    async fn open_any(&self, request: &Request) -> Result<Result<(u16, Opened), Failed>, Error> {
        let server = &self.servers[self.server.load(Ordering::Relaxed) % self.servers.len()];
        let sent = timeout(SILENCE, self.pool.request(self.built(server, request)?)).await;
        Ok(match sent {
            Ok(Ok(response)) => {
                let (head, body) = response.into_parts();
                Ok((head.status.as_u16(), Opened { headers: head.headers, body }))
            }
            Ok(Err(error)) => {
                self.next_server();
                Err(Failed::Broken { why: format!("{} ({server})", reasons(&error)), sent: !error.is_connect() })
            }
            Err(_) => Err(Failed::broken(format!("no byte in {} s ({server})", SILENCE.as_secs()))),
        })
    }

    fn built(&self, server: &str, request: &Request) -> Result<hyper::Request<Full<Bytes>>, Error> {
        let invalid =
            |error: &dyn std::fmt::Display| Error::new(ErrorKind::Invalid, format!("{}: {error}", request.target));
        let uri: Uri = format!("{server}{}", request.target).parse().map_err(|error| invalid(&error))?;
        let mut built = hyper::Request::new(Full::new(request.body.clone()));
        *built.method_mut() = request.method.clone();
        *built.uri_mut() = uri;
        let headers = built.headers_mut();
        headers.insert("accept", HeaderValue::from_static("*/*"));
        headers.insert("user-agent", HeaderValue::from_static(concat!("polynya-rust/", env!("CARGO_PKG_VERSION"))));
        for (name, value) in &request.headers {
            let value = HeaderValue::try_from(value.as_str()).map_err(|error| invalid(&error))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        if let Some(token) = &*self.token.read().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            headers.insert(AUTHORIZATION, token.clone());
        }
        Ok(built)
    }

    fn next_server(&self) {
        self.server.fetch_add(1, Ordering::Relaxed);
    }
}

async fn whole(status: u16, mut opened: Opened) -> Result<Reply, Failed> {
    let mut body = BytesMut::new();
    while let Some(piece) = opened.read().await? {
        body.extend_from_slice(&piece);
    }
    Ok(Reply { status, headers: opened.headers, body: body.freeze() })
}

/// An error with its causes.
fn reasons(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        said.push_str(": ");
        said.push_str(&inner.to_string());
        cause = inner.source();
    }
    said
}

fn server_of(text: &str) -> Result<String, Error> {
    let text = text.trim().trim_end_matches('/');
    let wrong = || {
        Error::new(
            ErrorKind::Invalid,
            format!("{text:?} is not a server's URL; expected a form like http://127.0.0.1:4437"),
        )
    };
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    match (uri.scheme_str(), uri.host(), uri.query()) {
        (Some("http"), Some(_), None) => Ok(text.to_owned()),
        (Some("https"), Some(_), None) if cfg!(feature = "tls") => Ok(text.to_owned()),
        (Some("https"), Some(_), None) => {
            Err(Error::new(ErrorKind::Invalid, format!("{text:?} needs the feature tls of the crate polynya")))
        }
        _ => Err(wrong()),
    }
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_nodelay(true);
    connector.enforce_http(false);
    connector
}

#[cfg(not(feature = "tls"))]
fn connector(_servers: &[String], root_pem: Option<&[u8]>) -> Result<Connector, Error> {
    match root_pem {
        None => Ok(tcp()),
        Some(_) => Err(Error::new(ErrorKind::Invalid, "certificates need the feature tls of the crate polynya")),
    }
}

#[cfg(feature = "tls")]
fn connector(servers: &[String], root_pem: Option<&[u8]>) -> Result<Connector, Error> {
    crate::tls::connector(tcp(), root_pem, servers.iter().any(|server| server.starts_with("https:")))
}

/// The path of a stream. Segments of dots are encoded, so that the server refuses them.
pub(crate) fn stream_target(name: &str) -> String {
    let segments = name.split('/').map(|segment| match segment {
        "." | ".." => segment.replace('.', "%2E"),
        _ => quoted(segment, ""),
    });
    format!("/v1/stream/{}", segments.collect::<Vec<_>>().join("/"))
}
