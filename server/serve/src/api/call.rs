//! One gRPC call: its headers, its request messages, and the ways to answer it.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use garboard_proto::lenient::decode;
use garboard_replica::Error;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use http_body::Body;
use prost::{Message, Name};
use tonic::Status;

use super::context::{CallState, Service};
use super::errors::{Refusal, deadline_exceeded, status, undecodable_in_stream, undecodable_in_unary};
use super::frames::{Encoding, GrpcBody, MessageReader, frame};
use crate::limits::{REQUEST_TIME_MAX, SMALL_ANSWER_BYTES};

/// What gRPC adds to a request of the largest size that etcd lets it have.
pub const MESSAGE_OVERHEAD_BYTES: usize = 512 * 1024;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const CLIENT_API_VERSION: HeaderName = HeaderName::from_static("client-api-version");

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Most digits of a timeout.
const TIMEOUT_DIGITS_MAX: usize = 8;

/// How long the client of a call waits for it, if it says.
///
/// # Errors
/// When it says so in no known way.
pub fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(text) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    let malformed = || Status::internal("malformed grpc-timeout");
    let (unit, digits) = text.as_bytes().split_last().ok_or_else(malformed)?;
    if digits.is_empty() || digits.len() > TIMEOUT_DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return Err(malformed());
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Ok(Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return Err(malformed()),
    }))
}

/// A call whose headers have been looked at.
pub struct Call<B> {
    reader: MessageReader<B>,
    service: Service,
}

impl<B> Call<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Looks at a call's headers.
    ///
    /// # Errors
    /// When the messages are compressed in an unknown way, or the client's version of the API is no text.
    pub fn new(headers: &HeaderMap, body: B, service: &Service) -> Result<Call<B>, Status> {
        let encoding = match headers.get(GRPC_ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"" | b"identity") => Encoding::Identity,
            Some(b"gzip") => Encoding::Gzip,
            Some(other) => {
                let other = String::from_utf8_lossy(other);
                let text = format!("grpc: Decompressor is not installed for grpc-encoding {other:?}");
                return Err(Status::unimplemented(text));
            }
        };
        let version = headers.get(CLIENT_API_VERSION).map(HeaderValue::as_bytes).unwrap_or_default();
        if std::str::from_utf8(version).is_err() {
            return Err(Refusal::InvalidClientApiVersion.into());
        }
        let len_max = service.core.limits().max_request_bytes + MESSAGE_OVERHEAD_BYTES;
        let (wheel, budget) = (service.core.wheel().clone(), service.core.request_budget().clone());
        Ok(Call { reader: MessageReader::new(body, encoding, len_max, wheel, budget), service: service.clone() })
    }

    /// Answers a call of one request and one response.
    pub async fn unary<Q, R, F>(self, serve: impl FnOnce(Q) -> F) -> Response<GrpcBody>
    where
        Q: Message + Name + Default,
        R: Message,
        F: Future<Output = Result<R, Status>>,
    {
        let service = self.service.clone();
        let answer = async {
            let response = serve(self.only_request().await?).await?;
            let bytes = frame(&response)?;
            Ok(match bytes.len() {
                ..=SMALL_ANSWER_BYTES => bytes.into(),
                len => service.forced_room(len).fill(bytes),
            })
        };
        match answer.await {
            Ok(message) => respond(GrpcBody::Message(message)),
            Err(status) => refuse(&status),
        }
    }

    /// Answers a call of one request with frames made by the caller, whole or as a stream.
    pub async fn unary_framed<Q, F>(self, serve: impl FnOnce(Q) -> F) -> Response<GrpcBody>
    where
        Q: Message + Name + Default,
        F: Future<Output = Result<GrpcBody, Status>>,
    {
        let answer = async { serve(self.only_request().await?).await };
        match answer.await {
            Ok(body) => respond(body),
            Err(status) => refuse(&status),
        }
    }

    /// Answers a call of one request and a stream of responses.
    pub async fn server_streaming<Q, S>(mut self, serve: impl FnOnce(Q) -> S) -> Response<GrpcBody>
    where
        Q: Message + Name + Default,
        S: Stream<Item = Result<Bytes, Status>> + 'static,
    {
        let request = async {
            let missing = "cardinality violation: received no request message from non-client-streaming RPC";
            let message = self.reader.next().await?.ok_or_else(|| Status::internal(missing))?;
            decode(message).map_err(undecodable_in_stream)
        };
        match request.await {
            Ok(request) => respond(GrpcBody::Stream(serve(request).boxed_local())),
            Err(status) => refuse(&status),
        }
    }

    /// The messages of a call whose client goes on sending.
    pub fn into_requests<Q: Message + Name + Default>(self) -> Requests<B, Q> {
        Requests { reader: self.reader, kind: std::marker::PhantomData }
    }

    async fn only_request<Q: Message + Name + Default>(mut self) -> Result<Q, Status> {
        let wheel = self.service.core.wheel().clone();
        let limit = wheel.now() + REQUEST_TIME_MAX;
        let deadline = self.service.call.deadline().map_or(limit, |deadline| deadline.min(limit));
        let request = wheel.within(deadline, Self::whole_request(&mut self.reader, &self.service.call)).await;
        request.unwrap_or_else(|| Err(if deadline < limit { deadline_exceeded() } else { status(Error::Timeout) }))
    }

    async fn whole_request<Q>(reader: &mut MessageReader<B>, call: &Rc<CallState>) -> Result<Q, Status>
    where
        Q: Message + Name + Default,
    {
        let message = reader.next().await?.ok_or_else(|| Status::unknown("EOF"))?;
        let request = decode(message).map_err(undecodable_in_unary)?;
        call.set_share(reader.take_share());
        // The client closes its side after the one message; a body that is not read to its end would reset the stream.
        if !reader.is_at_end() {
            reader.next().await?;
        }
        Ok(request)
    }
}

/// The messages of a call whose client goes on sending.
#[derive(Debug)]
pub struct Requests<B, Q> {
    reader: MessageReader<B>,
    kind: std::marker::PhantomData<fn() -> Q>,
}

impl<B, Q> Requests<B, Q>
where
    B: Body<Data = Bytes> + Unpin,
    Q: Message + Name + Default,
{
    /// The next message; nothing once the client has closed its side. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When a message is too long, is none of this kind, or the client is gone.
    pub async fn next(&mut self) -> Result<Option<Q>, Status> {
        match self.reader.next().await? {
            Some(message) => decode(message).map(Some).map_err(undecodable_in_stream),
            None => Ok(None),
        }
    }
}

/// A response whose status follows its messages.
pub fn respond(body: GrpcBody) -> Response<GrpcBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// A response that is a status alone.
pub fn refuse(status: &Status) -> Response<GrpcBody> {
    let mut response = respond(GrpcBody::Empty);
    status.add_header(response.headers_mut()).expect("a status's text is percent-encoded");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_in_every_unit_and_nonsense_is_refused() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_static(text));
            timeout(&headers).map_err(|status| status.message().to_owned())
        };
        let ok = |duration| Ok(Some(duration));
        assert_eq!(timeout(&HeaderMap::new()).unwrap(), None);
        assert_eq!(read("2H"), ok(Duration::from_secs(7_200)));
        assert_eq!(read("3M"), ok(Duration::from_secs(180)));
        assert_eq!(read("99999999S"), ok(Duration::from_secs(99_999_999)));
        assert_eq!(read("4999m"), ok(Duration::from_millis(4_999)));
        assert_eq!(read("7u"), ok(Duration::from_micros(7)));
        assert_eq!(read("0n"), ok(Duration::ZERO));
        for bad in ["", "S", "1", "1s", "-1S", "123456789S", "1.5S"] {
            assert_eq!(read(bad), Err("malformed grpc-timeout".to_owned()), "{bad}");
        }
    }
}
