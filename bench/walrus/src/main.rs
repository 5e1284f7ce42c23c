//! Appends and reads of walrus-rust, to compare with `bench/embedded.py`.
//!
//! walrus-appends FOLDER SCHEDULE THREADS SECONDS BYTES BATCH
//!
//! SCHEDULE is `each`, `never` or a number of milliseconds. Each thread appends to its own topic,
//! BATCH records at once. Prints one line of JSON.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use walrus_rust::{FsyncSchedule, ReadConsistency, Walrus};

fn append(wal: &Walrus, stop: &AtomicBool, topic: &str, bytes: usize, batch: usize) -> (u64, Vec<u64>) {
    let record = vec![7u8; bytes];
    let records: Vec<&[u8]> = (0..batch).map(|_| record.as_slice()).collect();
    let (mut count, mut times) = (0u64, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let result = if batch == 1 {
            wal.append_for_topic(topic, &record)
        } else {
            wal.batch_append_for_topic(topic, &records)
        };
        result.expect("append");
        times.push(begin.elapsed().as_nanos() as u64);
        count += batch as u64;
    }
    (count, times)
}

fn read(wal: &Walrus, topic: &str) -> u64 {
    let mut count = 0;
    loop {
        let entries = wal.batch_read_for_topic(topic, 1 << 20, true).expect("read");
        if entries.is_empty() {
            return count;
        }
        count += entries.len() as u64;
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |i: usize| arguments[i].parse::<u64>().expect("a number");
    std::env::set_var("WALRUS_DATA_DIR", &arguments[1]);
    std::env::set_var("WALRUS_QUIET", "1");
    let schedule = match arguments[2].as_str() {
        "each" => FsyncSchedule::SyncEach,
        "never" => FsyncSchedule::NoFsync,
        _ => FsyncSchedule::Milliseconds(number(2)),
    };
    let (threads, seconds) = (number(3), number(4));
    let (bytes, batch) = (number(5) as usize, number(6) as usize);
    let consistency = ReadConsistency::AtLeastOnce { persist_every: 5000 };
    let wal = Arc::new(Walrus::with_consistency_and_schedule(consistency, schedule).expect("open"));
    let stop = Arc::new(AtomicBool::new(false));
    let begin = Instant::now();
    let handles: Vec<_> = (0..threads)
        .map(|i| {
            let (wal, stop) = (wal.clone(), stop.clone());
            std::thread::spawn(move || append(&wal, &stop, &format!("t{i}"), bytes, batch))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(seconds));
    stop.store(true, Ordering::Relaxed);
    let (mut appended, mut times) = (0, Vec::new());
    for handle in handles {
        let (count, taken) = handle.join().expect("thread");
        appended += count;
        times.extend(taken);
    }
    let elapsed = begin.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 1000] as f64 / 1000.0;
    let begin = Instant::now();
    let found: u64 = (0..threads).map(|i| read(&wal, &format!("t{i}"))).sum();
    println!(
        "{{\"appends/s\": {:.0}, \"p50 us\": {:.1}, \"p99 us\": {:.1}, \"p99.9 us\": {:.1}, \"reads/s\": {:.0}, \"unread\": {}}}",
        appended as f64 / elapsed,
        at(500),
        at(990),
        at(999),
        found as f64 / begin.elapsed().as_secs_f64(),
        appended as i64 - found as i64
    );
    std::process::exit(0);
}
