//! What a run does: the command line once it is checked.

use crate::args::{BenchArgs, DiskArgs, During, FloorArgs, LoadArgs, PutArgs, WorkloadArgs};
use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::limits;
use std::path::PathBuf;
use std::time::Duration;

/// What one operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A call that does nothing.
    Noop,
    /// A put under a random key.
    Put,
    /// A range from a random key on.
    Range {
        /// Keys in an answer, at most.
        limit: u32,
        /// Whether any member may answer alone.
        serializable: bool,
    },
    /// A count of all keys.
    Count {
        /// Whether any member may answer alone.
        serializable: bool,
        /// How many revisions before the newest one it counts.
        revisions_ago: u64,
    },
    /// A put whose event is awaited by watchers.
    Watch(Watchers),
}

/// Who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchers {
    /// Watchers of the first `watched_keys` keys, each on a stream of its own.
    pub ranges: u32,
    /// How many keys those watch.
    pub watched_keys: u64,
    /// Watchers of one key each: the first keys of the key space.
    pub keys: u32,
    /// How many of the latter share a stream.
    pub keys_per_stream: u32,
}

impl Watchers {
    /// Streams in all.
    pub fn stream_count(self) -> u32 {
        self.ranges + self.keys.div_ceil(self.keys_per_stream)
    }
}

/// What the bench has a server do while it measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// A physical compaction.
    Compact {
        /// How many revisions it removes.
        revisions: u64,
    },
    /// Unary ranges of many keys.
    Ranges {
        /// Bytes of their values.
        bytes: u64,
    },
    /// Checkpoints.
    Checkpoint,
    /// Calls of Defragment.
    Defragment,
    /// The watchers of the watch workload.
    Watchers,
}

impl Disturbance {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compact { .. } => "compaction",
            Self::Ranges { .. } => "ranges",
            Self::Checkpoint => "checkpoints",
            Self::Defragment => "defragmentation",
            Self::Watchers => "watchers",
        }
    }
}

impl Operation {
    /// The workload's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Put => "put",
            Self::Range { .. } => "range",
            Self::Count { .. } => "count",
            Self::Watch(_) => "watch",
        }
    }

    /// Whether the key space must be full before the first round.
    pub fn reads(self) -> bool {
        matches!(self, Self::Range { .. } | Self::Count { .. })
    }
}

/// One server or cluster to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its endpoints, at least one.
    pub endpoints: Vec<Endpoint>,
    /// Its processes, if their CPU time is to be reported.
    pub pids: Vec<u32>,
}

impl Target {
    /// The endpoints as they appear in reports and messages.
    pub fn label(&self) -> String {
        self.endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
    }
}

/// A checked command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What one operation is.
    pub operation: Operation,
    /// What is measured, and what it is compared with if there is a second one.
    pub targets: Vec<Target>,
    /// Requests in flight, at most.
    pub clients: u32,
    /// Connections to a target, at least one for each thread and at most one for each client or watcher.
    pub connections: u32,
    /// Generator threads.
    pub threads: u32,
    /// Operations in a round.
    pub total: u64,
    /// Operations before the first round.
    pub warmup: u64,
    /// Operations per second, if the loop is open and the rate is given.
    pub rate: Option<f64>,
    /// Open loop at half of what so many clients reach in a closed one.
    pub half_rate_of: Option<u32>,
    /// What is done in every other round.
    pub disturbance: Option<Disturbance>,
    /// Bytes in a value.
    pub value_size: u32,
    /// Number of different keys.
    pub key_space: u64,
    /// What every key begins with.
    pub key_prefix: String,
    /// Rounds on each target.
    pub rounds: u32,
    /// Seed of keys and values.
    pub seed: u64,
    /// Patience when nothing finishes.
    pub stall: Duration,
    /// Whether the report is JSON.
    pub json: bool,
}

impl Plan {
    /// Checks the options of a load. An error names the option and says what it may be.
    pub fn new(operation: Operation, load: LoadArgs) -> Result<Self, BenchError> {
        check_concurrency(&load, operation)?;
        check_work(&load, operation)?;
        let targets = targets(&load)?;
        let comparing = targets.len() > 1;
        Ok(Self {
            operation,
            targets,
            clients: load.clients,
            connections: load.conns,
            threads: load.threads,
            total: load.total,
            warmup: load.warmup.unwrap_or(load.total / 10),
            rate: load.rate,
            half_rate_of: load.half_rate_of,
            disturbance: None,
            value_size: load.value_size,
            key_space: load.key_space,
            key_prefix: load.key_prefix,
            rounds: load.rounds.unwrap_or(if comparing { limits::COMPARING_ROUNDS } else { 1 }),
            seed: load.seed,
            stall: Duration::from_secs(load.stall_seconds),
            json: load.json,
        })
    }

    /// With something done in every other round, which only an open loop shows.
    fn with_disturbance(self, disturbance: Option<Disturbance>) -> Result<Self, BenchError> {
        check(disturbance.is_none() || self.is_open_loop(), || {
            "--during needs --rate or --half-rate-of: a closed loop hides what a pause holds up".into()
        })?;
        Ok(Self { disturbance, ..self })
    }

    /// Whether the schedule decides when an operation starts.
    pub fn is_open_loop(&self) -> bool {
        self.rate.is_some() || self.half_rate_of.is_some()
    }

    /// Whether every key must be there before the first round.
    pub fn needs_keys(&self) -> bool {
        self.operation.reads() || self.disturbance.is_some_and(|what| what != Disturbance::Watchers)
    }

    /// The plan of the shortest command line.
    #[cfg(test)]
    pub fn example() -> Self {
        use clap::Parser;
        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            load: LoadArgs,
        }
        Self::new(Operation::Put, Cli::parse_from(["bench"]).load).expect("the defaults make sense")
    }
}

/// A checked command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Load on a server.
    Load(Plan),
    /// Writes to a disk.
    Disk(DiskPlan),
    /// Puts beside what they are made of.
    Floor(DiskPlan, Plan),
}

/// Writes to a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// Where the file is made.
    pub dir: PathBuf,
    /// Writes of each form in a round.
    pub total: u64,
    /// Rounds.
    pub rounds: u32,
    /// Whether the report is JSON.
    pub json: bool,
}

impl Task {
    /// Checks the command line. An error names the option and says what it may be.
    pub fn new(args: BenchArgs) -> Result<Self, BenchError> {
        let (operation, load) = match args.workload {
            WorkloadArgs::Noop(load) => (Operation::Noop, load),
            WorkloadArgs::Put(args) => {
                let disturbance = args.during.map(|during| disturbance(during, &args)).transpose()?;
                return Ok(Self::Load(Plan::new(Operation::Put, args.load)?.with_disturbance(disturbance)?));
            }
            WorkloadArgs::Range(range) => {
                (Operation::Range { limit: range.limit, serializable: range.serializable }, range.load)
            }
            WorkloadArgs::Count(count) => {
                let (serializable, revisions_ago) = (count.serializable, count.rev_ago);
                (Operation::Count { serializable, revisions_ago }, count.load)
            }
            WorkloadArgs::Watch(watch) => {
                let watchers = Watchers {
                    ranges: watch.watchers,
                    watched_keys: watch.watched_keys.unwrap_or(watch.load.key_space),
                    keys: watch.key_watchers,
                    keys_per_stream: watch.key_watchers_per_stream,
                };
                let plan = Plan::new(Operation::Watch(watchers), watch.load)?;
                let beside = plan.is_open_loop().then_some(Disturbance::Watchers);
                return Ok(Self::Load(plan.with_disturbance(beside)?));
            }
            WorkloadArgs::Disk(DiskArgs { dir, total, rounds, json }) => {
                return Ok(Self::Disk(DiskPlan::new(dir, total, rounds, json)?));
            }
            WorkloadArgs::Floor(FloorArgs { mut load, dir }) => {
                check(load.rate.is_none() && load.half_rate_of.is_none(), || {
                    "--rate has no meaning here: floor compares times of lone calls".into()
                })?;
                load.rounds.get_or_insert(limits::COMPARING_ROUNDS);
                let plan = Plan::new(Operation::Put, load)?;
                return Ok(Self::Floor(DiskPlan::new(dir, plan.total, plan.rounds, plan.json)?, plan));
            }
        };
        Ok(Self::Load(Plan::new(operation, load)?))
    }
}

impl DiskPlan {
    fn new(dir: PathBuf, total: u64, rounds: u32, json: bool) -> Result<Self, BenchError> {
        check(total > 0, || "--total must be at least 1".into())?;
        check_within("--rounds", rounds, 1, limits::ROUNDS_MAX)?;
        Ok(Self { dir, total, rounds, json })
    }
}

fn disturbance(during: During, args: &PutArgs) -> Result<Disturbance, BenchError> {
    Ok(match during {
        During::Compact => {
            check_within("--compact-revisions", args.compact_revisions, 1, u64::MAX)?;
            Disturbance::Compact { revisions: args.compact_revisions }
        }
        During::Ranges => {
            check_within("--range-bytes", args.range_bytes, 1, limits::RANGE_BYTES_MAX)?;
            Disturbance::Ranges { bytes: args.range_bytes }
        }
        During::Checkpoint => Disturbance::Checkpoint,
        During::Defragment => Disturbance::Defragment,
    })
}

fn targets(load: &LoadArgs) -> Result<Vec<Target>, BenchError> {
    let parse = |texts: &[String]| texts.iter().map(|text| Endpoint::parse(text)).collect::<Result<Vec<_>, _>>();
    let mut targets = vec![Target { endpoints: parse(&load.endpoints)?, pids: load.pid.clone() }];
    check(!targets[0].endpoints.is_empty(), || "--endpoints needs at least one HOST:PORT".into())?;
    if load.vs.is_empty() {
        check(load.vs_pid.is_empty(), || "--vs-pid has a meaning only with --vs".into())?;
    } else {
        targets.push(Target { endpoints: parse(&load.vs)?, pids: load.vs_pid.clone() });
    }
    for target in &targets {
        let (conns, endpoints) = (load.conns, target.endpoints.len());
        check(endpoints <= conns as usize, || {
            format!("--conns {conns} leaves some of {endpoints} endpoints without a connection")
        })?;
    }
    Ok(targets)
}

fn check_concurrency(load: &LoadArgs, operation: Operation) -> Result<(), BenchError> {
    check_within("--clients", load.clients, 1, limits::CLIENTS_MAX)?;
    check_within("--conns", load.conns, 1, limits::CONNECTIONS_MAX)?;
    check_within("--threads", load.threads, 1, limits::THREADS_MAX)?;
    let streams = match operation {
        Operation::Watch(watchers) => {
            check_watchers(watchers, load.key_space)?;
            load.clients.max(watchers.stream_count())
        }
        _ => load.clients,
    };
    check(load.conns <= streams, || {
        format!("--conns {} is more than there are clients ({streams}): some connections would stay idle", load.conns)
    })?;
    check(load.threads <= load.conns, || {
        format!("--threads {} needs at least as many connections, and --conns is {}", load.threads, load.conns)
    })?;
    check(load.threads <= load.clients, || {
        format!("--threads {} needs at least as many clients, and --clients is {}", load.threads, load.clients)
    })?;
    check_within("--rounds", load.rounds.unwrap_or(1), 1, limits::ROUNDS_MAX)?;
    check(load.stall_seconds > 0, || "--stall-seconds must be at least 1".into())
}

fn check_watchers(watchers: Watchers, key_space: u64) -> Result<(), BenchError> {
    check_within("--watchers", watchers.ranges, 0, limits::CLIENTS_MAX)?;
    check_within("--key-watchers", watchers.keys, 0, limits::CLIENTS_MAX)?;
    check_within("--key-watchers-per-stream", watchers.keys_per_stream, 1, limits::WATCHES_PER_STREAM_MAX)?;
    check_within("--watched-keys", watchers.watched_keys, 1, key_space)?;
    check(watchers.ranges + watchers.keys > 0, || "--watchers and --key-watchers are both 0: nobody watches".into())?;
    check(u64::from(watchers.keys) <= key_space, || {
        format!("--key-watchers {} is more than there are keys (--key-space {key_space})", watchers.keys)
    })
}

fn check_work(load: &LoadArgs, operation: Operation) -> Result<(), BenchError> {
    check(load.total > 0, || "--total must be at least 1".into())?;
    check_within("--key-space", load.key_space, 1, limits::KEY_SPACE_MAX)?;
    let value_bytes_min = if let Operation::Watch(_) = operation { limits::WATCH_VALUE_BYTES_MIN } else { 0 };
    check_within("--value-size", load.value_size, value_bytes_min, limits::VALUE_BYTES_MAX)?;
    check(!load.key_prefix.is_empty(), || "--key-prefix must not be empty: it keeps the load to its own keys".into())?;
    check(load.key_prefix.len() <= limits::KEY_PREFIX_BYTES_MAX, || {
        format!("--key-prefix may have {} bytes at most", limits::KEY_PREFIX_BYTES_MAX)
    })?;
    if let Some(rate) = load.rate {
        check(rate.is_finite() && rate > 0.0, || {
            format!("--rate {rate} must be a number above 0 (operations a second)")
        })?;
    }
    if let Some(clients) = load.half_rate_of {
        check_within("--half-rate-of", clients, load.threads, limits::CLIENTS_MAX)?;
    }
    if let Operation::Range { limit, .. } = operation {
        check(limit > 0, || "--limit must be at least 1".into())?;
    }
    Ok(())
}

fn check_within<T: PartialOrd + std::fmt::Display>(option: &str, value: T, min: T, max: T) -> Result<(), BenchError> {
    check(value >= min && value <= max, || format!("{option} {value} is not between {min} and {max}"))
}

fn check(holds: bool, message: impl FnOnce() -> String) -> Result<(), BenchError> {
    if holds { Ok(()) } else { Err(BenchError::Argument(message())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(line: &str) -> Result<Plan, BenchError> {
        match task(line)? {
            Task::Load(plan) | Task::Floor(_, plan) => Ok(plan),
            Task::Disk(disk) => panic!("{disk:?} has no load"),
        }
    }

    fn task(line: &str) -> Result<Task, BenchError> {
        let words = std::iter::once("bench").chain(line.split_ascii_whitespace());
        Task::new(Cli::try_parse_from(words).expect("clap takes the line").bench)
    }

    #[test]
    fn the_shortest_line_measures_the_default_endpoint_once() {
        let plan = plan("put").unwrap();
        assert_eq!(plan.operation, Operation::Put);
        assert_eq!(plan.targets.len(), 1);
        assert_eq!(plan.targets[0].label(), "127.0.0.1:2379");
        assert_eq!((plan.rounds, plan.warmup, plan.rate), (1, 1_000, None));
    }

    #[test]
    fn a_second_endpoint_makes_five_rounds_of_turns() {
        let plan =
            plan("range --endpoints a:1,b:2 --conns 2 --clients 2 --vs http://c:3 --pid 7,8 --vs-pid 9 --limit 5")
                .unwrap();
        assert_eq!(plan.operation, Operation::Range { limit: 5, serializable: false });
        assert_eq!(plan.targets[0].label(), "a:1,b:2");
        assert_eq!(plan.targets[1].label(), "c:3");
        assert_eq!((plan.targets[0].pids.as_slice(), plan.targets[1].pids.as_slice()), (&[7, 8][..], &[9][..]));
        assert_eq!(plan.rounds, 5);
    }

    #[test]
    fn watchers_are_set_beside_puts_alone_when_the_loop_is_open() {
        let watch = plan("watch --key-space 50 --key-watchers 21 --key-watchers-per-stream 10 --rate 9").unwrap();
        let Operation::Watch(watchers) = watch.operation else { panic!("{:?}", watch.operation) };
        assert_eq!((watchers.watched_keys, watchers.stream_count()), (50, 13));
        assert_eq!(watch.disturbance, Some(Disturbance::Watchers));
        assert_eq!(plan("watch").unwrap().disturbance, None);
        let during = plan("put --half-rate-of 10 --during compact --compact-revisions 7").unwrap();
        assert_eq!(during.disturbance, Some(Disturbance::Compact { revisions: 7 }));
        assert!(during.needs_keys() && during.is_open_loop() && !watch.needs_keys());
    }

    #[test]
    fn the_floor_s_puts_and_writes_are_as_many_and_have_as_many_rounds() {
        let Task::Floor(disk, plan) = task("floor --dir /x --total 77").unwrap() else { panic!("no floor") };
        assert_eq!((disk.total, disk.rounds), (77, 5));
        assert_eq!((plan.total, plan.rounds, plan.operation), (77, 5, Operation::Put));
        let Task::Disk(disk) = task("disk --dir /x --rounds 2").unwrap() else { panic!("no disk") };
        assert_eq!((disk.dir.to_str(), disk.total, disk.rounds), (Some("/x"), 2_000, 2));
    }

    #[test]
    fn values_that_make_no_sense_are_refused_by_the_option_s_name() {
        for (line, option) in [
            ("put --clients 0", "--clients"),
            ("put --clients 2 --conns 3", "--conns"),
            ("put --conns 0", "--conns"),
            ("put --threads 2", "--threads"),
            ("put --total 0", "--total"),
            ("put --rate 0", "--rate"),
            ("put --rate=-5", "--rate"),
            ("put --rate inf", "--rate"),
            ("put --rate nan", "--rate"),
            ("put --rounds 0", "--rounds"),
            ("put --key-space 0", "--key-space"),
            ("put --value-size 99999999", "--value-size"),
            ("put --vs-pid 4", "--vs-pid"),
            ("put --key-prefix=", "--key-prefix"),
            ("put --stall-seconds 0", "--stall-seconds"),
            ("put --endpoints a:1,b:2", "--conns"),
            ("range --limit 0", "--limit"),
            ("watch --value-size 23", "--value-size"),
            ("watch --threads 2 --conns 2", "--threads"),
            ("watch --watchers 0", "--watchers"),
            ("watch --key-space 10 --key-watchers 11", "--key-watchers"),
            ("watch --key-space 10 --watched-keys 11", "--watched-keys"),
            ("watch --key-watchers-per-stream 0", "--key-watchers-per-stream"),
            ("put --during defragment", "--during"),
            ("put --rate 5 --during ranges --range-bytes 0", "--range-bytes"),
            ("put --half-rate-of 0", "--half-rate-of"),
            ("put --endpoints localhost", "localhost"),
            ("floor --dir /x --rate 5", "--rate"),
            ("disk --dir /x --total 0", "--total"),
            ("disk --dir /x --rounds 0", "--rounds"),
        ] {
            match plan(line) {
                Err(BenchError::Argument(message)) => assert!(message.contains(option), "{line}: {message}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }
}
