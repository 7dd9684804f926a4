//! Every bound of what a peer may send. What is beyond one is refused before anything is allocated for it.

use raft::eraftpb::Entry;

/// Longest body of a frame: an entry that holds one request of the largest size that a server can be set to take, with
/// room for what surrounds it.
pub const BODY_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// Room that is made for a body when its first bytes come; more follows what has arrived.
pub const BODY_FIRST_STEP_BYTES: usize = 64 * 1024;

/// Most entries in a frame. An entry that carries nothing takes several times its wire size in memory, so their number
/// is bounded for itself.
pub const ENTRIES_MAX: u32 = 16_384;

/// Longest context of a message: those of reads, which we make, and of a transfer's campaign, which raft-rs makes.
pub const CONTEXT_BYTES_MAX: u32 = 1_024;

/// Most members in each list of a snapshot's membership.
pub const MEMBERS_MAX: u32 = 1_024;

/// Largest log index. Sums of a few of them cannot overflow, and no log gets there: a million entries a second take
/// two thousand years.
pub const INDEX_MAX: u64 = 1 << 56;

/// Largest term, for the same reasons.
pub const TERM_MAX: u64 = 1 << 56;

const _: () = assert!(
    size_of::<Entry>() * (ENTRIES_MAX as usize) <= BODY_BYTES_MAX as usize,
    "decoded entries, without their data, take no more memory than the largest frame"
);
const _: () = assert!(INDEX_MAX.checked_mul(4).is_some() && TERM_MAX.checked_mul(4).is_some());
