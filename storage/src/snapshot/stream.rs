//! The stream: what its items are, written and read.

use crate::codec::{put_varint, take_varint, to_u64, unzigzag, zigzag};
use crate::entry::RecordHead;
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::types::{Applied, Revision, Version};
use thiserror::Error;

/// What a stream begins with.
const MAGIC: [u8; 8] = *b"GARBSNAP";
/// The version of the stream's format.
const VERSION: u8 = 1;

const KIND_FACTS: u8 = 0;
const KIND_SYSTEM: u8 = 1;
const KIND_REVISION: u8 = 2;
const KIND_CURRENT: u8 = 3;
const KIND_END: u8 = 4;

const DELETED: u8 = 1;
const PREVIOUS: u8 = 1 << 1;
const JUMP: u8 = 1 << 2;

/// What a snapshot is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotFacts {
    /// The cluster whose state it is.
    pub cluster_id: u64,
    /// What the log had applied.
    pub applied: Applied,
    /// The newest revision.
    pub revision: i64,
    /// The logical compaction floor.
    pub compacted: i64,
    /// The floor up to which physical compaction is done.
    pub(crate) finished: i64,
    /// Where physical compaction goes on.
    pub(crate) scanned_to: Revision,
}

/// How many entries each tree has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) system: u64,
    pub(crate) revisions: u64,
    pub(crate) current: u64,
}

/// One item of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Item<'a> {
    /// The first.
    Facts(SnapshotFacts),
    /// An entry of *system*, in order of keys.
    System { key: &'a [u8], value: &'a [u8] },
    /// A revision, in order.
    Revision { version: Version, previous: Option<Revision>, jump: Option<Revision>, key: &'a [u8], value: &'a [u8] },
    /// A key and its newest version, in order of keys.
    Current { version: Version, key: &'a [u8] },
    /// The last.
    End(Totals),
}

/// A stream that cannot be taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ImportError {
    /// It does not begin as a snapshot does.
    #[error("the stream is no snapshot")]
    NoSnapshot,
    /// Its version is not known.
    #[error("the snapshot has version {0}, which is not known")]
    Version(u8),
    /// An item's fields contradict each other or are out of their bounds.
    #[error("an item of the snapshot is malformed: {0}")]
    Malformed(&'static str),
    /// Items are not in their order.
    #[error("items of the snapshot are out of order: {0}")]
    Order(&'static str),
    /// Not as many items came as were announced.
    #[error("the snapshot is not complete")]
    Incomplete,
    /// It is of another cluster.
    #[error("the snapshot is of cluster {0:x}")]
    Cluster(u64),
    /// No import is under way, or the one that is has all it needs.
    #[error("no import takes this")]
    Unexpected,
}

fn put_i64(into: &mut Vec<u8>, value: i64) {
    put_varint(into, u64::try_from(value).expect("revisions and versions are not negative"));
}

fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(into, to_u64(bytes.len()));
    into.extend_from_slice(bytes);
}

fn put_revision(into: &mut Vec<u8>, revision: Revision) {
    put_i64(into, revision.main);
    put_i64(into, revision.sub);
}

fn put_version(into: &mut Vec<u8>, version: &Version) {
    put_revision(into, version.modified);
    if !version.deleted {
        put_i64(into, version.create_revision);
        put_i64(into, version.version);
        put_varint(into, zigzag(version.lease));
    }
}

impl Item<'_> {
    /// Appends the item to a stream.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        match *self {
            Item::Facts(facts) => {
                into.push(KIND_FACTS);
                into.extend_from_slice(&MAGIC);
                into.push(VERSION);
                put_varint(into, facts.cluster_id);
                put_varint(into, facts.applied.index);
                put_varint(into, facts.applied.term);
                put_i64(into, facts.revision);
                // They are −1 before any compaction.
                put_i64(into, facts.compacted + 1);
                put_i64(into, facts.finished + 1);
                put_revision(into, facts.scanned_to);
            }
            Item::System { key, value } => {
                into.push(KIND_SYSTEM);
                put_bytes(into, key);
                put_bytes(into, value);
            }
            Item::Revision { version, previous, jump, key, value } => {
                into.push(KIND_REVISION);
                let deleted = if version.deleted { DELETED } else { 0 };
                let earlier = [(previous, PREVIOUS), (jump, JUMP)].map(|(to, flag)| to.map_or(0, |_| flag));
                into.push(deleted | earlier[0] | earlier[1]);
                put_version(into, &version);
                previous.into_iter().chain(jump).for_each(|revision| put_revision(into, revision));
                put_bytes(into, key);
                put_bytes(into, value);
            }
            Item::Current { version, key } => {
                into.push(KIND_CURRENT);
                into.push(if version.deleted { DELETED } else { 0 });
                put_version(into, &version);
                put_varint(into, u64::from(version.value_len));
                put_bytes(into, key);
            }
            Item::End(totals) => {
                into.push(KIND_END);
                [totals.system, totals.revisions, totals.current].iter().for_each(|count| put_varint(into, *count));
            }
        }
    }
}

/// Why an item cannot be taken off the front.
enum Stop {
    /// It goes on in the next chunk.
    Incomplete,
    Wrong(ImportError),
}

type Taken<T> = Result<T, Stop>;

fn malformed<T>(what: &'static str) -> Taken<T> {
    Err(Stop::Wrong(ImportError::Malformed(what)))
}

/// The longest varint.
const VARINT_BYTES_MAX: usize = 10;

fn take_u64(from: &mut &[u8]) -> Taken<u64> {
    match take_varint(from) {
        Some(value) => Ok(value),
        None if from.len() >= VARINT_BYTES_MAX => malformed("a number that does not end"),
        None => Err(Stop::Incomplete),
    }
}

fn take_i64(from: &mut &[u8]) -> Taken<i64> {
    match i64::try_from(take_u64(from)?) {
        Ok(value) => Ok(value),
        Err(_) => malformed("a number beyond 2^63"),
    }
}

fn take_u8(from: &mut &[u8]) -> Taken<u8> {
    let (&first, rest) = from.split_first().ok_or(Stop::Incomplete)?;
    *from = rest;
    Ok(first)
}

fn take_bytes<'a>(from: &mut &'a [u8], max: usize, what: &'static str) -> Taken<&'a [u8]> {
    let Some(len) = usize::try_from(take_u64(from)?).ok().filter(|len| *len <= max) else { return malformed(what) };
    let (bytes, rest) = from.split_at_checked(len).ok_or(Stop::Incomplete)?;
    *from = rest;
    Ok(bytes)
}

fn take_revision(from: &mut &[u8]) -> Taken<Revision> {
    let revision = Revision { main: take_i64(from)?, sub: take_i64(from)? };
    if u32::try_from(revision.sub).is_err() {
        return malformed("a revision's position in its transaction");
    }
    Ok(revision)
}

fn take_version(from: &mut &[u8], deleted: bool) -> Taken<Version> {
    let modified = take_revision(from)?;
    let mut version = Version { modified, create_revision: 0, version: 0, lease: 0, deleted, value_len: 0 };
    if !deleted {
        version.create_revision = take_i64(from)?;
        version.version = take_i64(from)?;
        version.lease = unzigzag(take_u64(from)?);
        if version.create_revision > modified.main || version.version == 0 {
            return malformed("a version");
        }
    }
    Ok(version)
}

fn take_facts(from: &mut &[u8]) -> Taken<SnapshotFacts> {
    let magic = from.split_at_checked(MAGIC.len()).ok_or(Stop::Incomplete)?;
    if magic.0 != MAGIC {
        return Err(Stop::Wrong(ImportError::NoSnapshot));
    }
    *from = magic.1;
    let version = take_u8(from)?;
    if version != VERSION {
        return Err(Stop::Wrong(ImportError::Version(version)));
    }
    let facts = SnapshotFacts {
        cluster_id: take_u64(from)?,
        applied: Applied { index: take_u64(from)?, term: take_u64(from)? },
        revision: take_i64(from)?,
        compacted: take_i64(from)? - 1,
        finished: take_i64(from)? - 1,
        scanned_to: take_revision(from)?,
    };
    if facts.compacted > facts.revision || facts.finished > facts.compacted {
        return malformed("compacted beyond the newest revision");
    }
    Ok(facts)
}

fn take_item<'a>(from: &mut &'a [u8]) -> Taken<Item<'a>> {
    Ok(match take_u8(from)? {
        KIND_FACTS => Item::Facts(take_facts(from)?),
        KIND_SYSTEM => Item::System {
            key: take_bytes(from, KEY_BYTES_MAX, "a key's length")?,
            value: take_bytes(from, VALUE_BYTES_MAX, "a value's length")?,
        },
        KIND_REVISION => {
            let flags = take_u8(from)?;
            if flags & !(DELETED | PREVIOUS | JUMP) != 0 {
                return malformed("flags of a revision");
            }
            let mut version = take_version(from, flags & DELETED != 0)?;
            let mut earlier = |flag| if flags & flag != 0 { take_revision(from).map(Some) } else { Ok(None) };
            let (previous, jump) = (earlier(PREVIOUS)?, earlier(JUMP)?);
            if previous.into_iter().chain(jump).any(|earlier| earlier >= version.modified) {
                return malformed("a revision that points forward");
            }
            let key = take_bytes(from, KEY_BYTES_MAX, "a key's length")?;
            let value = take_bytes(from, VALUE_BYTES_MAX, "a value's length")?;
            version.value_len = u32::try_from(value.len()).expect("bounded");
            if version.deleted && !value.is_empty() {
                return malformed("a tombstone with a value");
            }
            Item::Revision { version, previous, jump, key, value }
        }
        KIND_CURRENT => {
            let flags = take_u8(from)?;
            if flags & !DELETED != 0 {
                return malformed("flags of a key");
            }
            let mut version = take_version(from, flags & DELETED != 0)?;
            let Ok(value_len) = u32::try_from(take_u64(from)?) else { return malformed("a value's length") };
            version.value_len = value_len;
            Item::Current { version, key: take_bytes(from, KEY_BYTES_MAX, "a key's length")? }
        }
        KIND_END => Item::End(Totals { system: take_u64(from)?, revisions: take_u64(from)?, current: take_u64(from)? }),
        _ => return malformed("an unknown kind"),
    })
}

/// Takes items off a stream that comes in chunks.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// The item that began in an earlier chunk. At most one, so that it is bounded by a key and a value.
    begun: Vec<u8>,
}

impl Parser {
    /// Gives every item that a chunk completes to `take`.
    pub(crate) fn feed(
        &mut self,
        chunk: &[u8],
        mut take: impl FnMut(Item<'_>) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        if self.begun.is_empty() {
            let rest = Parser::take_all(chunk, &mut take)?;
            self.begun.extend_from_slice(rest);
            return Ok(());
        }
        self.begun.extend_from_slice(chunk);
        let rest = Parser::take_all(&self.begun, &mut take)?.len();
        self.begun.drain(..self.begun.len() - rest);
        if self.begun.is_empty() {
            // A long item does not hold its memory until the end.
            self.begun = Vec::new();
        }
        Ok(())
    }

    fn take_all<'a>(
        mut bytes: &'a [u8],
        take: &mut impl FnMut(Item<'_>) -> Result<(), ImportError>,
    ) -> Result<&'a [u8], ImportError> {
        while !bytes.is_empty() {
            let mut rest = bytes;
            match take_item(&mut rest) {
                Ok(item) => take(item)?,
                Err(Stop::Incomplete) => break,
                Err(Stop::Wrong(error)) => return Err(error),
            }
            bytes = rest;
        }
        Ok(bytes)
    }

    /// Whether nothing is left over.
    pub(crate) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }
}

impl<'a> Item<'a> {
    /// A record of *revisions* as the stream has it.
    pub(crate) fn of_record(head: &RecordHead<'_>, key: &'a [u8], value: &'a [u8]) -> Item<'a> {
        Item::Revision { version: head.version, previous: head.previous, jump: head.jump, key, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(main: i64, deleted: bool) -> Version {
        let live = |value: i64| if deleted { 0 } else { value };
        let (create_revision, version, lease) = (live(main - 1), live(7), live(-5));
        Version { modified: Revision { main, sub: 3 }, create_revision, version, lease, deleted, value_len: 0 }
    }

    fn items() -> Vec<Item<'static>> {
        let facts = SnapshotFacts {
            cluster_id: u64::MAX,
            applied: Applied { index: 9, term: 2 },
            revision: 40,
            compacted: -1,
            finished: -1,
            scanned_to: Revision::default(),
        };
        let earlier = Revision { main: 4, sub: 0 };
        let put = Version { value_len: 2, ..version(5, false) };
        vec![
            Item::Facts(facts),
            Item::System { key: b"s", value: b"" },
            Item::Revision { version: put, previous: Some(earlier), jump: Some(earlier), key: b"k", value: b"vv" },
            Item::Revision { version: version(6, true), previous: None, jump: None, key: &[7; 3000], value: b"" },
            Item::Current { version: put, key: b"k" },
            Item::Current { version: version(6, true), key: b"l" },
            Item::End(Totals { system: 1, revisions: 2, current: 2 }),
        ]
    }

    #[test]
    fn a_stream_reads_back_as_it_was_written_wherever_it_is_cut() {
        let mut bytes = Vec::new();
        items().iter().for_each(|item| item.encode(&mut bytes));
        for size in [1, 2, 3, 7, 100, 5000] {
            let mut parser = Parser::default();
            let mut expected = items().into_iter();
            for chunk in bytes.chunks(size) {
                let take = |item: Item<'_>| {
                    assert_eq!(Some(item), expected.next());
                    Ok(())
                };
                parser.feed(chunk, take).unwrap();
            }
            assert!(parser.is_empty() && expected.next().is_none());
        }
    }

    #[test]
    fn no_bytes_end_the_process_or_take_more_memory_than_they_have() {
        let mut bytes = Vec::new();
        items().iter().for_each(|item| item.encode(&mut bytes));
        for at in 0..bytes.len() {
            for change in [0, 1, 0x80, 0xff] {
                let mut wrong = bytes.clone();
                wrong[at] ^= change;
                let mut parser = Parser::default();
                let _ = parser.feed(&wrong, |_| Ok(()));
                assert!(parser.begun.len() <= bytes.len());
            }
        }
        let mut endless = vec![KIND_SYSTEM];
        endless.extend([0xff; 20]);
        let refused = Parser::default().feed(&endless, |_| Ok(()));
        assert_eq!(refused, Err(ImportError::Malformed("a number that does not end")));
    }
}
