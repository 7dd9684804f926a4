//! Reads one segment from its beginning to its end and lists what is in it.

use bytes::Bytes;

use super::{Location, Read, SegmentFile};
use crate::DiskError;
use crate::canary::{self, Canary};
use crate::format::{BatchHeader, Checksum, HEADER_SIZE};
use crate::limits::{ALIGNMENT, READ_CHUNK_BYTES};

/// A header that verifies at its own place.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) header: BatchHeader,
    /// The header's checksum.
    pub(crate) checksum: u32,
    /// The body, if it verifies too.
    pub(crate) body: Option<Bytes>,
}

impl Found {
    pub(crate) fn location(&self) -> Location {
        Location { shard: self.header.shard, segment: self.header.segment, offset: self.header.offset }
    }
}

/// What a segment held.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) file: SegmentFile,
    pub(crate) found: Vec<Found>,
    /// Places that the disk could not read, one aligned block each.
    pub(crate) unreadable: Vec<u64>,
    /// Blocks that are neither zeros nor part of anything that verifies.
    pub(crate) unknown_blocks: u64,
    /// Headers that verify and belong to another place.
    pub(crate) misplaced: u64,
    /// The first block where a batch would begin and something unknown does.
    pub(crate) first_unknown: Option<u64>,
}

/// Scans a segment block by block. Never holds more than one batch and one chunk.
pub(crate) struct Scanner {
    checksum: Checksum,
    log_id: u128,
    keyspace: u32,
    /// Bodies of batches at or below this are not kept.
    anchor_sequence: u64,
    scanned: Scanned,
    /// The file's length in whole blocks.
    end: u64,
    buffer: Vec<u8>,
    /// Where in the file the buffer begins: the next block to look at.
    at: u64,
    /// A chunk that failed is read again block by block up to here.
    single_until: u64,
}

/// One segment being read: [`SegmentScan::poll_read`] and [`SegmentScan::handle_read`] in turn until there is no read
/// left. Those of different segments know nothing of each other, so that threads can share the work.
pub struct SegmentScan {
    scanner: Scanner,
    outstanding: Option<Read>,
    read_bytes: u64,
}

impl SegmentScan {
    pub(crate) fn new(file: SegmentFile, log_id: u128, keyspace: u32, anchor_sequence: u64) -> SegmentScan {
        let scanner = Scanner::new(file, log_id, keyspace, anchor_sequence);
        SegmentScan { scanner, outstanding: None, read_bytes: 0 }
    }

    pub(crate) fn outstanding(&self) -> Option<Read> {
        self.outstanding
    }

    /// Which file it reads.
    pub fn file(&self) -> SegmentFile {
        self.scanner.scanned.file
    }

    /// The next range to read; `None` while one is outstanding or when everything is read.
    pub fn poll_read(&mut self) -> Option<Read> {
        if self.outstanding.is_some() {
            return None;
        }
        let (offset, len) = self.scanner.next_read()?;
        let len = usize::try_from(len).expect("chunks fit memory");
        let SegmentFile { shard, segment, .. } = self.file();
        self.outstanding = Some(Read { shard, segment, offset, len });
        self.outstanding
    }

    /// The outcome of the outstanding read. After an error the range is asked for again in smaller pieces.
    ///
    /// # Panics
    /// When the read is not the outstanding one or its bytes have another length.
    pub fn handle_read(&mut self, read: Read, result: Result<&[u8], DiskError>) {
        assert!(self.outstanding.take() == Some(read), "reads are answered in turn");
        match result {
            Ok(bytes) => {
                assert!(bytes.len() == read.len, "a read is complete or an error");
                self.read_bytes += u64::try_from(bytes.len()).expect("lengths fit 64 bits");
                self.scanner.feed(bytes);
            }
            Err(_) => self.scanner.feed_error(),
        }
    }

    /// What the segment held, and how many bytes of it were read.
    pub(crate) fn finish(self) -> (Scanned, u64) {
        assert!(self.outstanding.is_none(), "every read is answered");
        (self.scanner.finish(), self.read_bytes)
    }
}

enum Step {
    NeedMore,
    Advance(u64),
}

impl Scanner {
    pub(crate) fn new(file: SegmentFile, log_id: u128, keyspace: u32, anchor_sequence: u64) -> Scanner {
        let (found, unreadable) = (Vec::new(), Vec::new());
        Scanner {
            checksum: Checksum::new(log_id),
            log_id,
            keyspace,
            anchor_sequence,
            scanned: Scanned { file, found, unreadable, unknown_blocks: 0, misplaced: 0, first_unknown: None },
            end: file.size_bytes / ALIGNMENT * ALIGNMENT,
            buffer: Vec::new(),
            at: 0,
            single_until: 0,
        }
    }

    fn read_end(&self) -> u64 {
        self.at + u64::try_from(self.buffer.len()).expect("buffers fit 64 bits")
    }

    /// The next range to read; `None` when the segment is scanned.
    pub(crate) fn next_read(&self) -> Option<(u64, u64)> {
        let offset = self.read_end();
        if offset >= self.end {
            return None;
        }
        let len = if offset < self.single_until { ALIGNMENT } else { READ_CHUNK_BYTES.min(self.end - offset) };
        Some((offset, len))
    }

    /// The range asked for was read.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.scan();
    }

    /// The range asked for could not be read: a chunk is tried again in blocks, a block is taken for lost.
    pub(crate) fn feed_error(&mut self) {
        let Some((offset, len)) = self.next_read() else { return };
        if len > ALIGNMENT {
            self.single_until = offset + len;
            return;
        }
        self.scanned.unreadable.push(offset);
        let block = usize::try_from(ALIGNMENT).expect("small");
        self.buffer.resize(self.buffer.len() + block, 0);
        self.scan();
    }

    pub(crate) fn finish(self) -> Scanned {
        assert!(self.next_read().is_none() && self.buffer.is_empty(), "the segment is scanned to its end");
        self.scanned
    }

    fn scan(&mut self) {
        let mut used = 0;
        let base = self.at;
        while base + used < self.end {
            match self.step(base + used, used) {
                Step::Advance(len) => used += len,
                Step::NeedMore => break,
            }
        }
        self.buffer.drain(..usize::try_from(used).expect("within the buffer"));
        self.at = base + used;
    }

    /// Looks at the block at `offset`, which is `skip` bytes into the buffer.
    fn step(&mut self, offset: u64, skip: u64) -> Step {
        let held = &self.buffer[usize::try_from(skip).expect("within the buffer")..];
        let held_len = u64::try_from(held.len()).expect("buffers fit 64 bits");
        if held_len < ALIGNMENT {
            return Step::NeedMore;
        }
        let head = held.first_chunk::<HEADER_SIZE>().expect("a block holds a header");
        let Some((header, checksum)) = BatchHeader::decode(self.checksum, head) else {
            self.note_unknown(offset, skip);
            return Step::Advance(ALIGNMENT);
        };
        let file = self.scanned.file;
        let at_home = (header.shard, header.segment, header.offset) == (file.shard, file.segment, offset)
            && (header.log_id, header.keyspace) == (self.log_id, self.keyspace);
        if !at_home {
            self.scanned.misplaced += 1;
            self.note_unknown(offset, skip);
            return Step::Advance(ALIGNMENT);
        }
        // The length is bounded by its type, by the format's limit and by the file before anything is read for it.
        let size = header.size();
        let fits = size <= self.end - offset;
        if fits && held_len < size {
            return Step::NeedMore;
        }
        let body_len = usize::try_from(header.body_len).expect("bounded");
        let body = if fits { held.get(HEADER_SIZE..HEADER_SIZE + body_len) } else { None };
        let passes =
            |body: &[u8]| self.checksum.of(body) == header.body_checksum || canary::is_on(Canary::TornBatchAccepted);
        let body = body.filter(|body| passes(body));
        let whole = body.is_some();
        let needed = header.sequence > self.anchor_sequence;
        let body = body.map(|body| if needed { Bytes::copy_from_slice(body) } else { Bytes::new() });
        self.scanned.found.push(Found { header, checksum, body });
        Step::Advance(if whole { size } else { ALIGNMENT })
    }

    fn note_unknown(&mut self, offset: u64, skip: u64) {
        let from = usize::try_from(skip).expect("within the buffer");
        let block = &self.buffer[from..from + usize::try_from(ALIGNMENT).expect("small")];
        if block.iter().any(|byte| *byte != 0) {
            self.scanned.unknown_blocks += 1;
            let expected = self.scanned.found.last().map_or(0, |last| last.header.offset + last.header.size());
            if offset == expected && self.scanned.first_unknown.is_none() {
                self.scanned.first_unknown = Some(offset);
            }
        }
    }
}
