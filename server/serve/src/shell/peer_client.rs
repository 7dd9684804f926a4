//! Asks the members of a running cluster who they are, as one that is about to join does: HTTP on their peer URLs.

use std::sync::Arc;
use std::time::Duration;

use garboard_replica::members::{MemberRecord, Members};
use rustls::ClientConfig;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector, TcpConnector};

use super::peer_tls::TlsConnector;
use crate::peer_http::CLUSTER_ID_HEADER;

/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A running cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCluster {
    /// Its id.
    pub cluster_id: u64,
    /// Its members.
    pub members: Members,
}

/// Asks one URL after the other until one tells the members; those with `https` with this TLS.
///
/// # Errors
/// None does, or the first that does says there is none. Which URL failed and why is logged.
pub fn find_cluster(
    urls: &[String],
    each_max: Duration,
    tls: &Arc<ClientConfig>,
) -> Result<FoundCluster, &'static str> {
    for url in urls {
        let address = format!("{url}/members");
        match ask(&address, each_max, tls) {
            Ok(found) if found.members.is_empty() => {
                return Err("failed to get raft cluster member(s) from the given URLs");
            }
            Ok(found) => return Ok(found),
            Err(reason) => tracing::debug!("{address} does not tell the members: {reason}"),
        }
    }
    Err("could not retrieve cluster information from the given URLs")
}

fn ask(address: &str, within: Duration, tls: &Arc<ClientConfig>) -> Result<FoundCluster, String> {
    let agent = ureq::Agent::config_builder().timeout_global(Some(within)).max_redirects(0).proxy(None).build();
    let connector = TcpConnector::default().chain(TlsConnector(tls.clone()));
    let agent = ureq::Agent::with_parts(agent, connector, DefaultResolver::default());
    let mut response = agent.get(address).call().map_err(|error| error.to_string())?;
    let id = response.headers().get(CLUSTER_ID_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let cluster_id = u64::from_str_radix(id, 16).map_err(|_| format!("{CLUSTER_ID_HEADER} is {id:?}"))?;
    let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let members = read_members(&body.map_err(|error| error.to_string())?).ok_or("the answer is no list of members")?;
    Ok(FoundCluster { cluster_id, members })
}

/// Reads etcd's JSON of the members.
fn read_members(body: &[u8]) -> Option<Members> {
    let list: serde_json::Value = serde_json::from_slice(body).ok()?;
    let records = list.as_array()?.iter().map(read_member).collect::<Option<Vec<_>>>()?;
    if records.iter().any(|record| record.id == 0) || records.len() > garboard_replica::limits::MEMBERS_MAX {
        return None;
    }
    Some(Members::founding(records))
}

fn read_member(member: &serde_json::Value) -> Option<MemberRecord> {
    let texts = |name: &str| -> Option<Vec<String>> {
        match member.get(name) {
            None | Some(serde_json::Value::Null) => Some(Vec::new()),
            Some(list) => list.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        }
    };
    Some(MemberRecord {
        id: member.get("id")?.as_u64()?,
        name: member.get("name").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned(),
        peer_urls: texts("peerURLs")?,
        client_urls: texts("clientURLs")?,
        is_learner: member.get("isLearner").and_then(serde_json::Value::as_bool).unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer_http::members_json;

    #[test]
    fn members_are_told_in_etcds_json_and_read_back() {
        let started = MemberRecord {
            id: u64::MAX,
            name: "a".into(),
            peer_urls: vec!["http://10.0.0.1:2380".into()],
            client_urls: vec!["http://10.0.0.1:2379".into()],
            is_learner: false,
        };
        let joining = MemberRecord {
            id: 7,
            peer_urls: vec!["http://10.0.0.2:2380".into()],
            is_learner: true,
            ..MemberRecord::default()
        };
        let members = Members::founding([started, joining]);
        let json = members_json(&members);
        let expected = concat!(
            r#"[{"id":7,"peerURLs":["http://10.0.0.2:2380"],"isLearner":true},"#,
            r#"{"id":18446744073709551615,"peerURLs":["http://10.0.0.1:2380"],"name":"a","clientURLs":["http://10.0.0.1:2379"]}]"#,
            "\n"
        );
        assert_eq!(json, expected);
        assert_eq!(read_members(json.as_bytes()), Some(members));
        assert_eq!(read_members(b"{}"), None);
        assert_eq!(read_members(b"[]"), Some(Members::default()));
    }
}
