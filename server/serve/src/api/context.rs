//! What every service needs: who asks, what a reply's header says, and the ways to the home core and the index.

use garboard_proto::etcdserverpb as pb;
use garboard_proto::size::{RequestField, RequestHeader, raft_request_len};
use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response, Status as MemberStatus};
use garboard_replica::request::{Command, Context, KeyspaceId, Principal, Reply};
use garboard_storage::{Paged, View};
use prost::Message;
use tonic::Status;

use super::errors::status;
use crate::core::Core;
use crate::stages::Unsent;

/// The one keyspace that is served.
pub const KEYSPACE: KeyspaceId = KeyspaceId(0);

/// The services' view of the core that the connection lives on.
#[derive(Clone)]
pub struct Service {
    /// The core.
    pub core: Core,
    /// The connection's answers to writes that are not in its socket yet.
    pub unsent: Unsent,
}

impl Service {
    /// Where the request runs and on whose behalf.
    fn context(&self) -> Context {
        Context { keyspace: KEYSPACE, principal: Principal::Anonymous }
    }

    /// A header with a revision.
    pub fn header(&self, revision: i64) -> pb::ResponseHeader {
        pb::ResponseHeader { revision, ..self.header_without_revision() }
    }

    /// A header as the cluster's calls have it.
    pub fn header_without_revision(&self) -> pb::ResponseHeader {
        let identity = self.core.identity();
        pb::ResponseHeader {
            cluster_id: identity.cluster_id,
            member_id: identity.member_id,
            revision: 0,
            raft_term: self.core.raft_term(),
        }
    }

    /// The store's newest published revision.
    pub fn revision(&self) -> i64 {
        self.core.reader(KEYSPACE).revision()
    }

    /// Asks the home core.
    pub async fn ask(&self, request: Request) -> Result<Response, Status> {
        let result = self.core.request(self.context(), request).await;
        if let Some(published) = self.core.take_answered_from() {
            self.unsent.answered(published);
        }
        result.map_err(status)
    }

    /// Has the home core change the state.
    pub async fn write(&self, command: Command) -> Result<Reply, Status> {
        match self.ask(Request::Write(command)).await? {
            Response::Write(reply) => Ok(reply),
            other => Err(mismatch(&other)),
        }
    }

    /// Waits until a view pinned from now on is as new as this moment's newest commit.
    pub async fn read_index(&self) -> Result<(), Status> {
        match self.ask(Request::ReadIndex).await? {
            Response::ReadIndex => Ok(()),
            other => Err(mismatch(&other)),
        }
    }

    /// The member's figures.
    pub async fn member_status(&self) -> Result<MemberStatus, Status> {
        match self.ask(Request::Status).await? {
            Response::Status(status) => Ok(status),
            other => Err(mismatch(&other)),
        }
    }

    /// Evaluates something over the newest root, as often as it takes until its pages are there.
    pub async fn read<T>(&self, mut evaluate: impl FnMut(&View<'_>) -> Paged<T>) -> T {
        loop {
            let snapshot = self.core.reader(KEYSPACE).pin();
            let outcome = evaluate(&snapshot.view());
            match outcome {
                Ok(value) => return value,
                Err(need) => self.core.load(snapshot, need).await,
            }
        }
    }

    /// Checks a request's size the way etcd does.
    pub fn check_size(&self, field: RequestField, request: &impl Message) -> Result<(), Error> {
        let header = RequestHeader { member_id: self.core.identity().member_id, ..Default::default() };
        let fits = raft_request_len(&header, field, request) <= self.core.limits().max_request_bytes;
        if fits { Ok(()) } else { Err(Error::RequestTooLarge) }
    }
}

/// An answer that does not fit its question. It is a bug, and the one request is what it costs.
pub fn mismatch(response: &impl std::fmt::Debug) -> Status {
    debug_assert!(false, "an answer does not fit its question: {response:?}");
    Status::internal("an answer does not fit its question")
}
