//! The pace of long reads while writes are under way.
//!
//! A long read would take all the processor it gets, and its client as much again: on a machine without processors to
//! spare, every stage of a write then waits for a turn behind it. So while writes are under way the steps of long reads
//! begin one after the other, a fixed time apart, on the home core, and on each core of a crowded machine; otherwise
//! they run as fast as they can.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::limits::{CROWDED_FOR, CROWDED_PERMILLE, LONG_STEP_INTERVAL, WRITES_RECENT};

/// The pace of one core's long reads.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the next step may begin while writes are under way.
    next: Cell<Duration>,
}

impl Pace {
    /// Takes the next place for a step that is asked for at `now`. Returns how long it must wait; nothing if it may begin
    /// at once.
    pub fn claim(&self, now: Duration) -> Option<Duration> {
        let begin = self.next.get().max(now);
        self.next.set(begin + LONG_STEP_INTERVAL);
        Some(begin - now).filter(|wait| !wait.is_zero())
    }
}

/// What the home core tells the others of how it fares. Times are since the process's start, in microseconds.
#[derive(Debug, Default)]
pub struct HomeTraffic {
    /// When writes were last under way; 0 before the first.
    last_write_us: AtomicU64,
    /// Until when the machine counts as crowded.
    crowded_until_us: AtomicU64,
}

impl HomeTraffic {
    /// Writes are under way.
    pub fn note_writes(&self, now: Duration) {
        self.last_write_us.store(micros(now), Ordering::Relaxed);
    }

    /// The home core's thread waited for its processor for `waited` of an interval.
    pub fn note_waiting(&self, now: Duration, waited: Duration, interval: Duration) {
        if micros(waited) * 1000 >= CROWDED_PERMILLE * micros(interval) {
            self.crowded_until_us.store(micros(now + CROWDED_FOR), Ordering::Relaxed);
        }
    }

    /// Whether long reads on this core keep their distance now.
    pub fn holds_reads(&self, now: Duration, is_home: bool) -> bool {
        let last_write = self.last_write_us.load(Ordering::Relaxed);
        let writing = last_write > 0 && micros(now) <= last_write + micros(WRITES_RECENT);
        writing && (is_home || micros(now) < self.crowded_until_us.load(Ordering::Relaxed))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_keep_their_distance() {
        let pace = Pace::default();
        let now = Duration::from_secs(1);
        assert_eq!(pace.claim(now), None);
        assert_eq!(pace.claim(now), Some(LONG_STEP_INTERVAL));
        assert_eq!(pace.claim(now), Some(2 * LONG_STEP_INTERVAL));
        let later = now + 5 * LONG_STEP_INTERVAL;
        assert_eq!(pace.claim(later), None, "places that nobody took are not made up for");
        assert_eq!(pace.claim(later), Some(LONG_STEP_INTERVAL));
    }

    #[test]
    fn reads_are_held_while_writes_are_under_way_at_home_and_where_processors_are_short() {
        let traffic = HomeTraffic::default();
        let now = Duration::from_secs(1);
        assert!(!traffic.holds_reads(now, true), "nothing was written yet");
        traffic.note_writes(now);
        assert!(traffic.holds_reads(now, true));
        assert!(!traffic.holds_reads(now, false), "there are processors to spare");
        let interval = Duration::from_millis(100);
        traffic.note_waiting(now, interval / 50, interval);
        assert!(!traffic.holds_reads(now, false));
        traffic.note_waiting(now, interval / 20, interval);
        assert!(traffic.holds_reads(now, false));
        let later = now + WRITES_RECENT + Duration::from_micros(1);
        assert!(!traffic.holds_reads(later, true) && !traffic.holds_reads(later, false), "writes are over");
        let later = now + CROWDED_FOR;
        traffic.note_writes(later);
        assert!(traffic.holds_reads(later, true) && !traffic.holds_reads(later, false));
    }
}
