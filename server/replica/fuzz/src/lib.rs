//! Fuzz targets of the replica's encodings.

#![forbid(unsafe_code)]

use garboard_fuzzing::Target;
use garboard_replica::fuzz;

/// The data of a Raft entry. Commands take more memory than bytes, and a transaction within another has room for a few
/// operations at once.
pub const ENTRY: Target = Target::new("entry", fuzz::entry, |len| 1024 * len + 64 * 1024);

/// Memberships and their changes.
pub const MEMBERSHIP: Target = Target::new("membership", fuzz::membership, |len| 8 * len + 4096);

/// What members say to each other beside Raft's messages.
pub const PEER_MESSAGE: Target = Target::new("peer_message", fuzz::peer_message, |len| 1024 * len + 64 * 1024);

/// What a snapshot's receiver is sent. Each step of two bytes may leave something behind.
pub const TRANSFER: Target = Target::new("transfer", fuzz::transfer, |len| 1024 * len + 64 * 1024);

/// All of them.
pub const TARGETS: &[Target] = &[ENTRY, MEMBERSHIP, PEER_MESSAGE, TRANSFER];
