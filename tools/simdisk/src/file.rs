//! The content of one file: what reads see, and what a crash is sure to leave.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::SECTOR_SIZE;

/// Sectors are shared in chunks of this size; a chunk that was never written holds no memory and reads as zeros.
const CHUNK_SIZE: usize = 8 * SECTOR_SIZE;
const CHUNK_SECTORS: u64 = 8;

/// One sector's bytes.
pub(crate) type Sector = [u8; SECTOR_SIZE];

/// A copy-on-write row of sectors.
#[derive(Clone, Default)]
pub(crate) struct Image {
    chunks: Vec<Option<Arc<[u8; CHUNK_SIZE]>>>,
}

impl Image {
    fn place(sector: u64) -> (usize, usize) {
        let chunk = usize::try_from(sector / CHUNK_SECTORS).expect("simulated files fit memory");
        let within = usize::try_from(sector % CHUNK_SECTORS).expect("below eight");
        (chunk, within * SECTOR_SIZE)
    }

    pub(crate) fn read(&self, sector: u64, into: &mut [u8]) {
        assert_eq!(into.len(), SECTOR_SIZE);
        let (chunk, at) = Image::place(sector);
        match self.chunks.get(chunk) {
            Some(Some(bytes)) => into.copy_from_slice(&bytes[at..at + SECTOR_SIZE]),
            _ => into.fill(0),
        }
    }

    pub(crate) fn write(&mut self, sector: u64, bytes: &[u8]) {
        assert_eq!(bytes.len(), SECTOR_SIZE);
        let (chunk, at) = Image::place(sector);
        if chunk >= self.chunks.len() {
            self.chunks.resize(chunk + 1, None);
        }
        let shared = self.chunks[chunk].get_or_insert_with(|| Arc::new([0; CHUNK_SIZE]));
        Arc::make_mut(shared)[at..at + SECTOR_SIZE].copy_from_slice(bytes);
    }

    /// Forgets everything from `sector` on, so that it reads as zeros.
    pub(crate) fn truncate(&mut self, sector: u64) {
        let (chunk, at) = Image::place(sector);
        self.chunks.truncate(chunk + usize::from(at > 0));
        if at > 0
            && let Some(Some(bytes)) = self.chunks.get_mut(chunk)
        {
            Arc::make_mut(bytes)[at..].fill(0);
        }
    }
}

/// One file. Its identity is independent of its name, so that it survives a rename.
#[derive(Clone, Default)]
pub(crate) struct File {
    /// What reads see: everything durable, and on top everything cached.
    pub(crate) cached: Image,
    /// What every crash leaves. Never ahead of `cached`, except where rot changed both.
    pub(crate) durable: Image,
    /// Length in bytes, a multiple of the sector size.
    pub(crate) size: u64,
    /// The length that every crash leaves; never more than `size`.
    pub(crate) durable_size: u64,
    /// Sectors whose read fails.
    pub(crate) unreadable: BTreeSet<u64>,
}
