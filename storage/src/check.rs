//! The invariants of the whole index, checked by walking everything. Tests and offline inspection use it.

use crate::entry::{Newest, RecordHead, revision_key};
use crate::index::Index;
use crate::io::PageError;
use crate::page::{self, Extent, Kind};
use crate::pages::{Pages, extent_pages};
use crate::pins::TreeRoot;
use crate::space::Space;
use crate::store::PageSet;
use crate::tree::{self, Counted};
use crate::types::{Bounds, PageId, Paged, Revision};
use thiserror::Error;

/// An invariant that does not hold.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CheckError {
    /// A page cannot be trusted.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The structure is wrong.
    #[error("{tree}: {what} (page {page})")]
    Structure {
        /// Which tree.
        tree: &'static str,
        /// What does not hold.
        what: &'static str,
        /// Where.
        page: u32,
    },
}

/// Keys that a subtree may hold: from the first on, up to, without, the second.
type KeyBounds = (Vec<u8>, Option<Vec<u8>>);

struct Checker<'a> {
    pages: &'a Pages,
    reached: PageSet,
    newest: u64,
    tree: &'static str,
    counted: Counted,
}

impl Index {
    /// Walks the whole working state, reading what is not resident: every page is reached once, every key is in order
    /// and inside its separators, every count is right, every entry of *current* has its revision, and the free map
    /// says the same. Blocks.
    pub fn check(&self) -> Result<(), CheckError> {
        let root = self.working_root();
        let store = self.store();
        let mut checker = Checker {
            pages: store.pages(),
            reached: PageSet::default(),
            newest: root.sequence,
            tree: "revisions",
            counted: Counted::All,
        };
        checker.check_tree(&root.revisions)?;
        (checker.tree, checker.counted) = ("current", Counted::Live);
        checker.check_tree(&root.current)?;
        (checker.tree, checker.counted) = ("system", Counted::All);
        checker.check_tree(&root.system)?;
        checker.tree = "free map";
        for number in 0..store.space.page_end() {
            let reached = checker.reached.contains(number) || Space::is_fixed(number);
            checker.demand(reached == store.space.is_live(number), "use and bitmap differ", number)?;
            let dirty = store.dirty.contains(number) || store.unwritten.contains(number);
            checker.demand(!dirty || store.space.is_busy(number), "a changed page is free", number)?;
        }
        checker.demand(store.space.is_consistent(), "the counts do not add up", 0)?;
        self.check_entries(&checker)
    }

    /// Every key's newest revision is there and says the same.
    fn check_entries(&self, checker: &Checker<'_>) -> Result<(), CheckError> {
        let view = self.view();
        let mut cursor = view.cursor(Bounds::ALL, i64::MAX);
        loop {
            let next =
                checker.settle(|| cursor.next().map(|next| next.map(|(key, version)| (key.to_vec(), version))))?;
            let Some((key, version)) = next else { return Ok(()) };
            let record = checker.settle(|| view.record(version.modified))?;
            let same = record.is_some_and(|record| record.key == key && record.version() == version);
            checker.demand(same, "a key's newest revision is missing or differs", 0)?;
        }
    }
}

impl Checker<'_> {
    fn demand(&self, holds: bool, what: &'static str, page: u32) -> Result<(), CheckError> {
        if holds { Ok(()) } else { Err(CheckError::Structure { tree: self.tree, what, page }) }
    }

    fn settle<T>(&self, mut walk: impl FnMut() -> Paged<T>) -> Result<T, CheckError> {
        loop {
            match walk() {
                Ok(found) => return Ok(found),
                Err(need) => self.pages.load(need.0)?,
            }
        }
    }

    fn reach(&mut self, id: PageId) -> Result<(), CheckError> {
        self.settle(|| self.pages.get(id).map(|_| ()))?;
        self.demand(!self.reached.contains(id.number), "a page is reached twice", id.number)?;
        self.demand(id.birth <= self.newest, "a page was born later than its root", id.number)?;
        self.reached.insert(id.number);
        Ok(())
    }

    fn check_tree(&mut self, root: &TreeRoot) -> Result<(), CheckError> {
        let Some(id) = root.id() else { return self.demand(root.count == 0, "an empty tree counts entries", 0) };
        let count = self.check_page(id, root.height - 1, (Vec::new(), None))?;
        self.demand(count == root.count, "the tree's count is wrong", id.number)
    }

    fn check_page(&mut self, id: PageId, level: u32, bounds: KeyBounds) -> Result<u64, CheckError> {
        self.reach(id)?;
        let page = *self.pages.get(id).expect("the page was just reached");
        let kind = if level > 0 { Kind::Branch } else { Kind::Leaf };
        self.demand(page::is_kind(&page, kind), "a page is of the wrong kind", id.number)?;
        self.demand(u32::from(page::level(&page)) == level, "a page is at the wrong level", id.number)?;
        self.demand(page::slot_count(&page) > 0, "a page is empty", id.number)?;
        self.demand(page::used(&page) <= page::CAPACITY, "a page uses more than it has", id.number)?;
        let first = usize::from(level > 0);
        let mut keys = vec![bounds.0.clone(); first];
        for slot in first..page::slot_count(&page) {
            keys.push(self.check_cell(&page, slot)?);
        }
        let inside = |key: &Vec<u8>| *key >= bounds.0 && bounds.1.as_ref().is_none_or(|end| key < end);
        self.demand(keys.iter().all(inside), "a key lies outside its separators", id.number)?;
        self.demand(keys[first..].is_sorted_by(|a, b| a < b), "keys are out of order", id.number)?;
        if level == 0 {
            return Ok(tree::page_weight(&page, self.counted));
        }
        let mut total = 0;
        for slot in 0..page::slot_count(&page) {
            let child = page::child(&page, slot);
            let end = keys.get(slot + 1).cloned().or_else(|| bounds.1.clone());
            let count = self.check_page(child.page, level - 1, (keys[slot].clone(), end))?;
            self.demand(count == child.count, "a subtree's count is wrong", id.number)?;
            total += count;
        }
        Ok(total)
    }

    /// Reaches a cell's extents; gives its whole key.
    fn check_cell(&mut self, page: &crate::map::PageBytes, slot: usize) -> Result<Vec<u8>, CheckError> {
        let cell = page::cell(page, slot);
        let mut key = page::prefix(page).to_vec();
        key.extend_from_slice(cell.suffix);
        for extent in [cell.key_extent, cell.value_extent].into_iter().flatten() {
            self.check_extent(extent)?;
        }
        if let Some(extent) = cell.key_extent {
            self.settle(|| self.pages.read_extent(extent, 0, &mut key))?;
        }
        if page::is_kind(page, Kind::Leaf) {
            match self.tree {
                "current" => {
                    let newest = Newest::decode(cell.value);
                    self.demand(newest.version == Newest::decode_version(cell.value), "an entry differs", 0)?;
                }
                "revisions" => {
                    let revision = crate::entry::revision_of_key(&key);
                    let head = RecordHead::decode(revision, cell.value);
                    let earlier = |other: Option<Revision>| other.is_none_or(|other| other < revision);
                    self.demand(earlier(head.previous) && earlier(head.jump), "a record points forward", 0)?;
                    self.demand(revision_key(revision) == key.as_slice(), "a revision's key is malformed", 0)?;
                }
                _ => (),
            }
        }
        Ok(key)
    }

    fn check_extent(&mut self, extent: Extent) -> Result<(), CheckError> {
        for index in 0..extent_pages(extent.len) {
            self.reach(PageId { number: extent.first.number + index, birth: extent.first.birth })?;
        }
        Ok(())
    }
}
