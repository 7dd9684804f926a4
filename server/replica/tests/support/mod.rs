//! Members that exchange messages over a network which delays, loses, doubles and reorders them.

#![allow(clippy::unwrap_used, dead_code, reason = "each test uses what it needs")]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use garboard_replica::MemberConfig;
use garboard_replica::envelope::Request;
use garboard_replica::peer::PeerMessage;
use garboard_replica::raft::Membership;
use garboard_replica::request::{Command, Put};
use garboard_sim::node::{Node, Rescue, Start, read};
use garboard_simdisk::Rng;
use raft::eraftpb::MessageType;

/// What the network does to a message.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The longest delay.
    pub delay_max: Duration,
    /// Of a thousand messages so many are lost.
    pub loss_per_mille: u64,
    /// Of a thousand messages so many arrive twice.
    pub twice_per_mille: u64,
}

impl Network {
    /// Prompt and reliable.
    pub const GOOD: Network = Network { delay_max: Duration::from_millis(2), loss_per_mille: 0, twice_per_mille: 0 };
}

struct UnderWay {
    at: Duration,
    from: usize,
    to: usize,
    message: PeerMessage,
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub network: Network,
    pub rng: Rng,
    /// Members that nobody hears and that hear nobody.
    pub cut: Vec<usize>,
    /// Members whose process is dead.
    pub dead: Vec<usize>,
    /// Whether forwarded writes are lost.
    pub no_forwards: bool,
    /// Whom no entries reach.
    pub no_appends_to: Option<u64>,
    /// A member to which entries come with another value: its state diverges.
    pub deceived: Option<usize>,
    under_way: Vec<UnderWay>,
    /// Who led in each term.
    leaders: BTreeMap<u64, usize>,
    /// Whom each member voted for in each term.
    votes: BTreeMap<(usize, u64), u64>,
}

pub const STEP: Duration = Duration::from_micros(100);

pub fn id_of(at: usize) -> u64 {
    u64::try_from(at).unwrap() + 1
}

pub fn at_of(id: u64) -> usize {
    usize::try_from(id).unwrap() - 1
}

impl Cluster {
    pub fn new(seed: u64, size: u64) -> Cluster {
        Cluster::with(seed, size, |_| {})
    }

    pub fn with(seed: u64, size: u64, configure: impl Fn(&mut MemberConfig)) -> Cluster {
        let initial_members = Membership { voters: (1..=size).collect(), learners: vec![] };
        let member = |id| {
            let mut config = MemberConfig {
                initial_members: initial_members.clone(),
                seed: seed * 100 + id,
                ..MemberConfig::single(id)
            };
            configure(&mut config);
            let mut node = Node::with(seed * 10 + id, config);
            node.restart_pause = Duration::ZERO;
            node
        };
        Cluster {
            nodes: (1..=size).map(member).collect(),
            network: Network::GOOD,
            rng: Rng::new(seed),
            cut: Vec::new(),
            dead: Vec::new(),
            no_forwards: false,
            no_appends_to: None,
            deceived: None,
            under_way: Vec::new(),
            leaders: BTreeMap::new(),
            votes: BTreeMap::new(),
        }
    }

    pub fn now(&self) -> Duration {
        self.nodes.iter().map(|node| node.now).max().unwrap()
    }

    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now() + duration;
        while self.now() < end {
            self.step(end);
        }
    }

    /// Runs until something is so; false if it is not within a limit.
    pub fn run_until(&mut self, limit: Duration, mut is_so: impl FnMut(&mut Cluster) -> bool) -> bool {
        let end = self.now() + limit;
        while self.now() < end {
            if is_so(self) {
                return true;
            }
            self.step(end);
        }
        is_so(self)
    }

    /// Goes to when something happens next, some microseconds at least.
    fn step(&mut self, end: Duration) {
        let alive = (0..self.nodes.len()).filter(|at| !self.dead.contains(at));
        let nodes = alive.filter_map(|at| self.nodes[at].next_event());
        let messages = self.under_way.iter().map(|message| message.at);
        let next = nodes.chain(messages).min().unwrap_or(end);
        let now = next.max(self.now() + STEP).min(end.max(self.now() + STEP));
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if self.dead.contains(&at) { node.now = now } else { node.run_until(now) }
        }
        for at in 0..self.nodes.len() {
            self.collect(at);
            self.check_leader(at);
        }
        self.deliver(now);
        for from in 0..self.nodes.len() {
            self.collect(from);
        }
    }

    /// No term has two leaders.
    fn check_leader(&mut self, at: usize) {
        let member = &self.nodes[at].member;
        if !self.dead.contains(&at) && member.leads() {
            let leader = *self.leaders.entry(member.term()).or_insert(at);
            assert_eq!(leader, at, "term {} has two leaders", member.term());
        }
    }

    /// No member votes for two in a term, in one life or in several.
    fn check_vote(&mut self, from: usize, message: &PeerMessage) {
        let PeerMessage::Raft(message) = message else { return };
        if message.get_msg_type() == MessageType::MsgRequestVoteResponse && !message.reject {
            let vote = *self.votes.entry((from, message.term)).or_insert(message.to);
            assert_eq!(vote, message.to, "member {} votes twice in term {}", from + 1, message.term);
        }
    }

    /// Takes what a member sends.
    pub fn collect(&mut self, from: usize) {
        let now = self.nodes[from].now;
        while let Some((to, message)) = self.nodes[from].member.poll_message() {
            self.check_vote(from, &message);
            let to = at_of(to);
            let copies = 1 + u32::from(self.rng.below(1_000) < self.network.twice_per_mille);
            for _ in 0..copies {
                let is_append = matches!(&message, PeerMessage::Raft(message)
                    if message.get_msg_type() == MessageType::MsgAppend && self.no_appends_to == Some(message.to));
                let unwanted = is_append || self.no_forwards && matches!(message, PeerMessage::Forward(_));
                if unwanted || self.rng.below(1_000) < self.network.loss_per_mille {
                    continue;
                }
                let micros = u64::try_from(self.network.delay_max.as_micros()).unwrap();
                let at = now + Duration::from_micros(self.rng.below(micros.max(1)));
                self.under_way.push(UnderWay { at, from, to, message: message.clone() });
            }
        }
    }

    fn deliver(&mut self, now: Duration) {
        let (mut due, later) = std::mem::take(&mut self.under_way).into_iter().partition::<Vec<_>, _>(|m| m.at <= now);
        self.under_way = later;
        due.sort_by_key(|message| message.at);
        for UnderWay { from, to, message, .. } in due {
            let lost = [from, to].iter().any(|at| self.cut.contains(at) || self.dead.contains(at));
            if lost {
                continue;
            }
            // What is not Raft's goes over the wire.
            let mut message = match message.encode() {
                Some(body) => PeerMessage::decode(&body).unwrap(),
                None => message,
            };
            if self.deceived == Some(to) {
                deceive(&mut message);
            }
            let node = &mut self.nodes[to];
            let clock = node.clock();
            node.member.handle_message(clock, id_of(from), message);
            node.drain();
        }
    }

    /// The member that leads, of those that are reached.
    pub fn leader(&self) -> Option<usize> {
        let reached = |at: &usize| !self.cut.contains(at) && !self.dead.contains(at);
        let leads = |at: &usize| self.nodes[*at].member.leads();
        (0..self.nodes.len()).filter(reached).filter(leads).max_by_key(|at| self.nodes[*at].member.term())
    }

    pub fn elect(&mut self) -> usize {
        assert!(self.run_until(Duration::from_secs(30), |cluster| cluster.leader().is_some()), "no leader");
        self.run_for(Duration::from_millis(300));
        self.leader().expect("a leader that stays")
    }

    /// The leader, once there is one.
    pub fn elect_soon(&mut self) -> usize {
        assert!(self.run_until(Duration::from_secs(30), |cluster| cluster.leader().is_some()), "no leader");
        self.leader().expect("just seen")
    }

    /// The process is killed; its disk keeps what it was given. The others see it at once if `noticed`.
    pub fn kill(&mut self, at: usize, noticed: bool) {
        self.collect(at);
        self.dead.push(at);
        self.nodes[at].end_process();
        if noticed {
            for other in (0..self.nodes.len()).filter(|other| *other != at) {
                if self.dead.contains(&other) {
                    continue;
                }
                let clock = self.nodes[other].clock();
                self.nodes[other].member.handle_peer_down(clock, id_of(at));
                self.nodes[other].member.handle_leader_gone(clock, id_of(at));
                self.nodes[other].drain();
            }
        }
    }

    pub fn revive(&mut self, at: usize) {
        self.dead.retain(|dead| *dead != at);
        self.nodes[at].now = self.now();
        let start = self.nodes[at].start_process();
        let start = start.unwrap_or_else(|refusal| panic!("the member does not open: {refusal}"));
        assert!(!start.founded, "member {} is founded anew", at + 1);
    }

    /// Starts a member, which is repaired from the others if something of it is damaged, on connections of its own.
    pub fn revive_repaired(&mut self, at: usize) -> Start {
        self.dead.retain(|dead| *dead != at);
        self.under_way.retain(|message| message.from != at && message.to != at);
        self.nodes[at].now = self.now();
        let start = self.nodes[at].start_with(Rescue::Peers);
        start.unwrap_or_else(|refusal| panic!("the member does not open: {refusal}"))
    }

    /// Keys in order, with their modification revision and version.
    pub fn dump(&self, at: usize) -> Vec<(Vec<u8>, i64, i64)> {
        read(&self.nodes[at].reader(), |view| {
            let mut found = Vec::new();
            let mut cursor = view.cursor(garboard_storage::Bounds::ALL, i64::MAX);
            while let Some((key, version)) = cursor.next()? {
                found.push((key.to_vec(), version.modified.main, version.version));
            }
            Ok(found)
        })
    }
}

/// Makes another value of the one that [`honest_put`] puts.
fn deceive(message: &mut PeerMessage) {
    let PeerMessage::Raft(message) = message else { return };
    for entry in &mut message.entries {
        let mut data = entry.data.to_vec();
        while let Some(at) = data.windows(HONEST.len()).position(|bytes| bytes == HONEST) {
            data[at..at + HONEST.len()].copy_from_slice(b"crooked");
        }
        entry.data = data.into();
    }
}

const HONEST: &[u8] = b"upright";

/// A put whose value is another one at a member that is deceived.
pub fn honest_put(name: &str) -> Request {
    let Command::Put(put) = put_command(name, 0) else { unreachable!() };
    Request::Write(Command::Put(Put { value: Bytes::from_static(HONEST), ..put }))
}

pub fn put(name: &str) -> Request {
    Request::Write(put_command(name, 0))
}

pub fn big_put(name: &str) -> Request {
    let Command::Put(put) = put_command(name, 0) else { unreachable!() };
    Request::Write(Command::Put(Put { value: Bytes::from(vec![b'v'; 10_000]), ..put }))
}

pub fn put_command(name: &str, lease: i64) -> Command {
    Command::Put(Put {
        key: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::from_static(b"v"),
        lease,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    })
}
