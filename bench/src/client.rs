//! A lean gRPC client: one HTTP/2 connection, and no balancing, queue, layer or task between a call and its frames. What
//! the generator spends on a call is what it cannot spend on load.

use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::limits;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use prost::Message;
use std::fmt;
use std::future::poll_fn;

/// A gRPC method of etcd's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One put.
    Put,
    /// One range.
    Range,
    /// A stream of watches.
    Watch,
}

impl Method {
    /// The method's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "Put",
            Self::Range => "Range",
            Self::Watch => "Watch",
        }
    }
}

/// A gRPC status other than OK.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", self.code_name())]
pub struct Status {
    /// gRPC's number of the status.
    pub code: u32,
    /// The server's words.
    pub message: String,
}

impl Status {
    /// The status code in gRPC's words.
    pub fn code_name(&self) -> &'static str {
        const NAMES: [&str; 17] = [
            "OK",
            "Canceled",
            "Unknown",
            "InvalidArgument",
            "DeadlineExceeded",
            "NotFound",
            "AlreadyExists",
            "PermissionDenied",
            "ResourceExhausted",
            "FailedPrecondition",
            "Aborted",
            "OutOfRange",
            "Unimplemented",
            "Internal",
            "Unavailable",
            "DataLoss",
            "Unauthenticated",
        ];
        usize::try_from(self.code).ok().and_then(|code| NAMES.get(code).copied()).unwrap_or("a code that gRPC lacks")
    }
}

/// Why a call did not give an answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered with an error.
    #[error(transparent)]
    Status(#[from] Status),
    /// The connection, or the stream on it, broke.
    #[error("{0}")]
    Transport(#[from] h2::Error),
    /// What came is no gRPC.
    #[error("not a gRPC answer: {0}")]
    Malformed(String),
}

impl CallError {
    /// Whether the whole connection is gone, and not only this call.
    pub fn broke_the_connection(&self) -> bool {
        matches!(self, Self::Transport(error) if !error.is_reset())
    }
}

fn malformed(what: impl fmt::Display) -> CallError {
    CallError::Malformed(what.to_string())
}

/// One HTTP/2 connection, shared by all clones.
#[derive(Clone, Debug)]
pub struct Connection {
    sender: SendRequest<Bytes>,
    put: Uri,
    range: Uri,
    watch: Uri,
    headers: HeaderMap,
}

impl Connection {
    /// Connects and speaks HTTP/2. The connection lives on the calling task's executor until its last clone is dropped.
    pub async fn open(endpoint: &Endpoint) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Connect { endpoint: endpoint.to_string(), source };
        let attempt = tokio::net::TcpStream::connect((endpoint.host.as_str(), endpoint.port));
        let stream = tokio::time::timeout(limits::CONNECT_TIMEOUT, attempt)
            .await
            .map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let (sender, driver) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(limits::HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(limits::HTTP2_WINDOW_BYTES)
            .handshake(stream)
            .await
            .map_err(|error| BenchError::Protocol { endpoint: endpoint.to_string(), reason: error.to_string() })?;
        // A broken connection shows in the calls that were on it, so the driver's own error says nothing new.
        tokio::spawn(async move { drop(driver.await) });
        let authority: Authority = endpoint
            .to_string()
            .parse()
            .map_err(|_| BenchError::Argument(format!("{endpoint} is not a host and port that a URL can hold")))?;
        let mut headers = HeaderMap::with_capacity(3);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(USER_AGENT, HeaderValue::from_static("garboard-bench"));
        Ok(Self {
            sender,
            put: uri(&authority, "/etcdserverpb.KV/Put"),
            range: uri(&authority, "/etcdserverpb.KV/Range"),
            watch: uri(&authority, "/etcdserverpb.Watch/Watch"),
            headers,
        })
    }

    /// One request, one answer.
    pub async fn call<M: Message + Default>(&mut self, method: Method, request: &impl Message) -> Result<M, CallError> {
        let (mut answers, _) = self.start(method, request, true).await?;
        let answer = answers.message().await?.ok_or_else(|| malformed("it has no message"))?;
        match answers.message::<M>().await? {
            None => Ok(answer),
            Some(_) => Err(malformed("it has two messages")),
        }
    }

    /// One request whose stream stays open, and the stream of its answers.
    pub async fn stream(&mut self, method: Method, request: &impl Message) -> Result<OpenStream, CallError> {
        let (answers, requests) = self.start(method, request, false).await?;
        Ok(OpenStream { answers, _requests: requests })
    }

    async fn start(
        &mut self,
        method: Method,
        message: &impl Message,
        is_last: bool,
    ) -> Result<(Answers, SendStream<Bytes>), CallError> {
        poll_fn(|cx| self.sender.poll_ready(cx)).await?;
        let uri = match method {
            Method::Put => &self.put,
            Method::Range => &self.range,
            Method::Watch => &self.watch,
        };
        let mut request = http::Request::new(());
        *request.method_mut() = http::Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = self.headers.clone();
        let (response, mut requests) = self.sender.send_request(request, false)?;
        requests.send_data(envelope(message), is_last)?;
        let response = response.await?;
        let (head, body) = response.into_parts();
        if head.status != http::StatusCode::OK {
            return Err(malformed(format_args!("HTTP status {}", head.status)));
        }
        // An error without any message comes as the only headers.
        if let Some(status) = status_of(&head.headers)? {
            return Err(status.into());
        }
        Ok((Answers { body, buffered: BytesMut::new() }, requests))
    }
}

fn uri(authority: &Authority, path: &'static str) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority.clone());
    parts.path_and_query = Some(PathAndQuery::from_static(path));
    Uri::from_parts(parts).expect("a scheme, an authority and a path make a URL")
}

/// Bytes before each message: whether it is compressed, and its length.
const ENVELOPE_BYTES: usize = 5;

fn envelope(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(ENVELOPE_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).expect("a request is bounded by the largest value and key"));
    message.encode(&mut bytes).expect("the buffer has room for the message");
    bytes.freeze()
}

/// The status in trailers. None if there is none; an error status is an error.
fn status_of(headers: &HeaderMap) -> Result<Option<Status>, CallError> {
    let Some(code) = headers.get("grpc-status") else { return Ok(None) };
    let code = code.to_str().ok().and_then(|code| code.parse().ok()).ok_or_else(|| malformed("a strange status"))?;
    let message = headers.get("grpc-message").map_or_else(String::new, |text| percent_decoded(text.as_bytes()));
    Ok((code != 0).then_some(Status { code, message }))
}

fn percent_decoded(text: &[u8]) -> String {
    let hex = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let escaped = match rest {
            [b'%', high, low, ..] => hex(*high).zip(hex(*low)),
            _ => None,
        };
        let (after, byte) = match escaped {
            Some((high, low)) => (&rest[3..], high * 16 + low),
            None => (after, first),
        };
        decoded.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The answers of a call.
#[derive(Debug)]
struct Answers {
    body: RecvStream,
    /// What has come and has not been read as a message.
    buffered: BytesMut,
}

impl Answers {
    /// The next message. None after the last one, if the call succeeded.
    async fn message<M: Message + Default>(&mut self) -> Result<Option<M>, CallError> {
        loop {
            if let Some(message) = self.next_buffered()? {
                return M::decode(message).map(Some).map_err(malformed);
            }
            let Some(chunk) = self.body.data().await else { break };
            let chunk = chunk?;
            self.body.flow_control().release_capacity(chunk.len())?;
            if self.buffered.is_empty() {
                // The usual case: all of a message in one piece, which is not copied.
                if let Some(message) = whole_message(&chunk) {
                    return M::decode(message).map(Some).map_err(malformed);
                }
            }
            self.buffered.extend_from_slice(&chunk);
        }
        if !self.buffered.is_empty() {
            return Err(malformed("it ends within a message"));
        }
        let trailers = self.body.trailers().await?.ok_or_else(|| malformed("it has no status"))?;
        match status_of(&trailers)? {
            None => Ok(None),
            Some(status) => Err(status.into()),
        }
    }

    fn next_buffered(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some(length) = message_length(&self.buffered)? else { return Ok(None) };
        if self.buffered.len() < ENVELOPE_BYTES + length {
            return Ok(None);
        }
        self.buffered.advance(ENVELOPE_BYTES);
        Ok(Some(self.buffered.split_to(length).freeze()))
    }
}

/// The length in a message's envelope, if all of that has come.
fn message_length(bytes: &[u8]) -> Result<Option<usize>, CallError> {
    let Some((envelope, _)) = bytes.split_first_chunk::<ENVELOPE_BYTES>() else { return Ok(None) };
    let [compressed, length @ ..] = *envelope;
    if compressed != 0 {
        return Err(malformed("it is compressed, which was not asked for"));
    }
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(malformed)?;
    if length > limits::RESPONSE_BYTES_MAX {
        return Err(malformed(format_args!("a message of {length} bytes")));
    }
    Ok(Some(length))
}

/// The message, if the bytes are exactly one.
fn whole_message(bytes: &Bytes) -> Option<Bytes> {
    let length = message_length(bytes).ok().flatten()?;
    (bytes.len() == ENVELOPE_BYTES + length).then(|| bytes.slice(ENVELOPE_BYTES..))
}

/// The answers of a call whose requests have not ended. Dropping it ends the call.
#[derive(Debug)]
pub struct OpenStream {
    answers: Answers,
    _requests: SendStream<Bytes>,
}

impl OpenStream {
    /// The next answer. None after the last one, if the call succeeded.
    pub async fn message<M: Message + Default>(&mut self) -> Result<Option<M>, CallError> {
        self.answers.message().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_message_is_read_with_its_escapes() {
        assert_eq!(percent_decoded(b"etcdserver: 100%25 %C3%A4 % %4 %zz"), "etcdserver: 100% \u{e4} % %4 %zz");
    }

    #[test]
    fn only_a_status_other_than_ok_is_an_error() {
        let headers =
            |code: &'static str| HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())]);
        assert_eq!(status_of(&HeaderMap::new()).unwrap(), None);
        assert_eq!(status_of(&headers("0")).unwrap(), None);
        assert_eq!(status_of(&headers("8")).unwrap().unwrap().code_name(), "ResourceExhausted");
        assert!(matches!(status_of(&headers("x")), Err(CallError::Malformed(_))));
    }

    #[test]
    fn a_compressed_or_endless_message_is_refused_by_its_envelope() {
        assert_eq!(message_length(&[0, 0, 0, 1]).unwrap(), None);
        assert_eq!(message_length(&[0, 0, 0, 1, 2, 9]).unwrap(), Some(258));
        assert!(message_length(&[1, 0, 0, 0, 0]).is_err());
        assert!(message_length(&[0, 255, 255, 255, 255]).is_err());
    }
}
