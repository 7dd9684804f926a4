//! Trees that are built from a snapshot beside the index, and put in its place.
//!
//! No root reaches them while they are built, and the free map of every checkpoint calls their pages free: a crash
//! leaves nothing of them. Their changed pages go to the file with the checkpoints of the index, so that memory stays
//! bounded. To install them is one checkpoint: it writes a free map in which nothing else is in use, and its meta page
//! leads to them. Readers see the old index until that is durable.

use super::Index;
use crate::edit::Edit;
use crate::entry::{Newest, RecordHead, revision_key};
use crate::io::OpenFacts;
use crate::pages::offset_of;
use crate::pins::{Root, TreeRoot};
use crate::snapshot::{ImportError, Item, Parser, SnapshotFacts, Totals};
use crate::tree::{self, Counted};
use crate::types::{Revision, SpaceState};
use bytes::Bytes;

/// The trees of a snapshot so far.
#[derive(Debug, Default)]
pub(super) struct Staging {
    parser: Parser,
    facts: Option<SnapshotFacts>,
    system: TreeRoot,
    revisions: TreeRoot,
    current: TreeRoot,
    totals: Totals,
    /// The newest key of *system*, or, once a key came, of *current*.
    last_key: Vec<u8>,
    last_revision: Option<Revision>,
    /// Which kind of item came last.
    section: Section,
    /// The first root from whose checkpoint on everything is in the file; set at the end.
    complete: Option<u64>,
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Section {
    #[default]
    Nothing,
    System,
    Revisions,
    Current,
    End,
}

impl Index {
    /// Begins to build trees from a snapshot. One that was being built is given up.
    pub fn begin_import(&mut self) {
        self.drop_import();
        self.staging = Some(Staging::default());
    }

    /// Gives up what is being built from a snapshot. Its space is free again.
    pub fn drop_import(&mut self) {
        assert!(self.installing.is_none(), "what is being installed is not given up");
        if self.staging.take().is_some() {
            self.store.drop_staged();
        }
    }

    /// Whether the next chunk may be imported now: some of the memory for changed pages is left to the index itself.
    /// When it may not, a checkpoint makes room.
    pub fn can_import(&self) -> bool {
        let bound = self.config.checkpoint_bytes.midpoint(self.config.dirty_bytes_max);
        self.staging.is_some() && self.dirty_bytes() < bound && self.space() == SpaceState::Enough
    }

    /// Takes the next chunk of a snapshot's stream.
    ///
    /// # Errors
    /// When the stream is wrong. The import is then given up.
    pub fn import_chunk(&mut self, chunk: &[u8]) -> Result<(), ImportError> {
        let Some(mut staging) = self.staging.take() else { return Err(ImportError::Unexpected) };
        let mut parser = std::mem::take(&mut staging.parser);
        self.store.set_staging(true);
        let result = parser.feed(chunk, |item| self.import_item(&mut staging, &item));
        self.store.set_staging(false);
        let left_over = staging.section == Section::End && !parser.is_empty();
        staging.parser = parser;
        self.staging = Some(staging);
        let result = if left_over { result.and(Err(ImportError::Order("behind the end"))) } else { result };
        result.inspect_err(|_| self.drop_import())
    }

    fn import_item(&mut self, staging: &mut Staging, item: &Item<'_>) -> Result<(), ImportError> {
        let section = match item {
            Item::Facts(_) => Section::Nothing,
            Item::System { .. } => Section::System,
            Item::Revision { .. } => Section::Revisions,
            Item::Current { .. } => Section::Current,
            Item::End(_) => Section::End,
        };
        if section < staging.section || staging.section == Section::End {
            return Err(ImportError::Order("of another tree"));
        }
        if staging.facts.is_some() == matches!(item, Item::Facts(_)) {
            return Err(ImportError::NoSnapshot);
        }
        if section != staging.section {
            staging.last_key.clear();
        }
        let is_first = section != staging.section;
        staging.section = section;
        let last_revision = staging.facts.map_or(0, |facts| facts.revision);
        match *item {
            Item::Facts(facts) if facts.cluster_id != self.config.cluster_id => {
                return Err(ImportError::Cluster(facts.cluster_id));
            }
            Item::Facts(facts) => staging.facts = Some(facts),
            Item::System { key, value } => {
                staging.take_key(key, is_first)?;
                staging.totals.system += 1;
                self.build(&mut staging.system, Counted::All, key, &[], &[value]);
            }
            Item::Revision { version, previous, jump, key, value } => {
                let revision = version.modified;
                if staging.last_revision.is_some_and(|last| last >= revision) || revision.main > last_revision {
                    return Err(ImportError::Order("of revisions"));
                }
                staging.last_revision = Some(revision);
                staging.totals.revisions += 1;
                let mut head = std::mem::take(&mut staging.scratch);
                head.clear();
                let beside = RecordHead::encode(&version, previous, jump, key, &mut head);
                let body: &[&[u8]] = if beside { &[value] } else { &[key, value] };
                self.build(&mut staging.revisions, Counted::All, &revision_key(revision), &head, body);
                staging.scratch = head;
            }
            Item::Current { version, key } => {
                if version.modified.main > last_revision {
                    return Err(ImportError::Order("of a key's revision"));
                }
                staging.take_key(key, is_first)?;
                staging.totals.current += 1;
                let mut entry = std::mem::take(&mut staging.scratch);
                entry.clear();
                // How its versions are chained begins anew: the chain behind it is found by the records' own pointers.
                Newest::first(version).encode(&mut entry);
                self.build(&mut staging.current, Counted::Live, key, &entry, &[]);
                staging.scratch = entry;
            }
            Item::End(totals) if totals != staging.totals => return Err(ImportError::Incomplete),
            Item::End(_) => staging.complete = Some(self.store.sequence),
        }
        Ok(())
    }

    /// Adds an entry behind the last one of a tree that is being built.
    fn build(&mut self, tree: &mut TreeRoot, counted: Counted, key: &[u8], head: &[u8], body: &[&[u8]]) {
        let end =
            tree::seek_end(self.store.pages(), tree).expect("this process wrote the pages of what is being built");
        Edit { store: &mut self.store, tree, counted }.upsert(end, key, head, body);
    }

    /// What the snapshot is of that is being built, once its first chunk is taken.
    pub fn import_facts(&self) -> Option<SnapshotFacts> {
        self.staging.as_ref()?.facts
    }

    /// Whether all of a snapshot is built.
    pub fn is_import_complete(&self) -> bool {
        self.staging.as_ref().is_some_and(|staging| staging.complete.is_some())
    }

    /// Whether all of a snapshot is built and durable in the file, so that installing it can't fail for want of space.
    pub fn is_import_saved(&self) -> bool {
        let complete = self.staging.as_ref().and_then(|staging| staging.complete);
        complete.is_some_and(|complete| self.store.durable() >= complete)
    }

    /// Bytes of the pages of what is being built.
    pub fn import_bytes(&self) -> u64 {
        offset_of(self.store.staged_count())
    }

    /// Whether a snapshot is being put in the index's place.
    pub fn is_installing(&self) -> bool {
        self.installing.is_some()
    }

    /// What was built takes the index's place, with one checkpoint that carries the log's anchor and the membership; it
    /// is a checkpoint like others to the shell. When it is durable, readers see the new state, and
    /// [`CheckpointDone::installed`](crate::CheckpointDone::installed) says so. Until then the index must not be changed,
    /// and what was changed and not published is lost.
    ///
    /// # Panics
    /// When what was built is not saved, or while a checkpoint is under way.
    pub fn start_install(&mut self, anchor: &[u8], conf: &[u8]) {
        assert!(self.is_import_saved(), "what is installed is in the file");
        assert!(self.checkpoint.is_none() && self.installing.is_none(), "one checkpoint at a time");
        let staging = self.staging.take().expect("just seen");
        let facts = staging.facts.expect("a complete stream has facts");
        self.requested = None;
        let root = Root {
            sequence: self.work.sequence,
            applied: facts.applied,
            revision: facts.revision,
            compacted: facts.compacted,
            finished: facts.finished,
            scanned_to: facts.scanned_to,
            revisions: staging.revisions,
            current: staging.current,
            system: staging.system,
        };
        assert!(root.sequence == self.store.sequence, "the working state and its pages count alike");
        self.store.replace_live();
        self.work.sequence += 1;
        self.installing = Some(root);
        self.begin_checkpoint(Bytes::copy_from_slice(anchor), Bytes::copy_from_slice(conf));
    }

    /// The checkpoint that ended was an installation: readers see it.
    pub(super) fn finish_install(&mut self) {
        let Some(root) = self.installing.take() else { return };
        self.store.publish_replaced(&root);
        self.published = root;
        self.work = Root { sequence: root.sequence + 1, ..root };
        self.newest = Revision { main: root.revision, sub: i64::MAX };
        self.touched = false;
        if let Some(done) = &mut self.done {
            done.installed = true;
        }
    }

    /// A checkpoint is about to write the pages of what is being built: later changes copy them.
    pub(super) fn seal_staged(&mut self) {
        if self.staging.is_none() || self.touched {
            return;
        }
        self.store.publish(&self.work);
        self.published = self.work;
        self.work.sequence += 1;
    }

    /// What an opened index says of itself, as of now; the anchor and the membership are left out.
    pub fn facts(&self) -> OpenFacts {
        let Root { applied, revision, compacted, .. } = self.published;
        OpenFacts {
            format_version: crate::meta::FORMAT_VERSION,
            cluster_id: self.config.cluster_id,
            member_id: self.config.member_id,
            applied,
            revision,
            compacted,
            ..OpenFacts::default()
        }
    }
}

impl Staging {
    fn take_key(&mut self, key: &[u8], is_first: bool) -> Result<(), ImportError> {
        if !is_first && key <= self.last_key.as_slice() {
            return Err(ImportError::Order("of keys"));
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        Ok(())
    }
}
