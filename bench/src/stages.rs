//! Where a Garboard endpoint's writes spent their time: its own histograms, before and after.
//!
//! The server counts batches of writes since it started; the difference of two readings is what it counted between them.
//! Any other server has no such service, and nothing is reported then.

use crate::client::Connection;
use crate::error::BenchError;
use crate::plan::Target;
use crate::proto::diagnostics::{Stage, StagesRequest};
use serde::Serialize;
use std::collections::BTreeMap;

/// One stage's counts, all cores and members together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// By the end of the bucket in nanoseconds.
    buckets: BTreeMap<u64, u64>,
    sum_ns: u64,
}

/// What the server has counted, by the name of the stage, in the order in which it lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageCounts(Vec<(String, Counts)>);

/// One stage's figures, in microseconds. A time is known within 12.5 %, and what is told is the larger end.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "each one's name says what it is")]
pub struct StageFigures {
    pub stage: String,
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl StageCounts {
    /// Asks every endpoint of a target. None if one of them has no such service.
    pub async fn read(target: &Target) -> Result<Option<Self>, BenchError> {
        let mut counts = Self::default();
        for endpoint in &target.endpoints {
            let connection = Connection::open(endpoint).await?;
            match connection.diagnostics().stages(StagesRequest {}).await {
                Ok(response) => counts.add(response.into_inner().stages),
                Err(status) if status.code() == tonic::Code::Unimplemented => return Ok(None),
                Err(status) => {
                    return Err(BenchError::Call {
                        endpoint: endpoint.to_string(),
                        call: "Diagnostics/Stages",
                        code: format!("{:?}", status.code()),
                        message: status.message().to_owned(),
                    });
                }
            }
        }
        Ok(Some(counts))
    }

    fn of(&mut self, name: &str) -> &mut Counts {
        if let Some(at) = self.0.iter().position(|(known, _)| known == name) {
            return &mut self.0[at].1;
        }
        self.0.push((name.to_owned(), Counts::default()));
        &mut self.0.last_mut().expect("one was just added").1
    }

    fn add(&mut self, stages: Vec<Stage>) {
        for stage in stages {
            let counts = self.of(&stage.name);
            counts.sum_ns += stage.sum_ns;
            for bucket in stage.buckets {
                *counts.buckets.entry(bucket.end_ns).or_default() += bucket.count;
            }
        }
    }

    /// What was counted since an earlier reading. A server that was started anew meanwhile has counted less.
    pub fn since(mut self, before: &Self) -> Self {
        for (name, counts) in &before.0 {
            let after = self.of(name);
            after.sum_ns = after.sum_ns.saturating_sub(counts.sum_ns);
            for (end, count) in &counts.buckets {
                let left = after.buckets.entry(*end).or_default();
                *left = left.saturating_sub(*count);
            }
        }
        self
    }

    /// Counts both.
    pub fn merge(&mut self, other: Self) {
        for (name, counts) in other.0 {
            let own = self.of(&name);
            own.sum_ns += counts.sum_ns;
            for (end, count) in counts.buckets {
                *own.buckets.entry(end).or_default() += count;
            }
        }
    }

    /// The figures of the stages that were counted at all.
    pub fn figures(&self) -> Vec<StageFigures> {
        self.0.iter().filter_map(|(name, counts)| counts.figures(name)).collect()
    }
}

impl Counts {
    fn figures(&self, stage: &str) -> Option<StageFigures> {
        let count: u64 = self.buckets.values().sum();
        let at = |quantile: f64| {
            let rank = ((count as f64 * quantile).ceil() as u64).max(1);
            let mut seen = 0;
            let end = self.buckets.iter().find_map(|(end, count)| {
                seen += count;
                (seen >= rank).then_some(*end)
            });
            end.unwrap_or_default() as f64 / 1e3
        };
        (count > 0).then(|| StageFigures {
            stage: stage.to_owned(),
            count,
            mean_us: self.sum_ns as f64 / count as f64 / 1e3,
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::diagnostics::Bucket;

    fn stage(name: &str, core: u32, buckets: &[(u64, u64)]) -> Stage {
        let sum_ns = buckets.iter().map(|(end, count)| end * count).sum();
        let buckets = buckets.iter().map(|&(end_ns, count)| Bucket { end_ns, count }).collect();
        Stage { name: name.into(), core, count: 0, sum_ns, buckets }
    }

    #[test]
    fn a_run_is_the_difference_of_two_readings_over_all_cores() {
        let (mut before, mut after) = (StageCounts::default(), StageCounts::default());
        before.add(vec![stage("queue", 0, &[(1_000, 5), (9_000_000, 1)])]);
        after.add(vec![
            stage("queue", 0, &[(1_000, 55), (9_000_000, 1)]),
            stage("reply", 0, &[(2_000, 1)]),
            stage("reply", 1, &[(2_000, 50), (4_000, 49)]),
        ]);
        let figures = after.since(&before).figures();
        let shown: Vec<_> = figures.iter().map(|f| (f.stage.as_str(), f.count, f.p50_us, f.p99_us, f.max_us)).collect();
        assert_eq!(shown, [("queue", 50, 1.0, 1.0, 1.0), ("reply", 100, 2.0, 4.0, 4.0)]);
        assert!((figures[1].mean_us - 2.98).abs() < 1e-9);
    }

    #[test]
    fn rounds_are_counted_together_and_stages_that_never_happened_are_left_out() {
        let mut total = StageCounts::default();
        for count in [1, 2] {
            let mut round = StageCounts::default();
            round.add(vec![stage("apply", 0, &[(500, count)]), stage("queue", 0, &[])]);
            total.merge(round);
        }
        assert_eq!(total.figures().iter().map(|f| (f.stage.as_str(), f.count)).collect::<Vec<_>>(), [("apply", 3)]);
    }
}
