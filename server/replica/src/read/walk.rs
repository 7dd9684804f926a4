//! Walks over many keys in bounded steps.

use bytes::Bytes;
use garboard_storage::{Bounds, Cursor, Paged, Revision, Version, View};

use super::fault::may_miss;
use super::limits::{STEP_BYTES, STEP_KEYS};
use super::range::NEWEST;
use crate::error::Error;
use crate::request::KeyRange;

/// How far one step of a long read may go. A step always goes over one key at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most keys, or records of the history, to walk over.
    pub keys: usize,
    /// Most bytes to gather; the last row may exceed it.
    pub bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { keys: STEP_KEYS, bytes: STEP_BYTES }
    }
}

impl Budget {
    fn is_spent(self) -> bool {
        self.keys == 0 || self.bytes == 0
    }

    fn spend(&mut self, keys: usize, bytes: usize) {
        self.keys = self.keys.saturating_sub(keys);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Whether a long read is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The step's budget is spent; call again, with a view of the newest root.
    More,
    /// Nothing is left to do.
    Done,
}

/// What the visitor of a walk says of a key.
pub(crate) enum Visit {
    /// It took the key; so many bytes of the budget are spent.
    Taken { bytes: usize },
    /// It did not take the key, and the walk stops before it.
    Stop,
}

/// How a step of a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkStep {
    /// The budget is spent.
    Spent,
    /// The visitor stopped the walk before a key: there is one more at least.
    Stopped,
    /// No key is left.
    Exhausted,
}

/// A walk in key order over the live keys of a range at one revision. Between steps it is a key and a revision only.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// The first key not visited yet.
    next: Vec<u8>,
    /// The first key beyond the range.
    end: Option<Bytes>,
    /// The revision; a real one, never [`NEWEST`], so that it means the same at any later root.
    at: i64,
}

impl Walk {
    pub(crate) fn new(keys: &KeyRange, at: i64) -> Self {
        assert!(at > 0 && at != NEWEST, "a walk reads at a revision that stays the same between steps");
        Self { next: keys.first_key().to_vec(), end: keys.end_key(), at }
    }

    /// A walk that goes on at a key.
    pub(crate) fn from(next: Vec<u8>, end: Option<Bytes>, at: i64) -> Self {
        Self { next, end, at }
    }

    /// Counts what this walk has not visited yet.
    pub(crate) fn into_count(self) -> CountWalk {
        CountWalk { walk: self, method: None }
    }

    fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end[..] <= self.next[..])
    }

    /// Visits keys until the budget is spent, the visitor stops, or no key is left.
    ///
    /// When a page is missing, to the walk or to the visitor, what was visited stays visited: after the page is loaded
    /// the step is simply called again. The visitor leaves nothing behind for a key at which it misses a page.
    ///
    /// # Errors
    /// [`Error::Compacted`] once the floor has passed the walk's revision.
    pub(crate) fn step(
        &mut self,
        view: &View<'_>,
        budget: Budget,
        visit: &mut dyn FnMut(&[u8], &Version) -> Paged<Visit>,
    ) -> Paged<Result<WalkStep, Error>> {
        if let Err(error) = check_floor(view, self.at) {
            return Ok(Err(error));
        }
        if self.is_empty() {
            return Ok(Ok(WalkStep::Exhausted));
        }
        let cursor = view.cursor(Bounds { start: &self.next, end: self.end.as_deref() }, self.at);
        let mut last = None;
        let result = visit_keys(cursor, budget, visit, &mut last);
        if let Some(mut last) = last {
            last.push(0);
            self.next = last;
        }
        result.map(Ok)
    }
}

/// Runs the cursor; `last` is the last key that was taken.
fn visit_keys(
    mut cursor: Cursor<'_>,
    mut budget: Budget,
    visit: &mut dyn FnMut(&[u8], &Version) -> Paged<Visit>,
    last: &mut Option<Vec<u8>>,
) -> Paged<WalkStep> {
    loop {
        if last.is_some() && budget.is_spent() {
            return Ok(WalkStep::Spent);
        }
        may_miss()?;
        let Some((key, version)) = cursor.next()? else {
            return Ok(WalkStep::Exhausted);
        };
        match visit(key, &version)? {
            Visit::Taken { bytes } => budget.spend(1, bytes),
            Visit::Stop => return Ok(WalkStep::Stopped),
        }
        let last = last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
    }
}

/// Refuses a revision that the floor has passed.
pub(crate) fn check_floor(view: &View<'_>, at: i64) -> Result<(), Error> {
    assert!(at <= view.revision(), "roots only move forward");
    if at < view.compacted() { Err(Error::Compacted) } else { Ok(()) }
}

/// The exact count of a range at one revision, in bounded steps.
///
/// At the newest revision the index knows it. At an older one, whichever promises to be shorter: the newest count,
/// corrected by the creations and deletions since, or a walk over the keys.
#[derive(Clone, Debug)]
pub(crate) struct CountWalk {
    walk: Walk,
    method: Option<CountMethod>,
}

#[derive(Clone, Debug)]
enum CountMethod {
    /// Keys walked over so far.
    Keys(i64),
    /// `correction` is what the history before `next` takes back from the newest count.
    History { next: Revision, correction: i64 },
}

/// A record of the history carries its value: walking it costs about as much as walking so many keys.
const HISTORY_COST_IN_KEYS: i64 = 4;

impl CountWalk {
    /// Goes on counting; `Some` is the count.
    ///
    /// # Errors
    /// [`Error::Compacted`] once the floor has passed the revision.
    pub(crate) fn step(&mut self, view: &View<'_>, budget: Budget) -> Paged<Result<Option<i64>, Error>> {
        if let Err(error) = check_floor(view, self.walk.at) {
            return Ok(Err(error));
        }
        if self.walk.is_empty() && self.method.is_none() {
            return Ok(Ok(Some(0)));
        }
        if self.method.is_none() {
            let distance = view.revision() - self.walk.at;
            let history = distance.saturating_mul(HISTORY_COST_IN_KEYS) <= self.newest_count(view)?;
            self.method = Some(if history {
                CountMethod::History { next: Revision { main: self.walk.at + 1, sub: 0 }, correction: 0 }
            } else {
                CountMethod::Keys(0)
            });
        }
        match self.method.as_mut().expect("chosen above") {
            CountMethod::Keys(walked) => {
                let mut visit = |_: &[u8], _: &Version| {
                    *walked += 1;
                    Ok(Visit::Taken { bytes: 0 })
                };
                let step = self.walk.step(view, budget, &mut visit)?;
                let walked = *walked;
                Ok(step.map(|step| (step == WalkStep::Exhausted).then_some(walked)))
            }
            CountMethod::History { next, correction } => {
                let start = &self.walk.next[..];
                let end = self.walk.end.as_deref();
                let counts = |key: &[u8]| start <= key && end.is_none_or(|end| key < end);
                if !correct(view, budget, &counts, next, correction)? {
                    return Ok(Ok(None));
                }
                let correction = *correction;
                let count = self.newest_count(view)? + correction;
                assert!(count >= 0, "a range never holds fewer than no keys");
                Ok(Ok(Some(count)))
            }
        }
    }

    fn newest_count(&self, view: &View<'_>) -> Paged<i64> {
        let bounds = Bounds { start: &self.walk.next, end: self.walk.end.as_deref() };
        may_miss()?;
        let count = view.count(bounds, NEWEST)?;
        Ok(i64::try_from(count).expect("a store holds fewer than 2^63 keys"))
    }
}

/// Walks the history from `next` on and takes its creations and deletions back; whether the view's end was reached.
fn correct(
    view: &View<'_>,
    mut budget: Budget,
    counts: &dyn Fn(&[u8]) -> bool,
    next: &mut Revision,
    correction: &mut i64,
) -> Paged<bool> {
    let mut events = view.events(*next);
    loop {
        may_miss()?;
        let Some(record) = events.next()? else {
            return Ok(true);
        };
        if counts(&record.key) {
            *correction += match (record.deleted, record.version) {
                (true, _) => 1,
                (false, 1) => -1,
                (false, _) => 0,
            };
        }
        *next = Revision { main: record.revision.main, sub: record.revision.sub + 1 };
        budget.spend(1, record.key.len() + record.value.len());
        if budget.is_spent() {
            return Ok(false);
        }
    }
}
