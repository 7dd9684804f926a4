//! Runs a load's rounds on its targets by turns.

use crate::client::Connection;
use crate::disturb::{self, Passes, Work};
use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::limits;
use crate::load::{self, Outcome, Round, Window};
use crate::plan::{Disturbance, Operation, Plan, Target};
use crate::proto::RangeRequest;
use crate::report::{Report, Results};
use crate::stages::StageCounts;
use crate::workload::{self, OperationError, Workload};
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

/// Where lines about progress go.
pub type Progress<'a> = &'a mut dyn FnMut(String);

/// Runs a plan. `progress` gets a line now and then while a run is long.
pub fn measure(plan: &Plan, progress: Progress<'_>) -> Result<Report, BenchError> {
    let mut reports = measure_all(std::slice::from_ref(plan), progress)?;
    Ok(reports.pop().expect("each plan has its report"))
}

/// Runs several plans whose rounds take turns: what the machine does meanwhile falls on all of them.
pub fn measure_all(plans: &[Plan], progress: Progress<'_>) -> Result<Vec<Report>, BenchError> {
    let mut sessions: Vec<_> = plans.iter().map(Session::new).collect();
    for session in &mut sessions {
        session.prepare(progress)?;
    }
    for number in 0..plans.iter().map(|plan| plan.rounds).max().unwrap_or(0) {
        for session in sessions.iter_mut().filter(|session| number < session.plan.rounds) {
            session.run_turns(number, progress)?;
        }
    }
    sessions.into_iter().map(Session::finish).collect()
}

/// Which target's turn it is. Every other round turns the order around, so that a drift of the machine favours neither.
fn turns(round: u32, targets: usize) -> impl Iterator<Item = usize> {
    (0..targets).map(move |turn| if round.is_multiple_of(2) { turn } else { targets - 1 - turn })
}

/// One run of a plan.
pub struct Session<'a> {
    plan: &'a Plan,
    workload: Workload,
    /// What tells this run's events from those of another.
    nonce: u64,
    states: Vec<TargetState>,
}

/// What is known about a target so far.
struct TargetState {
    /// The operations, with what differs from one target to the other.
    workload: Workload,
    rate: Option<f64>,
    /// What is done in every other round, if the target can do it.
    disturbance: Option<Disturbance>,
    results: Results,
}

impl<'a> Session<'a> {
    /// The operations of a plan.
    pub fn new(plan: &'a Plan) -> Self {
        let workload = Workload::new(plan);
        let state = |_| TargetState {
            workload: workload.clone(),
            rate: plan.rate,
            disturbance: plan.disturbance,
            results: Results::default(),
        };
        let states = plan.targets.iter().map(state).collect();
        Self { plan, workload, nonce: run_nonce(), states }
    }

    /// Makes every target ready for the first round.
    pub fn prepare(&mut self, progress: Progress<'_>) -> Result<(), BenchError> {
        (0..self.states.len()).try_for_each(|index| self.prepare_target(index, progress))
    }

    /// Runs one round on each target.
    pub fn run_turns(&mut self, number: u32, progress: Progress<'_>) -> Result<(), BenchError> {
        turns(number, self.states.len()).try_for_each(|index| self.turn(index, number, progress))
    }

    /// Cleans up, and reports.
    pub fn finish(self) -> Result<Report, BenchError> {
        for (target, state) in self.plan.targets.iter().zip(&self.states) {
            if let Operation::Count { revisions_ago: 1.., .. } = self.plan.operation {
                on_first(target, async |calls| state.workload.remove_new_keys(&mut calls.kv).await)?;
            }
        }
        Ok(Report::new(self.plan, self.states.into_iter().map(|state| state.results).collect()))
    }

    /// One round on one target, and one more beside it if something is to disturb that one.
    fn turn(&mut self, index: usize, number: u32, progress: Progress<'_>) -> Result<(), BenchError> {
        let (target, disturbance) = (&self.plan.targets[index], self.states[index].disturbance);
        let state = &self.states[index];
        let workload =
            if disturbance == Some(Disturbance::Watchers) { state.workload.puts() } else { state.workload.clone() };
        let quiet = self.round(index, number, &workload);
        let what = self.describe(target, number, None);
        let (outcome, stages) = run_counted(&quiet, &what, progress)?;
        self.states[index].results.quiet.add(self.plan, outcome, stages);
        let Some(disturbance) = disturbance else { return Ok(()) };
        let what = self.describe(target, number, Some(disturbance));
        let (outcome, stages, passes) = self.disturbed(index, number, disturbance, &what, progress)?;
        let results = &mut self.states[index].results;
        results.disturbed.add(self.plan, outcome, stages);
        results.passes.merge(passes);
        Ok(())
    }

    fn describe(&self, target: &Target, number: u32, disturbance: Option<Disturbance>) -> String {
        let during = disturbance.map_or_else(String::new, |what| format!(" with {}", what.name()));
        let (label, name, rounds) = (target.label(), self.plan.operation.name(), self.plan.rounds);
        format!("{label}, {name}{during}, round {} of {rounds}", number + 1)
    }

    fn disturbed(
        &self,
        index: usize,
        number: u32,
        disturbance: Disturbance,
        what: &str,
        progress: Progress<'_>,
    ) -> Result<(Outcome, Option<StageCounts>, Passes), BenchError> {
        let (target, workload) = (&self.plan.targets[index], &self.states[index].workload);
        // Other keys and values than those of the quiet round before.
        let shifted = number + limits::ROUNDS_MAX;
        let Some(work) = self.work(index, disturbance, progress)? else {
            let round = self.round(index, shifted, workload);
            let (outcome, stages) = run_counted(&round, what, progress)?;
            return Ok((outcome, stages, Passes::default()));
        };
        let window = Arc::new(Window::new(disturb::happens_once(disturbance)));
        let round = Round { window: Some(window.clone()), ..self.round(index, shifted, workload) };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("disturb".into());
            let disturber = thread
                .spawn_scoped(scope, || block_on(disturb::disturb(target, &work, &window))?)
                .map_err(BenchError::Generator)?;
            let outcome = run_counted(&round, what, progress);
            window.end();
            let passes = disturber.join().expect("the disturbing thread does not panic");
            // An error of the load is the first cause; what disturbs ends because of it.
            let (outcome, stages) = outcome?;
            Ok((outcome, stages, passes?))
        })
    }

    /// Makes what a disturbance needs. Nothing if the round's own operations are what disturbs.
    fn work(&self, index: usize, disturbance: Disturbance, progress: Progress<'_>) -> Result<Option<Work>, BenchError> {
        let (target, workload) = (&self.plan.targets[index], &self.states[index].workload);
        Ok(Some(match disturbance {
            Disturbance::Watchers => return Ok(None),
            Disturbance::Checkpoint => Work::Checkpoint,
            Disturbance::Defragment => Work::Defragment,
            Disturbance::Compact { revisions } => {
                self.put_many(target, &workload.puts(), revisions, "making revisions to compact", progress)?;
                Work::Compact(on_first(target, async |calls| workload.revision(&mut calls.kv).await)?)
            }
            Disturbance::Ranges { bytes } => {
                let keys = bytes.div_ceil(limits::RANGE_VALUE_BYTES);
                let bulk = workload.bulk_fill(keys);
                if on_first(target, async |calls| bulk.count(&mut calls.kv, false).await)? < keys {
                    self.put_many(target, &bulk, keys, "making keys to range over", progress)?;
                }
                let (key, range_end) = bulk.bounds();
                Work::Ranges(key, range_end, bytes)
            }
        }))
    }

    /// Puts as fast as it goes, outside of what is measured.
    fn put_many(
        &self,
        target: &Target,
        puts: &Workload,
        total: u64,
        what: &str,
        progress: Progress<'_>,
    ) -> Result<(), BenchError> {
        let round = Round {
            clients: limits::FILL_CLIENTS.max(self.plan.connections),
            total,
            rate: None,
            number: u64::MAX - 1,
            ..self.base_round(target, puts)
        };
        let outcome = run_observed(&round, &format!("{}, {what}", target.label()), progress)?;
        match outcome.first_error {
            None => Ok(()),
            Some(message) => {
                Err(BenchError::Call { endpoint: target.label(), call: "Put", code: "an error".to_owned(), message })
            }
        }
    }

    /// Checks that the target answers, fills its key space if the load wants it full, and warms it up.
    fn prepare_target(&mut self, index: usize, progress: Progress<'_>) -> Result<(), BenchError> {
        let (plan, target) = (self.plan, &self.plan.targets[index]);
        let count = ask(&self.workload, target)?;
        if plan.needs_keys() && count < plan.key_space {
            progress(format!("{}: {count} of {} keys are there, putting all of them", target.label(), plan.key_space));
            self.put_many(target, &self.workload.fill(), plan.key_space, "filling", progress)?;
        }
        if let Operation::Count { revisions_ago: ago @ 1.., .. } = plan.operation {
            let before = on_first(target, async |calls| self.workload.write_beyond(&mut calls.kv, ago).await)?;
            self.states[index].workload = self.workload.at_revision(before);
        }
        if let Some(what) = plan.disturbance
            && !block_on(disturb::is_known(target, what))??
        {
            progress(format!("{}: cannot be asked for {}", target.label(), what.name()));
            self.states[index].disturbance = None;
        }
        let workload = self.states[index].workload.clone();
        if plan.warmup > 0 {
            let round = Round {
                total: plan.warmup,
                number: u64::MAX,
                nonce: self.nonce.wrapping_sub(1),
                ..self.round(index, 0, &workload)
            };
            run_observed(&round, &format!("{}, warming up", target.label()), progress)?;
        }
        if let Some(clients) = plan.half_rate_of {
            let connections = plan.connections.min(clients);
            let puts = workload.puts();
            let closed = if matches!(plan.operation, Operation::Watch(_)) { &puts } else { &workload };
            let round = Round { clients, connections, ..self.round(index, limits::ROUNDS_MAX - 1, closed) };
            let what = format!("{}, closed loop of {clients}", target.label());
            let outcome = run_observed(&round, &what, progress)?;
            let rate = outcome.success_count as f64 / outcome.elapsed.as_secs_f64().max(f64::MIN_POSITIVE) / 2.0;
            progress(format!("{what}: half of it is {rate:.0}/s"));
            self.states[index].rate = Some(rate);
        }
        self.states[index].results.rate_per_second = self.states[index].rate;
        Ok(())
    }

    fn round<'b>(&'b self, index: usize, number: u32, workload: &'b Workload) -> Round<'b> {
        Round {
            number: number.into(),
            nonce: self.nonce.wrapping_add(number.into()),
            rate: self.states[index].rate,
            total: self.plan.total,
            ..self.base_round(&self.plan.targets[index], workload)
        }
    }

    fn base_round<'b>(&self, target: &'b Target, workload: &'b Workload) -> Round<'b> {
        let plan = self.plan;
        Round {
            workload,
            target,
            clients: plan.clients,
            connections: plan.connections,
            threads: plan.threads,
            total: plan.total,
            rate: None,
            number: 0,
            nonce: 0,
            stall: plan.stall,
            window: None,
        }
    }
}

/// Runs a round between two readings of the server's own counts.
fn run_counted(
    round: &Round<'_>,
    what: &str,
    progress: Progress<'_>,
) -> Result<(Outcome, Option<StageCounts>), BenchError> {
    let before = block_on(StageCounts::read(round.target))??;
    let outcome = run_observed(round, what, progress)?;
    let Some(before) = before else { return Ok((outcome, None)) };
    let after = block_on(StageCounts::read(round.target))??;
    Ok((outcome, after.map(|after| after.since(&before))))
}

/// Calls the target's first endpoint outside of a round.
fn on_first<T>(
    target: &Target,
    call: impl AsyncFnOnce(&mut crate::client::Calls) -> Result<T, OperationError>,
) -> Result<T, BenchError> {
    block_on(async {
        let connection = Connection::open(&target.endpoints[0]).await?;
        let result = call(&mut connection.calls()).await;
        result.map_err(|error| refused(&target.endpoints[0], &connection, "a call", &error))
    })?
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Generator)?;
    Ok(runtime.block_on(future))
}

fn run_observed(round: &Round<'_>, what: &str, progress: Progress<'_>) -> Result<Outcome, BenchError> {
    let begin = Instant::now();
    load::run_round(round, &mut |finished| {
        let percent = finished as f64 * 100.0 / round.total as f64;
        let rate = finished as f64 / begin.elapsed().as_secs_f64();
        progress(format!("{what}: {finished} of {} operations ({percent:.0} %), {rate:.0}/s", round.total));
    })
}

/// Asks every endpoint of the target once: a wrong address shows here, with a clear message, and not in the load. Answers
/// how many keys of the key space are there, as far as the load wants to know.
fn ask(workload: &Workload, target: &Target) -> Result<u64, BenchError> {
    block_on(async {
        let mut least = u64::MAX;
        for endpoint in &target.endpoints {
            let connection = Connection::open(endpoint).await?;
            let asked = tokio::time::timeout(limits::CONNECT_TIMEOUT, async {
                let calls = &mut connection.calls();
                match workload.operation() {
                    Operation::Noop => workload::no_op(calls).await.map(|()| 0),
                    _ => workload.count(&mut calls.kv, false).await,
                }
            });
            let reason = match asked.await {
                Ok(Ok(count)) => {
                    least = least.min(count);
                    continue;
                }
                Ok(Err(error)) => error,
                Err(_elapsed) => OperationError::Status(Box::new(tonic::Status::deadline_exceeded(
                    "no answer for some seconds; does the cluster have a leader?",
                ))),
            };
            let call = if workload.operation() == Operation::Noop { "Health/Check" } else { "Range" };
            return Err(refused(endpoint, &connection, call, &reason));
        }
        Ok(least)
    })?
}

fn refused(endpoint: &Endpoint, connection: &Connection, call: &'static str, error: &OperationError) -> BenchError {
    let endpoint = endpoint.to_string();
    match error {
        // A peer that does not speak HTTP/2 hangs up at once, so the connection is closed by now.
        OperationError::Status(status) if connection.is_closed() => {
            BenchError::Protocol { endpoint, reason: status.message().to_owned() }
        }
        OperationError::Status(status) => BenchError::Call {
            endpoint,
            call,
            code: format!("{:?}", status.code()),
            message: status.message().to_owned(),
        },
        OperationError::WrongAnswer(what) => {
            BenchError::Call { endpoint, call, code: "a wrong answer".into(), message: what.clone() }
        }
    }
}

/// Asks an endpoint for one linearizable read, and waits a second at most.
pub fn read_once(endpoint: &Endpoint) -> Result<(), BenchError> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);
    block_on(async {
        let connection = Connection::open(endpoint).await?;
        let request = RangeRequest { key: "garboard-bench".into(), count_only: true, ..RangeRequest::default() };
        let failed = |code: String, message: String| BenchError::Call {
            endpoint: endpoint.to_string(),
            call: "Range",
            code,
            message,
        };
        match tokio::time::timeout(PATIENCE, connection.kv().range(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(failed(format!("{:?}", status.code()), status.message().to_owned())),
            Err(_elapsed) => Err(failed("no answer".into(), "within a second".into())),
        }
    })?
}

/// A number that another run will not use: it tells this run's events from those of a load that still goes on.
fn run_nonce() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    workload::mix(load::nanos(since_epoch) ^ u64::from(std::process::id()).rotate_left(48))
}
