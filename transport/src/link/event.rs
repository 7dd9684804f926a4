//! What links tell.

use core::fmt;
use std::net::SocketAddr;

use quinn_proto::{ConnectionError, VarInt};

use super::config::Fingerprint;
use super::hello::{HelloError, TripwireToken};
use super::limits::STRANGERS_MAX;
use crate::{DecodeError, Lane, PeerFrame};

/// What links tell.
#[derive(Debug)]
pub enum LinkEvent {
    /// A peer said something.
    Frame {
        /// The member that the connection was authenticated as.
        from: u64,
        /// The lane on which it came.
        lane: Lane,
        /// What it said.
        frame: PeerFrame,
    },
    /// A peer can be talked to.
    Up {
        /// The peer.
        peer: u64,
        /// Where it is now.
        address: SocketAddr,
        /// Differs at each of its starts.
        boot: u64,
        /// What is to be shown on the tripwire connection to it.
        tripwire: TripwireToken,
    },
    /// A peer can't be talked to any more; what was under way may be lost.
    Down {
        /// The peer.
        peer: u64,
        /// Why.
        reason: DownReason,
    },
    /// A peer is to be dialed: answer with [`Links::handle_addresses`](super::Links::handle_addresses), resolving its
    /// names anew.
    WantsAddress {
        /// The peer.
        peer: u64,
    },
    /// Nobody answered at an address, or not as a peer.
    DialFailed {
        /// The peer that was to be reached.
        peer: u64,
        /// Where.
        address: SocketAddr,
        /// What happened.
        reason: String,
        /// Whether nothing at all came back.
        silent: bool,
    },
    /// A connection was refused by this member.
    Refused {
        /// Who was at its other end, as far as that is known.
        peer: Option<u64>,
        /// From where.
        address: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
    /// A peer refused this member.
    RefusedBy {
        /// The peer that was to be reached, if this member dialed.
        peer: Option<u64>,
        /// Where.
        address: SocketAddr,
        /// Why, as the peer's code says it.
        code: CloseCode,
        /// Why, in the peer's words.
        reason: String,
    },
    /// A member's key was seen for the first time: it is to be remembered.
    Pinned {
        /// The member.
        peer: u64,
        /// Its key.
        fingerprint: Fingerprint,
    },
    /// A probe was answered.
    ProbeAnswered {
        /// The peer that answered.
        peer: u64,
    },
    /// A probe was not answered in time.
    ProbeSilent {
        /// The peer that did not answer.
        peer: u64,
    },
}

/// Why a link went down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// Nothing came for longer than the idle timeout.
    Silent,
    /// The peer's process is another one now, or gone, and its machine said so.
    Restarted,
    /// The peer stops.
    Stopped,
    /// The peer closed the connection for this reason.
    Closed(CloseCode),
    /// It is no peer any more.
    Removed,
    /// What came was no peer's.
    Broken(String),
}

impl DownReason {
    /// Whether it shows that the peer's process has ended.
    pub fn process_ended(&self) -> bool {
        matches!(self, Self::Restarted | Self::Stopped)
    }
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("nothing came from it any more"),
            Self::Restarted => f.write_str("it has restarted"),
            Self::Stopped => f.write_str("it stops"),
            Self::Closed(code) => write!(f, "it closed the connection: {code}"),
            Self::Removed => f.write_str("it is no member any more"),
            Self::Broken(what) => f.write_str(what),
        }
    }
}

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It does not say hello, or in another version.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// It is of another cluster.
    #[error(
        "it is of cluster {theirs:016x}, this member is of cluster {ours:016x}; do both have the same --initial-cluster and --initial-cluster-token?"
    )]
    Cluster {
        /// Its cluster.
        theirs: u64,
        /// This member's.
        ours: u64,
    },
    /// Another member was meant, or another one answers.
    #[error("member {wanted:016x} was to be reached, member {found:016x} is here")]
    Member {
        /// Who was meant.
        wanted: u64,
        /// Who it is.
        found: u64,
    },
    /// It is this member itself.
    #[error("it is this member itself; do two members have the same address?")]
    Itself,
    /// It was a member once.
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    /// It holds another key than at first contact.
    #[error(
        "it shows another key than the one that was remembered for it; if its data directory was made anew, remove the member and add it again"
    )]
    Key,
    /// TLS came to nothing on this side. Mostly no authority that is trusted here vouches for its certificate.
    #[error("TLS with it fails: {0}; do its certificate and this member's --peer-trusted-ca-file fit each other?")]
    Tls(String),
    /// Too many members that are not known here.
    #[error("more than {STRANGERS_MAX} members that are not known here")]
    Strangers,
    /// The connection is of the wrong kind.
    #[error("it answers for another kind of connection")]
    Kind,
    /// No hello came in time.
    #[error("no hello came in time")]
    Late,
    /// What came is no frame.
    #[error("it sends what is no frame: {0}")]
    Frame(#[from] DecodeError),
    /// A frame came on the wrong stream, or a stream that there must not be, or one that ended.
    #[error("it does not keep to its streams")]
    Stream,
}

/// Why a connection is closed, as the other side hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseCode {
    /// The member stops.
    Shutdown,
    /// Another connection takes its place, or is there already.
    Superseded,
    /// Another cluster.
    Cluster,
    /// Another member than was meant.
    Member,
    /// The other side was removed.
    Removed,
    /// Another version, or no hello.
    Hello,
    /// Another key than was remembered, or a certificate that is not believed.
    Key,
    /// Frames or streams that must not be.
    Protocol,
    /// Too many.
    Bound,
    /// A code that this version does not know.
    Other(u32),
}

const CODES: [CloseCode; 9] = [
    CloseCode::Shutdown,
    CloseCode::Superseded,
    CloseCode::Cluster,
    CloseCode::Member,
    CloseCode::Removed,
    CloseCode::Hello,
    CloseCode::Key,
    CloseCode::Protocol,
    CloseCode::Bound,
];

impl CloseCode {
    pub(super) fn number(self) -> VarInt {
        let number = match self {
            Self::Other(number) => number,
            Self::Shutdown => 0,
            Self::Superseded => 1,
            Self::Cluster => 2,
            Self::Member => 3,
            Self::Removed => 4,
            Self::Hello => 5,
            Self::Key => 6,
            Self::Protocol => 7,
            Self::Bound => 8,
        };
        VarInt::from_u32(number)
    }

    pub(super) fn of(number: VarInt) -> Self {
        let known = CODES.into_iter().find(|code| code.number() == number);
        known.unwrap_or(Self::Other(u32::try_from(number.into_inner()).unwrap_or(u32::MAX)))
    }

    /// Whether the peer will have nothing to do with this member, rather than with this connection.
    pub fn is_refusal(self) -> bool {
        !matches!(self, Self::Shutdown | Self::Superseded)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shutdown => f.write_str("it stops"),
            Self::Superseded => f.write_str("another connection took its place"),
            Self::Cluster => f.write_str("wrong cluster"),
            Self::Member => f.write_str("wrong member"),
            Self::Removed => f.write_str("removed from the cluster"),
            Self::Hello => f.write_str("no hello that it understands"),
            Self::Key => f.write_str("wrong key"),
            Self::Protocol => f.write_str("what came was no peer's"),
            Self::Bound => f.write_str("too many"),
            Self::Other(number) => write!(f, "code {number}"),
        }
    }
}

impl Refusal {
    pub(super) fn code(&self) -> CloseCode {
        match self {
            Self::Hello(_) | Self::Late => CloseCode::Hello,
            Self::Cluster { .. } => CloseCode::Cluster,
            Self::Member { .. } | Self::Itself => CloseCode::Member,
            Self::Removed => CloseCode::Removed,
            Self::Key | Self::Tls(_) => CloseCode::Key,
            Self::Strangers => CloseCode::Bound,
            Self::Kind | Self::Frame(_) | Self::Stream => CloseCode::Protocol,
        }
    }
}

/// What TLS says of a handshake that it gave up: why, and whether the other side did.
pub(super) fn tls_failure(error: &ConnectionError) -> Option<(String, bool)> {
    /// Codes of QUIC whose last byte is an alert of TLS (RFC 9001, 4.8).
    const ALERTS: core::ops::Range<u64> = 0x100..0x200;
    let (code, reason, by_peer) = match error {
        ConnectionError::TransportError(error) => (error.code, error.reason.clone(), false),
        ConnectionError::ConnectionClosed(close) => {
            (close.error_code, String::from_utf8_lossy(&close.reason).into_owned(), true)
        }
        _ => return None,
    };
    ALERTS.contains(&u64::from(code)).then(|| {
        let reason = if reason.is_empty() { code.to_string() } else { reason };
        (reason, by_peer)
    })
}

/// What a lost connection means for the link on it.
pub(super) fn down_reason(error: &ConnectionError) -> DownReason {
    match error {
        ConnectionError::TimedOut => DownReason::Silent,
        ConnectionError::Reset => DownReason::Restarted,
        ConnectionError::ApplicationClosed(close) => match CloseCode::of(close.error_code) {
            CloseCode::Shutdown => DownReason::Stopped,
            code => DownReason::Closed(code),
        },
        other => DownReason::Broken(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_numbers_map_one_to_one() {
        for code in CODES {
            assert_eq!(CloseCode::of(code.number()), code);
        }
        assert_eq!(CloseCode::of(VarInt::from_u32(99)), CloseCode::Other(99));
    }
}
