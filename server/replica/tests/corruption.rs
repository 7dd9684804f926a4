//! Members that compare their states: whoever differs is named, and nobody else.
//!
//! A member is made to differ by the network, which changes a value on the way to it.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use garboard_replica::corruption::{CheckKind, CheckNote, CorruptionChecks, Seen};
use garboard_replica::envelope::{Request, Response};
use garboard_replica::limits::INITIAL_CHECK_MAX;
use garboard_replica::request::{Alarm, AlarmKind, Command};
use garboard_simdisk::Rng;
use support::{Cluster, Network, at_of, honest_put, id_of, put};

const INTERVAL: Duration = Duration::from_secs(2);
/// Long enough for a check of whoever leads, with its random start.
const CHECKED: Duration = Duration::from_secs(6);

fn cluster(seed: u64, size: u64, checks: CorruptionChecks) -> Cluster {
    Cluster::with(seed, size, |config| config.corruption = checks)
}

fn periodic() -> CorruptionChecks {
    CorruptionChecks { periodic: Some(INTERVAL), ..CorruptionChecks::default() }
}

fn of_compactions() -> CorruptionChecks {
    CorruptionChecks { compactions: Some(INTERVAL), ..CorruptionChecks::default() }
}

fn initial() -> CorruptionChecks {
    CorruptionChecks { initial: true, ..CorruptionChecks::default() }
}

fn write(cluster: &mut Cluster, at: usize, requests: Vec<Request>) {
    cluster.nodes[at].send(requests);
    cluster.run_for(Duration::from_millis(200));
    cluster.nodes[at].answers.clear();
}

fn compact(cluster: &mut Cluster, at: usize, revision: i64) {
    write(cluster, at, vec![Request::Write(Command::Compact { revision, physical: false })]);
}

/// The CORRUPT alarms, as every member has them.
fn corrupt(cluster: &Cluster) -> Vec<u64> {
    let alarms = |at: &usize| -> Vec<u64> {
        let list = cluster.nodes[*at].member.status().alarms;
        list.iter().filter(|alarm| alarm.kind == AlarmKind::Corrupt).map(|alarm| alarm.member_id).collect()
    };
    let reached: Vec<usize> = (0..cluster.nodes.len()).filter(|at| !cluster.dead.contains(at)).collect();
    let first = alarms(&reached[0]);
    assert!(reached.iter().all(|at| alarms(at) == first), "alarms show everywhere");
    first
}

fn lead(cluster: &mut Cluster, at: usize) {
    let target = id_of(at);
    let leader = cluster.leader().unwrap();
    if leader != at {
        cluster.nodes[leader].send([Request::MoveLeader { target }]);
        assert!(cluster.run_until(Duration::from_secs(5), |cluster| cluster.leader() == Some(at)), "it does not lead");
        cluster.run_for(Duration::from_millis(100));
    }
}

/// Takes what checks told of this kind: how often all were equal, at how many members.
fn done(cluster: &mut Cluster, kind: CheckKind) -> Vec<(usize, usize)> {
    let notes = cluster.nodes.iter_mut().flat_map(|node| std::mem::take(&mut node.checks));
    notes
        .filter_map(|note| match note {
            CheckNote::Done { kind: of, equal, skipped, .. } if of == kind => Some((equal, skipped)),
            _ => None,
        })
        .collect()
}

#[test]
fn exactly_the_member_that_differs_is_blamed_whoever_leads() {
    for (seed, led_by_itself) in [(1, false), (2, true), (3, false), (4, true)] {
        let mut cluster = cluster(seed, 3, periodic());
        let leader = cluster.elect();
        let deceived = (leader + 1) % 3;
        cluster.deceived = Some(deceived);
        let puts = (0..100).map(|n| put(&n.to_string())).chain([honest_put("a"), put("b")]).collect();
        write(&mut cluster, leader, puts);
        cluster.deceived = None;
        if led_by_itself {
            lead(&mut cluster, deceived);
        }
        cluster.run_for(CHECKED);
        assert_eq!(corrupt(&cluster), [id_of(deceived)], "seed {seed}");
        let refused = cluster.nodes[leader].send([put("c")])[0];
        cluster.run_for(Duration::from_millis(500));
        let (_, result) = cluster.nodes[leader].answers.iter().find(|(ticket, _)| *ticket == refused).unwrap();
        assert_eq!(*result, Err(garboard_replica::Error::Corrupt));
    }
}

#[test]
fn of_two_members_that_differ_neither_is_believed() {
    let mut cluster = cluster(10, 2, periodic());
    let leader = cluster.elect();
    cluster.deceived = Some(1 - leader);
    write(&mut cluster, leader, vec![honest_put("a")]);
    cluster.run_for(CHECKED);
    assert_eq!(corrupt(&cluster), [0]);
}

#[test]
fn an_alarm_that_is_taken_back_is_raised_again_as_long_as_members_differ() {
    let mut cluster = cluster(11, 3, periodic());
    let leader = cluster.elect();
    let deceived = (leader + 1) % 3;
    cluster.deceived = Some(deceived);
    write(&mut cluster, leader, vec![honest_put("a")]);
    cluster.deceived = None;
    cluster.run_for(CHECKED);
    let alarm = Alarm { member_id: id_of(deceived), kind: AlarmKind::Corrupt };
    write(&mut cluster, leader, vec![Request::Write(Command::AlarmDeactivate(alarm))]);
    cluster.run_for(CHECKED);
    assert_eq!(corrupt(&cluster), [id_of(deceived)]);
    // Once what differs is replaced and compacted away, all are equal.
    let revision = cluster.nodes[leader].member.status().revision + 1;
    let compaction = Command::Compact { revision, physical: false };
    let commands = vec![Request::Write(Command::AlarmDeactivate(alarm)), put("a"), Request::Write(compaction)];
    write(&mut cluster, leader, commands);
    cluster.run_for(CHECKED);
    assert_eq!(corrupt(&cluster), []);
}

#[test]
fn a_compaction_s_hash_blames_all_that_differ() {
    let mut cluster = cluster(20, 5, of_compactions());
    let leader = cluster.elect();
    for n in 0..20 {
        write(&mut cluster, leader, vec![put(&format!("k{}", n % 5)), put("x")]);
    }
    compact(&mut cluster, leader, 10);
    cluster.run_for(Duration::from_secs(1));
    let deceived = [(leader + 1) % 5, (leader + 3) % 5];
    cluster.deceived = Some(deceived[0]);
    write(&mut cluster, leader, vec![honest_put("a")]);
    cluster.deceived = Some(deceived[1]);
    write(&mut cluster, leader, vec![honest_put("b"), put("x")]);
    cluster.deceived = None;
    let revision = cluster.nodes[leader].member.status().revision;
    compact(&mut cluster, leader, revision);
    cluster.run_for(CHECKED);
    let mut blamed = deceived.map(id_of);
    blamed.sort_unstable();
    assert_eq!(corrupt(&cluster), blamed);
}

#[test]
fn each_compaction_is_compared_once_where_members_are_equal() {
    let mut cluster = cluster(21, 3, of_compactions());
    let leader = cluster.elect();
    for round in 0..3_i64 {
        write(&mut cluster, leader, (0..10).map(|n| put(&n.to_string())).collect());
        compact(&mut cluster, leader, 5 + 10 * round);
        cluster.run_for(CHECKED);
        let checked = cluster.nodes[leader].member.checker().checked_compaction();
        assert_eq!(checked, 5 + 10 * round);
        assert_eq!(done(&mut cluster, CheckKind::Compaction), [(2, 0)], "round {round}");
    }
    assert_eq!(corrupt(&cluster), []);
}

#[test]
fn checks_of_equal_members_compare_all_of_them() {
    let mut cluster = cluster(30, 3, periodic());
    let leader = cluster.elect();
    write(&mut cluster, leader, (0..2_000).map(|n| put(&format!("{}", n % 700))).collect());
    done(&mut cluster, CheckKind::Periodic);
    cluster.run_for(CHECKED);
    let checks = done(&mut cluster, CheckKind::Periodic);
    assert!(checks.len() >= 2 && checks.iter().all(|check| *check == (2, 0)), "{checks:?}");
    assert_eq!(corrupt(&cluster), []);
}

/// Everything that may make sound members look different for a moment, for some minutes.
#[test]
fn nobody_is_blamed_whatever_happens_while_states_are_compared() {
    let (mut compared, mut passed_over) = (0, 0);
    for seed in 100..112 {
        let size = 2 + seed % 4;
        let checks = CorruptionChecks {
            initial: true,
            periodic: Some(Duration::from_millis(150)),
            compactions: Some(Duration::from_millis(400)),
        };
        let mut cluster = Cluster::with(seed, size, |config| {
            config.corruption = checks;
            config.catch_up_commands = 200;
        });
        let mut rng = Rng::new(seed);
        cluster.network = Network { delay_max: Duration::from_millis(20), loss_per_mille: 50, twice_per_mille: 50 };
        cluster.elect();
        for _ in 0..150 {
            let size = cluster.nodes.len();
            let at = rng.index(size);
            let alive = !cluster.dead.contains(&at);
            match rng.below(20) {
                0 if alive && cluster.dead.is_empty() => cluster.kill(at, rng.chance(50)),
                1..=3 if !cluster.dead.is_empty() => {
                    let dead = cluster.dead[0];
                    cluster.revive(dead);
                }
                4 => cluster.cut = vec![at],
                5..=6 => cluster.cut.clear(),
                7 if alive => {
                    let target = id_of(rng.index(size));
                    cluster.nodes[at].send([Request::MoveLeader { target }]);
                }
                8..=10 if alive => {
                    let revision = cluster.nodes[at].member.status().revision;
                    let back = i64::try_from(rng.below(20)).unwrap();
                    let compaction = Command::Compact { revision: (revision - back).max(1), physical: false };
                    cluster.nodes[at].send([Request::Write(compaction)]);
                }
                _ if alive => {
                    let keys: Vec<Request> = (0..rng.below(60)).map(|_| put(&rng.below(40).to_string())).collect();
                    cluster.nodes[at].send(keys);
                }
                _ => {}
            }
            cluster.run_for(Duration::from_millis(rng.below(400)));
            for node in &mut cluster.nodes {
                assert_eq!(node.differs, None, "seed {seed}");
                for note in std::mem::take(&mut node.checks) {
                    let CheckNote::Done { equal, skipped, .. } = note else { panic!("seed {seed}: {note}") };
                    compared += equal;
                    passed_over += skipped;
                }
                node.answers.clear();
            }
        }
    }
    assert!(compared > 1_000 && passed_over > 20, "{compared} compared, {passed_over} passed over");
}

#[test]
fn a_member_that_differs_refuses_to_serve_and_the_others_serve() {
    let mut cluster = cluster(40, 3, initial());
    let leader = cluster.elect();
    assert!(cluster.nodes.iter().all(|node| node.member.is_checked()), "new members have nothing to compare");
    let deceived = (leader + 1) % 3;
    cluster.deceived = Some(deceived);
    write(&mut cluster, leader, vec![honest_put("a"), put("b")]);
    cluster.deceived = None;
    cluster.kill(deceived, true);
    cluster.revive(deceived);
    assert!(!cluster.nodes[deceived].member.is_checked());
    cluster.run_for(Duration::from_secs(5));
    assert!(!cluster.nodes[deceived].member.is_checked());
    let differs = cluster.nodes[deceived].differs.expect("it says so");
    assert_eq!((differs.revision, differs.compact_revision), (3, -1));
    assert!(matches!(differs.other, Seen::Hash(other) if other != differs.own));
    assert_ne!(at_of(differs.member), deceived);
    assert_eq!(corrupt(&cluster), [], "nobody is blamed for what does not serve");
}

#[test]
fn a_member_that_is_equal_serves_after_the_check_and_without_the_others_after_a_while() {
    let mut cluster = cluster(41, 3, initial());
    let leader = cluster.elect();
    write(&mut cluster, leader, (0..500).map(|n| put(&n.to_string())).collect());
    let other = (leader + 1) % 3;
    cluster.kill(other, true);
    write(&mut cluster, leader, (0..500).map(|n| put(&n.to_string())).collect());
    cluster.revive(other);
    assert!(cluster.run_until(Duration::from_secs(2), |cluster| cluster.nodes[other].member.is_checked()));
    assert_eq!(done(&mut cluster, CheckKind::Initial), [(2, 0)]);
    for at in 0..3 {
        cluster.kill(at, false);
    }
    cluster.revive(other);
    let alone = INITIAL_CHECK_MAX + Duration::from_secs(10);
    assert!(cluster.run_until(alone, |cluster| cluster.nodes[other].member.is_checked()), "it waits for ever");
    assert_eq!(cluster.nodes[other].differs, None);
}

#[test]
fn all_members_started_at_once_find_each_other_equal() {
    let mut cluster = cluster(42, 3, initial());
    let leader = cluster.elect();
    write(&mut cluster, leader, (0..500).map(|n| put(&n.to_string())).collect());
    for at in 0..3 {
        cluster.kill(at, false);
    }
    for at in 0..3 {
        cluster.revive(at);
    }
    let all = |cluster: &mut Cluster| cluster.nodes.iter().all(|node| node.member.is_checked());
    assert!(cluster.run_until(Duration::from_secs(10), all));
    assert_eq!(done(&mut cluster, CheckKind::Initial), [(2, 0); 3]);
}

#[test]
fn whoever_was_asked_raises_its_own_alarm_when_its_space_runs_out() {
    let mut cluster = Cluster::with(50, 3, |config| config.quota_bytes = 300_000);
    let leader = cluster.elect();
    let follower = (leader + 1) % 3;
    for _ in 0..40 {
        cluster.nodes[follower].send([support::big_put("a"), support::big_put("b")]);
        cluster.run_for(Duration::from_millis(20));
    }
    cluster.run_for(Duration::from_secs(1));
    for at in 0..3 {
        let Ok(Response::Status(status)) = cluster.nodes[at].call(Request::Status) else { panic!() };
        let alarm = Alarm { member_id: id_of(follower), kind: AlarmKind::NoSpace };
        assert!(status.alarms.contains(&alarm), "{:?}", status.alarms);
    }
}
