//! Everything that honest replicas tell each other passes through frames and checks.
//!
//! `CLUSTER_SEEDS=FIRST..LAST` replays a seed that failed, or runs many.

mod common;

use bytes::BytesMut;
use common::{Node, drain, facts, learner_4, node, peers};
use garboard_transport::{FrameReader, Rejection, encode, validate};
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use raft::storage::MemStorage;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Replicas joined by frames. A message is checked right before it is given to raft-rs.
struct Cluster {
    seed: u64,
    nodes: BTreeMap<u64, Node>,
    /// Frames, each with the member on whose connection it travels.
    wire: VecDeque<(u64, Vec<u8>)>,
    seen: BTreeSet<u32>,
    said: crc32fast::Hasher,
    /// Messages to or from these are lost.
    cut_off: BTreeSet<u64>,
    /// A fixed sequence that looks random, for the order of delivery.
    random: u64,
    lose_one_in: u64,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        // Member 4 is there from the start, and nobody talks to it before it is added.
        let nodes = [1, 2, 3, 4].map(|id| (id, node(id, &[1, 2, 3])));
        Self {
            seed,
            nodes: nodes.into(),
            wire: VecDeque::new(),
            seen: BTreeSet::new(),
            said: crc32fast::Hasher::new(),
            cut_off: BTreeSet::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            lose_one_in: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn send(&mut self, sender: u64, messages: Vec<Message>) {
        for message in messages {
            self.seen.insert(message.get_msg_type() as u32);
            let mut frame = BytesMut::new();
            encode(7, &message, &mut frame).expect("honest messages are within the bounds");
            self.said.update(&frame);
            self.wire.push_back((sender, frame.to_vec()));
        }
    }

    fn deliver(&mut self) {
        while !self.wire.is_empty() {
            let reorder = self.draw(4) == 0;
            let at = if reorder { self.draw(self.wire.len() as u64) as usize } else { 0 };
            let (sender, frame) = self.wire.remove(at).expect("the place is within the queue");
            let lost = self.lose_one_in > 0 && self.draw(self.lose_one_in) == 0;
            let mut reader = FrameReader::new();
            assert_eq!(reader.handle_bytes(&frame), Ok(frame.len()));
            let message = reader.poll_frame().expect("a whole frame").raft().expect("a message").clone();
            let to = message.to;
            if lost || self.cut_off.contains(&sender) || self.cut_off.contains(&to) {
                continue;
            }
            let node = self.nodes.get_mut(&to).expect("the member exists");
            let known = peers(node);
            let checked = validate(&message, sender, &facts(node, &known, &[]));
            // raft-rs passes a request on in the name of the member that it had it from. That is the one thing which is
            // refused from an honest replica: who asked asks again.
            let passed_on = message.get_msg_type() == MessageType::MsgReadIndex && message.from != sender;
            if passed_on && checked == Err(Rejection::WrongSender { from: message.from, member: sender }) {
                continue;
            }
            assert_eq!(checked, Ok(()), "seed {}: {message:?} at {:?}", self.seed, facts(node, &known, &[]));
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            let _ = node.step(message);
            let sent = drain(node);
            self.send(to, sent);
            if is_snapshot {
                let leader = self.nodes.get_mut(&sender).expect("the member exists");
                leader.report_snapshot(to, raft::SnapshotStatus::Finish);
            }
        }
    }

    fn run(&mut self, ticks: usize) {
        for _ in 0..ticks {
            for id in self.nodes.keys().copied().collect::<Vec<_>>() {
                let node = self.nodes.get_mut(&id).expect("the member exists");
                node.tick();
                let sent = drain(node);
                self.send(id, sent);
            }
            self.deliver();
        }
    }

    fn leader(&self) -> Option<u64> {
        let leads = |(id, node): (&u64, &Node)| {
            (node.raft.state == StateRole::Leader && !self.cut_off.contains(id)).then_some(*id)
        };
        self.nodes.iter().filter_map(leads).next()
    }

    fn at_leader(&mut self, act: impl FnOnce(&mut Node)) {
        if let Some(id) = self.leader() {
            let node = self.nodes.get_mut(&id).expect("the member exists");
            act(node);
            let sent = drain(node);
            self.send(id, sent);
        }
        self.run(20);
    }
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("CLUSTER_SEEDS") else { return 1..21 };
    let bounds = text.split_once("..").and_then(|(first, last)| Some(first.parse().ok()?..last.parse().ok()?));
    bounds.unwrap_or_else(|| panic!("CLUSTER_SEEDS is {text:?} and not FIRST..LAST"))
}

#[test]
fn honest_replicas_are_never_refused() {
    for seed in seeds() {
        run_scenario(seed);
    }
}

#[test]
fn a_seed_replays_the_same_run() {
    assert_eq!(run_scenario(5), run_scenario(5));
}

/// Elections, losses, a snapshot, a change of membership, reads and a transfer. Gives a checksum of all that was said.
fn run_scenario(seed: u64) -> u32 {
    let mut cluster = Cluster::new(seed);
    cluster.run(60);
    assert!(cluster.leader().is_some(), "seed {seed}");
    // One member misses so much that only a snapshot brings it back.
    let left_out = (1..=3).find(|id| Some(*id) != cluster.leader()).expect("two follow");
    cluster.cut_off.insert(left_out);
    for _ in 0..10 {
        cluster.at_leader(|node| drop(node.propose(vec![], b"value".to_vec())));
    }
    let storage = |node: &Node| -> MemStorage { node.store().clone() };
    cluster.at_leader(|node| {
        let committed = node.raft.raft_log.committed;
        storage(node).wl().compact(committed).expect("the log reaches its commit index");
    });
    cluster.cut_off.clear();
    cluster.run(60);
    cluster.at_leader(|node| node.read_index(b"a read".to_vec()));
    cluster.at_leader(|node| drop(node.propose_conf_change(vec![], learner_4())));
    let follower = (1..=3).find(|id| Some(*id) != cluster.leader()).expect("two follow");
    cluster.nodes.get_mut(&follower).expect("it exists").read_index(b"another read".to_vec());
    cluster.at_leader(|node| node.transfer_leader(follower));
    // Losses, and a leader that is cut off while it still takes proposals.
    cluster.lose_one_in = 5;
    for _ in 0..5 {
        let leader = cluster.leader();
        cluster.at_leader(|node| drop(node.propose(vec![], b"value".to_vec())));
        cluster.cut_off = leader.into_iter().collect();
        if let Some(node) = leader.and_then(|id| cluster.nodes.get_mut(&id)) {
            let _ = node.propose(vec![], b"never acknowledged".to_vec());
        }
        cluster.run(60);
        cluster.cut_off.clear();
        cluster.run(60);
    }
    cluster.lose_one_in = 0;
    cluster.run(100);
    let committed: BTreeSet<u64> = cluster.nodes.values().map(|node| node.raft.raft_log.committed).collect();
    assert_eq!(committed.len(), 1, "seed {seed}: all agree in the end");
    for expected in [
        MessageType::MsgAppend,
        MessageType::MsgAppendResponse,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestPreVoteResponse,
        MessageType::MsgRequestVote,
        MessageType::MsgRequestVoteResponse,
        MessageType::MsgHeartbeat,
        MessageType::MsgHeartbeatResponse,
        MessageType::MsgSnapshot,
        MessageType::MsgTimeoutNow,
    ] {
        assert!(cluster.seen.contains(&(expected as u32)), "seed {seed} never sent a {expected:?}");
    }
    cluster.said.finalize()
}
