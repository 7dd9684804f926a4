//! A member that has lost what it had acknowledged gets it back from the others by itself, and does no harm meanwhile.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use garboard_replica::envelope::{Response, Ticket};
use garboard_sim::node::{INDEX_FILE, Node};
use garboard_simdisk::{Disk, Rng, Rot};
use support::{Cluster, big_put, id_of, put};

const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;
const HEADER_MAGIC: &[u8] = b"gbrdwal\0";
const SEAL: u8 = 4;

/// What rots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The header of a batch that others stand behind.
    MiddleOfLog,
    /// The last batch, which a seal knows of.
    EndOfLog,
    /// The last batch can't be read: what it said of votes is not known.
    UnreadableEnd,
    /// Everything in a segment from one batch on; the seal is in another one.
    RestOfSegment,
    /// The manifest.
    Manifest,
    /// All meta pages.
    MetaPages,
    /// Any page of the index.
    Page,
    /// All of the index and of the log.
    Everything,
}

const PLACES: [Place; 8] = [
    Place::MiddleOfLog,
    Place::EndOfLog,
    Place::UnreadableEnd,
    Place::RestOfSegment,
    Place::Manifest,
    Place::MetaPages,
    Place::Page,
    Place::Everything,
];

/// Where batches begin, with their sequence numbers, in order.
fn batches(disk: &mut Disk) -> Vec<(u64, String, u64)> {
    let segments: Vec<(String, u64)> = disk
        .list()
        .filter(|(name, _)| name.contains("/segment-"))
        .map(|(name, size)| (name.to_owned(), size))
        .collect();
    let mut found = Vec::new();
    for (name, size) in segments {
        for offset in (0..size).step_by(BLOCK as usize) {
            let mut head = [0; 512];
            if disk.read(&name, offset, &mut head).is_ok() && head.starts_with(HEADER_MAGIC) && head[10] != SEAL {
                found.push((u64::from_le_bytes(head[72..80].try_into().unwrap()), name.clone(), offset));
            }
        }
    }
    found.sort();
    found
}

fn zero(disk: &mut Disk, name: &str, offset: u64, bytes: u64) {
    for sector in offset / SECTOR..(offset + bytes).div_ceil(SECTOR) {
        disk.rot(name, sector, Rot::Zero).unwrap();
    }
}

fn zero_file(disk: &mut Disk, is_meant: impl Fn(&str) -> bool) {
    let files: Vec<(String, u64)> =
        disk.list().filter(|(name, _)| is_meant(name)).map(|(name, size)| (name.to_owned(), size)).collect();
    files.iter().for_each(|(name, size)| zero(disk, name, 0, *size / SECTOR * SECTOR));
}

fn strike(node: &mut Node, place: Place, rng: &mut Rng) {
    let mut disk = node.disk.lock().unwrap();
    match place {
        Place::MiddleOfLog => {
            let found = batches(&mut disk);
            let (_, name, offset) = &found[found.len() - 2 - rng.index(8.min(found.len() - 2))];
            disk.rot(name, offset / SECTOR, Rot::Flip(rng.index(4096))).unwrap();
        }
        Place::EndOfLog => {
            let (_, name, offset) = batches(&mut disk).pop().unwrap();
            disk.rot(&name, offset / SECTOR, Rot::Flip(rng.index(1500))).unwrap();
        }
        Place::UnreadableEnd => {
            let (_, name, offset) = batches(&mut disk).pop().unwrap();
            disk.rot(&name, offset / SECTOR, Rot::Unreadable).unwrap();
        }
        Place::RestOfSegment => {
            let found = batches(&mut disk);
            let (_, name, offset) = &found[rng.index(found.len() / 2) + found.len() / 2];
            let size = disk.size(name).unwrap();
            zero(&mut disk, name, *offset, size - offset);
        }
        Place::Manifest => zero_file(&mut disk, |name| name.ends_with("manifest")),
        Place::MetaPages => zero(&mut disk, INDEX_FILE, 0, 4 * BLOCK),
        Place::Page => {
            let pages = node.member.machine().index().pages_in_file(0, 1 << 20).0;
            if let Some(page) = pages.get(rng.index(pages.len().max(1))) {
                let sector = u64::from(*page) * BLOCK / SECTOR + rng.below(8);
                disk.rot(INDEX_FILE, sector, Rot::Flip(rng.index(4096))).unwrap();
            }
        }
        Place::Everything => zero_file(&mut disk, |name| name == INDEX_FILE || name.contains("segment")),
    }
}

/// Starts a struck member. A page that has rotted is found by the scrub at the latest; the process ends then, and its next
/// start is a repair.
fn start(cluster: &mut Cluster, at: usize) {
    cluster.revive_repaired(at);
    let pages = cluster.nodes[at].member.machine().index().pages_in_file(0, 1 << 20).0;
    if cluster.nodes[at].reader().scrub(&pages).is_err() {
        cluster.nodes[at].mark_damaged();
        cluster.nodes[at].end_process();
        cluster.revive_repaired(at);
        assert!(cluster.nodes[at].member.is_under_repair());
    }
}

fn write(cluster: &mut Cluster, seed: u64, from: u64, count: u64) {
    let requests = (from..from + count).map(|number| {
        let name = format!("{number:06}");
        if (number + seed).is_multiple_of(7) { big_put(&name) } else { put(&name) }
    });
    for request in requests.collect::<Vec<_>>() {
        let leader = cluster.elect_soon();
        let ticket = cluster.nodes[leader].send([request])[0];
        wait(cluster, leader, ticket);
    }
}

fn wait(cluster: &mut Cluster, at: usize, ticket: Ticket) {
    let answered = |cluster: &mut Cluster| cluster.nodes[at].answers.iter().any(|(answered, _)| *answered == ticket);
    assert!(cluster.run_until(Duration::from_secs(30), answered), "a write is not answered");
    let answers = std::mem::take(&mut cluster.nodes[at].answers);
    let answer = answers.into_iter().find(|(answered, _)| *answered == ticket).unwrap().1;
    assert!(matches!(answer, Ok(Response::Write(_))), "{answer:?}");
}

fn repaired(cluster: &mut Cluster, at: usize) {
    let done = cluster.run_until(Duration::from_secs(60), |cluster| !cluster.nodes[at].member.is_under_repair());
    assert!(done, "member {} is not repaired: {:?}", at + 1, cluster.nodes[at].member.status());
}

fn same(cluster: &mut Cluster, expected: u64) {
    let alive: Vec<usize> = (0..cluster.nodes.len()).filter(|at| !cluster.dead.contains(at)).collect();
    let equal = cluster.run_until(Duration::from_secs(60), |cluster| {
        alive.iter().all(|at| cluster.dump(*at).len() as u64 == expected)
            && alive.iter().all(|at| cluster.dump(*at) == cluster.dump(alive[0]))
    });
    let lengths: Vec<usize> = alive.iter().map(|at| cluster.dump(*at).len()).collect();
    assert!(equal, "not everything that was acknowledged is everywhere: {lengths:?} of {expected}");
}

fn scenario(seed: u64, place: Place, size: u64) {
    println!("seed {seed}, {place:?}, {size} members");
    let mut rng = Rng::new(seed);
    let catch_up_commands = [0, 20, 5_000][rng.index(3)];
    let mut cluster = Cluster::with(seed, size, |config| config.catch_up_commands = catch_up_commands);
    let mut written = 20 + rng.below(60);
    write(&mut cluster, seed, 0, written);
    // All is sealed and known to be durable.
    cluster.run_for(Duration::from_secs(1));
    let leader = cluster.elect();
    let victim = if rng.chance(50) { leader } else { rng.index(cluster.nodes.len()) };
    cluster.kill(victim, rng.chance(50));
    strike(&mut cluster.nodes[victim], place, &mut rng);
    if rng.chance(50) {
        let more = 1 + rng.below(30);
        write(&mut cluster, seed, written, more);
        written += more;
    }
    start(&mut cluster, victim);
    if rng.chance(30) {
        // It dies again before it is repaired, or soon after.
        cluster.run_for(Duration::from_millis(rng.below(800)));
        cluster.kill(victim, true);
        start(&mut cluster, victim);
    }
    if rng.chance(50) {
        write(&mut cluster, seed, written, 10);
        written += 10;
    }
    repaired(&mut cluster, victim);
    same(&mut cluster, written);
    // It counts again: with another one gone the rest elects, and has everything.
    let leader = cluster.elect();
    let gone = if leader == victim { (victim + 1) % cluster.nodes.len() } else { leader };
    cluster.kill(gone, true);
    write(&mut cluster, seed, written, 5);
    same(&mut cluster, written + 5);
    // And a start without peers finds it sound.
    cluster.kill(victim, true);
    cluster.revive(victim);
    assert!(!cluster.nodes[victim].member.is_under_repair());
}

/// Runs every place over some seeds; `GARBOARD_SEEDS` says how many, `GARBOARD_SEED` which one alone.
fn each_seed(run: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("GARBOARD_SEED") {
        Some(seed) => run(seed),
        None => (1..=number("GARBOARD_SEEDS").unwrap_or(6)).for_each(run),
    }
}

#[test]
fn a_member_of_three_is_repaired_whatever_has_rotted_and_nothing_acknowledged_is_lost() {
    each_seed(|seed| PLACES.iter().for_each(|place| scenario(seed, *place, 3)));
}

#[test]
fn a_member_of_five_is_repaired_too() {
    each_seed(|seed| scenario(seed, PLACES[usize::try_from(seed).unwrap() % PLACES.len()], 5));
}

#[test]
fn a_member_of_two_is_repaired_although_the_other_can_not_lead_without_it() {
    each_seed(|seed| {
        let place = PLACES[usize::try_from(seed).unwrap() % PLACES.len()];
        println!("seed {seed}, {place:?}");
        let mut rng = Rng::new(seed);
        let mut cluster = Cluster::new(seed, 2);
        write(&mut cluster, seed, 0, 30);
        cluster.run_for(Duration::from_secs(1));
        let victim = rng.index(2);
        cluster.kill(victim, true);
        strike(&mut cluster.nodes[victim], place, &mut rng);
        // The other one gives up leading meanwhile.
        cluster.run_for(Duration::from_secs(5));
        start(&mut cluster, victim);
        repaired(&mut cluster, victim);
        same(&mut cluster, 30);
    });
}

/// A write is on the leader and on a member that loses it; the others do not know of it. The leader dies.
#[test]
fn a_member_under_repair_does_not_elect_one_that_lacks_what_it_had_acknowledged() {
    let mut cluster = Cluster::new(3, 3);
    write(&mut cluster, 3, 0, 20);
    cluster.run_for(Duration::from_secs(1));
    let leader = cluster.elect();
    let (victim, other) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.cut.push(other);
    write(&mut cluster, 3, 20, 1);
    cluster.run_for(Duration::from_millis(100));
    cluster.kill(victim, true);
    cluster.kill(leader, true);
    strike(&mut cluster.nodes[victim], Place::EndOfLog, &mut Rng::new(1));
    cluster.cut.clear();
    start(&mut cluster, victim);
    cluster.run_for(Duration::from_secs(20));
    assert_eq!(cluster.leader(), None, "two that lack what was acknowledged have elected one of them");
    cluster.revive(leader);
    repaired(&mut cluster, victim);
    same(&mut cluster, 21);
}

/// A write is on the leader and on one of the four others, which loses it; then another one gets it.
#[test]
fn a_leader_does_not_count_what_a_member_has_lost() {
    let mut cluster = Cluster::new(5, 5);
    write(&mut cluster, 5, 0, 20);
    cluster.run_for(Duration::from_secs(1));
    let leader = cluster.elect();
    let others: Vec<usize> = (0..5).filter(|at| *at != leader).collect();
    let (victim, helper) = (others[0], others[1]);
    cluster.cut.extend(&others[1..]);
    let ticket = cluster.nodes[leader].send([put("lost?")])[0];
    cluster.run_for(Duration::from_millis(60));
    cluster.kill(victim, false);
    strike(&mut cluster.nodes[victim], Place::EndOfLog, &mut Rng::new(1));
    start(&mut cluster, victim);
    // The victim cannot get the entry back: what the leader sends it is lost, but for answers to its questions.
    cluster.run_for(Duration::from_millis(60));
    cluster.no_appends_to = Some(id_of(victim));
    cluster.cut.retain(|at| *at != helper);
    cluster.run_for(Duration::from_millis(500));
    let answered = cluster.nodes[leader].answers.iter().any(|(answered, _)| *answered == ticket);
    cluster.kill(leader, true);
    cluster.kill(helper, true);
    cluster.no_appends_to = None;
    cluster.cut.clear();
    cluster.run_until(Duration::from_secs(20), |cluster| cluster.leader().is_some());
    let alive: Vec<usize> = (0..5).filter(|at| !cluster.dead.contains(at)).collect();
    cluster.run_for(Duration::from_secs(2));
    if cluster.leader().is_some() && answered {
        for at in alive {
            assert_eq!(cluster.dump(at).len(), 21, "a write that was acknowledged is lost");
        }
    }
}

#[cfg(feature = "canaries")]
mod canaries {
    use garboard_replica::canary::{Canary, plant};

    #[test]
    #[should_panic(expected = "have elected one of them")]
    fn a_member_that_votes_at_once_is_caught() {
        let _planted = plant(Canary::RepairedVotesAtOnce);
        super::a_member_under_repair_does_not_elect_one_that_lacks_what_it_had_acknowledged();
    }

    #[test]
    #[should_panic(expected = "a write that was acknowledged is lost")]
    fn a_leader_that_counts_what_is_lost_is_caught() {
        let _planted = plant(Canary::LostAcknowledgementsCount);
        super::a_leader_does_not_count_what_a_member_has_lost();
    }
}
