//! Watchers: each receives every event of the load's key range on a stream of its own.

use crate::client::Connection;
use crate::error::BenchError;
use crate::load::Line;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{WatchCreateRequest, WatchRequest, WatchResponse};
use crate::workload::OperationError;
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Streaming;
use tonic::codegen::tokio_stream::Stream;

/// A watch that the server has confirmed.
#[derive(Debug)]
pub struct Watcher {
    responses: Streaming<WatchResponse>,
    endpoint: String,
}

/// The requests of a watch: one, and then an open end, for a closed one would cancel the watch.
struct OneRequest(Option<WatchRequest>);

impl Stream for OneRequest {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        self.0.take().map_or(Poll::Pending, |request| Poll::Ready(Some(request)))
    }
}

impl Watcher {
    /// Watches the keys between `bounds` from now on; returns when the server has confirmed the watch.
    pub async fn open(connection: &Connection, bounds: (Bytes, Bytes), endpoint: String) -> Result<Self, BenchError> {
        let (key, range_end) = bounds;
        let create = WatchCreateRequest { key, range_end, start_revision: 0 };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let failed = |status| call_failed(&endpoint, &status);
        let mut responses = connection.watch().watch(OneRequest(Some(request))).await.map_err(failed)?.into_inner();
        let first = responses.message().await.map_err(failed)?;
        if !first.is_some_and(|response| response.created && !response.canceled) {
            return Err(call_failed(&endpoint, &tonic::Status::aborted("the watch was not created")));
        }
        Ok(Self { responses, endpoint })
    }

    /// Receives until `total` events of the round have come.
    pub async fn receive(mut self, line: Arc<Line>, total: u64) -> Result<(), BenchError> {
        let mut received = 0;
        while received < total {
            let response = self.responses.message().await.map_err(|status| call_failed(&self.endpoint, &status))?;
            let canceled = match &response {
                None => Some("the stream ended"),
                Some(response) => response.canceled.then_some(response.cancel_reason.as_str()),
            };
            if let Some(reason) = canceled {
                return Err(call_failed(&self.endpoint, &tonic::Status::cancelled(reason)));
            }
            for event in response.into_iter().flat_map(|response| response.events) {
                received += u64::from(event.kv.is_some_and(|kv| line.record_event(&kv.value)));
            }
        }
        Ok(())
    }
}

fn call_failed(endpoint: &str, status: &tonic::Status) -> BenchError {
    BenchError::Call {
        endpoint: endpoint.to_owned(),
        call: "Watch",
        code: format!("{:?}", status.code()),
        message: status.message().to_owned(),
    }
}

/// A put that failed while watchers wait for its event: the round cannot end as planned.
pub fn put_failed(endpoint: &str, error: &OperationError) -> BenchError {
    let code = match error {
        OperationError::Status(status) => format!("{:?}", status.code()),
        OperationError::WrongAnswer(_) => "a wrong answer".to_owned(),
    };
    BenchError::Call { endpoint: endpoint.to_owned(), call: "Put", code, message: error.to_string() }
}
