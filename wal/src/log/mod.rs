//! The log of a running process.

mod flight;
mod marks;
mod pending;
mod shard;
mod terms;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use flight::{Flight, Seal, encode_batch, encode_seal};
pub(crate) use marks::{Mark, Marks};
use pending::{OpenBatch, Pending};
pub(crate) use shard::{Active, Ready, Retired, Shard};
use shard::{Oversize, Place};
pub(crate) use terms::Terms;

use crate::canary::{self, Canary};
use crate::format::{Anchor, Checksum, Kind, Link, Manifest, entry_size, padded_size};
use crate::limits::SEGMENT_SIZE_MAX_BYTES;
use crate::{
    Append, AppendNumber, ConfigError, DiskError, Effect, Entry, HardState, LogConfig, LogFailure, LogStats, OpId,
};

/// The manifest's way to the disk.
#[derive(Debug)]
enum ManifestState {
    Wanted(Vec<u8>),
    Writing(OpId),
    Durable,
}

/// The epoch start's way to the disk.
#[derive(Debug)]
enum EpochStart {
    /// To be written, with these entries behind its cut; the term is that of the entry before them.
    Wanted {
        entries: Vec<Entry>,
        term_before: u64,
    },
    Writing,
    Durable,
}

/// What the log was when it was opened; appends may wait before the epoch start that says so is written.
#[derive(Clone, Copy, Debug)]
struct Opened {
    last_index: u64,
    hard_state: HardState,
}

/// What a completion belongs to, beside batches.
#[derive(Debug)]
enum Op {
    Prepare { shard: u16, segment: u64, size: u64, oversize: bool },
    Remove { shard: u16, segment: u64 },
}

/// What recovery hands to the log that goes on from there.
pub(crate) struct Resume {
    pub(crate) manifest: Manifest,
    /// Whether the manifest must be written before anything else.
    pub(crate) manifest_stale: bool,
    pub(crate) epoch: u64,
    /// The end of the chain: the epoch start's cut.
    pub(crate) cut: u64,
    pub(crate) link: Link,
    pub(crate) terms: Terms,
    pub(crate) hard_state: HardState,
    pub(crate) marks: Marks,
    pub(crate) shards: Vec<Shard>,
    pub(crate) next_generation: u64,
    /// Segments to remove at once.
    pub(crate) removals: Vec<(u16, u64)>,
    /// Entries that the epoch start carries itself, when it repairs a hole.
    pub(crate) repaired: Vec<Entry>,
}

/// The log: takes appends, groups them into batches, and says when they are durable.
///
/// Every `handle_*`, `append` and `poll_timeout` may make new effects: poll until there are none after each of them.
/// Memory is bounded by what its caller lets wait; what is written is dropped.
#[derive(Debug)]
pub struct Log {
    config: LogConfig,
    manifest: Manifest,
    checksum: Checksum,
    manifest_state: ManifestState,
    epoch: u64,
    epoch_start: EpochStart,
    opened: Opened,
    /// The sequence number of the next batch.
    next_sequence: u64,
    /// Everything up to here is durable.
    durable_sequence: u64,
    durable_append: AppendNumber,
    next_generation: u64,
    pending: Pending,
    /// Batches in order of sequence, from the first that is not durable on.
    flights: VecDeque<Flight>,
    /// What the next batch to be filled says of its predecessor.
    link: Link,
    /// The last batch that was filled; batches are filled in order.
    filled_sequence: u64,
    /// The newest durable batch.
    durable_mark: Mark,
    marks: Marks,
    shards: Vec<Shard>,
    ops: BTreeMap<OpId, Op>,
    removals: VecDeque<(u16, u64)>,
    next_op: u64,
    seal: Option<Seal>,
    /// What the newest durable seal says.
    sealed_sequence: u64,
    seal_due: bool,
    /// When the last batch became durable with nothing behind it.
    idle_since: Option<Duration>,
    /// A snapshot's anchor that is not durable yet: batches behind it must not be written.
    snapshot: Option<Anchor>,
    poisoned: bool,
    stats: LogStats,
}

/// Opening.
impl Log {
    /// A new log, whose random `log_id` no other log has. Its first effect writes the manifest; the index's first meta
    /// page must hold `anchor(0)`.
    ///
    /// # Errors
    /// When the configuration is out of its bounds.
    pub fn create(config: LogConfig, log_id: u128) -> Result<Log, ConfigError> {
        config.validate()?;
        let manifest = Manifest { log_id, keyspace: config.keyspace, shards: config.shards, window: config.window() };
        let anchor = Anchor::genesis(log_id);
        let shards = (0..config.shards).map(|index| Shard::new(index, true, config.segment_size_bytes)).collect();
        Ok(Log::resume(
            config,
            Resume {
                manifest,
                manifest_stale: true,
                epoch: 1,
                cut: 0,
                link: anchor.link,
                terms: Terms::new(0, 0),
                hard_state: HardState::default(),
                marks: Marks::new(anchor),
                shards,
                next_generation: 1,
                removals: Vec::new(),
                repaired: Vec::new(),
            },
        ))
    }

    pub(crate) fn resume(config: LogConfig, resume: Resume) -> Log {
        let Resume { manifest, epoch, cut, link, hard_state, .. } = resume;
        assert!(manifest.shards >= config.shards && manifest.window >= config.window());
        assert!(resume.shards.len() == usize::from(manifest.shards));
        let manifest_state =
            if resume.manifest_stale { ManifestState::Wanted(manifest.to_bytes()) } else { ManifestState::Durable };
        let mut terms = resume.terms;
        let first_index = terms.last_index() + 1;
        let epoch_start = EpochStart::Wanted { term_before: terms.last_term(), entries: resume.repaired };
        if let EpochStart::Wanted { entries, .. } = &epoch_start {
            assert!(entries.first().is_none_or(|entry| entry.index == first_index));
            entries.iter().for_each(|entry| terms.put(entry.index, entry.term));
        }
        let before = Mark::new(epoch - 1, cut, hard_state, link);
        let (epoch, epoch_start) = if canary::is_on(Canary::EpochStartMissing) && cut > 0 {
            (epoch - 1, EpochStart::Durable)
        } else {
            (epoch, epoch_start)
        };
        Log {
            config,
            manifest,
            checksum: Checksum::new(manifest.log_id),
            manifest_state,
            epoch,
            epoch_start,
            opened: Opened { last_index: terms.last_index(), hard_state },
            next_sequence: cut + 1,
            durable_sequence: cut,
            durable_append: AppendNumber(0),
            next_generation: resume.next_generation,
            pending: Pending::new(terms, hard_state, config.batch_size_max_bytes),
            flights: VecDeque::new(),
            link,
            filled_sequence: cut,
            durable_mark: before,
            marks: resume.marks,
            shards: resume.shards,
            ops: BTreeMap::new(),
            removals: resume.removals.into(),
            next_op: 1,
            seal: None,
            sealed_sequence: cut,
            seal_due: false,
            idle_since: None,
            snapshot: None,
            poisoned: false,
            stats: LogStats::default(),
        }
    }
}

/// Appending.
impl Log {
    /// Adds one step of Raft to what waits to be written. Never blocks; the order of appends is kept. The append is
    /// durable, as a whole, when [`Log::durable`] reaches the number returned.
    ///
    /// # Panics
    /// When the append breaks what Raft promises: a gap, a falling term, a committed entry replaced.
    pub fn append(&mut self, append: Append) -> AppendNumber {
        self.idle_since = None;
        self.seal_due = false;
        self.pending.append(append)
    }

    /// Everything up to this append is durable. 0 before the first one.
    pub fn durable(&self) -> AppendNumber {
        self.durable_append
    }

    /// The log's last index and its term, counting what waits.
    pub fn last(&self) -> (u64, u64) {
        (self.pending.terms().last_index(), self.pending.terms().last_term())
    }

    /// Whether the log has failed; it then hands out no effect and acknowledges nothing more.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// The log's random identity.
    pub fn log_id(&self) -> u128 {
        self.manifest.log_id
    }

    /// When the oldest write started that is not done; for a watchdog over stalled disks.
    pub fn oldest_write_started(&self) -> Option<Duration> {
        self.flights.iter().find(|flight| !flight.done).map(|flight| flight.started)
    }

    /// Prepared space that batches can take, less what already waits for it. While no segment could be prepared because
    /// the disk is full ([`Log::disk_full`]), the replica refuses new writes when this is below its reserve.
    pub fn room_bytes(&self) -> u64 {
        let room: u64 = self.shards.iter().filter(|shard| shard.enabled).map(Shard::room_bytes).sum();
        room.saturating_sub(self.pending.waiting_bytes())
    }

    /// Whether the last attempt to prepare a segment found the disk full.
    pub fn disk_full(&self) -> bool {
        self.shards.iter().any(|shard| shard.retry_at.is_some())
    }

    /// What the log counted, and what it holds.
    pub fn stats(&self) -> LogStats {
        LogStats {
            in_flight_count: self.flights.iter().filter(|flight| !flight.done).count(),
            waiting_bytes: self.pending.waiting_bytes(),
            durable_sequence: self.durable_sequence,
            file_bytes: self.shards.iter().map(Shard::file_bytes).sum(),
            ..self.stats
        }
    }
}

/// Effects.
impl Log {
    /// The next thing the shell must do. A [`Effect::Write`] closes a batch from everything that waits: while fewer
    /// writes than allowed are in flight nothing is held back, so no timer ever delays a lone append.
    pub fn poll_effect(&mut self, now: Duration) -> Option<Effect> {
        if self.poisoned {
            return None;
        }
        if let Some(effect) = self.poll_manifest() {
            return Some(effect);
        }
        if !matches!(self.manifest_state, ManifestState::Durable) {
            return None;
        }
        self.poll_epoch_start(now)
            .or_else(|| self.poll_batch(now))
            .or_else(|| self.poll_prepare())
            .or_else(|| self.poll_removal())
            .or_else(|| self.poll_seal())
    }

    fn poll_manifest(&mut self) -> Option<Effect> {
        if !matches!(self.manifest_state, ManifestState::Wanted(_)) {
            return None;
        }
        let op = self.take_op();
        match std::mem::replace(&mut self.manifest_state, ManifestState::Writing(op)) {
            ManifestState::Wanted(bytes) => Some(Effect::WriteManifest { op, bytes }),
            _ => unreachable!("matched above"),
        }
    }

    /// The epoch start goes alone: nothing else is written before it is durable.
    fn poll_epoch_start(&mut self, now: Duration) -> Option<Effect> {
        let EpochStart::Wanted { entries, .. } = &self.epoch_start else { return None };
        let body_len: u64 = entries.iter().map(entry_size).sum();
        let shard = self.shard_for(padded_size(body_len))?;
        let EpochStart::Wanted { entries, term_before } = std::mem::replace(&mut self.epoch_start, EpochStart::Writing)
        else {
            unreachable!("matched above");
        };
        let Opened { last_index, hard_state } = self.opened;
        let first_index = last_index + 1 - u64::try_from(entries.len()).expect("bounded");
        let through = AppendNumber(0);
        let batch = OpenBatch { entries, body_len, first_index, term_before, hard_state, through };
        Some(self.close(now, shard, Kind::EpochStart, batch))
    }

    fn poll_batch(&mut self, now: Duration) -> Option<Effect> {
        let window = u64::from(self.config.window());
        let held = !matches!(self.epoch_start, EpochStart::Durable)
            || self.snapshot.is_some()
            || self.next_sequence > self.durable_sequence + window;
        if held {
            return None;
        }
        let size = self.pending.front()?.size();
        let shard = self.shard_for(size)?;
        let batch = self.pending.pop().expect("there is a front");
        let kind = if batch.entries.is_empty() { Kind::State } else { Kind::Entries };
        Some(self.close(now, shard, kind, batch))
    }

    /// The shard in use with room and the fewest writes in flight.
    fn shard_for(&self, size: u64) -> Option<u16> {
        let depth = self.config.writes_in_flight_max;
        let free = self.shards.iter().filter(|shard| shard.enabled && shard.in_flight < depth && shard.has_room(size));
        free.min_by_key(|shard| shard.in_flight).map(|shard| shard.index)
    }

    /// Closes a batch: from here on it has its number and its place.
    fn close(&mut self, now: Duration, index: u16, kind: Kind, batch: OpenBatch) -> Effect {
        let (sequence, op, size) = (self.next_sequence, self.take_op(), batch.size());
        self.next_sequence += 1;
        let shard = &mut self.shards[usize::from(index)];
        let recycled = shard.ready.front().is_some_and(|ready| ready.recycled);
        let opened_before = shard.active.map(|active| active.number);
        let Place { segment, generation, offset } = shard.place(size, sequence, &mut self.next_generation);
        if recycled && opened_before != shard.active.map(|active| active.number) {
            self.stats.recycled_count += 1;
        }
        shard.in_flight += 1;
        let place = Place { segment, generation, offset };
        self.flights.push_back(Flight::new(op, index, place, sequence, kind, batch, now));
        let len = usize::try_from(size).expect("a batch fits memory");
        Effect::Write { op, shard: index, segment, offset, len }
    }

    fn poll_prepare(&mut self) -> Option<Effect> {
        let oversize = self.wanted_size().filter(|size| self.shards[0].is_oversize(*size));
        let wanting_oversize = oversize.and_then(|size| {
            // A segment for one batch goes to the first shard.
            let shard = &self.shards[0];
            (shard.oversize == Oversize::None && shard.retry_at.is_none()).then_some((0, size, true))
        });
        let size = self.config.segment_size_bytes;
        let (index, size, oversize) = wanting_oversize.or_else(|| {
            self.shards.iter().find(|shard| shard.wants_segment()).map(|shard| (shard.index, size, false))
        })?;
        assert!(size <= SEGMENT_SIZE_MAX_BYTES);
        let op = self.take_op();
        let shard = &mut self.shards[usize::from(index)];
        let segment = shard.take_number();
        if oversize {
            shard.oversize = Oversize::Preparing { size };
        } else {
            shard.preparing += 1;
        }
        self.ops.insert(op, Op::Prepare { shard: index, segment, size, oversize });
        Some(Effect::PrepareSegment { op, shard: index, segment, size_bytes: size })
    }

    /// The size of the batch that goes next.
    fn wanted_size(&self) -> Option<u64> {
        match &self.epoch_start {
            EpochStart::Wanted { entries, .. } => Some(padded_size(entries.iter().map(entry_size).sum())),
            _ => self.pending.front().map(OpenBatch::size),
        }
    }

    fn poll_removal(&mut self) -> Option<Effect> {
        // Nothing is destroyed before the epoch start says what the log is.
        if !matches!(self.epoch_start, EpochStart::Durable) {
            return None;
        }
        let (shard, segment) = self.removals.pop_front()?;
        let op = self.take_op();
        self.ops.insert(op, Op::Remove { shard, segment });
        Some(Effect::Remove { op, shard, segment })
    }

    fn poll_seal(&mut self) -> Option<Effect> {
        let idle = std::mem::take(&mut self.seal_due) && self.is_idle();
        let overdue = self.durable_sequence - self.sealed_sequence >= self.config.seal_after_batches;
        if !(idle || overdue) || !self.can_seal() {
            return None;
        }
        let index = self.seal_shard()?;
        let op = self.take_op();
        let place = self.shards[usize::from(index)].place_seal(&mut self.next_generation)?;
        let (segment, offset) = (place.segment, place.offset);
        self.seal = Some(Seal { op, shard: index, place, mark: self.durable_mark, filled: false });
        let len = usize::try_from(padded_size(0)).expect("small");
        Some(Effect::Write { op, shard: index, segment, offset, len })
    }

    fn wants_seal(&self) -> bool {
        self.is_idle() && self.can_seal()
    }

    fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.pending.is_empty()
    }

    fn can_seal(&self) -> bool {
        matches!(self.epoch_start, EpochStart::Durable)
            && self.seal.is_none()
            && self.sealed_sequence < self.durable_sequence
            && self.seal_shard().is_some()
    }

    /// A shard with a segment that is not being written, another one than the last batch's where there is one.
    fn seal_shard(&self) -> Option<u16> {
        let ready = |shard: &&Shard| shard.enabled && !shard.ready.is_empty();
        self.shards.iter().rev().find(ready).map(|shard| shard.index)
    }

    /// Encodes the batch of a [`Effect::Write`] into the shell's buffer, which has exactly the effect's length. Called
    /// once for each of them, in the order in which they were polled, before its completion.
    ///
    /// # Panics
    /// When called out of order, twice, or with another length.
    pub fn fill(&mut self, op: OpId, buf: &mut [u8]) {
        if let Some(seal) = self.seal.as_mut().filter(|seal| seal.op == op) {
            assert!(!std::mem::replace(&mut seal.filled, true), "a write is filled once");
            encode_seal(seal, &self.manifest, self.checksum, buf);
            return;
        }
        let flight = self.flights.iter_mut().find(|flight| flight.op == op).expect("the write is in flight");
        assert!(flight.sequence == self.filled_sequence + 1, "writes are filled once each, in their order");
        self.filled_sequence = flight.sequence;
        let context = flight::Context {
            manifest: &self.manifest,
            checksum: self.checksum,
            epoch: self.epoch,
            durable_sequence: match canary::is_on(Canary::DurableClaimedEarly) {
                true => flight.sequence - 1,
                false => self.durable_sequence,
            },
            previous: self.link,
        };
        self.link = encode_batch(flight, &context, buf);
    }

    fn take_op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op - 1)
    }
}

/// Completions and time.
impl Log {
    /// An effect is done.
    ///
    /// # Errors
    /// The first failed write or sync poisons the log: the process must stop. A full disk while a segment is prepared
    /// does not: that is tried again later.
    pub fn handle_done(&mut self, now: Duration, op: OpId, result: Result<(), DiskError>) -> Result<(), LogFailure> {
        if self.poisoned {
            return Err(LogFailure::Poisoned);
        }
        let outcome = self.dispatch_done(now, op, result);
        self.poisoned = outcome.is_err();
        outcome
    }

    fn dispatch_done(&mut self, now: Duration, op: OpId, result: Result<(), DiskError>) -> Result<(), LogFailure> {
        if matches!(self.manifest_state, ManifestState::Writing(writing) if writing == op) {
            result.map_err(|source| LogFailure::Manifest { source })?;
            self.manifest_state = ManifestState::Durable;
            return Ok(());
        }
        if let Some(seal) = self.seal.take_if(|seal| seal.op == op) {
            assert!(seal.filled, "a write is filled before it is done");
            result.map_err(|source| failed_write(seal.shard, seal.place, source))?;
            self.sealed_sequence = self.sealed_sequence.max(seal.mark.sequence);
            self.stats.seal_count += 1;
            return Ok(());
        }
        match self.ops.remove(&op) {
            Some(Op::Prepare { shard, segment, size, oversize }) => {
                self.prepare_done(now, shard, segment, size, oversize, result)
            }
            Some(Op::Remove { shard, segment }) => {
                result.map_err(|source| LogFailure::Remove { shard, segment, source })?;
                self.stats.removed_count += 1;
                Ok(())
            }
            None => self.write_done(now, op, result),
        }
    }

    fn prepare_done(
        &mut self,
        now: Duration,
        index: u16,
        segment: u64,
        size: u64,
        oversize: bool,
        result: Result<(), DiskError>,
    ) -> Result<(), LogFailure> {
        let retry_at = now + self.config.prepare_retry;
        let shard = &mut self.shards[usize::from(index)];
        if oversize {
            shard.oversize = Oversize::None;
        } else {
            shard.preparing -= 1;
        }
        match result {
            Ok(()) if oversize => shard.oversize = Oversize::Prepared { number: segment, size },
            Ok(()) => {
                shard.ready.push_back(Ready { number: segment, generation: None, seal_count: 0, recycled: false });
            }
            Err(DiskError::Full) => {
                shard.retry_at = Some(retry_at);
                self.stats.disk_full_count += 1;
                return Ok(());
            }
            Err(source) => return Err(LogFailure::Prepare { shard: index, segment, source }),
        }
        self.stats.prepared_count += 1;
        Ok(())
    }

    fn write_done(&mut self, now: Duration, op: OpId, result: Result<(), DiskError>) -> Result<(), LogFailure> {
        if canary::is_on(Canary::AcknowledgedOutOfOrder) && !self.take_for_done(op) {
            return Ok(());
        }
        let flight = self.flights.iter_mut().find(|flight| flight.op == op).expect("every completion has its effect");
        assert!(flight.sequence <= self.filled_sequence && !flight.done, "a write is filled once and done once");
        result.map_err(|source| failed_write(flight.shard, flight.place, source))?;
        flight.done = true;
        self.shards[usize::from(flight.shard)].in_flight -= 1;
        while self.flights.front().is_some_and(|flight| flight.done) {
            let flight = self.flights.pop_front().expect("there is a front");
            self.batch_durable(&flight);
        }
        if self.flights.is_empty() && self.pending.is_empty() {
            self.idle_since = Some(now);
        }
        Ok(())
    }

    /// The bug of [`Canary::AcknowledgedOutOfOrder`]: what stands before a batch that is done is taken for done. False if
    /// the batch itself was, before.
    fn take_for_done(&mut self, op: OpId) -> bool {
        let Some(at) = self.flights.iter().position(|flight| flight.op == op && !flight.done) else { return false };
        for flight in self.flights.range_mut(..at).filter(|flight| !flight.done) {
            flight.done = true;
            self.shards[usize::from(flight.shard)].in_flight -= 1;
        }
        true
    }

    /// A batch and everything before it is durable.
    fn batch_durable(&mut self, flight: &Flight) {
        assert!(flight.sequence == self.durable_sequence + 1, "the durable prefix grows without gaps");
        assert!(flight.through >= self.durable_append);
        self.durable_sequence = flight.sequence;
        self.durable_append = flight.through;
        self.durable_mark = flight.mark(self.epoch);
        self.marks.push(self.durable_mark, flight.size);
        if flight.kind == Kind::EpochStart {
            self.epoch_start = EpochStart::Durable;
        }
        self.stats.batch_count += 1;
        self.stats.entry_count += u64::from(flight.entry_count);
        self.stats.written_bytes += flight.size;
        self.stats.padding_bytes += flight.padding;
    }

    /// When [`Log::handle_timeout`] should be called next.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.poisoned {
            return None;
        }
        let seal = self.idle_since.filter(|_| self.wants_seal() && !self.seal_due);
        let seal = seal.map(|since| since + self.config.seal_after_idle);
        let retry = self.shards.iter().filter_map(|shard| shard.retry_at).min();
        seal.into_iter().chain(retry).min()
    }

    /// Time has passed: an idle log is sealed, a full disk is tried again.
    pub fn handle_timeout(&mut self, now: Duration) {
        let idle = self.idle_since.is_some_and(|since| now >= since + self.config.seal_after_idle);
        self.seal_due |= idle && self.wants_seal();
        for shard in &mut self.shards {
            shard.retry_at = shard.retry_at.filter(|at| *at > now);
        }
    }
}

/// Checkpoints and snapshots.
impl Log {
    /// Where replay must start if the index is saved as of `applied_index`: behind the newest durable batch whose last
    /// index is not beyond it. Goes into the index's meta page.
    ///
    /// # Panics
    /// When `applied_index` is below the last checkpoint's: an index never goes back.
    pub fn anchor(&self, applied_index: u64) -> Anchor {
        match &self.snapshot {
            Some(anchor) if applied_index >= anchor.last_index => Anchor { applied_index, ..*anchor },
            _ => self.marks.anchor(applied_index, self.durable_sequence),
        }
    }

    /// The anchor is durable in the index's meta page: what is before it may be recycled.
    ///
    /// # Panics
    /// When the anchor is not this log's, is not durable in the log, or is older than one handled before.
    pub fn handle_checkpoint(&mut self, anchor: &Anchor) {
        assert!(anchor.log_id == self.manifest.log_id, "the anchor is of this log");
        assert!(anchor.sequence <= self.durable_sequence, "an anchor is durable in the log before it is in the index");
        if let Some(snapshot) = self.snapshot {
            if anchor.last_index != snapshot.last_index || anchor.sequence != snapshot.sequence {
                return;
            }
            self.snapshot = None;
        }
        self.marks.rebase(anchor);
        self.pending.rebase(anchor.last_index);
        for shard in &mut self.shards {
            let through = match canary::is_on(Canary::SegmentReusedEarly) {
                true => self.durable_sequence,
                false => anchor.sequence,
            };
            let removed = shard.release(through);
            self.removals.extend(removed.into_iter().map(|segment| (shard.index, segment)));
        }
    }

    /// Whether nothing is being written or waits, so that [`Log::install_snapshot`] can be called.
    pub fn is_quiet(&self) -> bool {
        let epoch_started = matches!(self.epoch_start, EpochStart::Durable);
        self.is_idle() && self.seal.is_none() && epoch_started && self.snapshot.is_none()
    }

    /// A snapshot at `index` and `term` takes the place of every entry. Returns the anchor that must become durable
    /// together with the snapshot's image, in one flip of the meta page; `None` while anything is being written or waits.
    /// Until [`Log::handle_checkpoint`] is called with that anchor, appends wait: they continue behind the snapshot.
    pub fn install_snapshot(&mut self, index: u64, term: u64) -> Option<Anchor> {
        let quiet = self.flights.is_empty() && self.pending.is_empty();
        if !quiet || !matches!(self.epoch_start, EpochStart::Durable) || self.snapshot.is_some() {
            return None;
        }
        assert!(index > self.pending.hard_state().commit, "a snapshot is beyond what is committed here");
        self.pending.install_snapshot(index, term);
        let anchor = Anchor {
            applied_index: index,
            last_index: index,
            last_term: term,
            hard_state: self.pending.hard_state(),
            epoch: self.durable_mark.epoch,
            sequence: self.durable_sequence,
            durable_sequence: self.durable_sequence,
            log_id: self.manifest.log_id,
            link: self.durable_mark.link,
        };
        self.snapshot = Some(anchor);
        Some(anchor)
    }

    /// Bytes of log behind the newest anchor that is durable in the index: what a start would read and replay.
    pub fn replay_bytes(&self) -> u64 {
        self.marks.replay_bytes()
    }

    /// The newest anchor that is durable in the index.
    pub fn base(&self) -> &Anchor {
        self.marks.base()
    }
}

fn failed_write(shard: u16, place: Place, source: DiskError) -> LogFailure {
    LogFailure::Write { shard, segment: place.segment, offset: place.offset, source }
}
