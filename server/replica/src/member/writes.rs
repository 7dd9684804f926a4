//! Writes on their way into the log: admission, batching, proposals.
//!
//! The only member of its store proposes its clients' writes and waits for them by index and term. With other members, a
//! write goes through the outbox (`forwarding.rs`), whoever leads.

use core::time::Duration;
use std::collections::VecDeque;

use garboard_wal::{self as wal, AppendNumber};

use super::forwarding::Refusee;
use super::{Member, Undurable};
use crate::codec::EntryBuilder;
use crate::envelope::Ticket;
use crate::error::Error;
use crate::limits::{
    ENTRY_BYTES_MAX, ENTRY_COMMANDS_MAX, OUTBOX_BYTES_MAX, OUTBOX_WRITES_MAX, PENDING_COMMANDS_MAX, QUESTION_RETRY,
    UNAPPLIED_COMMANDS_MAX,
};
use crate::peer::PeerMessage;
use crate::quota::cost;
use crate::raft::Role;
use crate::request::{Alarm, AlarmKind, Command, Context, Principal};

/// Who waits for a command of an entry that does not say where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A client.
    Client(Ticket),
    /// The expiry of a lease.
    Expiry,
    /// Automatic compaction.
    AutoCompaction,
    /// The alarm that a full store raises.
    Alarm,
    /// A change of a member's record. Who waits for it is found by the change itself.
    Member,
    /// The alarm of a corruption check. One that is lost is raised by the next check.
    Check,
}

/// A NOSPACE alarm of this member for which the leader is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedAlarm {
    since: Duration,
    /// What was applied when space ran out.
    index: u64,
    again_at: Duration,
}

/// A batch that was put into the log and is not applied.
#[derive(Debug)]
pub(super) struct Proposal {
    pub(super) index: u64,
    pub(super) term: u64,
    /// How many commands it holds.
    pub(super) commands: u64,
    /// One for each command, in order; none where the entry says where its commands come from.
    pub(super) origins: Vec<Origin>,
    /// Leases that its commands end.
    pub(super) leases: Vec<i64>,
    /// Whether clients of another member wait for it.
    pub(super) is_forwarded: bool,
    /// When the batch's oldest command was asked for.
    pub(super) received: Duration,
    pub(super) append: Option<AppendNumber>,
    pub(super) written: Option<Duration>,
    pub(super) durable: Option<Duration>,
    pub(super) committed: Option<Duration>,
}

/// Writes of one call, on their way into entries.
pub(super) struct Writes {
    builder: EntryBuilder,
    origins: Vec<Origin>,
    /// Who waits for each command, and where it ends, if the entry will say where its commands come from.
    tickets: Vec<(Ticket, usize)>,
    leases: Vec<i64>,
    /// When the oldest of them was asked for.
    asked: Duration,
}

impl Member {
    pub(super) fn begin_writes(&self, asked: Duration) -> Writes {
        let builder = if self.raft.is_alone() {
            EntryBuilder::new(self.config.keyspace)
        } else {
            EntryBuilder::sourced(self.config.keyspace)
        };
        Writes { builder, origins: Vec::new(), tickets: Vec::new(), leases: Vec::new(), asked }
    }

    /// Admits a client's write into the batch, or answers why not.
    pub(super) fn write(
        &mut self,
        now: Duration,
        writes: &mut Writes,
        ticket: Ticket,
        context: &Context,
        command: Command,
    ) {
        assert_eq!(context.keyspace, self.config.keyspace, "requests reach the home core of their keyspace");
        let admitted = if self.leads() {
            let waiting = u64::try_from(writes.builder.count()).expect("a batch is small");
            self.admit(now, waiting, &command)
        } else if writes.builder.is_sourced() {
            self.admit_to_space(now, cost(&command))
        } else {
            Err(Error::NoLeader)
        };
        match admitted.and_then(|()| self.admit_to_outbox()) {
            Ok(()) => self.enqueue(now, writes, Origin::Client(ticket), &context.principal, &command),
            Err(Error::NoSpace) if self.alarm_proposed => self.refused.push(Refusee::Client(ticket)),
            Err(error) => self.answer(ticket, Err(error)),
        }
    }

    /// Proposes a command of the member's own, if it leads; it is not held back by anything that is full.
    pub(super) fn propose_own(&mut self, now: Duration, commands: impl IntoIterator<Item = (Origin, Command)>) {
        let mut writes = Writes { builder: EntryBuilder::new(self.config.keyspace), ..self.begin_writes(now) };
        for (origin, command) in commands {
            self.enqueue(now, &mut writes, origin, &Principal::Server, &command);
        }
        self.finish_writes(now, writes);
    }

    /// Whether a leader takes a write that joins `waiting` others. The caller leads.
    pub(super) fn admit(&mut self, now: Duration, waiting: u64, command: &Command) -> Result<(), Error> {
        if self.pending_commands + waiting >= PENDING_COMMANDS_MAX
            || self.applying.unapplied_commands() > UNAPPLIED_COMMANDS_MAX
            || self.raft.unapplied_bytes() >= self.config.pending_bytes_max
        {
            return Err(Error::TooManyRequests);
        }
        let cost = cost(command);
        self.admit_to_space(now, cost)?;
        // A full disk is no alarm: it passes by itself once there is space.
        if cost > 0 && self.is_disk_full() {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Whether this member's own quota has room for what costs so much. Sizes differ between members: as in etcd, it is
    /// the one that was asked that refuses, and whose alarm is raised.
    fn admit_to_space(&mut self, now: Duration, cost: u64) -> Result<(), Error> {
        if cost == 0 || self.machine.quota().allows(self.machine.index().size().in_use_bytes, cost) {
            return Ok(());
        }
        self.raise_no_space(now);
        Err(Error::NoSpace)
    }

    /// Whether the outbox has room for one more.
    fn admit_to_outbox(&self) -> Result<(), Error> {
        let full = self.outbox.len() >= OUTBOX_WRITES_MAX
            || self.outbox.bytes() >= OUTBOX_BYTES_MAX
            || self.applying.unapplied_commands() > UNAPPLIED_COMMANDS_MAX;
        if full { Err(Error::TooManyRequests) } else { Ok(()) }
    }

    /// Whether the disk is full and what was set aside must be kept for deletes and compaction.
    pub(super) fn is_disk_full(&self) -> bool {
        self.is_index_full() || (self.log.disk_full() && self.log.room_bytes() < self.config.log_reserve_bytes)
    }

    /// Raises this member's NOSPACE alarm through the log, or has the leader do so, once.
    pub(super) fn raise_no_space(&mut self, now: Duration) {
        if self.alarm_proposed || self.is_no_space_raised(self.config.member_id) {
            return;
        }
        self.alarm_proposed = true;
        if self.leads() {
            self.propose_no_space(now, Origin::Alarm, self.config.member_id);
        } else {
            let index = self.applying.published().index;
            self.alarm_asked = Some(AskedAlarm { since: now, index, again_at: now });
            self.expire_alarm(now);
        }
    }

    fn is_no_space_raised(&self, member_id: u64) -> bool {
        self.machine.alarms().list().contains(&Alarm { member_id, kind: AlarmKind::NoSpace })
    }

    fn propose_no_space(&mut self, now: Duration, origin: Origin, member_id: u64) {
        let alarm = Alarm { member_id, kind: AlarmKind::NoSpace };
        self.propose_own(now, [(origin, Command::AlarmActivate(alarm))]);
    }

    /// Another member's space had run out once it had applied `index`. It says so until its alarm shows.
    pub(super) fn handle_full(&mut self, now: Duration, from: u64, index: u64) {
        let is_late = index < self.alarm_disarmed;
        if self.is_ready() && self.raft.is_member(from) && !is_late && !self.is_no_space_raised(from) {
            self.propose_no_space(now, Origin::Check, from);
        }
    }

    /// Asks the leader for this member's alarm until it shows, or for as long as a request may take.
    pub(super) fn expire_alarm(&mut self, now: Duration) {
        let Some(AskedAlarm { since, index, again_at }) = self.alarm_asked.filter(|asked| asked.again_at <= now) else {
            return;
        };
        if since + self.config.request_timeout() <= now {
            self.alarm_asked = None;
            self.finish_alarm();
            return;
        }
        self.alarm_asked = Some(AskedAlarm { since, index, again_at: again_at.max(now) + QUESTION_RETRY });
        match self.raft.role() {
            Role::Leader => {
                self.alarm_asked = None;
                self.propose_no_space(now, Origin::Alarm, self.config.member_id);
            }
            Role::Follower(0) => {}
            Role::Follower(leader) => self.messages.push_back((leader, PeerMessage::Full { index })),
        }
    }

    pub(super) fn alarm_timeout(&self) -> Option<Duration> {
        self.alarm_asked.map(|asked| asked.again_at)
    }

    /// The leader was asked for this member's alarm, and it shows, or has been taken back.
    pub(super) fn follow_alarm(&mut self) {
        let is_over = |asked: AskedAlarm| asked.index < self.alarm_disarmed;
        if self.alarm_asked.is_some_and(|asked| is_over(asked) || self.is_no_space_raised(self.config.member_id)) {
            self.alarm_asked = None;
            self.finish_alarm();
        }
    }

    /// The proposed alarm is applied, or lost, or nobody knows when it will be; either way what it refused is answered.
    pub(super) fn finish_alarm(&mut self) {
        self.alarm_proposed = false;
        for refusee in std::mem::take(&mut self.refused) {
            match refusee {
                Refusee::Client(ticket) => self.answer(ticket, Err(Error::NoSpace)),
                Refusee::Member { id, refused } => self.send_refused(id, refused),
            }
        }
    }

    fn enqueue(
        &mut self,
        now: Duration,
        writes: &mut Writes,
        origin: Origin,
        principal: &Principal,
        command: &Command,
    ) {
        writes.builder.push(principal, command);
        match origin {
            Origin::Client(ticket) if writes.builder.is_sourced() => {
                writes.tickets.push((ticket, writes.builder.len()));
            }
            origin => writes.origins.push(origin),
        }
        if let Command::LeaseRevoke { id } = command {
            writes.leases.push(*id);
        }
        if writes.builder.len() >= ENTRY_BYTES_MAX || writes.builder.count() >= ENTRY_COMMANDS_MAX {
            let next = self.begin_writes(writes.asked);
            let full = std::mem::replace(writes, next);
            self.finish_writes(now, full);
        }
    }

    /// Proposes what a batch holds, or puts it into the outbox.
    pub(super) fn finish_writes(&mut self, now: Duration, writes: Writes) {
        if writes.builder.is_empty() {
            return;
        }
        let Writes { builder, origins, tickets, leases, asked } = writes;
        if builder.is_sourced() {
            self.outbox.push(builder, &tickets, leases, asked);
            return;
        }
        match self.raft.propose(builder.finish()) {
            Ok(proposed) => {
                let commands = u64::try_from(origins.len()).expect("a batch is small");
                self.pending_commands += commands;
                self.proposals.push_back(Proposal {
                    index: proposed.index,
                    term: proposed.term,
                    commands,
                    origins,
                    leases,
                    is_forwarded: false,
                    received: asked,
                    append: None,
                    written: None,
                    durable: None,
                    committed: None,
                });
            }
            Err(_) => {
                for origin in origins {
                    self.lost(now, origin, Error::NoLeader);
                }
            }
        }
    }

    /// A command will not take effect.
    pub(super) fn lost(&mut self, now: Duration, origin: Origin, error: Error) {
        match origin {
            Origin::Client(ticket) => self.answer(ticket, Err(error)),
            // The lessor proposes again by itself.
            Origin::Expiry | Origin::Member | Origin::Check => {}
            Origin::AutoCompaction => self.auto_compactor.handle_result(now, false),
            Origin::Alarm => self.finish_alarm(),
        }
    }

    /// Takes the proposal that an applied entry was, if it was one of this member's. Earlier ones, which a snapshot has
    /// skipped, are lost.
    pub(super) fn take_proposal(&mut self, now: Duration, index: u64, term: u64) -> Option<Proposal> {
        while let Some(front) = self.proposals.front() {
            if front.index > index {
                return None;
            }
            let proposal = self.proposals.pop_front().expect("the front was just seen");
            if proposal.index == index && proposal.term == term {
                self.pending_commands -= proposal.commands;
                return Some(proposal);
            }
            self.proposals_lost(now, [proposal]);
        }
        None
    }

    /// Proposals that this member will not see take effect, for what it knows.
    pub(super) fn proposals_lost(&mut self, now: Duration, proposals: impl IntoIterator<Item = Proposal>) {
        for proposal in proposals {
            self.pending_commands -= proposal.commands;
            for origin in proposal.origins {
                self.lost(now, origin, Error::LeaderChanged);
            }
        }
    }

    /// A log write was handed out: it takes everything that waited.
    pub(super) fn stamp_written(&mut self, now: Duration) {
        let unwritten = |proposal: &&mut Proposal| proposal.append.is_some() && proposal.written.is_none();
        for proposal in self.proposals.iter_mut().filter(unwritten) {
            proposal.written = Some(now);
            self.stages.queue.record(now.saturating_sub(proposal.received));
        }
    }

    /// Appends up to this number became durable.
    pub(super) fn stamp_durable(&mut self, now: Duration, durable: AppendNumber) {
        while let Some(Undurable { last, .. }) = self.undurable.pop_front_if(|undurable| undurable.number <= durable) {
            self.durable_index = last;
        }
        for proposal in self.proposals.iter_mut().filter(|proposal| proposal.durable.is_none()) {
            if proposal.append.is_none_or(|append| append > durable) {
                break;
            }
            proposal.durable = Some(now);
            let written = proposal.written.unwrap_or(proposal.received);
            self.stages.wal_write.record(now.saturating_sub(written));
        }
    }

    /// An entry is known to be committed.
    pub(super) fn stamp_committed(&mut self, now: Duration, index: u64) {
        let at = self.proposals.partition_point(|proposal| proposal.index < index);
        let Some(proposal) = self.proposals.get_mut(at).filter(|proposal| proposal.index == index) else { return };
        proposal.committed = Some(now);
        if let Some(durable) = proposal.durable
            && !self.raft.is_alone()
        {
            self.stages.replicate.record(now.saturating_sub(durable));
        }
    }
}

/// Entries go into the log: what stood there from the first one's index on is gone, and with it the proposals of an
/// earlier term that stood there. Another member may hold them still, so each may yet take effect, but not by this one.
pub(super) fn take_replaced(proposals: &mut VecDeque<Proposal>, entries: &[wal::Entry]) -> Vec<Proposal> {
    let Some(first) = entries.first() else { return Vec::new() };
    let from = proposals.partition_point(|proposal| proposal.index < first.index);
    let is_among = |proposal: &Proposal| {
        let at = usize::try_from(proposal.index - first.index).expect("a log's length fits");
        entries.get(at).is_some_and(|entry| entry.term == proposal.term)
    };
    // Proposals are in order of term, too.
    let kept = proposals.range(from..).position(is_among).map_or(proposals.len(), |at| from + at);
    proposals.drain(from..kept).collect()
}

/// An append that ends at `last` was handed to the log.
pub(super) fn note_append(proposals: &mut VecDeque<Proposal>, last: u64, number: AppendNumber) {
    for proposal in proposals.iter_mut().rev() {
        if proposal.append.is_some() {
            break;
        }
        if proposal.index <= last {
            proposal.append = Some(number);
        }
    }
}
