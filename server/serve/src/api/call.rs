//! One gRPC call: its headers, its request messages, and the ways to answer it.

use std::future::Future;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use garboard_proto::lenient::decode;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use http_body::Body;
use prost::{Message, Name};
use tonic::Status;

use super::errors::{Refusal, undecodable_in_stream, undecodable_in_unary};
use super::frames::{Encoding, GrpcBody, MessageReader, frame};

/// What gRPC adds to a request of the largest size that etcd lets it have.
pub const MESSAGE_OVERHEAD_BYTES: usize = 512 * 1024;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const CLIENT_API_VERSION: HeaderName = HeaderName::from_static("client-api-version");

/// A call whose headers have been looked at.
#[derive(Debug)]
pub struct Call<B> {
    reader: MessageReader<B>,
}

impl<B> Call<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Looks at a call's headers. `max_request_bytes` is the limit that etcd's flag sets.
    ///
    /// # Errors
    /// When the messages are compressed in an unknown way, or the client's version of the API is no text.
    pub fn new(headers: &HeaderMap, body: B, max_request_bytes: usize) -> Result<Call<B>, Status> {
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
        Ok(Call { reader: MessageReader::new(body, encoding, max_request_bytes + MESSAGE_OVERHEAD_BYTES) })
    }

    /// Answers a call of one request and one response.
    pub async fn unary<Q, R, F>(self, serve: impl FnOnce(Q) -> F) -> Response<GrpcBody>
    where
        Q: Message + Name + Default,
        R: Message,
        F: Future<Output = Result<R, Status>>,
    {
        let answer = async { frame(&serve(self.only_request().await?).await?) };
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
        let message = self.reader.next().await?.ok_or_else(|| Status::unknown("EOF"))?;
        let request = decode(message).map_err(undecodable_in_unary)?;
        // The client closes its side after the one message; a body that is not read to its end would reset the stream.
        if !self.reader.is_at_end() {
            self.reader.next().await?;
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
