//! The index's file: carries out checkpoint writes on a thread that may block, one at a time and paced, so that the log's
//! writes never stand behind a long flush.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files;

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

    /// Writes bytes and has the kernel hand them to the device. With `wait` it waits for that, so that little is on its way
    /// at any time and a later sync finds little left to do. They are not durable before that sync.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn write(&self, offset: u64, bytes: &[u8], wait: bool) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        write_back(&self.file, offset, bytes.len(), wait)
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    /// What the device answers; it must not be asked again.
    pub fn sync(&self) -> io::Result<()> {
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
