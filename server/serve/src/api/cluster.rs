//! The Cluster service. Its headers have no revision.

use std::sync::Arc;

use garboard_proto::etcdserverpb as pb;
use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response};
use garboard_replica::members::{ChangeAction, MemberRecord, Members};
use tonic::Status;

use super::context::{Service, mismatch};
use super::errors::status;
use crate::config::{Url, added_member_id};

/// Adds a member. Its id is drawn here, where its URLs are read.
pub async fn member_add(service: Service, request: pb::MemberAddRequest) -> Result<pb::MemberAddResponse, Status> {
    let mut peer_urls = urls(&request.peer_ur_ls)?;
    peer_urls.sort();
    let id = added_member_id(&peer_urls, service.core.unix_seconds());
    let urls = peer_urls.clone();
    let action =
        if request.is_learner { ChangeAction::AddLearner { peer_urls } } else { ChangeAction::AddVoter { peer_urls } };
    let members = change(&service, id, action).await?;
    let member = pb::Member { id, peer_ur_ls: urls, is_learner: request.is_learner, ..pb::Member::default() };
    let header = Some(service.header_without_revision());
    Ok(pb::MemberAddResponse { header, member: Some(member), members: wire(&members) })
}

/// Removes a member for ever.
pub async fn member_remove(
    service: Service,
    request: pb::MemberRemoveRequest,
) -> Result<pb::MemberRemoveResponse, Status> {
    let members = change(&service, request.id, ChangeAction::Remove).await?;
    Ok(pb::MemberRemoveResponse { header: Some(service.header_without_revision()), members: wire(&members) })
}

/// Changes where peers reach a member. etcd's own client checks the URLs; etcd itself crashes over bad ones.
pub async fn member_update(
    service: Service,
    request: pb::MemberUpdateRequest,
) -> Result<pb::MemberUpdateResponse, Status> {
    let peer_urls = urls(&request.peer_ur_ls)?;
    let members = change(&service, request.id, ChangeAction::Update { peer_urls }).await?;
    Ok(pb::MemberUpdateResponse { header: Some(service.header_without_revision()), members: wire(&members) })
}

/// Gives a learner a vote.
pub async fn member_promote(
    service: Service,
    request: pb::MemberPromoteRequest,
) -> Result<pb::MemberPromoteResponse, Status> {
    let members = change(&service, request.id, ChangeAction::Promote).await?;
    Ok(pb::MemberPromoteResponse { header: Some(service.header_without_revision()), members: wire(&members) })
}

/// The members.
pub async fn member_list(service: Service, request: pb::MemberListRequest) -> Result<pb::MemberListResponse, Status> {
    if request.linearizable {
        service.read_index().await?;
    }
    let members = wire(&service.core.members().get());
    Ok(pb::MemberListResponse { header: Some(service.header_without_revision()), members })
}

async fn change(service: &Service, member_id: u64, action: ChangeAction) -> Result<Arc<Members>, Status> {
    match service.ask(Request::Member { member_id, action }).await? {
        Response::Members(members) => Ok(members),
        other => Err(mismatch(&other)),
    }
}

fn urls(texts: &[String]) -> Result<Vec<String>, Status> {
    let bad = || status(Error::BadMemberUrls);
    if texts.is_empty() {
        return Err(bad());
    }
    texts.iter().map(|text| Url::parse(text).map(|url| url.to_string()).map_err(|_| bad())).collect()
}

/// In order of ids, as etcd lists them.
fn wire(members: &Members) -> Vec<pb::Member> {
    let member = |record: &MemberRecord| pb::Member {
        id: record.id,
        name: record.name.clone(),
        peer_ur_ls: record.peer_urls.clone(),
        client_ur_ls: record.client_urls.clone(),
        is_learner: record.is_learner,
    };
    members.iter().map(member).collect()
}
