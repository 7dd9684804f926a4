//! Watchers: each receives every event of the load's key range on a stream of its own.

use crate::client::{CallError, Connection, Method, OpenStream, Status};
use crate::error::BenchError;
use crate::load::Line;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{WatchCreateRequest, WatchRequest, WatchResponse};
use bytes::Bytes;
use std::sync::Arc;

/// A watch that the server has confirmed.
#[derive(Debug)]
pub struct Watcher {
    responses: OpenStream,
    endpoint: String,
}

impl Watcher {
    /// Watches the keys between `bounds` from now on; returns when the server has confirmed the watch.
    pub async fn open(
        mut connection: Connection,
        bounds: (Bytes, Bytes),
        endpoint: String,
    ) -> Result<Self, BenchError> {
        let (key, range_end) = bounds;
        let create = WatchCreateRequest { key, range_end, start_revision: 0 };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let mut responses =
            connection.stream(Method::Watch, &request).await.map_err(|error| failed(&endpoint, error))?;
        let first = next(&mut responses).await.map_err(|error| failed(&endpoint, error))?;
        if !first.created {
            return Err(failed(&endpoint, canceled("the watch was not created")));
        }
        Ok(Self { responses, endpoint })
    }

    /// Receives until `total` events of the round have come.
    pub async fn receive(mut self, line: Arc<Line>, total: u64) -> Result<(), BenchError> {
        let mut received = 0;
        while received < total {
            let response = next(&mut self.responses).await.map_err(|error| failed(&self.endpoint, error))?;
            for event in response.events {
                received += u64::from(event.kv.is_some_and(|kv| line.record_event(&kv.value)));
            }
        }
        Ok(())
    }
}

/// The next response. The end of the stream and of the watch are errors: the load never ends one.
async fn next(responses: &mut OpenStream) -> Result<WatchResponse, CallError> {
    match responses.message::<WatchResponse>().await? {
        Some(response) if response.canceled => Err(canceled(&response.cancel_reason)),
        Some(response) => Ok(response),
        None => Err(canceled("the stream ended")),
    }
}

fn canceled(why: &str) -> CallError {
    const CANCELED: u32 = 1;
    Status { code: CANCELED, message: why.to_owned() }.into()
}

fn failed(endpoint: &str, error: CallError) -> BenchError {
    BenchError::of_call(endpoint, Method::Watch, &error.into())
}
