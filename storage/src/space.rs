//! Which pages of the file are in use.
//!
//! The file is a row of groups. The first pages of each group are fixed: two copies of the group's bitmap, of which
//! the newest durable checkpoint uses one and the next checkpoint writes the other; and, in each first group of a
//! span, two copies of the span's directory. The very first pages of the file are the meta slots.

use crate::canary::{self, Canary};
use crate::codec::{get_u32, get_u64, set_u32, set_u64, to_u32, to_u64, to_usize};
use crate::io::PageError;
use crate::map::{PAGE_SIZE, PageBytes};
use crate::page::{self, HEADER_SIZE, Kind};
use crate::pages::offset_of;
use crate::store::PageSet;
use crate::types::PageId;
use std::collections::BTreeSet;

/// Pages of a group, one bit each in its bitmap page.
pub(crate) const GROUP_PAGES: u32 = 1 << 14;
/// Fixed pages at the start of each group.
pub(crate) const GROUP_FIXED_PAGES: u32 = 8;
/// Meta slots, in the first group only.
pub(crate) const META_SLOTS: u32 = 4;
/// The two copies of a group's bitmap, counted from the group's start.
const BITMAP_AT: [u32; 2] = [4, 5];
/// The two copies of a span's directory, counted from the start of its first group.
const DIRECTORY_AT: [u32; 2] = [6, 7];
/// Groups of a span, one directory entry each.
pub(crate) const SPAN_GROUPS: u32 = 256;
/// Pages of a span.
pub(crate) const SPAN_PAGES: u32 = SPAN_GROUPS * GROUP_PAGES;
/// Directory entries of the meta page.
pub(crate) const SPANS_MAX: usize = 64;
const DIRECTORY_ENTRY_SIZE: usize = 12;
const BITMAP_SIZE: usize = GROUP_PAGES.div_ceil(8) as usize;
const GROUP_WORDS: usize = GROUP_PAGES.div_ceil(64) as usize;
/// Groups looked at for a run of pages before the file grows instead.
const RUN_GROUPS_TRIED: usize = 4;

/// The fixed pages in the first word of a group.
const FIXED_MASK: u64 = (1 << GROUP_FIXED_PAGES) - 1;

const _: () = assert!(GROUP_FIXED_PAGES < u64::BITS);
const _: () = assert!(HEADER_SIZE + BITMAP_SIZE <= PAGE_SIZE);
const _: () = assert!(HEADER_SIZE + SPAN_GROUPS as usize * DIRECTORY_ENTRY_SIZE <= PAGE_SIZE);
const _: () = assert!(META_SLOTS <= BITMAP_AT[0] && DIRECTORY_AT[1] < GROUP_FIXED_PAGES);

/// Which copy of a fixed page counts, and its birth. Birth zero means never written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shadow {
    pub(crate) birth: u64,
    pub(crate) copy: u32,
}

impl Shadow {
    const COPY_BIT: u64 = 1 << 63;

    pub(crate) fn to_word(self) -> u64 {
        self.birth | if self.copy == 1 { Shadow::COPY_BIT } else { 0 }
    }

    pub(crate) fn from_word(word: u64) -> Shadow {
        Shadow { birth: word & !Shadow::COPY_BIT, copy: u32::from(word & Shadow::COPY_BIT != 0) }
    }

    /// Where the next version goes: to the copy that does not count now.
    fn next(self, birth: u64) -> Shadow {
        let copy = match self.birth {
            0 => 0,
            _ if canary::is_on(Canary::FreeMapInPlace) => self.copy,
            _ => 1 - self.copy,
        };
        Shadow { birth, copy }
    }
}

/// One group in memory.
#[derive(Clone, Debug)]
struct Group {
    /// Pages that the working state reaches: what a checkpoint saves.
    live: Box<[u64; GROUP_WORDS]>,
    /// Those and the dead ones that may not be reused yet.
    busy: Box<[u64; GROUP_WORDS]>,
    free_count: u32,
    shadow: Shadow,
}

/// The free map.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    groups: Vec<Group>,
    spans: Vec<Shadow>,
    /// Pages from here on were never used.
    page_end: u32,
    /// Where the next single page is looked for.
    cursor: u32,
    run_group: usize,
    free_count: u32,
    live_count: u32,
    changed: BTreeSet<u32>,
}

/// A page image of the free map on its way into a checkpoint.
pub(crate) type FixedPage = (u32, Box<PageBytes>);

fn bit(page: u32) -> (usize, usize, u64) {
    let within = page % GROUP_PAGES;
    (to_usize(page / GROUP_PAGES), to_usize(within / 64), 1 << (within % 64))
}

fn bitmap_page(group: u32, copy: u32) -> u32 {
    group * GROUP_PAGES + BITMAP_AT[to_usize(copy)]
}

fn directory_page(span: u32, copy: u32) -> u32 {
    span * SPAN_GROUPS * GROUP_PAGES + DIRECTORY_AT[to_usize(copy)]
}

impl Space {
    /// The free map of an empty file.
    pub(crate) fn new() -> Space {
        let mut space = Space {
            groups: Vec::new(),
            spans: Vec::new(),
            page_end: 0,
            cursor: 0,
            run_group: 0,
            free_count: 0,
            live_count: 0,
            changed: BTreeSet::new(),
        };
        space.extend_to(GROUP_FIXED_PAGES);
        space
    }

    pub(crate) fn page_end(&self) -> u32 {
        self.page_end
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.free_count
    }

    pub(crate) fn live_count(&self) -> u32 {
        self.live_count
    }

    pub(crate) fn is_live(&self, page: u32) -> bool {
        let (group, word, mask) = bit(page);
        self.groups.get(group).is_some_and(|group| group.live[word] & mask != 0)
    }

    /// The bits of the pages in use from page `word` × 64 on.
    pub(crate) fn live_word(&self, word: usize) -> u64 {
        self.groups.get(word / GROUP_WORDS).map_or(0, |group| group.live[word % GROUP_WORDS])
    }

    pub(crate) fn is_busy(&self, page: u32) -> bool {
        let (group, word, mask) = bit(page);
        self.groups.get(group).is_some_and(|group| group.busy[word] & mask != 0)
    }

    /// Whether the page has a fixed use.
    pub(crate) fn is_fixed(page: u32) -> bool {
        page % GROUP_PAGES < GROUP_FIXED_PAGES
    }

    /// Takes one page.
    pub(crate) fn take_page(&mut self) -> u32 {
        if self.free_count == 0 {
            if self.page_end.is_multiple_of(GROUP_PAGES) {
                self.extend_to(self.page_end + GROUP_FIXED_PAGES);
            }
            self.extend_to(self.page_end + 1);
        }
        let (first_group, first_word, _) = bit(self.cursor);
        let groups = self.groups.len();
        for step in 0..=groups {
            let group = (first_group + step) % groups;
            if self.groups[group].free_count == 0 {
                continue;
            }
            let from = if step == 0 { first_word } else { 0 };
            let busy = &self.groups[group].busy;
            if let Some(word) = (from..GROUP_WORDS).find(|&word| busy[word] != u64::MAX) {
                let page = to_u32(group) * GROUP_PAGES + to_u32(word) * 64 + busy[word].trailing_ones();
                self.take(page);
                self.cursor = page;
                return page;
            }
        }
        unreachable!("the count of free pages says that there is one")
    }

    /// Takes a run of adjacent pages.
    pub(crate) fn take_run(&mut self, count: u32) -> u32 {
        assert!(count <= GROUP_PAGES - GROUP_FIXED_PAGES, "the longest extent fits a group");
        if count == 1 {
            return self.take_page();
        }
        let first = self.find_run(count).unwrap_or_else(|| {
            let mut first = self.page_end;
            if first.is_multiple_of(GROUP_PAGES) || first % GROUP_PAGES + count > GROUP_PAGES {
                self.extend_to(first.next_multiple_of(GROUP_PAGES) + GROUP_FIXED_PAGES);
                first = self.page_end;
            }
            self.extend_to(first + count);
            first
        });
        for page in first..first + count {
            self.take(page);
        }
        first
    }

    /// A free run below the end of the used part, first fit in a few groups.
    fn find_run(&mut self, count: u32) -> Option<u32> {
        if self.free_count < count {
            return None;
        }
        let groups = self.groups.len();
        let mut tried = 0;
        for step in 0..groups {
            let group = (self.run_group + step) % groups;
            if self.groups[group].free_count < count {
                continue;
            }
            let mut run = 0;
            for within in 0..GROUP_PAGES {
                let (_, word, mask) = bit(within);
                run = if self.groups[group].busy[word] & mask == 0 { run + 1 } else { 0 };
                if run == count {
                    self.run_group = group;
                    return Some(to_u32(group) * GROUP_PAGES + within + 1 - count);
                }
            }
            tried += 1;
            if tried == RUN_GROUPS_TRIED {
                self.run_group = group + 1;
                return None;
            }
        }
        None
    }

    fn take(&mut self, page: u32) {
        let (group, word, mask) = bit(page);
        let entry = &mut self.groups[group];
        assert!((entry.live[word] | entry.busy[word]) & mask == 0, "page {page} was free");
        entry.live[word] |= mask;
        entry.busy[word] |= mask;
        entry.free_count -= 1;
        self.free_count -= 1;
        self.live_count += 1;
        self.changed.insert(to_u32(group));
    }

    /// A page that the working state no longer reaches. It stays out of use until [`Space::release`].
    pub(crate) fn kill(&mut self, page: u32) {
        let (group, word, mask) = bit(page);
        let entry = &mut self.groups[group];
        assert!(entry.live[word] & mask != 0 && !Space::is_fixed(page), "page {page} was in use");
        entry.live[word] &= !mask;
        self.live_count -= 1;
        self.changed.insert(to_u32(group));
    }

    /// From now on exactly `pages`, which are out of use for others, are in use. Gives those that no longer are.
    pub(crate) fn replace_live(&mut self, pages: &PageSet) -> PageSet {
        let mut dead = PageSet::default();
        self.live_count = 0;
        for (number, group) in self.groups.iter_mut().enumerate() {
            for (within, live) in group.live.iter_mut().enumerate() {
                let word = number * GROUP_WORDS + within;
                let fixed = if within == 0 { *live & FIXED_MASK } else { 0 };
                dead.insert_word(word, *live & !fixed);
                *live = fixed | pages.word(word);
                assert!(*live & !group.busy[within] == 0, "what comes into use was taken");
                self.live_count += live.count_ones();
            }
            self.changed.insert(to_u32(number));
        }
        dead
    }

    /// A dead page may be reused.
    pub(crate) fn release(&mut self, page: u32) {
        let (group, word, mask) = bit(page);
        let entry = &mut self.groups[group];
        assert!(entry.live[word] & mask == 0 && entry.busy[word] & mask != 0, "page {page} was dead");
        entry.busy[word] &= !mask;
        entry.free_count += 1;
        self.free_count += 1;
    }

    /// Moves the end of the used part; what lies between is free, but for the fixed pages.
    fn extend_to(&mut self, page_end: u32) {
        while self.page_end < page_end {
            let (number, word, _) = bit(self.page_end);
            if number == self.groups.len() {
                self.add_group();
            }
            // As far as the word reaches.
            let within = self.page_end % 64;
            let count = (64 - within).min(page_end - self.page_end);
            let mask = (u64::MAX >> (64 - count)) << within;
            let fixed = if word == 0 { mask & FIXED_MASK } else { 0 };
            let group = &mut self.groups[number];
            group.live[word] |= fixed;
            self.live_count += fixed.count_ones();
            group.busy[word] &= !(mask & !fixed);
            let free = (mask & !fixed).count_ones();
            group.free_count += free;
            self.free_count += free;
            self.changed.insert(to_u32(number));
            self.page_end += count;
        }
    }

    fn add_group(&mut self) {
        let full = || vec![u64::MAX; GROUP_WORDS].into_boxed_slice().try_into().expect("as many words");
        let none = || vec![0; GROUP_WORDS].into_boxed_slice().try_into().expect("as many words");
        self.groups.push(Group { live: none(), busy: full(), free_count: 0, shadow: Shadow::default() });
        let spans = self.groups.len().div_ceil(to_usize(SPAN_GROUPS));
        assert!(spans <= SPANS_MAX, "the meta page has room for the directories of 1 TiB");
        self.spans.resize(spans, Shadow::default());
    }

    /// The changed pages of the free map as a checkpoint writes them, and the directories' shadows for its meta page.
    /// Only [`Space::settle`] makes them count.
    pub(crate) fn images(&self, birth: u64) -> SpaceImages {
        let mut pages: Vec<FixedPage> = Vec::new();
        let mut groups = Vec::new();
        let mut spans = self.spans.clone();
        let mut changed_spans = BTreeSet::new();
        for &number in &self.changed {
            let group = &self.groups[to_usize(number)];
            let shadow = group.shadow.next(birth);
            let mut image = fixed_image(Kind::Bitmap, PageId { number: bitmap_page(number, shadow.copy), birth });
            for (word, bytes) in group.live.iter().zip(image.1[HEADER_SIZE..].chunks_exact_mut(8)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            pages.push(image);
            groups.push((number, shadow));
            changed_spans.insert(number / SPAN_GROUPS);
        }
        for span in changed_spans {
            let shadow = spans[to_usize(span)].next(birth);
            let mut image = fixed_image(Kind::Directory, PageId { number: directory_page(span, shadow.copy), birth });
            let first = to_usize(span * SPAN_GROUPS);
            for (i, group) in self.groups.iter().enumerate().skip(first).take(to_usize(SPAN_GROUPS)) {
                let at = HEADER_SIZE + (i - first) * DIRECTORY_ENTRY_SIZE;
                let changed = groups.binary_search_by_key(&to_u32(i), |&(number, _)| number);
                let entry = changed.map_or(group.shadow, |position| groups[position].1);
                set_u64(image.1.as_mut_slice(), at, entry.to_word());
                let live: u32 = group.live.iter().map(|word| word.count_ones()).sum();
                set_u32(image.1.as_mut_slice(), at + 8, live);
            }
            spans[to_usize(span)] = shadow;
            pages.push(image);
        }
        SpaceImages { pages, groups, spans, page_end: self.page_end }
    }

    /// The images' checkpoint started writing: later changes belong to the next one.
    pub(crate) fn begin(&mut self) {
        self.changed.clear();
    }

    /// The checkpoint of the images was given up before it wrote anything.
    pub(crate) fn undo(&mut self, images: &SpaceImages) {
        self.changed.extend(images.groups.iter().map(|&(group, _)| group));
    }

    /// The images are durable.
    pub(crate) fn settle(&mut self, images: &SpaceImages) {
        for &(group, shadow) in &images.groups {
            self.groups[to_usize(group)].shadow = shadow;
        }
        for (mine, theirs) in self.spans.iter_mut().zip(&images.spans) {
            *mine = *theirs;
        }
    }

    /// Rebuilds the free map from the file: `read` gives the verified page that a pointer names.
    pub(crate) fn open(
        page_end: u32,
        spans: &[Shadow],
        mut read: impl FnMut(PageId, Kind) -> Result<Box<PageBytes>, PageError>,
    ) -> Result<Space, PageError> {
        let mut space = Space::new();
        space.extend_to(page_end);
        space.changed.clear();
        space.spans = spans.to_vec();
        let mut directory = None;
        for number in 0..to_u32(space.groups.len()) {
            let span = number / SPAN_GROUPS;
            if number % SPAN_GROUPS == 0 {
                let shadow = spans[to_usize(span)];
                let id = PageId { number: directory_page(span, shadow.copy), birth: shadow.birth };
                directory = Some(read(id, Kind::Directory)?);
            }
            let directory = directory.as_ref().expect("the first group of a span reads its directory");
            let at = HEADER_SIZE + to_usize(number % SPAN_GROUPS) * DIRECTORY_ENTRY_SIZE;
            let shadow = Shadow::from_word(get_u64(directory.as_slice(), at));
            let id = PageId { number: bitmap_page(number, shadow.copy), birth: shadow.birth };
            let bitmap = read(id, Kind::Bitmap)?;
            if !space.adopt(number, shadow, &bitmap, get_u32(directory.as_slice(), at + 8)) {
                let reason = "it does not hold as many pages as its directory counts";
                return Err(PageError::Damaged { page: id, offset: offset_of(id.number), reason });
            }
        }
        Ok(space)
    }

    /// Takes a group's bitmap over; false if the directory counts another number of pages in it.
    fn adopt(&mut self, number: u32, shadow: Shadow, bitmap: &PageBytes, live: u32) -> bool {
        let group = &mut self.groups[to_usize(number)];
        let before: u32 = group.live.iter().map(|word| word.count_ones()).sum();
        for (word, bytes) in group.live.iter_mut().zip(bitmap[HEADER_SIZE..].chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        let after: u32 = group.live.iter().map(|word| word.count_ones()).sum();
        if after != live {
            return false;
        }
        for (busy, live) in group.busy.iter_mut().zip(group.live.iter()) {
            *busy |= live;
        }
        let free: u32 = group.busy.iter().map(|word| word.count_zeros()).sum();
        self.free_count = self.free_count + free - group.free_count;
        self.live_count = self.live_count + after - before;
        group.free_count = free;
        group.shadow = shadow;
        true
    }

    /// Whether the counts agree with the bitmaps, and every page in use is out of use for others.
    pub(crate) fn is_consistent(&self) -> bool {
        let count = |words: &[u64]| words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let live: u64 = self.groups.iter().map(|group| count(&group.live[..])).sum();
        let busy: u64 = self.groups.iter().map(|group| count(&group.busy[..])).sum();
        let pages = to_u64(self.groups.len()) * u64::from(GROUP_PAGES);
        let covered =
            self.groups.iter().all(|group| group.live.iter().zip(group.busy.iter()).all(|(l, b)| l & !b == 0));
        covered && live == u64::from(self.live_count) && pages - busy == u64::from(self.free_count)
    }
}

/// What a checkpoint writes of the free map.
#[derive(Clone, Debug)]
pub(crate) struct SpaceImages {
    pub(crate) pages: Vec<FixedPage>,
    groups: Vec<(u32, Shadow)>,
    pub(crate) spans: Vec<Shadow>,
    pub(crate) page_end: u32,
}

fn fixed_image(kind: Kind, id: PageId) -> FixedPage {
    let mut image = Box::new([0; PAGE_SIZE]);
    page::format(&mut image, kind, 0, id);
    (id.number, image)
}
