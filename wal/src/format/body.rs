//! The body of a batch: its entries.

use bytes::Bytes;

use super::codec::{Decoder, Encoder};
use crate::limits::ENTRY_SIZE_MAX_BYTES;
use crate::{Entry, EntryKind};

/// Bytes before an entry's context and data: kind, both lengths, term.
const ENTRY_HEADER_SIZE: usize = 17;

const _: () = assert!(ENTRY_HEADER_SIZE == 1 + 4 + 4 + 8);

/// Bytes that an entry takes in a body.
///
/// # Panics
/// When the entry is larger than [`ENTRY_SIZE_MAX_BYTES`]: the server bounds requests far below.
pub(crate) fn entry_size(entry: &Entry) -> u64 {
    let content = u64::try_from(entry.context.len() + entry.data.len()).expect("lengths fit 64 bits");
    assert!(content <= ENTRY_SIZE_MAX_BYTES, "an entry of {content} bytes exceeds the log's bound");
    content + u64::try_from(ENTRY_HEADER_SIZE).expect("small")
}

fn length(bytes: &Bytes) -> u32 {
    u32::try_from(bytes.len()).expect("entries are bounded far below 4 GiB")
}

/// Writes the entries one after the other and returns how many bytes they took.
pub(crate) fn encode_body(entries: &[Entry], bytes: &mut [u8]) -> usize {
    let mut out = Encoder::new(bytes);
    for entry in entries {
        out.u8(match entry.kind {
            EntryKind::Normal => 0,
            EntryKind::ConfChange => 1,
            EntryKind::ConfChangeV2 => 2,
        });
        out.u32(length(&entry.context));
        out.u32(length(&entry.data));
        out.u64(entry.term);
        out.put(&entry.context);
        out.put(&entry.data);
    }
    out.position()
}

/// Reads `count` entries that fill `body` exactly; their bytes share its memory.
pub(crate) fn decode_body(body: &Bytes, first_index: u64, count: u32) -> Option<Vec<Entry>> {
    // The count is bounded by the body's length before anything is allocated for it.
    let count_max = body.len() / ENTRY_HEADER_SIZE;
    let mut entries = Vec::with_capacity(usize::try_from(count).ok()?.min(count_max));
    let mut fields = Decoder::new(body);
    for index in first_index..first_index + u64::from(count) {
        let kind = match fields.u8()? {
            0 => EntryKind::Normal,
            1 => EntryKind::ConfChange,
            2 => EntryKind::ConfChangeV2,
            _ => return None,
        };
        let context_len = usize::try_from(fields.u32()?).ok()?;
        let data_len = usize::try_from(fields.u32()?).ok()?;
        let term = fields.u64()?;
        let context = body.slice_ref(fields.take(context_len)?);
        let data = body.slice_ref(fields.take(data_len)?);
        entries.push(Entry { index, term, kind, context, data });
    }
    (fields.remaining() == 0).then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_as_they_were_written() {
        let entries: Vec<Entry> = (0..4u8)
            .map(|at| Entry {
                index: 10 + u64::from(at),
                term: 3,
                kind: [EntryKind::Normal, EntryKind::ConfChange, EntryKind::ConfChangeV2][usize::from(at) % 3],
                context: Bytes::copy_from_slice(&vec![at; usize::from(at)]),
                data: Bytes::copy_from_slice(&vec![at; 100 * usize::from(at)]),
            })
            .collect();
        let size = entries.iter().map(|entry| usize::try_from(entry_size(entry)).unwrap()).sum();
        let mut bytes = vec![0; size];
        assert_eq!(encode_body(&entries, &mut bytes), size);
        let bytes = Bytes::from(bytes);
        assert_eq!(decode_body(&bytes, 10, 4), Some(entries));
        assert_eq!(decode_body(&bytes, 10, 3), None);
        assert_eq!(decode_body(&bytes, 10, 5), None);
        assert_eq!(decode_body(&bytes.slice(1..), 10, 4), None);
    }
}
