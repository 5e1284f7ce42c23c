//! Requests of a client that name no single stream: appends to many, and short tokens.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::http::{JSON_TYPE, Reply, Request};
use crate::record::encode;
use crate::text::to_base64;

const APPENDS_MAX: usize = 1000; // of one request

/// One append of [`Client::append_many`].
#[derive(Clone, Debug)]
pub struct StreamAppend {
    stream: String,
    members: Vec<(&'static str, String)>, // in JSON
    has_producer: bool,
}

impl StreamAppend {
    /// Values of a JSON stream.
    ///
    /// # Errors
    /// A value is none of JSON.
    pub fn json<T: Serialize>(stream: &str, values: &[T]) -> Result<Self, Error> {
        let texts = values.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(stream, ("records", format!("[{}]", texts.join(",")))))
    }

    /// One record of another stream. Its content type is `application/octet-stream` unless `content_type` says another.
    pub fn bytes(stream: &str, data: impl AsRef<[u8]>) -> Self {
        Self::of(stream, ("base64", format!("\"{}\"", to_base64(data.as_ref()))))
    }

    fn of(stream: &str, member: (&'static str, String)) -> Self {
        Self { stream: stream.to_owned(), members: vec![member], has_producer: false }
    }

    /// The content type of the stream.
    #[must_use]
    pub fn content_type(self, content_type: &str) -> Self {
        self.member("content_type", &Value::from(content_type))
    }

    /// The numbers of a producer: a repeat is not stored again.
    #[must_use]
    pub fn producer(self, id: &str, epoch: u64, seq: u64) -> Self {
        let mut append = self.member("producer", &json!([id, epoch, seq]));
        append.has_producer = true;
        append
    }

    /// Append only if this offset is the tail.
    #[must_use]
    pub fn if_match(self, offset: &str) -> Self {
        self.member("if_match", &Value::from(offset))
    }

    /// Close the stream behind the append.
    #[must_use]
    pub fn close(self) -> Self {
        self.member("close", &Value::from(true))
    }

    fn member(mut self, name: &'static str, value: &Value) -> Self {
        self.members.push((name, value.to_string()));
        self
    }

    fn line(&self) -> String {
        let more: String = self.members.iter().map(|(name, value)| format!(",\"{name}\":{value}")).collect();
        format!("{{\"stream\":{}{more}}}", Value::from(self.stream.as_str()))
    }
}

/// The outcome of one append of many.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppendOutcome {
    /// The status of the same append alone.
    pub status: u16,
    /// The offset behind the append, or the tail.
    pub next_offset: String,
    /// The error code; empty if the records are durable.
    pub code: String,
    /// The message of a refusal.
    pub message: String,
    /// When a retry can help.
    pub retry_after: Option<Duration>,
    /// The append may have been applied.
    pub unknown: bool,
}

impl AppendOutcome {
    fn of(told: &Value) -> Option<Self> {
        let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        Some(Self {
            status: told["status"].as_u64()?.try_into().ok()?,
            next_offset: text("next_offset"),
            code: text("code"),
            message: text("message"),
            retry_after: told["retry_after"].as_u64().map(Duration::from_secs),
            unknown: told["unknown"] == true,
        })
    }
}

/// The streams of a short token.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// One stream.
    Stream(&'a str),
    /// All streams whose names begin so.
    Prefix(&'a str),
}

/// A short token. Its text is a secret, which `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShortToken {
    /// The token.
    pub token: String,
    /// When it ends, in milliseconds since 1970.
    pub expires_ms: u64,
}

impl fmt::Debug for ShortToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShortToken").field("expires_ms", &self.expires_ms).finish_non_exhaustive()
    }
}

impl Client {
    /// Append to up to 1,000 streams. Each append has an outcome; one that is refused does not affect the others. After a
    /// lost response the request is sent again if each append has the numbers of a producer.
    ///
    /// # Errors
    /// There is no append or too many, or the request as a whole failed.
    pub async fn append_many(&self, appends: &[StreamAppend]) -> Result<Vec<AppendOutcome>, Error> {
        let count = appends.len();
        if !(1..=APPENDS_MAX).contains(&count) {
            let why = format!("append_many takes 1 to {APPENDS_MAX} appends, not {count}: call it for each part");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let what = format!("append to {count} streams");
        let body = Bytes::from(appends.iter().map(StreamAppend::line).collect::<Vec<_>>().join("\n"));
        let request = Request::new(Method::POST, "/v1/append".to_owned());
        let request = request.header("content-type", "application/x-ndjson").body(body);
        let repeatable = appends.iter().all(|each| each.has_producer);
        let take = |reply: Reply, _: bool| {
            let told: Vec<Value> = serde_json::from_slice(&reply.body).unwrap_or_default();
            let found: Vec<AppendOutcome> = told.iter().filter_map(AppendOutcome::of).collect();
            let damaged =
                || Error::new(ErrorKind::AnswerDamaged, format!("{what}: the response has not {count} outcomes"));
            if found.len() == count { Ok(found) } else { Err(damaged()) }
        };
        self.transport().send(&request, &what, repeatable, take).await
    }

    /// Mint a short token, as for a web page, as far as this client's own token reaches. `verbs` are of `read`, `append`
    /// and `create`; it ends within the hour.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`]: the client's own token does not have that.
    pub async fn mint_token(
        &self,
        scope: Scope<'_>,
        verbs: &[&str],
        expires_in: Duration,
    ) -> Result<ShortToken, Error> {
        let (name, value) = match scope {
            Scope::Stream(stream) => ("stream", stream),
            Scope::Prefix(prefix) => ("prefix", prefix),
        };
        let body = json!({ name: value, "verbs": verbs, "expires_in_seconds": expires_in.as_secs_f64() }).to_string();
        let request = Request::new(Method::POST, "/v1/tokens/short".to_owned());
        let request = request.header("content-type", JSON_TYPE).body(body);
        let take = |reply: Reply, _: bool| {
            let told: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
            let minted = told["token"].as_str().zip(told["expires_ms"].as_u64());
            let minted = minted.map(|(token, expires_ms)| ShortToken { token: token.to_owned(), expires_ms });
            minted.ok_or_else(|| Error::new(ErrorKind::AnswerDamaged, "mint a token: the response has no token"))
        };
        self.transport().send(&request, "mint a token", true, take).await
    }
}
