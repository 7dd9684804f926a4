//! What a member does by itself: checkpoints, compaction, expiry of leases.

use core::time::Duration;

use garboard_storage::{CheckpointProgress, CompactionProgress, IndexIo, NeedPage, Paged, SpaceState};
use garboard_wal::Anchor;

use super::writes::Origin;
use super::{Effect, Member, Outgoing};
use crate::canary::{self, Canary};
use crate::envelope::{Response, Ticket};
use crate::error::Error;
use crate::kept_hashes::Lookup;
use crate::limits::{CHECKPOINT_RETRY, COMPACTION_PAUSE, COMPACTION_STEP_RECORDS, STOP_SAVE_MAX};
use crate::request::{Command, Reply};

impl Member {
    pub(super) fn poll_index_io(&mut self) -> Option<IndexIo> {
        self.machine.index_mut().poll_io()
    }

    pub(super) fn start_checkpoint_if_wanted(&mut self) {
        // On a full disk the next attempt is a matter of time.
        let wanted = self.machine.index().wants_checkpoint() || self.replay_is_long();
        if wanted && !self.is_index_full() && !self.is_installing() {
            self.start_checkpoint();
        }
    }

    /// Whether a start would replay so much of the log that a checkpoint is due.
    fn replay_is_long(&self) -> bool {
        let saving = self.machine.index().checkpoint_progress().is_some();
        !saving && self.log.replay_bytes() >= self.config.checkpoint_log_bytes
    }

    /// Whether the checkpoint under way should write without rests: writers wait for it, or the log grows so fast that
    /// with rests the next one would be due before it is done. That bounds what a start replays.
    pub fn is_checkpoint_urgent(&self) -> bool {
        let index = self.machine.index();
        let hurried = index.must_wait() || self.stop_by.is_some() || self.replayed_much;
        let Some(CheckpointProgress { left_bytes, total_bytes }) = index.checkpoint_progress() else { return false };
        let grown = self.log.replay_bytes().saturating_sub(self.checkpoint_began_at);
        let allowed = self.config.checkpoint_log_bytes / 2;
        let behind = u128::from(grown) * u128::from(total_bytes)
            > u128::from(allowed) * u128::from(total_bytes - left_bytes.min(total_bytes));
        left_bytes > 0 && (hurried || behind)
    }

    /// Hands leadership over, waits for the answers to what clients have asked, and saves what is published, so that the
    /// next start replays nothing. True once that is done, or can't be done in good time: the member may be dropped. Call
    /// it again after each of the effects.
    pub fn prepare_stop(&mut self, now: Duration) -> bool {
        if !self.hand_over_for_stop(now) {
            return false;
        }
        let answered = self.proposals.is_empty() && self.outbox.is_empty() && self.out.is_empty();
        let answer_by = *self.answer_by.get_or_insert(now + self.config.request_timeout());
        if !answered && now < answer_by {
            return false;
        }
        let by = *self.stop_by.get_or_insert(now + STOP_SAVE_MAX);
        if now >= by || self.is_index_full() {
            return true;
        }
        if self.machine.index().checkpoint_progress().is_some() {
            return false;
        }
        if self.stop_saved || self.log.replay_bytes() == 0 {
            return true;
        }
        self.stop_saved = !self.is_installing() && self.checkpoint();
        false
    }

    pub(super) fn is_index_full(&self) -> bool {
        self.machine.index().space() == SpaceState::Full
    }

    /// When a checkpoint is tried again that a full disk stopped. It also finds out that there is space again.
    pub(super) fn checkpoint_retry(&self) -> Option<Duration> {
        (self.is_index_full() && !self.applying.is_mid_batch() && !self.is_installing())
            .then_some(self.next_checkpoint_retry)
    }

    pub(super) fn retry_checkpoint(&mut self, now: Duration) {
        if self.checkpoint_retry().is_some_and(|due| due <= now) {
            self.next_checkpoint_retry = now + CHECKPOINT_RETRY;
            self.start_checkpoint();
        }
    }

    /// Saves what is published, unless that is under way.
    pub(super) fn start_checkpoint(&mut self) {
        assert!(!self.applying.is_mid_batch(), "a checkpoint holds whole entries");
        let applied = self.applying.published();
        // raft-rs hands out committed entries only once they are durable here; an index ahead of its log could not be
        // opened again.
        assert!(applied.index <= self.durable_index, "what is applied is durable in the log");
        let anchor = self.log.anchor(applied.index);
        let membership = self.raft.membership().to_bytes();
        if self.machine.index().checkpoint_progress().is_none() {
            self.checkpoint_began_at = self.log.replay_bytes();
        }
        self.machine.index_mut().start_checkpoint(&anchor.to_bytes(), &membership);
        if canary::is_on(Canary::LogForgottenEarly) {
            self.log.handle_checkpoint(&anchor);
        }
    }

    /// Starts a checkpoint if the newest one lacks something, and none is under way; whoever asked looks again.
    pub(super) fn checkpoint_on_request(&mut self) -> Response {
        let published_index = self.applying.published().index;
        if self.saved_index < published_index && !self.applying.is_mid_batch() && !self.is_installing() {
            self.start_checkpoint();
        }
        Response::Checkpoint { published_index, saved_index: self.saved_index }
    }

    pub(super) fn finish_checkpoints(&mut self, now: Duration) {
        while let Some(done) = self.machine.index_mut().poll_checkpoint_done() {
            if done.installed {
                self.index_installed(now);
            }
            self.saved_index = done.applied.index;
            self.replayed_much &= self.saved_index < self.replayed_to;
            let anchor = Anchor::from_bytes(&done.anchor).expect("the index gives back the anchor it was given");
            // An anchor that the planted bug has overtaken is let pass.
            if !canary::is_on(Canary::LogForgottenEarly) || self.log.base().sequence() <= anchor.sequence() {
                self.log.handle_checkpoint(&anchor);
            }
            self.founding = false;
            self.checkpoint_is_durable();
        }
    }

    /// Proposes the revocation of leases that have expired. One whose revocation is under way is left for
    /// the next time: behind that, and a grant of the same id, another one would end the new lease, and early.
    pub(super) fn expire_leases(&mut self, now: Duration) {
        if !self.leads() {
            return;
        }
        let mut expired = self.machine.lessor_mut().take_expired(now);
        expired.retain(|id| !self.proposals.iter().any(|proposal| proposal.leases.contains(id)));
        let revocations = expired.into_iter().map(|id| (Origin::Expiry, Command::LeaseRevoke { id }));
        self.propose_own(now, revocations);
    }

    pub(super) fn compact_automatically(&mut self, now: Duration) {
        let (revision, leads) = (self.applying.published_revision(), self.leads());
        if let Some(revision) = self.auto_compactor.handle_timeout(now, revision, leads) {
            let command = Command::Compact { revision, physical: false };
            self.propose_own(now, [(Origin::AutoCompaction, command)]);
        }
    }

    /// When the next step of physical compaction is due.
    pub(super) fn compaction_due(&self) -> Option<Duration> {
        let index = self.machine.index();
        let held = self.sender.holds_compaction() || self.is_installing();
        let blocked = held || self.applying.compaction_waits() || self.applying.is_mid_batch() || index.must_wait();
        let can_go_on = index.compaction_pending() && !blocked;
        can_go_on.then_some(self.next_compaction)
    }

    /// Raises the floor. What the physical work will remove is hashed before.
    pub(super) fn apply_compaction(
        &mut self,
        now: Duration,
        entry: u64,
        command: &Command,
    ) -> Paged<Result<Reply, Error>> {
        let floor = self.machine.index().view().compacted();
        let follows_finished = !self.machine.index().compaction_pending();
        let result = self.machine.apply(now, command)?;
        if result.is_ok() && follows_finished && entry > self.replayed_to {
            self.hashes.begin(floor, self.machine.index().view().compacted());
        }
        Ok(result)
    }

    /// Answers with the hash that a compaction computed.
    pub(super) fn kept_hash(&mut self, now: Duration, ticket: Ticket, revision: i64) {
        match self.hashes.lookup(now, ticket, revision) {
            Lookup::Kept(hash) => self.answer(ticket, Ok(Response::KeptHash(Some(hash)))),
            Lookup::Unknown => self.answer(ticket, Ok(Response::KeptHash(None))),
            Lookup::Waits => {}
        }
    }

    pub(super) fn expire_hash_waiters(&mut self, now: Duration) {
        for ticket in self.hashes.take_expired(now) {
            self.answer(ticket, Ok(Response::KeptHash(None)));
        }
    }

    /// A step of physical compaction, or of the hash that goes before it, between two batches.
    pub(super) fn compact_physically(&mut self, now: Duration) {
        if self.compaction_due().is_none_or(|due| now < due) {
            return;
        }
        self.next_compaction = now + COMPACTION_PAUSE;
        if self.hashes.is_running() {
            self.hash_for_compaction();
            return;
        }
        match self.machine.index_mut().compaction_step(COMPACTION_STEP_RECORDS) {
            Ok(progress) => {
                if let CompactionProgress::Finished(floor) = progress {
                    self.compaction_finished(now, floor);
                }
                self.start_checkpoint_if_wanted();
            }
            Err(need) => self.load_for_compaction(need),
        }
    }

    fn hash_for_compaction(&mut self) {
        match self.hashes.step(&self.machine.index().view()) {
            Ok(None) => {}
            Ok(Some((hash, waiters))) => {
                for ticket in waiters {
                    self.answer(ticket, Ok(Response::KeptHash(Some(hash))));
                }
            }
            Err(need) => self.load_for_compaction(need),
        }
    }

    fn load_for_compaction(&mut self, need: NeedPage) {
        let pin = self.reader().pin();
        self.applying.need_for_compaction(need, pin);
    }

    /// Answers the compactions that waited for the physical work up to their floor.
    pub(super) fn compaction_finished(&mut self, now: Duration, floor: i64) {
        while let Some(entry) = self.compactions.first_entry().filter(|entry| *entry.key() <= floor) {
            for (ticket, result) in entry.remove() {
                let effect = Effect::Answer { ticket, result };
                self.out.push_back(Outgoing { effect, published: Some(now) });
            }
        }
    }
}
