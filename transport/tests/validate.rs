//! Each check, with what raft-rs does when the message gets through.

mod common;

use common::{Node, drain, entry, facts, follower, leader, message, node, peers};
use garboard_transport::limits::{INDEX_MAX, TERM_MAX};
use garboard_transport::{Rejection, validate};
use raft::StateRole;
use raft::eraftpb::{EntryType, Message, MessageType, Snapshot};
use std::panic::{AssertUnwindSafe, catch_unwind};

type SetField = fn(&mut Message, u64);

/// Checks a message as if it came over the connection of the member that it names.
fn check(node: &Node, message: &Message) -> Result<(), Rejection> {
    validate(message, message.from, &facts(node, &peers(node), &[]))
}

/// Whether raft-rs ends its process over a message.
fn panics(node: &mut Node, message: Message) -> bool {
    catch_unwind(AssertUnwindSafe(|| {
        let _ = node.step(message);
        drain(node);
    }))
    .is_err()
}

#[test]
fn an_empty_proposal_would_end_the_leader_s_process() {
    let mut leader = leader();
    let proposal = message(MessageType::MsgPropose, 2, 1, 0);
    assert_eq!(check(&leader, &proposal), Err(Rejection::EmptyProposal));
    assert!(panics(&mut leader, proposal));
}

#[test]
fn an_empty_read_index_would_end_the_leader_s_process() {
    let mut leader = leader();
    let mut read = message(MessageType::MsgReadIndex, 2, 1, 0);
    assert_eq!(check(&leader, &read), Err(Rejection::ReadContext(MessageType::MsgReadIndex)));
    assert!(panics(&mut leader, read.clone()));
    // Without a context no heartbeat response can answer it: the reader would wait for ever.
    read.set_entries(vec![entry(0, 0, b"")].into());
    assert_eq!(check(&leader, &read), Err(Rejection::ReadContext(MessageType::MsgReadIndex)));
    read.set_entries(vec![entry(0, 0, b"read 1")].into());
    assert_eq!(check(&leader, &read), Ok(()));
    read.set_entries(vec![entry(0, 0, b"read 1"), entry(0, 0, b"read 2")].into());
    assert_eq!(check(&leader, &read), Err(Rejection::ReadContext(MessageType::MsgReadIndex)));
}

#[test]
fn a_heartbeat_commit_beyond_the_log_would_end_the_follower_s_process() {
    let mut follower = follower();
    let mut heartbeat = message(MessageType::MsgHeartbeat, 2, 1, 5);
    heartbeat.commit = 1;
    assert_eq!(check(&follower, &heartbeat), Ok(()));
    heartbeat.commit = 2;
    assert_eq!(check(&follower, &heartbeat), Err(Rejection::CommitBeyondLog { commit: 2, last_index: 1 }));
    assert!(panics(&mut follower, heartbeat));
}

#[test]
fn an_append_response_beyond_the_log_would_commit_what_nobody_else_has() {
    let mut leader = leader();
    leader.propose(vec![], b"only here".to_vec()).unwrap();
    drain(&mut leader);
    let (last, committed) = (leader.raft.raft_log.last_index(), leader.raft.raft_log.committed);
    assert_eq!(committed, last - 1);
    let mut response = message(MessageType::MsgAppendResponse, 3, 1, leader.raft.term);
    response.index = last + 50;
    let refused = Rejection::ResponseBeyondLog { field: "index", value: last + 50, last_index: last };
    assert_eq!(check(&leader, &response), Err(refused));
    // The follower that claims it cannot have it: its log ends elsewhere. raft-rs counts it all the same.
    let _ = catch_unwind(AssertUnwindSafe(|| leader.step(response)));
    assert_eq!(leader.raft.raft_log.committed, last);
}

#[test]
fn every_other_position_in_a_response_is_bounded_by_the_log() {
    let leader = leader();
    let last = leader.raft.raft_log.last_index();
    let set: [(&str, SetField); 3] = [
        ("commit", |message, value| message.commit = value),
        ("reject hint", |message, value| message.reject_hint = value),
        ("requested snapshot", |message, value| message.request_snapshot = value),
    ];
    for (field, set) in set {
        let mut response = message(MessageType::MsgAppendResponse, 2, 1, leader.raft.term);
        set(&mut response, last);
        assert_eq!(check(&leader, &response), Ok(()), "{field}");
        set(&mut response, last + 1);
        let refused = Rejection::ResponseBeyondLog { field, value: last + 1, last_index: last };
        assert_eq!(check(&leader, &response), Err(refused));
    }
    let mut response = message(MessageType::MsgHeartbeatResponse, 2, 1, leader.raft.term);
    response.commit = last + 1;
    assert!(matches!(check(&leader, &response), Err(Rejection::ResponseBeyondLog { field: "commit", .. })));
}

#[test]
fn a_late_response_of_an_older_term_is_let_through_for_raft_to_ignore() {
    let mut follower = follower();
    let mut response = message(MessageType::MsgAppendResponse, 3, 1, 4);
    response.index = 90;
    assert_eq!(check(&follower, &response), Ok(()));
    assert!(!panics(&mut follower, response));
    assert_eq!(follower.raft.raft_log.committed, 0);
}

#[test]
fn a_reject_hint_at_the_end_of_numbers_would_overflow() {
    let mut leader = leader();
    let mut response = message(MessageType::MsgAppendResponse, 3, 1, leader.raft.term);
    (response.reject, response.reject_hint) = (true, u64::MAX);
    // Member 3 has acknowledged nothing, so the leader probes, and believes a rejection of what it probed.
    response.index = leader.raft.prs().get(3).unwrap().next_idx - 1;
    assert_eq!(check(&leader, &response), Err(Rejection::OutOfRange { field: "reject hint", value: u64::MAX }));
    assert!(panics(&mut leader, response));
}

#[test]
fn term_nought_would_pass_for_a_leader_of_any_term() {
    let mut follower = follower();
    let mut append = message(MessageType::MsgAppend, 3, 1, 0);
    (append.index, append.log_term, append.commit) = (1, 5, 1);
    assert_eq!(check(&follower, &append), Err(Rejection::NoTerm(MessageType::MsgAppend)));
    // Member 3 was never elected, and its word commits an entry and replaces the leader.
    follower.step(append).unwrap();
    assert_eq!((follower.raft.leader_id, follower.raft.raft_log.committed), (3, 1));
}

#[test]
fn a_forwarded_request_with_a_term_would_depose_the_leader() {
    for message_type in [MessageType::MsgReadIndex, MessageType::MsgPropose] {
        let mut leader = leader();
        let mut request = message(message_type, 2, 1, 900);
        request.set_entries(vec![entry(0, 0, b"x")].into());
        assert_eq!(check(&leader, &request), Err(Rejection::UnexpectedTerm(message_type)));
        let _ = leader.step(request);
        assert_eq!((leader.raft.state, leader.raft.term), (StateRole::Follower, 900));
    }
}

#[test]
fn a_term_at_the_end_of_numbers_would_end_the_process_at_the_next_election() {
    let mut follower = follower();
    let heartbeat = message(MessageType::MsgHeartbeat, 2, 1, u64::MAX);
    assert_eq!(check(&follower, &heartbeat), Err(Rejection::OutOfRange { field: "term", value: u64::MAX }));
    follower.step(heartbeat).unwrap();
    drain(&mut follower);
    let campaign = catch_unwind(AssertUnwindSafe(|| {
        let _ = follower.campaign();
    }));
    assert!(campaign.is_err());
}

#[test]
fn every_index_and_term_has_a_bound() {
    let follower = follower();
    let append = message(MessageType::MsgAppend, 2, 1, 5);
    let set: [(&str, u64, SetField); 6] = [
        ("term", TERM_MAX, |message, value| message.term = value),
        ("log term", TERM_MAX, |message, value| message.log_term = value),
        ("commit term", TERM_MAX, |message, value| message.commit_term = value),
        ("index", INDEX_MAX, |message, value| message.index = value),
        ("commit", INDEX_MAX, |message, value| message.commit = value),
        ("requested snapshot", INDEX_MAX, |message, value| message.request_snapshot = value),
    ];
    for (field, max, set) in set {
        let mut message = append.clone();
        set(&mut message, max + 1);
        assert_eq!(check(&follower, &message), Err(Rejection::OutOfRange { field, value: max + 1 }));
    }
    let mut last = append;
    (last.term, last.index, last.log_term) = (TERM_MAX, INDEX_MAX, 5);
    last.set_entries(vec![entry(5, INDEX_MAX + 1, b"")].into());
    let refused = Rejection::OutOfRange { field: "entry index", value: INDEX_MAX + 1 };
    assert_eq!(check(&follower, &last), Err(refused));
}

#[test]
fn an_append_far_beyond_the_log_with_term_nought_would_end_the_process_over_the_hole() {
    let mut follower = follower();
    let mut append = message(MessageType::MsgAppend, 2, 1, 5);
    (append.index, append.log_term) = (100, 0);
    append.set_entries(vec![entry(5, 101, b"")].into());
    assert!(matches!(check(&follower, &append), Err(Rejection::LogPosition { field: "log term", index: 100, .. })));
    // raft-rs says term nought of whatever it does not have, so this "matches".
    assert!(panics(&mut follower, append));
}

#[test]
fn entries_with_a_gap_would_be_counted_where_they_are_not() {
    let mut follower = follower();
    let mut append = message(MessageType::MsgAppend, 2, 1, 5);
    (append.index, append.log_term, append.commit) = (1, 5, 2);
    append.set_entries(vec![entry(5, 3, b"")].into());
    assert_eq!(check(&follower, &append), Err(Rejection::EntryIndex { expected: 2, found: 3 }));
    assert!(panics(&mut follower, append));
}

#[test]
fn an_entry_whose_term_falls_or_is_of_the_future_would_break_every_later_election() {
    let follower = follower();
    let mut append = message(MessageType::MsgAppend, 2, 1, 6);
    (append.index, append.log_term) = (1, 5);
    for (terms, found) in [([6, 5], 5), ([4, 6], 4), ([6, 7], 7), ([0, 6], 0)] {
        append.set_entries(vec![entry(terms[0], 2, b""), entry(terms[1], 3, b"")].into());
        let refused = check(&follower, &append).unwrap_err();
        assert!(matches!(refused, Rejection::EntryTerm { max: 6, found: f, .. } if f == found), "{refused:?}");
    }
    append.set_entries(vec![entry(5, 2, b""), entry(6, 3, b"")].into());
    assert_eq!(check(&follower, &append), Ok(()));
}

#[test]
fn a_message_in_another_member_s_name_would_vote_and_acknowledge_for_it() {
    let leader = leader();
    let facts_peers = peers(&leader);
    let response = message(MessageType::MsgAppendResponse, 3, 1, leader.raft.term);
    let checked = validate(&response, 2, &facts(&leader, &facts_peers, &[]));
    assert_eq!(checked, Err(Rejection::WrongSender { from: 3, member: 2 }));
    for from in [0, 1] {
        let own = message(MessageType::MsgHeartbeat, from, 1, 5);
        assert_eq!(check(&leader, &own), Err(Rejection::WrongSender { from, member: from }));
    }
}

#[test]
fn a_message_for_another_member_is_not_taken_for_one_s_own() {
    let follower = follower();
    let heartbeat = message(MessageType::MsgHeartbeat, 2, 3, 5);
    assert_eq!(check(&follower, &heartbeat), Err(Rejection::Misdirected(3)));
}

#[test]
fn a_removed_member_can_neither_campaign_nor_acknowledge() {
    let follower = follower();
    let known = peers(&follower);
    let facts = facts(&follower, &known, &[9]);
    for message_type in [MessageType::MsgRequestVote, MessageType::MsgAppend, MessageType::MsgAppendResponse] {
        let of_removed = message(message_type, 9, 1, 50);
        assert_eq!(validate(&of_removed, 9, &facts), Err(Rejection::Removed(9)));
    }
}

#[test]
fn a_leader_that_was_added_later_is_followed_but_its_vote_does_not_count_yet() {
    let follower = follower();
    assert_eq!(check(&follower, &message(MessageType::MsgHeartbeat, 8, 1, 6)), Ok(()));
    for message_type in
        [MessageType::MsgRequestVoteResponse, MessageType::MsgAppendResponse, MessageType::MsgTransferLeader]
    {
        assert_eq!(check(&follower, &message(message_type, 8, 1, 5)), Err(Rejection::NotAMember(8)));
    }
}

#[test]
fn what_a_replica_tells_itself_is_refused_from_a_peer() {
    let leader = leader();
    for local in [MessageType::MsgHup, MessageType::MsgBeat, MessageType::MsgUnreachable, MessageType::MsgCheckQuorum] {
        assert_eq!(check(&leader, &message(local, 2, 1, 1)), Err(Rejection::Local(local)));
    }
}

#[test]
fn a_forwarded_change_of_membership_would_reach_raft_rs_own_decoder() {
    let leader = leader();
    let mut proposal = message(MessageType::MsgPropose, 2, 1, 0);
    proposal.set_entries(vec![entry(0, 0, b"put")].into());
    assert_eq!(check(&leader, &proposal), Ok(()));
    for kind in [EntryType::EntryConfChange, EntryType::EntryConfChangeV2] {
        let mut change = entry(0, 0, b"\xff\xff\xff");
        change.set_entry_type(kind);
        proposal.set_entries(vec![entry(0, 0, b"put"), change].into());
        assert_eq!(check(&leader, &proposal), Err(Rejection::ForwardedConfChange));
    }
}

#[test]
fn a_candidate_whose_log_is_as_young_as_its_campaign_would_win_any_election() {
    let follower = follower();
    let request = |term, log_term, index, commit, commit_term| {
        let mut request = message(MessageType::MsgRequestVote, 2, 1, term);
        (request.log_term, request.index, request.commit, request.commit_term) = (log_term, index, commit, commit_term);
        request
    };
    assert_eq!(check(&follower, &request(6, 5, 9, 3, 5)), Ok(()));
    for (broken, field) in [
        (request(6, 6, 9, 3, 5), "log term"),
        (request(6, 0, 9, 3, 5), "log term"),
        (request(6, 4, 9, 3, 5), "commit term"),
        (request(6, 5, 9, 3, 0), "commit term"),
    ] {
        let refused = check(&follower, &broken).unwrap_err();
        assert!(matches!(refused, Rejection::LogPosition { field: f, .. } if f == field), "{refused:?}");
    }
    let refused = Rejection::CommitBeyondLog { commit: 10, last_index: 9 };
    assert_eq!(check(&follower, &request(6, 5, 9, 10, 5)), Err(refused));
}

#[test]
fn parts_that_a_message_does_not_have_are_refused() {
    let follower = follower();
    let mut heartbeat = message(MessageType::MsgHeartbeat, 2, 1, 5);
    heartbeat.set_entries(vec![entry(5, 2, b"")].into());
    assert!(matches!(check(&follower, &heartbeat), Err(Rejection::UnexpectedPart { part: "entries", .. })));
    let mut append = message(MessageType::MsgAppend, 2, 1, 5);
    append.set_snapshot(Snapshot::default());
    assert!(matches!(check(&follower, &append), Err(Rejection::UnexpectedPart { part: "a snapshot", .. })));
}

fn snapshot_message(voters: &[u64], learners: &[u64], outgoing: &[u64], next: &[u64], auto_leave: bool) -> Message {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (50, 5);
    let conf_state = metadata.mut_conf_state();
    (conf_state.voters, conf_state.learners) = (voters.to_vec(), learners.to_vec());
    (conf_state.voters_outgoing, conf_state.learners_next) = (outgoing.to_vec(), next.to_vec());
    conf_state.auto_leave = auto_leave;
    let mut message = message(MessageType::MsgSnapshot, 2, 1, 5);
    message.set_snapshot(snapshot);
    message
}

#[test]
fn a_snapshot_s_membership_that_cannot_be_would_end_the_process() {
    for (broken, ends_the_process) in [
        (snapshot_message(&[1, 2, 3], &[3], &[], &[], false), true),
        (snapshot_message(&[1, 2, 2], &[], &[], &[], false), false),
        (snapshot_message(&[1, 2, 3], &[], &[], &[4], false), true),
        (snapshot_message(&[1, 2, 3], &[], &[], &[], true), true),
        (snapshot_message(&[], &[1], &[], &[], false), true),
        (snapshot_message(&[2, 3], &[], &[], &[], false), false),
        (snapshot_message(&[1, 0], &[], &[], &[], false), true),
    ] {
        let mut follower = follower();
        let refused = check(&follower, &broken);
        assert!(matches!(refused, Err(Rejection::Membership(_))), "{refused:?}");
        let ended = panics(&mut follower, broken.clone());
        assert_eq!(ended, ends_the_process, "{broken:?}");
    }
}

#[test]
fn a_snapshot_with_a_possible_membership_passes() {
    let follower = follower();
    for good in [
        snapshot_message(&[1, 2, 3], &[4], &[], &[], false),
        snapshot_message(&[2, 3], &[1], &[], &[], false),
        snapshot_message(&[1, 2], &[], &[1, 2, 3], &[3], true),
    ] {
        assert_eq!(check(&follower, &good), Ok(()));
    }
}

#[test]
fn a_snapshot_message_without_a_snapshot_or_of_nothing_is_refused() {
    let follower = follower();
    let mut empty = message(MessageType::MsgSnapshot, 2, 1, 5);
    assert_eq!(check(&follower, &empty), Err(Rejection::NoSnapshot));
    empty.set_snapshot(Snapshot::default());
    assert_eq!(check(&follower, &empty), Err(Rejection::NoSnapshot));
    let mut future = snapshot_message(&[1, 2, 3], &[], &[], &[], false);
    future.mut_snapshot().mut_metadata().term = 6;
    assert!(matches!(check(&follower, &future), Err(Rejection::LogPosition { field: "snapshot term", .. })));
}

#[test]
fn an_empty_replica_takes_its_first_entries() {
    let mut fresh = node(1, &[1, 2, 3]);
    let mut append = message(MessageType::MsgAppend, 2, 1, 1);
    append.set_entries(vec![entry(1, 1, b"")].into());
    assert_eq!(check(&fresh, &append), Ok(()));
    assert!(!panics(&mut fresh, append));
    assert_eq!(fresh.raft.raft_log.last_index(), 1);
}
