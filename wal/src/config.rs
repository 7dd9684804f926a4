//! What an operator may choose about the log.

use core::time::Duration;

use crate::limits;

/// The log's configuration. [`LogConfig::default`] gives what the limits recommend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The keyspace whose entries this log holds.
    pub keyspace: u32,
    /// Shards that batches are written to: 0 to `shards` − 1. One unless several measure better.
    pub shards: u16,
    /// Size of a segment; a multiple of the alignment.
    pub segment_size_bytes: u64,
    /// Synchronous writes in flight in each shard.
    pub writes_in_flight_max: u16,
    /// A batch is closed before it grows beyond this, unless one entry alone is larger.
    pub batch_size_max_bytes: u64,
    /// How long nothing must have been written before a seal is.
    pub seal_after_idle: Duration,
    /// Under load, a seal is written after so many batches; at least 1.
    pub seal_after_batches: u64,
    /// How long to wait after a full disk before preparing a segment is tried again.
    pub prepare_retry: Duration,
}

/// A configuration that the log cannot keep its promises with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Shards out of bounds.
    #[error("wal shards must be between 1 and {}", limits::SHARDS_MAX)]
    Shards,
    /// Segment size out of bounds, unaligned, or too large for the number of shards.
    #[error(
        "wal segment size must be a multiple of {} between {} and {max} bytes for this number of shards",
        limits::ALIGNMENT,
        limits::SEGMENT_SIZE_MIN_BYTES
    )]
    SegmentSize {
        /// The largest size with which the reservation stays within its bound.
        max: u64,
    },
    /// Writes in flight out of bounds.
    #[error("wal writes in flight must be between 1 and {}", limits::WRITES_IN_FLIGHT_MAX)]
    WritesInFlight,
    /// Batch size out of bounds.
    #[error("wal batch size must be between {} bytes and a segment less its first {} bytes", limits::ALIGNMENT,
        limits::ALIGNMENT * (limits::SEAL_SLOTS + 1))]
    BatchSize,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig::for_shards(1)
    }
}

impl LogConfig {
    /// The default configuration for a number of shards; segments shrink so that what is reserved at start stays within
    /// [`limits::RESERVED_AT_START_MAX_BYTES`].
    ///
    /// # Panics
    /// When `shards` is 0 or above [`limits::SHARDS_MAX`].
    pub fn for_shards(shards: u16) -> LogConfig {
        LogConfig {
            keyspace: 0,
            shards,
            segment_size_bytes: limits::segment_size_for(shards),
            writes_in_flight_max: limits::WRITES_IN_FLIGHT_DEFAULT,
            batch_size_max_bytes: limits::BATCH_SIZE_DEFAULT_BYTES,
            seal_after_idle: Duration::from_millis(limits::SEAL_AFTER_IDLE_DEFAULT_MS),
            seal_after_batches: limits::SEAL_AFTER_BATCHES_DEFAULT,
            prepare_retry: Duration::from_millis(limits::PREPARE_RETRY_MS),
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first bound that is not kept.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.shards == 0 || self.shards > limits::SHARDS_MAX {
            return Err(ConfigError::Shards);
        }
        let max = limits::RESERVED_AT_START_MAX_BYTES / (limits::PREPARED_SEGMENTS * u64::from(self.shards));
        let size = self.segment_size_bytes;
        if size < limits::SEGMENT_SIZE_MIN_BYTES || size > max || !size.is_multiple_of(limits::ALIGNMENT) {
            return Err(ConfigError::SegmentSize { max });
        }
        assert!(self.reserved_at_start_bytes() <= limits::RESERVED_AT_START_MAX_BYTES);
        if self.writes_in_flight_max == 0 || self.writes_in_flight_max > limits::WRITES_IN_FLIGHT_MAX {
            return Err(ConfigError::WritesInFlight);
        }
        let batch_max = size - limits::ALIGNMENT * (limits::SEAL_SLOTS + 1);
        if self.batch_size_max_bytes < limits::ALIGNMENT || self.batch_size_max_bytes > batch_max {
            return Err(ConfigError::BatchSize);
        }
        Ok(())
    }

    /// What the log reserves on disk before anything is written.
    pub fn reserved_at_start_bytes(&self) -> u64 {
        u64::from(self.shards) * limits::PREPARED_SEGMENTS * self.segment_size_bytes
    }

    /// Most batches in flight: no batch is closed whose sequence number is further beyond the durable prefix.
    pub fn window(&self) -> u32 {
        u32::from(self.shards) * u32::from(self.writes_in_flight_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_at_start_is_bounded_whatever_the_number_of_shards() {
        for shards in 1..=limits::SHARDS_MAX {
            let config = LogConfig::for_shards(shards);
            config.validate().unwrap();
            assert!(config.reserved_at_start_bytes() <= 256 << 20);
        }
        assert_eq!(LogConfig::for_shards(8).segment_size_bytes, 16 << 20);
        assert_eq!(LogConfig::for_shards(64).segment_size_bytes, 2 << 20);
        let greedy = LogConfig { segment_size_bytes: 16 << 20, ..LogConfig::for_shards(9) };
        assert!(matches!(greedy.validate(), Err(ConfigError::SegmentSize { .. })));
    }
}
