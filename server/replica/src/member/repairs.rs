//! Repairs: of this member, while it has lost what it had acknowledged, and of others, who say so.

use core::time::Duration;
use std::collections::BTreeMap;

use garboard_wal as wal;
use raft::eraftpb::{Message, MessageType};

use super::{Effect, Member, MemberConfig, Notice, Outgoing};
use crate::limits::MEMBERS_MAX;
use crate::peer::PeerMessage;
use crate::raft::Restored;
use crate::repair::{Loss, Repair, RepairAnswer, RepairMessage};

/// Repairs that a member knows of.
#[derive(Debug)]
pub(super) struct Repairs {
    /// This member's own.
    own: Option<Repair>,
    /// What has to be durable before that ends: the newest append when everything was there.
    last_append: Option<wal::AppendNumber>,
    /// Of members whose acknowledgements this leader has withdrawn: their boot, and the term it was done in.
    withdrawn: BTreeMap<u64, (u64, u64)>,
}

impl Repairs {
    pub(super) fn new(now: Duration, config: &MemberConfig) -> Repairs {
        let repair = |loss: &Loss| Repair::new(now, config.member_id, config.boot, loss);
        Repairs { own: config.loss.as_ref().map(repair), last_append: None, withdrawn: BTreeMap::new() }
    }

    /// Whether nothing of Raft may be heard yet.
    pub(super) fn is_deaf(&self) -> bool {
        self.own.as_ref().is_some_and(Repair::is_deaf)
    }
}

/// The newest state that is known of a member that has lost something becomes its log's, ahead of all else.
pub(super) fn keep_state(log: &mut wal::Log, restored: &mut Restored, loss: Option<&Loss>) -> wal::AppendNumber {
    let Some(loss) = loss else { return wal::AppendNumber(0) };
    let wal::HardState { term, vote, commit } = restored.hard_state;
    let Loss { term, vote, .. } = loss.clone().and_state(term, vote, true);
    let hard_state = wal::HardState { term, vote, commit };
    if restored.hard_state == hard_state {
        return wal::AppendNumber(0);
    }
    restored.hard_state = hard_state;
    log.append(wal::Append { entries: Vec::new(), hard_state })
}

impl Member {
    /// Whether this member has lost something that it had acknowledged, and does not hold it again yet.
    pub fn is_under_repair(&self) -> bool {
        self.repairs.own.is_some()
    }

    /// Whether others could give back what this member loses.
    pub fn has_other_voters(&self) -> bool {
        self.raft.membership().voters.iter().any(|id| *id != self.config.member_id)
    }

    /// Whether this member votes, and may try to lead.
    pub(super) fn counts_in_elections(&self) -> bool {
        self.repairs.own.as_ref().is_none_or(Repair::may_vote)
    }

    /// Whether a message of Raft may reach this member as it is.
    pub(super) fn may_hear(&self, message: &Message) -> bool {
        let asks_for_vote =
            matches!(message.get_msg_type(), MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
        !self.repairs.is_deaf() && (!asks_for_vote || self.counts_in_elections())
    }

    /// A message about a repair, of this member or of the sender.
    pub(super) fn handle_repair_message(&mut self, from: u64, message: &RepairMessage) {
        match message {
            RepairMessage::Ask { boot } => self.answer_repair(from, *boot),
            RepairMessage::Answer(answer) => {
                let Some(repair) = &mut self.repairs.own else { return };
                let floor = repair.handle_answer(from, answer);
                // What a leader was told it may have put out of its mind.
                self.raft.handle_link();
                if let Some(floor) = floor {
                    self.raft.enter_term(floor.max(self.raft.term()));
                }
                let counts = self.counts_in_elections();
                self.raft.set_may_campaign(counts);
            }
        }
    }

    /// Tells a member what it has to know to be repaired. If this one leads, it counts on nothing any more that the other
    /// acknowledged before that start.
    fn answer_repair(&mut self, from: u64, boot: u64) {
        if self.machine.members().is_removed(from) {
            return;
        }
        let mut commit = 0;
        if self.leads() && self.raft.is_member(from) {
            let now = (boot, self.raft.term());
            if self.repairs.withdrawn.insert(from, now) != Some(now) {
                self.raft.withdraw_acknowledged(from);
            }
            if self.raft.knows_commit_index() {
                commit = self.raft.commit_index();
            }
        }
        // What a member under repair knows of terms and of members may be less than it once did.
        let is_whole = !self.is_under_repair();
        let knows_voters = is_whole && !self.raft.has_unapplied_change();
        let voters = if knows_voters { self.raft.membership().voters.clone() } else { Vec::new() };
        assert!(voters.len() <= MEMBERS_MAX, "clusters are small");
        let (term, applied) = (self.raft.term(), self.applying.published().index);
        let answer = RepairAnswer { boot, term, commit, applied, is_whole, voters };
        self.messages.push_back((from, PeerMessage::Repair(RepairMessage::Answer(answer))));
    }

    pub(super) fn note_peer_up_for_repair(&mut self, now: Duration, id: u64) {
        if let Some(repair) = &mut self.repairs.own {
            repair.handle_peer_up(now, id);
        }
    }

    pub(super) fn repair_timeout(&self) -> Option<Duration> {
        self.repairs.own.as_ref().map(Repair::poll_timeout)
    }

    /// Asks the others, and tells the operator how far it is.
    pub(super) fn drive_repair(&mut self, now: Duration) {
        let applied = self.applying.published().index;
        let Some(repair) = &mut self.repairs.own else { return };
        let boot = self.config.boot;
        for peer in repair.poll_ask(now) {
            self.messages.push_back((peer, PeerMessage::Repair(RepairMessage::Ask { boot })));
        }
        let Some(progress) = repair.poll_notice(now, applied) else { return };
        self.notice(Notice::UnderRepair(progress));
    }

    /// Ends the repair once everything is here that has to be, and the log knows of the floor by itself.
    pub(super) fn finish_repair(&mut self) {
        let applied = self.applying.published().index;
        let leads_to = self.raft.knows_commit_index().then(|| self.raft.commit_index());
        let Some(repair) = &mut self.repairs.own else { return };
        if let Some(commit) = leads_to {
            repair.handle_lead(commit);
        }
        if !repair.is_done(applied) {
            return;
        }
        let last = *self.repairs.last_append.get_or_insert(self.newest_append);
        if self.log.durable() >= last {
            self.repairs.own = None;
            self.raft.set_may_campaign(true);
            self.out.push_back(Outgoing { effect: Effect::Repaired, published: None });
        }
    }
}
