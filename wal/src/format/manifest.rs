//! The manifest: what recovery must know before it reads a segment.

use super::codec::{Decoder, Encoder};
use super::{Checksum, FORMAT_VERSION};
use crate::limits::{SHARDS_MAX, WRITES_IN_FLIGHT_MAX};

const MAGIC: [u8; 8] = *b"gbrdmanf";
const MANIFEST_SIZE: usize = 48;
const CHECKSUM_AT: usize = MANIFEST_SIZE - 4;

/// Names the log and everything that any of its processes ever used. It only grows, and is rewritten before more is used
/// than it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The log's random identity.
    pub log_id: u128,
    /// The keyspace whose entries the log holds.
    pub keyspace: u32,
    /// Batches may lie in the shards 0 to `shards` − 1.
    pub shards: u16,
    /// Most batches that were ever allowed beyond the durable prefix.
    pub window: u32,
}

/// Bytes that are no manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not a manifest of this program.
    #[error("not a log manifest")]
    Unknown,
    /// Made by a version this one does not know.
    #[error("log manifest of format version {version}, this program reads version {FORMAT_VERSION}")]
    Version {
        /// The version found.
        version: u16,
    },
    /// The checksum does not match, or a field is out of its bounds.
    #[error("the log manifest is damaged")]
    Damaged,
}

impl Manifest {
    /// The manifest as its file holds it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; MANIFEST_SIZE];
        let mut out = Encoder::new(&mut bytes);
        out.put(&MAGIC);
        out.u16(FORMAT_VERSION);
        out.u16(self.shards);
        out.u32(self.keyspace);
        out.u128(self.log_id);
        out.u32(self.window);
        assert!(out.position() <= CHECKSUM_AT);
        let sum = Checksum::new(self.log_id).of(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a manifest back. Bytes behind it are ignored, so that a shell may pad the file.
    ///
    /// # Errors
    /// When the bytes are not a manifest that this version wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let bytes = bytes.get(..MANIFEST_SIZE).ok_or(ManifestError::Unknown)?;
        if bytes[..MAGIC.len()] != MAGIC {
            return Err(ManifestError::Unknown);
        }
        let mut fields = Decoder::new(&bytes[MAGIC.len()..CHECKSUM_AT]);
        let version = fields.u16().ok_or(ManifestError::Unknown)?;
        if version != FORMAT_VERSION {
            return Err(ManifestError::Version { version });
        }
        let manifest = Manifest::decode_fields(&mut fields).ok_or(ManifestError::Damaged)?;
        let window_max = u32::from(SHARDS_MAX) * u32::from(WRITES_IN_FLIGHT_MAX);
        let bounded = (1..=SHARDS_MAX).contains(&manifest.shards) && (1..=window_max).contains(&manifest.window);
        if manifest.to_bytes() != bytes || !bounded {
            return Err(ManifestError::Damaged);
        }
        Ok(manifest)
    }

    fn decode_fields(fields: &mut Decoder<'_>) -> Option<Manifest> {
        let shards = fields.u16()?;
        let keyspace = fields.u32()?;
        Some(Manifest { log_id: fields.u128()?, keyspace, shards, window: fields.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_comes_back_as_it_was_written_and_no_flipped_bit_is_accepted() {
        let manifest = Manifest { log_id: 99 << 70, keyspace: 5, shards: 3, window: 12 };
        let mut bytes = manifest.to_bytes();
        assert_eq!(Manifest::from_bytes(&bytes), Ok(manifest));
        for bit in 0..MANIFEST_SIZE * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::from_bytes(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Manifest::from_bytes(&bytes[1..]), Err(ManifestError::Unknown));
    }
}
