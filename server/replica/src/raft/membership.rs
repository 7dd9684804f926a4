//! Who votes: our own encoding of Raft's membership. raft-rs's encoding reaches neither disk nor
//! network.

use raft::eraftpb::{ConfChange, ConfChangeType, ConfState};

/// The version of both encodings.
const VERSION: u8 = 1;

/// Most members that an encoding may name.
const MEMBERS_MAX: usize = 64;

/// Raft's membership.
///
/// ```text
/// version u8 (1), voter count u8, learner count u8, voter ids u64 LE…, learner ids u64 LE…
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Members that vote.
    pub voters: Vec<u64>,
    /// Members that only receive the log.
    pub learners: Vec<u64>,
}

/// Why bytes are no membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// The version is none this code knows.
    #[error("membership encoding version {0} is unknown")]
    UnknownVersion(u8),
    /// The length does not fit the content.
    #[error("membership encoding has a wrong length")]
    Length,
}

impl Membership {
    /// One member, which votes.
    pub fn single(id: u64) -> Membership {
        Membership { voters: vec![id], learners: Vec::new() }
    }

    /// Whether nobody is a member, as far as one that joins knows.
    pub fn is_empty(&self) -> bool {
        self.voters.is_empty() && self.learners.is_empty()
    }

    /// Whether `id` votes and nobody else is a member.
    pub fn is_only(&self, id: u64) -> bool {
        self.voters == [id] && self.learners.is_empty()
    }

    /// The encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        assert!(self.voters.len() + self.learners.len() <= MEMBERS_MAX, "clusters are small");
        let count = |members: &[u64]| u8::try_from(members.len()).expect("clusters are small");
        let mut bytes = vec![VERSION, count(&self.voters), count(&self.learners)];
        for id in self.voters.iter().chain(&self.learners) {
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Reads the encoding.
    pub fn from_bytes(bytes: &[u8]) -> Result<Membership, MembershipError> {
        let [version, voters, learners, ids @ ..] = bytes else { return Err(MembershipError::Length) };
        if *version != VERSION {
            return Err(MembershipError::UnknownVersion(*version));
        }
        let (voters, learners) = (usize::from(*voters), usize::from(*learners));
        if voters + learners > MEMBERS_MAX || ids.len() != (voters + learners) * size_of::<u64>() {
            return Err(MembershipError::Length);
        }
        let mut all = ids
            .chunks_exact(size_of::<u64>())
            .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("chunks have exactly this length")));
        let voters = all.by_ref().take(voters).collect();
        Ok(Membership { voters, learners: all.collect() })
    }

    /// As raft-rs holds it.
    pub(super) fn to_conf_state(&self) -> ConfState {
        ConfState::from((self.voters.clone(), self.learners.clone()))
    }

    /// Whether it is one that raft-rs can be given: somebody votes, nobody is named twice, and no id is 0.
    pub fn is_sound(&self) -> bool {
        let mut ids: Vec<u64> = self.voters.iter().chain(&self.learners).copied().collect();
        ids.sort_unstable();
        !self.voters.is_empty() && ids.first() != Some(&0) && ids.is_sorted_by(|a, b| a < b)
    }

    /// From what a snapshot of raft-rs says; members in order.
    pub(crate) fn of(state: &ConfState) -> Membership {
        Membership::from_conf_state(state)
    }

    /// From what raft-rs holds; members in order.
    pub(super) fn from_conf_state(state: &ConfState) -> Membership {
        assert!(state.get_voters_outgoing().is_empty(), "memberships change by one member at a time");
        let mut membership =
            Membership { voters: state.get_voters().to_vec(), learners: state.get_learners().to_vec() };
        membership.voters.sort_unstable();
        membership.learners.sort_unstable();
        membership
    }
}

/// What a membership change does with its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Makes it a voter, whether it was a learner or unknown.
    AddVoter,
    /// Adds it without a vote.
    AddLearner,
    /// Removes it.
    Remove,
}

/// One change of Raft's membership. How an entry holds it, with what becomes of the member's record, is
/// [`crate::members::MemberChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembershipChange {
    /// What happens.
    pub kind: ChangeKind,
    /// To which member.
    pub member_id: u64,
}

impl MembershipChange {
    /// As raft-rs takes it.
    pub(super) fn to_conf_change(self) -> ConfChange {
        let mut change = ConfChange::default();
        change.set_change_type(match self.kind {
            ChangeKind::AddVoter => ConfChangeType::AddNode,
            ChangeKind::AddLearner => ConfChangeType::AddLearnerNode,
            ChangeKind::Remove => ConfChangeType::RemoveNode,
        });
        change.node_id = self.member_id;
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_read_back_as_they_were_written() {
        for membership in [
            Membership::default(),
            Membership::single(7),
            Membership { voters: vec![1, 2, u64::MAX], learners: vec![4] },
        ] {
            let bytes = membership.to_bytes();
            assert_eq!(Membership::from_bytes(&bytes), Ok(membership));
            for length in 0..bytes.len() {
                assert!(Membership::from_bytes(&bytes[..length]).is_err());
            }
        }
        assert_eq!(Membership::from_bytes(&[9, 0, 0]), Err(MembershipError::UnknownVersion(9)));
    }
}
