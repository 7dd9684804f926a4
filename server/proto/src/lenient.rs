//! Decoding as lenient as Go's protobuf, which etcd uses.
//!
//! A known field of another wire type than it should have counts as unknown there and is skipped; prost refuses it. So
//! what prost refuses is read once more without such fields. That is rare, and the schema it needs is only built then.

use std::collections::HashMap;
use std::sync::OnceLock;

use bytes::Bytes;
use prost::encoding::{WireType, encode_varint};
use prost::{Message, Name};
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::{Label, Type};

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeFailure {
    /// They are not in the wire format.
    #[error("cannot parse invalid wire-format data")]
    WireFormat,
    /// A text is none.
    #[error("string field contains invalid UTF-8")]
    Utf8,
}

/// Decodes a message; its byte fields share the given bytes unless a field had to be skipped.
///
/// # Errors
/// When they are no message of this kind even for a lenient reader.
pub fn decode<Q: Message + Name + Default>(bytes: Bytes) -> Result<Q, DecodeFailure> {
    Q::decode(bytes.clone()).or_else(|_| {
        let tidied = tidy(&bytes, &Q::full_name(), 0).ok_or(DecodeFailure::WireFormat)?;
        // The wire format was walked, so that only its texts can be wrong.
        Q::decode(Bytes::from(tidied)).map_err(|_| DecodeFailure::Utf8)
    })
}

/// What may stand in a field.
#[derive(Clone, Debug)]
struct Field {
    wire_type: WireType,
    /// Whether several values may also stand together, behind a length.
    packable: bool,
    /// The message that it holds.
    message: Option<String>,
}

impl Field {
    fn takes(&self, wire_type: WireType) -> bool {
        wire_type == self.wire_type || (self.packable && wire_type == WireType::LengthDelimited)
    }
}

/// The fields of all messages, by the message's full name.
type Schema = HashMap<String, HashMap<u32, Field>>;

fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let files = FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).expect("the build wrote a descriptor set");
        let mut schema = Schema::new();
        for file in &files.file {
            // No message here is declared within another.
            for message in &file.message_type {
                let fields = message.field.iter().map(|field| {
                    let number = u32::try_from(field.number()).expect("field numbers are positive");
                    (number, field_of(field))
                });
                schema.insert(format!("{}.{}", file.package(), message.name()), fields.collect());
            }
        }
        schema
    })
}

fn field_of(field: &prost_types::FieldDescriptorProto) -> Field {
    let wire_type = match field.r#type() {
        Type::Double | Type::Fixed64 | Type::Sfixed64 => WireType::SixtyFourBit,
        Type::Float | Type::Fixed32 | Type::Sfixed32 => WireType::ThirtyTwoBit,
        Type::String | Type::Bytes | Type::Message => WireType::LengthDelimited,
        Type::Group => WireType::StartGroup,
        Type::Int64
        | Type::Uint64
        | Type::Int32
        | Type::Uint32
        | Type::Sint32
        | Type::Sint64
        | Type::Bool
        | Type::Enum => WireType::Varint,
    };
    let packable = field.label() == Label::Repeated && wire_type != WireType::LengthDelimited;
    let message = (field.r#type() == Type::Message).then(|| field.type_name().trim_start_matches('.').to_owned());
    Field { wire_type, packable, message }
}

/// Messages within messages that are followed, fewer than prost follows. etcd's reader goes far deeper; only transactions
/// within transactions, some fifty of them, get there.
const DEPTH_MAX: u32 = 98;

/// The known fields that have the wire type they should have; nothing if the bytes are not in the wire format, or too
/// deep.
fn tidy(bytes: &[u8], message: &str, depth: u32) -> Option<Vec<u8>> {
    if depth > DEPTH_MAX {
        return None;
    }
    let fields = schema().get(message)?;
    let mut input = Input(bytes);
    let mut out = Vec::with_capacity(bytes.len());
    while !input.0.is_empty() {
        let start = input.0;
        let (number, wire_type) = input.key()?;
        let key = &start[..start.len() - input.0.len()];
        let value = input.value(number, wire_type, 0)?;
        match fields.get(&number).filter(|field| field.takes(wire_type)) {
            None => {}
            Some(Field { message: Some(inner), .. }) => {
                let inner = tidy(Input(value).delimited()?, inner, depth + 1)?;
                out.extend_from_slice(key);
                encode_varint(u64::try_from(inner.len()).expect("lengths fit 64 bits"), &mut out);
                out.extend_from_slice(&inner);
            }
            Some(_) => out.extend_from_slice(&start[..key.len() + value.len()]),
        }
    }
    Some(out)
}

/// Groups within groups that are followed.
const GROUP_DEPTH_MAX: u32 = 100;

/// What is left of a message.
#[derive(Clone, Copy)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in 0..10 {
            let byte = u64::from(self.take(1)?[0]);
            // The tenth byte has room for one bit.
            if shift == 9 && byte > 1 {
                return None;
            }
            value |= (byte & 0x7f) << (7 * shift);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn key(&mut self) -> Option<(u32, WireType)> {
        let key = u32::try_from(self.varint()?).ok()?;
        let number = key >> 3;
        let wire_type = WireType::try_from(u64::from(key & 7)).ok()?;
        (number > 0).then_some((number, wire_type))
    }

    fn delimited(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        self.take(len)
    }

    /// Passes over a value, which it returns with what delimits it.
    fn value(&mut self, number: u32, wire_type: WireType, depth: u32) -> Option<&'a [u8]> {
        let start = self.0;
        match wire_type {
            WireType::Varint => self.varint().map(|_| ())?,
            WireType::SixtyFourBit => self.take(8).map(|_| ())?,
            WireType::ThirtyTwoBit => self.take(4).map(|_| ())?,
            WireType::LengthDelimited => self.delimited().map(|_| ())?,
            WireType::StartGroup if depth < GROUP_DEPTH_MAX => loop {
                match self.key()? {
                    (end, WireType::EndGroup) if end == number => break,
                    (_, WireType::EndGroup) => return None,
                    (inner, wire_type) => self.value(inner, wire_type, depth + 1).map(|_| ())?,
                }
            },
            WireType::StartGroup | WireType::EndGroup => return None,
        }
        Some(&start[..start.len() - self.0.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{PutRequest, TxnRequest, WatchCreateRequest, request_op};
    use crate::health::HealthCheckRequest;

    fn put(bytes: &'static [u8]) -> Result<PutRequest, DecodeFailure> {
        decode(Bytes::from_static(bytes))
    }

    #[test]
    fn a_known_field_of_the_wrong_wire_type_is_skipped() {
        // The key as a number, then as bytes; the lease as bytes.
        let put = put(&[0x08, 0x05, 0x0a, 0x01, b'k', 0x1a, 0x01, b'x', 0x12, 0x01, b'v']).unwrap();
        assert_eq!(put, PutRequest { key: "k".into(), value: "v".into(), ..Default::default() });
    }

    #[test]
    fn messages_within_are_read_as_leniently() {
        let inner = [0x08, 0x05, 0x0a, 0x01, b'k'];
        let operation: Vec<u8> = [&[0x12, 5][..], &inner].concat();
        let txn: Vec<u8> = [&[0x12, 7][..], &operation].concat();
        let txn: TxnRequest = decode(txn.into()).unwrap();
        let Some(request_op::Request::RequestPut(put)) = &txn.success[0].request else { panic!("a put") };
        assert_eq!(put.key, "k");
    }

    #[test]
    fn repeated_numbers_may_stand_together_or_alone() {
        // A number where bytes should be makes the lenient reader read it.
        let create: WatchCreateRequest = decode(vec![0x08, 0x01, 0x28, 0x00, 0x2a, 0x02, 0x01, 0x00].into()).unwrap();
        assert_eq!(create.filters, [0, 1, 0]);
    }

    #[test]
    fn unknown_fields_and_balanced_groups_are_skipped() {
        let bytes = [0x08, 0x05, 0xf8, 0x01, 0x07, 0xfb, 0x01, 0x08, 0x01, 0xfc, 0x01, 0x0a, 0x01, b'k'];
        let put: PutRequest = decode(Bytes::copy_from_slice(&bytes)).unwrap();
        assert_eq!(put.key, "k");
    }

    #[test]
    fn what_is_not_in_the_wire_format_is_refused() {
        let table: [&[u8]; 9] = [
            &[0x0a],
            &[0x0a, 0x05, b'k'],
            &[0x00, 0x01],
            &[0x0e, 0x01],
            &[0x0f, 0x01],
            &[0x0c],
            &[0x0b, 0x08, 0x01],
            &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[0x08, 0x01, 0x0a, 0x7f],
        ];
        for bytes in table {
            assert_eq!(put(bytes), Err(DecodeFailure::WireFormat), "{bytes:x?}");
        }
    }

    #[test]
    fn messages_too_deep_to_follow_are_refused() {
        let nest = |depth: usize| {
            let mut bytes = Vec::new();
            for _ in 0..depth {
                let len = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap();
                let mut operation = vec![0x22];
                encode_varint(len(&bytes), &mut operation);
                operation.extend_from_slice(&bytes);
                bytes = vec![0x12];
                encode_varint(len(&operation), &mut bytes);
                bytes.extend_from_slice(&operation);
            }
            Bytes::from(bytes)
        };
        assert!(decode::<TxnRequest>(nest(45)).is_ok());
        for depth in [52, 100, 20_000] {
            assert_eq!(decode::<TxnRequest>(nest(depth)), Err(DecodeFailure::WireFormat), "{depth}");
        }
    }

    #[test]
    fn a_text_that_is_none_is_told_apart() {
        let decoded: Result<HealthCheckRequest, _> = decode(Bytes::from_static(&[0x0a, 0x01, 0xff]));
        assert_eq!(decoded, Err(DecodeFailure::Utf8));
    }
}
