//! The MVCC index: a copy-on-write B+tree in one mapped file.
//!
//! [`Index`] is the one writer of a keyspace; [`Reader`] pins published roots as [`Snapshot`]s on any core. Both show
//! their state through a [`View`]. The crate is sans-IO: it never blocks on the disk. A walk that meets a page which is
//! not resident answers [`NeedPage`]; the shell calls [`Reader::load`] where blocking is allowed and asks again.
//! Changed pages live in memory until a checkpoint: [`Index::start_checkpoint`], then [`Index::poll_io`] and
//! [`Index::handle_io`] until [`Index::poll_checkpoint_done`] names what became durable.
//!
//! The calling order of a batch: [`Index::prefetch`] every key it touches, then [`Index::put`], [`Index::delete`],
//! [`Index::system_put`] and so on, then one [`Index::publish`].

mod arena;
#[cfg(not(feature = "canaries"))]
mod canary;
#[cfg(feature = "canaries")]
pub mod canary;
mod check;
mod checkpoint;
mod codec;
mod edit;
mod entry;
mod file;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod hash;
mod index;
mod io;
pub mod limits;
mod map;
mod meta;
mod page;
mod pages;
mod pins;
mod read_around;
mod reclaim;
mod snapshot;
mod space;
mod store;
mod tree;
mod types;
mod view;

pub use check::CheckError;
pub use file::{MappedFile, NoFile, PageFile};
pub use index::Index;
pub use io::{
    CheckpointDone, CheckpointProgress, IndexConfig, IndexFailure, IndexIo, IoFailure, IoId, IoOp, OpenError,
    OpenFacts, PageError,
};
pub use map::{Map, PAGE_SIZE};
pub use snapshot::{Chunk, Export, ExportStep, ImportError, Position, SnapshotFacts};
pub use types::{
    Applied, Bounds, CompactionProgress, IndexSize, NeedPage, PageId, Paged, PutOutcome, Record, Revision, SpaceState,
    Version,
};
pub use view::{Counter, Cursor, EventCursor, Reader, Snapshot, SystemCursor, View};
