//! Pairs as protobuf encodes them, for answers that the store writes as bytes, and for the hash.

use bytes::Bytes;
use garboard_replica::request::KeyValue;

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn length(len: usize, out: &mut Vec<u8>) {
    varint(u64::try_from(len).expect("lengths fit 64 bits"), out);
}

fn bytes_field(tag: u8, value: &Bytes, out: &mut Vec<u8>) {
    if !value.is_empty() {
        out.push(tag);
        length(value.len(), out);
        out.extend_from_slice(value);
    }
}

fn number_field(tag: u8, value: i64, out: &mut Vec<u8>) {
    if value != 0 {
        out.push(tag);
        varint(value.cast_unsigned(), out);
    }
}

/// `mvccpb.KeyValue`: key = 1, create_revision = 2, mod_revision = 3, version = 4, value = 5, lease = 6.
pub(super) fn encode_pair(pair: &KeyValue, out: &mut Vec<u8>) {
    bytes_field(0x0a, &pair.key, out);
    number_field(0x10, pair.create_revision, out);
    number_field(0x18, pair.mod_revision, out);
    number_field(0x20, pair.version, out);
    bytes_field(0x2a, &pair.value, out);
    number_field(0x30, pair.lease, out);
}

/// The rows of a range as the field `kvs` (2) of its response.
pub fn encode_rows(rows: &[KeyValue]) -> Vec<u8> {
    let (mut out, mut pair) = (Vec::new(), Vec::new());
    for row in rows {
        pair.clear();
        encode_pair(row, &mut pair);
        out.push(0x12);
        length(pair.len(), &mut out);
        out.extend_from_slice(&pair);
    }
    out
}
