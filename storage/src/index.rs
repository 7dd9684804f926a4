//! The writer.

mod staging;

use crate::arena::Arena;
use crate::canary::{self, Canary};
use crate::checkpoint::{Checkpoint, Outcome};
use crate::codec::{to_u32, to_u64, to_usize};
use crate::edit::Edit;
use crate::entry::{Newest, RecordHead, revision_key};
use crate::file::PageFile;
use crate::io::*;
use crate::limits;
use crate::map::{PAGE_SIZE, PageBytes};
use crate::meta::{self, Meta};
use crate::page::Kind;
use crate::pages::{Pages, offset_of};
use crate::pins::{Pins, Root};
use crate::space::{META_SLOTS, Space};
use crate::store::{Shared, Store};
use crate::tree::{self, Counted, Path};
use crate::types::*;
use crate::view::{Reader, View};
use bytes::Bytes;
use staging::Staging;
use std::sync::Arc;

/// The writer of one index file. There is one, on the home core.
///
/// Changes are prefetched, made, and published in batches. They are in memory then; a checkpoint takes them to the
/// file. The shell polls for effects after `start_checkpoint` and reports each outcome.
#[derive(Debug)]
pub struct Index {
    config: IndexConfig,
    store: Store,
    /// The working state.
    work: Root,
    published: Root,
    /// The newest revision written since the index was opened; what is older lies below `work.revision` or at it.
    newest: Revision,
    /// Whether the working state has changed since it was published.
    touched: bool,
    generation: u64,
    /// Slots of the meta page that a crash has torn, or rot has hit, and that were not written since.
    bad_slots: [bool; META_SLOTS as usize],
    file_bytes: u64,
    synced: bool,
    checkpoint: Option<Checkpoint>,
    /// A checkpoint asked for while the working state had unpublished changes.
    requested: Option<(Bytes, Bytes)>,
    done: Option<CheckpointDone>,
    full: bool,
    failed: Option<IndexFailure>,
    next_io: u64,
    scratch: Vec<u8>,
    /// Trees that are being built from a snapshot.
    staging: Option<Staging>,
    /// The root of such trees, while the checkpoint is written that puts it in the place of the index's.
    installing: Option<Root>,
}

impl Index {
    /// A fresh index in an empty file. The first checkpoint formats the file: until it is durable there is nothing to
    /// open.
    pub fn create(config: IndexConfig, file: Arc<dyn PageFile>) -> Index {
        Index::assemble(config, file, Space::new(), Root::empty(), 0, 0, 0)
    }

    /// Opens the newest whole checkpoint. Reads the meta slots and the free map, some 16 pages for each GiB of the file;
    /// blocks.
    ///
    /// A process that died may have left a checkpoint in the kernel's cache. The caller makes the file durable before
    /// it opens it, so that what the log forgets on the strength of this checkpoint is not needed again. The index
    /// itself overwrites nothing that an older checkpoint needs before it has synced.
    pub fn open(config: IndexConfig, file: Arc<dyn PageFile>) -> Result<(Index, OpenFacts), OpenError> {
        let (meta, bad_slots) = read_meta(&*file)?;
        if (meta.cluster_id, meta.member_id) != (config.cluster_id, config.member_id) {
            return Err(OpenError::Identity { cluster_id: meta.cluster_id, member_id: meta.member_id });
        }
        let needed = offset_of(meta.page_end);
        if file.len_bytes() < needed {
            return Err(OpenError::Truncated { found: file.len_bytes(), expected: needed });
        }
        let seed = meta::checksum_seed(meta.cluster_id, meta.member_id);
        let space = Space::open(meta.page_end, &meta.spans, |id, kind| read_fixed(&*file, seed, id, kind))
            .map_err(|source| OpenError::FreeMap { source })?;
        let facts = OpenFacts {
            format_version: meta::FORMAT_VERSION,
            cluster_id: meta.cluster_id,
            member_id: meta.member_id,
            applied: meta.root.applied,
            revision: meta.root.revision,
            compacted: meta.root.compacted,
            anchor: meta.anchor.clone(),
            conf: meta.conf.clone(),
        };
        let file_bytes = meta.file_bytes.min(file.len_bytes());
        let durable = meta.root.sequence;
        let mut index = Index::assemble(config, file, space, meta.root, durable, meta.generation, file_bytes);
        index.bad_slots = bad_slots;
        #[cfg(feature = "canaries")]
        let (index, facts) = index.with_revision_from_records(facts);
        Ok((index, facts))
    }

    /// The bug of [`Canary::RevisionFromRecords`], if it is planted.
    #[cfg(feature = "canaries")]
    fn with_revision_from_records(mut self, facts: OpenFacts) -> (Index, OpenFacts) {
        if !canary::is_on(Canary::RevisionFromRecords) {
            return (self, facts);
        }
        let newest = self.settle(|index| {
            let (mut events, mut newest) = (index.view().events(Revision::default()), 1);
            while let Some(record) = events.next()? {
                newest = record.revision.main;
            }
            Ok(newest)
        });
        let revision = newest.expect("pages can be read");
        self.work.revision = revision;
        self.published.revision = revision;
        self.newest = Revision { main: revision, sub: i64::MAX };
        self.store.shared.pins.publish(&self.published);
        (self, OpenFacts { revision, ..facts })
    }

    fn assemble(
        config: IndexConfig,
        file: Arc<dyn PageFile>,
        space: Space,
        root: Root,
        durable: u64,
        generation: u64,
        file_bytes: u64,
    ) -> Index {
        let page_count = to_u32(file.map().page_count().min(to_usize(u32::MAX)));
        let frames = limits::ARENA_FACTOR * config.dirty_bytes_max / to_u64(PAGE_SIZE);
        let frames = u32::try_from(frames).expect("the arena has fewer than 2^32 frames");
        let arena = Arena::new(page_count, frames).expect("addresses for the arena can be reserved");
        let seed = meta::checksum_seed(config.cluster_id, config.member_id);
        let pages = Pages { file, arena, seed };
        let shared = Arc::new(Shared { pages, pins: Pins::new(&root) });
        Index {
            config,
            store: Store::new(shared, space, root.sequence, durable),
            work: Root { sequence: root.sequence + 1, ..root },
            published: root,
            newest: Revision { main: root.revision, sub: i64::MAX },
            touched: false,
            generation,
            bad_slots: [false; META_SLOTS as usize],
            file_bytes,
            synced: false,
            checkpoint: None,
            requested: None,
            done: None,
            full: false,
            failed: None,
            next_io: 0,
            scratch: Vec::new(),
            staging: None,
            installing: None,
        }
    }

    /// The working state, including what is not published yet.
    pub fn view(&self) -> View<'_> {
        View { pages: self.store.pages(), root: &self.work }
    }

    /// A handle that pins published roots.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.store.shared))
    }

    /// Whether everything that a put or delete of `key` will touch is resident.
    pub fn prefetch(&self, key: &[u8]) -> Paged<()> {
        tree::seek(self.store.pages(), &self.work.current, key)?;
        tree::seek_end(self.store.pages(), &self.work.revisions)?;
        Ok(())
    }

    /// Whether everything that a change of an entry of *system* will touch is resident.
    pub fn system_prefetch(&self, key: &[u8]) -> Paged<()> {
        tree::seek(self.store.pages(), &self.work.system, key)?;
        Ok(())
    }

    /// Repeats a walk with synchronous reads until it has all that it needs. After a prefetch it reads nothing.
    fn settle<T>(&self, walk: impl Fn(&Index) -> Paged<T>) -> Paged<T> {
        loop {
            match walk(self) {
                Ok(found) => return Ok(found),
                Err(need) => self.store.pages().load(need.0).map_err(|_| need)?,
            }
        }
    }

    /// Writes a version of `key` at `revision`, which is above every revision used so far.
    pub fn put(&mut self, revision: Revision, key: &[u8], value: &[u8], lease: i64) -> Paged<PutOutcome> {
        assert!(value.len() <= limits::VALUE_BYTES_MAX, "the caller bounds values");
        let (place, newest) = self.newest_for_change(key)?;
        let live = newest.map(|newest| newest.version).filter(|version| !version.deleted);
        let current = Version {
            modified: revision,
            create_revision: live.map_or(revision.main, |version| version.create_revision),
            version: live.map_or(0, |version| version.version) + 1,
            lease,
            deleted: false,
            value_len: to_u32(value.len()),
        };
        self.append(place, newest, current, key, value);
        Ok(PutOutcome { previous: live, current })
    }

    /// Writes a tombstone of `key` at `revision` if the key is live; gives the version that was.
    pub fn delete(&mut self, revision: Revision, key: &[u8]) -> Paged<Option<Version>> {
        let (place, newest) = self.newest_for_change(key)?;
        let Some(live) = newest.map(|newest| newest.version).filter(|version| !version.deleted) else {
            return Ok(None);
        };
        let tombstone =
            Version { modified: revision, create_revision: 0, version: 0, lease: 0, deleted: true, value_len: 0 };
        self.append(place, newest, tombstone, key, &[]);
        Ok(Some(live))
    }

    /// The newest version of a key and its position in *current*, with all resident that a new version touches.
    fn newest_for_change(&self, key: &[u8]) -> Paged<(Path, Option<Newest>)> {
        self.settle(|index| tree::seek_end(index.store.pages(), &index.work.revisions))?;
        self.settle(|index| {
            let path = tree::seek(index.store.pages(), &index.work.current, key)?;
            let cell = tree::cell_at(index.store.pages(), &path)?;
            Ok((path, cell.map(|cell| Newest::decode(cell.value))))
        })
    }

    /// Adds a version to both trees.
    fn append(&mut self, place: Path, newest: Option<Newest>, version: Version, key: &[u8], value: &[u8]) {
        let (entry, jump) = match &newest {
            Some(newest) => newest.followed_by(version),
            None => (Newest::first(version), None),
        };
        let previous = newest.map(|newest| newest.version.modified);
        assert!(self.newest < version.modified, "revisions rise");
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let beside = RecordHead::encode(&version, previous, jump, key, &mut scratch);
        let body: &[&[u8]] = if beside { &[value] } else { &[key, value] };
        let end = tree::seek_end(self.store.pages(), &self.work.revisions);
        let end = end.expect("the newest page of revisions was made resident");
        self.edit(TreeName::Revisions).upsert(end, &revision_key(version.modified), &scratch, body);
        scratch.clear();
        entry.encode(&mut scratch);
        self.edit(TreeName::Current).upsert(place, key, &scratch, &[]);
        self.scratch = scratch;
        self.work.revision = version.modified.main;
        self.newest = version.modified;
        self.touched = true;
    }

    /// Takes over a revision from another member as it is, in the order of revisions: what a learner is filled with.
    /// Its pointer to the key's previous revision is made anew.
    pub fn import(&mut self, record: &Record) -> Paged<()> {
        let (place, newest) = self.newest_for_change(&record.key)?;
        self.append(place, newest, record.version(), &record.key, &record.value);
        Ok(())
    }

    fn edit(&mut self, name: TreeName) -> Edit<'_> {
        let (tree, counted) = match name {
            TreeName::Revisions => (&mut self.work.revisions, Counted::All),
            TreeName::Current => (&mut self.work.current, Counted::Live),
            TreeName::System => (&mut self.work.system, Counted::All),
        };
        Edit { store: &mut self.store, tree, counted }
    }

    /// Writes an entry of the system tree.
    pub fn system_put(&mut self, key: &[u8], value: &[u8]) -> Paged<()> {
        assert!(value.len() <= limits::VALUE_BYTES_MAX, "the caller bounds values");
        let path = self.settle(|index| tree::seek(index.store.pages(), &index.work.system, key))?;
        self.touched = true;
        self.edit(TreeName::System).upsert(path, key, &[], &[value]);
        Ok(())
    }

    /// Removes an entry of the system tree; false when there was none.
    pub fn system_delete(&mut self, key: &[u8]) -> Paged<bool> {
        let path = self.settle(|index| tree::seek(index.store.pages(), &index.work.system, key))?;
        if path.exact {
            self.touched = true;
            self.edit(TreeName::System).remove(path);
        }
        Ok(path.exact)
    }

    /// Moves the logical compaction floor up; the physical work follows in steps.
    pub fn set_compacted(&mut self, revision: i64) {
        assert!(revision >= self.work.compacted, "the floor never falls");
        self.work.compacted = revision;
        self.touched = true;
    }

    /// Publishes the working state as one new root, visible to all readers.
    pub fn publish(&mut self, applied: Applied, revision: i64) {
        assert!(self.installing.is_none(), "nothing is published while the index is replaced");
        assert!(revision >= self.work.revision, "the revision never falls");
        assert!(applied >= self.work.applied, "what is applied never falls");
        self.work.applied = applied;
        self.work.revision = revision;
        self.store.publish(&self.work);
        self.published = self.work;
        self.work.sequence += 1;
        self.touched = false;
        if let Some((anchor, conf)) = self.requested.take() {
            self.begin_checkpoint(anchor, conf);
        }
    }

    /// Whether physical compaction has work left.
    pub fn compaction_pending(&self) -> bool {
        self.work.finished < self.work.compacted
    }

    /// Compacts at most `budget` revisions. After [`NeedPage`] it goes on from where it stood. If nothing else waits
    /// to be published, the step publishes itself. While writes must wait for a checkpoint it does nothing.
    pub fn compaction_step(&mut self, budget: usize) -> Paged<CompactionProgress> {
        let alone = !self.touched && self.installing.is_none();
        let progress = self.compact(budget);
        if alone && self.touched {
            self.publish(self.work.applied, self.work.revision);
        }
        progress
    }

    fn compact(&mut self, budget: usize) -> Paged<CompactionProgress> {
        let target = self.work.compacted;
        let mut key = Vec::new();
        for _ in 0..budget.max(1) {
            if self.work.finished >= target || self.must_wait() || self.installing.is_some() {
                break;
            }
            let mut events = self.view().events(self.work.scanned_to);
            let found = events.head()?.filter(|(_, head)| head.version.modified.main <= target);
            let Some((cell, head)) = found else {
                self.work.finished = target;
                // A tombstone at the floor itself stays for watches; the next compaction looks at it again.
                self.work.scanned_to = Revision { main: target.max(0), sub: 0 };
                self.touched = true;
                break;
            };
            let revision = head.version.modified;
            let previous = head.previous;
            let below_floor = revision.main < target
                || canary::is_on(Canary::FloorTombstoneLost)
                || canary::is_on(Canary::RevisionFromRecords);
            let last_trace = head.version.deleted && below_floor;
            if last_trace {
                self.view().record_key(&cell, &head, &mut key)?;
            }
            if let Some(previous) = previous {
                self.remove_revision(previous)?;
            }
            if last_trace {
                self.remove_last_trace(revision, &key)?;
            }
            self.work.scanned_to = Revision { main: revision.main, sub: revision.sub + 1 };
            self.touched = true;
        }
        Ok(if self.work.finished >= target {
            CompactionProgress::Finished(target)
        } else {
            CompactionProgress::Running { scanned_to: self.work.scanned_to.main, target }
        })
    }

    fn remove_revision(&mut self, revision: Revision) -> Paged<()> {
        let path = tree::seek(self.store.pages(), &self.work.revisions, &revision_key(revision))?;
        if path.exact {
            Edit::prefetch_removal(&self.store, &path)?;
            self.touched = true;
            self.edit(TreeName::Revisions).remove(path);
        }
        Ok(())
    }

    /// Removes a tombstone, and the key if nothing came after it.
    fn remove_last_trace(&mut self, revision: Revision, key: &[u8]) -> Paged<()> {
        let path = tree::seek(self.store.pages(), &self.work.current, key)?;
        if path.exact && self.view().newest(key)?.is_some_and(|newest| newest.modified == revision) {
            Edit::prefetch_removal(&self.store, &path)?;
            self.touched = true;
            self.edit(TreeName::Current).remove(path);
        }
        self.remove_revision(revision)
    }

    /// Bytes of changed pages held in memory.
    pub fn dirty_bytes(&self) -> u64 {
        offset_of(self.store.frames_used())
    }

    /// Whether a checkpoint should start.
    pub fn wants_checkpoint(&self) -> bool {
        let waiting = offset_of(self.store.dirty.len());
        let idle = self.checkpoint.is_none() && self.requested.is_none();
        idle && (waiting >= self.config.checkpoint_bytes || (self.must_wait() && waiting > 0))
    }

    /// Whether new writes must wait for a checkpoint.
    pub fn must_wait(&self) -> bool {
        self.dirty_bytes() >= self.config.dirty_bytes_max
    }

    /// Whether the file can still grow. While it cannot, the caller refuses what makes it grow; deletes and compaction
    /// go on in what is allocated.
    pub fn space(&self) -> SpaceState {
        let span = self.store.pages().span_bytes();
        let beyond = limits::RESERVED_BYTES + self.config.dirty_bytes_max;
        let at_end = offset_of(self.store.space.page_end()) + beyond > span;
        if self.full || at_end { SpaceState::Full } else { SpaceState::Enough }
    }

    /// Pins the published root for a checkpoint, which carries the log's anchor and the membership. If a checkpoint is
    /// under way, nothing happens; if changes are unpublished, it starts when they are published.
    pub fn start_checkpoint(&mut self, anchor: &[u8], conf: &[u8]) {
        assert!(anchor.len() <= limits::ANCHOR_BYTES_MAX, "an anchor fits the meta page");
        assert!(conf.len() <= limits::CONF_BYTES_MAX, "a membership fits the meta page");
        if self.checkpoint.is_some() || self.installing.is_some() {
            return;
        }
        let (anchor, conf) = (Bytes::copy_from_slice(anchor), Bytes::copy_from_slice(conf));
        if self.touched {
            self.requested = Some((anchor, conf));
        } else {
            self.begin_checkpoint(anchor, conf);
        }
    }

    fn begin_checkpoint(&mut self, anchor: Bytes, conf: Bytes) {
        let root = match self.installing {
            Some(root) => root,
            None => {
                self.seal_staged();
                self.published
            }
        };
        let sequence = root.sequence;
        let images = self.store.space.images(sequence);
        let saved_before = self.store.saved_to;
        let pages = self.store.begin_checkpoint();
        self.store.space.begin();
        let meta = Meta {
            generation: self.generation + 1,
            cluster_id: self.config.cluster_id,
            member_id: self.config.member_id,
            root,
            page_end: images.page_end,
            file_bytes: self.file_bytes,
            spans: images.spans.clone(),
            anchor,
            conf,
        };
        // A copy that is torn already goes first: should this one be torn, too, the pair has still one that is whole.
        let is_bad = |copy| self.bad_slots[to_usize(meta::slot_of(meta.generation, copy))];
        let first_copy = u32::from(is_bad(1) && !is_bad(0));
        let checkpoint = Checkpoint::new(meta, images, pages, saved_before, !self.synced, first_copy, &self.store);
        self.checkpoint = Some(checkpoint);
    }

    /// The next effect, if one may start now.
    pub fn poll_io(&mut self) -> Option<IndexIo> {
        if self.failed.is_some() {
            return None;
        }
        if self.must_wait() {
            self.store.reclaim();
        }
        self.checkpoint.as_mut()?.poll(&self.store, &mut self.next_io)
    }

    /// Takes the outcome of an effect. Any failure but a full disk on `Grow` poisons the index: it hands out no more
    /// effects, and the process stops.
    pub fn handle_io(&mut self, id: IoId, result: Result<(), IoFailure>) -> Result<(), IndexFailure> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let checkpoint = self.checkpoint.as_mut().expect("effects belong to the checkpoint under way");
        let outcome =
            checkpoint.handle(&mut self.store, id, result).inspect_err(|failure| self.failed = Some(*failure))?;
        // Writers need not wait for the rest of the checkpoint once there is room again.
        self.full &= !checkpoint.has_room();
        if outcome != Outcome::GoesOn {
            let checkpoint = self.checkpoint.take().expect("the outcome is the checkpoint's");
            self.end_checkpoint(&checkpoint, outcome);
        }
        Ok(())
    }

    fn end_checkpoint(&mut self, checkpoint: &Checkpoint, outcome: Outcome) {
        self.synced = true;
        self.full = checkpoint.refused;
        self.file_bytes = checkpoint.grown_to;
        if outcome == Outcome::Durable {
            self.generation = checkpoint.meta.generation;
            for copy in 0..2 {
                self.bad_slots[to_usize(meta::slot_of(self.generation, copy))] = false;
            }
            self.store.space.settle(&checkpoint.images);
            self.store.end_checkpoint(checkpoint.meta.root.sequence);
            self.done = Some(checkpoint.done());
            self.finish_install();
            return;
        }
        assert!(self.installing.is_none(), "an image that is installed was saved, so that the file holds it");
        self.store.space.undo(&checkpoint.images);
        self.store.give_up_checkpoint(&checkpoint.pages, checkpoint.saved_before);
    }

    /// A checkpoint that became durable: the log may forget what lies before its anchor.
    pub fn poll_checkpoint_done(&mut self) -> Option<CheckpointDone> {
        self.done.take()
    }

    /// How far the checkpoint under way is; `None` when there is none.
    pub fn checkpoint_progress(&self) -> Option<CheckpointProgress> {
        let checkpoint = self.checkpoint.as_ref()?;
        Some(CheckpointProgress { left_bytes: checkpoint.bytes_left(), total_bytes: checkpoint.bytes_total() })
    }

    /// The next pages from number `from` on, `max` at most, that the working state uses and the file holds, for
    /// [`Reader::scrub`]; and where to go on, `None` at the end. What is in memory alone is not among them.
    pub fn pages_in_file(&self, from: u32, max: usize) -> (Vec<u32>, Option<u32>) {
        let store = &self.store;
        let in_file = |page: &u32| {
            let in_memory = store.dirty.contains(*page) || store.unwritten.contains(*page);
            store.space.is_live(*page) && !Space::is_fixed(*page) && !in_memory
        };
        let pages: Vec<u32> = (from..store.space.page_end()).filter(in_file).take(max).collect();
        let next = pages.last().filter(|_| pages.len() == max).map(|last| last + 1);
        (pages, next)
    }

    /// How large the index is.
    pub fn size(&self) -> IndexSize {
        let grown = self.checkpoint.as_ref().map_or(self.file_bytes, |checkpoint| checkpoint.grown_to);
        let used = offset_of(self.store.space.page_end());
        let file_bytes = grown.max(used);
        IndexSize {
            file_bytes,
            in_use_bytes: offset_of(self.store.space.live_count()),
            free_bytes: offset_of(self.store.space.free_count()) + file_bytes - used,
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn working_root(&self) -> &Root {
        &self.work
    }
}

#[derive(Clone, Copy)]
enum TreeName {
    Revisions,
    Current,
    System,
}

/// Reads the meta slots and chooses the generation to open; says which slots hold nothing that can be trusted.
fn read_meta(file: &dyn PageFile) -> Result<(Meta, [bool; META_SLOTS as usize]), OpenError> {
    let needed = offset_of(META_SLOTS);
    if file.len_bytes() < needed {
        return Err(OpenError::NoMeta("the file is shorter than the meta slots"));
    }
    let mut slots = std::array::from_fn(|_| meta::Slot::Bad);
    for (slot, number) in slots.iter_mut().zip(0..META_SLOTS) {
        let mut page: PageBytes = [0; PAGE_SIZE];
        if file.read(offset_of(number), &mut page).is_ok() {
            *slot = Meta::decode(&page, number);
        }
    }
    let bad_slots = std::array::from_fn(|slot| slots[slot] == meta::Slot::Bad);
    Ok((meta::choose(slots)?, bad_slots))
}

/// Reads a page of the free map.
fn read_fixed(file: &dyn PageFile, seed: u32, id: PageId, kind: Kind) -> Result<Box<PageBytes>, PageError> {
    let offset = offset_of(id.number);
    let mut page = Box::new([0; PAGE_SIZE]);
    file.read(offset, page.as_mut_slice()).map_err(|source| PageError::Unreadable { page: id, offset, source })?;
    let damaged = |reason| PageError::Damaged { page: id, offset, reason };
    crate::page::verify(&page, id, seed).map_err(damaged)?;
    if !crate::page::is_kind(&page, kind) {
        return Err(damaged("it is of another kind"));
    }
    Ok(page)
}
