//! A process's monotonic clock: it begins with the process, may go a little too fast or too slow, and may stand still
//! while its machine sleeps.

use std::time::Duration;

const MILLION: u128 = 1_000_000;

/// How a process's clock goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    started_at: Duration,
    /// How long it has stood still since.
    stood_still: Duration,
    /// By how many parts of a million it goes too fast.
    pub drift_ppm: i32,
}

impl Clock {
    /// A process starts.
    pub(super) fn start(&mut self, now: Duration) {
        (self.started_at, self.stood_still) = (now, Duration::ZERO);
    }

    /// It stands still for a while.
    pub fn stand_still(&mut self, duration: Duration) {
        self.stood_still += duration;
    }

    fn rate(&self) -> u128 {
        u128::try_from(1_000_000 + i64::from(self.drift_ppm)).expect("a clock goes forward")
    }

    /// What it shows.
    pub fn at(&self, now: Duration) -> Duration {
        let since = now.saturating_sub(self.started_at).saturating_sub(self.stood_still);
        if self.drift_ppm == 0 { since } else { from_nanos(since.as_nanos() * self.rate() / MILLION) }
    }

    /// The first moment at which it shows this or more.
    pub fn when(&self, clock: Duration) -> Duration {
        let since =
            if self.drift_ppm == 0 { clock } else { from_nanos((clock.as_nanos() * MILLION).div_ceil(self.rate())) };
        since.saturating_add(self.started_at).saturating_add(self.stood_still)
    }
}

fn from_nanos(nanos: u128) -> Duration {
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_is_due_by_the_world_is_due_by_the_clock() {
        for drift_ppm in [-9_999, -500, -1, 0, 1, 333, 10_000] {
            let mut clock = Clock { drift_ppm, ..Clock::default() };
            clock.start(Duration::from_nanos(123_456_789));
            clock.stand_still(Duration::from_nanos(17));
            for nanos in [0, 1, 2, 999, 1_000_001, 10_000_000, 86_400_000_000_123] {
                let timer = Duration::from_nanos(nanos);
                let due = clock.when(timer);
                assert!(clock.at(due) >= timer, "{drift_ppm} {nanos}");
                assert!(nanos == 0 || clock.at(due - Duration::from_nanos(1)) < timer, "{drift_ppm} {nanos}");
            }
        }
    }
}
