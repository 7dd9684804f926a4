//! The Lease service.

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use futures::{Stream, stream};
use garboard_proto::etcdserverpb as pb;
use garboard_proto::size::RequestField;
use garboard_replica::envelope::{Request, Response};
use garboard_replica::request::{Command, Outcome};
use garboard_replica::system;
use http_body::Body;
use tonic::Status;

use super::call::Requests;
use super::context::{Service, mismatch};
use super::errors::status;
use super::frames::frame;

/// Draws the ids of leases whose client leaves the choice to the server.
#[derive(Debug, Default)]
pub struct LeaseIds {
    key: RandomState,
    drawn: u64,
}

impl LeaseIds {
    /// An id above zero that nobody can foresee: a keyed hash of a counter.
    pub fn draw(&mut self) -> i64 {
        loop {
            self.drawn = self.drawn.wrapping_add(1);
            let id = (self.key.hash_one(self.drawn) >> 1).cast_signed();
            if id > 0 {
                return id;
            }
        }
    }
}

/// Makes a lease.
pub async fn grant(
    service: Service,
    mut request: pb::LeaseGrantRequest,
    draw: impl FnOnce() -> i64,
) -> Result<pb::LeaseGrantResponse, Status> {
    if request.id == 0 {
        request.id = draw();
    }
    service.check_size(RequestField::LeaseGrant, &request).map_err(status)?;
    let command = Command::LeaseGrant { id: request.id, ttl_seconds: request.ttl };
    let reply = service.write(command).await?;
    match reply.outcome {
        Outcome::LeaseGrant(id, ttl) => {
            let header = Some(service.header(reply.revision));
            Ok(pb::LeaseGrantResponse { header, id, ttl, error: String::new() })
        }
        other => Err(mismatch(&other)),
    }
}

/// Ends a lease and deletes its keys.
pub async fn revoke(service: Service, request: pb::LeaseRevokeRequest) -> Result<pb::LeaseRevokeResponse, Status> {
    let reply = service.write(Command::LeaseRevoke { id: request.id }).await?;
    match reply.outcome {
        Outcome::LeaseRevoke => Ok(pb::LeaseRevokeResponse { header: Some(service.header(reply.revision)) }),
        other => Err(mismatch(&other)),
    }
}

/// How long a lease has left and, if asked for, which keys it holds.
pub async fn time_to_live(
    service: Service,
    request: pb::LeaseTimeToLiveRequest,
) -> Result<pb::LeaseTimeToLiveResponse, Status> {
    let id = request.id;
    let (ttl, granted_ttl) = match service.ask(Request::LeaseTimeToLive { id }).await? {
        Response::LeaseTimeToLive { ttl_seconds, granted_ttl_seconds } => (ttl_seconds, granted_ttl_seconds),
        other => return Err(mismatch(&other)),
    };
    let keys = match request.keys && ttl >= 0 {
        true => service.read(|view| system::attached_keys(view, id)).await,
        false => Vec::new(),
    };
    let header = Some(service.header(service.revision()));
    Ok(pb::LeaseTimeToLiveResponse { header, id, ttl, granted_ttl, keys })
}

/// All leases.
pub async fn leases(service: Service, _: pb::LeaseLeasesRequest) -> Result<pb::LeaseLeasesResponse, Status> {
    match service.ask(Request::LeaseList).await? {
        Response::LeaseList(ids) => {
            let header = Some(service.header(service.revision()));
            let leases = ids.into_iter().map(|id| pb::LeaseStatus { id }).collect();
            Ok(pb::LeaseLeasesResponse { header, leases })
        }
        other => Err(mismatch(&other)),
    }
}

/// Renews leases, one after the other, until the client has no more to renew.
pub fn keep_alive<B>(
    service: Service,
    requests: Requests<B, pb::LeaseKeepAliveRequest>,
) -> impl Stream<Item = Result<Bytes, Status>>
where
    B: Body<Data = Bytes> + Unpin,
{
    stream::try_unfold((service, requests), |(service, mut requests)| async move {
        let Some(pb::LeaseKeepAliveRequest { id }) = requests.next().await? else { return Ok(None) };
        // The header comes first: a client that sees a revision here knows that the lease still ran at it.
        let header = Some(service.header(service.revision()));
        let ttl = match service.ask(Request::LeaseKeepAlive { id }).await? {
            Response::LeaseKeepAlive { ttl_seconds } => ttl_seconds,
            other => return Err(mismatch(&other)),
        };
        let response = frame(&pb::LeaseKeepAliveResponse { header, id, ttl })?;
        Ok(Some((response.into(), (service, requests))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_ids_are_above_zero_and_differ() {
        let mut ids = LeaseIds::default();
        let drawn: std::collections::HashSet<i64> = (0..1_000).map(|_| ids.draw()).collect();
        assert_eq!(drawn.len(), 1_000);
        assert!(drawn.iter().all(|id| *id > 0));
    }
}
