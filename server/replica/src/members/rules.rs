//! When the members may be changed without losing the quorum, as etcd's `--strict-reconfig-check` decides it.

use core::time::Duration;
use std::collections::BTreeMap;

use super::Members;
use crate::error::Error;
use crate::limits::CONNECTED_MIN;

/// A learner may vote once it holds this share of what the leader holds, in hundredths.
const CAUGHT_UP_PERCENT: u128 = 90;

/// Whom this member is connected to.
#[derive(Clone, Copy, Debug)]
pub struct Connectivity<'a> {
    /// This member.
    pub own_id: u64,
    /// Since when each peer has been connected without a break; those that are not connected are not in it.
    pub since: &'a BTreeMap<u64, Duration>,
    /// The time.
    pub now: Duration,
}

impl Connectivity<'_> {
    /// Whether a member is connected at all; this one always is.
    fn is_active(&self, id: u64) -> bool {
        id == self.own_id || self.since.contains_key(&id)
    }

    /// How many of the voters have been connected for so long that it counts, this one included.
    fn settled_voters(&self, members: &Members) -> usize {
        let settled =
            |id: u64| id == self.own_id || self.since.get(&id).is_some_and(|since| *since + CONNECTED_MIN < self.now);
        members.voters().filter(|member| settled(member.id)).count()
    }
}

fn quorum(count: usize) -> usize {
    count / 2 + 1
}

/// Voters that have told their names, without one, and how many voters those are.
fn started_voters(members: &Members, without: Option<u64>) -> (usize, usize) {
    let voters = members.voters().filter(|member| Some(member.id) != without);
    voters.fold((0, 0), |(started, count), member| (started + usize::from(member.is_started()), count + 1))
}

/// Whether a member may join.
///
/// # Errors
/// Too few members have started, or too few are connected, for the quorum of a cluster with one more that is down.
pub fn may_add(members: &Members, is_learner: bool, connectivity: &Connectivity<'_>) -> Result<(), Error> {
    let (started, voters) = started_voters(members, None);
    // A lone member may always get company.
    let alone = started == 1 && voters == 1;
    if !is_learner && !alone && started < quorum(voters + 1) {
        return Err(Error::NotEnoughStarted);
    }
    if voters != 1 && connectivity.settled_voters(members) < quorum(voters + 1) {
        return Err(Error::Unhealthy);
    }
    Ok(())
}

/// Whether a member may be removed.
///
/// # Errors
/// Too few of the others have started, or too few are connected.
pub fn may_remove(members: &Members, id: u64, connectivity: &Connectivity<'_>) -> Result<(), Error> {
    if members.get(id).is_some_and(|member| member.is_learner) {
        return Ok(());
    }
    let (started, voters) = started_voters(members, Some(id));
    if started < quorum(voters) {
        return Err(Error::NotEnoughStarted);
    }
    // One that is down takes no part in the quorum that there is.
    if !connectivity.is_active(id) {
        return Ok(());
    }
    let count = members.voters().count();
    let left = connectivity.settled_voters(members).saturating_sub(1);
    if left < quorum(count.saturating_sub(1)) { Err(Error::Unhealthy) } else { Ok(()) }
}

/// Whether a learner may vote, as far as the others are concerned.
///
/// # Errors
/// Too few members have started.
pub fn may_promote(members: &Members) -> Result<(), Error> {
    let (started, voters) = started_voters(members, None);
    if started + 1 < quorum(voters + 1) { Err(Error::NotEnoughStarted) } else { Ok(()) }
}

/// Whether a learner holds enough of what the leader holds.
///
/// # Errors
/// It does not.
pub fn is_caught_up(learner_match: u64, leader_match: u64) -> Result<(), Error> {
    let (learner, leader) = (u128::from(learner_match), u128::from(leader_match));
    if learner * 100 < leader * CAUGHT_UP_PERCENT { Err(Error::LearnerNotReady) } else { Ok(()) }
}

/// Whether there is room for one more learner.
///
/// # Errors
/// There are as many as there may be.
pub fn has_room_for_learner(members: &Members, learners_max: usize) -> Result<(), Error> {
    let learners = members.iter().filter(|member| member.is_learner).count();
    if learners >= learners_max { Err(Error::TooManyLearners) } else { Ok(()) }
}
