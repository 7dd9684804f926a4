//! Garboard's own service: figures and switches for whoever measures it.

use garboard_proto::diagnostics as pb;
use garboard_replica::envelope::{Request, Response};
use garboard_replica::histogram::Histogram;
use tonic::Status;

use super::context::{Service, mismatch};

/// Where the time of writes went, stage by stage and core by core.
pub async fn stages(service: Service, _: pb::StagesRequest) -> Result<pb::StagesResponse, Status> {
    let within = match service.ask(Request::Stages).await? {
        Response::Stages(stages) => stages,
        other => return Err(mismatch(&other)),
    };
    let mut stages = vec![
        stage("queue", 0, &within.queue),
        stage("wal_write", 0, &within.wal_write),
        stage("replicate", 0, &within.replicate),
        stage("apply", 0, &within.apply),
    ];
    let replies = service.core.replies().iter().zip(0_u32..);
    stages.extend(replies.map(|(times, core)| stage("reply", core, &times.read())));
    Ok(pb::StagesResponse { stages })
}

/// Starts a checkpoint if there is something to save.
pub async fn checkpoint(service: Service, _: pb::CheckpointRequest) -> Result<pb::CheckpointResponse, Status> {
    match service.ask(Request::Checkpoint).await? {
        Response::Checkpoint { published_index, saved_index } => {
            Ok(pb::CheckpointResponse { published_index, saved_index })
        }
        other => Err(mismatch(&other)),
    }
}

fn stage(name: &str, core: u32, histogram: &Histogram) -> pb::Stage {
    let nanos = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let buckets = histogram.buckets().map(|(end, count)| pb::Bucket { end_ns: nanos(end), count }).collect();
    pb::Stage { name: name.to_owned(), core, count: histogram.count(), sum_ns: nanos(histogram.sum()), buckets }
}
