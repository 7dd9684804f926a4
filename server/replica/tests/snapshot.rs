//! Members that lag further than the log reaches are filled with a snapshot, on simulated disks, whatever happens.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use garboard_replica::envelope::Request;
use garboard_replica::peer::PeerMessage;
use garboard_replica::raft::Membership;
use garboard_replica::request::{Command, DeleteRange, KeyRange, Put};
use garboard_replica::transfer::TransferMessage;
use garboard_replica::watch::{WatchConfig, WatchCreate, WatchHub};
use garboard_replica::{MemberConfig, limits};
use garboard_sim::node::{Node, read};
use garboard_simdisk::Rng;
use garboard_storage::hash::{HashKv, KvHasher};
use garboard_storage::{Bounds, Revision};
use raft::eraftpb::MessageType;

const STEP: Duration = Duration::from_millis(5);

struct Cluster {
    nodes: Vec<Node>,
    rng: Rng,
    /// Members that nobody hears and that hear nobody.
    cut: Vec<usize>,
    /// A member that nobody hears.
    mute: Option<usize>,
    /// Of a hundred messages about snapshots, so many are lost.
    loss: u64,
    on_the_way: VecDeque<(usize, usize, PeerMessage)>,
    chunks: u64,
    transferred: u64,
    dirty_max: u64,
    step: Duration,
    /// The last entry that the third member has acknowledged.
    acknowledged: u64,
}

fn config(id: u64, members: &Membership) -> MemberConfig {
    MemberConfig { initial_members: members.clone(), catch_up_commands: 20, ..MemberConfig::single(id) }
}

impl Cluster {
    fn new(seed: u64, voters: u64, learners: u64) -> Cluster {
        let members =
            Membership { voters: (1..=voters).collect(), learners: (voters + 1..=voters + learners).collect() };
        let node = |id| {
            let mut node = Node::with(seed * 10 + id, config(id, &members));
            (node.index_config.checkpoint_bytes, node.index_config.dirty_bytes_max) = (1 << 20, 2 << 20);
            node.restart_pause = Duration::ZERO;
            node
        };
        println!("seed {seed}");
        Cluster {
            nodes: (1..=voters + learners).map(node).collect(),
            rng: Rng::new(seed),
            cut: Vec::new(),
            mute: None,
            loss: 0,
            on_the_way: VecDeque::new(),
            chunks: 0,
            transferred: 0,
            dirty_max: 0,
            step: STEP,
            acknowledged: 0,
        }
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.nodes[0].now + duration;
        while self.nodes[0].now < end {
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.nodes.iter().map(|node| node.now).max().unwrap() + self.step;
        for node in &mut self.nodes {
            node.run_until(now);
        }
        self.deliver();
    }

    fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Cluster) -> bool) {
        for _ in 0..40_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        for node in &self.nodes {
            println!("{:?}", node.member.status());
        }
        panic!("it takes too long until {what}");
    }

    fn deliver(&mut self) {
        for from in 0..self.nodes.len() {
            while let Some((to, message)) = self.nodes[from].member.poll_message() {
                if let PeerMessage::Transfer(TransferMessage::Chunk(chunk)) = &message {
                    self.chunks += 1;
                    self.transferred += u64::try_from(chunk.bytes.len()).unwrap();
                }
                if let PeerMessage::Raft(message) = &message
                    && (message.get_msg_type(), message.from, message.reject)
                        == (MessageType::MsgAppendResponse, 3, false)
                {
                    self.acknowledged = self.acknowledged.max(message.index);
                }
                let message = message.encode().map_or(message, |bytes| PeerMessage::decode(&bytes).unwrap());
                self.on_the_way.push_back((from, usize::try_from(to).unwrap() - 1, message));
            }
        }
        for (from, to, message) in std::mem::take(&mut self.on_the_way) {
            let lost = matches!(message, PeerMessage::Transfer(_)) && self.rng.below(100) < self.loss;
            if lost || self.mute == Some(from) || self.cut.contains(&from) || self.cut.contains(&to) {
                continue;
            }
            let (now, sender) = (self.nodes[to].clock(), u64::try_from(from).unwrap() + 1);
            self.nodes[to].member.handle_message(now, sender, message);
            self.nodes[to].drain();
            let dirty = self.nodes[to].member.machine().index().dirty_bytes();
            self.dirty_max = self.dirty_max.max(dirty);
        }
    }

    fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|at| !self.cut.contains(at) && self.nodes[*at].member.leads())
    }

    fn write(&mut self, command: Command) {
        if let Some(leader) = self.leader() {
            self.nodes[leader].send([Request::Write(command)]);
        }
    }

    fn write_some(&mut self, count: u64) {
        for _ in 0..count {
            let revision = self.leader().map(|at| self.nodes[at].reader().revision());
            let command = some_command(&mut self.rng, revision);
            self.write(command);
            if self.rng.chance(20) {
                self.step();
            }
        }
        self.run_for(Duration::from_millis(200));
    }

    fn applied(&self, at: usize) -> u64 {
        self.nodes[at].member.status().raft_applied_index
    }

    fn catch_up(&mut self) {
        self.run_until("all have applied the same", |cluster| {
            let Some(leader) = cluster.leader() else { return false };
            let newest = cluster.nodes[leader].member.status().raft_index;
            (0..cluster.nodes.len()).all(|at| cluster.cut.contains(&at) || cluster.applied(at) == newest)
        });
    }

    /// All members show the same, byte for byte.
    fn assert_equal(&mut self) {
        self.catch_up();
        let expected = Dump::of(&self.nodes[0]);
        for at in 1..self.nodes.len() {
            assert_eq!(Dump::of(&self.nodes[at]), expected, "member {}", at + 1);
            self.nodes[at].member.machine().index().check().unwrap();
        }
    }

    /// A member that is behind by more than is kept.
    fn lag(&mut self, at: usize) {
        self.cut = vec![at];
        self.run_until("there is a leader", |cluster| cluster.leader().is_some());
        self.write_some(300);
    }
}

fn put(key: String, len: usize) -> Command {
    Command::Put(Put {
        key: key.into(),
        value: Bytes::from(vec![b'v'; len]),
        lease: 0,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    })
}

fn some_command(rng: &mut Rng, revision: Option<i64>) -> Command {
    let key = format!("key-{:03}", rng.below(200));
    match rng.below(100) {
        0..=74 => put(key, rng.index(3_000)),
        75..=76 => put(key, 600_000 + rng.index(100_000)),
        77..=89 => Command::DeleteRange(DeleteRange { keys: KeyRange::Point(key.into()), prev_kv: false }),
        90..=97 => Command::LeaseGrant { id: rng.next_u64().cast_signed() | 1, ttl_seconds: 100_000 },
        _ => Command::Compact { revision: revision.unwrap_or(1), physical: false },
    }
}

/// Everything that a member shows.
#[derive(Debug, PartialEq)]
struct Dump {
    applied: u64,
    revision: i64,
    compacted: i64,
    keys: Vec<(Vec<u8>, i64, i64, i64)>,
    records: Vec<(Revision, Bytes, usize, bool)>,
    system: Vec<(Vec<u8>, Vec<u8>)>,
    hash: HashKv,
}

impl Dump {
    fn of(node: &Node) -> Dump {
        read(&node.reader(), |view| {
            let mut keys = Vec::new();
            let mut cursor = view.cursor(Bounds::ALL, i64::MAX);
            while let Some((key, version)) = cursor.next()? {
                keys.push((key.to_vec(), version.modified.main, version.create_revision, version.version));
            }
            let mut records = Vec::new();
            // What lies at the floor or below may have been taken away on one member and not yet on another.
            let mut events = view.events(Revision { main: view.compacted().max(0) + 1, sub: 0 });
            while let Some(record) = events.next()? {
                records.push((record.revision, record.key, record.value.len(), record.deleted));
            }
            let mut system = Vec::new();
            let mut entries = view.system_scan(b"");
            while let Some(entry) = entries.next()? {
                system.push(entry);
            }
            let mut hasher = KvHasher::new(view, view.revision());
            let hash = loop {
                if let Some(hash) = hasher.step(view, 1_000)? {
                    break hash;
                }
            };
            let (applied, revision, compacted) = (view.applied().index, view.revision(), view.compacted());
            Ok(Dump { applied, revision, compacted, keys, records, system, hash })
        })
    }
}

#[test]
fn a_new_member_with_nothing_is_filled_and_goes_on_with_the_log() {
    for seed in 1..6 {
        let mut cluster = Cluster::new(seed, 1, 1);
        cluster.lag(1);
        assert_eq!(cluster.nodes[1].reader().revision(), 1);
        cluster.cut.clear();
        cluster.assert_equal();
        assert!(cluster.chunks > 0, "it was filled");
        assert_eq!(cluster.nodes[1].restored.len(), 1);
        let chunks = cluster.chunks;
        cluster.write_some(15);
        cluster.assert_equal();
        assert_eq!(cluster.chunks, chunks, "the log serves from then on");
        cluster.nodes[1].crash();
        cluster.write_some(15);
        cluster.assert_equal();
    }
}

#[test]
fn a_member_that_lags_is_filled_while_writes_and_compactions_go_on() {
    for seed in 10..20 {
        let mut cluster = Cluster::new(seed, 3, 0);
        cluster.lag(2);
        cluster.cut.clear();
        for _ in 0..30 {
            cluster.write_some(3);
        }
        cluster.assert_equal();
        assert!(cluster.chunks > 0);
    }
}

/// Every revision of what a member shows.
fn history(node: &Node) -> Vec<i64> {
    read(&node.reader(), |view| {
        let mut events = view.events(Revision { main: view.compacted().max(0) + 1, sub: 0 });
        let mut found = Vec::new();
        while let Some(record) = events.next()? {
            found.push(record.revision.main);
        }
        Ok(found)
    })
}

#[test]
fn a_sender_that_is_filled_itself_gives_up_what_it_was_sending() {
    let lagging = 4;
    let mut cluster = Cluster::new(25, 5, 0);
    cluster.lag(lagging);
    cluster.cut.clear();
    cluster.run_until("some chunks are on their way", |cluster| cluster.chunks > 4);
    let sender = cluster.leader().unwrap();
    let before = history(&cluster.nodes[sender]);
    // The others go on, and compact what the sender still reads.
    cluster.cut = vec![sender, lagging];
    cluster.run_until("others lead", |cluster| cluster.leader().is_some());
    cluster.write_some(60);
    let revision = cluster.nodes[cluster.leader().unwrap()].reader().revision();
    cluster.write(Command::Compact { revision, physical: false });
    cluster.run_for(Duration::from_secs(1));
    cluster.cut = vec![lagging];
    cluster.run_until("the sender is filled", |cluster| !cluster.nodes[sender].restored.is_empty());
    assert!(cluster.nodes[lagging].restored.is_empty());
    cluster.cut.clear();
    cluster.run_until("it is filled", |cluster| !cluster.nodes[lagging].restored.is_empty());
    let node = &cluster.nodes[lagging];
    let (revision, floor) = read(&node.reader(), |view| Ok((view.revision(), view.compacted())));
    let expected: Vec<i64> = before.into_iter().filter(|at| (floor + 1..=revision).contains(at)).collect();
    let found = history(node);
    assert!(expected.iter().all(|at| found.contains(at)), "{expected:?} of {found:?}, above {floor}");
    cluster.assert_equal();
}

#[test]
fn a_member_that_has_everything_is_not_filled_because_its_leader_does_not_know_that() {
    let mut cluster = Cluster::new(26, 3, 0);
    cluster.run_until("there is a leader", |cluster| cluster.leader().is_some());
    cluster.write_some(10);
    cluster.assert_equal();
    let leader = cluster.leader().unwrap();
    let other = (leader + 1) % 3;
    cluster.mute = Some(other);
    cluster.write_some(100);
    cluster.catch_up();
    cluster.mute = None;
    let id = u64::try_from(other).unwrap() + 1;
    let node = &mut cluster.nodes[leader];
    let now = node.clock();
    node.member.handle_peer_down(now, id);
    node.member.handle_peer_up(now, id);
    node.drain();
    cluster.run_for(Duration::from_secs(3));
    assert_eq!(cluster.leader(), Some(leader));
    cluster.write_some(30);
    cluster.assert_equal();
    assert_eq!((cluster.chunks, cluster.nodes[other].restored.len()), (0, 0));
}

#[test]
fn a_member_that_lags_serves_what_it_has_until_the_snapshot_is_in_place() {
    let mut cluster = Cluster::new(21, 1, 1);
    cluster.write_some(10);
    cluster.assert_equal();
    let old = Dump::of(&cluster.nodes[1]);
    cluster.lag(1);
    cluster.cut.clear();
    cluster.run_until("it is filled", |cluster| {
        let done = !cluster.nodes[1].restored.is_empty();
        if !done {
            assert_eq!(Dump::of(&cluster.nodes[1]).keys, old.keys);
        }
        done
    });
    cluster.assert_equal();
}

#[test]
fn chunks_that_are_lost_are_sent_again_and_the_rest_is_not() {
    let mut clean = Cluster::new(30, 1, 1);
    clean.lag(1);
    clean.cut.clear();
    clean.assert_equal();
    for loss in [5, 20] {
        let mut cluster = Cluster::new(30, 1, 1);
        cluster.lag(1);
        cluster.cut.clear();
        cluster.loss = loss;
        cluster.assert_equal();
        let bound =
            clean.transferred * 4 + 4 * u64::try_from(limits::TRANSFER_CHUNKS_IN_FLIGHT_MAX).unwrap() * (256 << 10);
        assert!(cluster.transferred < bound, "{} for {}", cluster.transferred, clean.transferred);
        assert_eq!(cluster.nodes[1].restored.len(), 1);
    }
}

#[test]
fn a_link_that_breaks_in_the_middle_goes_on_where_it_stopped() {
    let mut cluster = Cluster::new(35, 1, 1);
    cluster.lag(1);
    cluster.cut.clear();
    cluster.run_until("some chunks are there", |cluster| cluster.chunks > 10);
    let before = cluster.transferred;
    cluster.cut = vec![1];
    cluster.run_for(Duration::from_secs(5));
    cluster.cut.clear();
    cluster.assert_equal();
    assert_eq!(cluster.nodes[1].restored.len(), 1);
    assert!(before > 0);
}

#[test]
fn whoever_loses_power_in_the_middle_the_member_is_filled_in_the_end() {
    for seed in 40..60 {
        let mut cluster = Cluster::new(seed, 3, 0);
        cluster.lag(2);
        cluster.cut.clear();
        cluster.loss = seed % 3 * 5;
        for round in 0..4 {
            let chunks = cluster.chunks + cluster.rng.below(12);
            cluster.run_until("chunks flow, or are not needed", |cluster| {
                cluster.chunks > chunks || cluster.leader().is_some_and(|at| cluster.applied(2) >= cluster.applied(at))
            });
            let pause = cluster.rng.below(60);
            cluster.run_for(Duration::from_millis(pause));
            let victim = match (round, cluster.leader()) {
                (0 | 2, Some(leader)) => leader,
                _ => 2,
            };
            cluster.nodes[victim].crash();
            if cluster.rng.chance(50) {
                cluster.write_some(5);
            }
        }
        cluster.assert_equal();
    }
}

#[test]
fn two_members_are_filled_side_by_side() {
    let mut cluster = Cluster::new(70, 1, 3);
    cluster.cut = vec![1, 2, 3];
    cluster.run_until("there is a leader", |cluster| cluster.leader().is_some());
    cluster.write_some(300);
    cluster.cut.clear();
    cluster.assert_equal();
}

#[test]
fn memory_stays_bounded_on_both_sides() {
    let mut cluster = Cluster::new(80, 1, 1);
    cluster.cut = vec![1];
    cluster.run_until("there is a leader", |cluster| cluster.leader().is_some());
    for n in 0..4_000 {
        cluster.write(put(format!("{:016x}", n * 0x9E37_79B9_7F4A_7C15_u128), 3_000));
        if n % 50 == 0 {
            cluster.step();
        }
    }
    cluster.run_for(Duration::from_secs(1));
    cluster.cut.clear();
    cluster.dirty_max = 0;
    cluster.assert_equal();
    assert!(cluster.transferred > 11 << 20);
    assert!(cluster.dirty_max < 2 << 20, "{}", cluster.dirty_max);
}

/// A watch hub beside a member, with streams that began at several revisions.
struct Watching {
    hub: WatchHub,
    streams: Vec<(garboard_replica::watch::StreamId, i64, Vec<i64>)>,
}

impl Watching {
    fn new(node: &Node, starts: &[i64]) -> Watching {
        let reader = node.reader();
        let mut hub = WatchHub::new(WatchConfig::new(2 << 20), reader.revision());
        let streams = starts.iter().map(|start| {
            let id = hub.open_stream(Duration::ZERO, Duration::from_secs(600));
            let create = WatchCreate {
                watch_id: 0,
                keys: KeyRange::All,
                start_revision: *start,
                progress_notify: false,
                prev_kv: false,
                fragment: false,
                no_put: false,
                no_delete: false,
            };
            hub.create(Duration::ZERO, id, create, &reader.pin().view()).unwrap();
            (id, 0, Vec::new())
        });
        let streams = streams.collect();
        Watching { hub, streams }
    }

    /// Hands over what the member has said, and reads every stream to its end.
    fn follow(&mut self, node: &mut Node) {
        for batch in node.events.drain(..) {
            for revision in node.restored.iter().filter(|revision| **revision < batch.first_revision) {
                self.hub.handle_restore(*revision);
            }
            self.hub.handle_events(&batch);
        }
        node.restored.drain(..).for_each(|revision| self.hub.handle_restore(revision));
        for (id, compacted, seen) in &mut self.streams {
            loop {
                let reader = node.reader();
                let pin = reader.pin();
                match self.hub.next_response(*id, &pin.view()) {
                    Ok(None) => break,
                    Ok(Some(response)) => {
                        *compacted = (*compacted).max(response.compact_revision);
                        seen.extend(response.events.iter().map(|event| event.event().revision.main));
                    }
                    Err(need) => reader.load(need.0).unwrap(),
                }
            }
        }
    }
}

/// Every event from its start on reaches a watch on the member that is filled, or it is told of the floor it fell behind.
fn watches_miss_nothing(compact: bool) -> bool {
    let mut cluster = Cluster::new(90, 1, 1);
    for n in 0..10 {
        cluster.write(put(format!("before-{n}"), 10));
    }
    cluster.assert_equal();
    let mut watching = Watching::new(&cluster.nodes[1], &[0, 2, 40]);
    let begun_at = cluster.nodes[1].reader().revision();
    cluster.lag(1);
    if compact {
        let revision = cluster.nodes[0].reader().revision() - 50;
        cluster.write(Command::Compact { revision, physical: false });
    }
    cluster.run_for(Duration::from_secs(1));
    cluster.cut.clear();
    for _ in 0..100 {
        cluster.run_for(Duration::from_millis(50));
        watching.follow(&mut cluster.nodes[1]);
    }
    cluster.write(put("after".to_owned(), 10));
    cluster.assert_equal();
    watching.follow(&mut cluster.nodes[1]);
    assert!(cluster.chunks > 0);
    let view_floor = read(&cluster.nodes[1].reader(), |view| Ok(view.compacted()));
    let all: Vec<i64> = read(&cluster.nodes[0].reader(), |view| {
        let (mut events, mut all) = (view.events(Revision { main: view_floor.max(0) + 1, sub: 0 }), Vec::new());
        while let Some(record) = events.next()? {
            all.push(record.revision.main);
        }
        Ok(all)
    });
    let starts = [begun_at + 1, 2, 40];
    watching.streams.iter().zip(starts).all(|((_, compacted, seen), start)| {
        let in_order = seen.is_sorted_by(|a, b| a < b) || seen.is_sorted();
        let expected: Vec<i64> = all.iter().copied().filter(|revision| *revision >= start).collect();
        let whole = seen.ends_with(&expected);
        in_order && (whole || *compacted > 0)
    })
}

#[test]
fn a_watch_on_the_member_that_is_filled_misses_nothing() {
    assert!(watches_miss_nothing(false));
    assert!(watches_miss_nothing(true));
}

fn power_is_lost_behind_the_acknowledgement(seed: u64) {
    let mut cluster = Cluster::new(seed, 3, 0);
    cluster.lag(2);
    cluster.cut.clear();
    // Fine enough to lose power between the acknowledgement and what it speaks of.
    cluster.step = Duration::from_micros(100);
    cluster.run_until("it acknowledges", |cluster| cluster.acknowledged > 100);
    cluster.nodes[2].crash();
    cluster.step = STEP;
    cluster.assert_equal();
}

#[test]
fn what_a_member_acknowledges_of_a_snapshot_is_there_after_a_crash() {
    (100..110).for_each(power_is_lost_behind_the_acknowledgement);
}

/// A member starts with entries to apply, and the pages that they need are slow to come. Before they are there it is filled
/// with a snapshot, and the new state uses the old one's pages.
fn pages_come_late(seed: u64) {
    let mut cluster = Cluster::new(seed, 3, 0);
    cluster.run_until("there is a leader", |cluster| cluster.leader().is_some());
    cluster.write_some(150);
    cluster.catch_up();
    cluster.nodes[2].send([Request::Checkpoint]);
    cluster.run_for(Duration::from_secs(1));
    // What puts need is looked for before anything of their entry is done, so that nothing half done is in the way.
    for n in 0..20 {
        cluster.write(put(format!("key-{n:03}"), 100));
        cluster.step();
    }
    cluster.catch_up();
    let slow = Duration::from_secs(30);
    cluster.nodes[2].latency.page_delay = slow;
    cluster.nodes[2].crash();
    cluster.lag(2);
    cluster.cut.clear();
    cluster.run_until("it is filled", |cluster| !cluster.nodes[2].restored.is_empty());
    for _ in 0..20 {
        cluster.write_some(10);
        cluster.nodes[2].send([Request::Checkpoint]);
    }
    assert!(cluster.nodes[2].loads_pages(), "pages are on their way");
    cluster.run_for(slow);
    cluster.nodes[2].latency.page_delay = Duration::ZERO;
    cluster.assert_equal();
}

#[test]
fn pages_that_are_on_their_way_while_a_snapshot_is_put_in_place_come_as_what_they_were() {
    (120..124).for_each(pages_come_late);
}

#[cfg(feature = "canaries")]
mod canaries {
    use garboard_replica::canary::{Canary, plant};

    use super::*;

    #[test]
    fn a_watch_that_is_not_told_of_a_snapshot_is_noticed() {
        let _planted = plant(Canary::RestoredWatchSkips);
        assert!(!watches_miss_nothing(false));
    }

    #[test]
    fn a_snapshot_that_is_acknowledged_before_it_is_durable_is_noticed() {
        let fails = |seed: &u64| {
            let _planted = plant(Canary::SnapshotBeforeDurable);
            std::panic::catch_unwind(|| power_is_lost_behind_the_acknowledgement(*seed)).is_err()
        };
        let caught = (100..120).find(fails);
        println!("caught at seed {caught:?}");
        assert!(caught.is_some());
    }

    #[test]
    fn a_page_that_is_used_again_while_it_is_loaded_is_noticed() {
        let fails = |seed: &u64| {
            let _planted = plant(Canary::LoadsUnpinned);
            std::panic::catch_unwind(|| pages_come_late(*seed)).is_err()
        };
        let caught = (120..124).find(fails);
        println!("caught at seed {caught:?}");
        assert!(caught.is_some());
    }
}
