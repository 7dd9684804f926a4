//! Memory for changed pages, and where each page's content is now. This is one of the two modules that may use
//! `unsafe`.
#![allow(unsafe_code)]

use crate::codec::to_usize;
use crate::map::{PAGE_SIZE, PageBytes};
use memmap2::{MmapOptions, MmapRaw};
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

    /// Where a page's content is.
    #[inline]
    pub(crate) fn place(&self, page: u32) -> Place {
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
}

/// The writer's side of the arena: which frames are free, and which are still private to it. There is one.
#[derive(Debug)]
pub(crate) struct Frames {
    free: Vec<u32>,
    next_fresh: u32,
    used: u32,
    private: Vec<bool>,
    private_list: Vec<u32>,
}

impl Frames {
    /// The writer's side of a new arena, in which nothing is used.
    pub(crate) fn new() -> Frames {
        Frames { free: Vec::new(), next_fresh: 0, used: 0, private: Vec::new(), private_list: Vec::new() }
    }

    /// How many frames hold a page.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Takes a frame, private to the writer until [`Frames::publish`]. The last one freed comes first: its memory is
    /// warm.
    pub(crate) fn take(&mut self, arena: &Arena) -> u32 {
        let frame = self.free.pop().unwrap_or_else(|| {
            assert!(self.next_fresh < arena.frame_count, "one transaction outgrew the arena of changed pages");
            self.next_fresh += 1;
            self.private.push(false);
            self.next_fresh - 1
        });
        self.used += 1;
        self.private[to_usize(frame)] = true;
        self.private_list.push(frame);
        frame
    }

    /// Gives a frame back that no reader can reach.
    pub(crate) fn give(&mut self, frame: u32) {
        self.used -= 1;
        self.private[to_usize(frame)] = false;
        self.free.push(frame);
    }

    /// From now on readers may reach the frames taken so far.
    pub(crate) fn publish(&mut self) {
        for frame in self.private_list.drain(..) {
            self.private[to_usize(frame)] = false;
        }
    }

    /// Writes to a private frame.
    pub(crate) fn write<'a>(&'a mut self, arena: &'a Arena, frame: u32) -> &'a mut PageBytes {
        assert!(self.private[to_usize(frame)], "a frame that readers may reach is never written");
        assert!(frame < arena.frame_count, "frame {frame} lies outside the arena");
        // SAFETY: the frame lies inside the mapping, which lives as long as `arena`. It is private: no published root
        // leads a reader to it, `self` is the arena's only writer and is borrowed mutably for as long as the result
        // lives, and the writer's own walks borrow the state that `self` is a part of.
        unsafe { &mut *arena.frames.as_mut_ptr().add(to_usize(frame) * PAGE_SIZE).cast::<PageBytes>() }
    }
}
