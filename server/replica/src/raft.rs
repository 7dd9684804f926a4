//! Raft, driven with data.
//!
//! [`RaftDriver`] owns raft-rs's state machine and everything it must be fed: its storage in memory, its ticks, a seeded
//! election timer. The calling order: change something ([`RaftDriver::propose`], [`RaftDriver::read_index`],
//! [`RaftDriver::handle_timeout`], …), then call [`RaftDriver::poll`] until it has nothing more. `poll` hands appends to
//! the log; when they are durable, [`RaftDriver::handle_durable`] is told, and polled again.
//!
//! Promises:
//! - raft-rs hears of persistence for the contiguous durable prefix only, in order, however many appends are in flight;
//! - entries come out committed only when they are durable on this member, too;
//! - a vote, a vote request, an append response leave only after the state they speak of is durable.

mod acknowledged;
mod driver;
mod membership;
mod store;

pub use driver::{NotLeader, Proposed, RaftConfig, RaftDriver, ReadConfirmed, Restored, Role, Step};
pub use membership::{ChangeKind, Membership, MembershipChange, MembershipError};

#[cfg(test)]
mod tests;
