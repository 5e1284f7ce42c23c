//! An idempotent producer: it gathers records into batches, and sends each until the server has stored it, once.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::Method;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::client::{Appended, appended};
use crate::error::{Error, ErrorKind, Outcome, header};
use crate::http::{Reply, Request, Transport, stream_target};
use crate::record::{encode, is_json};
use crate::text::drawn_id;

const NUMBER_MAX: u64 = (1 << 53) - 1;
const APPEND_BYTES_MAX: usize = 32 << 20;
const QUEUE: usize = 1 << 16; // records that wait for their batch

/// The identity of a producer, and the limits of its batches.
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    id: Option<String>,
    epoch: Option<u64>,
    batch_bytes: usize,
    batch_records: usize,
    linger: Duration,
    buffer_bytes: usize,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            id: None,
            epoch: None,
            batch_bytes: 1 << 20,
            batch_records: 10_000,
            linger: Duration::from_millis(5),
            buffer_bytes: 16 << 20,
        }
    }
}

impl ProducerOptions {
    /// The name of the producer; without one a unique id. A new run under a name takes the next epoch, which fences the
    /// run before.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The epoch; without it the one after the server's.
    #[must_use]
    pub fn epoch(mut self, epoch: u64) -> Self {
        self.epoch = Some(epoch);
        self
    }

    /// Send a batch when it has so many bytes.
    #[must_use]
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.max(1);
        self
    }

    /// Send a batch when it has so many records.
    #[must_use]
    pub fn batch_records(mut self, records: usize) -> Self {
        self.batch_records = records.max(1);
        self
    }

    /// Send a batch so long after its first record.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// `append` waits while records without a receipt have more bytes.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        self
    }
}

/// How many records a producer has brought to which end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Records that are durable.
    pub applied: u64,
    /// Records that are certainly not stored.
    pub refused: u64,
    /// Records behind the applied ones that may be stored: their response was lost.
    pub unknown: u64,
}

/// The receipt of a record: resolves once its batch is durable. It may be dropped.
#[derive(Debug)]
pub struct Receipt(oneshot::Receiver<Result<Appended, Error>>);

impl Future for Receipt {
    type Output = Result<Appended, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|told| told.unwrap_or_else(|_| Err(ended())))
    }
}

/// Sends records in batches, one after another, so that none overtakes. The first permanent failure ends it: every later
/// call returns that error. A task of the runtime does the work; without `close`, records that were not yet sent when the
/// runtime ends are lost.
pub struct Producer {
    id: String,
    is_json: bool,
    queue: mpsc::Sender<Message>,
    room: Arc<Semaphore>,
    buffer_bytes: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    epoch: Option<u64>,
    counts: Counts,
    failure: Option<Error>,
}

enum Message {
    Record(Record),
    Flush(oneshot::Sender<Result<(), Error>>),
    CloseStream(oneshot::Sender<Result<Appended, Error>>),
}

struct Record {
    data: Bytes,
    at: Instant,
    receipt: oneshot::Sender<Result<Appended, Error>>,
    _room: OwnedSemaphorePermit,
}

impl Producer {
    pub(crate) fn new(
        transport: Arc<Transport>,
        stream: &str,
        content_type: String,
        options: ProducerOptions,
    ) -> Result<Self, Error> {
        if options.epoch.is_some_and(|epoch| epoch > NUMBER_MAX) {
            return Err(Error::new(ErrorKind::Invalid, format!("the epoch is at most {NUMBER_MAX}")));
        }
        let is_named = options.id.is_some();
        let id = options.id.clone().unwrap_or_else(drawn_id);
        let epoch = if is_named { options.epoch } else { Some(options.epoch.unwrap_or(0)) };
        let state = Arc::new(Mutex::new(State { epoch, ..State::default() }));
        let (queue, records) = mpsc::channel(QUEUE);
        let room = Arc::new(Semaphore::new(options.buffer_bytes));
        let buffer_bytes = options.buffer_bytes;
        let sender = Sender {
            is_json: is_json(&content_type),
            transport,
            stream: stream.to_owned(),
            content_type,
            id: id.clone(),
            is_claimed: !is_named,
            is_named,
            next: 0,
            options,
            state: Arc::clone(&state),
        };
        let is_json = sender.is_json;
        tokio::spawn(sender.run(records));
        Ok(Self { id, is_json, queue, room, buffer_bytes, state })
    }

    /// The id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The epoch; none before that of a named producer is known.
    pub fn epoch(&self) -> Option<u64> {
        lock(&self.state).epoch
    }

    /// How many records were brought to which end so far.
    pub fn counts(&self) -> Counts {
        lock(&self.state).counts
    }

    /// Add a value to a batch of a JSON stream. Waits while the buffer is full.
    ///
    /// # Errors
    /// The value is none of JSON, or the producer has failed.
    pub async fn append<T: Serialize + ?Sized>(&self, value: &T) -> Result<Receipt, Error> {
        if !self.is_json {
            return Err(Error::new(ErrorKind::Invalid, "the stream is not JSON: use append_bytes"));
        }
        self.offer(encode(value)?.into()).await
    }

    /// Add a record to a batch of a stream that is not JSON. A batch becomes one record.
    ///
    /// # Errors
    /// The record is empty or too large, or the producer has failed.
    pub async fn append_bytes(&self, data: impl Into<Bytes>) -> Result<Receipt, Error> {
        if self.is_json {
            return Err(Error::new(ErrorKind::Invalid, "the stream is JSON: use append"));
        }
        self.offer(data.into()).await
    }

    async fn offer(&self, data: Bytes) -> Result<Receipt, Error> {
        if data.is_empty() || data.len() + 2 > APPEND_BYTES_MAX {
            let why = format!("a record has 1 to {} bytes, not {}", APPEND_BYTES_MAX - 2, data.len());
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        // one record always fits
        let permits = u32::try_from(data.len().min(self.buffer_bytes)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(permits).await.map_err(|_| ended())?;
        let place = self.queue.reserve().await.map_err(|_| ended())?;
        if let Some(failure) = &lock(&self.state).failure {
            return Err(failure.clone());
        }
        let (receipt, told) = oneshot::channel();
        place.send(Message::Record(Record { data, at: Instant::now(), receipt, _room: room }));
        Ok(Receipt(told))
    }

    /// Wait until all records are durable.
    ///
    /// # Errors
    /// The producer has failed; [`Producer::counts`] says how far it came.
    pub async fn flush(&self) -> Result<(), Error> {
        let (done, told) = oneshot::channel();
        self.queue.send(Message::Flush(done)).await.map_err(|_| ended())?;
        told.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Close the stream behind all records, and wait for that. Idempotent.
    ///
    /// # Errors
    /// The producer has failed.
    pub async fn close_stream(&self) -> Result<Appended, Error> {
        let (done, told) = oneshot::channel();
        self.queue.send(Message::CloseStream(done)).await.map_err(|_| ended())?;
        told.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Wait until all records are durable, and end the producer.
    ///
    /// # Errors
    /// The producer has failed.
    pub async fn close(self) -> Result<Counts, Error> {
        self.flush().await?;
        Ok(self.counts())
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, "the task of the producer has ended with its runtime")
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The task of a producer.
struct Sender {
    transport: Arc<Transport>,
    stream: String,
    content_type: String,
    is_json: bool,
    id: String,
    is_named: bool,
    is_claimed: bool,
    next: u64,
    options: ProducerOptions,
    state: Arc<Mutex<State>>,
}

impl Sender {
    async fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut held = None; // a message behind the last batch
        loop {
            let message = match held.take() {
                Some(message) => message,
                None => match queue.recv().await {
                    Some(message) => message,
                    None => return,
                },
            };
            match message {
                Message::Flush(done) => drop(done.send(self.failure().map_or(Ok(()), Err))),
                Message::CloseStream(done) => drop(done.send(self.close_stream().await)),
                Message::Record(first) => {
                    let (batch, next) = self.gather(first, &mut queue).await;
                    held = next;
                    self.store(batch).await;
                }
            }
        }
    }

    /// Fill a batch, up to its limits or its time.
    async fn gather(&self, first: Record, queue: &mut mpsc::Receiver<Message>) -> (Vec<Record>, Option<Message>) {
        let until = first.at + self.options.linger;
        let mut size = first.data.len() + 2;
        let mut batch = vec![first];
        while batch.len() < self.options.batch_records && size < self.options.batch_bytes {
            let next = match queue.try_recv() {
                Ok(message) => message,
                Err(_) => match timeout_at(until, queue.recv()).await {
                    Ok(Some(message)) => message,
                    _ => break,
                },
            };
            match next {
                Message::Record(record) if size + record.data.len() + 2 <= self.options.batch_bytes => {
                    size += record.data.len() + 2;
                    batch.push(record);
                }
                other => return (batch, Some(other)),
            }
        }
        (batch, None)
    }

    async fn store(&mut self, batch: Vec<Record>) {
        let count = batch.len() as u64;
        let result = match self.failure() {
            Some(failure) => Err(failure),
            None => self.send(self.body(&batch), false).await,
        };
        {
            let mut state = lock(&self.state);
            let counted = match &result {
                Ok(_) => &mut state.counts.applied,
                Err(error) if error.outcome() == Outcome::Refused || state.failure.is_some() => {
                    &mut state.counts.refused
                }
                Err(_) => &mut state.counts.unknown,
            };
            *counted += count;
            if let (Err(error), None) = (&result, &state.failure) {
                state.failure = Some(error.clone());
            }
        }
        for record in batch {
            drop(record.receipt.send(result.clone())); // a receipt may be dropped
        }
    }

    fn body(&self, batch: &[Record]) -> Bytes {
        if !self.is_json {
            return batch
                .iter()
                .fold(BytesMut::new(), |mut body, record| {
                    body.extend_from_slice(&record.data);
                    body
                })
                .freeze();
        }
        let mut body = BytesMut::from("[".as_bytes());
        for (at, record) in batch.iter().enumerate() {
            if at > 0 {
                body.extend_from_slice(b",");
            }
            body.extend_from_slice(&record.data);
        }
        body.extend_from_slice(b"]");
        body.freeze()
    }

    async fn close_stream(&mut self) -> Result<Appended, Error> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        match self.send(Bytes::new(), true).await {
            // whoever closed the stream, it is closed behind all records of this producer
            Err(error) if error.kind() == ErrorKind::StreamClosed => {
                Ok(Appended { offset: error.offset().to_owned(), closed: true, incarnation: String::new() })
            }
            other => other,
        }
    }

    async fn send(&mut self, body: Bytes, closes: bool) -> Result<Appended, Error> {
        if !self.is_claimed {
            let epoch = self.claim().await?;
            lock(&self.state).epoch = Some(epoch);
            self.is_claimed = true;
        }
        let epoch = lock(&self.state).epoch.unwrap_or(0);
        let number = self.next;
        let mut request = self.request(epoch, number, body);
        if closes {
            request = request.header("stream-closed", "true");
        }
        let take = |reply: Reply, perhaps: bool| self.taken(&reply, epoch, number, perhaps || closes);
        let stored = self.transport.send(&request, &self.what(), true, take).await;
        self.next += 1;
        stored.map_err(|error| self.explained(error, epoch, number))
    }

    fn taken(&self, reply: &Reply, epoch: u64, number: u64, perhaps: bool) -> Result<Appended, Error> {
        let stored = header(&reply.headers, "producer-seq");
        let is_later = stored.parse::<u64>().is_ok_and(|stored| stored >= number);
        let is_ours = is_later && header(&reply.headers, "producer-epoch") == epoch.to_string();
        // other implementations of the protocol may omit the numbers
        if !stored.is_empty() && !is_ours {
            return Err(Error::new(
                ErrorKind::AnswerDamaged,
                format!("{}: the response belongs to another append", self.what()),
            ));
        }
        if self.is_named && number == 0 && reply.status == 204 && !perhaps {
            let why = format!(
                "{}: another producer with this id began under epoch {epoch} at the same time; use one id per producer",
                self.what()
            );
            return Err(Error::new(ErrorKind::OutcomeUnknown, why));
        }
        appended(reply)
    }

    fn explained(&self, mut error: Error, epoch: u64, number: u64) -> Error {
        let what = self.what();
        let why = match error.kind() {
            ErrorKind::ProducerFenced => format!("fenced by a newer run of this producer with epoch {}", error.epoch()),
            ErrorKind::ProducerGap => {
                "the server lost the state of this producer; the stream was probably deleted and created again".into()
            }
            ErrorKind::ProducerConflict => {
                format!("epoch {epoch} has other records under sequence {number}; another process writes under this id")
            }
            _ => return error,
        };
        error.details().message = format!("{what}: {why}");
        error
    }

    /// Claim an epoch by a probe that the server refuses, since its sequence leaves a gap: the refusal has the server's epoch.
    async fn claim(&self) -> Result<u64, Error> {
        let given = lock(&self.state).epoch;
        let probe = self.request(
            given.unwrap_or(0),
            NUMBER_MAX,
            Bytes::from_static(if self.is_json { b"[null]" } else { b"?" }),
        );
        let Err(mut error) = self.transport.send(&probe, &self.what(), true, |_, _| Ok(())).await else {
            return Err(Error::new(
                ErrorKind::Refused,
                format!("{}: the server does not store producer sequences", self.what()),
            ));
        };
        match (error.kind(), given) {
            _ if error.code() == "PRODUCER_EPOCH_START" => Ok(given.unwrap_or(0)),
            (ErrorKind::ProducerGap, _) if error.expected() == 0 => Ok(given.unwrap_or(0)),
            (ErrorKind::ProducerGap, None) => Ok(1),
            (ErrorKind::ProducerFenced, None) => Ok(error.epoch() + 1),
            (ErrorKind::ProducerGap, Some(epoch)) => {
                let last = error.expected() - 1;
                error.details().message = format!(
                    "{}: epoch {epoch} was already used up to sequence {last}; pass a higher epoch, or none",
                    self.what()
                );
                Err(error)
            }
            _ => Err(error),
        }
    }

    fn request(&self, epoch: u64, number: u64, body: Bytes) -> Request {
        Request::new(Method::POST, stream_target(&self.stream))
            .header("content-type", &self.content_type)
            .header("producer-id", &self.id)
            .header("producer-epoch", epoch.to_string())
            .header("producer-seq", number.to_string())
            .body(body)
    }

    fn what(&self) -> String {
        format!("producer '{}' of '{}'", self.id, self.stream)
    }

    fn failure(&self) -> Option<Error> {
        lock(&self.state).failure.clone()
    }
}
