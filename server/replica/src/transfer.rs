//! Filling a member that lags further than the log reaches, with a snapshot of the index of another.
//!
//! raft-rs says who needs one and as of which entry; it never sees the content. The sender offers a snapshot of what it
//! has published, and sends it in chunks that follow one another: it paces them, has a bounded number on the way, and
//! goes back to the first one that was not taken when the link broke. The receiver builds new trees beside its index
//! ([`garboard_storage::Index::begin_import`]), goes on serving what it has, and answers how far it is. When all of it
//! is durable, raft-rs hears of the snapshot, and the index is replaced together with the log's anchor.
//!
//! Nobody else waits for any of this: a leader reads what it sends in small steps from views of its newest root.

mod message;
mod receiver;
mod sender;

pub use message::{Chunk, Offer, Progress, State, TransferError, TransferMessage};
pub use receiver::Fill;
pub(crate) use receiver::{Receiver, Stage};
pub(crate) use sender::{Outcome, Output, Sender};
