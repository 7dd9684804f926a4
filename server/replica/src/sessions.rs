//! Which forwarded writes were seen: for each member its newest session, and the last sequence number of it.
//!
//! The records are part of the replicated state: every member changes them alike when it applies an entry that names its
//! origin, and they are saved with the rest. There is one for each member that ever forwarded a write and is still a
//! member.

use std::collections::{BTreeMap, BTreeSet};

use crate::canary::{self, Canary};
use crate::codec::Source;

/// What is known of a member's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Record {
    /// Its newest session. Nothing of an older one takes effect any more.
    pub session: u64,
    /// The largest sequence number of it that was seen.
    pub last: u64,
}

impl Record {
    /// How many of an entry's `count` writes were seen, or are of an older session. They are the first ones.
    pub fn seen(&self, source: &Source, count: u64) -> u64 {
        if source.session != self.session {
            return if source.session < self.session { count } else { 0 };
        }
        (self.last + 1).saturating_sub(source.first).min(count)
    }
}

/// The records of all members.
#[derive(Debug, Default)]
pub struct Sessions {
    records: BTreeMap<u64, Record>,
    /// Members whose record has changed since it was last written down.
    changed: BTreeSet<u64>,
}

impl Sessions {
    /// What was written down.
    pub fn restore(records: impl IntoIterator<Item = (u64, Record)>) -> Sessions {
        Sessions { records: records.into_iter().collect(), changed: BTreeSet::new() }
    }

    /// A member's record.
    pub fn record(&self, member_id: u64) -> Record {
        self.records.get(&member_id).copied().unwrap_or_default()
    }

    /// How many of the first writes of an entry are to be ignored.
    pub fn seen(&self, source: &Source, count: u64) -> u64 {
        if canary::is_on(Canary::RetriesForgotten) { 0 } else { self.record(source.member_id).seen(source, count) }
    }

    /// The writes of an entry are applied.
    pub fn advance(&mut self, source: &Source, count: u64) {
        assert!(count > 0, "an entry that is applied holds writes");
        let record = Record { session: source.session, last: source.first + (count - 1) };
        let before = self.records.entry(source.member_id).or_default();
        if record > *before {
            *before = record;
            self.changed.insert(source.member_id);
        }
    }

    /// The member is none any more. Its id never comes back.
    pub fn remove(&mut self, member_id: u64) {
        if self.records.remove(&member_id).is_some() {
            self.changed.insert(member_id);
        }
    }

    /// Records that changed since this was last called; none where one is gone.
    pub fn take_changed(&mut self) -> impl Iterator<Item = (u64, Option<Record>)> + '_ {
        let records = &self.records;
        std::mem::take(&mut self.changed).into_iter().map(|member_id| (member_id, records.get(&member_id).copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(session: u64, first: u64) -> Source {
        Source { member_id: 1, session, first }
    }

    #[test]
    fn what_was_seen_is_always_the_front_of_an_entry() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.seen(&source(5, 1), 3), 0);
        sessions.advance(&source(5, 1), 3);
        assert_eq!(sessions.seen(&source(5, 1), 3), 3);
        assert_eq!(sessions.seen(&source(5, 2), 4), 2);
        assert_eq!(sessions.seen(&source(5, 9), 4), 0, "a gap is no reason to refuse");
        sessions.advance(&source(5, 9), 4);
        assert_eq!(sessions.seen(&source(5, 4), 3), 3, "what was passed over never takes effect any more");
    }

    #[test]
    fn an_older_session_is_over_once_a_newer_one_was_seen() {
        let mut sessions = Sessions::default();
        sessions.advance(&source(5, 1), 3);
        sessions.advance(&source(7, 1), 1);
        assert_eq!(sessions.seen(&source(5, 10), 2), 2);
        assert_eq!(sessions.seen(&source(6, 1), 2), 2);
        assert_eq!(sessions.seen(&source(7, 2), 2), 0);
    }

    #[test]
    fn changes_are_told_once() {
        let mut sessions = Sessions::default();
        sessions.advance(&source(5, 1), 3);
        sessions.advance(&source(5, 4), 1);
        let record = Record { session: 5, last: 4 };
        assert_eq!(sessions.take_changed().collect::<Vec<_>>(), [(1, Some(record))]);
        assert_eq!(sessions.take_changed().count(), 0);
        sessions.remove(1);
        assert_eq!(sessions.take_changed().collect::<Vec<_>>(), [(1, None)]);
    }
}
