//! The Watch service: requests in, responses out, both as they come, on one stream of the core's hub.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, FutureExt, select};
use futures::{Stream, stream};
use garboard_proto::etcdserverpb as pb;
use garboard_proto::mvccpb;
use garboard_replica::Error;
use garboard_replica::watch::{CancelReason, StreamId, WatchCreate, WatchEvent, WatchResponse};
use http_body::Body;
use pb::watch_create_request::FilterType;
use pb::watch_request::RequestUnion;
use tonic::{Code, Status};

use super::call::Requests;
use super::context::{KEYSPACE, Room, Service};
use super::convert::{key_value, watch_keys};
use super::errors::{Refusal, status};
use super::frames::put_frame;
use crate::limits::MEDIUM_ANSWER_BYTES;

/// Responses that are ready together leave together, up to about so many bytes.
const PIECE_BYTES: usize = 32 * 1024;

/// How long a watch waits before it asks again for room where too many wait.
const ROOM_RETRY: Duration = Duration::from_millis(100);

/// Serves one watch stream until its client is gone.
pub fn watch<B>(
    service: Service,
    requests: Requests<B, pb::WatchRequest>,
) -> impl Stream<Item = Result<Bytes, Status>> + 'static
where
    B: Body<Data = Bytes> + Unpin + 'static,
{
    let id = service.core.watches().open(service.core.now());
    let call = WatchCall { open: OpenStream { service, id }, requests, half_closed: false };
    stream::try_unfold(call, |mut call| async move {
        let piece = call.next_piece().await?;
        Ok(Some((piece, call)))
    })
}

/// A stream of the hub, closed with its call.
struct OpenStream {
    service: Service,
    id: StreamId,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.service.core.watches().close(self.id);
    }
}

struct WatchCall<B> {
    open: OpenStream,
    requests: Requests<B, pb::WatchRequest>,
    /// The client will send no more requests. Its watches go on.
    half_closed: bool,
}

impl<B> WatchCall<B>
where
    B: Body<Data = Bytes> + Unpin + 'static,
{
    /// The next responses, framed.
    async fn next_piece(&mut self) -> Result<Bytes, Status> {
        loop {
            self.take_requests()?;
            if let Some(piece) = self.take_responses().await? {
                return Ok(piece);
            }
            self.wait().await?;
        }
    }

    /// Handles the requests that are there.
    fn take_requests(&mut self) -> Result<(), Status> {
        while self.takes_requests() {
            match self.requests.next().now_or_never() {
                Some(request) => self.handle(request)?,
                None => break,
            }
        }
        Ok(())
    }

    fn takes_requests(&self) -> bool {
        !self.half_closed && self.open.service.core.watches().with_hub(|hub| hub.accepts_requests(self.open.id))
    }

    /// Takes the responses that are ready, or some of them if they are many.
    async fn take_responses(&self) -> Result<Option<Bytes>, Status> {
        let OpenStream { service, id } = &self.open;
        let mut piece = Vec::new();
        let room = self.room().await?;
        while piece.len() < PIECE_BYTES {
            let snapshot = service.core.reader(KEYSPACE).pin();
            let next = service.core.watches().with_hub(|hub| hub.next_response(*id, &snapshot.view()));
            match next {
                Ok(Some(response)) => put_frame(&wire_response(service, response), &mut piece)?,
                Ok(None) => break,
                // What is there already need not wait for the page.
                Err(_) if !piece.is_empty() => break,
                Err(need) => service.core.load(snapshot, need).await,
            }
        }
        Ok((!piece.is_empty()).then(|| room.fill(piece)))
    }

    /// Room for a piece. A watch waits for it as long as it takes: what its client misses meanwhile it gets then.
    async fn room(&self) -> Result<Room, Status> {
        let service = &self.open.service;
        loop {
            // Pieces are of both kinds; a client that reads none of them must not be in the way of small answers.
            match service.room(MEDIUM_ANSWER_BYTES + 1).await {
                Ok(room) => return Ok(room),
                Err(late) if late.code() == Code::DeadlineExceeded => return Err(late),
                Err(_) => service.core.sleep(ROOM_RETRY).await,
            }
        }
    }

    /// Waits until the hub has something or the client asks for something, and handles the latter.
    async fn wait(&mut self) -> Result<(), Status> {
        let takes_requests = self.takes_requests();
        let OpenStream { service, id } = &self.open;
        let core = service.core.clone();
        let id = *id;
        // With a long history to catch up with, the hub has something at once; then the core's other tasks come first.
        if poll_fn(|cx| core.watches().poll_named(id, cx.waker())).now_or_never().is_some() {
            core.yield_now().await;
            return Ok(());
        }
        let named = poll_fn(|cx| core.watches().poll_named(id, cx.waker()));
        if !takes_requests {
            named.await;
            return Ok(());
        }
        let requested = match select(named, pin!(self.requests.next())).await {
            Either::Left(((), _)) => return Ok(()),
            Either::Right((request, _)) => request,
        };
        self.handle(requested)
    }

    fn handle(&mut self, request: Result<Option<pb::WatchRequest>, Status>) -> Result<(), Status> {
        let request = match request {
            Ok(Some(request)) => request,
            Ok(None) => {
                self.half_closed = true;
                return Ok(());
            }
            Err(failed) if failed.code() == Code::Cancelled => return Err(Refusal::WatchCanceled.into()),
            Err(failed) => return Err(failed),
        };
        let OpenStream { service, id } = &self.open;
        let snapshot = service.core.reader(KEYSPACE).pin();
        let view = snapshot.view();
        let full = service.core.watches().with_hub(|hub| match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => {
                hub.create(service.core.now(), *id, watch_create(request), &view)
            }
            Some(RequestUnion::CancelRequest(request)) => hub.cancel(*id, request.watch_id, &view),
            Some(RequestUnion::ProgressRequest(_)) => {
                hub.request_progress(*id, &view);
                Ok(())
            }
            // An empty request is met with silence.
            None => Ok(()),
        });
        // The hub said before that it takes requests.
        full.map_err(|_| status(Error::TooManyRequests))
    }
}

pub(super) fn watch_create(request: pb::WatchCreateRequest) -> WatchCreate {
    let filtered = |kind: FilterType| request.filters.contains(&kind.into());
    WatchCreate {
        watch_id: request.watch_id,
        no_put: filtered(FilterType::Noput),
        no_delete: filtered(FilterType::Nodelete),
        start_revision: request.start_revision,
        progress_notify: request.progress_notify,
        prev_kv: request.prev_kv,
        fragment: request.fragment,
        keys: watch_keys(request.key, request.range_end),
    }
}

fn wire_response(service: &Service, response: WatchResponse) -> pb::WatchResponse {
    pb::WatchResponse {
        header: Some(service.header(response.header_revision)),
        watch_id: response.watch_id,
        created: response.created,
        canceled: response.canceled,
        compact_revision: response.compact_revision,
        cancel_reason: response.cancel_reason.map(cancel_reason).unwrap_or_default(),
        fragment: response.fragment,
        events: response.events.iter().map(wire_event).collect(),
    }
}

fn wire_event(event: &WatchEvent) -> mvccpb::Event {
    let kind = if event.event().deleted { mvccpb::event::EventType::Delete } else { mvccpb::event::EventType::Put };
    mvccpb::Event {
        r#type: kind.into(),
        kv: Some(key_value(event.event().kv.clone())),
        prev_kv: event.previous().cloned().map(key_value),
    }
}

/// Why a watch was not made, in etcd's words.
fn cancel_reason(reason: CancelReason) -> String {
    match reason {
        CancelReason::Compacted => status(Error::Compacted).message().to_owned(),
        CancelReason::EmptyRange => "mvcc: watcher range is empty".to_owned(),
        CancelReason::DuplicateId => "mvcc: duplicate watch ID provided on the WatchStream".to_owned(),
        CancelReason::TooManyWatchers => status(Error::TooManyRequests).message().to_owned(),
        CancelReason::Denied(text) => text,
    }
}
