//! Whom the findings of a check blame.

/// What a member has where the leader has a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// This hash.
    Hash(u32),
    /// No such revision, though it has applied as much.
    Short,
    /// More revisions, though it has not applied more.
    Ahead,
}

/// Whom the states of some members blame, in order of their ids: those that differ from what most of all `members` have;
/// member 0, which stands for all, where most agree on nothing; nobody where all are equal.
///
/// Members that were passed over count among the `members`, as in etcd: who agrees with them is not known.
pub fn judge(states: &[(u64, Seen)], members: usize) -> Vec<u64> {
    assert!(states.len() <= members, "a member has one state");
    let count = |seen: Seen| states.iter().filter(|(_, other)| *other == seen).count();
    let Some((_, first)) = states.first() else { return Vec::new() };
    if count(*first) == states.len() {
        return Vec::new();
    }
    let Some((_, most)) = states.iter().find(|(_, seen)| count(*seen) > members / 2) else { return vec![0] };
    let mut blamed: Vec<u64> = states.iter().filter(|(_, seen)| seen != most).map(|(id, _)| *id).collect();
    blamed.sort_unstable();
    blamed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hashes: &[u32], members: usize) -> Vec<u64> {
        let states: Vec<(u64, Seen)> = (1..).zip(hashes.iter().map(|hash| Seen::Hash(*hash))).collect();
        judge(&states, members)
    }

    #[test]
    fn equal_states_blame_nobody() {
        assert_eq!(of(&[], 3), []);
        assert_eq!(of(&[7], 3), []);
        assert_eq!(of(&[7, 7], 3), []);
        assert_eq!(of(&[7, 7, 7, 7, 7], 5), []);
    }

    #[test]
    fn the_few_are_blamed_whoever_leads() {
        assert_eq!(of(&[7, 7, 8], 3), [3]);
        assert_eq!(of(&[8, 7, 7], 3), [1]);
        assert_eq!(of(&[7, 8, 7, 9, 7], 5), [2, 4]);
        assert_eq!(of(&[7, 7, 7, 8], 5), [4]);
    }

    #[test]
    fn without_a_majority_of_all_members_the_cluster_is_blamed() {
        assert_eq!(of(&[7, 8], 2), [0]);
        assert_eq!(of(&[7, 8], 3), [0], "who agrees with the one that is passed over is not known");
        assert_eq!(of(&[7, 7, 8, 8], 4), [0]);
        assert_eq!(of(&[7, 7, 8], 4), [0]);
        assert_eq!(of(&[7, 7, 8, 8, 9], 5), [0]);
    }

    #[test]
    fn a_member_that_lost_a_revision_is_told_from_those_that_did_not() {
        let ahead = [(1, Seen::Hash(7)), (2, Seen::Ahead), (3, Seen::Ahead)];
        assert_eq!(judge(&ahead, 3), [1], "the leader lacks what most have");
        let short = [(1, Seen::Hash(7)), (2, Seen::Short), (3, Seen::Hash(7))];
        assert_eq!(judge(&short, 3), [2]);
    }
}
