//! Whole recoveries: an input names a sound log and lists what happened to its files.

use super::disk::{BLOCK, Disk, File, sound};
use super::{LOG_ID, sign};
use crate::format::{Anchor, BatchHeader, Checksum, HEADER_SIZE, Kind};
use crate::{Entry, HardState, MetaFacts, Recovered, RecoveryError};

/// Most changes of one run: what comes after so many is noise.
const CHANGES_MAX: usize = 24;
/// Longest file that a change makes.
const FILE_BYTES_MAX: usize = 96 * 1024;

/// The header's fields that have no neighbours of their width: where they begin, and their width.
const FIELDS: [(usize, usize); 31] = [
    (8, 2),
    (10, 1),
    (11, 1),
    (12, 4),
    (16, 8),
    (32, 2),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 8),
    (88, 8),
    (96, 8),
    (104, 4),
    (108, 4),
    (112, 8),
    (120, 8),
    (128, 8),
    (136, 8),
    (144, 8),
    (152, 8),
    (160, 8),
    (168, 8),
    (176, 4),
    (180, 4),
    (184, 4),
    (34, 4),
    (24, 8),
    (38, 2),
    (0, 8),
];

/// An input, read from its front; zeros follow its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn index(&mut self, len: usize) -> usize {
        usize::from(self.u8()) % len.max(1)
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }

    /// A number like `old`, or one that breaks arithmetic where it is not guarded.
    fn number(&mut self, old: u64) -> u64 {
        match self.u8() {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX / 2,
            3 => 1 << 62,
            4 => (1 << 62) - 1,
            5 => self.u64(),
            6 => u64::from(self.u8()),
            other => old.wrapping_add(u64::from(other)).wrapping_sub(64),
        }
    }
}

/// Recovers what an input says is on the disk. A sound log is opened or a damaged one refused; never does it panic, take
/// memory for what is only claimed, or present an entry or a hard state that no batch on the disk holds. Opened again
/// after its epoch start was written, it presents the same.
pub fn recovery(data: &[u8]) {
    let mut input = Input(data);
    let mut disk = sound(input.u8()).clone();
    for _ in 0..CHANGES_MAX {
        if input.0.is_empty() {
            break;
        }
        change(&mut disk, &mut input);
    }
    let Ok(recovered) = disk.recover() else { return };
    check_sound(&recovered, &disk.meta);
    check_origin(&recovered, &disk);
    let (entries, hard_state, last) = (recovered.entries, recovered.hard_state, recovered.log.last());
    let mut log = recovered.log;
    disk.settle(&mut log);
    let again = match disk.recover() {
        Ok(again) => again,
        // A forged counter had one step left.
        Err(RecoveryError::Exhausted) => return,
        Err(error) => panic!("a log that was open is refused: {error}"),
    };
    assert!(again.entries == entries, "the entries differ when the log is opened again");
    assert!(again.hard_state == hard_state, "the hard state differs when the log is opened again");
    assert!(again.log.last() == last, "the log's end differs when it is opened again");
}

/// What every opened log keeps.
fn check_sound(recovered: &Recovered, meta: &MetaFacts) {
    let mut before = (meta.applied_index, meta.applied_term);
    for entry in &recovered.entries {
        assert!(entry.index == before.0 + 1, "entries follow the applied one without gaps");
        assert!(entry.term >= before.1, "terms never fall");
        before = (entry.index, entry.term);
    }
    let (last_index, last_term) = recovered.log.last();
    let HardState { term, commit, .. } = recovered.hard_state;
    assert!(meta.applied_index <= commit && commit <= last_index, "the commit index is within the log");
    assert!(term >= last_term, "the term is that of the last entry or later");
}

/// What is presented was in a batch whose checksums are right.
fn check_origin(recovered: &Recovered, disk: &Disk) {
    let batches = disk.batches();
    let held = |entry: &Entry| batches.iter().any(|(_, entries)| entries.contains(entry));
    assert!(recovered.entries.iter().all(held), "an entry is presented that no batch holds");
    let anchored = disk.meta.anchor.iter().map(|anchor| anchor.hard_state);
    let mut states = batches.iter().map(|(header, _)| header.hard_state).chain(anchored);
    let applied = disk.meta.applied_index;
    let is_presented =
        |state: HardState| HardState { commit: state.commit.max(applied), ..state } == recovered.hard_state;
    assert!(states.any(is_presented), "a hard state is presented that no batch holds");
}

/// One change of the disk.
fn change(disk: &mut Disk, input: &mut Input<'_>) {
    let kind = input.u8() % 16;
    match kind {
        0 => return change_meta(disk, input),
        1 => return change_manifest(disk, input),
        _ => {}
    }
    let keys: Vec<(u16, u64)> = disk.segments.keys().copied().collect();
    if keys.is_empty() {
        return;
    }
    let key = keys[input.index(keys.len())];
    let file = disk.segments.get_mut(&key).expect("one of the keys");
    match kind {
        2 => {
            disk.segments.remove(&key);
        }
        3 => {
            // Another number, perhaps in another shard.
            let file = disk.segments.remove(&key).expect("one of the keys");
            let key = (u16::from(input.u8()) % 3, input.number(key.1));
            disk.segments.insert(key, file);
        }
        4 => {
            let len = usize::from(input.u8()) * 512;
            file.bytes.resize(len.min(FILE_BYTES_MAX), 0);
        }
        5 => {
            let block = pick_block(file, input);
            file.unreadable.push(block);
        }
        6 => {
            // A torn write: some of a block's sectors are not there.
            let (block, lost) = (pick_block(file, input), input.u8());
            for sector in (0..8).filter(|sector| lost >> sector & 1 == 1) {
                let from = block * BLOCK + sector * 512;
                file.bytes.iter_mut().skip(from).take(512).for_each(|byte| *byte = 0);
            }
        }
        7 => {
            // Rot.
            let (block, at, xor) = (pick_block(file, input), input.u64(), input.u8());
            let at = block * BLOCK + usize::try_from(at % 4096).expect("small");
            file.bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= xor);
        }
        8 | 9 => {
            // A batch at another place, as a misdirected write leaves it or as if it belonged there.
            let from = pick_block(file, input);
            let block = file.bytes.get(from * BLOCK..(from + 1) * BLOCK).map(<[u8]>::to_vec);
            let other = keys[input.index(keys.len())];
            let file = disk.segments.get_mut(&other).expect("one of the keys");
            let to = pick_block(file, input);
            if let (Some(block), Some(target)) = (block, file.bytes.get_mut(to * BLOCK..(to + 1) * BLOCK)) {
                target.copy_from_slice(&block);
                if kind == 9 {
                    place(file, other, to);
                }
            }
        }
        10 => forge_next(file, key, input),
        11 => {
            let block = pick_block(file, input);
            let at = usize::from(input.u8());
            if let Some(byte) = file.bytes.get_mut(block * BLOCK + HEADER_SIZE + at) {
                *byte = byte.wrapping_add(input.u8());
                resign(file, block);
            }
        }
        _ => {
            let block = pick_block(file, input);
            let (at, width) = FIELDS[input.index(FIELDS.len())];
            if let Some(field) = file.bytes.get_mut(block * BLOCK + at..block * BLOCK + at + width) {
                let mut old = [0; 8];
                old[..width].copy_from_slice(field);
                let new = input.number(u64::from_le_bytes(old)).to_le_bytes();
                field.copy_from_slice(&new[..width]);
                resign(file, block);
            }
        }
    }
}

/// A block of a file, preferably one where a batch begins.
fn pick_block(file: &File, input: &mut Input<'_>) -> usize {
    let blocks = file.bytes.len() / BLOCK;
    let choice = input.u8();
    if choice >= 128 {
        return usize::from(choice) % blocks.max(1);
    }
    let starts = || (0..blocks).filter(|block| file.bytes[block * BLOCK] == b'g');
    starts().nth(usize::from(choice) % starts().count().max(1)).unwrap_or(0)
}

/// Makes both checksums of the batch in a block right.
fn resign(file: &mut File, block: usize) {
    let Some(bytes) = file.bytes.get_mut(block * BLOCK..) else { return };
    if bytes.len() < BLOCK {
        return;
    }
    let body_len = u32::from_le_bytes(bytes[108..112].try_into().expect("four bytes"));
    let body_len = usize::try_from(body_len).expect("32 bits fit");
    if let Some(body) = bytes.get(HEADER_SIZE..HEADER_SIZE.saturating_add(body_len)) {
        let sum = Checksum::new(LOG_ID).of(body);
        bytes[180..184].copy_from_slice(&sum.to_le_bytes());
    }
    sign(&mut bytes[..HEADER_SIZE], LOG_ID);
}

fn header_of(file: &File, block: usize) -> Option<(BatchHeader, u32)> {
    let head = file.bytes.get(block * BLOCK..)?.first_chunk::<HEADER_SIZE>()?;
    BatchHeader::decode(Checksum::new(LOG_ID), head)
}

fn write_header(file: &mut File, block: usize, header: &BatchHeader) {
    if let Some(head) = file.bytes.get_mut(block * BLOCK..).and_then(|bytes| bytes.first_chunk_mut::<HEADER_SIZE>()) {
        header.encode(Checksum::new(LOG_ID), head);
    }
}

/// Makes the batch in a block say that it belongs there.
fn place(file: &mut File, (shard, segment): (u16, u64), block: usize) {
    let Some((mut header, _)) = header_of(file, block) else { return };
    header.offset = u64::try_from(block * BLOCK).expect("files are small");
    (header.shard, header.segment) = (shard, segment);
    write_header(file, block, &header);
}

/// Continues the chain behind the batch in one block with one in another, which only its own log could have written.
fn forge_next(file: &mut File, key: (u16, u64), input: &mut Input<'_>) {
    let (from, to) = (pick_block(file, input), pick_block(file, input));
    let Some((before, checksum)) = header_of(file, from).filter(|(header, _)| header.kind != Kind::Seal) else {
        return;
    };
    let HardState { term, vote, commit } = before.hard_state;
    if [before.sequence, before.epoch, before.generation, before.first_index, term].iter().any(|field| *field > 1 << 61)
    {
        return;
    }
    let starts_epoch = input.u8().is_multiple_of(4);
    let header = BatchHeader {
        kind: if starts_epoch { Kind::EpochStart } else { Kind::State },
        epoch: before.epoch + u64::from(starts_epoch),
        generation: header_of(file, to).map_or(before.generation, |(header, _)| header.generation),
        sequence: before.sequence + 1,
        durable_sequence: if starts_epoch {
            before.sequence
        } else {
            before.sequence.saturating_sub(u64::from(input.u8() % 2))
        },
        cut: if starts_epoch { before.sequence } else { 0 },
        first_index: before.last_index() + 1,
        entry_count: 0,
        body_len: 0,
        term_before: before.last_term,
        hard_state: HardState { term: term + u64::from(input.u8() % 2), vote, commit },
        previous: before.link(checksum),
        body_checksum: Checksum::new(LOG_ID).of(&[]),
        ..before
    };
    write_header(file, to, &header);
    place(file, key, to);
}

/// What the index says: another applied entry, or an anchor with another field.
fn change_meta(disk: &mut Disk, input: &mut Input<'_>) {
    let which = input.u8() % 16;
    let meta = &mut disk.meta;
    match which {
        0 => meta.applied_index = input.number(meta.applied_index),
        1 => meta.applied_term = input.number(meta.applied_term),
        2 => meta.anchor = None,
        _ => {
            let Some(anchor) = &meta.anchor else { return };
            let mut bytes = anchor.to_bytes();
            // The fields from the epoch on, the kind, and the checksum of the anchored batch.
            let at = if which < 15 { 24 + 8 * usize::from(which - 3) } else { 4 };
            let old = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            bytes[at..at + 8].copy_from_slice(&input.number(old).to_le_bytes());
            sign(&mut bytes, LOG_ID);
            if let Ok(anchor) = Anchor::from_bytes(&bytes) {
                meta.anchor = Some(anchor);
            }
        }
    }
}

fn change_manifest(disk: &mut Disk, input: &mut Input<'_>) {
    let at = [8, 10, 12, 32, 40][input.index(5)];
    disk.manifest[at] = disk.manifest[at].wrapping_add(input.u8());
    sign(&mut disk.manifest[..48], LOG_ID);
}
