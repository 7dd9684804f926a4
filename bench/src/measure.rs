//! Runs a load's rounds on its targets by turns.

use crate::args::{Operation, Plan, Target};
use crate::client::Connection;
use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::limits;
use crate::load::{self, Outcome, Round};
use crate::report::Report;
use crate::stats::Figures;
use crate::workload::{self, OperationError, Workload};
use std::time::Instant;

/// Where lines about progress go.
pub type Progress<'a> = &'a mut dyn FnMut(String);

/// Runs a plan. `progress` gets a line now and then while a run is long.
pub fn measure(plan: &Plan, progress: Progress<'_>) -> Result<Report, BenchError> {
    let session = Session::new(plan);
    let mut results: Vec<(Vec<Figures>, Option<String>)> = vec![(Vec::new(), None); plan.targets.len()];
    for target in &plan.targets {
        session.prepare(target, progress)?;
    }
    for number in 0..plan.rounds {
        for index in turns(number, plan.targets.len()) {
            let outcome = session.round(&plan.targets[index], number, progress)?;
            results[index].0.push(Figures::of(&outcome, plan.rate.is_some()));
            let first_error = &mut results[index].1;
            *first_error = first_error.take().or(outcome.first_error);
        }
    }
    Ok(Report::new(plan, results))
}

/// Which target's turn it is. Every other round turns the order around, so that a drift of the machine favours neither.
pub fn turns(round: u32, targets: usize) -> impl Iterator<Item = usize> {
    (0..targets).map(move |turn| if round.is_multiple_of(2) { turn } else { targets - 1 - turn })
}

/// One run of a plan.
pub struct Session<'a> {
    plan: &'a Plan,
    workload: Workload,
    /// What tells this run's events from those of another.
    nonce: u64,
}

impl<'a> Session<'a> {
    /// The operations of a plan.
    pub fn new(plan: &'a Plan) -> Self {
        Self { plan, workload: Workload::new(plan), nonce: run_nonce() }
    }

    /// Runs one round on one target.
    pub fn round(&self, target: &Target, number: u32, progress: Progress<'_>) -> Result<Outcome, BenchError> {
        let round = Round {
            number: number.into(),
            nonce: self.nonce.wrapping_add(number.into()),
            ..self.base_round(&self.workload, target)
        };
        let name = self.plan.operation.name();
        let what = format!("{}, {name}, round {} of {}", target.label(), number + 1, self.plan.rounds);
        run_observed(&round, &what, progress)
    }

    /// Checks that the target answers, fills its key space if the load reads, and warms it up.
    pub fn prepare(&self, target: &Target, progress: Progress<'_>) -> Result<(), BenchError> {
        let plan = self.plan;
        let count = ask(&self.workload, target)?;
        if plan.operation.reads() && count < plan.key_space {
            let fill = self.workload.fill();
            let round = Round {
                clients: limits::FILL_CLIENTS.max(plan.connections),
                total: plan.key_space,
                rate: None,
                ..self.base_round(&fill, target)
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
                number: u64::MAX,
                nonce: self.nonce.wrapping_sub(1),
                ..self.base_round(&self.workload, target)
            };
            run_observed(&round, &format!("{}, warming up", target.label()), progress)?;
        }
        Ok(())
    }

    fn base_round<'b>(&self, workload: &'b Workload, target: &'b Target) -> Round<'b> {
        let plan = self.plan;
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Generator)?;
    runtime.block_on(async {
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
    })
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

/// A number that another run will not use: it tells this run's events from those of a load that still goes on.
fn run_nonce() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    workload::mix(load::nanos(since_epoch) ^ u64::from(std::process::id()).rotate_left(48))
}
