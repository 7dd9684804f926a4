//! What the fuzzer calls; `docs/fuzzing.md` says what it promises. Behind a feature because only tests need it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use garboard_proto::etcdserverpb as pb;
use garboard_proto::lenient::{DecodeFailure, decode};
use garboard_proto::size::{RequestField, RequestHeader, raft_request_len};
use garboard_proto::{health, v3electionpb, v3lockpb};
use garboard_replica::codec::{Batch, Item, decode_entry, encode_entry};
use garboard_replica::request::{Command, Principal};
use garboard_replica::validate::{Limits, check_command};
use http_body::{Body, Frame};
use prost::{Message, Name};

use super::context::KEYSPACE;
use super::frames::{Encoding, MessageReader, frame};
use super::{convert, watch};
use crate::budget::Budget;
use crate::wheel::Wheel;

/// Longest message that the reader takes here; decompressing stops at it, too.
const MESSAGE_LEN_MAX: usize = 64 * 1024;
/// Room for the messages of one body.
const BODY_BYTES_MAX: usize = 1 << 30;
/// Operations that a transaction may have.
const TXN_OPS_MAX: usize = 128;

/// A body of a few pieces.
struct Pieces<'a>(std::slice::Chunks<'a, u8>);

impl Body for Pieces<'_> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))))
    }
}

/// The messages of a body, up to the first that is refused.
fn messages(body: &[u8], piece_len: usize, encoding: Encoding) -> Vec<Bytes> {
    let pieces = Pieces(body.chunks(piece_len.max(1)));
    let budget = Budget::new(BODY_BYTES_MAX, 1);
    let mut reader = MessageReader::new(pieces, encoding, MESSAGE_LEN_MAX, Wheel::default(), budget);
    let mut messages = Vec::new();
    while let Some(Ok(Some(message))) = reader.next().now_or_never() {
        assert!(message.len() <= MESSAGE_LEN_MAX, "messages are bounded");
        messages.push(message);
    }
    messages
}

/// The first byte names a method, the second says how the rest comes: as a message's bytes, or as a body of messages
/// behind their prefixes, compressed or not, in one piece or several.
///
/// The messages of a body don't depend on its pieces. What decodes, however leniently, encodes to what decodes to the
/// same. What passes the checks of a request passes those of a command, and an entry gives it back.
pub fn request(data: &[u8]) {
    let Some(([method, form], rest)) = data.split_first_chunk::<2>() else {
        // The lenient reader makes its schema once.
        assert!(decode::<pb::PutRequest>(Bytes::from_static(&[0])).is_err());
        return;
    };
    if form % 4 != 0 {
        return accept(*method, Bytes::copy_from_slice(rest));
    }
    let encoding = if form & 4 == 0 { Encoding::Identity } else { Encoding::Gzip };
    let whole = messages(rest, rest.len(), encoding);
    let pieces = messages(rest, usize::from(form >> 3), encoding);
    assert!(whole == pieces, "messages depend on how their body is cut");
    for message in whole {
        accept(*method, message);
    }
}

/// Decodes a method's request and does what its service does before it asks anybody.
fn accept(method: u8, message: Bytes) {
    match method % 44 {
        0..=3 => accept_txn(message),
        4 | 5 => accept_put(message),
        6 | 7 => accept_range(message),
        8 => accept_delete(message),
        9 | 10 => accept_watch(message),
        11 => drop(sized::<pb::CompactionRequest>(message, RequestField::Compaction)),
        12 => drop(sized::<pb::LeaseGrantRequest>(message, RequestField::LeaseGrant)),
        13 => drop(sized::<pb::LeaseRevokeRequest>(message, RequestField::LeaseRevoke)),
        14 => drop(sized::<pb::AlarmRequest>(message, RequestField::Alarm)),
        15 => drop(decoded::<pb::LeaseKeepAliveRequest>(message)),
        16 => drop(decoded::<pb::LeaseTimeToLiveRequest>(message)),
        17 => drop(decoded::<pb::LeaseLeasesRequest>(message)),
        18 => drop(decoded::<pb::MemberListRequest>(message)),
        19 => drop(decoded::<pb::MemberAddRequest>(message)),
        20 => drop(decoded::<pb::MemberRemoveRequest>(message)),
        21 => drop(decoded::<pb::MemberUpdateRequest>(message)),
        22 => drop(decoded::<pb::MemberPromoteRequest>(message)),
        23 => drop(decoded::<pb::StatusRequest>(message)),
        24 => drop(decoded::<pb::DefragmentRequest>(message)),
        25 => drop(decoded::<pb::HashRequest>(message)),
        26 => drop(decoded::<pb::HashKvRequest>(message)),
        27 => drop(decoded::<pb::SnapshotRequest>(message)),
        28 => drop(decoded::<pb::MoveLeaderRequest>(message)),
        29 => drop(decoded::<pb::DowngradeRequest>(message)),
        30 => drop(decoded::<health::HealthCheckRequest>(message)),
        other => accept_unserved(other, message),
    }
}

/// Requests of methods that are not served yet.
fn accept_unserved(method: u8, message: Bytes) {
    match method {
        31 => drop(decoded::<pb::AuthenticateRequest>(message)),
        32 => drop(decoded::<pb::AuthUserAddRequest>(message)),
        33 => drop(decoded::<pb::AuthUserGetRequest>(message)),
        34 => drop(decoded::<pb::AuthUserDeleteRequest>(message)),
        35 => drop(decoded::<pb::AuthUserChangePasswordRequest>(message)),
        36 => drop(decoded::<pb::AuthUserGrantRoleRequest>(message)),
        37 => drop(decoded::<pb::AuthRoleGrantPermissionRequest>(message)),
        38 => drop(decoded::<pb::AuthRoleRevokePermissionRequest>(message)),
        39 => drop(decoded::<v3lockpb::LockRequest>(message)),
        40 => drop(decoded::<v3lockpb::UnlockRequest>(message)),
        41 => drop(decoded::<v3electionpb::CampaignRequest>(message)),
        42 => drop(decoded::<v3electionpb::ProclaimRequest>(message)),
        _ => drop(decoded::<v3electionpb::LeaderRequest>(message)),
    }
}

/// A request, if the bytes are one.
fn decoded<Q: Message + Name + Default + PartialEq>(message: Bytes) -> Option<Q> {
    let strict = Q::decode(message.clone());
    let request: Q = match decode(message) {
        Ok(request) => request,
        Err(failure) => {
            assert!(strict.is_err(), "the lenient reader takes what the strict one takes");
            assert!(matches!(failure, DecodeFailure::WireFormat | DecodeFailure::Utf8));
            return None;
        }
    };
    let framed = frame(&request).expect("what was read can be sent");
    let again = Q::decode(&framed[5..]).expect("what was sent can be read");
    assert!(again == request, "a request is its fields");
    Some(request)
}

/// A request whose size is counted.
fn sized<Q: Message + Name + Default + PartialEq>(message: Bytes, field: RequestField) -> Option<Q> {
    let request = decoded::<Q>(message)?;
    let header = RequestHeader { member_id: 0x1234, ..RequestHeader::default() };
    assert!(raft_request_len(&header, field, &request) > request.encoded_len());
    Some(request)
}

fn accept_txn(message: Bytes) {
    let Some(request) = sized::<pb::TxnRequest>(message, RequestField::Txn) else { return };
    if let Ok(txn) = convert::txn(request, TXN_OPS_MAX) {
        log(Command::Txn(txn));
    }
}

fn accept_put(message: Bytes) {
    let Some(request) = sized::<pb::PutRequest>(message, RequestField::Put) else { return };
    if let Ok(put) = convert::put(request) {
        log(Command::Put(put));
    }
}

fn accept_delete(message: Bytes) {
    let Some(request) = sized::<pb::DeleteRangeRequest>(message, RequestField::DeleteRange) else { return };
    if let Ok(delete) = convert::delete_range(request) {
        log(Command::DeleteRange(delete));
    }
}

fn accept_range(message: Bytes) {
    let Some(request) = decoded::<pb::RangeRequest>(message) else { return };
    if let Ok(range) = convert::range(request) {
        let _ = convert::check_range_stream(&range);
    }
}

fn accept_watch(message: Bytes) {
    let Some(request) = decoded::<pb::WatchRequest>(message) else { return };
    if let Some(pb::watch_request::RequestUnion::CreateRequest(create)) = request.request_union {
        let _ = watch::watch_create(create);
    }
}

/// What is proposed comes out of the log as it went in.
fn log(command: Command) {
    let checked = check_command(&command, &Limits { max_txn_ops: TXN_OPS_MAX });
    assert!(checked == Ok(()), "a request that is accepted makes a command that is");
    let items = vec![Item { principal: Principal::Anonymous, command }];
    let written = Batch { keyspace: KEYSPACE, source: None, items };
    let batch = decode_entry(&encode_entry(&written)).expect("an entry that was written can be read");
    assert!(batch == written);
}
