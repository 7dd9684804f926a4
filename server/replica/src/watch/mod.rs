//! Watches: streams of what changes, served on every core.
//!
//! One [`WatchHub`] stands on each core for each keyspace. Published batches come in by
//! [`handle_events`](WatchHub::handle_events); clients' responses are *pulled*, one at a time, by
//! [`next_response`](WatchHub::next_response), so that a client that does not read costs a bounded amount of memory and
//! never holds up anyone else.
//!
//! # What a watcher is promised
//!
//! Every event that matches, from its start revision on, exactly once and in revision order; one revision's events in
//! one response, unless the watcher asked for fragments; a progress response with revision *r* only when it has been
//! sent every event up to *r*.
//!
//! # How
//!
//! A watcher is *synced* while the hub has offered it every event so far; new events then go straight to its list of
//! pending ones. When its stream has as much pending as it may, or the hub must let go of a batch, the watcher becomes
//! *lagging* at a revision, its cursor, and costs nothing until its stream is read again. A lagging watcher catches up
//! from the batches the hub still holds, or else from the index, in bounded steps that it shares with all lagging
//! watchers of its stream; the blocks read are kept a while for other streams. No event's value is ever copied: what is
//! pending is positions in shared batches.

mod blocks;
mod catch_up;
mod deliver;
mod hub;
mod index;
mod intervals;
pub mod limits;
#[cfg(test)]
mod random_tests;
mod response;
mod slab;
mod state;
#[cfg(test)]
mod tests;

pub use hub::{CatchUpBudget, WatchConfig, WatchHub, WatchStats};
pub use response::{CancelReason, WatchCreate, WatchEvent, WatchResponse};
pub use state::{StreamFull, StreamId};
