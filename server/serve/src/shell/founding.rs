//! Who this member is, and what its store starts from: the data that is there, a new cluster's flags, or a cluster that
//! runs and has been told to expect it.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use garboard_replica::limits::{MEMBERS_MAX, URL_BYTES_MAX};
use garboard_replica::members::MemberRecord;

use super::data_dir::{DataDir, Stage};
use super::peer_client::{self, FoundCluster};
use super::start::StartError;
use super::{peer_tls, peers};
use crate::config::{ClusterState, Config, InitialMember, Url};

/// How long a member of a new cluster is asked whether that cluster is old. Most are not there yet.
const ASK_NEW_MAX: Duration = Duration::from_secs(1);
/// How long each URL of a running cluster may take to tell its members.
const ASK_EXISTING_MAX: Duration = Duration::from_secs(10);

/// Who this member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its cluster.
    pub cluster_id: u64,
    /// Its id there.
    pub member_id: u64,
    /// What it starts from.
    pub origin: Origin,
}

/// What a member's store starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its data directory. What flags say of the cluster does not count then, as in etcd.
    Data,
    /// Nothing, as everyone of a new cluster, whose members are these.
    Founding(Vec<MemberRecord>),
    /// Nothing, and the others fill it.
    Joining,
}

/// Finds out who this member is.
///
/// # Errors
/// Where flags, data and what other members say do not fit together.
pub fn resolve(dir: &DataDir, config: &Config) -> Result<Standing, StartError> {
    let texts = [&config.name].into_iter().cloned().chain(config.advertise_client_urls.iter().map(Url::to_string));
    for text in texts {
        if text.len() > URL_BYTES_MAX {
            return Err(StartError::Setting(format!("names and URLs have at most {URL_BYTES_MAX} bytes: {text}")));
        }
    }
    let (cluster_id, member_id) = (config.cluster.cluster_id, config.cluster.local().id);
    if let Some(owner) = dir.ownership()?.filter(|owner| owner.stage == Stage::Ready) {
        let from_flags = config.cluster.state == ClusterState::New && !config.force_new_cluster;
        if from_flags && (owner.cluster_id, owner.member_id) != (cluster_id, member_id) {
            tracing::warn!(
                "the data directory belongs to member {:016x} of cluster {:016x}; the flags would make this member \
                 {member_id:016x} of a new cluster {cluster_id:016x} and do not count",
                owner.member_id,
                owner.cluster_id
            );
        }
        return Ok(Standing { cluster_id: owner.cluster_id, member_id: owner.member_id, origin: Origin::Data });
    }
    match config.cluster.state {
        ClusterState::New => found(dir, config),
        ClusterState::Existing => join(dir, config),
    }
}

fn found(dir: &DataDir, config: &Config) -> Result<Standing, StartError> {
    let cluster = &config.cluster;
    if let Some(unfit) = &cluster.unfit {
        return Err(StartError::Setting(unfit.to_string()));
    }
    let own_id = cluster.local().id;
    // A member that has lost its data must not come back as a new one: it has voted before.
    let others = other_peer_urls(config);
    if !others.is_empty()
        && let Ok(found) = peer_client::find_cluster(&others, ASK_NEW_MAX, &tls_of(dir, config)?)
        && found.members.get(own_id).is_some_and(|member| !member.client_urls.is_empty())
    {
        return Err(StartError::Setting(format!("member {own_id:x} has already been bootstrapped")));
    }
    let records = cluster.members.iter().map(record).collect();
    Ok(Standing { cluster_id: cluster.cluster_id, member_id: own_id, origin: Origin::Founding(records) })
}

fn record(member: &InitialMember) -> MemberRecord {
    MemberRecord {
        id: member.id,
        name: member.name.clone(),
        peer_urls: member.peer_urls.iter().map(ToString::to_string).collect(),
        ..MemberRecord::default()
    }
}

fn join(dir: &DataDir, config: &Config) -> Result<Standing, StartError> {
    let existing = peer_client::find_cluster(&other_peer_urls(config), ASK_EXISTING_MAX, &tls_of(dir, config)?)
        .map_err(|error| StartError::Setting(format!("cannot fetch cluster info from peer urls: {error}")))?;
    let member_id = match_members(config, &existing)
        .map_err(|error| StartError::Setting(format!("error validating peerURLs {}: {error}", described(&existing))))?;
    let learners = existing.members.iter().filter(|member| member.is_learner).count();
    if learners > config.max_learners {
        return Err(StartError::Setting("membership: too many learner members in cluster".to_owned()));
    }
    Ok(Standing { cluster_id: existing.cluster_id, member_id, origin: Origin::Joining })
}

/// What other members are asked with over TLS.
fn tls_of(dir: &DataDir, config: &Config) -> Result<Arc<rustls::ClientConfig>, StartError> {
    let key = peers::own_key(dir)?;
    peer_tls::client(&peer_tls::credentials(&config.peer_tls, &key.own)?)
}

/// Where the members with other names are said to be reached, in order.
fn other_peer_urls(config: &Config) -> Vec<String> {
    let others = config.cluster.members.iter().filter(|member| member.name != config.name);
    let mut urls: Vec<String> = others.flat_map(|member| member.peer_urls.iter().map(ToString::to_string)).collect();
    urls.sort();
    urls
}

/// Finds each member of a running cluster among those that the flags name, by its peer URLs, and returns this one's id.
fn match_members(config: &Config, existing: &FoundCluster) -> Result<u64, String> {
    let named = &config.cluster.members;
    if existing.members.len() != named.len() || named.len() > MEMBERS_MAX {
        return Err("member count is unequal".to_owned());
    }
    let mut own_id = None;
    for member in existing.members.iter() {
        let same = |named: &&InitialMember| {
            let urls: Vec<String> = named.peer_urls.iter().map(ToString::to_string).collect();
            same_places(&member.peer_urls, &urls)
        };
        let Some(found) = named.iter().find(same) else {
            return Err(format!(
                "PeerURLs: no match found for existing member ({:x}, [{}])",
                member.id,
                member.peer_urls.join(" ")
            ));
        };
        if found.name == config.name {
            own_id = Some(member.id);
        }
    }
    // As many of each, and each found: only two members at one place leave this one out.
    own_id.ok_or_else(|| format!("couldn't find local name {:?} in the existing cluster", config.name))
}

/// Whether two lists of URLs lead to the same places, once their names are resolved if they differ.
fn same_places(a: &[String], b: &[String]) -> bool {
    let sorted = |urls: &[String]| {
        let mut urls = urls.to_vec();
        urls.sort();
        urls
    };
    let (a, b) = (sorted(a), sorted(b));
    if a == b {
        return true;
    }
    let resolved = |urls: &[String]| -> Option<Vec<String>> {
        let mut places: Vec<String> = urls.iter().map(|url| resolve_host(url)).collect::<Option<_>>()?;
        places.sort();
        Some(places)
    };
    a.len() == b.len() && resolved(&a).is_some_and(|a| Some(a) == resolved(&b))
}

fn resolve_host(url: &str) -> Option<String> {
    let (scheme, address) = url.split_once("://")?;
    let resolved = address.to_socket_addrs().ok()?.next()?;
    Some(format!("{scheme}://{resolved}"))
}

/// A running cluster, as messages name it.
fn described(cluster: &FoundCluster) -> String {
    let member = |member: &MemberRecord| format!("{:x}={}", member.id, member.peer_urls.join(","));
    let members: Vec<String> = cluster.members.iter().map(member).collect();
    format!("{{ClusterID:{:x} Members:[{}]}}", cluster.cluster_id, members.join(" "))
}
