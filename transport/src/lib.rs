//! Frames that peers exchange, and the checks that their content must pass.
//!
//! The crate does no I/O. A link encodes what raft-rs wants sent with [`encode`], feeds what it receives to a
//! [`FrameReader`], and asks [`validate`] about each message right before it goes to raft-rs, which trusts its input and
//! ends the process, or loses data, on some of it. `docs/peer-frames.md` is the description of the format.

#![forbid(unsafe_code)]

mod body;
mod format;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod lane;
pub mod limits;
mod reader;
mod validate;

pub use body::{EncodeError, encode};
pub use format::{DecodeError, HEADER_BYTES, MAGIC, VERSION};
pub use lane::Lane;
pub use reader::FrameReader;
pub use validate::{Rejection, ReplicaFacts, validate};

use raft::eraftpb::Message;

/// What one frame carries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFrame {
    /// The keyspace whose Raft group the message belongs to.
    pub keyspace: u64,
    /// The message.
    pub message: Message,
}
