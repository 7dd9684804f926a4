//! Crashes of a real kernel: a server on ext4 and on XFS whose file system is shut down under load, or that is killed, and
//! that must then hold every acknowledged write, every write in doubt wholly or not at all, and nothing else.
//!
//! A round is: start, check everything against what the writers of the round before know, write for some tens of
//! milliseconds, strike, unmount and mount again. The data lives on from round to round. By default the rounds are few;
//! the long form takes the environment's word:
//!
//! ```text
//! GARBOARD_CRASH_ROUNDS=1000 GARBOARD_CRASH_LANES=2 GARBOARD_CRASH_KILLS=300 \
//!     cargo test --release -p garboard --test kernel -- --nocapture
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test drives real processes, and what fails fails it"
)]

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod history;
mod load;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::random::Random;
use common::{Folder, Launch, Server, eventually, skip};
use disk::{Cut, Disk, FileSystem};
use history::{Record, Store};
use load::{Load, Shape};

/// Rounds of each test, unless the environment asks for more.
const ROUNDS: u64 = 20;
/// Sizes of the index's changes that start a checkpoint; with the small ones there is always one under way.
const CHECKPOINT_BYTES: [u64; 4] = [64 << 10, 256 << 10, 1 << 20, 16 << 20];
/// How long the writers write before the strike.
const LOAD_MS: std::ops::Range<u64> = 5..110;
/// How long they write in some rounds, so that checkpoints end and the next ones begin.
const LONG_LOAD_MS: std::ops::Range<u64> = 110..500;
const LONG_PERCENT: u64 = 8;
/// Writes that are acknowledged before the strike, however slow the machine is.
const ACKNOWLEDGED_MIN: u64 = 3;
/// How long a server that is not under load may take to find out that its disk is gone.
const NOTICE: Duration = Duration::from_millis(300);

#[test]
fn what_was_acknowledged_survives_a_shut_down_ext4() {
    on_disks(FileSystem::Ext4);
}

#[test]
fn what_was_acknowledged_survives_a_shut_down_xfs() {
    on_disks(FileSystem::Xfs);
}

#[test]
fn what_was_acknowledged_survives_kill_9_of_every_kind_of_load() {
    let folder = Folder::new();
    let data = folder.data();
    let place = Place { disk: None, data: data.clone() };
    run_lanes("kill -9", setting("GARBOARD_CRASH_KILLS", ROUNDS / 2), vec![place]);
}

/// Each of the bugs that can be planted in the shell is caught, on either file system.
#[cfg(feature = "canaries")]
#[test]
fn each_planted_bug_is_caught() {
    const ROUNDS_MAX: u64 = 100;
    let bugs = ["DoneBeforeWritten", "FailurePassedOver", "PagesLeftInCache"];
    for (file_system, bug) in [FileSystem::Ext4, FileSystem::Xfs].iter().flat_map(|fs| bugs.map(|bug| (*fs, bug))) {
        let disk = match Disk::new(file_system) {
            Ok(disk) => disk,
            Err(reason) => return skip(&reason),
        };
        let place = Place { data: disk.path("data"), disk: Some(disk.discarded()) };
        let mut lane = Lane::new(place, Random::new(setting("GARBOARD_SEED", 1)));
        let rounds = Arc::new(AtomicU64::new(0));
        lane.bug = Some((bug, rounds.clone()));
        let caught = std::thread::spawn(move || lane.run(ROUNDS_MAX)).join();
        let rounds = rounds.load(Ordering::Relaxed);
        println!("CAUGHT {} {bug}: {} after {rounds} rounds", file_system.name(), caught.is_err());
        assert!(caught.is_err(), "{bug} was not caught on {} in {ROUNDS_MAX} rounds", file_system.name());
    }
}

fn on_disks(file_system: FileSystem) {
    let mut places = Vec::new();
    for _ in 0..setting("GARBOARD_CRASH_LANES", 1) {
        match Disk::new(file_system) {
            Ok(disk) => places.push(Place { data: disk.path("data"), disk: Some(disk) }),
            Err(reason) if setting("GARBOARD_CRASH_REQUIRED", 0) != 0 => panic!("{reason}"),
            Err(reason) => return skip(&reason),
        }
    }
    run_lanes(file_system.name(), setting("GARBOARD_CRASH_ROUNDS", ROUNDS), places);
}

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Where a server's data lies; a disk of its own can be shut down.
struct Place {
    disk: Option<Disk>,
    data: PathBuf,
}

/// Runs so many rounds on the places together, side by side.
fn run_lanes(name: &str, rounds: u64, places: Vec<Place>) {
    let seed = setting("GARBOARD_SEED", u64::from(std::process::id()));
    println!("{name}: {rounds} rounds, GARBOARD_SEED={seed}");
    let started = Instant::now();
    let lanes = places.len() as u64;
    let running = places.into_iter().zip(0..).map(|(place, lane)| {
        let share = rounds / lanes + u64::from(lane < rounds % lanes);
        std::thread::Builder::new()
            .name(format!("{name} {lane}"))
            .spawn(move || Lane::new(place, Random::new(seed ^ lane << 48)).run(share))
            .unwrap()
    });
    let running: Vec<_> = running.collect();
    // All have ended before any failure ends the test: each stops its own server and unmounts its own disk.
    let ended: Vec<_> = running.into_iter().map(std::thread::JoinHandle::join).collect();
    let mut all = Report::default();
    for lane in ended {
        all.add(&lane.unwrap_or_else(|_| panic!("a lane of {name} failed (GARBOARD_SEED={seed}), see above")));
    }
    println!("{name}: {:.1} rounds/s\n{all}", all.rounds as f64 / started.elapsed().as_secs_f64());
}

/// What ends a server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    /// The file system is shut down under load; the server must end by itself.
    Cut(Cut),
    /// The process is killed.
    Kill,
    /// The process is killed, and while its last writes are under way the file system is shut down.
    KillThenCut,
    /// The server is asked to stop, and the file system is shut down meanwhile.
    StopThenCut,
    /// The server is asked to stop, and does. It writes its index then: otherwise no life would be long enough to finish a
    /// checkpoint, once there is much to replay.
    Stop,
}

/// One server's data and its rounds.
struct Lane {
    place: Place,
    random: Random,
    store: Store,
    /// What was done since the store was last verified.
    record: Record,
    loads: u64,
    start_time: Duration,
    report: Report,
    /// The checkpoint that the last start found.
    found: String,
    /// A bug to plant in every server, and where to count the rounds.
    bug: Option<(&'static str, Arc<AtomicU64>)>,
}

impl Lane {
    fn new(place: Place, random: Random) -> Lane {
        Lane {
            place,
            random,
            store: Store::new(),
            record: Record::default(),
            loads: 0,
            start_time: Duration::from_millis(50),
            report: Report::default(),
            found: String::new(),
            bug: None,
        }
    }

    fn run(mut self, rounds: u64) -> Report {
        drop(self.start());
        for _ in 0..rounds {
            self.round();
        }
        let server = self.start();
        self.verify(&server);
        drop(server);
        self.report
    }

    fn round(&mut self) {
        if self.random.percent(12) {
            self.strike_at_start();
        }
        let mut server = self.start();
        self.verify(&server);
        if self.random.percent(15) {
            // Nothing is written in between: everything must be as at the start before, the hash too.
            match self.random.percent(50) || self.place.disk.is_none() {
                true => server.kill(),
                false => self.cut_idle(&mut server),
            }
            server = self.start();
            self.verify(&server);
            self.report.starts_twice += 1;
        }
        self.load_and_strike(server);
        self.report.rounds += 1;
    }

    fn launch(&mut self) -> Launch {
        let bytes = self.random.pick(&CHECKPOINT_BYTES);
        let launch = Launch::new(&self.place.data).arg(format!("--checkpoint-bytes={bytes}"));
        match &self.bug {
            Some((bug, rounds)) => {
                rounds.store(self.report.rounds, Ordering::Relaxed);
                launch.env("GARBOARD_CANARY", bug)
            }
            None => launch,
        }
    }

    fn start(&mut self) -> Server {
        let started = Instant::now();
        let server = self.launch().start();
        self.start_time = started.elapsed();
        self.report.took("start", started);
        // A start says which checkpoint it found.
        if let Some(above) = server.output().split("above index ").nth(1).and_then(|text| text.split('"').next()) {
            if self.found != above {
                self.report.checkpoints += 1;
            }
            self.found = above.to_owned();
        }
        server
    }

    fn remount(&mut self) {
        let started = Instant::now();
        self.place.disk.as_ref().expect("only a disk can be mounted again").remount();
        self.report.took("remount", started);
    }

    fn verify(&mut self, server: &Server) {
        let started = Instant::now();
        let client = server.client();
        let record = std::mem::take(&mut self.record);
        let verified = self.store.verify(&client, &record).and_then(|verified| {
            let old = self.random.percent(30);
            old.then(|| self.store.verify_history(&client)).transpose().map(|_| verified)
        });
        let verified = verified.unwrap_or_else(|violation| {
            panic!("VIOLATION in round {}: {violation}\nthe server said:\n{}", self.report.rounds, server.output())
        });
        self.report.verified(&record, &verified);
        self.report.took("verify", started);
    }

    /// A server that only starts: recovery itself is struck.
    fn strike_at_start(&mut self) {
        let mut server = self.launch().spawn();
        let whole_us = u64::try_from(self.start_time.as_micros()).unwrap().max(1);
        // The moment is what varies; whichever it is, the promise holds.
        std::thread::sleep(Duration::from_micros(self.random.below(whole_us)));
        match self.place.disk.is_some() && self.random.percent(70) {
            true => self.cut_idle(&mut server),
            false => server.kill(),
        }
        self.report.strike("at start");
    }

    /// Shuts the file system down below a server that may not notice, because it has nothing to write.
    fn cut_idle(&mut self, server: &mut Server) {
        let disk = self.place.disk.as_ref().expect("only a disk can be shut down");
        disk.shut_down(Cut::AsIs);
        let cut = Instant::now();
        while server.is_alive() && cut.elapsed() < NOTICE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if server.is_alive() {
            server.kill();
        } else {
            let status = server.wait();
            check_message(status, &server.said(), &self.place.data);
        }
        self.report.took("strike", cut);
        self.remount();
    }

    fn load_and_strike(&mut self, mut server: Server) {
        let shape = Shape {
            writers: usize::try_from(1 + self.random.below(12)).unwrap(),
            large_percent: *self.random.pick(&[0, 0, 1, 5]),
            compacts: self.random.percent(40),
        };
        let strike = self.choose_strike();
        let started = Instant::now();
        let load = Load::start(&server, &self.store, &shape, self.loads, &mut self.random);
        self.loads += 1;
        let range = if self.random.percent(LONG_PERCENT) { LONG_LOAD_MS } else { LOAD_MS };
        let moment = Duration::from_millis(range.start + self.random.below(range.end - range.start));
        std::thread::sleep(moment);
        eventually("writes are acknowledged", || (load.acknowledged() >= ACKNOWLEDGED_MIN).then_some(()));
        self.report.took("load", started);
        let struck = Instant::now();
        match strike {
            Strike::Cut(cut) => {
                let disk = self.place.disk.as_ref().expect("only a disk can be shut down");
                disk.shut_down(cut);
                let status = server.wait();
                self.report.slowest_stop = self.report.slowest_stop.max(struck.elapsed());
                let message = check_message(status, &server.said(), &self.place.data);
                self.report.first_failure(&message);
            }
            Strike::Kill => server.kill(),
            Strike::KillThenCut => {
                server.signal(rustix::process::Signal::KILL);
                std::thread::sleep(Duration::from_micros(self.random.below(2_000)));
                self.place.disk.as_ref().expect("only a disk can be shut down").shut_down(Cut::AsIs);
                server.kill();
            }
            Strike::StopThenCut => {
                server.terminate();
                std::thread::sleep(Duration::from_micros(self.random.below(30_000)));
                self.place.disk.as_ref().expect("only a disk can be shut down").shut_down(Cut::AsIs);
                let status = server.wait();
                if !status.success() {
                    check_message(status, &server.said(), &self.place.data);
                }
            }
            Strike::Stop => {
                server.terminate();
                let status = server.wait();
                assert!(status.success(), "stopping ended with {status}:\n{}", server.said());
            }
        }
        self.record = load.finish();
        self.report.took("strike", struck);
        // A killed server's data is sometimes found as the kernel still has it, sometimes as the disk has it.
        if self.place.disk.is_some() && (!matches!(strike, Strike::Kill | Strike::Stop) || self.random.percent(30)) {
            self.remount();
        }
        self.report.strike(match strike {
            Strike::Cut(Cut::AsIs) => "shut down as is",
            Strike::Cut(Cut::JournalFlushed) => "shut down, journal flushed",
            Strike::Cut(Cut::Synced) => "shut down, all synced",
            Strike::Kill => "killed",
            Strike::KillThenCut => "killed, then shut down",
            Strike::StopThenCut => "asked to stop, then shut down",
            Strike::Stop => "stopped",
        });
    }

    fn choose_strike(&mut self) -> Strike {
        if self.place.disk.is_none() {
            return if self.random.percent(5) { Strike::Stop } else { Strike::Kill };
        }
        match self.random.below(100) {
            0..4 => Strike::Stop,
            4..50 => Strike::Cut(Cut::AsIs),
            50..65 => Strike::Cut(Cut::JournalFlushed),
            65..75 => Strike::Cut(Cut::Synced),
            75..83 => Strike::Kill,
            83..93 => Strike::KillThenCut,
            _ => Strike::StopThenCut,
        }
    }
}

/// A server whose disk fails ends by itself and says which file and why; gives its last words.
fn check_message(status: std::process::ExitStatus, said: &str, data: &Path) -> String {
    assert_eq!(status.code(), Some(1), "it should end by itself, with a failure: {status}\n{said}");
    assert!(!said.contains("panicked"), "it panicked:\n{said}");
    let message = said.lines().rfind(|line| line.starts_with("garboard: ")).unwrap_or_default();
    assert!(message.contains(common::mount::text(data)), "the message names the file:\n{said}");
    message.to_owned()
}

/// What the rounds came to.
#[derive(Debug, Default)]
struct Report {
    rounds: u64,
    starts_twice: u64,
    acknowledged: u64,
    doubtful_there: u64,
    doubtful_gone: u64,
    events: u64,
    seen: u64,
    compactions: u64,
    /// Starts that found another checkpoint of the index than the one before.
    checkpoints: u64,
    slowest_stop: Duration,
    strikes: BTreeMap<&'static str, u64>,
    first_failures: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
    /// Where the time went.
    took: BTreeMap<&'static str, Duration>,
}

impl Report {
    fn took(&mut self, part: &'static str, since: Instant) {
        *self.took.entry(part).or_default() += since.elapsed();
    }

    fn verified(&mut self, record: &Record, verified: &history::Verified) {
        self.acknowledged += verified.acknowledged;
        self.doubtful_there += verified.doubtful_there;
        self.doubtful_gone += verified.doubtful_gone;
        self.events += verified.events;
        self.seen += record.seen.len() as u64;
        self.compactions += record.compactions.len() as u64;
        for error in &record.errors {
            *self.errors.entry(error.clone()).or_default() += 1;
        }
    }

    fn strike(&mut self, kind: &'static str) {
        *self.strikes.entry(kind).or_default() += 1;
    }

    fn first_failure(&mut self, message: &str) {
        let file = message.split(": ").nth(1).unwrap_or_default();
        let kind = match file {
            file if file.contains("/segment-") => "log",
            file if file.ends_with("/index") => "index",
            file if file.ends_with("/manifest") => "manifest",
            _ => "other",
        };
        *self.first_failures.entry(kind).or_default() += 1;
    }

    fn add(&mut self, other: &Report) {
        self.rounds += other.rounds;
        self.starts_twice += other.starts_twice;
        self.acknowledged += other.acknowledged;
        self.doubtful_there += other.doubtful_there;
        self.doubtful_gone += other.doubtful_gone;
        self.events += other.events;
        self.seen += other.seen;
        self.compactions += other.compactions;
        self.checkpoints += other.checkpoints;
        self.slowest_stop = self.slowest_stop.max(other.slowest_stop);
        for (kind, count) in &other.strikes {
            *self.strikes.entry(kind).or_default() += count;
        }
        for (kind, count) in &other.first_failures {
            *self.first_failures.entry(kind).or_default() += count;
        }
        for (error, count) in &other.errors {
            *self.errors.entry(error.clone()).or_default() += count;
        }
        for (part, time) in &other.took {
            *self.took.entry(part).or_default() += *time;
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "  rounds {}: {:?}", self.rounds, self.strikes)?;
        writeln!(
            f,
            "  acknowledged {}, in doubt {} (there {}, gone {}), events {}, seen by a watch before the strike {}",
            self.acknowledged,
            self.doubtful_there + self.doubtful_gone,
            self.doubtful_there,
            self.doubtful_gone,
            self.events,
            self.seen
        )?;
        writeln!(
            f,
            "  compactions {}, new checkpoints found {}, started twice without writes {}",
            self.compactions, self.checkpoints, self.starts_twice
        )?;
        writeln!(f, "  first failed {:?}, slowest stop {:?}", self.first_failures, self.slowest_stop)?;
        let rounds = u32::try_from(self.rounds.max(1)).unwrap_or(u32::MAX);
        let each: BTreeMap<_, _> = self.took.iter().map(|(part, time)| (part, *time / rounds)).collect();
        writeln!(f, "  time of a round {each:.1?}")?;
        write!(f, "  errors answered {:?}, violations 0", self.errors)
    }
}
