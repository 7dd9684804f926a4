//! How a seed ended.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// When it was noticed, in simulated time.
    pub at: Duration,
    /// Which promise.
    pub what: String,
    /// What should have been.
    pub expected: String,
    /// What was.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "after {:.6} s: {}", self.at.as_secs_f64(), self.what)?;
        if !self.expected.is_empty() {
            write!(out, "\n  expected: {}", self.expected)?;
        }
        if !self.found.is_empty() {
            write!(out, "\n  found:    {}", self.found)?;
        }
        Ok(())
    }
}

/// The outcome of a check. The violation is stamped with the time on its way out.
pub type Check<T = ()> = Result<T, Box<Violation>>;

/// A violation of a promise.
pub fn violated<T>(what: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Check<T> {
    let violation = Violation { at: Duration::ZERO, what: what.into(), expected: expected.into(), found: found.into() };
    Err(Box::new(violation))
}

/// Fails unless two values are the same.
pub fn same<T: PartialEq + fmt::Debug>(what: &str, expected: &T, found: &T) -> Check {
    if expected == found {
        return Ok(());
    }
    violated(what, short(expected), short(found))
}

/// An error with its sources, as text.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

/// A value as text of bearable length.
pub fn short(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(1_500) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// What a seed went through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Simulated time.
    pub simulated: Duration,
    /// Requests of all kinds.
    pub requests: u64,
    /// Writes that were answered as done.
    pub acknowledged_writes: u64,
    /// Reads whose result was compared.
    pub reads: u64,
    /// Events that watchers received.
    pub watch_events: u64,
    /// Leases that expired.
    pub expiries: u64,
    /// Simulated time of clusters of several members.
    pub cluster_time: Duration,
    /// Terms that had a leader, in clusters, before the faults stopped.
    pub elections: u64,
    /// Messages that members sent each other.
    pub messages: u64,
    /// Snapshots that filled members.
    pub restored: u64,
    /// Members' states that other members compared with theirs.
    pub compared: u64,
    /// Watches that went on at another member.
    pub resumed_watches: u64,
    /// Starts of the process after the first one.
    pub restarts: u64,
    /// Starts that found a checkpoint.
    pub checkpoint_starts: u64,
    /// Faults, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// The story's digest: equal for equal stories.
    pub digest: u64,
}

impl Summary {
    /// Adds another seed's figures. Digests are combined, so that the sum tells whether all stories were the same.
    pub fn add(&mut self, other: &Summary) {
        self.simulated += other.simulated;
        self.requests += other.requests;
        self.acknowledged_writes += other.acknowledged_writes;
        self.reads += other.reads;
        self.watch_events += other.watch_events;
        self.expiries += other.expiries;
        self.cluster_time += other.cluster_time;
        self.elections += other.elections;
        self.messages += other.messages;
        self.restored += other.restored;
        self.compared += other.compared;
        self.resumed_watches += other.resumed_watches;
        self.restarts += other.restarts;
        self.checkpoint_starts += other.checkpoint_starts;
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
        self.digest ^= other.digest;
    }
}

/// How a seed ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What happened up to its end.
    pub summary: Summary,
    /// What went wrong, if anything did.
    pub violation: Option<Violation>,
}
