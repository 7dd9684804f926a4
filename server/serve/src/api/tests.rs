//! Calls from end to end: bodies in memory, a home core of a few lines, a real index.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use futures::executor::block_on;
use futures::future::{Either, select};
use futures::stream;
use garboard_proto::diagnostics as diagnostics_pb;
use garboard_proto::etcdserverpb as pb;
use garboard_proto::health::{HealthCheckRequest, HealthCheckResponse};
use garboard_replica::Error;
use garboard_replica::envelope::{self, Envelope};
use garboard_replica::members::{MemberRecord, Members};
use garboard_replica::request::{Alarm, AlarmKind, Command, Outcome, Put, Reply};
use garboard_storage::{Applied, Index, IndexConfig, IndexSize, NoFile, Revision};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use prost::Message;
use tonic::Code;
use tower::Service as _;

use super::*;
use crate::connection::Connection;
use crate::core::{BlockingWork, Edge, Identity, LocalFuture, Outbound, RequestLimits, Shared, SharedMembers};
use crate::stages::ReplyTimes;

/// The path of a method.
const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const TXN: &str = "/etcdserverpb.KV/Txn";

/// An executor on which no time passes.
struct StillEdge;

impl Edge for StillEdge {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_seconds(&self) -> u64 {
        1_700_000_000
    }

    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        Box::pin(pending())
    }

    fn blocking(&self, work: BlockingWork) -> LocalFuture<()> {
        work();
        Box::pin(ready(()))
    }

    fn yield_now(&self) -> LocalFuture<()> {
        Box::pin(ready(()))
    }

    fn page_failed(&self, error: garboard_storage::PageError) -> ! {
        panic!("{error}")
    }
}

/// A server whose home core does puts, and answers what is asked for otherwise with fixed figures.
pub(super) struct Server {
    pub(super) core: Core,
    pub(super) routes: Routes,
    index: RefCell<Index>,
    /// What the home core answers instead of its own.
    canned: RefCell<Option<Result<envelope::Response, Error>>>,
}

impl Server {
    pub(super) fn new() -> Server {
        let file = NoFile::new(1 << 30).expect("addresses are plenty");
        let index = Index::create(IndexConfig::new(1, 1), Arc::new(file));
        let shared = Shared {
            identity: Identity { cluster_id: 0xc1, member_id: 0x1234 },
            limits: RequestLimits {
                max_request_bytes: 1_572_864,
                max_txn_ops: 3,
                request_timeout: Duration::from_secs(7),
                max_pending_requests: 16,
                request_bytes_per_core: 64 << 20,
                answer_bytes_per_core: 1 << 30,
                watch_bytes_per_core: 64 << 20,
            },
            raft_term: AtomicU64::new(2),
            leader: AtomicU64::new(0x1234),
            leaderless: AtomicBool::new(false),
            traffic: crate::pace::HomeTraffic::default(),
            members: SharedMembers::default(),
            stopping: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            replies: vec![ReplyTimes::default()],
        };
        let core = Core::new(0, Arc::new(shared), std::rc::Rc::new(StillEdge), index.reader());
        // The answers' bytes stay with the test, which must not wait for its own room.
        let routes = routes(core.clone(), Connection::new(core.wheel().clone(), 1 << 30));
        Server { core, routes, index: RefCell::new(index), canned: RefCell::default() }
    }

    /// Puts a key without a call.
    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> i64 {
        let mut index = self.index.borrow_mut();
        let revision = index.view().revision() + 1;
        index.put(Revision { main: revision, sub: 0 }, key, value, 0).expect("everything is resident");
        index.publish(Applied { index: 0, term: 1 }, revision);
        revision
    }

    fn home(&self, request: envelope::Request) -> Result<envelope::Response, Error> {
        if let Some(canned) = self.canned.borrow_mut().take() {
            return canned;
        }
        Ok(match request {
            envelope::Request::Write(Command::Put(Put { key, value, .. })) => {
                let revision = self.put(&key, &value);
                envelope::Response::Write(Reply { revision, outcome: Outcome::Put(None) })
            }
            envelope::Request::Write(Command::LeaseGrant { id, ttl_seconds }) => {
                envelope::Response::Write(Reply { revision: 1, outcome: Outcome::LeaseGrant(id, ttl_seconds.max(2)) })
            }
            envelope::Request::Write(Command::AlarmActivate(alarm)) => {
                envelope::Response::Write(Reply { revision: 1, outcome: Outcome::Alarm(vec![alarm]) })
            }
            envelope::Request::Write(other) => panic!("no answer to {other:?} was prepared"),
            envelope::Request::ReadIndex => envelope::Response::ReadIndex,
            envelope::Request::LeaseKeepAlive { id } => envelope::Response::LeaseKeepAlive { ttl_seconds: id * 10 },
            envelope::Request::LeaseTimeToLive { .. } => {
                envelope::Response::LeaseTimeToLive { ttl_seconds: -1, granted_ttl_seconds: 0 }
            }
            envelope::Request::LeaseList => envelope::Response::LeaseList(vec![7, 3]),
            envelope::Request::Status => envelope::Response::Status(figures()),
            envelope::Request::Defragment => envelope::Response::Defragment,
            envelope::Request::MoveLeader { .. } => envelope::Response::MoveLeader,
            envelope::Request::KeptHash { .. } => envelope::Response::KeptHash(None),
            envelope::Request::Member { .. } => return Err(Error::MemberNotFound),
            envelope::Request::Stages => envelope::Response::Stages(Box::default()),
            envelope::Request::Checkpoint => envelope::Response::Checkpoint { published_index: 9, saved_index: 8 },
        })
    }

    /// Drives a future while the home core answers.
    pub(super) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let home = async {
            loop {
                for Outbound { envelope: Envelope { ticket, request, .. }, .. } in self.core.take_outbox().await {
                    self.core.deliver(ticket, self.home(request), Some(Duration::ZERO));
                }
            }
        };
        match block_on(select(Box::pin(future), Box::pin(home))) {
            Either::Left((value, _)) => value,
            Either::Right((never, _)) => never,
        }
    }

    fn call_with<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Unpin + 'static,
    {
        let mut routes = self.routes.clone();
        self.run(async {
            let response = routes.call(request).await.expect("a response always comes");
            let (head, mut body) = response.into_parts();
            let mut answer = Answer { http: head.status, headers: head.headers, pieces: Vec::new() };
            while let Some(Ok(frame)) = body.frame().await {
                match frame.into_data() {
                    Ok(data) => answer.pieces.push(data),
                    Err(frame) => answer.headers.extend(frame.into_trailers().expect("data or trailers")),
                }
            }
            answer
        })
    }

    /// Calls a method with a body.
    fn call_raw(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.call_with(grpc_request(path).body(Full::new(body.into())).expect("the parts are valid"))
    }

    /// Calls a method with one message.
    fn call(&self, path: &str, message: &impl Message) -> Answer {
        self.call_raw(path, frames::frame(message).expect("it is small"))
    }

    /// Calls a method and expects one message.
    fn ask<R: Message + Default>(&self, path: &str, message: &impl Message) -> R {
        self.call(path, message).message()
    }
}

pub(super) fn grpc_request(path: &str) -> http::request::Builder {
    Request::builder().method("POST").uri(path).header("content-type", "application/grpc")
}

fn figures() -> envelope::Status {
    envelope::Status {
        leader: 0x1234,
        raft_term: 2,
        raft_index: 9,
        raft_applied_index: 8,
        revision: 1,
        compacted_revision: -1,
        size: IndexSize { file_bytes: 4_096, in_use_bytes: 100, free_bytes: 0 },
        quota_bytes: 1_000,
        alarms: vec![Alarm { member_id: 5, kind: AlarmKind::NoSpace }],
        ..Default::default()
    }
}

struct Answer {
    http: StatusCode,
    /// Headers and trailers.
    headers: http::HeaderMap,
    pieces: Vec<Bytes>,
}

impl Answer {
    fn status(&self) -> (Code, String) {
        let status = Status::from_header_map(&self.headers).expect("a status");
        (status.code(), status.message().to_owned())
    }

    fn messages<R: Message + Default>(&self) -> Vec<R> {
        assert_eq!(self.status(), (Code::Ok, String::new()));
        let mut rest = Bytes::from(self.pieces.concat());
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let prefix = rest.split_to(5);
            let len = u32::from_be_bytes(prefix[1..].try_into().unwrap());
            messages.push(R::decode(rest.split_to(len as usize)).expect("a message"));
        }
        messages
    }

    fn message<R: Message + Default>(&self) -> R {
        let mut messages = self.messages();
        assert_eq!(messages.len(), 1);
        messages.remove(0)
    }
}

fn put_request(key: &str, value_len: usize) -> pb::PutRequest {
    pb::PutRequest { key: key.as_bytes().to_vec().into(), value: vec![b'v'; value_len].into(), ..Default::default() }
}

fn all_keys() -> pb::RangeRequest {
    pb::RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() }
}

pub(super) fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { cluster_id: 0xc1, member_id: 0x1234, revision, raft_term: 2 })
}

#[test]
fn what_was_put_is_read_back_under_full_headers() {
    let server = Server::new();
    let answer: pb::PutResponse = server.ask(PUT, &put_request("a", 3));
    assert_eq!(answer, pb::PutResponse { header: header(2), prev_kv: None });
    let request = pb::RangeRequest { key: "a".into(), ..Default::default() };
    let answer = server.call(RANGE, &request);
    assert_eq!(answer.http, StatusCode::OK);
    assert_eq!(answer.headers["content-type"], "application/grpc");
    let message: pb::RangeResponse = answer.message();
    assert_eq!((message.header, message.count, message.more), (header(2), 1, false));
    assert_eq!(message.kvs[0].value, "vvv");
    let absent = pb::RangeRequest { key: "b".into(), serializable: true, ..Default::default() };
    let message: pb::RangeResponse = server.ask(RANGE, &absent);
    assert_eq!(message, pb::RangeResponse { header: header(2), ..Default::default() });
}

#[test]
fn a_large_range_is_one_message_in_pieces_of_bounded_size() {
    let server = Server::new();
    let value = vec![7; 10_000];
    for number in 0..400 {
        server.put(format!("key-{number:04}").as_bytes(), &value);
    }
    let answer = server.call(RANGE, &all_keys());
    assert!(answer.pieces.len() > 3, "{} pieces", answer.pieces.len());
    assert!(answer.pieces.iter().all(|piece| piece.len() < 1_100_000));
    let message: pb::RangeResponse = answer.message();
    assert_eq!((message.header, message.count, message.kvs.len()), (header(401), 400, 400));
    for (number, pair) in message.kvs.iter().enumerate() {
        assert_eq!(pair.key, format!("key-{number:04}"));
        assert_eq!(pair.value, value);
    }
    let limited = pb::RangeRequest { limit: 300, ..all_keys() };
    let message: pb::RangeResponse = server.ask(RANGE, &limited);
    assert_eq!((message.count, message.kvs.len(), message.more), (400, 300, true));
}

#[test]
fn a_range_stream_ends_with_the_header_and_the_count() {
    let server = Server::new();
    for number in 0..40 {
        server.put(format!("{number:02}").as_bytes(), b"value");
    }
    let chunks: Vec<pb::RangeStreamResponse> = server.call("/etcdserverpb.KV/RangeStream", &all_keys()).messages();
    let responses: Vec<pb::RangeResponse> = chunks.into_iter().map(|chunk| chunk.range_response.unwrap()).collect();
    let (last, before) = responses.split_last().unwrap();
    assert_eq!((last.header.as_ref(), last.count, last.more), (header(41).as_ref(), 40, false));
    assert!(before.iter().all(|response| response.header.is_none() && response.count == 0));
    let keys: Vec<_> = responses.iter().flat_map(|response| &response.kvs).map(|pair| &pair.key).collect();
    assert_eq!(keys.len(), 40);
    assert!(keys.is_sorted());
    let sorted = pb::RangeRequest { sort_target: 3, ..all_keys() };
    let refused = server.call("/etcdserverpb.KV/RangeStream", &sorted).status();
    assert_eq!(refused, (Code::Unimplemented, "RangeStream does not support custom sort orders".to_owned()));
}

#[test]
fn a_request_that_only_raft_would_find_too_large_is_refused_by_its_size_there() {
    let server = Server::new();
    // The limit less the wrapping: key, two tags, lengths and the header with a request id of nine bytes.
    let fitting = 1_572_864 - 24;
    let answer = server.call(PUT, &put_request("k", fitting));
    assert_eq!(answer.status().0, Code::Ok);
    let too_large = (Code::InvalidArgument, "etcdserver: request is too large".to_owned());
    assert_eq!(server.call(PUT, &put_request("k", fitting + 1)).status(), too_large);
    // Beyond what gRPC takes, nothing of it is looked at.
    let cap = 1_572_864 + 512 * 1_024;
    let len = put_request("k", cap).encoded_len();
    let text = format!("grpc: received message larger than max ({len} vs. {cap})");
    assert_eq!(server.call(PUT, &put_request("k", cap)).status(), (Code::ResourceExhausted, text));
    // What does not go through raft has the larger bound.
    let key = vec![b'k'; 1_600_000];
    let message: pb::RangeResponse = server.ask(RANGE, &pb::RangeRequest { key: key.into(), ..Default::default() });
    assert_eq!(message.count, 0);
}

#[test]
fn transactions_that_only_read_are_answered_here_and_others_by_the_home_core() {
    let server = Server::new();
    server.put(b"a", b"1");
    let range = pb::RequestOp {
        request: Some(pb::request_op::Request::RequestRange(Box::new(pb::RangeRequest {
            key: "a".into(),
            ..Default::default()
        }))),
    };
    let request = pb::TxnRequest { success: vec![range], ..Default::default() };
    let message: pb::TxnResponse = server.ask(TXN, &request);
    assert_eq!((message.header, message.succeeded), (header(2), true));
    let Some(pb::response_op::Response::ResponseRange(inner)) = &message.responses[0].response else {
        panic!("a range")
    };
    assert_eq!(inner.header, Some(pb::ResponseHeader { revision: 2, ..Default::default() }));
    assert_eq!(inner.kvs[0].value, "1");
    let put = pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put_request("a", 1).into())) };
    let request = pb::TxnRequest { success: vec![put], ..Default::default() };
    for error in [Error::NoSpace, Error::Timeout, Error::TooManyRequests] {
        *server.canned.borrow_mut() = Some(Err(error));
        let expected = errors::status(error);
        assert_eq!(server.call(TXN, &request).status(), (expected.code(), expected.message().to_owned()));
    }
}

#[test]
fn what_is_no_call_or_no_method_gets_grpc_gos_answer() {
    let server = Server::new();
    for (path, text) in [
        ("/etcdserverpb.KV/Foo", "unknown method Foo for service etcdserverpb.KV"),
        ("/etcdserverpb.KV/", "unknown method  for service etcdserverpb.KV"),
        ("/etcdserverpb.Nothing/Put", "unknown service etcdserverpb.Nothing"),
        ("//", "unknown service "),
        ("/etcdserverpb.KV", "malformed method name: \"/etcdserverpb.KV\""),
        ("/etcdserverpb.Maintenance/Downgrade", "Downgrade is not implemented by Garboard yet"),
    ] {
        let status = server.call_raw(path, Bytes::new()).status();
        assert_eq!(status, (Code::Unimplemented, text.to_owned()), "{path}");
    }
    let plain = Request::builder().uri("/version").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(server.call_with(plain).http, StatusCode::NOT_FOUND);
    let odd = Request::builder().uri(PUT).header("content-type", "application/grpcx");
    assert_eq!(server.call_with(odd.body(Full::<Bytes>::default()).unwrap()).http, StatusCode::NOT_FOUND);
    let get = grpc_request(PUT).method("GET").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(server.call_with(get).http, StatusCode::METHOD_NOT_ALLOWED);
    let coded = grpc_request(PUT).header("grpc-encoding", "br").body(Full::<Bytes>::default()).unwrap();
    let text = "grpc: Decompressor is not installed for grpc-encoding \"br\"".to_owned();
    assert_eq!(server.call_with(coded).status(), (Code::Unimplemented, text));
}

#[test]
fn messages_that_are_missing_or_do_not_decode_get_grpc_gos_answer() {
    let server = Server::new();
    assert_eq!(server.call_raw(PUT, Bytes::new()).status(), (Code::Unknown, "EOF".to_owned()));
    let stream = "/etcdserverpb.KV/RangeStream";
    let missing = "cardinality violation: received no request message from non-client-streaming RPC";
    assert_eq!(server.call_raw(stream, Bytes::new()).status(), (Code::Internal, missing.to_owned()));
    let broken: &[u8] = &[0, 0, 0, 0, 2, 0x0a, 0x7f];
    let text = "proto: cannot parse invalid wire-format data";
    let unary = (Code::Internal, format!("grpc: error unmarshalling request: {text}"));
    assert_eq!(server.call_raw(PUT, broken).status(), unary);
    assert_eq!(server.call_raw(RANGE, broken).status(), unary);
    let streaming = (Code::Internal, format!("grpc: failed to unmarshal the received message: {text}"));
    assert_eq!(server.call_raw(stream, broken).status(), streaming);
    assert_eq!(server.call_raw("/etcdserverpb.Lease/LeaseKeepAlive", broken).status(), streaming);
    let not_text: &[u8] = &[0, 0, 0, 0, 3, 0x0a, 0x01, 0xff];
    let text = "grpc: error unmarshalling request: string field contains invalid UTF-8".to_owned();
    assert_eq!(server.call_raw("/grpc.health.v1.Health/Check", not_text).status(), (Code::Internal, text));
}

#[test]
fn a_client_version_must_be_text() {
    let server = Server::new();
    let call = |version: &[u8]| {
        let body = Bytes::from(frames::frame(&put_request("a", 1)).unwrap());
        let version = HeaderValue::from_bytes(version).unwrap();
        server
            .call_with(grpc_request(PUT).header("client-api-version", version).body(Full::new(body)).unwrap())
            .status()
    };
    assert_eq!(call(b"3.7.3").0, Code::Ok);
    assert_eq!(call(b"\xff"), (Code::InvalidArgument, "etcdserver: invalid client api version".to_owned()));
}

#[test]
fn refusals_of_content_come_before_those_of_size_and_state() {
    let server = Server::new();
    let text = |status: (Code, String)| status.1;
    let nameless = put_request("", 1_600_000);
    assert_eq!(text(server.call(PUT, &nameless).status()), "etcdserver: key is not provided");
    let operations = vec![pb::RequestOp::default(); 4];
    let many = pb::TxnRequest { success: operations, ..Default::default() };
    assert_eq!(text(server.call(TXN, &many).status()), "etcdserver: too many operations in txn request");
    let future = pb::RangeRequest { revision: 99, ..all_keys() };
    assert_eq!(text(server.call(RANGE, &future).status()), "etcdserver: mvcc: required revision is a future revision");
}

#[test]
fn leases_are_granted_listed_and_renewed_in_order() {
    let server = Server::new();
    let grant = "/etcdserverpb.Lease/LeaseGrant";
    let given: pb::LeaseGrantResponse = server.ask(grant, &pb::LeaseGrantRequest { id: -5, ttl: 60 });
    assert_eq!((given.id, given.ttl, given.header), (-5, 60, header(1)));
    let drawn: pb::LeaseGrantResponse = server.ask(grant, &pb::LeaseGrantRequest { id: 0, ttl: 1 });
    assert!(drawn.id > 0);
    assert_eq!(drawn.ttl, 2);
    let listed: pb::LeaseLeasesResponse = server.ask("/etcdserverpb.Lease/LeaseLeases", &pb::LeaseLeasesRequest {});
    assert_eq!(listed.leases.iter().map(|lease| lease.id).collect::<Vec<_>>(), [7, 3]);
    let request = pb::LeaseTimeToLiveRequest { id: 9, keys: true };
    let left: pb::LeaseTimeToLiveResponse = server.ask("/etcdserverpb.Lease/LeaseTimeToLive", &request);
    assert_eq!((left.id, left.ttl, left.granted_ttl, left.keys.len()), (9, -1, 0, 0));
    let requests = [1, 2].map(|id| Bytes::from(frames::frame(&pb::LeaseKeepAliveRequest { id }).unwrap()));
    let body = StreamBody::new(stream::iter(requests.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)))));
    let answer = server.call_with(grpc_request("/etcdserverpb.Lease/LeaseKeepAlive").body(body).unwrap());
    let renewed: Vec<pb::LeaseKeepAliveResponse> = answer.messages();
    assert_eq!(renewed.iter().map(|lease| (lease.id, lease.ttl)).collect::<Vec<_>>(), [(1, 10), (2, 20)]);
    assert!(renewed.iter().all(|lease| lease.header == header(1)));
}

#[test]
fn maintenance_speaks_as_an_etcd_of_the_version_clients_look_for() {
    let server = Server::new();
    let status: pb::StatusResponse = server.ask("/etcdserverpb.Maintenance/Status", &pb::StatusRequest {});
    let expected = pb::StatusResponse {
        header: header(1),
        version: "3.7.3".into(),
        db_size: 4_096,
        leader: 0x1234,
        raft_index: 9,
        raft_term: 2,
        raft_applied_index: 8,
        errors: vec!["memberID:5 alarm:NOSPACE".into()],
        db_size_in_use: 100,
        is_learner: false,
        storage_version: "3.7.0".into(),
        db_size_quota: 1_000,
        downgrade_info: Some(pb::DowngradeInfo::default()),
    };
    assert_eq!(status, expected);
    let leaderless = envelope::Status { leader: 0, alarms: vec![], ..figures() };
    *server.canned.borrow_mut() = Some(Ok(envelope::Response::Status(leaderless)));
    let status: pb::StatusResponse = server.ask("/etcdserverpb.Maintenance/Status", &pb::StatusRequest {});
    assert_eq!(status.errors, ["etcdserver: no leader"]);
    let emptied: pb::DefragmentResponse = server.ask("/etcdserverpb.Maintenance/Defragment", &pb::DefragmentRequest {});
    assert_eq!(emptied.header, None);
}

#[test]
fn alarms_are_listed_by_kind_and_raised() {
    let server = Server::new();
    let alarm = |action: i32, member_id: u64, alarm: i32| {
        let request = pb::AlarmRequest { action, member_id, alarm };
        server.call("/etcdserverpb.Maintenance/Alarm", &request)
    };
    let alarms = |answer: Answer| answer.message::<pb::AlarmResponse>().alarms;
    let nospace = pb::AlarmMember { member_id: 5, alarm: 1 };
    assert_eq!(alarms(alarm(0, 0, 0)), [nospace]);
    assert_eq!(alarms(alarm(0, 0, 1)), [nospace]);
    assert_eq!(alarms(alarm(0, 0, 2)), []);
    assert_eq!(alarms(alarm(1, 8, 2)), [pb::AlarmMember { member_id: 8, alarm: 2 }]);
    assert_eq!(alarms(alarm(1, 8, 0)), []);
    assert_eq!(alarm(7, 0, 0).status().0, Code::InvalidArgument);
}

#[test]
fn the_hash_of_a_history_is_bounded_by_it() {
    let server = Server::new();
    for number in 0..10 {
        server.put(b"key", format!("{number}").as_bytes());
    }
    let path = "/etcdserverpb.Maintenance/HashKV";
    let at = |revision: i64| server.call(path, &pb::HashKvRequest { revision });
    let newest: pb::HashKvResponse = at(0).message();
    assert_eq!((newest.header, newest.compact_revision, newest.hash_revision), (header(11), -1, 11));
    let older: pb::HashKvResponse = at(5).message();
    assert_eq!((older.header, older.hash_revision), (header(11), 5));
    assert_ne!(newest.hash, older.hash);
    assert_eq!(at(12).status().0, Code::OutOfRange);
    let nothing: pb::HashKvResponse = at(-3).message();
    assert_eq!((nothing.hash, nothing.hash_revision, nothing.header), (1_084_519_789, -3, header(11)));
    let whole: pb::HashResponse = server.ask("/etcdserverpb.Maintenance/Hash", &pb::HashRequest {});
    assert_eq!((whole.hash, whole.header), (newest.hash, header(11)));
}

#[test]
fn the_member_list_has_this_member_and_no_revision() {
    let server = Server::new();
    let record = MemberRecord {
        id: 0x1234,
        name: "m".into(),
        peer_urls: vec!["http://localhost:2380".into()],
        client_urls: vec!["http://localhost:2379".into()],
        is_learner: false,
    };
    server.core.members().set(Arc::new(Members::founding([record])), 0x1234);
    let request = pb::MemberListRequest { linearizable: true };
    let list: pb::MemberListResponse = server.ask("/etcdserverpb.Cluster/MemberList", &request);
    assert_eq!(list.header, header(0));
    let member = &list.members[0];
    assert_eq!((member.id, member.name.as_str(), member.is_learner), (0x1234, "m", false));
    assert_eq!(member.peer_ur_ls, ["http://localhost:2380"]);
    assert_eq!(member.client_ur_ls, ["http://localhost:2379"]);
}

#[test]
fn the_server_is_healthy_and_nothing_else_has_a_health() {
    let server = Server::new();
    let request = |service: &str| HealthCheckRequest { service: service.into() };
    let health: HealthCheckResponse = server.ask("/grpc.health.v1.Health/Check", &request(""));
    assert_eq!(health.status, 1);
    let status = server.call("/grpc.health.v1.Health/Check", &request("etcdserverpb.KV")).status();
    assert_eq!(status, (Code::NotFound, "unknown service".to_owned()));
}

#[test]
fn a_call_that_wants_a_leader_is_refused_or_ended_while_there_is_none() {
    let server = Server::new();
    let call = |path: &str, wanted: &'static str| {
        let body = Bytes::from(frames::frame(&put_request("a", 1)).unwrap());
        server.call_with(grpc_request(path).header("hasleader", wanted).body(Full::new(body)).unwrap()).status()
    };
    let no_leader = (Code::Unavailable, "etcdserver: no leader".to_owned());
    assert_eq!(call(PUT, "true").0, Code::Ok);
    server.core.set_leader_for_tests(0, false);
    assert_eq!((call(PUT, "true"), call(PUT, "false").0), (no_leader.clone(), Code::Ok));
    // A stream ends once there has been no leader for long.
    server.core.set_leader_for_tests(1, true);
    assert_eq!(call("/grpc.health.v1.Health/Watch", "true"), no_leader);
}

#[test]
fn every_stage_of_a_write_is_listed_with_its_core() {
    let server = Server::new();
    server.core.record_reply(Duration::ZERO);
    let answer: diagnostics_pb::StagesResponse =
        server.ask("/garboard.v1.Diagnostics/Stages", &diagnostics_pb::StagesRequest {});
    let listed: Vec<_> = answer.stages.iter().map(|stage| (stage.name.as_str(), stage.core, stage.count)).collect();
    assert_eq!(listed, [("queue", 0, 0), ("wal_write", 0, 0), ("replicate", 0, 0), ("apply", 0, 0), ("reply", 0, 1)]);
    assert_eq!(answer.stages[4].buckets, [diagnostics_pb::Bucket { end_ns: 1, count: 1 }]);
    let checkpoint: diagnostics_pb::CheckpointResponse =
        server.ask("/garboard.v1.Diagnostics/Checkpoint", &diagnostics_pb::CheckpointRequest {});
    assert_eq!((checkpoint.published_index, checkpoint.saved_index), (9, 8));
}

#[test]
fn every_method_that_the_table_calls_served_is_served() {
    let server = Server::new();
    // A watch stream stays open; its own tests call it.
    for path in methods::tests::served_paths().into_iter().filter(|path| path != "/etcdserverpb.Watch/Watch") {
        let answer = server.call_raw(&path, Bytes::new());
        assert!(!answer.status().1.contains("not implemented"), "{path}: {:?}", answer.status());
    }
}
