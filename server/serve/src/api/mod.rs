//! The etcd API: gRPC calls in, domain requests to the core, answers out.
//!
//! [`routes`] gives the service of one core, which the shell hands to each of the core's connections. A call's method is
//! looked up here, its frames are read and written by [`frames`], its messages become domain types in [`convert`], and
//! what is refused gets its code and text in [`errors`]. Nothing here is `Send`: a connection never leaves its core.

mod call;
mod cluster;
mod context;
pub mod convert;
mod diagnostics;
pub mod errors;
pub mod frames;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod health;
mod kv;
mod leader;
mod lease;
mod maintenance;
mod methods;
mod range;
mod watch;
mod watches;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod watch_tests;

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::StreamExt;
use garboard_replica::Error;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use tonic::Status;

pub use self::call::MESSAGE_OVERHEAD_BYTES;
use self::call::{Call, refuse, respond};
use self::context::{CallState, Service};
use self::errors::{Refusal, status};
use self::frames::GrpcBody;
use self::lease::LeaseIds;
use self::methods::Unserved;
pub use self::watches::Watches;
use crate::connection::Connection;
use crate::core::Core;
use crate::stages::Unsent;

/// The gRPC services of a core, for one of its connections.
pub fn routes(core: Core, connection: Connection) -> Routes {
    Routes { core, connection, unsent: Unsent::default(), lease_ids: Rc::default() }
}

/// The gRPC services of a core, for one of its connections.
#[derive(Clone)]
pub struct Routes {
    core: Core,
    connection: Connection,
    unsent: Unsent,
    lease_ids: Rc<RefCell<LeaseIds>>,
}

impl<B> tower::Service<Request<B>> for Routes
where
    B: Body<Data = Bytes> + Unpin + 'static,
{
    type Response = Response<GrpcBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<GrpcBody>, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let routes = self.clone();
        Box::pin(async move { Ok(routes.answer(request).await) })
    }
}

impl Routes {
    /// The connection's answers to writes that are not in its socket yet.
    pub fn unsent(&self) -> Unsent {
        self.unsent.clone()
    }

    /// Answers any request.
    async fn answer<B>(self, request: Request<B>) -> Response<GrpcBody>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
    {
        if let Some(response) = refuse_transport(&request) {
            return response;
        }
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        if let Some(unserved) = methods::unserved(path) {
            return refuse(&unserved.status());
        }
        if self.core.members().is_learner() && !methods::is_for_learners(path) {
            return refuse(&status(Error::NotForLearner));
        }
        let wants_leader = leader::is_wanted(&head.headers);
        if wants_leader && !self.core.has_leader() {
            return refuse(&status(Error::NoLeader));
        }
        let core = self.core.clone();
        let Some(guard) = self.core.begin_call() else { return refuse(&status(Error::TooManyRequests)) };
        let deadline = match call::timeout(&head.headers) {
            Ok(timeout) => timeout.map(|timeout| self.core.now().saturating_add(timeout)),
            Err(status) => return refuse(&status),
        };
        let call = Rc::new(CallState::new(deadline, guard));
        let service = Service { core: self.core, connection: self.connection, unsent: self.unsent, call };
        match Call::new(&head.headers, body, &service) {
            Ok(call) => {
                let response = serve(path, call, service, self.lease_ids).await;
                if wants_leader { leader::guard(&core, response) } else { response }
            }
            Err(status) => refuse(&status),
        }
    }
}

/// Serves a call of a method that is there.
async fn serve<B>(path: &str, call: Call<B>, service: Service, lease_ids: Rc<RefCell<LeaseIds>>) -> Response<GrpcBody>
where
    B: Body<Data = Bytes> + Unpin + 'static,
{
    match path {
        "/etcdserverpb.KV/Range" => call.unary_framed(|request| range::range(service, request)).await,
        "/etcdserverpb.KV/Put" => call.unary(|request| kv::put(service, request)).await,
        "/etcdserverpb.KV/Txn" => call.unary_framed(|request| kv::txn(service, request)).await,
        "/etcdserverpb.KV/DeleteRange" => call.unary(|request| kv::delete_range(service, request)).await,
        "/etcdserverpb.KV/Compact" => call.unary(|request| kv::compact(service, request)).await,
        "/etcdserverpb.KV/RangeStream" => call.server_streaming(|request| range::range_stream(service, request)).await,
        "/etcdserverpb.Watch/Watch" => {
            let responses = watch::watch(service, call.into_requests());
            respond(GrpcBody::Stream(responses.boxed_local()))
        }
        "/etcdserverpb.Lease/LeaseGrant" => {
            call.unary(|request| lease::grant(service, request, || lease_ids.borrow_mut().draw())).await
        }
        "/etcdserverpb.Lease/LeaseRevoke" => call.unary(|request| lease::revoke(service, request)).await,
        "/etcdserverpb.Lease/LeaseTimeToLive" => call.unary(|request| lease::time_to_live(service, request)).await,
        "/etcdserverpb.Lease/LeaseLeases" => call.unary(|request| lease::leases(service, request)).await,
        "/etcdserverpb.Lease/LeaseKeepAlive" => {
            let answers = lease::keep_alive(service, call.into_requests());
            respond(GrpcBody::Stream(answers.boxed_local()))
        }
        "/etcdserverpb.Cluster/MemberAdd" => call.unary(|request| cluster::member_add(service, request)).await,
        "/etcdserverpb.Cluster/MemberRemove" => call.unary(|request| cluster::member_remove(service, request)).await,
        "/etcdserverpb.Cluster/MemberUpdate" => call.unary(|request| cluster::member_update(service, request)).await,
        "/etcdserverpb.Cluster/MemberPromote" => call.unary(|request| cluster::member_promote(service, request)).await,
        "/etcdserverpb.Cluster/MemberList" => call.unary(|request| cluster::member_list(service, request)).await,
        "/etcdserverpb.Maintenance/Status" => call.unary(|request| maintenance::member_status(service, request)).await,
        "/etcdserverpb.Maintenance/Alarm" => call.unary(|request| maintenance::alarm(service, request)).await,
        "/etcdserverpb.Maintenance/Defragment" => call.unary(|request| maintenance::defragment(service, request)).await,
        "/etcdserverpb.Maintenance/Hash" => call.unary(|request| maintenance::hash(service, request)).await,
        "/etcdserverpb.Maintenance/HashKV" => call.unary(|request| maintenance::hash_kv(service, request)).await,
        "/etcdserverpb.Maintenance/MoveLeader" => {
            call.unary(|request| maintenance::move_leader(service, request)).await
        }
        "/garboard.v1.Diagnostics/Stages" => call.unary(|request| diagnostics::stages(service, request)).await,
        "/garboard.v1.Diagnostics/Checkpoint" => call.unary(|request| diagnostics::checkpoint(service, request)).await,
        "/grpc.health.v1.Health/Check" => call.unary(health::check).await,
        "/grpc.health.v1.Health/Watch" => call.server_streaming(health::watch).await,
        // The table of methods has what this match lacks; a test compares them.
        _ => refuse(&Refusal::NotImplemented("this method").into()),
    }
}

impl Unserved<'_> {
    fn status(&self) -> Status {
        match self {
            Unserved::NotYet(method) => Refusal::NotImplemented(method).into(),
            Unserved::UnknownMethod { service, method } => {
                Status::unimplemented(format!("unknown method {method} for service {service}"))
            }
            Unserved::UnknownService(service) => Status::unimplemented(format!("unknown service {service}")),
            Unserved::Malformed(path) => Status::unimplemented(format!("malformed method name: {path:?}")),
        }
    }
}

/// Refuses what is no gRPC call at all.
fn refuse_transport<B>(request: &Request<B>) -> Option<Response<GrpcBody>> {
    let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_grpc = content_type
        .strip_prefix(b"application/grpc")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')));
    if !is_grpc {
        let mut response = Response::new(GrpcBody::Plain(Bytes::from_static(b"404 page not found\n")));
        *response.status_mut() = StatusCode::NOT_FOUND;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        return Some(response);
    }
    if request.method() != Method::POST {
        let text =
            format!("Received a HEADERS frame with :method {:?} which should be POST", request.method().as_str());
        let mut response = refuse(&Status::internal(text));
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return Some(response);
    }
    None
}
