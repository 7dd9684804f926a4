//! The edge to the file.

use crate::io::IoFailure;
use crate::map::Map;
use crate::read_around::{BLOCK_BYTES, ReadAround};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

/// The file as the index sees it. The shell gives [`MappedFile`], the simulator one over [`Map::anonymous`].
pub trait PageFile: Send + Sync {
    /// The address range through which pages are read. A completed write shows in it.
    fn map(&self) -> &Map;
    /// Reads `into.len()` bytes at `offset`; may block. Afterwards the map shows the same bytes (a simulated file
    /// stores them there).
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), IoFailure>;
    /// Reads as [`PageFile::read`] does, but only what needs no waiting, such as what the kernel has in its cache; false,
    /// with anything in `into`, where the caller must wait.
    fn read_cached(&self, offset: u64, into: &mut [u8]) -> Result<bool, IoFailure> {
        let _ = (offset, into);
        Ok(false)
    }
    /// The file's length in bytes.
    fn len_bytes(&self) -> u64;
}

/// A real file, mapped.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    map: Map,
    around: ReadAround,
}

impl MappedFile {
    /// Maps an open file over `reserve_bytes` of addresses (a multiple of the page size; see
    /// [`limits::RESERVE_BYTES`](crate::limits::RESERVE_BYTES)), up to which the index may grow.
    pub fn new(file: File, reserve_bytes: usize) -> io::Result<MappedFile> {
        let map = Map::of_file(&file, reserve_bytes)?;
        // A wish: a file system that knows nothing of it reads ahead as it likes.
        let _ = fadvise(&file, 0, None, Advice::Random);
        Ok(MappedFile { file, map, around: ReadAround::default() })
    }

    /// The file, for the shell's writes.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl PageFile for MappedFile {
    fn map(&self) -> &Map {
        &self.map
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), IoFailure> {
        if let Some(start) = self.around.handle_miss(offset) {
            let _ = fadvise(&self.file, start, NonZeroU64::new(BLOCK_BYTES), Advice::WillNeed);
        }
        self.file.read_exact_at(into, offset).map_err(|error| IoFailure::of(&error))
    }

    fn read_cached(&self, offset: u64, into: &mut [u8]) -> Result<bool, IoFailure> {
        let len = into.len();
        let mut into = [IoSliceMut::new(into)];
        match rustix::io::preadv2(&self.file, &mut into, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read == len),
            // The kernel would have to wait, or can't tell.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(false),
            Err(error) => Err(IoFailure::of(&error.into())),
        }
    }

    fn len_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }
}

/// No file at all: an index over it lives in memory alone, and must not be checkpointed. For tests and benchmarks.
#[derive(Debug)]
pub struct NoFile(Map);

impl NoFile {
    /// Reserves `reserve_bytes` of addresses, a multiple of the page size.
    ///
    /// # Errors
    /// When the addresses can't be had.
    pub fn new(reserve_bytes: usize) -> io::Result<NoFile> {
        Map::anonymous(reserve_bytes).map(NoFile)
    }
}

impl PageFile for NoFile {
    fn map(&self) -> &Map {
        &self.0
    }

    fn read(&self, _offset: u64, _into: &mut [u8]) -> Result<(), IoFailure> {
        Err(IoFailure::Errno(5))
    }

    fn len_bytes(&self) -> u64 {
        0
    }
}
