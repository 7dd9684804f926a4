//! The machine and the commands that are one step.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use garboard_storage::{Applied, Index, NeedPage, Paged, Revision, Version};

use super::delete::DeleteRun;
use super::txn::TxnRun;
use crate::alarm::Alarms;
use crate::canary::{self, Canary};
use crate::envelope::Asker;
use crate::error::Error;
use crate::events::{Event, EventBatch};
use crate::lease::Lessor;
use crate::members::{MemberChange, MemberRecord, Members, record_key, record_value, removed_key};
use crate::quota::{Quota, cost};
use crate::read::fault::may_miss;
use crate::request::{Alarm, Command, KeyValue, Operation, Outcome, Put, Reply};
use crate::sessions::Sessions;
use crate::system;

/// A write of the system tree that a change of a key brought with it. It is done before anything reads the tree.
#[derive(Debug)]
enum SystemWrite {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

/// What [`Machine::publish`] made visible.
#[derive(Debug)]
pub struct Published {
    /// The changes; none when no command of the batch changed a key.
    pub events: Option<Arc<EventBatch>>,
}

/// The state machine.
pub struct Machine {
    pub(super) index: Index,
    /// The newest main revision, that of commands applied and not yet published included.
    revision: i64,
    /// Changes that the command in progress has made.
    changes: i64,
    /// A command is begun and not finished: the working state shows a part of it.
    mid_command: bool,
    /// Whether the command in progress fitted the quota when it began.
    fits_quota: bool,
    /// A command was executed that did not fit the quota.
    over_quota: bool,
    pub(super) lessor: Lessor,
    alarms: Alarms,
    members: Arc<Members>,
    /// The members changed since that was last asked.
    members_changed: bool,
    sessions: Sessions,
    quota: Quota,
    system_writes: VecDeque<SystemWrite>,
    /// Changes since the last publish.
    events: Vec<Event>,
    /// Keep-alives whose lease was revoked since they were last taken.
    revoked_waiters: Vec<Asker>,
    /// A deletion in progress.
    pub(super) delete_run: Option<DeleteRun>,
    /// A transaction in progress.
    txn_run: Option<TxnRun>,
}

impl Machine {
    /// The state that an index holds. The caller has read the leases, alarms, members and sessions from it.
    pub fn new(
        index: Index,
        lessor: Lessor,
        alarms: Alarms,
        members: Members,
        sessions: Sessions,
        quota: Quota,
    ) -> Machine {
        let revision = index.view().revision();
        Machine {
            index,
            revision,
            changes: 0,
            mid_command: false,
            fits_quota: true,
            over_quota: false,
            lessor,
            alarms,
            members: Arc::new(members),
            members_changed: true,
            sessions,
            quota,
            system_writes: VecDeque::new(),
            events: Vec::new(),
            revoked_waiters: Vec::new(),
            delete_run: None,
            txn_run: None,
        }
    }

    /// The index holds another state now: a snapshot was installed. What was begun and not published is gone. The caller
    /// has read the tables from it. Returns the keep-alives that waited for revocations.
    pub fn handle_installed(
        &mut self,
        lessor: Lessor,
        alarms: Alarms,
        members: Members,
        sessions: Sessions,
    ) -> Vec<Asker> {
        self.revision = self.index.view().revision();
        (self.changes, self.mid_command, self.fits_quota, self.over_quota) = (0, false, true, false);
        (self.delete_run, self.txn_run) = (None, None);
        self.system_writes.clear();
        self.events.clear();
        let mut waiters = std::mem::take(&mut self.revoked_waiters);
        let waiting = std::mem::replace(&mut self.lessor, lessor).demote();
        waiters.extend(waiting.into_iter().map(|(_, asker)| asker));
        (self.alarms, self.sessions) = (alarms, sessions);
        (self.members, self.members_changed) = (Arc::new(members), true);
        waiters
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The index, for its I/O, checkpoints and compaction: nothing that changes what [`Machine::apply`] sees.
    pub fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// The newest main revision, that of commands not yet published included.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The leases.
    pub fn lessor(&self) -> &Lessor {
        &self.lessor
    }

    /// The leases, for expiry and renewals.
    pub fn lessor_mut(&mut self) -> &mut Lessor {
        &mut self.lessor
    }

    /// The alarms.
    pub fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// The members.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Whether the members changed since this was last called, or it never was.
    pub(crate) fn take_members_changed(&mut self) -> bool {
        std::mem::take(&mut self.members_changed)
    }

    /// Makes a change of the members, if it fits: of the records alone, or together with Raft's membership, which the
    /// caller changes then.
    pub(crate) fn change_member(&mut self, change: &MemberChange) -> Result<(), Error> {
        self.members.check(change)?;
        let members = Arc::make_mut(&mut self.members);
        members.apply(change);
        let id = change.member_id;
        match members.get(id) {
            Some(record) => self.system_writes.push_back(put_member(record)),
            None => self.system_writes.extend(remove_member(id)),
        }
        self.members_changed = true;
        Ok(())
    }

    /// Makes these the members of a new store, or of one from before there were records. Published with what follows.
    pub(crate) fn found_members(&mut self, members: Members) {
        self.system_writes.extend(members.iter().map(put_member));
        self.members = Arc::new(members);
        self.members_changed = true;
    }

    /// Removes everyone but one member.
    pub(crate) fn keep_only_member(&mut self, id: u64) {
        let members = Arc::make_mut(&mut self.members);
        let removed = members.keep_only(id);
        self.system_writes.extend(removed.into_iter().flat_map(remove_member));
        self.system_writes.extend(members.get(id).map(put_member));
        self.members_changed = true;
    }

    /// What was seen of forwarded writes.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The same, to be changed by what is applied.
    pub fn sessions_mut(&mut self) -> &mut Sessions {
        &mut self.sessions
    }

    /// The quota.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Whether a command was executed over the quota since this was last called: it is the alarm's turn to refuse then.
    pub fn take_over_quota(&mut self) -> bool {
        std::mem::take(&mut self.over_quota)
    }

    /// Keep-alives whose lease was revoked since this was last called. Their answer may leave once that is published.
    pub fn take_revoked_waiters(&mut self) -> Vec<Asker> {
        std::mem::take(&mut self.revoked_waiters)
    }

    /// Adds the pages to `missing` that a command will surely need and that are not resident, so that they can be
    /// loaded side by side before the command begins. Called again until nothing is missing.
    pub fn prefetch(&self, command: &Command, missing: &mut Vec<NeedPage>) {
        match command {
            Command::Put(put) => self.prefetch_put(put, missing),
            Command::Txn(txn) => self.prefetch_operations(&txn.success, missing),
            Command::DeleteRange(_)
            | Command::Compact { .. }
            | Command::LeaseGrant { .. }
            | Command::LeaseRevoke { .. }
            | Command::AlarmActivate(_)
            | Command::AlarmDeactivate(_)
            | Command::Member(_) => {}
        }
    }

    fn prefetch_operations(&self, operations: &[Operation], missing: &mut Vec<NeedPage>) {
        for operation in operations {
            if let Operation::Put(put) = operation {
                self.prefetch_put(put, missing);
            }
        }
    }

    fn prefetch_put(&self, put: &Put, missing: &mut Vec<NeedPage>) {
        if let Err(need) = self.index.prefetch(&put.key) {
            missing.push(need);
        }
    }

    /// Executes a command, or goes on with it. The answer may leave once it is published.
    ///
    /// # Panics
    /// When called with another command before one that needed a page is finished.
    pub fn apply(&mut self, now: Duration, command: &Command) -> Paged<Result<Reply, Error>> {
        if !self.mid_command {
            self.write_system()?;
            if let Err(error) = self.alarms.check(command) {
                return Ok(Err(error));
            }
            self.mid_command = true;
            self.changes = 0;
            let cost = cost(command);
            self.fits_quota = cost == 0 || self.quota.allows(self.index.size().in_use_bytes, cost);
        }
        let result = self.execute(now, command)?;
        assert!(self.delete_run.is_none() && self.txn_run.is_none(), "a finished command leaves nothing in progress");
        self.mid_command = false;
        if self.changes > 0 {
            self.revision += 1;
        }
        // Executed all the same: what is over the quota here may fit on another member.
        self.over_quota |= !self.fits_quota && result.is_ok();
        let result = if self.fits_quota { result } else { result.and(Err(Error::NoSpace)) };
        Ok(result.map(|outcome| Reply { revision: self.revision, outcome }))
    }

    /// Whether a command is begun and not finished. The working state must then not be published.
    pub fn is_mid_command(&self) -> bool {
        self.mid_command
    }

    fn execute(&mut self, now: Duration, command: &Command) -> Paged<Result<Outcome, Error>> {
        Ok(match command {
            Command::Put(put) => {
                if put.lease != 0 && !self.lessor.contains(put.lease) {
                    return Ok(Err(Error::LeaseNotFound));
                }
                self.put(put, true)?.map(|(_, previous)| Outcome::Put(previous))
            }
            Command::DeleteRange(delete) => {
                let (_, count, previous) = self.delete_range(delete)?;
                Ok(Outcome::DeleteRange(count, previous))
            }
            Command::Txn(txn) => {
                let mut run = match self.txn_run.take() {
                    Some(run) => run,
                    None => match self.begin_txn(txn)? {
                        Ok(run) => run,
                        Err(error) => return Ok(Err(error)),
                    },
                };
                match self.go_on_with_txn(&mut run) {
                    Ok(result) => Ok(Outcome::Txn(result)),
                    Err(need) => {
                        self.txn_run = Some(run);
                        return Err(need);
                    }
                }
            }
            Command::Compact { revision, .. } => self.compact(*revision),
            Command::LeaseGrant { id, ttl_seconds } => self.grant(now, *id, *ttl_seconds),
            Command::LeaseRevoke { id } => self.revoke(*id)?,
            Command::AlarmActivate(alarm) => Ok(self.activate(*alarm)),
            Command::AlarmDeactivate(alarm) => Ok(self.deactivate(*alarm)),
            Command::Member(change) => self.change_member(change).map(|()| Outcome::Member),
        })
    }

    /// The revision of the command in progress once it has changed something.
    pub(super) fn next_revision(&self) -> i64 {
        self.revision + 1
    }

    /// The revision that a read within the command in progress sees.
    pub(super) fn seen_revision(&self) -> i64 {
        if self.changes > 0 { self.next_revision() } else { self.revision }
    }

    /// The store's revision when the command in progress began.
    pub(super) fn revision_before(&self) -> i64 {
        self.revision
    }

    /// Puts a key and returns the header's revision and, if asked for, the previous pair. Reads all it needs before it
    /// changes anything. The lease was checked. `prefetched`: [`Machine::prefetch`] found nothing missing, so that the
    /// trees need not be walked once more for that.
    pub(super) fn put(&mut self, put: &Put, prefetched: bool) -> Paged<Result<(i64, Option<KeyValue>), Error>> {
        let mut previous = None;
        if put.prev_kv || put.ignore_value || put.ignore_lease {
            previous = self.read_pair(&put.key, put.prev_kv || put.ignore_value)?;
            if previous.is_none() && (put.ignore_value || put.ignore_lease) {
                return Ok(Err(Error::KeyNotFound));
            }
        }
        let kept = |ignore: bool| previous.as_ref().filter(|_| ignore);
        let value = kept(put.ignore_value).map_or(&put.value, |pair| &pair.value).clone();
        let lease = kept(put.ignore_lease).map_or(put.lease, |pair| pair.lease);
        may_miss()?;
        if !prefetched {
            self.index.prefetch(&put.key)?;
        }
        let revision = Revision { main: self.next_revision(), sub: self.changes };
        let differs = canary::is_on(Canary::StoresDifferently)
            && self.index.facts().member_id == 2
            && revision.main % 16 == 0
            && !value.is_empty();
        let another = if differs { vec![b'!'; value.len()] } else { Vec::new() };
        let stored = if differs { &another[..] } else { &value };
        let outcome = self.index.put(revision, &put.key, stored, lease)?;
        self.changes += 1;
        let lease_before = outcome.previous.map_or(0, |version| version.lease);
        self.move_attachment(&put.key, lease_before, lease);
        self.events.push(Event {
            deleted: false,
            kv: pair(put.key.clone(), value, &outcome.current),
            revision,
            previous: outcome.previous.map(|version| version.modified),
        });
        Ok(Ok((revision.main, previous.filter(|_| put.prev_kv))))
    }

    /// The bug of [`Canary::TxnEventTwice`](crate::canary::Canary).
    pub(super) fn repeat_event(&mut self) {
        let last = self.events.last().cloned();
        self.events.extend(last);
    }

    /// Deletes a live key whose pages are resident.
    pub(super) fn delete_one(&mut self, key: &Bytes) -> Paged<()> {
        let revision = Revision { main: self.next_revision(), sub: self.changes };
        let previous = self.index.delete(revision, key)?;
        let previous = previous.expect("the key was seen live within this command");
        self.changes += 1;
        self.move_attachment(key, previous.lease, 0);
        self.events.push(Event {
            deleted: true,
            kv: KeyValue { key: key.clone(), mod_revision: revision.main, ..KeyValue::default() },
            revision,
            previous: Some(previous.modified),
        });
        Ok(())
    }

    /// A live key with its value, or without it.
    pub(super) fn read_pair(&self, key: &Bytes, with_value: bool) -> Paged<Option<KeyValue>> {
        may_miss()?;
        let view = self.index.view();
        let Some(version) = view.find(key, i64::MAX)? else { return Ok(None) };
        let mut value = Vec::new();
        if with_value {
            may_miss()?;
            let found = view.value(version.modified, &mut value)?;
            assert!(found, "a live version has its value");
        }
        Ok(Some(pair(key.clone(), Bytes::from(value), &version)))
    }

    fn move_attachment(&mut self, key: &[u8], from: i64, to: i64) {
        if from == to {
            return;
        }
        if from != 0 {
            self.system_writes.push_back(SystemWrite::Delete(system::attachment_key(from, key)));
        }
        if to != 0 {
            self.system_writes.push_back(SystemWrite::Put(system::attachment_key(to, key), Vec::new()));
        }
    }

    /// Does the writes of the system tree that are due.
    fn write_system(&mut self) -> Paged<()> {
        while let Some(write) = self.system_writes.front() {
            may_miss()?;
            match write {
                SystemWrite::Put(key, value) => {
                    self.index.system_prefetch(key)?;
                    self.index.system_put(key, value)?;
                }
                SystemWrite::Delete(key) => {
                    self.index.system_prefetch(key)?;
                    self.index.system_delete(key)?;
                }
            }
            self.system_writes.pop_front();
        }
        Ok(())
    }

    fn compact(&mut self, revision: i64) -> Result<Outcome, Error> {
        if revision <= self.index.view().compacted().max(0) {
            return Err(Error::Compacted);
        }
        if revision > self.revision {
            return Err(Error::FutureRevision);
        }
        self.index.set_compacted(revision);
        Ok(Outcome::Compact)
    }

    fn grant(&mut self, now: Duration, id: i64, ttl_seconds: i64) -> Result<Outcome, Error> {
        let ttl_seconds = self.lessor.check_grant(id, ttl_seconds)?;
        self.lessor.insert(now, id, ttl_seconds);
        self.system_writes.push_back(SystemWrite::Put(system::lease_key(id), system::lease_value(ttl_seconds)));
        Ok(Outcome::LeaseGrant(id, ttl_seconds))
    }

    /// Deletes the keys of a lease in one revision, in key order, and the lease.
    fn revoke(&mut self, id: i64) -> Paged<Result<Outcome, Error>> {
        if !self.lessor.contains(id) {
            return Ok(Err(Error::LeaseNotFound));
        }
        if self.delete_run.is_none() {
            may_miss()?;
            let keys = system::attached_keys(&self.index.view(), id)?;
            self.delete_run = Some(DeleteRun::of_keys(keys));
        }
        self.go_on_with_delete()?;
        self.system_writes.push_back(SystemWrite::Delete(system::lease_key(id)));
        let waiters = self.lessor.remove(id);
        self.revoked_waiters.extend(waiters);
        Ok(Ok(Outcome::LeaseRevoke))
    }

    /// Raises an alarm. One that was raised already is returned like a new one.
    fn activate(&mut self, alarm: Alarm) -> Outcome {
        let Some(key) = system::alarm_key(alarm) else { return Outcome::Alarm(Vec::new()) };
        if self.alarms.activate(alarm) {
            self.system_writes.push_back(SystemWrite::Put(key, Vec::new()));
        }
        Outcome::Alarm(vec![alarm])
    }

    fn deactivate(&mut self, alarm: Alarm) -> Outcome {
        if !self.alarms.deactivate(alarm) {
            return Outcome::Alarm(Vec::new());
        }
        let key = system::alarm_key(alarm).expect("an alarm that was raised has a kind");
        self.system_writes.push_back(SystemWrite::Delete(key));
        Outcome::Alarm(vec![alarm])
    }

    /// Makes everything applied so far visible, as of a log index, and hands out what changed.
    pub fn publish(&mut self, applied: Applied) -> Paged<Published> {
        assert!(!self.mid_command, "a command is published whole");
        for (member_id, record) in self.sessions.take_changed() {
            let key = system::session_key(member_id);
            self.system_writes.push_back(match record {
                Some(record) => SystemWrite::Put(key, system::session_value(record)),
                None => SystemWrite::Delete(key),
            });
        }
        self.write_system()?;
        self.index.publish(applied, self.revision);
        let events = std::mem::take(&mut self.events);
        let events = events.first().map(|first| first.revision.main).map(|first_revision| {
            let last_revision = self.revision;
            Arc::new(EventBatch { first_revision, last_revision, events })
        });
        Ok(Published { events })
    }
}

fn put_member(record: &MemberRecord) -> SystemWrite {
    SystemWrite::Put(record_key(record.id), record_value(record))
}

/// A member that is gone leaves its id behind.
fn remove_member(id: u64) -> [SystemWrite; 2] {
    [SystemWrite::Delete(record_key(id)), SystemWrite::Put(removed_key(id), Vec::new())]
}

/// A version and its value as clients see them.
pub(super) fn pair(key: Bytes, value: Bytes, version: &Version) -> KeyValue {
    KeyValue {
        key,
        create_revision: version.create_revision,
        mod_revision: version.modified.main,
        version: version.version,
        value,
        lease: version.lease,
    }
}
