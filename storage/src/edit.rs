//! Changes of a tree: every page on the way is copied once for each root, then changed in place.

use crate::map::PageBytes;
use crate::page::{self, CAPACITY, CELL_SIZE_MAX, Child, Extent, KEY_HEAD_SIZE, KEY_INLINE_MAX, Kind, NewCell};
use crate::pins::TreeRoot;
use crate::store::Store;
use crate::tree::{Counted, Path, page_weight};
use crate::types::{PageId, Paged};

/// A page that uses less than this is merged with a neighbour, if both fit comfortably.
pub(crate) const MERGE_BELOW: usize = CAPACITY / 3;
/// What a merged page uses at most, so that the next insertion does not split it again.
const MERGED_MAX: usize = CAPACITY / 8 * 7;

/// One tree, open for changes.
pub(crate) struct Edit<'a> {
    pub(crate) store: &'a mut Store,
    pub(crate) tree: &'a mut TreeRoot,
    pub(crate) counted: Counted,
}

/// The key of a cell in two parts: what the cell holds, and the extent of the rest.
struct KeyParts<'a> {
    inline: &'a [u8],
    extent: Option<Extent>,
}

impl Edit<'_> {
    /// Sets the value of the key that was sought with `path`: `head` stays in the cell, `body` too if it fits, or else
    /// it goes to an extent.
    pub(crate) fn upsert(&mut self, mut path: Path, key: &[u8], head: &[u8], body: &[&[u8]]) {
        if path.leaf().is_none() {
            let leaf = self.store.make_page(Kind::Leaf, 0);
            *self.tree = TreeRoot { page: leaf.number, height: 1, birth: leaf.birth, count: 0 };
            path = Path::at(leaf, 0);
        }
        self.make_path_writable(&mut path);
        let step = path.leaf().expect("the tree has a leaf");
        let weight = self.counted.weight(head);
        let inline_key = if key.len() > KEY_INLINE_MAX { KEY_HEAD_SIZE } else { key.len() };
        let body_len: usize = body.iter().map(|part| part.len()).sum();
        let room = CELL_SIZE_MAX - inline_key - 2 * page::EXTENT_REF_SIZE - 6;
        let inline_body = head.len() + body_len <= room;

        let mut joined = Vec::new();
        let value = if inline_body && body_len > 0 {
            joined.reserve_exact(head.len() + body_len);
            joined.extend_from_slice(head);
            body.iter().for_each(|part| joined.extend_from_slice(part));
            joined.as_slice()
        } else {
            head
        };
        let mut kept_key = None;
        let mut removed = 0;
        if path.exact {
            let old = page::cell(self.store.page(step.page), step.slot);
            let (old_extent, old_key) = (old.value_extent, old.key_extent);
            removed = self.counted.weight(old.value);
            if inline_body && page::replace_value(self.store.page_mut(step.page), step.slot, value) {
                self.add_to_counts(&path, weight, removed);
                return;
            }
            page::remove(self.store.page_mut(step.page), step.slot);
            kept_key = old_key;
            if let Some(extent) = old_extent {
                self.store.kill_extent(extent);
            }
        }
        self.add_to_counts(&path, weight, removed);
        let parts = match kept_key {
            Some(extent) => KeyParts { inline: &key[..inline_key], extent: Some(extent) },
            None => self.split_key(key),
        };
        let value_extent = (!inline_body).then(|| self.store.make_extent(body));
        let cell = NewCell { head: parts.inline, tail: &[], key_extent: parts.extent, value, value_extent };
        self.insert(&mut path, step.slot, &cell);
    }

    /// Removes the entry at an exact position.
    pub(crate) fn remove(&mut self, mut path: Path) {
        assert!(path.exact, "only an entry that exists is removed");
        self.make_path_writable(&mut path);
        let step = path.leaf().expect("an exact path ends in a leaf");
        let cell = page::cell(self.store.page(step.page), step.slot);
        let (key_extent, value_extent) = (cell.key_extent, cell.value_extent);
        let weight = self.counted.weight(cell.value);
        self.add_to_counts(&path, 0, weight);
        page::remove(self.store.page_mut(step.page), step.slot);
        for extent in [key_extent, value_extent].into_iter().flatten() {
            self.store.kill_extent(extent);
        }
        self.rebalance(&mut path);
    }

    /// Whether a removal at this position can merge pages: a page that is nearly empty needs its neighbours resident.
    pub(crate) fn prefetch_removal(store: &Store, path: &Path) -> Paged<()> {
        for pair in path.steps().windows(2) {
            let page = store.pages().get(pair[1].page)?;
            if page::used(page) >= MERGE_BELOW + CELL_SIZE_MAX {
                continue;
            }
            let parent = store.pages().get(pair[0].page)?;
            let slot = pair[0].slot;
            if slot > 0 {
                store.pages().get(page::child(parent, slot - 1).page)?;
            }
            if slot + 1 < page::slot_count(parent) {
                store.pages().get(page::child(parent, slot + 1).page)?;
            }
        }
        Ok(())
    }

    /// Copies what of the path is not of the working state yet, from the root down.
    fn make_path_writable(&mut self, path: &mut Path) {
        let mut parent: Option<(PageId, usize)> = None;
        for step in path.steps_mut() {
            let id = self.store.writable(step.page);
            if id != step.page {
                match parent {
                    Some((page, slot)) => {
                        let count = page::child(self.store.page(page), slot).count;
                        page::set_child(self.store.page_mut(page), slot, Child { page: id, count });
                    }
                    None => (self.tree.page, self.tree.birth) = (id.number, id.birth),
                }
                step.page = id;
            }
            parent = Some((id, step.slot));
        }
    }

    fn add_to_counts(&mut self, path: &Path, added: u64, removed: u64) {
        if added == removed {
            return;
        }
        self.tree.count = self.tree.count + added - removed;
        let steps = path.steps();
        for step in &steps[..steps.len() - 1] {
            let mut child = page::child(self.store.page(step.page), step.slot);
            child.count = child.count + added - removed;
            page::set_child(self.store.page_mut(step.page), step.slot, child);
        }
    }

    /// Splits a long key between cell and extent.
    fn split_key<'k>(&mut self, key: &'k [u8]) -> KeyParts<'k> {
        if key.len() <= KEY_INLINE_MAX {
            return KeyParts { inline: key, extent: None };
        }
        let (inline, rest) = key.split_at(KEY_HEAD_SIZE);
        KeyParts { inline, extent: Some(self.store.make_extent(&[rest])) }
    }

    /// Inserts a cell before `slot` of the path's last page, and separators above as pages split.
    fn insert(&mut self, path: &mut Path, slot: usize, cell: &NewCell<'_>) {
        let depth = path.steps().len();
        self.insert_at(path, depth - 1, slot, cell);
    }

    fn insert_at(&mut self, path: &mut Path, depth: usize, slot: usize, cell: &NewCell<'_>) {
        let id = path.steps()[depth].page;
        if page::insert(self.store.page_mut(id), slot, cell) {
            return;
        }
        let copy: PageBytes = *self.store.page(id);
        let branch = page::is_kind(&copy, Kind::Branch);
        let count = page::slot_count(&copy);
        let mut cells = Vec::with_capacity(count + 1);
        cells.extend((0..count).map(|slot| NewCell::of(page::prefix(&copy), page::cell(&copy, slot))));
        cells.insert(slot, *cell);
        if page::used_by(&cells, branch) <= CAPACITY {
            page::fill(self.store.page_mut(id), &cells);
            return;
        }
        let at = page::split_point(&cells, branch, slot == count);
        page::fill(self.store.page_mut(id), &cells[..at]);
        let kind = if branch { Kind::Branch } else { Kind::Leaf };
        let right = self.store.make_page(kind, page::level(&copy));
        page::fill(self.store.page_mut(right), &cells[at..]);

        let mut separator = Vec::new();
        let key_extent = if branch {
            separator.extend_from_slice(cells[at].head);
            separator.extend_from_slice(cells[at].tail);
            cells[at].key_extent
        } else {
            self.separator(&cells[at - 1], &cells[at], &mut separator);
            let extent = self.split_key(&separator).extent;
            separator.truncate(if extent.is_some() { KEY_HEAD_SIZE } else { separator.len() });
            extent
        };
        let left = Child { page: id, count: page_weight(self.store.page(id), self.counted) };
        let right = Child { page: right, count: page_weight(self.store.page(right), self.counted) };
        self.add_child(path, depth, left, right, &KeyParts { inline: &separator, extent: key_extent });
    }

    /// Tells the parent that the page at `depth` was split in two.
    fn add_child(&mut self, path: &mut Path, depth: usize, left: Child, right: Child, separator: &KeyParts<'_>) {
        let value = right.encode();
        let cell = NewCell {
            head: separator.inline,
            tail: &[],
            key_extent: separator.extent,
            value: &value,
            value_extent: None,
        };
        if depth > 0 {
            let parent = path.steps()[depth - 1];
            page::set_child(self.store.page_mut(parent.page), parent.slot, left);
            self.insert_at(path, depth - 1, parent.slot + 1, &cell);
            return;
        }
        let level = page::level(self.store.page(left.page)) + 1;
        let root = self.store.make_page(Kind::Branch, level);
        let first = left.encode();
        let first = NewCell { head: &[], tail: &[], key_extent: None, value: &first, value_extent: None };
        page::fill(self.store.page_mut(root), &[first, cell]);
        self.tree.page = root.number;
        self.tree.birth = root.birth;
        self.tree.height += 1;
    }

    /// The shortest key above `left` and not above `right`.
    fn separator(&self, left: &NewCell<'_>, right: &NewCell<'_>, into: &mut Vec<u8>) {
        let shared = page::shared_key_bytes(left, right);
        let left_ends = shared == left.key_len() && left.key_extent.is_some();
        into.extend_from_slice(right.head);
        into.extend_from_slice(right.tail);
        if !left_ends && shared < right.key_len() {
            into.truncate(shared + 1);
            return;
        }
        let mut whole = Vec::new();
        whole.extend_from_slice(left.head);
        whole.extend_from_slice(left.tail);
        self.append_extent(left.key_extent, &mut whole);
        self.append_extent(right.key_extent, into);
        let shared = crate::codec::common_prefix(&whole, into);
        into.truncate(shared + 1);
    }

    /// Reads the rest of a long key. It is here that a change may have to read from the disk after all: two long keys
    /// that agree in all their cells hold.
    fn append_extent(&self, extent: Option<Extent>, into: &mut Vec<u8>) {
        let Some(extent) = extent else { return };
        while let Err(need) = self.store.pages().read_extent(extent, 0, into) {
            if let Err(error) = self.store.pages().load(need.0) {
                panic!("a key cannot be read in the middle of a change: {error}");
            }
        }
    }

    /// After a removal: drops the path's last page if it is empty, merges it if it is nearly so, and so on upwards.
    fn rebalance(&mut self, path: &mut Path) {
        for depth in (1..path.steps().len()).rev() {
            let id = path.steps()[depth].page;
            let page = self.store.page(id);
            if page::slot_count(page) == 0 {
                self.store.kill(id);
                let parent = path.steps()[depth - 1];
                self.remove_child(parent.page, parent.slot);
            } else if page::used(page) >= MERGE_BELOW || !self.merge(path, depth) {
                return;
            }
        }
        self.shrink_root();
    }

    fn shrink_root(&mut self) {
        while let Some(root) = self.tree.id() {
            let page = self.store.page(root);
            match (page::is_kind(page, Kind::Branch), page::slot_count(page)) {
                (_, 0) => *self.tree = TreeRoot::default(),
                (true, 1) => {
                    let child = page::child(page, 0).page;
                    if self.store.pages().get(child).is_err() {
                        return;
                    }
                    self.tree.page = child.number;
                    self.tree.birth = child.birth;
                    self.tree.height -= 1;
                }
                _ => return,
            }
            self.store.kill(root);
        }
    }

    /// Takes a child out of a branch, with its separator.
    fn remove_child(&mut self, branch: PageId, slot: usize) {
        let page = self.store.page(branch);
        let (separator, last) = (slot.max(1), page::slot_count(page) == 1);
        let extent = if last { None } else { page::cell(page, separator).key_extent };
        if slot == 0 && !last {
            page::remove_first_child(self.store.page_mut(branch));
        } else {
            page::remove(self.store.page_mut(branch), slot);
        }
        if let Some(extent) = extent {
            self.store.kill_extent(extent);
        }
    }

    /// Merges the page at `depth` with a resident neighbour; false if none fits.
    fn merge(&mut self, path: &Path, depth: usize) -> bool {
        let parent = path.steps()[depth - 1];
        let count = page::slot_count(self.store.page(parent.page));
        let right_first = [parent.slot + 1, parent.slot];
        right_first.into_iter().any(|right| right > 0 && right < count && self.merge_pair(parent.page, right))
    }

    /// Merges the children `right` − 1 and `right` of a branch.
    fn merge_pair(&mut self, parent: PageId, right_slot: usize) -> bool {
        let parent_copy: PageBytes = *self.store.page(parent);
        let left = page::child(&parent_copy, right_slot - 1);
        let right = page::child(&parent_copy, right_slot);
        let (Ok(&left_copy), Ok(&right_copy)) = (self.store.pages().get(left.page), self.store.pages().get(right.page))
        else {
            return false;
        };
        let branch = page::is_kind(&left_copy, Kind::Branch);
        let separator = page::cell(&parent_copy, right_slot);
        let mut cells = Vec::new();
        for copy in [&left_copy, &right_copy] {
            let prefix = page::prefix(copy);
            cells.extend((0..page::slot_count(copy)).map(|slot| NewCell::of(prefix, page::cell(copy, slot))));
        }
        if branch {
            let first_of_right = &mut cells[page::slot_count(&left_copy)];
            first_of_right.head = page::prefix(&parent_copy);
            first_of_right.tail = separator.suffix;
            first_of_right.key_extent = separator.key_extent;
        }
        if page::used_by(&cells, branch) > MERGED_MAX {
            return false;
        }
        let id = self.store.writable(left.page);
        page::fill(self.store.page_mut(id), &cells);
        self.store.kill(right.page);
        let merged = Child { page: id, count: left.count + right.count };
        page::set_child(self.store.page_mut(parent), right_slot - 1, merged);
        page::remove(self.store.page_mut(parent), right_slot);
        if let (false, Some(extent)) = (branch, separator.key_extent) {
            self.store.kill_extent(extent);
        }
        true
    }
}
