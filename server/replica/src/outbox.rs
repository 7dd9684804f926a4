//! Writes of this member's clients that are under way, numbered, until this member sees them applied.
//!
//! The process has a *session*, and each write a sequence number in it. Batches of writes go to whoever leads, as entries
//! that name where they come from, and go there again when leadership changes or an answer fails to come. When an entry
//! is applied, every member looks at its origin: what the session's record (`sessions.rs`) has seen is ignored, and whose
//! writes they are answers its clients. So a write that is sent more than once takes effect once, and success needs no
//! reply.
//!
//! The record is a high-water mark. A write that was skipped, because a later one was applied before it, has therefore
//! not taken effect and never will under its number: it gets a new one and is sent again.
//!
//! Invariants: `writes` is in order of sequence numbers, all below `next`; those from `unsent` on were not handed to the
//! leader at hand; `fresh` holds batches of consecutive writes, all of them in `writes` and unsent, in order, as they were
//! first encoded; `bytes` is the sum of the writes' costs.

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use crate::codec::{EntryBuilder, Source};
use crate::envelope::Ticket;
use crate::limits::{ENTRY_BYTES_MAX, ENTRY_COMMANDS_MAX};
use crate::request::KeyspaceId;

/// What a write costs beside its encoding.
const WRITE_OVERHEAD_BYTES: usize = 96;

/// A write that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its number in the session.
    pub sequence: u64,
    /// Its principal and command, as entries hold them.
    pub encoded: Bytes,
    /// Who waits for it.
    pub ticket: Ticket,
    /// Since when.
    pub asked: Duration,
}

/// Consecutive writes as the data of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// The first write's number.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// The data.
    pub data: Bytes,
    /// When the oldest of them was asked for.
    pub asked: Duration,
    /// Leases that they end; none if that must be looked up.
    pub leases: Option<Vec<i64>>,
}

/// Writes that are under way.
#[derive(Debug)]
pub struct Outbox {
    member_id: u64,
    keyspace: KeyspaceId,
    session: u64,
    next: u64,
    writes: VecDeque<Write>,
    bytes: usize,
    unsent: u64,
    fresh: VecDeque<Parcel>,
}

impl Outbox {
    /// Nothing is under way. `session` is larger than any that this member had before.
    pub fn new(member_id: u64, keyspace: KeyspaceId, session: u64) -> Outbox {
        Outbox {
            member_id,
            keyspace,
            session,
            next: 1,
            writes: VecDeque::new(),
            bytes: 0,
            unsent: 1,
            fresh: VecDeque::new(),
        }
    }

    /// The session.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// How many writes are under way.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// What they take in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether some wait to be handed to the leader.
    pub fn has_unsent(&self) -> bool {
        self.writes.back().is_some_and(|write| write.sequence >= self.unsent)
    }

    /// Takes a batch of new writes: who waits for each and where in the batch it ends, and which leases they end.
    pub fn push(&mut self, builder: EntryBuilder, tickets: &[(Ticket, usize)], leases: Vec<i64>, asked: Duration) {
        assert_eq!(builder.count(), tickets.len(), "somebody waits for every write");
        let first = self.next;
        let mut start = EntryBuilder::SOURCED_HEADER_BYTES;
        let data = builder.finish_with(self.source(first));
        for (ticket, end) in tickets {
            let encoded = data.slice(start..*end);
            start = *end;
            self.append(encoded, *ticket, asked);
        }
        assert_eq!(start, data.len(), "the last command ends the batch");
        let count = self.next - first;
        self.fresh.push_back(Parcel { first, count, data, asked, leases: Some(leases) });
    }

    fn append(&mut self, encoded: Bytes, ticket: Ticket, asked: Duration) {
        self.bytes += encoded.len() + WRITE_OVERHEAD_BYTES;
        self.writes.push_back(Write { sequence: self.next, encoded, ticket, asked });
        self.next += 1;
    }

    fn source(&self, first: u64) -> Source {
        Source { member_id: self.member_id, session: self.session, first }
    }

    /// The next batch for the leader. It counts as handed over from then on.
    pub fn take_parcel(&mut self) -> Option<Parcel> {
        let at = self.writes.partition_point(|write| write.sequence < self.unsent);
        let first = self.writes.get(at)?.sequence;
        let fresh = self.fresh.front().map(|parcel| parcel.first);
        let parcel = if fresh == Some(first) {
            self.fresh.pop_front().expect("the front was just seen")
        } else {
            self.gather(at, fresh.unwrap_or(u64::MAX))
        };
        self.unsent = parcel.first + parcel.count;
        Some(parcel)
    }

    /// Encodes consecutive writes from the one at `at`, below the number `end`.
    fn gather(&self, at: usize, end: u64) -> Parcel {
        let first = self.writes[at].sequence;
        let mut builder = EntryBuilder::sourced(self.keyspace);
        let mut asked = self.writes[at].asked;
        let mut expected = first;
        for write in self.writes.range(at..) {
            let full = builder.count() >= ENTRY_COMMANDS_MAX
                || (builder.count() > 0 && builder.len() + write.encoded.len() > ENTRY_BYTES_MAX);
            if write.sequence != expected || expected == end || full {
                break;
            }
            builder.push_encoded(&write.encoded);
            asked = asked.min(write.asked);
            expected += 1;
        }
        let count = expected - first;
        assert!(count > 0, "a fresh batch begins beyond the writes that go before it");
        Parcel { first, count, data: builder.finish_with(self.source(first)), asked, leases: None }
    }

    /// Nothing counts as handed over: everything goes to the leader again, oldest first.
    pub fn rewind(&mut self) {
        self.fresh.clear();
        self.unsent = self.writes.front().map_or(self.next, |write| write.sequence);
    }

    /// An entry of this session is applied, `count` writes from `first` on, or the record says so. Returns those that
    /// were under way; those before them get new numbers and are unsent.
    pub fn applied(&mut self, first: u64, count: u64) -> Vec<Write> {
        let skipped = self.writes.partition_point(|write| write.sequence < first);
        let end = self.writes.partition_point(|write| write.sequence < first.saturating_add(count));
        let skipped: Vec<Write> = self.writes.drain(..skipped).collect();
        let done: Vec<Write> = self.writes.drain(..end - skipped.len()).collect();
        self.forget(&done);
        // A batch that was not handed over can't have been applied; a number beyond it can, if a peer tells nonsense.
        if self.fresh.front().is_some_and(|parcel| parcel.first < first.saturating_add(count)) {
            self.fresh.clear();
        }
        self.renumber(skipped);
        done
    }

    /// Writes that will never take effect under their numbers get new ones.
    fn renumber(&mut self, writes: Vec<Write>) {
        for write in writes {
            self.bytes -= write.encoded.len() + WRITE_OVERHEAD_BYTES;
            self.append(write.encoded, write.ticket, write.asked);
        }
    }

    /// A new session, in which everything under way is sent anew. Nothing of the old one may take effect any more.
    pub fn renew(&mut self, session: u64) {
        assert!(session > self.session, "sessions only grow");
        self.session = session;
        self.fresh.clear();
        let writes = std::mem::take(&mut self.writes).into();
        self.next = 1;
        self.unsent = 1;
        self.renumber(writes);
    }

    /// Takes the writes from `first` to `last` out: somebody answers them otherwise.
    pub fn remove(&mut self, first: u64, last: u64) -> Vec<Write> {
        let from = self.writes.partition_point(|write| write.sequence < first);
        let to = self.writes.partition_point(|write| write.sequence <= last);
        let removed: Vec<Write> = if from < to { self.writes.drain(from..to).collect() } else { Vec::new() };
        self.forget(&removed);
        if !removed.is_empty() {
            self.fresh.clear();
        }
        removed
    }

    /// Takes the writes out that were asked for at `by` or before.
    pub fn expire(&mut self, by: Duration) -> Vec<Write> {
        let (expired, left): (Vec<Write>, Vec<Write>) =
            std::mem::take(&mut self.writes).into_iter().partition(|write| write.asked <= by);
        self.writes = left.into();
        self.forget(&expired);
        if !expired.is_empty() {
            self.fresh.clear();
        }
        expired
    }

    fn forget(&mut self, writes: &[Write]) {
        self.bytes -= writes.iter().map(|write| write.encoded.len() + WRITE_OVERHEAD_BYTES).sum::<usize>();
    }

    /// When the first write in line was asked for. Only those that got new numbers can have waited longer.
    pub fn oldest(&self) -> Option<Duration> {
        self.writes.front().map(|write| write.asked)
    }
}

#[cfg(test)]
#[path = "outbox/tests.rs"]
mod tests;
