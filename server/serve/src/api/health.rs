//! gRPC's health checking protocol. The server as a whole, named by the empty text, has a health; nothing else does.

use bytes::Bytes;
use futures::{Stream, StreamExt, future, stream};
use garboard_proto::health::health_check_response::ServingStatus;
use garboard_proto::health::{HealthCheckRequest, HealthCheckResponse};
use tonic::Status;

use super::errors::Refusal;
use super::frames::frame;

/// The health of a service.
fn health_of(service: &str) -> Option<ServingStatus> {
    // A server that serves at all is healthy: it listens only once it is ready.
    service.is_empty().then_some(ServingStatus::Serving)
}

/// Answers the health of a service once.
pub async fn check(request: HealthCheckRequest) -> Result<HealthCheckResponse, Status> {
    let health = health_of(&request.service).ok_or(Refusal::UnknownHealthService)?;
    Ok(HealthCheckResponse { status: health.into() })
}

/// Answers the health of a service, and then for as long as the client listens what becomes of it: nothing.
pub fn watch(request: HealthCheckRequest) -> impl Stream<Item = Result<Bytes, Status>> + 'static {
    let health = health_of(&request.service).unwrap_or(ServingStatus::ServiceUnknown);
    let first = frame(&HealthCheckResponse { status: health.into() }).map(Bytes::from);
    stream::once(future::ready(first)).chain(stream::pending())
}
