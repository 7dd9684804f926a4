//! The members of a cluster: who they are, where they are reached, who has left for ever, and the rules of changing that.
//!
//! The records live in the *system* tree and are the same on every member. What adds, promotes or removes a member is an
//! entry of the log of the kind that changes Raft's membership, and its data says what becomes of the record: the two
//! change together or not at all. Names and URLs change by a command like any other.

mod codec;
pub mod rules;

use std::collections::{BTreeMap, BTreeSet};

use garboard_storage::{Paged, View};

pub use codec::MembersError;
pub(crate) use codec::{record_key, record_value, removed_key};

use crate::error::Error;
use crate::limits::{MEMBERS_MAX, URL_BYTES_MAX, URLS_PER_MEMBER_MAX};
use crate::raft::{ChangeKind, Membership, MembershipChange};
use crate::system::{MEMBER, REMOVED_MEMBER, SystemError};

/// What is known of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberRecord {
    /// Its id; never 0.
    pub id: u64,
    /// Its name; empty until it has told its own.
    pub name: String,
    /// Where other members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty until it has told its own.
    pub client_urls: Vec<String>,
    /// Whether it has no vote.
    pub is_learner: bool,
}

impl MemberRecord {
    /// Whether it has ever told its name.
    pub fn is_started(&self) -> bool {
        !self.name.is_empty()
    }
}

/// What a member says of itself once there is a leader to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// Where peers reach it. It counts only where the record has no such URLs: directories of before there were records.
    pub peer_urls: Vec<String>,
}

/// The members and the ids of those that were removed, which never come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    members: BTreeMap<u64, MemberRecord>,
    removed: BTreeSet<u64>,
}

/// Who asked for a change, so that its answer finds them wherever the change was proposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeOrigin {
    /// The member that was asked.
    pub member_id: u64,
    /// That member's start.
    pub boot: u64,
    /// The change's number there.
    pub sequence: u64,
}

/// What happens to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeAction {
    /// It joins, with a vote.
    AddVoter {
        /// Where peers reach it.
        peer_urls: Vec<String>,
    },
    /// It joins without a vote.
    AddLearner {
        /// Where peers reach it.
        peer_urls: Vec<String>,
    },
    /// It gets a vote.
    Promote,
    /// It leaves for ever.
    Remove,
    /// Peers reach it elsewhere.
    Update {
        /// Where.
        peer_urls: Vec<String>,
    },
    /// It tells its name and where clients reach it.
    Publish(Attributes),
}

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// Who waits for it.
    pub origin: ChangeOrigin,
    /// The member that it is about.
    pub member_id: u64,
    /// What happens.
    pub action: ChangeAction,
}

impl MemberChange {
    /// The change of Raft's membership that it brings, if it brings one: it then is an entry of its own.
    pub fn of_raft(&self) -> Option<MembershipChange> {
        let kind = match self.action {
            ChangeAction::AddVoter { .. } | ChangeAction::Promote => ChangeKind::AddVoter,
            ChangeAction::AddLearner { .. } => ChangeKind::AddLearner,
            ChangeAction::Remove => ChangeKind::Remove,
            ChangeAction::Update { .. } | ChangeAction::Publish(_) => return None,
        };
        Some(MembershipChange { kind, member_id: self.member_id })
    }
}

/// What members say to each other about changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberMessage {
    /// A change for the leader to make.
    Change(MemberChange),
    /// The leader does not make it.
    Refused {
        /// The asking member's start.
        boot: u64,
        /// The change's number there.
        sequence: u64,
        /// Why.
        error: Error,
    },
}

/// Whether a list of URLs is within bounds.
pub fn urls_fit(urls: &[String]) -> bool {
    urls.len() <= URLS_PER_MEMBER_MAX && urls.iter().all(|url| url.len() <= URL_BYTES_MAX)
}

impl Members {
    /// The members that a cluster starts with.
    pub fn founding(records: impl IntoIterator<Item = MemberRecord>) -> Members {
        let members: BTreeMap<u64, MemberRecord> = records.into_iter().map(|record| (record.id, record)).collect();
        assert!(!members.contains_key(&0), "no member has the id 0");
        assert!(members.len() <= MEMBERS_MAX, "clusters are small");
        Members { members, removed: BTreeSet::new() }
    }

    /// What the system tree holds. Members of Raft's that have no record, as those of a store of before there were any,
    /// get an empty one: every member sees the same.
    pub fn restore(view: &View<'_>, membership: &Membership) -> Paged<Result<Members, SystemError>> {
        let mut found = Members::default();
        let mut cursor = view.system_scan(&[MEMBER]);
        while let Some((key, value)) = cursor.next()? {
            let Some(record) = codec::read_record(&key, &value) else { return Ok(Err(SystemError('N'))) };
            found.members.insert(record.id, record);
        }
        let mut cursor = view.system_scan(&[REMOVED_MEMBER]);
        while let Some((key, _)) = cursor.next()? {
            let Some(id) = codec::read_removed(&key) else { return Ok(Err(SystemError('R'))) };
            found.removed.insert(id);
        }
        found.complete(membership);
        Ok(Ok(found))
    }

    /// Gives everyone in Raft's membership a record.
    pub fn complete(&mut self, membership: &Membership) {
        for (ids, is_learner) in [(&membership.voters, false), (&membership.learners, true)] {
            for id in ids {
                let empty = || MemberRecord { id: *id, is_learner, ..MemberRecord::default() };
                self.members.entry(*id).or_insert_with(empty);
            }
        }
    }

    /// The members, in order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &MemberRecord> {
        self.members.values()
    }

    /// The members that vote, in order of their ids.
    pub fn voters(&self) -> impl Iterator<Item = &MemberRecord> {
        self.iter().filter(|member| !member.is_learner)
    }

    /// A member.
    pub fn get(&self, id: u64) -> Option<&MemberRecord> {
        self.members.get(&id)
    }

    /// Whether a member of this id was removed. It never comes back.
    pub fn is_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }

    /// The ids of members that were removed.
    pub fn removed(&self) -> impl Iterator<Item = u64> {
        self.removed.iter().copied()
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none, as on a member that joins and has heard nothing yet.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether a change fits what is there, in the order in which etcd looks.
    ///
    /// # Errors
    /// Why it does not; it is then without effect.
    pub fn check(&self, change: &MemberChange) -> Result<(), Error> {
        let id = change.member_id;
        if self.removed.contains(&id) {
            return Err(Error::MemberNotFound);
        }
        let known = self.members.get(&id);
        match &change.action {
            ChangeAction::AddVoter { peer_urls } | ChangeAction::AddLearner { peer_urls } => {
                if known.is_some() || id == 0 {
                    return Err(Error::MemberExists);
                }
                self.check_urls(id, peer_urls)?;
                if self.members.len() >= MEMBERS_MAX { Err(Error::TooManyMembers) } else { Ok(()) }
            }
            ChangeAction::Promote => match known {
                None => Err(Error::MemberNotFound),
                Some(member) if !member.is_learner => Err(Error::MemberNotLearner),
                Some(_) => Ok(()),
            },
            ChangeAction::Remove => {
                let member = known.ok_or(Error::MemberNotFound)?;
                // Raft knows no cluster without voters.
                let is_last = !member.is_learner && self.voters().count() == 1;
                if is_last { Err(Error::NotEnoughStarted) } else { Ok(()) }
            }
            ChangeAction::Update { peer_urls } => {
                known.ok_or(Error::MemberNotFound)?;
                self.check_urls(id, peer_urls)
            }
            ChangeAction::Publish(_) => known.map(drop).ok_or(Error::MemberNotFound),
        }
    }

    /// No two members are reached by the same URL.
    fn check_urls(&self, id: u64, urls: &[String]) -> Result<(), Error> {
        if !urls_fit(urls) {
            return Err(Error::BadMemberUrls);
        }
        let mut others = self.members.values().filter(|other| other.id != id);
        let taken = others.any(|other| other.peer_urls.iter().any(|url| urls.contains(url)));
        if taken { Err(Error::PeerUrlExists) } else { Ok(()) }
    }

    /// Makes a change that was checked. Returns the id whose record is to be written.
    pub(crate) fn apply(&mut self, change: &MemberChange) {
        let id = change.member_id;
        match &change.action {
            ChangeAction::AddVoter { peer_urls } => self.add(id, peer_urls, false),
            ChangeAction::AddLearner { peer_urls } => self.add(id, peer_urls, true),
            ChangeAction::Promote => self.known(id).is_learner = false,
            ChangeAction::Remove => {
                self.members.remove(&id);
                self.removed.insert(id);
            }
            ChangeAction::Update { peer_urls } => self.known(id).peer_urls.clone_from(peer_urls),
            ChangeAction::Publish(attributes) => {
                let member = self.known(id);
                member.name.clone_from(&attributes.name);
                member.client_urls.clone_from(&attributes.client_urls);
                if member.peer_urls.is_empty() {
                    member.peer_urls.clone_from(&attributes.peer_urls);
                }
            }
        }
    }

    /// Removes everyone but one member, which votes from now on. Returns who left.
    pub(crate) fn keep_only(&mut self, id: u64) -> Vec<u64> {
        let others: Vec<u64> = self.members.keys().copied().filter(|other| *other != id).collect();
        for other in &others {
            self.members.remove(other);
            self.removed.insert(*other);
        }
        self.members.entry(id).or_insert_with(|| MemberRecord { id, ..MemberRecord::default() }).is_learner = false;
        others
    }

    fn add(&mut self, id: u64, peer_urls: &[String], is_learner: bool) {
        let record = MemberRecord { id, peer_urls: peer_urls.to_vec(), is_learner, ..MemberRecord::default() };
        let before = self.members.insert(id, record);
        assert!(before.is_none(), "a member is added once");
    }

    fn known(&mut self, id: u64) -> &mut MemberRecord {
        self.members.get_mut(&id).expect("a change of a member was checked")
    }
}

#[cfg(test)]
mod tests;
