//! Replicas of raft-rs for tests: what it does with a message shows why the message must be refused or let through.

#![allow(dead_code, reason = "each test uses its part")]

use garboard_transport::ReplicaFacts;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType, Message, MessageType};
use raft::storage::MemStorage;
use raft::{Config, RawNode, StateRole};

pub type Node = RawNode<MemStorage>;

pub fn node(id: u64, voters: &[u64]) -> Node {
    let config = Config {
        id,
        election_tick: 10,
        // raft-rs draws election timeouts from a generator of its own, from a range that here has one value: a test that
        // fails fails again.
        min_election_tick: 10 + usize::try_from(id).expect("a small id"),
        max_election_tick: 11 + usize::try_from(id).expect("a small id"),
        heartbeat_tick: 3,
        check_quorum: true,
        pre_vote: true,
        ..Config::default()
    };
    let storage = MemStorage::new_with_conf_state((voters.to_vec(), Vec::new()));
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, storage, &logger).expect("the configuration is valid")
}

/// Persists what the node has to persist and gives what it wants sent.
pub fn drain(node: &mut Node) -> Vec<Message> {
    let mut sent = Vec::new();
    while node.has_ready() {
        let mut ready = node.ready();
        sent.extend(ready.take_messages());
        let storage = node.store().clone();
        if ready.snapshot().get_metadata().index != 0 {
            storage.wl().apply_snapshot(ready.snapshot().clone()).expect("the snapshot is newer than the log");
        }
        storage.wl().append(ready.entries()).expect("the entries follow the log");
        if let Some(hard_state) = ready.hs() {
            storage.wl().set_hardstate(hard_state.clone());
        }
        sent.extend(ready.take_persisted_messages());
        apply(node, ready.take_committed_entries());
        let mut light = node.advance(ready);
        if let Some(commit) = light.commit_index() {
            storage.wl().mut_hard_state().commit = commit;
        }
        sent.extend(light.take_messages());
        apply(node, light.take_committed_entries());
        node.advance_apply();
    }
    sent
}

/// The one change of membership that the tests make: member 4 begins to learn.
pub fn learner_4() -> ConfChangeV2 {
    let mut change = ConfChangeSingle::default();
    change.set_change_type(ConfChangeType::AddLearnerNode);
    change.node_id = 4;
    let mut changes = ConfChangeV2::default();
    changes.set_changes(vec![change].into());
    changes
}

fn apply(node: &mut Node, entries: Vec<Entry>) {
    for entry in entries {
        if entry.get_entry_type() != EntryType::EntryNormal {
            let conf_state = node.apply_conf_change(&learner_4()).expect("the change is possible");
            node.store().wl().set_conf_state(conf_state);
        }
    }
}

/// The members that a node knows.
pub fn peers(node: &Node) -> Vec<u64> {
    node.raft.prs().iter().map(|(&id, _)| id).collect()
}

pub fn facts<'a>(node: &Node, peers: &'a [u64], removed: &'a [u64]) -> ReplicaFacts<'a> {
    ReplicaFacts {
        self_id: node.raft.id,
        term: node.raft.term,
        committed: node.raft.raft_log.committed,
        last_index: node.raft.raft_log.last_index(),
        peers,
        removed,
    }
}

/// A message with its addresses and term.
pub fn message(message_type: MessageType, from: u64, to: u64, term: u64) -> Message {
    let mut message = Message { from, to, term, ..Message::default() };
    message.set_msg_type(message_type);
    message
}

pub fn entry(term: u64, index: u64, data: &'static [u8]) -> Entry {
    Entry { term, index, data: data.into(), ..Entry::default() }
}

/// Node 1 of three, leader of its first term, whose first entry the others have acknowledged.
pub fn leader() -> Node {
    let mut node = node(1, &[1, 2, 3]);
    node.campaign().expect("a follower may campaign");
    drain(&mut node);
    let vote = |message_type, term| message(message_type, 2, 1, term);
    node.step(vote(MessageType::MsgRequestPreVoteResponse, node.raft.term + 1)).expect("a vote");
    drain(&mut node);
    node.step(vote(MessageType::MsgRequestVoteResponse, node.raft.term)).expect("a vote");
    drain(&mut node);
    assert_eq!(node.raft.state, StateRole::Leader);
    let mut acknowledged = message(MessageType::MsgAppendResponse, 2, 1, node.raft.term);
    acknowledged.index = node.raft.raft_log.last_index();
    node.step(acknowledged).expect("an acknowledgement");
    drain(&mut node);
    assert!(node.raft.commit_to_current_term());
    node
}

/// Node 1 of three, which follows node 2 at term 5 and has one entry, of index 1, that is not committed.
pub fn follower() -> Node {
    let mut node = node(1, &[1, 2, 3]);
    let mut append = message(MessageType::MsgAppend, 2, 1, 5);
    append.set_entries(vec![entry(5, 1, b"one")].into());
    node.step(append).expect("an append");
    drain(&mut node);
    assert_eq!((node.raft.term, node.raft.raft_log.last_index(), node.raft.raft_log.committed), (5, 1, 0));
    node
}
