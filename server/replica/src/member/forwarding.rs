//! Writes between members: the outbox on its way to whoever leads, and other members' writes at the leader.
//!
//! What a leader refuses it must be sure never to have proposed, nor any leader before it: so it refuses only once it has
//! applied what earlier leaders left, it remembers what it took and refused of each member in its term, and a refusal
//! counts only in the term and from the leader whose turn it is. To take a write is always safe: apply ignores what was
//! seen.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::Member;
use super::writes::Proposal;
use crate::codec::{Batch, EntryBuilder, Item, Source, decode_entry};
use crate::envelope::Ticket;
use crate::error::Error;
use crate::limits::{FORWARD_PAUSE, HELD_BYTES_MAX, MESSAGES_MAX, REFUSED_RANGES_MAX, REMEMBERED_REFUSALS_MAX};
use crate::outbox::{Parcel, Write};
use crate::peer::{PeerMessage, Refusal, Refused, RefusedRange};
use crate::raft::{NotLeader, Role};
use crate::request::Command;
use crate::sessions::Record;
use crate::validate::{Limits, check_command};

/// Who is told of a refusal that waits for the alarm about it.
#[derive(Debug)]
pub(super) enum Refusee {
    /// A client of this member.
    Client(Ticket),
    /// Another member.
    Member { id: u64, refused: Refused },
}

/// What a leader did in its term with the writes of another member.
#[derive(Debug, Default)]
struct Taken {
    /// Up to where they were taken or refused.
    record: Record,
    /// Those that were refused, oldest first.
    refused: VecDeque<RefusedRange>,
}

/// What goes between members beside Raft.
#[derive(Debug, Default)]
pub(super) struct Forwarding {
    /// By member, since this member leads.
    taken: BTreeMap<u64, Taken>,
    /// Forwarded writes that can be dealt with later.
    held: VecDeque<(u64, Bytes)>,
    held_bytes: usize,
    /// Nothing is sent to the leader before.
    paused_until: Duration,
    /// Everything is sent again then, unless something was applied before.
    resend_at: Option<Duration>,
}

impl Forwarding {
    /// Leadership or the leader changed.
    pub(super) fn reset(&mut self) {
        *self = Forwarding::default();
    }

    pub(super) fn poll_timeout(&self, has_unsent: bool) -> Option<Duration> {
        let paused = (has_unsent && self.paused_until > Duration::ZERO).then_some(self.paused_until);
        self.resend_at.into_iter().chain(paused).min()
    }
}

impl Member {
    /// Hands the outbox's writes to the leader. True when something was proposed here.
    pub(super) fn flush_writes(&mut self, now: Duration) -> bool {
        if !self.outbox.has_unsent() || now < self.forwarding.paused_until {
            return false;
        }
        self.forwarding.paused_until = Duration::ZERO;
        match self.raft.role() {
            Role::Leader => self.raft.transferee().is_none() && self.propose_parcels(now),
            Role::Follower(0) => false,
            Role::Follower(leader) => {
                while self.messages.len() < MESSAGES_MAX / 2
                    && let Some(parcel) = self.outbox.take_parcel()
                {
                    self.messages.push_back((leader, PeerMessage::Forward(parcel.data)));
                }
                self.forwarding.resend_at.get_or_insert(now + self.config.election_timeout);
                false
            }
        }
    }

    fn propose_parcels(&mut self, now: Duration) -> bool {
        let mut proposed = false;
        while let Some(Parcel { data, asked, count, leases, .. }) = self.outbox.take_parcel() {
            let look_up = || revoked_leases(&decode_entry(&data).expect("it was encoded here").items);
            let leases = leases.unwrap_or_else(look_up);
            if self.propose_sourced(data, count, leases, asked, false).is_err() {
                self.outbox.rewind();
                self.forwarding.paused_until = now + FORWARD_PAUSE;
                break;
            }
            proposed = true;
        }
        proposed
    }

    /// Proposes an entry that says where its commands come from.
    fn propose_sourced(
        &mut self,
        data: Bytes,
        commands: u64,
        leases: Vec<i64>,
        received: Duration,
        is_forwarded: bool,
    ) -> Result<(), NotLeader> {
        let proposed = self.raft.propose(data)?;
        self.pending_commands += commands;
        self.proposals.push_back(Proposal {
            index: proposed.index,
            term: proposed.term,
            commands,
            origins: Vec::new(),
            leases,
            is_forwarded,
            received,
            append: None,
            written: None,
            durable: None,
            committed: None,
        });
        Ok(())
    }

    /// Writes of another member's clients.
    pub(super) fn handle_forward(&mut self, now: Duration, from: u64, data: Bytes) {
        let Some((source, items)) = self.check_forward(from, &data) else { return };
        if !self.leads() {
            let range = range_of(&source, items.len(), Refusal::NotLeader);
            self.send_refused(from, Refused { session: source.session, term: self.raft.term(), ranges: vec![range] });
            return;
        }
        if self.raft.transferee().is_some() {
            self.hold(from, data);
            return;
        }
        let count = u64::try_from(items.len()).expect("a batch is small");
        let seen = self.seen_of(from, &source, count);
        if seen == count {
            self.repeat_refusals(from, &source, count);
            return;
        }
        let mut verdicts = Vec::with_capacity(items.len());
        for (waiting, item) in (0..).zip(&items) {
            verdicts.push(if waiting < seen { Ok(()) } else { self.admit(now, waiting, &item.command) });
        }
        if verdicts.iter().all(Result::is_ok) && seen == 0 {
            if self.propose_sourced(data, count, revoked_leases(&items), now, true).is_ok() {
                self.note_taken(from, &source, count, &[]);
            }
            return;
        }
        if verdicts.iter().any(Result::is_err) && !self.is_ready() {
            self.hold(from, data);
            return;
        }
        self.take_some(now, from, &source, &items, seen, &verdicts);
    }

    /// What a member forwards, if it is what it may be.
    fn check_forward(&self, from: u64, data: &Bytes) -> Option<(Source, Vec<Item>)> {
        let Batch { keyspace, source, items } = decode_entry(data).ok()?;
        let source = source.filter(|source| source.member_id == from && source.first > 0)?;
        let count = u64::try_from(items.len()).ok().filter(|count| *count > 0)?;
        source.first.checked_add(count)?;
        let limits = Limits { max_txn_ops: usize::MAX };
        // Changes of members' records go another way, where they are checked.
        let sound = items
            .iter()
            .all(|item| check_command(&item.command, &limits).is_ok() && !matches!(item.command, Command::Member(_)));
        (keyspace == self.config.keyspace && self.raft.is_member(from) && sound).then_some((source, items))
    }

    /// How many of a batch's writes need nothing any more: they took effect, are in the log of this term, or are refused.
    fn seen_of(&self, from: u64, source: &Source, count: u64) -> u64 {
        let taken = self.forwarding.taken.get(&from).map_or(Record::default(), |taken| taken.record);
        taken.seen(source, count).max(self.machine.sessions().record(from).seen(source, count))
    }

    /// Takes some of a batch's writes and refuses the others.
    fn take_some(
        &mut self,
        now: Duration,
        from: u64,
        source: &Source,
        items: &[Item],
        seen: u64,
        verdicts: &[Result<(), Error>],
    ) {
        let mut ranges: Vec<RefusedRange> = Vec::new();
        let mut run: Vec<&Item> = Vec::new();
        let mut sequence = source.first;
        for (item, verdict) in items.iter().zip(verdicts) {
            match verdict {
                Ok(()) if sequence - source.first >= seen => run.push(item),
                Ok(()) => {}
                Err(error) => {
                    self.propose_run(now, source, sequence, &std::mem::take(&mut run));
                    note_refusal(&mut ranges, sequence, reason_of(*error));
                }
            }
            sequence += 1;
        }
        self.propose_run(now, source, sequence, &run);
        let count = u64::try_from(items.len()).expect("a batch is small");
        self.note_taken(from, source, count, &ranges);
        let no_space = ranges.iter().any(|range| range.reason == Refusal::NoSpace);
        let refused = Refused { session: source.session, term: self.raft.term(), ranges };
        if no_space && self.alarm_proposed {
            self.refused.push(Refusee::Member { id: from, refused });
        } else if !refused.ranges.is_empty() {
            self.send_refused(from, refused);
        }
    }

    /// Proposes consecutive writes of a batch, which end before the number `end`.
    fn propose_run(&mut self, now: Duration, source: &Source, end: u64, items: &[&Item]) {
        if items.is_empty() {
            return;
        }
        let count = u64::try_from(items.len()).expect("a batch is small");
        let mut builder = EntryBuilder::sourced(self.config.keyspace);
        for item in items {
            builder.push(&item.principal, &item.command);
        }
        let data = builder.finish_with(Source { first: end - count, ..*source });
        let leases = items.iter().filter_map(|item| revoked_lease(item)).collect();
        // Should this member lead no more, whoever sent it hears of the next leader and sends it there.
        let _ = self.propose_sourced(data, count, leases, now, true);
    }

    fn note_taken(&mut self, from: u64, source: &Source, count: u64, refused: &[RefusedRange]) {
        let taken = self.forwarding.taken.entry(from).or_default();
        let record = Record { session: source.session, last: source.first + (count - 1) };
        if record.session > taken.record.session {
            taken.refused.clear();
        }
        taken.record = taken.record.max(record);
        taken.refused.extend(refused);
        let beyond = taken.refused.len().saturating_sub(REMEMBERED_REFUSALS_MAX);
        taken.refused.drain(..beyond);
    }

    /// Tells a member once more what was refused of a batch that it sends again.
    fn repeat_refusals(&mut self, from: u64, source: &Source, count: u64) {
        let Some(taken) = self.forwarding.taken.get(&from) else { return };
        let last = source.first + (count - 1);
        let within = |range: &&RefusedRange| range.first <= last && range.last >= source.first;
        let ranges: Vec<RefusedRange> = taken.refused.iter().filter(within).copied().collect();
        if taken.record.session == source.session && !ranges.is_empty() {
            self.send_refused(from, Refused { session: source.session, term: self.raft.term(), ranges });
        }
    }

    pub(super) fn send_refused(&mut self, to: u64, refused: Refused) {
        assert!(refused.ranges.len() <= REFUSED_RANGES_MAX, "a batch has no more writes");
        self.messages.push_back((to, PeerMessage::Refused(refused)));
    }

    /// Keeps a batch until leadership is settled. What finds no room is sent again.
    fn hold(&mut self, from: u64, data: Bytes) {
        if self.forwarding.held_bytes + data.len() <= HELD_BYTES_MAX {
            self.forwarding.held_bytes += data.len();
            self.forwarding.held.push_back((from, data));
        }
    }

    /// Deals with batches that were held, once that can be done.
    pub(super) fn take_held(&mut self, now: Duration) {
        if self.forwarding.held.is_empty() || !self.is_ready() || self.raft.transferee().is_some() {
            return;
        }
        self.forwarding.held_bytes = 0;
        for (from, data) in std::mem::take(&mut self.forwarding.held) {
            self.handle_forward(now, from, data);
        }
    }

    /// The leader does not take some of this member's writes.
    pub(super) fn handle_refused(&mut self, now: Duration, from: u64, refused: Refused) {
        let Refused { session, term, ranges } = refused;
        if session != self.outbox.session() {
            return;
        }
        for RefusedRange { first, last, reason } in ranges {
            let error = match reason {
                Refusal::NotLeader => {
                    // The word comes late, or the leader's first message does.
                    if self.raft.role() == Role::Follower(from) {
                        self.outbox.rewind();
                        self.forwarding.paused_until = now + FORWARD_PAUSE;
                    }
                    continue;
                }
                Refusal::NoSpace => Error::NoSpace,
                Refusal::TooManyRequests => Error::TooManyRequests,
            };
            // Another leader may have taken the writes since.
            if term != self.raft.term() || self.raft.role() != Role::Follower(from) {
                return;
            }
            for write in self.outbox.remove(first, last) {
                self.answer(write.ticket, Err(error));
            }
        }
    }

    /// The writes of an entry are applied and published: takes those out that clients of this member wait for. `first`
    /// and `count` name those that took effect now.
    pub(super) fn take_own(&mut self, now: Duration, source: &Source, count: u64) -> Vec<Write> {
        if source.member_id != self.config.member_id || count == 0 {
            return Vec::new();
        }
        if source.session != self.outbox.session() {
            self.renew_session();
            return Vec::new();
        }
        let done = self.outbox.applied(source.first, count);
        if !done.is_empty() {
            let waits = !self.outbox.is_empty() && !self.leads();
            self.forwarding.resend_at = waits.then_some(now + self.config.election_timeout);
        }
        done
    }

    /// Begins a new session if another process of this member, with a clock ahead of this one's, has had a newer one:
    /// nothing of ours would take effect.
    fn renew_session(&mut self) {
        let record = self.machine.sessions().record(self.config.member_id);
        if record.session > self.outbox.session() {
            self.outbox.renew(next_session(self.config.boot.saturating_add(1), record.session));
        }
    }

    /// This member's state was replaced by a newer one: whether its writes took effect is known, but not how.
    pub(super) fn state_replaced(&mut self) {
        let record = self.machine.sessions().record(self.config.member_id);
        if record.session != self.outbox.session() {
            self.renew_session();
            return;
        }
        for write in self.outbox.remove(1, record.last) {
            self.answer(write.ticket, Err(Error::LeaderFailedTimeout));
        }
        self.outbox.rewind();
    }

    /// Sends again what may be lost, and answers what has waited too long.
    pub(super) fn expire_writes(&mut self, now: Duration) {
        if self.forwarding.resend_at.is_some_and(|at| at <= now) {
            self.forwarding.resend_at = None;
            self.resend_writes();
        }
        let Some(by) = now.checked_sub(self.config.request_timeout()) else { return };
        if self.outbox.oldest().is_none_or(|oldest| oldest > by) {
            return;
        }
        for write in self.outbox.expire(by) {
            let error = self.timeout_error(write.asked);
            self.answer(write.ticket, Err(error));
        }
    }

    /// Everything that is not applied goes to the leader again, if that is another member.
    pub(super) fn resend_writes(&mut self) {
        if !self.leads() {
            self.outbox.rewind();
        }
    }

    pub(super) fn writes_timeout(&self) -> Option<Duration> {
        let expiry = self.outbox.oldest().map(|oldest| oldest + self.config.request_timeout());
        self.forwarding.poll_timeout(self.outbox.has_unsent()).into_iter().chain(expiry).min()
    }
}

/// The number of a new session, larger than `before`, for a process that drew `boot`. Two processes whose clocks both
/// went back are still told apart, all but surely.
pub(super) fn next_session(boot: u64, before: u64) -> u64 {
    if boot > before { boot } else { before + 1 + boot % 4_096 }
}

fn revoked_leases(items: &[Item]) -> Vec<i64> {
    items.iter().filter_map(revoked_lease).collect()
}

fn revoked_lease(item: &Item) -> Option<i64> {
    match item.command {
        Command::LeaseRevoke { id } => Some(id),
        _ => None,
    }
}

fn range_of(source: &Source, count: usize, reason: Refusal) -> RefusedRange {
    let count = u64::try_from(count).expect("a batch is small");
    RefusedRange { first: source.first, last: source.first + (count - 1), reason }
}

fn note_refusal(ranges: &mut Vec<RefusedRange>, sequence: u64, reason: Refusal) {
    match ranges.last_mut().filter(|range| range.last + 1 == sequence && range.reason == reason) {
        Some(range) => range.last = sequence,
        None => ranges.push(RefusedRange { first: sequence, last: sequence, reason }),
    }
}

fn reason_of(error: Error) -> Refusal {
    match error {
        Error::NoSpace => Refusal::NoSpace,
        _ => Refusal::TooManyRequests,
    }
}
