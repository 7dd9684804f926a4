//! The replica of one keyspace: Raft, apply, leases and watches, as plain state machines.
//!
//! Nothing here knows an executor, a clock, a file or a socket. Inputs come in by `handle_*(now, …)`, effects go out by
//! `poll_*()`; `now` is the time since an arbitrary start. A shell (or a simulator) ties a replica to the log
//! (`garboard-wal`), the index (`garboard-storage`), its clients and its clock.

#![forbid(unsafe_code)]

pub mod alarm;
pub mod apply;
pub mod auto_compaction;
#[cfg(not(feature = "canaries"))]
mod canary;
#[cfg(feature = "canaries")]
pub mod canary;
pub mod codec;
pub mod corruption;
pub mod envelope;
pub mod error;
pub mod events;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod histogram;
pub mod kept_hashes;
pub mod lease;
pub mod limits;
pub mod member;
pub mod members;
pub mod outbox;
pub mod peer;
pub mod quota;
pub mod raft;
pub mod read;
pub mod repair;
pub mod request;
pub mod sessions;
pub mod system;
pub mod transfer;
pub mod validate;
pub mod watch;

pub use error::Error;
pub use member::{Effect, Fatal, Member, MemberConfig};
