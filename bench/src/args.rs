//! The command line, and the plan that it becomes once it is checked.

use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::limits;
use std::path::PathBuf;
use std::time::Duration;

/// Load and latency against any etcd endpoint, over gRPC.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Latency with --rate is counted from the moment at which the schedule wanted the operation to \
    start, so a stall is charged to every operation that it held up.\n\nExamples:\n  \
    garboard bench put --clients 64 --conns 8 --total 100000\n  \
    garboard bench put --rate 2000 --clients 256 --conns 8 --total 60000 --pid $(pidof etcd)\n  \
    garboard bench range --endpoints 127.0.0.1:2379 --vs 127.0.0.1:22379 --rounds 5")]
pub struct BenchArgs {
    /// What the load does.
    #[command(subcommand)]
    pub workload: WorkloadArgs,
}

/// The workloads.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum WorkloadArgs {
    /// Calls that do nothing (health checks): what network, HTTP/2 and gRPC take on the same connections.
    Noop(LoadArgs),
    /// Synchronous writes of 4 KiB to a file, with no server: what the disk takes.
    Disk(DiskArgs),
    /// One after the other in each round: the disk's writes, no-op calls and puts; how far puts are above the sum of
    /// the two.
    Floor(FloorArgs),
    /// Puts of random values under keys drawn from the key space.
    Put(LoadArgs),
    /// Ranges that start at a key drawn from the key space, which is filled first if it is not full.
    Range(RangeArgs),
    /// Exact counts of the whole key space, which is filled first if it is not full.
    Count(CountArgs),
    /// Puts, and watchers that each receive all of them: the time from a put's start to the event's arrival.
    Watch(WatchArgs),
}

/// What every workload takes.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadArgs {
    /// The endpoint to measure; the connections are spread over several members when separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:2379", value_name = "HOST:PORT")]
    pub endpoints: Vec<String>,
    /// Requests in flight, at most: each client waits for its answer before it sends again.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub clients: u32,
    /// HTTP/2 connections over which the clients are spread.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub conns: u32,
    /// Operations in each round.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub total: u64,
    /// Operations per second in all (open loop). Without it each client sends as soon as it has its answer.
    #[arg(long, value_name = "R")]
    pub rate: Option<f64>,
    /// Bytes in a value.
    #[arg(long, default_value_t = 256, value_name = "B")]
    pub value_size: u32,
    /// Number of different keys.
    #[arg(long, default_value_t = 100_000, value_name = "K")]
    pub key_space: u64,
    /// What every key begins with. The load reads and writes nothing else.
    #[arg(long, default_value = "garboard-bench/", value_name = "TEXT")]
    pub key_prefix: String,
    /// A second endpoint to compare with: the two take turns, round by round.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    pub vs: Vec<String>,
    /// Rounds on each endpoint; the report shows medians over them. [default: 1, with --vs 5]
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Server processes behind --endpoints, to report the CPU time that an operation costs them.
    #[arg(long, value_delimiter = ',', value_name = "PID")]
    pub pid: Vec<u32>,
    /// Server processes behind --vs.
    #[arg(long, value_delimiter = ',', value_name = "PID")]
    pub vs_pid: Vec<u32>,
    /// Operations on each endpoint before the first round, which are not counted. [default: a tenth of --total]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// Threads that generate the load; each serves its own connections.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub threads: u32,
    /// Seed of keys and values; the same seed gives the same operations.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Give up when nothing finished for so long.
    #[arg(long, default_value_t = 30, value_name = "S")]
    pub stall_seconds: u64,
    /// The report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `range` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct RangeArgs {
    /// The common options.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Keys in each answer, at most: 1 reads one key by its name, more ask as a paging client does, with the end of the
    /// key space as the end of the range (so the answer tells the exact count of what follows).
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub limit: u32,
    /// Let the member answer from what it has, without asking the others (the default is a linearizable read).
    #[arg(long)]
    pub serializable: bool,
}

/// What `count` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct CountArgs {
    /// The common options.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Let the member answer from what it has, without asking the others (the default is a linearizable read).
    #[arg(long)]
    pub serializable: bool,
}

/// What `watch` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct WatchArgs {
    /// The common options.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Watchers, each on a stream of its own, spread over the connections.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub watchers: u32,
}

/// What `disk` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct DiskArgs {
    /// A directory on the file system to measure. A file of 16 MiB is made there, and is gone when the run ends.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Writes of each form in each round.
    #[arg(long, default_value_t = 2_000, value_name = "N")]
    pub total: u64,
    /// Rounds; the report shows medians over them.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub rounds: u32,
    /// The report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What `floor` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct FloorArgs {
    /// The common options; --total is the number of calls and of puts in each round.
    #[command(flatten)]
    pub load: LoadArgs,
    /// A directory on the file system to measure: the one that holds the server's log.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

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
    },
    /// A put whose event is awaited by watchers.
    Watch {
        /// How many watchers receive every event.
        watchers: u32,
    },
}

impl Operation {
    /// The workload's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Put => "put",
            Self::Range { .. } => "range",
            Self::Count { .. } => "count",
            Self::Watch { .. } => "watch",
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
    /// Operations per second, if the loop is open.
    pub rate: Option<f64>,
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
            value_size: load.value_size,
            key_space: load.key_space,
            key_prefix: load.key_prefix,
            rounds: load.rounds.unwrap_or(if comparing { limits::COMPARING_ROUNDS } else { 1 }),
            seed: load.seed,
            stall: Duration::from_secs(load.stall_seconds),
            json: load.json,
        })
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
            WorkloadArgs::Put(load) => (Operation::Put, load),
            WorkloadArgs::Range(range) => {
                (Operation::Range { limit: range.limit, serializable: range.serializable }, range.load)
            }
            WorkloadArgs::Count(count) => (Operation::Count { serializable: count.serializable }, count.load),
            WorkloadArgs::Watch(watch) => (Operation::Watch { watchers: watch.watchers }, watch.load),
            WorkloadArgs::Disk(DiskArgs { dir, total, rounds, json }) => {
                return Ok(Self::Disk(DiskPlan::new(dir, total, rounds, json)?));
            }
            WorkloadArgs::Floor(FloorArgs { mut load, dir }) => {
                check(load.rate.is_none(), || "--rate has no meaning here: floor compares times of lone calls".into())?;
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
        Operation::Watch { watchers } => {
            check_within("--watchers", watchers, 1, limits::CLIENTS_MAX)?;
            load.clients.max(watchers)
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

fn check_work(load: &LoadArgs, operation: Operation) -> Result<(), BenchError> {
    check(load.total > 0, || "--total must be at least 1".into())?;
    check_within("--key-space", load.key_space, 1, limits::KEY_SPACE_MAX)?;
    let value_bytes_min = if let Operation::Watch { .. } = operation { limits::WATCH_VALUE_BYTES_MIN } else { 0 };
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
            ("watch --value-size 15", "--value-size"),
            ("watch --threads 2 --conns 2", "--threads"),
            ("watch --watchers 0", "--watchers"),
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
