//! The log's files: carries out the log's effects with O_DIRECT and io_uring, or buffered where that is refused.
//!
//! Every write is synchronous, by O_DSYNC or by an fdatasync behind it, whichever the probe at start found better: its
//! completion means that the bytes are durable. A segment is preallocated and zero-filled before it is first used, so a
//! write changes no metadata.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use glommio::GlommioError;
use glommio::io::{BufferedFile, DmaBuffer, DmaFile};
use glommio::timer::sleep;

use super::data_dir::segment_path;
use super::files;
use super::probe::SyncForm;

/// Zeros written at once while a segment is prepared.
const FILL_CHUNK_BYTES: usize = 1 << 20;

/// How long an earlier server's writes are waited for, and how often they are looked at.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// An open segment.
enum SegmentFile {
    Direct(DmaFile),
    Buffered(BufferedFile),
}

impl SegmentFile {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            SegmentFile::Direct(file) => lend(file),
            SegmentFile::Buffered(file) => lend(file),
        }
    }
}

/// A buffer for one write, of the kind its file takes.
pub enum WriteBuffer {
    /// Aligned memory the device reads directly.
    Direct(DmaBuffer),
    /// Memory the kernel copies.
    Buffered(Vec<u8>),
}

impl WriteBuffer {
    /// The bytes to fill.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            WriteBuffer::Direct(buffer) => buffer.as_bytes_mut(),
            WriteBuffer::Buffered(bytes) => bytes,
        }
    }
}

/// The open files of a log.
#[derive(Clone)]
pub struct LogFiles(Rc<Inner>);

struct Inner {
    folder: PathBuf,
    sync_form: SyncForm,
    /// Whether the file system refused O_DIRECT.
    buffered: Cell<bool>,
    warned: Cell<bool>,
    open: RefCell<HashMap<(u16, u64), Rc<SegmentFile>>>,
}

impl LogFiles {
    /// The files below a log's folder.
    pub fn new(folder: PathBuf, sync_form: SyncForm) -> LogFiles {
        LogFiles(Rc::new(Inner {
            folder,
            sync_form,
            buffered: Cell::new(false),
            warned: Cell::new(false),
            open: RefCell::new(HashMap::new()),
        }))
    }

    /// The log's folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Where a segment lies.
    pub fn path(&self, shard: u16, segment: u64) -> PathBuf {
        segment_path(&self.0.folder, shard, segment)
    }

    /// Creates a segment, allocates and zero-fills it, makes it and its name durable, and opens it.
    ///
    /// # Errors
    /// What the file system answers; `StorageFull` when it has no room, in which case nothing is left behind.
    pub async fn prepare(&self, shard: u16, segment: u64, size_bytes: u64) -> io::Result<()> {
        let path = self.path(shard, segment);
        let work = move || create_segment(&path, size_bytes);
        glommio::executor().spawn_blocking(work).await?;
        self.open(shard, segment).await
    }

    /// Opens a segment that exists.
    ///
    /// # Errors
    /// What the file system answers.
    pub async fn open(&self, shard: u16, segment: u64) -> io::Result<()> {
        let path = self.path(shard, segment);
        let file = match self.open_direct(&path).await? {
            Some(file) => SegmentFile::Direct(file),
            None => {
                let file = self.options().buffered_open(&path).await.map_err(into_io)?;
                SegmentFile::Buffered(file)
            }
        };
        lock(&file, &path).await?;
        self.0.open.borrow_mut().insert((shard, segment), Rc::new(file));
        Ok(())
    }

    /// The file without the page cache, or `None` where the file system has no such mode.
    async fn open_direct(&self, path: &Path) -> io::Result<Option<DmaFile>> {
        if self.0.buffered.get() {
            return Ok(None);
        }
        match self.options().dma_open(path).await.map_err(into_io) {
            Ok(file) => {
                // The executor's library gives way by itself on tmpfs.
                let flags = rustix::fs::fcntl_getfl(lend(&file))?;
                if !flags.contains(rustix::fs::OFlags::DIRECT) {
                    self.warn_buffered(path);
                }
                Ok(Some(file))
            }
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                self.warn_buffered(path);
                self.0.buffered.set(true);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Says once that the page cache can't be bypassed here.
    fn warn_buffered(&self, path: &Path) {
        if !self.0.warned.replace(true) {
            tracing::warn!(
                "the file system of {} refuses O_DIRECT; the log goes through the page cache, each write still \
                 followed by a sync",
                path.display()
            );
        }
    }

    /// Makes all that is written in the open segments, and their names, durable. What a killed process wrote last can be
    /// read although its write was never completed; recovery must not build on bytes that a power failure takes back.
    ///
    /// # Errors
    /// What the device answers.
    pub async fn sync_all(&self) -> io::Result<()> {
        let paths: Vec<PathBuf> =
            self.0.open.borrow().keys().map(|(shard, segment)| self.path(*shard, *segment)).collect();
        let work = move || {
            for path in &paths {
                File::open(path)?.sync_data()?;
            }
            let mut folders: Vec<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
            folders.dedup();
            folders.into_iter().try_for_each(files::sync_folder)
        };
        glommio::executor().spawn_blocking(work).await
    }

    /// A buffer for a write of `len` bytes to a segment.
    pub fn buffer(&self, shard: u16, segment: u64, len: usize) -> WriteBuffer {
        match self.file(shard, segment).as_deref() {
            Some(SegmentFile::Direct(file)) => WriteBuffer::Direct(file.alloc_dma_buffer(len)),
            _ => WriteBuffer::Buffered(vec![0; len]),
        }
    }

    /// Writes a whole buffer, durably.
    ///
    /// # Errors
    /// What the device answers; `WriteZero` for a short write. The caller must not write again: the first failure ends
    /// the process.
    pub async fn write(&self, shard: u16, segment: u64, offset: u64, buffer: WriteBuffer) -> io::Result<()> {
        let file = self.file(shard, segment).ok_or(io::ErrorKind::NotFound)?;
        let (written, len) = match (&*file, buffer) {
            (SegmentFile::Direct(file), WriteBuffer::Direct(buffer)) => {
                let len = buffer.len();
                (file.write_at(buffer, offset).await.map_err(into_io)?, len)
            }
            (SegmentFile::Buffered(file), WriteBuffer::Buffered(bytes)) => {
                let len = bytes.len();
                (file.write_at(bytes, offset).await.map_err(into_io)?, len)
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "a buffer of the other kind")),
        };
        if written != len {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "short write"));
        }
        match (self.0.sync_form, &*file) {
            (SyncForm::Dsync, _) => Ok(()),
            (SyncForm::ThenFdatasync, SegmentFile::Direct(file)) => file.fdatasync().await.map_err(into_io),
            (SyncForm::ThenFdatasync, SegmentFile::Buffered(file)) => file.fdatasync().await.map_err(into_io),
        }
    }

    /// Replaces the manifest, durably.
    ///
    /// # Errors
    /// What the file system answers; the old one stands then.
    pub async fn write_manifest(&self, bytes: Vec<u8>) -> io::Result<()> {
        let path = self.0.folder.join("manifest");
        glommio::executor().spawn_blocking(move || files::write_durably(&path, &bytes)).await
    }

    /// Removes a segment.
    ///
    /// # Errors
    /// What the file system answers.
    pub async fn remove(&self, shard: u16, segment: u64) -> io::Result<()> {
        self.0.open.borrow_mut().remove(&(shard, segment));
        let path = self.path(shard, segment);
        let work = move || {
            fs::remove_file(&path)?;
            files::sync_folder(path.parent().unwrap_or(Path::new(".")))
        };
        glommio::executor().spawn_blocking(work).await
    }

    fn options(&self) -> glommio::io::OpenOptions {
        let mut options = glommio::io::OpenOptions::new();
        options.read(true).write(true);
        if self.0.sync_form == SyncForm::Dsync {
            let dsync = i32::try_from(rustix::fs::OFlags::DSYNC.bits()).expect("flags fit the C type");
            options.custom_flags(dsync);
        }
        options
    }

    fn file(&self, shard: u16, segment: u64) -> Option<Rc<SegmentFile>> {
        self.0.open.borrow().get(&(shard, segment)).cloned()
    }
}

/// Locks an open segment, and waits for the lock where an earlier server still holds it. A killed server's writes can be
/// on their way to the device after its process is gone; each holds on to its file, and so to this lock. Nobody reads or
/// writes a segment before the last of them is done.
async fn lock(file: &SegmentFile, path: &Path) -> io::Result<()> {
    let mut waited = Duration::ZERO;
    loop {
        match rustix::fs::flock(file.descriptor(), rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if waited < LOCK_PATIENCE => {
                sleep(LOCK_RETRY).await;
                waited += LOCK_RETRY;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let message = format!(
                    "an earlier server's write to {} is still under way after {LOCK_PATIENCE:?}; the device is stuck",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Lends a descriptor of a file that is not of the standard library's type.
fn lend(file: &impl AsRawFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor stays open for as long as the file is borrowed.
    #[allow(unsafe_code)]
    unsafe {
        BorrowedFd::borrow_raw(file.as_raw_fd())
    }
}

fn into_io<T>(error: GlommioError<T>) -> io::Error {
    match error {
        GlommioError::IoError(error) => error,
        GlommioError::EnhancedIoError { source, .. } => source,
        _ => io::Error::other("the executor refused the operation"),
    }
}

fn create_segment(path: &Path, size_bytes: u64) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    files::create_folder(folder)?;
    // It appears under its name only when it is complete.
    let temporary = path.with_extension("tmp");
    let outcome = fill_segment(&temporary, size_bytes).and_then(|()| fs::rename(&temporary, path));
    if outcome.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    outcome.and_then(|()| files::sync_folder(folder))
}

fn fill_segment(path: &Path, size_bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(files::FILE_MODE).open(path)?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size_bytes) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    let zeros = vec![0; FILL_CHUNK_BYTES];
    let mut offset = 0;
    while offset < size_bytes {
        let len = usize::try_from(size_bytes - offset).map_or(FILL_CHUNK_BYTES, |left| left.min(FILL_CHUNK_BYTES));
        file.write_all_at(&zeros[..len], offset)?;
        // Each chunk goes to the device before the next is written, so that commits never queue behind a long flush.
        file.sync_data()?;
        offset += len as u64;
    }
    file.sync_all()
}
