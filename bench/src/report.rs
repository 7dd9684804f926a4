//! The report: aligned text for people, JSON for programs.

use crate::disturb::Passes;
use crate::load::Outcome;
use crate::plan::{Operation, Plan, Watchers};
use crate::stages::{StageCounts, StageFigures};
use crate::stats::{Figures, Metric};
use serde::Serialize;
use std::fmt::Write;

/// Everything that a run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was done.
    pub setup: Setup,
    /// One for each endpoint, the one to measure first.
    pub results: Vec<TargetResult>,
    /// The first endpoint's medians divided by the second's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Figures>,
}

/// What was done, as far as it matters to whoever reads the figures.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    /// The workload's name.
    pub workload: &'static str,
    /// What the options of this workload were set to, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workload_detail: String,
    /// Requests in flight, at most.
    pub clients: u32,
    /// Connections.
    pub connections: u32,
    /// Generator threads.
    pub threads: u32,
    /// Operations in a round.
    pub operations_per_round: u64,
    /// Rounds on each endpoint.
    pub rounds: u32,
    /// Operations per second, if the loop was open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    /// The clients of the closed loop half of whose rate it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_rate_of: Option<u32>,
    /// Bytes in a value.
    pub value_size_bytes: u32,
    /// Number of different keys.
    pub key_space: u64,
    /// Seed of keys and values.
    pub seed: u64,
}

/// What one endpoint did.
#[derive(Clone, Debug, Serialize)]
pub struct TargetResult {
    /// The endpoint's address.
    pub endpoint: String,
    /// Operations per second, if the loop was open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    /// Median of each figure over the rounds.
    pub median: Figures,
    /// Every round's figures, in order.
    pub rounds: Vec<Figures>,
    /// Where the server says that the time of writes went, over all rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageFigures>,
    /// The rounds in which something was done to the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<DisturbedResult>,
    /// What the first failed operation said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

/// What one endpoint did while something disturbed it.
#[derive(Clone, Debug, Serialize)]
pub struct DisturbedResult {
    /// What was done.
    pub what: &'static str,
    /// How often and how long.
    pub passes: Passes,
    /// Median of each figure over the rounds.
    pub median: Figures,
    /// Every round's figures, in order.
    pub rounds: Vec<Figures>,
    /// These medians divided by those of the quiet rounds.
    pub ratio_to_quiet: Figures,
    /// Where the server says that the time of writes went.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageFigures>,
}

/// Rounds of one kind on one target.
#[derive(Clone, Debug, Default)]
pub struct Series {
    rounds: Vec<Figures>,
    stages: StageCounts,
    first_error: Option<String>,
}

impl Series {
    /// Adds a round.
    pub fn add(&mut self, plan: &Plan, outcome: Outcome, stages: Option<StageCounts>) {
        self.rounds.push(Figures::of(&outcome, plan.is_open_loop()));
        self.stages.merge(stages.unwrap_or_default());
        self.first_error = self.first_error.take().or(outcome.first_error);
    }
}

/// All rounds on one target.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Operations per second, if the loop was open.
    pub rate_per_second: Option<f64>,
    /// Rounds of the load alone.
    pub quiet: Series,
    /// Rounds in which something disturbed it.
    pub disturbed: Series,
    /// What was done in those.
    pub passes: Passes,
}

impl TargetResult {
    fn new(endpoint: String, what: Option<&'static str>, results: Results) -> Self {
        let Results { rate_per_second, quiet, disturbed, passes } = results;
        let median = Figures::median(&quiet.rounds);
        let first_error = quiet.first_error.or(disturbed.first_error);
        let disturbed = what.filter(|_| !disturbed.rounds.is_empty()).map(|what| {
            let disturbed_median = Figures::median(&disturbed.rounds);
            DisturbedResult {
                what,
                passes,
                ratio_to_quiet: disturbed_median.ratio_to(&median),
                median: disturbed_median,
                rounds: disturbed.rounds,
                stages: disturbed.stages.figures(),
            }
        });
        let stages = quiet.stages.figures();
        Self { endpoint, rate_per_second, median, rounds: quiet.rounds, stages, disturbed, first_error }
    }

    fn disturbed_text(&self, disturbed: &DisturbedResult) -> String {
        let mut table = Table::default();
        let mut row = |cells: [&str; 4]| table.row(cells.map(str::to_owned).to_vec());
        row([&self.endpoint, "quiet", &format!("with {}", disturbed.what), "ratio"]);
        for &metric in disturbed.median.0.keys() {
            let shown = |figures: &Figures| show(figures.get(metric), metric.decimals());
            let ratio = disturbed.ratio_to_quiet.get(metric).map_or_else(String::new, |ratio| format!("{ratio:.3}"));
            row([metric.label(), &shown(&self.median), &shown(&disturbed.median), &ratio]);
        }
        let mut text = table.to_text();
        let Passes { count, seconds, longest_seconds, bytes } = disturbed.passes;
        if count > 0 {
            let mean = seconds / count as f64;
            let _ =
                write!(text, "{}: {count} in all, {mean:.3} s each, {longest_seconds:.3} s at most", disturbed.what);
            let each = bytes as f64 / count as f64;
            text.push_str(&if bytes > 0 { format!(", {} bytes each\n", grouped(each, 0)) } else { "\n".into() });
        }
        text
    }
}

/// Where the server says that the time of writes went.
pub fn stages_text(endpoint: &str, stages: &[StageFigures]) -> String {
    let mut table = Table::default();
    let heads = ["stage", "count", "mean µs", "p50 µs", "p99 µs", "max µs"];
    table.row(heads.map(str::to_owned).to_vec());
    for StageFigures { stage, count, mean_us, p50_us, p99_us, max_us } in stages {
        let mut row = vec![stage.clone(), grouped(*count as f64, 0)];
        row.extend([mean_us, p50_us, p99_us, max_us].map(|us| show(Some(*us), 1)));
        table.row(row);
    }
    format!("{endpoint}, where batches of writes spent their time, as the server counts it:\n{}", table.to_text())
}

impl Report {
    /// Puts a report together from each endpoint's rounds.
    pub fn new(plan: &Plan, all: Vec<Results>) -> Self {
        assert_eq!(all.len(), plan.targets.len(), "each endpoint has its rounds");
        let what = plan.disturbance.map(|what| what.name());
        let results: Vec<_> = plan
            .targets
            .iter()
            .zip(all)
            .map(|(target, results)| TargetResult::new(target.label(), what, results))
            .collect();
        let ratio = results.get(1).map(|second| results[0].median.ratio_to(&second.median));
        Self { setup: Setup::new(plan), results, ratio }
    }

    /// The report as JSON, one object.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers, texts and maps with text keys are JSON")
    }

    /// The report as text, in columns.
    pub fn to_text(&self) -> String {
        let mut text = self.setup.to_text();
        text.push('\n');
        let mut table = Table::default();
        let mut head = vec![if self.setup.rounds > 1 { "median over rounds" } else { "" }.to_owned()];
        head.extend(self.results.iter().map(|result| result.endpoint.clone()));
        head.extend(self.ratio.iter().map(|_| "ratio".to_owned()));
        table.row(head);
        for &metric in self.results[0].median.0.keys() {
            let mut row = vec![metric.label().to_owned()];
            row.extend(self.results.iter().map(|result| show(result.median.get(metric), metric.decimals())));
            row.extend(
                self.ratio.iter().map(|ratio| ratio.get(metric).map_or_else(String::new, |r| format!("{r:.3}"))),
            );
            table.row(row);
        }
        text.push_str(&table.to_text());
        if self.ratio.is_some() {
            text.push_str("ratio: the first endpoint's median divided by the second's\n");
        }
        if self.setup.rounds > 1 {
            text.push('\n');
            text.push_str(&self.rounds_text());
        }
        for result in &self.results {
            if let Some(disturbed) = &result.disturbed {
                let _ = write!(text, "\n{}", result.disturbed_text(disturbed));
            }
        }
        for result in &self.results {
            if !result.stages.is_empty() {
                let _ = write!(text, "\n{}", stages_text(&result.endpoint, &result.stages));
            }
            if let Some(disturbed) = result.disturbed.as_ref().filter(|disturbed| !disturbed.stages.is_empty()) {
                let title = format!("{} with {}", result.endpoint, disturbed.what);
                let _ = write!(text, "\n{}", stages_text(&title, &disturbed.stages));
            }
        }
        for result in &self.results {
            if let Some(rate) = result.rate_per_second.filter(|_| self.setup.half_rate_of.is_some()) {
                let _ = writeln!(text, "\n{}: {} operations/s", result.endpoint, grouped(rate, 0));
            }
            if let Some(error) = &result.first_error {
                let _ = writeln!(text, "\nfirst error on {}: {error}", result.endpoint);
            }
        }
        text
    }

    /// Throughput, median and tail of every round, so that the spread is seen.
    fn rounds_text(&self) -> String {
        let shown = [Metric::ThroughputPerSecond, Metric::LatencyP50Us, Metric::LatencyP99Us];
        let mut table = Table::default();
        let mut head = vec!["round".to_owned()];
        for result in &self.results {
            head.extend([format!("{} op/s", result.endpoint), "p50 µs".to_owned(), "p99 µs".to_owned()]);
        }
        table.row(head);
        for round in 0..self.results[0].rounds.len() {
            let mut row = vec![(round + 1).to_string()];
            for result in &self.results {
                row.extend(shown.map(|metric| show(result.rounds[round].get(metric), metric.decimals())));
            }
            table.row(row);
        }
        table.to_text()
    }
}

impl Setup {
    /// What a plan does.
    pub fn new(plan: &Plan) -> Self {
        let consistency = |serializable| if serializable { "serializable" } else { "linearizable" };
        let workload_detail = match plan.operation {
            Operation::Noop => "health checks".to_owned(),
            Operation::Put => String::new(),
            Operation::Range { limit: 1, serializable } => format!("{} reads of one key", consistency(serializable)),
            Operation::Range { limit, serializable } => {
                format!("{} ranges of {limit} keys", consistency(serializable))
            }
            Operation::Count { serializable, revisions_ago: 0 } => {
                format!("{} counts of all keys", consistency(serializable))
            }
            Operation::Count { serializable, revisions_ago } => {
                format!("{} counts of all keys, {revisions_ago} revisions ago", consistency(serializable))
            }
            Operation::Watch(Watchers { ranges, watched_keys, keys, .. }) => {
                format!("{ranges} watchers of {watched_keys} keys, {keys} of one key each")
            }
        };
        Self {
            workload: plan.operation.name(),
            workload_detail,
            clients: plan.clients,
            connections: plan.connections,
            threads: plan.threads,
            operations_per_round: plan.total,
            rounds: plan.rounds,
            rate_per_second: plan.rate,
            half_rate_of: plan.half_rate_of,
            value_size_bytes: plan.value_size,
            key_space: plan.key_space,
            seed: plan.seed,
        }
    }

    /// Two lines of text.
    pub fn to_text(&self) -> String {
        let mut text = self.workload.to_owned();
        if !self.workload_detail.is_empty() {
            let _ = write!(text, " ({})", self.workload_detail);
        }
        let count = |n: u64, one: &str| format!("{} {one}{}", grouped(n as f64, 0), if n == 1 { "" } else { "s" });
        let _ = writeln!(
            text,
            ": {} on {}, {} a round, {}",
            count(self.clients.into(), "client"),
            count(self.connections.into(), "connection"),
            count(self.operations_per_round, "operation"),
            count(self.rounds.into(), "round"),
        );
        let pace = match self.rate_per_second {
            Some(rate) => format!(
                "open loop at {} operations/s (latency from the intended start)",
                grouped(rate, usize::from(rate.fract() > 0.0))
            ),
            None if let Some(clients) = self.half_rate_of => {
                format!("open loop at half the rate of {clients} clients (latency from the intended start)")
            }
            None => "closed loop (each client waits for its answer)".to_owned(),
        };
        let _ = writeln!(
            text,
            "{}, values of {}, {pace}",
            count(self.key_space, "key"),
            count(self.value_size_bytes.into(), "byte"),
        );
        text
    }
}

/// A figure, or a dash where there is none.
pub fn show(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| grouped(value, decimals))
}

/// A number with its thousands parted by commas.
fn grouped(value: f64, decimals: usize) -> String {
    let plain = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = plain.split_once('.').map_or((plain.as_str(), None), |(w, f)| (w, Some(f)));
    let mut text = String::new();
    if value < 0.0 {
        text.push('-');
    }
    for (position, digit) in whole.chars().enumerate() {
        if position > 0 && (whole.len() - position) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

/// Columns as wide as their widest cell, the first one flush left, the others flush right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Adds a row; all have as many cells.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert!(self.rows.first().is_none_or(|first| first.len() == cells.len()));
        self.rows.push(cells);
    }

    /// The rows as lines.
    pub fn to_text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = format!("{:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                let _ = write!(line, "  {cell:>width$}");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::plan::Target;
    use std::collections::BTreeMap;

    fn report() -> Report {
        let target =
            |port| Target { endpoints: vec![Endpoint::parse(&format!("127.0.0.1:{port}")).unwrap()], pids: vec![] };
        let plan = Plan {
            targets: vec![target(1), target(2)],
            clients: 64,
            connections: 8,
            total: 100_000,
            rate: Some(2_500.0),
            key_space: 1_000,
            rounds: 2,
            ..Plan::example()
        };
        let figures = |throughput, p50| {
            Figures(BTreeMap::from([(Metric::ThroughputPerSecond, throughput), (Metric::LatencyP50Us, p50)]))
        };
        let first = vec![figures(40_000.0, 100.0), figures(60_000.0, 300.0)];
        let second = vec![figures(20_000.0, 400.0), figures(20_000.0, 400.0)];
        let results = |rounds, first_error| Results {
            quiet: Series { rounds, first_error, ..Series::default() },
            ..Results::default()
        };
        Report::new(&plan, vec![results(first, None), results(second, Some("Unavailable: gone".into()))])
    }

    #[test]
    fn the_text_shows_medians_of_both_endpoints_and_their_ratio_in_columns() {
        let text = report().to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "put: 64 clients on 8 connections, 100,000 operations a round, 2 rounds");
        assert!(lines[1].contains("open loop at 2,500 operations/s"), "{}", lines[1]);
        assert_eq!(lines[3], "median over rounds        127.0.0.1:1  127.0.0.1:2  ratio");
        assert_eq!(lines[4], "throughput, operations/s       50,000       20,000  2.500");
        assert_eq!(lines[5], "latency p50, µs                 200.0        400.0  0.500");
        assert!(text.contains("first error on 127.0.0.1:2: Unavailable: gone"));
    }

    #[test]
    fn the_json_holds_the_rounds_the_medians_and_the_ratio() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["setup"]["workload"], "put");
        assert_eq!(json["results"][0]["rounds"][1]["throughput_per_second"], 60_000.0);
        assert_eq!(json["results"][0]["median"]["latency_p50_us"], 200.0);
        assert_eq!(json["ratio"]["throughput_per_second"], 2.5);
    }

    #[test]
    fn disturbed_rounds_are_set_beside_the_quiet_ones() {
        let figures = |p99| vec![Figures(BTreeMap::from([(Metric::LatencyP99Us, p99)]))];
        let plan = Plan {
            disturbance: Some(crate::plan::Disturbance::Defragment),
            rate: Some(5.0),
            targets: vec![Target { endpoints: vec![Endpoint::parse("h:1").unwrap()], pids: vec![] }],
            ..Plan::example()
        };
        let results = Results {
            quiet: Series { rounds: figures(200.0), ..Series::default() },
            disturbed: Series { rounds: figures(300.0), ..Series::default() },
            passes: Passes { count: 2, seconds: 0.5, longest_seconds: 0.4, bytes: 0 },
            ..Results::default()
        };
        let report = Report::new(&plan, vec![results]);
        let text = report.to_text();
        assert!(text.contains("latency p99, µs  200.0                 300.0  1.500"), "{text}");
        assert!(text.contains("defragmentation: 2 in all, 0.250 s each, 0.400 s at most"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["results"][0]["disturbed"]["ratio_to_quiet"]["latency_p99_us"], 1.5);
    }

    #[test]
    fn thousands_are_parted_by_commas() {
        for (value, decimals, text) in
            [(0.0, 0, "0"), (999.96, 1, "1,000.0"), (1_234_567.891, 2, "1,234,567.89"), (-1_234.0, 0, "-1,234")]
        {
            assert_eq!(grouped(value, decimals), text);
        }
    }
}
