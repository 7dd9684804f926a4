//! Range reads, written from the index straight into the frames that answer them.
//!
//! A response is the rows, each a field of it, then a response without rows: protobuf takes a message's fields in any
//! order. So a large answer's length is summed first and its rows follow as the client takes them, in bounded memory
//! and without holding a root of the index.

use bytes::Bytes;
use futures::stream;
use garboard_proto::etcdserverpb as pb;
use garboard_replica::read::Budget;
use garboard_replica::read::Progress;
use garboard_replica::read::scan::{RangePlan, RangeRows, RangeScan};
use garboard_replica::read::stream::{RangeStream, StreamChunk, StreamRefusal, StreamStep};
use garboard_replica::request::Range;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;

use super::context::Service;
use super::convert;
use super::errors::{Refusal, status};
use super::frames::{GrpcBody, prefix};

/// Answers a read with one message, whatever its size.
pub async fn range(service: Service, request: pb::RangeRequest) -> Result<GrpcBody, Status> {
    let range = convert::range(request).map_err(status)?;
    if !range.serializable {
        service.read_index().await?;
    }
    let plan = plan(&service, &range).await?;
    let tail = pb::RangeResponse {
        header: Some(service.header(plan.revision)),
        kvs: Vec::new(),
        more: plan.more,
        count: plan.count,
    };
    let tail_len = u64::try_from(tail.encoded_len()).expect("lengths fit 64 bits");
    let prefix = prefix(plan.rows_len + tail_len)?;
    let mut rows = plan.rows;
    let mut first = Vec::with_capacity(first_piece_len(prefix.len() + tail.encoded_len(), plan.rows_len));
    first.extend_from_slice(&prefix);
    if plan.rows_len == 0 {
        tail.encode_raw(&mut first);
        return Ok(GrpcBody::Message(first.into()));
    }
    let progress = next_rows(&service, &mut rows, &mut first).await?;
    if progress == Progress::Done {
        tail.encode_raw(&mut first);
        assert_eq!(u64::try_from(first.len()), Ok(prefix.len() as u64 + plan.rows_len + tail_len));
        return Ok(GrpcBody::Message(first.into()));
    }
    Ok(GrpcBody::Stream(Box::pin(pieces(service, rows, first, tail))))
}

/// Room for the first piece: all of a small answer, the start of a large one.
fn first_piece_len(fixed: usize, rows_len: u64) -> usize {
    let most = Budget::default().bytes;
    fixed + usize::try_from(rows_len).map_or(most, |len| len.min(most))
}

/// The first pass: what the answer will be.
async fn plan(service: &Service, range: &Range) -> Result<RangePlan, Status> {
    let mut scan = service.read(|view| Ok(RangeScan::new(view, range))).await.map_err(status)?;
    loop {
        match service.read(|view| scan.step(view, Budget::default())).await.map_err(status)? {
            Progress::Done => return Ok(scan.into_plan()),
            Progress::More => service.core.yield_now().await,
        }
    }
}

/// Appends some rows of the second pass.
async fn next_rows(service: &Service, rows: &mut RangeRows, out: &mut Vec<u8>) -> Result<Progress, Status> {
    // What one step appended before it missed a page stays, so every further try goes on behind it.
    service.read(|view| rows.step(view, Budget::default(), out)).await.map_err(status)
}

/// The pieces of a large answer: the first, then rows as they are asked for, then the tail.
fn pieces(
    service: Service,
    rows: RangeRows,
    first: Vec<u8>,
    tail: pb::RangeResponse,
) -> impl futures::Stream<Item = Result<Bytes, Status>> {
    let start = Pieces { service, rows, ready: first, tail: Some(tail) };
    stream::try_unfold(start, |mut pieces| async move {
        if pieces.ready.is_empty() {
            let Some(tail) = &pieces.tail else { return Ok(None) };
            let mut piece = Vec::new();
            if next_rows(&pieces.service, &mut pieces.rows, &mut piece).await? == Progress::Done {
                tail.encode_raw(&mut piece);
                pieces.tail = None;
            }
            pieces.ready = piece;
        }
        Ok(Some((Bytes::from(std::mem::take(&mut pieces.ready)), pieces)))
    })
}

struct Pieces {
    service: Service,
    rows: RangeRows,
    ready: Vec<u8>,
    /// What follows the rows, until it was sent.
    tail: Option<pb::RangeResponse>,
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
        let chunk = next_chunk(&service, &mut stream).await?;
        let ended = chunk.end.is_some();
        let message = chunk_frame(&service, chunk)?;
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
    loop {
        match service.read(|view| stream.step(view, Budget::default())).await.map_err(status)? {
            StreamStep::Chunk(chunk) => return Ok(chunk),
            StreamStep::Pending => service.core.yield_now().await,
        }
    }
}

/// The field of a stream's message that holds the response.
const RANGE_RESPONSE_FIELD: u32 = 1;

/// A stream's message around a chunk of rows.
fn chunk_frame(service: &Service, chunk: StreamChunk) -> Result<Bytes, Status> {
    let end = chunk.end.map(|end| pb::RangeResponse {
        header: Some(service.header(end.revision)),
        kvs: Vec::new(),
        more: end.more,
        count: end.count,
    });
    let length = |len: usize| u64::try_from(len).expect("lengths fit 64 bits");
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
    Ok(bytes.into())
}
