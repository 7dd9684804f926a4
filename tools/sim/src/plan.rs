//! What a seed is like: every seed draws its own mix, so that rare combinations meet each other undiluted.

use std::collections::BTreeSet;
use std::time::Duration;

use garboard_replica::auto_compaction::AutoCompaction;
use garboard_replica::member::MemberConfig;
use garboard_replica::watch::{CatchUpBudget, WatchConfig};
use garboard_simdisk::Rng;
use garboard_storage::IndexConfig;
use garboard_wal as wal;

use crate::node::{Latency, Sabotage};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Fault {
    /// Power is lost: any subset of what was not durable survives.
    Crash,
    /// The process is killed; the disk keeps what it was given.
    Kill,
    /// A sync fails.
    SyncError,
    /// A write fails.
    WriteError,
    /// A write stops early.
    ShortWrite,
    /// A read fails.
    ReadError,
    /// A file can't be made larger, and not because the disk is full.
    AllocateError,
    /// The disk answers nothing for a while.
    Stall,
    /// The disk is full for a while.
    FullDisk,
    /// A durable sector changes.
    Rot,
    /// The process stands still while its clock goes on; in a cluster the clock may stand still, too.
    Pause,
    /// Messages between members are lost.
    Loss,
    /// Messages between members arrive twice.
    Duplicate,
    /// Messages between members overtake each other.
    Reorder,
    /// A member hears another one no more, or is not heard by it.
    OneWay,
    /// A member is cut off from all others.
    Isolate,
    /// The members fall into two parts.
    Partition,
    /// Messages from one member to another are slow.
    SlowLink,
    /// The connection breaks that shows a member that another one's process lives, and it does live.
    Reset,
    /// Leadership is moved to another member.
    MoveLeader,
    /// Clocks go too fast or too slow.
    Drift,
    /// A leader is replaced without knowing it, and is asked. Drawn for itself: it stands in no list of faults.
    OldLeader,
}

/// Every fault of a member by itself.
pub const FAULTS: [Fault; 11] = [
    Fault::Crash,
    Fault::Kill,
    Fault::SyncError,
    Fault::WriteError,
    Fault::ShortWrite,
    Fault::ReadError,
    Fault::AllocateError,
    Fault::Stall,
    Fault::FullDisk,
    Fault::Rot,
    Fault::Pause,
];

/// Every fault of a cluster: of members, where nothing is cut from a log that others count on, and between them.
pub const CLUSTER_FAULTS: [Fault; 21] = [
    Fault::Crash,
    Fault::Kill,
    Fault::SyncError,
    Fault::WriteError,
    Fault::ShortWrite,
    Fault::ReadError,
    Fault::AllocateError,
    Fault::Stall,
    Fault::FullDisk,
    Fault::Rot,
    Fault::Pause,
    Fault::Loss,
    Fault::Duplicate,
    Fault::Reorder,
    Fault::OneWay,
    Fault::Isolate,
    Fault::Partition,
    Fault::SlowLink,
    Fault::Reset,
    Fault::MoveLeader,
    Fault::Drift,
];

impl Fault {
    /// Its name, as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Crash => "crash",
            Fault::Kill => "kill",
            Fault::SyncError => "sync-error",
            Fault::WriteError => "write-error",
            Fault::ShortWrite => "short-write",
            Fault::ReadError => "read-error",
            Fault::AllocateError => "allocate-error",
            Fault::Stall => "stall",
            Fault::FullDisk => "full-disk",
            Fault::Rot => "rot",
            Fault::Pause => "pause",
            Fault::Loss => "loss",
            Fault::Duplicate => "duplicate",
            Fault::Reorder => "reorder",
            Fault::OneWay => "one-way",
            Fault::Isolate => "isolate",
            Fault::Partition => "partition",
            Fault::SlowLink => "slow-link",
            Fault::Reset => "reset",
            Fault::MoveLeader => "move-leader",
            Fault::Drift => "drift",
            Fault::OldLeader => "old-leader",
        }
    }
}

/// What may be asked of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Members of the cluster; where none are given, each seed draws them.
    pub members: Option<usize>,
    /// A cluster without faults but its network's, for so long.
    pub steady: Option<Steady>,
    /// Requests of clients before the faults stop.
    pub ops: u64,
    /// Print the story.
    pub story: bool,
    /// Faults that every seed gets.
    pub force: BTreeSet<Fault>,
    /// Faults that no seed gets.
    pub disable: BTreeSet<Fault>,
    /// Only one fault: a crash at this event.
    pub crash_at: Option<u64>,
    /// What the shell does wrong on purpose.
    pub sabotage: Sabotage,
}

/// What a cluster without faults is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steady {
    /// For how long.
    pub lasts: Duration,
    /// Messages take up to so long.
    pub delay: Duration,
    /// Messages lost, in ten thousand.
    pub loss: u64,
    /// Messages travel over the production links.
    pub links: bool,
}

impl Options {
    /// One member alone, whatever the seed.
    pub fn alone() -> Options {
        Options { members: Some(1), ..Options::default() }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            members: None,
            steady: None,
            ops: 500,
            story: false,
            force: BTreeSet::new(),
            disable: BTreeSet::new(),
            crash_at: None,
            sabotage: Sabotage::default(),
        }
    }
}

/// The kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One or several writes at once: puts, deletions, transactions.
    Write,
    /// A compaction.
    Compact,
    /// A lease is granted.
    Grant,
    /// A lease is revoked.
    Revoke,
    /// A lease is renewed.
    KeepAlive,
    /// A lease's time is asked for.
    TimeToLive,
    /// All leases are asked for.
    Leases,
    /// An alarm is raised or taken back.
    Alarm,
    /// A range is read.
    Range,
    /// A transaction that only reads.
    ReadTxn,
    /// The hash of the history.
    Hash,
    /// The hash that a compaction computed.
    KeptHash,
    /// The member's figures.
    Status,
    /// Defragmentation.
    Defragment,
    /// A watch stream is opened, and a watch on it.
    Watch,
    /// A watch is canceled, or its stream closed.
    Unwatch,
    /// Progress is asked for.
    Progress,
    /// The index is saved.
    Checkpoint,
}

const KINDS: [(Kind, u64); 18] = [
    (Kind::Write, 60),
    (Kind::Compact, 3),
    (Kind::Grant, 4),
    (Kind::Revoke, 2),
    (Kind::KeepAlive, 3),
    (Kind::TimeToLive, 2),
    (Kind::Leases, 1),
    (Kind::Alarm, 1),
    (Kind::Range, 15),
    (Kind::ReadTxn, 3),
    (Kind::Hash, 2),
    (Kind::KeptHash, 2),
    (Kind::Status, 1),
    (Kind::Defragment, 1),
    (Kind::Watch, 5),
    (Kind::Unwatch, 2),
    (Kind::Progress, 2),
    (Kind::Checkpoint, 2),
];

/// What a seed has drawn.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Clients, each with one request at a time.
    pub clients: u64,
    /// Mean time between a client's answer and its next request.
    pub think: Duration,
    /// How often a client rests for long, in a thousand requests.
    pub rests: u64,
    /// Names that clients use.
    pub keys: u64,
    /// Largest value of a usual write.
    pub value_max: u64,
    /// Values of many pages, in a thousand writes.
    pub huge_values: u64,
    /// Ids of leases that clients use.
    pub leases: u64,
    /// Requests of each kind, by weight.
    pub kinds: Vec<(Kind, u64)>,
    /// Faults in ten thousand requests.
    pub faults: Vec<(Fault, u64)>,
    /// Crashes that come right after a start, in a hundred.
    pub crash_again: u64,
    /// Cores with a hub.
    pub hubs: u64,
    /// How long events take to another core.
    pub hub_delay: Duration,
    /// Watch streams at once.
    pub streams: u64,
    /// Streams that are read slowly or not at all, in a hundred.
    pub slow_readers: u64,
    /// The hub's bounds.
    pub watch: WatchConfig,
    /// How long a stream is quiet before it is told progress.
    pub progress_interval: Duration,
    /// How long I/O takes.
    pub latency: Latency,
    /// The member's configuration.
    pub member: MemberConfig,
    /// The log's.
    pub log: wal::LogConfig,
    /// The index's.
    pub index: IndexConfig,
}

/// The simulated member's id.
pub const MEMBER_ID: u64 = 7;
const CLUSTER_ID: u64 = 9;
/// Least bytes of changed pages with which the index is made to wait.
const DIRTY_BYTES_MIN: u64 = 256 << 10;

impl Plan {
    /// Draws a plan.
    pub fn draw(rng: &mut Rng, options: &Options) -> Plan {
        let mut kinds: Vec<(Kind, u64)> = Vec::new();
        for (kind, weight) in KINDS {
            // A kind that is left out makes room for others to meet.
            let weight = match rng.below(10) {
                0..=1 if kind != Kind::Write => 0,
                2 => weight * 5,
                _ => weight,
            };
            kinds.push((kind, weight));
        }
        let faults = if options.crash_at.is_some() { Vec::new() } else { draw_faults(rng, options) };
        let log = draw_log(rng);
        Plan {
            clients: few(rng, 6),
            think: Duration::from_micros(100 << rng.below(13)),
            rests: if rng.chance(50) { 0 } else { 1 + rng.below(30) },
            keys: few(rng, 8),
            value_max: 1 << rng.below(10),
            huge_values: if rng.chance(60) { 0 } else { 1 + rng.below(40) },
            leases: 1 + rng.below(8),
            kinds,
            faults,
            crash_again: if rng.chance(50) { 0 } else { 20 + rng.below(60) },
            hubs: 1 + rng.below(3),
            hub_delay: Duration::from_micros(1 << rng.below(16)),
            streams: 1 + rng.below(6),
            slow_readers: if rng.chance(40) { 0 } else { rng.below(100) },
            watch: draw_watch(rng),
            progress_interval: Duration::from_millis(100 << rng.below(10)),
            latency: Latency {
                io_max: Duration::from_micros(50 << rng.below(9)),
                page_delay: Duration::from_micros(if rng.chance(60) { 0 } else { 1 << rng.below(16) }),
            },
            member: MemberConfig { log_reserve_bytes: log.segment_size_bytes, ..draw_member(rng) },
            log,
            index: draw_index(rng),
        }
    }

    /// Whether a fault was drawn.
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.iter().any(|(drawn, _)| *drawn == fault)
    }
}

/// A number from 1 on, of every order of magnitude below 2 to the power `bits`.
fn few(rng: &mut Rng, bits: u64) -> u64 {
    let bound = 1 << rng.below(bits);
    1 + rng.below(bound)
}

fn draw_faults(rng: &mut Rng, options: &Options) -> Vec<(Fault, u64)> {
    let mut faults = Vec::new();
    for fault in FAULTS {
        let drawn = rng.chance(35);
        let often = match fault {
            Fault::Crash | Fault::Kill => 20 + rng.below(150),
            Fault::Stall | Fault::Pause => 10 + rng.below(100),
            _ => 10 + rng.below(60),
        };
        if (drawn || options.force.contains(&fault)) && !options.disable.contains(&fault) {
            faults.push((fault, often));
        }
    }
    faults
}

fn draw_watch(rng: &mut Rng) -> WatchConfig {
    let mut watch = WatchConfig::new(1 << 20);
    if rng.chance(70) {
        // So small that watchers lag, and that responses are cut.
        watch.fragment_bytes = 200 << rng.below(6);
        watch.stream_pending_bytes = 500 << rng.below(8);
        watch.hub_recent_bytes = 1_000 << rng.below(8);
        watch.hub_history_bytes = 1_000 << rng.below(8);
        watch.response_bytes = 200 << rng.below(8);
        watch.catch_up =
            CatchUpBudget { records: usize::try_from(few(rng, 8)).expect("small"), bytes: 100 << rng.below(8) };
    }
    watch
}

fn draw_member(rng: &mut Rng) -> MemberConfig {
    let mut member = MemberConfig::single(MEMBER_ID);
    member.seed = rng.next_u64();
    member.checkpoint_log_bytes = (64 << 10) << rng.below(10);
    member.quota_bytes = if rng.chance(75) { -1 } else { (64 << 10) << rng.below(6) };
    member.auto_compaction = match rng.below(10) {
        0 => AutoCompaction::Periodic(Duration::from_secs(10 << rng.below(8))),
        1 => AutoCompaction::Revision(1 + rng.below(200).cast_signed()),
        _ => AutoCompaction::Off,
    };
    member
}

fn draw_log(rng: &mut Rng) -> wal::LogConfig {
    let shards = if rng.chance(75) { 1 } else { 2 + u16::try_from(rng.below(2)).expect("small") };
    let segment_size_bytes = (64 << 10) << rng.below(5);
    wal::LogConfig {
        segment_size_bytes,
        batch_size_max_bytes: (4 << 10) << rng.below(4),
        writes_in_flight_max: 1 + u16::try_from(rng.below(4)).expect("small"),
        seal_after_idle: Duration::from_millis(1 + rng.below(10)),
        seal_after_batches: 1 << rng.below(9),
        ..wal::LogConfig::for_shards(shards)
    }
}

fn draw_index(rng: &mut Rng) -> IndexConfig {
    let mut index = IndexConfig::new(CLUSTER_ID, MEMBER_ID);
    // From one checkpoint after the other to none at all.
    if rng.chance(80) {
        index.checkpoint_bytes = (32 << 10) << rng.below(5);
        // What one entry changes at most must fit a few times over.
        index.dirty_bytes_max = (index.checkpoint_bytes * 2).max(DIRTY_BYTES_MIN);
    }
    index
}
