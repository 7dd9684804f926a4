//! What clients can do to a server's memory and time: nothing beyond the bounds that `docs/operations.md` states.
//!
//! Each test is quick; with `GARBOARD_BOUNDS=long` the numbers are those of the document. Memory is the server's
//! anonymous resident memory, looked at every 10 ms.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test drives real processes, and what fails fails it"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::cgroup::MemoryGroup;
use common::client::{CallError, Client};
use common::memory::{Peak, anonymous_bytes};
use common::raw::{CONTINUATION, DATA, END_HEADERS, HEADERS, PREFACE, RST_STREAM, Raw, SETTINGS, call_headers, frame};
use common::{Folder, Launch, Server, eventually, executable, skip};
use garboard_proto::etcdserverpb as pb;
use pb::request_op::Request as Operation;
use pb::watch_request::RequestUnion;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What requests on their way to the log may take on a core, and answers that are not read.
const BUDGET: u64 = 64 * MIB;
/// What batches of events may take on a core, recent ones and those read anew.
const WATCHES: u64 = (64 + 16) * MIB;
/// What proposals may take.
const PENDING: u64 = 128 * MIB;
/// What changed pages of the index may take.
const CHANGED_PAGES: u64 = 256 * MIB;
/// What cannot be told apart from noise: caches of the allocator, of the index, of the log.
const SLACK: u64 = 48 * MIB;

fn is_long() -> bool {
    std::env::var("GARBOARD_BOUNDS").is_ok_and(|form| form == "long")
}

/// The first number, or the second in the long form.
fn quick_or_long<T>(quick: T, long: T) -> T {
    if is_long() { long } else { quick }
}

/// Says what was measured, for the document.
fn report(what: &str, figures: std::fmt::Arguments<'_>) {
    println!("measured: {what}: {figures}");
}

fn cores() -> u64 {
    std::thread::available_parallelism().unwrap().get() as u64
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn key(number: usize) -> Bytes {
    format!("key/{number:08}").into_bytes().into()
}

fn all_keys() -> pb::RangeRequest {
    pb::RangeRequest { key: Bytes::from_static(b"key/"), range_end: Bytes::from_static(b"key0"), ..Default::default() }
}

/// Puts keys from `first` on, many at a time.
fn load(client: &Client, first: usize, count: usize, value_bytes: usize) {
    let value = Bytes::from(vec![b'v'; value_bytes]);
    let per_txn = (MIB as usize / (value_bytes + 64)).clamp(1, 128);
    let numbers: Vec<usize> = (first..first + count).collect();
    for numbers in numbers.chunks(per_txn) {
        let put = |number: &usize| pb::RequestOp {
            request: Some(Operation::RequestPut(Box::new(pb::PutRequest {
                key: key(*number),
                value: value.clone(),
                ..Default::default()
            }))),
        };
        let txn = pb::TxnRequest { success: numbers.iter().map(put).collect(), ..Default::default() };
        let _: pb::TxnResponse = client.call("etcdserverpb.KV/Txn", &txn).unwrap();
    }
}

/// Somebody else's puts, one after the other, with the longest time one took.
struct Bystander {
    stop: Arc<AtomicBool>,
    longest_us: Arc<AtomicU64>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    fn of(server: &Server) -> Bystander {
        let client = server.client();
        let (stop, longest_us, count) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let (stopped, longest, done) = (stop.clone(), longest_us.clone(), count.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let started = Instant::now();
                client.put("bystander", "value").unwrap();
                client.get("bystander").unwrap();
                longest.fetch_max(u64::try_from(started.elapsed().as_micros()).unwrap(), Ordering::Relaxed);
                done.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Bystander { stop, longest_us, count, thread: Some(thread) }
    }

    /// Ends it: how many pairs of calls it made, and the longest time one took.
    fn finish(mut self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let longest = Duration::from_micros(self.longest_us.load(Ordering::Relaxed));
        (self.count.load(Ordering::Relaxed), longest)
    }
}

/// Lets this process have as many descriptors as it may; how many.
fn raise_descriptor_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    limit.maximum.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap())
}

#[test]
fn ten_thousand_idle_connections_cost_little_and_hold_nobody_up() {
    let count = 10_000.min(raise_descriptor_limit() - 500);
    let folder = Folder::new();
    // The server is started with the usual soft limit, and raises it.
    let server = Launch::new(&folder.data()).with(low_soft_limit).start();
    let peak = Peak::of(server.id());
    let mut idle: Vec<Raw> = (0..count).map(|_| Raw::greeted(server.port(), 65_535)).collect();
    // Each is served: the last one answers.
    let stream = idle[count - 1].call("/etcdserverpb.KV/Range", &all_keys(), false);
    idle[count - 1].message::<pb::RangeResponse>(stream).unwrap().unwrap();
    let client = server.client();
    client.put("a", "b").unwrap();
    let growth = peak.growth();
    report("idle connections", format_args!("{count}: {:.0} MiB, {} bytes each", mib(growth), growth / count as u64));
    assert!(growth < count as u64 * 32 * KIB, "{count} idle connections took {} MiB", mib(growth));
    idle.truncate(count / 2);
    client.put("a", "c").unwrap();
    server.stop();
}

/// What most systems give a service.
fn low_soft_limit(command: &mut std::process::Command) {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit { current: Some(1_024), maximum: hard };
    use std::os::unix::process::CommandExt;
    let lower = move || rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).map_err(Into::into);
    // SAFETY: between fork and exec only one system call is made.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(lower);
    }
}

#[test]
fn who_is_silent_in_the_middle_of_something_is_disconnected_at_every_stage() {
    raise_descriptor_limit();
    let count = quick_or_long(200, 1_600);
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let put = pb::PutRequest { key: Bytes::from_static(b"k"), value: Bytes::from(vec![0; 100]), ..Default::default() };
    let headers = call_headers("/etcdserverpb.KV/Put", &[]);
    let settings = frame(SETTINGS, 0, 0, &[]);
    let greeting = [PREFACE, &settings].concat();
    let headers_frame = frame(HEADERS, END_HEADERS, 1, &headers);
    let message = frame(DATA, 0, 1, &common::raw::grpc(&put));
    let stages: [(&str, Vec<u8>); 6] = [
        ("nothing", Vec::new()),
        ("half the preface", PREFACE[..12].to_vec()),
        ("no settings", PREFACE.to_vec()),
        ("half the headers", [&greeting[..], &headers_frame[..20]].concat()),
        ("headers without an end", [&greeting[..], &frame(HEADERS, 0, 1, &headers)].concat()),
        ("half the message", [&greeting[..], &headers_frame, &message[..40]].concat()),
    ];
    let peak = Peak::of(server.id());
    let started = Instant::now();
    let mut silent = Vec::new();
    for (stage, bytes) in &stages {
        for _ in 0..count {
            let mut raw = Raw::connect(server.port());
            raw.send(bytes);
            raw.set_patience(Duration::from_secs(40));
            silent.push((*stage, raw));
        }
    }
    let mut greeted = Raw::greeted(server.port(), 65_535);
    let bystander = Bystander::of(&server);
    for (stage, raw) in &mut silent {
        assert!(raw.is_closed(), "after {stage} the connection is still open");
    }
    let took = started.elapsed();
    let (calls, longest) = bystander.finish();
    let growth = peak.growth();
    report(
        "silent connections",
        format_args!(
            "{} at {} stages: all closed after {took:.1?}; {:.1} MiB; beside them {calls} puts and gets, longest {longest:?}",
            count * stages.len(),
            stages.len(),
            mib(growth)
        ),
    );
    assert!(took < Duration::from_secs(35), "it took {took:?}");
    assert!(growth < (count * stages.len()) as u64 * 48 * KIB + SLACK);
    // Who greeted and asks for nothing stays.
    let stream = greeted.call("/etcdserverpb.KV/Range", &all_keys(), false);
    assert!(greeted.message::<pb::RangeResponse>(stream).unwrap().is_some());
}

#[test]
fn answers_that_nobody_reads_stay_within_their_room_and_go_when_others_need_it() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let client = server.client();
    let (keys, value_bytes) = (quick_or_long(20_000, 1_000_000), 1_024);
    load(&client, 0, keys, value_bytes);
    for (path, window) in
        [("/etcdserverpb.KV/RangeStream", 65_535), ("/etcdserverpb.KV/Range", 65_535), ("/etcdserverpb.KV/Range", 0)]
    {
        let peak = Peak::of(server.id());
        let bystander = Bystander::of(&server);
        let mut stalled: Vec<Raw> = (0..10).map(|_| Raw::greeted(server.port(), window)).collect();
        for raw in &mut stalled {
            for _ in 0..50 {
                raw.call(path, &all_keys(), false);
            }
        }
        // Those who read get theirs, however long the others do not.
        let reader = server.client();
        let started = Instant::now();
        let mut reads = 0;
        while started.elapsed() < Duration::from_secs(quick_or_long(8, 30)) {
            let limited = pb::RangeRequest { limit: 1_000, ..all_keys() };
            match reader.range(&limited) {
                Ok(response) => {
                    assert_eq!(response.kvs.len(), 1_000);
                    reads += 1;
                }
                Err(error) => assert_eq!(error.text(), "etcdserver: too many requests"),
            }
        }
        assert!(reads > 0, "no read was served beside those that are not taken");
        let (calls, longest) = bystander.finish();
        let growth = peak.growth();
        assert!(longest < Duration::from_secs(5), "somebody else's put and get took {longest:?}");
        report(
            &format!("500 answers of {path} unread, window {window}"),
            format_args!(
                "{:.0} MiB; beside them {reads} reads, {calls} puts and gets, longest {longest:?}",
                mib(growth)
            ),
        );
        assert!(growth < cores() * BUDGET + SLACK, "unread answers took {} MiB", mib(growth));
    }
    server.stop();
}

#[test]
fn a_socket_that_nobody_reads_takes_no_further_requests() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let client = server.client();
    load(&client, 0, 4, 1 << 20);
    let peak = Peak::of(server.id());
    let mut raw = Raw::greeted(server.port(), 0x7fff_ffff);
    raw.set_patience(Duration::from_secs(30));
    // 16,000 answers of 4 MiB each are asked for and none is read.
    let mut asked = 0;
    while asked < 16_000 {
        let stream = raw.call("/etcdserverpb.KV/Range", &all_keys(), false);
        assert_eq!(stream % 2, 1);
        asked += 1;
        if asked % 1_000 == 0 {
            client.put("a", "b").unwrap();
        }
    }
    let growth = peak.growth();
    report("16,000 answers of 4 MiB asked for on one connection, none read", format_args!("{:.0} MiB", mib(growth)));
    assert!(growth < BUDGET + 16_000 * 16 * KIB + SLACK, "it took {} MiB", mib(growth));
    server.stop();
}

#[test]
fn a_watch_that_is_not_read_costs_little_and_misses_nothing() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let client = server.client();
    client.put("key/", "first").unwrap();
    let create = pb::WatchCreateRequest { key: all_keys().key, range_end: all_keys().range_end, ..Default::default() };
    let request = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let mut watches: Vec<(Raw, u32)> = (0..20)
        .map(|_| {
            let mut raw = Raw::greeted(server.port(), 65_535);
            let stream = raw.call("/etcdserverpb.Watch/Watch", &request, true);
            assert!(raw.message::<pb::WatchResponse>(stream).unwrap().unwrap().created);
            (raw, stream)
        })
        .collect();
    let peak = Peak::of(server.id());
    let (rounds, keys) = (quick_or_long(4, 40), 10_000);
    for _ in 0..rounds {
        load(&client, 0, keys, 1_024);
    }
    let growth = peak.growth();
    let expected = rounds * keys;
    // The index's own changed pages are part of the growth: at most what a checkpoint waits for.
    report(
        "20 watches unread",
        format_args!("{expected} events of 1 KiB passed: {:.0} MiB, changed pages of the index included", mib(growth)),
    );
    let bound = cores() * WATCHES + CHANGED_PAGES + SLACK;
    assert!(growth < bound, "unread watches took {} MiB", mib(growth));
    let (raw, stream) = &mut watches[0];
    let (mut seen, mut revision) = (0, 0);
    while seen < expected {
        let response: pb::WatchResponse = raw.message(*stream).unwrap().expect("the watch goes on");
        assert!(!response.canceled, "{response:?}");
        for event in response.events {
            let kv = event.kv.unwrap();
            assert_eq!(kv.key, key(seen % keys), "event {seen}");
            assert!(kv.mod_revision >= revision, "events come in order");
            revision = kv.mod_revision;
            seen += 1;
        }
    }
    server.stop();
}

#[test]
fn twice_the_load_is_slowed_or_refused_and_leaves_no_trace() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).arg("--quota-backend-bytes=40000000000").start();
    let client = server.client();
    client.put("warm", "up").unwrap();
    let quiet = longest_of_puts(&client);
    let peak = Peak::of(server.id());
    let flood = Arc::new(Flood::default());
    let seconds = quick_or_long(6, 60);
    // Far more is under way at any time than the server can do in that time: 64 connections with 64 puts each, of 1, 4,
    // 16 and 64 KiB.
    for number in 0..64_usize {
        let client = server.client();
        for lane in 0..64_usize {
            Client::spawn(flood.clone().run(client.clone(), number * 64 + lane));
        }
    }
    std::thread::sleep(Duration::from_secs(seconds));
    let started = Instant::now();
    let served = client.put("beside", "it");
    let beside = started.elapsed();
    assert!(served.is_ok() || served == Err(too_many()), "{served:?}");
    flood.stop.store(true, Ordering::Relaxed);
    eventually("all puts are answered", || (flood.under_way.load(Ordering::Relaxed) == 0).then_some(()));
    let growth = peak.growth();
    let after = eventually("puts are quick again", || {
        Some(longest_of_puts(&client)).filter(|after| *after < 20 * quiet + Duration::from_millis(50))
    });
    let (done, refused) = (flood.done.load(Ordering::Relaxed), flood.refused.load(Ordering::Relaxed));
    report(
        "4,096 puts of 1 to 64 KiB under way",
        format_args!(
            "{} MB/s done, {done} puts, {refused} refused; {:.0} MiB, changed pages included; a put beside it took {beside:?}; longest of 50 before {quiet:?}, after {after:?}",
            done * 21_760 / 1_000_000 / seconds,
            mib(growth)
        ),
    );
    assert!(done > 0);
    assert_eq!(flood.failed.load(Ordering::Relaxed), 0, "every put is done or refused as one too many");
    let bound = cores() * BUDGET + PENDING + CHANGED_PAGES + SLACK;
    assert!(growth < bound, "it took {} MiB", mib(growth));
    server.stop();
}

fn too_many() -> CallError {
    CallError::Status { code: 2, message: "etcdserver: too many requests".to_owned() }
}

fn longest_of_puts(client: &Client) -> Duration {
    let one = |_| {
        let started = Instant::now();
        let _ = client.put("quiet", "value");
        started.elapsed()
    };
    (0..50).map(one).max().unwrap()
}

/// Puts under way, each followed by the next as soon as it is answered.
#[derive(Default)]
struct Flood {
    stop: AtomicBool,
    under_way: AtomicU64,
    done: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl Flood {
    async fn run(self: Arc<Flood>, client: Client, lane: usize) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let key = Bytes::from(format!("flood/{lane}"));
        let value = Bytes::from(vec![0; [1_024, 4_096, 16_384, 65_536][lane % 4]]);
        while !self.stop.load(Ordering::Relaxed) {
            let put = pb::PutRequest { key: key.clone(), value: value.clone(), ..Default::default() };
            match client.call_async::<_, pb::PutResponse>("etcdserverpb.KV/Put", &put).await {
                Ok(_) => self.done.fetch_add(1, Ordering::Relaxed),
                Err(error) if error == too_many() => self.refused.fetch_add(1, Ordering::Relaxed),
                Err(_) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            };
        }
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_call_whose_time_is_over_is_told_so_and_changes_nothing() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let client = server.client();
    let before = client.put("a", "before").unwrap();
    let mut raw = Raw::greeted(server.port(), 65_535);
    raw.set_patience(Duration::from_secs(20));
    let put =
        pb::PutRequest { key: Bytes::from_static(b"a"), value: Bytes::from_static(b"late"), ..Default::default() };
    for timeout in ["0n", "1n"] {
        let stream = raw.call_with("/etcdserverpb.KV/Put", &put, false, &[("grpc-timeout", timeout)]);
        let answer = loop {
            let frame = raw.frame().unwrap();
            if frame.stream == stream {
                break frame;
            }
        };
        let text = String::from_utf8_lossy(&answer.payload).into_owned();
        assert_eq!(answer.kind, HEADERS, "{text}");
        assert!(answer.flags & 1 != 0, "the status stands alone: {text}");
    }
    let stream = raw.call_with("/etcdserverpb.KV/Put", &put, false, &[("grpc-timeout", "5S")]);
    assert!(raw.message::<pb::PutResponse>(stream).unwrap().is_some());
    assert_eq!(client.revision().unwrap(), before + 1, "only the one in time was carried out");
}

#[test]
fn what_no_client_sends_is_cut_off() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let peak = Peak::of(server.id());
    let patience = Duration::from_secs(20);

    // Headers that go on for ever.
    let mut raw = Raw::greeted(server.port(), 65_535);
    raw.set_patience(patience);
    let mut sent = raw.try_send(&frame(HEADERS, 0, 1, &call_headers("/etcdserverpb.KV/Range", &[])));
    for _ in 0..10_000 {
        sent = sent && raw.try_send(&frame(CONTINUATION, 0, 1, &[0; 16]));
    }
    assert!(raw.is_closed(), "continuations go on for ever");

    // Calls that are reset at once.
    let mut raw = Raw::greeted(server.port(), 65_535);
    raw.set_patience(patience);
    let headers = call_headers("/etcdserverpb.KV/Range", &[]);
    let reset: Vec<u8> = (0..100_u32)
        .flat_map(|number| {
            let stream = 2 * number + 1;
            [frame(HEADERS, END_HEADERS, stream, &headers), frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
        })
        .collect();
    raw.send(&reset);
    assert!(raw.is_closed(), "calls are reset for ever");

    // A list of headers beyond the limit is refused, and a frame beyond it ends the connection.
    let mut raw = Raw::greeted(server.port(), 65_535);
    raw.set_patience(patience);
    let long = "x".repeat(15_000);
    let list = call_headers("/etcdserverpb.KV/Range", &[("x-one", &long), ("x-two", &long)]);
    raw.send(&frame(HEADERS, 0, 1, &list[..16_000]));
    raw.send(&frame(CONTINUATION, END_HEADERS, 1, &list[16_000..]));
    let answer = raw.frame().unwrap();
    assert!(answer.kind == HEADERS || answer.kind == RST_STREAM, "{answer:?}");
    let _ = raw.try_send(&frame(DATA, 0, 3, &vec![0; 20_000]));
    assert!(raw.is_closed(), "a frame beyond the limit is taken");

    assert!(peak.growth() < SLACK);
    server.client().put("a", "b").unwrap();
}

#[test]
fn more_calls_at_once_than_a_connection_may_have_are_refused() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).arg("--max-concurrent-streams=100").start();
    let mut raw = Raw::greeted(server.port(), 65_535);
    raw.set_patience(Duration::from_secs(20));
    let create = pb::WatchCreateRequest { key: Bytes::from_static(b"k"), ..Default::default() };
    let request = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    for _ in 0..101 {
        raw.call("/etcdserverpb.Watch/Watch", &request, true);
    }
    let refused = loop {
        let frame = raw.frame().unwrap();
        if frame.kind == RST_STREAM {
            break frame;
        }
    };
    assert_eq!(refused.stream, 201, "the last one is refused");
    assert_eq!(refused.payload, 7_u32.to_be_bytes(), "as a stream that may be tried again");
}

#[test]
fn a_transaction_that_reads_everything_many_times_is_streamed() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let client = server.client();
    let keys = quick_or_long(10_000, 200_000);
    load(&client, 0, keys, 1_024);
    let range = || pb::RequestOp { request: Some(Operation::RequestRange(Box::new(all_keys()))) };
    let txn = pb::TxnRequest { success: (0..8).map(|_| range()).collect(), ..Default::default() };
    let peak = Peak::of(server.id());
    let response: pb::TxnResponse = client.call("etcdserverpb.KV/Txn", &txn).unwrap();
    let growth = peak.growth();
    assert!(response.succeeded);
    assert_eq!(response.responses.len(), 8);
    for response in response.responses {
        let Some(pb::response_op::Response::ResponseRange(range)) = response.response else { panic!("no range") };
        assert_eq!(range.count, i64::try_from(keys).unwrap());
        assert_eq!(range.kvs.len(), keys);
        assert!((0..keys).all(|number| range.kvs[number].key == key(number)));
    }
    report("a transaction of 8 ranges", format_args!("{} MB: {:.0} MiB", 8 * keys * 1_100 / 1_000_000, mib(growth)));
    assert!(growth < 64 * MIB, "it took {} MiB", mib(growth));
    assert!(anonymous_bytes(server.id()) > 0);
    server.stop();
}

#[test]
fn a_write_that_would_answer_with_too_much_is_refused_before_it_is_done() {
    let folder = Folder::new();
    let server = Launch::new(&folder.data()).start();
    let client = server.client();
    load(&client, 0, 80, 1 << 20);
    let revision = client.revision().unwrap();
    let delete = pb::DeleteRangeRequest { key: all_keys().key, range_end: all_keys().range_end, prev_kv: true };
    let refused = client.call::<_, pb::DeleteRangeResponse>("etcdserverpb.KV/DeleteRange", &delete);
    assert_eq!(refused.unwrap_err(), too_many());
    assert_eq!(client.revision().unwrap(), revision, "nothing was deleted");
    let delete = pb::DeleteRangeRequest { range_end: key(8), ..delete };
    let deleted: pb::DeleteRangeResponse = client.call("etcdserverpb.KV/DeleteRange", &delete).unwrap();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (8, 8));
    let delete = pb::DeleteRangeRequest { range_end: all_keys().range_end, prev_kv: false, ..delete };
    let deleted: pb::DeleteRangeResponse = client.call("etcdserverpb.KV/DeleteRange", &delete).unwrap();
    assert_eq!(deleted.deleted, 72);
    server.stop();
}

#[test]
fn with_more_data_than_memory_reads_and_writes_at_once_are_not_killed() {
    let (limit, data_bytes) = quick_or_long((160 * MIB, 300_000_000), (512 * MIB, 8_000_000_000_usize));
    let seconds = quick_or_long(6, 60);
    let group = match MemoryGroup::new(limit) {
        Ok(group) => group,
        Err(reason) => return skip(&reason),
    };
    let folder = Folder::new();
    let launch = Launch::bare(group.command(executable()));
    let url = format!("--listen-client-urls=http://127.0.0.1:{}", launch.port());
    let launch = launch.arg("serve").arg("--data-dir").arg(folder.data()).arg(url);
    let mut server = launch.arg("--quota-backend-bytes=40000000000").start();
    // Half of the bytes in values of 32 KiB, half in such of 1 KiB.
    let (large, small) = (data_bytes / 2 / 32_768, data_bytes / 2 / 1_024);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (first, count, value_bytes) in
            [(0, large, 32_768), (large, small / 2, 1_024), (large + small / 2, small / 2, 1_024)]
        {
            let client = server.client();
            scope.spawn(move || load(&client, first, count, value_bytes));
        }
    });
    let loaded = started.elapsed();
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<JoinHandle<u64>> = (0..2)
        .map(|_| {
            let (mut raw, stop) = (Raw::greeted(server.port(), 1 << 20), stop.clone());
            std::thread::spawn(move || read_all_again_and_again(&mut raw, &stop))
        })
        .collect();
    let writers: Vec<JoinHandle<u64>> = (0..8)
        .map(|writer| {
            let (client, stop) = (server.client(), stop.clone());
            std::thread::spawn(move || write_again_and_again(&client, large + writer, small / 8, &stop))
        })
        .collect();
    let mut most = (0, 0);
    for _ in 0..seconds * 10 {
        std::thread::sleep(Duration::from_millis(100));
        let (anonymous, cached) = group.anonymous_and_cached_bytes();
        most = (most.0.max(anonymous), most.1.max(cached));
        assert!(server.is_alive(), "{}", server.output());
    }
    stop.store(true, Ordering::Relaxed);
    let read: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    let written: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    report(
        &format!("{} MB of data in {:.0} MiB of memory", data_bytes / 1_000_000, mib(limit)),
        format_args!(
            "loaded in {loaded:.0?}; then in {seconds} s {} MB read and {written} puts; peak {:.0} MiB, anonymous at most \
             {:.0} MiB, page cache at most {:.0} MiB, {} OOM kills",
            read / 1_000_000,
            mib(group.peak_bytes()),
            mib(most.0),
            mib(most.1),
            group.oom_kills()
        ),
    );
    assert_eq!(group.oom_kills(), 0);
    assert!(read > 0 && written > 0, "{read} bytes were read and {written} puts done");
    server.kill();
}

/// Streams all keys, over and over; how many bytes came.
fn read_all_again_and_again(raw: &mut Raw, stop: &AtomicBool) -> u64 {
    let mut read = 0;
    while !stop.load(Ordering::Relaxed) {
        let stream = raw.call("/etcdserverpb.KV/RangeStream", &all_keys(), false);
        while let Some(chunk) = raw.message::<pb::RangeStreamResponse>(stream).unwrap() {
            read +=
                chunk.range_response.map_or(0, |response| response.kvs.iter().map(|kv| kv.value.len() as u64).sum());
            if stop.load(Ordering::Relaxed) {
                return read;
            }
        }
    }
    read
}

/// Puts to every eighth key in turn; how many were done.
fn write_again_and_again(client: &Client, first: usize, count: usize, stop: &AtomicBool) -> u64 {
    let mut written = 0;
    for number in (0..count).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match client.put(key(first + 8 * number), vec![b'w'; 1_024]) {
            Ok(_) => written += 1,
            Err(error) => assert_eq!(error, too_many()),
        }
    }
    written
}
