//! Comparing this member's state with those of others; see the module `corruption`.

use core::time::Duration;

use super::reads::Kind;
use super::writes::Origin;
use super::{Effect, Member, MemberConfig, Notice, Outgoing};
use crate::corruption::{
    Action, Checker, Done, Facts, Finding, HashAnswer, HashAsker, HashMessage, HashQuestion, HashWhat, Hashing, Link,
    Step, Wanted,
};
use crate::envelope::Asker;
use crate::peer::PeerMessage;
use crate::request::{Alarm, AlarmKind, Command};

/// The checks of a member, and the hashes for those of others.
#[derive(Debug)]
pub(super) struct Checks {
    checker: Checker,
    hashing: Hashing,
    /// This check was told that the member leads, and goes on at the next occasion.
    proved: Option<u64>,
}

impl Checks {
    pub(super) fn new(now: Duration, config: &MemberConfig, is_new: bool) -> Checks {
        let MemberConfig { member_id, boot, seed, corruption, .. } = *config;
        let checker = Checker::new(now, member_id, boot, seed, corruption, is_new || config.force_new_cluster);
        Checks { checker, hashing: Hashing::default(), proved: None }
    }

    /// A page is resident.
    pub(super) fn handle_page_loaded(&mut self, page: garboard_storage::PageId) {
        self.hashing.handle_page_loaded(page);
    }

    /// The state was replaced by another one.
    pub(super) fn state_replaced(&mut self) {
        self.hashing.restart();
    }
}

impl Member {
    /// Whether the initial check, if there is one, found nothing that keeps this member from serving.
    pub fn is_checked(&self) -> bool {
        self.checks.checker.may_serve()
    }

    /// The checks, for their figures.
    pub fn checker(&self) -> &Checker {
        &self.checks.checker
    }

    fn facts(&self) -> Facts {
        let others = self.machine.members().iter().filter(|member| member.id != self.config.member_id);
        Facts {
            leads: self.is_ready(),
            others: others.map(|member| (member.id, self.link_to(member.id))).collect(),
            revision: self.applying.published_revision(),
            index: self.applying.published().index,
            kept: self.hashes.kept().copied().collect(),
        }
    }

    fn link_to(&self, id: u64) -> Link {
        match self.link(id) {
            Some(true) => Link::Up,
            Some(false) => Link::Down,
            None => Link::Unknown,
        }
    }

    pub(super) fn checks_timeout(&self) -> Option<Duration> {
        let checks = &self.checks;
        let hashing = checks.hashing.poll_timeout(self.applying.published().index).filter(|_| !self.is_installing());
        let proved = checks.proved.map(|_| Duration::ZERO);
        [checks.checker.poll_timeout(self.is_ready()), hashing, proved].into_iter().flatten().min()
    }

    /// This member shows what was committed when the check asked.
    pub(super) fn check_proved(&mut self, number: u64) {
        self.checks.proved = Some(number);
    }

    /// Goes on with checks, and with hashes for those of others.
    pub(super) fn drive_checks(&mut self, now: Duration) {
        if self.checks_timeout().is_none_or(|due| now < due) {
            return;
        }
        if let Some(number) = self.checks.proved.take() {
            let facts = self.facts();
            self.checks.checker.handle_proved(now, number, &facts);
        }
        self.hash_some(now);
        if self.checks.checker.poll_timeout(self.is_ready()).is_some_and(|due| due <= now) {
            let facts = self.facts();
            self.checks.checker.handle_timeout(now, &facts);
        }
        self.follow_checks(now);
    }

    /// A step of the hash that is wanted, beside the other work: the state is read as any client would read it.
    fn hash_some(&mut self, now: Duration) {
        let applied = self.applying.published().index;
        if self.is_installing() || self.checks.hashing.poll_timeout(applied).is_none_or(|due| now < due) {
            return;
        }
        let busy = !self.is_quiet();
        let pin = self.reader().pin();
        if let Step::Needs(need) = self.checks.hashing.step(now, &pin.view(), busy) {
            self.applying.need_for_transfer(need.0, pin);
        }
        while let Some(Done { asker, finding }) = self.checks.hashing.poll_done() {
            match asker {
                HashAsker::Own(number) => {
                    let facts = self.facts();
                    self.checks.checker.handle_own(now, number, finding, &facts);
                }
                HashAsker::Member { id, boot, number } => self.tell_finding(id, HashAnswer { boot, number, finding }),
            }
        }
    }

    fn tell_finding(&mut self, to: u64, answer: HashAnswer) {
        self.messages.push_back((to, PeerMessage::Hash(HashMessage::Answer(answer))));
    }

    /// Another member's question about this one's state, or its answer.
    pub(super) fn handle_hash_message(&mut self, now: Duration, from: u64, message: HashMessage) {
        if !self.raft.is_member(from) {
            return;
        }
        match message {
            HashMessage::Question(question) => self.handle_hash_question(now, from, question),
            HashMessage::Answer(answer) => {
                let facts = self.facts();
                self.checks.checker.handle_answer(now, from, answer, &facts);
                self.follow_checks(now);
            }
        }
    }

    fn handle_hash_question(&mut self, now: Duration, from: u64, question: HashQuestion) {
        let HashQuestion { boot, number, what } = question;
        match what {
            HashWhat::History { revision, index } => {
                let asker = HashAsker::Member { id: from, boot, number };
                self.checks.hashing.want(now, Wanted { asker, revision, index });
                self.drive_checks(now);
            }
            HashWhat::Compaction { revision } => {
                let kept = self.hashes.kept().find(|kept| kept.revision == revision).copied();
                let finding = kept.map_or(Finding::Unknown, |kept| Finding::Hash {
                    hash: kept.hash,
                    compact_revision: kept.compact_revision,
                    newest: self.applying.published_revision(),
                    index: self.applying.published().index,
                });
                self.tell_finding(from, HashAnswer { boot, number, finding });
            }
        }
    }

    /// Does what checks want.
    fn follow_checks(&mut self, now: Duration) {
        while let Some(action) = self.checks.checker.poll_action() {
            match action {
                Action::Prove { number } => self.read(now, Asker::Check { number }, Kind::ReadIndex),
                Action::Hash { number, revision, index } => {
                    self.checks.hashing.want(now, Wanted { asker: HashAsker::Own(number), revision, index });
                }
                Action::Cancel => self.checks.hashing.cancel_own(),
                Action::Ask { to, question } => {
                    self.messages.push_back((to, PeerMessage::Hash(HashMessage::Question(question))));
                }
                Action::Raise { member } => self.raise_corrupt(now, member),
                // It shows in `is_checked`.
                Action::Serve => {}
                Action::Refuse(mismatch) => {
                    self.out.push_back(Outgoing { effect: Effect::Corrupt(mismatch), published: None });
                }
                Action::Note(note) => {
                    let effect = Effect::Notice(Notice::Check(note));
                    self.out.push_back(Outgoing { effect, published: None });
                }
            }
        }
    }

    fn raise_corrupt(&mut self, now: Duration, member_id: u64) {
        let alarm = Alarm { member_id, kind: AlarmKind::Corrupt };
        let is_known = member_id == 0 || self.machine.members().get(member_id).is_some();
        if is_known && self.leads() && !self.machine.alarms().list().contains(&alarm) {
            self.propose_own(now, [(Origin::Check, Command::AlarmActivate(alarm))]);
        }
    }
}
