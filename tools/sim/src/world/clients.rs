//! Clients: each sends a request, waits for its answer, thinks, and sends the next one.

use std::collections::BTreeSet;
use std::time::Duration;

use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response, Status, Ticket};
use garboard_replica::request::Command;
use garboard_storage::hash::HashKv;

use super::{Event, ONLY, World};
use crate::check::reads::Read;
use crate::outcome::{Check, same, short, violated};
use crate::plan::Kind;
use crate::workload::Workload;

/// How long a client waits before it tries again while nobody serves it.
const AGAIN: Duration = Duration::from_millis(20);
/// Mean length of a long rest.
const REST: Duration = Duration::from_secs(40);

/// A client.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    /// Answers that it waits for.
    pub(super) outstanding: usize,
}

/// What a client waits for.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) client: usize,
    pub(super) at: Duration,
    pub(super) what: What,
}

impl Ask {
    /// Whether the client sends nothing else meanwhile. A renewal of an expired lease waits for as long as an alarm stops
    /// its end: nobody waits for that.
    pub(super) fn blocks(&self) -> bool {
        !matches!(self.what, What::KeepAlive(..))
    }
}

/// What it asked for.
#[derive(Debug)]
pub(super) enum What {
    Write,
    /// A read begins once it is sure to see everything that was acknowledged before.
    ReadIndex(Box<Read>),
    /// The lease, and which one of that id.
    KeepAlive(i64, Option<u64>),
    TimeToLive(i64),
    Leases,
    Status,
    Defragment,
    KeptHash(i64),
}

impl World {
    fn workload(&mut self) -> Workload<'_> {
        Workload { rng: &mut self.rng, plan: &self.plan, model: &self.checker.model }
    }

    /// A client's turn.
    pub(super) fn client_turn(&mut self, client: usize) -> Check {
        let at = ONLY;
        if self.hold {
            self.maybe_crash(at)?;
        }
        if self.hold || !self.sites[at].is_up() || !self.sites[at].node.is_serving() {
            self.soon(Event::Client(client), AGAIN);
            return Ok(());
        }
        self.summary.requests += 1;
        let kind = self.draw_kind();
        self.ask(at, client, kind)?;
        if self.clients[client].outstanding == 0 {
            self.rest(client);
        }
        if self.sites[at].is_up() {
            self.roll_faults(at);
        }
        Ok(())
    }

    fn draw_kind(&mut self) -> Kind {
        // Alarms stop nearly everything: they do not last.
        if !self.checker.model.alarms().is_empty() && self.rng.chance(10) {
            return Kind::Alarm;
        }
        let sum = self.plan.kinds.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.rng.below(sum);
        for (kind, weight) in &self.plan.kinds {
            if drawn < *weight {
                return *kind;
            }
            drawn -= weight;
        }
        unreachable!("the sum of the weights is above what was drawn")
    }

    fn ask(&mut self, at: usize, client: usize, kind: Kind) -> Check {
        match kind {
            Kind::Write => {
                let commands = self.workload().writes();
                self.send_writes(at, client, commands)
            }
            Kind::Compact => {
                let command = self.workload().compact();
                self.send_writes(at, client, vec![command])
            }
            Kind::Grant => {
                let command = self.workload().grant();
                self.send_writes(at, client, vec![command])
            }
            Kind::Revoke => {
                let command = Command::LeaseRevoke { id: self.workload().lease() };
                self.send_writes(at, client, vec![command])
            }
            Kind::Alarm => {
                let command = self.workload().alarm();
                self.send_writes(at, client, vec![command])
            }
            Kind::KeepAlive => {
                let id = self.workload().lease();
                let generation = self.checker.leases.generation(id);
                self.send_one(at, client, Request::LeaseKeepAlive { id }, What::KeepAlive(id, generation))
            }
            Kind::TimeToLive => {
                let id = self.workload().lease();
                self.send_one(at, client, Request::LeaseTimeToLive { id }, What::TimeToLive(id))
            }
            Kind::Leases => self.send_one(at, client, Request::LeaseList, What::Leases),
            Kind::Status => self.send_one(at, client, Request::Status, What::Status),
            Kind::Defragment => self.send_one(at, client, Request::Defragment, What::Defragment),
            Kind::KeptHash => {
                let revision = self.workload().revision();
                self.send_one(at, client, Request::KeptHash { revision }, What::KeptHash(revision))
            }
            Kind::Range | Kind::ReadTxn | Kind::Hash => self.ask_read(at, client, kind),
            Kind::Watch | Kind::Unwatch | Kind::Progress | Kind::Checkpoint => {
                self.do_without_answer(at, kind);
                self.observe(at)
            }
        }
    }

    fn do_without_answer(&mut self, at: usize, kind: Kind) {
        match kind {
            Kind::Watch => self.watch(at),
            Kind::Unwatch => self.unwatch(at),
            Kind::Progress => {
                if let Some(token) = self.any_stream(at) {
                    self.ask_progress(at, token);
                }
            }
            _ => {
                let started = self.sites[at].node.member.checkpoint();
                self.story
                    .tell(self.now, "save", u64::from(started), || format!("a checkpoint is asked for: {started}"));
                self.sites[at].node.drain();
            }
        }
    }

    fn ask_read(&mut self, at: usize, client: usize, kind: Kind) -> Check {
        let mode = self.rng.below(3);
        let mut workload = self.workload();
        let (read, serializable) = match kind {
            Kind::Range => {
                let range = workload.range();
                let serializable = range.serializable;
                let read = match mode {
                    0 => Read::range(range),
                    1 => Read::scan(range),
                    _ => Read::stream(range),
                };
                (read, serializable)
            }
            Kind::ReadTxn => (Read::txn(workload.read_txn()), mode == 0),
            _ => {
                let asked = if mode == 0 { 0 } else { workload.revision() };
                (Read::hash(asked), true)
            }
        };
        if serializable {
            self.clients[client].outstanding += 1;
            return self.begin_read(at, client, read);
        }
        self.send_one(at, client, Request::ReadIndex, What::ReadIndex(Box::new(read)))
    }

    fn send_writes(&mut self, at: usize, client: usize, commands: Vec<Command>) -> Check {
        let now = self.now;
        let ask = |command| (Request::Write(command), Ask { client, at: now, what: What::Write });
        self.send(at, commands.into_iter().map(ask).collect())
    }

    fn send_one(&mut self, at: usize, client: usize, request: Request, what: What) -> Check {
        let ask = Ask { client, at: self.now, what };
        self.send(at, vec![(request, ask)])
    }

    /// A client has one answer fewer to wait for.
    pub(super) fn release(&mut self, client: usize) {
        self.clients[client].outstanding -= 1;
        if self.clients[client].outstanding == 0 {
            self.rest(client);
        }
    }

    /// A client thinks before its next request.
    fn rest(&mut self, client: usize) {
        let mean = if self.rng.below(1_000) < self.plan.rests { REST } else { self.plan.think };
        self.soon(Event::Client(client), mean);
    }

    /// Holds an answer against what it may be.
    pub(super) fn check_ask(
        &mut self,
        at: usize,
        ticket: Ticket,
        ask: Ask,
        result: Result<Response, Error>,
        durable: u64,
    ) -> Check {
        let blocks = ask.blocks();
        let Ask { client, at: asked, what } = ask;
        match (what, result) {
            (What::Write, result) => self.checker.answered(self.now, ticket, &result, durable)?,
            (What::ReadIndex(read), Ok(Response::ReadIndex)) => return self.begin_read(at, client, *read),
            (What::KeepAlive(id, generation), Ok(Response::LeaseKeepAlive { ttl_seconds })) => {
                let replaced = generation != self.checker.leases.generation(id);
                self.check_renewal(asked, id, ttl_seconds, replaced)?;
            }
            (What::TimeToLive(id), Ok(Response::LeaseTimeToLive { ttl_seconds, granted_ttl_seconds })) => {
                self.check_time_left(id, ttl_seconds, granted_ttl_seconds)?;
            }
            (What::Leases, Ok(Response::LeaseList(leases))) => self.check_leases(&leases)?,
            (What::Status, Ok(Response::Status(status))) => self.check_status(&status)?,
            (What::Defragment, Ok(Response::Defragment)) => {}
            (What::KeptHash(revision), Ok(Response::KeptHash(kept))) => self.check_kept_hash(revision, kept)?,
            (what, result) => return violated(format!("the answer to {what:?}"), "", short(&result)),
        }
        if blocks {
            self.release(client);
        }
        Ok(())
    }

    /// A renewal of an expired lease waits for its end; by then there may be another one of that id.
    fn check_renewal(&mut self, asked: Duration, id: i64, ttl_seconds: i64, replaced: bool) -> Check {
        let known = self.checker.model.leases().get(&id).copied();
        if replaced && ttl_seconds == 0 {
            return Ok(());
        }
        if !self.checker.is_certain_of_lease(id) {
            if ttl_seconds > 0 {
                self.checker.leases.renewed(id, asked);
            }
            return Ok(());
        }
        same(&format!("what a renewal of lease {id} gives"), &known.unwrap_or(0), &ttl_seconds)?;
        self.checker.leases.renewed(id, asked);
        Ok(())
    }

    fn check_time_left(&self, id: i64, left: i64, granted: i64) -> Check {
        if !self.checker.is_certain_of_lease(id) {
            return Ok(());
        }
        let Some(ttl_seconds) = self.checker.model.leases().get(&id) else {
            return same(&format!("the time that lease {id} has left"), &(-1, 0), &(left, granted));
        };
        let least = self.checker.leases.earliest(id).unwrap_or_default().saturating_sub(self.now);
        let least = i64::try_from(least.as_secs()).expect("short");
        let extension = i64::try_from(self.plan.member.election_timeout.as_secs()).expect("short");
        let right = granted == *ttl_seconds && (least..=ttl_seconds + extension).contains(&left);
        if right {
            return Ok(());
        }
        violated(
            format!("the time that lease {id} has left"),
            format!("from {least} to {ttl_seconds} seconds of {ttl_seconds}"),
            format!("{left} of {granted}"),
        )
    }

    fn check_leases(&self, listed: &[i64]) -> Check {
        let certain = |ids: &mut dyn Iterator<Item = i64>| {
            ids.filter(|id| self.checker.is_certain_of_lease(*id)).collect::<BTreeSet<_>>()
        };
        let expected = certain(&mut self.checker.model.leases().keys().copied());
        same("the leases that there are", &expected, &certain(&mut listed.iter().copied()))
    }

    fn check_status(&self, status: &Status) -> Check {
        same("the revision in a status", &self.checker.model.revision(), &status.revision)?;
        let quota = u64::try_from(self.plan.member.quota_bytes).unwrap_or(0);
        same("the quota in a status", &quota, &status.quota_bytes)?;
        if self.checker.is_settled() {
            same("the floor in a status", &self.checker.model.compacted(), &status.compacted_revision)?;
            same("the alarms in a status", &self.checker.model.alarms(), &status.alarms)?;
            same("what is committed is applied", &status.raft_index, &status.raft_applied_index)?;
        }
        Ok(())
    }

    fn check_kept_hash(&self, revision: i64, kept: Option<HashKv>) -> Check {
        let Some(kept) = kept else { return Ok(()) };
        same("the revision of a kept hash", &revision, &kept.revision)?;
        let expected = self.checker.model.compaction_hash(kept.compact_revision, revision);
        same(&format!("the hash kept for revision {revision} above {}", kept.compact_revision), &expected, &kept.hash)
    }
}
