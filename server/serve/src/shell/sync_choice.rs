//! Which form of a synchronous write is used next.
//!
//! One operation that is synchronous by itself is the faster form, until somebody keeps the processor busy on which the
//! kernel completes it: then it waits for the scheduler, thousands of microseconds, and a write with an fdatasync behind
//! it does not. Nobody can know beforehand when a neighbour will be busy, so the writes themselves tell.

use std::time::Duration;

use garboard_executor::SyncForm;

/// A write that is synchronous by itself and takes longer than this has waited for a processor.
const SLOW: Duration = Duration::from_millis(1);
/// How long the other form is used after the first slow write.
const REST_MIN: Duration = Duration::from_secs(1);
/// Each further slow write doubles the rest, up to this: one slow write a minute is a price no percentile shows.
const REST_MAX: Duration = Duration::from_secs(64);
/// So many fast writes in a row make earlier slow ones forgotten.
const FORGIVEN_AFTER: u32 = 1000;

/// The choice for one log.
#[derive(Debug)]
pub struct SyncChoice {
    /// Until when the write with a sync behind it is used.
    resting_until: Duration,
    /// How long the next rest will be.
    rest: Duration,
    /// Fast writes since the last slow one.
    fast: u32,
}

impl Default for SyncChoice {
    fn default() -> SyncChoice {
        SyncChoice { resting_until: Duration::ZERO, rest: REST_MIN, fast: 0 }
    }
}

impl SyncChoice {
    /// The form of a write that begins now.
    pub fn form(&self, now: Duration) -> SyncForm {
        if now < self.resting_until { SyncForm::ThenFdatasync } else { SyncForm::Dsync }
    }

    /// A write of this form ended now and took so long.
    pub fn handle_done(&mut self, now: Duration, form: SyncForm, took: Duration) {
        // Of several writes that wait behind one neighbour the first one counts.
        if form == SyncForm::ThenFdatasync || now < self.resting_until {
            return;
        }
        if took > SLOW {
            self.resting_until = now + self.rest;
            self.rest = (self.rest * 2).min(REST_MAX);
            self.fast = 0;
            return;
        }
        self.fast = self.fast.saturating_add(1);
        if self.fast >= FORGIVEN_AFTER {
            self.rest = REST_MIN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(80);
    const WAITED: Duration = Duration::from_millis(4);

    #[test]
    fn a_write_is_synchronous_by_itself_until_one_was_slow_and_again_after_a_rest() {
        let mut choice = SyncChoice::default();
        let mut now = Duration::from_secs(10);
        assert_eq!(choice.form(now), SyncForm::Dsync);
        choice.handle_done(now, SyncForm::Dsync, FAST);
        assert_eq!(choice.form(now), SyncForm::Dsync);
        choice.handle_done(now, SyncForm::Dsync, WAITED);
        assert_eq!(choice.form(now), SyncForm::ThenFdatasync);
        now += REST_MIN;
        assert_eq!(choice.form(now), SyncForm::Dsync);
    }

    #[test]
    fn behind_a_neighbour_that_stays_busy_one_write_a_minute_is_slow() {
        let mut choice = SyncChoice::default();
        let (mut now, mut slow) = (Duration::ZERO, 0);
        while now < Duration::from_secs(3600) {
            let form = choice.form(now);
            let took = if form == SyncForm::Dsync { WAITED } else { FAST };
            slow += u32::from(form == SyncForm::Dsync);
            now += took;
            choice.handle_done(now, form, took);
            now += Duration::from_millis(1);
        }
        assert!((50..=70).contains(&slow), "{slow} slow writes in an hour");
    }

    #[test]
    fn a_neighbour_that_went_away_is_forgiven() {
        let mut choice = SyncChoice::default();
        let mut now = Duration::ZERO;
        for _ in 0..10 {
            choice.handle_done(now, SyncForm::Dsync, WAITED);
            now += REST_MAX;
        }
        for _ in 0..FORGIVEN_AFTER {
            choice.handle_done(now, SyncForm::Dsync, FAST);
        }
        choice.handle_done(now, SyncForm::Dsync, WAITED);
        assert_eq!(choice.form(now + REST_MIN), SyncForm::Dsync);
    }

    #[test]
    fn writes_that_waited_together_count_once() {
        let mut choice = SyncChoice::default();
        let now = Duration::from_secs(1);
        for _ in 0..8 {
            choice.handle_done(now, SyncForm::Dsync, WAITED);
        }
        assert_eq!(choice.form(now + REST_MIN), SyncForm::Dsync);
    }
}
