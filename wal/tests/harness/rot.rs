//! A disk of durable batches, and rot of every sector of them in every way.

use garboard_simdisk::{Disk, Rot};
use garboard_wal::{Damage, Entry, HardState, Location, LogConfig, MetaFacts, Recovered, RecoveryError};

use super::{Shell, append, genesis, presented, recover, segment_name};

pub const LOG_ID: u128 = 0x5151_7777;
pub const SECTOR: u64 = 512;

/// A batch on the disk.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub shard: u16,
    pub segment: u64,
    pub offset: u64,
    /// Header and body, without the padding.
    pub content_bytes: u64,
    /// The index that is missing when the batch is.
    pub index: u64,
}

/// A disk after a run of settled appends, with every batch's place.
pub struct Case {
    pub config: LogConfig,
    pub disk: Disk,
    pub older: Disk,
    pub meta: MetaFacts,
    pub batches: Vec<Batch>,
    pub entries: Vec<Entry>,
    pub hard_state: HardState,
}

fn content_bytes(disk: &mut Disk, shard: u16, segment: u64, offset: u64) -> u64 {
    let mut sector = [0; 512];
    disk.read(&segment_name(shard, segment), offset, &mut sector).expect("sound");
    let body_len = u32::from_le_bytes(sector[108..112].try_into().expect("four bytes"));
    192 + u64::from(body_len)
}

/// Appends of different sizes, each durable before the next; sealed in the end when `sealed`.
pub fn case(config: LogConfig, count: u64, sealed: bool) -> Case {
    let mut shell = Shell::create(config, LOG_ID);
    let mut indexes = vec![1];
    shell.settle();
    let mut older = shell.disk.clone();
    for index in 1..=count {
        let len = [40, 900, 5_000, 200, 11_000][usize::try_from(index % 5).expect("small")];
        indexes.push(index);
        shell.append(append(index, 1, 1 + index / 6, len, index - 1));
        shell.settle();
        if index == count / 2 {
            older = shell.disk.clone();
        }
    }
    if sealed {
        assert!(shell.fire());
        shell.settle();
        shell.written.pop();
    }
    assert_eq!(shell.written.len(), indexes.len());
    let mut disk = shell.disk;
    let places = shell.written.iter().zip(indexes);
    let batches = places.map(|(&(shard, segment, offset, _), index)| {
        let content_bytes = content_bytes(&mut disk, shard, segment, offset);
        Batch { shard, segment, offset, content_bytes, index }
    });
    let batches = batches.collect();
    let meta = genesis(LOG_ID);
    let recovered = recover(&mut disk, config, meta).expect("sound");
    let (entries, hard_state) = presented(&recovered);
    assert_eq!(entries.len(), usize::try_from(count).expect("small"));
    Case { config, disk, older, meta, batches, entries, hard_state }
}

impl Case {
    fn read(disk: &mut Disk, batch: &Batch) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(batch.content_bytes.next_multiple_of(SECTOR)).expect("small")];
        disk.read(&segment_name(batch.shard, batch.segment), batch.offset, &mut bytes).ok()?;
        bytes.truncate(usize::try_from(batch.content_bytes).expect("small"));
        Some(bytes)
    }

    /// Every kind of rot of one sector of a batch, as disks.
    pub fn rotten(&self, batch: &Batch, sector: u64) -> Vec<Disk> {
        let name = segment_name(batch.shard, batch.segment);
        let first = &self.batches[0];
        let origin = segment_name(first.shard, first.segment);
        let last = self.batches.last().expect("there are batches");
        let elsewhere = segment_name(last.shard, last.segment);
        let rots = [
            Rot::Flip(usize::try_from(sector * 7 + batch.index * 131).expect("small") % 4096),
            Rot::Flip(3),
            Rot::Zero,
            Rot::Stale(&self.older),
            Rot::Misdirected { file: &origin, sector: first.offset / SECTOR },
            Rot::Misdirected { file: &elsewhere, sector: last.offset / SECTOR },
            Rot::Unreadable,
        ];
        rots.into_iter()
            .map(|rot| {
                let mut disk = self.disk.clone();
                disk.rot(&name, batch.offset / SECTOR + sector, rot).expect("the file is there");
                disk
            })
            .collect()
    }

    pub fn is_whole(&self, recovered: &Recovered) -> bool {
        presented(recovered) == (self.entries.clone(), self.hard_state)
    }

    /// Rots every sector of these batches in every way; returns how many cases were refused.
    pub fn sweep(&self, batches: &[Batch], expect_place: bool) -> u64 {
        let mut refused = 0;
        for batch in batches {
            for sector in 0..batch.content_bytes.div_ceil(4096) * 8 {
                for mut disk in self.rotten(batch, sector) {
                    let intact = Case::read(&mut disk, batch) == Case::read(&mut self.disk.clone(), batch);
                    match recover(&mut disk, self.config, self.meta) {
                        Ok(recovered) => {
                            assert!(intact, "{batch:?} sector {sector}: rot was not noticed");
                            assert!(
                                self.is_whole(&recovered),
                                "{batch:?} sector {sector}: something else is presented"
                            );
                        }
                        Err(error) => {
                            refused += 1;
                            assert!(
                                !intact || disk_has_unreadable(&mut disk, batch),
                                "{batch:?}: a sound log is refused"
                            );
                            check_error(batch, &error, expect_place);
                        }
                    }
                }
            }
        }
        refused
    }
}

fn disk_has_unreadable(disk: &mut Disk, batch: &Batch) -> bool {
    let mut bytes = vec![0; usize::try_from(batch.content_bytes.next_multiple_of(4096)).expect("small")];
    disk.read(&segment_name(batch.shard, batch.segment), batch.offset, &mut bytes).is_err()
}

fn check_error(batch: &Batch, error: &RecoveryError, expect_place: bool) {
    let RecoveryError::Damaged(damage) = error else { panic!("{batch:?}: {error}") };
    let Damage { location, index, repairable, .. } = **damage;
    assert_eq!(index, batch.index, "{batch:?}: {error}");
    assert!(repairable);
    let place = Location { shard: batch.shard, segment: batch.segment, offset: batch.offset };
    assert!(!expect_place || location == place, "{batch:?}: {error}");
    let text = error.to_string();
    assert!(text.contains("wal/shard-") && text.contains("offset") && text.contains("garboard salvage"), "{text}");
}
