//! When each operation should start.

use std::time::Duration;

/// The intended starts of an open loop: operation `i` of the whole run is due `i / rate` seconds after its start,
/// however long those before it took. Latency is counted from there, so a server that stalls is charged for every
/// operation that should have started meanwhile, and not only for the few that a blocked client had sent.
///
/// The operations are dealt to the generator's threads in turn, so that the threads need no shared counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    rate_per_second: f64,
    thread: u64,
    thread_count: u64,
}

impl Schedule {
    /// The share of thread `thread` of `thread_count` in a run at `rate_per_second` operations in all.
    pub fn new(rate_per_second: f64, thread: u32, thread_count: u32) -> Self {
        assert!(rate_per_second.is_finite() && rate_per_second > 0.0, "a rate is a positive number");
        assert!(thread < thread_count, "a thread's number is below the count of threads");
        Self { rate_per_second, thread: u64::from(thread), thread_count: u64::from(thread_count) }
    }

    /// The intended start of this thread's `local_index`-th operation, counted from the start of the run.
    pub fn intended_start(&self, local_index: u64) -> Duration {
        let index = global_index(local_index, self.thread, self.thread_count);
        Duration::from_secs_f64(index as f64 / self.rate_per_second)
    }

    /// How many of this thread's operations are due at `now`, of `total` that it has.
    pub fn due(&self, now: Duration, total: u64) -> u64 {
        let whole = (now.as_secs_f64() * self.rate_per_second).floor() as u64;
        // The estimate may be off by one in either direction, for floating point rounds; intended_start decides.
        let mut due = whole.saturating_sub(self.thread).div_ceil(self.thread_count).min(total);
        while due < total && self.intended_start(due) <= now {
            due += 1;
        }
        while due > 0 && self.intended_start(due - 1) > now {
            due -= 1;
        }
        due
    }
}

/// How many of `total` operations fall to thread `thread`, when they are dealt in turn.
pub fn share(total: u64, thread: u32, thread_count: u32) -> u64 {
    assert!(thread < thread_count, "a thread's number is below the count of threads");
    let (thread, thread_count) = (u64::from(thread), u64::from(thread_count));
    total / thread_count + u64::from(thread < total % thread_count)
}

/// The number in the whole run of a thread's `local_index`-th operation.
pub fn global_index(local_index: u64, thread: u64, thread_count: u64) -> u64 {
    local_index * thread_count + thread
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn starts_are_spaced_by_the_rate_whatever_happened_before() {
        let schedule = Schedule::new(1_000.0, 0, 1);
        assert_eq!(schedule.intended_start(0), Duration::ZERO);
        assert_eq!(schedule.intended_start(1), Duration::from_millis(1));
        assert_eq!(schedule.intended_start(5_000), Duration::from_secs(5));
    }

    #[test]
    fn a_late_look_at_the_clock_finds_every_missed_start_due() {
        let schedule = Schedule::new(1_000.0, 0, 1);
        assert_eq!(schedule.due(Duration::ZERO, 10_000), 1);
        assert_eq!(schedule.due(Duration::from_micros(999), 10_000), 1);
        assert_eq!(schedule.due(Duration::from_millis(1), 10_000), 2);
        assert_eq!(schedule.due(Duration::from_secs(3), 10_000), 3_001);
        assert_eq!(schedule.due(Duration::from_secs(60), 10_000), 10_000);
    }

    #[test]
    fn threads_interleave_into_one_even_schedule() {
        let mut starts: Vec<Duration> = (0..3)
            .flat_map(|thread| {
                let schedule = Schedule::new(300.0, thread, 3);
                (0..share(10, thread, 3)).map(move |i| schedule.intended_start(i))
            })
            .collect();
        starts.sort();
        let whole: Vec<Duration> = (0..10).map(|i| Schedule::new(300.0, 0, 1).intended_start(i)).collect();
        assert_eq!(starts, whole);
    }

    proptest! {
        #[test]
        fn due_counts_exactly_the_starts_that_have_passed(
            rate in 0.5f64..200_000.0, threads in 1u32..8, now_us in 0u64..20_000_000, pick in 0u32..8,
        ) {
            let schedule = Schedule::new(rate, pick % threads, threads);
            let now = Duration::from_micros(now_us);
            let due = schedule.due(now, u64::MAX / 16);
            prop_assert!(due == 0 || schedule.intended_start(due - 1) <= now);
            prop_assert!(schedule.intended_start(due) > now);
        }

        #[test]
        fn shares_deal_every_operation_once(total in 0u64..100_000, threads in 1u32..64) {
            prop_assert_eq!((0..threads).map(|thread| share(total, thread, threads)).sum::<u64>(), total);
        }
    }
}
