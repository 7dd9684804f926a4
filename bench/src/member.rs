//! What a member of a cluster says of itself, and what it is asked to do.

use crate::client::Connection;
use crate::endpoint::Endpoint;
use crate::error::BenchError;
use crate::measure::block_on;
use crate::proto::{MemberAddRequest, MoveLeaderRequest, StatusRequest};
use std::future::Future;
use std::time::Duration;

/// How long a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A member's own view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub member_id: u64,
    /// The leader's id; 0 if it knows of none.
    pub leader: u64,
    /// Its term.
    pub raft_term: u64,
    /// The newest log index that it has applied.
    pub raft_applied_index: u64,
    /// Bytes of its store.
    pub db_size: i64,
}

impl MemberStatus {
    /// Whether it takes itself for the leader.
    pub fn leads(&self) -> bool {
        self.leader == self.member_id
    }
}

/// Asks a member for its status.
///
/// # Errors
/// When it can't be reached, or does not answer within 5 s.
pub fn member_status(endpoint: &Endpoint) -> Result<MemberStatus, BenchError> {
    let status = call(endpoint, "Status", |connection| async move {
        connection.maintenance().status(StatusRequest {}).await.map(tonic::Response::into_inner)
    })?;
    let header = status.header.unwrap_or_default();
    Ok(MemberStatus {
        member_id: header.member_id,
        leader: status.leader,
        raft_term: header.raft_term,
        raft_applied_index: status.raft_applied_index,
        db_size: status.db_size,
    })
}

/// Asks the leader to hand over to another member.
///
/// # Errors
/// When it can't be reached, refuses, or does not answer within 5 s.
pub fn move_leader(endpoint: &Endpoint, target_id: u64) -> Result<(), BenchError> {
    let request = MoveLeaderRequest { target_id };
    call(endpoint, "MoveLeader", |connection| async move { connection.maintenance().move_leader(request).await })?;
    Ok(())
}

/// Adds a learner that others reach at a peer URL.
///
/// # Errors
/// When no member can be reached, refuses, or does not answer within 5 s.
pub fn add_learner(endpoint: &Endpoint, peer_url: &str) -> Result<(), BenchError> {
    let request = MemberAddRequest { peer_urls: vec![peer_url.to_owned()], is_learner: true };
    call(endpoint, "MemberAdd", |connection| async move { connection.cluster().member_add(request).await })?;
    Ok(())
}

fn call<T, F>(endpoint: &Endpoint, name: &'static str, ask: impl FnOnce(Connection) -> F) -> Result<T, BenchError>
where
    F: Future<Output = Result<T, tonic::Status>>,
{
    let failed =
        |code: String, message: String| BenchError::Call { endpoint: endpoint.to_string(), call: name, code, message };
    block_on(async {
        let asked = async { Ok(ask(Connection::open(endpoint).await?).await) };
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(answer) => answer?.map_err(|status| failed(format!("{:?}", status.code()), status.message().to_owned())),
            Err(_elapsed) => Err(failed("no answer".into(), format!("within {} s", PATIENCE.as_secs()))),
        }
    })?
}
