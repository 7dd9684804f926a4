//! A shell over a simulated disk, and helpers that every test of the log shares.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod images;
pub mod model;
pub mod random;
pub mod rot;

use core::time::Duration;

use bytes::Bytes;
use garboard_simdisk as simdisk;
use garboard_simdisk::{Disk, WriteId};
use garboard_wal::{
    Append, AppendNumber, DiskError, Effect, Entry, EntryKind, HardState, Log, LogConfig, LogFailure, MetaFacts, OpId,
    Read, Recovered, Recovery, RecoveryError, SegmentFile,
};

pub const MANIFEST: &str = "wal/manifest";

pub fn segment_name(shard: u16, segment: u64) -> String {
    format!("wal/shard-{shard:04}/segment-{segment:08}")
}

/// A configuration with segments so small that a short run fills many of them.
pub fn small(shards: u16, writes_in_flight: u16) -> LogConfig {
    LogConfig {
        segment_size_bytes: 64 * 1024,
        batch_size_max_bytes: 16 * 1024,
        writes_in_flight_max: writes_in_flight,
        ..LogConfig::for_shards(shards)
    }
}

pub fn entry(index: u64, term: u64, len: usize) -> Entry {
    let seed = index.wrapping_mul(31).wrapping_add(term.wrapping_mul(17));
    let data: Vec<u8> = (0..len).map(|at| (seed.wrapping_add(at as u64) % 251) as u8).collect();
    let kind = match seed % 7 {
        0 => EntryKind::ConfChange,
        1 => EntryKind::ConfChangeV2,
        _ => EntryKind::Normal,
    };
    let context = Bytes::copy_from_slice(&data[..len.min(usize::try_from(seed % 5).expect("small"))]);
    Entry { index, term, kind, context, data: Bytes::from(data) }
}

pub fn append(first: u64, count: u64, term: u64, len: usize, commit: u64) -> Append {
    let entries = (first..first + count).map(|index| entry(index, term, len)).collect();
    Append { entries, hard_state: HardState { term, vote: 1, commit } }
}

fn disk_error(error: simdisk::DiskError) -> DiskError {
    match error {
        simdisk::DiskError::Full => DiskError::Full,
        simdisk::DiskError::ShortWrite { bytes } => DiskError::Short { bytes },
        _ => DiskError::Io { errno: 5 },
    }
}

/// A write that was submitted and not completed.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    pub op: OpId,
    pub write: WriteId,
    /// Shard, segment, offset, length.
    pub place: (u16, u64, u64, usize),
}

/// The kernel may do overlapping writes in any order, so none may ever be in flight together.
fn are_apart(one: (u16, u64, u64, usize), two: (u16, u64, u64, usize)) -> bool {
    let end = |place: (u16, u64, u64, usize)| place.2 + u64::try_from(place.3).expect("small");
    (one.0, one.1) != (two.0, two.1) || end(one) <= two.2 || end(two) <= one.2
}

/// The log, its disk, and what is between them.
pub struct Shell {
    pub disk: Disk,
    pub log: Log,
    pub now: Duration,
    pub in_flight: Vec<InFlight>,
    /// Where batches were written, in order: shard, segment, offset, length.
    pub written: Vec<(u16, u64, u64, usize)>,
    pub failure: Option<LogFailure>,
    /// The disk in the middle of what is done at once, step by step; recorded only if a test asks for it.
    pub steps: Option<Vec<Disk>>,
}

impl Shell {
    pub fn create(config: LogConfig, log_id: u128) -> Shell {
        Shell::over(Disk::new(), Log::create(config, log_id).expect("a valid configuration"))
    }

    pub fn over(disk: Disk, log: Log) -> Shell {
        Shell { disk, log, now: Duration::ZERO, in_flight: Vec::new(), written: Vec::new(), failure: None, steps: None }
    }

    /// Starts everything the log asks for; what is no batch is done at once.
    pub fn pump(&mut self) {
        while let Some(effect) = self.log.poll_effect(self.now) {
            if self.start(effect).is_err() {
                return;
            }
        }
    }

    /// Starts one effect. `Err` when it failed and poisoned the log.
    pub fn start(&mut self, effect: Effect) -> Result<(), ()> {
        match effect {
            Effect::WriteManifest { op, bytes } => {
                let result = self.write_manifest(&bytes);
                self.done(op, result)
            }
            Effect::PrepareSegment { op, shard, segment, size_bytes } => {
                let result = self.prepare(&segment_name(shard, segment), size_bytes);
                self.done(op, result)
            }
            Effect::Write { op, shard, segment, offset, len } => {
                let place = (shard, segment, offset, len);
                self.in_flight
                    .iter()
                    .for_each(|write| assert!(are_apart(write.place, place), "writes in flight overlap"));
                let mut buffer = vec![0xa5; len];
                self.log.fill(op, &mut buffer);
                match self.disk.submit(&segment_name(shard, segment), offset, &buffer) {
                    Ok(write) => {
                        self.in_flight.push(InFlight { op, write, place });
                        self.written.push(place);
                        Ok(())
                    }
                    Err(error) => self.done(op, Err(error)),
                }
            }
            Effect::Remove { op, shard, segment } => {
                let result = self.disk.remove(&segment_name(shard, segment));
                self.note_step();
                let result = result.and_then(|()| self.disk.sync_folder());
                self.done(op, result)
            }
        }
    }

    fn write_manifest(&mut self, bytes: &[u8]) -> Result<(), simdisk::DiskError> {
        let mut block = bytes.to_vec();
        block.resize(512, 0);
        self.disk.create("wal/manifest.tmp", 512)?;
        self.note_step();
        self.disk.write("wal/manifest.tmp", 0, &block)?;
        self.note_step();
        self.disk.sync("wal/manifest.tmp")?;
        self.note_step();
        self.disk.rename("wal/manifest.tmp", MANIFEST)?;
        self.note_step();
        self.disk.sync_folder()
    }

    fn prepare(&mut self, name: &str, size: u64) -> Result<(), simdisk::DiskError> {
        let temporary = format!("{name}.tmp");
        if let Err(error) = self.disk.create(&temporary, size) {
            self.disk.remove(&temporary)?;
            return Err(error);
        }
        self.note_step();
        self.disk.sync(&temporary)?;
        self.note_step();
        self.disk.rename(&temporary, name)?;
        self.note_step();
        self.disk.sync_folder()
    }

    fn note_step(&mut self) {
        if let Some(steps) = &mut self.steps {
            steps.push(self.disk.clone());
        }
    }

    fn done(&mut self, op: OpId, result: Result<(), simdisk::DiskError>) -> Result<(), ()> {
        self.log.handle_done(self.now, op, result.map_err(disk_error)).map_err(|failure| {
            // The first one is the reason; what completes later only hears that the log has failed.
            self.failure.get_or_insert(failure);
        })
    }

    /// Completes the write at this place in the list. `Err` when it failed and poisoned the log.
    pub fn complete(&mut self, at: usize) -> Result<(), ()> {
        let InFlight { op, write, .. } = self.in_flight.remove(at);
        let result = self.disk.complete(write);
        self.done(op, result)
    }

    /// Everything that waits becomes durable.
    pub fn settle(&mut self) {
        loop {
            self.pump();
            if self.failure.is_some() || self.in_flight.is_empty() || self.complete(0).is_err() {
                return;
            }
        }
    }

    pub fn append(&mut self, append: Append) -> AppendNumber {
        self.log.append(append)
    }

    /// Time passes until the next timeout fires; false when there is none.
    pub fn fire(&mut self) -> bool {
        let Some(at) = self.log.poll_timeout() else { return false };
        self.now = self.now.max(at);
        self.log.handle_timeout(self.now);
        true
    }
}

/// A recovery that has read nothing.
pub fn start_recovery(disk: &mut Disk, config: LogConfig, meta: MetaFacts) -> Result<Recovery, RecoveryError> {
    let mut manifest = vec![0; 512];
    disk.read(MANIFEST, 0, &mut manifest).expect("the manifest is there");
    let segments = disk.list().filter_map(|(name, size_bytes)| {
        let (shard, segment) = name.strip_prefix("wal/shard-")?.split_once("/segment-")?;
        Some(SegmentFile { shard: shard.parse().ok()?, segment: segment.parse().ok()?, size_bytes })
    });
    Recovery::new(config, &manifest, segments.collect(), meta)
}

/// What the disk gives for a read.
pub fn read_from(disk: &mut Disk, read: Read) -> Result<Vec<u8>, DiskError> {
    let mut bytes = vec![0; read.len];
    disk.read(&segment_name(read.shard, read.segment), read.offset, &mut bytes).map_err(disk_error)?;
    Ok(bytes)
}

/// Reads everything that recovery asks for.
pub fn read_all(disk: &mut Disk, config: LogConfig, meta: MetaFacts) -> Result<Recovery, RecoveryError> {
    let mut recovery = start_recovery(disk, config, meta)?;
    while let Some(read) = recovery.poll_read() {
        let bytes = read_from(disk, read);
        recovery.handle_read(read, bytes.as_deref().map_err(|error| *error));
    }
    Ok(recovery)
}

pub fn recover(disk: &mut Disk, config: LogConfig, meta: MetaFacts) -> Result<Recovered, RecoveryError> {
    read_all(disk, config, meta)?.finish()
}

/// The meta page of an index that has applied nothing.
pub fn genesis(log_id: u128) -> MetaFacts {
    MetaFacts { anchor: Some(garboard_wal::Anchor::genesis(log_id)), applied_index: 0, applied_term: 0 }
}

/// What a recovered log presents, for comparison.
pub fn presented(recovered: &Recovered) -> (Vec<Entry>, HardState) {
    (recovered.entries.clone(), recovered.hard_state)
}
