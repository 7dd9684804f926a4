//! Watch streams from end to end: what the client sends and what it is sent, over bodies in memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use futures::FutureExt;
use futures::channel::mpsc;
use garboard_proto::etcdserverpb as pb;
use garboard_replica::events::{Event, EventBatch};
use garboard_replica::request::KeyValue;
use garboard_storage::Revision;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use pb::watch_request::RequestUnion;
use prost::Message;
use tonic::{Code, Status};
use tower::Service as _;

use super::frames::{GrpcBody, frame};
use super::tests::{Server, grpc_request, header};
use bytes::Bytes;

/// The client's side of a watch stream.
struct Client<'s> {
    server: &'s Server,
    requests: Option<mpsc::UnboundedSender<Result<Frame<Bytes>, io::Error>>>,
    body: Pin<Box<GrpcBody>>,
    received: Vec<u8>,
    end: Option<Status>,
}

impl<'s> Client<'s> {
    fn open(server: &'s Server) -> Client<'s> {
        let (requests, receiver) = mpsc::unbounded();
        let request = grpc_request("/etcdserverpb.Watch/Watch").body(StreamBody::new(receiver)).unwrap();
        let response = server.run(server.routes.clone().call(request)).unwrap();
        let body = Box::pin(response.into_body());
        Client { server, requests: Some(requests), body, received: Vec::new(), end: None }
    }

    fn send(&self, request: RequestUnion) {
        let message = pb::WatchRequest { request_union: Some(request) };
        let bytes = frame(&message).unwrap();
        self.requests.as_ref().expect("not half-closed").unbounded_send(Ok(Frame::data(bytes.into()))).unwrap();
    }

    fn watch(&self, key: &str, request: pb::WatchCreateRequest) {
        let key = Bytes::from(key.to_owned());
        self.send(RequestUnion::CreateRequest(pb::WatchCreateRequest { key, ..request }));
    }

    /// What has arrived; nothing if nothing is there now.
    fn next(&mut self) -> Option<pb::WatchResponse> {
        loop {
            if let Some(prefix) = self.received.first_chunk::<5>() {
                let len = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
                if self.received.len() >= 5 + len {
                    let rest = self.received.split_off(5 + len);
                    let message = std::mem::replace(&mut self.received, rest);
                    return Some(pb::WatchResponse::decode(&message[5..]).unwrap());
                }
            }
            let body = &mut self.body;
            // A stream with a long history lets other tasks go first, and is ready again at once.
            let arrived = self.server.run(async { (0..3).find_map(|_| body.frame().now_or_never()) })?;
            match arrived.map(|frame| frame.unwrap().into_data()) {
                Some(Ok(data)) => self.received.extend_from_slice(&data),
                Some(Err(frame)) => self.end = Status::from_header_map(&frame.into_trailers().unwrap()),
                None => return None,
            }
        }
    }

    fn created(&mut self) -> i64 {
        let response = self.next().expect("an answer");
        assert!(response.created && !response.canceled, "{response:?}");
        response.watch_id
    }
}

impl Server {
    /// Puts a key and tells the watches.
    fn put_watched(&self, key: &str, value: &str) -> i64 {
        let previous = self.core.reader(super::context::KEYSPACE).pin().view().find(key.as_bytes(), i64::MAX).unwrap();
        let revision = self.put(key.as_bytes(), value.as_bytes());
        let kv = KeyValue {
            key: Bytes::from(key.to_owned()),
            value: Bytes::from(value.to_owned()),
            create_revision: previous.map_or(revision, |version| version.create_revision),
            mod_revision: revision,
            version: previous.map_or(1, |version| version.version + 1),
            lease: 0,
        };
        let revision_of_event = Revision { main: revision, sub: 0 };
        let previous = previous.map(|version| version.modified);
        let events = vec![Event { deleted: false, kv, revision: revision_of_event, previous }];
        self.core.handle_events(&Arc::new(EventBatch { first_revision: revision, last_revision: revision, events }));
        revision
    }
}

fn create() -> pb::WatchCreateRequest {
    pb::WatchCreateRequest::default()
}

#[test]
fn a_watch_is_confirmed_then_sends_what_changes_until_it_is_canceled() {
    let server = Server::new();
    let mut client = Client::open(&server);
    client.watch("a", create());
    let confirmed = client.next().unwrap();
    assert_eq!(confirmed, pb::WatchResponse { header: header(1), created: true, ..Default::default() });
    assert_eq!(client.next(), None);
    server.put_watched("b", "other");
    assert_eq!(client.next(), None);
    server.put_watched("a", "1");
    let response = client.next().unwrap();
    assert_eq!((response.header, response.watch_id, response.events.len()), (header(3), 0, 1));
    let pair = response.events[0].kv.as_ref().unwrap();
    assert_eq!((&pair.key[..], &pair.value[..], pair.mod_revision), (&b"a"[..], &b"1"[..], 3));
    assert_eq!(response.events[0].prev_kv, None);
    // An unknown id is met with silence.
    client.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: 77 }));
    client.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: 0 }));
    let canceled = client.next().unwrap();
    assert_eq!(canceled, pb::WatchResponse { header: header(3), canceled: true, ..Default::default() });
    server.put_watched("a", "2");
    assert_eq!(client.next(), None);
}

#[test]
fn a_watch_of_the_past_catches_up_with_previous_pairs() {
    let server = Server::new();
    for value in ["1", "2", "3"] {
        server.put_watched("a", value);
    }
    let mut client = Client::open(&server);
    client.watch("a", pb::WatchCreateRequest { start_revision: 3, prev_kv: true, ..create() });
    assert_eq!(client.created(), 0);
    let response = client.next().unwrap();
    let values: Vec<_> = response.events.iter().map(|event| event.kv.as_ref().unwrap().value.clone()).collect();
    assert_eq!(values, ["2", "3"]);
    let previous: Vec<_> = response.events.iter().map(|event| event.prev_kv.as_ref().unwrap().value.clone()).collect();
    assert_eq!(previous, ["1", "2"]);
    assert_eq!(response.header, header(4));
}

#[test]
fn a_watch_that_is_not_made_is_answered_with_etcds_reason() {
    let server = Server::new();
    let mut client = Client::open(&server);
    client.watch("a", pb::WatchCreateRequest { watch_id: 9, ..create() });
    assert_eq!(client.created(), 9);
    for (request, reason) in [
        (
            pb::WatchCreateRequest { start_revision: -1, ..create() },
            "etcdserver: mvcc: required revision has been compacted",
        ),
        (pb::WatchCreateRequest { range_end: "A".into(), ..create() }, "mvcc: watcher range is empty"),
        (pb::WatchCreateRequest { watch_id: 9, ..create() }, "mvcc: duplicate watch ID provided on the WatchStream"),
    ] {
        client.watch("a", request);
        let refused = pb::WatchResponse {
            header: header(1),
            watch_id: -1,
            created: true,
            canceled: true,
            cancel_reason: reason.to_owned(),
            ..Default::default()
        };
        assert_eq!(client.next(), Some(refused));
    }
}

#[test]
fn filters_and_ranges_choose_the_events() {
    let server = Server::new();
    let mut client = Client::open(&server);
    client.watch("a", pb::WatchCreateRequest { filters: vec![0, 99], ..create() });
    // An empty key with an end of one zero byte is everything.
    client.watch("", pb::WatchCreateRequest { range_end: vec![0].into(), filters: vec![1], ..create() });
    assert_eq!((client.created(), client.created()), (0, 1));
    server.put_watched("a", "1");
    let response = client.next().unwrap();
    assert_eq!((response.watch_id, response.events.len()), (1, 1));
    assert_eq!(client.next(), None);
}

#[test]
fn progress_is_sent_when_it_is_asked_for() {
    let server = Server::new();
    let mut client = Client::open(&server);
    client.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
    assert_eq!(client.next(), None, "a stream without watches has no progress");
    client.watch("a", create());
    client.created();
    server.put_watched("b", "1");
    client.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
    let progress = client.next().unwrap();
    assert_eq!(progress, pb::WatchResponse { header: header(2), watch_id: -1, ..Default::default() });
}

#[test]
fn watches_go_on_after_the_client_has_closed_its_side() {
    let server = Server::new();
    let mut client = Client::open(&server);
    client.watch("a", create());
    client.created();
    client.requests = None;
    assert_eq!(client.next(), None);
    server.put_watched("a", "1");
    assert_eq!(client.next().unwrap().events.len(), 1);
    assert!(client.end.is_none());
}

#[test]
fn a_stream_ends_with_its_client() {
    let server = Server::new();
    let streams = || server.core.watches().with_hub(|hub| hub.stats().streams);
    let client = Client::open(&server);
    assert_eq!(streams(), 1);
    drop(client);
    assert_eq!(streams(), 0);
    let mut client = Client::open(&server);
    client.requests.as_ref().unwrap().unbounded_send(Err(io::ErrorKind::ConnectionReset.into())).unwrap();
    assert_eq!(client.next(), None);
    let end = client.end.as_ref().expect("a status");
    assert_eq!((end.code(), end.message()), (Code::Cancelled, "etcdserver: watch canceled"));
    assert_eq!(streams(), 0);
}

#[test]
fn a_request_that_does_not_decode_ends_the_stream_with_grpc_gos_answer() {
    let server = Server::new();
    let mut client = Client::open(&server);
    let broken = Bytes::from_static(&[0, 0, 0, 0, 1, 0xff]);
    client.requests.as_ref().unwrap().unbounded_send(Ok(Frame::data(broken))).unwrap();
    assert_eq!(client.next(), None);
    let end = client.end.as_ref().expect("a status");
    let text = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data";
    assert_eq!((end.code(), end.message()), (Code::Internal, text));
}

#[test]
fn a_long_history_arrives_whole_and_in_order() {
    let server = Server::new();
    let value = "v".repeat(1_000);
    for _ in 0..3_000 {
        server.put_watched("a", &value);
    }
    let mut client = Client::open(&server);
    client.watch("a", pb::WatchCreateRequest { start_revision: 2, ..create() });
    client.created();
    let mut revisions = Vec::new();
    while let Some(response) = client.next() {
        revisions.extend(response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision));
    }
    assert!(revisions.into_iter().eq(2..=3_001));
}

#[test]
fn after_a_batch_that_woke_many_streams_the_next_ones_arrive_together_a_little_later() {
    let server = Server::new();
    let mut clients: Vec<Client> = (0..5).map(|_| Client::open(&server)).collect();
    for client in &mut clients {
        client.watch("a", create());
        client.created();
        assert_eq!(client.next(), None);
    }
    let watches = server.core.watches();
    let cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(watches.poll_held(&cx).is_pending());
    server.put_watched("a", "1");
    for client in &mut clients {
        assert_eq!(client.next().unwrap().events.len(), 1, "nothing is held back for a first batch");
        assert_eq!(client.next(), None);
    }
    server.put_watched("a", "2");
    server.put_watched("a", "3");
    let due = watches.poll_held(&cx);
    assert_eq!(due, std::task::Poll::Ready(server.core.now() + 5 * crate::limits::WATCH_REST_PER_STREAM));
    for client in &mut clients {
        assert_eq!(client.next(), None, "streams rest after they were woken");
    }
    watches.wake_held(server.core.now() + 5 * crate::limits::WATCH_REST_PER_STREAM);
    for client in &mut clients {
        assert_eq!(client.next().unwrap().events.len(), 2, "what came during the rest comes together");
    }
}
