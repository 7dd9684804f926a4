//! How far a put is above its floor: the disk's synchronous write and a call that does nothing.
//!
//! Each round measures the three one after the other, so that what the machine does meanwhile falls on all of them.

use crate::args::{DiskPlan, Operation, Plan};
use crate::disk::{DiskProbe, DiskReport, SyncForm};
use crate::error::BenchError;
use crate::measure::{Progress, Session, turns};
use crate::report::{Setup, Table, show};
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
    let (noop_session, put_session) = (Session::new(&noops), Session::new(puts));
    let mut probe = DiskProbe::open(&disk_plan.dir)?;
    for target in &puts.targets {
        noop_session.prepare(target, progress)?;
        put_session.prepare(target, progress)?;
    }
    let mut disk_rounds = [Vec::new(), Vec::new()];
    let mut rounds = vec![(Vec::new(), Vec::new()); puts.targets.len()];
    for number in 0..puts.rounds {
        for (form, figures) in SyncForm::ALL.into_iter().zip(&mut disk_rounds) {
            figures.push(probe.round(form, disk_plan.total)?);
        }
        for index in turns(number, puts.targets.len()) {
            let target = &puts.targets[index];
            rounds[index].0.push(Figures::of(&noop_session.round(target, number, progress)?, false));
            rounds[index].1.push(Figures::of(&put_session.round(target, number, progress)?, false));
        }
    }
    Ok(FloorReport::new(puts, DiskReport::new(disk_plan, disk_rounds), &rounds))
}

impl FloorReport {
    /// Puts a report together from the disk's rounds and each endpoint's rounds of no-op calls and of puts.
    pub fn new(plan: &Plan, disk: DiskReport, rounds: &[(Vec<Figures>, Vec<Figures>)]) -> Self {
        let mut targets: Vec<TargetFloor> = Vec::new();
        for (target, (noops, puts)) in plan.targets.iter().zip(rounds) {
            let disk_rounds = disk.floor().rounds.iter().map(|round| round.p50_us);
            let rounds: Vec<_> = disk_rounds
                .zip(noops.iter().zip(puts))
                .map(|(disk, (noop, put))| FloorRound::new(disk, p50(noop), p50(put)))
                .collect();
            let of = |figure: fn(&FloorRound) -> f64| median(&mut rounds.iter().map(figure).collect::<Vec<_>>());
            let median = FloorRound::new(of(|r| r.disk_p50_us), of(|r| r.noop_p50_us), of(|r| r.put_p50_us));
            let first = targets.first().map_or(median, |first| first.median);
            targets.push(TargetFloor {
                endpoint: target.label(),
                median,
                ratio_to_first_floor: median.put_p50_us / (first.disk_p50_us + first.noop_p50_us),
                rounds,
                put: Figures::median(puts),
                noop: Figures::median(noops),
            });
        }
        Self { setup: Setup::new(plan), disk, targets }
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
        format!("{}\n{}\n{}\n{}", self.setup.to_text(), self.disk.to_text(), table.to_text(), self.rounds_text())
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
    use crate::args::Target;
    use crate::disk::WriteFigures;
    use crate::endpoint::Endpoint;
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    fn figures(p50: f64) -> Figures {
        Figures(BTreeMap::from([(Metric::LatencyP50Us, p50)]))
    }

    #[test]
    fn the_ratio_is_the_put_by_the_sum_of_the_better_write_and_the_call() {
        let target = |port| Target { endpoints: vec![Endpoint::parse(&format!("h:{port}")).unwrap()], pids: vec![] };
        let plan = Plan { targets: vec![target(1), target(2)], rounds: 1, ..Plan::example() };
        let disk_plan = DiskPlan { dir: PathBuf::from("/d"), total: 1, rounds: 1, json: false };
        let write = |p50_us| vec![WriteFigures { p50_us, p90_us: 0.0, p99_us: 0.0, max_us: 0.0 }];
        let disk = DiskReport::new(&disk_plan, [write(120.0), write(80.0)]);
        let rounds = [(vec![figures(120.0)], vec![figures(250.0)]), (vec![figures(160.0)], vec![figures(400.0)])];
        let report = FloorReport::new(&plan, disk, &rounds);
        assert_eq!((report.targets[0].median.ratio, report.targets[0].ratio_to_first_floor), (1.25, 1.25));
        assert!((report.targets[1].median.ratio - 400.0 / 240.0).abs() < 1e-9);
        assert_eq!(report.targets[1].ratio_to_first_floor, 2.0);
        let text = report.to_text();
        assert!(text.contains("put / (disk + no-op)") && text.contains("1.250"), "{text}");
    }
}
