//! Rows in the wire form of etcd's `RangeResponse`, written straight from the index into the message.
//!
//! A large answer is written once: the size of every row is known from its key and its [`Version`] alone, and the value
//! is copied from the index's page to its place in the message. Protobuf allows the fields of a message in any order
//! and in pieces, so that a response is any concatenation of the rows here (field 2, repeated) and the encoding of a
//! response without rows (header, more, count).
//!
//! `mvccpb.KeyValue`: key = 1, create_revision = 2, mod_revision = 3, version = 4, value = 5, lease = 6. Fields that
//! hold their default are left out, as every encoder does.

use garboard_storage::{Paged, Version, View};

use super::range::Shape;
use super::rows::read_value;
use crate::request::KeyValue;

/// Tag of `RangeResponse.kvs`: field 2, length-delimited.
const TAG_KVS: u8 = 0x12;
const TAG_KEY: u8 = 0x0a;
const TAG_CREATE_REVISION: u8 = 0x10;
const TAG_MOD_REVISION: u8 = 0x18;
const TAG_VERSION: u8 = 0x20;
const TAG_VALUE: u8 = 0x2a;
const TAG_LEASE: u8 = 0x30;

/// Every tag used here takes one byte.
const TAG_LEN: u64 = 1;

/// Length of a base-128 varint.
pub(crate) fn varint_len(value: u64) -> u64 {
    u64::from((63 - (value | 1).leading_zeros()) / 7 + 1)
}

/// Length of an `int64` field; none at its default.
pub(crate) fn int64_len(value: i64) -> u64 {
    if value == 0 { 0 } else { TAG_LEN + varint_len(value.cast_unsigned()) }
}

/// Length of a length-delimited field of `length` bytes.
pub(crate) fn delimited_len(length: u64) -> u64 {
    TAG_LEN + varint_len(length) + length
}

/// Length of a `bytes` field; none at its default.
fn bytes_len(length: u64) -> u64 {
    if length == 0 { 0 } else { delimited_len(length) }
}

/// Encoded length of a `KeyValue` message.
pub(crate) fn key_value_len(kv: &KeyValue) -> u64 {
    let length = |bytes: &[u8]| u64::try_from(bytes.len()).expect("a length fits in 64 bits");
    bytes_len(length(&kv.key))
        + int64_len(kv.create_revision)
        + int64_len(kv.mod_revision)
        + int64_len(kv.version)
        + bytes_len(length(&kv.value))
        + int64_len(kv.lease)
}

/// One row's metadata as its reply shows it, with the length of its message.
struct RowFields {
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    value_len: u64,
    lease: i64,
    message_len: u64,
}

impl RowFields {
    fn new(key: &[u8], version: &Version, shape: &Shape) -> Self {
        let value_len = if shape.values { u64::from(version.value_len) } else { 0 };
        let lease = if shape.leases { version.lease } else { 0 };
        let mod_revision = version.modified.main;
        let message_len = bytes_len(u64::try_from(key.len()).expect("a length fits in 64 bits"))
            + int64_len(version.create_revision)
            + int64_len(mod_revision)
            + int64_len(version.version)
            + bytes_len(value_len)
            + int64_len(lease);
        let create_revision = version.create_revision;
        Self { create_revision, mod_revision, version: version.version, value_len, lease, message_len }
    }
}

/// Encoded length of a row as a field of the response.
pub(crate) fn row_len(key: &[u8], version: &Version, shape: &Shape) -> u64 {
    delimited_len(RowFields::new(key, version, shape).message_len)
}

/// Where a row's value comes from.
pub(crate) enum ValueSource<'v, 'a> {
    /// The index.
    View(&'v View<'a>),
    /// It was read before.
    Bytes(&'v [u8]),
}

/// Appends a row as a field of the response; on a missing page `out` is as it was.
pub(crate) fn put_row(
    key: &[u8],
    version: &Version,
    shape: &Shape,
    value: &ValueSource<'_, '_>,
    out: &mut Vec<u8>,
) -> Paged<()> {
    let fields = RowFields::new(key, version, shape);
    let start = out.len();
    out.push(TAG_KVS);
    put_varint(fields.message_len, out);
    let message_start = out.len();
    if !key.is_empty() {
        out.push(TAG_KEY);
        put_varint(u64::try_from(key.len()).expect("a length fits in 64 bits"), out);
        out.extend_from_slice(key);
    }
    put_int64(TAG_CREATE_REVISION, fields.create_revision, out);
    put_int64(TAG_MOD_REVISION, fields.mod_revision, out);
    put_int64(TAG_VERSION, fields.version, out);
    if fields.value_len > 0 {
        out.push(TAG_VALUE);
        put_varint(fields.value_len, out);
        match value {
            ValueSource::View(view) => {
                if let Err(need) = read_value(view, version, out) {
                    out.truncate(start);
                    return Err(need);
                }
            }
            ValueSource::Bytes(bytes) => out.extend_from_slice(bytes),
        }
    }
    put_int64(TAG_LEASE, fields.lease, out);
    let written = u64::try_from(out.len() - message_start);
    assert_eq!(written, Ok(fields.message_len), "a row takes the room that was computed for it");
    Ok(())
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

fn put_int64(tag: u8, value: i64, out: &mut Vec<u8>) {
    if value != 0 {
        out.push(tag);
        put_varint(value.cast_unsigned(), out);
    }
}
