//! Clients: each sends requests to a member, waits for the answer for as long as it has patience, thinks, and goes on,
//! with another member where one does not answer or can't.

use std::collections::BTreeSet;
use std::time::Duration;

use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response, Ticket};
use garboard_replica::read::{Budget, Progress};
use garboard_replica::request::{Command, Context, KeyspaceId, Principal};

use super::{Cluster, Event, Input};
use crate::check::history::may_fail;
use crate::check::reads::Read;
use crate::outcome::{Check, same, short, violated};
use crate::plan::Kind;
use crate::workload::Workload;

/// How long a client takes to turn to another member.
const TURN: Duration = Duration::from_millis(20);
/// Mean time between two steps of a long read.
const STEP: Duration = Duration::from_micros(200);

/// A client.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    /// The machine that it talks to.
    pub(super) at: usize,
    /// Answers that it waits for.
    pub(super) outstanding: usize,
    /// Its next turn is coming.
    thinks: bool,
}

impl Client {
    /// One that asks only what it is told to.
    pub(super) fn that_is_told() -> Client {
        Client { thinks: true, ..Client::default() }
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) client: usize,
    machine: usize,
    asked: Duration,
    /// What any member had published when it was asked.
    after: u64,
    /// The client waits no longer.
    abandoned: bool,
    request: Request,
    pub(super) what: What,
}

/// What was asked for.
#[derive(Debug)]
pub(super) enum What {
    Write,
    /// A read begins once it is sure to see everything that was there before.
    ReadIndex(Box<Read>),
    /// The lease, and which one of that id.
    KeepAlive(i64, Option<u64>),
    /// The same, and when it was to end at the earliest: a renewal that comes after the answer changes nothing in that.
    TimeToLive(i64, Option<u64>, Duration),
    Leases,
    Status,
    Defragment,
    KeptHash(i64),
    MoveLeader,
}

/// A read under way.
#[derive(Debug)]
pub(super) struct ReadTask {
    client: usize,
    machine: usize,
    life: u64,
    read: Read,
}

impl Cluster {
    fn workload(&mut self) -> Workload<'_> {
        Workload { rng: &mut self.rng, plan: &self.plan.each, model: &self.history.model }
    }

    /// A client's turn.
    pub(super) fn client_turn(&mut self, client: usize) -> Check {
        self.clients[client].thinks = false;
        if self.calm {
            return Ok(());
        }
        if self.rng.chance(5) {
            self.turn_to_another(client);
        }
        let at = self.clients[client].at;
        if !self.machines[at].is_up() {
            self.turn_to_another(client);
            self.think(client, TURN);
            return Ok(());
        }
        self.summary.requests += 1;
        let kind = self.draw_kind();
        self.ask(at, client, kind)?;
        if self.clients[client].outstanding == 0 {
            self.think(client, self.plan.each.think);
        }
        Ok(())
    }

    /// A client has its next turn after about this long, if that is not coming already.
    pub(super) fn think(&mut self, client: usize, mean: Duration) {
        if !std::mem::replace(&mut self.clients[client].thinks, true) {
            self.soon(Event::Client(client), mean);
        }
    }

    fn turn_to_another(&mut self, client: usize) {
        self.clients[client].at = self.rng.index(self.machines.len());
    }

    fn draw_kind(&mut self) -> Kind {
        // Alarms stop nearly everything: they do not last.
        if !self.history.model.alarms().is_empty() && self.rng.chance(20) {
            return Kind::Alarm;
        }
        let kinds = &self.plan.each.kinds;
        let mut drawn = self.rng.below(kinds.iter().map(|(_, weight)| weight).sum());
        for (kind, weight) in kinds {
            if drawn < *weight {
                return *kind;
            }
            drawn -= weight;
        }
        unreachable!("the sum of the weights is above what was drawn")
    }

    fn ask(&mut self, at: usize, client: usize, kind: Kind) -> Check {
        let requests = match kind {
            Kind::Write => self.workload().writes(),
            Kind::Compact => vec![self.workload().compact()],
            Kind::Grant => vec![self.workload().grant()],
            Kind::Revoke => vec![Command::LeaseRevoke { id: self.workload().lease() }],
            Kind::Alarm => vec![self.workload().alarm()],
            Kind::Watch | Kind::Unwatch | Kind::Progress | Kind::Checkpoint => {
                return self.do_without_answer(at, kind);
            }
            Kind::Range | Kind::ReadTxn | Kind::Hash => return self.ask_read(at, client, kind),
            other => return self.ask_one(at, client, other),
        };
        let requests = requests.into_iter().map(|command| (Request::Write(command), What::Write)).collect();
        self.send(at, client, requests)
    }

    fn ask_one(&mut self, at: usize, client: usize, kind: Kind) -> Check {
        let request = match kind {
            Kind::KeepAlive | Kind::TimeToLive => {
                let id = self.workload().lease();
                let generation = self.history.leases.generation(id);
                if kind == Kind::KeepAlive {
                    (Request::LeaseKeepAlive { id }, What::KeepAlive(id, generation))
                } else {
                    let earliest = self.history.leases.earliest(id).unwrap_or_default();
                    (Request::LeaseTimeToLive { id }, What::TimeToLive(id, generation, earliest))
                }
            }
            Kind::Leases => (Request::LeaseList, What::Leases),
            Kind::Status => (Request::Status, What::Status),
            Kind::Defragment => (Request::Defragment, What::Defragment),
            _ => {
                let revision = self.workload().revision();
                (Request::KeptHash { revision }, What::KeptHash(revision))
            }
        };
        self.send(at, client, vec![request])
    }

    fn do_without_answer(&mut self, at: usize, kind: Kind) -> Check {
        if !self.machines[at].runs() {
            return Ok(());
        }
        self.machines[at].node.now = self.machines[at].node.now.max(self.now);
        match kind {
            Kind::Watch => self.watch(at),
            Kind::Unwatch => self.unwatch(at),
            Kind::Progress => {
                if let Some(token) = self.any_stream(at) {
                    self.ask_progress(at, token);
                }
            }
            _ => {
                let started = self.machines[at].node.member.checkpoint();
                self.story.tell(self.now, "save", u64::from(started), || {
                    format!("m{}: a checkpoint is asked for: {started}", at + 1)
                });
                self.machines[at].node.drain();
            }
        }
        self.observe(at)
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
            return self.input(at, Input::Read { client, read: Box::new(read) });
        }
        self.send(at, client, vec![(Request::ReadIndex, What::ReadIndex(Box::new(read)))])
    }

    /// A client sends requests to a machine, as one batch.
    pub(super) fn send(&mut self, at: usize, client: usize, requests: Vec<(Request, What)>) -> Check {
        let now = self.now;
        let after = self.history.committed_index();
        let mut numbers = Vec::new();
        for (request, what) in requests {
            self.next_op += 1;
            let number = self.next_op;
            if let Request::Write(command) = &request {
                self.history.asked(now, number, command);
            }
            self.story
                .tell(now, "request", number, || format!("#{number} of client {client} to m{}: {request:?}", at + 1));
            self.ops.insert(number, Op { client, machine: at, asked: now, after, abandoned: false, request, what });
            self.clients[client].outstanding += 1;
            self.soon(Event::GiveUp(number), self.plan.client_patience);
            numbers.push(number);
        }
        self.input(at, Input::Requests(numbers))
    }

    /// Requests reach a process.
    pub(super) fn hand_in(&mut self, at: usize, numbers: &[u64]) -> Check {
        let machine = &mut self.machines[at];
        let mut requests = Vec::new();
        for (ticket, number) in (machine.next_ticket + 1..).zip(numbers) {
            machine.asks.insert(ticket, *number);
            requests.push(self.ops[number].request.clone());
        }
        let first = numbers.first().copied().unwrap_or(0);
        let offset = first.wrapping_sub(machine.next_ticket + 1);
        machine.next_ticket += u64::try_from(numbers.len()).expect("small");
        machine.node.send_as(requests, |ticket| Context {
            keyspace: KeyspaceId(0),
            principal: Principal::User {
                name: bytes::Bytes::new(),
                auth_revision: ticket.sequence.wrapping_add(offset),
            },
        });
        self.observe(at)
    }

    /// A client waits no longer, and turns to another member.
    pub(super) fn give_up(&mut self, number: u64) {
        if self.calm {
            return;
        }
        let Some(op) = self.ops.get_mut(&number).filter(|op| !op.abandoned) else { return };
        op.abandoned = true;
        let client = op.client;
        self.story.tell(self.now, "give-up", number, || format!("client {client} waits no longer for #{number}"));
        self.turn_to_another(client);
        self.release(client);
    }

    /// A client has one answer fewer to wait for.
    pub(super) fn release(&mut self, client: usize) {
        self.clients[client].outstanding -= 1;
        if self.clients[client].outstanding == 0 {
            self.think(client, self.plan.each.think);
        }
    }

    /// A machine's process is gone: nobody is told of what was under way there.
    pub(super) fn lose_requests(&mut self, at: usize) {
        let lost: Vec<u64> = self.ops.iter().filter(|(_, op)| op.machine == at).map(|(number, _)| *number).collect();
        let ops: Vec<Op> = lost.iter().filter_map(|number| self.ops.remove(number)).collect();
        let reads: Vec<u64> =
            self.reads.iter().filter(|(_, task)| task.machine == at).map(|(token, _)| *token).collect();
        let reads: Vec<ReadTask> = reads.iter().filter_map(|token| self.reads.remove(token)).collect();
        let waiting = ops.iter().filter(|op| !op.abandoned).map(|op| op.client);
        for client in waiting.chain(reads.iter().map(|task| task.client)).collect::<Vec<_>>() {
            self.release(client);
        }
    }

    /// A member answers.
    pub(super) fn answered(&mut self, at: usize, ticket: Ticket, result: Result<Response, Error>) -> Check {
        let number = self.machines[at].asks.remove(&ticket.sequence);
        let Some((number, op)) = number.and_then(|number| Some((number, self.ops.remove(&number)?))) else {
            return violated("who asks once is answered once", "", format!("m{}: {ticket:?}: {result:?}", at + 1));
        };
        self.story.tell(self.now, "answer", number, || format!("#{number} from m{}: {}", at + 1, short(&result)));
        let client = op.client;
        if matches!(result, Err(Error::NoLeader | Error::Timeout)) && self.clients[client].at == at {
            self.turn_to_another(client);
        }
        if let Err(error) = &result
            && !matches!(op.what, What::Write)
            && !may_fail(*error)
        {
            return violated(format!("the answer to {:?}", op.what), "", short(&result));
        }
        let (read, abandoned) = (matches!(op.what, What::ReadIndex(_)) && result.is_ok(), op.abandoned);
        self.check_answer(at, number, op, result)?;
        if !read && !abandoned {
            self.release(client);
        }
        Ok(())
    }

    fn check_answer(&mut self, at: usize, number: u64, op: Op, result: Result<Response, Error>) -> Check {
        let published = self.machines[at].published;
        let Op { client, asked, after, abandoned, what, .. } = op;
        match (what, result) {
            (What::Write, result) => self.history.answered(self.now, number, &result, published),
            (_, Err(_)) => Ok(()),
            (What::ReadIndex(read), Ok(Response::ReadIndex)) => {
                if published < after {
                    return self.stale(at, after, published);
                }
                if abandoned { Ok(()) } else { self.begin_read(at, client, *read, after) }
            }
            (What::KeepAlive(id, generation), Ok(Response::LeaseKeepAlive { ttl_seconds })) => {
                self.check_renewal(asked, id, generation, ttl_seconds)
            }
            (
                What::TimeToLive(id, generation, earliest),
                Ok(Response::LeaseTimeToLive { ttl_seconds, granted_ttl_seconds }),
            ) => {
                let least = earliest.saturating_sub(self.now);
                self.check_time_left((id, generation), least, ttl_seconds, granted_ttl_seconds)
            }
            (What::Leases, Ok(Response::LeaseList(leases))) => self.check_leases(at, &leases),
            (What::Status, Ok(Response::Status(status))) => self.history.check_status(&status, published),
            (What::Defragment, Ok(Response::Defragment)) | (What::MoveLeader, Ok(Response::MoveLeader)) => Ok(()),
            (What::KeptHash(revision), Ok(Response::KeptHash(kept))) => {
                let Some(kept) = kept else { return Ok(()) };
                same("the revision of a kept hash", &revision, &kept.revision)?;
                let expected = self.history.model.compaction_hash(kept.compact_revision, revision);
                let what = format!("the hash kept for revision {revision} above {}", kept.compact_revision);
                same(&what, &expected, &kept.hash)
            }
            (what, result) => violated(format!("the answer to {what:?}"), "", short(&result)),
        }
    }

    fn stale(&self, at: usize, after: u64, found: u64) -> Check {
        violated(
            format!("a read on m{} sees everything that was there when it was asked for", at + 1),
            format!("index {after} or later"),
            found.to_string(),
        )
    }

    /// A renewal proves that the lease is there, and that it will be for its whole time.
    fn check_renewal(&mut self, asked: Duration, id: i64, generation: Option<u64>, ttl_seconds: i64) -> Check {
        let same_lease = generation.is_some() && generation == self.history.leases.generation(id);
        let known = self.history.model.leases().get(&id).copied();
        if same_lease {
            same(&format!("what a renewal of lease {id} gives"), &known.unwrap_or(0), &ttl_seconds)?;
            self.history.leases.renewed(id, asked);
        }
        Ok(())
    }

    fn check_time_left(&self, (id, generation): (i64, Option<u64>), least: Duration, left: i64, granted: i64) -> Check {
        if generation.is_none() || generation != self.history.leases.generation(id) {
            return Ok(());
        }
        let ttl_seconds = self.history.model.leases().get(&id).copied().unwrap_or(0);
        let least = i64::try_from(least.mul_f64(0.95).as_secs()).expect("short") - 1;
        let extension = i64::try_from(self.plan.each.member.election_timeout.as_secs()).expect("short");
        if granted == ttl_seconds && (least..=ttl_seconds + extension).contains(&left) {
            return Ok(());
        }
        violated(
            format!("the time that lease {id} has left"),
            format!("from {least} to {ttl_seconds} seconds of {ttl_seconds}"),
            format!("{left} of {granted}"),
        )
    }

    fn check_leases(&self, at: usize, listed: &[i64]) -> Check {
        if self.machines[at].published != self.history.committed_index() {
            return Ok(());
        }
        let expected: BTreeSet<i64> = self.history.model.leases().keys().copied().collect();
        same(&format!("the leases that there are on m{}", at + 1), &expected, &listed.iter().copied().collect())
    }

    /// A read begins, on a state that is as new as index `after`.
    pub(super) fn begin_read(&mut self, at: usize, client: usize, read: Read, after: u64) -> Check {
        let machine = &self.machines[at];
        let found = machine.node.reader().pin().view().applied().index;
        if found < after {
            return self.stale(at, after, found);
        }
        let life = machine.life;
        let token = self.token();
        self.story.tell(self.now, "read", token, || format!("read {token} on m{} at index {found}: {read:?}", at + 1));
        self.reads.insert(token, ReadTask { client, machine: at, life, read });
        self.step_read(token)
    }

    /// A page that a read or a stream waited for is there.
    pub(super) fn resume(&mut self, at: usize, token: u64) {
        let event = if self.reads.contains_key(&token) {
            Event::Read(token)
        } else {
            Event::Stream { machine: at, stream: token }
        };
        self.after(event, Duration::ZERO);
    }

    /// A read goes on.
    pub(super) fn step_read(&mut self, token: u64) -> Check {
        let Some(mut task) = self.reads.remove(&token) else { return Ok(()) };
        let machine = &mut self.machines[task.machine];
        assert_eq!(machine.life, task.life, "a read ends with its process");
        if let Some(until) = machine.paused_until {
            let delay = until.saturating_sub(self.now) + STEP;
            self.reads.insert(token, task);
            self.after(Event::Read(token), delay);
            return Ok(());
        }
        let budget = Budget { keys: 1 + self.rng.index(20), bytes: 1 + self.rng.index(2_000) };
        let snapshot = machine.node.reader().pin();
        match task.read.step(&snapshot.view(), &mut self.history.model, budget) {
            Ok(Ok(Progress::More)) => {
                self.reads.insert(token, task);
                self.soon(Event::Read(token), STEP);
            }
            Ok(Ok(Progress::Done)) => {
                self.story.tell(self.now, "read", token, || format!("read {token} is right"));
                self.summary.reads += 1;
                self.release(task.client);
            }
            Ok(Err(violation)) => return Err(violation),
            Err(need) => {
                let at = task.machine;
                self.reads.insert(token, task);
                let machine = &mut self.machines[at];
                machine.node.now = machine.node.now.max(self.now);
                machine.node.load_for_reader(need.0, snapshot, token);
                machine.refresh();
            }
        }
        Ok(())
    }
}
