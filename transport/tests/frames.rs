//! Frames survive the way to a peer, and nothing that is none is taken for one.

use bytes::{Bytes, BytesMut};
use garboard_transport::{DecodeError, EncodeError, FrameBody, FrameReader, HEADER_BYTES, PeerFrame, encode, limits};
use proptest::collection::vec;
use proptest::prelude::*;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};

const FRAMED: [MessageType; 14] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTransferLeader,
    MessageType::MsgTimeoutNow,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
    MessageType::MsgPropose,
];

fn bytes(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn entry() -> impl Strategy<Value = Entry> {
    (0..3usize, any::<u64>(), any::<u64>(), bytes(200), bytes(20)).prop_map(|(kind, term, index, data, context)| {
        let kinds = [EntryType::EntryNormal, EntryType::EntryConfChange, EntryType::EntryConfChangeV2];
        let mut entry = Entry { term, index, data, context, ..Entry::default() };
        entry.set_entry_type(kinds[kind]);
        entry
    })
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let members = || vec(any::<u64>(), 0..6);
    ((any::<u64>(), any::<u64>(), bytes(50)), (members(), members(), members(), members(), any::<bool>())).prop_map(
        |((index, term, data), (voters, learners, outgoing, next, auto_leave))| {
            let mut snapshot = Snapshot { data, ..Snapshot::default() };
            let metadata = snapshot.mut_metadata();
            (metadata.index, metadata.term) = (index, term);
            let conf_state = metadata.mut_conf_state();
            (conf_state.voters, conf_state.learners) = (voters, learners);
            (conf_state.voters_outgoing, conf_state.learners_next) = (outgoing, next);
            conf_state.auto_leave = auto_leave;
            snapshot
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let parts = (bytes(64), vec(entry(), 0..8), proptest::option::of(snapshot()));
    (0..FRAMED.len(), any::<[u64; 9]>(), any::<i64>(), any::<bool>(), parts).prop_map(
        |(kind, numbers, priority, reject, (context, entries, snapshot))| {
            let mut message = Message::default();
            message.set_msg_type(FRAMED[kind]);
            let [to, from, term, log_term, index, commit, commit_term, reject_hint, request_snapshot] = numbers;
            (message.to, message.from, message.term, message.log_term) = (to, from, term, log_term);
            (message.index, message.commit, message.commit_term) = (index, commit, commit_term);
            (message.reject_hint, message.request_snapshot) = (reject_hint, request_snapshot);
            (message.priority, message.reject, message.context) = (priority, reject, context);
            message.set_entries(entries.into());
            if let Some(snapshot) = snapshot {
                message.set_snapshot(snapshot);
            }
            message
        },
    )
}

fn encoded(keyspace: u64, message: &Message) -> BytesMut {
    let mut out = BytesMut::new();
    encode(keyspace, message, &mut out).expect("the message is within the bounds");
    out
}

/// All frames in a stream that comes in pieces of the given sizes, in turn.
fn read_all(stream: &[u8], pieces: &[usize]) -> Result<Vec<PeerFrame>, DecodeError> {
    let (mut reader, mut frames, mut rest) = (FrameReader::new(), Vec::new(), stream);
    let mut sizes = pieces.iter().cycle();
    while !rest.is_empty() {
        let (mut piece, later) = rest.split_at((*sizes.next().unwrap_or(&1)).clamp(1, rest.len()));
        rest = later;
        while !piece.is_empty() {
            piece = &piece[reader.handle_bytes(piece)?..];
            assert!(reader.buffered_capacity() <= limits::BODY_BYTES_MAX as usize);
            frames.extend(reader.poll_frame());
        }
    }
    assert!(reader.is_between_frames(), "the stream ends with a frame");
    Ok(frames)
}

/// A frame whose checksums fit, whatever its body says.
fn sealed(kind: u8, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = encoded(0, &Message::default_append())[..HEADER_BYTES].to_vec();
    frame[5] = kind;
    frame[6..8].copy_from_slice(&flags.to_le_bytes());
    frame[16..20].copy_from_slice(&u32::try_from(body.len()).expect("a small body").to_le_bytes());
    frame[20..24].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    let checksum = crc32fast::hash(&frame[..28]);
    frame[28..32].copy_from_slice(&checksum.to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

trait DefaultAppend {
    fn default_append() -> Message;
}

impl DefaultAppend for Message {
    fn default_append() -> Message {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppend);
        message
    }
}

proptest! {
    #[test]
    fn every_field_survives_the_way_however_the_stream_is_cut(
        messages in vec((any::<u64>(), message()), 1..4), pieces in vec(1usize..300, 1..6),
    ) {
        let mut stream = BytesMut::new();
        for (keyspace, message) in &messages {
            encode(*keyspace, message, &mut stream).unwrap();
        }
        let frames = read_all(&stream, &pieces).unwrap();
        let expected: Vec<_> =
            messages.into_iter().map(|(keyspace, message)| PeerFrame { keyspace, body: FrameBody::Raft(message) }).collect();
        prop_assert_eq!(frames, expected);
    }

    #[test]
    fn random_bytes_never_panic_and_never_take_more_memory_than_a_frame(input in vec(any::<u8>(), 0..400)) {
        let mut reader = FrameReader::new();
        let result = reader.handle_bytes(&input);
        prop_assert!(input.is_empty() || result.is_err(), "random bytes have no magic: {:?}", result);
        prop_assert!(reader.buffered_capacity() <= limits::BODY_BYTES_MAX as usize);
    }

    #[test]
    fn a_random_body_under_good_checksums_never_panics(
        kind in 0u8..20, flags in 0u16..5, body in vec(prop_oneof![Just(0u8), Just(1u8), any::<u8>()], 0..400),
    ) {
        let frame = sealed(kind, flags, &body);
        let mut reader = FrameReader::new();
        if reader.handle_bytes(&frame).is_ok() {
            // Whatever was understood is written back as the same bytes: there is one way to write a message.
            let frame_read = reader.poll_frame().expect("all bytes of the frame were there");
            prop_assert_eq!(&encoded(frame_read.keyspace, frame_read.raft().expect("a message"))[..], &frame[..]);
        }
    }

    #[test]
    fn a_changed_byte_in_a_frame_is_noticed(message in message(), at in any::<prop::sample::Index>(), by in 1u8..) {
        let mut frame = encoded(3, &message);
        let at = at.index(frame.len());
        frame[at] = frame[at].wrapping_add(by);
        // A body's length that grew makes the reader wait for more, which its header's checksum must prevent.
        prop_assert!(FrameReader::new().handle_bytes(&frame).is_err());
    }

    #[test]
    fn lengths_that_lie_under_good_checksums_are_refused_without_memory_for_them(
        message in message(), at in any::<prop::sample::Index>(), value in prop_oneof![Just(u32::MAX), any::<u32>()],
    ) {
        let frame = encoded(0, &message);
        let flags = u16::from_le_bytes([frame[6], frame[7]]);
        let mut body = frame[HEADER_BYTES..].to_vec();
        let at = at.index(body.len() - 4);
        body[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let lying = sealed(frame[5], flags, &body);
        let mut reader = FrameReader::new();
        if reader.handle_bytes(&lying).is_ok() {
            let read = reader.poll_frame().unwrap().raft().unwrap().clone();
            prop_assert!(read.get_entries().len() * 28 <= body.len());
        }
    }
}

#[test]
fn a_length_beyond_the_bound_is_refused_from_the_header_alone() {
    let mut frame = sealed(1, 0, &[]);
    frame[16..20].copy_from_slice(&(limits::BODY_BYTES_MAX + 1).to_le_bytes());
    let checksum = crc32fast::hash(&frame[..28]);
    frame[28..32].copy_from_slice(&checksum.to_le_bytes());
    let mut reader = FrameReader::new();
    let error = reader.handle_bytes(&frame).unwrap_err();
    assert!(matches!(error, DecodeError::TooLarge { what: "body length", .. }), "{error:?}");
    assert_eq!(reader.buffered_capacity(), 0);
    assert_eq!(reader.handle_bytes(&[]), Err(DecodeError::GivenUp));
}

#[test]
fn memory_for_a_body_follows_what_has_arrived_and_never_exceeds_the_body() {
    let mut message = Message::default_append();
    let data = Bytes::from(vec![7; 5_000_000]);
    message.set_entries(vec![Entry { data, ..Entry::default() }].into());
    let frame = encoded(0, &message);
    let mut reader = FrameReader::new();
    for (number, piece) in frame.chunks(10_000).enumerate() {
        assert_eq!(reader.handle_bytes(piece), Ok(piece.len()));
        let arrived = (number + 1) * 10_000;
        assert!(reader.buffered_capacity() <= (2 * arrived).max(limits::BODY_FIRST_STEP_BYTES));
        assert!(reader.buffered_capacity() <= frame.len() - HEADER_BYTES);
    }
    assert_eq!(reader.poll_frame().expect("all of it is there").raft(), Some(&message));
}

#[test]
fn a_stream_of_something_else_is_noticed_at_its_first_wrong_byte() {
    assert_eq!(FrameReader::new().handle_bytes(b"PRI"), Err(DecodeError::Magic));
    let mut reader = FrameReader::new();
    assert_eq!(reader.handle_bytes(b"GB"), Ok(2));
    assert_eq!(reader.handle_bytes(b"X"), Err(DecodeError::Magic));
}

#[test]
fn another_version_is_named() {
    let mut frame = sealed(1, 0, &[]);
    frame[4] = 2;
    assert_eq!(FrameReader::new().handle_bytes(&frame), Err(DecodeError::Version(2)));
}

#[test]
fn an_entry_count_that_the_body_cannot_hold_is_refused() {
    let mut body = encoded(0, &Message::default_append())[HEADER_BYTES..].to_vec();
    body[84..88].copy_from_slice(&limits::ENTRIES_MAX.to_le_bytes());
    assert_eq!(FrameReader::new().handle_bytes(&sealed(1, 0, &body)), Err(DecodeError::Truncated("entries")));
    body[84..88].copy_from_slice(&(limits::ENTRIES_MAX + 1).to_le_bytes());
    let error = FrameReader::new().handle_bytes(&sealed(1, 0, &body)).unwrap_err();
    assert!(matches!(error, DecodeError::TooLarge { what: "entry count", .. }), "{error:?}");
}

#[test]
fn bytes_behind_the_last_part_are_refused() {
    let mut body = encoded(0, &Message::default_append())[HEADER_BYTES..].to_vec();
    body.push(0);
    assert_eq!(FrameReader::new().handle_bytes(&sealed(1, 0, &body)), Err(DecodeError::Trailing(1)));
}

#[test]
fn what_a_replica_tells_itself_is_never_sent() {
    for local in [MessageType::MsgHup, MessageType::MsgBeat, MessageType::MsgUnreachable, MessageType::MsgSnapStatus] {
        let mut message = Message::default();
        message.set_msg_type(local);
        let mut out = BytesMut::new();
        assert_eq!(encode(0, &message, &mut out), Err(EncodeError::Local(local)));
        assert!(out.is_empty());
    }
}

#[test]
fn what_is_too_large_is_refused_before_anything_is_written() {
    let mut message = Message::default_append();
    message.context = Bytes::from(vec![0; limits::CONTEXT_BYTES_MAX as usize + 1]);
    let mut out = BytesMut::from(&b"before"[..]);
    assert!(matches!(encode(0, &message, &mut out), Err(EncodeError::TooLarge { what: "context", .. })));
    message.context = Bytes::new();
    let data = Bytes::from(vec![0; limits::BODY_BYTES_MAX as usize]);
    message.set_entries(vec![Entry { data, ..Entry::default() }].into());
    assert!(matches!(encode(0, &message, &mut out), Err(EncodeError::TooLarge { what: "body length", .. })));
    message.set_entries(vec![Entry::default(); limits::ENTRIES_MAX as usize + 1].into());
    assert!(matches!(encode(0, &message, &mut out), Err(EncodeError::TooLarge { what: "entry count", .. })));
    assert_eq!(&out[..], b"before");
}

#[test]
fn a_priority_in_the_deprecated_field_arrives_in_the_new_one() {
    let mut message = Message::default_append();
    message.deprecated_priority = 9;
    let frames = read_all(&encoded(0, &message), &[7]).unwrap();
    let message = frames[0].raft().expect("a message");
    assert_eq!((message.priority, message.deprecated_priority), (9, 0));
}

#[test]
fn the_format_is_what_it_was() {
    let mut message = Message::default_append();
    (message.to, message.from, message.term) = (2, 1, 5);
    (message.index, message.log_term, message.commit) = (7, 4, 6);
    let entry = Entry { term: 5, index: 8, data: Bytes::from_static(b"ab"), ..Entry::default() };
    message.set_entries(vec![entry].into());
    let mut expected = Vec::new();
    for field in [2u64, 1, 5, 4, 7, 6, 0, 0, 0, 0] {
        expected.extend_from_slice(&field.to_le_bytes());
    }
    expected.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
    expected.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(b"ab");
    let frame = encoded(0x0102, &message);
    assert_eq!(&frame[..20], b"GBPF\x01\x01\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00\x76\x00\x00\x00");
    assert_eq!(&frame[HEADER_BYTES..], &expected[..]);
}
