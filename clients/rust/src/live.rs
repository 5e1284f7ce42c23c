//! Many streams on one connection: every record of each stream once and in order.
//!
//! A reader goes on with the id of its last event. When no node has that cursor any more, it goes on with the offset of
//! each stream.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Method};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use crate::error::{Error, ErrorKind, refused};
use crate::http::{Backoff, Failed, JSON_TYPE, Opened, RECORDS_TYPE, Request, Transport, Verdict};
use crate::reader::{NOW, START};
use crate::record::{Page, Record, is_json};
use crate::sse::{Event, EventParser};
use crate::text::{from_base64, parse_offset, query};

const STREAMS_MAX: usize = 1000; // that a request can name

/// Where a reader of many streams begins, and what it reads.
#[derive(Clone, Debug, Default)]
pub struct ManyOptions {
    offsets: BTreeMap<String, String>,
    from_now: bool,
    local: bool,
    whole: bool,
}

impl ManyOptions {
    /// Where single streams begin: [`ManyReader::offsets`] of an earlier reader.
    #[must_use]
    pub fn offsets(mut self, offsets: &BTreeMap<String, String>) -> Self {
        self.offsets = offsets.clone();
        self
    }

    /// Begin other streams at their tails instead of their starts.
    #[must_use]
    pub fn from_now(mut self) -> Self {
        self.from_now = true;
        self
    }

    /// Read the contacted node's copy, which may be stale.
    #[must_use]
    pub fn local(mut self) -> Self {
        self.local = true;
        self
    }

    /// Read records with their keys, headers and times.
    #[must_use]
    pub fn whole_records(mut self) -> Self {
        self.whole = true;
        self
    }
}

/// An event of one of many streams. Its page may be empty.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ManyEvent {
    /// The records, and where the stream is behind them.
    pub page: Page,
    /// The stream joined.
    pub began: bool,
    /// The stream was deleted.
    pub deleted: bool,
    /// Records before the page were deleted.
    pub trimmed: bool,
    /// Why the stream cannot be read, after its code; empty if it can.
    pub error: String,
}

/// Reads the records of many streams. A reader of a list ends when all its streams have ended; one of a pattern or a
/// prefix has no end. Dropping the future of `next` or `next_event` loses nothing: the next call goes on.
pub struct ManyReader {
    transport: Arc<Transport>,
    place: Place,
    connection: Option<(Opened, EventParser)>,
    events: VecDeque<Event>,
    backoff: Backoff,
    pause_until: Option<Instant>,
    waiting: VecDeque<Record>,
    event: Option<ManyEvent>, // of the waiting records
    offsets: BTreeMap<String, String>,
}

impl ManyReader {
    pub(crate) fn new(transport: Arc<Transport>, streams: &[&str], options: ManyOptions) -> Result<Self, Error> {
        let offsets = options.offsets.clone();
        let place = Place::new(streams, options)?;
        Ok(Self {
            backoff: Backoff::new(transport.retry),
            transport,
            place,
            connection: None,
            events: VecDeque::new(),
            pause_until: None,
            waiting: VecDeque::new(),
            event: None,
            offsets,
        })
    }

    /// Where each stream is, behind the last record that `next` has returned.
    pub fn offsets(&self) -> &BTreeMap<String, String> {
        &self.offsets
    }

    /// Every stream has been read up to its tail once.
    pub fn is_up_to_date(&self) -> bool {
        self.place.up_to_date && self.waiting.is_empty()
    }

    /// The next record; none when all streams of a list have ended.
    ///
    /// # Errors
    /// A refusal, or a server that does not come back.
    pub async fn next(&mut self) -> Result<Option<Record>, Error> {
        loop {
            if let Some(record) = self.waiting.pop_front() {
                match self.event.take_if(|_| self.waiting.is_empty()) {
                    Some(event) => self.passed(&event),
                    None => drop(self.offsets.insert(record.stream.clone(), record.offset.clone())),
                }
                return Ok(Some(record));
            }
            let Some(event) = self.fetch().await? else { return Ok(None) };
            self.waiting = event.page.records()?.into();
            if self.waiting.is_empty() {
                self.passed(&event);
            } else {
                self.event = Some(event);
            }
        }
    }

    /// The next event, which also tells of streams that began, ended, or were deleted.
    ///
    /// # Errors
    /// As `next`.
    pub async fn next_event(&mut self) -> Result<Option<ManyEvent>, Error> {
        let event = self.fetch().await?;
        if let Some(event) = &event {
            self.passed(event);
        }
        Ok(event)
    }

    fn passed(&mut self, event: &ManyEvent) {
        if event.deleted {
            self.offsets.remove(&event.page.stream);
        } else if !event.page.offset.is_empty() {
            self.offsets.insert(event.page.stream.clone(), event.page.offset.clone());
        }
    }

    async fn fetch(&mut self) -> Result<Option<ManyEvent>, Error> {
        loop {
            if let Some(event) = self.events.pop_front() {
                match self.taken(&event)? {
                    Some(told) => return Ok(Some(told)),
                    None => continue,
                }
            }
            if self.place.is_over() {
                return Ok(None);
            }
            if let Some(until) = self.pause_until {
                sleep_until(until).await;
                self.pause_until = None;
            }
            let Some((opened, parser)) = &mut self.connection else {
                match self.transport.open(&self.place.request()).await? {
                    Ok(opened) => self.connection = Some((opened, EventParser::default())),
                    Err(failed) => self.broken(failed)?,
                }
                continue;
            };
            match opened.read().await {
                Ok(Some(piece)) => match parser.feed(&piece) {
                    Some(events) => self.events.extend(events),
                    None => self.broken(Failed::broken("an event is too large"))?,
                },
                Ok(None) => self.broken(Failed::broken("the connection ended"))?,
                Err(failed) => self.broken(failed)?,
            }
        }
    }

    fn taken(&mut self, event: &Event) -> Result<Option<ManyEvent>, Error> {
        if event.name == "error" {
            let error = refused(410, &HeaderMap::new(), event.data.as_bytes(), &self.place.what());
            self.events.clear();
            if error.code() != "CURSOR_GONE" {
                self.broken(Failed::broken(error.message()))?;
            } else {
                self.place.lose_cursor(error)?;
                self.connection = None;
            }
            return Ok(None);
        }
        self.backoff.passed();
        match self.place.take(event) {
            Ok(told) => Ok(told),
            Err(why) => {
                self.events.clear();
                self.broken(Failed::broken(why))?;
                Ok(None)
            }
        }
    }

    fn broken(&mut self, failed: Failed) -> Result<(), Error> {
        self.connection = None;
        if let (Verdict::Never, Failed::Replied(reply)) = (failed.verdict(), &failed) {
            let error = refused(reply.status, &reply.headers, &reply.body, &self.place.what());
            return if error.code() == "CURSOR_GONE" { self.place.lose_cursor(error) } else { Err(error) };
        }
        match self.backoff.pause(failed.retry_after()) {
            Some(pause) => self.pause_until = Some(Instant::now() + pause),
            None => return Err(failed.error(&self.place.what(), false)),
        }
        Ok(())
    }
}

/// Where a reader of many streams is.
struct Place {
    covering: Option<String>,
    names: Vec<String>,
    options: ManyOptions,
    read: BTreeMap<String, String>, // up to where events came
    types: BTreeMap<String, String>,
    ended: BTreeSet<String>,
    cursor: String,
    has_begun: bool,
    up_to_date: bool,
}

impl Place {
    fn new(streams: &[&str], options: ManyOptions) -> Result<Self, Error> {
        let covering = streams.iter().find(|name| is_covering(name)).map(|name| (*name).to_owned());
        if streams.is_empty() || (covering.is_some() && streams.len() > 1) {
            let why =
                "pass the names of streams, or one pattern such as 'runs/*', or one prefix that ends with a slash";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let names: BTreeSet<&str> =
            if covering.is_some() { BTreeSet::new() } else { streams.iter().copied().collect() };
        Ok(Self {
            covering,
            names: names.into_iter().map(str::to_owned).collect(),
            read: options.offsets.clone(),
            options,
            types: BTreeMap::new(),
            ended: BTreeSet::new(),
            cursor: String::new(),
            has_begun: false,
            up_to_date: false,
        })
    }

    fn what(&self) -> String {
        format!("tail '{}'", self.covering.clone().unwrap_or_else(|| self.names[..self.names.len().min(3)].join(", ")))
    }

    fn is_over(&self) -> bool {
        self.covering.is_none() && self.names.iter().all(|name| self.ended.contains(name))
    }

    fn request(&self) -> Request {
        let begin = if self.options.from_now && !self.has_begun { NOW } else { START };
        let mut parameters = vec![("offset".to_owned(), begin.to_owned())];
        if let Some(covering) = &self.covering {
            let name = if covering.ends_with('/') { "prefix" } else { "match" };
            parameters.push((name.to_owned(), covering.clone()));
        }
        if self.options.local {
            parameters.push(("consistency".to_owned(), "local".to_owned()));
        }
        parameters.extend(self.listed().into_iter().map(|each| ("stream".to_owned(), each)));
        let form = if self.options.whole { RECORDS_TYPE } else { "*/*" };
        let request = Request::new(Method::GET, format!("/v1/live{}", query(&parameters)))
            .header("accept", format!("text/event-stream, {form}"));
        if self.cursor.is_empty() { request } else { request.header("last-event-id", &self.cursor) }
    }

    fn listed(&self) -> Vec<String> {
        let place = |name: &String| if self.cursor.is_empty() { self.read.get(name) } else { None };
        let at = |name: &String| place(name).map_or_else(|| name.clone(), |offset| format!("{name}@{}", short(offset)));
        match (&self.covering, self.cursor.is_empty()) {
            (None, _) => self.names.iter().map(at).collect(),
            (Some(_), true) => self.read.keys().map(at).collect(),
            (Some(_), false) => Vec::new(),
        }
    }

    /// Go on with the offsets; the error, if a request cannot name all streams.
    fn lose_cursor(&mut self, error: Error) -> Result<(), Error> {
        if self.cursor.is_empty() || self.read.len() > STREAMS_MAX {
            return Err(error);
        }
        self.cursor.clear();
        Ok(())
    }

    /// Move past an event; none if it is none of a stream, or a repeat. An error says why the connection is damaged.
    fn take(&mut self, event: &Event) -> Result<Option<ManyEvent>, String> {
        if event.name != "data" && event.name != "control" {
            return Ok(None);
        }
        let told: BTreeMap<String, &RawValue> =
            serde_json::from_str(&event.data).map_err(|error| format!("an event is not JSON: {error}"))?;
        let value = |name: &str| {
            told.get(name).and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok()).unwrap_or(Value::Null)
        };
        if !event.id.is_empty() {
            event.id.clone_into(&mut self.cursor);
        }
        self.has_begun = true;
        let Some(name) = value("stream").as_str().map(str::to_owned) else {
            self.up_to_date = true;
            return Ok(None);
        };
        let content_type = value("contentType").as_str().map(str::to_owned);
        if let Some(content_type) = &content_type {
            self.types.insert(name.clone(), content_type.clone());
        }
        let begin = self.read.get(&name).cloned().unwrap_or_default();
        let offset = value("streamNextOffset").as_str().map_or_else(|| begin.clone(), str::to_owned);
        let (body, form) = self.payload(&told, &name)?;
        if !body.is_empty() && !begin.is_empty() && parse_offset(&offset).is_some() && offset <= begin {
            return Ok(None);
        }
        let (deleted, closed) = (value("streamDeleted") == true, value("streamClosed") == true);
        let error = value("error");
        let is_missing = error["code"] == "NOT_FOUND"; // it may yet be created
        if deleted {
            self.read.remove(&name);
        } else if !offset.is_empty() {
            self.read.insert(name.clone(), offset.clone());
        }
        if closed || deleted || (!error.is_null() && !is_missing) {
            self.ended.insert(name.clone());
        } else if content_type.is_some() {
            self.ended.remove(&name);
        }
        let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
        Ok(Some(ManyEvent {
            began: content_type.is_some(),
            deleted,
            trimmed: value("streamTrimmed") == true,
            error: if error.is_null() { String::new() } else { format!("{}: {}", text("code"), text("message")) },
            page: Page {
                json_values: self.types.get(&name).is_none_or(|known| is_json(known)),
                stream: name,
                begin,
                offset,
                content_type: form,
                body,
                up_to_date: value("upToDate") == true,
                closed,
            },
        }))
    }

    fn payload(&self, told: &BTreeMap<String, &RawValue>, name: &str) -> Result<(Bytes, String), String> {
        let known = self.types.get(name).cloned().unwrap_or_default();
        let form = if self.options.whole { RECORDS_TYPE } else { JSON_TYPE };
        let text = |raw: &RawValue| {
            serde_json::from_str::<String>(raw.get()).map_err(|error| format!("an event is damaged: {error}"))
        };
        if let Some(raw) = told.get("data") {
            return Ok((Bytes::copy_from_slice(raw.get().as_bytes()), form.to_owned()));
        }
        let or = |other: &str| if known.is_empty() { other.to_owned() } else { known.clone() };
        if let Some(raw) = told.get("text") {
            return Ok((text(raw)?.into(), or("text/plain")));
        }
        if let Some(raw) = told.get("base64") {
            let data = from_base64(&text(raw)?).ok_or("an event is not valid base64")?;
            return Ok((data.into(), or("application/octet-stream")));
        }
        Ok((Bytes::new(), if self.options.whole { form.to_owned() } else { known }))
    }
}

/// Report whether a name is a pattern or a prefix: it has a segment `*` or `**`, or ends with a slash.
fn is_covering(name: &str) -> bool {
    name.ends_with('/') || name.is_empty() || name.split('/').any(|segment| segment == "*" || segment == "**")
}

/// An offset without the zeros before its numbers, so that a long list fits into a request.
fn short(offset: &str) -> String {
    parse_offset(offset).map_or_else(|| offset.to_owned(), |(record, byte)| format!("{record}_{byte}"))
}
