//! What the entries of *current* and *revisions* hold.
//!
//! Numbers are varints, and a revision that lies before another is kept as the distance. Bytes come from a verified
//! page, so that an entry which does not decode is a bug: it stops the process and is never served.

use crate::codec::{put_varint, take_varint, to_u64, to_usize, unzigzag, zigzag};
use crate::types::{Revision, Version};

/// A key in *revisions*.
pub(crate) const REVISION_KEY_SIZE: usize = 12;
/// Up to this length a record's key lies beside its metadata; a longer one lies before the value.
pub(crate) const KEY_BESIDE_MAX: usize = 512;

const DELETED: u8 = 1;
const LEASE: u8 = 1 << 1;
const SUB: u8 = 1 << 2;
const PREVIOUS: u8 = 1 << 3;
const JUMP: u8 = 1 << 4;
const KEY_BESIDE: u8 = 1 << 5;

/// The steps of the long jumps, in versions: every sixteenth, every 256th, every 4,096th version is an anchor.
const ANCHOR_STEPS: [u64; 3] = [1 << 4, 1 << 8, 1 << 12];

/// What a panic says that stops the process over such an entry.
pub(crate) const SOUND: &str = "an entry of a verified page decodes";

/// The big-endian key of a revision, in the order of revisions.
pub(crate) fn revision_key(revision: Revision) -> [u8; REVISION_KEY_SIZE] {
    let mut key = [0; REVISION_KEY_SIZE];
    key[..8].copy_from_slice(&revision.main.to_be_bytes());
    let sub = u32::try_from(revision.sub).expect("a transaction changes fewer than 2^32 keys");
    key[8..].copy_from_slice(&sub.to_be_bytes());
    key
}

/// The revision of a key of *revisions*.
pub(crate) fn revision_of_key(key: &[u8]) -> Revision {
    let key: &[u8; REVISION_KEY_SIZE] = key.try_into().expect(SOUND);
    let (main, sub) = key.split_first_chunk::<8>().expect("a revision's key has twelve bytes");
    let main = i64::from_be_bytes(*main);
    let sub = u32::from_be_bytes(sub.try_into().expect("twelve bytes without eight"));
    assert!(main >= 0, "{SOUND}");
    Revision { main, sub: i64::from(sub) }
}

fn put_i64(into: &mut Vec<u8>, value: i64) {
    put_varint(into, u64::try_from(value).expect("revisions, versions and distances are not negative"));
}

fn take_u64(from: &mut &[u8]) -> u64 {
    take_varint(from).expect(SOUND)
}

/// A revision, a version or a distance: none is negative, so that the difference of two never overflows.
fn take_i64(from: &mut &[u8]) -> i64 {
    i64::try_from(take_u64(from)).expect(SOUND)
}

fn take_sub(from: &mut &[u8]) -> i64 {
    i64::from(u32::try_from(take_u64(from)).expect(SOUND))
}

fn take_flags(from: &mut &[u8]) -> u8 {
    let (&flags, rest) = from.split_first().expect(SOUND);
    *from = rest;
    flags
}

/// A revision before `later`, or the same.
fn put_earlier(into: &mut Vec<u8>, later: Revision, revision: Revision) {
    put_i64(into, later.main - revision.main);
    put_i64(into, revision.sub);
}

fn take_earlier(from: &mut &[u8], later: Revision) -> Revision {
    let main = later.main - take_i64(from);
    let earlier = Revision { main, sub: take_sub(from) };
    assert!(main >= 0 && earlier <= later, "{SOUND}");
    earlier
}

fn put_metadata(into: &mut Vec<u8>, version: &Version) {
    if !version.deleted {
        put_i64(into, version.modified.main - version.create_revision);
        put_i64(into, version.version);
        put_varint(into, u64::from(version.value_len));
        if version.lease != 0 {
            put_varint(into, zigzag(version.lease));
        }
    }
}

fn take_metadata(from: &mut &[u8], flags: u8, modified: Revision) -> Version {
    let deleted = flags & DELETED != 0;
    let mut version = Version { modified, create_revision: 0, version: 0, lease: 0, deleted, value_len: 0 };
    if !deleted {
        version.create_revision = modified.main - take_i64(from);
        version.version = take_i64(from);
        version.value_len = u32::try_from(take_u64(from)).expect(SOUND);
        if flags & LEASE != 0 {
            version.lease = unzigzag(take_u64(from));
        }
    }
    version
}

fn metadata_flags(version: &Version) -> u8 {
    let deleted = if version.deleted { DELETED } else { 0 };
    let lease = if version.lease != 0 { LEASE } else { 0 };
    deleted | lease
}

/// An entry of *current*: the key's newest version, how many came before it, and the newest anchors of its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Newest {
    pub(crate) version: Version,
    /// Versions before this one since the entry was made, tombstones included.
    depth: u64,
    /// The newest versions whose depths are multiples of the anchor steps; only those that the depth says exist.
    anchors: [Revision; ANCHOR_STEPS.len()],
}

impl Newest {
    /// The first version of a key.
    pub(crate) fn first(version: Version) -> Newest {
        Newest { version, depth: 0, anchors: [version.modified; ANCHOR_STEPS.len()] }
    }

    /// The entry after one more version, and the long jump of that version's record.
    pub(crate) fn followed_by(&self, version: Version) -> (Newest, Option<Revision>) {
        let depth = self.depth + 1;
        let jump_level = ANCHOR_STEPS.iter().take_while(|&&step| depth.is_multiple_of(step)).count();
        let jump_level = jump_level.min(ANCHOR_STEPS.len() - 1);
        let jump = (self.depth >= ANCHOR_STEPS[jump_level]).then_some(self.anchors[jump_level]);
        let mut anchors = self.anchors;
        for (anchor, step) in anchors.iter_mut().zip(ANCHOR_STEPS) {
            if depth.is_multiple_of(step) {
                *anchor = version.modified;
            }
        }
        (Newest { version, depth, anchors }, jump)
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        let modified = self.version.modified;
        into.push(metadata_flags(&self.version) | if modified.sub != 0 { SUB } else { 0 });
        put_i64(into, modified.main);
        if modified.sub != 0 {
            put_i64(into, modified.sub);
        }
        put_metadata(into, &self.version);
        put_varint(into, self.depth);
        for (anchor, step) in self.anchors.iter().zip(ANCHOR_STEPS) {
            if self.depth >= step {
                put_earlier(into, modified, *anchor);
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Newest {
        let from = &mut &*bytes;
        let version = Newest::take_version(from);
        let depth = take_u64(from);
        let mut first = version.modified;
        let mut anchors = [first; ANCHOR_STEPS.len()];
        for (anchor, step) in anchors.iter_mut().zip(ANCHOR_STEPS) {
            if depth >= step {
                first = take_earlier(from, version.modified);
            }
            *anchor = first;
        }
        Newest { version, depth, anchors }
    }

    fn take_version(from: &mut &[u8]) -> Version {
        let flags = take_flags(from);
        let main = take_i64(from);
        let sub = if flags & SUB != 0 { take_sub(from) } else { 0 };
        take_metadata(from, flags, Revision { main, sub })
    }

    /// The version alone.
    pub(crate) fn decode_version(bytes: &[u8]) -> Version {
        Newest::take_version(&mut &*bytes)
    }

    /// Whether an entry of *current* counts as a live key.
    pub(crate) fn is_live(bytes: &[u8]) -> bool {
        bytes.first().expect(SOUND) & DELETED == 0
    }
}

/// The metadata of a record of *revisions*, as its cell holds it inline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHead<'a> {
    pub(crate) version: Version,
    pub(crate) previous: Option<Revision>,
    pub(crate) jump: Option<Revision>,
    pub(crate) key_len: u32,
    /// The key, if it lies beside the metadata.
    pub(crate) key: Option<&'a [u8]>,
    /// What follows the metadata in the cell: the body, unless an extent holds it.
    pub(crate) rest: &'a [u8],
}

impl<'a> RecordHead<'a> {
    /// Encodes the metadata; tells whether the key lies beside it.
    pub(crate) fn encode(
        version: &Version,
        previous: Option<Revision>,
        jump: Option<Revision>,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> bool {
        let beside = key.len() <= KEY_BESIDE_MAX;
        let mut flags = metadata_flags(version);
        flags |= if previous.is_some() { PREVIOUS } else { 0 };
        flags |= if jump.is_some() { JUMP } else { 0 };
        flags |= if beside { KEY_BESIDE } else { 0 };
        into.push(flags);
        put_metadata(into, version);
        for earlier in [previous, jump].into_iter().flatten() {
            put_earlier(into, version.modified, earlier);
        }
        put_varint(into, to_u64(key.len()));
        if beside {
            into.extend_from_slice(key);
        }
        beside
    }

    pub(crate) fn decode(revision: Revision, bytes: &'a [u8]) -> RecordHead<'a> {
        let from = &mut &*bytes;
        let flags = take_flags(from);
        let version = take_metadata(from, flags, revision);
        let previous = (flags & PREVIOUS != 0).then(|| take_earlier(from, revision));
        let jump = (flags & JUMP != 0).then(|| take_earlier(from, revision));
        // So a walk back through a key's versions ends.
        assert!([previous, jump].into_iter().flatten().all(|earlier| earlier < revision), "{SOUND}");
        let key_len = u32::try_from(take_u64(from)).expect(SOUND);
        let (key, rest) = if flags & KEY_BESIDE != 0 {
            let (key, rest) = from.split_at_checked(to_usize(key_len)).expect(SOUND);
            (Some(key), rest)
        } else {
            (None, *from)
        };
        RecordHead { version, previous, jump, key_len, key, rest }
    }

    /// How much of the body is the key.
    pub(crate) fn key_in_body(&self) -> usize {
        if self.key.is_some() { 0 } else { to_usize(self.key_len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(main: i64, sub: i64) -> Version {
        Version {
            modified: Revision { main, sub },
            create_revision: main - main % 7,
            version: main % 7 + 1,
            lease: if main % 3 == 0 { -main } else { 0 },
            deleted: false,
            value_len: 300,
        }
    }

    #[test]
    fn an_entry_of_current_decodes_to_what_was_encoded_at_every_depth() {
        let mut newest = Newest::first(version(7, 0));
        for main in 8..10_000 {
            newest = newest.followed_by(version(main, main % 2)).0;
            let mut bytes = Vec::new();
            newest.encode(&mut bytes);
            assert_eq!(Newest::decode_version(&bytes), newest.version);
            let decoded = Newest::decode(&bytes);
            assert_eq!((decoded.version, decoded.depth), (newest.version, newest.depth));
            let after = version(main + 1, 0);
            assert_eq!(decoded.followed_by(after).1, newest.followed_by(after).1);
        }
    }

    #[test]
    fn walking_back_through_ten_thousand_versions_takes_few_steps() {
        let mut newest = Newest::first(version(1, 0));
        let mut jumps = vec![None, None];
        for main in 2..=20_000 {
            let (next, jump) = newest.followed_by(version(main, 0));
            newest = next;
            jumps.push(jump.map(|revision| revision.main));
        }
        for at in (1..20_000usize).step_by(37) {
            let mut here = 20_000usize;
            let mut steps = 0;
            while here > at {
                let jump = jumps[here].map(|main| usize::try_from(main).unwrap()).filter(|&main| main > at);
                here = jump.unwrap_or(here - 1);
                steps += 1;
            }
            assert!(steps < 120, "{steps} steps to revision {at}");
        }
    }

    #[test]
    fn a_record_head_decodes_to_what_was_encoded() {
        let key = vec![b'k'; 700];
        for (len, previous, jump) in
            [(5, None, None), (512, Some(Revision { main: 3, sub: 9 }), None), (700, None, None)]
        {
            let version = version(1000, 4);
            let mut bytes = Vec::new();
            let beside = RecordHead::encode(&version, previous, jump, &key[..len], &mut bytes);
            bytes.extend_from_slice(b"body");
            let head = RecordHead::decode(version.modified, &bytes);
            assert_eq!((head.version, head.previous, head.jump), (version, previous, jump));
            assert_eq!(head.key.is_some(), beside);
            assert_eq!(to_usize(head.key_len), len);
            assert_eq!(head.rest, b"body");
        }
    }
}
