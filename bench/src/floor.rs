//! How far a put is above its floor: the disk's synchronous write and a call that does nothing.
//!
//! Each round measures the three one after the other, so that what the machine does meanwhile falls on all of them.

use crate::disk::{DiskProbe, DiskReport, SyncForm};
use crate::error::BenchError;
use crate::measure::{Progress, Session};
use crate::plan::{DiskPlan, Operation, Plan};
use crate::report::{Report, Setup, Table, show, stages_text};
use crate::stages::StageFigures;
use crate::stats::{Figures, Metric, median};
use serde::Serialize;

/// The median times of one round, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FloorRound {
    /// The disk's write, in the better form.
    pub disk_p50_us: f64,
    /// A call that does nothing.
    pub noop_p50_us: f64,
    /// A put.
    pub put_p50_us: f64,
    /// The put's by the sum of the other two.
    pub ratio: f64,
}

/// What one endpoint's puts took beside their floor.
#[derive(Clone, Debug, Serialize)]
pub struct TargetFloor {
    /// The endpoint's address.
    pub endpoint: String,
    /// Medians over the rounds; the ratio is that of these medians.
    pub median: FloorRound,
    /// The median put by the sum of the disk's write and the *first* endpoint's no-op call, which is the same floor for
    /// all.
    pub ratio_to_first_floor: f64,
    /// Every round, in order.
    pub rounds: Vec<FloorRound>,
    /// Every figure of the puts, medians over the rounds.
    pub put: Figures,
    /// Every figure of the no-op calls, medians over the rounds.
    pub noop: Figures,
    /// Where the server says that the time of the puts went.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageFigures>,
}

/// Everything that a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct FloorReport {
    /// What the puts were.
    pub setup: Setup,
    /// The disk's writes.
    pub disk: DiskReport,
    /// Each endpoint.
    pub targets: Vec<TargetFloor>,
}

/// Runs a plan.
pub fn measure(disk_plan: &DiskPlan, puts: &Plan, progress: Progress<'_>) -> Result<FloorReport, BenchError> {
    let noops = Plan { operation: Operation::Noop, ..puts.clone() };
    let (mut noop_session, mut put_session) = (Session::new(&noops), Session::new(puts));
    let mut probe = DiskProbe::open(&disk_plan.dir)?;
    noop_session.prepare(progress)?;
    put_session.prepare(progress)?;
    let mut disk_rounds = [Vec::new(), Vec::new()];
    for number in 0..puts.rounds {
        for (form, figures) in SyncForm::ALL.into_iter().zip(&mut disk_rounds) {
            figures.push(probe.round(form, disk_plan.total)?);
        }
        noop_session.run_turns(number, progress)?;
        put_session.run_turns(number, progress)?;
    }
    Ok(FloorReport::new(DiskReport::new(disk_plan, disk_rounds), &noop_session.finish()?, put_session.finish()?))
}

impl FloorReport {
    /// Puts a report together from the disk's rounds and the reports on no-op calls and on puts.
    pub fn new(disk: DiskReport, noops: &Report, puts: Report) -> Self {
        let mut targets: Vec<TargetFloor> = Vec::new();
        for (noop, put) in noops.results.iter().zip(puts.results) {
            let disk_rounds = disk.floor().rounds.iter().map(|round| round.p50_us);
            let calls = noop.rounds.iter().zip(&put.rounds);
            let rounds: Vec<_> =
                disk_rounds.zip(calls).map(|(disk, (noop, put))| FloorRound::new(disk, p50(noop), p50(put))).collect();
            let of = |figure: fn(&FloorRound) -> f64| median(&mut rounds.iter().map(figure).collect::<Vec<_>>());
            let median = FloorRound::new(of(|r| r.disk_p50_us), of(|r| r.noop_p50_us), of(|r| r.put_p50_us));
            let first = targets.first().map_or(median, |first| first.median);
            targets.push(TargetFloor {
                endpoint: put.endpoint,
                median,
                ratio_to_first_floor: median.put_p50_us / (first.disk_p50_us + first.noop_p50_us),
                rounds,
                put: put.median,
                noop: noop.median.clone(),
                stages: put.stages,
            });
        }
        Self { setup: puts.setup, disk, targets }
    }

    /// The report as JSON, one object.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers, texts and maps with text keys are JSON")
    }

    /// The report as text, in columns.
    pub fn to_text(&self) -> String {
        let mut table = Table::default();
        let mut head = vec!["p50, median over rounds".to_owned()];
        head.extend(self.targets.iter().map(|target| target.endpoint.clone()));
        table.row(head);
        let us = |us: f64| show(Some(us), 1);
        type Cell<'a> = &'a dyn Fn(&TargetFloor) -> String;
        let rows: [(&str, Cell<'_>); 5] = [
            ("disk write, µs", &|target| us(target.median.disk_p50_us)),
            ("no-op call, µs", &|target| us(target.median.noop_p50_us)),
            ("put, µs", &|target| us(target.median.put_p50_us)),
            ("put / (disk + no-op)", &|target| format!("{:.3}", target.median.ratio)),
            ("put / (disk + first endpoint's no-op)", &|target| format!("{:.3}", target.ratio_to_first_floor)),
        ];
        let shown = if self.targets.len() > 1 { 5 } else { 4 };
        for (label, cell) in &rows[..shown] {
            let mut row = vec![(*label).to_owned()];
            row.extend(self.targets.iter().map(cell));
            table.row(row);
        }
        let parts = [self.setup.to_text(), self.disk.to_text(), table.to_text(), self.rounds_text()];
        let stages = self.targets.iter().filter(|target| !target.stages.is_empty());
        let stages = stages.map(|target| stages_text(&target.endpoint, &target.stages));
        parts.into_iter().chain(stages).collect::<Vec<_>>().join("\n")
    }

    fn rounds_text(&self) -> String {
        let mut table = Table::default();
        let mut head = vec!["round".to_owned()];
        for target in &self.targets {
            head.extend([format!("{} disk", target.endpoint), "no-op".into(), "put µs".into(), "ratio".into()]);
        }
        table.row(head);
        for number in 0..self.targets[0].rounds.len() {
            let mut row = vec![(number + 1).to_string()];
            for target in &self.targets {
                let FloorRound { disk_p50_us, noop_p50_us, put_p50_us, ratio } = target.rounds[number];
                row.extend([disk_p50_us, noop_p50_us, put_p50_us].map(|us| show(Some(us), 1)));
                row.push(format!("{ratio:.3}"));
            }
            table.row(row);
        }
        table.to_text()
    }
}

impl FloorRound {
    fn new(disk_p50_us: f64, noop_p50_us: f64, put_p50_us: f64) -> Self {
        Self { disk_p50_us, noop_p50_us, put_p50_us, ratio: put_p50_us / (disk_p50_us + noop_p50_us) }
    }
}

fn p50(figures: &Figures) -> f64 {
    figures.get(Metric::LatencyP50Us).expect("a round in which everything failed ends the run")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::WriteFigures;
    use crate::endpoint::Endpoint;
    use crate::load::Outcome;
    use crate::plan::Target;
    use crate::report::Results;
    use std::path::PathBuf;

    fn report(plan: &Plan, p50s: [f64; 2]) -> Report {
        let outcome = |p50_us: f64| {
            let mut outcome = Outcome { success_count: 1, ..Outcome::empty() };
            outcome.latency.record((p50_us * 1e3) as u64).unwrap();
            outcome
        };
        let results = p50s.map(|p50| {
            let mut results = Results::default();
            results.quiet.add(plan, outcome(p50), None);
            results
        });
        Report::new(plan, results.to_vec())
    }

    #[test]
    fn the_ratio_is_the_put_by_the_sum_of_the_better_write_and_the_call() {
        let target = |port| Target { endpoints: vec![Endpoint::parse(&format!("h:{port}")).unwrap()], pids: vec![] };
        let plan = Plan { targets: vec![target(1), target(2)], rounds: 1, ..Plan::example() };
        let disk_plan = DiskPlan { dir: PathBuf::from("/d"), total: 1, rounds: 1, json: false };
        let write = |p50_us| vec![WriteFigures { p50_us, p90_us: 0.0, p99_us: 0.0, max_us: 0.0 }];
        let disk = DiskReport::new(&disk_plan, [write(120.0), write(80.0)]);
        let report = FloorReport::new(disk, &report(&plan, [120.0, 160.0]), report(&plan, [250.0, 400.0]));
        // The histograms know three digits.
        let near =
            |value: f64, expected: f64| assert!((value / expected - 1.0).abs() < 0.01, "{value}, not {expected}");
        near(report.targets[0].median.ratio, 1.25);
        near(report.targets[0].ratio_to_first_floor, 1.25);
        near(report.targets[1].median.ratio, 400.0 / 240.0);
        near(report.targets[1].ratio_to_first_floor, 2.0);
        let text = report.to_text();
        assert!(text.contains("put / (disk + no-op)") && text.contains("1.25"), "{text}");
    }
}
