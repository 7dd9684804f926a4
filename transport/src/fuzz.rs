//! What the fuzzer calls; `docs/fuzzing.md` says what it promises. It is here because it reaches what the crate doesn't
//! show, and behind a feature because only tests need it.

use bytes::BytesMut;
use raft::eraftpb::Message;

use crate::format::{self, HEADER_BYTES};
use crate::limits::{INDEX_MAX, TERM_MAX};
use crate::link::{HELLO_BYTES, Hello, PROTOCOL_VERSION};
use crate::{FrameBody, FrameReader, PeerFrame, ReplicaFacts, encode, encode_opaque, validate};

/// The replica that the messages come to.
const FACTS: ReplicaFacts<'static> =
    ReplicaFacts { self_id: 1, term: 5, committed: 3, last_index: 7, peers: &[1, 2, 3], removed: &[9] };

/// A stream of bytes, and the same bytes as the fields and the body of one frame whose checksums are right.
///
/// A stream gives the same frames however it is cut into pieces; a frame encodes to the bytes that it was read from; a
/// message that is let through is for this replica, from the connection's member, and within the bounds.
pub fn frame(data: &[u8]) {
    read([data]);

    let Some((fields, body)) = data.split_first_chunk::<12>() else { return };
    let mut stream = Vec::with_capacity(HEADER_BYTES + body.len());
    stream.extend_from_slice(&crate::MAGIC);
    stream.push(crate::VERSION);
    // Kind and flags as they come, and a short keyspace.
    stream.extend_from_slice(&fields[..4]);
    stream.extend_from_slice(&[0; 7]);
    let len = u32::try_from(body.len()).expect("inputs are short");
    // The length may lie about what follows.
    let claimed = len.wrapping_add(u32::from_le_bytes([fields[4], fields[5], fields[6], 0]));
    stream.extend_from_slice(&claimed.to_le_bytes());
    stream.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    stream.extend_from_slice(&[fields[7], 0, 0, 0]);
    let checksum = crc32fast::hash(&stream[..format::HEADER_CHECKSUM_AT]);
    stream.extend_from_slice(&checksum.to_le_bytes());
    stream.extend_from_slice(body);
    let (front, back) = stream.split_at(usize::from(fields[8]).min(stream.len()));
    let whole = read([&stream]);
    assert!(whole == read([front, back]), "frames depend on how the stream is cut");
    let Some(frame) = whole else { return };

    let mut again = BytesMut::new();
    match &frame.body {
        FrameBody::Raft(message) => encode(frame.keyspace, message, &mut again),
        FrameBody::Opaque(body) => encode_opaque(frame.keyspace, body, &mut again),
    }
    .expect("what was read can be written");
    assert!(again == stream, "a frame is its message");
    let member = u64::from(fields[9]);
    if let Some(message) = frame.raft()
        && validate(message, member, &FACTS).is_ok()
    {
        check_accepted(message, member);
    }
}

/// The first bytes of a connection, and the same bytes as a hello whose checksum is right.
///
/// It reads the same however it is cut: what is whole can't become another by what follows, and what is refused is
/// refused by its beginning. A hello encodes to the bytes that it was read from.
pub fn hello(data: &[u8]) {
    check_hello(data);
    let Some((fields, _)) = data.split_first_chunk::<{ HELLO_BYTES - 12 }>() else { return };
    let mut bytes = Vec::with_capacity(HELLO_BYTES);
    bytes.extend_from_slice(b"GBPH");
    bytes.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(HELLO_BYTES).expect("a hello is short").to_le_bytes());
    bytes.extend_from_slice(fields);
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    check_hello(&bytes);
}

fn check_hello(data: &[u8]) {
    let whole = Hello::decode(data);
    for cut in 0..data.len().min(HELLO_BYTES) {
        match (Hello::decode(&data[..cut]), &whole) {
            (Ok(None), _) => {}
            (Err(early), Err(late)) => assert!(early == *late, "a refusal depends on what follows"),
            (early, late) => panic!("{early:?} after {cut} bytes, and {late:?} after all of them"),
        }
    }
    if let Ok(Some(hello)) = whole {
        assert!(hello.encode()[..] == data[..HELLO_BYTES], "a hello is its bytes");
    }
}

/// The last frame of a stream that comes in pieces, if none of it was refused.
fn read<const N: usize>(pieces: [&[u8]; N]) -> Option<PeerFrame> {
    let mut reader = FrameReader::new();
    let mut last = None;
    for mut rest in pieces {
        while !rest.is_empty() {
            let taken = reader.handle_bytes(rest).ok()?;
            rest = &rest[taken..];
            let frame = reader.poll_frame();
            assert!(taken > 0 || frame.is_some(), "the reader takes something or gives something");
            last = frame.or(last);
        }
    }
    last
}

fn check_accepted(message: &Message, member: u64) {
    assert!(message.to == FACTS.self_id && message.from == member && member != FACTS.self_id);
    assert!(!FACTS.removed.contains(&member));
    let metadata = message.get_snapshot().get_metadata();
    for term in [message.term, message.log_term, message.commit_term, metadata.term] {
        assert!(term <= TERM_MAX);
    }
    for index in [message.index, message.commit, message.reject_hint, message.request_snapshot, metadata.index] {
        assert!(index <= INDEX_MAX);
    }
    for entry in message.get_entries() {
        assert!(entry.index <= INDEX_MAX.max(entry.index) && (message.term == 0 || entry.term <= message.term));
    }
}
