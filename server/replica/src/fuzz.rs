//! What the fuzzer calls; `docs/fuzzing.md` says what it promises. Behind a feature because only tests need it.

use core::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::codec::{decode_entry, encode_entry};
use crate::members::{MemberChange, MemberMessage};
use crate::peer::PeerMessage;
use crate::raft::Membership;
use crate::transfer::{Chunk, Progress, Receiver, Stage, State, TransferMessage};
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

/// What a snapshot's receiver is sent, and what it makes of it: steps of a length, a kind, and as many bytes.
///
/// What decodes encodes to the same bytes. A chunk is taken if it is the next one of what the receiver takes and its
/// checksum is right, and otherwise not; no more wait than may be in flight; what is answered can be read.
pub fn transfer(data: &[u8]) {
    let mut taking = Taking::default();
    let mut rest = data;
    while let [len, kind, more @ ..] = rest {
        let (body, more) = more.split_at(usize::from(*len).min(more.len()));
        taking.step(*kind, body);
        rest = more;
    }
}

/// A receiver, and what is known of it.
#[derive(Default)]
struct Taking {
    receiver: Receiver,
    now: Duration,
    /// Of the bytes that were taken of the transfer at hand.
    checksum: u32,
}

impl Taking {
    fn step(&mut self, kind: u8, body: &[u8]) {
        let from = 1 + u64::from(kind >> 3 & 1);
        match kind & 7 {
            0..=3 => self.message(from, body, kind & 0x80 != 0),
            4 if self.receiver.poll_import().is_some() => {
                sound(self.receiver.handle_imported().expect("something arrives").1);
            }
            5 => {
                self.now += Duration::from_secs(u64::from(kind >> 3));
                if self.receiver.is_abandoned(self.now) {
                    sound(self.receiver.give_up(self.now, State::Failed).expect("something was given up").1);
                }
            }
            6 if self.receiver.stage() == Stage::Saving => {
                self.receiver.begin_install();
                sound(self.receiver.handle_installed().1);
            }
            _ => {}
        }
    }

    /// `mended`: a chunk's place and checksum are made right.
    fn message(&mut self, from: u64, body: &[u8], mended: bool) {
        let body = Bytes::copy_from_slice(body);
        let Ok(message) = TransferMessage::decode(&body) else { return };
        let mut encoded = BytesMut::new();
        message.put(&mut encoded);
        assert!(encoded == body, "a message is its fields");
        match message {
            TransferMessage::Offer(offer) => {
                if self.receiver.handle_offer(self.now, from, &offer) {
                    self.checksum = 0;
                }
                sound(self.receiver.answer_offer(self.now, from, offer.id));
            }
            TransferMessage::Chunk(chunk) => self.chunk(from, chunk, mended),
            TransferMessage::Progress(progress) => sound(progress),
        }
    }

    fn chunk(&mut self, from: u64, chunk: Chunk, mended: bool) {
        let before = self.receiver.answer(from, chunk.id, false);
        let checksum = crc32c::crc32c_append(self.checksum, &chunk.bytes);
        let chunk = if mended { Chunk { number: before.received, checksum, ..chunk } } else { chunk };
        let is_next = chunk.number == before.received && chunk.checksum == checksum;
        if let Some(progress) = self.receiver.handle_chunk(self.now, from, chunk.clone()) {
            sound(progress);
        }
        let after = self.receiver.answer(from, chunk.id, false);
        let taken = after.received - before.received;
        assert!(taken == 0 || (taken == 1 && is_next && before.state == State::Going), "only the next chunk is taken");
        let waiting = usize::try_from(after.received - after.imported).expect("few wait");
        assert!(waiting <= crate::limits::TRANSFER_CHUNKS_IN_FLIGHT_MAX, "as many wait as may be in flight");
        if taken == 1 {
            self.checksum = checksum;
        }
    }
}

/// A receiver's answer reads back.
fn sound(progress: Progress) {
    let message = TransferMessage::Progress(progress);
    let mut encoded = BytesMut::new();
    message.put(&mut encoded);
    assert!(TransferMessage::decode(&encoded.freeze()) == Ok(message), "an answer can be read");
}
