//! What the fuzzer calls, one function for each target; `docs/fuzzing.md` says what they promise. They are here because
//! they reach what the crate doesn't show, and behind a feature because only tests need them.

mod disk;
mod recovery;

use bytes::Bytes;

pub use recovery::recovery;

use crate::format::{Anchor, BatchHeader, Checksum, HEADER_SIZE, Manifest, decode_body, encode_body, entry_size};
use crate::{ANCHOR_SIZE, LogConfig, MetaFacts, Recovery};

/// The log that all inputs belong to.
const LOG_ID: u128 = 0x6761_7262_6f61_7264;

/// The first `N` bytes of an input, zeros where it is shorter.
fn front<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = data.len().min(N);
    bytes[..len].copy_from_slice(&data[..len]);
    bytes
}

/// Makes the checksum in the last four bytes right.
fn sign(bytes: &mut [u8], log_id: u128) {
    let at = bytes.len() - 4;
    let sum = Checksum::new(log_id).of(&bytes[..at]);
    bytes[at..].copy_from_slice(&sum.to_le_bytes());
}

/// A batch: a header and its body. As they are they hardly ever verify, so the header is also read with a right magic
/// and checksum, and the body whatever the header says.
///
/// What decodes encodes to the same bytes, and arithmetic on an accepted header never overflows.
pub fn record(data: &[u8]) {
    let checksum = Checksum::new(LOG_ID);
    let mut head: [u8; HEADER_SIZE] = front(data);
    let raw = BatchHeader::decode(checksum, &head);
    head[..8].copy_from_slice(b"gbrdwal\0");
    sign(&mut head, LOG_ID);
    let signed = BatchHeader::decode(checksum, &head);
    assert!(raw.is_none() || raw == signed, "a right checksum is the only one");
    if let Some((header, sum)) = signed {
        assert!(header.last_index() + 1 >= header.first_index && header.size() >= 4096);
        assert!(header.link(sum).checksum == sum);
        // Bytes that mean nothing are written as zeros.
        head[34..40].fill(0);
        head[184..188].fill(0);
        sign(&mut head, LOG_ID);
        let mut again = [0; HEADER_SIZE];
        header.encode(checksum, &mut again);
        assert!(again == head, "a header is its fields");
    }

    let body = Bytes::copy_from_slice(data.get(HEADER_SIZE..).unwrap_or_default());
    let (first_index, count) = match signed {
        Some((header, _)) => (header.first_index, header.entry_count),
        None => (1, u32::from_le_bytes([head[104], head[105], head[106], head[107]])),
    };
    let Some(entries) = decode_body(&body, first_index, count) else { return };
    assert!(u32::try_from(entries.len()) == Ok(count));
    let indexes = entries.iter().map(|entry| entry.index);
    assert!(indexes.eq(first_index..first_index + u64::from(count)), "entries are numbered without gaps");
    let size: u64 = entries.iter().map(entry_size).sum();
    assert!(u64::try_from(body.len()) == Ok(size), "entries fill their body");
    let mut again = vec![0; body.len()];
    encode_body(&entries, &mut again);
    assert!(again == body, "a body is its entries");
}

/// An anchor, as it is and with a right checksum. One that is accepted encodes to the same bytes, and a log without a
/// segment can be opened, or refused, from it.
pub fn anchor(data: &[u8]) {
    let raw: [u8; ANCHOR_SIZE] = front(data);
    let accepted = Anchor::from_bytes(&raw);
    let mut bytes = raw;
    let log_id = u128::from_le_bytes(front(&bytes[8..24]));
    sign(&mut bytes, log_id);
    let Ok(anchor) = Anchor::from_bytes(&bytes) else {
        assert!(accepted.is_err(), "a right checksum is the only one");
        return;
    };
    assert!(anchor.to_bytes() == bytes, "an anchor is its fields");
    let manifest = Manifest { log_id, keyspace: 0, shards: 1, window: 1 };
    let applied: [u8; 8] = front(data.get(ANCHOR_SIZE..).unwrap_or_default());
    let applied_index = anchor.applied_index.saturating_add(u64::from_le_bytes(applied));
    let meta = MetaFacts { anchor: Some(anchor), applied_index, applied_term: anchor.last_term };
    let Ok(mut recovery) = Recovery::new(LogConfig::default(), &manifest.to_bytes(), Vec::new(), meta) else { return };
    assert!(recovery.poll_read().is_none());
    if let Ok(recovered) = recovery.finish() {
        assert!(recovered.entries.is_empty() && recovered.hard_state.commit >= applied_index);
    }
}

/// A manifest, as it is and with a right magic and checksum. One that is accepted encodes to the same bytes.
pub fn manifest(data: &[u8]) {
    let raw: [u8; 48] = front(data);
    let accepted = Manifest::from_bytes(&raw);
    let mut bytes = raw;
    bytes[..8].copy_from_slice(b"gbrdmanf");
    sign(&mut bytes, u128::from_le_bytes(front(&raw[16..32])));
    match Manifest::from_bytes(&bytes) {
        Ok(manifest) => assert!(manifest.to_bytes() == bytes, "a manifest is its fields"),
        Err(_) => assert!(accepted.is_err(), "a right checksum is the only one"),
    }
    // A file may be longer, and is refused if it is shorter.
    assert!(data.len() >= 48 || Manifest::from_bytes(data).is_err());
}
