//! Which methods there are, and what a call of one that is not served is told.

/// A service and its methods, those that are served and those that are not yet.
struct ServiceMethods {
    name: &'static str,
    served: &'static [&'static str],
    not_yet: &'static [&'static str],
}

/// Every service of a client port.
const SERVICES: &[ServiceMethods] = &[
    ServiceMethods {
        name: "etcdserverpb.KV",
        served: &["Range", "Put", "Txn", "DeleteRange", "Compact", "RangeStream"],
        not_yet: &[],
    },
    ServiceMethods { name: "etcdserverpb.Watch", served: &["Watch"], not_yet: &[] },
    ServiceMethods {
        name: "etcdserverpb.Lease",
        served: &["LeaseKeepAlive", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive", "LeaseLeases"],
        not_yet: &[],
    },
    ServiceMethods {
        name: "etcdserverpb.Cluster",
        served: &["MemberAdd", "MemberRemove", "MemberUpdate", "MemberList", "MemberPromote"],
        not_yet: &[],
    },
    ServiceMethods {
        name: "etcdserverpb.Maintenance",
        served: &["Status", "Alarm", "Defragment", "Hash", "HashKV", "MoveLeader"],
        not_yet: &["Snapshot", "Downgrade"],
    },
    ServiceMethods { name: "garboard.v1.Diagnostics", served: &["Stages", "Checkpoint"], not_yet: &[] },
    ServiceMethods { name: "grpc.health.v1.Health", served: &["Check", "Watch"], not_yet: &[] },
    ServiceMethods {
        name: "etcdserverpb.Auth",
        served: &[],
        not_yet: &[
            "AuthEnable",
            "AuthDisable",
            "AuthStatus",
            "Authenticate",
            "UserAdd",
            "UserGet",
            "UserList",
            "UserDelete",
            "UserChangePassword",
            "UserGrantRole",
            "UserRevokeRole",
            "RoleAdd",
            "RoleGet",
            "RoleList",
            "RoleDelete",
            "RoleGrantPermission",
            "RoleRevokePermission",
        ],
    },
    ServiceMethods { name: "v3lockpb.Lock", served: &[], not_yet: &["Lock", "Unlock"] },
    ServiceMethods {
        name: "v3electionpb.Election",
        served: &[],
        not_yet: &["Campaign", "Proclaim", "Leader", "Observe", "Resign"],
    },
];

/// Why a path leads to no method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved<'a> {
    /// The method is known and does nothing yet.
    NotYet(&'static str),
    /// The service has no such method.
    UnknownMethod {
        /// The service.
        service: &'a str,
        /// What it lacks.
        method: &'a str,
    },
    /// There is no such service.
    UnknownService(&'a str),
    /// The path is not `/service/method`.
    Malformed(&'a str),
}

/// Why a call of `path` is not served; nothing if it is.
pub fn unserved(path: &str) -> Option<Unserved<'_>> {
    let Some((service, method)) = path.strip_prefix('/').and_then(|rest| rest.rsplit_once('/')) else {
        return Some(Unserved::Malformed(path));
    };
    let Some(known) = SERVICES.iter().find(|known| known.name == service) else {
        return Some(Unserved::UnknownService(service));
    };
    if known.served.contains(&method) {
        return None;
    }
    Some(match known.not_yet.iter().find(|name| **name == method) {
        Some(name) => Unserved::NotYet(name),
        None => Unserved::UnknownMethod { service, method },
    })
}

/// Whether a member without a vote serves a method. Of ranges it serves those that need no quorum, which they say
/// themselves.
pub fn is_for_learners(path: &str) -> bool {
    const SERVED: [&str; 3] =
        ["/etcdserverpb.KV/Range", "/etcdserverpb.Maintenance/Status", "/etcdserverpb.Maintenance/Snapshot"];
    SERVED.contains(&path) || path.starts_with("/garboard.v1.Diagnostics/")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use prost::Message;
    use std::collections::BTreeSet;

    /// The paths of all methods that are served.
    pub fn served_paths() -> Vec<String> {
        let paths = |known: &'static ServiceMethods| known.served.iter().map(|name| format!("/{}/{name}", known.name));
        SERVICES.iter().flat_map(paths).collect()
    }

    #[test]
    fn the_table_has_every_method_of_the_protocol_and_no_other() {
        let set = prost_types::FileDescriptorSet::decode(garboard_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut declared = BTreeSet::new();
        for file in &set.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                declared.extend(service.method.iter().map(|method| format!("/{name}/{}", method.name())));
            }
        }
        let paths = |known: &'static ServiceMethods| {
            known.served.iter().chain(known.not_yet).map(|name| format!("/{}/{name}", known.name))
        };
        let known: Vec<String> = SERVICES.iter().flat_map(paths).collect();
        assert_eq!(known.iter().cloned().collect::<BTreeSet<_>>(), declared);
        assert_eq!(known.len(), declared.len(), "no method stands twice");
    }

    #[test]
    fn paths_that_lead_nowhere_are_told_apart() {
        assert_eq!(unserved("/etcdserverpb.KV/Put"), None);
        assert_eq!(unserved("/etcdserverpb.Maintenance/Snapshot"), Some(Unserved::NotYet("Snapshot")));
        let service = "etcdserverpb.KV";
        assert_eq!(unserved("/etcdserverpb.KV/Foo"), Some(Unserved::UnknownMethod { service, method: "Foo" }));
        assert_eq!(unserved("/etcdserverpb.KV/"), Some(Unserved::UnknownMethod { service, method: "" }));
        assert_eq!(unserved("/etcdserverpb.Nothing/Put"), Some(Unserved::UnknownService("etcdserverpb.Nothing")));
        assert_eq!(unserved("//"), Some(Unserved::UnknownService("")));
        assert_eq!(unserved("/etcdserverpb.KV"), Some(Unserved::Malformed("/etcdserverpb.KV")));
    }
}
