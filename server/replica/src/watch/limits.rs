//! The bounds of a watch hub. Those of bytes and records are defaults of [`WatchConfig`](super::WatchConfig).

use core::time::Duration;

/// Most bytes of events pending on one stream, each event counted with its key, its value and
/// [`EVENT_OVERHEAD_BYTES`]. Over it a watcher lags: it goes on from the index once the client has read. A single
/// revision that is larger by itself is let through alone.
pub const STREAM_PENDING_BYTES: usize = 4 << 20;

/// Most bytes of published batches that a hub holds for pending events. Over it the oldest are let go, and watchers to
/// which they are pending lag. A quarter of it is held in any case, for watchers a little behind.
pub const HUB_RECENT_BYTES: usize = 64 << 20;

/// Most bytes of blocks of the history that a hub holds for lagging watchers; the newest block may exceed it.
pub const HUB_HISTORY_BYTES: usize = 16 << 20;

/// A response closes at the revision with which it reaches this size.
pub const RESPONSE_BYTES: usize = 1 << 20;

/// Most records that one step of catching up reads; a block ends at the first revision beyond.
pub const CATCH_UP_RECORDS: usize = 1024;

/// Most bytes that one step of catching up reads.
pub const CATCH_UP_BYTES: usize = 1 << 20;

/// Responses after which lagging watchers get a step although others have events pending.
pub const RESPONSES_PER_CATCH_UP: u32 = 8;

/// What an event is taken to occupy beside its key and value.
pub const EVENT_OVERHEAD_BYTES: usize = 64;

/// Created and canceled responses that wait on a stream beyond which it takes no more requests.
pub const STREAM_CONTROL_RESPONSES: usize = 64;

/// Requests for progress that wait on a stream; further ones are dropped, as a client must expect.
pub const STREAM_PROGRESS_REQUESTS: usize = 16;

/// Watchers of one hub. Further ones are answered as canceled.
pub const HUB_WATCHERS: usize = 1_000_000;

/// The shortest interval of periodic progress.
pub const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// A response's fields beside its events, at their largest: the header's four numbers, the watch's id and the flags.
pub const RESPONSE_FRAME_BYTES: u64 = 80;

/// With few lagging watchers each is held against each event; with more an index made for the step finds them.
pub const DIRECT_MATCH_WATCHERS: usize = 8;

const _: () = assert!(RESPONSE_BYTES <= STREAM_PENDING_BYTES);
const _: () = assert!(CATCH_UP_BYTES <= HUB_HISTORY_BYTES);
const _: () = assert!(STREAM_PENDING_BYTES <= HUB_RECENT_BYTES);
