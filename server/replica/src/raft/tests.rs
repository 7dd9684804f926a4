use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use garboard_wal::{Append, AppendNumber};
use raft::eraftpb::{Message, MessageType};

use super::*;

const ELECTION: Duration = Duration::from_millis(1_000);
const HEARTBEAT: Duration = Duration::from_millis(100);

fn config(id: u64) -> RaftConfig {
    RaftConfig {
        id,
        boot: 1,
        election_timeout: ELECTION,
        heartbeat_interval: HEARTBEAT,
        seed: id,
        catch_up_commands: 5_000,
    }
}

/// A member with a log that becomes durable when the test says so.
struct Node {
    driver: RaftDriver,
    appends: Vec<Append>,
    durable: usize,
    committed: Vec<garboard_wal::Entry>,
    reads: Vec<ReadConfirmed>,
    outbox: VecDeque<Message>,
}

impl Node {
    fn new(now: Duration, id: u64, restored: Restored) -> Node {
        let driver = RaftDriver::new(now, &config(id), restored);
        let (appends, committed, reads, outbox) = (vec![], vec![], vec![], VecDeque::new());
        let mut node = Node { driver, appends, durable: 0, committed, reads, outbox };
        node.poll();
        node
    }

    fn single() -> Node {
        Node::new(Duration::ZERO, 1, Restored { membership: Membership::single(1), ..Restored::default() })
    }

    fn poll(&mut self) {
        loop {
            let appends = &mut self.appends;
            let mut append = |append: Append| {
                appends.push(append);
                AppendNumber(u64::try_from(appends.len()).unwrap())
            };
            let Some(step) = self.driver.poll(&mut append) else { break };
            self.committed.extend(step.committed);
            self.reads.extend(step.reads);
            self.outbox.extend(step.messages);
        }
    }

    /// The first `count` appends are durable.
    fn make_durable(&mut self, count: usize) {
        self.durable = count;
        self.driver.handle_durable(AppendNumber(u64::try_from(count).unwrap()));
        self.poll();
    }

    fn propose(&mut self, data: &'static str) -> Result<Proposed, NotLeader> {
        let proposed = self.driver.propose(Bytes::from_static(data.as_bytes()));
        self.poll();
        proposed
    }

    fn committed_data(&self) -> Vec<&[u8]> {
        self.committed.iter().map(|entry| &entry.data[..]).filter(|data| !data.is_empty()).collect()
    }
}

#[test]
fn the_only_voter_leads_at_once_and_commits_nothing_that_is_not_durable() {
    let mut node = Node::single();
    assert_eq!(node.driver.role(), Role::Leader);
    assert!(!node.driver.knows_commit_index());
    let first = node.propose("a").unwrap();
    let second = node.propose("b").unwrap();
    assert_eq!((first.index, second.index), (2, 3), "index 1 is the leader's own entry");
    assert_eq!(node.appends.len(), 3, "several appends are in flight");
    assert!(node.committed.is_empty());
    node.make_durable(2);
    assert_eq!(node.committed_data(), [b"a"]);
    node.make_durable(3);
    assert_eq!(node.committed_data(), [b"a", b"b"]);
    assert!(node.driver.knows_commit_index());
}

#[test]
fn appends_carry_the_state_that_raft_must_not_forget() {
    let mut node = Node::single();
    node.make_durable(1);
    node.propose("a").unwrap();
    let state = node.appends[0].hard_state;
    assert_eq!((state.term, state.vote), (1, 1), "the vote for itself is in the first append");
    assert_eq!(node.appends[1].hard_state.commit, 1, "what is known to be committed rides along");
}

#[test]
fn a_read_index_is_asked_for_only_once_it_can_be_answered() {
    let mut node = Node::single();
    assert_eq!(node.driver.read_index(), None, "before the first commit of the term");
    node.make_durable(1);
    let number = node.driver.read_index().unwrap();
    node.poll();
    assert_eq!(node.reads, [ReadConfirmed { number, index: 1 }]);
}

#[test]
fn a_restart_continues_the_log_and_commits_what_was_durable() {
    let mut before = Node::single();
    before.propose("a").unwrap();
    before.propose("b").unwrap();
    let entries = before.appends.iter().flat_map(|append| append.entries.clone()).collect();
    let restored = Restored {
        applied_index: 2,
        applied_term: 1,
        membership: Membership::single(1),
        hard_state: before.appends.last().unwrap().hard_state,
        entries,
    };
    assert_eq!(restored.hard_state.commit, 0, "the index is ahead of the commit index that the log recorded");
    let mut node = Node::new(Duration::ZERO, 1, restored);
    assert_eq!((node.driver.role(), node.driver.term()), (Role::Leader, 2));
    assert!(node.committed_data().is_empty(), "\"a\" is applied, \"b\" not yet known to be committed");
    node.make_durable(1);
    assert_eq!(node.committed_data(), [b"b"]);
    assert_eq!(node.committed.last().unwrap().term, 2);
}

#[test]
fn applied_entries_leave_the_memory() {
    let mut node = Node::single();
    node.propose("a").unwrap();
    node.make_durable(2);
    assert!(node.driver.unapplied_bytes() > 0);
    node.driver.handle_applied(2, None);
    assert_eq!(node.driver.unapplied_bytes(), 0);
    node.propose("b").unwrap();
    node.make_durable(3);
    assert_eq!(node.committed_data(), [b"a", b"b"]);
}

#[test]
fn a_leader_without_peers_needs_no_ticks() {
    let mut node = Node::single();
    assert_eq!(node.driver.poll_timeout(), None);
    node.driver.handle_timeout(Duration::from_secs(3_600));
    node.poll();
    assert_eq!((node.driver.role(), node.driver.term()), (Role::Leader, 1));
}

#[test]
fn a_change_of_membership_goes_through_the_log_in_our_own_encoding() {
    let mut node = Node::single();
    node.make_durable(1);
    node.driver.handle_applied(1, None);
    let change = MembershipChange { kind: ChangeKind::AddLearner, member_id: 2 };
    let proposed = node.driver.propose_change(b"record".to_vec(), change).unwrap();
    node.poll();
    assert_eq!(node.driver.propose_change(Vec::new(), change), Err(NotLeader), "one at a time");
    let entry = node.appends.last().unwrap().entries[0].clone();
    assert_eq!((entry.kind, entry.index), (garboard_wal::EntryKind::ConfChange, proposed.index));
    assert_eq!(entry.data, b"record".as_slice());
    node.make_durable(2);
    assert_eq!(node.committed.last(), Some(&entry));
    node.driver.apply_change(change);
    assert_eq!(node.driver.membership(), &Membership { voters: vec![1], learners: vec![2] });
    assert!(!node.driver.is_alone());
}

/// Members that exchange messages.
struct Cluster {
    now: Duration,
    nodes: BTreeMap<u64, Node>,
    /// Members that nobody hears and that hear nobody.
    cut: Vec<u64>,
    /// Whether logs become durable by themselves.
    durable: bool,
}

impl Cluster {
    fn new(size: u64) -> Cluster {
        let membership = Membership { voters: (1..=size).collect(), learners: vec![] };
        let node = |id| {
            let restored = Restored { membership: membership.clone(), ..Restored::default() };
            (id, Node::new(Duration::ZERO, id, restored))
        };
        Cluster { now: Duration::ZERO, nodes: (1..=size).map(node).collect(), cut: vec![], durable: true }
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now += Duration::from_millis(10);
            for node in self.nodes.values_mut() {
                node.driver.handle_timeout(self.now);
                node.poll();
            }
            while self.deliver() {}
        }
    }

    fn deliver(&mut self) -> bool {
        let mut messages = Vec::new();
        for node in self.nodes.values_mut() {
            if self.durable && node.durable < node.appends.len() {
                node.make_durable(node.appends.len());
            }
            messages.extend(node.outbox.drain(..));
        }
        let any = !messages.is_empty();
        for message in messages {
            if self.cut.contains(&message.from) || self.cut.contains(&message.to) {
                continue;
            }
            let node = self.nodes.get_mut(&message.to).unwrap();
            node.driver.handle_message(message.from, message).unwrap();
            node.poll();
        }
        any
    }

    fn leader(&self) -> Option<u64> {
        let leads = |id: &&u64| !self.cut.contains(id) && self.nodes[*id].driver.role() == Role::Leader;
        self.nodes.keys().find(leads).copied()
    }

    fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }
}

#[test]
fn three_members_elect_a_leader_and_commit_what_a_quorum_holds() {
    let mut cluster = Cluster::new(3);
    cluster.run_for(ELECTION * 4);
    let leader = cluster.leader().expect("a leader");
    cluster.node(leader).propose("a").unwrap();
    cluster.run_for(HEARTBEAT * 3);
    for node in cluster.nodes.values() {
        assert_eq!(node.committed_data(), [b"a"]);
        assert!(matches!(node.driver.role(), Role::Leader) || node.driver.role() == Role::Follower(leader));
    }
    let follower = cluster.nodes.keys().find(|id| **id != leader).copied().unwrap();
    assert_eq!(cluster.node(follower).propose("b"), Err(NotLeader));
    let number = cluster.node(follower).driver.read_index().unwrap();
    cluster.run_for(HEARTBEAT);
    assert_eq!(cluster.node(follower).reads.len(), 1);
    assert_eq!(cluster.node(follower).reads[0].number, number);
}

#[test]
fn a_follower_acknowledges_nothing_that_is_not_durable() {
    let mut cluster = Cluster::new(3);
    cluster.run_for(ELECTION * 4);
    let leader = cluster.leader().expect("a leader");
    cluster.durable = false;
    cluster.node(leader).propose("a").unwrap();
    cluster.run_for(HEARTBEAT * 3);
    let appends = cluster.node(leader).appends.len();
    cluster.node(leader).make_durable(appends);
    cluster.run_for(HEARTBEAT * 3);
    assert!(cluster.node(leader).committed_data().is_empty(), "one of three is no quorum");
    let follower = cluster.nodes.keys().find(|id| **id != leader).copied().unwrap();
    let appends = cluster.node(follower).appends.len();
    cluster.node(follower).make_durable(appends);
    cluster.run_for(HEARTBEAT * 3);
    assert_eq!(cluster.node(leader).committed_data(), [b"a"]);
    assert_eq!(cluster.leader(), Some(leader), "heartbeats and their answers do not wait for the disk");
}

#[test]
fn another_leader_replaces_what_was_not_committed() {
    let mut cluster = Cluster::new(3);
    cluster.run_for(ELECTION * 4);
    let old = cluster.leader().expect("a leader");
    cluster.cut = vec![old];
    let lost = cluster.node(old).propose("lost").unwrap();
    cluster.run_for(ELECTION * 5);
    let new = cluster.leader().expect("another leader");
    assert_ne!(new, old);
    assert_ne!(cluster.nodes[&old].driver.role(), Role::Leader, "a leader without a quorum steps down");
    cluster.node(new).propose("kept").unwrap();
    cluster.cut = vec![];
    cluster.run_for(ELECTION * 2);
    for node in cluster.nodes.values() {
        assert_eq!(node.committed_data(), [b"kept"]);
        let replaced = node.committed.iter().find(|entry| entry.index == lost.index).unwrap();
        assert!(replaced.term > lost.term, "an index alone does not name a proposal");
    }
}

/// A member that lagged, with a snapshot in its log's place that is not durable there.
fn restoring() -> (Node, Duration, u64) {
    let mut cluster = Cluster::new(3);
    cluster.run_for(ELECTION * 4);
    let leader = cluster.leader().expect("a leader");
    let lagging = cluster.nodes.keys().find(|id| **id != leader).copied().unwrap();
    cluster.cut = vec![lagging];
    for data in ["a", "b", "c"] {
        cluster.node(leader).propose(data).unwrap();
    }
    cluster.run_for(HEARTBEAT * 3);
    let (index, term) = (cluster.nodes[&leader].driver.commit_index(), cluster.nodes[&leader].driver.term());
    let membership = cluster.nodes[&leader].driver.membership().clone();
    let mut node = cluster.nodes.remove(&lagging).unwrap();
    assert!(node.driver.commit_index() < index, "it has not applied what the snapshot holds");
    node.outbox.clear();
    assert!(node.driver.restore(index, term, &membership));
    node.poll();
    (node, cluster.now, leader)
}

fn asks_for_votes(node: &mut Node) -> bool {
    let asks = |message: Message| {
        matches!(message.get_msg_type(), MessageType::MsgRequestPreVote | MessageType::MsgRequestVote)
    };
    node.outbox.drain(..).any(asks)
}

#[test]
fn a_member_tries_to_lead_only_once_a_snapshot_is_durable_in_its_logs_place() {
    let (mut node, mut now, leader) = restoring();
    let term = node.driver.term();
    let mut timeout_now = Message::default();
    timeout_now.set_msg_type(MessageType::MsgTimeoutNow);
    (timeout_now.from, timeout_now.to, timeout_now.term) = (leader, node.driver.id(), term);
    node.driver.handle_message(leader, timeout_now).unwrap();
    node.poll();
    // Its leader dies: it hunts for leadership, and then its patience ends, too.
    node.driver.forget_leader(now, leader);
    for _ in 0..200 {
        now += Duration::from_millis(20);
        node.driver.handle_timeout(now);
        node.poll();
        assert!(!asks_for_votes(&mut node));
    }
    assert_eq!(node.driver.term(), term);
    node.make_durable(node.appends.len());
    for _ in 0..200 {
        now += Duration::from_millis(20);
        node.driver.handle_timeout(now);
        node.poll();
    }
    assert!(asks_for_votes(&mut node));
}

#[test]
fn election_timers_follow_the_seed() {
    let leader_at = || {
        let mut cluster = Cluster::new(3);
        while cluster.leader().is_none() {
            cluster.run_for(Duration::from_millis(10));
            assert!(cluster.now < ELECTION * 4, "an election timer fires within two timeouts");
        }
        (cluster.now, cluster.leader())
    };
    assert_eq!(leader_at(), leader_at());
    assert!(leader_at().0 >= ELECTION);
}

#[cfg(feature = "canaries")]
mod canaries {
    use super::*;
    use crate::canary::{Canary, plant};

    #[test]
    fn a_member_that_tries_to_lead_before_a_snapshot_is_durable_is_noticed() {
        let _planted = plant(Canary::CampaignBeforeDurable);
        let (mut node, now, leader) = restoring();
        node.driver.forget_leader(now, leader);
        let hunt = || (0..200).for_each(|step| node.driver.handle_timeout(now + Duration::from_millis(20) * step));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(hunt)).is_err());
    }
}
