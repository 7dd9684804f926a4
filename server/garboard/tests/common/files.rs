//! Looking into a data directory and damaging it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BLOCK_BYTES: usize = 4096;
const MAGIC: &[u8] = b"gbrdwal\0";

/// A batch in the log, by its header (`docs/log-format.md`).
#[derive(Clone, Debug)]
pub struct Batch {
    pub path: PathBuf,
    pub offset: u64,
    /// 1: entries, 2: state, 3: epoch start, 4: seal.
    pub kind: u8,
    pub generation: u64,
    pub sequence: u64,
    pub durable_sequence: u64,
    pub first_index: u64,
    pub entry_count: u32,
    pub body_len: u32,
}

impl Batch {
    /// Where the batch ends, padding included.
    pub fn end(&self) -> u64 {
        (self.offset + 192 + u64::from(self.body_len)).next_multiple_of(BLOCK_BYTES as u64)
    }
}

/// The segments of a log, in order.
pub fn segments(wal: &Path) -> Vec<PathBuf> {
    let shard = wal.join("shard-0000");
    let mut found: Vec<PathBuf> = fs::read_dir(shard).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment-"));
    found.sort();
    found
}

/// The batches of a log, in order of sequence numbers; seals come last.
pub fn batches(wal: &Path) -> Vec<Batch> {
    let mut found = Vec::new();
    for path in segments(wal) {
        let bytes = fs::read(&path).unwrap();
        for (number, block) in bytes.chunks_exact(BLOCK_BYTES).enumerate() {
            let offset = (number * BLOCK_BYTES) as u64;
            if block.starts_with(MAGIC) && u64_at(block, 56) == offset {
                found.push(Batch {
                    path: path.clone(),
                    offset,
                    kind: block[10],
                    generation: u64_at(block, 48),
                    sequence: u64_at(block, 72),
                    durable_sequence: u64_at(block, 80),
                    first_index: u64_at(block, 96),
                    entry_count: u32_at(block, 104),
                    body_len: u32_at(block, 108),
                });
            }
        }
    }
    found.sort_by_key(|batch| (batch.kind == 4, batch.sequence));
    found
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().unwrap())
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
}

/// Writes bytes into a file as it lies there.
pub fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

/// Bytes of a file.
pub fn bytes_at(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// Flips one bit.
pub fn flip(path: &Path, offset: u64) {
    let byte = bytes_at(path, offset, 1)[0];
    overwrite(path, offset, &[byte ^ 0x10]);
}

/// What a folder and all below it take on disk.
pub fn disk_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => disk_bytes(&entry.path()),
            false => entry.metadata().unwrap().blocks() * 512,
        })
        .sum()
}

/// Replaces the first occurrence of a line's beginning in a text file.
pub fn replace_in(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text:?}");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}
