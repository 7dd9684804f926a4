//! The bounds of the edge: connections, calls, and the memory that clients can make a core hold.
//!
//! The table in `docs/operations.md` lists these with those of the replica, the watches and the index, and what happens
//! when each is reached.

use core::time::Duration;

/// Connections that the kernel keeps until they are accepted.
pub const ACCEPT_BACKLOG: i32 = 1024;

/// Most connections one core serves; further ones are closed at once.
pub const CONNECTIONS_PER_CORE_MAX: u32 = 16_384;

/// Most calls under way on one connection, unless `--max-concurrent-streams` says less; HTTP/2 holds further ones back.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 16_384;

/// Most calls under way on one core; further ones are answered [`Error::TooManyRequests`](garboard_replica::Error).
pub const CALLS_PER_CORE_MAX: usize = 65_536;

/// Most requests of one core that wait for the home core; further ones are answered
/// [`Error::TooManyRequests`](garboard_replica::Error).
pub const PENDING_REQUESTS_MAX: usize = 65_536;

/// Bytes of requests that a core holds on their way to the log, most. A message's bytes are set aside whole once its
/// length is known; while there are not so many left it waits for its turn, and HTTP/2 holds its client back.
pub const REQUEST_BYTES_PER_CORE: usize = 64 << 20;

/// Bytes of answers that a core holds until their clients have taken them, most: a quarter of it for small ones and the
/// rest for large ones, so that nobody's lists are in the way of anybody's keys. While there is no room an answer is not
/// begun; clients that have taken nothing for [`ANSWER_STALL`] are then disconnected.
pub const ANSWER_BYTES_PER_CORE: usize = 64 << 20;

/// The share of that which one connection may hold, so that it takes several to fill it.
pub const ANSWER_SHARE_PER_CONNECTION: usize = 8;

/// Longest answer that counts as small.
pub const MEDIUM_ANSWER_BYTES: usize = 64 << 10;

/// The share of the memory that the process may use which each of these two budgets and the watches' get, all cores
/// together, where that is less.
pub const BUDGET_SHARE_OF_MEMORY: u64 = 32;

/// The least either budget has on a core: one message of the usual largest size and some small ones.
pub const BUDGET_BYTES_MIN: usize = 4 << 20;

/// Calls that wait for either budget on one core; further ones are answered
/// [`Error::TooManyRequests`](garboard_replica::Error).
pub const BUDGET_WAITERS_MAX: usize = 1_024;

/// An answer up to this long is counted as part of its call instead of against the budget.
pub const SMALL_ANSWER_BYTES: usize = 2 << 10;

/// Bytes of a long answer that are read from the index and handed to the connection at a time.
pub const ANSWER_PIECE_BYTES: usize = 256 << 10;

/// Room that is set aside for a chunk of a range stream while it is made: what one is long at the usual request size.
pub const STREAM_CHUNK_ROOM: usize = 3 << 19;

/// Steps of long reads that a core has under way at a time, of about a millisecond each; the others wait for their turn.
/// So however many read at length, whoever reads a key waits for few of them.
pub const LONG_STEPS_PER_CORE: usize = 4;

/// Long reads whose answers are measured on one connection at a time; its others wait, so that a connection that asks for
/// much has no more turns than others.
pub const LONG_SCANS_PER_CONNECTION: usize = 2;

/// How far one step of a long read goes: some 100 µs of work, for which everything else on the core waits.
pub const LONG_STEP_KEYS: usize = 256;
/// The same in bytes of the answer.
pub const LONG_STEP_BYTES: usize = 32 << 10;

/// How far apart the steps of long reads begin on one core while writes are under way: some 70 MB/s.
pub const LONG_STEP_INTERVAL: Duration = Duration::from_micros(450);

/// How long after the last write the steps of long reads keep that distance.
pub const WRITES_RECENT: Duration = Duration::from_millis(10);

/// How long batches of events wake no streams after one that woke some, for each of these.
pub const WATCH_REST_PER_STREAM: Duration = Duration::from_micros(10);

/// The same, most: what an event may be late for.
pub const WATCH_REST_MAX: Duration = Duration::from_millis(2);

/// Share of an interval that the home core's thread waits for its processor, in thousandths, from which the machine
/// counts as crowded: long reads on other cores then keep the distance as well.
pub const CROWDED_PERMILLE: u64 = 30;

/// How long the machine counts as crowded after it was seen to be.
pub const CROWDED_FOR: Duration = Duration::from_secs(10);

/// Keys that a read walks before it counts as long.
pub const SHORT_READ_KEYS: usize = 256;

/// Bytes that a read gathers before it counts as long.
pub const SHORT_READ_BYTES: usize = 64 << 10;

/// While calls wait for room to answer, a connection that holds some of it and has taken nothing for so long is closed.
pub const ANSWER_STALL: Duration = Duration::from_secs(2);

/// Bytes a client may send ahead on one call.
pub const STREAM_WINDOW_BYTES: u32 = 512 << 10;

/// Bytes a client may send ahead on one connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Bytes that HTTP/2 may hold for a client to take, on each call, beside the piece it was given last.
pub const STREAM_SEND_BUFFER_BYTES: usize = 256 << 10;

/// Longest list of headers of one call; longer ones are refused with 431.
pub const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;

/// Longest HTTP/2 frame that clients may send.
pub const FRAME_BYTES_MAX: u32 = 16 << 10;

/// Bytes of the table that HTTP/2 keeps of a client's headers.
pub const HEADER_TABLE_BYTES: u32 = 4 << 10;

/// Calls that a client may have reset before they were looked at; one more ends the connection.
pub const RESETS_UNSEEN_MAX: usize = 20;

/// Calls that this side may reset for what the client did wrong; one more ends the connection.
pub const RESETS_FOR_ERRORS_MAX: usize = 1_024;

/// Reads of one core that sort more than [`SORT_ROWS_FREE`] rows at a time; further ones wait for their turn.
pub const SORTS_PER_CORE_MAX: usize = 2;

/// A sorted read whose limit is not beyond this keeps so little that it needs no turn.
pub const SORT_ROWS_FREE: i64 = 10_000;

/// From the connection's start until the client has sent HTTP/2's preface and its settings.
pub const GREETING_TIME_MAX: Duration = Duration::from_secs(10);

/// From the first byte of a call's headers, or of another frame without data, to the last one.
pub const HEADERS_TIME_MAX: Duration = Duration::from_secs(10);

/// Between two bytes of a frame of data.
pub const DATA_PAUSE_MAX: Duration = Duration::from_secs(20);

/// From a unary call's headers until its request is whole.
pub const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a call waits for room or for its turn, if its client does; then it is answered
/// [`Error::TooManyRequests`](garboard_replica::Error).
pub const TURN_TIME_MAX: Duration = Duration::from_secs(60);

/// While requests wait for room, one that has room set aside is given up once nothing of it came for so long.
pub const REQUEST_PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long a client may take nothing of what waits in its socket, while its kernel still answers.
pub const SOCKET_STALL_MAX: Duration = Duration::from_secs(120);

/// How often deadlines are looked at: each is met this much later at most.
pub const TICK: Duration = Duration::from_millis(100);

/// Messages that a queue between two cores holds before they wait in front of it.
pub const QUEUE_MESSAGES: usize = 256;

/// Messages that may wait for one core before the home core stops taking requests.
pub const BACKLOG_MESSAGES_MAX: usize = 4_096;

/// Bytes of events that may be on their way to one core before the home core stops taking requests.
pub const BACKLOG_BYTES_MAX: usize = 32 << 20;

const _: () = assert!(STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
const _: () = assert!(CONNECTION_WINDOW_BYTES as usize <= BUDGET_BYTES_MIN);
const _: () = assert!(SMALL_ANSWER_BYTES < MEDIUM_ANSWER_BYTES && MEDIUM_ANSWER_BYTES < ANSWER_PIECE_BYTES);
const _: () = assert!(ANSWER_PIECE_BYTES <= BUDGET_BYTES_MIN / ANSWER_SHARE_PER_CONNECTION * 3 / 4);
const _: () = assert!(BUDGET_BYTES_MIN <= REQUEST_BYTES_PER_CORE && BUDGET_BYTES_MIN <= ANSWER_BYTES_PER_CORE);

/// How much longer than a request's time limit a core waits for the home core to say so, and why.
pub const HOME_ANSWER_GRACE: Duration = Duration::from_millis(250);
