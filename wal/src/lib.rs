//! The write-ahead log: batches, shards, segments and recovery, as plain state machines.
