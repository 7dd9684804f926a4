//! Random operations against ordered maps, from one seed.

use garboard_simdisk::{Kept, Rng};
use garboard_storage::{Bounds, CheckError, Snapshot};

use super::model::Model;
use super::{NAME, Rig, assert_same, open, range, settle, visible};

/// A key of one of several shapes: short, with a shared prefix, very long with a shared prefix.
pub fn key(rng: &mut Rng) -> Vec<u8> {
    let number = rng.below(60);
    match rng.below(20) {
        0..=9 => format!("k{number:03}").into_bytes(),
        10..=14 => format!("/registry/pods/namespace-{}/pod-{number:05}", number % 5).into_bytes(),
        15 => [vec![b'p'; 700], number.to_be_bytes().to_vec()].concat(),
        16 => [vec![b'q'; 1500], number.to_be_bytes().to_vec()].concat(),
        17 => [vec![b'q'; 510], vec![u8::try_from(number % 7).unwrap(); 600]].concat(),
        18 => vec![b'r'; usize::try_from(number * 40).unwrap() + 1],
        _ => number.to_be_bytes()[4..].to_vec(),
    }
}

pub fn value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(40) {
        0..=29 => rng.below(300),
        30..=35 => rng.below(2_500),
        36..=38 => rng.below(20_000),
        _ => rng.below(300_000),
    };
    let mut value = vec![0; usize::try_from(len).unwrap()];
    rng.fill(&mut value);
    value
}

struct Run {
    rig: Rig,
    rng: Rng,
    pinned: Vec<(Snapshot, Model)>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::create();
        rig.finish_io(&mut rng);
        Run { rig, rng, pinned: Vec::new() }
    }

    fn txn(&mut self) {
        for _ in 0..1 + self.rng.below(4) {
            let key = key(&mut self.rng);
            match self.rng.below(10) {
                0..=6 => {
                    let value = value(&mut self.rng);
                    let lease = if self.rng.chance(10) { self.rng.next_u64().cast_signed() } else { 0 };
                    self.rig.put(&key, &value, lease);
                }
                _ => self.rig.delete(&key),
            }
        }
        self.rig.end_txn();
    }

    fn system(&mut self) {
        let key = key(&mut self.rng);
        if self.rng.chance(60) {
            let value = value(&mut self.rng);
            self.rig.system_put(&key, &value);
        } else {
            self.rig.system_delete(&key);
        }
    }

    fn compact(&mut self) {
        let (low, high) = (self.rig.model.compacted.max(1), self.rig.model.revision);
        if low < high {
            let floor = low + self.rng.below(u64::try_from(high - low + 1).unwrap()).cast_signed();
            self.rig.compact(floor);
        }
    }

    /// Loses power or only the process, and goes on from what the disk has. A process that finds what its predecessor
    /// did not live to sync may make it durable, or may lose it to a power loss later.
    fn crash(&mut self) {
        self.pinned.clear();
        let mut disk = self.rig.file.disk.lock().unwrap().clone();
        let power_lost = self.rng.chance(70);
        if power_lost {
            disk.crash(Kept::Random(self.rng.next_u64()), usize::MAX);
        } else if self.rng.chance(50) {
            disk.sync(NAME).unwrap();
        }
        let synced = disk.unsynced_sectors() == 0;
        let (index, facts, file) = open(disk).unwrap();
        let durable = self.rig.durable.unwrap_or(0);
        let opened = facts.applied.index;
        assert!(opened >= durable, "durable checkpoint {durable} was lost: {:?}", facts.applied);
        let anchor = opened.to_le_bytes();
        assert_eq!((facts.anchor.as_ref(), facts.conf.as_ref()), (&anchor[..], &b"conf"[..]));
        let mut checkpoints = std::mem::take(&mut self.rig.checkpoints);
        checkpoints.retain(|&applied, _| applied <= opened);
        self.rig = Rig::around(index, file, checkpoints[&opened].clone());
        self.rig.checkpoints = checkpoints;
        self.rig.durable = Some(if synced { opened } else { durable });
        self.verify();
    }

    fn verify(&mut self) {
        self.rig.assert_same();
        if let Err(error) = self.rig.index.check() {
            let error: CheckError = error;
            panic!("{error}");
        }
        for (snapshot, model) in &self.pinned {
            assert_same(&self.rig.reader, snapshot.view(), model);
        }
    }

    /// Lookups, ranges and counts at random revisions and bounds, at the newest root or at a pinned one.
    fn look(&mut self) {
        let newest = (self.rig.reader.pin(), self.rig.model.clone());
        let choice = self.rng.index(self.pinned.len() + 1);
        let (snapshot, model) = self.pinned.get(choice).unwrap_or(&newest);
        let (reader, view) = (&self.rig.reader, snapshot.view());
        let low = model.compacted.max(1);
        let at = low + self.rng.below(u64::try_from(model.revision - low + 1).unwrap()).cast_signed();
        let at = if self.rng.chance(20) { i64::MAX } else { at };
        let (one, two) = (key(&mut self.rng), key(&mut self.rng));
        assert_eq!(settle(reader, || view.find(&one, at)), model.find(&one, at));
        let newest = settle(reader, || view.newest(&one));
        let gone = newest.is_some_and(|newest| newest.deleted && newest.modified.main < model.compacted);
        assert_eq!(newest.filter(|_| !gone), model.current.get(&one).copied());
        assert_eq!(settle(reader, || view.system_get(&one)), model.system.get(&one).cloned());
        let (start, end) = if one < two { (&one, &two) } else { (&two, &one) };
        let bounds = Bounds { start, end: self.rng.chance(80).then_some(end) };
        let expected = model.range(bounds, at);
        assert_eq!(range(reader, view, bounds, at), expected);
        assert_eq!(settle(reader, || view.count(bounds, at)), u64::try_from(expected.len()).unwrap());
        if let Some((_, version)) = expected.first() {
            let mut value = Vec::new();
            assert!(settle(reader, || view.value(version.modified, &mut value)));
            assert_eq!(model.records[&version.modified].value, value);
            let record = settle(reader, || view.record(version.modified)).unwrap();
            let expected = model.records[&version.modified].clone();
            assert_eq!(visible(record, model), visible(expected, model));
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=34 => self.txn(),
            35..=39 => self.system(),
            40..=54 => self.rig.publish(),
            55 => self.compact(),
            56..=62 => {
                let budget = self.rng.index(20);
                // A step that finds unpublished changes leaves the publication to the batch.
                self.rig.compaction_step(budget);
            }
            63..=64 => {
                self.rig.publish();
                if self.rig.durable.is_some() {
                    self.begin_checkpoint();
                }
            }
            65..=84 => {
                self.rig.io_step(&mut self.rng);
            }
            85..=87 => {
                self.rig.publish();
                self.pinned.push((self.rig.reader.pin(), self.rig.model.clone()));
                if self.pinned.len() > 4 {
                    self.pinned.swap_remove(self.rng.index(4));
                }
            }
            88 if self.rng.chance(20) => self.crash(),
            89 if self.rng.chance(30) => {
                self.rig.publish();
                self.verify();
            }
            _ => {
                self.rig.publish();
                self.look();
            }
        }
    }

    fn begin_checkpoint(&mut self) {
        if !self.rig.io_step(&mut self.rng) {
            self.rig.start_checkpoint();
        }
    }
}

/// A whole run of a seed.
pub fn run(seed: u64, steps: usize) {
    println!("seed {seed}");
    let mut run = Run::new(seed);
    for _ in 0..steps {
        run.step();
    }
    run.rig.publish();
    run.verify();
    run.rig.finish_compaction();
    run.verify();
    run.pinned.clear();
    run.rig.finish_io(&mut run.rng);
    run.rig.checkpoint(&mut run.rng);
    run.rig.publish();
    run.verify();
}
