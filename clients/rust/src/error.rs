//! Errors, classified by the outcome of the request: applied, refused, or unknown.

use std::fmt;
use std::time::Duration;

use hyper::HeaderMap;
use serde_json::Value;

/// The outcome of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server applied the request; its response is damaged.
    Applied,
    /// Nothing was applied. Sending the request again is safe.
    Refused,
    /// The request may have been applied. Sent again, it may be applied twice.
    Unknown,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid; nothing was sent.
    Invalid,
    /// The server refused the request for another reason than those below; [`Error::code`] says which.
    Refused,
    /// The token is missing, unknown, expired, or lacks the permission.
    AccessDenied,
    /// The stream does not exist.
    StreamNotFound,
    /// The stream was deleted.
    StreamGone,
    /// The stream was deleted and created again since the reader began.
    StreamReplaced,
    /// The stream exists with another configuration.
    StreamExists,
    /// The stream is closed; [`Error::offset`] is its final offset.
    StreamClosed,
    /// The offset is before the first retained record, which [`Error::retained_offset`] names.
    Trimmed,
    /// The `Stream-Seq` was not greater than the last one.
    SequenceRegression,
    /// The tail, [`Error::offset`], is not where the append demands it.
    ConditionFailed,
    /// A newer run of the producer has taken over, with [`Error::epoch`].
    ProducerFenced,
    /// The server expects the sequence number [`Error::expected`]: it no longer knows the producer.
    ProducerGap,
    /// The sequence number was used for other records.
    ProducerConflict,
    /// No server was reachable or ready, and nothing was applied.
    Unavailable,
    /// The request may have been applied: its response was lost, or said so.
    OutcomeUnknown,
    /// The response lacks required data: check that the URL is that of a server of this protocol.
    AnswerDamaged,
}

/// An error of the client, with what the server said.
#[derive(Clone)]
pub struct Error(Box<Details>);

#[derive(Clone, Debug)]
pub(crate) struct Details {
    pub kind: ErrorKind,
    pub outcome: Outcome,
    pub message: String,
    pub code: String,
    pub status: u16,
    pub request_id: String,
    pub retry_after: Duration,
    pub offset: String,
    pub retained_offset: String,
    pub epoch: u64,
    pub expected: u64,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let outcome = match kind {
            ErrorKind::OutcomeUnknown => Outcome::Unknown,
            ErrorKind::AnswerDamaged => Outcome::Applied,
            _ => Outcome::Refused,
        };
        Self(Box::new(Details {
            kind,
            outcome,
            message: message.into(),
            code: String::new(),
            status: 0,
            request_id: String::new(),
            retry_after: Duration::ZERO,
            offset: String::new(),
            retained_offset: String::new(),
            epoch: 0,
            expected: 0,
        }))
    }

    pub(crate) fn details(&mut self) -> &mut Details {
        &mut self.0
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the request was applied.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// The server's error code, see `docs/errors.md`; empty without one.
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// The message, without code and request id.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The HTTP status; 0 without a response.
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// Identifies the request in the server's log.
    pub fn request_id(&self) -> &str {
        &self.0.request_id
    }

    /// The wait that the server asked for.
    pub fn retry_after(&self) -> Duration {
        self.0.retry_after
    }

    /// The tail of the stream, or the final offset of a closed one.
    pub fn offset(&self) -> &str {
        &self.0.offset
    }

    /// The first retained offset of a trimmed stream.
    pub fn retained_offset(&self) -> &str {
        &self.0.retained_offset
    }

    /// The epoch that fenced a producer.
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// The sequence number that the server expects of a producer.
    pub fn expected(&self) -> u64 {
        self.0.expected
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if !self.0.code.is_empty() {
            write!(f, " [{}]", self.0.code)?;
        }
        if !self.0.request_id.is_empty() {
            write!(f, " (request {})", self.0.request_id)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

/// What an error response says.
pub(crate) struct Told {
    pub code: String,
    pub message: String,
    pub request_id: String,
}

/// Parse an error response of any form.
pub(crate) fn told(status: u16, headers: &HeaderMap, body: &[u8]) -> Told {
    let parsed = serde_json::from_slice::<Value>(body).unwrap_or(Value::Null);
    let text = |name: &str| parsed["error"][name].as_str().map(str::to_owned);
    let code = text("code").unwrap_or_else(|| code_of(status, headers).to_owned());
    let raw: String = String::from_utf8_lossy(body).trim().chars().take(200).collect();
    let message = text("message").unwrap_or_else(|| match (raw.is_empty(), code.as_str()) {
        (true, "NOT_FOUND") => "the stream does not exist; create() creates it".into(),
        (true, "GONE") => "the stream was deleted".into(),
        (true, "UNAUTHORIZED") => "the server requires a token, or does not accept the given one".into(),
        (true, "FORBIDDEN") => "the token does not allow this operation".into(),
        (true, _) => format!("the server responded {status}"),
        (false, _) => format!("the server responded {status}: {raw}"),
    });
    let request_id = text("request_id").unwrap_or_else(|| header(headers, "x-request-id").to_owned());
    Told { code, message, request_id }
}

/// The typed error of a refusal that no retry helps. `what` names the operation.
pub(crate) fn refused(status: u16, headers: &HeaderMap, body: &[u8], what: &str) -> Error {
    let said = told(status, headers, body);
    let mut error = Error::new(kind_of(&said.code), format!("{what}: {}", said.message));
    let details = error.details();
    details.code = said.code;
    details.request_id = said.request_id;
    details.status = status;
    details.retry_after = retry_after(headers);
    details.offset = header(headers, "stream-next-offset").to_owned();
    details.retained_offset = header(headers, "stream-retained-offset").to_owned();
    details.epoch = header(headers, "producer-epoch").parse().unwrap_or(0);
    details.expected = header(headers, "producer-expected-seq").parse().unwrap_or(0);
    error
}

fn kind_of(code: &str) -> ErrorKind {
    match code {
        "UNAUTHORIZED" | "TOKEN_REFUSED" | "TOKEN_IN_URL" | "FORBIDDEN" => ErrorKind::AccessDenied,
        "NOT_FOUND" => ErrorKind::StreamNotFound,
        "GONE" => ErrorKind::StreamGone,
        "STREAM_RECREATED" | "INCARNATION_MISMATCH" => ErrorKind::StreamReplaced,
        "EXISTS_DIFFERENT" | "DELETED_IN_USE" => ErrorKind::StreamExists,
        "STREAM_CLOSED" => ErrorKind::StreamClosed,
        "TRIMMED" => ErrorKind::Trimmed,
        "SEQ_REGRESSION" => ErrorKind::SequenceRegression,
        "PRECONDITION" | "OFFSET_CONFLICT" => ErrorKind::ConditionFailed,
        "PRODUCER_STALE" => ErrorKind::ProducerFenced,
        "PRODUCER_GAP" => ErrorKind::ProducerGap,
        "PRODUCER_CONFLICT" => ErrorKind::ProducerConflict,
        _ => ErrorKind::Refused,
    }
}

/// The error code of a response without one: to HEAD, or from another implementation of the protocol.
fn code_of(status: u16, headers: &HeaderMap) -> &'static str {
    match status {
        409 if headers.contains_key("stream-closed") => "STREAM_CLOSED",
        409 if headers.contains_key("producer-expected-seq") => "PRODUCER_GAP",
        403 if headers.contains_key("producer-epoch") => "PRODUCER_STALE",
        412 if headers.contains_key("etag") => "PRECONDITION",
        410 if headers.contains_key("stream-retained-offset") => "TRIMMED",
        401 => "UNAUTHORIZED",
        403 => "FORBIDDEN",
        404 => "NOT_FOUND",
        410 => "GONE",
        _ => "",
    }
}

/// Retry-After; zero when it is missing or a date.
pub(crate) fn retry_after(headers: &HeaderMap) -> Duration {
    let text = header(headers, "retry-after");
    if text.len() > 6 { Duration::ZERO } else { text.parse().map_or(Duration::ZERO, Duration::from_secs) }
}

/// A header as text; empty when it is missing.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}
