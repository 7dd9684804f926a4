//! Reads: short ones over one root, long ones in steps over the newest root of each moment, each held against the model as
//! of what the root shows.

use garboard_replica::Error;
use garboard_replica::read::range::{NEWEST, evaluate, read_revision};
use garboard_replica::read::scan::{RangePlan, RangeScan};
use garboard_replica::read::stream::{RangeStream, StreamRefusal, StreamStep};
use garboard_replica::read::{Budget, Progress, txn};
use garboard_replica::request::{Range, SortOrder, SortTarget, Txn};
use garboard_storage::hash::KvHasher;
use garboard_storage::{Paged, View};

use crate::model::{Model, encode_rows};
use crate::outcome::{Check, same, short, violated};

/// Bytes that a chunk of a stream aims at: small, so that there are several.
const CHUNK_BYTES: usize = 400;
const HASH_STEP_REVISIONS: usize = 40;

/// A range read in two passes.
#[derive(Debug)]
pub struct Scanning {
    range: Range,
    scan: Option<RangeScan>,
    plan: Option<(RangePlan, Vec<u8>)>,
}

/// A read, and how far it is.
#[derive(Debug)]
pub enum Read {
    /// A range at once.
    Range(Range),
    /// A transaction that only reads.
    Txn(Txn),
    /// A range in two passes.
    Scan(Box<Scanning>),
    /// A range as a stream.
    Stream {
        /// What is read.
        range: Range,
        /// How far it is.
        stream: Option<Box<RangeStream>>,
        /// The rows so far.
        rows: Vec<u8>,
    },
    /// The hash of the history.
    Hash {
        /// The revision asked for.
        asked: i64,
        /// The revision and the floor at its beginning, and how far it is.
        hasher: Option<(i64, i64, KvHasher)>,
    },
}

impl Read {
    /// A range at once.
    pub fn range(range: Range) -> Read {
        Read::Range(range)
    }

    /// A transaction that only reads.
    pub fn txn(txn: Txn) -> Read {
        Read::Txn(txn)
    }

    /// A range in two passes.
    pub fn scan(range: Range) -> Read {
        Read::Scan(Box::new(Scanning { range, scan: None, plan: None }))
    }

    /// A range as a stream.
    pub fn stream(range: Range) -> Read {
        Read::Stream { range, stream: None, rows: Vec::new() }
    }

    /// The hash of the history.
    pub fn hash(asked: i64) -> Read {
        Read::Hash { asked, hasher: None }
    }

    /// Goes on over a root. Every state that roots have shown so far is known to the model.
    ///
    /// # Errors
    /// The page that is missing; within, what is wrong about the answer.
    pub fn step(&mut self, view: &View<'_>, model: &mut Model, budget: Budget) -> Stepped {
        match self {
            Read::Range(range) => step_range(view, model, range),
            Read::Txn(txn) => step_txn(view, model, txn),
            Read::Scan(scanning) => step_scan(view, model, scanning, budget),
            Read::Stream { range, stream, rows } => step_stream(view, model, range, stream, rows, budget),
            Read::Hash { asked, hasher } => step_hash(view, model, *asked, hasher),
        }
    }
}

/// Whether a step was the last one.
pub type Stepped = Paged<Check<Progress>>;

fn done(check: Check) -> Stepped {
    Ok(check.map(|()| Progress::Done))
}

/// The revision that a read outside a transaction reads at.
fn expected_revision(view: &View<'_>, asked: i64) -> Result<i64, Error> {
    match asked {
        ..=0 => Ok(view.revision()),
        _ if asked > view.revision() => Err(Error::FutureRevision),
        _ if asked < view.compacted() => Err(Error::Compacted),
        _ => Ok(asked),
    }
}

fn step_range(view: &View<'_>, model: &Model, range: &Range) -> Stepped {
    let found = evaluate(view, range, false)?;
    let expected = expected_revision(view, range.revision).map(|at| model.range(range, at));
    done(same(&format!("the answer to {range:?}"), &expected, &found))
}

fn step_txn(view: &View<'_>, model: &mut Model, asked: &Txn) -> Stepped {
    let found = txn::evaluate(view, asked)?;
    let expected = model.read_txn(asked, view.revision(), view.compacted());
    done(same(&format!("the answer to {}", short(asked)), &expected, &found))
}

/// A long read may only fail, after it began, because the floor has passed it.
fn check_overtaken(view: &View<'_>, at: i64, error: Error) -> Stepped {
    if error == Error::Compacted && view.compacted() > at {
        return Ok(Ok(Progress::Done));
    }
    done(violated(format!("a read at {at} goes on"), "", short(&error)))
}

fn step_scan(view: &View<'_>, model: &Model, scanning: &mut Scanning, budget: Budget) -> Stepped {
    let Scanning { range, scan, plan } = scanning;
    if let Some((plan, out)) = plan {
        return step_rows(view, model, range, plan, out, budget);
    }
    let Some(begun) = scan else {
        let expected = expected_revision(view, range.revision);
        return match (RangeScan::new(view, range), expected) {
            (Ok(begun), Ok(_)) => {
                *scan = Some(begun);
                Ok(Ok(Progress::More))
            }
            (Err(found), Err(expected)) => done(same("why a range is refused", &expected, &found)),
            (found, expected) => {
                done(violated(format!("whether {range:?} is refused"), short(&expected), short(&found.err())))
            }
        };
    };
    match begun.step(view, budget)? {
        Ok(Progress::More) => {}
        Ok(Progress::Done) => {
            let finished = scan.take().expect("just seen").into_plan();
            *plan = Some((finished, Vec::new()));
        }
        // The floor may pass a read of what was the newest revision, too.
        Err(error) => return check_overtaken(view, if range.revision > 0 { range.revision } else { 0 }, error),
    }
    Ok(Ok(Progress::More))
}

fn step_rows(
    view: &View<'_>,
    model: &Model,
    range: &Range,
    plan: &mut RangePlan,
    out: &mut Vec<u8>,
    budget: Budget,
) -> Stepped {
    let at = if range.revision > 0 { range.revision } else { plan.revision };
    match plan.rows.step(view, budget, out)? {
        Ok(Progress::More) => return Ok(Ok(Progress::More)),
        Ok(Progress::Done) => {}
        Err(error) => return check_overtaken(view, at, error),
    }
    let expected = model.range(range, at);
    let rows = encode_rows(&expected.kvs);
    let length = u64::try_from(rows.len()).expect("small");
    let count = u64::try_from(expected.kvs.len()).expect("small");
    let what = format!("the answer to {range:?} in steps at {at}");
    done(
        same(&what, &(expected.count, expected.more), &(plan.count, plan.more))
            .and_then(|()| same(&what, &(count, length), &(plan.row_count, plan.rows_len)))
            .and_then(|()| same(&what, &rows, out)),
    )
}

fn step_stream(
    view: &View<'_>,
    model: &Model,
    range: &Range,
    stream: &mut Option<Box<RangeStream>>,
    rows: &mut Vec<u8>,
    budget: Budget,
) -> Stepped {
    let Some(begun) = stream else {
        return match RangeStream::new(view, range, CHUNK_BYTES) {
            Ok(begun) => {
                *stream = Some(Box::new(begun));
                done(same("whether a stream is refused", &stream_refusal(view, range), &None))
                    .map(|check| check.map(|_| Progress::More))
            }
            Err(refusal) => done(same("why a stream is refused", &stream_refusal(view, range), &Some(refusal))),
        };
    };
    let chunk = match begun.step(view, budget)? {
        Ok(StreamStep::Pending) => return Ok(Ok(Progress::More)),
        Ok(StreamStep::Chunk(chunk)) => chunk,
        Err(error) => return check_overtaken(view, if range.revision > 0 { range.revision } else { 0 }, error),
    };
    rows.extend_from_slice(&chunk.rows);
    let Some(end) = chunk.end else { return Ok(Ok(Progress::More)) };
    let at = if range.revision > 0 { range.revision } else { end.revision };
    let expected = model.range(range, at);
    let what = format!("the answer to {range:?} as a stream at {at}");
    done(
        same(&what, &(expected.count, expected.more), &(end.count, end.more))
            .and_then(|()| same(&what, &encode_rows(&expected.kvs), rows)),
    )
}

fn stream_refusal(view: &View<'_>, range: &Range) -> Option<StreamRefusal> {
    if range.target != SortTarget::Key || range.order == SortOrder::Descend {
        return Some(StreamRefusal::SortOrder);
    }
    let bounds = [range.min_mod_revision, range.max_mod_revision, range.min_create_revision, range.max_create_revision];
    if bounds.iter().any(|bound| *bound != 0) {
        return Some(StreamRefusal::RevisionFilters);
    }
    expected_revision(view, range.revision).err().map(StreamRefusal::Read)
}

fn step_hash(view: &View<'_>, model: &Model, asked: i64, hasher: &mut Option<(i64, i64, KvHasher)>) -> Stepped {
    let Some((at, floor, hashing)) = hasher else {
        let revision = match asked {
            ..0 => Ok(asked),
            _ => read_revision(view.revision(), view.compacted(), asked, false),
        };
        if let Err(found) = revision {
            return done(same("why a hash is refused", &expected_revision(view, asked).err(), &Some(found)));
        }
        let at = revision.map_or(0, |at| if at == NEWEST { view.revision() } else { at });
        *hasher = Some((at, view.compacted(), KvHasher::new(view, at)));
        return Ok(Ok(Progress::More));
    };
    if *at >= 0 && view.compacted() > *at {
        return Ok(Ok(Progress::Done));
    }
    let Some(found) = hashing.step(view, HASH_STEP_REVISIONS)? else { return Ok(Ok(Progress::More)) };
    let what = format!("the hash at revision {at} above floor {}", found.compact_revision);
    // It is of the floor at the start or of one that came since.
    let known = (*floor..=view.compacted()).contains(&found.compact_revision);
    done(
        same(&what, &(*at, true), &(found.revision, known))
            .and_then(|()| same(&what, &model.hash(found.compact_revision, *at), &found.hash)),
    )
}
