//! The server: the etcd API, the cores, their files and sockets, and the configuration.

#![deny(unsafe_code)]

pub mod core;
