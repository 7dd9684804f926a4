//! What a member tells over HTTP on its peer URLs.

use garboard_replica::members::{MemberRecord, Members};

/// The header that names the cluster, in hexadecimal without leading noughts.
pub const CLUSTER_ID_HEADER: &str = "X-Etcd-Cluster-ID";

/// The members as `/members` shows them, in etcd's own JSON.
pub fn members_json(members: &Members) -> String {
    let list: Vec<serde_json::Value> = members.iter().map(member_json).collect();
    format!("{}\n", serde_json::Value::Array(list))
}

fn member_json(member: &MemberRecord) -> serde_json::Value {
    let mut fields = serde_json::Map::new();
    fields.insert("id".to_owned(), member.id.into());
    fields.insert("peerURLs".to_owned(), member.peer_urls.clone().into());
    if member.is_learner {
        fields.insert("isLearner".to_owned(), true.into());
    }
    if !member.name.is_empty() {
        fields.insert("name".to_owned(), member.name.clone().into());
    }
    if !member.client_urls.is_empty() {
        fields.insert("clientURLs".to_owned(), member.client_urls.clone().into());
    }
    fields.into()
}
