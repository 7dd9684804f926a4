//! How far a repair is.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::{Loss, RepairAnswer};
use crate::canary::{self, Canary};
use crate::limits::{REPAIR_ASK_INTERVAL, REPAIR_NOTICE_INTERVAL};

/// How far a repair is, for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairProgress {
    /// The others have to say how far the terms are before this member says anything.
    WaitsForVoters {
        /// How many have said so.
        answered: usize,
        /// How many have to; 0: nobody has told who votes.
        voters: usize,
        /// One that has not.
        missing: Option<u64>,
    },
    /// A leader has to say up to where everything is committed.
    WaitsForLeader,
    /// What is missing is on its way.
    Fills {
        /// Up to where everything is here.
        applied: u64,
        /// Up to where it has to be.
        target: u64,
    },
}

impl core::fmt::Display for RepairProgress {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RepairProgress::WaitsForVoters { voters: 0, .. } => {
                write!(out, "under repair: waits until another member answers")
            }
            RepairProgress::WaitsForVoters { answered, voters, missing } => {
                write!(out, "under repair: this member's last vote is lost, so all others have to tell their terms; ")?;
                write!(out, "{answered} of {voters} have")?;
                missing.map_or(Ok(()), |missing| write!(out, ", member {missing:x} has not"))
            }
            RepairProgress::WaitsForLeader => {
                write!(out, "under repair: waits for a leader that tells up to where everything is committed")
            }
            RepairProgress::Fills { applied, target } => {
                write!(out, "under repair: holds everything up to index {applied} of {target}")
            }
        }
    }
}

/// A member under repair: what it asked, heard, and may do.
#[derive(Debug)]
pub(crate) struct Repair {
    own_id: u64,
    boot: u64,
    /// The newest term that survived here.
    lost_term: u64,
    /// No message of an earlier term is heard; none is heard at all before it is known.
    floor: Option<u64>,
    /// The terms that others have told.
    terms: BTreeMap<u64, u64>,
    /// Those of them that were whole, and knew for certain who votes.
    whole: BTreeSet<u64>,
    /// The voters but for this member, by the answer that knows the latest ones.
    voters: BTreeSet<u64>,
    voters_as_of: u64,
    /// Everything up to here has to be applied.
    target: Option<u64>,
    /// Whom to ask.
    peers: BTreeSet<u64>,
    next_ask: Duration,
    next_notice: Duration,
}

impl Repair {
    pub(crate) fn new(now: Duration, own_id: u64, boot: u64, loss: &Loss) -> Repair {
        let peers = loss.peers.iter().copied().filter(|id| *id != own_id).collect();
        Repair {
            own_id,
            boot,
            lost_term: loss.term,
            floor: loss.is_state_known.then_some(loss.term),
            terms: BTreeMap::new(),
            whole: BTreeSet::new(),
            voters: BTreeSet::new(),
            voters_as_of: 0,
            target: None,
            peers,
            next_ask: now,
            next_notice: now + REPAIR_NOTICE_INTERVAL,
        }
    }

    /// Whether nothing of Raft may be heard yet.
    pub(crate) fn is_deaf(&self) -> bool {
        self.floor.is_none() && !canary::is_on(Canary::RepairedVotesAtOnce)
    }

    /// Whether this member counts in elections although it is under repair: where there are two voters, everything that
    /// was committed is on the other one.
    pub(crate) fn may_vote(&self) -> bool {
        let is_one_of_two = self.floor.is_some() && self.voters.len() == 1 && self.voters.is_subset(&self.whole);
        is_one_of_two || canary::is_on(Canary::RepairedVotesAtOnce)
    }

    /// A peer can be talked to.
    pub(crate) fn handle_peer_up(&mut self, now: Duration, id: u64) {
        if id != self.own_id && self.peers.insert(id) {
            self.next_ask = now;
        }
    }

    /// What a member answers. Returns the floor once this answer settles it.
    pub(crate) fn handle_answer(&mut self, from: u64, answer: &RepairAnswer) -> Option<u64> {
        if answer.boot != self.boot || from == self.own_id {
            return None;
        }
        let knows_voters = answer.is_whole && !answer.voters.is_empty();
        // One that is whole and does not know for certain who votes does not count among those who have answered.
        if knows_voters || !answer.is_whole {
            let term = self.terms.entry(from).or_default();
            *term = answer.term.max(*term);
        }
        if knows_voters {
            self.whole.insert(from);
            if answer.applied >= self.voters_as_of {
                self.voters_as_of = answer.applied;
                self.voters = answer.voters.iter().copied().filter(|id| *id != self.own_id).collect();
                self.peers.extend(&self.voters);
            }
        }
        let settled = self.settle_floor();
        if answer.commit > 0 && self.target.is_none() && self.floor.is_some_and(|floor| answer.term >= floor) {
            self.target = Some(answer.commit);
        }
        settled
    }

    /// This member leads, as one of two may under repair, and knows what is committed: it was elected by the other one, so it
    /// holds all of that.
    pub(crate) fn handle_lead(&mut self, commit: u64) {
        if self.floor.is_some() {
            self.target.get_or_insert(commit);
        }
    }

    fn settle_floor(&mut self) -> Option<u64> {
        let all = !self.voters.is_empty() && self.voters.iter().all(|id| self.terms.contains_key(id));
        let whole_count = self.voters.intersection(&self.whole).count();
        // Whoever was elected, and whatever was committed, is known to one of a majority.
        let majority = self.voters.len().div_ceil(2) + 1;
        let enough = whole_count == self.voters.len() || whole_count >= majority;
        if self.floor.is_some() || !all || !enough {
            return None;
        }
        self.floor = self.terms.values().copied().chain([self.lost_term]).max();
        self.floor
    }

    /// Whether everything is here that has to be.
    pub(crate) fn is_done(&self, applied: u64) -> bool {
        self.target.is_some_and(|target| applied >= target)
    }

    /// Whom to ask now, if it is time to ask.
    pub(crate) fn poll_ask(&mut self, now: Duration) -> Vec<u64> {
        if now < self.next_ask || (self.floor.is_some() && self.target.is_some()) {
            return Vec::new();
        }
        self.next_ask = now + REPAIR_ASK_INTERVAL;
        self.peers.iter().copied().collect()
    }

    /// What the operator is to be told now, every some seconds.
    pub(crate) fn poll_notice(&mut self, now: Duration, applied: u64) -> Option<RepairProgress> {
        if now < self.next_notice {
            return None;
        }
        self.next_notice = now + REPAIR_NOTICE_INTERVAL;
        Some(match (self.floor, self.target) {
            (None, _) => {
                let mut missing = self.voters.iter().filter(|id| !self.terms.contains_key(id));
                let missing = missing.next().copied();
                let answered = self.voters.iter().filter(|id| self.terms.contains_key(id)).count();
                RepairProgress::WaitsForVoters { answered, voters: self.voters.len(), missing }
            }
            (Some(_), None) => RepairProgress::WaitsForLeader,
            (Some(_), Some(target)) => RepairProgress::Fills { applied, target },
        })
    }

    /// When [`Repair::poll_ask`] or [`Repair::poll_notice`] has something.
    pub(crate) fn poll_timeout(&self) -> Duration {
        match (self.floor, self.target) {
            (Some(_), Some(_)) => self.next_notice,
            _ => self.next_ask.min(self.next_notice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(term: u64, commit: u64, voters: &[u64]) -> RepairAnswer {
        RepairAnswer { boot: 7, term, commit, applied: 10, is_whole: true, voters: voters.to_vec() }
    }

    fn repair(is_state_known: bool) -> Repair {
        Repair::new(Duration::ZERO, 1, 7, &Loss { term: 4, vote: 0, is_state_known, peers: vec![2] })
    }

    #[test]
    fn where_the_last_vote_is_lost_every_other_voter_answers_before_anything_is_heard() {
        let mut repair = repair(false);
        assert_eq!(repair.handle_answer(2, &answer(5, 20, &[1, 2, 3])), None);
        assert!(repair.is_deaf() && !repair.is_done(u64::MAX), "a leader of a term below the floor tells nothing");
        assert_eq!(repair.handle_answer(3, &answer(6, 0, &[1, 2, 3])), Some(6));
        assert!(!repair.is_deaf());
        repair.handle_answer(2, &answer(5, 20, &[1, 2, 3]));
        assert!(!repair.is_done(u64::MAX));
        repair.handle_answer(2, &answer(7, 30, &[1, 2, 3]));
        assert!(!repair.is_done(29) && repair.is_done(30) && !repair.may_vote());
    }

    #[test]
    fn a_survived_vote_is_a_floor_by_itself_and_an_older_leader_tells_nothing() {
        let mut repair = repair(true);
        assert!(!repair.is_deaf() && !repair.may_vote());
        repair.handle_answer(2, &answer(3, 20, &[1, 2, 3]));
        assert!(!repair.is_done(u64::MAX));
        repair.handle_answer(2, &answer(4, 20, &[1, 2, 3]));
        assert!(repair.is_done(20));
    }

    #[test]
    fn whoever_may_not_know_all_voters_does_not_count_as_one_that_has_answered() {
        let mut repair = repair(false);
        assert_eq!(repair.handle_answer(2, &answer(5, 0, &[])), None);
        assert_eq!(repair.handle_answer(3, &answer(5, 0, &[1, 2, 3])), None);
        assert_eq!(repair.handle_answer(2, &answer(5, 0, &[1, 2, 3])), Some(5));
    }

    #[test]
    fn another_member_under_repair_counts_as_one_that_has_answered_if_a_majority_is_whole() {
        let mut repair = repair(false);
        let damaged = RepairAnswer { is_whole: false, ..answer(3, 0, &[]) };
        repair.handle_answer(2, &damaged);
        let voters = [1, 2, 3, 4, 5];
        assert_eq!(repair.handle_answer(3, &answer(5, 0, &voters)), None);
        assert_eq!(repair.handle_answer(4, &damaged), None);
        assert_eq!(repair.handle_answer(5, &answer(6, 0, &voters)), None, "two of five know too little");
        assert_eq!(repair.handle_answer(4, &answer(4, 0, &voters)), Some(6));
    }

    #[test]
    fn of_three_and_of_two_no_other_may_be_under_repair() {
        for voters in [&[1, 2, 3][..], &[1, 2]] {
            let (mut lost, mut known) = (repair(false), repair(true));
            for repair in [&mut lost, &mut known] {
                repair.handle_answer(2, &RepairAnswer { is_whole: false, ..answer(9, 0, voters) });
                if voters.len() == 3 {
                    repair.handle_answer(3, &answer(5, 0, voters));
                }
            }
            assert!(lost.is_deaf() && !known.may_vote(), "{voters:?}");
        }
    }

    #[test]
    fn answers_to_an_earlier_process_are_not_heard() {
        let mut repair = repair(true);
        repair.handle_answer(2, &RepairAnswer { boot: 6, ..answer(9, 20, &[1, 2, 3]) });
        assert!(!repair.is_done(u64::MAX));
    }

    #[test]
    fn one_of_two_votes_once_the_other_has_answered() {
        let mut repair = repair(true);
        assert!(!repair.may_vote());
        repair.handle_answer(2, &answer(9, 0, &[1, 2]));
        assert!(repair.may_vote());
    }

    #[test]
    fn everyone_that_is_known_is_asked_until_there_is_a_target() {
        let mut repair = repair(true);
        assert_eq!(repair.poll_ask(Duration::ZERO), [2]);
        assert!(repair.poll_ask(Duration::ZERO).is_empty());
        repair.handle_peer_up(Duration::ZERO, 3);
        assert_eq!(repair.poll_ask(Duration::ZERO), [2, 3]);
        repair.handle_answer(2, &answer(4, 20, &[1, 2, 3]));
        assert!(repair.poll_ask(REPAIR_ASK_INTERVAL).is_empty());
    }
}
