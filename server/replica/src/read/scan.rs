//! Range reads of any size, in bounded steps, written straight into the message that answers them.
//!
//! A large answer is made in two passes at one revision. The first sums what the rows take in the message, without
//! touching their values, and counts the range; what it encodes on the way, up to [`SCAN_HEAD_BYTES`], is kept, so that
//! a small answer is done after it. The second writes the rows as the client takes them. No root is held between steps.
//!
//! Nothing holds compaction back for a read: once the floor passes the read's revision, the next step of either pass
//! answers [`Error::Compacted`]. A read of the newest revision is that old only if its client took longer to receive
//! the answer than the store keeps history.

use garboard_storage::{Paged, Version, View};

use super::fault::may_miss;
use super::limits::SCAN_HEAD_BYTES;
use super::range::{NEWEST, Shape, admits, read_revision};
use super::sorter::{Merge, Sorted, Sorter};
use super::walk::{Budget, CountWalk, Progress, Visit, Walk, WalkStep, check_floor};
use super::wire::{ValueSource, put_row, row_len};
use crate::error::Error;
use crate::request::{KeyRange, Range};

/// The first pass of a range read.
///
/// [`new`](Self::new), then [`step`](Self::step) with a view of the newest root until it is done, then
/// [`into_plan`](Self::into_plan).
#[derive(Debug)]
pub struct RangeScan {
    range: Range,
    shape: Shape,
    /// The store's revision at the start, for the header.
    revision: i64,
    /// The revision read at.
    at: i64,
    phase: Phase,
    /// Keys of the range that the walk passed over; the count once that is done.
    count: i64,
    /// Rows of the answer so far, and what they take in the message.
    row_count: u64,
    rows_len: u64,
    more: bool,
    head: Head,
    sorted: Option<Sorted>,
}

#[derive(Debug)]
enum Phase {
    /// The one key that is asked for.
    Point,
    /// Rows in key order.
    Rows(Walk),
    /// Rows that have to be sorted.
    Gather(Walk, Sorter),
    /// Sorted rows on their way into one order, and what then is left to count.
    Merge(Merge, Option<CountWalk>),
    /// What is beyond the rows.
    Count(CountWalk),
    Done,
}

/// The rows that the first pass encoded.
#[derive(Clone, Debug, Default)]
struct Head {
    rows: Vec<u8>,
    row_count: u64,
    /// The first row beyond the head; `None` while there is none.
    next: Option<Vec<u8>>,
}

/// What the first pass learned, and the rows for the second.
#[derive(Debug)]
pub struct RangePlan {
    /// The revision for the header: the store's when the read began.
    pub revision: i64,
    /// Number of rows.
    pub row_count: u64,
    /// Exact length of all rows as fields of the encoded response.
    pub rows_len: u64,
    /// Whether the limit left some out.
    pub more: bool,
    /// Number of keys in the range, whatever limit and filters.
    pub count: i64,
    /// The rows.
    pub rows: RangeRows,
}

impl RangeScan {
    /// Begins a read outside a transaction.
    ///
    /// # Errors
    /// [`Error::FutureRevision`] and [`Error::Compacted`], as [`read_revision`] says.
    pub fn new(view: &View<'_>, range: &Range) -> Result<Self, Error> {
        let revision = view.revision();
        let asked = read_revision(revision, view.compacted(), range.revision, false)?;
        let at = if asked == NEWEST { revision } else { asked };
        let shape = Shape::of(range);
        let walk = Walk::new(&range.keys, at);
        let phase = match shape.sort {
            _ if range.count_only => Phase::Count(walk.into_count()),
            _ if matches!(range.keys, KeyRange::Point(_)) => Phase::Point,
            Some(sort) => Phase::Gather(walk, Sorter::new(sort, range.limit)),
            None => Phase::Rows(walk),
        };
        let range = range.clone();
        let head = Head::default();
        let sorted = None;
        Ok(Self { range, shape, revision, at, phase, count: 0, row_count: 0, rows_len: 0, more: false, head, sorted })
    }

    /// Goes on. After a missing page it is called again, and goes on where it missed it.
    ///
    /// # Errors
    /// [`Error::Compacted`] once the floor has passed the read's revision, [`Error::TooManyRequests`] when a sort needs
    /// more memory than it may have.
    pub fn step(&mut self, view: &View<'_>, budget: Budget) -> Paged<Result<Progress, Error>> {
        let result = match &mut self.phase {
            Phase::Point => self.step_point(view)?,
            Phase::Rows(_) => self.step_rows(view, budget)?,
            Phase::Gather(..) => self.step_gather(view, budget)?,
            Phase::Merge(..) => {
                self.step_merge(budget);
                Ok(())
            }
            Phase::Count(walk) => walk.step(view, budget)?.map(|count| {
                if let Some(count) = count {
                    self.count += count;
                    self.phase = Phase::Done;
                }
            }),
            Phase::Done => Ok(()),
        };
        let progress = if matches!(self.phase, Phase::Done) { Progress::Done } else { Progress::More };
        Ok(result.map(|()| progress))
    }

    /// # Panics
    /// If the pass is not done.
    pub fn into_plan(self) -> RangePlan {
        assert!(matches!(self.phase, Phase::Done), "the first pass runs to its end before the second");
        let source = match (self.sorted, self.head.next) {
            (Some(sorted), _) => RowSource::Sorted { sorted, next: 0 },
            (None, Some(next)) => RowSource::Walk(Walk::from(next, self.range.keys.end_key(), self.at)),
            (None, None) => RowSource::HeadAlone,
        };
        let rows = RangeRows {
            range: self.range,
            shape: self.shape,
            at: self.at,
            head: self.head.rows,
            left: self.row_count - self.head.row_count,
            source,
        };
        let Self { revision, row_count, rows_len, more, count, .. } = self;
        RangePlan { revision, row_count, rows_len, more, count, rows }
    }

    fn step_point(&mut self, view: &View<'_>) -> Paged<Result<(), Error>> {
        let KeyRange::Point(key) = &self.range.keys else { unreachable!("the phase is for a point") };
        if let Err(error) = check_floor(view, self.at) {
            return Ok(Err(error));
        }
        may_miss()?;
        let found = view.find(key, self.at)?;
        if let Some(version) = found.filter(|version| admits(&self.range, version)) {
            let length = row_len(key, &version, &self.shape);
            self.head.offer(view, key, &version, &self.shape, length)?;
            self.row_count = 1;
            self.rows_len = length;
        }
        self.count = i64::from(found.is_some());
        self.phase = Phase::Done;
        Ok(Ok(()))
    }

    fn step_rows(&mut self, view: &View<'_>, budget: Budget) -> Paged<Result<(), Error>> {
        let Phase::Rows(walk) = &mut self.phase else { unreachable!("the caller looked") };
        let (range, shape, head) = (&self.range, &self.shape, &mut self.head);
        let (count, row_count, rows_len) = (&mut self.count, &mut self.row_count, &mut self.rows_len);
        let limit = u64::try_from(range.limit).ok().filter(|limit| *limit > 0);
        let mut visit = |key: &[u8], version: &Version| {
            if !admits(range, version) {
                *count += 1;
                return Ok(Visit::Taken { bytes: 0 });
            }
            if limit.is_some_and(|limit| *row_count >= limit) {
                return Ok(Visit::Stop);
            }
            let length = row_len(key, version, shape);
            let bytes = head.offer(view, key, version, shape, length)?;
            *count += 1;
            *row_count += 1;
            *rows_len += length;
            Ok(Visit::Taken { bytes })
        };
        let step = match walk.step(view, budget, &mut visit)? {
            Ok(step) => step,
            Err(error) => return Ok(Err(error)),
        };
        match step {
            WalkStep::Spent => {}
            WalkStep::Stopped => {
                self.more = true;
                self.phase = Phase::Count(walk.clone().into_count());
            }
            WalkStep::Exhausted => self.phase = Phase::Done,
        }
        Ok(Ok(()))
    }

    fn step_gather(&mut self, view: &View<'_>, budget: Budget) -> Paged<Result<(), Error>> {
        let Phase::Gather(walk, sorter) = &mut self.phase else { unreachable!("the caller looked") };
        let (range, shape, count) = (&self.range, &self.shape, &mut self.count);
        // A step that missed a page left rows behind.
        if let Err(error) = sorter.seal() {
            return Ok(Err(error));
        }
        let mut visit = |key: &[u8], version: &Version| {
            if shape.walk_limit.is_some_and(|limit| sorter.row_count() >= limit) {
                return Ok(Visit::Stop);
            }
            let bytes = if admits(range, version) { sorter.add(view, key, version)? } else { 0 };
            *count += 1;
            Ok(Visit::Taken { bytes })
        };
        let step = match walk.step(view, budget, &mut visit)? {
            Ok(step) => step,
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = sorter.seal() {
            return Ok(Err(error));
        }
        if step != WalkStep::Spent {
            let rest = (step == WalkStep::Stopped).then(|| walk.clone().into_count());
            self.more = u64::try_from(range.limit).is_ok_and(|limit| limit > 0 && sorter.row_count() > limit);
            let Phase::Gather(_, sorter) = std::mem::replace(&mut self.phase, Phase::Done) else {
                unreachable!("the phase is this one");
            };
            self.phase = Phase::Merge(sorter.into_merge(), rest);
        }
        Ok(Ok(()))
    }

    fn step_merge(&mut self, budget: Budget) {
        let Phase::Merge(merge, _) = &mut self.phase else { unreachable!("the caller looked") };
        let (row_count, rows_len, shape) = (&mut self.row_count, &mut self.rows_len, &self.shape);
        let merged = merge.step(budget.keys.max(1), &mut |key, version| {
            *row_count += 1;
            *rows_len += row_len(key, version, shape);
        });
        if !merged {
            return;
        }
        let Phase::Merge(merge, rest) = std::mem::replace(&mut self.phase, Phase::Done) else {
            unreachable!("the phase is this one");
        };
        self.sorted = Some(merge.into_sorted());
        if let Some(rest) = rest {
            self.phase = Phase::Count(rest);
        }
    }
}

impl Head {
    /// Takes a row, unless the head is full; returns the bytes that were gathered.
    fn offer(&mut self, view: &View<'_>, key: &[u8], version: &Version, shape: &Shape, length: u64) -> Paged<usize> {
        if self.next.is_some() {
            return Ok(0);
        }
        let room = SCAN_HEAD_BYTES - self.rows.len();
        match usize::try_from(length) {
            Ok(length) if length <= room => {
                put_row(key, version, shape, &ValueSource::View(view), &mut self.rows)?;
                self.row_count += 1;
                Ok(length)
            }
            _ => {
                self.next = Some(key.to_vec());
                Ok(0)
            }
        }
    }
}

/// The second pass of a range read: its rows, encoded.
#[derive(Debug)]
pub struct RangeRows {
    range: Range,
    shape: Shape,
    at: i64,
    /// What the first pass encoded.
    head: Vec<u8>,
    /// Rows left beyond the head.
    left: u64,
    source: RowSource,
}

#[derive(Debug)]
enum RowSource {
    /// The head is all.
    HeadAlone,
    Walk(Walk),
    Sorted {
        sorted: Sorted,
        next: usize,
    },
}

impl RangeRows {
    /// Appends encoded rows to `out`, about as many bytes as the budget says. After a missing page it is called again;
    /// what was appended stays.
    ///
    /// # Errors
    /// [`Error::Compacted`] once the floor has passed the read's revision: the message cannot be finished then.
    pub fn step(&mut self, view: &View<'_>, budget: Budget, out: &mut Vec<u8>) -> Paged<Result<Progress, Error>> {
        if !self.head.is_empty() {
            let head = std::mem::take(&mut self.head);
            if out.is_empty() {
                *out = head
            } else {
                out.extend_from_slice(&head)
            }
            return Ok(Ok(self.progress()));
        }
        let result = match &mut self.source {
            RowSource::HeadAlone => Ok(()),
            RowSource::Walk(_) => self.step_walk(view, budget, out)?,
            RowSource::Sorted { .. } => self.step_sorted(view, budget, out)?,
        };
        Ok(result.map(|()| self.progress()))
    }

    fn progress(&self) -> Progress {
        if self.left == 0 { Progress::Done } else { Progress::More }
    }

    fn step_walk(&mut self, view: &View<'_>, budget: Budget, out: &mut Vec<u8>) -> Paged<Result<(), Error>> {
        let RowSource::Walk(walk) = &mut self.source else { unreachable!("the caller looked") };
        let (range, shape, left) = (&self.range, &self.shape, &mut self.left);
        let mut visit = |key: &[u8], version: &Version| {
            if *left == 0 {
                return Ok(Visit::Stop);
            }
            if !admits(range, version) {
                return Ok(Visit::Taken { bytes: 0 });
            }
            let before = out.len();
            put_row(key, version, shape, &ValueSource::View(view), out)?;
            *left -= 1;
            Ok(Visit::Taken { bytes: out.len() - before })
        };
        let step = walk.step(view, budget, &mut visit)?;
        assert!(step != Ok(WalkStep::Exhausted) || self.left == 0, "both passes see the same rows");
        Ok(step.map(|_| ()))
    }

    fn step_sorted(&mut self, view: &View<'_>, budget: Budget, out: &mut Vec<u8>) -> Paged<Result<(), Error>> {
        let RowSource::Sorted { sorted, next } = &mut self.source else { unreachable!("the caller looked") };
        if let Err(error) = check_floor(view, self.at) {
            return Ok(Err(error));
        }
        let start = out.len();
        for _ in 0..budget.keys.max(1) {
            if *next == sorted.len() {
                break;
            }
            let (key, version, value) = sorted.get(*next);
            let value = value.map_or(ValueSource::View(view), ValueSource::Bytes);
            put_row(key, version, &self.shape, &value, out)?;
            *next += 1;
            self.left -= 1;
            if out.len() - start >= budget.bytes {
                break;
            }
        }
        Ok(Ok(()))
    }
}
