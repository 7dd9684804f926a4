//! What peers say to each other: links over QUIC, the frames on them, and the checks that their content must pass.
//!
//! The crate does no I/O. [`link::Links`] is all links of one member: datagrams in, datagrams, frames and timers out. A
//! frame holds a message of raft-rs, written by [`encode`], or bytes of the replica's own, written by [`encode_opaque`];
//! [`validate`] is asked about each message of raft-rs right before it goes there, which trusts its input and ends the
//! process, or loses data, on some of it. `docs/peer-frames.md` is the description of the frames, `docs/peer-links.md`
//! that of the links.

#![forbid(unsafe_code)]

mod body;
mod format;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod lane;
pub mod limits;
pub mod link;
mod reader;
mod validate;

pub use body::{EncodeError, encode, encode_opaque};
pub use format::{DecodeError, HEADER_BYTES, MAGIC, VERSION};
pub use lane::Lane;
pub use reader::FrameReader;
pub use validate::{Rejection, ReplicaFacts, validate};

use bytes::Bytes;
use raft::eraftpb::Message;

/// What one frame carries.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerFrame {
    /// The keyspace whose replicas speak.
    pub keyspace: u64,
    /// What one says to the other.
    pub body: FrameBody,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameBody {
    /// A message of raft-rs.
    Raft(Message),
    /// Bytes that only the replica reads.
    Opaque(Bytes),
}

impl PeerFrame {
    /// The message of raft-rs, if the frame carries one.
    pub fn raft(&self) -> Option<&Message> {
        match &self.body {
            FrameBody::Raft(message) => Some(message),
            FrameBody::Opaque(_) => None,
        }
    }
}
