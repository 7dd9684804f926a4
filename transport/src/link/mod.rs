//! Links: how a member and its peers hear each other.
//!
//! [`Links`] is all of one member's links, over QUIC, without a socket or a clock. `docs/peer-links.md` describes what
//! goes over the wire and which rules hold.

mod config;
mod congestion;
mod connection;
mod dialing;
mod event;
mod hello;
pub mod limits;
mod links;
pub mod null;
mod peer;
mod random;
pub mod tls;

pub use config::{Fingerprint, LinksConfig, Security, Trust};
pub use event::{CloseCode, DownReason, LinkEvent, Refusal};
pub use hello::{HELLO_BYTES, Hello, HelloError, PROTOCOL_VERSION, TripwireToken};
pub use links::{Address, Arrival, LinkStats, Links, PeerInfo, SendError, Transmit};
pub use quinn_proto::EcnCodepoint;

use crate::Lane;

/// The two connections of a pair of peers. One has one congestion window, so what may fill it stands apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// Control and log; kept up as long as both peers live.
    Main,
    /// Snapshots; dialed when there is something to send, and given up when it has been idle.
    Bulk,
}

impl LinkKind {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::Main, Self::Bulk];

    /// The connection that a lane belongs to.
    pub fn of(lane: Lane) -> Self {
        match lane {
            Lane::Control | Lane::Log => Self::Main,
            Lane::Bulk => Self::Bulk,
        }
    }

    /// The lanes of a connection; each is one stream of each side, numbered in this order.
    pub fn lanes(self) -> &'static [Lane] {
        match self {
            Self::Main => &[Lane::Control, Lane::Log],
            Self::Bulk => &[Lane::Bulk],
        }
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Main => 0,
            Self::Bulk => 1,
        }
    }
}
