//! A member hashes its own state, for its own checks and for those of others, in bounded steps beside its other work.

use core::time::Duration;
use std::collections::VecDeque;

use garboard_storage::hash::KvHasher;
use garboard_storage::{NeedPage, PageId, View};

use super::Finding;
use crate::limits::{HASH_LAG_MAX, HASH_PAUSE, HASH_PAUSE_BUSY, HASH_QUESTIONS_MAX, HASH_STEP_RECORDS};

/// Who wants a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAsker {
    /// This member's own check of this number.
    Own(u64),
    /// Another member.
    Member {
        /// Which.
        id: u64,
        /// Its process.
        boot: u64,
        /// Its question.
        number: u64,
    },
}

impl HashAsker {
    fn member(&self) -> Option<u64> {
        match self {
            HashAsker::Own(_) => None,
            HashAsker::Member { id, .. } => Some(*id),
        }
    }
}

/// A hash that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// By whom.
    pub asker: HashAsker,
    /// Of the history up to this revision.
    pub revision: i64,
    /// Once this entry is applied.
    pub index: u64,
}

/// A question that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Whose.
    pub asker: HashAsker,
    /// The answer.
    pub finding: Finding,
}

/// How a step ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// There may be more to do when [`Hashing::poll_timeout`] says.
    Done,
    /// The page must be loaded first; then [`Hashing::handle_page_loaded`].
    Needs(NeedPage),
}

#[derive(Debug)]
struct Running {
    revision: i64,
    hasher: KvHasher,
}

/// The hashes that are wanted, and the one that is being computed.
#[derive(Debug, Default)]
pub struct Hashing {
    /// In the order of asking, at most one of each asking member, each with the time at which it is waited for no longer.
    wanted: VecDeque<(Wanted, Duration)>,
    running: Option<Running>,
    next_step: Duration,
    waits_for: Option<PageId>,
    done: VecDeque<Done>,
}

impl Hashing {
    /// A hash is wanted. A member's newer question takes the place of an older one; the same one again changes nothing.
    pub fn want(&mut self, now: Duration, wanted: Wanted) {
        if self.wanted.iter().any(|(known, _)| *known == wanted) {
            return;
        }
        self.wanted.retain(|(known, _)| known.asker.member() != wanted.asker.member());
        if self.wanted.len() >= HASH_QUESTIONS_MAX {
            self.done.push_back(Done { asker: wanted.asker, finding: Finding::Busy });
            return;
        }
        self.wanted.push_back((wanted, now + HASH_LAG_MAX));
    }

    /// This member's own check does not want its hash any more.
    pub fn cancel_own(&mut self) {
        self.wanted.retain(|(wanted, _)| !matches!(wanted.asker, HashAsker::Own(_)));
        self.done.retain(|done| !matches!(done.asker, HashAsker::Own(_)));
    }

    /// The state was replaced: what is being computed begins anew.
    pub fn restart(&mut self) {
        self.running = None;
    }

    /// A page is resident.
    pub fn handle_page_loaded(&mut self, page: PageId) {
        self.waits_for.take_if(|waits_for| *waits_for == page);
    }

    /// The next question that is answered.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// When [`Hashing::step`] wants to be called, where the state is that of the entry `applied`.
    pub fn poll_timeout(&self, applied: u64) -> Option<Duration> {
        if !self.done.is_empty() {
            return Some(Duration::ZERO);
        }
        let can_go_on = self.waits_for.is_none() && self.wanted.iter().any(|(wanted, _)| wanted.index <= applied);
        let lags = self.wanted.iter().filter(|(wanted, _)| wanted.index > applied).map(|(_, by)| *by).min();
        can_go_on.then_some(self.next_step).into_iter().chain(lags).min()
    }

    /// Goes on with a view of the published state, some tens of microseconds long. The next step follows soon, later
    /// where the member is `busy` with writes.
    pub fn step(&mut self, now: Duration, view: &View<'_>, busy: bool) -> Step {
        self.settle(now, view);
        if self.waits_for.is_some() || now < self.next_step {
            return Step::Done;
        }
        let applied = view.applied().index;
        let Some((first, _)) = self.wanted.iter().find(|(wanted, _)| wanted.index <= applied).copied() else {
            self.running = None;
            return Step::Done;
        };
        self.next_step = now + if busy { HASH_PAUSE_BUSY } else { HASH_PAUSE };
        let running = match self.running.take_if(|running| running.revision == first.revision) {
            Some(running) => running,
            None => Running { revision: first.revision, hasher: KvHasher::new(view, first.revision) },
        };
        let running = self.running.insert(running);
        match running.hasher.step(view, HASH_STEP_RECORDS) {
            Ok(None) => Step::Done,
            Ok(Some(hash)) => {
                let (revision, newest) = (running.revision, view.revision());
                self.running = None;
                let finding =
                    Finding::Hash { hash: hash.hash, compact_revision: hash.compact_revision, newest, index: applied };
                self.finish(|wanted| (wanted.revision == revision && wanted.index <= applied).then_some(finding));
                Step::Done
            }
            Err(need) => {
                self.waits_for = Some(need.0);
                Step::Needs(need)
            }
        }
    }

    /// Answers what needs no hash.
    fn settle(&mut self, now: Duration, view: &View<'_>) {
        let (index, newest, compact_revision) = (view.applied().index, view.revision(), view.compacted());
        let late: Vec<Wanted> = self.wanted.iter().filter(|(_, by)| *by <= now).map(|(wanted, _)| *wanted).collect();
        self.finish(|wanted| {
            if wanted.index > index {
                late.contains(wanted).then_some(Finding::Lags)
            } else if wanted.revision > newest {
                Some(Finding::Short { newest, index })
            } else if wanted.revision < compact_revision {
                Some(Finding::Compacted { compact_revision })
            } else {
                None
            }
        });
    }

    fn finish(&mut self, finding: impl Fn(&Wanted) -> Option<Finding>) {
        let done = &mut self.done;
        self.wanted.retain(|(wanted, _)| {
            let finding = finding(wanted);
            done.extend(finding.map(|finding| Done { asker: wanted.asker, finding }));
            finding.is_none()
        });
    }
}
