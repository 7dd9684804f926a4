//! Members that join, get a vote, leave and come back, each on its own simulated disk.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use garboard_replica::envelope::{Request, Response, Ticket};
use garboard_replica::members::{Attributes, ChangeAction, MemberRecord, Members};
use garboard_replica::peer::PeerMessage;
use garboard_replica::raft::Membership;
use garboard_replica::request::{Command, Put};
use garboard_replica::{Error, MemberConfig};
use garboard_sim::node::{Node, read};
use raft::eraftpb::MessageType;

const STEP: Duration = Duration::from_millis(5);
/// Long enough for an election, and for peers to count as connected.
const SETTLED: Duration = Duration::from_secs(7);

struct Cluster {
    seed: u64,
    now: Duration,
    nodes: BTreeMap<u64, Node>,
    /// Members that nobody hears and that hear nobody.
    cut: BTreeSet<u64>,
    /// Members that nobody can hand leadership to.
    deaf: BTreeSet<u64>,
    connected: BTreeSet<(u64, u64)>,
}

fn peer_url(id: u64) -> String {
    format!("http://10.0.0.{id}:2380")
}

fn attributes(id: u64) -> Attributes {
    Attributes {
        name: format!("m{id}"),
        client_urls: vec![format!("http://10.0.0.{id}:2379")],
        peer_urls: vec![peer_url(id)],
    }
}

fn founders(count: u64) -> Vec<MemberRecord> {
    (1..=count)
        .map(|id| MemberRecord { id, name: format!("m{id}"), peer_urls: vec![peer_url(id)], ..MemberRecord::default() })
        .collect()
}

impl Cluster {
    fn new(seed: u64, count: u64) -> Cluster {
        let mut cluster = Cluster {
            seed,
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            cut: BTreeSet::new(),
            deaf: BTreeSet::new(),
            connected: BTreeSet::new(),
        };
        let config = |id| MemberConfig {
            initial_members: Membership { voters: (1..=count).collect(), learners: vec![] },
            initial_records: founders(count),
            attributes: Some(attributes(id)),
            ..MemberConfig::single(id)
        };
        for id in 1..=count {
            cluster.start(config(id));
        }
        cluster.run_for(SETTLED);
        cluster
    }

    fn start(&mut self, config: MemberConfig) {
        let id = config.member_id;
        let mut node = Node::with(self.seed * 100 + id, config);
        node.restart_pause = Duration::ZERO;
        node.run_until(self.now);
        self.nodes.insert(id, node);
    }

    /// A member that knows nothing of the cluster it was added to.
    fn join(&mut self, id: u64) {
        let initial_members = Membership::default();
        self.start(MemberConfig { initial_members, attributes: Some(attributes(id)), ..MemberConfig::single(id) });
    }

    /// Loses power and starts again. Its connections are new ones then.
    fn crash(&mut self, id: u64) {
        self.connected.retain(|(a, b)| *a != id && *b != id);
        self.nodes.get_mut(&id).unwrap().crash();
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now += STEP;
            self.connect();
            for node in self.nodes.values_mut() {
                node.run_until(self.now);
            }
            self.deliver();
        }
    }

    /// Tells members of connections that come and go. Only members have any.
    fn connect(&mut self) {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        for (a, b) in ids.iter().flat_map(|a| ids.iter().map(move |b| (*a, *b))).filter(|(a, b)| a != b) {
            let knows = |from: u64, to: u64| {
                let members = self.nodes[&from].member.members();
                members.is_empty() || members.get(to).is_some()
            };
            let up = !self.cut.contains(&a) && !self.cut.contains(&b) && knows(a, b) && knows(b, a);
            let was_up = self.connected.contains(&(a, b));
            let node = self.nodes.get_mut(&a).unwrap();
            let now = node.clock();
            match (was_up, up) {
                (false, true) => {
                    self.connected.insert((a, b));
                    node.member.handle_peer_up(now, b);
                }
                (true, false) => {
                    self.connected.remove(&(a, b));
                    node.member.handle_peer_down(now, b);
                }
                _ => {}
            }
        }
    }

    fn deliver(&mut self) {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        for from in ids {
            while let Some((to, message)) = self.nodes.get_mut(&from).unwrap().member.poll_message() {
                let Some(node) = self.nodes.get_mut(&to) else { continue };
                let hands_over = matches!(
                    &message,
                    PeerMessage::Raft(message) if message.get_msg_type() == MessageType::MsgTimeoutNow
                );
                let is_cut = self.cut.contains(&from) || self.cut.contains(&to);
                let is_lost = is_cut || (hands_over && self.deaf.contains(&to));
                if !is_lost {
                    let now = node.clock();
                    node.member.handle_message(now, from, message);
                    node.drain();
                }
            }
        }
    }

    fn leader(&self) -> u64 {
        let leads = |id: &u64| !self.cut.contains(id) && self.nodes[id].member.leads();
        self.nodes.keys().copied().find(leads).expect("a leader")
    }

    fn follower(&self) -> u64 {
        let leader = self.leader();
        let votes = |id: &u64| self.members(*id).get(*id).is_some_and(|member| !member.is_learner);
        self.nodes.keys().copied().find(|id| *id != leader && !self.cut.contains(id) && votes(id)).unwrap()
    }

    fn members(&self, id: u64) -> &Members {
        self.nodes[&id].member.members()
    }

    fn ask(&mut self, id: u64, request: Request) -> Ticket {
        self.nodes.get_mut(&id).unwrap().send([request])[0]
    }

    fn change(&mut self, asked: u64, member_id: u64, action: ChangeAction) -> Result<Vec<u64>, Error> {
        let ticket = self.ask(asked, Request::Member { member_id, action });
        self.answer(asked, ticket)
    }

    /// The ids of the members after the change.
    fn answer(&mut self, asked: u64, ticket: Ticket) -> Result<Vec<u64>, Error> {
        for _ in 0..2_000 {
            let answers = &mut self.nodes.get_mut(&asked).unwrap().answers;
            if let Some(at) = answers.iter().position(|(answered, _)| *answered == ticket) {
                return answers.remove(at).1.map(|response| match response {
                    Response::Members(members) => members.iter().map(|member| member.id).collect(),
                    other => panic!("{other:?}"),
                });
            }
            self.run_for(STEP);
        }
        panic!("a change of the members is not answered");
    }

    fn put(&mut self, id: u64, key: &str) -> Ticket {
        let put = Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::from_static(b"v"),
            lease: 0,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        };
        self.ask(id, Request::Write(Command::Put(put)))
    }

    fn keys(&self, id: u64) -> Vec<Vec<u8>> {
        read(&self.nodes[&id].reader(), |view| {
            let mut found = Vec::new();
            let mut cursor = view.cursor(garboard_storage::Bounds::ALL, i64::MAX);
            while let Some((key, _)) = cursor.next()? {
                found.push(key.to_vec());
            }
            Ok(found)
        })
    }

    fn assert_same_members(&self, ids: impl IntoIterator<Item = u64>) {
        let ids: Vec<u64> = ids.into_iter().collect();
        for id in &ids {
            assert_eq!(self.members(*id), self.members(ids[0]), "{id} and {}, seed {}", ids[0], self.seed);
            assert_eq!(*self.nodes[id].members, *self.members(*id), "the shell was told");
        }
    }
}

fn learner(id: u64) -> ChangeAction {
    ChangeAction::AddLearner { peer_urls: vec![peer_url(id)] }
}

#[test]
fn founders_have_the_same_records_and_each_tells_where_its_clients_go() {
    let cluster = Cluster::new(1, 3);
    cluster.assert_same_members(1..=3);
    let expected =
        |id| MemberRecord { client_urls: attributes(id).client_urls, ..founders(3)[id as usize - 1].clone() };
    let records: Vec<_> = cluster.members(1).iter().cloned().collect();
    assert_eq!(records, [expected(1), expected(2), expected(3)]);
    assert!((1..=3).all(|id| cluster.nodes[&id].member.may_serve()));
}

#[test]
fn another_name_or_client_url_after_a_restart_is_told_anew() {
    let mut cluster = Cluster::new(2, 3);
    let follower = cluster.follower();
    let node = cluster.nodes.get_mut(&follower).unwrap();
    node.config.attributes.as_mut().unwrap().name = "renamed".to_owned();
    node.crash();
    cluster.run_for(SETTLED);
    cluster.assert_same_members(1..=3);
    assert_eq!(cluster.members(follower).get(follower).unwrap().name, "renamed");
    assert_eq!(cluster.members(follower).get(follower).unwrap().peer_urls, [peer_url(follower)]);
}

#[test]
fn a_learner_joins_gets_a_vote_and_leaves_while_leaders_change() {
    for seed in 3..9 {
        let mut cluster = Cluster::new(seed, 3);
        for n in 0..5 {
            let leader = cluster.leader();
            cluster.put(leader, &format!("before-{n}"));
        }
        let asked = cluster.follower();
        assert_eq!(cluster.change(asked, 4, learner(4)), Ok(vec![1, 2, 3, 4]));
        assert_eq!(cluster.change(asked, 4, ChangeAction::Promote), Err(Error::LearnerNotReady));
        assert_eq!(cluster.change(asked, 5, learner(5)), Err(Error::TooManyLearners));
        cluster.join(4);
        cluster.run_for(SETTLED);
        cluster.assert_same_members(1..=4);
        assert_eq!(cluster.members(4).get(4).unwrap().name, "m4", "it told its name, seed {seed}");
        assert_eq!(cluster.keys(4), cluster.keys(1));

        let leader = cluster.leader();
        cluster.crash(leader);
        cluster.run_for(SETTLED);
        let asked = cluster.follower();
        assert_eq!(cluster.change(asked, 4, ChangeAction::Promote), Ok(vec![1, 2, 3, 4]));
        cluster.run_for(SETTLED);
        cluster.assert_same_members(1..=4);
        assert!(!cluster.members(4).get(4).unwrap().is_learner);
        assert_eq!(cluster.change(asked, 4, ChangeAction::Promote), Err(Error::MemberNotLearner));

        // The leader itself leaves, asked through another member.
        let (leader, asked) = (cluster.leader(), cluster.follower());
        let left: Vec<u64> = (1..=4).filter(|id| *id != leader).collect();
        assert_eq!(cluster.change(asked, leader, ChangeAction::Remove), Ok(left.clone()));
        cluster.run_for(Duration::from_secs(1));
        assert!(cluster.nodes[&leader].member.members().is_removed(leader), "it knows, seed {seed}");
        cluster.nodes.remove(&leader);
        cluster.run_for(SETTLED);
        cluster.assert_same_members(left.iter().copied());
        let next = cluster.leader();
        let ticket = cluster.put(next, "after");
        cluster.run_for(Duration::from_secs(1));
        assert!(cluster.nodes[&next].answers.iter().any(|(answered, result)| *answered == ticket && result.is_ok()));
        assert!(left.iter().all(|id| cluster.keys(*id) == cluster.keys(left[0])));
        // Its id never comes back.
        let again = ChangeAction::AddVoter { peer_urls: vec![peer_url(leader)] };
        assert_eq!(cluster.change(next, leader, again), Err(Error::MemberNotFound));
    }
}

/// Through every member but `gone` a write each step. The longest time between two that were answered, and the writes.
fn write_for(cluster: &mut Cluster, duration: Duration, gone: u64) -> (Duration, Vec<(u64, Ticket)>) {
    let asked: Vec<u64> = cluster.nodes.keys().copied().filter(|id| *id != gone).collect();
    let (mut tickets, mut last, mut longest) = (Vec::new(), cluster.now, Duration::ZERO);
    let (end, mut answered) = (cluster.now + duration, 0);
    while cluster.now < end {
        for id in &asked {
            let key = format!("write-{}", tickets.len());
            tickets.push((*id, cluster.put(*id, &key)));
        }
        cluster.run_for(STEP);
        let count = asked.iter().map(|id| cluster.nodes[id].answers.len()).sum();
        if count > answered {
            (answered, last) = (count, cluster.now);
        }
        longest = longest.max(cluster.now - last);
    }
    (longest, tickets)
}

#[test]
fn a_leader_that_is_removed_hands_over_first_and_no_write_fails_or_waits_for_an_election() {
    for seed in 20..32 {
        let mut cluster = Cluster::new(seed, if seed % 3 == 0 { 5 } else { 3 });
        let leader = cluster.leader();
        let asked = if seed % 2 == 0 { leader } else { cluster.follower() };
        let left: Vec<u64> = cluster.nodes.keys().copied().filter(|id| *id != leader).collect();
        write_for(&mut cluster, Duration::from_millis(200), leader);
        let removal = cluster.ask(asked, Request::Member { member_id: leader, action: ChangeAction::Remove });
        let own = cluster.put(leader, "the leader's own client's");
        let (longest, tickets) = write_for(&mut cluster, Duration::from_secs(3), leader);
        cluster.run_for(Duration::from_secs(1));
        assert!(longest < Duration::from_millis(100), "{longest:?} without an answer, seed {seed}");
        for (id, ticket) in tickets.into_iter().chain([(leader, own)]) {
            let answer = cluster.nodes[&id].answers.iter().find(|(answered, _)| *answered == ticket);
            assert!(matches!(answer, Some((_, Ok(_)))), "{answer:?} through {id}, seed {seed}");
        }
        assert_eq!(cluster.answer(asked, removal), Ok(left.clone()), "seed {seed}");
        assert!(cluster.members(leader).is_removed(leader), "it knows, seed {seed}");
        assert!(left.contains(&cluster.leader()), "seed {seed}");
        cluster.assert_same_members(left);
    }
}

#[test]
fn a_leader_that_nobody_takes_over_from_removes_itself_all_the_same() {
    let mut cluster = Cluster::new(32, 3);
    let (leader, other) = (cluster.leader(), cluster.follower());
    let third = (1..=3).find(|id| ![leader, other].contains(id)).unwrap();
    // The next leader would have to be one that does not hear that it may.
    let removal = cluster.ask(leader, Request::Member { member_id: leader, action: ChangeAction::Remove });
    cluster.deaf.extend([other, third]);
    cluster.run_for(Duration::from_millis(500));
    cluster.deaf.clear();
    assert_eq!(cluster.answer(leader, removal).map(|left| left.len()), Ok(2));
    cluster.run_for(SETTLED);
    assert_ne!(cluster.leader(), leader);
}

#[test]
fn a_member_that_only_hears_from_others_that_it_was_removed_answers_who_asked_for_that() {
    let mut cluster = Cluster::new(33, 3);
    let (leader, gone) = (cluster.leader(), cluster.follower());
    let left: Vec<u64> = (1..=3).filter(|id| *id != gone).collect();
    let removal = cluster.ask(gone, Request::Member { member_id: gone, action: ChangeAction::Remove });
    cluster.run_for(STEP);
    // The others cut it off as soon as they know.
    cluster.cut.insert(gone);
    cluster.run_for(Duration::from_millis(500));
    assert!(cluster.members(leader).is_removed(gone) && !cluster.members(gone).is_removed(gone));
    let write = cluster.put(gone, "too late");
    cluster.nodes.get_mut(&gone).unwrap().member.handle_removed();
    cluster.run_for(STEP);
    assert_eq!(cluster.answer(gone, removal), Ok(left));
    let answer = cluster.nodes[&gone].answers.iter().find(|(answered, _)| *answered == write);
    assert!(matches!(answer, Some((_, Err(Error::Stopped)))), "{answer:?}");
}

#[test]
fn a_member_that_was_removed_unheard_disturbs_nobody() {
    let mut cluster = Cluster::new(9, 3);
    let gone = cluster.follower();
    cluster.cut.insert(gone);
    cluster.run_for(SETTLED);
    let leader = cluster.leader();
    let left: Vec<u64> = (1..=3).filter(|id| *id != gone).collect();
    assert_eq!(cluster.change(leader, gone, ChangeAction::Remove), Ok(left));
    let term = cluster.nodes[&leader].member.term();
    cluster.cut.clear();
    cluster.run_for(Duration::from_secs(30));
    assert_eq!((cluster.leader(), cluster.nodes[&leader].member.term()), (leader, term));
}

#[test]
fn changes_that_could_lose_the_quorum_are_refused() {
    let mut cluster = Cluster::new(10, 3);
    let leader = cluster.leader();
    let other = cluster.follower();
    cluster.cut.insert(other);
    cluster.run_for(SETTLED);
    assert_eq!(cluster.change(leader, 4, learner(4)), Err(Error::Unhealthy), "three of four would not be there");
    let third = (1..=3).find(|id| ![leader, other].contains(id)).unwrap();
    assert_eq!(cluster.change(leader, third, ChangeAction::Remove), Err(Error::Unhealthy));
    assert_eq!(cluster.change(leader, 9, ChangeAction::Remove), Err(Error::MemberNotFound));
    cluster.cut.clear();
    cluster.run_for(Duration::from_secs(4));
    assert_eq!(cluster.change(leader, 4, learner(4)), Err(Error::Unhealthy), "not for long enough");
}

#[test]
fn changes_asked_for_at_once_are_made_one_after_the_other() {
    let mut cluster = Cluster::new(11, 3);
    let asked: Vec<u64> = (1..=3).collect();
    let tickets: Vec<(u64, Ticket)> = asked
        .into_iter()
        .map(|id| {
            let action = ChangeAction::AddVoter { peer_urls: vec![peer_url(id + 10)] };
            (id, cluster.ask(id, Request::Member { member_id: id + 10, action }))
        })
        .collect();
    let same_url = ChangeAction::AddVoter { peer_urls: vec![peer_url(11)] };
    // Two more voters that are not there yet leave three of five; the third of them would be one too many for writes,
    // but all were asked for while the cluster was whole.
    let results: Vec<_> = tickets.into_iter().map(|(id, ticket)| cluster.answer(id, ticket)).collect();
    assert!(results.iter().any(Result::is_ok), "{results:?}");
    let leader = cluster.leader();
    assert!(matches!(cluster.change(leader, 99, same_url), Err(Error::NotEnoughStarted | Error::PeerUrlExists)));
}

#[test]
fn without_a_leader_a_change_is_given_up_in_time() {
    let mut cluster = Cluster::new(12, 3);
    let (leader, other) = (cluster.leader(), cluster.follower());
    cluster.cut.extend([leader, other]);
    let third = (1..=3).find(|id| ![leader, other].contains(id)).unwrap();
    let update = ChangeAction::Update { peer_urls: vec![peer_url(77)] };
    let started = cluster.now;
    assert_eq!(cluster.change(third, third, update), Err(Error::Timeout));
    assert!(cluster.now - started < Duration::from_secs(8));
}

#[test]
fn a_member_that_is_forced_keeps_its_data_and_is_alone_for_good() {
    for seed in 13..19 {
        let mut cluster = Cluster::new(seed, 3);
        let leader = cluster.leader();
        cluster.put(leader, "kept");
        cluster.run_for(Duration::from_secs(1));
        let survivor = cluster.follower();
        let mut node = cluster.nodes.remove(&survivor).unwrap();
        node.config.force_new_cluster = true;
        node.crash();
        for _ in 0..400 {
            node.run_until(node.now + STEP);
        }
        assert!(node.member.may_serve(), "seed {seed}");
        node.config.force_new_cluster = false;
        node.crash();
        for _ in 0..400 {
            node.run_until(node.now + STEP);
        }
        assert!(node.member.may_serve() && node.member.is_ready(), "seed {seed}");
        let members = node.member.members();
        assert_eq!(members.iter().map(|member| member.id).collect::<Vec<_>>(), [survivor]);
        assert_eq!(members.removed().collect::<Vec<_>>(), (1..=3).filter(|id| *id != survivor).collect::<Vec<_>>());
        cluster.nodes = BTreeMap::from([(survivor, node)]);
        assert_eq!(cluster.keys(survivor), [b"kept".to_vec()]);
    }
}
