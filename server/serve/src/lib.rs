//! The server: the etcd API, the cores, their files and sockets, and the configuration.
