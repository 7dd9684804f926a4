//! A shell in one thread: a member on a simulated disk, in simulated time.
//!
//! Everything random comes from one seed. Completions take random times and overtake each other; a crash keeps any subset
//! of what was not durable.

#![allow(dead_code)]

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use garboard_replica::Error;
use garboard_replica::envelope::{Envelope, Request, Response, Ticket};
use garboard_replica::events::EventBatch;
use garboard_replica::member::{Effect, Fatal, Member, MemberConfig, RecoveredState};
use garboard_replica::request::{Command, Context, KeyspaceId, Outcome, Principal};
use garboard_simdisk::{Disk, Rng, WriteId};
use garboard_storage::{
    Index, IndexConfig, IndexIo, IoFailure, IoOp, Map, OpenError, PageFile, PageId, Paged, Reader, View,
};
use garboard_wal as wal;

pub const INDEX_FILE: &str = "index";
const MEMBER_ID: u64 = 7;
const CLUSTER_ID: u64 = 9;
const RESERVE_BYTES: usize = 1 << 30;

pub fn context() -> Context {
    Context { keyspace: KeyspaceId(0), principal: Principal::Anonymous }
}

/// The index's file on the simulated disk.
struct SimFile {
    disk: Arc<Mutex<Disk>>,
    map: Map,
}

impl PageFile for SimFile {
    fn map(&self) -> &Map {
        &self.map
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), IoFailure> {
        self.disk.lock().unwrap().read(INDEX_FILE, offset, into).map_err(|_| IoFailure::Errno(5))?;
        self.map.store(offset, into);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.disk.lock().unwrap().size(INDEX_FILE).unwrap_or(0)
    }
}

/// What is under way, in order of completion.
#[derive(Debug)]
enum Pending {
    Manifest { op: wal::OpId, bytes: Vec<u8> },
    Prepare { op: wal::OpId, name: String, size: u64 },
    Write { op: wal::OpId, write: Result<WriteId, garboard_simdisk::DiskError> },
    Remove { op: wal::OpId, name: String },
    Index(IndexIo),
    Page(PageId),
}

/// What the sim lets tests break on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sabotage {
    /// Tell the member that a log write is durable before it is.
    pub early_completion: bool,
}

pub struct Sim {
    pub disk: Arc<Mutex<Disk>>,
    pub rng: Rng,
    pub now: Duration,
    pub config: MemberConfig,
    pub log_config: wal::LogConfig,
    pub index_config: IndexConfig,
    pub sabotage: Sabotage,
    manifest: Option<Vec<u8>>,
    file: Arc<SimFile>,
    pub member: Member,
    /// Completions by time and a number that keeps them apart.
    due: BinaryHeap<std::cmp::Reverse<(Duration, u64)>>,
    pending: BTreeMap<u64, Pending>,
    next_pending: u64,
    next_ticket: u64,
    /// Answers since they were last taken, in order.
    pub answers: Vec<(Ticket, Result<Response, Error>)>,
    pub events: Vec<Arc<EventBatch>>,
    last_event_revision: i64,
    /// The longest time that an I/O takes.
    pub io_max: Duration,
    /// How much longer a page takes.
    pub page_delay: Duration,
    pub starts: u64,
}

impl Sim {
    pub fn new(seed: u64) -> Sim {
        Sim::with(seed, MemberConfig::single(MEMBER_ID))
    }

    pub fn with(seed: u64, config: MemberConfig) -> Sim {
        let disk = Arc::new(Mutex::new(Disk::new()));
        let log_config = wal::LogConfig {
            segment_size_bytes: 1 << 20,
            batch_size_max_bytes: 256 << 10,
            ..wal::LogConfig::default()
        };
        let mut rng = Rng::new(seed);
        let mut index_config = IndexConfig::new(CLUSTER_ID, MEMBER_ID);
        // From one checkpoint after the other to none at all.
        if rng.chance(75) {
            index_config.checkpoint_bytes = (64 << 10) << rng.below(4);
            index_config.dirty_bytes_max = 2 * index_config.checkpoint_bytes;
        }
        let (member, file) = found(&disk, &config, log_config, &index_config, &mut rng, Duration::ZERO);
        Sim {
            disk,
            rng,
            now: Duration::ZERO,
            config,
            log_config,
            index_config,
            sabotage: Sabotage::default(),
            manifest: None,
            file,
            member,
            due: BinaryHeap::new(),
            pending: BTreeMap::new(),
            next_pending: 0,
            next_ticket: 0,
            answers: Vec::new(),
            events: Vec::new(),
            last_event_revision: 1,
            io_max: Duration::from_millis(2),
            page_delay: Duration::ZERO,
            starts: 1,
        }
    }

    pub fn reader(&self) -> Reader {
        self.member.reader()
    }

    /// Hands requests in, as one batch, and returns their tickets. Nothing runs yet.
    pub fn send(&mut self, requests: impl IntoIterator<Item = Request>) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let mut batch = Vec::new();
        for request in requests {
            self.next_ticket += 1;
            let ticket = Ticket { core: 0, sequence: self.next_ticket };
            tickets.push(ticket);
            batch.push(Envelope { ticket, context: context(), request });
        }
        self.member.handle_requests(self.now, batch);
        self.drain();
        tickets
    }

    pub fn write(&mut self, command: Command) -> Ticket {
        self.send([Request::Write(command)])[0]
    }

    /// Sends one request and runs until it is answered.
    pub fn call(&mut self, request: Request) -> Result<Response, Error> {
        let ticket = self.send([request])[0];
        self.wait(ticket)
    }

    pub fn wait(&mut self, ticket: Ticket) -> Result<Response, Error> {
        for _ in 0..1_000_000 {
            if let Some(at) = self.answers.iter().position(|(answered, _)| *answered == ticket) {
                return self.answers.remove(at).1;
            }
            assert!(self.step(), "nothing is left to happen and the request is not answered");
        }
        panic!("the request is not answered");
    }

    pub fn execute(&mut self, command: Command) -> Result<garboard_replica::request::Reply, Error> {
        match self.call(Request::Write(command))? {
            Response::Write(reply) => Ok(reply),
            other => panic!("a write was answered with {other:?}"),
        }
    }

    /// Runs until `until`, and sets the time to it.
    pub fn run_until(&mut self, until: Duration) {
        self.drain();
        while let Some(next) = self.next_event().filter(|next| *next <= until) {
            self.advance(next);
        }
        self.now = self.now.max(until);
    }

    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(self.now + duration);
    }

    /// Runs until nothing is due any more within a second.
    pub fn settle(&mut self) {
        self.run_for(Duration::from_secs(1));
    }

    /// One event. False when nothing will ever happen by itself.
    pub fn step(&mut self) -> bool {
        self.drain();
        let Some(next) = self.next_event() else { return false };
        self.advance(next);
        true
    }

    /// One event, if it is due within a while; otherwise the while passes.
    pub fn step_within(&mut self, limit: Duration) {
        self.drain();
        match self.next_event().filter(|next| *next <= self.now + limit) {
            Some(next) => self.advance(next),
            None => self.now += limit,
        }
    }

    fn next_event(&self) -> Option<Duration> {
        let io = self.due.peek().map(|std::cmp::Reverse((at, _))| *at);
        io.into_iter().chain(self.member.poll_timeout()).min()
    }

    fn advance(&mut self, to: Duration) {
        self.now = self.now.max(to);
        let io = self.due.peek().map(|std::cmp::Reverse((at, _))| *at).filter(|at| *at <= self.now);
        if io.is_some() {
            let std::cmp::Reverse((_, number)) = self.due.pop().unwrap();
            let pending = self.pending.remove(&number).unwrap();
            self.complete(pending).expect("the disk does not fail in this test");
        } else {
            self.member.handle_timeout(self.now);
        }
        self.drain();
    }

    /// Like [`Sim::step`], for tests in which I/O may fail.
    pub fn try_step(&mut self) -> Result<bool, Fatal> {
        self.drain();
        let Some(next) = self.next_event() else { return Ok(false) };
        self.now = self.now.max(next);
        let io = self.due.peek().map(|std::cmp::Reverse((at, _))| *at).filter(|at| *at <= self.now);
        if io.is_some() {
            let std::cmp::Reverse((_, number)) = self.due.pop().unwrap();
            let pending = self.pending.remove(&number).unwrap();
            self.complete(pending)?;
        } else {
            self.member.handle_timeout(self.now);
        }
        self.drain();
        Ok(true)
    }

    fn complete(&mut self, pending: Pending) -> Result<(), Fatal> {
        let now = self.now;
        let disk_error = |error: garboard_simdisk::DiskError| match error {
            garboard_simdisk::DiskError::Full => wal::DiskError::Full,
            garboard_simdisk::DiskError::ShortWrite { bytes } => wal::DiskError::Short { bytes },
            _ => wal::DiskError::Io { errno: 5 },
        };
        let mut disk = self.disk.lock().unwrap();
        let (op, result) = match pending {
            Pending::Manifest { op, bytes } => {
                self.manifest = Some(bytes);
                (op, Ok(()))
            }
            Pending::Prepare { op, name, size } => {
                let result = disk.create(&name, size).and_then(|()| disk.sync(&name)).and_then(|()| disk.sync_folder());
                if result.is_err() {
                    let _ = disk.remove(&name);
                }
                (op, result.map_err(disk_error))
            }
            Pending::Write { op, write } => {
                let result = match write {
                    Ok(_) if self.sabotage.early_completion => Ok(()),
                    Ok(write) => disk.complete(write),
                    Err(error) => Err(error),
                };
                (op, result.map_err(disk_error))
            }
            Pending::Remove { op, name } => {
                let result = disk.remove(&name).and_then(|()| disk.sync_folder());
                (op, result.map_err(disk_error))
            }
            Pending::Index(io) => {
                let result = match io.op {
                    IoOp::Write { offset, bytes } => {
                        let result = disk.write(INDEX_FILE, offset, &bytes);
                        self.file.map.store(offset, &bytes);
                        result
                    }
                    IoOp::Sync => disk.sync(INDEX_FILE),
                    IoOp::Grow { new_size } => disk.allocate(INDEX_FILE, new_size).and_then(|()| disk.sync(INDEX_FILE)),
                };
                drop(disk);
                let result = result.map_err(|error| match error {
                    garboard_simdisk::DiskError::Full => IoFailure::NoSpace,
                    _ => IoFailure::Errno(5),
                });
                return self.member.handle_index_done(now, io.id, result);
            }
            Pending::Page(page) => {
                drop(disk);
                self.member.reader().load(page).expect("pages are readable in this test");
                self.member.handle_page_loaded(now, page);
                return Ok(());
            }
        };
        drop(disk);
        self.member.handle_log_done(now, op, result)
    }

    /// Takes effects until there is none.
    pub fn drain(&mut self) {
        while let Some(effect) = self.member.poll_effect(self.now) {
            match effect {
                Effect::Answer { ticket, result } => {
                    self.check_answer(&result);
                    self.answers.push((ticket, result));
                }
                Effect::Events(events) => {
                    assert!(events.first_revision > self.last_event_revision, "events come in order");
                    assert!(events.last_revision <= self.member.reader().revision(), "events follow the publish");
                    let revisions: Vec<_> = events.events.iter().map(|event| event.revision).collect();
                    assert!(revisions.is_sorted_by(|a, b| a < b), "events of a batch are in order");
                    self.last_event_revision = events.last_revision;
                    self.events.push(events);
                }
                Effect::LoadPage(page) => self.start(Pending::Page(page)),
                Effect::Index(io) => self.start(Pending::Index(io)),
                Effect::Log(effect) => self.start_log(effect),
            }
        }
    }

    /// The answer to a write leaves after what it says is published, and after its events.
    fn check_answer(&self, result: &Result<Response, Error>) {
        let Ok(Response::Write(reply)) = result else { return };
        assert!(reply.revision <= self.member.reader().revision(), "an answer follows the publish");
        if matches!(reply.outcome, Outcome::Put(_)) {
            assert!(reply.revision <= self.last_event_revision, "an answer follows the events");
        }
    }

    fn start_log(&mut self, effect: wal::Effect) {
        match effect {
            wal::Effect::WriteManifest { op, bytes } => self.start(Pending::Manifest { op, bytes }),
            wal::Effect::PrepareSegment { op, shard, segment, size_bytes } => {
                let name = segment_name(shard, segment);
                self.start(Pending::Prepare { op, name, size: size_bytes });
            }
            wal::Effect::Write { op, shard, segment, offset, len } => {
                let mut bytes = vec![0; len];
                self.member.fill(op, &mut bytes);
                let write = self.disk.lock().unwrap().submit(&segment_name(shard, segment), offset, &bytes);
                self.start(Pending::Write { op, write });
            }
            wal::Effect::Remove { op, shard, segment } => {
                self.start(Pending::Remove { op, name: segment_name(shard, segment) });
            }
        }
    }

    fn start(&mut self, pending: Pending) {
        let max = u64::try_from(self.io_max.as_nanos()).unwrap();
        let mut at = self.now + Duration::from_nanos(self.rng.below(max) + 1);
        if matches!(pending, Pending::Page(_)) {
            at += self.page_delay;
        }
        self.next_pending += 1;
        self.due.push(std::cmp::Reverse((at, self.next_pending)));
        self.pending.insert(self.next_pending, pending);
    }

    /// Loses power and starts again. What was asked and not answered is lost to its clients.
    pub fn crash(&mut self) {
        self.disk.lock().unwrap().crash_at_random(&mut self.rng);
        self.restart();
    }

    /// The process ends without a word and starts again; the disk keeps what it was given.
    pub fn restart(&mut self) {
        // A manifest that was being replaced is there or is not: it is written beside the old one and renamed.
        let manifest = self.pending.values().find_map(|pending| match pending {
            Pending::Manifest { bytes, .. } => Some(bytes.clone()),
            _ => None,
        });
        if let Some(bytes) = manifest.filter(|_| self.rng.chance(50)) {
            self.manifest = Some(bytes);
        }
        self.due.clear();
        self.pending.clear();
        self.answers.clear();
        self.events.clear();
        self.last_event_revision = 1;
        self.starts += 1;
        self.config.boot += 1;
        self.now += Duration::from_millis(self.rng.below(3_000));
        self.open();
        self.drain();
    }

    fn open(&mut self) {
        // What a process that was killed had written may be read and still be lost with the power: before anything
        // rests on it, it is made durable.
        {
            let mut disk = self.disk.lock().unwrap();
            let names: Vec<String> = disk.list().map(|(name, _)| name.to_owned()).collect();
            names.iter().for_each(|name| disk.sync(name).unwrap());
            disk.sync_folder().unwrap();
        }
        self.file = Arc::new(SimFile { disk: self.disk.clone(), map: Map::anonymous(RESERVE_BYTES).unwrap() });
        let opened = Index::open(self.index_config.clone(), self.file.clone());
        let (index, facts) = match opened {
            Ok(opened) if self.manifest.is_some() => opened,
            // The member was never founded: its first meta page or its log's manifest did not become durable.
            Ok(_) | Err(OpenError::NoMeta(_)) => {
                let (member, file) =
                    found(&self.disk, &self.config, self.log_config, &self.index_config, &mut self.rng, self.now);
                (self.member, self.file) = (member, file);
                return;
            }
            Err(error) => panic!("the index does not open: {error}"),
        };
        let manifest = self.manifest.clone().unwrap();
        let log_id = wal::Manifest::from_bytes(&manifest).unwrap().log_id;
        let anchor = match facts.anchor.as_ref() {
            [] => wal::Anchor::genesis(log_id),
            bytes => wal::Anchor::from_bytes(bytes).unwrap(),
        };
        let meta = wal::MetaFacts {
            anchor: Some(anchor),
            applied_index: facts.applied.index,
            applied_term: facts.applied.term,
        };
        let recovered = self.recover(&manifest, meta);
        let state = RecoveredState::new(&self.config, &facts, recovered.hard_state, recovered.entries).unwrap();
        self.member = Member::open(self.now, self.config.clone(), recovered.log, index, state).unwrap();
    }

    fn recover(&self, manifest: &[u8], meta: wal::MetaFacts) -> wal::Recovered {
        let mut disk = self.disk.lock().unwrap();
        let segments = disk.list().filter_map(|(name, size_bytes)| {
            let (shard, segment) = name.strip_prefix("wal/shard-")?.split_once("/segment-")?;
            Some(wal::SegmentFile { shard: shard.parse().ok()?, segment: segment.parse().ok()?, size_bytes })
        });
        let segments = segments.collect();
        let mut recovery = wal::Recovery::new(self.log_config, manifest, segments, meta).unwrap();
        while let Some(read) = recovery.poll_read() {
            let mut bytes = vec![0; read.len];
            let result = disk.read(&segment_name(read.shard, read.segment), read.offset, &mut bytes);
            let result = result.map(|()| &bytes[..]).map_err(|_| wal::DiskError::Io { errno: 5 });
            recovery.handle_read(read, result);
        }
        recovery.finish().expect("the log opens after a crash")
    }
}

fn found(
    disk: &Arc<Mutex<Disk>>,
    config: &MemberConfig,
    log_config: wal::LogConfig,
    index_config: &IndexConfig,
    rng: &mut Rng,
    now: Duration,
) -> (Member, Arc<SimFile>) {
    {
        let mut disk = disk.lock().unwrap();
        let names: Vec<String> = disk.list().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            disk.remove(&name).unwrap();
        }
        disk.create(INDEX_FILE, 0).unwrap();
        disk.sync(INDEX_FILE).unwrap();
        disk.sync_folder().unwrap();
    }
    let file = Arc::new(SimFile { disk: disk.clone(), map: Map::anonymous(RESERVE_BYTES).unwrap() });
    let index = Index::create(index_config.clone(), file.clone());
    let log = wal::Log::create(log_config, u128::from(rng.next_u64())).unwrap();
    (Member::create(now, config.clone(), log, index), file)
}

fn segment_name(shard: u16, segment: u64) -> String {
    format!("wal/shard-{shard:04}/segment-{segment:08}")
}

/// Reads the published state, loading pages as they are missing.
pub fn read<T>(reader: &Reader, mut read: impl FnMut(&View<'_>) -> Paged<T>) -> T {
    let snapshot = reader.pin();
    loop {
        match read(&snapshot.view()) {
            Ok(value) => return value,
            Err(need) => reader.load(need.0).expect("pages are readable in this test"),
        }
    }
}
