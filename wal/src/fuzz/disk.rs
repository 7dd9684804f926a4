//! The files of a log in memory: sound ones of several shapes, and what a recovery reads of them.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;

use super::LOG_ID;
use crate::format::{BatchHeader, Checksum, HEADER_SIZE, decode_body};
use crate::limits::ALIGNMENT;
use crate::{
    Append, DiskError, Effect, Entry, EntryKind, HardState, Log, LogConfig, MetaFacts, Recovered, Recovery,
    RecoveryError, SegmentFile,
};

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;
/// Blocks that stay behind the last one that a sound log used: what a run changes should matter.
const SPARE_BLOCKS: usize = 2;

const _: () = assert!(ALIGNMENT == 4096 && BLOCK == 4096);

/// A segment file.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    pub(super) bytes: Vec<u8>,
    /// Blocks that the disk refuses to read.
    pub(super) unreadable: Vec<usize>,
}

/// The files of a log, and what its index says of it.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) config: LogConfig,
    pub(super) manifest: Vec<u8>,
    pub(super) segments: BTreeMap<(u16, u64), File>,
    pub(super) meta: MetaFacts,
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("files are small")
}

impl Disk {
    /// Does all that the log asks for.
    pub(super) fn settle(&mut self, log: &mut Log) {
        while let Some(effect) = log.poll_effect(Duration::ZERO) {
            let op = match effect {
                Effect::WriteManifest { op, bytes } => {
                    self.manifest = bytes;
                    op
                }
                Effect::PrepareSegment { op, shard, segment, size_bytes } => {
                    let file = File { bytes: vec![0; to_usize(size_bytes)], unreadable: Vec::new() };
                    self.segments.insert((shard, segment), file);
                    op
                }
                Effect::Write { op, shard, segment, offset, len } => {
                    let file = self.segments.get_mut(&(shard, segment)).expect("a log writes to segments it knows");
                    let offset = to_usize(offset);
                    log.fill(op, &mut file.bytes[offset..offset + len]);
                    op
                }
                Effect::Remove { op, shard, segment } => {
                    self.segments.remove(&(shard, segment)).expect("a log removes segments it knows");
                    op
                }
            };
            log.handle_done(Duration::ZERO, op, Ok(())).expect("nothing fails here");
        }
    }

    /// Opens the log.
    pub(super) fn recover(&self) -> Result<Recovered, RecoveryError> {
        let listed = self.segments.iter().map(|(&(shard, segment), file)| {
            let size_bytes = u64::try_from(file.bytes.len()).expect("lengths fit 64 bits");
            SegmentFile { shard, segment, size_bytes }
        });
        let mut recovery = Recovery::new(self.config, &self.manifest, listed.collect(), self.meta)?;
        while let Some(read) = recovery.poll_read() {
            let file = &self.segments[&(read.shard, read.segment)];
            let from = to_usize(read.offset);
            let blocks = from / BLOCK..(from + read.len).div_ceil(BLOCK);
            if file.unreadable.iter().any(|block| blocks.contains(block)) {
                recovery.handle_read(read, Err(DiskError::Io { errno: 5 }));
            } else {
                recovery.handle_read(read, Ok(&file.bytes[from..from + read.len]));
            }
        }
        recovery.finish()
    }

    /// Every header that verifies, wherever it is, with its entries if the body verifies and can be read too.
    pub(super) fn batches(&self) -> Vec<(BatchHeader, Vec<Entry>)> {
        let checksum = Checksum::new(LOG_ID);
        let mut batches = Vec::new();
        for file in self.segments.values() {
            for (number, block) in file.bytes.chunks_exact(BLOCK).enumerate() {
                let head = block.first_chunk::<HEADER_SIZE>().expect("a block holds a header");
                let Some((header, _)) = BatchHeader::decode(checksum, head) else { continue };
                let body_at = number * BLOCK + HEADER_SIZE;
                let body = file.bytes.get(body_at..body_at + to_usize(u64::from(header.body_len)));
                let body = body.filter(|body| checksum.of(body) == header.body_checksum).map(Bytes::copy_from_slice);
                let entries = body.and_then(|body| decode_body(&body, header.first_index, header.entry_count));
                batches.push((header, entries.unwrap_or_default()));
            }
        }
        batches
    }
}

/// The shape of a sound log: which of its habits a run begins with.
#[derive(Clone, Copy, Debug)]
struct Shape(usize);

impl Shape {
    const COUNT: usize = 12;

    fn shards(self) -> u16 {
        if self.0 % 4 == 3 { 2 } else { 1 }
    }

    /// The index whose anchor is in the meta page, if there was a checkpoint.
    fn checkpoint(self) -> Option<u64> {
        [None, Some(4), Some(9)][self.0 % 3]
    }

    /// Whether the process was started again before the last entries.
    fn restarts(self) -> bool {
        self.0 >= Shape::COUNT / 2
    }

    fn entry(index: u64, term: u64) -> Entry {
        // One is larger than a block, so that its batch is, and some are empty.
        let len = if index == 6 { 5_000 } else { index * 7 % 40 };
        let data = Bytes::from(vec![index.to_le_bytes()[0]; to_usize(len)]);
        let kind = if index == 3 { EntryKind::ConfChange } else { EntryKind::Normal };
        Entry { index, term, kind, context: data.slice(..data.len().min(2)), data }
    }

    fn build(self) -> Disk {
        let config = LogConfig {
            segment_size_bytes: 64 * 1024,
            batch_size_max_bytes: 8 * 1024,
            ..LogConfig::for_shards(self.shards())
        };
        let mut log = Log::create(config, LOG_ID).expect("a valid configuration");
        let meta = MetaFacts { anchor: Some(log.anchor(0)), applied_index: 0, applied_term: 0 };
        let mut disk = Disk { config, manifest: Vec::new(), segments: BTreeMap::new(), meta };
        disk.append(&mut log, 1..=3, 1);
        disk.append(&mut log, 4..=6, 2);
        disk.append(&mut log, 7..=8, 2);
        // A new leader replaces what was not committed.
        disk.append(&mut log, 8..=10, 3);
        log.handle_timeout(Duration::from_secs(1));
        disk.settle(&mut log);
        if let Some(index) = self.checkpoint() {
            let anchor = log.anchor(index);
            disk.meta =
                MetaFacts { anchor: Some(anchor), applied_index: index, applied_term: if index == 4 { 2 } else { 3 } };
            log.handle_checkpoint(&anchor);
            disk.settle(&mut log);
        }
        if self.restarts() {
            log = disk.recover().expect("a sound log opens").log;
        }
        disk.append(&mut log, 11..=11, 3);
        disk.append(&mut log, 12..=12, 4);
        disk.shorten();
        disk
    }
}

impl Disk {
    /// Appends entries of one term, one batch each but for the first two.
    fn append(&mut self, log: &mut Log, indexes: core::ops::RangeInclusive<u64>, term: u64) {
        for index in indexes {
            // Entry 8 is replaced, so that it is not committed the first time.
            let commit = if index <= 8 { (index - 1).min(6) } else { index - 1 };
            let hard_state = HardState { term, vote: 1, commit };
            log.append(Append { entries: vec![Shape::entry(index, term)], hard_state });
            if index != 1 {
                self.settle(log);
            }
        }
    }

    /// Takes the unused blocks off the files' ends.
    fn shorten(&mut self) {
        for file in self.segments.values_mut() {
            let used = file.bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last / BLOCK + 1);
            file.bytes.truncate((used + SPARE_BLOCKS) * BLOCK);
        }
    }
}

/// A sound log. Every number names one.
pub(super) fn sound(shape: u8) -> &'static Disk {
    static DISKS: OnceLock<Vec<Disk>> = OnceLock::new();
    let disks = DISKS.get_or_init(|| (0..Shape::COUNT).map(|shape| Shape(shape).build()).collect());
    &disks[usize::from(shape) % Shape::COUNT]
}
