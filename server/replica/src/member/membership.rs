//! Changes of the members: who asks for them, who makes them, and what this member says of itself.
//!
//! The member that is asked checks what depends on its own connections. The leader checks the rest, makes one change
//! after the other, and refuses with a message. Nobody is told of success: a change names who asked, and that member
//! answers when it has applied the change itself, whoever proposed it and however the leader changed meanwhile.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::writes::Origin;
use super::{Effect, Member, Outgoing};
use crate::envelope::{Response, Ticket};
use crate::error::Error;
use crate::limits::{MEMBER_CHANGE_WAIT_MAX, MEMBER_CHANGES_MAX, PUBLISH_RETRY, READ_INDEX_RETRY};
use crate::members::rules::{self, Connectivity};
use crate::members::{ChangeAction, ChangeOrigin, MemberChange, MemberMessage, Members, urls_fit};
use crate::peer::PeerMessage;
use crate::raft::Role;
use crate::request::{Command, Outcome, Reply};

/// A change that this member was asked for.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    since: Duration,
    change: MemberChange,
    /// The leader that has it; 0: none.
    sent_to: u64,
    /// How many leaders were given it.
    sent_count: u32,
    /// When it is passed on if nobody has it.
    next_try: Duration,
}

impl Waiting {
    fn may_be_sent(&self) -> bool {
        self.sent_count == 0 || self.change.of_raft().is_some()
    }
}

/// Making this member the only one of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forcing {
    /// What the log held at the start is applied first, up to this index. Changes of membership in it do not count.
    Replaying(u64),
    /// The new membership is on its way to the disk.
    Saving,
}

/// What a member knows about changes of the members.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// What this member was asked for, by number.
    waiting: BTreeMap<u64, Waiting>,
    next_sequence: u64,
    /// On the leader: changes that wait for their turn.
    queued: VecDeque<MemberChange>,
    /// Since when each peer has been connected.
    connected: BTreeMap<u64, Duration>,
    /// What this member says of itself is not said again before.
    next_publish: Duration,
    forcing: Option<Forcing>,
    /// On a leader that is to be removed: another member was asked to lead first.
    handover_tried: bool,
    /// The shell was told that this member was removed.
    removal_told: bool,
}

impl Changes {
    pub(super) fn new(forced_from: Option<u64>) -> Changes {
        Changes { forcing: forced_from.map(Forcing::Replaying), ..Changes::default() }
    }

    pub(super) fn is_forcing(&self) -> bool {
        self.forcing.is_some()
    }

    /// Whether an entry's change of membership does not count because this member is about to be the only one.
    pub(super) fn passes_over(&self, index: u64) -> bool {
        matches!(self.forcing, Some(Forcing::Replaying(until)) if index <= until)
    }
}

impl Member {
    /// The members as of what is applied.
    pub fn members(&self) -> &Members {
        self.machine.members()
    }

    /// Whether clients may be served: there is a leader, and this member's record says what it says of itself.
    pub fn may_serve(&self) -> bool {
        let has_leader = match self.raft.role() {
            Role::Leader => self.is_ready(),
            Role::Follower(leader) => leader != 0,
        };
        has_leader && self.is_published() && !self.changes.is_forcing()
    }

    /// Whether this member knows that it is one, and is not being made the only one: what needs no leader may be served.
    pub fn is_settled(&self) -> bool {
        self.members().get(self.raft.id()).is_some() && !self.changes.is_forcing()
    }

    /// A peer's connection stands.
    pub(super) fn note_peer_up(&mut self, now: Duration, id: u64) {
        self.changes.connected.entry(id).or_insert(now);
    }

    /// A peer's connection is gone.
    pub(super) fn note_peer_down(&mut self, id: u64) {
        self.changes.connected.remove(&id);
    }

    /// A client asks for a change of the members.
    pub(super) fn change_members(&mut self, now: Duration, ticket: Ticket, member_id: u64, action: ChangeAction) {
        if let Err(error) = self.may_change(now, member_id, &action) {
            self.answer(ticket, Err(error));
            return;
        }
        self.changes.next_sequence += 1;
        let sequence = self.changes.next_sequence;
        let origin = ChangeOrigin { member_id: self.raft.id(), boot: self.config.boot, sequence };
        let change = MemberChange { origin, member_id, action };
        let waiting = Waiting { ticket, since: now, change, sent_to: 0, sent_count: 0, next_try: now };
        self.changes.waiting.insert(sequence, waiting);
        self.pass_on_changes(now);
    }

    fn may_change(&self, now: Duration, id: u64, action: &ChangeAction) -> Result<(), Error> {
        if self.changes.waiting.len() >= MEMBER_CHANGES_MAX {
            return Err(Error::TooManyRequests);
        }
        let connectivity = Connectivity { own_id: self.raft.id(), since: &self.changes.connected, now };
        let members = self.members();
        let strict = self.config.strict_reconfig;
        match action {
            ChangeAction::AddVoter { peer_urls }
            | ChangeAction::AddLearner { peer_urls }
            | ChangeAction::Update { peer_urls }
                if !urls_fit(peer_urls) =>
            {
                Err(Error::BadMemberUrls)
            }
            ChangeAction::AddVoter { .. } if strict => rules::may_add(members, false, &connectivity),
            ChangeAction::AddLearner { .. } if strict => rules::may_add(members, true, &connectivity),
            ChangeAction::Remove if strict => rules::may_remove(members, id, &connectivity),
            _ => Ok(()),
        }
    }

    /// Gives the leader what it does not have yet. It may get the same change twice, from two terms: an id is added,
    /// promoted and removed once, so the second does nothing. What could do harm when it is repeated is sent once.
    fn pass_on_changes(&mut self, now: Duration) {
        let leader = match self.raft.role() {
            Role::Leader => self.raft.id(),
            Role::Follower(leader) => leader,
        };
        if leader == 0 {
            return;
        }
        let mut given = Vec::new();
        for waiting in self.changes.waiting.values_mut() {
            if waiting.sent_to != leader && waiting.next_try <= now && waiting.may_be_sent() {
                waiting.sent_to = leader;
                waiting.sent_count += 1;
                given.push(waiting.change.clone());
            }
        }
        for change in given {
            if self.leads() {
                self.take_change(now, change);
            } else {
                self.send_member_message(leader, MemberMessage::Change(change));
            }
        }
        self.propose_changes(now);
    }

    /// A message about changes of the members.
    pub(super) fn handle_member_message(&mut self, now: Duration, from: u64, message: MemberMessage) {
        match message {
            MemberMessage::Change(change) if self.members().get(from).is_none() || change.origin.member_id != from => {}
            MemberMessage::Change(change) if self.leads() => {
                self.take_change(now, change);
                self.propose_changes(now);
            }
            MemberMessage::Change(change) => self.refuse_change(now, change.origin, Error::NoLeader),
            MemberMessage::Refused { boot, sequence, error } if boot == self.config.boot => {
                self.change_refused(now, sequence, error);
            }
            MemberMessage::Refused { .. } => {}
        }
    }

    /// The leader takes a change, unless it can't be made.
    fn take_change(&mut self, now: Duration, change: MemberChange) {
        let result = match change.action {
            _ if self.changes.queued.len() >= MEMBER_CHANGES_MAX => Err(Error::TooManyRequests),
            ChangeAction::Promote => self.may_promote(change.member_id),
            _ => Ok(()),
        };
        match result {
            Ok(()) => self.changes.queued.push_back(change),
            Err(error) => self.refuse_change(now, change.origin, error),
        }
    }

    fn may_promote(&self, id: u64) -> Result<(), Error> {
        let matched = self.raft.matched(id).ok_or(Error::MemberNotFound)?;
        let own = self.raft.matched(self.raft.id()).unwrap_or(0);
        rules::is_caught_up(matched, own)?;
        if self.config.strict_reconfig { rules::may_promote(self.members()) } else { Ok(()) }
    }

    /// Proposes what has waited for its turn: after what is applied by then, and one change of Raft's membership at a
    /// time.
    pub(super) fn propose_changes(&mut self, now: Duration) {
        while !self.changes.queued.is_empty() && self.is_ready() && !self.raft.has_pending_change() {
            if self.raft.transferee().is_some() || self.hands_over_first(now) {
                return;
            }
            let change = self.changes.queued.pop_front().expect("the queue was just seen not to be empty");
            let origin = change.origin;
            if let Err(error) = self.check_change(&change) {
                self.refuse_change(now, origin, error);
                continue;
            }
            let proposed = match change.of_raft() {
                Some(raft) => self.raft.propose_change(change.to_bytes(), raft).map(drop),
                None => {
                    self.propose_own(now, [(Origin::Member, Command::Member(change))]);
                    Ok(())
                }
            };
            if proposed.is_err() {
                self.refuse_change(now, origin, Error::NoLeader);
            }
        }
    }

    /// A leader that is to be removed has another voter lead first, who then carries the removal out: whoever asked
    /// sends it there. So nobody is without a leader meanwhile. If no other takes over in time, this one removes itself,
    /// and the others elect.
    fn hands_over_first(&mut self, now: Duration) -> bool {
        let removes_itself = self.changes.queued.front().is_some_and(|change| {
            change.action == ChangeAction::Remove
                && change.member_id == self.raft.id()
                && self.check_change(change).is_ok()
        });
        if !removes_itself || std::mem::replace(&mut self.changes.handover_tried, true) {
            return false;
        }
        let Some(target) = self.raft.best_transferee() else { return false };
        self.begin_transfer(now, target);
        true
    }

    fn check_change(&self, change: &MemberChange) -> Result<(), Error> {
        self.members().check(change)?;
        match change.action {
            ChangeAction::AddLearner { .. } => rules::has_room_for_learner(self.members(), self.config.learners_max),
            _ => Ok(()),
        }
    }

    fn refuse_change(&mut self, now: Duration, origin: ChangeOrigin, error: Error) {
        let ChangeOrigin { member_id, boot, sequence } = origin;
        // What a member says of itself is not waited for.
        if sequence == 0 {
            return;
        }
        if member_id != self.raft.id() {
            self.send_member_message(member_id, MemberMessage::Refused { boot, sequence, error });
        } else {
            self.change_refused(now, sequence, error);
        }
    }

    fn change_refused(&mut self, now: Duration, sequence: u64, error: Error) {
        let Some(waiting) = self.changes.waiting.get_mut(&sequence) else { return };
        let may_be_done = matches!(error, Error::MemberExists | Error::MemberNotFound | Error::MemberNotLearner);
        if error == Error::NoLeader {
            waiting.sent_to = 0;
            waiting.next_try = now + READ_INDEX_RETRY;
        } else if waiting.sent_count == 1 || !may_be_done {
            let waiting = self.changes.waiting.remove(&sequence).expect("it was just found");
            self.answer(waiting.ticket, Err(error));
        }
        // Otherwise an earlier leader may have made the change, which will be seen when it is applied here.
    }

    /// A change is applied and published. Answers it if this member was asked for it.
    pub(super) fn change_applied(&mut self, origin: ChangeOrigin, result: Result<Reply, Error>) {
        if origin.member_id != self.raft.id() || origin.boot != self.config.boot {
            return;
        }
        let Some(waiting) = self.changes.waiting.remove(&origin.sequence) else { return };
        let members = self.machine.members().clone();
        self.answer(waiting.ticket, result.map(|_| Response::Members(members)));
    }

    pub(super) fn waits_for_changes(&self) -> bool {
        !self.changes.waiting.is_empty()
    }

    /// Applies a change of membership, to the records and to Raft alike.
    pub(super) fn apply_member_change(&mut self, index: u64, change: &MemberChange) -> Result<Reply, Error> {
        if !self.changes.passes_over(index) {
            self.machine.change_member(change)?;
            if let Some(raft) = change.of_raft() {
                self.raft.apply_change(raft);
            }
            self.raft.set_removed(self.machine.members().removed());
        }
        Ok(Reply { revision: self.machine.revision(), outcome: Outcome::Member })
    }

    /// Tells the shell of the members if they have changed, and whether this one is no longer among them. After the
    /// answers of what is published.
    pub(super) fn announce_members(&mut self) {
        if self.machine.take_members_changed() {
            let members = self.machine.members().clone();
            self.out.push_back(Outgoing { effect: Effect::Members(members), published: None });
            self.announce_removal();
        }
    }

    /// Tells the shell once that this member was removed. It will not hear what became of writes that are under way.
    fn announce_removal(&mut self) {
        if !self.changes.removal_told && self.members().is_removed(self.raft.id()) {
            self.changes.removal_told = true;
            self.stop_writes();
            self.out.push_back(Outgoing { effect: Effect::Removed, published: None });
        }
    }

    /// Another member refuses this one because it was removed. From now on this member hears neither that its own removal,
    /// for which it may have been asked, is done, nor what became of anything else.
    pub fn handle_removed(&mut self) {
        if std::mem::replace(&mut self.changes.removal_told, true) {
            return;
        }
        let id = self.raft.id();
        for Waiting { ticket, change, .. } in std::mem::take(&mut self.changes.waiting).into_values() {
            let removes_itself = change.action == ChangeAction::Remove && change.member_id == id;
            let result = if removes_itself && self.members().check(&change).is_ok() {
                let mut left = self.members().clone();
                left.apply(&change);
                Ok(Response::Members(Arc::new(left)))
            } else {
                Err(Error::Stopped)
            };
            self.answer(ticket, result);
        }
        self.stop_writes();
        self.out.push_back(Outgoing { effect: Effect::Removed, published: None });
    }

    /// Nobody will hear what becomes of the writes that are under way.
    fn stop_writes(&mut self) {
        for write in self.outbox.expire(Duration::MAX) {
            self.answer(write.ticket, Err(Error::Stopped));
        }
    }

    /// Another member leads now, or none.
    pub(super) fn leader_of_changes_changed(&mut self, now: Duration, leads: bool) {
        if !leads {
            self.changes.queued.clear();
        }
        self.changes.handover_tried = false;
        for waiting in self.changes.waiting.values_mut() {
            waiting.sent_to = 0;
            waiting.next_try = now;
        }
        self.changes.next_publish = now;
        self.pass_on_changes(now);
    }

    /// Gives up on what has waited too long, and passes on what nobody has.
    pub(super) fn expire_changes(&mut self, now: Duration) {
        let expired = |waiting: &Waiting| waiting.since + MEMBER_CHANGE_WAIT_MAX <= now;
        let tickets: Vec<Ticket> =
            self.changes.waiting.values().filter(|waiting| expired(waiting)).map(|waiting| waiting.ticket).collect();
        self.changes.waiting.retain(|_, waiting| !expired(waiting));
        for ticket in tickets {
            self.answer(ticket, Err(Error::Timeout));
        }
        self.pass_on_changes(now);
        self.keep_published(now);
    }

    pub(super) fn changes_timeout(&self) -> Option<Duration> {
        let retry = |waiting: &Waiting| (waiting.sent_to == 0 && waiting.may_be_sent()).then_some(waiting.next_try);
        let waiting = self.changes.waiting.values();
        let due = waiting.flat_map(|waiting| {
            [Some(waiting.since + MEMBER_CHANGE_WAIT_MAX), retry(waiting).filter(|_| self.has_leader())]
        });
        let publish = self.publishes_to().map(|_| self.changes.next_publish);
        due.flatten().chain(publish).min()
    }

    fn has_leader(&self) -> bool {
        !matches!(self.raft.role(), Role::Follower(0))
    }

    /// Whether this member's record says what it says of itself.
    fn is_published(&self) -> bool {
        let Some(attributes) = &self.config.attributes else { return true };
        self.members().get(self.raft.id()).is_some_and(|record| {
            record.name == attributes.name
                && record.client_urls == attributes.client_urls
                && (!record.peer_urls.is_empty() || attributes.peer_urls.is_empty())
        })
    }

    /// The leader to tell what this member says of itself; none if it knows, or can't be told yet.
    fn publishes_to(&self) -> Option<u64> {
        if self.members().get(self.raft.id()).is_none() || self.is_published() {
            return None;
        }
        match self.raft.role() {
            Role::Leader if self.is_ready() => Some(self.raft.id()),
            Role::Leader | Role::Follower(0) => None,
            Role::Follower(leader) => Some(leader),
        }
    }

    /// Says what this member's record should say, as long as it does not.
    pub(super) fn keep_published(&mut self, now: Duration) {
        let Some(leader) = self.publishes_to().filter(|_| now >= self.changes.next_publish) else { return };
        self.changes.next_publish = now + PUBLISH_RETRY;
        let attributes = self.config.attributes.clone().expect("what is to be said is known");
        let member_id = self.raft.id();
        // Nobody waits for it.
        let origin = ChangeOrigin { member_id, boot: self.config.boot, sequence: 0 };
        let change = MemberChange { origin, member_id, action: ChangeAction::Publish(attributes) };
        if leader == member_id {
            self.take_change(now, change);
            self.propose_changes(now);
        } else {
            self.send_member_message(leader, MemberMessage::Change(change));
        }
    }

    /// Makes this member the only one, once everything that its log held is applied: in the records and, with them, in
    /// the index's next checkpoint. Nothing is served before that is durable.
    pub(super) fn force_if_due(&mut self) {
        let Some(Forcing::Replaying(until)) = self.changes.forcing else { return };
        let published = self.applying.published();
        let is_due = published.index >= until && !self.applying.is_mid_batch();
        // One that has begun would not hold the change.
        if !is_due || self.machine.index().checkpoint_progress().is_some() {
            return;
        }
        self.machine.keep_only_member(self.raft.id());
        self.raft.set_removed(self.machine.members().removed());
        if self.machine.publish(published).is_err() {
            // A page of the system tree is to be loaded first; the next publish brings it along.
            return;
        }
        self.changes.forcing = Some(Forcing::Saving);
        self.start_checkpoint();
        self.announce_members();
    }

    /// A checkpoint is durable.
    pub(super) fn checkpoint_is_durable(&mut self) {
        if self.changes.forcing == Some(Forcing::Saving) {
            self.changes.forcing = None;
        }
        self.force_if_due();
    }

    fn send_member_message(&mut self, to: u64, message: MemberMessage) {
        self.messages.push_back((to, PeerMessage::Member(message)));
    }
}
