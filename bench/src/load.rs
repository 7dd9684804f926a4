//! One round: the generator's threads, their clients and what they measured.
//!
//! Each thread runs an executor of its own with its share of the connections, clients and operations, so nothing in
//! the path of an operation crosses threads. The calling thread starts them together, shows progress and notices a
//! stall.

use crate::client::Connection;
use crate::error::BenchError;
use crate::limits;
use crate::pacer::FineTimer;
use crate::plan::{Operation, Target};
use crate::process;
use crate::schedule::{self, Schedule};
use crate::watch::{self, Expected, Seen, Tally, WatchStream};
use crate::workload::{OperationError, Stamp, Workload};
use hdrhistogram::Histogram;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch as signal};
use tokio::task::JoinSet;

/// What one round does.
#[derive(Clone, Debug)]
pub struct Round<'a> {
    /// The operations.
    pub workload: &'a Workload,
    /// Where they go.
    pub target: &'a Target,
    /// Requests in flight, at most.
    pub clients: u32,
    /// Connections.
    pub connections: u32,
    /// Generator threads.
    pub threads: u32,
    /// Operations.
    pub total: u64,
    /// Operations per second, if the loop is open.
    pub rate: Option<f64>,
    /// The round's number, which chooses its keys and values.
    pub number: u64,
    /// What tells this round's events from others'.
    pub nonce: u64,
    /// Patience when nothing finishes.
    pub stall: Duration,
    /// What is done to the server meanwhile, if anything.
    pub window: Option<Arc<Window>>,
}

/// The times within a round at which something disturbs the server.
#[derive(Debug, Default)]
pub struct Window {
    /// Whether operations that the disturbance does not meet are left out of the latencies.
    pub only_within: bool,
    begun: AtomicBool,
    active: AtomicBool,
    over: AtomicBool,
}

impl Window {
    /// Counts every operation, or only those that the disturbance meets.
    pub fn new(only_within: bool) -> Self {
        Self { only_within, ..Self::default() }
    }

    /// Whether the round's load has begun.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether the round's load has ended.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Says that the round's load has ended, or never will begin.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Says whether the disturbance is under way.
    pub fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Relaxed);
    }

    fn counts_now(&self) -> bool {
        !self.only_within || self.active.load(Ordering::Relaxed)
    }
}

/// What a round measured. All latencies are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From the intended start to the answer.
    pub latency: Histogram<u64>,
    /// From the intended start to the sending: the generator's own share of the latency, and the wait for a free
    /// client.
    pub send_lag: Histogram<u64>,
    /// From a put's intended start to its event's arrival, once for each watcher.
    pub event_latency: Histogram<u64>,
    /// Operations that succeeded; more than there are latencies if only those within a window count.
    pub success_count: u64,
    /// The longest time in which nothing succeeded, in nanoseconds.
    pub longest_gap_ns: u64,
    /// Operations that failed.
    pub error_count: u64,
    /// What the first of them said.
    pub first_error: Option<String>,
    /// From the start to the last answer.
    pub elapsed: Duration,
    /// CPU time of the server's processes, if they are known.
    pub server_cpu: Option<Duration>,
    /// CPU time of this process.
    pub generator_cpu: Duration,
    /// Bytes that the server's processes had written to disk, if they are known.
    pub server_written_bytes: Option<u64>,
    /// Anonymous resident memory of the server's processes, if they are known.
    pub server_anonymous: Option<Memory>,
    /// The puts of a round with watchers, by the number of their key.
    pub puts: HashMap<u64, Tally>,
    /// What the watchers saw.
    pub seen: Vec<Seen>,
}

/// Bytes of memory over a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// When the load began.
    pub before: u64,
    /// The most that was seen.
    pub peak: u64,
    /// When the load had ended.
    pub after: u64,
}

impl Outcome {
    /// Nothing measured.
    pub fn empty() -> Self {
        Self {
            latency: new_histogram(),
            send_lag: new_histogram(),
            event_latency: new_histogram(),
            success_count: 0,
            longest_gap_ns: 0,
            error_count: 0,
            first_error: None,
            elapsed: Duration::ZERO,
            server_cpu: None,
            generator_cpu: Duration::ZERO,
            server_written_bytes: None,
            server_anonymous: None,
            puts: HashMap::new(),
            seen: Vec::new(),
        }
    }

    fn absorb(&mut self, other: Self) {
        const SAME_BOUNDS: &str = "all histograms have the same bounds";
        self.latency.add(other.latency).expect(SAME_BOUNDS);
        self.send_lag.add(other.send_lag).expect(SAME_BOUNDS);
        self.event_latency.add(other.event_latency).expect(SAME_BOUNDS);
        self.success_count += other.success_count;
        self.longest_gap_ns = self.longest_gap_ns.max(other.longest_gap_ns);
        self.error_count += other.error_count;
        for (key, tally) in other.puts {
            self.puts.entry(key).or_default().merge(tally);
        }
        self.seen.extend(other.seen);
        self.first_error = self.first_error.take().or(other.first_error);
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}

/// An empty histogram of nanoseconds.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, nanos(limits::LATENCY_MAX), 3).expect("the bounds and three digits are valid")
}

/// Nanoseconds as the histograms count them.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What a thread tells the caller of the round.
enum Report {
    Ready,
    Done(Result<Box<Outcome>, BenchError>),
}

/// What the caller of the round tells its threads.
#[derive(Clone, Copy, Debug)]
enum Signal {
    Wait,
    Start { epoch: Instant },
    Abort,
}

/// Runs one round to its end. `observe` is called now and then with the number of operations finished.
pub fn run_round(round: &Round<'_>, observe: &mut dyn FnMut(u64)) -> Result<Outcome, BenchError> {
    let activity = Arc::new(Activity::default());
    let (reports, received) = mpsc::channel();
    let (signals, _) = signal::channel(Signal::Wait);
    std::thread::scope(|scope| {
        for thread in 0..round.threads {
            let (reports, listener, activity) = (reports.clone(), signals.subscribe(), &activity);
            let work = move || {
                let result = run_thread(round, thread, activity, &reports, listener);
                // The caller stops listening only after an error, when it needs no further result.
                let _ = reports.send(Report::Done(result.map(Box::new)));
            };
            if let Err(error) = std::thread::Builder::new().name(format!("load-{thread}")).spawn_scoped(scope, work) {
                signals.send_replace(Signal::Abort);
                return Err(BenchError::Generator(error));
            }
        }
        let result = conduct(round, &activity, &received, &signals, observe);
        if result.is_err() {
            signals.send_replace(Signal::Abort);
        }
        if let Some(window) = &round.window {
            window.end();
        }
        let outcome = result?;
        watch::compare(&round.target.label(), &outcome.puts, &outcome.seen)?;
        Ok(outcome)
    })
}

/// Counters that all threads of a round share.
#[derive(Debug, Default)]
struct Activity {
    finished: AtomicU64,
    events: AtomicU64,
    /// When an operation last succeeded, in nanoseconds since the start.
    last_success_ns: AtomicU64,
}

impl Activity {
    fn add(&self, finished: u64, events: u64) {
        self.finished.fetch_add(finished, Ordering::Relaxed);
        self.events.fetch_add(events, Ordering::Relaxed);
    }

    /// An operation succeeded: how long ago did the last one?
    fn gap_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_success_ns.swap(now_ns, Ordering::Relaxed))
    }

    fn read(&self) -> (u64, u64) {
        (self.finished.load(Ordering::Relaxed), self.events.load(Ordering::Relaxed))
    }
}

fn conduct(
    round: &Round<'_>,
    activity: &Arc<Activity>,
    received: &mpsc::Receiver<Report>,
    signals: &signal::Sender<Signal>,
    observe: &mut dyn FnMut(u64),
) -> Result<Outcome, BenchError> {
    const ALIVE: &str = "every thread reports before it ends";
    for _ in 0..round.threads {
        if let Report::Done(result) = received.recv().expect(ALIVE) {
            return result.map(|outcome| *outcome);
        }
    }
    let mut meter = Meter::start(&round.target.pids)?;
    let lead = if round.rate.is_some() { limits::OPEN_LOOP_LEAD } else { Duration::ZERO };
    signals.send_replace(Signal::Start { epoch: Instant::now() + lead });
    if let Some(window) = &round.window {
        window.begun.store(true, Ordering::Relaxed);
    }

    // Between two operations of a slow schedule nothing happens, and that is no stall.
    let patience = round.stall + round.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
    let (mut last, mut last_change) = (activity.read(), Instant::now());
    let mut last_progress = last_change;
    let mut outcome = Outcome::empty();
    let mut running = round.threads;
    while running > 0 {
        match received.recv_timeout(meter.interval().min(patience)) {
            Ok(Report::Done(result)) => {
                outcome.absorb(*result?);
                running -= 1;
            }
            Ok(Report::Ready) => unreachable!("each thread is ready once"),
            Err(mpsc::RecvTimeoutError::Disconnected) => unreachable!("{ALIVE}"),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                meter.look()?;
                let now = activity.read();
                if last_progress.elapsed() >= limits::PROGRESS_INTERVAL {
                    last_progress = Instant::now();
                    observe(now.0);
                }
                if now != last {
                    (last, last_change) = (now, Instant::now());
                } else if last_change.elapsed() >= patience {
                    let (endpoint, waited) = (round.target.label(), last_change.elapsed());
                    return Err(BenchError::Stalled { endpoint, waited, finished: now.0, total: round.total });
                }
            }
        }
    }
    meter.finish(&mut outcome)?;
    if outcome.error_count == round.total {
        let first_error = outcome.first_error.unwrap_or_default();
        return Err(BenchError::AllFailed { endpoint: round.target.label(), total: round.total, first_error });
    }
    Ok(outcome)
}

/// What processes use between the start and the end of a round.
struct Meter<'a> {
    pids: &'a [u32],
    own_cpu: Duration,
    server_cpu: Duration,
    written_bytes: u64,
    anonymous: Memory,
}

impl<'a> Meter<'a> {
    fn start(pids: &'a [u32]) -> Result<Self, BenchError> {
        let anonymous = process::anonymous_bytes(pids)?;
        Ok(Self {
            pids,
            own_cpu: process::process_cpu(std::process::id())?,
            server_cpu: process::processes_cpu(pids)?,
            written_bytes: process::written_bytes(pids)?,
            anonymous: Memory { before: anonymous, peak: anonymous, after: anonymous },
        })
    }

    /// How long to wait before the next look.
    fn interval(&self) -> Duration {
        if self.pids.is_empty() { limits::PROGRESS_INTERVAL } else { limits::MEMORY_LOOK_INTERVAL }
    }

    fn look(&mut self) -> Result<(), BenchError> {
        if !self.pids.is_empty() {
            self.anonymous.after = process::anonymous_bytes(self.pids)?;
            self.anonymous.peak = self.anonymous.peak.max(self.anonymous.after);
        }
        Ok(())
    }

    fn finish(mut self, outcome: &mut Outcome) -> Result<(), BenchError> {
        outcome.generator_cpu = process::process_cpu(std::process::id())?.saturating_sub(self.own_cpu);
        if !self.pids.is_empty() {
            self.look()?;
            outcome.server_cpu = Some(process::processes_cpu(self.pids)?.saturating_sub(self.server_cpu));
            outcome.server_written_bytes = Some(process::written_bytes(self.pids)?.saturating_sub(self.written_bytes));
            outcome.server_anonymous = Some(self.anonymous);
        }
        Ok(())
    }
}

fn run_thread(
    round: &Round<'_>,
    thread: u32,
    activity: &Arc<Activity>,
    reports: &mpsc::Sender<Report>,
    listener: signal::Receiver<Signal>,
) -> Result<Outcome, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Generator)?;
    let aborted = async |mut listener: signal::Receiver<Signal>| {
        // An error means that the caller is gone, which ends the round as well.
        let _ = listener.wait_for(|signal| matches!(signal, Signal::Abort)).await;
    };
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = aborted(listener.clone()) => Ok(Outcome::empty()),
            result = generate(round, thread, activity, reports, listener) => result,
        }
    })
}

/// Connects, waits for the common start, and does this thread's share of the round.
async fn generate(
    round: &Round<'_>,
    thread: u32,
    activity: &Arc<Activity>,
    reports: &mpsc::Sender<Report>,
    mut listener: signal::Receiver<Signal>,
) -> Result<Outcome, BenchError> {
    let mut connections = Vec::new();
    for number in (thread..round.connections).step_by(round.threads as usize) {
        let endpoint = &round.target.endpoints[number as usize % round.target.endpoints.len()];
        connections.push(Connection::open(endpoint).await?);
    }
    let mut watchers = Vec::new();
    if let Operation::Watch(wanted) = round.workload.operation() {
        let expected = Expected::new(round.workload, round.number, round.total);
        for (number, ranges) in watch::streams(wanted, thread, round.threads).into_iter().enumerate() {
            let connection = &connections[number % connections.len()];
            let endpoint = round.target.label();
            watchers.push(WatchStream::open(connection, round.workload, ranges, &expected, endpoint).await?);
        }
    }
    // The receiver lives as long as the round, so this reaches it.
    let _ = reports.send(Report::Ready);
    let start = listener.wait_for(|signal| !matches!(signal, Signal::Wait)).await.map(|signal| *signal);
    let Ok(Signal::Start { epoch }) = start else { return Ok(Outcome::empty()) };

    let share = schedule::share(round.total, thread, round.threads);
    let line = Arc::new(Line::new(round, thread, share, epoch, activity.clone()));
    let clients = schedule::share(round.clients.into(), thread, round.threads);
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let connection = connections[client as usize % connections.len()].clone();
        tasks.spawn(drive(line.clone(), connection, round.workload.clone()));
    }
    for watcher in watchers {
        tasks.spawn(watcher.receive(line.clone(), round.workload.clone()));
    }
    if let Some(schedule) = line.schedule {
        tasks.spawn(pace(line.clone(), schedule, clients));
    }
    let mut reported = (0, 0);
    let mut refresh = tokio::time::interval(limits::ACTIVITY_INTERVAL);
    while !tasks.is_empty() {
        tokio::select! {
            Some(result) = tasks.join_next() => result.expect("no task of the load panics")?,
            _ = refresh.tick() => {
                let counts = line.counts();
                activity.add(counts.0 - reported.0, counts.1 - reported.1);
                reported = counts;
            }
        }
    }
    Ok(line.take_outcome())
}

/// What the clients of one thread share: where the next operation comes from and where its latency goes.
#[derive(Debug)]
pub struct Line {
    endpoint: String,
    number: u64,
    nonce: u64,
    thread: u64,
    thread_count: u64,
    /// Operations of this thread.
    share: u64,
    /// When the round began.
    epoch: Instant,
    schedule: Option<Schedule>,
    /// One permit for each operation that is due. Unused if the loop is closed.
    due: Semaphore,
    next: AtomicU64,
    activity: Arc<Activity>,
    window: Option<Arc<Window>>,
    /// Never contended: all its users run on one thread.
    outcome: Mutex<Outcome>,
}

/// An operation to do now.
struct Ticket {
    local_index: u64,
    intended: Instant,
    /// Whether its latency counts however it ends: the disturbance is under way.
    counts: bool,
}

impl Line {
    fn new(round: &Round<'_>, thread: u32, share: u64, epoch: Instant, activity: Arc<Activity>) -> Self {
        Self {
            endpoint: round.target.label(),
            number: round.number,
            nonce: round.nonce,
            thread: thread.into(),
            thread_count: round.threads.into(),
            share,
            epoch,
            schedule: round.rate.map(|rate| Schedule::new(rate, thread, round.threads)),
            due: Semaphore::new(0),
            next: AtomicU64::new(0),
            activity,
            window: round.window.clone(),
            outcome: Mutex::new(Outcome::empty()),
        }
    }

    /// The next operation, as soon as it is due. None when all have been handed out.
    async fn next(&self) -> Option<Ticket> {
        if self.schedule.is_some() {
            self.due.acquire().await.expect("nobody closes the semaphore").forget();
        }
        let local_index = self.next.fetch_add(1, Ordering::Relaxed);
        if local_index >= self.share {
            return None;
        }
        let intended =
            self.schedule.map_or_else(Instant::now, |schedule| self.epoch + schedule.intended_start(local_index));
        Some(Ticket { local_index, intended, counts: self.counts_now() })
    }

    fn with_outcome<T>(&self, change: impl FnOnce(&mut Outcome) -> T) -> T {
        change(&mut self.outcome.lock().expect("no holder of the lock panics"))
    }

    fn counts_now(&self) -> bool {
        self.window.as_ref().is_none_or(|window| window.counts_now())
    }

    fn record(&self, ticket: &Ticket, sent: Instant, error: Option<OperationError>) {
        let done = Instant::now();
        let (intended, counts) = (ticket.intended, ticket.counts || self.counts_now());
        self.with_outcome(|outcome| {
            outcome.elapsed = done.saturating_duration_since(self.epoch);
            if let Some(error) = error {
                outcome.error_count += 1;
                outcome.first_error.get_or_insert_with(|| error.to_string());
                return;
            }
            outcome.success_count += 1;
            outcome.longest_gap_ns = outcome.longest_gap_ns.max(self.activity.gap_ns(nanos(outcome.elapsed)));
            if !counts {
                return;
            }
            outcome.latency.saturating_record(nanos(done.saturating_duration_since(intended)));
            outcome.send_lag.saturating_record(nanos(sent.saturating_duration_since(intended)));
        });
    }

    /// Whether a value is of this round's.
    pub fn owns(&self, stamp: Stamp) -> bool {
        stamp.nonce == self.nonce
    }

    /// The round's number.
    pub fn round_number(&self) -> u64 {
        self.number
    }

    /// Records the arrival of an event of this round.
    pub fn record_event(&self, stamp: Stamp, arrived: Instant) {
        let since_start = nanos(arrived.saturating_duration_since(self.epoch));
        let latency = since_start.saturating_sub(stamp.intended_ns);
        self.with_outcome(|outcome| outcome.event_latency.saturating_record(latency));
    }

    /// Records a put that watchers wait for.
    fn record_put(&self, key_number: u64, index: u64, revision: i64) {
        self.with_outcome(|outcome| outcome.puts.entry(key_number).or_default().add(index, revision));
    }

    /// Records all that watchers saw.
    pub fn record_seen(&self, seen: impl Iterator<Item = Seen>) {
        self.with_outcome(|outcome| outcome.seen.extend(seen));
    }

    /// Operations and events so far.
    fn counts(&self) -> (u64, u64) {
        self.with_outcome(|outcome| (outcome.success_count + outcome.error_count, outcome.event_latency.len()))
    }

    fn take_outcome(&self) -> Outcome {
        self.with_outcome(|outcome| std::mem::replace(outcome, Outcome::empty()))
    }
}

/// One client: takes an operation, does it, records it, until none is left.
async fn drive(line: Arc<Line>, connection: Connection, workload: Workload) -> Result<(), BenchError> {
    let mut calls = connection.calls();
    let awaited_by_watchers = matches!(workload.operation(), Operation::Watch(_));
    while let Some(ticket) = line.next().await {
        let index = schedule::global_index(ticket.local_index, line.thread, line.thread_count);
        let intended_ns = nanos(ticket.intended.saturating_duration_since(line.epoch));
        let stamp = Stamp { nonce: line.nonce, intended_ns, index };
        let sent = Instant::now();
        let result = workload.perform(&mut calls, line.number, index, stamp).await;
        if let Ok(revision) = result
            && awaited_by_watchers
        {
            line.record_put(workload.key_number(line.number, index), index, revision);
        }
        let error = result.err();
        if let Some(error) = &error {
            let reason = error.to_string();
            if connection.is_closed() {
                return Err(BenchError::ConnectionLost { endpoint: line.endpoint.clone(), reason });
            }
            if awaited_by_watchers {
                return Err(watch::put_failed(&line.endpoint, error));
            }
        }
        line.record(&ticket, sent, error);
    }
    Ok(())
}

/// Makes operations due as the schedule says, whatever the clients are doing.
async fn pace(line: Arc<Line>, schedule: Schedule, clients: u64) -> Result<(), BenchError> {
    let permits = |count: u64| usize::try_from(count).expect("a count of operations in memory fits the address space");
    let timer = FineTimer::new().map_err(BenchError::Generator)?;
    let mut released = 0;
    while released < line.share {
        let now = Instant::now();
        let due = now.checked_duration_since(line.epoch).map_or(0, |since| schedule.due(since, line.share));
        if due > released {
            line.due.add_permits(permits(due - released));
            released = due;
            tokio::task::yield_now().await;
        } else {
            let next = line.epoch + schedule.intended_start(released);
            timer.sleep(next.saturating_duration_since(now)).await.map_err(BenchError::Generator)?;
        }
    }
    // One more for each client, which finds that nothing is left and ends.
    line.due.add_permits(permits(clients));
    Ok(())
}
