//! A message's body: written from raft-rs' type, and read back into it.

use crate::format::{self, DecodeError, Fields, Header, Kind};
use crate::{FrameBody, PeerFrame, limits};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use raft::eraftpb::{ConfState, Entry, Message, MessageType, Snapshot};

/// Why a message cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// raft-rs sends this one only to itself.
    #[error("{0:?} is a message of a replica to itself")]
    Local(MessageType),
    /// A length or count is beyond its bound.
    #[error("{what} of {value} is beyond the bound of {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// What the message has.
        value: usize,
        /// What it may have.
        max: u32,
    },
}

/// Appends the frame of a message to `out`, which is unchanged if there is an error.
///
/// Two fields stay behind, both deprecated in raft-rs. `deprecated_priority` repeats `priority` for releases before it;
/// where only the old one is set, it is sent as the new one, as raft-rs itself reads it. `sync_log` is read by nothing.
pub fn encode(keyspace: u64, message: &Message, out: &mut BytesMut) -> Result<(), EncodeError> {
    let message_type = message.get_msg_type();
    let kind = format::message_kind(message_type).ok_or(EncodeError::Local(message_type))?;
    let body_bytes = body_bytes(message)?;
    let body_bytes_u32 = u32::try_from(body_bytes).expect("the body's length is within its bound");

    let frame_at = out.len();
    out.reserve(format::HEADER_BYTES + body_bytes);
    out.put_bytes(0, format::HEADER_BYTES);
    put_body(message, out);
    let body_at = frame_at + format::HEADER_BYTES;
    assert_eq!(out.len() - body_at, body_bytes, "the length computed is the length written");

    let mut flags = 0;
    if message.get_reject() {
        flags |= format::FLAG_REJECT;
    }
    if message.has_snapshot() {
        flags |= format::FLAG_SNAPSHOT;
    }
    let header = Header::encode(kind, flags, keyspace, body_bytes_u32, crc32fast::hash(&out[body_at..]));
    out[frame_at..body_at].copy_from_slice(&header);
    Ok(())
}

/// Appends a frame to `out` whose body only the replica reads. `out` is unchanged if there is an error.
pub fn encode_opaque(keyspace: u64, body: &[u8], out: &mut BytesMut) -> Result<(), EncodeError> {
    check_bound("body length", body.len(), limits::BODY_BYTES_MAX)?;
    let body_bytes = u32::try_from(body.len()).expect("the body's length is within its bound");
    out.reserve(format::HEADER_BYTES + body.len());
    out.put_slice(&Header::encode(format::KIND_OPAQUE, 0, keyspace, body_bytes, crc32fast::hash(body)));
    out.put_slice(body);
    Ok(())
}

/// The body's length, once every part is within its bound.
fn body_bytes(message: &Message) -> Result<usize, EncodeError> {
    check_bound("context", message.get_context().len(), limits::CONTEXT_BYTES_MAX)?;
    check_bound("entry count", message.get_entries().len(), limits::ENTRIES_MAX)?;
    let mut total = format::FIXED_BYTES.saturating_add(message.get_context().len());
    for entry in message.get_entries() {
        total = total
            .saturating_add(format::ENTRY_HEAD_BYTES)
            .saturating_add(entry.get_data().len())
            .saturating_add(entry.get_context().len());
    }
    if message.has_snapshot() {
        let snapshot = message.get_snapshot();
        let mut members = 0;
        for list in member_lists(snapshot.get_metadata().get_conf_state()) {
            check_bound("member count", list.len(), limits::MEMBERS_MAX)?;
            members += list.len();
        }
        total = total
            .saturating_add(format::SNAPSHOT_HEAD_BYTES + members * format::MEMBER_BYTES)
            .saturating_add(snapshot.get_data().len());
    }
    check_bound("body length", total, limits::BODY_BYTES_MAX)?;
    Ok(total)
}

fn check_bound(what: &'static str, value: usize, max: u32) -> Result<(), EncodeError> {
    if u32::try_from(value).is_ok_and(|value| value <= max) {
        Ok(())
    } else {
        Err(EncodeError::TooLarge { what, value, max })
    }
}

fn member_lists(conf_state: &ConfState) -> [&[u64]; 4] {
    [
        conf_state.get_voters(),
        conf_state.get_learners(),
        conf_state.get_voters_outgoing(),
        conf_state.get_learners_next(),
    ]
}

fn put_length(length: usize, out: &mut BytesMut) {
    out.put_u32_le(u32::try_from(length).expect("every length in a body is within the body's bound"));
}

fn put_body(message: &Message, out: &mut BytesMut) {
    for field in [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
        message.request_snapshot,
    ] {
        out.put_u64_le(field);
    }
    out.put_i64_le(priority(message));
    put_length(message.get_context().len(), out);
    put_length(message.get_entries().len(), out);
    out.put_slice(message.get_context());
    for entry in message.get_entries() {
        put_entry(entry, out);
    }
    if message.has_snapshot() {
        put_snapshot(message.get_snapshot(), out);
    }
}

/// The priority as raft-rs reads it: the old field counts where the new one is not set.
fn priority(message: &Message) -> i64 {
    if message.priority != 0 {
        message.priority
    } else {
        i64::try_from(message.deprecated_priority).unwrap_or(i64::MAX)
    }
}

fn put_entry(entry: &Entry, out: &mut BytesMut) {
    out.put_u64_le(entry.term);
    out.put_u64_le(entry.index);
    out.put_u8(format::entry_kind(entry.get_entry_type()));
    out.put_bytes(0, 3);
    put_length(entry.get_data().len(), out);
    put_length(entry.get_context().len(), out);
    out.put_slice(entry.get_data());
    out.put_slice(entry.get_context());
}

fn put_snapshot(snapshot: &Snapshot, out: &mut BytesMut) {
    let metadata = snapshot.get_metadata();
    let conf_state = metadata.get_conf_state();
    out.put_u64_le(metadata.index);
    out.put_u64_le(metadata.term);
    for list in member_lists(conf_state) {
        put_length(list.len(), out);
    }
    out.put_u8(u8::from(conf_state.auto_leave));
    out.put_bytes(0, 3);
    put_length(snapshot.get_data().len(), out);
    for &member in member_lists(conf_state).into_iter().flatten() {
        out.put_u64_le(member);
    }
    out.put_slice(snapshot.get_data());
}

/// Reads the body that belongs to `header`. Data and contexts in the message are slices of `body`, not copies.
pub(crate) fn decode(header: &Header, body: Bytes) -> Result<PeerFrame, DecodeError> {
    if crc32fast::hash(&body) != header.body_checksum {
        return Err(DecodeError::BodyChecksum);
    }
    let kind = match header.kind {
        Kind::Raft(kind) => kind,
        Kind::Opaque => return Ok(PeerFrame { keyspace: header.keyspace, body: FrameBody::Opaque(body) }),
    };
    let mut body = Body { rest: body };
    let fixed = body.split(format::FIXED_BYTES, "fixed part")?;
    let mut fields = Fields::new(&fixed);
    let mut message = Message::default();
    message.set_msg_type(kind);
    message.reject = header.flags & format::FLAG_REJECT != 0;
    for field in [
        &mut message.to,
        &mut message.from,
        &mut message.term,
        &mut message.log_term,
        &mut message.index,
        &mut message.commit,
        &mut message.commit_term,
        &mut message.reject_hint,
        &mut message.request_snapshot,
    ] {
        *field = fields.u64("fixed part")?;
    }
    message.priority = fields.i64("fixed part")?;
    let (context_bytes, entry_count) = (fields.u32("fixed part")?, fields.u32("fixed part")?);
    format::check_bound("context", context_bytes, limits::CONTEXT_BYTES_MAX)?;
    format::check_bound("entry count", entry_count, limits::ENTRIES_MAX)?;
    message.context = body.split_u32(context_bytes, "context")?;
    message.set_entries(decode_entries(entry_count, &mut body)?.into());
    if header.flags & format::FLAG_SNAPSHOT != 0 {
        message.set_snapshot(decode_snapshot(&mut body)?);
    }
    if body.rest.has_remaining() {
        return Err(DecodeError::Trailing(body.rest.remaining()));
    }
    Ok(PeerFrame { keyspace: header.keyspace, body: FrameBody::Raft(message) })
}

fn decode_entries(count: u32, body: &mut Body) -> Result<Vec<Entry>, DecodeError> {
    // Their heads alone must be there before room is made for them.
    let count = body.check_count(count, format::ENTRY_HEAD_BYTES, "entries")?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let head = body.split(format::ENTRY_HEAD_BYTES, "entries")?;
        let mut fields = Fields::new(&head);
        let mut entry = Entry { term: fields.u64("entries")?, index: fields.u64("entries")?, ..Entry::default() };
        let kind = fields.u8("entries")?;
        entry.set_entry_type(format::entry_type(kind).ok_or(DecodeError::EntryType(kind))?);
        fields.padding("entries")?;
        let (data_bytes, context_bytes) = (fields.u32("entries")?, fields.u32("entries")?);
        entry.data = body.split_u32(data_bytes, "entries")?;
        entry.context = body.split_u32(context_bytes, "entries")?;
        entries.push(entry);
    }
    Ok(entries)
}

fn decode_snapshot(body: &mut Body) -> Result<Snapshot, DecodeError> {
    const PART: &str = "snapshot";
    let head = body.split(format::SNAPSHOT_HEAD_BYTES, PART)?;
    let mut fields = Fields::new(&head);
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = fields.u64(PART)?;
    metadata.term = fields.u64(PART)?;
    let mut counts = [0; 4];
    for count in &mut counts {
        *count = fields.u32(PART)?;
        format::check_bound("member count", *count, limits::MEMBERS_MAX)?;
    }
    let auto_leave = fields.u8(PART)?;
    if auto_leave > 1 {
        return Err(DecodeError::Reserved);
    }
    fields.padding(PART)?;
    let data_bytes = fields.u32(PART)?;
    let conf_state = metadata.mut_conf_state();
    conf_state.auto_leave = auto_leave == 1;
    conf_state.voters = decode_members(counts[0], body)?;
    conf_state.learners = decode_members(counts[1], body)?;
    conf_state.voters_outgoing = decode_members(counts[2], body)?;
    conf_state.learners_next = decode_members(counts[3], body)?;
    snapshot.data = body.split_u32(data_bytes, PART)?;
    Ok(snapshot)
}

fn decode_members(count: u32, body: &mut Body) -> Result<Vec<u64>, DecodeError> {
    const PART: &str = "member list";
    let count = body.check_count(count, format::MEMBER_BYTES, PART)?;
    let bytes = body.split(count * format::MEMBER_BYTES, PART)?;
    let mut fields = Fields::new(&bytes);
    (0..count).map(|_| fields.u64(PART)).collect()
}

/// What is left of a body.
struct Body {
    rest: Bytes,
}

impl Body {
    fn split(&mut self, length: usize, part: &'static str) -> Result<Bytes, DecodeError> {
        if length > self.rest.len() {
            return Err(DecodeError::Truncated(part));
        }
        Ok(self.rest.split_to(length))
    }

    /// A part with a length that the wire gave. An empty one does not keep the body's memory alive.
    fn split_u32(&mut self, length: u32, part: &'static str) -> Result<Bytes, DecodeError> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        self.split(usize::try_from(length).map_err(|_| DecodeError::Truncated(part))?, part)
    }

    /// A count that the wire gave, once the body is long enough for so many parts of at least `each_bytes`.
    fn check_count(&self, count: u32, each_bytes: usize, part: &'static str) -> Result<usize, DecodeError> {
        let count = usize::try_from(count).map_err(|_| DecodeError::Truncated(part))?;
        if count > self.rest.len() / each_bytes {
            return Err(DecodeError::Truncated(part));
        }
        Ok(count)
    }
}
