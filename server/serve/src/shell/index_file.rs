//! The index's file: carries out checkpoint writes on a thread that may block, one at a time and paced, so that the log's
//! writes never stand behind a long flush.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use garboard_storage::PAGE_SIZE;

use super::files;
use crate::canary::{self, Canary};

/// Bytes of the meta pages, at the start of the file.
const META_BYTES: u64 = 4 * 4096;

/// The pages at the file's start that say which checkpoint counts.
const HEAD_BYTES: u64 = 4 * PAGE_SIZE as u64;

/// The index's file, open for writing.
#[derive(Clone, Debug)]
pub struct IndexFile {
    path: PathBuf,
    file: Arc<File>,
}

impl IndexFile {
    /// Creates the file, empty, and makes its name durable.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn create(path: &Path) -> io::Result<IndexFile> {
        if let Some(folder) = path.parent() {
            files::create_folder(folder)?;
        }
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(files::FILE_MODE).open(path)?;
        file.sync_all()?;
        files::sync_folder(path.parent().unwrap_or(Path::new(".")))?;
        Ok(IndexFile { path: path.to_path_buf(), file: Arc::new(file) })
    }

    /// Opens the file.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn open(path: &Path) -> io::Result<IndexFile> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(IndexFile { path: path.to_path_buf(), file: Arc::new(file) })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets go of what the page cache holds of the file and the device does not. Where a write-back failed, the kernel
    /// takes the pages for clean: they can be read for as long as they stay in memory, every later sync succeeds, and a
    /// power failure takes them back. A meta page on the device, which was written behind a sync of all that it leads to,
    /// vouches for the rest; so the meta pages alone are compared.
    ///
    /// # Errors
    /// What the file system answers, or that the device does not give what the cache holds.
    pub fn forget_unwritten(&self) -> io::Result<()> {
        if self.is_head_written()? {
            return Ok(());
        }
        tracing::warn!(
            "{}: an earlier process failed to write what is cached of it; dropping that",
            self.path.display()
        );
        rustix::fs::fadvise(&*self.file, 0, None, rustix::fs::Advice::DontNeed)?;
        match self.is_head_written()? {
            true => Ok(()),
            false => Err(io::Error::other("the page cache holds what the device does not, and keeps it")),
        }
    }

    /// Whether the file's first pages are on the device as they are in the page cache. Where the file system can't read
    /// past the cache there is nothing to compare.
    fn is_head_written(&self) -> io::Result<bool> {
        let len = usize::try_from(self.file.metadata()?.len().min(HEAD_BYTES)).expect("a few pages");
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.path);
        let direct = match direct {
            Ok(file) => file,
            Err(error) if is_refused(&error) => return Ok(true),
            Err(error) => return Err(error),
        };
        let mut memory = vec![0; len + PAGE_SIZE];
        let start = memory.as_ptr().align_offset(PAGE_SIZE);
        let written = &mut memory[start..start + len];
        match direct.read_exact_at(written, 0) {
            Ok(()) => {}
            Err(error) if is_refused(&error) => return Ok(true),
            Err(error) => return Err(error),
        }
        let mut cached = vec![0; len];
        self.file.read_exact_at(&mut cached, 0)?;
        Ok(cached == *written)
    }

    /// Writes bytes and has the kernel hand them to the device. With `wait` it waits for that, so that little is on its way
    /// at any time and a later sync finds little left to do. They are not durable before that sync.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn write(&self, offset: u64, bytes: &[u8], wait: bool) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        if canary::is_on(Canary::PagesLeftInCache) && offset >= META_BYTES {
            return Ok(());
        }
        write_back(&self.file, offset, bytes.len(), wait)
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    /// What the device answers; it must not be asked again.
    pub fn sync(&self) -> io::Result<()> {
        if canary::is_on(Canary::PagesLeftInCache) {
            return Ok(());
        }
        self.file.sync_data()
    }

    /// Allocates the file up to a size.
    ///
    /// # Errors
    /// `StorageFull` when the file system has no room; the file is as before then.
    pub fn grow(&self, size_bytes: u64) -> io::Result<()> {
        let now = self.file.metadata()?.len();
        if size_bytes <= now {
            return Ok(());
        }
        match rustix::fs::fallocate(&*self.file, rustix::fs::FallocateFlags::empty(), now, size_bytes - now) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(size_bytes)?,
            Err(error) => return Err(error.into()),
        }
        self.file.sync_all()
    }
}

/// Whether a file system has no direct reads.
fn is_refused(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

/// Has the kernel write a range back, and waits for it if asked to.
///
/// # Errors
/// What the device answers. It must not be passed over: the kernel tells an open file of a failed write once, and a later
/// sync would succeed.
#[allow(unsafe_code)]
fn write_back(file: &File, offset: u64, len: usize, wait: bool) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let offset = i64::try_from(offset).map_err(io::Error::other)?;
    let len = i64::try_from(len).map_err(io::Error::other)?;
    let waits = if wait { libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER } else { 0 };
    let flags = libc::SYNC_FILE_RANGE_WRITE | waits;
    // SAFETY: the descriptor is open for the length of the call, and no memory is passed.
    let outcome = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_page_cache_holds_and_the_device_too_is_kept() {
        let folder = std::env::temp_dir().join(format!("garboard-index-file-{}", std::process::id()));
        let file = IndexFile::create(&folder.join("index")).unwrap();
        file.forget_unwritten().unwrap();
        file.grow(1 << 20).unwrap();
        file.write(4096, &[7; 4096], true).unwrap();
        file.sync().unwrap();
        let again = IndexFile::open(file.path()).unwrap();
        again.forget_unwritten().unwrap();
        let mut page = [0; 4096];
        again.file().read_exact_at(&mut page, 4096).unwrap();
        assert_eq!(page, [7; 4096]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
