//! Opening a log: reads everything that survived, decides by one table, and writes nothing.

mod chain;
mod error;
mod scan;
mod table;

use std::collections::VecDeque;

use chain::Chain;
pub use error::{Damage, Location, RecoveryError};
use scan::Scanned;
pub use scan::SegmentScan;
use table::{Beyond, Findings, ReadError, verdict};
pub use table::{Verdict, Why};

use crate::format::{Anchor, Manifest, entry_size};
use crate::limits::{
    ALIGNMENT, BODY_SIZE_MAX_BYTES, COUNTER_MAX, KEPT_SEGMENTS_MAX, SEGMENT_SIZE_MAX_BYTES, SEGMENTS_MAX,
};
use crate::log::{Active, Ready, Resume, Retired, Shard};
use crate::{DiskError, Entry, HardState, Log, LogConfig};

/// A segment file that the shell found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentFile {
    /// The shard, from the folder's name.
    pub shard: u16,
    /// The number, from the file's name.
    pub segment: u64,
    /// The file's length.
    pub size_bytes: u64,
}

/// What the index's meta page says of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFacts {
    /// The anchor saved in it; `None` when there is no valid meta page.
    pub anchor: Option<Anchor>,
    /// The last index that the saved index has applied.
    pub applied_index: u64,
    /// The term of the entry at `applied_index`.
    pub applied_term: u64,
}

/// A range that recovery needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The shard.
    pub shard: u16,
    /// The segment's number.
    pub segment: u64,
    /// Where in the file; a multiple of the alignment.
    pub offset: u64,
    /// How much; a multiple of the alignment.
    pub len: usize,
}

/// What recovery met on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryReport {
    /// What the table said.
    pub verdict: Verdict,
    /// Where replay started: the anchor's batch.
    pub anchor_sequence: u64,
    /// The last batch of the chain.
    pub sequence: u64,
    /// The last batch that anything says was durable.
    pub durable_sequence: u64,
    /// Batches beyond the end that were cut.
    pub cut_count: u64,
    /// Segment files that were read.
    pub segment_count: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Headers that verify and were found at a place that is not theirs.
    pub misplaced_count: u64,
    /// Blocks that could not be read.
    pub unreadable_count: u64,
}

/// A log that is open again.
#[derive(Debug)]
pub struct Recovered {
    /// Entries above the meta page's applied index, in order.
    pub entries: Vec<Entry>,
    /// The hard state; its commit index is at least the applied one.
    pub hard_state: HardState,
    /// The log, which goes on behind the last entry. Its first effects make the epoch start durable.
    pub log: Log,
    /// What was met on the way.
    pub report: RecoveryReport,
}

/// Opens a log: [`Recovery::poll_read`] and [`Recovery::handle_read`] in turn until there is no read left, then
/// [`Recovery::finish`]. Threads can read the segments side by side: [`Recovery::take_segment`].
pub struct Recovery {
    config: LogConfig,
    manifest: Manifest,
    meta: MetaFacts,
    anchor: Anchor,
    files: VecDeque<SegmentFile>,
    /// The segment that [`Recovery::poll_read`] asks for.
    scan: Option<SegmentScan>,
    /// Segments that the caller has taken to read them by itself.
    taken_count: usize,
    scanned: Vec<Scanned>,
    chain: Option<Chain>,
    read_bytes: u64,
    /// Bodies of batches at or below this are not kept.
    bodies_above: u64,
}

impl Recovery {
    /// Starts to read a log that has lost its start, or cannot be opened, for its newest state alone:
    /// [`Recovery::newest_state`]. What it finds can't be opened.
    ///
    /// # Errors
    /// As [`Recovery::new`].
    pub fn survey(config: LogConfig, manifest: &[u8], segments: Vec<SegmentFile>) -> Result<Recovery, RecoveryError> {
        let log_id = Manifest::from_bytes(manifest).map_err(RecoveryError::Manifest)?.log_id;
        let meta = MetaFacts { anchor: Some(Anchor::genesis(log_id)), ..MetaFacts::default() };
        let recovery = Recovery::new(config, manifest, segments, meta)?;
        Ok(Recovery { bodies_above: COUNTER_MAX, ..recovery })
    }

    /// Starts to open the log that `manifest` names. `segments` is every segment file under its folder, in any order;
    /// temporary files are not among them and may be removed.
    ///
    /// # Errors
    /// When manifest, meta page, configuration and files do not belong together.
    pub fn new(
        config: LogConfig,
        manifest: &[u8],
        mut segments: Vec<SegmentFile>,
        meta: MetaFacts,
    ) -> Result<Recovery, RecoveryError> {
        config.validate()?;
        let manifest = Manifest::from_bytes(manifest).map_err(RecoveryError::Manifest)?;
        if manifest.keyspace != config.keyspace {
            return Err(RecoveryError::Keyspace { found: manifest.keyspace, expected: config.keyspace });
        }
        let Some(anchor) = meta.anchor else { return Err(without_meta()) };
        if anchor.log_id != manifest.log_id {
            return Err(RecoveryError::Foreign);
        }
        let numbers = segments.iter().map(|file| file.segment);
        if numbers.fold(anchor.counter_max().max(meta.applied_index), u64::max) >= COUNTER_MAX {
            return Err(RecoveryError::Exhausted);
        }
        if meta.applied_index < anchor.last_index {
            return Err(RecoveryError::Meta { applied: meta.applied_index, anchor: anchor.last_index });
        }
        if let Some(file) = segments.iter().find(|file| file.shard >= manifest.shards) {
            return Err(RecoveryError::UnknownShard { shard: file.shard, shards: manifest.shards });
        }
        if segments.len() > SEGMENTS_MAX || segments.iter().any(|file| file.size_bytes > SEGMENT_SIZE_MAX_BYTES) {
            return Err(RecoveryError::TooMuch);
        }
        segments.sort_unstable();
        Ok(Recovery {
            config,
            manifest,
            meta,
            anchor,
            files: segments.into(),
            scan: None,
            taken_count: 0,
            scanned: Vec::new(),
            chain: None,
            read_bytes: 0,
            bodies_above: anchor.sequence,
        })
    }

    /// The next range to read; `None` while one is outstanding or when everything is read.
    pub fn poll_read(&mut self) -> Option<Read> {
        loop {
            let mut scan = match self.scan.take() {
                Some(scan) => scan,
                None => self.next_segment()?,
            };
            let waits = scan.outstanding().is_some();
            let read = scan.poll_read();
            if read.is_some() || waits {
                self.scan = Some(scan);
                return read;
            }
            self.scan_done(scan);
        }
    }

    /// The outcome of the outstanding read. After an error the range is asked for again in smaller pieces.
    ///
    /// # Panics
    /// When the read is not the outstanding one or its bytes have another length.
    pub fn handle_read(&mut self, read: Read, result: Result<&[u8], DiskError>) {
        self.scan.as_mut().expect("a read belongs to a segment").handle_read(read, result);
    }

    /// A segment for the caller to read by itself, on a thread of its own perhaps, and to give back to
    /// [`Recovery::handle_segment`] once it is read.
    pub fn take_segment(&mut self) -> Option<SegmentScan> {
        let scan = self.next_segment()?;
        self.taken_count += 1;
        Some(scan)
    }

    /// A segment that was taken is read.
    ///
    /// # Panics
    /// When it is not read to its end.
    pub fn handle_segment(&mut self, scan: SegmentScan) {
        self.taken_count -= 1;
        self.scan_done(scan);
    }

    fn next_segment(&mut self) -> Option<SegmentScan> {
        let Manifest { log_id, keyspace, .. } = self.manifest;
        Some(SegmentScan::new(self.files.pop_front()?, log_id, keyspace, self.bodies_above))
    }

    fn scan_done(&mut self, scan: SegmentScan) {
        let (scanned, read_bytes) = scan.finish();
        self.read_bytes += read_bytes;
        // The segments stay in the order of their names, whatever the order in which they were read.
        let at = self.scanned.partition_point(|other| other.file < scanned.file);
        self.scanned.insert(at, scanned);
    }

    /// What [`Recovery::finish`] will say, for a member that has peers: it can ask them for what is missing and then
    /// call [`Recovery::finish_repaired`].
    ///
    /// # Errors
    /// As [`Recovery::finish`].
    ///
    /// # Panics
    /// When reads are left.
    pub fn judge(&mut self) -> Result<Verdict, RecoveryError> {
        let mut headers = self.scanned.iter().flat_map(|segment| &segment.found).map(|found| &found.header);
        if headers.any(|header| header.epoch.max(header.sequence).max(header.generation) >= COUNTER_MAX) {
            return Err(RecoveryError::Exhausted);
        }
        let chain = self.follow();
        let verdict = verdict(&chain.findings);
        let (why, repairable) = match verdict {
            Verdict::Open | Verdict::Cut => return Ok(verdict),
            Verdict::Refuse(why) => (why, false),
            Verdict::Corrupt(why) => (why, true),
        };
        Err(RecoveryError::Damaged(Box::new(Damage {
            why,
            repairable,
            location: chain.damage_at,
            index: chain.terms.last_index() + 1,
            sequence: chain.sequence + 1,
            durable_sequence: chain.durable_sequence,
        })))
    }

    /// The term and the vote that this log carried last, whatever else of it is damaged. `None` where that cannot be told:
    /// something that was durable later is missing, a block can't be read, or no batch is left.
    ///
    /// # Panics
    /// When reads are left.
    pub fn newest_state(&mut self) -> Option<HardState> {
        self.assert_read();
        let unreadable = self.scanned.iter().any(|segment| !segment.unreadable.is_empty());
        (!unreadable).then(|| chain::newest_state(&self.scanned, &self.anchor)).flatten()
    }

    fn assert_read(&mut self) {
        let read = self.poll_read().is_none() && self.scan.is_none() && self.taken_count == 0;
        assert!(read, "everything is read before it is judged");
    }

    fn follow(&mut self) -> &Chain {
        self.assert_read();
        let window = u64::from(self.manifest.window);
        self.chain.get_or_insert_with(|| chain::follow(&self.scanned, &self.meta, &self.anchor, window))
    }

    /// Ends recovery.
    ///
    /// # Errors
    /// When anything acknowledged is missing or damaged; the error says what and where, and nothing was written.
    ///
    /// # Panics
    /// When reads are left.
    pub fn finish(mut self) -> Result<Recovered, RecoveryError> {
        let verdict = self.judge()?;
        let chain = self.chain.take().expect("just judged");
        let hard_state = chain.hard_state;
        Ok(self.resume(chain, verdict, hard_state, Vec::new()))
    }

    /// Ends recovery of a damaged log with what is missing: the log is cut where the chain ends and goes on with these
    /// entries, which become durable together with the cut, as one batch. The newest hard state that survived is kept.
    ///
    /// The caller answers for it: the entries are what peers hold from the damaged index on, as far as any of them may
    /// have been acknowledged. With no entries this is what salvaging does: acknowledged entries are given up.
    ///
    /// # Errors
    /// When the log cannot be repaired, or the entries do not reach the index's applied entry or do not continue the log.
    pub fn finish_repaired(mut self, entries: Vec<Entry>) -> Result<Recovered, RecoveryError> {
        let error = match self.judge() {
            Ok(_) if entries.is_empty() => return self.finish(),
            Ok(_) => panic!("a sound log is not repaired"),
            Err(error) => error,
        };
        let chain = self.chain.take().expect("just judged");
        let repairable = matches!(&error, RecoveryError::Damaged(damage) if damage.repairable);
        let mut next = (chain.terms.last_index() + 1, chain.terms.last_term());
        let mut body_len = 0;
        for entry in &entries {
            if entry.index != next.0 || entry.term < next.1 {
                return Err(error);
            }
            next = (entry.index + 1, entry.term);
            body_len += entry_size(entry);
        }
        let reaches = next.0 > self.meta.applied_index && body_len <= BODY_SIZE_MAX_BYTES;
        let applied_differs =
            chain.terms.at(self.meta.applied_index).is_some_and(|term| term != self.meta.applied_term);
        if !repairable || !reaches || applied_differs {
            return Err(error);
        }
        let last_index = next.0 - 1;
        let newest = chain.newest_state;
        let term = newest.term.max(next.1);
        let vote = if term == newest.term { newest.vote } else { 0 };
        let commit = newest.commit.min(last_index).max(chain.hard_state.commit);
        let Verdict::Corrupt(_) = verdict(&chain.findings) else { return Err(error) };
        let judged = verdict(&chain.findings);
        Ok(self.resume(chain, judged, HardState { term, vote, commit }, entries))
    }

    /// Builds the log that goes on from the end of the chain.
    fn resume(self, chain: Chain, verdict: Verdict, state: HardState, repaired: Vec<Entry>) -> Recovered {
        let applied = self.meta.applied_index;
        let hard_state = HardState { commit: state.commit.max(applied), ..state };
        let manifest = Manifest {
            shards: self.manifest.shards.max(self.config.shards),
            window: self.manifest.window.max(self.config.window()),
            ..self.manifest
        };
        let headers = || self.scanned.iter().flat_map(|segment| &segment.found).map(|found| &found.header);
        let epoch = headers().map(|header| header.epoch).max().unwrap_or(0).max(self.anchor.epoch) + 1;
        let next_generation = headers().map(|header| header.generation).max().unwrap_or(0) + 1;
        let report = self.report(&chain, verdict);
        let (shards, removals) = self.shards(&chain, manifest.shards);
        let entries =
            chain.entries.into_iter().chain(repaired.iter().cloned()).filter(|entry| entry.index > applied).collect();
        let log = Log::resume(
            self.config,
            Resume {
                manifest,
                manifest_stale: manifest != self.manifest,
                epoch,
                cut: chain.sequence,
                link: chain.link,
                terms: chain.terms,
                hard_state,
                marks: chain.marks,
                shards,
                next_generation,
                removals,
                repaired,
            },
        );
        Recovered { entries, hard_state, log, report }
    }

    fn report(&self, chain: &Chain, verdict: Verdict) -> RecoveryReport {
        let count = |len: usize| u64::try_from(len).expect("counts fit 64 bits");
        RecoveryReport {
            verdict,
            anchor_sequence: self.anchor.sequence,
            sequence: chain.sequence,
            durable_sequence: chain.durable_sequence,
            cut_count: chain.beyond_count,
            segment_count: count(self.scanned.len()),
            read_bytes: self.read_bytes,
            misplaced_count: self.scanned.iter().map(|segment| segment.misplaced).sum(),
            unreadable_count: self.scanned.iter().map(|segment| count(segment.unreadable.len())).sum(),
        }
    }

    /// Puts every file into its place: written on, kept for the chain, ready for use, or to be removed.
    fn shards(&self, chain: &Chain, shard_count: u16) -> (Vec<Shard>, Vec<(u16, u64)>) {
        let size = self.config.segment_size_bytes;
        let mut removals = Vec::new();
        let mut shards: Vec<Shard> =
            (0..shard_count).map(|index| Shard::new(index, index < self.config.shards, size)).collect();
        for shard in &mut shards {
            let files = || self.scanned.iter().filter(|segment| segment.file.shard == shard.index);
            let end_of = |segment: &Scanned| chain.ends.get(&(segment.file.shard, segment.file.segment)).copied();
            let open = files()
                .filter(|_| shard.enabled)
                .filter_map(|segment| end_of(segment).map(|(sequence, end)| (sequence, end, segment)))
                .max_by_key(|(sequence, ..)| *sequence)
                .filter(|(_, end, segment)| {
                    segment.unreadable.is_empty() && end + ALIGNMENT <= segment.file.size_bytes / ALIGNMENT * ALIGNMENT
                });
            let open_number = open.map(|(.., segment)| segment.file.segment);
            shard.next_number = files().map(|segment| segment.file.segment + 1).max().unwrap_or(1);
            shard.active = open.map(|(sequence, end, segment)| active(sequence, end, segment));
            for segment in self.scanned.iter().filter(|segment| segment.file.shard == shard.index) {
                let number = segment.file.segment;
                let sound = segment.unreadable.is_empty();
                if open_number == Some(number) {
                    continue;
                }
                if let Some((last_sequence, _)) = end_of(segment) {
                    let size = segment.file.size_bytes;
                    shard.retired.push(Retired { number, size, last_sequence, reusable: sound });
                } else if sound && shard.enabled && segment.file.size_bytes == size && shard.kept() < KEPT_SEGMENTS_MAX
                {
                    let recycled = !segment.found.is_empty();
                    shard.ready.push_back(Ready { number, generation: None, seal_count: 0, recycled });
                } else {
                    removals.push((shard.index, number));
                }
            }
        }
        (shards, removals)
    }
}

/// The segment that the chain's last batch in its shard lies in is written on.
fn active(sequence: u64, end: u64, segment: &Scanned) -> Active {
    let generation = segment.found.iter().map(|found| found.header.generation).max().expect("it holds a batch");
    Active {
        number: segment.file.segment,
        size: segment.file.size_bytes / ALIGNMENT * ALIGNMENT,
        generation,
        offset: end,
        last_sequence: sequence,
        reusable: true,
    }
}

fn without_meta() -> RecoveryError {
    let findings = Findings {
        meta_valid: false,
        two_batches: false,
        broken_order: false,
        cut_beyond_end: false,
        read_error: ReadError::None,
        reaches_durable: true,
        applied_beyond_end: false,
        beyond: Beyond::Nothing,
    };
    match verdict(&findings) {
        Verdict::Refuse(why) | Verdict::Corrupt(why) => RecoveryError::NoMeta { why },
        Verdict::Open | Verdict::Cut => unreachable!("the table refuses a log without a start"),
    }
}

#[cfg(test)]
mod hostile;
