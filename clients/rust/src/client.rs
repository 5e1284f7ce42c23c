//! The client and its streams.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hyper::Method;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, ErrorKind, header};
use crate::http::{JSON_TYPE, RECORDS_TYPE, Reply, Request, Retry, Transport, stream_target};
use crate::live::{ManyOptions, ManyReader};
use crate::producer::{Producer, ProducerOptions};
use crate::reader::{ReadOptions, Reader, content_type};
use crate::record::{NewRecord, encode_all};

/// A client of one server, or of the nodes of a cluster. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    transport: Arc<Transport>,
}

/// Settings of a client.
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    servers: String,
    token: Option<String>,
    retry: Retry,
    root_pem: Option<Vec<u8>>,
}

impl ClientBuilder {
    /// Send this access token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The policy for temporary failures.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Trust these certificates, in PEM, instead of those of the system: authorities, or those of servers themselves.
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_pem = Some(pem.into());
        self
    }

    /// Make the client. It sends no request.
    ///
    /// # Errors
    /// A server is not a URL, or the token or the certificates cannot be used.
    pub fn build(self) -> Result<Client, Error> {
        let transport = Transport::new(&self.servers, self.token.as_deref(), self.retry, self.root_pem.as_deref())?;
        Ok(Client { transport: Arc::new(transport) })
    }
}

impl Client {
    /// A client without a token. `servers` is a URL, or several with commas.
    ///
    /// # Errors
    /// A server is not a URL.
    pub fn new(servers: &str) -> Result<Self, Error> {
        Self::builder(servers).build()
    }

    /// Settings of a client. `servers` is a URL, or several with commas.
    pub fn builder(servers: &str) -> ClientBuilder {
        ClientBuilder { servers: servers.to_owned(), ..ClientBuilder::default() }
    }

    /// Send another token from now on, such as a new short one.
    ///
    /// # Errors
    /// The token has characters that a header cannot carry.
    pub fn set_token(&self, token: &str) -> Result<(), Error> {
        self.transport.set_token(Some(token))
    }

    /// A stream, without a request.
    pub fn stream(&self, name: &str) -> Stream {
        Stream { transport: Arc::clone(&self.transport), name: name.to_owned(), content_type: Arc::default() }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Follow many streams on one connection: names, or one pattern (`runs/*`), or one prefix that ends with a slash.
    ///
    /// # Errors
    /// There is no name, or a pattern beside others.
    pub fn tail_many<S: AsRef<str>>(&self, streams: &[S], options: ManyOptions) -> Result<ManyReader, Error> {
        let names: Vec<&str> = streams.iter().map(AsRef::as_ref).collect();
        ManyReader::new(Arc::clone(&self.transport), &names, options)
    }
}

/// The result of a durable append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// The offset behind the append; of a repeat, the tail.
    pub offset: String,
    /// The stream is closed.
    pub closed: bool,
    /// The incarnation of the stream.
    pub incarnation: String,
}

/// The properties of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// The content type.
    pub content_type: String,
    /// The tail.
    pub offset: String,
    /// The stream is closed.
    pub closed: bool,
    /// The incarnation of the stream.
    pub incarnation: String,
    /// The first retained record, if older ones were trimmed.
    pub retained_offset: Option<String>,
}

/// One append: its body and its conditions.
#[derive(Clone, Debug)]
pub struct Append {
    body: Bytes,
    content_type: Option<&'static str>,
    headers: Vec<(&'static str, String)>,
    repeatable: bool,
}

impl Append {
    /// Values of a JSON stream.
    ///
    /// # Errors
    /// There is no value, or one that is none of JSON.
    pub fn json<T: Serialize>(values: &[T]) -> Result<Self, Error> {
        Ok(Self::of(encode_all(values)?, Some(JSON_TYPE)))
    }

    /// One record of another stream.
    pub fn bytes(data: impl Into<Bytes>) -> Self {
        Self::of(data.into(), None)
    }

    /// Records with keys, headers and times.
    pub fn records(records: &[NewRecord]) -> Self {
        let rows: Vec<String> = records.iter().map(NewRecord::row).collect();
        Self::of(format!("[{}]", rows.join(",")).into(), Some(RECORDS_TYPE))
    }

    fn of(body: Bytes, content_type: Option<&'static str>) -> Self {
        Self { body, content_type, headers: Vec::new(), repeatable: false }
    }

    /// Append only if this offset is the tail; else [`ErrorKind::ConditionFailed`].
    #[must_use]
    pub fn if_match(self, offset: &str) -> Self {
        self.header("if-match", format!("\"{offset}\""))
    }

    /// `Stream-Seq`: must be greater, as text, than that of the last append.
    #[must_use]
    pub fn sequence(self, sequence: &str) -> Self {
        self.header("stream-seq", sequence.to_owned())
    }

    /// The numbers of a producer: a repeat is not stored again, so retries are safe.
    #[must_use]
    pub fn producer(self, id: &str, epoch: u64, seq: u64) -> Self {
        let mut append = self.header("producer-id", id.to_owned());
        append.repeatable = true;
        append.header("producer-epoch", epoch.to_string()).header("producer-seq", seq.to_string())
    }

    /// Close the stream in the same request.
    #[must_use]
    pub fn close(self) -> Self {
        self.header("stream-closed", "true".to_owned())
    }

    fn header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// One stream. Clones are cheap.
#[derive(Clone)]
pub struct Stream {
    transport: Arc<Transport>,
    name: String,
    content_type: Arc<Mutex<Option<String>>>,
}

impl Stream {
    /// The name of the stream.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The stream with a content type that is known. This saves a request, which a token without `read` may not send.
    #[must_use]
    pub fn with_content_type(self, content_type: &str) -> Self {
        self.learn(content_type);
        self
    }

    /// Create the stream with a content type, `application/json` for records of JSON. One that has it already is no error.
    ///
    /// # Errors
    /// [`ErrorKind::StreamExists`]: the stream has other settings.
    pub async fn create(&self, content_type: &str) -> Result<(), Error> {
        let request = Request::new(Method::PUT, stream_target(&self.name)).header("content-type", content_type);
        let what = format!("create '{}'", self.name);
        self.transport.send(&request, &what, true, |reply, _| reply.required("stream-next-offset", &what)).await?;
        self.learn(content_type);
        Ok(())
    }

    /// Append values to a JSON stream, atomically, and wait until they are durable.
    ///
    /// # Errors
    /// See [`Stream::send`].
    pub async fn append<T: Serialize>(&self, values: &[T]) -> Result<Appended, Error> {
        self.send(Append::json(values)?).await
    }

    /// Append one record to a stream that is not JSON, and wait until it is durable.
    ///
    /// # Errors
    /// See [`Stream::send`].
    pub async fn append_bytes(&self, data: impl Into<Bytes>) -> Result<Appended, Error> {
        self.send(Append::bytes(data)).await
    }

    /// Send an append. Without the numbers of a producer it is sent again only while certainly nothing was applied.
    ///
    /// # Errors
    /// A refusal, [`ErrorKind::Unavailable`], or [`ErrorKind::OutcomeUnknown`] when a response was lost.
    pub async fn send(&self, append: Append) -> Result<Appended, Error> {
        let content_type = match append.content_type {
            Some(known) => known.to_owned(),
            None => self.content_type().await?,
        };
        let mut request = Request::new(Method::POST, stream_target(&self.name))
            .header("content-type", content_type)
            .body(append.body);
        request.headers.extend(append.headers);
        let what = format!("append to '{}'", self.name);
        self.transport.send(&request, &what, append.repeatable, |reply, _| appended(&reply)).await
    }

    /// An idempotent producer: it gathers records into batches, and sends each until it is stored, once.
    ///
    /// # Errors
    /// The stream does not exist, or the options are invalid.
    pub async fn producer(&self, options: ProducerOptions) -> Result<Producer, Error> {
        let content_type = self.content_type().await?;
        Producer::new(Arc::clone(&self.transport), &self.name, content_type, options)
    }

    /// Read up to the present tail.
    pub fn read(&self, options: ReadOptions) -> Reader {
        Reader::new(Arc::clone(&self.transport), &self.name, false, options)
    }

    /// Read, and follow until the stream is closed. Resumes after lost connections and restarts of the server.
    pub fn tail(&self, options: ReadOptions) -> Reader {
        Reader::new(Arc::clone(&self.transport), &self.name, true, options)
    }

    /// The properties of the stream, and its tail.
    ///
    /// # Errors
    /// [`ErrorKind::StreamNotFound`], [`ErrorKind::StreamGone`].
    pub async fn head(&self) -> Result<Facts, Error> {
        let request = Request::new(Method::HEAD, stream_target(&self.name));
        let what = format!("head of '{}'", self.name);
        let take = |reply: Reply, _: bool| {
            let retained = header(&reply.headers, "stream-retained-offset");
            Ok(Facts {
                content_type: reply.required("content-type", &what)?,
                offset: reply.required("stream-next-offset", &what)?,
                closed: reply.is_true("stream-closed"),
                incarnation: header(&reply.headers, "stream-incarnation").to_owned(),
                retained_offset: (!retained.is_empty()).then(|| retained.to_owned()),
            })
        };
        let facts = self.transport.send(&request, &what, true, take).await?;
        self.learn(&facts.content_type);
        Ok(facts)
    }

    /// Close the stream: it accepts no more appends, and readers reach its end.
    ///
    /// # Errors
    /// [`ErrorKind::StreamNotFound`] and other refusals.
    pub async fn close(&self) -> Result<Appended, Error> {
        let request = Request::new(Method::POST, stream_target(&self.name)).header("stream-closed", "true");
        self.transport.send(&request, &format!("close '{}'", self.name), true, |reply, _| appended(&reply)).await
    }

    /// Delete the stream. Returns false if it was missing.
    ///
    /// # Errors
    /// A refusal, or a server that does not come back.
    pub async fn delete(&self) -> Result<bool, Error> {
        let request = Request::new(Method::DELETE, stream_target(&self.name));
        let deleted = self.transport.send(&request, &format!("delete '{}'", self.name), true, |_, _| Ok(true)).await;
        match deleted {
            // an attempt whose response was lost may have deleted it
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound | ErrorKind::StreamGone) => {
                Ok(error.outcome() == crate::Outcome::Unknown)
            }
            other => other,
        }
    }

    /// Delete the records before an offset, and return the first retained one.
    ///
    /// # Errors
    /// A refusal, or a server that does not come back.
    pub async fn trim(&self, before: &str) -> Result<String, Error> {
        let body = serde_json::json!({ "before": before }).to_string();
        let target = format!("{}/retention", stream_target(&self.name));
        let request = Request::new(Method::POST, target).header("content-type", JSON_TYPE).body(body);
        let what = format!("trim '{}'", self.name);
        let take = |reply: Reply, _: bool| {
            let told: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
            let retained = told["retained_offset"].as_str().map(str::to_owned);
            retained.ok_or_else(|| {
                Error::new(ErrorKind::AnswerDamaged, format!("{what}: the response does not report what was trimmed"))
            })
        };
        self.transport.send(&request, &what, true, take).await
    }

    async fn content_type(&self) -> Result<String, Error> {
        if let Some(known) = self.content_type.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone() {
            return Ok(known);
        }
        let found = content_type(&self.transport, &self.name).await?;
        self.learn(&found);
        Ok(found)
    }

    fn learn(&self, content_type: &str) {
        *self.content_type.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(content_type.to_owned());
    }
}

/// The result of an append.
pub(crate) fn appended(reply: &Reply) -> Result<Appended, Error> {
    Ok(Appended {
        offset: reply.required("stream-next-offset", "append")?,
        closed: reply.is_true("stream-closed"),
        incarnation: header(&reply.headers, "stream-incarnation").to_owned(),
    })
}
