//! The address range through which pages are read. This is one of the two modules that may use `unsafe`.
#![allow(unsafe_code)]

use memmap2::{Advice, MmapOptions, MmapRaw};
use std::fs::File;
use std::io;

/// The size of a page, of the file and of every write.
pub const PAGE_SIZE: usize = 4096;

/// One page's bytes.
pub type PageBytes = [u8; PAGE_SIZE];

/// An address range reserved once, over a file or, for simulation, over plain memory.
///
/// The range may be longer than the file: what lies beyond its end becomes readable as it grows. A page must not be
/// read beyond the file's end, and no page is written while anyone may read it; the index keeps both rules (a page
/// number is reused only when no pinned root can reach its old content).
#[derive(Debug)]
pub struct Map {
    raw: MmapRaw,
    writable: bool,
}

impl Map {
    /// Maps a file read-only over a range of `reserve_bytes`.
    pub fn of_file(file: &File, reserve_bytes: usize) -> io::Result<Map> {
        let raw = MmapOptions::new().len(reserve_bytes).map_raw_read_only(file)?;
        // A page that the kernel took out of memory comes back alone. It is a wish.
        let _ = raw.advise(Advice::Random);
        Ok(Map { raw, writable: false })
    }

    /// Plain zeroed memory, into which the simulated file stores what it reads and writes.
    pub fn anonymous(reserve_bytes: usize) -> io::Result<Map> {
        let raw = MmapOptions::new().len(reserve_bytes).no_reserve_swap().map_anon()?.into();
        Ok(Map { raw, writable: true })
    }

    /// How many pages the range spans.
    pub fn page_count(&self) -> usize {
        self.raw.len() / PAGE_SIZE
    }

    /// The page that an address lies in, for a handler of SIGBUS: a page that the kernel could not read.
    pub fn page_at(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.raw.as_ptr().addr())?;
        if offset < self.raw.len() { u32::try_from(offset / PAGE_SIZE).ok() } else { None }
    }

    /// One page as the mapping shows it. It must lie inside the file.
    pub(crate) fn page(&self, number: u32) -> &PageBytes {
        let index = usize::try_from(number).expect("a page number fits usize");
        assert!(index < self.page_count(), "page {number} lies outside the reserved range");
        // SAFETY: the page lies inside the mapping, which lives as long as `self`; any bytes are a valid array. The
        // index writes no page that a reader may hold (see the type's documentation), so the bytes do not change.
        unsafe { &*self.raw.as_ptr().add(index * PAGE_SIZE).cast::<PageBytes>() }
    }

    /// Stores bytes into an anonymous range, as a simulated write or read does. The caller does it from the thread
    /// that drives the index, at pages that the index asked to write or load.
    pub fn store(&self, offset: u64, bytes: &[u8]) {
        assert!(self.writable, "only an anonymous range is stored into");
        let start = usize::try_from(offset).expect("an offset fits usize");
        assert!(start.checked_add(bytes.len()).is_some_and(|end| end <= self.raw.len()), "outside the reserved range");
        // SAFETY: the range is writable memory of at least this length; the index asks to write or load only pages
        // that no reader holds.
        unsafe { self.raw.as_mut_ptr().add(start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
}
