//! Measures the index on a real file: `cargo run --release -p garboard-storage --example index_speed -- DIR [KEYS]`.
//!
//! It fills KEYS keys (1,000,000 by default) with 300-byte values, then measures random puts in published batches of
//! 100 with checkpoints driven between them, lookups, counts, scans, pins, and opening with cold pages. Times are the
//! thread's processor time, but for those of the disk.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::cast_possible_truncation)]

use garboard_storage::{
    Applied, Bounds, Index, IndexConfig, IndexIo, IoFailure, IoOp, MappedFile, PageFile, Reader, Revision, limits,
};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VALUE: [u8; 300] = [b'v'; 300];
const BATCH: u64 = 100;
/// Revisions that one step of compaction looks at, as a member does.
const STEP_RECORDS: usize = 64;

struct Bench {
    index: Index,
    file: Arc<MappedFile>,
    revision: i64,
    applied: u64,
    written: u64,
    writes: u64,
    io_time: Duration,
    checkpoints: u64,
    /// The longest publication, start of a checkpoint, poll for an effect and outcome of one.
    longest: [Duration; 4],
}

/// The processor time of this thread, which other load on the machine does not change much.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).expect("under a second"))
}

/// A well-mixed permutation of the keys.
fn mix(i: u64, keys: u64) -> u64 {
    let mut x = i.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) % keys
}

fn key(number: u64) -> Vec<u8> {
    format!("/registry/pods/namespace-{:03}/pod-{number:08}", number % 200).into_bytes()
}

impl Bench {
    fn perform(&mut self, io: &IndexIo) {
        let file = self.file.file();
        match &io.op {
            IoOp::Write { offset, bytes } => {
                self.written += u64::try_from(bytes.len()).expect("a length");
                self.writes += 1;
                file.write_all_at(bytes, *offset).expect("write");
            }
            IoOp::Sync => file.sync_data().expect("sync"),
            IoOp::Grow { new_size } => {
                rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, *new_size).expect("grow");
                file.sync_data().expect("sync");
            }
        }
    }

    fn time<T>(&mut self, which: usize, run: impl FnOnce(&mut Index) -> T) -> T {
        let started = now();
        let done = run(&mut self.index);
        self.longest[which] = self.longest[which].max(now() - started);
        done
    }

    /// One effect; its time does not count as the index's.
    fn io(&mut self) -> bool {
        let Some(io) = self.time(2, Index::poll_io) else { return false };
        let started = Instant::now();
        self.perform(&io);
        self.io_time += started.elapsed();
        let result: Result<(), IoFailure> = Ok(());
        self.time(3, |index| index.handle_io(io.id, result)).expect("the index lives");
        self.checkpoints += u64::from(self.index.poll_checkpoint_done().is_some());
        true
    }

    fn checkpoint(&mut self) {
        self.index.start_checkpoint(b"anchor", b"conf");
        while self.io() {}
    }

    fn put(&mut self, number: u64) {
        self.revision += 1;
        let revision = Revision { main: self.revision, sub: 0 };
        let key = key(number);
        self.index.prefetch(&key).expect("resident");
        self.index.put(revision, &key, &VALUE, 0).expect("resident");
    }

    fn publish(&mut self) {
        self.applied += 1;
        let (applied, revision) = (Applied { index: self.applied, term: 1 }, self.revision);
        self.time(0, |index| index.publish(applied, revision));
    }

    /// Puts in batches; checkpoints as the index wants them. Gives the time of the puts alone.
    fn puts(&mut self, count: u64, number: impl Fn(u64) -> u64) -> Duration {
        let mut spent = Duration::ZERO;
        for batch in 0..count / BATCH {
            let started = now();
            for i in 0..BATCH {
                self.put(number(batch * BATCH + i));
            }
            self.publish();
            spent += now() - started;
            if self.index.wants_checkpoint() {
                self.time(1, |index| index.start_checkpoint(b"anchor", b"conf"));
            }
            for _ in 0..4 {
                self.io();
            }
            while self.index.must_wait() && self.io() {}
        }
        spent
    }
}

fn report(what: &str, spent: Duration, count: u64) {
    let each = spent.as_secs_f64() * 1e9 / f64::from(u32::try_from(count).expect("a small count"));
    println!("{what:<58} {each:>10.0} ns each, {count} in {:.3} s", spent.as_secs_f64());
}

fn timed(what: &str, count: u64, mut run: impl FnMut(u64)) {
    let started = now();
    for i in 0..count {
        run(i);
    }
    report(what, now() - started, count);
}

fn settle<T>(reader: &Reader, mut walk: impl FnMut() -> garboard_storage::Paged<T>) -> (T, u64) {
    let mut loads = 0;
    loop {
        match walk() {
            Ok(found) => return (found, loads),
            Err(need) => {
                reader.load(need.0).expect("a sound page");
                loads += 1;
            }
        }
    }
}

fn measure_reads(bench: &Bench, keys: u64, kind: &str) {
    let reader = bench.index.reader();
    timed("pin and unpin", 1_000_000, |_| {
        black_box(reader.pin());
    });
    let snapshot = reader.pin();
    let view = snapshot.view();
    let names: Vec<Vec<u8>> = (0..1_000_000.min(keys)).map(|i| key(mix(i, keys))).collect();
    let count = u64::try_from(names.len()).expect("a count");
    let name = |i: u64| &names[usize::try_from(i % count).expect("an index")];
    timed(&format!("find, random keys, {kind}"), count, |i| {
        black_box(settle(&reader, || view.find(name(i), i64::MAX)));
    });
    timed("find, the same 1,000 keys", 1_000_000, |i| {
        black_box(view.find(name(i % 1_000), i64::MAX).expect("resident"));
    });
    let older = bench.revision - 10_000;
    timed("find 10,000 revisions back, random keys", 100_000, |i| {
        black_box(settle(&reader, || view.find(name(i), older)));
    });
    let mut value = Vec::new();
    timed("find and value, random keys", 100_000, |i| {
        let version = settle(&reader, || view.find(name(i), i64::MAX)).0.expect("the key is there");
        value.clear();
        settle(&reader, || view.value(version.modified, &mut value));
    });
    let prefix = Bounds { start: b"/registry/pods/namespace-100/", end: Some(b"/registry/pods/namespace-1000") };
    timed("count of a range of 1/200 of the keys", 100_000, |_| {
        black_box(view.count(prefix, i64::MAX).expect("resident"));
    });
    timed("the same count 10,000 revisions back", 20, |_| {
        black_box(settle(&reader, || view.count(prefix, older)));
    });
    let mut cursor = view.cursor(Bounds::ALL, i64::MAX);
    timed("scan of keys, each", keys, |_| {
        assert!(settle(&reader, || cursor.next().map(|next| next.is_some())).0);
    });
    let mut events = view.events(Revision::default());
    timed("events with key and value, each", keys, |_| {
        assert!(settle(&reader, || events.next()).0.is_some());
    });
}

fn open_file(path: &str, fresh: bool) -> File {
    OpenOptions::new().read(true).write(true).create(fresh).truncate(fresh).open(path).expect("the file opens")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("usage: index_speed DIR [KEYS] [CHECKPOINT_MIB]");
    let keys: u64 = arguments.next().map_or(1_000_000, |keys| keys.parse().expect("a number"));
    let path = format!("{folder}/index-speed");
    let mut config = IndexConfig::new(1, 2);
    if let Some(mib) = arguments.next() {
        config.checkpoint_bytes = mib.parse::<u64>().expect("a number") << 20;
        config.dirty_bytes_max = 2 * config.checkpoint_bytes;
    }
    let file = Arc::new(MappedFile::new(open_file(&path, true), limits::RESERVE_BYTES).expect("the file maps"));
    let index = Index::create(config.clone(), Arc::clone(&file) as Arc<dyn PageFile>);
    let mut bench = Bench {
        index,
        file,
        revision: 1,
        applied: 0,
        written: 0,
        writes: 0,
        io_time: Duration::ZERO,
        checkpoints: 0,
        longest: [Duration::ZERO; 4],
    };
    bench.checkpoint();
    // A multiplicative step that shares no factor with the key count visits each key once, in no order.
    let spent = bench.puts(keys, |i| i * 611_953 % keys);
    report("fill in random order, put + publish, batches of 100", spent, keys);
    bench.checkpoint();
    println!("{:?}", bench.index.size());

    let (written, writes, checkpoints) = (bench.written, bench.writes, bench.checkpoints);
    bench.io_time = Duration::ZERO;
    for round in 0..3 {
        let puts = keys.min(500_000);
        let spent = bench.puts(puts, |i| mix(i + round * 7_919, keys));
        report("random put + publish, batches of 100", spent, puts);
    }
    bench.checkpoint();
    let puts = 3 * keys.min(500_000);
    println!(
        "  checkpoints {}: {} bytes a put, {} bytes a write, i/o {:.2} s",
        bench.checkpoints - checkpoints,
        (bench.written - written) / puts,
        (bench.written - written) / (bench.writes - writes).max(1),
        bench.io_time.as_secs_f64()
    );
    let mut alone = Duration::ZERO;
    for i in 0..50_000 {
        let started = now();
        bench.put(mix(i, keys));
        bench.publish();
        alone += now() - started;
    }
    report("random put + publish, each alone", alone, 50_000);
    bench.checkpoint();
    let [publish, start, poll, handle] = bench.longest;
    println!("longest: publish {publish:?}, start_checkpoint {start:?}, poll_io {poll:?}, handle_io {handle:?}");
    measure_reads(&bench, keys, "hot");
    // The allocator tidies up after the million names of the measurement here, and not in the first compaction step.
    black_box(vec![0u8; 1 << 20]);
    bench.index.set_compacted(bench.revision - 1_000);
    bench.publish();
    let started = Instant::now();
    let mut steps = Vec::new();
    while bench.index.compaction_pending() {
        let step = now();
        bench.index.compaction_step(STEP_RECORDS).expect("resident");
        steps.push(now() - step);
        if bench.index.wants_checkpoint() {
            bench.index.start_checkpoint(b"anchor", b"conf");
        }
        bench.io();
        while bench.index.must_wait() && bench.io() {}
    }
    steps.sort();
    let at = |share: f64| steps.get((steps.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!(
        "compaction: {} steps of {STEP_RECORDS} in {:?} (with i/o {:?}); a step p50 {:?}, p99 {:?}, p99.9 {:?}, longest {:?}",
        steps.len(),
        steps.iter().sum::<Duration>(),
        started.elapsed(),
        at(0.5),
        at(0.99),
        at(0.999),
        steps.last().copied().unwrap_or_default(),
    );
    bench.checkpoint();
    println!("{:?}", bench.index.size());

    let revision = bench.revision;
    drop(bench);
    let file = open_file(&path, false);
    file.sync_all().expect("sync");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    let file = Arc::new(MappedFile::new(file, limits::RESERVE_BYTES).expect("the file maps"));
    let started = Instant::now();
    let (index, facts) = Index::open(config, Arc::clone(&file) as Arc<dyn PageFile>).expect("the index opens");
    println!("open: {:?}", started.elapsed());
    assert_eq!(facts.revision, revision);
    let reader = index.reader();
    let snapshot = reader.pin();
    let (started, mut loads) = (now(), 0);
    for i in 0..20_000 {
        loads += settle(&reader, || snapshot.view().find(&key(mix(i, keys)), i64::MAX)).1;
    }
    report("find, random keys, cold pages", now() - started, 20_000);
    println!("  {loads} pages loaded");
    let started = Instant::now();
    index.check().expect("the index is sound");
    println!("check of everything: {:?}", started.elapsed());
    std::fs::remove_file(&path).expect("the file goes");
}
