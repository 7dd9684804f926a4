//! The disk: names, writes, syncs, crashes and planned faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::file::{File, Sector};
use crate::{Rng, SECTOR_SIZE};

const SECTOR_BYTES: u64 = 512;
const _: () = assert!(SECTOR_SIZE == 512);

/// What the disk answers instead of doing what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The device failed the write; any part of it may be on the disk.
    #[error("input/output error while writing")]
    Write,
    /// Only the first `bytes` were written.
    #[error("short write: {bytes} bytes")]
    ShortWrite {
        /// How many bytes were written.
        bytes: usize,
    },
    /// The sync failed; what was cached may never become durable.
    #[error("input/output error while syncing")]
    Sync,
    /// A sector could not be read.
    #[error("input/output error while reading sector {sector}")]
    Read {
        /// The first sector that could not be read.
        sector: u64,
    },
    /// No space is left.
    #[error("no space left on device")]
    Full,
    /// There is no file of that name.
    #[error("no such file")]
    NotFound,
}

/// The operations that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// [`Disk::write`], [`Disk::submit`] and [`Disk::write_durable`].
    Write,
    /// [`Disk::sync`], [`Disk::sync_folder`], and [`Disk::complete`].
    Sync,
    /// [`Disk::read`].
    Read,
    /// [`Disk::create`] and [`Disk::allocate`].
    Allocate,
}

/// How a planned operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An input/output error. A write that fails leaves its sectors in the cache, as unsynced ones.
    Error,
    /// A write stops after this many bytes (rounded down to sectors).
    Short(usize),
    /// No space is left.
    Full,
}

/// What rot makes of a sector that was durable.
#[derive(Clone, Copy)]
pub enum Rot<'a> {
    /// One bit changes; the bit number is taken modulo the bits of a sector.
    Flip(usize),
    /// The sector reads as zeros.
    Zero,
    /// The sector is what it was in an older image of this disk: a write that was acknowledged and lost.
    Stale(&'a Disk),
    /// The sector holds what belongs to another one: a misdirected write.
    Misdirected {
        /// The file whose sector landed here.
        file: &'a str,
        /// The sector that landed here.
        sector: u64,
    },
    /// Reading the sector fails.
    Unreadable,
}

/// Which unsynced sectors a crash keeps.
#[derive(Debug, Clone, Copy)]
pub enum Kept<'a> {
    /// None of them.
    Nothing,
    /// All of them.
    Everything,
    /// Bit `i` says whether the i-th unsynced sector (in the order of writing) is kept; those past the 64th are lost.
    Bits(u64),
    /// One value for each unsynced sector; those past the end are lost.
    Mask(&'a [bool]),
    /// Each with an even chance, from this seed.
    Random(u64),
}

impl Kept<'_> {
    fn choose(self, count: usize) -> Vec<bool> {
        match self {
            Kept::Nothing => vec![false; count],
            Kept::Everything => vec![true; count],
            Kept::Bits(bits) => (0..count).map(|at| at < 64 && bits >> at & 1 == 1).collect(),
            Kept::Mask(mask) => (0..count).map(|at| mask.get(at).copied().unwrap_or(false)).collect(),
            Kept::Random(seed) => {
                let mut rng = Rng::new(seed);
                (0..count).map(|_| rng.chance(50)).collect()
            }
        }
    }
}

/// Names a write that was submitted and not completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

type FileId = u64;

/// One version of one sector that is cached and not durable.
#[derive(Clone)]
struct Unsynced {
    write: WriteId,
    file: FileId,
    sector: u64,
    bytes: Arc<Sector>,
    /// A sync of it failed: no later sync writes it.
    abandoned: bool,
}

/// A metadata operation that is not durable.
#[derive(Clone)]
enum Metadata {
    Link { name: String, file: FileId },
    Unlink { name: String },
    Rename { from: String, to: String },
    Resize { file: FileId, size: u64 },
}

/// A simulated disk. See the crate's fault model.
#[derive(Clone, Default)]
pub struct Disk {
    files: BTreeMap<FileId, Arc<File>>,
    names: BTreeMap<String, FileId>,
    durable_names: BTreeMap<String, FileId>,
    unsynced: Vec<Unsynced>,
    metadata: Vec<Metadata>,
    next_id: u64,
    capacity: Option<u64>,
    counts: BTreeMap<Operation, u64>,
    plans: BTreeMap<(Operation, u64), Fault>,
}

/// Names and files.
impl Disk {
    /// An empty disk without a capacity.
    pub fn new() -> Disk {
        Disk::default()
    }

    /// Creates a file of `size` zero bytes. An existing file of that name is replaced by an empty one.
    ///
    /// # Errors
    /// [`DiskError::Full`] when the capacity does not allow it, or as planned.
    pub fn create(&mut self, name: &str, size: u64) -> Result<(), DiskError> {
        let id = self.next_id();
        self.files.insert(id, Arc::new(File::default()));
        self.names.insert(name.to_owned(), id);
        self.metadata.push(Metadata::Link { name: name.to_owned(), file: id });
        self.allocate(name, size)
    }

    /// Grows a file to `size` bytes; the new ones are zeros. Never shrinks it.
    ///
    /// # Errors
    /// [`DiskError::Full`] when the capacity does not allow it, [`DiskError::NotFound`], or as planned.
    ///
    /// # Panics
    /// When `size` is not a multiple of the sector size.
    pub fn allocate(&mut self, name: &str, size: u64) -> Result<(), DiskError> {
        assert!(size.is_multiple_of(SECTOR_BYTES), "sizes are multiples of a sector");
        let id = self.id(name)?;
        if let Some(fault) = self.planned(Operation::Allocate) {
            return Err(if fault == Fault::Full { DiskError::Full } else { DiskError::Write });
        }
        let size_old = self.files[&id].size;
        if size <= size_old {
            return Ok(());
        }
        if self.capacity.is_some_and(|capacity| self.used() + (size - size_old) > capacity) {
            return Err(DiskError::Full);
        }
        self.file_mut(id).size = size;
        self.metadata.push(Metadata::Resize { file: id, size });
        Ok(())
    }

    /// Gives a file another name, replacing what had it.
    ///
    /// # Errors
    /// [`DiskError::NotFound`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let id = self.names.remove(from).ok_or(DiskError::NotFound)?;
        self.names.insert(to.to_owned(), id);
        self.metadata.push(Metadata::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    /// Removes a file.
    ///
    /// # Errors
    /// [`DiskError::NotFound`].
    pub fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.names.remove(name).ok_or(DiskError::NotFound)?;
        self.metadata.push(Metadata::Unlink { name: name.to_owned() });
        Ok(())
    }

    /// The names of all files, in order, with their sizes in bytes.
    pub fn list(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names.iter().map(|(name, id)| (name.as_str(), self.files[id].size))
    }

    /// A file's size in bytes.
    ///
    /// # Errors
    /// [`DiskError::NotFound`].
    pub fn size(&self, name: &str) -> Result<u64, DiskError> {
        Ok(self.files[&self.id(name)?].size)
    }

    /// Makes all names durable, as an fsync of the folder does.
    ///
    /// # Errors
    /// As planned; the names then stay as they were, not durable.
    pub fn sync_folder(&mut self) -> Result<(), DiskError> {
        if self.planned(Operation::Sync).is_some() {
            return Err(DiskError::Sync);
        }
        let (resizes, names) =
            std::mem::take(&mut self.metadata).into_iter().partition(|entry| matches!(entry, Metadata::Resize { .. }));
        self.metadata = resizes;
        let names: Vec<Metadata> = names;
        names.into_iter().for_each(|entry| self.keep(entry));
        debug_assert_eq!(self.names, self.durable_names);
        Ok(())
    }

    /// Bounds the sum of all files' sizes; `None` lifts the bound.
    pub fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity = bytes;
    }

    /// The sum of all named files' sizes, in bytes.
    pub fn used(&self) -> u64 {
        self.names.values().map(|id| self.files[id].size).sum()
    }
}

/// Content.
impl Disk {
    /// Writes into the cache. The range must lie within the file: only [`Disk::allocate`] grows it.
    ///
    /// # Errors
    /// As planned, or [`DiskError::NotFound`].
    ///
    /// # Panics
    /// When the range is not aligned to sectors or exceeds the file.
    pub fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.submit(name, offset, bytes).map(|_| ())
    }

    /// Starts a synchronous write: cached and unsynced until [`Disk::complete`]. Several may be under way.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn submit(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<WriteId, DiskError> {
        let id = self.id(name)?;
        assert!(offset.is_multiple_of(SECTOR_BYTES) && bytes.len().is_multiple_of(SECTOR_SIZE), "writes are aligned");
        let len = u64::try_from(bytes.len()).expect("lengths fit 64 bits");
        assert!(offset + len <= self.files[&id].size, "a write must lie within the file {name}");
        let fault = self.planned(Operation::Write);
        let written = match fault {
            None | Some(Fault::Error) => bytes.len(),
            Some(Fault::Short(count)) => (count / SECTOR_SIZE * SECTOR_SIZE).min(bytes.len()),
            Some(Fault::Full) => 0,
        };
        let write = WriteId(self.next_id());
        for (sector, content) in (offset / SECTOR_BYTES..).zip(bytes[..written].chunks_exact(SECTOR_SIZE)) {
            let file = self.file_mut(id);
            file.cached.write(sector, content);
            // A device puts what is written to a bad sector elsewhere.
            file.unreadable.remove(&sector);
            let bytes = Arc::new(Sector::try_from(content).expect("one sector"));
            self.unsynced.push(Unsynced { write, file: id, sector, bytes, abandoned: false });
        }
        match fault {
            None => Ok(write),
            Some(Fault::Error) => Err(DiskError::Write),
            Some(Fault::Short(_)) => Err(DiskError::ShortWrite { bytes: written }),
            Some(Fault::Full) => Err(DiskError::Full),
        }
    }

    /// Ends a synchronous write: its sectors are durable.
    ///
    /// # Errors
    /// As planned for [`Operation::Sync`]; the sectors then stay unsynced and no later sync writes them.
    pub fn complete(&mut self, write: WriteId) -> Result<(), DiskError> {
        self.sync_where(|entry| entry.write == write)
    }

    /// Writes synchronously: durable when this returns `Ok`. Other cached sectors stay as they are.
    ///
    /// # Errors
    /// As [`Disk::submit`] and [`Disk::complete`].
    pub fn write_durable(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let write = self.submit(name, offset, bytes)?;
        self.complete(write)
    }

    /// Makes durable whatever was written to this file, and its length.
    ///
    /// # Errors
    /// As planned (the cached sectors are then abandoned: see the fault model), or [`DiskError::NotFound`].
    pub fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        let id = self.id(name)?;
        self.sync_where(|entry| entry.file == id)?;
        let of_file = |entry: &Metadata| matches!(entry, Metadata::Resize { file, .. } if *file == id);
        let (sizes, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.metadata).into_iter().partition(of_file);
        self.metadata = rest;
        sizes.into_iter().for_each(|entry| self.keep(entry));
        Ok(())
    }

    /// Reads `into.len()` bytes from `offset`, cached writes included. What lies beyond the file reads as zeros.
    ///
    /// # Errors
    /// As planned, [`DiskError::Read`] for a sector made unreadable, or [`DiskError::NotFound`].
    ///
    /// # Panics
    /// When the range is not aligned to sectors.
    pub fn read(&mut self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        let id = self.id(name)?;
        assert!(offset.is_multiple_of(SECTOR_BYTES) && into.len().is_multiple_of(SECTOR_SIZE), "reads are aligned");
        let first = offset / SECTOR_BYTES;
        if self.planned(Operation::Read).is_some() {
            return Err(DiskError::Read { sector: first });
        }
        let file = &self.files[&id];
        for (sector, piece) in (first..).zip(into.chunks_exact_mut(SECTOR_SIZE)) {
            if file.unreadable.contains(&sector) {
                return Err(DiskError::Read { sector });
            }
            file.cached.read(sector, piece);
        }
        Ok(())
    }

    /// Syncs the chosen unsynced sectors, or fails as planned and abandons them.
    fn sync_where(&mut self, chosen: impl Fn(&Unsynced) -> bool) -> Result<(), DiskError> {
        if self.planned(Operation::Sync).is_some() {
            self.unsynced.iter_mut().filter(|entry| chosen(entry)).for_each(|entry| entry.abandoned = true);
            return Err(DiskError::Sync);
        }
        // An older cached version of a sector can no longer reach the disk after a newer one did.
        let mut newest: BTreeMap<(FileId, u64), usize> = BTreeMap::new();
        let mut rest: Vec<(usize, Unsynced)> = Vec::new();
        for (at, entry) in std::mem::take(&mut self.unsynced).into_iter().enumerate() {
            if chosen(&entry) && !entry.abandoned {
                newest.insert((entry.file, entry.sector), at);
                self.file_mut(entry.file).durable.write(entry.sector, &entry.bytes[..]);
            } else {
                rest.push((at, entry));
            }
        }
        let superseded =
            |at: usize, entry: &Unsynced| newest.get(&(entry.file, entry.sector)).is_some_and(|by| at < *by);
        rest.retain(|(at, entry)| !superseded(*at, entry));
        self.unsynced = rest.into_iter().map(|(_, entry)| entry).collect();
        Ok(())
    }
}

/// Crashes, faults and rot.
impl Disk {
    /// How many sector versions are cached and not durable: a crash keeps any subset of them.
    pub fn unsynced_sectors(&self) -> usize {
        self.unsynced.len()
    }

    /// How many metadata operations are not durable: a crash keeps any prefix of them.
    pub fn unsynced_metadata(&self) -> usize {
        self.metadata.len()
    }

    /// Loses power: of the unsynced sectors `kept` survive, of the metadata operations the first `metadata`.
    /// Afterwards everything on the disk is durable. Planned faults and counts are forgotten; the capacity stays.
    pub fn crash(&mut self, kept: Kept<'_>, metadata: usize) {
        let choices = kept.choose(self.unsynced.len());
        for (entry, keep) in std::mem::take(&mut self.unsynced).into_iter().zip(choices) {
            if keep {
                self.file_mut(entry.file).durable.write(entry.sector, &entry.bytes[..]);
            }
        }
        std::mem::take(&mut self.metadata).into_iter().take(metadata).for_each(|entry| self.keep(entry));
        self.names = self.durable_names.clone();
        let named: std::collections::BTreeSet<FileId> = self.names.values().copied().collect();
        self.files.retain(|id, _| named.contains(id));
        let ids: Vec<FileId> = self.files.keys().copied().collect();
        for id in ids {
            let file = self.file_mut(id);
            file.size = file.durable_size;
            file.durable.truncate(file.size / SECTOR_BYTES);
            file.cached = file.durable.clone();
        }
        self.plans.clear();
        self.counts.clear();
    }

    /// A crash with everything chosen by `rng`.
    pub fn crash_at_random(&mut self, rng: &mut Rng) {
        let metadata = rng.index(self.metadata.len() + 1);
        let kept = match rng.below(4) {
            0 => Kept::Nothing,
            1 => Kept::Everything,
            _ => Kept::Random(rng.next_u64()),
        };
        self.crash(kept, metadata);
    }

    /// Makes the `nth` operation of this kind from now (0 = the next one) fail with `fault`.
    pub fn plan(&mut self, operation: Operation, nth: u64, fault: Fault) {
        let at = self.count(operation) + nth;
        self.plans.insert((operation, at), fault);
    }

    /// Takes back every fault that is planned and has not struck.
    pub fn clear_plans(&mut self) {
        self.plans.clear();
    }

    /// Ends the doubt about sectors whose sync failed: each is on the medium or is not, by chance, and reads show which.
    /// So it is for whoever reads past the cache, and once the cache was dropped.
    pub fn settle_abandoned(&mut self, rng: &mut Rng) {
        let (abandoned, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.unsynced).into_iter().partition(|entry| entry.abandoned);
        self.unsynced = rest;
        for entry in &abandoned {
            if rng.chance(50) {
                self.file_mut(entry.file).durable.write(entry.sector, &entry.bytes[..]);
            }
        }
        for Unsynced { file, sector, .. } in abandoned {
            let mut bytes: Sector = [0; SECTOR_SIZE];
            self.files[&file].durable.read(sector, &mut bytes);
            self.file_mut(file).cached.write(sector, &bytes);
            let mut later = self.unsynced.iter().filter(|entry| (entry.file, entry.sector) == (file, sector));
            if let Some(bytes) = later.next_back().map(|entry| Arc::clone(&entry.bytes)) {
                self.file_mut(file).cached.write(sector, &bytes[..]);
            }
        }
    }

    /// Makes a sector readable again.
    ///
    /// # Errors
    /// [`DiskError::NotFound`].
    pub fn heal(&mut self, name: &str, sector: u64) -> Result<(), DiskError> {
        let id = self.id(name)?;
        self.file_mut(id).unreadable.remove(&sector);
        Ok(())
    }

    /// How many operations of this kind were asked for since the start or the last crash.
    pub fn count(&self, operation: Operation) -> u64 {
        self.counts.get(&operation).copied().unwrap_or(0)
    }

    /// Rots one durable sector. What is cached for it and unsynced is not touched.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] when a named file is not there.
    pub fn rot(&mut self, name: &str, sector: u64, rot: Rot<'_>) -> Result<(), DiskError> {
        let id = self.id(name)?;
        let mut bytes: Sector = [0; SECTOR_SIZE];
        match rot {
            Rot::Flip(bit) => {
                self.files[&id].durable.read(sector, &mut bytes);
                bytes[bit / 8 % SECTOR_SIZE] ^= 1 << (bit % 8);
            }
            Rot::Zero => {}
            Rot::Stale(older) => older.files[&older.id(name)?].durable.read(sector, &mut bytes),
            Rot::Misdirected { file, sector: source } => {
                self.files[&self.id(file)?].durable.read(source, &mut bytes);
            }
            Rot::Unreadable => {
                self.file_mut(id).unreadable.insert(sector);
                return Ok(());
            }
        }
        let cached = self.unsynced.iter().any(|entry| (entry.file, entry.sector) == (id, sector));
        let file = self.file_mut(id);
        file.durable.write(sector, &bytes);
        if !cached {
            file.cached.write(sector, &bytes);
        }
        Ok(())
    }

    /// Makes one metadata operation durable.
    fn keep(&mut self, entry: Metadata) {
        match entry {
            Metadata::Link { name, file } => {
                self.durable_names.insert(name, file);
            }
            Metadata::Unlink { name } => {
                self.durable_names.remove(&name);
            }
            Metadata::Rename { from, to } => {
                if let Some(id) = self.durable_names.remove(&from) {
                    self.durable_names.insert(to, id);
                }
            }
            Metadata::Resize { file, size } => self.file_mut(file).durable_size = size,
        }
    }

    /// Counts an operation and takes the fault planned for it.
    fn planned(&mut self, operation: Operation) -> Option<Fault> {
        let at = self.count(operation);
        self.counts.insert(operation, at + 1);
        self.plans.remove(&(operation, at))
    }

    fn id(&self, name: &str) -> Result<FileId, DiskError> {
        self.names.get(name).copied().ok_or(DiskError::NotFound)
    }

    fn file_mut(&mut self, id: FileId) -> &mut File {
        Arc::make_mut(self.files.get_mut(&id).expect("files are dropped only at a crash, with all that names them"))
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
