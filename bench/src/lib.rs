//! Load and latency against any etcd endpoint.
