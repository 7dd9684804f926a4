//! What a peer's message must satisfy before raft-rs may see it.
//!
//! raft-rs trusts its peers: some messages end its process, and some make it lose or invent committed entries. A peer is
//! authenticated, but it may be broken, of another release, or restored from an old disk, so every index and term is
//! bounded here first. What a plausible lie can do (a vote or an acknowledgement that is simply untrue) no check can
//! see: Raft does not survive liars, and this does not try to.

use crate::format;
use crate::limits::{self, INDEX_MAX, TERM_MAX};
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType};

/// What the replica knows when the message arrives. Take it right before each `step`: each one may change all of it.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaFacts<'a> {
    /// This member.
    pub self_id: u64,
    /// raft-rs' current term.
    pub term: u64,
    /// raft-rs' commit index, at most `last_index`.
    pub committed: u64,
    /// The last index of raft-rs' log, entries that are not yet durable included.
    pub last_index: u64,
    /// The members that the replica knows, voters and learners of both halves of a joint membership.
    pub peers: &'a [u64],
    /// Members that were removed. An id is never used again.
    pub removed: &'a [u64],
}

/// Why a message is not given to raft-rs.
///
/// The answer to each is to drop the message and count it. Closing the connection would be wrong: after a change of
/// leader an honest message that was long under way can be out of bounds too, and losing it costs nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// A message of a replica to itself.
    #[error("{0:?} comes from no peer")]
    Local(MessageType),
    /// Meant for another member.
    #[error("the message is for member {0:x}")]
    Misdirected(u64),
    /// Not from the member at the other end of the connection.
    #[error("member {member:x} sent a message in the name of {from:x}")]
    WrongSender {
        /// Whom the message names.
        from: u64,
        /// Whom the connection was authenticated as.
        member: u64,
    },
    /// From a member that is no longer one.
    #[error("member {0:x} was removed")]
    Removed(u64),
    /// A response or a forwarded request, from somebody who is no member.
    #[error("{0:x} is no member")]
    NotAMember(u64),
    /// A term of nought where there must be one.
    #[error("a {0:?} without a term")]
    NoTerm(MessageType),
    /// A term where there must be none.
    #[error("a {0:?} with a term")]
    UnexpectedTerm(MessageType),
    /// A term or an index beyond what can be.
    #[error("{field} of {value} is beyond what can be")]
    OutOfRange {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A part that this kind of message does not have.
    #[error("a {message_type:?} with {part}")]
    UnexpectedPart {
        /// The message's kind.
        message_type: MessageType,
        /// What it should not have.
        part: &'static str,
    },
    /// A proposal of nothing.
    #[error("a proposal without entries")]
    EmptyProposal,
    /// A change of membership that was proposed elsewhere.
    #[error("a forwarded change of membership")]
    ForwardedConfChange,
    /// A read request or its answer without exactly one context.
    #[error("a {0:?} that does not have exactly one context")]
    ReadContext(MessageType),
    /// A commit index that the log does not reach.
    #[error("commit {commit} is beyond the last index {last_index}")]
    CommitBeyondLog {
        /// What the message says.
        commit: u64,
        /// Where the log ends.
        last_index: u64,
    },
    /// An acknowledgement, or a part of one, of what was never sent.
    #[error("{field} of {value} is beyond the last index {last_index}")]
    ResponseBeyondLog {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Where the log ends.
        last_index: u64,
    },
    /// A position in a log whose term cannot be that.
    #[error("{field} of {log_term} at index {index} in a message of term {term}")]
    LogPosition {
        /// Which field.
        field: &'static str,
        /// The index.
        index: u64,
        /// The term that the message gives it.
        log_term: u64,
        /// The message's own term.
        term: u64,
    },
    /// An entry that does not follow the one before it.
    #[error("an entry of index {found} where {expected} must be")]
    EntryIndex {
        /// The index that follows.
        expected: u64,
        /// The entry's.
        found: u64,
    },
    /// An entry whose term is below the one before it, or above the message's.
    #[error("an entry of term {found}, not between {min} and {max}")]
    EntryTerm {
        /// The term before it.
        min: u64,
        /// The message's term.
        max: u64,
        /// The entry's.
        found: u64,
    },
    /// A snapshot message without one.
    #[error("a snapshot message without a snapshot")]
    NoSnapshot,
    /// A membership that cannot be.
    #[error("a membership in which {0}")]
    Membership(&'static str),
}

/// Checks a message that arrived on a connection that was authenticated as `member`, right before it goes to raft-rs.
pub fn validate(message: &Message, member: u64, facts: &ReplicaFacts<'_>) -> Result<(), Rejection> {
    assert!(facts.committed <= facts.last_index, "raft-rs never commits beyond its log");
    assert!(facts.last_index <= INDEX_MAX && facts.term <= TERM_MAX, "no message that passed has made more of them");
    check_addresses(message, member, facts)?;
    check_ranges(message)?;
    check_parts(message)?;
    match message.get_msg_type() {
        MessageType::MsgAppend => check_append(message),
        MessageType::MsgAppendResponse => check_append_response(message, facts),
        MessageType::MsgHeartbeat => check_heartbeat(message, facts),
        MessageType::MsgHeartbeatResponse => check_response_bound("commit", message.commit, message, facts),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => check_vote_request(message),
        MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
            check_position("commit term", message.commit, message.commit_term, message.term)
        }
        MessageType::MsgSnapshot => check_snapshot(message, facts),
        MessageType::MsgPropose => check_proposal(message),
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => check_read(message),
        MessageType::MsgTransferLeader | MessageType::MsgTimeoutNow => Ok(()),
        local @ (MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum) => Err(Rejection::Local(local)),
    }
}

/// Whose message it is. A leader or a candidate may be a member whose addition this replica has not applied yet, so
/// only what a leader receives must come from a known one: the rest is bound to the connection, which is authenticated.
fn check_addresses(message: &Message, member: u64, facts: &ReplicaFacts<'_>) -> Result<(), Rejection> {
    let (message_type, from) = (message.get_msg_type(), message.from);
    if format::message_kind(message_type).is_none() {
        return Err(Rejection::Local(message_type));
    }
    if message.to != facts.self_id {
        return Err(Rejection::Misdirected(message.to));
    }
    if from != member || from == facts.self_id || from == raft::INVALID_ID {
        return Err(Rejection::WrongSender { from, member });
    }
    if facts.removed.contains(&from) {
        return Err(Rejection::Removed(from));
    }
    let for_a_leader = matches!(
        message_type,
        MessageType::MsgAppendResponse
            | MessageType::MsgHeartbeatResponse
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgTransferLeader
            | MessageType::MsgReadIndex
            | MessageType::MsgPropose
    );
    if for_a_leader && !facts.peers.contains(&from) {
        return Err(Rejection::NotAMember(from));
    }
    Ok(())
}

/// Terms and indices that can be at all, so that no sum of them overflows.
fn check_ranges(message: &Message) -> Result<(), Rejection> {
    let message_type = message.get_msg_type();
    // raft-rs sends these two without a term. With one, the leader would step down for it before it looked further.
    let without_term = matches!(message_type, MessageType::MsgPropose | MessageType::MsgReadIndex);
    if without_term && message.term != 0 {
        return Err(Rejection::UnexpectedTerm(message_type));
    }
    if !without_term && message.term == 0 {
        return Err(Rejection::NoTerm(message_type));
    }
    let metadata = message.get_snapshot().get_metadata();
    let terms = [
        ("term", message.term),
        ("log term", message.log_term),
        ("commit term", message.commit_term),
        ("snapshot term", metadata.term),
    ];
    let indices = [
        ("index", message.index),
        ("commit", message.commit),
        ("reject hint", message.reject_hint),
        ("requested snapshot", message.request_snapshot),
        ("snapshot index", metadata.index),
    ];
    let bounded = terms.map(|field| (field, TERM_MAX)).into_iter().chain(indices.map(|field| (field, INDEX_MAX)));
    for ((field, value), max) in bounded {
        if value > max {
            return Err(Rejection::OutOfRange { field, value });
        }
    }
    Ok(())
}

/// Parts that a message of its kind does not have are no business of raft-rs, which would keep or forward them.
fn check_parts(message: &Message) -> Result<(), Rejection> {
    let message_type = message.get_msg_type();
    let has_entries = matches!(
        message_type,
        MessageType::MsgAppend | MessageType::MsgPropose | MessageType::MsgReadIndex | MessageType::MsgReadIndexResp
    );
    if !has_entries && !message.get_entries().is_empty() {
        return Err(Rejection::UnexpectedPart { message_type, part: "entries" });
    }
    if message_type != MessageType::MsgSnapshot && message.has_snapshot() {
        return Err(Rejection::UnexpectedPart { message_type, part: "a snapshot" });
    }
    Ok(())
}

/// A position in a log: only index nought has term nought, and no entry is younger than the message that names it.
fn check_position(field: &'static str, index: u64, log_term: u64, term: u64) -> Result<(), Rejection> {
    if (index == 0) != (log_term == 0) || log_term > term {
        return Err(Rejection::LogPosition { field, index, log_term, term });
    }
    Ok(())
}

fn check_append(message: &Message) -> Result<(), Rejection> {
    check_position("log term", message.index, message.log_term, message.term)?;
    let (mut index, mut term) = (message.index, message.log_term.max(1));
    for entry in message.get_entries() {
        check_successor(entry, index, term, message.term)?;
        (index, term) = (entry.index, entry.term);
    }
    Ok(())
}

fn check_successor(entry: &Entry, index: u64, term: u64, message_term: u64) -> Result<(), Rejection> {
    if entry.index != index + 1 {
        return Err(Rejection::EntryIndex { expected: index + 1, found: entry.index });
    }
    if entry.index > INDEX_MAX {
        return Err(Rejection::OutOfRange { field: "entry index", value: entry.index });
    }
    if entry.term < term || entry.term > message_term {
        return Err(Rejection::EntryTerm { min: term, max: message_term, found: entry.term });
    }
    Ok(())
}

/// A response names positions in this leader's log. One of an older term is ignored by raft-rs and may name what has
/// been replaced since.
fn check_response_bound(
    field: &'static str,
    value: u64,
    message: &Message,
    facts: &ReplicaFacts<'_>,
) -> Result<(), Rejection> {
    if message.term >= facts.term && value > facts.last_index {
        return Err(Rejection::ResponseBeyondLog { field, value, last_index: facts.last_index });
    }
    Ok(())
}

fn check_append_response(message: &Message, facts: &ReplicaFacts<'_>) -> Result<(), Rejection> {
    check_response_bound("index", message.index, message, facts)?;
    check_response_bound("commit", message.commit, message, facts)?;
    check_response_bound("reject hint", message.reject_hint, message, facts)?;
    check_response_bound("requested snapshot", message.request_snapshot, message, facts)?;
    if message.log_term > message.term {
        let (index, log_term, term) = (message.reject_hint, message.log_term, message.term);
        return Err(Rejection::LogPosition { field: "hint term", index, log_term, term });
    }
    Ok(())
}

/// A leader tells each follower only what that follower has acknowledged, so the commit index is within its log.
fn check_heartbeat(message: &Message, facts: &ReplicaFacts<'_>) -> Result<(), Rejection> {
    if message.term >= facts.term && message.commit > facts.last_index {
        return Err(Rejection::CommitBeyondLog { commit: message.commit, last_index: facts.last_index });
    }
    Ok(())
}

/// The end of a candidate's log is older than the term that it campaigns for, and its commit index is within its log.
fn check_vote_request(message: &Message) -> Result<(), Rejection> {
    check_position("log term", message.index, message.log_term, message.term - 1)?;
    check_position("commit term", message.commit, message.commit_term, message.log_term)?;
    if message.commit > message.index {
        return Err(Rejection::CommitBeyondLog { commit: message.commit, last_index: message.index });
    }
    Ok(())
}

fn check_snapshot(message: &Message, facts: &ReplicaFacts<'_>) -> Result<(), Rejection> {
    let metadata = message.get_snapshot().get_metadata();
    if !message.has_snapshot() || metadata.index == 0 {
        return Err(Rejection::NoSnapshot);
    }
    check_position("snapshot term", metadata.index, metadata.term, message.term)?;
    check_membership(metadata.get_conf_state(), facts.self_id)
}

/// The rules that raft-rs asserts about a membership, and that this member is in it.
fn check_membership(membership: &ConfState, self_id: u64) -> Result<(), Rejection> {
    let (voters, learners) = (membership.get_voters(), membership.get_learners());
    let (outgoing, learners_next) = (membership.get_voters_outgoing(), membership.get_learners_next());
    let rule = |holds: bool, broken: &'static str| if holds { Ok(()) } else { Err(Rejection::Membership(broken)) };
    rule(!voters.is_empty(), "nobody votes")?;
    for list in [voters, learners, outgoing, learners_next] {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        rule(!sorted.contains(&raft::INVALID_ID), "a member has no id")?;
        rule(sorted.windows(2).all(|pair| pair[0] != pair[1]), "a member is listed twice")?;
    }
    rule(!learners.iter().any(|id| voters.contains(id) || outgoing.contains(id)), "a learner votes")?;
    rule(
        learners_next.iter().all(|id| outgoing.contains(id) && !voters.contains(id)),
        "a voter that becomes a learner is not among those who go",
    )?;
    let joint = !outgoing.is_empty();
    rule(joint || (learners_next.is_empty() && !membership.auto_leave), "a change is half done that has not begun")?;
    let known = [voters, learners, outgoing].iter().any(|list| list.contains(&self_id));
    rule(known, "this member is missing")
}

/// Changes of membership are decided where they are proposed. raft-rs would decode a forwarded one with its own
/// decoder, which no bytes from the network may reach.
fn check_proposal(message: &Message) -> Result<(), Rejection> {
    if message.get_entries().is_empty() {
        return Err(Rejection::EmptyProposal);
    }
    if message.get_entries().iter().any(|entry| entry.get_entry_type() != EntryType::EntryNormal) {
        return Err(Rejection::ForwardedConfChange);
    }
    Ok(())
}

fn check_read(message: &Message) -> Result<(), Rejection> {
    match message.get_entries() {
        [only] if (1..=limits::CONTEXT_BYTES_MAX as usize).contains(&only.get_data().len()) => Ok(()),
        _ => Err(Rejection::ReadContext(message.get_msg_type())),
    }
}
