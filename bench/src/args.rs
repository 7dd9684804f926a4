//! The command line.

use std::path::PathBuf;

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
    Put(PutArgs),
    /// Ranges that start at a key drawn from the key space, which is filled first if it is not full.
    Range(RangeArgs),
    /// Exact counts of the whole key space, which is filled first if it is not full.
    Count(CountArgs),
    /// Puts, and watchers that check that every event comes, in order: the time from a put's start to the event's
    /// arrival. With a rate each round also runs the puts without the watchers.
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
    /// Open loop at half the rate that so many clients reach in a closed loop, measured first on each endpoint.
    #[arg(long, value_name = "CLIENTS", conflicts_with = "rate")]
    pub half_rate_of: Option<u32>,
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

/// What `put` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct PutArgs {
    /// The common options.
    #[command(flatten)]
    pub load: LoadArgs,
    /// After each round another one, during which the bench itself has the server do this; needs a rate. The report sets
    /// the two side by side.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub during: Option<During>,
    /// Revisions that each `--during compact` removes; they are put before.
    #[arg(long, default_value_t = 800_000, value_name = "N")]
    pub compact_revisions: u64,
    /// Bytes of values in each range of `--during ranges`.
    #[arg(long, default_value_t = 200_000_000, value_name = "B")]
    pub range_bytes: u64,
}

/// What the bench has the server do while it measures puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum During {
    /// One physical compaction of many revisions; only puts while it runs are counted.
    Compact,
    /// One unary range after the other of all of many keys with values of 1 KiB.
    Ranges,
    /// One checkpoint after the other (Garboard alone can be asked for one).
    Checkpoint,
    /// A call of Defragment twice a second.
    Defragment,
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
    /// Count at the revision before the newest N writes, which the load makes first: half of them puts of new keys
    /// that the count must leave out, half of keys that it counts.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub rev_ago: u64,
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
    /// Watchers of the whole key range, each on a stream of its own, spread over the connections.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub watchers: u32,
    /// Let those watch the first so many keys only. [default: all]
    #[arg(long, value_name = "K")]
    pub watched_keys: Option<u64>,
    /// Watchers of one key each, the first so many of the key space.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub key_watchers: u32,
    /// Watchers of one key that share a stream.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub key_watchers_per_stream: u32,
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
