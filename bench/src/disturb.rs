//! What the bench has a server do while it measures puts, on a thread and a connection of its own.

use crate::client::Connection;
use crate::error::BenchError;
use crate::limits;
use crate::load::Window;
use crate::plan::{Disturbance, Target};
use crate::proto::diagnostics::CheckpointRequest;
use crate::proto::{CompactionRequest, DefragmentRequest, RangeRequest};
use bytes::Bytes;
use serde::Serialize;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// What there is to do, once everything it needs is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A physical compaction to a revision.
    Compact(i64),
    /// Ranges of all keys between bounds, at least so many bytes.
    Ranges(Bytes, Bytes, u64),
    /// Checkpoints.
    Checkpoint,
    /// Calls of Defragment.
    Defragment,
}

/// What was done in a round, or in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Passes {
    /// How often: compactions, ranges, checkpoints or calls.
    pub count: u64,
    /// How long they took together.
    pub seconds: f64,
    /// How long the longest took.
    pub longest_seconds: f64,
    /// Bytes that the ranges brought.
    pub bytes: u64,
}

impl Passes {
    /// Counts both.
    pub fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.seconds += other.seconds;
        self.longest_seconds = self.longest_seconds.max(other.longest_seconds);
        self.bytes += other.bytes;
    }
}

/// Whether only the operations that a disturbance meets count: one that happens once in a round.
pub fn happens_once(what: Disturbance) -> bool {
    matches!(what, Disturbance::Compact { .. })
}

/// Whether a target knows what it would be asked to do.
pub async fn is_known(target: &Target, what: Disturbance) -> Result<bool, BenchError> {
    if what != Disturbance::Checkpoint {
        return Ok(true);
    }
    let connection = Connection::open(&target.endpoints[0]).await?;
    match connection.diagnostics().checkpoint(CheckpointRequest {}).await {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::Unimplemented => Ok(false),
        Err(status) => Err(failed(target, "Diagnostics/Checkpoint", &status)),
    }
}

/// Does the work until the window is over, from shortly after it begins.
pub async fn disturb(target: &Target, work: &Work, window: &Window) -> Result<Passes, BenchError> {
    const LOOK: Duration = Duration::from_millis(1);
    let mut connection = Connection::open(&target.endpoints[0]).await?;
    while !window.has_begun() && !window.is_over() {
        tokio::time::sleep(LOOK).await;
    }
    let mut passes = Passes::default();
    tokio::time::sleep(limits::DISTURBANCE_LEAD).await;
    while !window.is_over() {
        let begin = Instant::now();
        window.set_active(true);
        let outcome = pass(&mut connection, work).await;
        window.set_active(false);
        let (call, result) = outcome;
        let bytes = result.map_err(|status| failed(target, call, &status))?;
        let seconds = begin.elapsed().as_secs_f64();
        passes.merge(Passes { count: 1, seconds, longest_seconds: seconds, bytes });
        match work {
            Work::Compact(_) => break,
            Work::Defragment => tokio::time::sleep(limits::DEFRAGMENT_REST).await,
            Work::Ranges(..) | Work::Checkpoint => {}
        }
    }
    Ok(passes)
}

/// One pass: the call that it makes, and the bytes that came.
async fn pass(connection: &mut Connection, work: &Work) -> (&'static str, Result<u64, Status>) {
    match work {
        Work::Compact(revision) => ("Compact", compact(connection, *revision).await.map(|()| 0)),
        Work::Ranges(key, range_end, bytes) => ("Range", range(connection, key, range_end, *bytes).await),
        Work::Checkpoint => ("Diagnostics/Checkpoint", checkpoint(connection).await.map(|()| 0)),
        Work::Defragment => {
            let answer = connection.maintenance().defragment(DefragmentRequest {}).await;
            ("Defragment", answer.map(|_| 0))
        }
    }
}

/// Compacts and waits for the physical work, whatever the server's time limit for a request is: a second call is refused,
/// and only once the work is done.
async fn compact(connection: &Connection, revision: i64) -> Result<(), Status> {
    let mut client = connection.kv();
    let mut asked = false;
    loop {
        match client.compact(CompactionRequest { revision, physical: true }).await {
            Ok(_) => return Ok(()),
            Err(status) if asked && status.code() == Code::OutOfRange => return Ok(()),
            Err(status) if status.code() == Code::Unavailable && status.message().contains("timed out") => asked = true,
            Err(status) => return Err(status),
        }
    }
}

async fn range(connection: &mut Connection, key: &Bytes, range_end: &Bytes, bytes: u64) -> Result<u64, Status> {
    let request = RangeRequest { key: key.clone(), range_end: range_end.clone(), ..RangeRequest::default() };
    let received = connection.drain("/etcdserverpb.KV/Range", &request).await?;
    if received < bytes {
        return Err(Status::data_loss(format!("{received} bytes came, and the values alone have {bytes}")));
    }
    Ok(received)
}

/// Has everything that is published now saved in the index's file, and waits for it.
async fn checkpoint(connection: &Connection) -> Result<(), Status> {
    let mut client = connection.diagnostics();
    let mut wanted = None;
    loop {
        let answer = client.checkpoint(CheckpointRequest {}).await?.into_inner();
        if answer.saved_index >= *wanted.get_or_insert(answer.published_index) {
            return Ok(());
        }
        tokio::time::sleep(limits::CHECKPOINT_LOOK_INTERVAL).await;
    }
}

/// Has a target save everything that is published, if it can be asked to. False if it can not.
pub fn save(target: &Target) -> Result<bool, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BenchError::Generator)?;
    runtime.block_on(async {
        if !is_known(target, Disturbance::Checkpoint).await? {
            return Ok(false);
        }
        let connection = Connection::open(&target.endpoints[0]).await?;
        let outcome = checkpoint(&connection).await;
        outcome.map(|()| true).map_err(|status| failed(target, "Diagnostics/Checkpoint", &status))
    })
}

fn failed(target: &Target, call: &'static str, status: &Status) -> BenchError {
    BenchError::Call {
        endpoint: target.label(),
        call,
        code: format!("{:?}", status.code()),
        message: status.message().to_owned(),
    }
}
