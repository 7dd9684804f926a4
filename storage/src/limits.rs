//! Every bound of the index, in one place.

/// Addresses reserved for the mapping by default, which bounds the file.
pub const RESERVE_BYTES: usize = 256 << 30;
/// The longest value.
pub const VALUE_BYTES_MAX: usize = 32 << 20;
/// The longest anchor of the log in the meta page.
pub const ANCHOR_BYTES_MAX: usize = 128;
/// The longest membership record in the meta page.
pub const CONF_BYTES_MAX: usize = 1024;
/// Dirty bytes above which the index wants a checkpoint, by default.
pub const CHECKPOINT_BYTES: u64 = 128 << 20;
/// Dirty bytes above which new writes must wait, by default.
pub const DIRTY_BYTES_MAX: u64 = 256 << 20;
