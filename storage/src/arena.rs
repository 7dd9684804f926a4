//! Memory for changed pages, and where each page's content is now. This is one of the two modules that may use
//! `unsafe`.
#![allow(unsafe_code)]

use crate::codec::{to_u32, to_usize};
use crate::map::{PAGE_SIZE, PageBytes};
use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where a page's content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In the file, not yet verified in this process.
    Unverified,
    /// In the file, verified or written by this process.
    Mapped,
    /// In this frame of the arena.
    Frame(u32),
    /// Nowhere: no root that can be pinned reaches the page.
    Nowhere,
}

impl Place {
    fn decode(word: u32) -> Place {
        match word {
            0 => Place::Unverified,
            1 => Place::Mapped,
            2 => Place::Nowhere,
            word => Place::Frame(word - 3),
        }
    }

    fn encode(self) -> u32 {
        match self {
            Place::Unverified => 0,
            Place::Mapped => 1,
            Place::Nowhere => 2,
            Place::Frame(frame) => frame + 3,
        }
    }
}

/// The frames, and one atomic word a page that says where its content is. Readers share it.
#[derive(Debug)]
pub(crate) struct Arena {
    places: MmapRaw,
    page_count: u32,
    frames: MmapRaw,
    frame_count: u32,
}

impl Arena {
    /// Reserves addresses; memory is taken as it is touched.
    pub(crate) fn new(page_count: u32, frame_count: u32) -> io::Result<Arena> {
        let reserve = |bytes: usize| MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map(MmapRaw::from);
        Ok(Arena {
            places: reserve(to_usize(page_count) * size_of::<AtomicU32>())?,
            page_count,
            frames: reserve(to_usize(frame_count) * PAGE_SIZE)?,
            frame_count,
        })
    }

    fn word(&self, page: u32) -> &AtomicU32 {
        assert!(page < self.page_count, "page {page} lies outside the reserved range");
        // SAFETY: the word lies inside the mapping, which is zeroed, aligned to pages and lives as long as `self`; it
        // is only ever used as an atomic.
        unsafe { &*self.places.as_ptr().cast::<AtomicU32>().add(to_usize(page)) }
    }

    /// Where a page's content is. No page lies outside the reserved range, whatever a pointer says.
    #[inline]
    pub(crate) fn place(&self, page: u32) -> Place {
        if page >= self.page_count {
            return Place::Nowhere;
        }
        Place::decode(self.word(page).load(Ordering::Acquire))
    }

    /// Moves a page; the writer only.
    pub(crate) fn set_place(&self, page: u32, place: Place) {
        self.word(page).store(place.encode(), Ordering::SeqCst);
    }

    /// Notes that a page of the file was verified, unless the writer has moved it meanwhile.
    pub(crate) fn set_verified(&self, page: u32) {
        let from = Place::Unverified.encode();
        // Losing the race means that the page has a new place already, which is as good.
        let _ = self.word(page).compare_exchange(from, Place::Mapped.encode(), Ordering::SeqCst, Ordering::Relaxed);
    }

    /// The content of a frame that a page's place names.
    #[inline]
    pub(crate) fn frame(&self, frame: u32) -> &PageBytes {
        assert!(frame < self.frame_count, "frame {frame} lies outside the arena");
        // SAFETY: the frame lies inside the mapping, which lives as long as `self`. A frame that a reader can reach is
        // not written: `Frames` writes private ones only, and a frame becomes private again only after every reader
        // that could reach it has unpinned its root. The writer itself borrows its whole state to read or to write.
        unsafe { &*self.frames.as_ptr().add(to_usize(frame) * PAGE_SIZE).cast::<PageBytes>() }
    }

    /// Gives the memory of free frames back to the kernel; they read as zeros until they are written again.
    fn discard(&self, first: u32, count: u32) {
        let (start, len) = (to_usize(first) * PAGE_SIZE, to_usize(count.min(self.frame_count - first)) * PAGE_SIZE);
        // SAFETY: the frames lie inside the mapping and are free: no page is in them, so that nobody holds a reference
        // into them, and whoever takes one writes it before anyone reads it.
        let discarded = unsafe { self.frames.unchecked_advise_range(UncheckedAdvice::DontNeed, start, len) };
        // What the kernel does not take back stays usable.
        debug_assert!(discarded.is_ok(), "memory of the arena goes back: {discarded:?}");
    }
}

/// Frames of a slab, one bit each of a word: what goes back to the kernel at once.
pub(crate) const SLAB_FRAMES: u32 = u64::BITS;

const WORD_BITS: usize = u64::BITS as usize;

/// Some adjacent frames.
#[derive(Clone, Copy, Debug)]
struct Slab {
    /// One bit a frame that is free.
    free: u64,
    /// Whether the kernel may hold memory for it.
    resident: bool,
}

impl Slab {
    fn is_free(&self) -> bool {
        self.free == u64::MAX
    }
}

/// The writer's side of the arena: which frames are free, and which are still private to it. There is one.
///
/// The lowest free frame is taken first, so that a checkpoint leaves whole slabs free at the arena's end, and their
/// memory can go back.
#[derive(Debug)]
pub(crate) struct Frames {
    slabs: Vec<Slab>,
    /// One bit a slab that has a free frame.
    open: Vec<u64>,
    used: u32,
    /// Slabs that are wholly free and hold memory.
    idle: u32,
    private: Vec<u64>,
    private_list: Vec<u32>,
}

impl Frames {
    /// The writer's side of a new arena, in which nothing is used.
    pub(crate) fn new() -> Frames {
        Frames { slabs: Vec::new(), open: Vec::new(), used: 0, idle: 0, private: Vec::new(), private_list: Vec::new() }
    }

    /// How many frames hold a page.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// How many slabs hold memory and no page.
    #[cfg(test)]
    pub(crate) fn idle_slabs(&self) -> u32 {
        self.idle
    }

    /// Takes a frame, private to the writer until [`Frames::publish`].
    pub(crate) fn take(&mut self, arena: &Arena) -> u32 {
        let number = self.open_slab();
        let slab = &mut self.slabs[number];
        self.idle -= u32::from(slab.is_free() && slab.resident);
        slab.resident = true;
        let bit = slab.free.trailing_zeros();
        slab.free &= slab.free - 1;
        if slab.free == 0 {
            self.open[number / WORD_BITS] &= !(1 << (number % WORD_BITS));
        }
        let frame = to_u32(number) * SLAB_FRAMES + bit;
        assert!(frame < arena.frame_count, "one transaction outgrew the arena of changed pages");
        self.used += 1;
        self.private[number] |= 1 << bit;
        self.private_list.push(frame);
        frame
    }

    /// The lowest slab with a free frame.
    fn open_slab(&mut self) -> usize {
        if let Some(word) = self.open.iter().position(|word| *word != 0) {
            return word * WORD_BITS + to_usize(self.open[word].trailing_zeros());
        }
        let number = self.slabs.len();
        self.slabs.push(Slab { free: u64::MAX, resident: false });
        self.private.push(0);
        self.open.resize(number / WORD_BITS + 1, 0);
        self.open[number / WORD_BITS] |= 1 << (number % WORD_BITS);
        number
    }

    /// Gives a frame back that no reader can reach.
    pub(crate) fn give(&mut self, frame: u32) {
        let (number, bit) = slab_of(frame);
        let slab = &mut self.slabs[number];
        assert!(slab.free & bit == 0, "frame {frame} holds a page");
        slab.free |= bit;
        self.idle += u32::from(slab.is_free());
        self.open[number / WORD_BITS] |= 1 << (number % WORD_BITS);
        self.used -= 1;
        self.private[number] &= !bit;
    }

    /// Gives the memory of one free slab, the highest one, back to the kernel if more than `keep` hold some.
    pub(crate) fn trim(&mut self, arena: &Arena, keep: u32) {
        if self.idle <= keep {
            return;
        }
        let number = self.slabs.iter().rposition(|slab| slab.is_free() && slab.resident);
        let number = number.expect("the count of idle slabs says that there is one");
        self.slabs[number].resident = false;
        self.idle -= 1;
        arena.discard(to_u32(number) * SLAB_FRAMES, SLAB_FRAMES);
    }

    /// From now on readers may reach the frames taken so far.
    pub(crate) fn publish(&mut self) {
        for frame in self.private_list.drain(..) {
            let (number, bit) = slab_of(frame);
            self.private[number] &= !bit;
        }
    }

    /// Writes to a private frame.
    pub(crate) fn write<'a>(&'a mut self, arena: &'a Arena, frame: u32) -> &'a mut PageBytes {
        let (number, bit) = slab_of(frame);
        assert!(self.private[number] & bit != 0, "a frame that readers may reach is never written");
        assert!(frame < arena.frame_count, "frame {frame} lies outside the arena");
        // SAFETY: the frame lies inside the mapping, which lives as long as `arena`. It is private: no published root
        // leads a reader to it, `self` is the arena's only writer and is borrowed mutably for as long as the result
        // lives, and the writer's own walks borrow the state that `self` is a part of.
        unsafe { &mut *arena.frames.as_mut_ptr().add(to_usize(frame) * PAGE_SIZE).cast::<PageBytes>() }
    }
}

/// Where a frame's bit is.
fn slab_of(frame: u32) -> (usize, u64) {
    (to_usize(frame / SLAB_FRAMES), 1 << (frame % SLAB_FRAMES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_frame_is_taken_first_and_memory_of_free_slabs_goes_back_down_to_what_is_kept() {
        let arena = Arena::new(1, 64 * SLAB_FRAMES).unwrap();
        let mut frames = Frames::new();
        let taken: Vec<u32> = (0..10 * SLAB_FRAMES).map(|_| frames.take(&arena)).collect();
        assert_eq!(taken, (0..10 * SLAB_FRAMES).collect::<Vec<_>>());
        for frame in &taken {
            frames.write(&arena, *frame).fill(7);
        }
        frames.publish();
        for frame in taken.iter().rev().filter(|frame| **frame != 5) {
            frames.give(*frame);
        }
        assert_eq!((frames.used(), frames.idle_slabs()), (1, 9));
        for _ in 0..20 {
            frames.trim(&arena, 2);
        }
        assert_eq!(frames.idle_slabs(), 2);
        let content = |slab: u32| arena.frame(slab * SLAB_FRAMES + 5)[9];
        assert_eq!((0..10).map(content).collect::<Vec<_>>(), [7, 7, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(frames.take(&arena), 0);
        assert_eq!(frames.take(&arena), 1);
    }
}
