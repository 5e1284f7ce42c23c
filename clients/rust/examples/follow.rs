//! Append a line to a stream, and follow the stream: `cargo run --example follow -- http://127.0.0.1:4437 chat hello`.

use polynya::{Client, ReadOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), polynya::Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, server, name, line] = arguments.as_slice() else {
        eprintln!("usage: follow SERVER STREAM LINE");
        return Ok(());
    };
    let chat = Client::new(server)?.stream(name);
    chat.create("application/json").await?;
    chat.append(&[line]).await?;
    let mut tail = chat.tail(ReadOptions::default());
    while let Some(record) = tail.next().await? {
        println!("{}: {}", record.offset, record.json::<String>()?);
    }
    Ok(())
}
