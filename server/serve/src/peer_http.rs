//! What a member tells over HTTP on its peer URLs.

use garboard_replica::members::{MemberRecord, Members};

/// The header that names the cluster, in hexadecimal without leading noughts.
pub const CLUSTER_ID_HEADER: &str = "X-Etcd-Cluster-ID";

/// The members as `/members` shows them, in etcd's own JSON, fields in etcd's order.
pub fn members_json(members: &Members) -> String {
    let list: Vec<String> = members.iter().map(member_json).collect();
    format!("[{}]\n", list.join(","))
}

fn member_json(member: &MemberRecord) -> String {
    let text = |value: serde_json::Value| value.to_string();
    let mut json = format!(r#"{{"id":{},"peerURLs":{}"#, member.id, text(member.peer_urls.clone().into()));
    if member.is_learner {
        json.push_str(r#","isLearner":true"#);
    }
    if !member.name.is_empty() {
        json.push_str(&format!(r#","name":{}"#, text(member.name.clone().into())));
    }
    if !member.client_urls.is_empty() {
        json.push_str(&format!(r#","clientURLs":{}"#, text(member.client_urls.clone().into())));
    }
    json.push('}');
    json
}
