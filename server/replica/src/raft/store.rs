//! What raft-rs reads: the entries above the applied index, in memory, and the state it starts from.

use std::collections::VecDeque;

use garboard_wal as wal;
use raft::eraftpb::{Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::membership::Membership;
use crate::codec::command_count;

/// What an entry costs in memory beside its data.
const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// raft-rs's storage. It holds what was handed to the log, durable or not: raft-rs knows the durable prefix by itself.
///
/// Invariants: `entries[i]` has index `base_index + 1 + i`; `bytes` is the sum of the entries' costs, `applied_bytes` of
/// those at or below `applied_index`. Entries that are not applied are bounded by proposals, which stop at
/// [`crate::limits::PENDING_BYTES_MAX`]; applied ones are kept for members that lag, up to a bound of their own.
pub(super) struct LogStore {
    /// The index before the first entry.
    base_index: u64,
    /// The term of that index.
    base_term: u64,
    entries: VecDeque<Entry>,
    bytes: u64,
    applied_index: u64,
    applied_bytes: u64,
    applied_commands: u64,
    /// The first entry of all is of no use to those who have joined since the founding.
    has_joiners: bool,
    /// The members as of the applied index.
    membership: Membership,
    /// What raft-rs starts from; not kept up to date.
    initial: HardState,
}

/// How much of what is applied is kept for members that lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) bytes: u64,
    pub(super) commands: u64,
    /// Entries behind this one are kept up to these bytes, however many commands they hold.
    pub(super) behind: Option<(u64, u64)>,
}

impl LogStore {
    pub(super) fn new(base_index: u64, base_term: u64, hard_state: HardState, membership: Membership) -> LogStore {
        LogStore {
            base_index,
            base_term,
            entries: VecDeque::new(),
            bytes: 0,
            applied_index: base_index,
            applied_bytes: 0,
            applied_commands: 0,
            has_joiners: false,
            membership,
            initial: hard_state,
        }
    }

    /// A snapshot takes the place of all entries.
    pub(super) fn restore(&mut self, index: u64, term: u64, membership: Membership) {
        *self = LogStore::new(index, term, std::mem::take(&mut self.initial), membership);
    }

    /// Bytes that the entries take that are not applied.
    pub(super) fn unapplied_bytes(&self) -> u64 {
        self.bytes - self.applied_bytes
    }

    pub(super) fn newest_index(&self) -> u64 {
        self.base_index + u64::try_from(self.entries.len()).expect("the entries fit in memory")
    }

    /// Appends entries; a first index at or below the last one replaces what follows.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.applied_index, "applied entries are never replaced");
        assert!(first.index <= self.newest_index() + 1, "entries have no gaps");
        while self.newest_index() >= first.index {
            let replaced = self.entries.pop_back().expect("an entry above the base is held");
            self.bytes -= cost(&replaced);
        }
        for entry in entries {
            assert_eq!(entry.index, self.newest_index() + 1, "entries are consecutive");
            self.bytes += cost(entry);
            self.entries.push_back(entry.clone());
        }
    }

    /// Entries up to `index` are applied, and these are the members then. Forgets the oldest of them, but for what is
    /// to be kept.
    pub(super) fn handle_applied(&mut self, index: u64, membership: &Membership, keep: Keep) {
        assert!(index <= self.newest_index(), "only entries that are held are applied");
        while self.applied_index < index {
            self.applied_index += 1;
            let entry = &self.entries[self.position(self.applied_index)];
            self.applied_bytes += cost(entry);
            self.applied_commands += commands(entry);
        }
        if self.membership != *membership {
            self.membership = membership.clone();
        }
        while self.base_index < self.applied_index && self.is_dispensable(keep) {
            self.forget_oldest();
        }
    }

    /// Forgets the oldest entry, which is applied.
    fn forget_oldest(&mut self) {
        let entry = self.entries.pop_front().expect("applied entries behind the base are held");
        self.bytes -= cost(&entry);
        self.applied_bytes -= cost(&entry);
        self.applied_commands -= commands(&entry);
        self.base_index = entry.index;
        self.base_term = entry.term;
    }

    /// Whether the oldest entry, which is applied, need not be kept.
    fn is_dispensable(&self, keep: Keep) -> bool {
        let needed = keep.behind.is_some_and(|(index, bytes)| self.base_index >= index && self.applied_bytes <= bytes);
        let starts_a_log = self.base_index == 0 && self.has_joiners;
        starts_a_log || !needed && (self.applied_bytes > keep.bytes || self.applied_commands > keep.commands)
    }

    /// Somebody has joined who does not know what the cluster was founded with. It is filled with a snapshot: a log that
    /// begins at its first entry would say too little.
    pub(super) fn note_joiner(&mut self) {
        self.has_joiners = true;
    }

    /// Whether a change of the members is in the log and not applied.
    pub(super) fn has_unapplied_change(&self) -> bool {
        let first = self.position(self.applied_index.max(self.base_index) + 1);
        self.entries.range(first..).any(|entry| entry.get_entry_type() != EntryType::EntryNormal)
    }

    /// Somebody who is being filled may not know what the cluster was founded with.
    pub(super) fn note_refilled(&mut self) {
        self.note_joiner();
        if self.base_index == 0 && self.applied_index > 0 {
            self.forget_oldest();
        }
    }

    fn position(&self, index: u64) -> usize {
        usize::try_from(index - self.base_index - 1).expect("the entries fit in memory")
    }
}

/// How many commands an entry holds: what etcd, which has one in each, would count as entries.
fn commands(entry: &Entry) -> u64 {
    match entry.get_entry_type() {
        EntryType::EntryNormal => command_count(&entry.data).max(1),
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => 1,
    }
}

fn cost(entry: &Entry) -> u64 {
    let content = entry.data.len() + entry.context.len();
    u64::try_from(content).expect("an entry fits in memory") + ENTRY_OVERHEAD_BYTES
}

impl Storage for LogStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.initial.clone(), self.membership.to_conf_state()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base_index {
            return Err(StorageError::Compacted.into());
        }
        assert!(high <= self.newest_index() + 1, "raft-rs asks for entries it was given");
        let max_bytes = max_size.into().unwrap_or(u64::MAX);
        let mut bytes = 0;
        let range = self.position(low)..self.position(high);
        let within = |entry: &&Entry| {
            bytes += cost(entry);
            bytes <= max_bytes
        };
        let mut found: Vec<Entry> = self.entries.range(range.clone()).take_while(within).cloned().collect();
        if found.is_empty() {
            found.extend(self.entries.range(range).next().cloned());
        }
        Ok(found)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.base_index {
            return Ok(self.base_term);
        }
        if index < self.base_index {
            return Err(StorageError::Compacted.into());
        }
        match self.entries.get(self.position(index)) {
            Some(entry) => Ok(entry.term),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base_index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.newest_index())
    }

    /// What a snapshot would be of that is made now. The content goes another way.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.applied_index == 0 || self.applied_index < request_index {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.applied_index;
        metadata.term = self.term(self.applied_index)?;
        *metadata.mut_conf_state() = self.membership.to_conf_state();
        Ok(snapshot)
    }
}

/// As the log stores an entry. Of a membership change only our own encoding goes there, which raft-rs carries as the
/// entry's context.
pub(super) fn to_log(entry: &Entry) -> wal::Entry {
    let (kind, data) = match entry.get_entry_type() {
        EntryType::EntryNormal => (wal::EntryKind::Normal, entry.data.clone()),
        EntryType::EntryConfChange => (wal::EntryKind::ConfChange, entry.context.clone()),
        EntryType::EntryConfChangeV2 => unreachable!("memberships change by one member at a time"),
    };
    wal::Entry { index: entry.index, term: entry.term, kind, context: bytes::Bytes::new(), data }
}

/// As raft-rs holds an entry of the log.
pub(super) fn from_log(entry: &wal::Entry) -> Entry {
    let mut raft_entry = Entry { index: entry.index, term: entry.term, ..Entry::default() };
    match entry.kind {
        wal::EntryKind::Normal => raft_entry.data = entry.data.clone(),
        wal::EntryKind::ConfChange | wal::EntryKind::ConfChangeV2 => {
            raft_entry.set_entry_type(EntryType::EntryConfChange);
            raft_entry.context = entry.data.clone();
        }
    }
    raft_entry
}
