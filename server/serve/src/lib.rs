//! The server: the etcd API, the cores, their files and sockets, and the configuration.

#![deny(unsafe_code)]

pub mod api;
mod budget;
mod canary;
pub mod config;
mod connection;
pub mod core;
mod frame_scanner;
mod limits;
pub mod logging;
mod pace;
pub mod peer_http;

#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "the shell is the edge")]
pub mod shell;
mod stages;
mod wheel;
