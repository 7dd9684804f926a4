//! The Cluster service.

use garboard_proto::etcdserverpb as pb;
use tonic::Status;

use super::context::Service;

/// The members. Their header has no revision.
pub async fn member_list(service: Service, request: pb::MemberListRequest) -> Result<pb::MemberListResponse, Status> {
    if request.linearizable {
        service.read_index().await?;
    }
    let identity = service.core.identity();
    let member = pb::Member {
        id: identity.member_id,
        name: identity.name.clone(),
        peer_ur_ls: identity.peer_urls.clone(),
        client_ur_ls: identity.client_urls.clone(),
        is_learner: false,
    };
    Ok(pb::MemberListResponse { header: Some(service.header_without_revision()), members: vec![member] })
}
