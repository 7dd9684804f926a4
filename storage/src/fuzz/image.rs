//! A sound index's file in memory, and one that has changed pages over it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::io::{IndexConfig, IoFailure, IoOp};
use crate::map::{Map, PAGE_SIZE, PageBytes};
use crate::types::{Applied, Revision};
use crate::{Index, PageFile};

/// Addresses of the file.
const RESERVE_BYTES: usize = 16 << 20;

/// Pages that differ from the sound file's, by number.
pub(super) type Changes = BTreeMap<u32, Box<PageBytes>>;

/// A file: what was written first, and what changed since.
pub(super) struct MemoryFile {
    map: Map,
    /// The sound file. While it is made, the one that is written.
    base: Mutex<Vec<u8>>,
    changes: Mutex<Changes>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A run that stopped on purpose may have held it; what it guards is whole all the same.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("the file is small")
}

impl MemoryFile {
    fn new() -> MemoryFile {
        let map = Map::anonymous(RESERVE_BYTES).expect("addresses can be reserved");
        MemoryFile { map, base: Mutex::default(), changes: Mutex::default() }
    }

    fn perform(&self, op: &IoOp) {
        let mut base = lock(&self.base);
        match op {
            IoOp::Write { offset, bytes } => {
                base[to_usize(*offset)..to_usize(*offset) + bytes.len()].copy_from_slice(bytes);
                self.map.store(*offset, bytes);
            }
            IoOp::Sync => {}
            IoOp::Grow { new_size } => base.resize(to_usize(*new_size), 0),
        }
    }

    /// One page of the sound file.
    pub(super) fn sound_page(&self, number: u32) -> Box<PageBytes> {
        let base = lock(&self.base);
        let from = PAGE_SIZE * to_usize(u64::from(number));
        let mut page = Box::new([0; PAGE_SIZE]);
        page.copy_from_slice(&base[from..from + PAGE_SIZE]);
        page
    }

    /// From now on the file is the sound one but for these pages.
    pub(super) fn change(&self, changes: Changes) {
        *lock(&self.changes) = changes;
    }
}

impl PageFile for MemoryFile {
    fn map(&self) -> &Map {
        &self.map
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), IoFailure> {
        let number = u32::try_from(offset / 4096).map_err(|_| IoFailure::Errno(22))?;
        if let Some(page) = lock(&self.changes).get(&number) {
            into.copy_from_slice(page.as_slice());
        } else {
            let base = lock(&self.base);
            let from = to_usize(offset);
            into.copy_from_slice(base.get(from..from + into.len()).ok_or(IoFailure::Errno(5))?);
        }
        self.map.store(offset, into);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        u64::try_from(lock(&self.base).len()).expect("the file is small")
    }
}

/// An index so small that its arena is quickly reserved.
pub(super) fn config() -> IndexConfig {
    IndexConfig { checkpoint_bytes: 1 << 20, dirty_bytes_max: 2 << 20, ..IndexConfig::new(11, 22) }
}

/// A sound index with trees of two levels, long keys, large values, old versions and tombstones, and its file, which
/// is shortened to what is used.
pub(super) struct Sound {
    pub(super) file: Arc<MemoryFile>,
    /// Pages that hold something.
    pub(super) pages: Vec<u32>,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) revision: i64,
}

/// The sound index, made once.
pub(super) fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(build)
}

fn build() -> Sound {
    let file = Arc::new(MemoryFile::new());
    let mut index = Index::create(config(), Arc::clone(&file) as Arc<dyn PageFile>);
    let mut keys: Vec<Vec<u8>> = (0..24u8).map(|at| [b"shared/prefix/", &[b'a' + at % 26, at][..]].concat()).collect();
    for key in keys.iter_mut().step_by(3) {
        // Longer than what a cell keeps, so that an extent holds the rest.
        key.resize(900, b'x');
    }
    let mut main = 1;
    for round in 0..2 {
        for (at, key) in keys.iter().enumerate() {
            main += 1;
            let revision = Revision { main, sub: 0 };
            let len = if at % 17 == 5 { 5_000 } else { 150 + at };
            let value = vec![b'v'; len];
            if (at + 3 * round) % 7 == 6 {
                index.delete(revision, key).expect("everything is resident");
            } else {
                index.put(revision, key, &value, i64::from(at % 5 == 1) * 77).expect("everything is resident");
            }
        }
        for number in 0..12u8 {
            let value = vec![number; if number == 7 { 5_000 } else { 30 }];
            index.system_put(&[b's', number % 3, number], &value).expect("everything is resident");
        }
        let applied = u64::try_from(round).expect("two rounds") + 1;
        index.publish(Applied { index: applied, term: 1 }, main);
        index.start_checkpoint(b"anchor", b"conf");
        while let Some(io) = index.poll_io() {
            file.perform(&io.op);
            index.handle_io(io.id, Ok(())).expect("nothing fails here");
        }
        assert!(index.poll_checkpoint_done().is_some(), "the checkpoint is done");
    }
    let mut base = lock(&file.base);
    let used = base.iter().rposition(|byte| *byte != 0).map_or(0, |last| last / PAGE_SIZE + 1);
    base.truncate((used + 1) * PAGE_SIZE);
    let held = |number: &u32| {
        let from = PAGE_SIZE * to_usize(u64::from(*number));
        base[from..from + PAGE_SIZE].iter().any(|byte| *byte != 0)
    };
    let pages = (0..u32::try_from(used).expect("the file is small")).filter(held).collect();
    drop(base);
    Sound { file, pages, keys, revision: main }
}
