//! Three members in network namespaces, with clients on all of them, while members are killed, stopped where they stand,
//! cut off or vanish, and while the disk of one is full; what the clients and watchers saw must be what one store could have shown, and nothing acknowledged is lost.
//!
//! By default the rounds are few; the long form takes the environment's word, and `GARBOARD_SEED` chooses what happens:
//!
//! ```text
//! GARBOARD_CLUSTER_ROUNDS=200 GARBOARD_CLUSTER_CLIENTS=64 GARBOARD_EXECUTABLE=target/release/garboard \
//!     cargo test --release -p garboard --test cluster -- --nocapture
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test drives real processes, and what fails fails it"
)]

mod addresses;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod history;
mod namespaces;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clients::{END_KEY, Scene};
use common::client::Client;
use common::mount::Mount;
use common::random::Random;
use common::{Folder, Launch, Server, eventually, executable, skip};
use history::{Answered, Asked, Change, Operation};
use namespaces::Network;
use rustix::process::Signal;

const MEMBERS: usize = 3;
/// Clients, unless the environment asks for more.
const CLIENTS: u64 = 6;
/// Rounds, unless the environment asks for more.
const ROUNDS: u64 = 8;
/// The member with a small disk of its own, which gets full.
const ON_SMALL_DISK: usize = 0;
const SMALL_DISK_BYTES: u64 = 768 << 20;
/// Calls that are answered between two things that happen, however slow the machine is.
const ANSWERED_MIN: u64 = 20;
/// What a member on a full disk is given to log: more than it may have prepared.
const LOGGED_ON_FULL_DISK: usize = 48 << 20;
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// What happens to the members in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    /// Killed, and started again.
    Killed(usize),
    /// Stopped where it stands for a while.
    Paused(usize),
    /// Asked to stop, and started again.
    Stopped(usize),
    /// What the first sends does not reach the second.
    CutOneWay(usize, usize),
    /// Neither reaches it nor does it reach them, but clients do.
    CutOff(usize),
    /// No packet leaves its host or comes to it, clients' included.
    Vanished(usize),
    /// The disk of the one member that has a small one is full, and then has space again.
    FullDisk,
    /// Everything is killed and started again.
    AllKilled,
}

impl Happening {
    /// What happens is drawn, but for two things that every run is to have.
    fn choose(round: u64, random: &mut Random, leader: Option<usize>) -> Happening {
        let any = usize::try_from(random.below(MEMBERS as u64)).unwrap();
        let one = leader.filter(|_| random.percent(60)).unwrap_or(any);
        let other = (one + 1 + usize::try_from(random.below(MEMBERS as u64 - 1)).unwrap()) % MEMBERS;
        match random.below(100) {
            _ if round % ROUNDS == 2 => Happening::Vanished(leader.unwrap_or(any)),
            _ if round % ROUNDS == 5 => Happening::FullDisk,
            0..=34 => Happening::Killed(one),
            35..=54 => Happening::Paused(one),
            55..=62 => Happening::Stopped(one),
            63..=74 => Happening::CutOneWay(one, other),
            75..=82 => Happening::CutOff(one),
            83..=95 => Happening::Vanished(one),
            _ => Happening::AllKilled,
        }
    }
}

/// Three members, each on a host of its own; host 0 is the clients'.
struct Cluster {
    network: Arc<Network>,
    folder: Folder,
    servers: Vec<Option<Server>>,
    /// Unmounted once its server has ended.
    small_disk: Mount,
}

impl Cluster {
    fn start() -> Result<Cluster, String> {
        let small_disk = Mount::new(SMALL_DISK_BYTES)?;
        let network = Arc::new(Network::new(MEMBERS + 1)?);
        let folder = Folder::new();
        let servers = (0..MEMBERS).map(|_| None).collect();
        let mut cluster = Cluster { network, folder, servers, small_disk };
        cluster.start_missing();
        Ok(cluster)
    }

    fn data(&self, member: usize) -> PathBuf {
        let name = format!("m{member}");
        if member == ON_SMALL_DISK { self.small_disk.path(&name) } else { self.folder.path().join(name) }
    }

    fn address(&self, member: usize) -> String {
        format!("{}:{CLIENT_PORT}", self.network.address(member + 1))
    }

    fn launch(&self, member: usize) -> Launch {
        let url = |member: usize, port| format!("http://{}:{port}", self.network.address(member + 1));
        let initial = (0..MEMBERS).map(|member| format!("m{member}={}", url(member, PEER_PORT)));
        let initial = initial.collect::<Vec<_>>().join(",");
        let (client, peer) = (url(member, CLIENT_PORT), url(member, PEER_PORT));
        Launch::bare(self.network.command(member + 1, executable().as_os_str()))
            .arg("serve")
            .arg("--data-dir")
            .arg(self.data(member))
            .arg(format!("--name=m{member}"))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={initial}"))
    }

    /// Starts every member that does not run, and waits for nothing.
    fn start_missing(&mut self) {
        for member in 0..MEMBERS {
            if self.servers[member].is_none() {
                self.servers[member] = Some(self.launch(member).spawn());
            }
        }
    }

    fn server(&mut self, member: usize) -> &mut Server {
        self.servers[member].as_mut().expect("every member was started")
    }

    fn kill(&mut self, member: usize) {
        if let Some(mut server) = self.servers[member].take() {
            server.kill();
        }
    }

    /// Which member leads, as the members say.
    fn leader(&self) -> Option<usize> {
        (0..MEMBERS).find(|member| {
            let status = Client::tcp(&self.address(*member)).and_then(|client| client.status());
            status.is_ok_and(|status| status.header.unwrap().member_id == status.leader)
        })
    }

    /// Nothing is killed, cut or stopped any more.
    fn heal(&mut self) {
        self.network.heal();
        for server in self.servers.iter().flatten() {
            server.signal(Signal::CONT);
        }
        self.start_missing();
    }

    /// Every member still runs, but for those that were killed.
    fn check_alive(&mut self) {
        for member in 0..MEMBERS {
            if let Some(server) = &mut self.servers[member] {
                assert!(server.is_alive(), "member {member} ended by itself:\n{}", server.said());
            }
        }
    }

    /// What the members said, for a failure's report.
    fn said(&self) -> String {
        let said = |(member, server): (usize, &Option<Server>)| {
            let output = server.as_ref().map(Server::output).unwrap_or_default();
            let tail: Vec<&str> = output.lines().rev().take(30).collect();
            format!("-- member {member}:\n{}\n", tail.into_iter().rev().collect::<Vec<_>>().join("\n"))
        };
        self.servers.iter().enumerate().map(said).collect()
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn what_clients_of_all_members_see_is_one_store_whatever_happens_to_the_members() {
    let seed = setting("GARBOARD_SEED", u64::from(std::process::id()));
    let rounds = setting("GARBOARD_CLUSTER_ROUNDS", ROUNDS);
    let mut cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(reason) if setting("GARBOARD_CRASH_REQUIRED", 0) != 0 => panic!("{reason}"),
        Err(reason) => return skip(&reason),
    };
    println!("{rounds} rounds, GARBOARD_SEED={seed}");
    cluster.network.enter(0);
    eventually("a leader", || cluster.leader());
    let mut random = Random::new(seed);
    let scene = Arc::new(Scene {
        network: cluster.network.clone(),
        addresses: (0..MEMBERS).map(|member| cluster.address(member)).collect(),
        started: Instant::now(),
        operations: Mutex::new(Vec::new()),
        answered: AtomicU64::new(0),
        over: AtomicBool::new(false),
        abandoned: AtomicBool::new(false),
    });
    let clients = usize::try_from(setting("GARBOARD_CLUSTER_CLIENTS", CLIENTS)).unwrap();
    let clients: Vec<_> = (0..clients).map(|name| clients::client(scene.clone(), name, random.fork())).collect();
    let watchers: Vec<_> = (0..MEMBERS).map(|member| clients::watcher(scene.clone(), member)).collect();
    for round in 0..rounds {
        let happening = Happening::choose(round, &mut random, cluster.leader());
        println!("round {round} at {:.1} s: {happening:?}", scene.started.elapsed().as_secs_f64());
        let lasting = Duration::from_millis(100 + random.below(1_500));
        match happening {
            Happening::FullDisk => fill_disk(&scene, &cluster),
            other => happen(&mut cluster, other, lasting),
        }
        cluster.heal();
        wait_for_answers(&scene, &cluster);
        cluster.check_alive();
    }
    scene.over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let end = eventually("a last write", || put_end(&cluster));
    let history = histories(&scene, end, &cluster);
    let operations = scene.operations.lock().unwrap();
    let known = operations.iter().filter(|operation| operation.answered != Answered::Unknown).count();
    println!("{} operations, {known} answered, {} changes", operations.len(), history.len());
    let mut operations = operations.clone();
    operations.push(Operation {
        asked: Asked::Put { key: END_KEY.to_owned(), value: "end".to_owned() },
        answered: Answered::Unknown,
        began: Duration::MAX,
        ended: Duration::MAX,
        member: 0,
    });
    if let Err(what) = history::check(&history, &operations) {
        panic!("GARBOARD_SEED={seed}: {what}\n{}", cluster.said());
    }
    for watcher in watchers {
        let seen = watcher.join().unwrap();
        assert_eq!(seen.last().map(|change| change.revision), Some(end), "a watcher does not end with the last write");
        history::check_watch(&history, 2, &seen).unwrap_or_else(|what| panic!("GARBOARD_SEED={seed}: {what}"));
    }
}

#[test]
fn where_udp_is_blocked_and_tcp_is_not_the_log_says_exactly_that() {
    let mut cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(reason) if setting("GARBOARD_CRASH_REQUIRED", 0) != 0 => panic!("{reason}"),
        Err(reason) => return skip(&reason),
    };
    cluster.network.enter(0);
    eventually("a leader", || cluster.leader());
    let text = "UDP does not get through to peer";
    for member in 0..MEMBERS {
        assert!(!cluster.server(member).output().contains(text), "it does get through:\n{}", cluster.said());
    }
    cluster.network.block_udp(1);
    let blocked = Instant::now();
    // The blocked member hears nobody, and the others are not answered by it: all three notice. The one that hears nothing
    // is the first.
    cluster.server(0).wait_for(text);
    let took = blocked.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}:\n{}", cluster.said());
    for member in 1..MEMBERS {
        cluster.server(member).wait_for(text);
    }
    println!("the one that is blocked said so after {took:?}, the last after {:?}", blocked.elapsed());
    cluster.heal();
    eventually("a leader", || cluster.leader());
}

fn happen(cluster: &mut Cluster, happening: Happening, lasting: Duration) {
    match happening {
        Happening::Killed(member) => cluster.kill(member),
        Happening::Paused(member) => cluster.server(member).signal(Signal::STOP),
        Happening::Stopped(member) => {
            let server = cluster.servers[member].take().expect("every member was started");
            server.stop();
        }
        Happening::CutOneWay(from, to) => cluster.network.cut(from + 1, to + 1),
        Happening::CutOff(member) => {
            for other in (0..MEMBERS).filter(|other| *other != member) {
                cluster.network.cut(member + 1, other + 1);
                cluster.network.cut(other + 1, member + 1);
            }
        }
        Happening::Vanished(member) => cluster.network.vanish(member + 1),
        Happening::FullDisk => unreachable!("it takes its own time"),
        Happening::AllKilled => (0..MEMBERS).for_each(|member| cluster.kill(member)),
    }
    // What happens lasts so long; nothing depends on how long.
    std::thread::sleep(lasting);
}

/// Fills one member's disk, writes until its log has used up all that it had prepared, and has clients be answered by the
/// cluster meanwhile. Then there is space again.
fn fill_disk(scene: &Scene, cluster: &Cluster) {
    let filler = cluster.small_disk.fill();
    let started = Instant::now();
    let mut logged = 0;
    while logged < LOGGED_ON_FULL_DISK {
        // The member itself may wait for space before it answers anything.
        let others = (0..MEMBERS).filter(|member| *member != ON_SMALL_DISK);
        logged += others.filter_map(|member| clients::log_only(scene, member)).sum::<usize>();
        assert!(started.elapsed() < common::patience(), "the others take no writes:\n{}", cluster.said());
    }
    wait_for_answers(scene, cluster);
    println!("the disk is full and {} MiB were logged: {:.1} s", logged >> 20, started.elapsed().as_secs_f64());
    std::fs::remove_file(filler).unwrap();
}

/// Waits until clients are answered again.
fn wait_for_answers(scene: &Scene, cluster: &Cluster) {
    let before = scene.answered.load(Ordering::Relaxed);
    let started = Instant::now();
    while scene.answered.load(Ordering::Relaxed) < before + ANSWERED_MIN {
        assert!(started.elapsed() < common::patience(), "clients are not answered again:\n{}", cluster.said());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writes the last key, through any member.
fn put_end(cluster: &Cluster) -> Option<i64> {
    (0..MEMBERS).find_map(|member| {
        let client = Client::tcp(&cluster.address(member)).ok()?;
        // If an attempt without an answer took effect, a second write would be one too many.
        if let Ok(Some(kv)) = client.get(END_KEY) {
            return Some(kv.mod_revision);
        }
        client.put(END_KEY, "end").ok()
    })
}

/// The history of every member up to a revision: they are the same.
fn histories(scene: &Scene, end: i64, cluster: &Cluster) -> Vec<Change> {
    let mut found: Vec<Vec<Change>> = Vec::new();
    for member in 0..MEMBERS {
        let history = eventually("a member's history", || {
            let mut seen = Vec::new();
            clients::follow(scene, member, 2, &mut seen).then_some(seen)
        });
        assert_eq!(history.last().map(|change| change.revision), Some(end));
        if let Some(first) = found.first() {
            let differing = first.iter().zip(&history).find(|(one, other)| one != other);
            assert_eq!(differing, None, "members differ:\n{}", cluster.said());
            assert_eq!(first.len(), history.len());
        }
        found.push(history);
    }
    found.swap_remove(0)
}
