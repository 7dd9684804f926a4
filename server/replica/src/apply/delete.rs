//! Deletions: find the keys, make everything resident, then delete.

use std::collections::VecDeque;

use bytes::Bytes;
use garboard_storage::{Bounds, Paged};

use super::machine::Machine;
use crate::read::fault::may_miss;
use crate::request::{DeleteRange, KeyRange, KeyValue};

/// A deletion in progress. After a missing page it goes on where it stopped, so that a deletion of many keys that lie
/// on pages not yet read takes time in proportion to their number.
#[derive(Debug, Default)]
pub(super) struct DeleteRun {
    /// The keys to delete, in order.
    keys: VecDeque<Bytes>,
    /// All keys are known.
    found_all: bool,
    /// How many of the keys have their pages resident and, if asked for, their pairs read.
    ready: usize,
    /// The previous pairs.
    previous: Vec<KeyValue>,
    /// How many are deleted.
    deleted: i64,
}

impl DeleteRun {
    /// Deletes these keys, which are live.
    pub(super) fn of_keys(keys: Vec<Bytes>) -> DeleteRun {
        DeleteRun { keys: keys.into(), found_all: true, ..DeleteRun::default() }
    }
}

impl Machine {
    /// Deletes a range of keys. Returns the header's revision, the count, and the previous pairs if asked for.
    pub(super) fn delete_range(&mut self, delete: &DeleteRange) -> Paged<(i64, i64, Vec<KeyValue>)> {
        let mut run = self.delete_run.take().unwrap_or_default();
        let result = self.find_keys(&mut run, delete);
        self.delete_run = Some(run);
        result?;
        let (count, previous) = self.go_on_with_delete()?;
        Ok((self.seen_revision(), count, previous))
    }

    /// Deletes what [`Machine::delete_run`] holds, and takes it.
    pub(super) fn go_on_with_delete(&mut self) -> Paged<(i64, Vec<KeyValue>)> {
        let mut run = self.delete_run.take().expect("a deletion is in progress");
        match self.delete_keys(&mut run) {
            Ok(()) => Ok((run.deleted, run.previous)),
            Err(need) => {
                self.delete_run = Some(run);
                Err(need)
            }
        }
    }

    fn find_keys(&self, run: &mut DeleteRun, delete: &DeleteRange) -> Paged<()> {
        if !run.found_all {
            self.walk_keys(run, &delete.keys)?;
            run.found_all = true;
        }
        // Everything is read before the first change.
        if run.deleted == 0 {
            while let Some(key) = run.keys.get(run.ready) {
                may_miss()?;
                self.index.prefetch(key)?;
                if delete.prev_kv {
                    let pair = self.read_pair(key, true)?;
                    run.previous.push(pair.expect("the key was found live"));
                }
                run.ready += 1;
            }
        }
        Ok(())
    }

    fn walk_keys(&self, run: &mut DeleteRun, keys: &KeyRange) -> Paged<()> {
        let view = self.index.view();
        let (start, end) = match keys {
            KeyRange::Point(key) => {
                run.keys.extend(view.find(key, i64::MAX)?.map(|_| key.clone()));
                return Ok(());
            }
            KeyRange::Span { start, end } if end <= start => return Ok(()),
            KeyRange::Span { start, end } => (start.clone(), Some(end.as_ref())),
            KeyRange::FromKey(start) => (start.clone(), None),
            KeyRange::All => (Bytes::new(), None),
        };
        let start = match run.keys.back() {
            Some(last) => Bytes::from([last, [0].as_slice()].concat()),
            None => start,
        };
        let mut cursor = view.cursor(Bounds { start: &start, end }, i64::MAX);
        loop {
            may_miss()?;
            let Some((key, _)) = cursor.next()? else { break };
            run.keys.push_back(Bytes::copy_from_slice(key));
        }
        Ok(())
    }

    fn delete_keys(&mut self, run: &mut DeleteRun) -> Paged<()> {
        if run.deleted == 0 {
            while let Some(key) = run.keys.get(run.ready) {
                may_miss()?;
                self.index.prefetch(key)?;
                run.ready += 1;
            }
        }
        while let Some(key) = run.keys.front() {
            self.delete_one(key)?;
            run.keys.pop_front();
            run.deleted += 1;
        }
        Ok(())
    }
}
