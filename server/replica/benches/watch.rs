//! What offering events to watchers and taking their responses costs.
//!
//! `cargo bench -p garboard-replica --bench watch` prints, for batches of several sizes, the time a put takes in the hub
//! of one core with 10,000 watchers of single keys and 500 watchers of prefixes, and with 1,000 of the same prefix.
//! (The names of the numbers: `offer` is `handle_events`, `take` is every `next_response` until nothing is left.)

#![allow(clippy::disallowed_methods, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use garboard_replica::events::{Event, EventBatch};
use garboard_replica::request::{KeyRange, KeyValue};
use garboard_replica::watch::{StreamId, WatchConfig, WatchCreate, WatchHub};
use garboard_storage::{Applied, Index, IndexConfig, NoFile, Revision};

const PUTS: i64 = 100_000;
const KEYS: i64 = 100_000;

/// A hub over an index that holds nothing: watchers of what is to come never look into it.
struct Bench {
    index: Index,
    hub: WatchHub,
    revision: i64,
    offer: Duration,
    take: Duration,
    events: usize,
}

impl Bench {
    fn new() -> Self {
        let file = NoFile::new(1 << 30).expect("addresses are plenty");
        let index = Index::create(IndexConfig::new(1, 1), Arc::new(file));
        let hub = WatchHub::new(WatchConfig::new(2 << 20), 1);
        Self { index, hub, revision: 1, offer: Duration::ZERO, take: Duration::ZERO, events: 0 }
    }

    fn open(&mut self) -> StreamId {
        self.hub.open_stream(Duration::ZERO, Duration::from_secs(600))
    }

    fn watch(&mut self, stream: StreamId, keys: KeyRange) {
        let create = WatchCreate {
            watch_id: 0,
            keys,
            start_revision: 0,
            progress_notify: false,
            prev_kv: false,
            fragment: false,
            no_put: false,
            no_delete: false,
        };
        let snapshot = self.index.reader().pin();
        self.hub.create(Duration::ZERO, stream, create, &snapshot.view()).expect("the stream is read");
        while self.hub.next_response(stream, &snapshot.view()).expect("nothing is read").is_some() {}
    }

    fn run(&mut self, name: &str, batch_puts: i64) {
        (self.offer, self.take, self.events) = (Duration::ZERO, Duration::ZERO, 0);
        let mut random = 1_u64;
        for _ in 0..PUTS / batch_puts {
            let first = self.revision + 1;
            let events = (first..first + batch_puts).map(|main| put(main, &mut random)).collect();
            self.revision += batch_puts;
            self.index.publish(Applied::default(), self.revision);
            let batch = Arc::new(EventBatch { first_revision: first, last_revision: self.revision, events });
            let start = Instant::now();
            self.hub.handle_events(&batch);
            self.offer += start.elapsed();
            let snapshot = self.index.reader().pin();
            let start = Instant::now();
            while let Some(stream) = self.hub.poll_ready() {
                while let Some(response) = self.hub.next_response(stream, &snapshot.view()).expect("nothing is read") {
                    self.events += response.events.len();
                }
            }
            self.take += start.elapsed();
        }
        let per_put = |time: Duration| time.as_nanos() / u128::try_from(PUTS).expect("positive");
        let (offer, take) = (per_put(self.offer), per_put(self.take));
        let fan_out = self.events as f64 / PUTS as f64;
        println!(
            "{name:<24} batch {batch_puts:>4}: offer {offer:>6} ns, take {take:>6} ns a put; {fan_out:.2} events a put"
        );
    }
}

fn put(main: i64, random: &mut u64) -> Event {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let number = i64::try_from(*random >> 33).expect("31 bits") % KEYS;
    let kv = KeyValue {
        key: key(number),
        create_revision: main,
        mod_revision: main,
        version: 1,
        value: Bytes::from_static(&[b'v'; 300]),
        lease: 0,
    };
    Event { deleted: false, kv, revision: Revision { main, sub: 0 }, previous: None }
}

fn key(number: i64) -> Bytes {
    Bytes::from(format!("/registry/kind{:03}/namespace/name-{number:06}", number % 500))
}

fn prefix(number: i64) -> KeyRange {
    let start = Bytes::from(format!("/registry/kind{number:03}/"));
    KeyRange::Span { start, end: Bytes::from(format!("/registry/kind{number:03}0")) }
}

fn main() {
    let mut bench = Bench::new();
    for stream in 0..100 {
        let id = bench.open();
        (0..100).for_each(|watcher| bench.watch(id, KeyRange::Point(key((stream * 100 + watcher) * 10))));
    }
    for stream in 0..20 {
        let id = bench.open();
        (0..25).for_each(|watcher| bench.watch(id, prefix(stream * 25 + watcher)));
    }
    for batch_puts in [1, 16, 256] {
        bench.run("10,000 keys 500 prefixes", batch_puts);
    }
    let mut bench = Bench::new();
    for _ in 0..20 {
        let id = bench.open();
        (0..50).for_each(|_| bench.watch(id, KeyRange::FromKey(Bytes::from_static(b"/registry/"))));
    }
    for batch_puts in [16, 256] {
        bench.run("1,000 of one prefix", batch_puts);
    }
}
