//! Walks through a tree: search, stepping, counting. They read pages and change nothing.

use crate::codec::{common_prefix, to_u64};
use crate::entry::{Newest, SOUND};
use crate::map::PageBytes;
use crate::page::{self, Cell};
use crate::pages::Pages;
use crate::pins::TreeRoot;
use crate::types::{PageId, Paged};
use std::cmp::Ordering;

/// The tallest tree. Branches have at least four children when they are split, so that no file can hold a taller one.
pub(crate) const HEIGHT_MAX: usize = 12;

/// Which entries a tree counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    /// Every entry.
    All,
    /// Entries of *current* that are no tombstones.
    Live,
}

impl Counted {
    pub(crate) fn weight(self, value: &[u8]) -> u64 {
        match self {
            Counted::All => 1,
            Counted::Live => u64::from(Newest::is_live(value)),
        }
    }
}

/// A position inside one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) page: PageId,
    pub(crate) slot: usize,
}

/// A position in a tree: the page and slot of each level from the root down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    steps: [Step; HEIGHT_MAX],
    len: usize,
    /// Whether the key sought is at the position.
    pub(crate) exact: bool,
}

impl Path {
    pub(crate) const EMPTY: Path =
        Path { steps: [Step { page: PageId { number: 0, birth: 0 }, slot: 0 }; HEIGHT_MAX], len: 0, exact: false };

    /// A position in a tree of one page.
    pub(crate) fn at(page: PageId, slot: usize) -> Path {
        let mut path = Path::EMPTY;
        path.push(page, slot);
        path
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps[..self.len]
    }

    pub(crate) fn steps_mut(&mut self) -> &mut [Step] {
        &mut self.steps[..self.len]
    }

    fn push(&mut self, page: PageId, slot: usize) {
        self.steps[self.len] = Step { page, slot };
        self.len += 1;
    }

    pub(crate) fn leaf(&self) -> Option<Step> {
        self.steps().last().copied()
    }
}

/// A page of the kind that its place in the tree says it has: no page of another is walked.
#[inline]
fn get_kind(pages: &Pages, id: PageId, kind: page::Kind) -> Paged<&PageBytes> {
    let page = pages.get(id)?;
    assert!(page::is_kind(page, kind), "{SOUND}");
    Ok(page)
}

#[inline]
fn branch(pages: &Pages, id: PageId) -> Paged<&PageBytes> {
    get_kind(pages, id, page::Kind::Branch)
}

#[inline]
fn leaf(pages: &Pages, id: PageId) -> Paged<&PageBytes> {
    get_kind(pages, id, page::Kind::Leaf)
}

/// The first eight bytes, in the order of keys.
#[inline]
fn first_eight(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|first| u64::from_be_bytes(*first))
}

/// How `rest`, a key without the page's prefix, compares with the key of a cell. `rest_first` is its first eight bytes,
/// which decide most comparisons.
#[inline]
fn compare(pages: &Pages, page: &PageBytes, slot: usize, rest: &[u8], rest_first: Option<u64>) -> Paged<Ordering> {
    let (suffix, continued) = page::suffix(page, slot);
    if let (Some(a), Some(b)) = (rest_first, first_eight(suffix))
        && a != b
    {
        return Ok(a.cmp(&b));
    }
    if !continued {
        return Ok(rest.cmp(suffix));
    }
    let (front, behind) = rest.split_at(suffix.len().min(rest.len()));
    match front.cmp(suffix) {
        Ordering::Equal => {
            let extent = page::cell(page, slot).key_extent.expect("a continued key has an extent");
            pages.compare_extent(behind, extent)
        }
        order => Ok(order),
    }
}

/// The first slot of a leaf whose key is not below `key`, and whether it is that key.
fn search_leaf(pages: &Pages, page: &PageBytes, key: &[u8]) -> Paged<(usize, bool)> {
    search_from(pages, page, 0, key)
}

/// The child of a branch that covers `key`.
fn search_branch(pages: &Pages, page: &PageBytes, key: &[u8]) -> Paged<usize> {
    let (slot, exact) = search_from(pages, page, 1, key)?;
    Ok(if exact { slot } else { slot - 1 })
}

fn search_from(pages: &Pages, page: &PageBytes, first: usize, key: &[u8]) -> Paged<(usize, bool)> {
    let count = page::slot_count(page);
    let prefix = page::prefix(page);
    if !key.starts_with(prefix) {
        let shared = common_prefix(prefix, key);
        let below = shared == key.len() || key[shared] < prefix[shared];
        return Ok((if below { first } else { count.max(first) }, false));
    }
    let rest = &key[prefix.len()..];
    let rest_first = first_eight(rest);
    let (mut low, mut high) = (first, count.max(first));
    while low < high {
        let middle = usize::midpoint(low, high);
        match compare(pages, page, middle, rest, rest_first)? {
            Ordering::Greater => low = middle + 1,
            Ordering::Less => high = middle,
            Ordering::Equal => return Ok((middle, true)),
        }
    }
    Ok((low, false))
}

/// The position of the first entry not below `key`; it may lie behind the last slot of its leaf.
pub(crate) fn seek(pages: &Pages, tree: &TreeRoot, key: &[u8]) -> Paged<Path> {
    let mut path = Path::EMPTY;
    let Some(mut id) = tree.id() else { return Ok(path) };
    for _ in 1..tree.height {
        let page = branch(pages, id)?;
        let slot = search_branch(pages, page, key)?;
        path.push(id, slot);
        id = page::child(page, slot).page;
    }
    let page = leaf(pages, id)?;
    let (slot, exact) = search_leaf(pages, page, key)?;
    path.push(id, slot);
    path.exact = exact;
    Ok(path)
}

/// The position behind the last entry.
pub(crate) fn seek_end(pages: &Pages, tree: &TreeRoot) -> Paged<Path> {
    let mut path = Path::EMPTY;
    let Some(mut id) = tree.id() else { return Ok(path) };
    for _ in 1..tree.height {
        let page = branch(pages, id)?;
        let slot = page::slot_count(page) - 1;
        path.push(id, slot);
        id = page::child(page, slot).page;
    }
    path.push(id, page::slot_count(leaf(pages, id)?));
    Ok(path)
}

/// The cell at a position.
pub(crate) fn cell_at<'a>(pages: &'a Pages, path: &Path) -> Paged<Option<Cell<'a>>> {
    match path.leaf().filter(|_| path.exact) {
        Some(step) => Ok(Some(page::cell(pages.get(step.page)?, step.slot))),
        None => Ok(None),
    }
}

/// Looks one key up.
pub(crate) fn get<'a>(pages: &'a Pages, tree: &TreeRoot, key: &[u8]) -> Paged<Option<Cell<'a>>> {
    let Some(mut id) = tree.id() else { return Ok(None) };
    for _ in 1..tree.height {
        let page = branch(pages, id)?;
        id = page::child(page, search_branch(pages, page, key)?).page;
    }
    let page = leaf(pages, id)?;
    let (slot, exact) = search_leaf(pages, page, key)?;
    Ok(exact.then(|| page::cell(page, slot)))
}

/// How many counted entries lie below `key`.
pub(crate) fn rank(pages: &Pages, tree: &TreeRoot, counted: Counted, key: &[u8]) -> Paged<u64> {
    let Some(mut id) = tree.id() else { return Ok(0) };
    let mut below = 0;
    for _ in 1..tree.height {
        let page = branch(pages, id)?;
        let slot = search_branch(pages, page, key)?;
        below += (0..slot).map(|slot| page::child(page, slot).count).sum::<u64>();
        id = page::child(page, slot).page;
    }
    let page = leaf(pages, id)?;
    let (slot, _) = search_leaf(pages, page, key)?;
    Ok(below
        + match counted {
            Counted::All => to_u64(slot),
            Counted::Live => (0..slot).map(|slot| counted.weight(page::cell(page, slot).value)).sum(),
        })
}

/// What a page's parent says about how many counted entries lie below it.
pub(crate) fn page_weight(page: &PageBytes, counted: Counted) -> u64 {
    let slots = 0..page::slot_count(page);
    if page::is_kind(page, page::Kind::Branch) {
        return slots.map(|slot| page::child(page, slot).count).sum();
    }
    slots.map(|slot| counted.weight(page::cell(page, slot).value)).sum()
}

/// Walks entries in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk<'a> {
    pages: &'a Pages,
    path: Path,
    /// Whether subtrees that count nothing are passed by.
    live_only: bool,
}

impl<'a> Walk<'a> {
    /// Starts at the first entry not below `key`.
    pub(crate) fn start(pages: &'a Pages, tree: &TreeRoot, key: &[u8], live_only: bool) -> Paged<Walk<'a>> {
        Ok(Walk { pages, path: seek(pages, tree, key)?, live_only })
    }

    /// The page and the cell at the position; moves to the next leaf if the position lies behind the last slot.
    pub(crate) fn entry(&mut self) -> Paged<Option<(&'a PageBytes, Cell<'a>)>> {
        loop {
            let Some(step) = self.path.leaf() else { return Ok(None) };
            let page = self.pages.get(step.page)?;
            if step.slot < page::slot_count(page) {
                return Ok(Some((page, page::cell(page, step.slot))));
            }
            match next_leaf(self.pages, &self.path, self.live_only)? {
                Some(path) => self.path = path,
                None => return Ok(None),
            }
        }
    }

    /// Passes the entry at the position by.
    pub(crate) fn pass(&mut self) {
        if let Some(step) = self.path.steps_mut().last_mut() {
            step.slot += 1;
        }
    }
}

/// The first position of the leaf after this one.
fn next_leaf(pages: &Pages, from: &Path, live_only: bool) -> Paged<Option<Path>> {
    let mut path = *from;
    path.exact = false;
    loop {
        path.len -= 1;
        let Some(step) = path.steps_mut().last_mut() else { return Ok(None) };
        let page = pages.get(step.page)?;
        let rest = step.slot + 1..page::slot_count(page);
        let Some(slot) = rest.into_iter().find(|&slot| !live_only || page::child(page, slot).count > 0) else {
            continue;
        };
        step.slot = slot;
        break;
    }
    while path.len < from.len {
        let step = path.steps()[path.len - 1];
        let child = page::child(pages.get(step.page)?, step.slot).page;
        let is_leaf = path.len + 1 == from.len;
        let page = if is_leaf { leaf(pages, child)? } else { branch(pages, child)? };
        let slots = if is_leaf { 0 } else { page::slot_count(page) };
        let first = (0..slots).find(|&slot| !live_only || page::child(page, slot).count > 0);
        path.push(child, first.unwrap_or(0));
    }
    Ok(Some(path))
}
