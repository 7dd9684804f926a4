//! Range reads, written from the index straight into the frames that answer them.
//!
//! A response is the rows, each a field of it, then a response without rows: protobuf takes a message's fields in any
//! order. So a large answer's length is summed first and its rows follow as the client takes them, in bounded memory
//! and without holding a root of the index.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::{StreamExt, future, stream};
use garboard_proto::etcdserverpb as pb;
use garboard_replica::Error;
use garboard_replica::read::Budget;
use garboard_replica::read::Progress;
use garboard_replica::read::limits::SCAN_HEAD_BYTES;
use garboard_replica::read::scan::{RangePlan, RangeRows, RangeScan};
use garboard_replica::read::stream::{RangeStream, StreamChunk, StreamRefusal, StreamStep};
use garboard_replica::request::{KeyRange, Range, SortOrder, SortTarget};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;

use super::context::{Room, Service};
use super::convert;
use super::errors::{Refusal, status};
use super::frames::{GrpcBody, prefix};
use crate::budget::Share;
use crate::limits::{
    ANSWER_PIECE_BYTES, LONG_STEP_BYTES, LONG_STEP_KEYS, MEDIUM_ANSWER_BYTES, SHORT_READ_BYTES, SHORT_READ_KEYS,
    SMALL_ANSWER_BYTES, SORT_ROWS_FREE, STREAM_CHUNK_ROOM,
};

/// Answers a read with one message, whatever its size.
pub async fn range(service: Service, request: pb::RangeRequest) -> Result<GrpcBody, Status> {
    if service.core.members().is_learner() && !request.serializable {
        return Err(status(Error::NotForLearner));
    }
    let range = convert::range(request).map_err(status)?;
    if !range.serializable {
        service.read_index().await?;
    }
    let sort = sort_turn(&service, &range).await?;
    let (plan, room) = planned(&service, &range).await?;
    let tail = pb::RangeResponse {
        header: Some(service.header(plan.revision)),
        kvs: Vec::new(),
        more: plan.more,
        count: plan.count,
    };
    let tail_len = tail.encoded_len();
    let prefix = prefix(plan.rows_len + length(tail_len))?;
    let mut first = Vec::with_capacity(first_piece_len(prefix.len() + tail_len, plan.rows_len));
    first.extend_from_slice(&prefix);
    let part = Part { before: Vec::new(), rows: plan.rows, after: tail.encode_to_vec(), _sort: sort };
    body(Pieces { service, parts: [part].into(), _heads: None }, first, room).await
}

/// Answers a transaction that runs these ranges and nothing else, all at one revision, with one message.
pub async fn ranges_of_txn(
    service: Service,
    succeeded: bool,
    revision: i64,
    ranges: Vec<&Range>,
) -> Result<GrpcBody, Status> {
    let head = pb::TxnResponse { header: Some(service.header(revision)), succeeded, responses: Vec::new() };
    let mut message_len = length(head.encoded_len());
    let mut parts = VecDeque::new();
    let mut room = service.room(SCAN_HEAD_BYTES * ranges.len()).await?;
    let mut head_bytes = 0;
    for range in ranges {
        let sort = sort_turn(&service, range).await?;
        let at = if range.revision > 0 { range.revision } else { revision };
        let plan = plan(&service, &Range { revision: at, ..range.clone() }).await?;
        let header = pb::ResponseHeader { revision, ..Default::default() };
        let tail = pb::RangeResponse { header: Some(header), kvs: Vec::new(), more: plan.more, count: plan.count };
        let range_len = plan.rows_len + length(tail.encoded_len());
        let before = operation_prefix(range_len);
        message_len += length(before.len()) + range_len;
        head_bytes += usize::try_from(plan.rows_len).map_or(SCAN_HEAD_BYTES, |len| len.min(SCAN_HEAD_BYTES));
        parts.push_back(Part { before, rows: plan.rows, after: tail.encode_to_vec(), _sort: sort });
    }
    let mut first = Vec::new();
    first.extend_from_slice(&prefix(message_len)?);
    head.encode_raw(&mut first);
    room.fit(ANSWER_PIECE_BYTES);
    // What the first passes keep stays until it was sent.
    let heads = service.core.answers().of(head_bytes).force(head_bytes);
    body(Pieces { service, parts, _heads: Some(heads) }, first, room).await
}

/// The field of a transaction's response that holds those of its operations.
const RESPONSES_FIELD: u32 = 3;
/// The field of an operation's response that holds a range's.
const RESPONSE_RANGE_FIELD: u32 = 1;

/// What stands before a range's response of so many bytes in a transaction's.
fn operation_prefix(range_len: u64) -> Vec<u8> {
    let operation_len = length(key_len(RESPONSE_RANGE_FIELD) + encoded_len_varint(range_len)) + range_len;
    let mut bytes = Vec::new();
    encode_key(RESPONSES_FIELD, WireType::LengthDelimited, &mut bytes);
    encode_varint(operation_len, &mut bytes);
    encode_key(RESPONSE_RANGE_FIELD, WireType::LengthDelimited, &mut bytes);
    encode_varint(range_len, &mut bytes);
    bytes
}

/// How far a read goes that is nobody's trouble.
const SHORT_READ: Budget = Budget { keys: SHORT_READ_KEYS, bytes: SHORT_READ_BYTES };

/// How far one step of a long read goes.
const LONG_STEP: Budget = Budget { keys: LONG_STEP_KEYS, bytes: LONG_STEP_BYTES };

/// Room for the first piece: all of a small answer, the start of a large one.
fn first_piece_len(fixed: usize, rows_len: u64) -> usize {
    fixed + usize::try_from(rows_len).map_or(ANSWER_PIECE_BYTES, |len| len.min(ANSWER_PIECE_BYTES))
}

/// A turn for a read that sorts, if it may sort many rows.
async fn sort_turn(service: &Service, range: &Range) -> Result<Option<Share>, Status> {
    let in_key_order = range.target == SortTarget::Key && range.order != SortOrder::Descend;
    let few = range.limit > 0 && range.limit <= SORT_ROWS_FREE;
    if in_key_order || few || range.count_only || matches!(range.keys, KeyRange::Point(_)) {
        return Ok(None);
    }
    service.turn(service.core.sort_budget(), 1).await.map(Some)
}

/// The first pass, and room for what it keeps and for the answer's first piece.
async fn planned(service: &Service, range: &Range) -> Result<(RangePlan, Room), Status> {
    let mut taken = MEDIUM_ANSWER_BYTES;
    let mut room =
        service.room(if matches!(range.keys, KeyRange::Point(_)) { SMALL_ANSWER_BYTES } else { taken }).await?;
    loop {
        let plan = match short_plan(service, range).await? {
            Some(plan) => plan,
            None => {
                // Nothing is held while others of the connection are measured.
                drop(room);
                let _scan = service.turn(service.connection.scans(), 1).await?;
                taken = SCAN_HEAD_BYTES;
                room = service.room(taken).await?;
                plan(service, range).await?
            }
        };
        let needed = first_piece_len(SMALL_ANSWER_BYTES, plan.rows_len);
        if needed <= taken && room.fit(needed) {
            return Ok((plan, room));
        }
        if service.is_roomy(needed) {
            return Ok((plan, service.room(needed).await?));
        }
        // Others wait: what was found is given up, and found again once it is this call's turn.
        drop((plan, room));
        room = service.room(needed).await?;
        taken = needed;
    }
}

/// The first pass of a read that is short; nothing if it is long.
async fn short_plan(service: &Service, range: &Range) -> Result<Option<RangePlan>, Status> {
    let mut scan = service.read(|view| Ok(RangeScan::new(view, range))).await.map_err(status)?;
    let progress = service.read(|view| scan.step(view, SHORT_READ)).await.map_err(status)?;
    Ok((progress == Progress::Done).then(|| scan.into_plan()))
}

/// The first pass: what the answer will be.
async fn plan(service: &Service, range: &Range) -> Result<RangePlan, Status> {
    let mut scan = service.read(|view| Ok(RangeScan::new(view, range))).await.map_err(status)?;
    loop {
        let _turn = service.step_turn().await?;
        if service.read(|view| scan.step(view, LONG_STEP)).await.map_err(status)? == Progress::Done {
            return Ok(scan.into_plan());
        }
    }
}

/// What a range's rows take in a message; nothing if it is refused.
pub async fn rows_len(service: &Service, range: &Range) -> Result<Option<u64>, Status> {
    let Ok(mut scan) = service.read(|view| Ok(RangeScan::new(view, range))).await else { return Ok(None) };
    loop {
        let _turn = service.step_turn().await?;
        match service.read(|view| scan.step(view, LONG_STEP)).await {
            Ok(Progress::Done) => return Ok(Some(scan.into_plan().rows_len)),
            Ok(Progress::More) => {}
            Err(_) => return Ok(None),
        }
    }
}

/// A part of a message: some bytes, rows that are read as the client takes them, some bytes.
struct Part {
    before: Vec<u8>,
    rows: RangeRows,
    after: Vec<u8>,
    _sort: Option<Share>,
}

/// The parts of a message that are still to be sent.
struct Pieces {
    service: Service,
    parts: VecDeque<Part>,
    /// Room for the rows that the first passes keep.
    _heads: Option<Share>,
}

/// A message that begins with `first`: whole if it is short, else in pieces as the client takes them.
async fn body(mut pieces: Pieces, mut first: Vec<u8>, room: Room) -> Result<GrpcBody, Status> {
    pieces.fill(&mut first).await?;
    let first = room.fill(first);
    if pieces.parts.is_empty() {
        return Ok(GrpcBody::Message(first));
    }
    let rest = stream::try_unfold(pieces, |mut pieces| async move {
        if pieces.parts.is_empty() {
            return Ok(None);
        }
        let room = pieces.service.room(ANSWER_PIECE_BYTES).await?;
        let mut piece = Vec::new();
        let _turn = pieces.service.step_turn().await?;
        pieces.fill(&mut piece).await?;
        Ok(Some((room.fill(piece), pieces)))
    });
    let first = stream::once(future::ready(Ok(first)));
    Ok(GrpcBody::Stream(Box::pin(first.chain(rest))))
}

impl Pieces {
    /// Appends what fits a piece.
    async fn fill(&mut self, piece: &mut Vec<u8>) -> Result<(), Status> {
        while let Some(part) = self.parts.front_mut() {
            piece.append(&mut part.before);
            // What one step appended before it missed a page stays, so every further try goes on behind it.
            let rows = &mut part.rows;
            let progress = self.service.read(|view| rows.step(view, LONG_STEP, piece)).await.map_err(status)?;
            if progress == Progress::Done {
                piece.append(&mut part.after);
                self.parts.pop_front();
            }
            if progress == Progress::More || piece.len() >= LONG_STEP_BYTES / 2 {
                break;
            }
        }
        Ok(())
    }
}

fn length(len: usize) -> u64 {
    u64::try_from(len).expect("lengths fit 64 bits")
}

/// Answers a read with a stream of messages.
pub fn range_stream(
    service: Service,
    request: pb::RangeRequest,
) -> impl futures::Stream<Item = Result<Bytes, Status>> + 'static {
    stream::try_unfold(StreamState::Asked(service, request), |state| async move {
        let (service, mut stream) = match state {
            StreamState::Asked(service, request) => {
                let stream = open_stream(&service, request).await?;
                (service, stream)
            }
            StreamState::Open(service, stream) => (service, stream),
            StreamState::Ended => return Ok(None),
        };
        let room = service.room(service.core.limits().max_request_bytes.min(STREAM_CHUNK_ROOM)).await?;
        let chunk = next_chunk(&service, &mut stream).await?;
        let ended = chunk.end.is_some();
        let message = room.fill(chunk_frame(&service, chunk)?);
        let next = if ended { StreamState::Ended } else { StreamState::Open(service, stream) };
        Ok(Some((message, next)))
    })
}

enum StreamState {
    Asked(Service, pb::RangeRequest),
    Open(Service, Box<RangeStream>),
    Ended,
}

async fn open_stream(service: &Service, request: pb::RangeRequest) -> Result<Box<RangeStream>, Status> {
    let range = convert::range(request).map_err(status)?;
    convert::check_range_stream(&range)?;
    if !range.serializable {
        service.read_index().await?;
    }
    let chunk_bytes = service.core.limits().max_request_bytes;
    let opened = service.read(|view| Ok(RangeStream::new(view, &range, chunk_bytes))).await;
    opened.map(Box::new).map_err(|refusal| {
        Status::from(match refusal {
            StreamRefusal::SortOrder => Refusal::RangeStreamSorted,
            StreamRefusal::RevisionFilters => Refusal::RangeStreamFiltered,
            StreamRefusal::Read(error) => Refusal::Replica(error),
        })
    })
}

async fn next_chunk(service: &Service, stream: &mut RangeStream) -> Result<StreamChunk, Status> {
    let mut step = service.read(|view| stream.step(view, SHORT_READ)).await.map_err(status)?;
    loop {
        let _turn = match step {
            StreamStep::Chunk(chunk) => return Ok(chunk),
            StreamStep::Pending => service.step_turn().await?,
        };
        step = service.read(|view| stream.step(view, LONG_STEP)).await.map_err(status)?;
    }
}

/// The field of a stream's message that holds the response.
const RANGE_RESPONSE_FIELD: u32 = 1;

/// A stream's message around a chunk of rows.
fn chunk_frame(service: &Service, chunk: StreamChunk) -> Result<Vec<u8>, Status> {
    let end = chunk.end.map(|end| pb::RangeResponse {
        header: Some(service.header(end.revision)),
        kvs: Vec::new(),
        more: end.more,
        count: end.count,
    });
    let response_len = length(chunk.rows.len() + end.as_ref().map_or(0, Message::encoded_len));
    let field_len = length(key_len(RANGE_RESPONSE_FIELD) + encoded_len_varint(response_len)) + response_len;
    let mut bytes = Vec::with_capacity(chunk.rows.len() + 128);
    bytes.extend_from_slice(&prefix(field_len)?);
    encode_key(RANGE_RESPONSE_FIELD, WireType::LengthDelimited, &mut bytes);
    encode_varint(response_len, &mut bytes);
    bytes.extend_from_slice(&chunk.rows);
    if let Some(end) = &end {
        end.encode_raw(&mut bytes);
    }
    Ok(bytes)
}
