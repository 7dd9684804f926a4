//! What waits to be written, already divided into batches.

use std::collections::VecDeque;

use super::terms::Terms;
use crate::format::{HEADER_SIZE, entry_size, padded_size};
use crate::limits::BATCH_ENTRIES_MAX;
use crate::{Append, AppendNumber, Entry, HardState};

/// A batch that is still open: more appends may join it.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub(crate) entries: Vec<Entry>,
    pub(crate) body_len: u64,
    /// The first entry's index, or the next one of the log when there are no entries.
    pub(crate) first_index: u64,
    /// The term of the entry before `first_index`.
    pub(crate) term_before: u64,
    pub(crate) hard_state: HardState,
    /// The last append that is wholly contained in this batch and the ones before it.
    pub(crate) through: AppendNumber,
}

impl OpenBatch {
    pub(crate) fn last_index(&self) -> u64 {
        self.first_index + u64::try_from(self.entries.len()).expect("bounded") - 1
    }

    /// Bytes on disk.
    pub(crate) fn size(&self) -> u64 {
        padded_size(self.body_len)
    }
}

/// The open batches, and what the log will be once all of them are written.
#[derive(Debug)]
pub(crate) struct Pending {
    batches: VecDeque<OpenBatch>,
    terms: Terms,
    hard_state: HardState,
    last_append: AppendNumber,
    /// Most bytes of a batch's body, unless one entry alone is larger.
    body_max: u64,
    waiting_bytes: u64,
}

impl Pending {
    pub(crate) fn new(terms: Terms, hard_state: HardState, batch_size_max: u64) -> Pending {
        let body_max = batch_size_max - u64::try_from(HEADER_SIZE).expect("small");
        let batches = VecDeque::new();
        Pending { batches, terms, hard_state, last_append: AppendNumber(0), body_max, waiting_bytes: 0 }
    }

    pub(crate) fn front(&self) -> Option<&OpenBatch> {
        self.batches.front()
    }

    pub(crate) fn pop(&mut self) -> Option<OpenBatch> {
        let batch = self.batches.pop_front()?;
        self.waiting_bytes -= batch.size();
        Some(batch)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn hard_state(&self) -> HardState {
        self.hard_state
    }

    /// Nothing waits and a snapshot takes the place of all entries.
    pub(crate) fn install_snapshot(&mut self, index: u64, term: u64) {
        assert!(self.is_empty());
        self.terms = Terms::new(index, term);
        self.hard_state.commit = self.hard_state.commit.max(index);
        self.hard_state.term = self.hard_state.term.max(term);
    }

    /// Terms before `index` are not asked for any more.
    pub(crate) fn rebase(&mut self, index: u64) {
        self.terms.rebase(index);
    }

    pub(crate) fn append(&mut self, append: Append) -> AppendNumber {
        self.check(&append);
        self.last_append.0 += 1;
        let Append { entries, hard_state } = append;
        if entries.is_empty() {
            self.hard_state = hard_state;
            self.join_state();
        } else {
            self.join_entries(entries, hard_state);
        }
        self.hard_state = hard_state;
        let number = self.last_append;
        let last = self.batches.back_mut().expect("an append leaves an open batch");
        last.hard_state = hard_state;
        last.through = number;
        number
    }

    /// What Raft promises of an append; recovery would refuse a log that breaks it.
    fn check(&self, append: &Append) {
        let (old, new) = (self.hard_state, append.hard_state);
        assert!(new.term >= old.term, "the term never falls");
        assert!(new.commit >= old.commit, "the commit index never falls");
        let mut last_index = self.terms.last_index();
        if let Some(first) = append.entries.first() {
            assert!(first.index > old.commit, "nothing committed is replaced");
            assert!(first.index <= last_index + 1, "entries leave no gap");
            let mut term = self.terms.at(first.index - 1).expect("replacing starts above the anchor");
            for (index, entry) in (first.index..).zip(&append.entries) {
                assert!(entry.index == index, "entries of an append are consecutive");
                assert!(entry.term >= term, "terms never fall along a log");
                (last_index, term) = (index, entry.term);
            }
            assert!(term <= new.term, "no entry is of a later term than the hard state");
        }
        assert!(new.commit <= last_index, "only entries that exist are committed");
    }

    fn join_state(&mut self) {
        if self.batches.is_empty() {
            self.open();
        }
    }

    /// Opens a batch that continues the log at its end.
    fn open(&mut self) {
        let batch = OpenBatch {
            entries: Vec::new(),
            body_len: 0,
            first_index: self.terms.last_index() + 1,
            term_before: self.terms.last_term(),
            hard_state: self.hard_state,
            through: AppendNumber(self.last_append.0 - 1),
        };
        self.waiting_bytes += batch.size();
        self.batches.push_back(batch);
    }

    fn join_entries(&mut self, entries: Vec<Entry>, hard_state: HardState) {
        let first_index = entries[0].index;
        if self.batches.is_empty() || first_index != self.terms.last_index() + 1 {
            let before = first_index - 1;
            self.open();
            let batch = self.batches.back_mut().expect("just opened");
            batch.first_index = first_index;
            batch.term_before = self.terms.at(before).expect("checked");
        }
        let total: u64 = entries.iter().map(entry_size).sum();
        let last = self.batches.back_mut().expect("one is open");
        if last.body_len + total <= self.body_max && last.entries.len() + entries.len() <= BATCH_ENTRIES_MAX {
            self.waiting_bytes -= last.size();
            last.body_len += total;
            self.waiting_bytes += last.size();
            entries.iter().for_each(|entry| self.terms.put(entry.index, entry.term));
            if last.entries.is_empty() {
                last.entries = entries;
            } else {
                last.entries.extend(entries);
            }
            return;
        }
        self.divide_entries(entries, first_index, hard_state);
    }

    /// Adds entries that do not fit one batch together.
    fn divide_entries(&mut self, entries: Vec<Entry>, first_index: u64, hard_state: HardState) {
        for entry in entries {
            let size = entry_size(&entry);
            let last = self.batches.back_mut().expect("one is open");
            let full = last.body_len + size > self.body_max || last.entries.len() == BATCH_ENTRIES_MAX;
            if full && !last.entries.is_empty() {
                if entry.index > first_index {
                    // A part of an append must not claim that what the other parts hold is committed.
                    let commit = hard_state.commit.min(last.last_index());
                    last.hard_state = HardState { commit, ..hard_state };
                    self.hard_state = last.hard_state;
                }
                self.open();
            }
            let last = self.batches.back_mut().expect("one is open");
            self.waiting_bytes -= last.size();
            last.body_len += size;
            self.waiting_bytes += last.size();
            self.terms.put(entry.index, entry.term);
            last.entries.push(entry);
        }
    }
}
