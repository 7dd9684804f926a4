//! The log's files: carries out the log's effects with O_DIRECT and io_uring, or buffered where that is refused.
//!
//! Every write is synchronous, by itself or by an fdatasync linked to it, whichever is the faster one just then: its
//! completion means that the bytes are durable. A segment is preallocated and zero-filled before it is first used, so a
//! write changes no metadata.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::future::Future;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use garboard_executor::{AlignedBuffer, File, blocking, sleep};

use super::data_dir::segment_path;
use super::files;
use super::sync_choice::SyncChoice;

/// Zeros written at once while a segment is prepared.
const FILL_CHUNK_BYTES: usize = 1 << 20;

/// How long an earlier server's writes are waited for, and how often they are looked at.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// Write buffers that are kept for the next write.
const KEPT_BUFFERS: usize = 4;
/// Larger ones are given back.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// The open files of a log.
#[derive(Clone)]
pub struct LogFiles(Rc<Inner>);

struct Inner {
    folder: PathBuf,
    sync_choice: RefCell<SyncChoice>,
    started: Instant,
    /// Whether the file system refused O_DIRECT.
    buffered: Cell<bool>,
    warned: Cell<bool>,
    open: RefCell<HashMap<(u16, u64), Rc<File>>>,
    buffers: RefCell<Vec<AlignedBuffer>>,
}

impl LogFiles {
    /// The files below a log's folder.
    pub fn new(folder: PathBuf) -> LogFiles {
        LogFiles(Rc::new(Inner {
            folder,
            sync_choice: RefCell::default(),
            started: Instant::now(),
            buffered: Cell::new(false),
            warned: Cell::new(false),
            open: RefCell::new(HashMap::new()),
            buffers: RefCell::default(),
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
        blocking(work).await?;
        self.open(shard, segment).await
    }

    /// Opens a segment that exists.
    ///
    /// # Errors
    /// What the file system answers.
    pub async fn open(&self, shard: u16, segment: u64) -> io::Result<()> {
        let path = self.path(shard, segment);
        let file = match self.open_direct(&path).await? {
            Some(file) => file,
            None => open_file(&path, false).await?,
        };
        let file = File::from(file);
        lock(&file, &path).await?;
        self.0.open.borrow_mut().insert((shard, segment), Rc::new(file));
        Ok(())
    }

    /// The file without the page cache, or `None` where the file system has no such mode.
    async fn open_direct(&self, path: &Path) -> io::Result<Option<fs::File>> {
        if self.0.buffered.get() {
            return Ok(None);
        }
        match open_file(path, true).await {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                self.warn_buffered(path);
                self.0.buffered.set(true);
                Ok(None)
            }
            outcome => outcome.map(Some),
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
                fs::File::open(path)?.sync_data()?;
            }
            let mut folders: Vec<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
            folders.dedup();
            folders.into_iter().try_for_each(files::sync_folder)
        };
        blocking(work).await
    }

    /// A buffer for a write of `len` bytes, to be filled.
    pub fn buffer(&self, len: usize) -> AlignedBuffer {
        let mut kept = self.0.buffers.borrow_mut();
        match kept.iter_mut().position(|buffer| buffer.set_len(len)) {
            Some(position) => kept.swap_remove(position),
            None => AlignedBuffer::zeroed(len),
        }
    }

    /// Begins to write a whole buffer, durably.
    ///
    /// # Errors
    /// What the device answers; `WriteZero` for a short write. The caller must not write again: the first failure ends
    /// the process.
    pub fn write(
        &self,
        shard: u16,
        segment: u64,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let len = buffer.len();
        let file = self.0.open.borrow().get(&(shard, segment)).cloned();
        let begun = self.0.started.elapsed();
        let form = self.0.sync_choice.borrow().form(begun);
        let under_way = file.map(|file| file.write(buffer, offset, form));
        let files = self.clone();
        async move {
            let (outcome, buffer) = under_way.ok_or(io::ErrorKind::NotFound)?.await;
            let ended = files.0.started.elapsed();
            files.0.sync_choice.borrow_mut().handle_done(ended, form, ended.saturating_sub(begun));
            files.keep(buffer);
            if outcome? != len {
                return Err(io::Error::new(io::ErrorKind::WriteZero, "short write"));
            }
            Ok(())
        }
    }

    /// Keeps a buffer for the next write.
    fn keep(&self, buffer: AlignedBuffer) {
        let mut kept = self.0.buffers.borrow_mut();
        if kept.len() < KEPT_BUFFERS && buffer.capacity() <= KEPT_BUFFER_BYTES {
            kept.push(buffer);
        }
    }

    /// Replaces the manifest, durably.
    ///
    /// # Errors
    /// What the file system answers; the old one stands then.
    pub async fn write_manifest(&self, bytes: Vec<u8>) -> io::Result<()> {
        let path = self.0.folder.join("manifest");
        blocking(move || files::write_durably(&path, &bytes)).await
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
        blocking(work).await
    }
}

async fn open_file(path: &Path, direct: bool) -> io::Result<fs::File> {
    let path = path.to_path_buf();
    blocking(move || {
        let flags = if direct { rustix::fs::OFlags::DIRECT } else { rustix::fs::OFlags::empty() };
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
    })
    .await
}

/// Locks an open segment, and waits for the lock where an earlier server still holds it. A killed server's writes can be
/// on their way to the device after its process is gone; each holds on to its file, and so to this lock. Nobody reads or
/// writes a segment before the last of them is done.
async fn lock(file: &File, path: &Path) -> io::Result<()> {
    let mut waited = Duration::ZERO;
    loop {
        match rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
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
