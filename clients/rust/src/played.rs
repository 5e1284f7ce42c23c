//! The client against a server that plays its answers: what is sent again, what is not, and how events are read.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::text::format_offset as at;
use crate::*;

const JSON: &str = "application/json";

/// An answer: its text, or none for a connection that ends without one.
type Answer = Option<String>;

/// A server that gives each connection one answer. What was asked is `asked`: the whole requests.
struct Played {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

async fn played(answers: Vec<Answer>) -> (Played, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        for answer in answers {
            let (mut connection, _) = listener.accept().await.unwrap();
            let request = request(&mut connection).await;
            seen.lock().unwrap().push(request);
            if let Some(text) = answer {
                connection.write_all(text.as_bytes()).await.unwrap();
            }
        }
    });
    let millisecond = Duration::from_millis(1);
    let retry = Retry { total: Duration::from_secs(5), pause: millisecond, pause_max: millisecond, ..Retry::default() };
    let client = Client::builder(&url).retry(retry).build().unwrap();
    (Played { url, asked }, client)
}

/// Read a request: its head, and a body of the length that the head says.
async fn request(connection: &mut tokio::net::TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let count = connection.read(&mut piece).await.unwrap();
        bytes.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length.map_or(0, |length| length.parse().unwrap()) <= body.len() {
                return text;
            }
        }
        assert!(count > 0, "a request was cut off: {text}");
    }
}

impl Played {
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// The targets of the requests.
    fn targets(&self) -> Vec<String> {
        self.asked().iter().map(|each| each.split(' ').nth(1).unwrap().to_owned()).collect()
    }
}

fn answer(status: u16, headers: &str, body: &str) -> Answer {
    let length = body.len();
    Some(format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"))
}

fn told(status: u16, code: &str, headers: &str) -> Answer {
    let body = format!("{{\"error\":{{\"code\":\"{code}\",\"message\":\"it is {code}\",\"request_id\":\"r-1\"}}}}");
    answer(status, headers, &body)
}

fn stored(record: u64, more: &str) -> Answer {
    answer(200, &format!("stream-next-offset: {}\r\n{more}", at(record, record * 2)), "")
}

fn page(body: &str, record: u64, more: &str) -> Answer {
    let headers = format!(
        "content-type: {JSON}\r\nstream-incarnation: 7\r\nstream-next-offset: {}\r\n{more}",
        at(record, record * 2)
    );
    answer(200, &headers, body)
}

const UP: &str = "stream-up-to-date: true\r\n";

/// A response of events, which ends with its connection.
fn events(body: &str) -> Answer {
    Some(format!("HTTP/1.1 200 x\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n{body}"))
}

fn data(body: &str) -> String {
    format!("event: data\ndata:{body}\n\n")
}

fn control(record: u64, more: &str) -> String {
    format!("event: control\ndata:{{\"streamNextOffset\":\"{}\"{more}}}\n\n", at(record, record * 2))
}

async fn all(mut reader: Reader) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    while let Some(record) = reader.next().await? {
        found.push(record.text());
    }
    Ok(found)
}

#[tokio::test]
async fn an_append_is_sent_again_while_nothing_can_have_been_applied() {
    let refused = "stream-outcome: refused\r\nretry-after: 0\r\n";
    let answers = vec![told(503, "UNAVAILABLE", refused), told(429, "RATE_LIMIT", ""), stored(1, "")];
    let (server, client) = played(answers).await;
    assert_eq!(client.stream("a b/ä").append(&[1]).await.unwrap().offset, at(1, 2));
    assert_eq!(server.targets(), ["/v1/stream/a%20b/%C3%A4"; 3]);
    assert!(server.asked()[2].ends_with("\r\n\r\n[1]"));
}

#[tokio::test]
async fn retry_after_is_given_up_on_when_it_is_too_long() {
    let (_server, client) = played(vec![told(429, "RATE_LIMIT", "retry-after: 60\r\n")]).await;
    let error = client.stream("a").append(&[1]).await.unwrap_err();
    assert_eq!((error.kind(), error.code(), error.outcome()), (ErrorKind::Unavailable, "RATE_LIMIT", Outcome::Refused));
    assert_eq!((error.retry_after(), error.request_id(), error.status()), (Duration::from_secs(60), "r-1", 429));
    assert_eq!(error.to_string(), "append to 'a': it is RATE_LIMIT [RATE_LIMIT] (request r-1)");
}

#[tokio::test]
async fn an_append_whose_outcome_is_unknown_is_not_sent_again_unless_it_has_a_producer() {
    for lost in [None, told(503, "OUTCOME_UNKNOWN", "stream-outcome: unknown\r\n"), told(500, "INTERNAL", "")] {
        let (server, client) = played(vec![lost]).await;
        let error = client.stream("a").append(&[1]).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::OutcomeUnknown, Outcome::Unknown));
        assert_eq!(server.asked().len(), 1);
    }
    let (server, client) = played(vec![None, stored(1, "")]).await;
    client.stream("a").send(Append::json(&[1]).unwrap().producer("gate", 0, 4)).await.unwrap();
    assert!(server.asked()[1].contains("producer-seq: 4\r\n"));
}

#[tokio::test]
async fn another_server_and_a_damaged_answer_are_said() {
    let (_server, client) = played(vec![answer(200, "", "<html>")]).await;
    let error = client.stream("a").append(&[1]).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::AnswerDamaged, Outcome::Applied));
    assert!(error.message().contains("check that the URL is a Durable Streams server"));
    let (_server, client) = played(vec![answer(404, "", "<html>no such page")]).await;
    assert!(client.stream("a").append(&[1]).await.unwrap_err().message().contains("no such page"));
    for url in ["127.0.0.1:4437", "ftp://node", "", "http://node/?a=b", "http://node,x"] {
        assert_eq!(Client::new(url).err().unwrap().kind(), ErrorKind::Invalid, "{url}");
    }
    assert_eq!(Client::builder("http://node").token("a\nb").build().err().unwrap().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn another_server_of_the_list_is_asked_when_one_is_gone() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (server, _) = played(vec![stored(1, "")]).await;
    let client = Client::new(&format!("http://{gone},{}", server.url)).unwrap();
    client.stream("a").append(&[1]).await.unwrap();
}

#[tokio::test]
async fn a_tail_reads_up_follows_events_over_connections_and_gives_each_record_once() {
    let answers = vec![
        page("[1,2]", 2, UP),
        events(&(data("[3]") + &control(3, "") + &data("[4]"))),
        events(&(data("[3]") + &control(3, "") + &data("[4]") + &data("[5]") + &control(5, ",\"upToDate\":true"))),
        None,
        events(&(": comment\n\n".to_owned() + &control(5, ",\"upToDate\":true,\"streamClosed\":true"))),
    ];
    let (server, client) = played(answers).await;
    assert_eq!(all(client.stream("a").tail(ReadOptions::default())).await.unwrap(), ["1", "2", "3", "4", "5"]);
    let offsets: Vec<String> =
        server.targets().iter().map(|each| each[each.find("offset=").unwrap()..].into()).collect();
    assert!(offsets[1].starts_with(&format!("offset={}&live=sse", at(2, 4))));
    assert!(offsets[2].starts_with(&format!("offset={}&live=sse", at(3, 6))), "{offsets:?}");
    assert!(server.asked()[1].contains("stream-incarnation: 7\r\n"));
}

#[tokio::test]
async fn an_error_event_ends_a_tail_or_resumes_it() {
    let error = |code: &str| format!("event: error\ndata:{{\"error\":{{\"code\":\"{code}\",\"message\":\"m\"}}}}\n\n");
    let closing = data("[1]") + &control(1, ",\"streamClosed\":true");
    let answers = vec![page("[]", 0, UP), events(&error("SLOW_READER")), page("[]", 0, UP), events(&closing)];
    let (_server, client) = played(answers).await;
    assert_eq!(all(client.stream("a").tail(ReadOptions::default())).await.unwrap(), ["1"]);
    let (_server, client) = played(vec![page("[]", 0, UP), events(&error("TRIMMED"))]).await;
    let error = all(client.stream("a").tail(ReadOptions::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Trimmed);
}

#[tokio::test]
async fn where_events_do_not_get_through_long_polls_are_tried() {
    let closed = format!("{UP}stream-closed: true\r\n");
    let mut answers = vec![page("[]", 0, UP)];
    for _ in 0..3 {
        answers.extend([events(""), page("[]", 0, UP)]);
    }
    answers.push(page("[1]", 1, &closed));
    let (server, client) = played(answers).await;
    assert_eq!(all(client.stream("a").tail(ReadOptions::default())).await.unwrap(), ["1"]);
    assert!(server.targets().last().unwrap().contains("live=long-poll"));
}

#[tokio::test]
async fn many_streams_resume_with_the_cursor_and_without_it_with_their_offsets() {
    let event = |id: &str, name: &str, body: &str| format!("id:{id}\nevent: {name}\ndata:{body}\n\n");
    let begins = |id: &str, name: &str| {
        let body =
            format!("{{\"stream\":\"{name}\",\"streamNextOffset\":\"{}\",\"contentType\":\"{JSON}\"}}", at(0, 0));
        event(id, "control", &body)
    };
    let one = |id: &str, name: &str, record: u64, more: &str| {
        let offset = at(record, record * 2);
        event(
            id,
            "data",
            &format!("{{\"stream\":\"{name}\",\"streamNextOffset\":\"{offset}\",\"data\":[{record}]{more}}}"),
        )
    };
    let closed = ",\"streamClosed\":true";
    let last = one("d.1", "a", 1, "") + &one("d.2", "a", 2, closed) + &one("d.3", "b", 1, closed);
    let answers = vec![
        events(&(begins("c.1", "a") + &begins("c.2", "b") + &one("c.3", "a", 1, ""))),
        told(410, "CURSOR_GONE", ""),
        events(&last),
    ];
    let (server, client) = played(answers).await;
    let mut reader = client.tail_many(&["a", "b"], ManyOptions::default()).unwrap();
    let mut found = Vec::new();
    while let Some(record) = reader.next().await.unwrap() {
        found.push((record.stream.clone(), record.text()));
    }
    let expected = [("a", "1"), ("a", "2"), ("b", "1")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(found, expected);
    assert!(server.asked()[1].contains("last-event-id: c.3\r\n"));
    assert!(server.targets()[2].ends_with("stream=a@1_2&stream=b@0_0"));
    assert_eq!(reader.offsets()["b"], at(1, 2));
}

#[tokio::test]
async fn a_producer_sends_batches_again_until_they_are_stored_and_ends_with_exact_counts() {
    let ours = |number: u64| stored(number + 1, &format!("producer-epoch: 0\r\nproducer-seq: {number}\r\n"));
    let head = answer(200, &format!("content-type: {JSON}\r\nstream-next-offset: {}\r\n", at(0, 0)), "");
    let closed = told(409, "STREAM_CLOSED", "");
    let (server, client) = played(vec![head, None, ours(0), told(503, "UNAVAILABLE", ""), ours(1), closed]).await;
    let options = ProducerOptions::default().batch_records(2).linger(Duration::from_secs(3600));
    let producer = client.stream("a").producer(options).await.unwrap();
    for number in 1..4 {
        producer.append(&number).await.unwrap();
    }
    producer.flush().await.unwrap();
    let bodies: Vec<String> =
        server.asked()[1..].iter().map(|each| each.rsplit("\r\n").next().unwrap().to_owned()).collect();
    assert_eq!(bodies, ["[1,2]", "[1,2]", "[3]", "[3]"]);
    producer.append(&4).await.unwrap();
    assert_eq!(producer.flush().await.unwrap_err().kind(), ErrorKind::StreamClosed);
    assert_eq!(producer.append(&5).await.unwrap_err().kind(), ErrorKind::StreamClosed);
    let counts = producer.counts();
    assert_eq!((counts.applied, counts.refused, counts.unknown), (3, 1, 0));
}
