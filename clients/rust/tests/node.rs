//! The client against the node at SERVER, which wants tokens: TOKEN for everything, READER to read alone. At REFUSING no
//! server is. `survive` needs also STREAM and COUNT, and that somebody kills and restarts the node.

use std::env::var;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use polynya::*;
use serde_json::{Value, json};

/// Settings for the node, whose certificate is in the file ROOT, if it has one.
fn builder(server: &str) -> ClientBuilder {
    let builder = Client::builder(server);
    match var("ROOT") {
        Ok(path) => builder.root_certificates(std::fs::read(path).unwrap()),
        Err(_) => builder,
    }
}

fn client() -> Client {
    builder(&var("SERVER").unwrap()).token(var("TOKEN").unwrap()).build().unwrap()
}

fn fresh(kind: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("rs/{kind}-{:x}", now.as_nanos())
}

async fn created(kind: &str, content_type: &str) -> Stream {
    let stream = client().stream(&fresh(kind));
    stream.create(content_type).await.unwrap();
    stream
}

async fn all(mut reader: Reader) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    while let Some(record) = reader.next().await? {
        found.push(record.text());
    }
    Ok(found)
}

fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.err().expect("it was not refused").kind()
}

#[tokio::test]
async fn values_come_back_with_keys_and_headers() {
    let stream = created("values", "application/json").await;
    stream.append(&[json!({"a": "ä🦭"}), Value::Null, json!(1.5)]).await.unwrap();
    let record = NewRecord::json(&json!({"item": 7})).unwrap().key("ann").header("source", [0, 255]);
    let appended = stream.send(Append::records(&[record, NewRecord::json(&1).unwrap()])).await.unwrap();
    assert_eq!(
        all(stream.read(ReadOptions::default())).await.unwrap(),
        ["{\"a\":\"ä🦭\"}", "null", "1.5", "{\"item\":7}", "1"]
    );
    let mut reader = stream.read(ReadOptions::default().record(3).whole_records());
    let whole = reader.next().await.unwrap().unwrap();
    assert_eq!((whole.key.as_deref(), whole.json::<Value>().unwrap()), (Some(b"ann".as_slice()), json!({"item": 7})));
    assert_eq!(whole.headers[0].1.as_deref(), Some([0, 255].as_slice()));
    assert_eq!(all(stream.read(ReadOptions::default().offset(reader.offset()))).await.unwrap(), ["1"]);
    assert_eq!(reader.next().await.unwrap().unwrap().offset, appended.offset);
}

#[tokio::test]
async fn bytes_and_text_come_back() {
    let binary = created("bytes", "application/octet-stream").await;
    let bytes: Vec<u8> = (0..70_000u32).map(|at| (at * 31 % 256) as u8).collect();
    binary.append_bytes(bytes.clone()).await.unwrap();
    let mut tail = binary.tail(ReadOptions::default());
    assert_eq!(tail.next().await.unwrap().unwrap().data, bytes);
    binary.append_bytes(vec![0, 255]).await.unwrap();
    assert_eq!(tail.next().await.unwrap().unwrap().data.as_ref(), [0, 255]);
    let text = created("text", "text/plain").await;
    text.append_bytes("one\r\ntwo ä").await.unwrap();
    text.close().await.unwrap();
    assert_eq!(all(text.tail(ReadOptions::default())).await.unwrap().concat(), "one\r\ntwo ä");
}

#[tokio::test]
async fn refusals_have_kinds_codes_and_offsets() {
    let stream = created("refused", "application/json").await;
    let missing = client().stream(&fresh("missing"));
    assert_eq!(kind(missing.append(&[1]).await), ErrorKind::StreamNotFound);
    assert_eq!(kind(all(missing.tail(ReadOptions::default())).await), ErrorKind::StreamNotFound);
    assert_eq!(kind(client().stream(stream.name()).create("text/plain").await), ErrorKind::StreamExists);
    let first = stream.append(&[1, 2]).await.unwrap();
    stream.send(Append::json(&[3]).unwrap().if_match(&first.offset)).await.unwrap();
    let condition = stream.send(Append::json(&[4]).unwrap().if_match(&first.offset)).await.unwrap_err();
    assert_eq!((condition.kind(), condition.offset() > first.offset.as_str()), (ErrorKind::ConditionFailed, true));
    assert_eq!(stream.trim(&first.offset).await.unwrap(), first.offset);
    let begin = "0000000000000001_0000000000000002";
    let trimmed = all(stream.read(ReadOptions::default().offset(begin))).await.unwrap_err();
    assert_eq!(
        (trimmed.kind(), trimmed.status(), trimmed.retained_offset()),
        (ErrorKind::Trimmed, 410, first.offset.as_str())
    );
    let closed = stream.close().await.unwrap();
    let refused = stream.append(&[5]).await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.code(), refused.offset()),
        (ErrorKind::StreamClosed, "STREAM_CLOSED", closed.offset.as_str())
    );
    assert!(!refused.request_id().is_empty());
    assert!(stream.delete().await.unwrap());
    assert!(!stream.delete().await.unwrap());
}

#[tokio::test]
async fn tokens_that_are_wrong_and_a_wrong_url_are_said() {
    let stream = created("guarded", "application/json").await;
    let server = var("SERVER").unwrap();
    for builder in [builder(&server), builder(&server).token("polynya-nonsense")] {
        let stranger = builder.build().unwrap();
        assert_eq!(kind(stranger.stream(stream.name()).append(&[1]).await), ErrorKind::AccessDenied);
        assert_eq!(
            kind(all(stranger.stream(stream.name()).tail(ReadOptions::default())).await),
            ErrorKind::AccessDenied
        );
        let mut many = stranger.tail_many(&["rs/*"], ManyOptions::default()).unwrap();
        assert_eq!(kind(many.next().await), ErrorKind::AccessDenied);
        stranger.set_token(&var("READER").unwrap()).unwrap();
        assert!(all(stranger.stream(stream.name()).read(ReadOptions::default())).await.unwrap().is_empty());
        assert_eq!(stranger.stream(stream.name()).append(&[1]).await.unwrap_err().code(), "FORBIDDEN");
    }
    let elsewhere = builder(&format!("{server}/elsewhere")).token(var("TOKEN").unwrap()).build().unwrap();
    assert_eq!(elsewhere.stream("a").append(&[1]).await.unwrap_err().status(), 404);
    let no_retry = Retry { total: Duration::ZERO, ..Retry::default() };
    if var("ROOT").is_ok() {
        let untrusting = Client::builder(&server).retry(no_retry).build().unwrap();
        let error = untrusting.stream("a").append(&[1]).await.unwrap_err();
        assert_eq!((error.kind(), error.message().contains("certificate")), (ErrorKind::Unavailable, true), "{error}");
    }
    let refusing = var("REFUSING").unwrap();
    let nobody = Client::builder(&refusing).retry(no_retry).build().unwrap();
    let error = nobody.stream("a").append(&[1]).await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Refused));
    assert!(error.message().contains(&refusing) && error.message().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_tail_goes_on_in_the_middle_of_a_batch() {
    let stream = created("middle", "application/json").await;
    stream.append(&[0, 1, 2]).await.unwrap();
    let mut reader = stream.tail(ReadOptions::default());
    for number in 0..2 {
        assert_eq!(reader.next().await.unwrap().unwrap().json::<u64>().unwrap(), number);
    }
    assert!(!reader.is_up_to_date());
    let mut next = stream.tail(ReadOptions::default().offset(reader.offset()));
    assert_eq!(next.next().await.unwrap().unwrap().text(), "2");
    let cancelled = tokio::time::timeout(Duration::from_millis(1), next.next()).await;
    assert!(cancelled.is_err());
    stream.send(Append::json(&[3]).unwrap().close()).await.unwrap();
    assert_eq!(all(next).await.unwrap(), ["3"]);
}

#[tokio::test]
async fn many_streams_come_on_one_connection() {
    let folder = fresh("many");
    let [a, b] = ["a", "b"].map(|name| client().stream(&format!("{folder}/{name}")));
    a.create("application/json").await.unwrap();
    a.append(&[1, 2]).await.unwrap();
    let mut reader = client().tail_many(&[format!("{folder}/*")], ManyOptions::default()).unwrap();
    for number in ["1", "2"] {
        assert_eq!(reader.next().await.unwrap().unwrap().text(), number);
    }
    b.create("text/plain").await.unwrap();
    b.append_bytes("joined").await.unwrap();
    let record = reader.next().await.unwrap().unwrap();
    assert_eq!((record.stream.as_str(), record.text().as_str()), (b.name(), "joined"));
    let options = ManyOptions::default().offsets(reader.offsets());
    let mut next = client().tail_many(&[a.name(), b.name()], options).unwrap();
    a.send(Append::json(&[3]).unwrap().close()).await.unwrap();
    b.close().await.unwrap();
    assert_eq!(next.next().await.unwrap().unwrap().text(), "3");
    assert!(next.next().await.unwrap().is_none());
    assert_eq!(kind(client().tail_many(&["a", "rs/*"], ManyOptions::default())), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_named_producer_fences_its_earlier_run_and_closes_its_stream() {
    let stream = created("fenced", "application/json").await;
    let early = stream.producer(ProducerOptions::default().id("billing")).await.unwrap();
    let receipt = early.append(&0).await.unwrap();
    early.flush().await.unwrap();
    assert_eq!(receipt.await.unwrap().offset, stream.head().await.unwrap().offset);
    let late = stream.producer(ProducerOptions::default().id("billing")).await.unwrap();
    for number in 1..500 {
        late.append(&number).await.unwrap();
    }
    late.flush().await.unwrap();
    early.append(&-1).await.unwrap();
    let fenced = early.flush().await.unwrap_err();
    assert_eq!((fenced.kind(), Some(fenced.epoch())), (ErrorKind::ProducerFenced, late.epoch()));
    assert_eq!((early.counts().applied, early.counts().refused, early.counts().unknown), (1, 1, 0));
    assert!(late.close_stream().await.unwrap().closed);
    assert_eq!(late.close().await.unwrap().applied, 499);
    let expected: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    assert_eq!(all(stream.tail(ReadOptions::default())).await.unwrap(), expected);
    let third = stream.producer(ProducerOptions::default()).await.unwrap();
    third.append(&1).await.unwrap();
    assert_eq!(kind(third.close().await), ErrorKind::StreamClosed);
}

#[tokio::test]
async fn an_append_with_a_producers_numbers_is_stored_once() {
    let stream = created("numbers", "application/json").await;
    for _ in 0..2 {
        stream.send(Append::json(&[1]).unwrap().producer("gate", 0, 0)).await.unwrap();
    }
    let conflict = stream.send(Append::json(&[2]).unwrap().producer("gate", 0, 0)).await;
    assert_eq!(kind(conflict), ErrorKind::ProducerConflict);
    assert_eq!(all(stream.read(ReadOptions::default())).await.unwrap(), ["1"]);
}

#[tokio::test]
async fn appends_to_many_streams_have_an_outcome_each() {
    let (values, bytes) = (created("json", "application/json").await, created("raw", "application/octet-stream").await);
    let appends = [
        StreamAppend::json(values.name(), &["a\nb"]).unwrap().producer("gate", 0, 0),
        StreamAppend::bytes(bytes.name(), [0, 255]).close(),
        StreamAppend::json(&fresh("none"), &[1]).unwrap(),
        StreamAppend::json(values.name(), &[1]).unwrap().if_match(START),
    ];
    let outcomes = client().append_many(&appends).await.unwrap();
    let codes: Vec<(u16, &str)> = outcomes.iter().map(|each| (each.status, each.code.as_str())).collect();
    assert_eq!(codes[..3], [(200, ""), (204, ""), (404, "NOT_FOUND")]);
    assert!(!codes[3].1.is_empty());
    assert_eq!(all(values.read(ReadOptions::default())).await.unwrap(), [r#""a\nb""#]);
    assert_eq!(kind(client().append_many(&[]).await), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_short_token_is_for_what_it_names() {
    let (mine, other) = (created("mine", "application/json").await, created("other", "application/json").await);
    let minted = client().mint_token(Scope::Stream(mine.name()), &["read"], Duration::from_secs(600)).await.unwrap();
    assert!(!format!("{minted:?}").contains(&minted.token));
    let page = builder(&var("SERVER").unwrap()).token(minted.token).build().unwrap();
    assert!(all(page.stream(mine.name()).read(ReadOptions::default())).await.unwrap().is_empty());
    assert_eq!(kind(page.stream(mine.name()).append(&[1]).await), ErrorKind::AccessDenied);
    assert_eq!(kind(all(page.stream(other.name()).read(ReadOptions::default())).await), ErrorKind::AccessDenied);
    let blind = client().mint_token(Scope::Prefix("rs/"), &["append"], Duration::from_secs(60)).await.unwrap();
    page.set_token(&blind.token).unwrap();
    let written = page.stream(mine.name()).with_content_type("application/json");
    written.producer(ProducerOptions::default()).await.unwrap().append(&1).await.unwrap().await.unwrap();
    assert_eq!(all(mine.read(ReadOptions::default())).await.unwrap(), ["1"]);
}

/// The code of docs/clients-rust.md.
#[tokio::test]
async fn the_page_does_what_it_says() -> Result<(), Error> {
    let (server, token, name) = (var("SERVER").unwrap(), var("TOKEN").unwrap(), fresh("page"));
    let client = builder(&server).token(token).build()?;
    let orders = client.stream(&name);
    orders.create("application/json").await?;
    let first = orders.append(&[json!({"item": 7}), json!({"item": 8})]).await?;
    let mut reader = orders.read(ReadOptions::default());
    while let Some(record) = reader.next().await? {
        println!("{} at {}", record.json::<Value>()?["item"], record.offset);
    }
    assert_eq!(reader.offset(), first.offset);

    let keyed = NewRecord::json(&json!({"item": 9}))?.key("ann").header("source", "web");
    orders.send(Append::records(&[keyed]).if_match(&first.offset)).await?;

    let mut tail = orders.tail(ReadOptions::default());
    let record = tail.next().await?;
    let mut other = orders.tail(ReadOptions::default().offset(tail.offset()).whole_records());
    assert_eq!(
        (record.unwrap().text(), other.next().await?.unwrap().text()),
        (r#"{"item":7}"#.into(), r#"{"item":8}"#.into())
    );
    assert_eq!(other.next().await?.unwrap().key.unwrap(), "ann");

    let mut many = client.tail_many(&["runs/*"], ManyOptions::default().from_now())?;
    let places = many.offsets().clone(); // ManyOptions::default().offsets(&places) goes on there
    let run = client.stream(&format!("runs/{}", name.replace('/', "-")));
    assert!(places.is_empty() && !many.is_up_to_date());
    run.create("application/json").await?;
    run.append(&[1]).await?;
    drop(many.next_event().await?);

    let producer = orders.producer(ProducerOptions::default().id("till-1")).await?;
    for item in 10..1010 {
        producer.append(&json!({ "item": item })).await?;
    }
    let counts = producer.close().await?;
    assert_eq!(counts.applied, 1000);

    orders.close().await?;
    match orders.append(&[1]).await {
        Err(error) if error.kind() == ErrorKind::StreamClosed => println!("closed at {}", error.offset()),
        Err(error) if error.outcome() == Outcome::Unknown => println!("read back: {error}"),
        other => drop(other?),
    }
    Ok(())
}

#[tokio::test]
#[ignore = "somebody has to kill the node meanwhile"]
async fn survive() {
    let retry = Retry { pause: Duration::from_millis(20), pause_max: Duration::from_millis(200), ..Retry::default() };
    let client = builder(&var("SERVER").unwrap()).token(var("TOKEN").unwrap()).retry(retry).build().unwrap();
    let (name, count): (String, u64) = (var("STREAM").unwrap(), var("COUNT").unwrap().parse().unwrap());
    let (stream, other) = (client.stream(&name), client.stream(&format!("{name}-other")));
    stream.create("application/json").await.unwrap();
    other.create("application/json").await.unwrap();
    let tails =
        [Live::Sse, Live::LongPoll].map(|live| tokio::spawn(all(stream.tail(ReadOptions::default().live(live)))));
    let mut many = client.tail_many(&[stream.name(), other.name()], ManyOptions::default()).unwrap();
    let together = tokio::spawn(async move {
        let mut found = Vec::new();
        while let Some(record) = many.next().await? {
            found.push(record.text());
        }
        Ok::<_, Error>(found)
    });
    let producer = stream.producer(ProducerOptions::default().id("survivor").batch_records(7)).await.unwrap();
    for number in 0..count {
        let receipt = producer.append(&number).await.unwrap();
        if number % 100 == 99 {
            receipt.await.unwrap();
            println!("{}", number + 1);
        }
    }
    producer.close_stream().await.unwrap();
    other.close().await.unwrap();
    let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    for tail in tails {
        assert_eq!(tail.await.unwrap().unwrap(), expected);
    }
    assert_eq!(together.await.unwrap().unwrap(), expected);
    assert_eq!(all(stream.read(ReadOptions::default())).await.unwrap(), expected);
    assert_eq!(producer.close().await.unwrap().applied, count);
    println!("nothing lost, nothing twice");
}
