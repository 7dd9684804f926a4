//! `garboard sim`: one seed with its story, or many with their progress.
#![allow(clippy::disallowed_methods, reason = "this is the edge: it starts threads and measures them")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::outcome::{Outcome, Summary, Violation};
use crate::panics;
use crate::plan::{CLUSTER_FAULTS, Fault, Options};
use crate::run_seed;

/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(10);

/// Runs clusters, or single members, on simulated disks, clocks and network, and holds them against a model.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  garboard sim --seeds 1000 --jobs 2\n  garboard sim --seed 42\n  \
    garboard sim --members 3 --seeds 100 --force rot --without crash,kill")]
pub struct SimArgs {
    /// Run this one seed and print its story.
    #[arg(long, value_name = "S", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Run so many seeds.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub seeds: u64,
    /// The first of them.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub from: u64,
    /// Threads, each with a seed of its own.
    #[arg(long, value_name = "J", default_value_t = 1)]
    pub jobs: u64,
    /// Members of the cluster; without it each seed draws 1, 3, 5 or 7.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9))]
    pub members: Option<u8>,
    /// Requests of clients in each seed; a cluster's seed lasts in proportion.
    #[arg(long, value_name = "N", default_value_t = Options::default().ops)]
    pub ops: u64,
    /// Faults that every seed gets, beside those that it draws.
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    pub force: Vec<Fault>,
    /// Faults that no seed gets.
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    pub without: Vec<Fault>,
    /// No fault but a crash at this event.
    #[arg(long, value_name = "EVENT")]
    pub crash_at: Option<u64>,
    /// With --seed: leave the story out.
    #[arg(long)]
    pub quiet: bool,
}

impl SimArgs {
    fn options(&self) -> Options {
        Options {
            members: self.members.map(usize::from),
            ops: self.ops,
            force: self.force.iter().copied().collect(),
            disable: self.without.iter().copied().collect(),
            crash_at: self.crash_at,
            ..Options::default()
        }
    }

    /// The command that runs a seed of this run again.
    fn replay(&self, seed: u64) -> String {
        let list = |faults: &[Fault]| faults.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(",");
        let mut command = format!("garboard sim --seed {seed}");
        if let Some(members) = self.members {
            command += &format!(" --members {members}");
        }
        if self.ops != Options::default().ops {
            command += &format!(" --ops {}", self.ops);
        }
        if !self.force.is_empty() {
            command += &format!(" --force {}", list(&self.force));
        }
        if !self.without.is_empty() {
            command += &format!(" --without {}", list(&self.without));
        }
        if let Some(event) = self.crash_at {
            command += &format!(" --crash-at {event}");
        }
        command
    }
}

/// Runs what the command line asks for. Fails when a promise was not kept.
pub fn run(args: SimArgs) -> ExitCode {
    match args.seed {
        Some(seed) => run_one(&args, seed),
        None => run_many(&args),
    }
}

fn run_one(args: &SimArgs, seed: u64) -> ExitCode {
    let options = Options { story: !args.quiet, ..args.options() };
    let replay = args.replay(seed);
    panics::set_last_words(Box::new(move |text| {
        println!("VIOLATION: a panic: {text}\nreplay with: {replay}");
        std::process::exit(1);
    }));
    let started = Instant::now();
    let outcome = run_seed(seed, &options);
    print_summary(&outcome.summary, 1, started.elapsed());
    println!("story {:016x}", outcome.summary.digest);
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("VIOLATION {violation}\nreplay with: {}", args.replay(seed));
            ExitCode::FAILURE
        }
    }
}

/// What a worker tells.
enum Message {
    Done(Box<Outcome>),
    /// It will not tell anything more; and whether another one must take its place.
    Ended {
        replace: bool,
    },
}

/// The seeds that are left.
struct Seeds {
    next: AtomicU64,
    end: u64,
}

fn run_many(args: &SimArgs) -> ExitCode {
    let started = Instant::now();
    let seeds = Arc::new(Seeds { next: AtomicU64::new(args.from), end: args.from.saturating_add(args.seeds) });
    let (sender, receiver) = channel();
    for _ in 0..args.jobs.max(1) {
        spawn_worker(&seeds, &args.options(), &sender);
    }
    let mut tally = Tally { workers: args.jobs.max(1), ..Tally::default() };
    let mut told = started;
    while tally.workers > 0 {
        match next_message(&receiver) {
            Some(Message::Done(outcome)) => tally.take(args, *outcome),
            Some(Message::Ended { replace: true }) => spawn_worker(&seeds, &args.options(), &sender),
            Some(Message::Ended { replace: false }) => tally.workers -= 1,
            None => {}
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            eprintln!("{}", tally.progress(args.seeds, started.elapsed()));
        }
    }
    print_summary(&tally.sum, tally.count, started.elapsed());
    if tally.failed.is_empty() {
        println!("0 violations");
        return ExitCode::SUCCESS;
    }
    println!("{} violations; replay with:", tally.failed.len());
    for seed in &tally.failed {
        println!("  {}", args.replay(*seed));
    }
    ExitCode::FAILURE
}

fn next_message(receiver: &Receiver<Message>) -> Option<Message> {
    match receiver.recv_timeout(PROGRESS) {
        Ok(message) => Some(message),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => unreachable!("this thread holds a sender"),
    }
}

fn spawn_worker(seeds: &Arc<Seeds>, options: &Options, sender: &Sender<Message>) {
    let (seeds, options, sender) = (Arc::clone(seeds), options.clone(), sender.clone());
    std::thread::spawn(move || {
        loop {
            let seed = seeds.next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let last = sender.clone();
            panics::set_last_words(Box::new(move |text| die(seed, text, &last)));
            let outcome = run_seed(seed, &options);
            if sender.send(Message::Done(Box::new(outcome))).is_err() {
                return;
            }
        }
        // Nobody is left to tell once the main thread has ended.
        let _ = sender.send(Message::Ended { replace: false });
    });
}

/// A panic in a build that ends the process at a panic: the thread tells it and stands still for good, and the process
/// goes on.
fn die(seed: u64, text: String, sender: &Sender<Message>) {
    let violation =
        Violation { at: Duration::ZERO, what: "nothing panics".to_owned(), expected: String::new(), found: text };
    let outcome = Outcome { seed, summary: Summary::default(), violation: Some(violation) };
    let told = sender.send(Message::Done(Box::new(outcome)));
    if told.and_then(|()| sender.send(Message::Ended { replace: true })).is_ok() {
        loop {
            std::thread::park();
        }
    }
}

/// What was told so far.
#[derive(Default)]
struct Tally {
    workers: u64,
    count: u64,
    sum: Summary,
    failed: Vec<u64>,
}

impl Tally {
    fn take(&mut self, args: &SimArgs, outcome: Outcome) {
        self.count += 1;
        self.sum.add(&outcome.summary);
        if let Some(violation) = outcome.violation {
            println!("seed {}: VIOLATION {violation}\n  replay with: {}", outcome.seed, args.replay(outcome.seed));
            self.failed.push(outcome.seed);
        }
    }

    fn progress(&self, seeds: u64, elapsed: Duration) -> String {
        let rate = self.sum.simulated.as_secs_f64() / elapsed.as_secs_f64();
        format!(
            "{:.0} s: {} of {seeds} seeds ({:.1}/s), {:.1} simulated hours ({rate:.0} x real time), {} acknowledged \
             writes, {} restarts, {} violations",
            elapsed.as_secs_f64(),
            self.count,
            to_float(self.count) / elapsed.as_secs_f64(),
            self.sum.simulated.as_secs_f64() / 3_600.0,
            self.sum.acknowledged_writes,
            self.sum.restarts,
            self.failed.len(),
        )
    }
}

fn to_float(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

fn print_summary(sum: &Summary, seeds: u64, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64();
    println!("{seeds} seeds in {seconds:.1} s ({:.1}/s)", to_float(seeds) / seconds);
    println!(
        "{:.2} simulated hours, {:.0} x real time",
        sum.simulated.as_secs_f64() / 3_600.0,
        sum.simulated.as_secs_f64() / seconds
    );
    println!(
        "{} requests, {} acknowledged writes, {} reads, {} watch events, {} expired leases",
        sum.requests, sum.acknowledged_writes, sum.reads, sum.watch_events, sum.expiries
    );
    println!(
        "{:.2} cluster-hours, {} terms with a leader, {} messages between members, {} members filled by \
         snapshots, {} watches resumed elsewhere, {} states of members compared",
        sum.cluster_time.as_secs_f64() / 3_600.0,
        sum.elections,
        sum.messages,
        sum.restored,
        sum.resumed_watches,
        sum.compared
    );
    let known = CLUSTER_FAULTS
        .iter()
        .chain([&Fault::OldLeader])
        .map(|fault| fault.name())
        .filter(|name| sum.faults.contains_key(name));
    let faults: Vec<String> = known
        .chain(["stopped", "refused", "salvaged", "damaged", "repaired"])
        .map(|name| format!("{name} {}", sum.faults.get(name).copied().unwrap_or(0)))
        .collect();
    println!("{} restarts, {} of them from a checkpoint; {}", sum.restarts, sum.checkpoint_starts, faults.join(", "));
}
