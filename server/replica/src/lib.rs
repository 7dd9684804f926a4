//! The replica of a keyspace: Raft, apply, leases and watches, as plain state machines.
