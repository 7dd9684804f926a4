//! Measures how fast an index is streamed out and built up again, on one core and real files:
//! `cargo run --release -p garboard-storage --example snapshot_speed -- DIR [KEYS] [VERSIONS]`.
//!
//! It fills KEYS keys (1,000,000 by default) with VERSIONS (1) random puts each of 300-byte values, streams them out, and
//! builds a second index from the stream, with its checkpoints, and installs it. Processor time is the thread's.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::cast_precision_loss)]

use garboard_storage::{
    Applied, Export, ExportStep, Index, IndexConfig, IoFailure, IoOp, MappedFile, NeedPage, PageFile, Reader, Revision,
    limits,
};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Bench {
    index: Index,
    file: Arc<MappedFile>,
    /// Time spent in the kernel for the file.
    io_time: Duration,
    dirty_max: u64,
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).expect("under a second"))
}

impl Bench {
    fn create(path: &Path) -> Bench {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).expect("a file");
        let file = Arc::new(MappedFile::new(file, limits::RESERVE_BYTES).expect("a mapping"));
        let index = Index::create(IndexConfig::new(1, 2), Arc::clone(&file) as Arc<dyn PageFile>);
        Bench { index, file, io_time: Duration::ZERO, dirty_max: 0 }
    }

    /// Does all that a checkpoint wants.
    fn drive(&mut self) {
        while let Some(io) = self.index.poll_io() {
            let (file, began) = (self.file.file(), processor_time());
            match &io.op {
                IoOp::Write { offset, bytes } => file.write_all_at(bytes, *offset).expect("a write"),
                IoOp::Sync => file.sync_data().expect("a sync"),
                IoOp::Grow { new_size } => {
                    let flags = rustix::fs::FallocateFlags::empty();
                    rustix::fs::fallocate(file, flags, 0, *new_size).expect("room");
                    file.sync_data().expect("a sync");
                }
            }
            self.io_time += processor_time() - began;
            let done: Result<(), IoFailure> = Ok(());
            self.index.handle_io(io.id, done).expect("no failure");
        }
        while self.index.poll_checkpoint_done().is_some() {}
    }

    fn checkpoint(&mut self) {
        self.index.start_checkpoint(&[], &[]);
        self.drive();
    }
}

fn settle<T>(reader: &Reader, mut walk: impl FnMut() -> Result<T, NeedPage>) -> T {
    loop {
        match walk() {
            Ok(found) => return found,
            Err(NeedPage(page)) => reader.load(page).expect("a page"),
        }
    }
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("a folder");
    let mut number = |default| arguments.next().map_or(default, |text| text.parse::<u64>().expect("a number"));
    let (keys, versions) = (number(1_000_000), number(1));
    let (from, to) = (Path::new(&folder).join("from"), Path::new(&folder).join("to"));
    let mut sender = Bench::create(&from);
    for n in 0..keys * versions {
        let key =
            format!("/registry/pods/namespace-{:03}/{:016x}", n % 200, (n % keys).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let revision = Revision { main: n.cast_signed() + 2, sub: 0 };
        sender.index.put(revision, key.as_bytes(), &[b'v'; 300], 0).expect("resident");
        if n % 100 == 99 || n + 1 == keys * versions {
            sender.index.publish(Applied { index: n + 1, term: 1 }, revision.main);
            if sender.index.wants_checkpoint() {
                sender.checkpoint();
            }
        }
    }
    sender.checkpoint();
    println!("index of {} MB", sender.index.size().in_use_bytes / 1_000_000);

    let mut receiver = Bench::create(&to);
    receiver.checkpoint();
    receiver.index.begin_import();
    let reader = sender.index.reader();
    let mut export = Export::begin(&reader.pin().view(), 1);
    while !settle(&reader, || export.copy(&reader.pin().view())) {}
    let (mut exporting, mut importing, mut longest) = (Duration::ZERO, Duration::ZERO, [Duration::ZERO; 2]);
    let (mut bytes, began) = (0, Instant::now());
    receiver.io_time = Duration::ZERO;
    loop {
        let before = processor_time();
        let step = settle(&reader, || export.step(&reader.pin().view()));
        let took = processor_time() - before;
        exporting += took;
        longest[0] = longest[0].max(took);
        let chunk = match step {
            ExportStep::Chunk(chunk) => chunk,
            ExportStep::Again => continue,
            ExportStep::Done => break,
        };
        bytes += u64::try_from(chunk.bytes.len()).expect("small");
        let before = processor_time();
        while !receiver.index.can_import() {
            receiver.checkpoint();
        }
        let chunk_began = processor_time();
        receiver.index.import_chunk(&chunk.bytes).expect("a sound chunk");
        longest[1] = longest[1].max(processor_time() - chunk_began);
        importing += processor_time() - before;
        receiver.dirty_max = receiver.dirty_max.max(receiver.index.dirty_bytes());
    }
    let before = processor_time();
    receiver.checkpoint();
    receiver.index.start_install(&[], &[]);
    let install = Instant::now();
    receiver.drive();
    println!("flip: {:.1} ms", install.elapsed().as_secs_f64() * 1e3);
    importing += processor_time() - before;
    let building = importing.checked_sub(receiver.io_time).expect("a part of it");
    println!(
        "stream of {:.0} MB: export {:.0} MB/s, import {:.0} MB/s of processor time ({:.0} MB/s with the kernel's for the file)",
        bytes as f64 / 1e6,
        rate(bytes, exporting),
        rate(bytes, building),
        rate(bytes, importing)
    );
    println!(
        "both after one another, with the disk: {:.0} MB/s; longest step {:.2} ms out, {:.2} ms in; at most {} MB changed",
        rate(bytes, began.elapsed()),
        longest[0].as_secs_f64() * 1e3,
        longest[1].as_secs_f64() * 1e3,
        receiver.dirty_max / 1_000_000
    );
    println!("the new index has {} MB", receiver.index.size().in_use_bytes / 1_000_000);
    let _ = (std::fs::remove_file(&from), std::fs::remove_file(&to));
}
