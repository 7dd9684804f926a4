//! The bounds of reads.

/// Most keys one step of a long read walks before it lets go of its root.
pub const STEP_KEYS: usize = 4096;

/// Most bytes of keys and values one step of a long read gathers before it lets go of its root; one row may exceed it.
pub const STEP_BYTES: usize = 1 << 20;

/// Most bytes that the rows of a sorted read may occupy while they wait to be sorted. A sort needs all its rows at
/// once; over the bound the read is refused with [`Error::TooManyRequests`](crate::Error::TooManyRequests), and the
/// client can ask for less: a limit, a smaller range, or key order.
pub const SORT_BYTES_MAX: usize = 256 << 20;

/// Rows of a range stream's first chunk.
pub const STREAM_FIRST_CHUNK_ROWS: u64 = 10;

/// Most bytes of encoded rows that the first pass over a large range keeps, so that a small answer needs no second one.
pub const SCAN_HEAD_BYTES: usize = 256 << 10;

const _: () = assert!(STEP_KEYS > 0 && STEP_BYTES > 0);
const _: () = assert!(SORT_BYTES_MAX >= STEP_BYTES);
