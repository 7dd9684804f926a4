//! Writes through any member: each takes effect once, whatever happens to leaders and messages.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response, Ticket};
use garboard_replica::request::{Alarm, AlarmKind, Command, Put};
use support::{Cluster, Network, big_put, id_of, put, put_command};

/// Clients of all members that write keys of their own, once each.
#[derive(Default)]
struct Clients {
    /// Whether values are long.
    big: bool,
    next: u64,
    /// By member and ticket: the key.
    waiting: BTreeMap<(usize, Ticket), String>,
    /// Keys whose write was acknowledged, with the revision that was answered.
    done: BTreeMap<String, i64>,
    /// Keys whose write may or may not have taken effect.
    unknown: Vec<String>,
    /// Keys whose write was refused for good.
    refused: Vec<String>,
}

impl Clients {
    fn write(&mut self, cluster: &mut Cluster, at: usize, count: usize) {
        let keys: Vec<String> = (0..count).map(|n| format!("{:08}", self.next + u64::try_from(n).unwrap())).collect();
        self.next += u64::try_from(count).unwrap();
        let tickets = cluster.nodes[at].send(keys.iter().map(|key| if self.big { big_put(key) } else { put(key) }));
        self.waiting.extend(tickets.into_iter().map(|ticket| (at, ticket)).zip(keys));
    }

    /// A process is gone, and with it its clients' answers.
    fn forget(&mut self, at: usize) {
        let lost = self.waiting.extract_if(.., |(member, _), _| *member == at);
        self.unknown.extend(lost.map(|(_, key)| key));
    }

    fn take_answers(&mut self, cluster: &mut Cluster) {
        for (at, node) in cluster.nodes.iter_mut().enumerate() {
            for (ticket, result) in std::mem::take(&mut node.answers) {
                let Some(key) = self.waiting.remove(&(at, ticket)) else { continue };
                match result {
                    Ok(Response::Write(reply)) => drop(self.done.insert(key, reply.revision)),
                    Ok(other) => panic!("a write was answered with {other:?}"),
                    Err(Error::TooManyRequests | Error::NoSpace) => self.refused.push(key),
                    Err(Error::Timeout | Error::LeaderFailedTimeout | Error::ConnectionLostTimeout) => {
                        self.unknown.push(key);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    /// Every write that was acknowledged is there, none took effect twice, none that was refused is there, and nothing
    /// else took a revision.
    fn check(&self, cluster: &Cluster, seed: u64) {
        let dump = cluster.dump(0);
        for at in 1..cluster.nodes.len() {
            assert_eq!(cluster.dump(at), dump, "seed {seed}: members {} and 1 differ", at + 1);
        }
        let found: BTreeMap<String, (i64, i64)> = dump
            .into_iter()
            .map(|(key, revision, version)| (String::from_utf8(key).unwrap(), (revision, version)))
            .collect();
        for (key, revision) in &self.done {
            assert_eq!(found.get(key), Some(&(*revision, 1)), "seed {seed}: {key} was acknowledged");
        }
        for key in &self.refused {
            assert_eq!(found.get(key), None, "seed {seed}: {key} was refused");
        }
        assert!(found.values().all(|(_, version)| *version == 1), "seed {seed}: a write took effect twice");
        let revision = cluster.nodes[0].reader().revision();
        assert_eq!(revision, 1 + i64::try_from(found.len()).unwrap(), "seed {seed}: revisions without a write");
    }
}

/// One seed: random writes through all members, and everything that can happen to leaders, links and processes.
fn run(seed: u64) -> (usize, usize) {
    let mut cluster = Cluster::new(seed, if seed.is_multiple_of(4) { 5 } else { 3 });
    let size = cluster.nodes.len();
    let mut clients = Clients::default();
    cluster.elect();
    cluster.network = Network {
        delay_max: Duration::from_micros(200 + cluster.rng.below(20_000)),
        loss_per_mille: cluster.rng.below(100),
        twice_per_mille: cluster.rng.below(100),
    };
    for _ in 0..250 {
        let at = cluster.rng.index(size);
        match cluster.rng.below(100) {
            0..=59 if !cluster.dead.contains(&at) => {
                let count = 1 + cluster.rng.index(20);
                clients.write(&mut cluster, at, count);
            }
            60..=64 => cluster.cut = if cluster.cut.is_empty() { vec![at] } else { Vec::new() },
            65..=69 => {
                if let Some(leader) = cluster.leader() {
                    let target = id_of(at);
                    cluster.nodes[leader].send([Request::MoveLeader { target }]);
                }
            }
            70..=73 => {
                let gone = id_of(at);
                let other = (at + 1) % size;
                if !cluster.dead.contains(&other) {
                    let clock = cluster.nodes[other].clock();
                    cluster.nodes[other].member.handle_leader_gone(clock, gone);
                }
            }
            74..=77 => {
                let peer = id_of((at + 1) % size);
                if !cluster.dead.contains(&at) {
                    let clock = cluster.nodes[at].clock();
                    cluster.nodes[at].member.handle_peer_down(clock, peer);
                    cluster.nodes[at].member.handle_peer_up(clock, peer);
                }
            }
            78..=80 if cluster.dead.is_empty() => {
                clients.take_answers(&mut cluster);
                clients.forget(at);
                let noticed = cluster.rng.chance(50);
                cluster.kill(at, noticed);
            }
            81..=88 => {
                if let Some(dead) = cluster.dead.first().copied() {
                    cluster.revive(dead);
                }
            }
            89..=90 if !cluster.dead.contains(&at) => {
                let until = cluster.now() + Duration::from_millis(cluster.rng.below(2_000));
                cluster.nodes[at].stall_until(until);
            }
            _ => {}
        }
        let pause = Duration::from_millis(cluster.rng.below(60));
        cluster.run_for(pause);
        clients.take_answers(&mut cluster);
    }
    cluster.network = Network::GOOD;
    cluster.cut.clear();
    for dead in std::mem::take(&mut cluster.dead) {
        cluster.dead.push(dead);
        cluster.revive(dead);
    }
    cluster.run_for(Duration::from_secs(10));
    clients.take_answers(&mut cluster);
    assert!(clients.waiting.is_empty(), "seed {seed}: {} writes are never answered", clients.waiting.len());
    let at = cluster.rng.index(size);
    clients.write(&mut cluster, at, 3);
    cluster.run_for(Duration::from_secs(1));
    clients.take_answers(&mut cluster);
    assert!(clients.waiting.is_empty(), "seed {seed}: once all is well again, writes are done");
    clients.check(&cluster, seed);
    (clients.done.len(), clients.unknown.len())
}

#[test]
fn a_write_takes_effect_once_whatever_happens_to_leaders_links_and_processes() {
    let seeds: Vec<u64> = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=24).collect(),
    };
    let (mut done, mut unknown) = (0, 0);
    for seed in seeds {
        println!("seed {seed}");
        let (seed_done, seed_unknown) = run(seed);
        done += seed_done;
        unknown += seed_unknown;
    }
    assert!(done > 5 * unknown, "most writes are acknowledged: {done}, and {unknown} are not");
}

#[test]
fn a_killed_leader_is_replaced_soon_and_no_write_of_the_others_fails() {
    let mut gaps = Vec::new();
    for seed in 100..120 {
        let mut cluster = Cluster::new(seed, 3);
        let leader = cluster.elect();
        let mut clients = Clients::default();
        cluster.kill(leader, true);
        let began = cluster.now();
        for at in (0..3).filter(|at| *at != leader) {
            clients.write(&mut cluster, at, 5);
        }
        let answered = cluster.run_until(Duration::from_secs(3), |cluster| {
            clients.take_answers(cluster);
            clients.waiting.is_empty()
        });
        assert!(answered, "seed {seed}");
        assert_eq!(clients.done.len(), 10, "seed {seed}: {:?}", clients.unknown);
        gaps.push(cluster.now() - began);
    }
    gaps.sort_unstable();
    assert!(gaps[gaps.len() / 2] < Duration::from_millis(100), "{gaps:?}");
    assert!(gaps[gaps.len() - 1] < Duration::from_millis(700), "{gaps:?}");
}

#[test]
fn a_leader_that_vanishes_is_replaced_within_two_election_timeouts() {
    let mut gaps = Vec::new();
    for seed in 200..220 {
        let mut cluster = Cluster::new(seed, 3);
        let leader = cluster.elect();
        let began = cluster.now();
        cluster.cut = vec![leader];
        let elected = cluster.run_until(Duration::from_secs(3), |cluster| cluster.leader().is_some());
        assert!(elected, "seed {seed}");
        gaps.push(cluster.now() - began);
    }
    gaps.sort_unstable();
    assert!(gaps[gaps.len() / 2] < Duration::from_millis(1_200), "{gaps:?}");
    assert!(gaps[gaps.len() - 1] < Duration::from_millis(2_000), "{gaps:?}");
}

#[test]
fn leadership_is_handed_over_without_a_write_that_fails_or_waits_long() {
    for seed in 300..310 {
        let mut cluster = Cluster::new(seed, 3);
        for node in &mut cluster.nodes {
            node.latency.io_max = Duration::from_micros(300);
        }
        cluster.network.delay_max = Duration::from_micros(300);
        let leader = cluster.elect();
        let target = (leader + 1) % 3;
        let mut clients = Clients::default();
        for at in 0..3 {
            clients.write(&mut cluster, at, 5);
        }
        let moved = cluster.nodes[leader].send([Request::MoveLeader { target: id_of(target) }])[0];
        for at in 0..3 {
            clients.write(&mut cluster, at, 5);
        }
        let began = cluster.now();
        let mut answer = None;
        let done = cluster.run_until(Duration::from_secs(1), |cluster| {
            let answers = &mut cluster.nodes[leader].answers;
            if let Some(at) = answers.iter().position(|(ticket, _)| *ticket == moved) {
                answer = Some(answers.remove(at).1);
            }
            clients.take_answers(cluster);
            clients.waiting.is_empty() && answer.is_some()
        });
        assert!(done, "seed {seed}: {} writes wait", clients.waiting.len());
        assert_eq!((answer, cluster.leader()), (Some(Ok(Response::MoveLeader)), Some(target)), "seed {seed}");
        assert_eq!(clients.done.len(), 30, "seed {seed}");
        assert!(cluster.now() - began <= Duration::from_millis(7), "seed {seed}: {:?}", cluster.now() - began);
        clients.check_after(&mut cluster, seed);
    }
}

impl Clients {
    fn check_after(&self, cluster: &mut Cluster, seed: u64) {
        cluster.run_for(Duration::from_millis(500));
        self.check(cluster, seed);
    }
}

#[test]
fn leadership_goes_only_where_it_can() {
    let mut cluster = Cluster::new(400, 3);
    let leader = cluster.elect();
    let follower = (leader + 1) % 3;
    let mut ask = |at: usize, target: u64| {
        let ticket = cluster.nodes[at].send([Request::MoveLeader { target }])[0];
        cluster.run_until(Duration::from_secs(3), |cluster| {
            cluster.nodes[at].answers.iter().any(|(answered, _)| *answered == ticket)
        });
        cluster.nodes[at].answers.drain(..).find(|(answered, _)| *answered == ticket).map(|(_, result)| result)
    };
    assert_eq!(ask(follower, id_of(leader)), Some(Err(Error::NotLeader)));
    assert_eq!(ask(leader, 99), Some(Err(Error::BadLeaderTransferee)));
    assert_eq!(ask(leader, id_of(leader)), Some(Ok(Response::MoveLeader)));
    // To whom nobody can talk leadership can't go, and what was held meanwhile goes on.
    cluster.cut = vec![follower];
    let mut clients = Clients::default();
    let ticket = cluster.nodes[leader].send([Request::MoveLeader { target: id_of(follower) }])[0];
    clients.write(&mut cluster, leader, 3);
    clients.write(&mut cluster, (leader + 2) % 3, 3);
    cluster.run_for(Duration::from_millis(1_500));
    let answer = cluster.nodes[leader].answers.iter().find(|(answered, _)| *answered == ticket).cloned();
    assert_eq!(answer.map(|(_, result)| result), Some(Err(Error::LeaderTransferTimeout)));
    clients.take_answers(&mut cluster);
    assert_eq!((clients.done.len(), cluster.leader()), (6, Some(leader)));
}

#[test]
fn without_a_quorum_writes_fail_in_time_and_all_resumes_by_itself() {
    let mut cluster = Cluster::new(500, 3);
    let leader = cluster.elect();
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    let mut clients = Clients::default();
    clients.write(&mut cluster, others[0], 1);
    cluster.run_for(Duration::from_millis(500));
    clients.take_answers(&mut cluster);
    assert_eq!(clients.done.len(), 1);
    cluster.kill(leader, true);
    cluster.kill(others[1], true);
    let alone = others[0];
    let began = cluster.now();
    let write = cluster.nodes[alone].send([put("lost")])[0];
    let lease = cluster.nodes[alone].send([Request::LeaseKeepAlive { id: 1 }])[0];
    let read = cluster.nodes[alone].send([Request::ReadIndex])[0];
    cluster.run_for(Duration::from_millis(6_900));
    assert!(cluster.nodes[alone].answers.is_empty(), "etcd's time limit is seven seconds");
    cluster.run_for(Duration::from_millis(300));
    let answers: BTreeMap<Ticket, _> = cluster.nodes[alone].answers.drain(..).collect();
    for ticket in [write, lease, read] {
        assert_eq!(answers.get(&ticket), Some(&Err(Error::Timeout)), "{:?}", cluster.now() - began);
    }
    assert_eq!(cluster.dump(alone).len(), 1, "what is there can be read all the time");
    // What is asked while there is no quorum is done when it is back.
    cluster.run_for(Duration::from_secs(2));
    clients.write(&mut cluster, alone, 2);
    cluster.run_for(Duration::from_secs(1));
    cluster.revive(leader);
    cluster.run_for(Duration::from_secs(4));
    clients.take_answers(&mut cluster);
    assert_eq!(clients.done.len(), 3, "{:?}", clients.unknown);
    cluster.revive(others[1]);
    cluster.run_for(Duration::from_secs(2));
    let dumps: Vec<_> = (0..3).map(|at| cluster.dump(at)).collect();
    assert!(dumps.iter().all(|dump| *dump == dumps[0]));
}

#[test]
fn the_text_of_a_timeout_says_what_was_lost() {
    let mut cluster = Cluster::with(600, 3, |config| config.election_timeout = Duration::from_millis(1_000));
    let leader = cluster.elect();
    let follower = (leader + 1) % 3;
    // The link to the leader is down for the writes of this member, and Raft's own messages still come.
    let clock = cluster.nodes[follower].clock();
    cluster.nodes[follower].member.handle_peer_down(clock, id_of(leader));
    cluster.network.loss_per_mille = 0;
    let ticket = cluster.nodes[follower].send([put("a")])[0];
    while cluster.nodes[follower].member.poll_message().is_some() {}
    cluster.no_forwards = true;
    cluster.run_for(Duration::from_millis(7_200));
    let answer = cluster.nodes[follower].answers.iter().find(|(answered, _)| *answered == ticket).cloned();
    assert_eq!(answer.map(|(_, result)| result), Some(Err(Error::ConnectionLostTimeout)));
}

#[test]
fn a_leader_whose_disk_stalls_makes_room_for_another_and_says_so() {
    for seed in 700..706 {
        let mut cluster = Cluster::new(seed, 3);
        let leader = cluster.elect();
        let began = cluster.now();
        cluster.nodes[leader].stall_until(began + Duration::from_secs(20));
        let mut clients = Clients::default();
        for at in 0..3 {
            clients.write(&mut cluster, at, 3);
        }
        let other = cluster.run_until(Duration::from_secs(4), |cluster| {
            cluster.leader().is_some_and(|at| at != leader && cluster.nodes[at].member.is_ready())
        });
        assert!(other, "seed {seed}: nobody else leads");
        assert!(cluster.now() - began < Duration::from_secs(2), "seed {seed}: {:?}", cluster.now() - began);
        let new = cluster.leader().unwrap();
        clients.write(&mut cluster, new, 3);
        cluster.run_for(Duration::from_secs(3));
        assert_eq!(cluster.leader(), Some(new), "seed {seed}: whose disk stalls does not lead again");
        cluster.run_for(Duration::from_secs(20));
        clients.take_answers(&mut cluster);
        assert!(clients.waiting.is_empty(), "seed {seed}");
        clients.check(&cluster, seed);
    }
}

#[test]
fn a_store_that_is_full_refuses_what_other_members_forward_and_says_so() {
    let mut cluster = Cluster::with(800, 3, |config| config.quota_bytes = 300_000);
    let leader = cluster.elect();
    let follower = (leader + 1) % 3;
    let mut clients = Clients { big: true, ..Clients::default() };
    for _ in 0..30 {
        clients.write(&mut cluster, follower, 3);
        cluster.run_for(Duration::from_millis(20));
        clients.take_answers(&mut cluster);
    }
    cluster.run_for(Duration::from_secs(1));
    clients.take_answers(&mut cluster);
    assert!(clients.waiting.is_empty() && clients.unknown.is_empty());
    assert!(!clients.done.is_empty() && !clients.refused.is_empty());
    for at in 0..3 {
        let Ok(Response::Status(status)) = cluster.nodes[at].call(Request::Status) else { panic!() };
        let asked = Alarm { member_id: id_of(follower), kind: AlarmKind::NoSpace };
        assert!(status.alarms.contains(&asked), "the alarm of the member that was asked shows everywhere");
    }
}

#[test]
fn a_leader_that_was_replaced_forgets_what_its_log_does_not_hold_any_more() {
    let mut cluster = Cluster::new(850, 3);
    let leader = cluster.elect();
    cluster.cut = vec![leader];
    for _ in 0..3 {
        cluster.nodes[leader].send([put("lost")]);
        cluster.run_for(Duration::from_millis(20));
    }
    // All that the next leader has to send is the entry that begins its term.
    cluster.run_for(Duration::from_secs(8));
    let answers: Vec<_> = cluster.nodes[leader].answers.drain(..).map(|(_, result)| result.err()).collect();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|error| matches!(error, Some(Error::Timeout | Error::ConnectionLostTimeout))));
    assert!(!cluster.nodes[leader].member.is_quiet(), "for what it knows its entries may be committed yet");
    cluster.cut.clear();
    cluster.run_for(Duration::from_secs(2));
    assert!((0..3).all(|at| cluster.nodes[at].member.is_quiet()));
    assert_eq!(cluster.dump(leader), vec![]);
}

#[test]
fn a_leader_that_is_cut_off_answers_what_it_refused_for_want_of_space() {
    let mut cluster = Cluster::with(860, 3, |config| config.quota_bytes = 300_000);
    let leader = cluster.elect();
    cluster.cut = vec![leader];
    let Command::Put(small) = put_command("large", 0) else { unreachable!() };
    let large = Put { value: Bytes::from(vec![b'v'; 400_000]), ..small };
    let ticket = cluster.nodes[leader].send([Request::Write(Command::Put(large))])[0];
    cluster.run_for(Duration::from_millis(100));
    assert!(cluster.nodes[leader].answers.is_empty(), "the alarm is to show first");
    cluster.run_for(Duration::from_secs(4));
    assert_eq!(cluster.nodes[leader].answers.drain(..).collect::<Vec<_>>(), [(ticket, Err(Error::NoSpace))]);
}

#[test]
fn leases_are_renewed_through_any_member_and_never_expire_early_after_a_change_of_leader() {
    for seed in 900..906 {
        let mut cluster = Cluster::new(seed, 3);
        let leader = cluster.elect();
        let follower = (leader + 1) % 3;
        cluster.nodes[follower].send([Request::Write(Command::LeaseGrant { id: 5, ttl_seconds: 4 })]);
        cluster.run_for(Duration::from_millis(300));
        cluster.nodes[follower].send([Request::Write(put_command("leased", 5))]);
        cluster.run_for(Duration::from_millis(300));
        let mut renewed = cluster.now();
        for round in 0..4 {
            cluster.run_for(Duration::from_millis(2_500));
            let ticket = cluster.nodes[follower].send([Request::LeaseKeepAlive { id: 5 }])[0];
            let asked = cluster.now();
            let answered = cluster.run_until(Duration::from_secs(3), |cluster| {
                cluster.nodes[follower].answers.iter().any(|(answered, _)| *answered == ticket)
            });
            assert!(answered, "seed {seed} round {round}");
            let (_, result) = cluster.nodes[follower].answers.drain(..).find(|(at, _)| *at == ticket).unwrap();
            assert_eq!(result, Ok(Response::LeaseKeepAlive { ttl_seconds: 4 }), "seed {seed} round {round}");
            renewed = asked;
        }
        let old = cluster.leader().unwrap();
        if old != follower {
            cluster.kill(old, true);
        }
        while cluster.now() < renewed + Duration::from_secs(4) {
            cluster.run_for(Duration::from_millis(50));
            assert_eq!(cluster.dump(follower).len(), 1, "seed {seed}: expired early");
        }
        let expired = cluster.run_until(Duration::from_secs(8), |cluster| cluster.dump(follower).is_empty());
        assert!(expired, "seed {seed}: never expires");
        let left = cluster.nodes[follower].send([Request::LeaseTimeToLive { id: 5 }])[0];
        cluster.run_for(Duration::from_secs(1));
        let (_, result) = cluster.nodes[follower].answers.drain(..).find(|(at, _)| *at == left).unwrap();
        assert_eq!(result, Ok(Response::LeaseTimeToLive { ttl_seconds: -1, granted_ttl_seconds: 0 }));
    }
}

#[test]
fn a_day_of_jitter_and_loss_brings_no_election() {
    // A simulated minute in every test run; the whole day by hand: HOURS=24.
    let hours = std::env::var("HOURS").map_or(0, |hours| hours.parse().unwrap());
    let mut cluster = Cluster::new(1_000, 3);
    let leader = cluster.elect();
    let term = cluster.nodes[leader].member.term();
    cluster.network = Network { delay_max: Duration::from_millis(7), loss_per_mille: 10, twice_per_mille: 0 };
    cluster.run_for(Duration::from_secs(60) + Duration::from_secs(3_600) * hours);
    assert_eq!((cluster.leader(), cluster.nodes[leader].member.term()), (Some(leader), term));
}
