//! A small client: one HTTP/2 connection, one unary call at a time on each thread.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use garboard_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, CompactionRequest, CompactionResponse, DeleteRangeRequest,
    DeleteRangeResponse, MemberListRequest, MemberListResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    StatusRequest, StatusResponse, alarm_request::AlarmAction,
};
use garboard_proto::mvccpb::KeyValue;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;

/// How long a call may take before it counts as unanswered: longer than the server's own limit.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

fn call_timeout() -> Duration {
    CALL_TIMEOUT.max(super::patience().saturating_sub(super::DEADLINE))
}
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A window that takes the largest message at once.
const WINDOW_BYTES: u32 = 64 << 20;

/// How a call ended when not well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The server answered with an error.
    Status {
        /// gRPC's code.
        code: i32,
        /// Its text.
        message: String,
    },
    /// No answer: whether the request was carried out is not known.
    Lost(String),
}

impl CallError {
    /// The server's text; empty when there was no answer.
    pub fn text(&self) -> &str {
        match self {
            CallError::Status { message, .. } => message,
            CallError::Lost(_) => "",
        }
    }
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime starts")
    })
}

/// A connection to a server; clones share it.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<RequestBody>,
    authority: String,
}

impl Client {
    /// Connects over TCP to `host:port`.
    pub fn tcp(address: &str) -> Result<Client, CallError> {
        runtime().block_on(async {
            let stream = within(CONNECT_TIMEOUT, TcpStream::connect(address)).await?.map_err(lost)?;
            stream.set_nodelay(true).map_err(lost)?;
            handshake(stream, address).await
        })
    }

    /// Connects to a socket in the file system.
    pub fn unix(path: &Path) -> Result<Client, CallError> {
        runtime().block_on(async {
            let stream = within(CONNECT_TIMEOUT, UnixStream::connect(path)).await?.map_err(lost)?;
            handshake(stream, "localhost").await
        })
    }

    /// Makes one call.
    pub fn call<Q: Message, A: Message + Default>(&self, method: &str, request: &Q) -> Result<A, CallError> {
        let call = within(call_timeout(), unary(self.sender.clone(), &self.authority, method, request));
        runtime().block_on(call)?
    }

    /// Makes one call, and does not wait longer than that for its answer.
    pub fn call_within<Q: Message, A: Message + Default>(
        &self,
        limit: Duration,
        method: &str,
        request: &Q,
    ) -> Result<A, CallError> {
        let call = within(limit, unary(self.sender.clone(), &self.authority, method, request));
        runtime().block_on(call)?
    }

    /// As [`stream`](Self::stream), and does not wait longer than that for it to begin.
    pub fn stream_within<Q: Message>(&self, limit: Duration, method: &str, request: &Q) -> Result<Stream, CallError> {
        let call = streaming(self.sender.clone(), &self.authority, method, request);
        let body = runtime().block_on(within(limit, call))??;
        Ok(Stream { body, unread: BytesMut::new() })
    }

    /// Makes a call whose answer is a stream, and leaves the request's side open.
    pub fn stream<Q: Message>(&self, method: &str, request: &Q) -> Result<Stream, CallError> {
        let call = streaming(self.sender.clone(), &self.authority, method, request);
        let body = runtime().block_on(within(call_timeout(), call))??;
        Ok(Stream { body, unread: BytesMut::new() })
    }

    /// Makes one call, among others of the same thread.
    pub async fn call_async<Q: Message, A: Message + Default>(
        &self,
        method: &str,
        request: &Q,
    ) -> Result<A, CallError> {
        within(CALL_TIMEOUT, unary(self.sender.clone(), &self.authority, method, request)).await?
    }

    /// Runs something besides what this thread does.
    pub fn spawn(work: impl Future<Output = ()> + Send + 'static) {
        runtime().spawn(work);
    }

    pub fn put(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<i64, CallError> {
        let request =
            PutRequest { key: Bytes::copy_from_slice(key.as_ref()), value: value.into(), ..Default::default() };
        let response: PutResponse = self.call("etcdserverpb.KV/Put", &request)?;
        Ok(response.header.expect("a header").revision)
    }

    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<i64, CallError> {
        let request = DeleteRangeRequest { key: Bytes::copy_from_slice(key.as_ref()), ..Default::default() };
        let response: DeleteRangeResponse = self.call("etcdserverpb.KV/DeleteRange", &request)?;
        Ok(response.deleted)
    }

    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<KeyValue>, CallError> {
        let request = RangeRequest { key: Bytes::copy_from_slice(key.as_ref()), ..Default::default() };
        Ok(self.range(&request)?.kvs.pop())
    }

    /// All keys, in order, without values, and the revision they were read at.
    pub fn keys(&self) -> Result<(Vec<KeyValue>, i64), CallError> {
        let zero = Bytes::from_static(b"\0");
        let request = RangeRequest { key: zero.clone(), range_end: zero, keys_only: true, ..Default::default() };
        let response = self.range(&request)?;
        Ok((response.kvs, response.header.expect("a header").revision))
    }

    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, CallError> {
        self.call("etcdserverpb.KV/Range", request)
    }

    /// The store's revision.
    pub fn revision(&self) -> Result<i64, CallError> {
        let request = RangeRequest { key: Bytes::from_static(b"?"), count_only: true, ..Default::default() };
        Ok(self.range(&request)?.header.expect("a header").revision)
    }

    pub fn compact(&self, revision: i64) -> Result<(), CallError> {
        let request = CompactionRequest { revision, physical: true };
        self.call("etcdserverpb.KV/Compact", &request).map(|_: CompactionResponse| ())
    }

    pub fn status(&self) -> Result<StatusResponse, CallError> {
        self.call("etcdserverpb.Maintenance/Status", &StatusRequest::default())
    }

    /// The alarms that are raised, of any type.
    pub fn alarms(&self) -> Result<Vec<AlarmMember>, CallError> {
        self.alarm(AlarmAction::Get, AlarmMember::default())
    }

    pub fn disarm(&self, alarm: AlarmMember) -> Result<Vec<AlarmMember>, CallError> {
        self.alarm(AlarmAction::Deactivate, alarm)
    }

    pub fn members(&self) -> Result<MemberListResponse, CallError> {
        self.call("etcdserverpb.Cluster/MemberList", &MemberListRequest::default())
    }

    fn alarm(&self, action: AlarmAction, alarm: AlarmMember) -> Result<Vec<AlarmMember>, CallError> {
        let request = AlarmRequest { action: action.into(), member_id: alarm.member_id, alarm: alarm.alarm };
        let response: AlarmResponse = self.call("etcdserverpb.Maintenance/Alarm", &request)?;
        Ok(response.alarms)
    }
}

async fn handshake<S>(stream: S, authority: &str) -> Result<Client, CallError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let (sender, connection) = within(CONNECT_TIMEOUT, builder.handshake(TokioIo::new(stream))).await?.map_err(lost)?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(Client { sender, authority: authority.to_owned() })
}

/// A request's bytes; the stream ends behind them, or stays open for as long as the answer is read.
struct RequestBody {
    bytes: Option<Bytes>,
    open: bool,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.bytes.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            // The connection drops the body when the call is over; nothing needs to wake it.
            None if self.open => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none() && !self.open
    }
}

/// The messages of an answer that is a stream.
pub struct Stream {
    body: Incoming,
    unread: BytesMut,
}

impl Stream {
    /// The next message; an error where the stream ends, or brings none in time.
    pub fn next<A: Message + Default>(&mut self) -> Result<A, CallError> {
        runtime().block_on(within(call_timeout(), self.message()))?
    }

    /// The next message; an error where none comes within that time.
    pub fn next_within<A: Message + Default>(&mut self, limit: Duration) -> Result<A, CallError> {
        runtime().block_on(within(limit, self.message()))?
    }

    async fn message<A: Message + Default>(&mut self) -> Result<A, CallError> {
        loop {
            if let Some(head) = self.unread.first_chunk::<5>() {
                let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if self.unread.len() >= 5 + len {
                    let frame = self.unread.split_to(5 + len).freeze();
                    return A::decode(frame.slice(5..)).map_err(lost);
                }
            }
            let frame = self.body.frame().await.ok_or_else(|| lost("the stream ended"))?.map_err(lost)?;
            if let Some(error) = frame.trailers_ref().and_then(status) {
                return Err(error);
            }
            if let Some(data) = frame.data_ref() {
                self.unread.extend_from_slice(data);
            }
        }
    }
}

async fn streaming<Q: Message>(
    sender: SendRequest<RequestBody>,
    authority: &str,
    method: &str,
    request: &Q,
) -> Result<Incoming, CallError> {
    let (head, body) = send(sender, authority, method, request, true).await?.into_parts();
    status(&head.headers).map_or(Ok(body), Err)
}

async fn send<Q: Message>(
    mut sender: SendRequest<RequestBody>,
    authority: &str,
    method: &str,
    request: &Q,
    open: bool,
) -> Result<http::Response<Incoming>, CallError> {
    let mut frame = BytesMut::with_capacity(5 + request.encoded_len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(request.encoded_len()).expect("a request below 4 GiB"));
    request.encode(&mut frame).expect("the buffer grows");
    let request = http::Request::post(format!("http://{authority}/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(RequestBody { bytes: Some(frame.freeze()), open })
        .expect("the parts are valid");
    sender.ready().await.map_err(lost)?;
    sender.send_request(request).await.map_err(lost)
}

async fn unary<Q: Message, A: Message + Default>(
    sender: SendRequest<RequestBody>,
    authority: &str,
    method: &str,
    request: &Q,
) -> Result<A, CallError> {
    let response = send(sender, authority, method, request, false).await?;
    let (head, body) = response.into_parts();
    if let Some(error) = status(&head.headers) {
        return Err(error);
    }
    let body = body.collect().await.map_err(lost)?;
    let trailers = body.trailers().cloned();
    if let Some(error) = trailers.as_ref().and_then(status) {
        return Err(error);
    }
    if trailers.is_none_or(|trailers| !trailers.contains_key("grpc-status")) {
        return Err(CallError::Lost("no status".to_owned()));
    }
    let bytes = body.to_bytes();
    if bytes.len() < 5 {
        return Err(CallError::Lost("no message".to_owned()));
    }
    A::decode(bytes.slice(5..)).map_err(lost)
}

/// The error that headers or trailers carry, if they carry one.
fn status(headers: &http::HeaderMap) -> Option<CallError> {
    let code: i32 = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers.get("grpc-message").map_or(String::new(), |text| percent_decoded(text.as_bytes()));
    (code != 0).then_some(CallError::Status { code, message })
}

fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, CallError> {
    tokio::time::timeout(limit, work).await.map_err(|_| CallError::Lost("no answer in time".to_owned()))
}

fn lost(error: impl std::fmt::Display) -> CallError {
    CallError::Lost(error.to_string())
}
