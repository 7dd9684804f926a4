//! What the log looks like on disk. `docs/log-format.md` draws it, in the order of the constants here.

mod anchor;
mod body;
mod checksum;
mod codec;
mod header;
mod manifest;

pub use anchor::{ANCHOR_SIZE, Anchor, AnchorError};
pub(crate) use body::{decode_body, encode_body, entry_size};
pub(crate) use checksum::Checksum;
pub(crate) use header::{BatchHeader, HEADER_SIZE, Kind, Link, padded_size};
pub use manifest::{Manifest, ManifestError};

/// The version that every structure on disk carries. A reader refuses any other.
pub const FORMAT_VERSION: u16 = 1;
