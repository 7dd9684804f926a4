//! Effects on their way to the disk and back.

use std::sync::{Arc, Mutex, MutexGuard};

use garboard_simdisk::{Disk, DiskError, WriteId};
use garboard_storage::{IndexIo, IoFailure, IoId, IoOp, Map, PageFile, PageId, Snapshot};
use garboard_wal as wal;

use super::{INDEX_FILE, Node, Stop};

/// The log's manifest.
pub(super) const MANIFEST: &str = "wal/manifest";
const MANIFEST_TEMPORARY: &str = "wal/manifest.tmp";
const SECTOR: usize = garboard_simdisk::SECTOR_SIZE;

/// The index's file on the simulated disk.
pub struct SimFile {
    disk: Arc<Mutex<Disk>>,
    map: Map,
}

impl SimFile {
    pub(super) fn new(disk: &Arc<Mutex<Disk>>) -> Arc<SimFile> {
        let map = Map::anonymous(super::RESERVE_BYTES).expect("addresses can be reserved");
        Arc::new(SimFile { disk: Arc::clone(disk), map })
    }
}

impl PageFile for SimFile {
    fn map(&self) -> &Map {
        &self.map
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), IoFailure> {
        let mut disk = self.disk.lock().expect("one thread");
        disk.read(INDEX_FILE, offset, into).map_err(|_| IoFailure::Errno(5))?;
        self.map.store(offset, into);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.disk.lock().expect("one thread").size(INDEX_FILE).unwrap_or(0)
    }
}

/// What is under way.
#[derive(Debug)]
pub(super) enum Pending {
    /// A file is made durable under its temporary name, then gets its own.
    Rename { op: wal::OpId, from: String, to: String, written: Result<(), DiskError> },
    /// Names are made durable.
    Names { op: wal::OpId },
    /// A batch of the log.
    Write { op: wal::OpId, write: Result<WriteId, DiskError> },
    /// An effect of the index; a write was handed to the disk when it began.
    Index { id: IoId, op: IoOp, written: Result<(), DiskError> },
    /// The member needs a page.
    Page(PageId),
    /// A reader needs a page.
    ReaderPage { page: PageId, _pin: Snapshot, token: u64 },
}

/// A batch of the log that was handed to the disk.
#[derive(Debug)]
pub(super) struct LogWrite {
    op: wal::OpId,
    /// The first entry in it, which takes the place of whatever stood there and behind.
    pub(super) first_index: Option<u64>,
    /// The index and term of the last entry in it.
    last: Option<(u64, u64)>,
    done: bool,
}

fn log_error(error: DiskError) -> wal::DiskError {
    match error {
        DiskError::Full => wal::DiskError::Full,
        DiskError::ShortWrite { bytes } => wal::DiskError::Short { bytes },
        _ => wal::DiskError::Io { errno: 5 },
    }
}

fn index_error(error: DiskError) -> IoFailure {
    match error {
        DiskError::Full => IoFailure::NoSpace,
        _ => IoFailure::Errno(5),
    }
}

/// A segment's file.
pub(super) fn segment_name(shard: u16, segment: u64) -> String {
    format!("wal/shard-{shard:04}/segment-{segment:08}")
}

impl Node {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("one thread")
    }

    pub(super) fn start_log(&mut self, effect: wal::Effect) {
        match effect {
            wal::Effect::WriteManifest { op, bytes } => {
                let written = write_manifest(&mut self.disk(), &bytes);
                let (from, to) = (MANIFEST_TEMPORARY.to_owned(), MANIFEST.to_owned());
                self.start(Pending::Rename { op, from, to, written });
            }
            wal::Effect::PrepareSegment { op, shard, segment, size_bytes } => {
                let to = segment_name(shard, segment);
                let from = format!("{to}.tmp");
                let written = self.disk().create(&from, size_bytes);
                self.start(Pending::Rename { op, from, to, written });
            }
            wal::Effect::Write { op, shard, segment, offset, len } => {
                if !self.served && self.has_peers() {
                    self.insist_on_served();
                }
                if self.is_clearing {
                    self.end_clearing();
                }
                let mut bytes = vec![0; len];
                self.member.fill(op, &mut bytes);
                self.note_batch(op, &bytes);
                let write = self.disk().submit(&segment_name(shard, segment), offset, &bytes);
                self.start(Pending::Write { op, write });
            }
            wal::Effect::Remove { op, shard, segment } => {
                self.disk().remove(&segment_name(shard, segment)).expect("what is removed is there");
                self.start(Pending::Names { op });
            }
        }
    }

    fn note_batch(&mut self, op: wal::OpId, bytes: &[u8]) {
        // A seal stands outside the chain.
        let Some(entries) = wal::entries_of_batch(self.log_id, bytes) else { return };
        let (first, last) = (entries.first(), entries.last());
        let (first_index, last) = (first.map(|entry| entry.index), last.map(|entry| (entry.index, entry.term)));
        self.writes.push_back(LogWrite { op, first_index, last, done: false });
        self.logged.extend(entries);
    }

    pub(super) fn start_index(&mut self, io: IndexIo) {
        let written = match &io.op {
            IoOp::Write { offset, bytes } => self.disk().write(INDEX_FILE, *offset, bytes),
            IoOp::Sync | IoOp::Grow { .. } => Ok(()),
        };
        self.start(Pending::Index { id: io.id, op: io.op, written });
    }

    /// Something that was under way is done.
    pub(super) fn complete(&mut self, pending: Pending) -> Result<(), Stop> {
        match pending {
            Pending::Rename { op, from, to, written } => self.complete_rename(op, &from, &to, written),
            Pending::Names { op } => {
                let result = self.disk().sync_folder();
                self.log_done(op, result)
            }
            Pending::Write { op, write } => {
                let result = match write {
                    Ok(_) if self.sabotage.early_completion => Ok(()),
                    Ok(write) => self.complete_write(op, write),
                    Err(error) => Err(error),
                };
                self.log_done(op, result)
            }
            Pending::Index { id, op, written } => {
                let result = written.and_then(|()| self.complete_index(&op));
                let now = self.clock();
                Ok(self.member.handle_index_done(now, id, result.map_err(index_error))?)
            }
            Pending::Page(page) => {
                self.member.reader().load(page)?;
                let now = self.clock();
                self.member.handle_page_loaded(now, page);
                Ok(())
            }
            Pending::ReaderPage { page, token, .. } => {
                self.member.reader().load(page)?;
                self.loaded.push(token);
                Ok(())
            }
        }
    }

    fn complete_rename(
        &mut self,
        op: wal::OpId,
        from: &str,
        to: &str,
        written: Result<(), DiskError>,
    ) -> Result<(), Stop> {
        let result = {
            let mut disk = self.disk();
            written.and_then(|()| disk.sync(from)).and_then(|()| disk.rename(from, to)).inspect_err(|_| {
                // A manifest or segment that did not come about leaves nothing behind.
                let _ = disk.remove(from);
            })
        };
        match result {
            Ok(()) => self.start(Pending::Names { op }),
            Err(error) => return self.log_done(op, Err(error)),
        }
        Ok(())
    }

    fn complete_write(&mut self, op: wal::OpId, write: WriteId) -> Result<(), DiskError> {
        self.disk().complete(write)?;
        if let Some(done) = self.writes.iter_mut().find(|write| write.op == op) {
            done.done = true;
        }
        while let Some(write) = self.writes.pop_front_if(|write| write.done) {
            if let Some((index, term)) = write.last {
                self.note_durable(term, index);
            }
        }
        Ok(())
    }

    fn complete_index(&mut self, op: &IoOp) -> Result<(), DiskError> {
        match op {
            IoOp::Write { offset, bytes } => {
                self.file.map.store(*offset, bytes);
                Ok(())
            }
            IoOp::Sync => self.disk().sync(INDEX_FILE),
            IoOp::Grow { new_size } => {
                let mut disk = self.disk();
                disk.allocate(INDEX_FILE, *new_size).and_then(|()| disk.sync(INDEX_FILE))
            }
        }
    }

    fn log_done(&mut self, op: wal::OpId, result: Result<(), DiskError>) -> Result<(), Stop> {
        let now = self.clock();
        Ok(self.member.handle_log_done(now, op, result.map_err(log_error))?)
    }
}

fn write_manifest(disk: &mut Disk, bytes: &[u8]) -> Result<(), DiskError> {
    let mut block = bytes.to_vec();
    block.resize(bytes.len().next_multiple_of(SECTOR), 0);
    let size = u64::try_from(block.len()).expect("small");
    disk.create(MANIFEST_TEMPORARY, size)?;
    disk.write(MANIFEST_TEMPORARY, 0, &block)
}
