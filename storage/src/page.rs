//! The slotted page: sorted cells of keys and values, whose common prefix is kept once.
//!
//! ```text
//!  0        4        8                16   17   18     20     22      24      26        32
//! ┌────────┬────────┬────────────────┬────┬─────┬──────┬──────┬───────┬───────┬─────────┐
//! │checksum│ number │     birth      │kind│level│slots │ heap │garbage│prefix │    0    │
//! └────────┴────────┴────────────────┴────┴─────┴──────┴──────┴───────┴───────┴─────────┘
//!  32: prefix bytes, then one 16-bit cell offset a slot, free space, and the heap of cells up to the page's end.
//! ```
//!
//! A cell is the length of its key (shifted left by one, the low bit says that an extent holds the key's rest), the
//! length of its value likewise, the key without the page's prefix, the key's extent, the value, the value's extent.
//! In a branch the value is a child pointer, and slot 0 has no key: it stands for everything below slot 1.

use crate::codec::{common_prefix, get_u16, get_u32, get_u64, set_u16, set_u32, set_u64};
use crate::map::{PAGE_SIZE, PageBytes};
use crate::types::PageId;

pub(crate) const HEADER_SIZE: usize = 32;
/// What a page has for its prefix, slots and cells.
pub(crate) const CAPACITY: usize = PAGE_SIZE - HEADER_SIZE;
/// The largest cell with its slot: two fit a page, so that any page can be split.
pub(crate) const CELL_SIZE_MAX: usize = CAPACITY / 2;
/// The longest key that is kept whole in a cell.
pub(crate) const KEY_INLINE_MAX: usize = 768;
/// How much of a longer key stays in the cell; an extent holds the rest.
pub(crate) const KEY_HEAD_SIZE: usize = 512;
/// A pointer to an extent: page, birth, length.
pub(crate) const EXTENT_REF_SIZE: usize = 16;
/// A child pointer: page, birth, live entries below.
pub(crate) const CHILD_SIZE: usize = 20;
const SLOT_SIZE: usize = 2;
/// More entries than lie below any page, so that sums of a few of these never overflow.
pub(crate) const CHILD_COUNT_MAX: u64 = 1 << 48;

const AT_CHECKSUM: usize = 0;
const AT_NUMBER: usize = 4;
const AT_BIRTH: usize = 8;
const AT_KIND: usize = 16;
const AT_LEVEL: usize = 17;
const AT_SLOTS: usize = 18;
const AT_HEAP: usize = 20;
const AT_GARBAGE: usize = 22;
const AT_PREFIX: usize = 24;
const AT_RUN_INDEX: usize = 20;
const AT_RUN_PAGES: usize = 24;

const _: () = assert!(KEY_HEAD_SIZE <= KEY_INLINE_MAX);
const _: () = assert!(KEY_INLINE_MAX + EXTENT_REF_SIZE + CHILD_SIZE + 4 + SLOT_SIZE <= CELL_SIZE_MAX);
const _: () = assert!(CELL_SIZE_MAX < 1 << 13);

/// What a page holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Leaf,
    Branch,
    Extent,
    Bitmap,
    Directory,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Kind::Leaf => 1,
            Kind::Branch => 2,
            Kind::Extent => 3,
            Kind::Bitmap => 4,
            Kind::Directory => 5,
        }
    }
}

/// A run of adjacent pages that holds one long byte string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) first: PageId,
    pub(crate) len: u32,
}

impl Extent {
    fn decode(bytes: &[u8]) -> Extent {
        Extent { first: PageId { number: get_u32(bytes, 0), birth: get_u64(bytes, 4) }, len: get_u32(bytes, 12) }
    }

    fn encode(&self, into: &mut [u8]) {
        set_u32(into, 0, self.first.number);
        set_u64(into, 4, self.first.birth);
        set_u32(into, 12, self.len);
    }
}

/// A child pointer of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    pub(crate) page: PageId,
    pub(crate) count: u64,
}

impl Child {
    pub(crate) fn decode(bytes: &[u8]) -> Child {
        Child { page: PageId { number: get_u32(bytes, 0), birth: get_u64(bytes, 4) }, count: get_u64(bytes, 12) }
    }

    pub(crate) fn encode(&self) -> [u8; CHILD_SIZE] {
        let mut bytes = [0; CHILD_SIZE];
        set_u32(&mut bytes, 0, self.page.number);
        set_u64(&mut bytes, 4, self.page.birth);
        set_u64(&mut bytes, 12, self.count);
        bytes
    }
}

/// A cell as the page holds it: the key lacks the page's prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) suffix: &'a [u8],
    pub(crate) key_extent: Option<Extent>,
    pub(crate) value: &'a [u8],
    pub(crate) value_extent: Option<Extent>,
}

/// A cell on its way into a page. Its key in the cell is `head` followed by `tail`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewCell<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) tail: &'a [u8],
    pub(crate) key_extent: Option<Extent>,
    pub(crate) value: &'a [u8],
    pub(crate) value_extent: Option<Extent>,
}

impl<'a> NewCell<'a> {
    /// The cell of a page, with the page's prefix before its key.
    pub(crate) fn of(prefix: &'a [u8], cell: Cell<'a>) -> NewCell<'a> {
        NewCell {
            head: prefix,
            tail: cell.suffix,
            key_extent: cell.key_extent,
            value: cell.value,
            value_extent: cell.value_extent,
        }
    }

    /// The same cell as the first of a branch, which has no key.
    pub(crate) fn without_key(self) -> NewCell<'a> {
        NewCell { head: &[], tail: &[], key_extent: None, ..self }
    }

    pub(crate) fn key_len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    fn key_byte(&self, at: usize) -> u8 {
        if at < self.head.len() { self.head[at] } else { self.tail[at - self.head.len()] }
    }

    /// The cell's size with its slot, in a page that keeps `prefix` bytes of the key.
    pub(crate) fn size(&self, prefix: usize) -> usize {
        let key = self.key_len() - prefix;
        let extents = usize::from(self.key_extent.is_some()) + usize::from(self.value_extent.is_some());
        length_size(key)
            + length_size(self.value.len())
            + key
            + self.value.len()
            + extents * EXTENT_REF_SIZE
            + SLOT_SIZE
    }
}

/// How many leading bytes of their keys two cells share.
pub(crate) fn shared_key_bytes(a: &NewCell<'_>, b: &NewCell<'_>) -> usize {
    if a.tail.is_empty() && b.tail.is_empty() {
        return common_prefix(a.head, b.head);
    }
    let len = a.key_len().min(b.key_len());
    (0..len).take_while(|&at| a.key_byte(at) == b.key_byte(at)).count()
}

fn length_size(len: usize) -> usize {
    if len < 64 { 1 } else { 2 }
}

fn put_length(page: &mut PageBytes, at: usize, len: usize, has_extent: bool) -> usize {
    let field = len << 1 | usize::from(has_extent);
    if field < 0x80 {
        page[at] = field.to_le_bytes()[0];
        return at + 1;
    }
    page[at] = field.to_le_bytes()[0] | 0x80;
    page[at + 1] = (field >> 7).to_le_bytes()[0];
    at + 2
}

fn get_length(page: &PageBytes, at: usize) -> (usize, bool, usize) {
    let low = usize::from(page[at]);
    if low < 0x80 {
        return (low >> 1, low & 1 != 0, at + 1);
    }
    let field = (low & 0x7f) | usize::from(page[at + 1]) << 7;
    (field >> 1, field & 1 != 0, at + 2)
}

pub(crate) fn number(page: &PageBytes) -> u32 {
    get_u32(page, AT_NUMBER)
}

pub(crate) fn birth(page: &PageBytes) -> u64 {
    get_u64(page, AT_BIRTH)
}

pub(crate) fn set_identity(page: &mut PageBytes, id: PageId) {
    set_u32(page, AT_NUMBER, id.number);
    set_u64(page, AT_BIRTH, id.birth);
}

pub(crate) fn is_kind(page: &PageBytes, kind: Kind) -> bool {
    page[AT_KIND] == kind.code()
}

pub(crate) fn set_kind(page: &mut PageBytes, kind: Kind) {
    page[AT_KIND] = kind.code();
}

/// Height above the leaves.
pub(crate) fn level(page: &PageBytes) -> u8 {
    page[AT_LEVEL]
}

pub(crate) fn slot_count(page: &PageBytes) -> usize {
    get_u16(page, AT_SLOTS)
}

pub(crate) fn prefix(page: &PageBytes) -> &[u8] {
    &page[HEADER_SIZE..HEADER_SIZE + get_u16(page, AT_PREFIX)]
}

fn slot_at(page: &PageBytes, slot: usize) -> usize {
    HEADER_SIZE + get_u16(page, AT_PREFIX) + slot * SLOT_SIZE
}

fn cell_at(page: &PageBytes, slot: usize) -> usize {
    get_u16(page, slot_at(page, slot))
}

/// The key of a cell without the page's prefix, and whether an extent holds its rest.
#[inline]
pub(crate) fn suffix(page: &PageBytes, slot: usize) -> (&[u8], bool) {
    let (key_len, has_extent, at) = get_length(page, cell_at(page, slot));
    let (_, _, at) = get_length(page, at);
    (&page[at..at + key_len], has_extent)
}

/// Where the parts of a cell lie: key, value, end.
fn parts(page: &PageBytes, slot: usize) -> (usize, usize, usize, bool, bool, usize) {
    let (key_len, key_extent, at) = get_length(page, cell_at(page, slot));
    let (value_len, value_extent, key_at) = get_length(page, at);
    let value_at = key_at + key_len + if key_extent { EXTENT_REF_SIZE } else { 0 };
    let end = value_at + value_len + if value_extent { EXTENT_REF_SIZE } else { 0 };
    (key_at, key_len, value_at, key_extent, value_extent, end)
}

/// A cell.
#[inline]
pub(crate) fn cell(page: &PageBytes, slot: usize) -> Cell<'_> {
    let (key_at, key_len, value_at, key_extent, value_extent, end) = parts(page, slot);
    let value_end = if value_extent { end - EXTENT_REF_SIZE } else { end };
    Cell {
        suffix: &page[key_at..key_at + key_len],
        key_extent: key_extent.then(|| Extent::decode(&page[key_at + key_len..value_at])),
        value: &page[value_at..value_end],
        value_extent: value_extent.then(|| Extent::decode(&page[value_end..end])),
    }
}

/// The child pointer of a branch's slot.
#[inline]
pub(crate) fn child(page: &PageBytes, slot: usize) -> Child {
    Child::decode(cell(page, slot).value)
}

/// Overwrites a child pointer in place.
pub(crate) fn set_child(page: &mut PageBytes, slot: usize, child: Child) {
    let replaced = replace_value(page, slot, &child.encode());
    assert!(replaced, "child pointers have one size");
}

/// Overwrites an inline value with one of the same length; false if its length differs or an extent holds its rest.
pub(crate) fn replace_value(page: &mut PageBytes, slot: usize, value: &[u8]) -> bool {
    let (_, _, value_at, _, value_extent, end) = parts(page, slot);
    if value_extent || end - value_at != value.len() {
        return false;
    }
    page[value_at..end].copy_from_slice(value);
    true
}

/// Makes an empty page of cells.
pub(crate) fn format(page: &mut PageBytes, kind: Kind, level: u8, id: PageId) {
    page[..HEADER_SIZE].fill(0);
    set_kind(page, kind);
    set_identity(page, id);
    page[AT_LEVEL] = level;
    set_u16(page, AT_HEAP, PAGE_SIZE);
}

/// Bytes in use for the prefix, slots and cells.
pub(crate) fn used(page: &PageBytes) -> usize {
    let slots_end = slot_at(page, slot_count(page));
    slots_end - HEADER_SIZE + PAGE_SIZE - get_u16(page, AT_HEAP) - get_u16(page, AT_GARBAGE)
}

/// The prefix that a page of these sorted cells keeps. The first key of a branch does not count.
fn prefix_len(cells: &[NewCell<'_>], branch: bool) -> usize {
    let keys = if branch { &cells[1.min(cells.len())..] } else { cells };
    match keys {
        [] | [_] => 0,
        [first, .., last] => shared_key_bytes(first, last),
    }
}

/// What a page of these sorted cells uses.
pub(crate) fn used_by(cells: &[NewCell<'_>], branch: bool) -> usize {
    let prefix = prefix_len(cells, branch);
    let sizes = cells
        .iter()
        .enumerate()
        .map(|(i, cell)| if branch && i == 0 { cell.without_key().size(0) } else { cell.size(prefix) });
    prefix + sizes.sum::<usize>()
}

/// Fills a page with these sorted cells; its kind, level and identity stay. They must fit.
pub(crate) fn fill(page: &mut PageBytes, cells: &[NewCell<'_>]) {
    let branch = is_kind(page, Kind::Branch);
    let prefix = prefix_len(cells, branch);
    set_u16(page, AT_SLOTS, 0);
    set_u16(page, AT_GARBAGE, 0);
    set_u16(page, AT_HEAP, PAGE_SIZE);
    set_u16(page, AT_PREFIX, prefix);
    if prefix > 0 {
        let source = &cells[cells.len() - 1];
        for at in 0..prefix {
            page[HEADER_SIZE + at] = source.key_byte(at);
        }
    }
    for (slot, cell) in cells.iter().enumerate() {
        if branch && slot == 0 {
            push(page, slot, &cell.without_key(), 0);
        } else {
            push(page, slot, cell, prefix);
        }
    }
}

/// Puts a cell where there is contiguous room for it; the first `prefix` bytes of its key stay out.
fn push(page: &mut PageBytes, slot: usize, cell: &NewCell<'_>, prefix: usize) {
    let count = slot_count(page);
    let size = cell.size(prefix) - SLOT_SIZE;
    let at = get_u16(page, AT_HEAP) - size;
    let slots_end = slot_at(page, count);
    assert!(at >= slots_end + SLOT_SIZE, "the cells fit the page");
    set_u16(page, AT_HEAP, at);
    let slot_position = slot_at(page, slot);
    page.copy_within(slot_position..slots_end, slot_position + SLOT_SIZE);
    set_u16(page, slot_position, at);
    set_u16(page, AT_SLOTS, count + 1);

    let at = put_length(page, at, cell.key_len() - prefix, cell.key_extent.is_some());
    let mut at = put_length(page, at, cell.value.len(), cell.value_extent.is_some());
    let head = &cell.head[prefix.min(cell.head.len())..];
    let tail = &cell.tail[prefix.saturating_sub(cell.head.len())..];
    for part in [head, tail] {
        page[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    if let Some(extent) = cell.key_extent {
        extent.encode(&mut page[at..at + EXTENT_REF_SIZE]);
        at += EXTENT_REF_SIZE;
    }
    page[at..at + cell.value.len()].copy_from_slice(cell.value);
    at += cell.value.len();
    if let Some(extent) = cell.value_extent {
        extent.encode(&mut page[at..at + EXTENT_REF_SIZE]);
    }
}

/// Inserts a cell before `slot` if it fits under the page's prefix; false leaves the page as it was.
pub(crate) fn insert(page: &mut PageBytes, slot: usize, cell: &NewCell<'_>) -> bool {
    assert!(cell.tail.is_empty(), "an inserted key comes in one piece");
    let kept = get_u16(page, AT_PREFIX);
    if !cell.head.starts_with(prefix(page)) {
        return false;
    }
    let size = cell.size(kept);
    let contiguous = get_u16(page, AT_HEAP) - slot_at(page, slot_count(page));
    if size > contiguous {
        if size > contiguous + get_u16(page, AT_GARBAGE) {
            return false;
        }
        defragment(page);
    }
    push(page, slot, cell, kept);
    true
}

/// Removes a cell; its bytes become garbage.
pub(crate) fn remove(page: &mut PageBytes, slot: usize) {
    let count = slot_count(page);
    let start = cell_at(page, slot);
    let size = parts(page, slot).5 - start;
    let position = slot_at(page, slot);
    let slots_end = slot_at(page, count);
    page.copy_within(position + SLOT_SIZE..slots_end, position);
    set_u16(page, AT_SLOTS, count - 1);
    if start == get_u16(page, AT_HEAP) {
        set_u16(page, AT_HEAP, start + size);
    } else {
        let garbage = get_u16(page, AT_GARBAGE) + size;
        set_u16(page, AT_GARBAGE, garbage);
    }
}

/// Removes the first child of a branch; the second loses its key and stands for everything below the third.
pub(crate) fn remove_first_child(page: &mut PageBytes) {
    let copy = *page;
    let kept = prefix(&copy);
    let cells: Vec<_> = (1..slot_count(&copy)).map(|slot| NewCell::of(kept, cell(&copy, slot))).collect();
    fill(page, &cells);
}

fn defragment(page: &mut PageBytes) {
    let copy = *page;
    let kept = get_u16(&copy, AT_PREFIX);
    let branch = is_kind(&copy, Kind::Branch);
    set_u16(page, AT_SLOTS, 0);
    set_u16(page, AT_GARBAGE, 0);
    set_u16(page, AT_HEAP, PAGE_SIZE);
    for slot in 0..slot_count(&copy) {
        let source = NewCell::of(prefix(&copy), cell(&copy, slot));
        if branch && slot == 0 {
            push(page, slot, &source.without_key(), 0);
        } else {
            push(page, slot, &source, kept);
        }
    }
}

/// Where to split sorted cells that do not fit one page: the first cell of the right page.
pub(crate) fn split_point(cells: &[NewCell<'_>], branch: bool, appended: bool) -> usize {
    let fits = |at: usize| used_by(&cells[..at], branch) <= CAPACITY && used_by(&cells[at..], branch) <= CAPACITY;
    let last = cells.len() - 1;
    if appended && fits(last) {
        return last;
    }
    let total: usize = cells.iter().map(|cell| cell.size(0)).sum();
    let mut left = 0;
    let middle = cells.iter().take_while(|cell| {
        left += cell.size(0);
        left <= total / 2
    });
    let middle = middle.count().clamp(1, last);
    if fits(middle) {
        return middle;
    }
    (1..=last).filter(|&at| fits(at)).min_by_key(|at| at.abs_diff(middle)).expect("two cells of any size fit a page")
}

/// What a page of an extent holds beside its identity: its position in the run and the run's length.
pub(crate) fn format_extent(page: &mut PageBytes, id: PageId, index: u32, pages: u32) {
    page[..HEADER_SIZE].fill(0);
    set_kind(page, Kind::Extent);
    set_identity(page, id);
    set_u32(page, AT_RUN_INDEX, index);
    set_u32(page, AT_RUN_PAGES, pages);
}

/// How many pages of the run follow this page of an extent.
pub(crate) fn extent_pages_after(page: &PageBytes) -> u32 {
    get_u32(page, AT_RUN_PAGES).saturating_sub(get_u32(page, AT_RUN_INDEX)).saturating_sub(1)
}

/// Sets the checksum over everything behind it.
pub(crate) fn seal(page: &mut PageBytes, seed: u32) {
    let checksum = crc32c::crc32c_append(seed, &page[AT_NUMBER..]);
    set_u32(page, AT_CHECKSUM, checksum);
}

/// Whether a page read from the file is what its pointer says, and sound enough to walk.
pub(crate) fn verify(page: &PageBytes, id: PageId, seed: u32) -> Result<(), &'static str> {
    if get_u32(page, AT_CHECKSUM) != crc32c::crc32c_append(seed, &page[AT_NUMBER..]) {
        return Err("its checksum is wrong");
    }
    if number(page) != id.number {
        return Err("it is another page: a misdirected write");
    }
    if birth(page) != id.birth {
        return Err("it is another version: a lost write");
    }
    match page[AT_KIND] {
        kind if kind == Kind::Leaf.code() || kind == Kind::Branch.code() => verify_cells(page),
        kind if (3..=5).contains(&kind) => Ok(()),
        _ => Err("its kind is unknown"),
    }
}

fn verify_cells(page: &PageBytes) -> Result<(), &'static str> {
    const WRONG: &str = "its cells do not lie inside it";
    let (heap, count) = (get_u16(page, AT_HEAP), slot_count(page));
    if get_u16(page, AT_PREFIX) > KEY_INLINE_MAX || heap > PAGE_SIZE || slot_at(page, count) > heap {
        return Err(WRONG);
    }
    if get_u16(page, AT_GARBAGE) > PAGE_SIZE - heap {
        return Err("it has more garbage than cells");
    }
    let branch = is_kind(page, Kind::Branch);
    if branch && count == 0 {
        return Err("it is a branch without children");
    }
    for slot in 0..count {
        let at = cell_at(page, slot);
        if at < heap || at + 4 > PAGE_SIZE {
            return Err(WRONG);
        }
        let (_, _, value_at, _, value_extent, end) = parts(page, slot);
        if end > PAGE_SIZE || (branch && (value_extent || end - value_at != CHILD_SIZE)) {
            return Err(WRONG);
        }
        if branch && child(page, slot).count > CHILD_COUNT_MAX {
            return Err("it counts more entries than a file can hold");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use garboard_simdisk::Rng;

    const ID: PageId = PageId { number: 9, birth: 4 };

    fn cell_of<'a>(key: &'a [u8], value: &'a [u8]) -> NewCell<'a> {
        NewCell { head: key, tail: &[], key_extent: None, value, value_extent: None }
    }

    /// The page's cells are those of a sorted list through insertions, replacements, removals and splits.
    #[test]
    fn a_page_holds_what_a_sorted_list_holds() {
        let mut rng = Rng::new(1);
        let mut list: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut page = Box::new([0; PAGE_SIZE]);
        format(&mut page, Kind::Leaf, 0, ID);
        for step in 0..20_000 {
            let key = [&b"shared/"[..usize::from(rng.chance(98)) * 7], &rng.below(300).to_be_bytes()[6..]].concat();
            let value = vec![b'v'; rng.index(60)];
            match list.binary_search_by(|entry| entry.0.cmp(&key)) {
                Ok(slot) if rng.chance(50) => {
                    remove(&mut page, slot);
                    list.remove(slot);
                }
                Ok(slot) => {
                    if replace_value(&mut page, slot, &value) {
                        list[slot].1 = value;
                    }
                }
                Err(slot) => {
                    list.insert(slot, (key, value));
                    let (key, value) = &list[slot];
                    if !insert(&mut page, slot, &cell_of(key, value)) {
                        let cells: Vec<_> = list.iter().map(|(key, value)| cell_of(key, value)).collect();
                        let kept = if used_by(&cells, false) <= CAPACITY {
                            cells.len()
                        } else {
                            split_point(&cells, false, slot + 1 == cells.len())
                        };
                        fill(&mut page, &cells[..kept]);
                        list.truncate(kept);
                    }
                }
            }
            assert_eq!(slot_count(&page), list.len());
            assert!(used(&page) <= CAPACITY);
            if step % 50 == 0 {
                for (slot, (key, value)) in list.iter().enumerate() {
                    let found = cell(&page, slot);
                    assert_eq!([prefix(&page), found.suffix].concat(), *key);
                    assert_eq!(found.value, value);
                }
                seal(&mut page, 7);
                assert_eq!(verify(&page, ID, 7), Ok(()));
                assert!(verify(&page, ID, 8).is_err());
            }
        }
    }

    /// Whatever a page with a right checksum holds: either it is refused, or its cells can be walked.
    #[test]
    fn forged_pages_are_refused_or_can_be_walked() {
        let mut rng = Rng::new(2);
        let values: Vec<Vec<u8>> = (0..60u8).map(|i| vec![i; CHILD_SIZE]).collect();
        let keys: Vec<Vec<u8>> = (0..60u8).map(|i| vec![b'k', i, i]).collect();
        let cells: Vec<_> = keys.iter().zip(&values).map(|(key, value)| cell_of(key, value)).collect();
        let mut walked = 0;
        for round in 0..200_000 {
            let mut page = Box::new([0; PAGE_SIZE]);
            format(&mut page, if round % 2 == 0 { Kind::Leaf } else { Kind::Branch }, 1, ID);
            fill(&mut page, &cells);
            for _ in 0..1 + rng.below(4) {
                let at = if rng.chance(60) { 16 + rng.index(180) } else { rng.index(PAGE_SIZE) };
                page[at] = rng.next_u64().to_le_bytes()[0];
            }
            set_identity(&mut page, ID);
            seal(&mut page, 7);
            if verify(&page, ID, 7).is_err() || is_kind(&page, Kind::Extent) {
                continue;
            }
            if !is_kind(&page, Kind::Leaf) && !is_kind(&page, Kind::Branch) {
                continue;
            }
            walked += 1;
            for slot in 0..slot_count(&page) {
                let found = cell(&page, slot);
                assert!(found.suffix.len() + found.value.len() < PAGE_SIZE);
                if is_kind(&page, Kind::Branch) {
                    let _ = child(&page, slot);
                }
            }
        }
        assert!(walked > 10_000, "{walked}");
    }
}
