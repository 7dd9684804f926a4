//! What rows are made of: a pair of servers, loads on them, and the figures that come out.

use crate::servers::{Kind, Launch, Server};
use crate::{Failure, Setting, program};
use clap::Parser;
use garboard_bench::{BenchArgs, Figures, Metric, Plan, Report, Task, measure, measure_all};
use std::path::Path;

/// Both servers, fresh, on one disk.
pub struct Pair {
    /// The one that is measured, and the etcd beside it.
    pub servers: Vec<Server>,
}

/// Both kinds of server that are to be measured.
pub fn kinds(setting: &Setting) -> impl Iterator<Item = Kind> {
    [Kind::Garboard, Kind::Etcd].into_iter().filter(|kind| program(setting, *kind).is_some())
}

/// How to start a server of a kind with its data below `folder`.
pub fn launch(setting: &Setting, kind: Kind, folder: &Path) -> Result<Launch, Failure> {
    let program = program(setting, kind).ok_or_else(|| Failure::new(format!("no {}", kind.name())))?;
    Launch::new(kind, program, folder)
}

impl Pair {
    /// Starts them.
    pub fn start(setting: &Setting, row: &str) -> Result<Self, Failure> {
        let folder = setting.folder(row)?;
        let servers = kinds(setting).map(|kind| launch(setting, kind, &folder)?.start_and_wait());
        Ok(Self { servers: servers.collect::<Result<_, _>>()? })
    }

    /// The options that name them to a load.
    fn options(&self) -> String {
        let mut text = String::new();
        for (server, (endpoint, pid)) in self.servers.iter().zip([("--endpoints", "--pid"), ("--vs", "--vs-pid")]) {
            text.push_str(&format!(" {endpoint} {} {pid} {}", server.endpoint(), server.pid()));
        }
        text
    }

    /// A load on both.
    pub fn load(&self, setting: &Setting, line: &str) -> Result<Report, Failure> {
        run(setting, &format!("{line}{} --rounds {}", self.options(), setting.rounds()))
    }

    /// A plan of a load on both.
    pub fn plan(&self, setting: &Setting, line: &str) -> Result<Plan, Failure> {
        plan(&format!("{line}{} --rounds {}", self.options(), setting.rounds()))
    }

    /// The parsed options of a run that is no load alone.
    pub fn task(&self, setting: &Setting, line: &str) -> Result<Task, Failure> {
        task(&format!("{line}{} --rounds {}", self.options(), setting.rounds()))
    }
}

/// A load on one server.
pub fn load_one(setting: &Setting, server: &Server, line: &str) -> Result<Report, Failure> {
    run(setting, &format!("{line} --endpoints {} --pid {}", server.endpoint(), server.pid()))
}

/// A plan of a load on one server.
pub fn plan_one(server: &Server, line: &str) -> Result<Plan, Failure> {
    plan(&format!("{line} --endpoints {} --pid {}", server.endpoint(), server.pid()))
}

/// Milliseconds of a figure in microseconds.
pub fn milliseconds(us: Option<f64>) -> String {
    show(us.map(|us| us / 1e3), 2, " ms")
}

/// Runs a load that names its servers itself.
pub fn run(setting: &Setting, line: &str) -> Result<Report, Failure> {
    let report = measure(&plan(line)?, &mut |text| eprintln!("{text}"))?;
    setting.keep(&format!("\n$ garboard bench {line}\n{}", report.to_text()));
    Ok(report)
}

/// Runs several loads by turns.
pub fn run_all(setting: &Setting, plans: &[Plan]) -> Result<Vec<Report>, Failure> {
    let reports = measure_all(plans, &mut |text| eprintln!("{text}"))?;
    reports.iter().for_each(|report| setting.keep(&format!("\n{}", report.to_text())));
    Ok(reports)
}

fn plan(line: &str) -> Result<Plan, Failure> {
    match task(line)? {
        Task::Load(plan) => Ok(plan),
        _ => Err(Failure::new(format!("{line} is no load"))),
    }
}

fn task(line: &str) -> Result<Task, Failure> {
    #[derive(Parser)]
    struct Bench {
        #[command(flatten)]
        bench: BenchArgs,
    }
    let words = std::iter::once("bench").chain(line.split_ascii_whitespace());
    let bench = Bench::try_parse_from(words).map_err(|error| Failure::new(format!("{line}: {error}")))?;
    Ok(Task::new(bench.bench)?)
}

/// A figure of a server's median; nothing if it was not measured.
pub fn figure(report: &Report, server: usize, metric: Metric) -> Option<f64> {
    report.results.get(server)?.median.get(metric)
}

/// The first server's figure by the second's.
pub fn ratio(report: &Report, metric: Metric) -> Option<f64> {
    Some(figure(report, 0, metric)? / figure(report, 1, metric)?)
}

/// The largest of a figure over rounds.
pub fn largest(rounds: &[Figures], metric: Metric) -> Option<f64> {
    rounds.iter().filter_map(|round| round.get(metric)).max_by(f64::total_cmp)
}

/// A number for a cell, or a dash.
pub fn show(value: Option<f64>, decimals: usize, unit: &str) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.decimals$}{unit}"))
}
