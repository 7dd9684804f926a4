//! The writer's pages: taking, copying and killing them, and publishing roots.

use crate::arena::{Frames, Place, SLAB_FRAMES};
use crate::canary::{self, Canary};
use crate::codec::{to_u32, to_usize};
use crate::limits;
use crate::map::{PAGE_SIZE, PageBytes};
use crate::page::{self, CAPACITY, Extent, HEADER_SIZE, Kind};
use crate::pages::{Pages, extent_pages};
use crate::pins::{Pins, Root};
use crate::reclaim::{Reclaim, Remains};
use crate::space::Space;
use crate::types::PageId;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// What the writer and all readers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pages: Pages,
    pub(crate) pins: Pins,
}

/// A set of page numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageSet {
    words: Vec<u64>,
    len: u32,
}

impl PageSet {
    fn position(page: u32) -> (usize, u64) {
        (to_usize(page / 64), 1 << (page % 64))
    }

    pub(crate) fn insert(&mut self, page: u32) {
        let (word, mask) = PageSet::position(page);
        if word >= self.words.len() {
            self.words.resize((word + 1).next_power_of_two(), 0);
        }
        self.len += u32::from(self.words[word] & mask == 0);
        self.words[word] |= mask;
    }

    pub(crate) fn remove(&mut self, page: u32) {
        let (word, mask) = PageSet::position(page);
        if let Some(word) = self.words.get_mut(word) {
            self.len -= u32::from(*word & mask != 0);
            *word &= !mask;
        }
    }

    pub(crate) fn contains(&self, page: u32) -> bool {
        let (word, mask) = PageSet::position(page);
        self.words.get(word).is_some_and(|word| word & mask != 0)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The bits of the pages from `word` × 64 on.
    pub(crate) fn word(&self, word: usize) -> u64 {
        self.words.get(word).copied().unwrap_or(0)
    }

    /// Adds the pages of a word.
    pub(crate) fn insert_word(&mut self, word: usize, pages: u64) {
        if pages == 0 {
            return;
        }
        if word >= self.words.len() {
            self.words.resize((word + 1).next_power_of_two(), 0);
        }
        self.len += (pages & !self.words[word]).count_ones();
        self.words[word] |= pages;
    }

    /// Takes the pages of the next word that has any, from word `from` on.
    fn take_word(&mut self, from: usize) -> Option<(usize, u64)> {
        let found = (from..self.words.len()).find(|&word| self.words[word] != 0)?;
        let pages = std::mem::take(&mut self.words[found]);
        self.len -= pages.count_ones();
        Some((found, pages))
    }

    /// Moves the pages whose bits `chosen` gives for each word to `other`, which is empty.
    fn move_to(&mut self, other: &mut PageSet, chosen: impl Fn(usize) -> u64) {
        other.words.resize(self.words.len(), 0);
        for (i, word) in self.words.iter_mut().enumerate().filter(|(_, word)| **word != 0) {
            other.words[i] = *word & chosen(i);
            *word ^= other.words[i];
            other.len += other.words[i].count_ones();
        }
        self.len -= other.len;
    }

    /// The pages in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.words.iter().enumerate().filter(|&(_, &word)| word != 0);
        words.flat_map(|(i, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < 64).then(|| to_u32(i * 64) + bit)
            })
        })
    }
}

/// Pages that went out of use all at once, as many as a whole index has.
#[derive(Debug)]
struct Retired {
    pages: PageSet,
    /// The first root that does not reach them; none if no root ever did.
    death: Option<u64>,
    /// The word at which freeing them goes on.
    next: usize,
}

/// How many pages of an index that was replaced are freed at a time.
const RETIRED_STEP_PAGES: u32 = 1024;

/// The writer's pages.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) shared: Arc<Shared>,
    frames: Frames,
    pub(crate) space: Space,
    reclaim: Reclaim,
    /// The sequence of the root that the next publication makes.
    pub(crate) sequence: u64,
    /// Pages with a frame that no started checkpoint holds.
    pub(crate) dirty: PageSet,
    /// Pages that the checkpoint under way has yet to write.
    pub(crate) unwritten: PageSet,
    /// Those of them that no reader can reach any more.
    abandoned: BTreeSet<u32>,
    /// The root of the newest checkpoint started.
    pub(crate) saved_to: u64,
    /// The root of the newest durable checkpoint.
    durable: u64,
    /// Pages of trees that are being built beside the index. No root reaches them, and the free map of a checkpoint calls
    /// them free: after a crash they are.
    staged: PageSet,
    /// Whether changes are made to the trees that are being built.
    is_staging: bool,
    retired: VecDeque<Retired>,
    /// Slabs of frames that hold memory although no page is in them.
    kept_slabs: u32,
    pinned: Vec<u64>,
    freed: Vec<Remains>,
}

const RESIDENT: &str = "a page of the path that was just walked is resident";

impl Store {
    /// The writer's side of `shared`, whose newest root is `sequence`; `durable` is that of the newest checkpoint.
    pub(crate) fn new(shared: Arc<Shared>, space: Space, sequence: u64, durable: u64) -> Store {
        Store {
            shared,
            frames: Frames::new(),
            space,
            reclaim: Reclaim::default(),
            sequence: sequence + 1,
            dirty: PageSet::default(),
            unwritten: PageSet::default(),
            abandoned: BTreeSet::new(),
            saved_to: durable,
            durable,
            staged: PageSet::default(),
            is_staging: false,
            retired: VecDeque::new(),
            kept_slabs: to_u32(limits::RETAINED_BYTES / PAGE_SIZE) / SLAB_FRAMES,
            pinned: Vec::new(),
            freed: Vec::new(),
        }
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.shared.pages
    }

    /// The root of the newest durable checkpoint.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    pub(crate) fn frames_used(&self) -> u32 {
        self.frames.used()
    }

    /// A page that is known to be resident.
    pub(crate) fn page(&self, id: PageId) -> &PageBytes {
        self.shared.pages.get(id).expect(RESIDENT)
    }

    /// A page of the working state that no reader can reach yet.
    pub(crate) fn page_mut(&mut self, id: PageId) -> &mut PageBytes {
        assert!(id.birth == self.sequence, "only a page of the working state is written");
        match self.shared.pages.arena.place(id.number) {
            Place::Frame(frame) => self.frames.write(&self.shared.pages.arena, frame),
            place => unreachable!("a page of the working state has a frame, not {place:?}"),
        }
    }

    /// Gives a page number a frame.
    fn house(&mut self, number: u32) -> &mut PageBytes {
        let arena = &self.shared.pages.arena;
        let frame = self.frames.take(arena);
        arena.set_place(number, Place::Frame(frame));
        self.dirty.insert(number);
        self.frames.write(arena, frame)
    }

    /// A new, empty page of cells.
    pub(crate) fn make_page(&mut self, kind: Kind, level: u8) -> PageId {
        let id = PageId { number: self.take_page(), birth: self.sequence };
        page::format(self.house(id.number), kind, level, id);
        id
    }

    /// The page itself if it is of the working state, or else a copy.
    pub(crate) fn writable(&mut self, id: PageId) -> PageId {
        if id.birth == self.sequence {
            return id;
        }
        let copy = PageId { number: self.take_page(), birth: self.sequence };
        let arena = &self.shared.pages.arena;
        let frame = self.frames.take(arena);
        let target = self.frames.write(arena, frame);
        target.copy_from_slice(self.shared.pages.get(id).expect(RESIDENT));
        page::set_identity(target, copy);
        arena.set_place(copy.number, Place::Frame(frame));
        self.dirty.insert(copy.number);
        self.kill(id);
        copy
    }

    /// Takes a page out of the working state.
    pub(crate) fn kill(&mut self, id: PageId) {
        if self.staged.contains(id.number) {
            self.staged.remove(id.number);
        } else {
            self.space.kill(id.number);
        }
        if id.birth == self.sequence {
            self.free_page(id.number);
            self.space.release(id.number);
            return;
        }
        let saved = id.birth <= self.saved_to;
        self.reclaim.add_page(id.number, id.birth, self.sequence, saved);
    }

    /// Writes a long byte string to a run of pages of its own.
    pub(crate) fn make_extent(&mut self, parts: &[&[u8]]) -> Extent {
        let len = to_u32(parts.iter().map(|part| part.len()).sum());
        let count = extent_pages(len);
        let first = PageId { number: self.take_run(count), birth: self.sequence };
        let mut parts = parts.iter().copied();
        let mut part = parts.next().unwrap_or_default();
        for index in 0..count {
            let id = PageId { number: first.number + index, birth: first.birth };
            let target = self.house(id.number);
            page::format_extent(target, id, index, count);
            let mut at = HEADER_SIZE;
            while at < PAGE_SIZE {
                if part.is_empty() {
                    match parts.next() {
                        Some(next) => part = next,
                        None => break,
                    }
                }
                let (now, later) = part.split_at(part.len().min(PAGE_SIZE - at));
                target[at..at + now.len()].copy_from_slice(now);
                at += now.len();
                part = later;
            }
            target[at..].fill(0);
        }
        Extent { first, len }
    }

    /// Takes an extent out of the working state.
    pub(crate) fn kill_extent(&mut self, extent: Extent) {
        for index in 0..extent_pages(extent.len) {
            self.kill(PageId { number: extent.first.number + index, birth: extent.first.birth });
        }
    }

    /// Publishes the working state and frees what no reader reaches any more.
    pub(crate) fn publish(&mut self, root: &Root) {
        assert!(root.sequence == self.sequence, "a root carries the sequence of its pages");
        self.frames.publish();
        self.shared.pins.publish(root);
        self.sequence += 1;
        self.reclaim.publish();
        self.reclaim();
        self.release_some();
        self.release_retired();
        self.trim();
    }

    /// Gives some memory of the arena that is not in use back to the kernel.
    pub(crate) fn trim(&mut self) {
        self.frames.trim(&self.shared.pages.arena, self.kept_slabs);
    }

    /// Frees what no reader reaches any more.
    pub(crate) fn reclaim(&mut self) {
        if self.reclaim.is_idle() {
            return;
        }
        self.shared.pins.pinned(&mut self.pinned);
        if canary::is_on(Canary::PinsIgnored) {
            self.pinned.clear();
        }
        let mut freed = std::mem::take(&mut self.freed);
        self.reclaim.drain_free(&self.pinned, &mut freed);
        for remains in freed.drain(..) {
            match remains {
                Remains::Frame { frame, .. } => self.frames.give(frame),
                Remains::Page { number, death, saved, .. } => self.free_dead(number, death, saved),
            }
        }
        self.freed = freed;
    }

    fn free_dead(&mut self, number: u32, death: u64, saved: bool) {
        if self.unwritten.contains(number) {
            self.abandoned.insert(number);
        } else {
            self.free_page(number);
        }
        if !saved || death <= self.durable || canary::is_on(Canary::ReusedBeforeCheckpoint) {
            self.space.release(number);
        } else {
            self.reclaim.wait_for_checkpoint(death, number, self.saved_to);
        }
    }

    /// Frees the frame of a page that nobody reaches.
    fn free_page(&mut self, number: u32) {
        if let Place::Frame(frame) = self.shared.pages.arena.place(number) {
            self.frames.give(frame);
        }
        self.shared.pages.arena.set_place(number, Place::Nowhere);
        self.dirty.remove(number);
    }

    /// A page's image for the checkpoint.
    pub(crate) fn image(&self, number: u32, into: &mut PageBytes) {
        match self.shared.pages.arena.place(number) {
            Place::Frame(frame) => into.copy_from_slice(self.shared.pages.arena.frame(frame)),
            place => unreachable!("a page that a checkpoint has yet to write has a frame, not {place:?}"),
        }
        assert!(page::number(into) == number, "the frame holds the page that it is said to hold");
        page::seal(into, self.shared.pages.seed);
    }

    /// The file holds a page now: readers find it there, and its frame waits for those who do not know yet.
    pub(crate) fn written(&mut self, number: u32) {
        self.unwritten.remove(number);
        let arena = &self.shared.pages.arena;
        let Place::Frame(frame) = arena.place(number) else {
            unreachable!("a page that a checkpoint writes has a frame")
        };
        if self.abandoned.remove(&number) {
            self.frames.give(frame);
            arena.set_place(number, Place::Nowhere);
        } else {
            arena.set_place(number, Place::Mapped);
            self.reclaim.add_frame(frame, self.sequence - 1);
        }
    }

    /// A checkpoint of the newest root starts: gives the pages that it writes, in order.
    pub(crate) fn begin_checkpoint(&mut self) -> Vec<u32> {
        self.saved_to = self.sequence - 1;
        self.reclaim.begin_checkpoint();
        assert!(self.unwritten.len() == 0, "one checkpoint at a time");
        self.dirty.move_to(&mut self.unwritten, |word| self.space.live_word(word) | self.staged.word(word));
        self.unwritten.iter().collect()
    }

    /// The checkpoint under way was given up before it wrote anything; `saved_to` is that of the one before.
    pub(crate) fn give_up_checkpoint(&mut self, pages: &[u32], saved_to: u64) {
        for &number in pages {
            if self.unwritten.contains(number) {
                self.unwritten.remove(number);
                if self.abandoned.remove(&number) {
                    self.free_page(number);
                } else {
                    self.dirty.insert(number);
                }
            }
        }
        self.saved_to = saved_to;
        self.reclaim.give_up_checkpoint();
    }

    /// The checkpoint of root `durable` is durable.
    pub(crate) fn end_checkpoint(&mut self, durable: u64) {
        self.durable = durable;
        self.reclaim.end_checkpoint();
    }

    /// Gives some of the pages that a durable checkpoint freed back to the free map; false when there are none.
    fn release_some(&mut self) -> bool {
        let chunk = self.reclaim.take_durable();
        for &number in chunk.iter().flatten() {
            self.space.release(number);
        }
        chunk.is_some()
    }

    fn take_page(&mut self) -> u32 {
        if self.space.free_count() == 0 && !self.release_some() {
            self.release_retired();
        }
        let number = self.space.take_page();
        self.stage(number, 1);
        number
    }

    fn take_run(&mut self, count: u32) -> u32 {
        while self.space.free_count() < count && self.release_some() {}
        let first = self.space.take_run(count);
        self.stage(first, count);
        first
    }

    /// Pages were taken; while trees are built beside the index, they are for those.
    fn stage(&mut self, first: u32, count: u32) {
        if !self.is_staging {
            return;
        }
        for number in first..first + count {
            self.space.kill(number);
            self.staged.insert(number);
        }
    }
}

/// Trees that are built beside the index.
impl Store {
    /// From now on changes are made to the trees that are being built, or no longer are.
    pub(crate) fn set_staging(&mut self, on: bool) {
        self.is_staging = on;
    }

    /// How many pages the trees that are being built have.
    pub(crate) fn staged_count(&self) -> u32 {
        self.staged.len()
    }

    /// The trees that were being built are given up.
    pub(crate) fn drop_staged(&mut self) {
        let pages = std::mem::take(&mut self.staged);
        self.retired.push_back(Retired { pages, death: None, next: 0 });
        self.release_retired();
    }

    /// The trees that were built take the place of the index, whose pages are dead from the next root on. Gives up the
    /// sequence of the working state for that root.
    pub(crate) fn replace_live(&mut self) {
        let staged = std::mem::take(&mut self.staged);
        let pages = self.space.replace_live(&staged);
        self.retired.push_back(Retired { pages, death: Some(self.sequence), next: 0 });
        self.frames.publish();
        self.sequence += 1;
    }

    /// The root of the trees that were built is durable: readers find it from now on.
    pub(crate) fn publish_replaced(&mut self, root: &Root) {
        assert!(root.sequence + 1 == self.sequence, "nothing was published since the trees took their place");
        self.shared.pins.publish(root);
        self.reclaim.publish();
        self.reclaim();
        self.release_retired();
        self.trim();
    }

    /// Frees some of the pages that went out of use all at once, if no reader can reach them and nothing leads back.
    pub(crate) fn release_retired(&mut self) {
        let Some(mut retired) = self.retired.pop_front() else { return };
        if retired.death.is_some() {
            self.shared.pins.pinned(&mut self.pinned);
        }
        if canary::is_on(Canary::RetiredPinsIgnored) {
            self.pinned.clear();
        }
        let is_reached = |death| self.durable < death || self.pinned.first().is_some_and(|&root| root < death);
        if retired.death.is_some_and(is_reached) {
            self.retired.push_front(retired);
            return;
        }
        let mut freed = 0;
        while let Some((word, mut pages)) = retired.pages.take_word(retired.next) {
            retired.next = word;
            while pages != 0 {
                let number = to_u32(word * 64) + pages.trailing_zeros();
                pages &= pages - 1;
                // What a checkpoint has yet to write stays out of use until that is over.
                let saved = self.unwritten.contains(number);
                self.free_dead(number, self.sequence, saved);
                freed += 1;
            }
            if freed >= RETIRED_STEP_PAGES {
                self.retired.push_front(retired);
                return;
            }
        }
    }
}

const _: () = assert!(CAPACITY + HEADER_SIZE == PAGE_SIZE);
