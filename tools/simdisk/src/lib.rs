//! A simulated disk, for tests that run in one thread.
//!
//! # Fault model
//!
//! - A file is a row of 512-byte sectors. A sector is the unit of everything that goes wrong: it is written as a whole
//!   or not at all, whatever the length of the write it was part of.
//! - A write lands in a volatile cache. Reads see it at once. It becomes durable when the file is synced
//!   ([`Disk::sync`]) or, for a synchronous write, when that write completes ([`Disk::complete`]).
//! - A crash keeps *any subset* of the sectors written and not yet durable, in any combination across writes and files,
//!   so that every write can be torn at every sector and later writes can survive earlier ones. Of several unsynced
//!   versions of one sector the newest kept one wins. What is durable always survives a crash.
//! - Names (create, rename, remove) become durable with [`Disk::sync_folder`], a file's length with [`Disk::sync`] of
//!   that file. A crash keeps a prefix of the metadata operations that are not durable, as journalling file systems do.
//! - A failed sync is the trap it is on real kernels: the cached sectors are taken for clean, so a later sync succeeds
//!   without having written them. They still may or may not survive a crash.
//! - Single operations can be made to fail ([`Disk::plan`]): write error (any prefix of the sectors may be cached),
//!   short write, sync error, read error, full disk. A capacity can be set ([`Disk::set_capacity`]).
//! - Rot ([`Disk::rot`]) changes what is durable: a flipped bit, zeros, an older version (a lost write), another
//!   sector's content (a misdirected write), or a sector that cannot be read until it is written again.
//!
//! Not modelled: sectors torn inside, sizes that are not multiples of a sector, and time (a shell that wants stalls
//! completes writes late).
//!
//! A disk is cheap to clone: content is shared until it is changed, so a crash at every write can be enumerated by
//! cloning the disk before each crash. [`Disk::unsynced_sectors`] says how many choices there are.

#![forbid(unsafe_code)]

mod disk;
mod file;
mod rng;

pub use disk::{Disk, DiskError, Fault, Kept, Operation, Rot, WriteId};
pub use rng::Rng;

/// The unit in which the disk writes, tears and rots, in bytes.
pub const SECTOR_SIZE: usize = 512;
