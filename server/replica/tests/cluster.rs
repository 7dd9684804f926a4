//! Three members that exchange messages, each on its own simulated disk.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use garboard_replica::envelope::{Request, Response};
use garboard_replica::raft::Membership;
use garboard_replica::request::{Command, Put};
use garboard_replica::{Error, MemberConfig};
use garboard_sim::node::{Node, read};

const STEP: Duration = Duration::from_millis(5);

struct Cluster {
    sims: Vec<Node>,
    cut: Option<usize>,
}

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let initial_members = Membership { voters: vec![1, 2, 3], learners: vec![] };
        let member = |id| {
            let config = MemberConfig { initial_members: initial_members.clone(), ..MemberConfig::single(id) };
            let mut node = Node::with(seed * 10 + id, config);
            node.restart_pause = Duration::ZERO;
            node
        };
        Cluster { sims: (1..=3).map(member).collect(), cut: None }
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.sims[0].now + duration;
        while self.sims[0].now < end {
            let now = self.sims[0].now + STEP;
            for sim in &mut self.sims {
                sim.run_until(now);
            }
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        for from in 0..self.sims.len() {
            while let Some((to, message)) = self.sims[from].member.poll_message() {
                let to = usize::try_from(to).unwrap() - 1;
                if self.cut != Some(from) && self.cut != Some(to) {
                    let now = self.sims[to].clock();
                    let id = u64::try_from(from).unwrap() + 1;
                    self.sims[to].member.handle_message(now, id, message);
                    self.sims[to].drain();
                }
            }
        }
    }

    fn leader(&self) -> Option<usize> {
        (0..self.sims.len()).find(|at| self.cut != Some(*at) && self.sims[*at].member.leads())
    }

    fn values(&self, at: usize) -> Vec<(Vec<u8>, i64)> {
        read(&self.sims[at].reader(), |view| {
            let mut found = Vec::new();
            let mut cursor = view.cursor(garboard_storage::Bounds::ALL, i64::MAX);
            while let Some((key, version)) = cursor.next()? {
                found.push((key.to_vec(), version.modified.main));
            }
            Ok(found)
        })
    }
}

fn put(name: &str) -> Request {
    Request::Write(Command::Put(Put {
        key: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::from_static(b"v"),
        lease: 0,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    }))
}

#[test]
fn members_apply_the_same_and_a_write_needs_a_quorum() {
    let mut cluster = Cluster::new(1);
    cluster.run_for(Duration::from_secs(4));
    let leader = cluster.leader().expect("a leader");
    let ticket = cluster.sims[leader].send([put("a")])[0];
    assert!(cluster.sims[leader].answers.is_empty());
    cluster.run_for(Duration::from_millis(500));
    let answered = cluster.sims[leader].answers.iter().any(|(answered, result)| *answered == ticket && result.is_ok());
    assert!(answered);
    for at in 0..3 {
        assert_eq!(cluster.values(at), [(b"a".to_vec(), 2)]);
    }
    let follower = (leader + 1) % 3;
    cluster.sims[follower].send([put("b"), Request::ReadIndex]);
    cluster.run_for(Duration::from_millis(500));
    let results: Vec<_> = cluster.sims[follower].answers.drain(..).map(|(_, result)| result).collect();
    assert_eq!(results.len(), 2);
    assert!(results.contains(&Ok(Response::ReadIndex)), "a follower proves reads");
    let forwarded =
        |result: &Result<Response, Error>| matches!(result, Ok(Response::Write(reply)) if reply.revision == 3);
    assert!(results.iter().any(forwarded), "and forwards writes: {results:?}");
}

#[test]
fn a_leader_that_was_cut_off_answers_nothing_and_its_writes_go_to_the_new_one() {
    let mut cluster = Cluster::new(2);
    cluster.run_for(Duration::from_secs(4));
    let old = cluster.leader().expect("a leader");
    cluster.sims[old].send([put("kept")]);
    cluster.run_for(Duration::from_millis(500));
    cluster.sims[old].answers.clear();
    cluster.cut = Some(old);
    cluster.sims[old].send([put("moved"), Request::ReadIndex]);
    cluster.run_for(Duration::from_secs(5));
    let new = cluster.leader().expect("another leader");
    assert!(cluster.sims[old].answers.is_empty(), "neither a write nor a read without a quorum");
    cluster.sims[new].send([put("new")]);
    cluster.run_for(Duration::from_secs(1));
    cluster.cut = None;
    cluster.run_for(Duration::from_secs(2));
    let results: Vec<_> = cluster.sims[old].answers.drain(..).map(|(_, result)| result).collect();
    assert!(results.iter().all(Result::is_ok) && results.len() == 2, "{results:?}");
    for at in 0..3 {
        let expected = [(b"kept".to_vec(), 2), (b"moved".to_vec(), 4), (b"new".to_vec(), 3)];
        assert_eq!(cluster.values(at), expected, "no write fails that could wait, and none takes effect twice");
    }
}

#[test]
fn a_member_that_crashed_catches_up() {
    for seed in 3..13 {
        let mut cluster = Cluster::new(seed);
        cluster.run_for(Duration::from_secs(4));
        for round in 0..5 {
            let Some(leader) = cluster.leader() else {
                cluster.run_for(Duration::from_secs(4));
                continue;
            };
            for n in 0..20 {
                cluster.sims[leader].send([put(&format!("{round}-{n}"))]);
            }
            cluster.run_for(Duration::from_millis(3));
            let crashed = round % 3;
            cluster.sims[crashed].crash();
            cluster.run_for(Duration::from_secs(4));
        }
        cluster.run_for(Duration::from_secs(4));
        assert!(cluster.leader().is_some());
        let values = cluster.values(0);
        assert!(!values.is_empty());
        assert_eq!((cluster.values(1), cluster.values(2)), (values.clone(), values), "seed {seed}");
    }
}
