//! The KV service.

use garboard_proto::etcdserverpb as pb;
use garboard_proto::size::RequestField;
use garboard_replica::Error;
use garboard_replica::read;
use garboard_replica::request::{
    Command, DeleteRange, KeyRange, Operation, Outcome, Range, SortOrder, SortTarget, Txn,
};
use tonic::{Code, Status};

use super::context::{Service, mismatch};
use super::errors::status;
use super::frames::{GrpcBody, frame};
use super::{convert, range};

/// How often a transaction that only reads is decided anew when compactions pass by while it reads.
const READ_TXN_TRIES: u32 = 3;

/// Writes one key.
pub async fn put(service: Service, request: pb::PutRequest) -> Result<pb::PutResponse, Status> {
    let size = service.check_size(RequestField::Put, &request);
    let put = convert::put(request).map_err(status)?;
    size.map_err(status)?;
    let reply = service.write(Command::Put(put)).await?;
    match reply.outcome {
        Outcome::Put(previous) => Ok(convert::put_response(service.header(reply.revision), previous)),
        other => Err(mismatch(&other)),
    }
}

/// Deletes keys.
pub async fn delete_range(
    service: Service,
    request: pb::DeleteRangeRequest,
) -> Result<pb::DeleteRangeResponse, Status> {
    let size = service.check_size(RequestField::DeleteRange, &request);
    let delete = convert::delete_range(request).map_err(status)?;
    size.map_err(status)?;
    let mut gathered = Vec::new();
    gathered_by_delete(&delete, &mut gathered);
    check_gathered(&service, gathered).await?;
    let reply = service.write(Command::DeleteRange(delete)).await?;
    match reply.outcome {
        Outcome::DeleteRange(deleted, previous) => {
            Ok(convert::delete_range_response(service.header(reply.revision), deleted, previous))
        }
        other => Err(mismatch(&other)),
    }
}

/// Runs a transaction: on this core if it only reads, through the log otherwise.
pub async fn txn(service: Service, request: pb::TxnRequest) -> Result<GrpcBody, Status> {
    let size = service.check_size(RequestField::Txn, &request);
    let txn = convert::txn(request, service.core.limits().max_txn_ops).map_err(status)?;
    if read::txn::is_read_only(&txn, true) {
        return read_only_txn(&service, &txn).await;
    }
    size.map_err(status)?;
    let mut gathered = Vec::new();
    gathered_by_txn(&txn, &mut gathered);
    check_gathered(&service, gathered).await?;
    let reply = service.write(Command::Txn(txn)).await?;
    match reply.outcome {
        Outcome::Txn(result) => {
            let bytes = frame(&convert::txn_response(service.header(reply.revision), result))?;
            Ok(GrpcBody::Message(service.forced_room(bytes.len()).fill(bytes)))
        }
        other => Err(mismatch(&other)),
    }
}

/// What a deletion gathers whole while it is applied.
fn gathered_by_delete(delete: &DeleteRange, gathered: &mut Vec<Range>) {
    if delete.prev_kv && !matches!(delete.keys, KeyRange::Point(_)) {
        gathered.push(all_of(delete.keys.clone()));
    }
}

/// A read of all pairs of a range.
fn all_of(keys: KeyRange) -> Range {
    Range {
        keys,
        limit: 0,
        revision: 0,
        order: SortOrder::None,
        target: SortTarget::Key,
        serializable: true,
        keys_only: false,
        count_only: false,
        min_mod_revision: 0,
        max_mod_revision: 0,
        min_create_revision: 0,
        max_create_revision: 0,
    }
}

/// What a transaction gathers whole while it is applied, whichever branches it takes.
fn gathered_by_txn(txn: &Txn, gathered: &mut Vec<Range>) {
    for operation in txn.success.iter().chain(&txn.failure) {
        match operation {
            Operation::Range(range) if !range.count_only && !matches!(range.keys, KeyRange::Point(_)) => {
                // The order costs what sorting costs and changes no sum but that of a limit.
                gathered.push(Range { order: SortOrder::None, target: SortTarget::Key, ..range.clone() });
            }
            Operation::DeleteRange(delete) => gathered_by_delete(delete, gathered),
            Operation::Txn(inner) => gathered_by_txn(inner, gathered),
            Operation::Range(_) | Operation::Put(_) => {}
        }
    }
}

/// Refuses a write whose answer would not fit the memory of answers: it is gathered whole, on the home core.
async fn check_gathered(service: &Service, gathered: Vec<Range>) -> Result<(), Status> {
    let most = u64::try_from(service.core.limits().answer_bytes_per_core).expect("lengths fit 64 bits");
    let mut sum = 0;
    for range in gathered {
        // A range that apply will refuse gathers nothing.
        sum += range::rows_len(service, &range).await?.unwrap_or(0);
        if sum > most {
            return Err(status(Error::TooManyRequests));
        }
    }
    Ok(())
}

/// Decides a transaction that only reads, then reads its ranges at the revision at which it was decided.
async fn read_only_txn(service: &Service, txn: &Txn) -> Result<GrpcBody, Status> {
    if !is_serializable(txn) {
        service.read_index().await?;
    }
    for _ in 1..READ_TXN_TRIES {
        match decide_and_read(service, txn).await {
            // A compaction passed by; what asks for the newest state is served at a newer one.
            Err(failed) if failed.code() == Code::OutOfRange => {}
            outcome => return outcome,
        }
    }
    decide_and_read(service, txn).await
}

async fn decide_and_read(service: &Service, txn: &Txn) -> Result<GrpcBody, Status> {
    let decide = |view: &garboard_storage::View<'_>| {
        let taken = read::compare::branches(view, txn)?;
        let checked = read::txn::check_ranges(view.revision(), view.compacted(), txn, &taken);
        Ok(checked.map(|()| (taken[0], view.revision())))
    };
    let (succeeded, revision) = service.read(decide).await.map_err(status)?;
    let operations = if succeeded { &txn.success } else { &txn.failure };
    let ranges = operations.iter().map(|operation| match operation {
        Operation::Range(range) => range,
        _ => unreachable!("the transaction only reads"),
    });
    range::ranges_of_txn(service.clone(), succeeded, revision, ranges.collect()).await
}

/// Whether a read-only transaction may be answered from this member's state alone: all it reads says so. One that reads
/// nothing has conditions only, and those are for the newest state.
fn is_serializable(txn: &Txn) -> bool {
    let mut operations = txn.success.iter().chain(&txn.failure).peekable();
    operations.peek().is_some()
        && operations.all(|operation| matches!(operation, Operation::Range(range) if range.serializable))
}

/// Gives up history.
pub async fn compact(service: Service, request: pb::CompactionRequest) -> Result<pb::CompactionResponse, Status> {
    let pb::CompactionRequest { revision, physical } = request;
    let reply = service.write(Command::Compact { revision, physical }).await?;
    match reply.outcome {
        Outcome::Compact => Ok(pb::CompactionResponse { header: Some(service.header(reply.revision)) }),
        other => Err(mismatch(&other)),
    }
}
