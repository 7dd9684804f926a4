//! Load and latency against any etcd endpoint.
//!
//! `put`, `range`, `count` and `watch` talk plain gRPC and share nothing with the store, so what they say about
//! Garboard and about another server is measured by the same means. With a rate the loop is open: the schedule decides
//! when an operation should start, and its latency counts from there. With a second endpoint the two take turns in one
//! run, so that what the machine does meanwhile falls on both.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a load generator reads clocks, starts threads and opens /proc")]

mod args;
mod client;
mod cpu;
mod endpoint;
mod error;
mod limits;
mod load;
mod pacer;
mod report;
mod schedule;
mod stats;
mod watch;
mod workload;

/// The messages and clients of the part of etcd's API that the load uses.
mod proto {
    #![allow(missing_docs, clippy::all, reason = "generated")]
    include!(concat!(env!("OUT_DIR"), "/client/etcdserverpb.rs"));
}

pub use args::{BenchArgs, CountArgs, LoadArgs, Operation, Plan, RangeArgs, Target, WatchArgs, WorkloadArgs};
pub use cpu::{parse_stat_ticks, process_cpu, processes_cpu};
pub use endpoint::Endpoint;
pub use error::BenchError;
pub use report::{Report, Setup, TargetResult};
pub use schedule::Schedule;
pub use stats::{Figures, Metric};

use load::Round;
use std::process::ExitCode;
use std::time::Instant;
use workload::Workload;

/// Runs the load that the command line asks for: the report goes to standard output, progress and errors to standard
/// error.
pub fn run(args: BenchArgs) -> ExitCode {
    let outcome = Plan::new(args).and_then(|plan| {
        let report = measure(&plan, &mut |line| eprintln!("{line}"))?;
        Ok(if plan.json { report.to_json() + "\n" } else { report.to_text() })
    });
    match outcome {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", error.explain());
            ExitCode::FAILURE
        }
    }
}

/// Runs a plan. `progress` gets a line now and then while a run is long.
pub fn measure(plan: &Plan, progress: &mut dyn FnMut(String)) -> Result<Report, BenchError> {
    let workload = Workload::new(plan);
    let nonce = run_nonce();
    let mut results: Vec<(Vec<Figures>, Option<String>)> = vec![(Vec::new(), None); plan.targets.len()];
    for target in &plan.targets {
        prepare(plan, &workload, target, nonce, progress)?;
    }
    for number in 0..plan.rounds {
        for turn in 0..plan.targets.len() {
            // Every other round turns the order around, so that a drift of the machine favours neither.
            let index = if number % 2 == 0 { turn } else { plan.targets.len() - 1 - turn };
            let target = &plan.targets[index];
            let round = Round {
                workload: &workload,
                target,
                total: plan.total,
                number: number.into(),
                nonce: nonce.wrapping_add(number.into()),
                ..base_round(plan, &workload, target)
            };
            let what = format!("{}, round {} of {}", target.label(), number + 1, plan.rounds);
            let outcome = run_observed(&round, &what, progress)?;
            results[index].0.push(Figures::of(&outcome, plan.rate.is_some()));
            let first_error = &mut results[index].1;
            *first_error = first_error.take().or(outcome.first_error);
        }
    }
    Ok(Report::new(plan, results))
}

/// Checks that the target answers, fills its key space if the load reads, and warms it up.
fn prepare(
    plan: &Plan,
    workload: &Workload,
    target: &Target,
    nonce: u64,
    progress: &mut dyn FnMut(String),
) -> Result<(), BenchError> {
    let count = count_keys(workload, target)?;
    if plan.operation.reads() && count < plan.key_space {
        let fill = workload.fill();
        let round = Round {
            clients: limits::FILL_CLIENTS.max(plan.connections),
            total: plan.key_space,
            rate: None,
            ..base_round(plan, &fill, target)
        };
        progress(format!("{}: {count} of {} keys are there, putting all of them", target.label(), plan.key_space));
        let outcome = run_observed(&round, &format!("{}, filling", target.label()), progress)?;
        if let Some(message) = outcome.first_error {
            let (endpoint, code) = (target.label(), "an error".to_owned());
            return Err(BenchError::Call { endpoint, call: "Put", code, message });
        }
    }
    if plan.warmup > 0 {
        let round = Round {
            total: plan.warmup,
            rate: plan.rate,
            number: u64::MAX,
            nonce: nonce.wrapping_sub(1),
            ..base_round(plan, workload, target)
        };
        run_observed(&round, &format!("{}, warming up", target.label()), progress)?;
    }
    Ok(())
}

fn base_round<'a>(plan: &Plan, workload: &'a Workload, target: &'a Target) -> Round<'a> {
    Round {
        workload,
        target,
        clients: plan.clients,
        connections: plan.connections,
        threads: plan.threads,
        total: plan.total,
        rate: plan.rate,
        number: 0,
        nonce: 0,
        stall: plan.stall,
    }
}

fn run_observed(round: &Round<'_>, what: &str, progress: &mut dyn FnMut(String)) -> Result<load::Outcome, BenchError> {
    let begin = Instant::now();
    load::run_round(round, &mut |finished| {
        let percent = finished as f64 * 100.0 / round.total as f64;
        let rate = finished as f64 / begin.elapsed().as_secs_f64();
        progress(format!("{what}: {finished} of {} operations ({percent:.0} %), {rate:.0}/s", round.total));
    })
}

/// Asks every endpoint of the target once: a wrong address shows here, with a clear message, and not in the load.
fn count_keys(workload: &Workload, target: &Target) -> Result<u64, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Generator)?;
    runtime.block_on(async {
        let mut least = u64::MAX;
        for endpoint in &target.endpoints {
            let connection = client::Connection::open(endpoint).await?;
            let asked = tokio::time::timeout(limits::CONNECT_TIMEOUT, async {
                workload.count(&mut connection.kv(), false).await
            });
            let reason = match asked.await {
                Ok(Ok(count)) => {
                    least = least.min(count);
                    continue;
                }
                Ok(Err(error)) => error,
                Err(_elapsed) => workload::OperationError::Status(Box::new(tonic::Status::deadline_exceeded(
                    "no answer for some seconds; does the cluster have a leader?",
                ))),
            };
            return Err(refused(endpoint, &connection, &reason));
        }
        Ok(least)
    })
}

fn refused(endpoint: &Endpoint, connection: &client::Connection, error: &workload::OperationError) -> BenchError {
    let endpoint = endpoint.to_string();
    match error {
        // A peer that does not speak HTTP/2 hangs up at once, so the connection is closed by now.
        workload::OperationError::Status(status) if connection.is_closed() => {
            BenchError::Protocol { endpoint, reason: status.message().to_owned() }
        }
        workload::OperationError::Status(status) => BenchError::Call {
            endpoint,
            call: "Range",
            code: format!("{:?}", status.code()),
            message: status.message().to_owned(),
        },
        workload::OperationError::WrongAnswer(what) => {
            BenchError::Call { endpoint, call: "Range", code: "a wrong answer".into(), message: what.clone() }
        }
    }
}

/// A number that another run will not use: it tells this run's events from those of a load that still goes on.
fn run_nonce() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    workload::mix(load::nanos(since_epoch) ^ u64::from(std::process::id()).rotate_left(48))
}
