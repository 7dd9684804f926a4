//! Reading a snapshot out of an index that goes on changing.
//!
//! What is at one applied entry stays readable from newer roots: revisions are only added, and a key's version at the
//! snapshot's revision is found back from its newest one. So no old root is held while the stream goes out. Two things
//! are not like that. Entries of *system* change in place: they are copied at the start, from one pinned root. And
//! physical compaction takes revisions away: the caller holds it back while a stream goes out, within bounds.

use super::stream::{Item, SnapshotFacts, Totals};
use crate::entry::{Newest, SOUND};
use crate::limits::SNAPSHOT_CHUNK_BYTES;
use crate::pins::Root;
use crate::tree::Walk;
use crate::types::{Paged, Revision};
use crate::view::{View, whole_key};
use bytes::Bytes;

/// A part of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Counts chunks from zero.
    pub number: u64,
    /// The checksum of everything up to this chunk's end.
    pub checksum: u32,
    /// At most [`SNAPSHOT_CHUNK_BYTES`].
    pub bytes: Bytes,
    /// Whether it is the last.
    pub is_last: bool,
}

/// What a step came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExportStep {
    /// The next chunk.
    Chunk(Chunk),
    /// Nothing yet; it goes on with the next step.
    Again,
    /// There is no more.
    Done,
}

/// What adding items to a chunk came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    /// The chunk is full.
    Full,
    /// It is not, and the tree goes on.
    Paused,
    /// The tree has no more.
    Section,
}

/// Entries that one step passes by at most because they are younger than the snapshot.
const PASSED_BY_MAX: usize = 1024;

/// Where an item begins.
#[derive(Clone, PartialEq, Eq, Debug)]
enum At {
    /// This chunk of the copy.
    Copied(usize),
    /// This revision, or the first one behind it.
    Revisions(Revision),
    /// The first key not below this one.
    Current(Vec<u8>),
    End,
    Done,
}

/// Where a stream goes on: what was sent behind it can be made again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position {
    number: u64,
    checksum: u32,
    totals: Totals,
    at: At,
    /// Bytes of the item at that place that were sent before.
    skip: usize,
}

/// A snapshot on its way out.
#[derive(Debug)]
pub struct Export {
    facts: SnapshotFacts,
    /// The root that the copy is made from.
    root: Root,
    /// The stream's first part: the facts and *system*, cut in chunks. Empty ones were sent and are not needed again.
    copied: Vec<Bytes>,
    copied_bytes: usize,
    /// Entries of *system*.
    system: u64,
    /// Where copying goes on; `None` once it is done.
    copy_from: Option<Vec<u8>>,
    position: Position,
    /// The next chunk, so far as it is made, and what comes behind it.
    building: Vec<u8>,
    next: Position,
    /// The item at `next`, if it is longer than a chunk.
    long: Option<Vec<u8>>,
    scratch: Vec<u8>,
}

impl Export {
    /// Begins a snapshot of what a pinned root shows. The pin is kept until [`Export::copy`] is done.
    pub fn begin(view: &View<'_>, cluster_id: u64) -> Export {
        let Root { applied, revision, compacted, finished, scanned_to, .. } = *view.root;
        let facts = SnapshotFacts { cluster_id, applied, revision, compacted, finished, scanned_to };
        let position = Position { number: 0, checksum: 0, totals: Totals::default(), at: At::Copied(0), skip: 0 };
        let mut building = Vec::new();
        Item::Facts(facts).encode(&mut building);
        Export {
            facts,
            root: *view.root,
            copied: Vec::new(),
            copied_bytes: 0,
            system: 0,
            copy_from: Some(Vec::new()),
            next: position.clone(),
            position,
            building,
            long: None,
            scratch: Vec::new(),
        }
    }

    /// What the snapshot is of.
    pub fn facts(&self) -> &SnapshotFacts {
        &self.facts
    }

    /// Copies some more of *system* from the pinned root; true once all of it is there and the pin may go.
    ///
    /// # Panics
    /// When the view is not of that root.
    pub fn copy(&mut self, view: &View<'_>) -> Paged<bool> {
        assert!(view.root.sequence == self.root.sequence, "a copy is of one root");
        let Some(from) = &mut self.copy_from else { return Ok(true) };
        let before = self.copied_bytes + self.building.len();
        let mut walk = Walk::start(view.pages, &self.root.system, from, false)?;
        let mut key = Vec::new();
        while let Some((page, cell)) = walk.entry()? {
            whole_key(view.pages, page, &cell, &mut key)?;
            let value = view.system_value(&cell)?;
            Item::System { key: &key, value: &value }.encode(&mut self.building);
            self.system += 1;
            from.clone_from(&key);
            // The first key behind this one.
            from.push(0);
            walk.pass();
            while self.building.len() >= SNAPSHOT_CHUNK_BYTES {
                let rest = self.building.split_off(SNAPSHOT_CHUNK_BYTES);
                self.copied.push(Bytes::from(std::mem::replace(&mut self.building, rest)));
                self.copied_bytes += SNAPSHOT_CHUNK_BYTES;
            }
            if self.copied_bytes + self.building.len() >= before + SNAPSHOT_CHUNK_BYTES {
                return Ok(false);
            }
        }
        if !self.building.is_empty() {
            self.copied_bytes += self.building.len();
            self.copied.push(Bytes::from(std::mem::take(&mut self.building)));
        }
        self.copy_from = None;
        Ok(true)
    }

    /// Bytes that the copy of *system* takes in memory.
    pub fn copied_bytes(&self) -> usize {
        self.copied_bytes + self.building.len()
    }

    /// Where the next chunk begins.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Goes back to where a chunk began that was lost. Behind what [`Export::forget`] was told.
    pub fn rewind(&mut self, position: Position) {
        assert!(position.number <= self.position.number, "a stream goes back to what was sent");
        self.building.clear();
        self.long = None;
        self.next = position.clone();
        self.position = position;
    }

    /// Nothing before this position is needed again.
    pub fn forget(&mut self, position: &Position) {
        let through = if let At::Copied(chunk) = position.at { chunk } else { self.copied.len() };
        for chunk in self.copied[..through].iter_mut().rev().take_while(|chunk| !chunk.is_empty()) {
            self.copied_bytes -= chunk.len();
            *chunk = Bytes::new();
        }
    }

    /// The next chunk, from a view no older than the snapshot. What was made of it before a page was missing is kept.
    pub fn step(&mut self, view: &View<'_>) -> Paged<ExportStep> {
        assert!(self.copy_from.is_none(), "what changes in place is copied first");
        assert!(view.root.applied >= self.facts.applied, "no view is older than the snapshot");
        if let At::Copied(chunk) = self.position.at {
            return Ok(ExportStep::Chunk(self.step_copied(chunk)));
        }
        loop {
            let added = match self.next.at.clone() {
                At::Copied(_) => unreachable!("the copy goes out first"),
                At::Revisions(from) => self.add_revisions(view, from)?,
                At::Current(from) => self.add_keys(view, &from)?,
                At::End => self.add_end(),
                At::Done if self.building.is_empty() => return Ok(ExportStep::Done),
                At::Done => Added::Full,
            };
            match added {
                Added::Full => {
                    let bytes = Bytes::from(std::mem::take(&mut self.building));
                    return Ok(ExportStep::Chunk(self.finish_chunk(bytes)));
                }
                Added::Paused => return Ok(ExportStep::Again),
                Added::Section => (),
            }
        }
    }

    fn step_copied(&mut self, chunk: usize) -> Chunk {
        let bytes = self.copied[chunk].clone();
        assert!(!bytes.is_empty(), "what was forgotten is not sent again");
        let last = chunk + 1 == self.copied.len();
        self.next.at = if last { At::Revisions(Revision::default()) } else { At::Copied(chunk + 1) };
        self.next.totals.system = if last { self.system } else { 0 };
        self.finish_chunk(bytes)
    }

    fn finish_chunk(&mut self, bytes: Bytes) -> Chunk {
        assert!(bytes.len() <= SNAPSHOT_CHUNK_BYTES, "chunks are bounded");
        let number = self.position.number;
        let checksum = crc32c::crc32c_append(self.position.checksum, &bytes);
        (self.next.number, self.next.checksum) = (number + 1, checksum);
        self.position = self.next.clone();
        let is_last = self.position.at == At::Done;
        Chunk { number, checksum, bytes, is_last }
    }

    /// Adds revisions up to the snapshot's to the chunk.
    fn add_revisions(&mut self, view: &View<'_>, from: Revision) -> Paged<Added> {
        let mut events = view.events(from);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        loop {
            let found = events.head()?.filter(|(_, head)| head.version.modified.main <= self.facts.revision);
            let Some((cell, head)) = found else {
                self.next.at = At::Current(Vec::new());
                return Ok(Added::Section);
            };
            let revision = head.version.modified;
            if self.long.is_none() || At::Revisions(revision) != self.next.at {
                value.clear();
                let body = match cell.value_extent {
                    Some(extent) => {
                        view.pages.read_extent(extent, 0, &mut value)?;
                        value.as_slice()
                    }
                    None => head.rest,
                };
                let (beside, body) = body.split_at_checked(head.key_in_body()).expect(SOUND);
                key.clear();
                key.extend_from_slice(head.key.unwrap_or(beside));
                self.scratch.clear();
                Item::of_record(&head, &key, body).encode(&mut self.scratch);
            }
            let behind = Revision { main: revision.main, sub: revision.sub + 1 };
            if self.add_item(At::Revisions(revision), At::Revisions(behind)) {
                return Ok(Added::Full);
            }
            events.pass();
        }
    }

    /// Adds keys to the chunk, with their newest versions at the snapshot's revision.
    fn add_keys(&mut self, view: &View<'_>, from: &[u8]) -> Paged<Added> {
        let mut walk = Walk::start(view.pages, &view.root.current, from, false)?;
        let mut key = Vec::new();
        let mut passed_by = 0;
        while let Some((page, cell)) = walk.entry()? {
            whole_key(view.pages, page, &cell, &mut key)?;
            let newest = Newest::decode_version(cell.value);
            let version = view.walk_back(newest, self.facts.revision)?;
            // The first key behind this one.
            let mut behind = key.clone();
            behind.push(0);
            match version {
                Some(version) => {
                    self.scratch.clear();
                    Item::Current { version, key: &key }.encode(&mut self.scratch);
                    if self.add_item(At::Current(key.clone()), At::Current(behind)) {
                        return Ok(Added::Full);
                    }
                }
                None => {
                    self.next.at = At::Current(behind);
                    passed_by += 1;
                    if passed_by == PASSED_BY_MAX {
                        return Ok(Added::Paused);
                    }
                }
            }
            walk.pass();
        }
        self.next.at = At::End;
        Ok(Added::Section)
    }

    fn add_end(&mut self) -> Added {
        self.scratch.clear();
        Item::End(self.next.totals).encode(&mut self.scratch);
        if self.add_item(At::End, At::Done) { Added::Full } else { Added::Section }
    }

    /// Adds the item in `scratch`, which is at `here`, to the chunk. True if the chunk is full; the item may then be left
    /// for the next one, or a part of it.
    fn add_item(&mut self, here: At, behind: At) -> bool {
        let long = self.long.take().or_else(|| {
            let is_long = self.scratch.len() > SNAPSHOT_CHUNK_BYTES;
            is_long.then(|| std::mem::take(&mut self.scratch))
        });
        let Some(long) = long else {
            if self.building.len() + self.scratch.len() > SNAPSHOT_CHUNK_BYTES {
                self.next.at = here;
                return true;
            }
            self.building.extend_from_slice(&self.scratch);
            self.pass(behind);
            return false;
        };
        self.next.at = here;
        if !self.building.is_empty() {
            self.long = Some(long);
            return true;
        }
        let part = &long[self.next.skip..];
        let part = &part[..part.len().min(SNAPSHOT_CHUNK_BYTES)];
        self.building.extend_from_slice(part);
        self.next.skip += part.len();
        if self.next.skip == long.len() {
            self.next.skip = 0;
            self.pass(behind);
        } else {
            self.long = Some(long);
        }
        true
    }

    /// The item before `behind` is in the chunk.
    fn pass(&mut self, behind: At) {
        match behind {
            At::Revisions(_) => self.next.totals.revisions += 1,
            At::Current(_) => self.next.totals.current += 1,
            _ => (),
        }
        self.next.at = behind;
    }
}

const _: () = assert!(SNAPSHOT_CHUNK_BYTES <= 1 << 20);
