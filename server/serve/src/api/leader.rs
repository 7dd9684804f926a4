//! Calls that want a leader to be known: the metadata `hasleader: true`, which etcd's clients set on watches.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use garboard_replica::Error;
use http::Response;
use http::header::{HeaderMap, HeaderName};
use tonic::Status;

use super::errors::status;
use super::frames::{FrameStream, GrpcBody};
use crate::core::{Core, LeaderWatch};

const HAS_LEADER: HeaderName = HeaderName::from_static("hasleader");

/// Whether a call wants a leader to be known.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    headers.get(HAS_LEADER).is_some_and(|value| value == "true")
}

/// Has a stream of answers end, with the text that clients know, when there is no leader for long.
pub fn guard(core: &Core, response: Response<GrpcBody>) -> Response<GrpcBody> {
    response.map(|body| match body {
        GrpcBody::Stream(answers) => {
            let guarded = Guarded { answers: Some(answers), watch: core.leader_watch() };
            GrpcBody::Stream(guarded.boxed_local())
        }
        other => other,
    })
}

/// A stream of answers that goes on while there is a leader.
struct Guarded {
    /// None once it has ended.
    answers: Option<FrameStream>,
    watch: LeaderWatch,
}

impl Stream for Guarded {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(answers) = &mut self.answers else { return Poll::Ready(None) };
        if let Poll::Ready(answer) = answers.poll_next_unpin(cx) {
            return Poll::Ready(answer);
        }
        if self.watch.poll_leaderless(cx).is_ready() {
            self.answers = None;
            return Poll::Ready(Some(Err(status(Error::NoLeader))));
        }
        Poll::Pending
    }
}
