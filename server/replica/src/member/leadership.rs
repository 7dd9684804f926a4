//! Who leads: changes of leadership, handing it over, links to other members, a disk that stalls.

use core::time::Duration;
use std::collections::BTreeMap;

use super::{Effect, Member, Notice, Outgoing};
use crate::envelope::{Asker, Response, Ticket};
use crate::error::Error;
use crate::limits::{FULL_DISK_HANDOVER_RETRY, LEADERLESS_ELECTIONS};
use crate::raft::Role;

/// Leadership on its way to another member.
#[derive(Debug)]
struct Transfer {
    target: u64,
    /// Given up then.
    by: Duration,
    waiters: Vec<Ticket>,
}

/// What is known of leaders and links.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    /// When the leader at hand was first heard of.
    since: Option<Duration>,
    /// Since when none is known, if none is.
    lost: Option<Duration>,
    /// Since when the link to each member works; none where it does not. Members that nothing was said of count as linked.
    links: BTreeMap<u64, Option<Duration>>,
    transfer: Option<Transfer>,
    /// The log has stalled: leadership is given up without an heir then.
    step_down_at: Option<Duration>,
    /// The disk is full: nobody is asked again to lead instead before.
    next_full_handover: Duration,
    /// When the wait of a stop for another leader ends.
    handover_by: Option<Duration>,
    /// Leadership was proved at this time: a quorum answered a question asked then.
    pub(super) proved_at: Option<Duration>,
}

impl Leadership {
    /// No leader is known.
    pub(super) fn new(now: Duration) -> Leadership {
        Leadership { lost: Some(now), ..Leadership::default() }
    }
}

impl Member {
    /// The leader's id; 0 while none is known.
    pub fn leader(&self) -> u64 {
        match self.raft.role() {
            Role::Leader => self.raft.id(),
            Role::Follower(leader) => leader,
        }
    }

    /// Whether no leader has been known for so long that streams which need one end, as in etcd.
    pub fn is_leaderless(&self, now: Duration) -> bool {
        let patience = LEADERLESS_ELECTIONS * self.config.election_timeout;
        self.leadership.lost.is_some_and(|lost| now >= lost + patience)
    }

    /// The link to a member works.
    pub fn handle_peer_up(&mut self, now: Duration, id: u64) {
        self.leadership.links.insert(id, Some(now));
        self.raft.handle_link();
        self.note_peer_up(now, id);
        self.note_peer_up_for_repair(now, id);
        self.sender.handle_peer_up(now, id);
        // What was under way when the link went down may be lost.
        if self.raft.role() == Role::Follower(id) {
            self.resend_writes();
            self.ask_again(now);
        }
        self.pump(now);
    }

    /// The link to a member does not work any more; what was sent last may be lost.
    pub fn handle_peer_down(&mut self, now: Duration, id: u64) {
        self.leadership.links.insert(id, None);
        self.note_peer_down(id);
        self.raft.report_unreachable(id);
        self.pump(now);
    }

    /// The process of a member has died. If it led, another leader is looked for at once.
    pub fn handle_leader_gone(&mut self, now: Duration, id: u64) {
        self.raft.forget_leader(now, id);
        self.pump(now);
    }

    /// The role changed, or the leader.
    pub(super) fn role_changed(&mut self, now: Duration, role: Role) {
        self.leadership.proved_at = None;
        if role == Role::Follower(0) {
            self.leadership.since = None;
            self.leadership.lost.get_or_insert(now);
        } else {
            (self.leadership.since, self.leadership.lost) = (Some(now), None);
        }
        self.forwarding.reset();
        self.outbox.rewind();
        match role {
            // raft-rs appends an entry of the new term as it becomes leader; nothing was appended since.
            Role::Leader => self.term_start = Some(self.log.last().0),
            Role::Follower(_) => {
                self.term_start = None;
                // What was refused will never be done, whatever becomes of the alarm.
                self.finish_alarm();
                for (id, asker) in self.machine.lessor_mut().demote() {
                    self.pass_on_keep_alive(now, id, asker);
                }
            }
        }
        self.leader_changed_for_reads();
        self.leader_changed_for_questions(now);
        // What this member's clients wrote goes to the next leader before its own removal does: it hears of nothing after
        // that.
        self.flush_writes(now);
        self.leader_of_changes_changed(now, role == Role::Leader);
    }

    /// Hands leadership to another member on a client's behalf.
    pub(super) fn move_leader(&mut self, now: Duration, ticket: Ticket, target: u64) {
        if !self.leads() {
            self.answer(ticket, Err(Error::NotLeader));
        } else if !self.raft.membership().voters.contains(&target) {
            self.answer(ticket, Err(Error::BadLeaderTransferee));
        } else if target == self.config.member_id {
            self.answer(ticket, Ok(Response::MoveLeader));
        } else {
            self.begin_transfer(now, target);
            let transfer = self.leadership.transfer.as_mut().expect("just begun");
            transfer.waiters.push(ticket);
        }
    }

    pub(super) fn begin_transfer(&mut self, now: Duration, target: u64) {
        let waiters = match self.leadership.transfer.take() {
            Some(transfer) if transfer.target == target => transfer.waiters,
            earlier => {
                self.end_transfer(earlier, Err(Error::LeaderTransferTimeout));
                Vec::new()
            }
        };
        self.leadership.transfer = Some(Transfer { target, by: now + self.config.election_timeout, waiters });
        self.raft.transfer(target);
    }

    fn end_transfer(&mut self, transfer: Option<Transfer>, result: Result<Response, Error>) {
        for ticket in transfer.into_iter().flat_map(|transfer| transfer.waiters) {
            self.answer(ticket, result.clone());
        }
    }

    /// Looks how far a transfer is.
    pub(super) fn follow_transfer(&mut self, now: Duration) {
        let Some(transfer) = &self.leadership.transfer else { return };
        let result = match self.raft.role() {
            Role::Follower(leader) if leader == transfer.target => Ok(Response::MoveLeader),
            // raft-rs gave up. What was held meanwhile goes on.
            Role::Leader if self.raft.transferee().is_none() => Err(Error::LeaderTransferTimeout),
            _ if now >= transfer.by => Err(Error::LeaderTransferTimeout),
            _ => return,
        };
        let transfer = self.leadership.transfer.take();
        self.end_transfer(transfer, result);
    }

    /// Hands leadership over before this process stops. True once it is done, or there is nobody to take it.
    pub(super) fn hand_over_for_stop(&mut self, now: Duration) -> bool {
        if !self.leads() || self.raft.is_alone() {
            return true;
        }
        let by = *self.leadership.handover_by.get_or_insert(now + self.config.election_timeout);
        if now >= by {
            return true;
        }
        let Some(target) = self.raft.best_transferee() else { return true };
        if self.leadership.transfer.is_none() && self.raft.transferee().is_none() {
            self.begin_transfer(now, target);
            self.pump(now);
        }
        false
    }

    /// A leader whose log has stalled makes room for another: it may hold its quorum and can't commit by itself, and
    /// everybody waits for it. So does one whose disk is full, for it refuses what the others could take.
    pub(super) fn watch_disk(&mut self, now: Duration) {
        self.watch_space(now);
        let patience = self.config.election_timeout;
        let stalled = self.undurable.front().map(|undurable| now.saturating_sub(undurable.since));
        let counts = self.counts_in_elections();
        self.raft.set_may_campaign(counts && stalled.is_none_or(|stalled| stalled < patience / 2));
        let Some(stalled) = stalled.filter(|stalled| *stalled >= patience && self.leads() && !self.raft.is_alone())
        else {
            self.leadership.step_down_at = None;
            return;
        };
        match self.leadership.step_down_at {
            None => {
                self.leadership.step_down_at = Some(now + patience / 2);
                let target = self.raft.best_transferee();
                self.notice(Notice::LogStalled { stalled, target });
                if let Some(target) = target {
                    self.begin_transfer(now, target);
                }
            }
            Some(at) if at <= now => {
                self.leadership.step_down_at = None;
                self.notice(Notice::SteppedDown { stalled });
                self.raft.step_down();
            }
            Some(_) => {}
        }
    }

    /// The most that another member's disk is full as well: then leadership goes round, and not often.
    fn watch_space(&mut self, now: Duration) {
        if now < self.leadership.next_full_handover || !self.leads() || self.raft.is_alone() || !self.is_disk_full() {
            return;
        }
        let Some(target) = self.raft.best_transferee().filter(|_| self.raft.transferee().is_none()) else { return };
        self.leadership.next_full_handover = now + FULL_DISK_HANDOVER_RETRY;
        self.notice(Notice::DiskFull { target });
        self.begin_transfer(now, target);
    }

    /// Raft's ticks see to everything else that this file does by time.
    pub(super) fn leadership_timeout(&self) -> Option<Duration> {
        self.leadership.transfer.as_ref().map(|transfer| transfer.by)
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        self.out.push_back(Outgoing { effect: Effect::Notice(notice), published: None });
    }

    /// Why a request that began at `asked` was not done in time, in the words of etcd.
    pub(super) fn timeout_error(&self, asked: Duration) -> Error {
        if let Some(since) = self.leadership.since {
            let lost = since.saturating_sub(2 * self.config.election_timeout);
            if lost < asked && asked < since {
                return Error::LeaderFailedTimeout;
            }
        }
        let linked = match self.raft.role() {
            Role::Follower(0) => true,
            Role::Follower(leader) => self.is_linked_since(leader, asked),
            Role::Leader => {
                let voters = &self.raft.membership().voters;
                let linked = voters.iter().filter(|id| **id == self.raft.id() || self.is_linked_since(**id, asked));
                linked.count() > voters.len() / 2
            }
        };
        if linked { Error::Timeout } else { Error::ConnectionLostTimeout }
    }

    /// Whether the link to a member works; none if nothing was said of it.
    pub(super) fn link(&self, id: u64) -> Option<bool> {
        self.leadership.links.get(&id).map(Option::is_some)
    }

    fn is_linked_since(&self, id: u64, asked: Duration) -> bool {
        self.leadership.links.get(&id).is_none_or(|up| up.is_some_and(|since| since <= asked))
    }

    /// Whether a quorum has said so lately that no other leader can have been elected since.
    pub(super) fn is_proved(&self, now: Duration) -> bool {
        let lasts = crate::limits::PROOF_HEARTBEATS * self.config.heartbeat_interval;
        let fresh =
            self.leadership.proved_at.is_some_and(|proved| now < proved + lasts.min(self.config.election_timeout / 2));
        fresh && self.leads() && self.is_ready() && self.raft.transferee().is_none()
    }

    /// Passes a keep-alive on that this member can't answer, because it does not lead any more.
    pub(super) fn pass_on_keep_alive(&mut self, now: Duration, id: i64, asker: Asker) {
        self.pass_on(now, crate::peer::What::KeepAlive { id }, asker);
    }
}
