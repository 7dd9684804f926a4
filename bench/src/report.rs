//! The report: aligned text for people, JSON for programs.

use crate::args::{Operation, Plan};
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
    /// Median of each figure over the rounds.
    pub median: Figures,
    /// Every round's figures, in order.
    pub rounds: Vec<Figures>,
    /// What the first failed operation said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Report {
    /// Puts a report together from each endpoint's rounds and first error.
    pub fn new(plan: &Plan, rounds: Vec<(Vec<Figures>, Option<String>)>) -> Self {
        assert_eq!(rounds.len(), plan.targets.len(), "each endpoint has its rounds");
        let results: Vec<_> = plan
            .targets
            .iter()
            .zip(rounds)
            .map(|(target, (rounds, first_error))| TargetResult {
                endpoint: target.label(),
                median: Figures::median(&rounds),
                rounds,
                first_error,
            })
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
            Operation::Count { serializable } => format!("{} counts of all keys", consistency(serializable)),
            Operation::Watch { watchers } => format!("{watchers} watchers of all keys"),
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
    use crate::args::Target;
    use crate::endpoint::Endpoint;
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
        Report::new(&plan, vec![(first, None), (second, Some("Unavailable: gone".into()))])
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
    fn thousands_are_parted_by_commas() {
        for (value, decimals, text) in
            [(0.0, 0, "0"), (999.96, 1, "1,000.0"), (1_234_567.891, 2, "1,234,567.89"), (-1_234.0, 0, "-1,234")]
        {
            assert_eq!(grouped(value, decimals), text);
        }
    }
}
