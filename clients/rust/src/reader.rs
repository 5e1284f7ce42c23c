//! Reads: pages up to the tail, then new records as they come, without loss or repetition across connections.
//!
//! The position moves only past a complete page: a response, or a `data` event whose `control` event came. After a break
//! the reader goes on from there. An event that does not move the position is a repeat, and is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::error::{Error, ErrorKind, header, refused};
use crate::http::{Backoff, Failed, Opened, RECORDS_TYPE, Reply, Request, Transport, Verdict, stream_target};
use crate::record::{Page, Record, is_array, is_json};
use crate::sse::{Event, EventParser};
use crate::text::{from_base64, query};

/// The offset of a stream's start.
pub const START: &str = "-1";
/// The offset of its tail.
pub const NOW: &str = "now";

// after three connections in a row without an event and shorter than this, a proxy seems to hold events back
const SHORT: Duration = Duration::from_secs(1);
const SHORT_MAX: u32 = 3;

/// The transport of a tail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Live {
    /// Events; long polls for text, whose line ends events cannot carry, and where no events get through.
    #[default]
    Auto,
    /// Server-sent events.
    Sse,
    /// Long polls.
    LongPoll,
}

/// Where a reader begins, and what it reads.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    begin: Option<(&'static str, String)>,
    max_bytes: Option<u64>,
    local: bool,
    whole: bool,
    live: Live,
}

impl ReadOptions {
    /// Begin at an offset: [`START`], [`NOW`], or one of this stream.
    #[must_use]
    pub fn offset(mut self, offset: impl Into<String>) -> Self {
        self.begin = Some(("offset", offset.into()));
        self
    }

    /// Begin at a time: RFC 3339, milliseconds since 1970, or an age such as `10m`.
    #[must_use]
    pub fn from_time(mut self, time: impl Into<String>) -> Self {
        self.begin = Some(("from_time", time.into()));
        self
    }

    /// Begin at the record of this number.
    #[must_use]
    pub fn record(mut self, number: u64) -> Self {
        self.begin = Some(("record", number.to_string()));
        self
    }

    /// Begin so many records before the tail.
    #[must_use]
    pub fn tail_records(mut self, count: u64) -> Self {
        self.begin = Some(("tail_records", count.to_string()));
        self
    }

    /// The largest page, in bytes.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
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

    /// The transport of a tail.
    #[must_use]
    pub fn live(mut self, live: Live) -> Self {
        self.live = live;
        self
    }
}

/// Reads the records of a stream, in their order. Dropping the future of `next` or `next_page` loses nothing: the next
/// call goes on.
pub struct Reader {
    transport: Arc<Transport>,
    position: Position,
    follows: bool,
    by_events: Option<bool>, // none before the content type is known
    caught_up: bool,
    connection: Option<Connection>,
    backoff: Backoff,
    pause_until: Option<Instant>,
    short: u32,
    waiting: VecDeque<Record>,
    page: Option<Page>, // of the waiting records
    offset: String,
    up_to_date: bool,
    closed: bool,
}

struct Connection {
    opened: Opened,
    parser: EventParser,
    events: VecDeque<Event>,
    data: Vec<Bytes>,
    base64: bool,
    began: Instant,
    eventful: bool,
    fruitful: bool,
}

impl Reader {
    pub(crate) fn new(transport: Arc<Transport>, name: &str, follows: bool, options: ReadOptions) -> Self {
        let position = Position::new(name, options);
        Self {
            offset: position.offset.clone(),
            backoff: Backoff::new(transport.retry),
            transport,
            position,
            follows,
            by_events: None,
            caught_up: false,
            connection: None,
            pause_until: None,
            short: 0,
            waiting: VecDeque::new(),
            page: None,
            up_to_date: false,
            closed: false,
        }
    }

    /// Where another reader goes on without a gap: behind the last record that `next` has returned.
    pub fn offset(&self) -> &str {
        &self.offset
    }

    /// All records up to the tail were returned.
    pub fn is_up_to_date(&self) -> bool {
        self.up_to_date
    }

    /// The stream is closed, and all its records were returned.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The next record; none at the end: of a read the tail, of a tail the end of a closed stream.
    ///
    /// # Errors
    /// See [`ErrorKind`]: a trimmed offset, a deleted stream, a refused token, or a server that does not come back.
    pub async fn next(&mut self) -> Result<Option<Record>, Error> {
        loop {
            if let Some(record) = self.waiting.pop_front() {
                match self.page.take_if(|_| self.waiting.is_empty()) {
                    Some(page) => self.moved(&page),
                    None if !record.offset.is_empty() => self.offset.clone_from(&record.offset),
                    None => {}
                }
                return Ok(Some(record));
            }
            let Some(page) = self.fetch().await? else { return Ok(None) };
            self.waiting = page.records()?.into();
            if self.waiting.is_empty() {
                self.moved(&page);
            } else {
                self.up_to_date = false;
                self.page = Some(page);
            }
        }
    }

    /// The next page that has records or bytes; none at the end.
    ///
    /// # Errors
    /// As `next`.
    pub async fn next_page(&mut self) -> Result<Option<Page>, Error> {
        loop {
            let Some(page) = self.fetch().await? else { return Ok(None) };
            self.moved(&page);
            let is_empty = if is_array(&page.content_type) { page.body.len() <= 2 } else { page.body.is_empty() };
            if !is_empty {
                return Ok(Some(page));
            }
        }
    }

    fn moved(&mut self, page: &Page) {
        self.offset.clone_from(&page.offset);
        self.up_to_date = page.up_to_date;
        self.closed = page.closed;
    }

    /// The next page, also an empty one, and move the position past it.
    async fn fetch(&mut self) -> Result<Option<Page>, Error> {
        if self.position.whole_of_unknown() {
            self.position.json_values = Some(is_json(&content_type(&self.transport, &self.position.name).await?));
        }
        loop {
            if let Some(until) = self.pause_until {
                sleep_until(until).await;
                self.pause_until = None;
            }
            if self.position.closed || (self.caught_up && !self.follows) {
                return Ok(None);
            }
            if !self.caught_up {
                let page = self.get("").await?;
                self.caught_up = page.up_to_date || (self.position.options.local && page.offset == page.begin);
                return Ok(Some(page));
            }
            let live = self.position.options.live;
            let is_text = self.position.content_type.starts_with("text/");
            if !*self.by_events.get_or_insert(live == Live::Sse || (live == Live::Auto && !is_text)) {
                return self.get("long-poll").await.map(Some);
            }
            if self.connection.is_none() {
                self.open().await?;
                continue;
            }
            match self.event_page().await {
                Ok(Some(page)) => {
                    self.backoff.passed();
                    self.position.moved(&page);
                    return Ok(Some(page));
                }
                Ok(None) => {}
                Err(Stop::Broken(failed)) => self.broken(failed)?,
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }

    async fn get(&mut self, live: &str) -> Result<Page, Error> {
        let (request, what) = (self.position.request(live), self.position.what());
        let position = &mut self.position;
        let page = self.transport.send(&request, &what, true, |reply, _| position.page(&reply)).await?;
        self.position.moved(&page);
        Ok(page)
    }

    async fn open(&mut self) -> Result<(), Error> {
        match self.transport.open(&self.position.request("sse")).await? {
            Ok(opened) => {
                self.position.learn_incarnation(header(&opened.headers, "stream-incarnation"));
                let base64 = header(&opened.headers, "stream-sse-data-encoding") == "base64";
                self.connection = Some(Connection {
                    opened,
                    parser: EventParser::default(),
                    events: VecDeque::new(),
                    data: Vec::new(),
                    base64,
                    began: Instant::now(),
                    eventful: false,
                    fruitful: false,
                });
                Ok(())
            }
            Err(failed) => self.broken(failed),
        }
    }

    /// Take the next event, or wait for more of them.
    async fn event_page(&mut self) -> Result<Option<Page>, Stop> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        let Some(event) = connection.events.pop_front() else {
            let piece = connection.opened.read().await.map_err(Stop::Broken)?;
            let Some(piece) = piece else { return Err(Stop::Broken(Failed::broken("the connection ended"))) };
            let events =
                connection.parser.feed(&piece).ok_or_else(|| Stop::Broken(Failed::broken("an event is too large")))?;
            connection.events.extend(events);
            return Ok(None);
        };
        match event.name.as_str() {
            "data" => {
                let data = if connection.base64 { from_base64(&event.data) } else { Some(event.data.into_bytes()) };
                let data = data.ok_or_else(|| Stop::Broken(Failed::broken("an event is not valid base64")))?;
                connection.data.push(data.into());
                Ok(None)
            }
            "error" => Err(self.position.failure(&event.data)),
            "control" => {
                let data = std::mem::take(&mut connection.data);
                let page =
                    self.position.live_page(&data, &event.data).map_err(|why| Stop::Broken(Failed::broken(why)))?;
                connection.eventful = true;
                connection.fruitful |= page.as_ref().is_some_and(|page| !page.body.is_empty() || page.closed);
                Ok(page)
            }
            _ => Ok(None),
        }
    }

    /// Note that the connection has ended: pause before the next.
    fn broken(&mut self, failed: Failed) -> Result<(), Error> {
        if let (Verdict::Never, Failed::Replied(reply)) = (failed.verdict(), &failed) {
            return Err(refused(reply.status, &reply.headers, &reply.body, &self.position.what()));
        }
        let Some(pause) = self.backoff.pause(failed.retry_after()) else {
            return Err(failed.error(&self.position.what(), false));
        };
        self.pause_until = Some(Instant::now() + pause);
        if let Some(connection) = self.connection.take() {
            let is_short = !connection.eventful && connection.began.elapsed() < SHORT;
            self.short = if is_short { self.short + 1 } else { 0 };
            if self.short >= SHORT_MAX && self.position.options.live == Live::Auto {
                self.by_events = Some(false);
            }
            // an event may exceed what the connection carries
            self.caught_up = connection.fruitful;
        }
        Ok(())
    }
}

enum Stop {
    Broken(Failed),
    Failed(Error),
}

/// Where a reader is, and the request that goes on from there.
struct Position {
    name: String,
    options: ReadOptions,
    offset: String,
    content_type: String,
    json_values: Option<bool>,
    incarnation: String,
    cdn_cursor: String,
    closed: bool,
    has_moved: bool,
}

impl Position {
    fn new(name: &str, options: ReadOptions) -> Self {
        let offset = match &options.begin {
            Some(("offset", offset)) => offset.clone(),
            _ => START.to_owned(),
        };
        Self {
            name: name.to_owned(),
            options,
            offset,
            content_type: String::new(),
            json_values: None,
            incarnation: String::new(),
            cdn_cursor: String::new(),
            closed: false,
            has_moved: false,
        }
    }

    fn what(&self) -> String {
        format!("read '{}'", self.name)
    }

    /// A reader of whole records does not know yet whether their values are JSON.
    fn whole_of_unknown(&self) -> bool {
        self.options.whole && self.json_values.is_none()
    }

    fn request(&self, live: &str) -> Request {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut parameters = match &self.options.begin {
            Some((name, value)) if !self.has_moved => vec![pair(name, value)],
            _ => vec![pair("offset", &self.offset)],
        };
        if self.options.local {
            parameters.push(pair("consistency", "local"));
        }
        if !live.is_empty() {
            parameters.push(pair("live", live));
            if !self.cdn_cursor.is_empty() {
                parameters.push(pair("cursor", &self.cdn_cursor));
            }
        }
        if let (Some(bytes), true) = (self.options.max_bytes, live != "sse") {
            parameters.push(pair("max_bytes", &bytes.to_string()));
        }
        let form = if self.options.whole { RECORDS_TYPE } else { "*/*" };
        let accept = if live == "sse" { format!("text/event-stream, {form}") } else { form.to_owned() };
        let request =
            Request::new(Method::GET, stream_target(&self.name) + &query(&parameters)).header("accept", accept);
        if self.incarnation.is_empty() { request } else { request.header("stream-incarnation", &self.incarnation) }
    }

    fn learn_incarnation(&mut self, incarnation: &str) {
        if self.incarnation.is_empty() {
            incarnation.clone_into(&mut self.incarnation);
        }
    }

    fn page(&mut self, reply: &Reply) -> Result<Page, Error> {
        let offset = reply.required("stream-next-offset", &self.what())?;
        let content_type = header(&reply.headers, "content-type");
        if !content_type.is_empty() {
            content_type.clone_into(&mut self.content_type);
        }
        let (up_to_date, closed) = (reply.is_true("stream-up-to-date"), reply.is_true("stream-closed"));
        let page = self.checked(reply.body.clone(), offset, up_to_date, closed);
        let page = page.map_err(|why| Error::new(ErrorKind::AnswerDamaged, format!("{}: {why}", self.what())))?;
        page.records()?;
        self.learn_incarnation(header(&reply.headers, "stream-incarnation"));
        let cursor = header(&reply.headers, "stream-cursor");
        if !cursor.is_empty() {
            cursor.clone_into(&mut self.cdn_cursor);
        }
        Ok(page)
    }

    /// The page of a control event and the data before it; none for a repeat. An error says why the connection is damaged.
    fn live_page(&mut self, data: &[Bytes], control: &str) -> Result<Option<Page>, String> {
        let control: Value =
            serde_json::from_str(control).map_err(|error| format!("a control event is not JSON: {error}"))?;
        let offset = control["streamNextOffset"].as_str().ok_or("a control event has no offset")?;
        let (up_to_date, closed) = (control["upToDate"] == true, control["streamClosed"] == true);
        if let Some(cursor) = control["streamCursor"].as_str() {
            cursor.clone_into(&mut self.cdn_cursor);
        }
        let tells = data.is_empty() && (up_to_date || closed);
        if offset < self.offset.as_str() && self.offset != NOW || offset == self.offset && !tells {
            return Ok(None);
        }
        let page = self.checked(joined(data, is_array(&self.content_type)), offset.to_owned(), up_to_date, closed)?;
        page.records().map_err(|error| error.message().to_owned())?;
        Ok(Some(page))
    }

    fn checked(&self, body: Bytes, offset: String, up_to_date: bool, closed: bool) -> Result<Page, String> {
        if offset == self.offset && !up_to_date && !closed && !self.options.local {
            return Err("the response makes no progress before the end of the stream".into());
        }
        if self.has_moved && !self.incarnation.is_empty() && offset < self.offset {
            return Err(format!("the response goes back from {} to {offset}", self.offset));
        }
        Ok(Page {
            stream: self.name.clone(),
            begin: self.offset.clone(),
            offset,
            content_type: self.content_type.clone(),
            body,
            up_to_date,
            closed,
            json_values: self.json_values.unwrap_or(true),
        })
    }

    fn moved(&mut self, page: &Page) {
        self.offset.clone_from(&page.offset);
        self.closed = page.closed;
        self.has_moved = true;
    }

    /// An error event ends the stream, or the connection alone, such as that of a slow reader.
    fn failure(&self, body: &str) -> Stop {
        let error = refused(410, &hyper::HeaderMap::new(), body.as_bytes(), &self.what());
        match error.kind() {
            ErrorKind::StreamGone | ErrorKind::StreamReplaced | ErrorKind::StreamNotFound | ErrorKind::Trimmed => {
                Stop::Failed(error)
            }
            _ => Stop::Broken(Failed::broken(error.message())),
        }
    }
}

/// The body of several data events.
fn joined(data: &[Bytes], as_array: bool) -> Bytes {
    if let [one] = data {
        return one.clone();
    }
    if !as_array {
        return data.concat().into();
    }
    let inner: Vec<&[u8]> = data
        .iter()
        .map(|piece| {
            let piece = piece.trim_ascii();
            piece.get(1..piece.len().saturating_sub(1)).unwrap_or_default()
        })
        .collect();
    if inner.is_empty() { Bytes::new() } else { [b"[".as_slice(), &inner.join(b",".as_slice()), b"]"].concat().into() }
}

/// The content type of a stream, from the server.
pub(crate) async fn content_type(transport: &Transport, name: &str) -> Result<String, Error> {
    let request = Request::new(Method::HEAD, stream_target(name));
    let what = format!("head of '{name}'");
    transport.send(&request, &what, true, |reply, _| reply.required("content-type", &what)).await
}
