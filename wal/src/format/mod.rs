//! What the log looks like on disk. `docs/log-format.md` draws it, in the order of the constants here.

mod anchor;
mod body;
mod checksum;
mod codec;
mod header;
mod manifest;

use bytes::Bytes;

use crate::Entry;

pub use anchor::{ANCHOR_SIZE, Anchor, AnchorError};
pub(crate) use body::{decode_body, encode_body, entry_size};
pub(crate) use checksum::Checksum;
pub(crate) use header::{BatchHeader, HEADER_SIZE, Kind, Link, padded_size};
pub use manifest::{Manifest, ManifestError};

/// The entries of a batch, for whoever watches what a log writes: a simulator, an inspection. `bytes` is what
/// [`Log::fill`](crate::Log::fill) gave. `None` when that is no batch of the chain of the log `log_id`, such as a seal;
/// a batch of a hard state alone has no entries.
pub fn entries_of_batch(log_id: u128, bytes: &[u8]) -> Option<Vec<Entry>> {
    let (head, rest) = bytes.split_first_chunk::<HEADER_SIZE>()?;
    let (header, _) = BatchHeader::decode(Checksum::new(log_id), head)?;
    if header.kind == Kind::Seal {
        return None;
    }
    let body = rest.get(..usize::try_from(header.body_len).ok()?)?;
    decode_body(&Bytes::copy_from_slice(body), header.first_index, header.entry_count)
}

/// The version that every structure on disk carries. A reader refuses any other.
pub const FORMAT_VERSION: u16 = 1;
