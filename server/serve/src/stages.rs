//! How long answers to writes take on their way back: from the publishing of a batch to the socket.
//!
//! What comes before is counted by the member. Each core counts for its own connections, and any core may read it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use garboard_replica::histogram::{BUCKET_COUNT, Histogram, bucket_of};

/// The times of one core's answers: written by that core alone, read by any.
#[derive(Debug)]
pub struct ReplyTimes {
    counts: [AtomicU64; BUCKET_COUNT],
    sum_ns: AtomicU64,
}

impl Default for ReplyTimes {
    fn default() -> ReplyTimes {
        ReplyTimes { counts: [const { AtomicU64::new(0) }; BUCKET_COUNT], sum_ns: AtomicU64::new(0) }
    }
}

impl ReplyTimes {
    /// Counts a duration; for the core whose times these are.
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        add(&self.counts[bucket_of(duration)], 1);
        add(&self.sum_ns, nanos);
    }

    /// What has been counted so far. While the core goes on counting, the sum may be ahead of the counts or behind them.
    pub fn read(&self) -> Histogram {
        let counts = std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed));
        Histogram::from_counts(counts, Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)))
    }
}

/// Adds where nobody else writes, without a locked instruction.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// When the oldest write of a connection was published whose answer is not in its socket yet.
#[derive(Clone, Debug, Default)]
pub struct Unsent(Rc<Cell<Option<Duration>>>);

impl Unsent {
    /// An answer to a write goes to the connection.
    pub fn answered(&self, published: Duration) {
        let oldest = self.0.get().map_or(published, |oldest| oldest.min(published));
        self.0.set(Some(oldest));
    }

    /// Something was written to the socket: what waited is in it.
    pub fn take(&self) -> Option<Duration> {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_core_counted_is_read_as_one_histogram() {
        let times = ReplyTimes::default();
        let mut expected = Histogram::default();
        for micros in [1, 50, 50, 4_000] {
            times.record(Duration::from_micros(micros));
            expected.record(Duration::from_micros(micros));
        }
        assert_eq!(times.read(), expected);
    }

    #[test]
    fn a_write_to_the_socket_counts_for_the_oldest_answer_and_once() {
        let unsent = Unsent::default();
        unsent.answered(Duration::from_micros(7));
        unsent.answered(Duration::from_micros(5));
        unsent.answered(Duration::from_micros(9));
        assert_eq!(unsent.take(), Some(Duration::from_micros(5)));
        assert_eq!(unsent.take(), None);
    }
}
