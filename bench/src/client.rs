//! A lean gRPC client: one HTTP/2 connection, no balancing, no queue between a request and its connection.

use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::limits;
use crate::proto::cluster_client::ClusterClient;
use crate::proto::diagnostics::diagnostics_client::DiagnosticsClient;
use crate::proto::health::health_client::HealthClient;
use crate::proto::kv_client::KvClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::watch_client::WatchClient;
use bytes::{BufMut, BytesMut};
use http::uri::{Authority, Scheme, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;

/// The services that operations of the load call.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Keys and values.
    pub kv: KvClient<Connection>,
    /// The no-op.
    pub health: HealthClient<Connection>,
}

/// One HTTP/2 connection, shared by all clones.
#[derive(Clone, Debug)]
pub struct Connection {
    sender: http2::SendRequest<Body>,
    origin: Uri,
}

impl Connection {
    /// Connects and agrees on HTTP/2. The connection lives on the calling task's executor until its last clone is
    /// dropped.
    pub async fn open(endpoint: &Endpoint) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Connect { endpoint: endpoint.to_string(), source };
        let attempt = tokio::net::TcpStream::connect((endpoint.host.as_str(), endpoint.port));
        let stream = tokio::time::timeout(limits::CONNECT_TIMEOUT, attempt)
            .await
            .map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let protocol = |reason: String| BenchError::Protocol { endpoint: endpoint.to_string(), reason };
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(limits::HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(limits::HTTP2_WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| protocol(error.to_string()))?;
        // A broken connection shows in the requests that were on it, so the driver's own error says nothing new.
        tokio::spawn(async move { drop(driver.await) });
        let authority: Authority = endpoint
            .to_string()
            .parse()
            .map_err(|_| BenchError::Argument(format!("{endpoint} is not a host and port that a URL can hold")))?;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(authority);
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        let origin = Uri::from_parts(parts).expect("a scheme, an authority and a path make a URL");
        Ok(Self { sender, origin })
    }

    /// Whether the connection is gone, so that no request on it can succeed.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// A client of the KV service on this connection.
    pub fn kv(&self) -> KvClient<Self> {
        KvClient::with_origin(self.clone(), self.origin.clone()).max_decoding_message_size(limits::RESPONSE_BYTES_MAX)
    }

    /// What a client of the load calls on this connection.
    pub fn calls(&self) -> Calls {
        let health = HealthClient::with_origin(self.clone(), self.origin.clone());
        Calls { kv: self.kv(), health }
    }

    /// A client of the Maintenance service on this connection.
    pub fn maintenance(&self) -> MaintenanceClient<Self> {
        MaintenanceClient::with_origin(self.clone(), self.origin.clone())
    }

    /// A client of the Cluster service on this connection.
    pub fn cluster(&self) -> ClusterClient<Self> {
        ClusterClient::with_origin(self.clone(), self.origin.clone())
    }

    /// A client of Garboard's own service on this connection.
    pub fn diagnostics(&self) -> DiagnosticsClient<Self> {
        DiagnosticsClient::with_origin(self.clone(), self.origin.clone())
    }

    /// Calls a method of one request and one response, and throws the response away as it comes: what a client does
    /// with an answer costs nothing then. Answers how many bytes came.
    pub async fn drain(&mut self, path: &'static str, message: &impl prost::Message) -> Result<u64, tonic::Status> {
        let broken = |error: hyper::Error| tonic::Status::unavailable(error.to_string());
        let len = u32::try_from(message.encoded_len()).map_err(|_| tonic::Status::internal("a request is small"))?;
        let mut frame = BytesMut::with_capacity(message.encoded_len() + 5);
        frame.put_u8(0);
        frame.put_u32(len);
        message.encode(&mut frame).map_err(|error| tonic::Status::internal(error.to_string()))?;
        let body = Body::new(http_body_util::Full::new(frame.freeze()));
        let mut request = http::Request::post(format!("{}{}", self.origin.to_string().trim_end_matches('/'), path))
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(body)
            .expect("the parts make a request");
        *request.version_mut() = http::Version::HTTP_2;
        self.sender.ready().await.map_err(broken)?;
        let (head, mut body) = self.sender.send_request(request).await.map_err(broken)?.into_parts();
        let mut status = tonic::Status::from_header_map(&head.headers);
        let mut received = 0;
        while let Some(frame) = body.frame().await {
            match frame.map_err(broken)?.into_data() {
                Ok(data) => received += data.len() as u64,
                Err(frame) => status = frame.trailers_ref().and_then(tonic::Status::from_header_map),
            }
        }
        match status {
            Some(status) if status.code() == tonic::Code::Ok => Ok(received),
            Some(status) => Err(status),
            None => Err(tonic::Status::internal("the answer has no status")),
        }
    }

    /// A client of the Watch service on this connection.
    pub fn watch(&self) -> WatchClient<Self> {
        WatchClient::with_origin(self.clone(), self.origin.clone())
            .max_decoding_message_size(limits::RESPONSE_BYTES_MAX)
    }
}

impl tower::Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
