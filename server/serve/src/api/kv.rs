//! The KV service.

use garboard_proto::etcdserverpb as pb;
use garboard_proto::size::RequestField;
use garboard_replica::Error;
use garboard_replica::read;
use garboard_replica::request::{Command, Operation, Outcome, Txn};
use tonic::Status;

use super::context::{Service, mismatch};
use super::convert;
use super::errors::status;

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
    let reply = service.write(Command::DeleteRange(delete)).await?;
    match reply.outcome {
        Outcome::DeleteRange(deleted, previous) => {
            Ok(convert::delete_range_response(service.header(reply.revision), deleted, previous))
        }
        other => Err(mismatch(&other)),
    }
}

/// Runs a transaction: on this core if it only reads, through the log otherwise.
pub async fn txn(service: Service, request: pb::TxnRequest) -> Result<pb::TxnResponse, Status> {
    let size = service.check_size(RequestField::Txn, &request);
    let txn = convert::txn(request, service.core.limits().max_txn_ops).map_err(status)?;
    if read::txn::is_read_only(&txn, true) {
        return read_only_txn(&service, &txn).await;
    }
    size.map_err(status)?;
    let reply = service.write(Command::Txn(txn)).await?;
    match reply.outcome {
        Outcome::Txn(result) => Ok(convert::txn_response(service.header(reply.revision), result)),
        other => Err(mismatch(&other)),
    }
}

async fn read_only_txn(service: &Service, txn: &Txn) -> Result<pb::TxnResponse, Status> {
    if !is_serializable(txn) {
        service.read_index().await?;
    }
    let evaluate = |view: &garboard_storage::View<'_>| {
        let result = read::txn::evaluate(view, txn)?;
        Ok((view.revision(), result))
    };
    let (revision, result): (i64, Result<_, Error>) = service.read(evaluate).await;
    Ok(convert::txn_response(service.header(revision), result.map_err(status)?))
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
