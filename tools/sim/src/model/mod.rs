//! What an etcd keyspace is, as simply as it can be said: every change of every key, in order.
//!
//! Nothing here is shared with what it is held against: the rules are written down a second time.

mod hash;
mod txn;
mod wire;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use garboard_replica::Error;
use garboard_replica::request::{
    Alarm, AlarmKind, Command, DeleteRange, KeyRange, KeyValue, Operation, Outcome, Put, Range, RangeResult, Reply,
    SortOrder, SortTarget, Txn,
};
use garboard_storage::Revision;

pub use wire::encode_rows;

const LEASE_TTL_MIN_SECONDS: i64 = 2;
const LEASE_TTL_MAX_SECONDS: i64 = 9_000_000_000;

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where it stands in the history.
    pub revision: Revision,
    /// Whether the key went.
    pub deleted: bool,
    /// The pair after it; of a deletion the key and the revision alone.
    pub kv: KeyValue,
    /// The live version that it replaced.
    pub previous: Option<Revision>,
}

/// A keyspace.
#[derive(Clone, Debug)]
pub struct Model {
    /// Every change since the beginning, compacted ones included.
    changes: Vec<Change>,
    /// Positions in `changes`, by key.
    versions: BTreeMap<Bytes, Vec<usize>>,
    revision: i64,
    compacted: i64,
    leases: BTreeMap<i64, i64>,
    alarms: BTreeSet<Alarm>,
    /// Changes of the command in progress.
    sub: i64,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            changes: Vec::new(),
            versions: BTreeMap::new(),
            revision: 1,
            compacted: -1,
            leases: BTreeMap::new(),
            alarms: BTreeSet::new(),
            sub: 0,
        }
    }
}

/// What is there.
impl Model {
    /// The newest revision.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The floor; −1 before any compaction.
    pub fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Every change, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The position of the first change of a revision or a later one.
    pub fn position_of(&self, revision: i64) -> usize {
        self.changes.partition_point(|change| change.revision.main < revision)
    }

    /// The leases with their times to live.
    pub fn leases(&self) -> &BTreeMap<i64, i64> {
        &self.leases
    }

    /// The alarms that are raised.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms.iter().copied().collect()
    }

    fn is_raised(&self, kind: AlarmKind) -> bool {
        self.alarms.iter().any(|alarm| alarm.kind == kind)
    }

    /// Whether writes are refused for space.
    pub fn has_no_space(&self) -> bool {
        self.is_raised(AlarmKind::NoSpace)
    }

    /// The newest change of a key at a revision.
    fn newest_at(&self, positions: &[usize], at: i64) -> Option<&Change> {
        let change = |position: &usize| &self.changes[*position];
        // While a transaction reads an older state, what came later is not there. A command's own changes are.
        let at = at.min(self.seen_revision());
        positions.iter().rev().map(change).find(|change| change.revision.main <= at)
    }

    /// The pair that a key holds at a revision.
    pub fn get(&self, key: &[u8], at: i64) -> Option<&KeyValue> {
        let change = self.newest_at(self.versions.get(key)?, at)?;
        (!change.deleted).then_some(&change.kv)
    }

    /// The pairs of a range at a revision, in key order.
    pub fn within(&self, keys: &KeyRange, at: i64) -> Vec<&KeyValue> {
        if let KeyRange::Point(key) = keys {
            return self.get(key, at).into_iter().collect();
        }
        let inside = self.versions.iter().filter(|(key, _)| contains(keys, key));
        let live = inside.filter_map(|(_, positions)| self.newest_at(positions, at).filter(|change| !change.deleted));
        live.map(|change| &change.kv).collect()
    }

    /// The keys attached to a lease, in order.
    pub fn attached(&self, lease: i64) -> Vec<Bytes> {
        let live = self.within(&KeyRange::All, i64::MAX);
        live.into_iter().filter(|pair| pair.lease == lease).map(|pair| pair.key.clone()).collect()
    }

    /// What a range read finds at a revision.
    pub fn range(&self, range: &Range, at: i64) -> RangeResult {
        let found = self.within(&range.keys, at);
        let count = i64::try_from(found.len()).expect("small");
        if range.count_only {
            return RangeResult { kvs: Vec::new(), more: false, count };
        }
        let limit = usize::try_from(range.limit).ok().filter(|limit| *limit > 0);
        let filtered = range.min_mod_revision != 0
            || range.max_mod_revision != 0
            || range.min_create_revision != 0
            || range.max_create_revision != 0;
        let natural =
            range.order == SortOrder::None || (range.order == SortOrder::Ascend && range.target == SortTarget::Key);
        let mut rows: Vec<&KeyValue> = found.into_iter().filter(|pair| passes(range, pair)).collect();
        if let Some(limit) = limit.filter(|_| natural && !filtered) {
            rows.truncate(limit + 1);
        }
        sort(&mut rows, range);
        let more = limit.is_some_and(|limit| rows.len() > limit);
        rows.truncate(limit.unwrap_or(usize::MAX));
        let shown = |pair: &KeyValue| {
            let mut pair = pair.clone();
            if range.keys_only {
                pair.value = Bytes::new();
                if range.target != SortTarget::Value {
                    pair.lease = 0;
                }
            }
            pair
        };
        RangeResult { kvs: rows.into_iter().map(shown).collect(), more, count }
    }
}

/// What commands do.
impl Model {
    /// Executes a command, in the order of the log.
    ///
    /// # Errors
    /// Those that the command is answered with.
    pub fn execute(&mut self, command: &Command) -> Result<Reply, Error> {
        if self.is_raised(AlarmKind::Corrupt) && changes_data(command) {
            return Err(Error::Corrupt);
        }
        if self.is_raised(AlarmKind::NoSpace) && grows(command) {
            return Err(Error::NoSpace);
        }
        self.sub = 0;
        let outcome = self.outcome(command)?;
        if self.sub > 0 {
            self.revision += 1;
        }
        Ok(Reply { revision: self.revision, outcome })
    }

    fn outcome(&mut self, command: &Command) -> Result<Outcome, Error> {
        match command {
            Command::Put(put) => {
                if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                    return Err(Error::LeaseNotFound);
                }
                if (put.ignore_value || put.ignore_lease) && self.get(&put.key, i64::MAX).is_none() {
                    return Err(Error::KeyNotFound);
                }
                Ok(Outcome::Put(self.put(put)))
            }
            Command::DeleteRange(delete) => {
                let (count, previous) = self.delete(delete);
                Ok(Outcome::DeleteRange(count, previous))
            }
            Command::Txn(txn) => self.txn(txn).map(Outcome::Txn),
            Command::Compact { revision, .. } => {
                if *revision <= self.compacted.max(0) {
                    return Err(Error::Compacted);
                }
                if *revision > self.revision {
                    return Err(Error::FutureRevision);
                }
                self.compacted = *revision;
                Ok(Outcome::Compact)
            }
            Command::LeaseGrant { id, ttl_seconds } => self.grant(*id, *ttl_seconds),
            Command::LeaseRevoke { id } => {
                self.leases.get(id).ok_or(Error::LeaseNotFound)?;
                let attached = self.attached(*id);
                self.leases.remove(id);
                attached.into_iter().for_each(|key| self.write(key, None, 0));
                Ok(Outcome::LeaseRevoke)
            }
            Command::AlarmActivate(alarm) if alarm.kind == AlarmKind::None => Ok(Outcome::Alarm(Vec::new())),
            Command::AlarmActivate(alarm) => {
                self.alarms.insert(*alarm);
                Ok(Outcome::Alarm(vec![*alarm]))
            }
            Command::AlarmDeactivate(alarm) => {
                let raised = self.alarms.remove(alarm);
                Ok(Outcome::Alarm(raised.then_some(*alarm).into_iter().collect()))
            }
            // Members have no part in what clients read.
            Command::Member(_) => Ok(Outcome::Member),
        }
    }

    fn grant(&mut self, id: i64, ttl_seconds: i64) -> Result<Outcome, Error> {
        if id == 0 {
            return Err(Error::LeaseNotFound);
        }
        if ttl_seconds > LEASE_TTL_MAX_SECONDS {
            return Err(Error::LeaseTtlTooLarge);
        }
        if self.leases.contains_key(&id) {
            return Err(Error::LeaseExists);
        }
        let granted = ttl_seconds.max(LEASE_TTL_MIN_SECONDS);
        self.leases.insert(id, granted);
        Ok(Outcome::LeaseGrant(id, granted))
    }

    /// The revision that the command in progress shows in its headers.
    fn seen_revision(&self) -> i64 {
        self.revision + i64::from(self.sub > 0)
    }

    fn write(&mut self, key: Bytes, value: Option<Bytes>, lease: i64) {
        let revision = Revision { main: self.revision + 1, sub: self.sub };
        self.sub += 1;
        let positions = self.versions.entry(key.clone()).or_default();
        let before = positions.last().map(|position| &self.changes[*position]).filter(|change| !change.deleted);
        let mut kv = KeyValue { key, mod_revision: revision.main, ..KeyValue::default() };
        let deleted = value.is_none();
        if let Some(value) = value {
            (kv.create_revision, kv.version) = match before {
                None => (revision.main, 1),
                Some(before) => (before.kv.create_revision, before.kv.version + 1),
            };
            (kv.value, kv.lease) = (value, lease);
        }
        let change = Change { revision, deleted, kv, previous: before.map(|before| before.revision) };
        positions.push(self.changes.len());
        self.changes.push(change);
    }

    fn put(&mut self, put: &Put) -> Option<KeyValue> {
        let before = self.get(&put.key, i64::MAX).cloned();
        let value = before.as_ref().filter(|_| put.ignore_value).map_or(&put.value, |pair| &pair.value).clone();
        let lease = before.as_ref().filter(|_| put.ignore_lease).map_or(put.lease, |pair| pair.lease);
        self.write(put.key.clone(), Some(value), lease);
        before.filter(|_| put.prev_kv)
    }

    fn delete(&mut self, delete: &DeleteRange) -> (i64, Vec<KeyValue>) {
        let pairs: Vec<KeyValue> = self.within(&delete.keys, i64::MAX).into_iter().cloned().collect();
        for pair in &pairs {
            self.write(pair.key.clone(), None, 0);
        }
        let count = i64::try_from(pairs.len()).expect("small");
        (count, if delete.prev_kv { pairs } else { Vec::new() })
    }
}

/// Whether a key belongs to a range.
pub fn contains(keys: &KeyRange, key: &[u8]) -> bool {
    match keys {
        KeyRange::Point(point) => key == point,
        KeyRange::Span { start, end } => key >= &start[..] && key < &end[..],
        KeyRange::FromKey(start) => key >= &start[..],
        KeyRange::All => true,
    }
}

fn passes(range: &Range, pair: &KeyValue) -> bool {
    let within = |min: i64, found: i64, max: i64| (min == 0 || found >= min) && (max == 0 || found <= max);
    within(range.min_mod_revision, pair.mod_revision, range.max_mod_revision)
        && within(range.min_create_revision, pair.create_revision, range.max_create_revision)
}

fn sort(rows: &mut [&KeyValue], range: &Range) {
    let descending = range.order == SortOrder::Descend;
    if range.target == SortTarget::Key && !descending {
        return;
    }
    rows.sort_by(|a, b| {
        let order = match range.target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        };
        if descending { order.reverse() } else { order }
    });
}

/// Whether a command may make the store larger, by etcd's reckoning.
pub fn grows(command: &Command) -> bool {
    match command {
        Command::Put(_) | Command::LeaseGrant { .. } => true,
        Command::Txn(txn) => txn_puts(txn),
        _ => false,
    }
}

fn txn_puts(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).any(|operation| match operation {
        Operation::Put(_) => true,
        Operation::Txn(inner) => txn_puts(inner),
        Operation::Range(_) | Operation::DeleteRange(_) => false,
    })
}

fn changes_data(command: &Command) -> bool {
    match command {
        Command::Txn(txn) => txn.success.iter().chain(&txn.failure).any(|op| !matches!(op, Operation::Range(_))),
        Command::AlarmActivate(_) | Command::AlarmDeactivate(_) | Command::Member(_) => false,
        _ => true,
    }
}
