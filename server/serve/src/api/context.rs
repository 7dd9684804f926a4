//! What every service needs: who asks, what a reply's header says, and the ways to the home core and the index.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use garboard_proto::etcdserverpb as pb;
use garboard_proto::size::{RequestField, RequestHeader, raft_request_len};
use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response, Status as MemberStatus};
use garboard_replica::request::{Command, Context, KeyspaceId, Principal, Reply};
use garboard_storage::{Paged, View};
use prost::Message;
use tonic::Status;

use super::errors::{deadline_exceeded, status};
use crate::budget::{Budget, Share, hold};
use crate::connection::Connection;
use crate::core::{CallGuard, Core};
use crate::limits::{SMALL_ANSWER_BYTES, TURN_TIME_MAX};
use crate::stages::Unsent;

/// The one keyspace that is served.
pub const KEYSPACE: KeyspaceId = KeyspaceId(0);

/// A call's view of the core that its connection lives on.
#[derive(Clone)]
pub struct Service {
    /// The core.
    pub core: Core,
    /// The connection's answers to writes that are not in its socket yet.
    pub unsent: Unsent,
    /// The call's connection.
    pub connection: Connection,
    /// What is known of the call.
    pub call: Rc<CallState>,
}

/// What is known of a call, for as long as something of it is under way.
pub struct CallState {
    /// When its client stops waiting.
    deadline: Option<Duration>,
    /// The room set aside for its request's bytes.
    share: Cell<Option<Share>>,
    _guard: CallGuard,
}

impl CallState {
    /// A call that has just begun. `deadline` is its client's.
    pub fn new(deadline: Option<Duration>, guard: CallGuard) -> CallState {
        CallState { deadline, share: Cell::new(None), _guard: guard }
    }

    /// When the call's client stops waiting, if it said so.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Keeps the room set aside for the request's bytes.
    pub fn set_share(&self, share: Option<Share>) {
        self.share.set(share);
    }
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
        let share = self.call.share.take();
        let result = self.core.request(self.context(), request, self.call.deadline, share).await;
        if let Some(published) = self.core.take_answered_from() {
            self.unsent.answered(published);
        }
        match result {
            Ok(response) => Ok(response),
            Err(Error::Timeout) => Err(self.late().unwrap_or_else(|| status(Error::Timeout))),
            Err(error) => Err(status(error)),
        }
    }

    /// The status of a call whose client has stopped waiting; nothing before.
    fn late(&self) -> Option<Status> {
        self.call.deadline.filter(|deadline| *deadline <= self.core.now()).map(|_| deadline_exceeded())
    }

    /// Waits for the turn of a long read's next step, and lets the core's other tasks run before. What is returned is
    /// dropped after the step.
    ///
    /// # Errors
    /// When the client has stopped waiting, or there are so many long reads that the turn does not come.
    pub async fn step_turn(&self) -> Result<Share, Status> {
        let turn = self.turn(self.core.step_budget(), 1).await?;
        self.core.begin_long_step().await;
        match self.late() {
            Some(late) => Err(late),
            None => Ok(turn),
        }
    }

    /// Room for an answer of so many bytes, once there is.
    ///
    /// # Errors
    /// When too many wait for room, or there is none within [`TURN_TIME_MAX`].
    pub async fn room(&self, bytes: usize) -> Result<Room, Status> {
        let own = self.turn(self.connection.answers().of(bytes), bytes).await?;
        let share = self.turn(self.core.answers().of(bytes), bytes).await?;
        Ok(Room { share, own, connection: self.connection.clone() })
    }

    /// Whether there is room for an answer of so many bytes without waiting.
    pub fn is_roomy(&self, bytes: usize) -> bool {
        [self.connection.answers(), self.core.answers()].iter().all(|answers| answers.of(bytes).has_room(bytes))
    }

    /// Room for an answer that is there already: a write that was carried out is not refused for want of room.
    pub fn forced_room(&self, bytes: usize) -> Room {
        let own = self.connection.answers().of(bytes).force(bytes);
        Room { share: self.core.answers().of(bytes).force(bytes), own, connection: self.connection.clone() }
    }

    /// A share of one of the core's budgets.
    ///
    /// # Errors
    /// As [`room`](Self::room).
    pub async fn turn(&self, budget: &Budget, bytes: usize) -> Result<Share, Status> {
        let limit = self.core.wheel().now() + TURN_TIME_MAX;
        let deadline = self.call.deadline.map_or(limit, |deadline| deadline.min(limit));
        match self.core.wheel().within(deadline, budget.take(bytes)).await {
            Some(Ok(share)) => Ok(share),
            Some(Err(_)) => Err(status(Error::TooManyRequests)),
            None => Err(self.late().unwrap_or_else(|| status(Error::TooManyRequests))),
        }
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

/// Room for an answer on its way to a client.
#[derive(Debug)]
pub struct Room {
    /// Of the core's budget.
    share: Share,
    /// Of the connection's.
    own: Share,
    connection: Connection,
}

impl Room {
    /// Makes it as large as the answer is. False, and nothing is changed, if it would have to grow and others wait.
    pub fn fit(&mut self, bytes: usize) -> bool {
        self.share.fit(bytes) && self.own.fit(bytes)
    }

    /// Fills it with the answer, or a piece of it: the room comes free when the client has taken the last byte. Of what
    /// is small no account is kept; the number of calls bounds it.
    pub fn fill(mut self, bytes: Vec<u8>) -> Bytes {
        if bytes.len() <= SMALL_ANSWER_BYTES {
            return bytes.into();
        }
        self.share.resize(bytes.capacity());
        self.own.resize(bytes.capacity());
        let unread = Unread::new(self.connection, bytes.capacity());
        hold(bytes, (self.share, self.own, unread))
    }
}

/// Bytes that a client has not taken.
struct Unread {
    connection: Connection,
    bytes: usize,
}

impl Unread {
    fn new(connection: Connection, bytes: usize) -> Unread {
        connection.add_unread(bytes);
        Unread { connection, bytes }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.connection.remove_unread(self.bytes);
    }
}

/// An answer that does not fit its question. It is a bug, and the one request is what it costs.
pub fn mismatch(response: &impl std::fmt::Debug) -> Status {
    debug_assert!(false, "an answer does not fit its question: {response:?}");
    Status::internal("an answer does not fit its question")
}
