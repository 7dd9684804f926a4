//! Range streams: a range read that is answered in chunks, at one revision, without holding a root.
//!
//! The first chunk has ten rows. A chunk below half the target size doubles the rows of the next, one above twice the
//! target halves them. Only the last chunk carries a header, `more` and the count.

use garboard_storage::{Paged, Version, View};

use super::limits::STREAM_FIRST_CHUNK_ROWS;
use super::range::{NEWEST, Shape, has_filters, read_revision};
use super::walk::{Budget, CountWalk, Visit, Walk, WalkStep};
use super::wire::{ValueSource, put_row};
use crate::error::Error;
use crate::request::Range;

/// Why a range stream is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamRefusal {
    /// It asks for another order than that of the keys: not implemented, nor is it in etcd.
    #[error("RangeStream does not support custom sort orders")]
    SortOrder,
    /// It filters by revisions: not implemented, nor is it in etcd.
    #[error("RangeStream does not support revision filters")]
    RevisionFilters,
    /// The read itself is refused.
    #[error(transparent)]
    Read(#[from] Error),
}

/// One message of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamChunk {
    /// The rows, each as the encoded field `kvs` of a response.
    pub rows: Vec<u8>,
    /// Number of rows.
    pub row_count: u64,
    /// In the last message: what ends the stream.
    pub end: Option<StreamEnd>,
}

/// What the last message of a stream carries beside its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    /// The revision for the header: the store's when the stream began.
    pub revision: i64,
    /// Whether the limit left some out.
    pub more: bool,
    /// Number of keys in the range, whatever the limit.
    pub count: i64,
}

/// What a step of a stream came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamStep {
    /// The step's budget is spent; call again, with a view of the newest root.
    Pending,
    /// A message is complete.
    Chunk(StreamChunk),
}

/// A range stream.
///
/// [`new`](Self::new), then [`step`](Self::step) with a view of the newest root until it returns the chunk with the
/// end.
#[derive(Debug)]
pub struct RangeStream {
    shape: Shape,
    revision: i64,
    /// Rows that may still be streamed.
    left: u64,
    /// Rows streamed, the chunk under way included.
    streamed: u64,
    /// Rows that the chunk under way may have.
    chunk_limit: u64,
    chunk_target_bytes: usize,
    chunk: StreamChunk,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Rows(Walk),
    /// The rows are complete; what the limit cut off is counted.
    Count(CountWalk),
    Done,
}

impl RangeStream {
    /// Begins a stream whose chunks are about `chunk_target_bytes` long, which is the largest request.
    ///
    /// # Errors
    /// A refusal; [`StreamRefusal::SortOrder`] also for a target other than the key without an order, for which etcd
    /// repeats rows.
    pub fn new(view: &View<'_>, range: &Range, chunk_target_bytes: usize) -> Result<Self, StreamRefusal> {
        let shape = Shape::of(range);
        if shape.sort.is_some() {
            return Err(StreamRefusal::SortOrder);
        }
        if has_filters(range) {
            return Err(StreamRefusal::RevisionFilters);
        }
        let revision = view.revision();
        let asked = read_revision(revision, view.compacted(), range.revision, false)?;
        let walk = Walk::new(&range.keys, if asked == NEWEST { revision } else { asked });
        let left = u64::try_from(range.limit).ok().filter(|limit| *limit > 0).unwrap_or(u64::MAX);
        let phase = if range.count_only { Phase::Count(walk.into_count()) } else { Phase::Rows(walk) };
        let chunk_limit = STREAM_FIRST_CHUNK_ROWS.min(left);
        let chunk = StreamChunk { rows: Vec::new(), row_count: 0, end: None };
        Ok(Self { shape, revision, left, streamed: 0, chunk_limit, chunk_target_bytes, chunk, phase })
    }

    /// Goes on to the next chunk. After a missing page it is called again, and goes on where it missed it.
    ///
    /// # Errors
    /// [`Error::Compacted`] once the floor has passed the stream's revision.
    ///
    /// # Panics
    /// If it is called after the last chunk.
    pub fn step(&mut self, view: &View<'_>, budget: Budget) -> Paged<Result<StreamStep, Error>> {
        match &mut self.phase {
            Phase::Rows(_) => self.step_rows(view, budget),
            Phase::Count(walk) => {
                let step = walk.step(view, budget)?;
                Ok(step.map(|count| match count {
                    Some(rest) => self.finish(self.chunk_is_cut(), rest),
                    None => StreamStep::Pending,
                }))
            }
            Phase::Done => panic!("the stream has ended"),
        }
    }

    /// Whether the count under way is of what a limit cut off. A stream that only counts has streamed nothing.
    fn chunk_is_cut(&self) -> bool {
        self.streamed > 0
    }

    fn step_rows(&mut self, view: &View<'_>, budget: Budget) -> Paged<Result<StreamStep, Error>> {
        let Phase::Rows(walk) = &mut self.phase else { unreachable!("the caller looked") };
        let (shape, chunk, chunk_limit) = (&self.shape, &mut self.chunk, self.chunk_limit);
        let (left, streamed) = (&mut self.left, &mut self.streamed);
        // Rows that turn out large end a chunk early: etcd would send them all.
        let bytes_max = self.chunk_target_bytes.saturating_mul(2);
        let mut visit = |key: &[u8], version: &Version| {
            if chunk.row_count >= chunk_limit || chunk.rows.len() > bytes_max {
                return Ok(Visit::Stop);
            }
            let before = chunk.rows.len();
            put_row(key, version, shape, &ValueSource::View(view), &mut chunk.rows)?;
            chunk.row_count += 1;
            *streamed += 1;
            *left -= 1;
            Ok(Visit::Taken { bytes: chunk.rows.len() - before })
        };
        let step = match walk.step(view, budget, &mut visit)? {
            Ok(step) => step,
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(match step {
            WalkStep::Spent => StreamStep::Pending,
            WalkStep::Exhausted => self.finish(false, 0),
            WalkStep::Stopped if self.left == 0 => {
                self.phase = Phase::Count(walk.clone().into_count());
                StreamStep::Pending
            }
            WalkStep::Stopped => StreamStep::Chunk(self.next_chunk()),
        }))
    }

    /// Takes the chunk and sizes the next one.
    fn next_chunk(&mut self) -> StreamChunk {
        let size = self.chunk.rows.len();
        let row_count = self.chunk.row_count;
        self.chunk_limit = match size {
            _ if size < self.chunk_target_bytes / 2 => row_count.saturating_mul(2),
            _ if size > self.chunk_target_bytes.saturating_mul(2) => row_count / 2,
            _ => row_count,
        };
        self.chunk_limit = self.chunk_limit.max(1).min(self.left);
        std::mem::replace(&mut self.chunk, StreamChunk { rows: Vec::new(), row_count: 0, end: None })
    }

    fn finish(&mut self, more: bool, rest: i64) -> StreamStep {
        let count = i64::try_from(self.streamed).expect("a store holds fewer than 2^63 keys") + rest;
        let mut chunk = self.next_chunk();
        chunk.end = Some(StreamEnd { revision: self.revision, more, count });
        self.phase = Phase::Done;
        StreamStep::Chunk(chunk)
    }
}
