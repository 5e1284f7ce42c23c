//! The Rust client of Polynya, a self-hosted event-stream platform, and of other servers of the
//! [Durable Streams Protocol](https://github.com/durable-streams/durable-streams). It runs on tokio.
//!
//! ```no_run
//! use polynya::{Client, ReadOptions};
//!
//! # async fn run() -> Result<(), polynya::Error> {
//! let client = Client::new("http://127.0.0.1:4437")?;
//! let orders = client.stream("orders");
//! orders.create("application/json").await?;
//! orders.append(&[7, 8]).await?;
//! let mut tail = orders.tail(ReadOptions::default());
//! while let Some(record) = tail.next().await? {
//!     println!("{} at {}", record.json::<u64>()?, record.offset);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! An append is sent again only while certainly nothing was applied. A [`Producer`] gathers records into batches, and sends
//! each until it is stored, once. A [`Reader`] resumes after lost connections and restarts of the server, and gives every
//! record once and in order; [`ManyReader`] does so for many streams on one connection. Every [`Error`] has a kind, the
//! server's code, and says whether the request was applied.

mod client;
mod error;
mod http;
mod live;
#[cfg(test)]
mod played;
mod producer;
mod reader;
mod record;
mod requests;
mod sse;
mod text;
#[cfg(feature = "tls")]
mod tls;

pub use client::{Append, Appended, Client, ClientBuilder, Facts, Stream};
pub use error::{Error, ErrorKind, Outcome};
pub use http::Retry;
pub use live::{ManyEvent, ManyOptions, ManyReader};
pub use producer::{Counts, Producer, ProducerOptions, Receipt};
pub use reader::{Live, NOW, ReadOptions, Reader, START};
pub use record::{NewRecord, Page, Record};
pub use requests::{AppendOutcome, Scope, ShortToken, StreamAppend};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
