//! Crash images of a scripted run of the index.

use std::cell::Cell;
use std::rc::Rc;

use garboard_simdisk::{Disk, Kept, Rng};
use garboard_storage::Snapshot;

use super::model::Model;
use super::{Rig, assert_same, open};

/// One step of the script: some transactions with keys and values of every shape, and some compaction.
pub fn script_step(rig: &mut Rig, rng: &mut Rng, round: u64) {
    for i in 0..6 {
        let number = rng.below(40);
        let key = match i {
            4 => [vec![b'l'; 1200], number.to_be_bytes().to_vec()].concat(),
            _ => format!("/registry/things/{number:04}").into_bytes(),
        };
        let len = if i == 5 { 9_000 } else { rng.index(400) };
        if rng.chance(75) {
            rig.put(&key, &vec![b'v'; len], 0);
        } else {
            rig.delete(&key);
        }
        rig.end_txn();
    }
    rig.system_put(format!("member/{}", round % 3).as_bytes(), &round.to_le_bytes());
    rig.publish();
    if round % 2 == 1 {
        rig.compact(rig.model.revision - 3);
    }
}

/// The state at the newest checkpoint that may be on the disk, which must be one of the allowed.
pub fn assert_opens_to_one_of(disk: Disk, allowed: &[(u64, Model)], context: &str) {
    let (index, facts, file) = open(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    let found = allowed.iter().find(|(applied, _)| *applied == facts.applied.index);
    let (_, model) = found.unwrap_or_else(|| panic!("{context}: opened at {:?}", facts.applied));
    let reader = index.reader();
    assert_same(&reader, reader.pin().view(), model);
    index.check().unwrap_or_else(|error| panic!("{context}: {error}"));
    drop(index);
    let disk = file.disk.lock().unwrap().clone();
    let (again, facts_again, _) = open(disk).unwrap();
    assert_eq!(facts_again, facts);
    let reader = again.reader();
    assert_same(&reader, reader.pin().view(), model);
}

/// Up to so many unsynced sectors, all subsets are tried.
const ALL_SUBSETS_SECTORS: usize = 10;

/// How thoroughly a moment is crashed that has more unsynced sectors than [`ALL_SUBSETS_SECTORS`].
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Random subsets.
    pub random: u64,
    /// Most places at which the newest write is torn; of a write with more sectors, evenly spread ones are taken.
    pub torn: usize,
}

/// Every write is torn at every sector.
pub const EVERYWHERE: usize = usize::MAX;

/// Crash images of a disk whose newest write has `newest` sectors: every subset of few unsynced sectors; of many, random
/// subsets, and the newest write torn, with what was unsynced before it lost and kept; and every prefix of what is not
/// durable of the file's length.
pub fn crash_images(disk: &Disk, newest: usize, rng: &mut Rng, depth: Depth) -> Vec<Disk> {
    let lengths = 0..=disk.unsynced_metadata();
    lengths.flat_map(|metadata| images_of_length(disk, newest, metadata, rng, depth)).collect()
}

fn images_of_length(disk: &Disk, newest: usize, metadata: usize, rng: &mut Rng, depth: Depth) -> Vec<Disk> {
    let count = disk.unsynced_sectors();
    let crashed = |kept: Kept<'_>| {
        let mut disk = disk.clone();
        disk.crash(kept, metadata);
        disk
    };
    if count <= ALL_SUBSETS_SECTORS {
        return (0..1u64 << count).map(|bits| crashed(Kept::Bits(bits))).collect();
    }
    let mut images = vec![crashed(Kept::Nothing), crashed(Kept::Everything)];
    let before = count - newest;
    let stride = newest.div_ceil(depth.torn).max(1);
    let first = rng.index(stride);
    for torn_at in (before + first..count).step_by(stride) {
        for kept_before in [false, true] {
            let front: Vec<bool> = (0..count).map(|at| if at < before { kept_before } else { at < torn_at }).collect();
            let behind: Vec<bool> =
                (0..count).map(|at| if at < before { kept_before } else { at >= torn_at }).collect();
            images.extend([crashed(Kept::Mask(&front)), crashed(Kept::Mask(&behind))]);
        }
    }
    images.extend((0..depth.random).map(|_| crashed(Kept::Random(rng.next_u64()))));
    images
}

/// Rounds of the script.
const ROUNDS: u64 = 12;
/// In this round the file grows.
const GROWTH_ROUND: u64 = 7;
/// Revisions that a step of physical compaction takes while a checkpoint is under way.
const COMPACTION_STEP: usize = 4;

/// A scripted run that is crashed at each of its writes, syncs and completions: commits and compaction go on while
/// checkpoints are written, readers pin roots over several of them, pages are reused and the file grows.
pub struct Enumeration {
    seed: u64,
    rng: Rng,
    rig: Rig,
    depth: Depth,
    /// Images tried so far, also when the run panics.
    images: Rc<Cell<u64>>,
    pinned: Vec<(Snapshot, Model)>,
}

impl Enumeration {
    pub fn new(seed: u64, depth: Depth, images: Rc<Cell<u64>>) -> Enumeration {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::create();
        rig.finish_io(&mut rng);
        *rig.file.steps.lock().unwrap() = Some(Vec::new());
        Enumeration { seed, rng, rig, depth, images, pinned: Vec::new() }
    }

    /// The whole script.
    pub fn run(mut self) {
        let mut durable = (0, Model::default());
        let size_before = self.rig.index.size().file_bytes;
        for round in 0..ROUNDS {
            script_step(&mut self.rig, &mut self.rng, round);
            if round == GROWTH_ROUND {
                self.outgrow();
            }
            let under_way = (self.rig.model.applied, self.rig.model.clone());
            self.rig.start_checkpoint();
            self.pin();
            self.write_out(round, &[durable, under_way.clone()]);
            assert_eq!(self.rig.durable, Some(under_way.0));
            assert_opens_to_one_of(self.rig.disk(), std::slice::from_ref(&under_way), "durable");
            durable = under_way;
            for (snapshot, model) in &self.pinned {
                assert_same(&self.rig.reader, snapshot.view(), model);
            }
            self.rig.index.check().unwrap();
        }
        let size = self.rig.index.size();
        assert!(size.file_bytes > size_before, "the file has grown");
    }

    /// Uses more pages than the file has, while readers hold them all, and lets them go: the next checkpoint is small,
    /// and must grow the file.
    fn outgrow(&mut self) {
        let mut held = Vec::new();
        let size = self.rig.index.size().file_bytes;
        while self.rig.index.size().file_bytes == size {
            held.push(self.rig.reader.pin());
            self.rig.put(b"rewritten", b"again and again", 0);
            self.rig.publish();
        }
        drop(held);
        self.rig.publish();
        self.rig.compact(self.rig.model.revision);
        self.rig.finish_compaction();
    }

    /// A reader sometimes holds the root that is being saved, and sometimes none holds any: what a reader holds is safe
    /// from being reused too early for another reason than the checkpoint that needs it.
    fn pin(&mut self) {
        match self.rng.below(3) {
            0 => self.pinned.clear(),
            1 => return,
            _ => {}
        }
        self.pinned.push((self.rig.reader.pin(), self.rig.model.clone()));
        if self.pinned.len() > 3 {
            self.pinned.swap_remove(self.rng.index(3));
        }
    }

    /// Writes a checkpoint, and crashes before it and after each step.
    fn write_out(&mut self, round: u64, allowed: &[(u64, Model)]) {
        let mut unsynced = self.rig.disk().unsynced_sectors();
        loop {
            let disk = self.rig.disk();
            let newest = disk.unsynced_sectors().saturating_sub(unsynced);
            unsynced = disk.unsynced_sectors();
            let steps = self.rig.file.steps.lock().unwrap().replace(Vec::new()).unwrap();
            for disk in steps.iter().chain([&disk]) {
                for image in crash_images(disk, newest, &mut self.rng, self.depth) {
                    self.images.set(self.images.get() + 1);
                    let context = format!("seed {}, round {round}, image {}", self.seed, self.images.get());
                    assert_opens_to_one_of(image, allowed, &context);
                }
            }
            // New commits go on meanwhile, and so does compaction.
            if self.rng.chance(40) {
                script_step(&mut self.rig, &mut self.rng, round);
            }
            if self.rig.index.compaction_pending() {
                self.rig.compaction_step(COMPACTION_STEP);
            }
            if !self.rig.io_step(&mut self.rng) {
                return;
            }
        }
    }
}
