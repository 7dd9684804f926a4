//! The history of a cluster: what its members agreed on, and what clients may be told of it.
//!
//! The order of writes is not guessed: members show what they write into their logs, and what they publish is committed.
//! The first member that publishes an entry puts it into the one history, and the model executes it; every other member
//! must publish the same. Against that order each answer is held in constant time: whoever asks sees everything that
//! any member had published when he asked, a write takes effect at most once, after it was asked for, and never if it
//! was refused.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use garboard_replica::Error;
use garboard_replica::codec::{Source, decode_entry};
use garboard_replica::envelope::{Response, Status};
use garboard_replica::events::EventBatch;
use garboard_replica::request::{AlarmKind, Command, Principal, Reply};
use garboard_wal as wal;

use super::Leases;
use crate::model::{Change, Model, grows};
use crate::outcome::{Check, same, short, violated};

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// Nobody knows yet.
    Open,
    /// It was executed.
    Executed {
        index: u64,
        result: Result<Reply, Error>,
        /// It was executed although it may be over a member's quota, which then refuses it all the same.
        may_exceed: bool,
    },
    /// A client was told that it is not done, and never will be.
    Refused(Error),
}

/// A write of a client.
#[derive(Clone, Debug)]
struct Write {
    command: Command,
    asked: Duration,
    /// What was committed when it was asked for.
    after: u64,
    fate: Fate,
}

/// What the history must know of the world.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Members have a quota that can be reached.
    pub has_quota: bool,
    /// Members compact by themselves.
    pub compacts: bool,
    /// What a new leader adds to each lease.
    pub extension: Duration,
    /// By how many parts of a million clocks may be too fast.
    pub drift_ppm_max: u32,
}

/// What a member shows with an index published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The revision.
    pub revision: i64,
    /// The floor.
    pub compacted: i64,
}

/// What the members of a cluster have agreed on.
pub struct History {
    setting: Setting,
    /// The state after everything committed.
    pub model: Model,
    /// When leases may expire.
    pub leases: Leases,
    /// Every committed entry; the one with index 1 in front.
    committed: Vec<wal::Entry>,
    /// What each of them leads to.
    shown: Vec<Shown>,
    /// When entries were first written anywhere, by index and term.
    first_written: BTreeMap<(u64, u64), Duration>,
    writes: BTreeMap<u64, Write>,
    /// Until when a full disk may be the reason for a refusal.
    full_until: Duration,
    /// Writes answered as done.
    pub acknowledged: u64,
    /// Writes found in the log a second time, and passed over.
    pub repeated: u64,
    /// Of each member: its newest session, and the largest number of it in any entry. What comes with a number up to it
    /// takes no effect, whether it did before or was overtaken; its member gives it a new one then.
    numbers: BTreeMap<u64, (u64, u64)>,
}

/// How commands get into the log.
impl History {
    /// Of a new cluster.
    pub fn new(setting: Setting) -> History {
        History {
            model: Model::default(),
            leases: Leases::with_drift(setting.extension, setting.drift_ppm_max),
            committed: Vec::new(),
            shown: Vec::new(),
            first_written: BTreeMap::new(),
            writes: BTreeMap::new(),
            full_until: Duration::ZERO,
            acknowledged: 0,
            repeated: 0,
            numbers: BTreeMap::new(),
            setting,
        }
    }

    /// The newest index that any member has published.
    pub fn committed_index(&self) -> u64 {
        u64::try_from(self.committed.len()).expect("lengths fit 64 bits")
    }

    /// A committed entry.
    pub fn entry(&self, index: u64) -> Option<&wal::Entry> {
        self.committed.get(usize::try_from(index.checked_sub(1)?).ok()?)
    }

    /// What is shown with an index published that is committed.
    pub fn shown(&self, index: u64) -> Shown {
        match index.checked_sub(1) {
            None => Shown { revision: 1, compacted: -1 },
            Some(before) => self.shown[usize::try_from(before).expect("small")],
        }
    }

    /// The disk of some member may be the reason for a refusal until then.
    pub fn allow_full_disk(&mut self, until: Duration) {
        self.full_until = self.full_until.max(until);
    }

    /// Until when the disk of some member may be the reason for a refusal.
    pub fn full_until(&self) -> Duration {
        self.full_until
    }

    /// A client asks for a write.
    pub fn asked(&mut self, now: Duration, number: u64, command: &Command) {
        let after = self.committed_index();
        let write = Write { command: command.clone(), asked: now, after, fate: Fate::Open };
        self.writes.insert(number, write);
    }

    /// Whether nothing under way could make or end a lease.
    pub fn is_certain_of_lease(&self, id: i64) -> bool {
        let touches = |write: &Write| match &write.command {
            Command::LeaseGrant { id: other, .. } | Command::LeaseRevoke { id: other } => *other == id,
            _ => false,
        };
        !self.writes.values().any(|write| write.fate == Fate::Open && touches(write))
    }

    /// A member writes an entry into its log.
    pub fn written(&mut self, now: Duration, entry: &wal::Entry) {
        if entry.index > self.committed_index() {
            self.first_written.entry((entry.index, entry.term)).or_insert(now);
        }
    }

    /// A member has published an entry that none had before.
    ///
    /// # Errors
    /// When it holds what it must not.
    pub fn commit(&mut self, now: Duration, entry: &wal::Entry) -> Check {
        same("entries are committed without a gap", &(self.committed_index() + 1), &entry.index)?;
        if let Some(last) = self.committed.last().filter(|last| last.term > entry.term) {
            return violated("terms never fall", last.term.to_string(), entry.term.to_string());
        }
        let written = self.first_written.get(&(entry.index, entry.term)).copied().unwrap_or(now);
        if entry.kind == wal::EntryKind::Normal && !entry.data.is_empty() {
            let batch = match decode_entry(&entry.data) {
                Ok(batch) => batch,
                Err(error) => return violated("a committed entry can be read", "", error.to_string()),
            };
            let passed_over = batch.source.map_or(0, |source| self.passed_over(&source, batch.items.len()));
            for item in batch.items.into_iter().skip(passed_over) {
                match item.principal {
                    Principal::User { auth_revision, .. } => self.execute(entry, auth_revision, item.command)?,
                    Principal::Server => self.execute_own(written, item.command)?,
                    Principal::Anonymous => {
                        return violated("commands keep their principal", "", short(&item.command));
                    }
                }
            }
        }
        self.committed.push(entry.clone());
        self.shown.push(Shown { revision: self.model.revision(), compacted: self.model.compacted() });
        self.first_written = self.first_written.split_off(&(entry.index + 1, 0));
        Ok(())
    }

    /// How many of an entry's writes, its first ones, take no effect.
    fn passed_over(&mut self, source: &Source, count: usize) -> usize {
        let count = u64::try_from(count).expect("lengths fit 64 bits");
        let (session, last) = self.numbers.get(&source.member_id).copied().unwrap_or_default();
        let seen = match source.session.cmp(&session) {
            Ordering::Less => count,
            Ordering::Equal => (last + 1).saturating_sub(source.first).min(count),
            Ordering::Greater => 0,
        };
        if seen < count {
            self.numbers.insert(source.member_id, (source.session, source.first + count - 1));
        }
        self.repeated += seen;
        usize::try_from(seen).expect("no more than there are")
    }

    fn execute(&mut self, entry: &wal::Entry, number: u64, command: Command) -> Check {
        let Some(write) = self.writes.get_mut(&number) else {
            return violated(
                "only what was asked for gets into the log",
                "",
                format!("#{number}: {}", short(&command)),
            );
        };
        same("a command gets into the log as it was asked for", &write.command, &command)?;
        match &write.fate {
            Fate::Open => {}
            Fate::Executed { index, .. } => {
                return violated(
                    "a write takes effect once",
                    format!("#{number} in entry {index}"),
                    format!("in entry {} again", entry.index),
                );
            }
            Fate::Refused(error) => {
                return violated(
                    "a write that was refused for good is never done",
                    format!("#{number} was answered {error:?}"),
                    format!("entry {} holds it: {}", entry.index, short(&command)),
                );
            }
        }
        if entry.index <= write.after {
            return violated(
                "a write takes effect after it was asked for",
                format!("#{number} behind index {}", write.after),
                entry.index.to_string(),
            );
        }
        let refuses = self.model.has_no_space();
        let result = self.model.execute(&command);
        match (&command, &result) {
            (Command::LeaseGrant { id, .. }, Ok(_)) => {
                self.leases.granted(*id, self.model.leases()[id], write.asked);
            }
            (Command::LeaseRevoke { id }, Ok(_)) => self.leases.revoked(write.asked, *id, false)?,
            _ => {}
        }
        let may_exceed = self.setting.has_quota && !refuses && grows(&command);
        write.fate = Fate::Executed { index: entry.index, result, may_exceed };
        Ok(())
    }

    /// What members may propose by themselves.
    fn execute_own(&mut self, written: Duration, command: Command) -> Check {
        match &command {
            Command::LeaseRevoke { id } => {
                if self.model.execute(&command).is_ok() {
                    self.leases.revoked(written, *id, true)?;
                }
                return Ok(());
            }
            // Names and URLs of members have no part in what clients read.
            Command::Member(_) => {}
            Command::Compact { physical: false, .. } if self.setting.compacts => {}
            Command::AlarmActivate(alarm) if self.setting.has_quota && alarm.kind == AlarmKind::NoSpace => {}
            Command::AlarmActivate(alarm) if alarm.kind == AlarmKind::Corrupt => {
                return violated("no member is blamed for a state that differs", "", short(alarm));
            }
            other => return violated("a member proposes by itself only what it must", "", short(other)),
        }
        // Whether it does anything is the model's business.
        let _ = self.model.execute(&command);
        Ok(())
    }
}

/// What clients are told.
impl History {
    /// A write is answered by a member that has published up to an index.
    ///
    /// # Errors
    /// When the answer is wrong, or early.
    pub fn answered(&mut self, now: Duration, number: u64, result: &Result<Response, Error>, published: u64) -> Check {
        let full = now <= self.full_until;
        let has_quota = self.setting.has_quota;
        let Some(write) = self.writes.get_mut(&number) else {
            return violated("who asks once is answered once", "", format!("#{number}: {result:?}"));
        };
        let reply = match result {
            Ok(Response::Write(reply)) => Ok(reply.clone()),
            Ok(other) => return violated("a write gets a write's answer", "", short(other)),
            Err(error) => Err(*error),
        };
        let what = format!("the answer to #{number}, {}", short(&write.command));
        if reply.as_ref().is_err_and(|error| leaves_open(*error)) {
            // It may still be done, or be done already.
            return Ok(());
        }
        match &write.fate {
            Fate::Executed { index, result: expected, may_exceed } => {
                if *index > published {
                    return violated(
                        "nothing is acknowledged before it is published there",
                        format!("at most index {published}"),
                        format!("index {index}: {what}"),
                    );
                }
                let excused = *may_exceed && reply == Err(Error::NoSpace) && expected.is_ok();
                if reply != *expected && !excused {
                    return violated(what, short(expected), short(&reply));
                }
                self.acknowledged += u64::from(reply.is_ok());
                Ok(())
            }
            Fate::Open => {
                let allowed = match reply {
                    Err(Error::NoSpace) => grows(&write.command) && (has_quota || full),
                    Err(Error::NoLeader | Error::NotLeader | Error::TooManyRequests | Error::LeaderTransferTimeout) => {
                        true
                    }
                    _ => false,
                };
                if !allowed {
                    return violated(what, "none yet, or a refusal that has a reason", short(&reply));
                }
                write.fate = Fate::Refused(reply.expect_err("only refusals are allowed"));
                Ok(())
            }
            Fate::Refused(_) => violated("who asks once is answered once", "", what),
        }
    }

    /// A status is told by a member that has published up to an index.
    ///
    /// # Errors
    /// When it shows another state.
    pub fn check_status(&self, status: &Status, published: u64) -> Check {
        let shown = self.shown(published);
        same("the revision in a status", &shown.revision, &status.revision)?;
        same("the floor in a status", &shown.compacted, &status.compacted_revision)?;
        same("the applied index in a status", &published, &status.raft_applied_index)?;
        if published == self.committed_index() {
            same("the alarms in a status", &self.model.alarms(), &status.alarms)?;
        }
        Ok(())
    }

    /// A member's batch of events goes out. `next` is where it stands in the model's changes.
    ///
    /// # Errors
    /// When they are not exactly the changes that come next.
    pub fn check_events(&self, next: &mut usize, batch: &EventBatch) -> Check {
        let changes = self.model.changes();
        for event in &batch.events {
            let is = |change: &Change| {
                (change.revision, change.deleted, change.previous) == (event.revision, event.deleted, event.previous)
                    && change.kv == event.kv
            };
            match changes.get(*next) {
                Some(expected) if is(expected) => *next += 1,
                expected => return violated("every change is an event, in order", short(&expected), short(event)),
            }
        }
        let first = batch.events.first().map(|event| event.revision.main);
        same("a batch's first revision", &first, &Some(batch.first_revision))?;
        let rest = changes.get(*next).is_some_and(|next| next.revision.main <= batch.last_revision);
        same("a batch holds all changes of its revisions", &false, &rest)
    }
}

/// Whether an error says nothing of whether a write is done.
fn leaves_open(error: Error) -> bool {
    matches!(
        error,
        Error::Timeout
            | Error::LeaderChanged
            | Error::LeaderFailedTimeout
            | Error::ConnectionLostTimeout
            | Error::Stopped
    )
}

/// Whether a request that changes nothing may be answered with an error, for the sake of faults.
pub fn may_fail(error: Error) -> bool {
    leaves_open(error)
        || matches!(error, Error::NoLeader | Error::NotLeader | Error::TooManyRequests | Error::LeaderTransferTimeout)
}
