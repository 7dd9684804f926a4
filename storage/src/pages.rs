//! Pages by their pointers: the one place where content is looked up, verified and read.

use crate::arena::{Arena, Place};
use crate::codec::{to_u64, to_usize};
use crate::entry::SOUND;
use crate::file::PageFile;
use crate::io::{IoFailure, PageError};
use crate::limits;
use crate::map::{PAGE_SIZE, PageBytes};
use crate::page::{self, CAPACITY, Extent, HEADER_SIZE, Kind};
use crate::types::{NeedPage, PageId, Paged};
use std::cmp::Ordering;
use std::sync::Arc;

/// The file and the arena together. Shared by all readers.
pub(crate) struct Pages {
    pub(crate) file: Arc<dyn PageFile>,
    pub(crate) arena: Arena,
    /// Seeds every checksum with the file's identity, so that a page of another file is no page of this one.
    pub(crate) seed: u32,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// Where a page begins in the file.
pub(crate) fn offset_of(number: u32) -> u64 {
    u64::from(number) * to_u64(PAGE_SIZE)
}

/// How many pages an extent of so many bytes has.
pub(crate) fn extent_pages(len: u32) -> u32 {
    crate::codec::to_u32(to_usize(len).div_ceil(CAPACITY))
}

impl Pages {
    /// What the reserved addresses span, which bounds the file.
    pub(crate) fn span_bytes(&self) -> u64 {
        to_u64(self.file.map().page_count() * PAGE_SIZE)
    }

    /// A page that is resident and verified.
    #[inline]
    pub(crate) fn get(&self, id: PageId) -> Paged<&PageBytes> {
        let page = match self.arena.place(id.number) {
            Place::Frame(frame) => self.arena.frame(frame),
            Place::Mapped => self.file.map().page(id.number),
            Place::Unverified | Place::Nowhere => return Err(NeedPage(id)),
        };
        if page::birth(page) == id.birth { Ok(page) } else { Err(NeedPage(id)) }
    }

    /// Reads a page and verifies it, and what follows in the same extent. Blocks.
    pub(crate) fn load(&self, id: PageId) -> Result<(), PageError> {
        let read = |offset, bytes: &mut [u8]| self.file.read(offset, bytes).map(|()| true);
        self.load_by(id, read).map(|loaded| assert!(loaded, "a read that may wait is complete"))
    }

    /// Does as [`Pages::load`] does without waiting; false where it would have to.
    pub(crate) fn load_cached(&self, id: PageId) -> Result<bool, PageError> {
        self.load_by(id, |offset, bytes| self.file.read_cached(offset, bytes))
    }

    /// Loads a page, and what follows in the same extent as far as `read` gives it; false if it does not give the page.
    fn load_by(&self, id: PageId, read: impl Fn(u64, &mut [u8]) -> Result<bool, IoFailure>) -> Result<bool, PageError> {
        let Some(after) = self.load_one(id, &read)? else { return Ok(false) };
        for step in 1..=after.min(limits::READ_AHEAD_PAGES) {
            let next = PageId { number: id.number.saturating_add(step), birth: id.birth };
            if self.arena.place(next.number) == Place::Unverified && self.load_one(next, &read)?.is_none() {
                break;
            }
        }
        Ok(true)
    }

    /// Loads one page; tells how many pages of the same extent follow it, or nothing if `read` does not give it.
    fn load_one(
        &self,
        id: PageId,
        read: impl Fn(u64, &mut [u8]) -> Result<bool, IoFailure>,
    ) -> Result<Option<u32>, PageError> {
        let offset = offset_of(id.number);
        let damaged = |reason| PageError::Damaged { page: id, offset, reason };
        if to_usize(id.number) >= self.file.map().page_count() {
            return Err(damaged("its pointer leads outside the file"));
        }
        match self.arena.place(id.number) {
            Place::Nowhere => return Err(damaged("its pointer leads to a page that is not in use")),
            Place::Mapped | Place::Frame(_) => {
                return self.get(id).map(|_| Some(0)).map_err(|_| damaged("it is another version: a lost write"));
            }
            Place::Unverified => (),
        }
        let mut bytes = [0; PAGE_SIZE];
        if !read(offset, &mut bytes).map_err(|source| PageError::Unreadable { page: id, offset, source })? {
            return Ok(None);
        }
        page::verify(&bytes, id, self.seed).map_err(damaged)?;
        self.arena.set_verified(id.number);
        Ok(Some(if page::is_kind(&bytes, Kind::Extent) { page::extent_pages_after(&bytes) } else { 0 }))
    }

    /// Reads a page of the file again and verifies what can be verified without its pointer. A page that has moved or
    /// died meanwhile is passed by. Blocks.
    pub(crate) fn scrub(&self, number: u32, newest: u64) -> Result<(), PageError> {
        let offset = offset_of(number);
        let place = self.arena.place(number);
        let mut found = Ok(());
        // A page that is written while it is read looks torn, but not time after time.
        for _ in 0..limits::SCRUB_READS {
            if !matches!(place, Place::Mapped | Place::Unverified) {
                return Ok(());
            }
            let page = PageId { number, birth: 0 };
            let mut bytes = [0; PAGE_SIZE];
            found = match self.file.read(offset, &mut bytes) {
                Err(source) => Err(PageError::Unreadable { page, offset, source }),
                Ok(()) => {
                    let birth = page::birth(&bytes);
                    let sound = page::verify(&bytes, PageId { number, birth }, self.seed);
                    let sound = if birth <= newest { sound } else { sound.and(Err("it is younger than the index")) };
                    sound.map_err(|reason| PageError::Damaged { page: PageId { number, birth }, offset, reason })
                }
            };
            if found.is_ok() || self.arena.place(number) != place {
                return Ok(());
            }
        }
        found
    }

    /// The pages of an extent with the bytes that each holds.
    fn extent(&self, extent: Extent) -> impl Iterator<Item = Paged<&[u8]>> {
        let len = to_usize(extent.len);
        (0..extent_pages(extent.len)).map(move |index| {
            let number = extent.first.number.saturating_add(index);
            let page = self.get(PageId { number, birth: extent.first.birth })?;
            assert!(page::is_kind(page, Kind::Extent), "{SOUND}");
            let held = (len - to_usize(index) * CAPACITY).min(CAPACITY);
            Ok(&page[HEADER_SIZE..HEADER_SIZE + held])
        })
    }

    /// Appends an extent from its byte `skip` on to `into`, all or nothing.
    pub(crate) fn read_extent(&self, extent: Extent, skip: usize, into: &mut Vec<u8>) -> Paged<()> {
        let before = into.len();
        let mut skip = skip;
        for part in self.extent(extent) {
            match part {
                Ok(part) => {
                    let skipped = skip.min(part.len());
                    skip -= skipped;
                    into.extend_from_slice(&part[skipped..]);
                }
                Err(need) => {
                    into.truncate(before);
                    return Err(need);
                }
            }
        }
        Ok(())
    }

    /// How `bytes` compares with an extent.
    pub(crate) fn compare_extent(&self, bytes: &[u8], extent: Extent) -> Paged<Ordering> {
        let mut rest = bytes;
        for part in self.extent(extent) {
            let part = part?;
            let (front, behind) = rest.split_at(part.len().min(rest.len()));
            match front.cmp(part) {
                Ordering::Equal => rest = behind,
                order => return Ok(order),
            }
        }
        Ok(if rest.is_empty() { Ordering::Equal } else { Ordering::Greater })
    }
}
