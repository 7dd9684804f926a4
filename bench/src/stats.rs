//! The figures of a round, medians over rounds, and the ratio of two endpoints.

use crate::load::{Memory, Outcome};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// One figure of a round, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each one's label says what it is")]
pub enum Metric {
    ThroughputPerSecond,
    LatencyMeanUs,
    LatencyP50Us,
    LatencyP90Us,
    LatencyP99Us,
    LatencyP999Us,
    LatencyMaxUs,
    LongestGapUs,
    EventsPerSecond,
    EventP50Us,
    EventP90Us,
    EventP99Us,
    EventP999Us,
    EventMaxUs,
    SendLagP50Us,
    SendLagP99Us,
    ServerCpuSecondsPer1000,
    GeneratorCpuSecondsPer1000,
    ServerWrittenBytesPerOperation,
    ServerAnonymousBeforeMib,
    ServerAnonymousPeakMib,
    ServerAnonymousAfterMib,
    CountedOperations,
    Errors,
    DurationSeconds,
}

impl Metric {
    /// The figure's name and unit in the text report.
    pub fn label(self) -> &'static str {
        match self {
            Self::ThroughputPerSecond => "throughput, operations/s",
            Self::LatencyMeanUs => "latency mean, µs",
            Self::LatencyP50Us => "latency p50, µs",
            Self::LatencyP90Us => "latency p90, µs",
            Self::LatencyP99Us => "latency p99, µs",
            Self::LatencyP999Us => "latency p99.9, µs",
            Self::LatencyMaxUs => "latency max, µs",
            Self::LongestGapUs => "longest without an answer, µs",
            Self::EventsPerSecond => "events/s, all watchers",
            Self::EventP50Us => "event p50, µs",
            Self::EventP90Us => "event p90, µs",
            Self::EventP99Us => "event p99, µs",
            Self::EventP999Us => "event p99.9, µs",
            Self::EventMaxUs => "event max, µs",
            Self::SendLagP50Us => "sent late p50, µs",
            Self::SendLagP99Us => "sent late p99, µs",
            Self::ServerCpuSecondsPer1000 => "server CPU, s per 1,000",
            Self::GeneratorCpuSecondsPer1000 => "generator CPU, s per 1,000",
            Self::ServerWrittenBytesPerOperation => "server wrote, bytes per operation",
            Self::ServerAnonymousBeforeMib => "server RssAnon before, MiB",
            Self::ServerAnonymousPeakMib => "server RssAnon peak, MiB",
            Self::ServerAnonymousAfterMib => "server RssAnon after, MiB",
            Self::CountedOperations => "latencies within the disturbance",
            Self::Errors => "errors",
            Self::DurationSeconds => "duration, s",
        }
    }

    /// Digits behind the point in the text report.
    pub fn decimals(self) -> usize {
        match self {
            Self::ThroughputPerSecond
            | Self::EventsPerSecond
            | Self::ServerWrittenBytesPerOperation
            | Self::CountedOperations
            | Self::Errors => 0,
            Self::ServerCpuSecondsPer1000 | Self::GeneratorCpuSecondsPer1000 => 4,
            Self::DurationSeconds => 2,
            _ => 1,
        }
    }

    /// Whether dividing one endpoint's figure by the other's says something.
    pub fn has_ratio(self) -> bool {
        !matches!(
            self,
            Self::Errors
                | Self::CountedOperations
                | Self::DurationSeconds
                | Self::SendLagP50Us
                | Self::SendLagP99Us
                | Self::GeneratorCpuSecondsPer1000
        )
    }
}

/// What was measured; a figure that was not is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Figures(pub BTreeMap<Metric, f64>);

impl Figures {
    /// The figures of one round. Event latencies appear only if there were events, lateness only for an open loop.
    pub fn of(outcome: &Outcome, open_loop: bool) -> Self {
        let mut figures = BTreeMap::new();
        let succeeded = outcome.success_count as f64;
        let finished = succeeded + outcome.error_count as f64;
        let seconds = outcome.elapsed.as_secs_f64();
        figures.insert(Metric::ThroughputPerSecond, succeeded / seconds.max(f64::MIN_POSITIVE));
        figures.insert(Metric::DurationSeconds, seconds);
        figures.insert(Metric::Errors, outcome.error_count as f64);
        if outcome.success_count > 0 {
            figures.insert(Metric::LongestGapUs, outcome.longest_gap_ns as f64 / 1e3);
        }
        if outcome.latency.len() != outcome.success_count {
            figures.insert(Metric::CountedOperations, outcome.latency.len() as f64);
        }
        if !outcome.event_latency.is_empty() {
            let events = outcome.event_latency.len() as f64;
            figures.insert(Metric::EventsPerSecond, events / seconds.max(f64::MIN_POSITIVE));
        }
        if !outcome.latency.is_empty() {
            figures.insert(Metric::LatencyMeanUs, outcome.latency.mean() / 1e3);
        }
        let latency = [
            (Metric::LatencyP50Us, 0.50),
            (Metric::LatencyP90Us, 0.90),
            (Metric::LatencyP99Us, 0.99),
            (Metric::LatencyP999Us, 0.999),
            (Metric::LatencyMaxUs, 1.0),
        ];
        let event = [
            (Metric::EventP50Us, 0.50),
            (Metric::EventP90Us, 0.90),
            (Metric::EventP99Us, 0.99),
            (Metric::EventP999Us, 0.999),
            (Metric::EventMaxUs, 1.0),
        ];
        insert_quantiles(&mut figures, &outcome.latency, &latency);
        insert_quantiles(&mut figures, &outcome.event_latency, &event);
        if open_loop {
            let lag = [(Metric::SendLagP50Us, 0.50), (Metric::SendLagP99Us, 0.99)];
            insert_quantiles(&mut figures, &outcome.send_lag, &lag);
        }
        let per_1000 = |cpu: std::time::Duration| cpu.as_secs_f64() * 1_000.0 / finished.max(1.0);
        if let Some(cpu) = outcome.server_cpu {
            figures.insert(Metric::ServerCpuSecondsPer1000, per_1000(cpu));
        }
        if let Some(bytes) = outcome.server_written_bytes {
            figures.insert(Metric::ServerWrittenBytesPerOperation, bytes as f64 / finished.max(1.0));
        }
        if let Some(Memory { before, peak, after }) = outcome.server_anonymous {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            figures.insert(Metric::ServerAnonymousBeforeMib, mib(before));
            figures.insert(Metric::ServerAnonymousPeakMib, mib(peak));
            figures.insert(Metric::ServerAnonymousAfterMib, mib(after));
        }
        figures.insert(Metric::GeneratorCpuSecondsPer1000, per_1000(outcome.generator_cpu));
        Self(figures)
    }

    /// The median of each figure over several rounds, each figure for itself.
    pub fn median(rounds: &[Self]) -> Self {
        let mut values: BTreeMap<Metric, Vec<f64>> = BTreeMap::new();
        for (&metric, &value) in rounds.iter().flat_map(|figures| &figures.0) {
            values.entry(metric).or_default().push(value);
        }
        Self(values.into_iter().map(|(metric, mut values)| (metric, median(&mut values))).collect())
    }

    /// Each figure divided by another endpoint's, where both have one and the other's is not nought.
    pub fn ratio_to(&self, other: &Self) -> Self {
        let quotient = |(&metric, &value): (&Metric, &f64)| {
            let divisor = other.0.get(&metric).copied().filter(|&divisor| divisor > 0.0)?;
            metric.has_ratio().then_some((metric, value / divisor))
        };
        Self(self.0.iter().filter_map(quotient).collect())
    }

    /// One figure, if it was measured.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.0.get(&metric).copied()
    }
}

fn insert_quantiles(figures: &mut BTreeMap<Metric, f64>, histogram: &Histogram<u64>, wanted: &[(Metric, f64)]) {
    if histogram.is_empty() {
        return;
    }
    for &(metric, quantile) in wanted {
        figures.insert(metric, histogram.value_at_quantile(quantile) as f64 / 1e3);
    }
}

/// The middle value, or the mean of the two in the middle.
pub fn median(values: &mut [f64]) -> f64 {
    assert!(!values.is_empty(), "a figure that was never measured has no median");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn outcome() -> Outcome {
        let mut latency = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
        for us in 1..=1_000u64 {
            latency.record(us * 1_000).unwrap();
        }
        Outcome {
            latency,
            success_count: 1_000,
            longest_gap_ns: 7_000,
            elapsed: Duration::from_millis(500),
            server_cpu: Some(Duration::from_millis(40)),
            generator_cpu: Duration::from_millis(20),
            server_written_bytes: Some(500_000),
            server_anonymous: Some(Memory { before: 1 << 20, peak: 3 << 20, after: 2 << 20 }),
            ..Outcome::empty()
        }
    }

    #[test]
    fn percentiles_are_those_of_the_samples_within_the_histogram_s_three_digits() {
        let figures = Figures::of(&outcome(), false);
        for (metric, expected) in [
            (Metric::LatencyP50Us, 500.0),
            (Metric::LatencyP90Us, 900.0),
            (Metric::LatencyP99Us, 990.0),
            (Metric::LatencyP999Us, 999.0),
            (Metric::LatencyMaxUs, 1_000.0),
            (Metric::LatencyMeanUs, 500.5),
            (Metric::ThroughputPerSecond, 2_000.0),
            (Metric::ServerCpuSecondsPer1000, 0.04),
            (Metric::GeneratorCpuSecondsPer1000, 0.02),
            (Metric::LongestGapUs, 7.0),
            (Metric::ServerWrittenBytesPerOperation, 500.0),
            (Metric::ServerAnonymousPeakMib, 3.0),
        ] {
            let value = figures.get(metric).unwrap();
            assert!((value / expected - 1.0).abs() < 0.002, "{metric:?}: {value} instead of {expected}");
        }
        assert_eq!(figures.get(Metric::EventP50Us), None);
        assert_eq!(figures.get(Metric::CountedOperations), None);
        assert_eq!(figures.get(Metric::SendLagP50Us), None);
    }

    #[test]
    fn the_median_over_rounds_ignores_an_outlier() {
        let round = |value| Figures(BTreeMap::from([(Metric::LatencyP99Us, value)]));
        let rounds = [round(10.0), round(900.0), round(11.0)];
        assert_eq!(Figures::median(&rounds).get(Metric::LatencyP99Us), Some(11.0));
        assert_eq!(Figures::median(&rounds[..2]).get(Metric::LatencyP99Us), Some(455.0));
    }

    #[test]
    fn a_ratio_is_the_first_divided_by_the_second_where_both_were_measured() {
        let first = Figures(BTreeMap::from([
            (Metric::ThroughputPerSecond, 300.0),
            (Metric::ServerCpuSecondsPer1000, 1.0),
            (Metric::LatencyP50Us, 5.0),
            (Metric::Errors, 4.0),
        ]));
        let second = Figures(BTreeMap::from([
            (Metric::ThroughputPerSecond, 200.0),
            (Metric::LatencyP50Us, 0.0),
            (Metric::Errors, 2.0),
        ]));
        assert_eq!(first.ratio_to(&second).0, BTreeMap::from([(Metric::ThroughputPerSecond, 1.5)]));
    }
}
