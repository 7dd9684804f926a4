//! What the fuzzer calls; `docs/fuzzing.md` says what it promises. Behind a feature because only tests need it.

use bytes::Bytes;

use crate::codec::{decode_entry, encode_entry};
use crate::members::{MemberChange, MemberMessage};
use crate::peer::PeerMessage;
use crate::raft::Membership;
use crate::validate::{Limits, check_command};

/// The data of an entry. What decodes encodes to the same bytes, and its commands can be checked.
pub fn entry(data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    let Ok(batch) = decode_entry(&data) else { return };
    assert!(encode_entry(&batch) == data, "an entry is its commands");
    for item in &batch.items {
        let _ = check_command(&item.command, &Limits::default());
    }
}

/// The body of a message between members. What decodes encodes to the same bytes, and so does the entry in a forward.
pub fn peer_message(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    let Ok(message) = PeerMessage::decode(&body) else { return };
    assert!(message.encode() == Some(body), "a message is its fields");
    assert!(message.lane().is_some(), "what is sent has a stream");
    if let PeerMessage::Forward(data) = message {
        entry(&data);
    }
}

/// A membership, and a change of one. What decodes encodes to the same bytes.
pub fn membership(data: &[u8]) {
    if let Ok(membership) = Membership::from_bytes(data) {
        assert!(membership.to_bytes() == data, "a membership is its members");
    }
    if let Ok(change) = MemberChange::from_bytes(data) {
        assert!(change.to_bytes() == data, "a change is its fields");
    }
    if let Ok(message) = MemberMessage::from_bytes(data) {
        assert!(message.to_bytes() == data, "a message is its fields");
    }
}
