//! Snapshots: sending what this member has published, and taking in what another has.

use core::time::Duration;

use garboard_storage::{Applied, Index};
use raft::eraftpb::{Message, MessageType};

use super::config::Tables;
use super::{Effect, Fatal, Member, MemberConfig, Outgoing};
use crate::peer::PeerMessage;
use crate::raft::Membership;
use crate::transfer::{Offer, Outcome, Output, Progress, Sender, Stage, State, TransferMessage};

/// A snapshot that raft-rs has taken over, and whose image is being put in the index's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Installing {
    applied: Applied,
}

impl MemberConfig {
    pub(super) fn sender(&self, index: &Index) -> Sender {
        // As reads, transfers are named by the start of the member: no receiver mistakes one for another.
        let first_id = self.boot << 32;
        Sender::new(index.facts().cluster_id, first_id, self.transfer_bytes_per_second)
    }
}

impl Member {
    /// A message about a snapshot.
    pub(super) fn handle_transfer_message(&mut self, now: Duration, from: u64, message: TransferMessage) {
        match message {
            TransferMessage::Offer(offer) => self.handle_offer(now, from, &offer),
            TransferMessage::Chunk(chunk) => {
                if let Some(progress) = self.receiver.handle_chunk(now, from, chunk) {
                    self.tell(from, progress);
                }
            }
            TransferMessage::Progress(progress) => {
                if let Some(outcome) = self.sender.handle_progress(now, from, progress) {
                    self.transfer_ended(from, outcome);
                }
            }
        }
    }

    /// Whether a snapshot is being put in the index's place: nothing is applied meanwhile.
    pub(super) fn is_installing(&self) -> bool {
        self.installing.is_some()
    }

    pub(super) fn transfer_timeout(&self) -> Option<Duration> {
        self.sender.poll_timeout().into_iter().chain(self.receiver.poll_timeout()).min()
    }

    /// A message of raft-rs leaves; of a snapshot only the news that somebody needs one is taken.
    pub(super) fn send(&mut self, now: Duration, message: Message) {
        if message.get_msg_type() != MessageType::MsgSnapshot {
            self.messages.push_back((message.to, PeerMessage::Raft(message)));
            return;
        }
        let (to, metadata) = (message.to, message.get_snapshot().get_metadata());
        // One that is on its way already serves: its receiver asks again if it is not far enough then.
        if self.sender.is_sending_to(to) {
            return;
        }
        let published = self.applying.published();
        let is_published = (metadata.index, metadata.term) == (published.index, published.term);
        let membership = Membership::of(metadata.get_conf_state());
        let size_bytes = self.machine.index().size().in_use_bytes;
        let begun = is_published
            && !self.is_installing()
            && self.sender.begin(now, to, self.reader().pin(), size_bytes, membership);
        if !begun {
            self.raft.report_snapshot(to, false);
        }
    }

    /// Does what is due for snapshots on their way. True if raft-rs was told something.
    pub(super) fn drive_transfers(&mut self, now: Duration) -> bool {
        let mut told = false;
        if !self.sender.is_idle() {
            let reader = self.reader();
            while let Some(output) = self.sender.poll(now, &reader) {
                match output {
                    Output::Send(to, message) => self.messages.push_back((to, PeerMessage::Transfer(message))),
                    Output::Load(page, pin) => self.applying.need_for_transfer(page, pin),
                    Output::Ended(to, outcome) => {
                        self.transfer_ended(to, outcome);
                        told = true;
                    }
                }
            }
        }
        let was_installing = self.is_installing();
        self.drive_receiver(now);
        told || self.is_installing() != was_installing
    }

    fn transfer_ended(&mut self, to: u64, outcome: Outcome) {
        self.raft.report_snapshot(to, outcome == Outcome::Installed);
    }

    fn tell(&mut self, to: u64, progress: Progress) {
        self.messages.push_back((to, PeerMessage::Transfer(TransferMessage::Progress(progress))));
    }

    fn handle_offer(&mut self, now: Duration, from: u64, offer: &Offer) {
        let Offer { id, index, term, ref membership } = *offer;
        let is_known = self.receiver.offer().is_some_and(|(known, offer)| (known, offer.id) == (from, id));
        let is_member = membership.voters.iter().chain(&membership.learners).any(|member| *member == self.raft.id());
        let takes = !self.founding
            && !self.repairs.is_deaf()
            && is_member
            && membership.is_sound()
            && self.raft.needs_snapshot(index, term);
        if (takes || is_known) && self.receiver.handle_offer(now, from, offer) {
            self.machine.index_mut().begin_import();
        }
        if is_member && membership.is_sound() {
            self.raft.decline(from, index, term, membership);
        }
        self.tell(from, self.receiver.answer_offer(now, from, id));
    }

    fn drive_receiver(&mut self, now: Duration) {
        let Some((_, offer)) = self.receiver.offer() else { return };
        let needed = self.raft.needs_snapshot(offer.index, offer.term);
        match self.receiver.stage() {
            Stage::Receiving | Stage::Saving if !needed => self.give_up_receiving(now, State::NotNeeded),
            Stage::Receiving if self.receiver.is_abandoned(now) => self.give_up_receiving(now, State::Failed),
            Stage::Receiving => self.import_some(now),
            Stage::Saving => self.save_or_install(),
            Stage::Idle | Stage::Installing => {}
        }
    }

    fn give_up_receiving(&mut self, now: Duration, state: State) {
        self.machine.index_mut().drop_import();
        if let Some((to, progress)) = self.receiver.give_up(now, state) {
            self.tell(to, progress);
        }
    }

    /// Builds what has arrived into trees, as far as there is memory for changed pages.
    fn import_some(&mut self, now: Duration) {
        while self.receiver.stage() == Stage::Receiving {
            if !self.machine.index().can_import() {
                if self.is_index_full() {
                    self.give_up_receiving(now, State::Failed);
                } else if !self.applying.is_mid_batch() {
                    self.start_checkpoint();
                }
                return;
            }
            let Some(chunk) = self.receiver.poll_import() else { return };
            if self.machine.index_mut().import_chunk(&chunk).is_err() {
                self.give_up_receiving(now, State::Failed);
                return;
            }
            if let Some((to, progress)) = self.receiver.handle_imported() {
                self.tell(to, progress);
            }
            let (facts, offer) = (self.machine.index().import_facts(), self.receiver.offer());
            let differs = |applied: Applied| {
                offer.is_none_or(|(_, offer)| (offer.index, offer.term) != (applied.index, applied.term))
            };
            if facts.is_some_and(|facts| differs(facts.applied))
                || (self.receiver.stage() == Stage::Saving && !self.machine.index().is_import_complete())
            {
                self.give_up_receiving(now, State::Failed);
            }
        }
    }

    /// Makes the image durable, and then hands the snapshot to raft-rs and puts the image in the index's place.
    fn save_or_install(&mut self) {
        let index = self.machine.index();
        let is_saved = index.is_import_saved();
        if index.checkpoint_progress().is_some() || self.founding {
            return;
        }
        if !is_saved {
            if !self.applying.is_mid_batch() {
                self.start_checkpoint();
            }
            return;
        }
        // Nothing may be on its way into the log that the snapshot takes the place of.
        if !self.log.is_quiet() {
            return;
        }
        let (_, offer) = self.receiver.offer().expect("something is saved");
        let Offer { index, term, ref membership, .. } = *offer;
        if !self.raft.restore(index, term, membership) {
            return;
        }
        let membership = membership.to_bytes();
        let anchor = self.log.install_snapshot(index, term).expect("a quiet log takes a snapshot");
        self.installing = Some(Installing { applied: Applied { index, term } });
        self.receiver.begin_install();
        self.checkpoint_began_at = self.log.replay_bytes();
        self.machine.index_mut().start_install(&anchor.to_bytes(), &membership);
    }

    /// The image is in the index's place, and durable. Everything that was kept in memory of the old state is made anew.
    pub(super) fn index_installed(&mut self, now: Duration) {
        let Installing { applied } = self.installing.take().expect("an installation was begun");
        let revision = self.machine.index().view().revision();
        match self.config.tables(self.machine.index(), self.raft.membership()) {
            Ok(Tables { lessor, alarms, members, sessions }) => {
                self.raft.set_removed(members.removed());
                for asker in self.machine.handle_installed(lessor, alarms, members, sessions) {
                    self.answer_asker(asker, Err(crate::Error::LeaderChanged));
                }
            }
            Err(error) => self.failure = Some(Fatal::Snapshot(error)),
        }
        self.applying.restore(applied, revision);
        self.hashes.forget();
        for to in self.sender.handle_replaced() {
            self.transfer_ended(to, Outcome::Failed);
        }
        self.checks.state_replaced();
        // What became of them is not known here.
        if let Some(proposal) = self.take_proposal(now, applied.index, applied.term) {
            for origin in proposal.origins {
                self.lost(now, origin, crate::Error::LeaderChanged);
            }
        }
        (self.durable_index, self.replayed_to) = (applied.index, applied.index);
        self.stalled_until = None;
        self.state_replaced();
        let fill = self.receiver.arrived(now).expect("what is installed has arrived");
        self.out.push_back(Outgoing { effect: Effect::Restored { revision, fill }, published: None });
        self.announce_members();
        if !self.machine.index().compaction_pending() {
            self.compaction_finished(now, self.machine.index().view().compacted());
        }
        self.serve_confirmed(now);
        let (to, progress) = self.receiver.handle_installed();
        self.tell(to, progress);
    }
}
