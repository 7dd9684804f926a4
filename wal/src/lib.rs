//! The write-ahead log: batches, shards, segments and recovery, as plain state machines.
//!
//! The log makes Raft's entries and hard state durable and gives them back after any crash. It knows no file and no
//! clock: [`Log`] takes appends and completions and hands out [`Effect`]s; [`Recovery`] hands out reads, takes their
//! bytes and ends in the recovered state or a [`RecoveryError`]. A shell ties both to a disk.
//!
//! Promises, under the fault model of `docs/log-format.md`:
//! - an append that [`Log::durable`] covers is there after any crash, and nothing is ever half there;
//! - nothing is acknowledged after the first failed write, and no write is ever tried again;
//! - what rotted, was lost or landed elsewhere is noticed and refused, never presented and never cut away, except the
//!   last batches of a process that no later header and no seal had confirmed yet;
//! - recovery writes nothing; what it presents does not change however often it is run.
//!
//! # Calling order
//!
//! ```text
//! let mut log = Log::create(config, log_id)?;         // or Recovery::finish
//! let number = log.append(append);
//! while let Some(effect) = log.poll_effect(now) { … } // fill() each Write in order, submit, go on
//! log.handle_done(now, op, result)?;                  // then poll again
//! if log.durable() >= number { … }                    // acknowledge
//! ```

#![forbid(unsafe_code)]

#[cfg(not(feature = "canaries"))]
mod canary;
#[cfg(feature = "canaries")]
pub mod canary;
mod config;
mod format;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod limits;
mod log;
mod recovery;
mod types;

pub use config::{ConfigError, LogConfig};
pub use format::{ANCHOR_SIZE, Anchor, AnchorError, FORMAT_VERSION, Manifest, ManifestError, entries_of_batch};
pub use log::Log;
pub use recovery::{
    Damage, Location, MetaFacts, Read, Recovered, Recovery, RecoveryError, RecoveryReport, SegmentFile, SegmentScan,
    Verdict, Why,
};
pub use types::{Append, AppendNumber, DiskError, Effect, Entry, EntryKind, HardState, LogFailure, LogStats, OpId};
