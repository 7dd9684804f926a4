//! Automatic compaction: which revision to compact to, and when.
//!
//! *Periodic* keeps the history of a window. The revision is recorded ten times in an hour, or in the window if that is
//! shorter; once the window has passed, the oldest record is compacted to, at most once an hour or a window. *By
//! revision* keeps a number of revisions and looks every five minutes. Only a leader compacts; what is proposed goes
//! through the log like a client's request.

use core::time::Duration;
use std::collections::VecDeque;

use crate::limits::{AUTO_COMPACTION_DIVISOR, AUTO_COMPACTION_REVISION_INTERVAL};

/// What to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Everything.
    #[default]
    Off,
    /// The history of a window of time; longer than zero.
    Periodic(Duration),
    /// So many revisions; at least one.
    Revision(i64),
}

/// The longest time between two periodic compactions.
const INTERVAL_MAX: Duration = Duration::from_secs(60 * 60);

/// Decides when to compact.
#[derive(Debug)]
pub struct AutoCompactor {
    mode: AutoCompaction,
    /// Revisions recorded at even distances, oldest first. Bounded by the records that fit the window.
    records: VecDeque<i64>,
    next: Duration,
    /// Since when this member has kept records without compacting.
    since: Duration,
    /// Whether a whole window has passed once.
    window_passed: bool,
    /// The revision that the last successful compaction went to.
    last: i64,
    /// What was proposed and has not come back.
    proposed: Option<i64>,
}

impl AutoCompactor {
    /// Starts keeping records now.
    pub fn new(now: Duration, mode: AutoCompaction) -> AutoCompactor {
        let next = match mode {
            AutoCompaction::Off => Duration::MAX,
            AutoCompaction::Periodic(_) => now,
            AutoCompaction::Revision(_) => now + AUTO_COMPACTION_REVISION_INTERVAL,
        };
        let records = VecDeque::new();
        AutoCompactor { mode, records, next, since: now, window_passed: false, last: 0, proposed: None }
    }

    /// When [`AutoCompactor::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        (self.mode != AutoCompaction::Off).then_some(self.next)
    }

    /// Time has passed. Returns the revision to compact to, if it is time and this member leads.
    pub fn handle_timeout(&mut self, now: Duration, revision: i64, leads: bool) -> Option<i64> {
        if now < self.next {
            return None;
        }
        let target = match self.mode {
            AutoCompaction::Off => return None,
            AutoCompaction::Periodic(window) => self.periodic(now, window, revision),
            AutoCompaction::Revision(retention) => {
                self.next = now + AUTO_COMPACTION_REVISION_INTERVAL;
                revision - retention
            }
        };
        if !leads || self.proposed.is_some() || target <= 0 || target == self.last || !self.is_due(now) {
            return None;
        }
        self.proposed = Some(target);
        Some(target)
    }

    /// What was proposed came back: compacted, now or before, or not.
    pub fn handle_result(&mut self, now: Duration, compacted: bool) {
        let Some(target) = self.proposed.take() else { return };
        if compacted {
            self.last = target;
            self.since = now;
            self.window_passed = true;
        }
    }

    /// Takes down the revision and returns the oldest one of the window.
    fn periodic(&mut self, now: Duration, window: Duration, revision: i64) -> i64 {
        let distance = window.min(INTERVAL_MAX) / AUTO_COMPACTION_DIVISOR;
        self.next = now + distance;
        let oldest = self.records.front().copied().unwrap_or(0);
        self.records.push_back(revision);
        let kept = window.as_nanos() / distance.as_nanos().max(1) + 1;
        while u128::try_from(self.records.len()).expect("a length fits") > kept {
            self.records.pop_front();
        }
        oldest
    }

    fn is_due(&self, now: Duration) -> bool {
        match self.mode {
            AutoCompaction::Periodic(window) => {
                let interval = if self.window_passed { window.min(INTERVAL_MAX) } else { window };
                now.saturating_sub(self.since) >= interval
            }
            AutoCompaction::Off | AutoCompaction::Revision(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Runs with one revision a minute; returns (minute, target) of each compaction.
    fn run(mode: AutoCompaction, minutes: u32) -> Vec<(u32, i64)> {
        let mut compactor = AutoCompactor::new(Duration::ZERO, mode);
        let mut targets = Vec::new();
        for minute in 0..=minutes {
            let now = MINUTE * minute;
            if let Some(target) = compactor.handle_timeout(now, i64::from(minute) + 1, true) {
                targets.push((minute, target));
                compactor.handle_result(now, true);
            }
        }
        targets
    }

    #[test]
    fn a_window_of_an_hour_is_compacted_every_hour() {
        let targets = run(AutoCompaction::Periodic(MINUTE * 60), 200);
        assert_eq!(targets, [(60, 1), (120, 61 - 6), (180, 121 - 6)]);
    }

    #[test]
    fn a_longer_window_is_kept_whole_and_compacted_every_hour() {
        let targets = run(AutoCompaction::Periodic(MINUTE * 600), 800);
        assert_eq!(targets.len(), 4);
        assert_eq!(targets[0], (600, 1));
        for (minute, target) in &targets[1..] {
            assert!(i64::from(*minute) + 1 - target >= 600, "history of the window is kept: {minute} {target}");
        }
        assert_eq!(targets[1].0, 660);
    }

    #[test]
    fn revisions_are_kept_by_number_and_looked_at_every_five_minutes() {
        let targets = run(AutoCompaction::Revision(10), 20);
        assert_eq!(targets, [(10, 1), (15, 6), (20, 11)]);
    }

    #[test]
    fn a_member_that_does_not_lead_keeps_records_and_compacts_nothing() {
        let mut compactor = AutoCompactor::new(Duration::ZERO, AutoCompaction::Revision(1));
        assert_eq!(compactor.handle_timeout(MINUTE * 5, 100, false), None);
        assert_eq!(compactor.handle_timeout(MINUTE * 10, 100, true), Some(99));
        assert_eq!(compactor.handle_timeout(MINUTE * 15, 200, true), None, "one at a time");
        compactor.handle_result(MINUTE * 15, false);
        assert_eq!(compactor.handle_timeout(MINUTE * 20, 200, true), Some(199), "what failed is tried again");
        assert_eq!(AutoCompactor::new(Duration::ZERO, AutoCompaction::Off).poll_timeout(), None);
    }
}
