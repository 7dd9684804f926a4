//! Rot: a durable sector that changes behind the member's back, and its restoration.

use garboard_simdisk::{Disk, DiskError, Rng, Rot, SECTOR_SIZE};

const SECTOR_BYTES: u64 = 512;
const _: () = assert!(SECTOR_SIZE == 512);

/// A sector that was changed.
pub(crate) struct Rotten {
    /// In which file.
    pub(crate) name: String,
    /// Which one.
    pub(crate) sector: u64,
    /// The disk before.
    sound: Disk,
    /// What the sector holds now; none where it can't be read.
    content: Option<[u8; SECTOR_SIZE]>,
}

impl Rotten {
    /// Changes a sector, and says how. `older` is the disk as it was some time ago.
    pub(crate) fn strike(disk: &mut Disk, rng: &mut Rng, older: Option<&Disk>) -> Option<(Rotten, &'static str)> {
        let (name, sector) = choose_sector(disk, rng)?;
        let sound = disk.clone();
        let kind = rng.below(5);
        let older = older.filter(|older| older.size(&name).is_ok());
        let (rot, text) = match (kind, older) {
            (0, _) => (Rot::Zero, "zeros"),
            (1, _) => (Rot::Unreadable, "unreadable"),
            (2, Some(older)) => (Rot::Stale(older), "what it held before"),
            (3, _) => (Rot::Misdirected { file: &name, sector: sector ^ 1 }, "another sector's content"),
            _ => (Rot::Flip(rng.index(SECTOR_SIZE * 8)), "a flipped bit"),
        };
        disk.rot(&name, sector, rot).ok()?;
        let content = read_sector(disk, &name, sector).ok();
        Some((Rotten { name, sector, sound, content }, text))
    }

    /// Restores the sector, unless it was written since. Says how that went.
    pub(crate) fn repair(&self, disk: &mut Disk) -> Option<String> {
        let unwritten = read_sector(disk, &self.name, self.sector).ok() == self.content;
        let restored = unwritten.then(|| format!("{:?}", disk.rot(&self.name, self.sector, Rot::Stale(&self.sound))));
        // A file that was removed since has nothing to heal.
        let _ = disk.heal(&self.name, self.sector);
        restored
    }
}

/// A sector that holds something.
fn choose_sector(disk: &mut Disk, rng: &mut Rng) -> Option<(String, u64)> {
    let files: Vec<(String, u64)> = disk.list().map(|(name, size)| (name.to_owned(), size / SECTOR_BYTES)).collect();
    let files: Vec<_> = files.into_iter().filter(|(_, sectors)| *sectors > 0).collect();
    for _ in 0..200 {
        let (name, sectors) = &files[rng.index(files.len())];
        // What is written lies in front, mostly.
        let reach = (*sectors).min(1 << rng.below(14));
        let sector = rng.below(reach.max(1));
        if read_sector(disk, name, sector).is_ok_and(|content| content.iter().any(|byte| *byte != 0)) {
            return Some((name.clone(), sector));
        }
    }
    None
}

fn read_sector(disk: &mut Disk, name: &str, sector: u64) -> Result<[u8; SECTOR_SIZE], DiskError> {
    let mut content = [0; SECTOR_SIZE];
    disk.read(name, sector * SECTOR_BYTES, &mut content)?;
    Ok(content)
}
