//! The checkers: what clients, disk and log may and must see, held against the model.
//!
//! The order of writes is not guessed. Every command carries its ticket as its principal, and the node shows what the
//! member writes into its log: the model executes the log's entries in their order, and each answer, event and state is
//! held against that. What this leaves to check about the order itself is that a client's command stands in it once,
//! after those that were submitted before.

pub mod history;
mod leases;
pub mod reads;
pub mod watch;
pub mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use garboard_replica::Error;
use garboard_replica::codec::decode_entry;
use garboard_replica::envelope::{Response, Ticket};
use garboard_replica::events::EventBatch;
use garboard_replica::request::{AlarmKind, Command, Principal, Reply};
use garboard_wal as wal;

pub use leases::Leases;

use crate::model::{Change, Model, grows};
use crate::node::Start;
use crate::outcome::{Check, same, short, violated};

/// A write that a client waits for.
#[derive(Clone, Debug)]
struct Submitted {
    command: Command,
    at: Duration,
    /// Whether the member led then.
    led: bool,
}

/// A command in the log.
#[derive(Clone, Debug)]
struct Item {
    /// The client's ticket; none for the member's own.
    ticket: Option<u64>,
    command: Command,
}

/// An entry that the member handed to its log.
#[derive(Clone, Debug)]
struct Logged {
    entry: wal::Entry,
    at: Duration,
    items: Vec<Item>,
}

/// What the model says a command is answered with.
#[derive(Clone, Debug)]
struct Expected {
    index: u64,
    result: Result<Reply, Error>,
    /// It was executed although it may be over the member's quota, which then refuses it all the same.
    may_exceed: bool,
}

/// What the checkers must know of the world.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The member's id.
    pub member_id: u64,
    /// The member has a quota that can be reached.
    pub has_quota: bool,
    /// The member compacts by itself.
    pub compacts: bool,
    /// What a new leader adds to each lease.
    pub extension: Duration,
}

/// Holds writes, events and states against the model.
pub struct Checker {
    setting: Setting,
    /// The state after the entries executed so far.
    pub model: Model,
    /// When leases may and must expire.
    pub leases: Leases,
    /// Every entry since the beginning; the one with index 1 in front.
    log: Vec<Logged>,
    executed: usize,
    submitted: BTreeMap<u64, Submitted>,
    in_log: BTreeSet<u64>,
    last_logged: u64,
    expected: BTreeMap<u64, Expected>,
    /// Changes that were handed out as events, counted from the beginning.
    events_to: usize,
    acknowledged_revision: i64,
    acknowledged_index: u64,
    /// Until when a full disk may be the reason for a refusal.
    full_until: Duration,
    /// Writes answered as done.
    pub acknowledged: u64,
}

impl Checker {
    /// For a new store.
    pub fn new(setting: Setting) -> Checker {
        Checker {
            setting,
            model: Model::default(),
            leases: Leases::new(setting.extension),
            log: Vec::new(),
            executed: 0,
            submitted: BTreeMap::new(),
            in_log: BTreeSet::new(),
            last_logged: 0,
            expected: BTreeMap::new(),
            events_to: 0,
            acknowledged_revision: 1,
            acknowledged_index: 0,
            full_until: Duration::ZERO,
            acknowledged: 0,
        }
    }

    /// The newest revision that a client was told of: whoever asks from now on must not see less.
    pub fn acknowledged_revision(&self) -> i64 {
        self.acknowledged_revision
    }

    /// Writes that nobody has been told the end of.
    pub fn unanswered(&self) -> usize {
        self.submitted.len()
    }

    /// Whether nothing under way could make or end a lease.
    pub fn is_certain_of_lease(&self, id: i64) -> bool {
        let touches = |command: &Command| match command {
            Command::LeaseGrant { id: other, .. } | Command::LeaseRevoke { id: other } => *other == id,
            _ => false,
        };
        let in_log = self.log[self.executed..].iter().flat_map(|logged| &logged.items);
        !self.submitted.values().any(|submitted| touches(&submitted.command))
            && !in_log.into_iter().any(|item| touches(&item.command))
    }

    /// Whether nothing is under way that could change anything.
    pub fn is_settled(&self) -> bool {
        self.submitted.is_empty() && self.executed == self.log.len()
    }

    /// The last index that the model has executed.
    pub fn executed_index(&self) -> u64 {
        index_of(self.executed)
    }

    /// The disk may be the reason for a refusal until then.
    pub fn allow_full_disk(&mut self, until: Duration) {
        self.full_until = self.full_until.max(until);
    }

    /// The clock went on and nothing else did.
    pub fn paused(&mut self, pause: Duration) {
        self.full_until += pause;
    }

    /// A client submits a write.
    pub fn submitted(&mut self, now: Duration, ticket: Ticket, command: &Command, led: bool) {
        self.submitted.insert(ticket.sequence, Submitted { command: command.clone(), at: now, led });
    }

    /// The member hands an entry to its log.
    ///
    /// # Errors
    /// When it is not what clients submitted, in that order and once, nor anything that the member may do by itself.
    pub fn logged(&mut self, now: Duration, entry: wal::Entry) -> Check {
        same("the log's entries are numbered without a gap", &(index_of(self.log.len()) + 1), &entry.index)?;
        let mut items = Vec::new();
        if entry.kind == wal::EntryKind::Normal && !entry.data.is_empty() {
            let batch = match decode_entry(&entry.data) {
                Ok(batch) => batch,
                Err(error) => return violated("an entry of the log can be read", "", error.to_string()),
            };
            for item in batch.items {
                items.push(self.check_logged(now, item.principal, item.command)?);
            }
        }
        self.log.push(Logged { entry, at: now, items });
        Ok(())
    }

    fn check_logged(&mut self, now: Duration, principal: Principal, command: Command) -> Check<Item> {
        let ticket = match principal {
            Principal::User { auth_revision, .. } => auth_revision,
            Principal::Server => {
                self.check_own(now, &command)?;
                return Ok(Item { ticket: None, command });
            }
            Principal::Anonymous => return violated("commands keep their principal", "", short(&command)),
        };
        let Some(submitted) = self.submitted.get(&ticket) else {
            return violated(
                "only what was submitted, and not refused, gets into the log",
                "a ticket that waits",
                format!("ticket {ticket}: {}", short(&command)),
            );
        };
        same("a command gets into the log as it was submitted", &submitted.command, &command)?;
        if ticket <= self.last_logged {
            return violated(
                "commands get into the log once and in the order in which they were submitted",
                format!("a ticket above {}", self.last_logged),
                ticket.to_string(),
            );
        }
        self.last_logged = ticket;
        self.in_log.insert(ticket);
        Ok(Item { ticket: Some(ticket), command })
    }

    /// What a member may propose by itself.
    fn check_own(&self, now: Duration, command: &Command) -> Check {
        match command {
            Command::LeaseRevoke { id } => self.leases.check_expiry(now, *id),
            Command::Compact { physical: false, .. } if self.setting.compacts => Ok(()),
            Command::AlarmActivate(alarm)
                if self.setting.has_quota
                    && alarm.member_id == self.setting.member_id
                    && alarm.kind == AlarmKind::NoSpace =>
            {
                Ok(())
            }
            other => violated("a member proposes by itself only what it must", "", short(other)),
        }
    }

    /// The member has published its state as of an index.
    ///
    /// # Errors
    /// When it is ahead of what is durable, or differs from the model.
    pub fn published(&mut self, index: u64, durable_index: u64, revision: i64, compacted: i64) -> Check {
        if index > durable_index {
            return violated(
                "nothing is published before it is durable",
                format!("at most index {durable_index}"),
                index.to_string(),
            );
        }
        self.advance_to(index)?;
        if self.executed_index() == index {
            same("the published revision", &self.model.revision(), &revision)?;
            same("the published floor", &self.model.compacted(), &compacted)?;
        }
        Ok(())
    }

    fn advance_to(&mut self, index: u64) -> Check {
        while self.executed_index() < index {
            let Some(logged) = self.log.get(self.executed).cloned() else {
                return violated(
                    "nothing is published that was not logged",
                    index_of(self.log.len()).to_string(),
                    index.to_string(),
                );
            };
            for item in logged.items {
                self.execute(&logged.entry, logged.at, item)?;
            }
            self.executed += 1;
        }
        Ok(())
    }

    fn execute(&mut self, entry: &wal::Entry, logged_at: Duration, item: Item) -> Check {
        let refuses = self.model.has_no_space();
        let result = self.model.execute(&item.command);
        match (&item.command, &result) {
            (Command::LeaseGrant { id, .. }, Ok(_)) => {
                let ttl_seconds = self.model.leases()[id];
                let submitted = item.ticket.and_then(|ticket| self.submitted.get(&ticket));
                let at = submitted.map_or(logged_at, |submitted| submitted.at);
                self.leases.granted(*id, ttl_seconds, at);
            }
            (Command::LeaseRevoke { id }, Ok(_)) => self.leases.revoked(logged_at, *id, item.ticket.is_none())?,
            _ => {}
        }
        if let Some(ticket) = item.ticket {
            self.in_log.remove(&ticket);
            if self.submitted.contains_key(&ticket) {
                let may_exceed = self.setting.has_quota && !refuses && grows(&item.command);
                self.expected.insert(ticket, Expected { index: entry.index, result, may_exceed });
            }
        }
        Ok(())
    }

    /// A batch of events goes out.
    ///
    /// # Errors
    /// When they are not exactly the changes that come next.
    pub fn events(&mut self, batch: &EventBatch) -> Check {
        let changes = self.model.changes();
        for event in &batch.events {
            let found = Change {
                revision: event.revision,
                deleted: event.deleted,
                kv: event.kv.clone(),
                previous: event.previous,
            };
            let Some(expected) = changes.get(self.events_to) else {
                return violated("every event is a change", "none", short(&found));
            };
            if *expected != found {
                return violated("every change is an event, in order", short(expected), short(&found));
            }
            self.events_to += 1;
        }
        let first = batch.events.first().map(|event| event.revision.main);
        same("a batch's first revision", &first, &Some(batch.first_revision))?;
        let rest = changes.get(self.events_to).is_some_and(|next| next.revision.main <= batch.last_revision);
        same("a batch holds all changes of its revisions", &false, &rest)
    }

    /// A write is answered.
    ///
    /// # Errors
    /// When the answer is wrong, early, or nobody asked.
    pub fn answered(
        &mut self,
        now: Duration,
        ticket: Ticket,
        result: &Result<Response, Error>,
        durable_index: u64,
    ) -> Check {
        let Some(submitted) = self.submitted.remove(&ticket.sequence) else {
            return violated("who asks once is answered once", "", format!("ticket {}: {result:?}", ticket.sequence));
        };
        let reply = match result {
            Ok(Response::Write(reply)) => Ok(reply.clone()),
            Ok(other) => return violated("a write gets a write's answer", "", short(other)),
            Err(error) => Err(*error),
        };
        let Some(expected) = self.expected.remove(&ticket.sequence) else {
            return self.check_refusal(now, ticket, &submitted, &reply);
        };
        if expected.index > durable_index {
            return violated(
                "nothing is acknowledged before it is durable",
                format!("at most index {durable_index}"),
                format!("index {}: {}", expected.index, short(&submitted.command)),
            );
        }
        let excused = expected.may_exceed && reply == Err(Error::NoSpace) && expected.result.is_ok();
        if reply != expected.result && !excused {
            return violated(
                format!("the answer to {}", short(&submitted.command)),
                short(&expected.result),
                short(&reply),
            );
        }
        self.acknowledged_index = self.acknowledged_index.max(expected.index);
        if let Ok(reply) = reply {
            self.acknowledged += 1;
            self.acknowledged_revision = self.acknowledged_revision.max(reply.revision);
        }
        Ok(())
    }

    /// A write that was not executed may be refused for a few reasons only.
    fn check_refusal(
        &self,
        now: Duration,
        ticket: Ticket,
        submitted: &Submitted,
        reply: &Result<Reply, Error>,
    ) -> Check {
        let grows = grows(&submitted.command);
        let allowed = match reply {
            Err(Error::NoSpace) => grows && (self.setting.has_quota || now <= self.full_until),
            Err(Error::NoLeader) => !submitted.led,
            _ => false,
        };
        if allowed && !self.in_log.contains(&ticket.sequence) {
            return Ok(());
        }
        violated(
            format!("the answer to {}, which was not executed", short(&submitted.command)),
            "none yet, or a refusal that has a reason",
            short(reply),
        )
    }

    /// The process has ended: nobody will be told of what was under way.
    pub fn ended(&mut self) {
        self.submitted.clear();
        self.expected.clear();
        self.in_log.clear();
    }

    /// A process has started. `durable_index` is what its predecessor had durable.
    ///
    /// # Errors
    /// When anything durable is gone, anything is there that was never written, or anything differs.
    pub fn started(&mut self, now: Duration, start: &Start, durable_index: u64) -> Check {
        let logged = index_of(self.log.len());
        if start.last_index < durable_index || start.last_index > logged {
            return violated(
                "a start finds everything that was durable and nothing that was never written",
                format!("a last index from {durable_index} to {logged}"),
                start.last_index.to_string(),
            );
        }
        self.continue_from(now, start)
    }

    /// A process has started on a log that was cut where it was damaged: acknowledged writes may be given up, but what
    /// is left must be a beginning of what was there.
    ///
    /// # Errors
    /// When it is not.
    pub fn salvaged(&mut self, now: Duration, start: &Start) -> Check {
        if start.last_index > index_of(self.log.len()) {
            return violated("salvage invents nothing", "", start.last_index.to_string());
        }
        if self.executed_index() > start.last_index {
            self.model = Model::default();
            self.leases = Leases::new(self.setting.extension);
            self.executed = 0;
            self.acknowledged_index = start.last_index;
        }
        self.continue_from(now, start)?;
        self.acknowledged_revision = self.acknowledged_revision.min(self.model.revision());
        Ok(())
    }

    fn continue_from(&mut self, now: Duration, start: &Start) -> Check {
        if start.founded && self.acknowledged_index > 0 {
            return violated("a store that was served from is never founded anew", "", "");
        }
        let length = usize::try_from(start.last_index).expect("small");
        self.log.truncate(length);
        if start.founded {
            self.log.clear();
        }
        for entry in &start.entries {
            let position = usize::try_from(entry.index - 1).expect("small");
            same("a recovered entry", &self.log.get(position).map(|logged| &logged.entry), &Some(entry))?;
        }
        // What a single member's log holds is committed.
        self.advance_to(start.last_index)?;
        self.leases.promoted(now);
        self.events_to = self.model.position_of(start.revision + 1);
        Ok(())
    }
}

fn index_of(length: usize) -> u64 {
    u64::try_from(length).expect("lengths fit 64 bits")
}
