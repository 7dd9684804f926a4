//! The domain types that the index takes and gives.

use bytes::Bytes;

/// An MVCC revision: the store's revision and the position inside its transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision {
    /// The store's revision, which every write transaction moves by one.
    pub main: i64,
    /// The position of the change inside its transaction, from zero.
    pub sub: i64,
}

/// What the log had applied when a root was published.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Applied {
    /// The index of the newest applied entry; zero in a fresh store.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
}

/// One version of a key as the *current* tree keeps it: all but the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    /// The revision that wrote this version.
    pub modified: Revision,
    /// The main revision of the put that made the key; zero in a tombstone.
    pub create_revision: i64,
    /// How many puts since the key was made, this one included; zero in a tombstone.
    pub version: i64,
    /// The lease attached, zero for none.
    pub lease: i64,
    /// Whether this version is a tombstone.
    pub deleted: bool,
    /// The value's length in bytes.
    pub value_len: u32,
}

/// One revision as the *revisions* tree keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The revision itself.
    pub revision: Revision,
    /// The key that it changed.
    pub key: Bytes,
    /// The value; empty in a tombstone.
    pub value: Bytes,
    /// See [`Version::create_revision`].
    pub create_revision: i64,
    /// See [`Version::version`].
    pub version: i64,
    /// See [`Version::lease`].
    pub lease: i64,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// The key's revision before this one, tombstones included. It may name a revision that compaction has taken
    /// away, which means "nothing older".
    pub previous: Option<Revision>,
}

impl Record {
    /// The record's metadata as [`View::find`](crate::View::find) would show it.
    pub fn version(&self) -> Version {
        Version {
            modified: self.revision,
            create_revision: self.create_revision,
            version: self.version,
            lease: self.lease,
            deleted: self.deleted,
            value_len: u32::try_from(self.value.len()).expect("a value is at most 32 MiB"),
        }
    }
}

/// Half-open bounds of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds<'a> {
    /// The first key inside.
    pub start: &'a [u8],
    /// The first key outside; `None` means up to the end of the keyspace.
    pub end: Option<&'a [u8]>,
}

impl<'a> Bounds<'a> {
    /// Every key.
    pub const ALL: Bounds<'static> = Bounds { start: &[], end: None };

    /// Whether `key` lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start && self.is_before_end(key)
    }

    /// Whether `key` lies before the end.
    pub fn is_before_end(&self, key: &[u8]) -> bool {
        self.end.is_none_or(|end| key < end)
    }
}

/// A page of the index file, as a child pointer names it: its number and the sequence in which it was born.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageId {
    /// The page's position in the file, counted in pages.
    pub number: u32,
    /// The root sequence that wrote it, which its header must repeat.
    pub birth: u64,
}

/// A page is needed that is not resident or not verified yet: load it, then call again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeedPage(pub PageId);

/// The result of a walk.
pub type Paged<T> = Result<T, NeedPage>;

/// What a put did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutOutcome {
    /// The live version before; `None` when the key did not exist.
    pub previous: Option<Version>,
    /// The version now.
    pub current: Version,
}

/// How far physical compaction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompactionProgress {
    /// Nothing is left to remove below this floor.
    Finished(i64),
    /// The scan has dealt with all main revisions below `scanned_to` and goes on up to `target`.
    Running {
        /// The next main revision to look at.
        scanned_to: i64,
        /// The floor it works towards.
        target: i64,
    },
}

/// How large the index is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexSize {
    /// Bytes that the file has, or will have once the growth that is under way is done.
    pub file_bytes: u64,
    /// Bytes of pages that the working state uses.
    pub in_use_bytes: u64,
    /// Bytes of pages free for new use, without growing the file.
    pub free_bytes: u64,
}

/// Whether the index can take what makes it grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceState {
    /// It can.
    Enough,
    /// The disk refused to let the file grow, or the reserved addresses are nearly used up.
    Full,
}
