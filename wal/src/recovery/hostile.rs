//! Recovery of disks whose checksums are right and whose fields are not: a clear error or a sound log, never a panic and
//! never growth. Run more cases with `WAL_CASES=n`, replay one with `WAL_CASE=n`.

use core::time::Duration;
use std::collections::BTreeMap;

use bytes::Bytes;
use garboard_simdisk::Rng;

use super::*;
use crate::format::{BatchHeader, Checksum, HEADER_SIZE, Kind};
use crate::{Append, Effect, EntryKind};

const LOG_ID: u128 = 0x77;
const BLOCK: usize = 4096;

/// The files of a log that nothing ever happened to.
#[derive(Clone)]
struct Files {
    config: LogConfig,
    manifest: Vec<u8>,
    segments: BTreeMap<(u16, u64), Vec<u8>>,
    meta: MetaFacts,
}

fn config() -> LogConfig {
    LogConfig { segment_size_bytes: 64 * 1024, batch_size_max_bytes: 16 * 1024, ..LogConfig::for_shards(2) }
}

fn settle(log: &mut Log, manifest: &mut Vec<u8>, segments: &mut BTreeMap<(u16, u64), Vec<u8>>) {
    while let Some(effect) = log.poll_effect(Duration::ZERO) {
        let op = match effect {
            Effect::WriteManifest { op, bytes } => {
                *manifest = bytes;
                op
            }
            Effect::PrepareSegment { op, shard, segment, size_bytes } => {
                segments.insert((shard, segment), vec![0; usize::try_from(size_bytes).unwrap()]);
                op
            }
            Effect::Write { op, shard, segment, offset, len } => {
                let offset = usize::try_from(offset).unwrap();
                log.fill(op, &mut segments.get_mut(&(shard, segment)).unwrap()[offset..offset + len]);
                op
            }
            Effect::Remove { op, shard, segment } => {
                segments.remove(&(shard, segment));
                op
            }
        };
        log.handle_done(Duration::ZERO, op, Ok(())).unwrap();
    }
}

fn sound_files(rng: &mut Rng) -> Files {
    let mut log = Log::create(config(), LOG_ID).unwrap();
    let (mut manifest, mut segments) = (Vec::new(), BTreeMap::new());
    let mut meta = MetaFacts { anchor: Some(log.anchor(0)), applied_index: 0, applied_term: 0 };
    for index in 1..=30 {
        let data = Bytes::from(vec![7; rng.index(6_000)]);
        let term = 1 + index / 8;
        let entry = Entry { index, term, kind: EntryKind::Normal, context: Bytes::new(), data };
        let hard_state = HardState { term, vote: 1, commit: index - 1 };
        log.append(Append { entries: vec![entry], hard_state });
        settle(&mut log, &mut manifest, &mut segments);
        if index % 10 == 0 && rng.chance(50) {
            let anchor = log.anchor(index - 2);
            meta = MetaFacts { anchor: Some(anchor), applied_index: index - 2, applied_term: 1 + (index - 2) / 8 };
            log.handle_checkpoint(&anchor);
        }
        if rng.chance(20) {
            log.handle_timeout(Duration::from_secs(index));
            settle(&mut log, &mut manifest, &mut segments);
        }
    }
    Files { config: config(), manifest, segments, meta }
}

fn recover(files: &Files) -> Result<Recovered, RecoveryError> {
    let listed = files.segments.iter().map(|(&(shard, segment), bytes)| {
        let size_bytes = u64::try_from(bytes.len()).unwrap();
        SegmentFile { shard, segment, size_bytes }
    });
    let mut recovery = Recovery::new(files.config, &files.manifest, listed.collect(), files.meta)?;
    while let Some(read) = recovery.poll_read() {
        let from = usize::try_from(read.offset).unwrap();
        let bytes = &files.segments[&(read.shard, read.segment)][from..from + read.len];
        recovery.handle_read(read, Ok(bytes));
    }
    recovery.finish()
}

/// A value that breaks arithmetic where it is not guarded.
fn nasty(rng: &mut Rng, old: u64) -> u64 {
    match rng.below(9) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX / 2,
        3 => u64::MAX / 2 - 1,
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(1),
        6 => rng.below(64),
        7 => old.wrapping_add(rng.below(8)).wrapping_sub(4),
        _ => rng.next_u64(),
    }
}

/// Changes fields of one header, or bytes of its body, and makes both checksums right again.
fn forge(bytes: &mut [u8], rng: &mut Rng) {
    let checksum = Checksum::new(LOG_ID);
    for _ in 0..=rng.below(2) {
        if rng.chance(30) {
            let at = HEADER_SIZE + rng.index(40);
            bytes[at] = bytes[at].wrapping_add(u8::try_from(1 + rng.below(250)).unwrap());
            continue;
        }
        let width = if rng.chance(70) { 8 } else { 1 << rng.below(3) };
        let at = 8 + rng.index((HEADER_SIZE - 12 - 8) / width) * width;
        let mut old = [0; 8];
        old[..width].copy_from_slice(&bytes[at..at + width]);
        let new = nasty(rng, u64::from_le_bytes(old)).to_le_bytes();
        bytes[at..at + width].copy_from_slice(&new[..width]);
    }
    let body_len = usize::try_from(u32::from_le_bytes(bytes[108..112].try_into().unwrap())).unwrap();
    if let Some(body) = bytes.get(HEADER_SIZE..HEADER_SIZE.saturating_add(body_len)) {
        let sum = checksum.of(body);
        bytes[180..184].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = checksum.of(&bytes[..HEADER_SIZE - 4]);
    bytes[HEADER_SIZE - 4..HEADER_SIZE].copy_from_slice(&sum.to_le_bytes());
}

/// What every recovered log keeps, whatever was on the disk.
fn check(recovered: Recovered, meta: &MetaFacts) {
    let mut before = (meta.applied_index, meta.applied_term);
    for entry in &recovered.entries {
        assert_eq!(entry.index, before.0 + 1);
        assert!(entry.term >= before.1);
        before = (entry.index, entry.term);
    }
    let Recovered { mut log, hard_state, .. } = recovered;
    assert!(hard_state.commit >= meta.applied_index && hard_state.commit <= log.last().0);
    assert!(hard_state.term >= log.last().1);
    while let Some(effect) = log.poll_effect(Duration::ZERO) {
        if let Effect::Write { op, len, .. } = effect {
            log.fill(op, &mut vec![0; len]);
        }
    }
}

fn run(case: u64) -> bool {
    let mut rng = Rng::new(case);
    let mut files = sound_files(&mut rng);
    for _ in 0..=rng.below(3) {
        let keys: Vec<(u16, u64)> = files.segments.keys().copied().collect();
        let bytes = files.segments.get_mut(&keys[rng.index(keys.len())]).unwrap();
        let blocks: Vec<usize> = (0..bytes.len() / BLOCK).filter(|block| bytes[block * BLOCK] == b'g').collect();
        if blocks.is_empty() {
            continue;
        }
        let from = blocks[rng.index(blocks.len())] * BLOCK;
        if rng.chance(10) {
            let len = bytes.len();
            bytes.truncate(len - rng.index(len / 2));
        } else {
            forge(&mut bytes[from..], &mut rng);
        }
    }
    match recover(&files) {
        Ok(recovered) => {
            check(recovered, &files.meta);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

#[test]
fn forged_headers_with_right_checksums_neither_panic_nor_present_an_impossible_log() {
    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    if let Some(case) = variable("WAL_CASE") {
        run(case);
        return;
    }
    let mut opened = 0;
    let cases = variable("WAL_CASES").unwrap_or(1_500);
    for case in 0..cases {
        let outcome = std::panic::catch_unwind(|| run(case));
        let open = outcome.unwrap_or_else(|_| panic!("case {case} failed: replay it with WAL_CASE={case}"));
        opened += u64::from(open);
    }
    assert!(opened > cases / 20 && opened < cases, "{opened} of {cases} opened");
}

#[test]
fn a_whole_batch_of_an_older_generation_of_its_segment_is_missing() {
    // A run without a checkpoint: nothing was recycled.
    let runs = (0..64).map(|seed| sound_files(&mut Rng::new(seed)));
    let mut files = runs.into_iter().find(|files| files.meta.applied_index == 0).unwrap();
    let before = recover(&files).unwrap();
    let checksum = Checksum::new(LOG_ID);
    let last = before.report.sequence;
    let mut changed = 0;
    for bytes in files.segments.values_mut() {
        for from in (BLOCK..bytes.len()).step_by(BLOCK) {
            let head: &mut [u8; HEADER_SIZE] = bytes[from..].first_chunk_mut().unwrap();
            let Some((mut header, _)) = BatchHeader::decode(checksum, head) else { continue };
            if header.sequence == last && header.kind != Kind::Seal {
                header.generation = 0;
                header.encode(checksum, head);
                changed += 1;
            }
        }
    }
    assert_eq!(changed, 1);
    match recover(&files) {
        Ok(after) => assert_eq!(after.report.sequence, last - 1),
        Err(RecoveryError::Damaged(damage)) => assert_eq!((damage.sequence, damage.why), (last, Why::Hole)),
        Err(error) => panic!("{error}"),
    }
}
