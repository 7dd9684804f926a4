//! etcd's `HashKV`, in bounded steps.

use crate::View;
use crate::codec::put_varint;
use crate::limits;
use crate::types::{Paged, Record, Revision};
use crate::view::EventCursor;

/// What etcd's `HashKV` answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashKv {
    /// CRC-32C of the history.
    pub hash: u32,
    /// The compaction floor that it was computed with.
    pub compact_revision: i64,
    /// The revision up to which it was computed.
    pub revision: i64,
}

/// Computes the hash of all revisions up to one, as etcd does.
///
/// It covers the bytes `key`, then for each stored revision up to the chosen one, in order, the revision as etcd
/// encodes it and the marshalled `mvccpb.KeyValue`. At or below the compaction floor only what a compaction at the
/// chosen revision would keep counts, which are the versions live then. If it would keep nothing, all versions live at
/// the floor count. A tombstone at the floor itself never does. So the value does not depend on how far physical
/// compaction is.
///
/// The revision is fixed at the start. Each step may be given a newer view, as long as the floor has not passed the
/// chosen revision. Once the floor has moved it begins anew, at that floor: of what lies between the two, some may be
/// gone and some not.
///
/// A revision costs a read of its value, and at or below the floor one or two look-ups of its key.
#[derive(Debug)]
pub struct KvHasher {
    sums: Sums,
    revision: i64,
    compacted: i64,
    next: Revision,
}

impl KvHasher {
    /// Starts at a view. The caller has checked that `compacted ≤ revision ≤ newest`.
    pub fn new(view: &View<'_>, revision: i64) -> KvHasher {
        KvHasher { sums: Sums::new(), revision, compacted: view.compacted(), next: Revision::default() }
    }

    /// Goes on for at most `budget` revisions, fewer if they are large ([`limits::HASH_STEP_BYTES`]); gives the hash
    /// at the end.
    pub fn step(&mut self, view: &View<'_>, budget: usize) -> Paged<Option<HashKv>> {
        if view.compacted() != self.compacted {
            *self = KvHasher::new(view, self.revision);
        }
        let mut events = view.events(self.next);
        let mut bytes = 0;
        for _ in 0..budget {
            let Some(record) = events.next()? else { return Ok(Some(self.finish())) };
            if record.revision.main > self.revision {
                return Ok(Some(self.finish()));
            }
            if record.revision.main > self.compacted {
                let kept = !self.sums.something_kept && is_live(view, &record, self.revision)?;
                self.sums.above_floor(&record, kept);
            } else {
                self.sums.below_floor(view, &record, self.compacted, self.revision)?;
            }
            self.next = after(record.revision);
            bytes += record.key.len() + record.value.len();
            if bytes >= limits::HASH_STEP_BYTES {
                break;
            }
        }
        Ok(None)
    }

    fn finish(&self) -> HashKv {
        HashKv { hash: self.sums.hash(), compact_revision: self.compacted, revision: self.revision }
    }
}

/// The hash in the two cases between which the first version that is kept decides.
#[derive(Debug)]
struct Sums {
    /// Without what lies at or below the floor and is not kept.
    kept: Sum,
    /// With everything live at the floor: the hash if nothing is kept. Not needed any more once something was met.
    all: Sum,
    something_kept: bool,
}

impl Sums {
    fn new() -> Sums {
        let mut sum = Sum::default();
        sum.append(b"key");
        Sums { kept: sum, all: sum, something_kept: false }
    }

    /// Takes a version above the floor.
    fn above_floor(&mut self, record: &Record, kept: bool) {
        if !self.something_kept {
            self.all.append_record(record);
        }
        self.something_kept |= kept;
        self.kept.append_record(record);
    }

    /// Takes a version at or below the floor; returns whether it is kept.
    fn below_floor(&mut self, view: &View<'_>, record: &Record, floor: i64, revision: i64) -> Paged<bool> {
        let kept = is_live(view, record, revision)?;
        if kept {
            self.something_kept = true;
            self.kept.append_record(record);
        } else if !self.something_kept && is_live(view, record, floor)? {
            self.all.append_record(record);
        }
        Ok(kept)
    }

    fn hash(&self) -> u32 {
        if self.something_kept { self.kept.crc } else { self.all.crc }
    }
}

/// Whether a key's version at revision `at` is this record, and the key exists then.
fn is_live(view: &View<'_>, record: &Record, at: i64) -> Paged<bool> {
    if record.deleted {
        return Ok(false);
    }
    let found = view.find(&record.key, at)?;
    Ok(found.is_some_and(|version| version.modified == record.revision))
}

fn after(revision: Revision) -> Revision {
    Revision { main: revision.main, sub: revision.sub + 1 }
}

/// Computes the hash that etcd's compaction computes on its way, in bounded steps, before anything is removed.
///
/// It is what `HashKV` would have answered at the compaction's revision just before it, with one difference: the
/// compaction keeps the tombstones of exactly its revision, so that where there is one, nothing is live and something
/// is kept all the same.
///
/// What was live at the floor need not be read again: [`Survivors`] of the compaction before hold the checksums of runs
/// of it, and checksums of neighbours combine. Only runs in which a version died since are read. So a compaction costs
/// a read of what was written since the one before, a look at each of its keys, and a read of the runs that it hit.
#[derive(Debug)]
pub struct CompactionHasher {
    floor: i64,
    revision: i64,
    sums: Sums,
    /// What was live at the floor.
    before: Vec<Run>,
    /// Whether the checksums in `before` hold.
    known: bool,
    /// How many of `before` are done.
    done: usize,
    /// What is live at the revision; the last one is still growing.
    live: Vec<Run>,
    phase: Phase,
    next: Revision,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Looks at what was written since, to find the runs that it hit.
    Mark,
    /// Goes over what was live at the floor.
    BelowFloor,
    /// Goes over what was written since.
    AboveFloor,
}

/// Checksums of what is live at the floor that a compaction sets, in runs of neighbouring revisions.
///
/// It takes some 50 bytes for each run, and two neighbouring runs hold more than [`limits::HASH_RUN_RECORDS`] versions:
/// less than half a byte for each key.
#[derive(Debug)]
pub struct Survivors {
    floor: i64,
    runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: Revision,
    /// The first revision beyond.
    end: Revision,
    records: usize,
    sum: Sum,
    /// Something in it died.
    hit: bool,
}

impl CompactionHasher {
    /// Starts a compaction to `revision`, where an earlier one that is finished went up to `floor`. What that one's
    /// hash left behind makes this one cheaper. Until this one is complete nothing above the floor may be removed.
    pub fn new(floor: i64, revision: i64, survivors: Option<Survivors>) -> CompactionHasher {
        assert!(floor < revision, "a compaction raises the floor");
        let survivors = survivors.filter(|survivors| survivors.floor == floor);
        let known = survivors.is_some();
        let end = Revision { main: floor + 1, sub: 0 };
        let unknown = Run { first: Revision::default(), end, records: 0, sum: Sum::default(), hit: true };
        CompactionHasher {
            floor,
            revision,
            sums: Sums::new(),
            before: survivors.map_or_else(|| vec![unknown], |survivors| survivors.runs),
            known,
            done: 0,
            live: Vec::new(),
            phase: if known { Phase::Mark } else { Phase::BelowFloor },
            next: if known { end } else { Revision::default() },
        }
    }

    /// The compaction's revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Goes on for at most `budget` revisions or untouched runs, fewer if they are large
    /// ([`limits::HASH_STEP_BYTES`]); gives the hash at the end, and what makes the next one cheaper.
    pub fn step(&mut self, view: &View<'_>, budget: usize) -> Paged<Option<(HashKv, Survivors)>> {
        let mut events = view.events(self.next);
        let mut bytes = 0;
        for _ in 0..budget {
            match self.phase {
                Phase::Mark => {
                    let Some(previous) = self.written_since(&mut events)? else {
                        self.phase = Phase::BelowFloor;
                        self.next = Revision::default();
                        return Ok(None);
                    };
                    self.mark(previous);
                }
                Phase::BelowFloor => {
                    let Some(run) = self.before.get(self.done).copied() else {
                        self.phase = Phase::AboveFloor;
                        self.next = Revision { main: self.floor + 1, sub: 0 };
                        return Ok(None);
                    };
                    if !run.hit {
                        self.take_run(&run);
                        continue;
                    }
                    if self.next < run.first {
                        self.next = run.first;
                        events = view.events(self.next);
                    }
                    bytes += self.read_run(view, &run, &mut events)?;
                }
                Phase::AboveFloor => {
                    let Some(record) = events.next()?.filter(|record| record.revision.main <= self.revision) else {
                        return Ok(Some(self.finish()));
                    };
                    bytes += self.take_new(view, &record)?;
                }
            }
            if bytes >= limits::HASH_STEP_BYTES {
                break;
            }
        }
        Ok(None)
    }

    /// What the next version above the floor replaced; `None` at the end.
    fn written_since(&mut self, events: &mut EventCursor<'_>) -> Paged<Option<Option<Revision>>> {
        let Some((_, head)) = events.head()? else { return Ok(None) };
        let (revision, previous) = (head.version.modified, head.previous);
        if revision.main > self.revision {
            return Ok(None);
        }
        events.pass();
        self.next = after(revision);
        Ok(Some(previous))
    }

    /// A version was replaced. If it lies in no run it was dead before.
    fn mark(&mut self, replaced: Option<Revision>) {
        let Some(replaced) = replaced else { return };
        let above = self.before.partition_point(|run| run.first <= replaced);
        if let Some(run) = above.checked_sub(1).map(|at| &mut self.before[at]) {
            run.hit |= replaced < run.end;
        }
    }

    /// Takes a run as it is.
    fn take_run(&mut self, run: &Run) {
        assert!(run.records > 0, "a run holds something");
        self.sums.kept.combine(run.sum);
        self.sums.something_kept = true;
        match self.live.last_mut() {
            Some(last) if last.records + run.records <= limits::HASH_RUN_RECORDS => {
                last.records += run.records;
                last.sum.combine(run.sum);
                last.end = run.end;
            }
            _ => self.live.push(*run),
        }
        self.done += 1;
    }

    /// Reads the next version of a run, or ends it. Returns the bytes read.
    fn read_run<'a>(&mut self, view: &View<'a>, run: &Run, events: &mut EventCursor<'a>) -> Paged<usize> {
        let inside = |record: &Record| record.revision < run.end;
        let Some(record) = events.next()?.filter(inside) else {
            if self.known && !self.sums.something_kept {
                self.sums.all.combine(run.sum);
            }
            self.done += 1;
            // The cursor may have passed the first revision beyond the run.
            self.next = run.end;
            *events = view.events(self.next);
            return Ok(0);
        };
        let kept = if self.known {
            let kept = is_live(view, &record, self.revision)?;
            if kept {
                self.sums.something_kept = true;
                self.sums.kept.append_record(&record);
            }
            kept
        } else {
            self.sums.below_floor(view, &record, self.floor, self.revision)?
        };
        if kept {
            self.grow(&record);
        }
        self.next = after(record.revision);
        Ok(record.key.len() + record.value.len())
    }

    /// Takes a version that was written since. Returns the bytes read.
    fn take_new(&mut self, view: &View<'_>, record: &Record) -> Paged<usize> {
        let live = is_live(view, record, self.revision)?;
        let last_tombstone = record.deleted && record.revision.main == self.revision;
        self.sums.above_floor(record, live || last_tombstone);
        if live {
            self.grow(record);
        }
        self.next = after(record.revision);
        Ok(record.key.len() + record.value.len())
    }

    /// A version lives on.
    fn grow(&mut self, record: &Record) {
        let end = after(record.revision);
        if self.live.last().is_none_or(|last| last.records >= limits::HASH_RUN_RECORDS) {
            let first = record.revision;
            self.live.push(Run { first, end, records: 0, sum: Sum::default(), hit: false });
        }
        let last = self.live.last_mut().expect("there is a run");
        last.records += 1;
        last.sum.append_record(record);
        last.end = end;
    }

    fn finish(&mut self) -> (HashKv, Survivors) {
        let hash = HashKv { hash: self.sums.hash(), compact_revision: self.floor, revision: self.revision };
        let runs = std::mem::take(&mut self.live);
        assert!(runs.is_sorted_by(|a, b| a.end <= b.first), "runs are in order");
        (hash, Survivors { floor: self.revision, runs })
    }
}

/// A CRC-32C that knows how many bytes it covers.
///
/// Appending n bytes multiplies a CRC, seen as a polynomial over GF(2), by x to the power 8n modulo the CRC's own. That
/// takes less than a microsecond here; the crc32c crate's way with matrices takes thirty, which a step of many runs
/// would show as a pause.
#[derive(Clone, Copy, Default, Debug)]
struct Sum {
    crc: u32,
    len: u64,
}

/// CRC-32C's polynomial. The highest bit is the coefficient of 1, the lowest that of x³¹.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
/// x to the power 8·2ⁿ.
const POWERS: [u32; 64] = powers();

const fn powers() -> [u32; 64] {
    let mut powers = [ONE >> 8; 64];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
}

/// The product of two polynomials.
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        b = if b & 1 == 0 { b >> 1 } else { b >> 1 ^ POLYNOMIAL };
    }
    product
}

/// x to the power 8·`bytes`.
fn power(bytes: u64) -> u32 {
    let mut power = ONE;
    let mut left = bytes;
    while left != 0 {
        let bit = left.trailing_zeros();
        power = multiply(POWERS[crate::codec::to_usize(bit)], power);
        left &= left - 1;
    }
    power
}

impl Sum {
    fn append(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.len += crate::codec::to_u64(bytes.len());
    }

    /// Appends the bytes that another one covers.
    fn combine(&mut self, other: Sum) {
        self.crc = multiply(power(other.len), self.crc) ^ other.crc;
        self.len += other.len;
    }

    /// Appends a record's key and value as etcd stores them.
    fn append_record(&mut self, record: &Record) {
        let mut key = [0u8; 18];
        key[..8].copy_from_slice(&record.revision.main.to_be_bytes());
        key[8] = b'_';
        key[9..17].copy_from_slice(&record.revision.sub.to_be_bytes());
        key[17] = b't';
        self.append(&key[..if record.deleted { 18 } else { 17 }]);
        let mut head = Vec::with_capacity(record.key.len() + 64);
        put_bytes(&mut head, 1, &record.key);
        if !record.deleted {
            put_int(&mut head, 2, record.create_revision);
            put_int(&mut head, 3, record.revision.main);
            put_int(&mut head, 4, record.version);
            if !record.value.is_empty() {
                put_varint(&mut head, 5 << 3 | 2);
                put_varint(&mut head, u64::try_from(record.value.len()).expect("usize has at most 64 bits"));
                self.append(&head);
                self.append(&record.value);
                head.clear();
            }
            put_int(&mut head, 6, record.lease);
        }
        self.append(&head);
    }
}

fn put_int(into: &mut Vec<u8>, field: u64, value: i64) {
    if value != 0 {
        put_varint(into, field << 3);
        put_varint(into, value.cast_unsigned());
    }
}

fn put_bytes(into: &mut Vec<u8>, field: u64, value: &[u8]) {
    if !value.is_empty() {
        put_varint(into, field << 3 | 2);
        put_varint(into, u64::try_from(value.len()).expect("usize has at most 64 bits"));
        into.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_neighbours_combine_to_the_sum_of_the_whole() {
        let bytes: Vec<u8> = (0..40_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let sum = |bytes: &[u8]| {
            let mut sum = Sum::default();
            sum.append(bytes);
            sum
        };
        for at in [0, 1, 2, 7, 255, 256, 257, 4_095, 39_999, 40_000] {
            let mut left = sum(&bytes[..at]);
            let right = sum(&bytes[at..]);
            assert_eq!(multiply(power(right.len), left.crc) ^ right.crc, crc32c::crc32c(&bytes), "{at}");
            left.combine(right);
            assert_eq!((left.crc, left.len), (crc32c::crc32c(&bytes), 40_000), "{at}");
        }
        let huge = 5 << 33;
        let expected = crc32c::crc32c_combine(0x1234_5678, 0x9abc_def0, huge);
        assert_eq!(multiply(power(u64::try_from(huge).expect("64 bits")), 0x1234_5678) ^ 0x9abc_def0, expected);
    }
}
