//! The size that etcd counts when it says that a request is too large: that of the message which carries the request
//! through its log (`InternalRaftRequest`), not that of the request.
//!
//! Ours carries requests in another form, but which requests are refused must not differ, so the size is computed
//! without building the message.

use prost::Message;
use prost::encoding::{encoded_len_varint, key_len};

/// Which field of the message carries a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestField {
    /// A put.
    Put,
    /// A deletion.
    DeleteRange,
    /// A transaction.
    Txn,
    /// A compaction.
    Compaction,
    /// Making a lease.
    LeaseGrant,
    /// Ending a lease.
    LeaseRevoke,
    /// Raising, listing or taking back alarms.
    Alarm,
}

impl RequestField {
    /// The field's number.
    const fn number(self) -> u32 {
        match self {
            RequestField::Put => 4,
            RequestField::DeleteRange => 5,
            RequestField::Txn => 6,
            RequestField::Compaction => 7,
            RequestField::LeaseGrant => 8,
            RequestField::LeaseRevoke => 9,
            RequestField::Alarm => 10,
        }
    }
}

/// The number of the field that carries the header.
const HEADER_FIELD: u32 = 100;

/// What etcd adds to each request before it counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestHeader<'a> {
    /// The member that received the request. Request ids start with its lowest 16 bits, so that their length, as a
    /// variable-length integer, depends on them.
    pub member_id: u64,
    /// The authenticated user; empty without authentication.
    pub user_name: &'a str,
    /// The authentication store's revision the user was authenticated at.
    pub auth_revision: u64,
}

impl RequestHeader<'_> {
    /// The header's own encoded length.
    fn encoded_len(&self) -> usize {
        // Below the member's bits stand 40 bits of milliseconds and a counter of 8; bit 47 stands for them.
        let request_id = ((self.member_id & 0xffff) << 48) | (1 << 47);
        let mut len = key_len(1) + encoded_len_varint(request_id);
        if !self.user_name.is_empty() {
            len += delimited_len(2, self.user_name.len());
        }
        if self.auth_revision != 0 {
            len += key_len(3) + encoded_len_varint(self.auth_revision);
        }
        len
    }
}

/// The size, in bytes, that etcd holds against `--max-request-bytes`.
pub fn raft_request_len(header: &RequestHeader<'_>, field: RequestField, request: &impl Message) -> usize {
    delimited_len(HEADER_FIELD, header.encoded_len()) + delimited_len(field.number(), request.encoded_len())
}

/// The length of a field with a length prefix.
fn delimited_len(number: u32, len: usize) -> usize {
    // `usize` is never wider than 64 bits where this runs, and a request is far smaller than either.
    let len_u64 = u64::try_from(len).expect("lengths fit 64 bits");
    key_len(number) + encoded_len_varint(len_u64) + len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{CompactionRequest, PutRequest};
    use bytes::Bytes;

    /// The message as etcd declares it, as far as these tests need it.
    #[derive(Clone, PartialEq, Message)]
    struct InternalRaftRequest {
        #[prost(message, optional, tag = "100")]
        header: Option<Header>,
        #[prost(message, optional, tag = "4")]
        put: Option<PutRequest>,
        #[prost(message, optional, tag = "7")]
        compaction: Option<CompactionRequest>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Header {
        #[prost(uint64, tag = "1")]
        id: u64,
        #[prost(string, tag = "2")]
        username: String,
        #[prost(uint64, tag = "3")]
        auth_revision: u64,
    }

    fn put(value_len: usize) -> PutRequest {
        PutRequest { key: Bytes::from_static(b"foo"), value: vec![7; value_len].into(), lease: 9, ..Default::default() }
    }

    #[test]
    fn size_is_that_of_the_message_for_any_member_user_and_value() {
        let lens = [0, 1, 127, 128, 16_383, 16_384, 1_572_864];
        for (member_id, value_len) in
            [0, 1, 0x80, 0x1234, 0x8000, u64::MAX].into_iter().flat_map(|m| lens.map(|v| (m, v)))
        {
            for (user_name, auth_revision) in [("", 0), ("root", 0), ("root", 300)] {
                let header = RequestHeader { member_id, user_name, auth_revision };
                let id = ((member_id & 0xffff) << 48) | (0x9a << 40) | 77;
                let whole = InternalRaftRequest {
                    header: Some(Header { id, username: user_name.to_owned(), auth_revision }),
                    put: Some(put(value_len)),
                    compaction: None,
                };
                assert_eq!(raft_request_len(&header, RequestField::Put, &put(value_len)), whole.encoded_len());
            }
        }
    }

    #[test]
    fn an_empty_request_still_counts_its_field() {
        let header = RequestHeader { member_id: 0x1234, ..Default::default() };
        let whole = InternalRaftRequest {
            header: Some(Header { id: (0x1234 << 48) | 1, ..Default::default() }),
            put: None,
            compaction: Some(CompactionRequest::default()),
        };
        let len = raft_request_len(&header, RequestField::Compaction, &CompactionRequest::default());
        assert_eq!(len, whole.encoded_len());
    }
}
