//! Member and cluster ids, computed as etcd computes them, so that equal flags give equal ids.

use sha1::{Digest, Sha1};

use super::Url;

/// The id of a member of a new cluster: from its peer URLs and the cluster's token.
pub fn member_id(peer_urls: &[Url], token: &str) -> u64 {
    let mut urls: Vec<String> = peer_urls.iter().map(ToString::to_string).collect();
    urls.sort_unstable();
    let mut hash = Sha1::new();
    for url in &urls {
        hash.update(url.as_bytes());
    }
    hash.update(token.as_bytes());
    first_eight_bytes(hash)
}

/// The id of a member that is added to a running cluster: from its peer URLs and the time, in seconds since 1970, so that
/// one that was removed and comes back to its address is another member.
pub fn added_member_id(peer_urls: &[String], unix_seconds: u64) -> u64 {
    let mut urls: Vec<&str> = peer_urls.iter().map(String::as_str).collect();
    urls.sort_unstable();
    let mut hash = Sha1::new();
    for url in urls {
        hash.update(url.as_bytes());
    }
    hash.update(unix_seconds.to_string().as_bytes());
    first_eight_bytes(hash)
}

/// The id of a cluster: from its first members' ids.
pub fn cluster_id(member_ids: impl IntoIterator<Item = u64>) -> u64 {
    let mut ids: Vec<u64> = member_ids.into_iter().collect();
    ids.sort_unstable();
    let mut hash = Sha1::new();
    for id in &ids {
        hash.update(id.to_be_bytes());
    }
    first_eight_bytes(hash)
}

fn first_eight_bytes(hash: Sha1) -> u64 {
    let digest = hash.finalize();
    let first: [u8; 8] = digest[..8].try_into().expect("a SHA-1 digest has 20 bytes");
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_an_etcd_with_default_flags() {
        let urls = [Url::parse("http://localhost:2380").unwrap()];
        let member = member_id(&urls, "etcd-cluster");
        // What every etcd that is started without flags logs.
        assert_eq!(format!("{member:x}"), "8e9e05c52164694d");
        assert_eq!(format!("{:x}", cluster_id([member])), "cdf818194e3a8c32");
    }

    #[test]
    fn ids_do_not_depend_on_the_order_of_urls_or_members() {
        let urls = Url::parse_list("http://a:1,http://b:1").unwrap();
        let reversed: Vec<Url> = urls.iter().rev().cloned().collect();
        assert_eq!(member_id(&urls, "t"), member_id(&reversed, "t"));
        assert_ne!(member_id(&urls, "t"), member_id(&urls, "u"));
        assert_eq!(cluster_id([3, 1, 2]), cluster_id([1, 2, 3]));
    }
}
