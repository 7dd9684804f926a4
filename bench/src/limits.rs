//! Every bound of the load generator.

use std::time::Duration;

/// Most clients in one run.
pub const CLIENTS_MAX: u32 = 20_000;
/// Most connections to one endpoint.
pub const CONNECTIONS_MAX: u32 = 4_096;
/// Most generator threads.
pub const THREADS_MAX: u32 = 64;
/// Most rounds in one run.
pub const ROUNDS_MAX: u32 = 1_000;
/// Rounds on each endpoint where two are compared, unless the command line says otherwise.
pub const COMPARING_ROUNDS: u32 = 5;
/// Bytes of one of the disk's writes.
pub const DISK_BLOCK_BYTES: usize = 4096;
/// Bytes of the file that the disk's writes go to, one block after the other and from its start again.
pub const DISK_FILE_BYTES: usize = 16 * 1024 * 1024;
/// Writes of each form before those that count.
pub const DISK_WARMUP_WRITES: u64 = 50;
/// Most keys in the key space: what the key's decimal digits can tell apart.
pub const KEY_SPACE_MAX: u64 = 10_000_000_000;
/// Decimal digits in a key behind its prefix.
pub const KEY_DIGITS: usize = 10;
/// Largest value, the largest that Garboard's index takes.
pub const VALUE_BYTES_MAX: u32 = 32 * 1024 * 1024;
/// Smallest value of the watch workload, which carries the round's number, the intended start and the put's number.
pub const WATCH_VALUE_BYTES_MIN: u32 = 24;
/// Longest key prefix.
pub const KEY_PREFIX_BYTES_MAX: usize = 256;
/// How long a connection attempt may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between the moment at which all threads are ready and the first intended start of an open-loop run.
pub const OPEN_LOOP_LEAD: Duration = Duration::from_millis(2);
/// Between two lines of progress.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Between two looks of a thread at what its clients have finished; well below the shortest patience, a second.
pub const ACTIVITY_INTERVAL: Duration = Duration::from_millis(200);
/// Largest latency that the histograms hold; a longer one counts as this.
pub const LATENCY_MAX: Duration = Duration::from_secs(3600);
/// Number of places in the random bytes at which a value may begin.
pub const VALUE_POOL_BYTES: usize = 1024 * 1024;
/// Watches on one stream, at most.
pub const WATCHES_PER_STREAM_MAX: u32 = 10_000;
/// Bytes of values of the ranges that disturb, at most: what etcd can still send as one message.
pub const RANGE_BYTES_MAX: u64 = 1_500_000_000;
/// Bytes of each value in those ranges.
pub const RANGE_VALUE_BYTES: u64 = 1024;
/// Between the start of a round and that of what disturbs it.
pub const DISTURBANCE_LEAD: Duration = Duration::from_millis(200);
/// Between two calls of Defragment.
pub const DEFRAGMENT_REST: Duration = Duration::from_millis(500);
/// Between two questions whether a checkpoint is done.
pub const CHECKPOINT_LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Between two looks at the memory of the server.
pub const MEMORY_LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Puts in flight while the key space is filled.
pub const FILL_CLIENTS: u32 = 128;
/// Largest message that a response may be.
pub const RESPONSE_BYTES_MAX: usize = 512 * 1024 * 1024;
/// HTTP/2 receive window of a stream and of a connection: wide, so that flow control is not what is measured.
pub const HTTP2_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

const _: () = assert!(DISK_FILE_BYTES.is_multiple_of(DISK_BLOCK_BYTES));
const _: () = assert!(10u64.pow(KEY_DIGITS as u32) >= KEY_SPACE_MAX);
const _: () = assert!(WATCH_VALUE_BYTES_MIN as usize == 3 * size_of::<u64>());
