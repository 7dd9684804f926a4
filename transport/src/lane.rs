//! Which stream a message travels on.

use raft::eraftpb::MessageType;

/// The streams to a peer. Messages on one stay in order; what is on another neither waits for it nor delays it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Heartbeats, votes, read-index and leadership: small, and late is as good as lost.
    Control,
    /// Entries and their acknowledgements, pipelined.
    Log,
    /// Snapshots, on a connection of their own, so that a full window there takes nothing from the other two.
    Bulk,
}

impl Lane {
    /// The lane of a message type. None for what raft-rs sends only to itself.
    pub fn of(message_type: MessageType) -> Option<Self> {
        match message_type {
            MessageType::MsgHeartbeat
            | MessageType::MsgHeartbeatResponse
            | MessageType::MsgRequestVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgTransferLeader
            | MessageType::MsgTimeoutNow
            | MessageType::MsgReadIndex
            | MessageType::MsgReadIndexResp => Some(Self::Control),
            MessageType::MsgAppend | MessageType::MsgAppendResponse | MessageType::MsgPropose => Some(Self::Log),
            MessageType::MsgSnapshot => Some(Self::Bulk),
            MessageType::MsgHup
            | MessageType::MsgBeat
            | MessageType::MsgUnreachable
            | MessageType::MsgSnapStatus
            | MessageType::MsgCheckQuorum => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format;

    #[test]
    fn what_can_be_framed_has_a_lane_and_nothing_else_has() {
        for kind in 0..=u8::MAX {
            if let Some(message_type) = format::message_type(kind) {
                assert!(Lane::of(message_type).is_some(), "{message_type:?}");
            }
        }
        assert_eq!(Lane::of(MessageType::MsgHup), None);
        assert_eq!(Lane::of(MessageType::MsgSnapStatus), None);
    }
}
