//! Bounds of links. What is beyond one waits, is dropped with a count, or is refused, as said at each.

use core::time::Duration;

/// Bytes of control frames that wait to be sent to a peer. More are dropped: late is as good as lost.
pub const CONTROL_QUEUE_BYTES: usize = 256 * 1024;
/// Bytes of log frames that wait to be sent to a peer. More are refused, except that one frame of any size may always
/// wait alone, so that every entry gets through.
pub const LOG_QUEUE_BYTES: usize = 32 * 1024 * 1024;
/// The same for bulk frames.
pub const BULK_QUEUE_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of the log or bulk stream that QUIC holds until they are acknowledged.
pub const STREAM_SEND_BYTES: u64 = 8 * 1024 * 1024;
/// What QUIC may hold beyond that for the control stream, so that a full log never keeps a heartbeat out.
pub const CONTROL_SEND_BYTES: u64 = 512 * 1024;
/// Bytes that a peer may send on one stream ahead of what has been read here.
pub const STREAM_RECEIVE_BYTES: u32 = 8 * 1024 * 1024;

/// Received frames that wait to be fetched. Beyond it no stream but the control streams is read, and QUIC's flow
/// control holds the peers back.
pub const RECEIVED_BYTES: usize = 32 * 1024 * 1024;

/// Members that are not known here and whose links are taken all the same: they may have been added by entries that this
/// member has not got yet, and one of them may lead. More are refused.
pub const STRANGERS_MAX: usize = 8;
/// Connections for each known member, under way or closing; a new one beyond that is refused.
pub const CONNECTIONS_PER_PEER: usize = 8;

/// A connection that has not shown a valid hello by then is closed.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// An address that was asked for and not given is asked for again after this.
pub const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// The first wait before a peer is dialed again; each failure doubles it.
pub const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest wait between two dials, before jitter.
pub const RETRY_MAX: Duration = Duration::from_millis(1_000);

/// The congestion window never falls below this, so that heartbeats and small appends are not held back by losses that
/// are the path's and no sign of congestion.
pub const WINDOW_BYTES_MIN: u64 = 64 * 1024;
/// The congestion window that a connection starts with. Peers are few, near, and often idle.
pub const WINDOW_BYTES_FIRST: u64 = 256 * 1024;

/// Datagrams that are handed to the kernel in one piece.
pub const DATAGRAMS_PER_TRANSMIT: usize = 40;

const _: () = assert!(CONTROL_SEND_BYTES >= CONTROL_QUEUE_BYTES as u64, "a full control queue fits beside a full log");
