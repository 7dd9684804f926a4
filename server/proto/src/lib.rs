//! The etcd v3 protocol: message types and service traits.
