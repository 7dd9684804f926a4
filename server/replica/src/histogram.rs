//! Latencies as fixed arrays of counters.
//!
//! Buckets are log-linear: each power of two of nanoseconds is divided into eight, so that a value is known within
//! 12.5 %. There is no clock here: durations come in.

use core::time::Duration;

/// Buckets in a power of two.
const SUB_BUCKETS: u64 = 8;
/// Powers of two below this share linear buckets of a nanosecond.
const LINEAR_BITS: u32 = 3;
/// Values beyond 2^40 ns, 18 minutes, count as that.
const MAX_BITS: u32 = 40;
/// Number of buckets.
pub const BUCKET_COUNT: usize = 304;

const _: () = assert!(SUB_BUCKETS == 1 << LINEAR_BITS);
// `as` because the conversions that can fail are not const; both widen.
const _: () = assert!(BUCKET_COUNT as u64 == SUB_BUCKETS * (MAX_BITS - LINEAR_BITS + 1) as u64);

/// Counts of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKET_COUNT],
    count: u64,
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKET_COUNT], count: 0, sum_ns: 0 }
    }
}

/// The bucket in which a duration is counted.
pub fn bucket_of(duration: Duration) -> usize {
    bucket(nanos(duration))
}

impl Histogram {
    /// What was counted elsewhere, in the same buckets.
    pub fn from_counts(counts: [u64; BUCKET_COUNT], sum: Duration) -> Histogram {
        Histogram { count: counts.iter().sum(), counts, sum_ns: nanos(sum) }
    }

    /// Counts a duration.
    pub fn record(&mut self, duration: Duration) {
        let nanos = nanos(duration);
        self.counts[bucket(nanos)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Buckets that are not empty: the smallest duration beyond the bucket, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (Duration::from_nanos(bucket_end(bucket)), *count))
    }

    /// A duration that at least the share `quantile` of what was counted does not exceed.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let rank = (quantile.clamp(0.0, 1.0) * self.count as f64).ceil();
        let mut seen = 0;
        for (end, count) in self.buckets() {
            seen += count;
            if seen as f64 >= rank {
                return end;
            }
        }
        Duration::ZERO
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.min((1 << MAX_BITS) - 1);
    let bits = u64::BITS - nanos.leading_zeros();
    let index = if bits <= LINEAR_BITS {
        nanos
    } else {
        let shift = bits - LINEAR_BITS - 1;
        u64::from(shift + 1) * SUB_BUCKETS + ((nanos >> shift) - SUB_BUCKETS)
    };
    usize::try_from(index).expect("a bucket's number is small")
}

fn bucket_end(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).expect("a bucket's number is small");
    let (power, sub) = (bucket / SUB_BUCKETS, bucket % SUB_BUCKETS);
    match power.checked_sub(1) {
        None => sub + 1,
        Some(shift) => (SUB_BUCKETS + sub + 1) << shift,
    }
}

/// Where the time of a batch of writes goes within the member. What follows, until the answers are on their way to the
/// clients, is counted on the cores that hold the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// From the asking of the batch's oldest request until the batch's log write is handed out.
    pub queue: Histogram,
    /// From there until the write is durable.
    pub wal_write: Histogram,
    /// From there until a quorum has made it durable, too, and this member knows. Nothing without other members.
    pub replicate: Histogram,
    /// From there until the new state is published.
    pub apply: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let mut last = 0;
        let values = (0..2_000).chain((0..40).flat_map(|bits| {
            let power = 1_u64 << bits;
            [power - 1, power, power + 1, power + power / 2]
        }));
        for nanos in values {
            let bucket = bucket(nanos);
            let start = if bucket == 0 { 0 } else { bucket_end(bucket - 1) };
            assert!(start <= nanos && nanos < bucket_end(bucket), "{nanos} is outside bucket {bucket}");
            assert!(bucket_end(bucket) - start <= (start / 8).max(1), "bucket {bucket} is too wide");
            last = last.max(bucket);
        }
        assert_eq!(super::bucket(u64::MAX), BUCKET_COUNT - 1);
        assert!(last < BUCKET_COUNT);
    }

    #[test]
    fn quantiles_are_known_within_a_bucket() {
        let mut histogram = Histogram::default();
        for micros in 1..=1_000 {
            histogram.record(Duration::from_micros(micros));
        }
        let median = histogram.quantile(0.5).as_secs_f64() * 1e6;
        assert!((500.0..=562.5).contains(&median), "{median}");
        assert_eq!(histogram.count(), 1_000);
        assert_eq!(histogram.sum(), Duration::from_micros(500_500));
        assert_eq!(Histogram::default().quantile(0.99), Duration::ZERO);
    }

    #[test]
    fn counts_kept_elsewhere_make_the_same_histogram() {
        let (mut histogram, mut counts) = (Histogram::default(), [0; BUCKET_COUNT]);
        for micros in 1..=100 {
            let duration = Duration::from_micros(micros);
            histogram.record(duration);
            counts[bucket_of(duration)] += 1;
        }
        assert_eq!(Histogram::from_counts(counts, histogram.sum()), histogram);
    }
}
