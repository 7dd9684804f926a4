//! The etcd v3 protocol: its message types.
//!
//! Field names, numbers and types are those that etcd 3.7 speaks; `bytes` fields are [`bytes::Bytes`], so that a value
//! decoded from a received frame shares the frame's memory.

#![forbid(unsafe_code)]

pub mod lenient;
pub mod size;

/// Compiled descriptors of every message and service here, for reflection and the JSON mapping.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Includes what was generated for a package, with allowances for code nobody wrote by hand.
macro_rules! generated {
    ($(#[$doc:meta])* $module:ident, $package:literal) => {
        $(#[$doc])*
        #[allow(missing_docs, clippy::all, clippy::unwrap_used, rustdoc::all)]
        pub mod $module {
            include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
        }
    };
}

generated!(
    /// Key-value pairs and the events about them.
    mvccpb,
    "mvccpb"
);
generated!(
    /// Users, roles and permissions.
    authpb,
    "authpb"
);
generated!(
    /// The services of a client port: KV, Watch, Lease, Cluster, Maintenance and Auth.
    etcdserverpb,
    "etcdserverpb"
);
generated!(
    /// Locks kept by the server.
    v3lockpb,
    "v3lockpb"
);
generated!(
    /// Elections kept by the server.
    v3electionpb,
    "v3electionpb"
);
generated!(
    /// gRPC's health checking protocol.
    health,
    "grpc.health.v1"
);
generated!(
    /// Garboard's own figures and switches, for measuring it.
    diagnostics,
    "garboard.v1"
);
