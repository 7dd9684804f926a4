//! The Maintenance service.

use garboard_proto::etcdserverpb as pb;
use garboard_proto::size::RequestField;
use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response};
use garboard_replica::read::range::{NEWEST, read_revision};
use garboard_replica::request::{Alarm, AlarmKind, Command, Outcome};
use garboard_storage::hash::{HashKv, KvHasher};
use pb::alarm_request::AlarmAction;
use tonic::Status;

use super::context::{Service, mismatch};
use super::errors::{Refusal, status};
use crate::config::{ETCD_VERSION, STORAGE_VERSION};

/// Revisions that one step of a hash goes over before other tasks run.
const HASH_STEP_REVISIONS: usize = 4_096;

/// The member's figures.
pub async fn member_status(service: Service, _: pb::StatusRequest) -> Result<pb::StatusResponse, Status> {
    let member = service.member_status().await?;
    let no_leader = (member.leader == 0).then(|| status(Error::NoLeader).message().to_owned());
    let alarms = member.alarms.iter().map(|alarm| alarm_text(*alarm));
    let bytes = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    Ok(pb::StatusResponse {
        header: Some(pb::ResponseHeader { raft_term: member.raft_term, ..service.header(member.revision) }),
        version: ETCD_VERSION.to_owned(),
        db_size: bytes(member.size.file_bytes),
        leader: member.leader,
        raft_index: member.raft_index,
        raft_term: member.raft_term,
        raft_applied_index: member.raft_applied_index,
        errors: no_leader.into_iter().chain(alarms).collect(),
        db_size_in_use: bytes(member.size.in_use_bytes),
        is_learner: member.is_learner,
        storage_version: STORAGE_VERSION.to_owned(),
        // etcd has a negative number here when there is no quota.
        db_size_quota: if member.quota_bytes == 0 { -1 } else { bytes(member.quota_bytes) },
        downgrade_info: Some(pb::DowngradeInfo::default()),
    })
}

/// An alarm as a status shows it.
fn alarm_text(alarm: Alarm) -> String {
    let kind = match alarm.kind {
        AlarmKind::None => return format!("memberID:{}", alarm.member_id),
        AlarmKind::NoSpace => "NOSPACE",
        AlarmKind::Corrupt => "CORRUPT",
    };
    format!("memberID:{} alarm:{kind}", alarm.member_id)
}

/// Lists alarms, raises one, or takes one back.
pub async fn alarm(service: Service, request: pb::AlarmRequest) -> Result<pb::AlarmResponse, Status> {
    service.check_size(RequestField::Alarm, &request).map_err(status)?;
    let kind = match pb::AlarmType::try_from(request.alarm) {
        Ok(pb::AlarmType::None) => Some(AlarmKind::None),
        Ok(pb::AlarmType::Nospace) => Some(AlarmKind::NoSpace),
        Ok(pb::AlarmType::Corrupt) => Some(AlarmKind::Corrupt),
        Err(_) => None,
    };
    let command = match (AlarmAction::try_from(request.action), kind) {
        (Err(_), _) => return Err(Refusal::UnknownAlarmAction.into()),
        (Ok(AlarmAction::Activate), Some(kind)) if kind != AlarmKind::None => {
            Command::AlarmActivate(Alarm { member_id: request.member_id, kind })
        }
        (Ok(AlarmAction::Deactivate), Some(kind)) if kind != AlarmKind::None => {
            Command::AlarmDeactivate(Alarm { member_id: request.member_id, kind })
        }
        (Ok(AlarmAction::Get), kind) => return list_alarms(&service, kind).await,
        // No alarm of no kind, or of an unknown one, is ever raised.
        (Ok(_), _) => return Ok(alarm_response(&service, service.revision(), Vec::new())),
    };
    let reply = service.write(command).await?;
    match reply.outcome {
        Outcome::Alarm(alarms) => Ok(alarm_response(&service, reply.revision, alarms)),
        other => Err(mismatch(&other)),
    }
}

/// The alarms of a kind, of all of them where the kind is "none"; an unknown kind has none.
async fn list_alarms(service: &Service, kind: Option<AlarmKind>) -> Result<pb::AlarmResponse, Status> {
    // The list is as new as a write that was answered before.
    service.read_index().await?;
    let member = service.member_status().await?;
    let wanted = |alarm: &Alarm| kind == Some(AlarmKind::None) || kind == Some(alarm.kind);
    let alarms = member.alarms.into_iter().filter(wanted).collect();
    Ok(alarm_response(service, member.revision, alarms))
}

fn alarm_response(service: &Service, revision: i64, alarms: Vec<Alarm>) -> pb::AlarmResponse {
    let wire = |alarm: Alarm| {
        let kind = match alarm.kind {
            AlarmKind::None => pb::AlarmType::None,
            AlarmKind::NoSpace => pb::AlarmType::Nospace,
            AlarmKind::Corrupt => pb::AlarmType::Corrupt,
        };
        pb::AlarmMember { member_id: alarm.member_id, alarm: kind.into() }
    };
    pb::AlarmResponse { header: Some(service.header(revision)), alarms: alarms.into_iter().map(wire).collect() }
}

/// A hint to give space back. The answer is empty: not even a header.
pub async fn defragment(service: Service, _: pb::DefragmentRequest) -> Result<pb::DefragmentResponse, Status> {
    match service.ask(Request::Defragment).await? {
        Response::Defragment => Ok(pb::DefragmentResponse { header: None }),
        other => Err(mismatch(&other)),
    }
}

/// Hands leadership to another member. Only the leader does; the answer is empty: not even a header.
pub async fn move_leader(service: Service, request: pb::MoveLeaderRequest) -> Result<pb::MoveLeaderResponse, Status> {
    match service.ask(Request::MoveLeader { target: request.target_id }).await? {
        Response::MoveLeader => Ok(pb::MoveLeaderResponse { header: None }),
        other => Err(mismatch(&other)),
    }
}

/// A hash of this member's state. etcd's covers its file; no two implementations could agree on that, so this is the
/// hash of the history.
pub async fn hash(service: Service, _: pb::HashRequest) -> Result<pb::HashResponse, Status> {
    let (revision, hashed) = hash_history(&service, 0).await.map_err(status)?;
    Ok(pb::HashResponse { header: Some(service.header(revision)), hash: hashed.hash })
}

/// The hash of the history up to a revision, the same on every member whose compactions were the same.
pub async fn hash_kv(service: Service, request: pb::HashKvRequest) -> Result<pb::HashKvResponse, Status> {
    // What a compaction hashed is answered even where the revision lies below the floor by now.
    let (revision, hashed) = match kept_hash(&service, request.revision).await? {
        Some(kept) => (service.revision(), kept),
        None => hash_history(&service, request.revision).await.map_err(status)?,
    };
    Ok(pb::HashKvResponse {
        header: Some(service.header(revision)),
        hash: hashed.hash,
        compact_revision: hashed.compact_revision,
        hash_revision: hashed.revision,
    })
}

/// The hash that a compaction to this very revision computed.
async fn kept_hash(service: &Service, revision: i64) -> Result<Option<HashKv>, Status> {
    if revision <= 0 {
        return Ok(None);
    }
    match service.ask(Request::KeptHash { revision }).await? {
        Response::KeptHash(kept) => Ok(kept),
        other => Err(mismatch(&other)),
    }
}

/// Hashes in steps, each over the newest root; returns the store's revision at the start too.
async fn hash_history(service: &Service, asked: i64) -> Result<(i64, HashKv), Error> {
    let started = service.read(|view| {
        let revision = view.revision();
        let at = match asked {
            // There is nothing below the first revision to be compacted.
            ..0 => Ok(asked),
            _ => read_revision(revision, view.compacted(), asked, false),
        };
        Ok(at.map(|at| {
            let at = if at == NEWEST { revision } else { at };
            (revision, at, KvHasher::new(view, at))
        }))
    });
    let (revision, at, mut hasher) = started.await?;
    loop {
        let _turn = service.core.step_budget().take(1).await.map_err(|_| Error::TooManyRequests)?;
        let step = service.read(|view| {
            // Beyond the floor the history is no longer whole.
            if at >= 0 && view.compacted() > at {
                return Ok(Err(Error::Compacted));
            }
            hasher.step(view, HASH_STEP_REVISIONS).map(Ok)
        });
        match step.await? {
            Some(hashed) => return Ok((revision, hashed)),
            None => service.core.yield_now().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_read_as_etcd_prints_them() {
        let text = |kind| alarm_text(Alarm { member_id: 10_466_777_091_791_260_359, kind });
        assert_eq!(text(AlarmKind::NoSpace), "memberID:10466777091791260359 alarm:NOSPACE");
        assert_eq!(text(AlarmKind::Corrupt), "memberID:10466777091791260359 alarm:CORRUPT");
    }
}
