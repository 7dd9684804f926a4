//! Crash images of a scripted run: a crash at every write, every completion, and every step of what prepares a file.
//!
//! At each of these moments every subset of the unsynced sectors is tried if there are at most ten of them; beyond, the
//! disk is torn at every sector in the order of writing, with the rest lost and with the rest kept, and random subsets
//! are tried.

use std::cell::Cell;
use std::rc::Rc;

use garboard_simdisk::{Disk, Kept, Rng};
use garboard_wal::{Append, HardState, LogConfig, MetaFacts, Verdict};

use super::model::Model;
use super::{Shell, append, genesis, presented, recover};

const LOG_ID: u128 = 0xfeed_0000_1111_2222_3333;

/// Up to so many unsynced sectors, all subsets are tried.
const ALL_SUBSETS_SECTORS: usize = 10;

/// What was tried.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Disks that were recovered.
    pub images: u64,
    /// Moments at which the run was crashed.
    pub moments: u64,
    /// Images of which something was cut.
    pub cuts: u64,
}

/// A run that is crashed everywhere.
pub struct Enumeration {
    config: LogConfig,
    shell: Shell,
    model: Model,
    rng: Rng,
    random_images: u64,
    tally: Rc<Cell<Tally>>,
}

impl Enumeration {
    /// A run of a new log; each moment with many unsynced sectors gets so many random subsets. What is tried is counted as
    /// it goes, for runs that panic.
    pub fn new(config: LogConfig, random_images: u64, tally: Rc<Cell<Tally>>) -> Enumeration {
        let mut shell = Shell::create(config, LOG_ID);
        let effect = shell.log.poll_effect(shell.now).expect("the manifest");
        shell.start(effect).expect("a sound disk");
        // From here on, a file that is being prepared is crashed at each step as well.
        shell.steps = Some(Vec::new());
        let model = Model::new(genesis(LOG_ID));
        Enumeration { config, shell, model, rng: Rng::new(1), random_images, tally }
    }

    fn count(&self, change: impl Fn(&mut Tally)) {
        let mut tally = self.tally.get();
        change(&mut tally);
        self.tally.set(tally);
    }

    /// Crashes in every way here, and at each step that led here.
    fn crash_everywhere(&mut self) {
        let steps = self.shell.steps.replace(Vec::new()).expect("steps are recorded");
        for disk in steps {
            self.crash_disk(&disk);
        }
        let disk = self.shell.disk.clone();
        self.crash_disk(&disk);
    }

    fn crash_disk(&mut self, disk: &Disk) {
        self.count(|tally| tally.moments += 1);
        let count = disk.unsynced_sectors();
        for metadata in 0..=disk.unsynced_metadata() {
            if count <= ALL_SUBSETS_SECTORS {
                for bits in 0..1u64 << count {
                    self.crash(disk, Kept::Bits(bits), metadata);
                }
                continue;
            }
            for torn_at in 0..=count {
                let prefix: Vec<bool> = (0..count).map(|at| at < torn_at).collect();
                let suffix: Vec<bool> = prefix.iter().map(|kept| !kept).collect();
                let hole: Vec<bool> = (0..count).map(|at| at != torn_at).collect();
                let alone: Vec<bool> = hole.iter().map(|kept| !kept).collect();
                for mask in [prefix, suffix, hole, alone] {
                    self.crash(disk, Kept::Mask(&mask), metadata);
                }
            }
            for _ in 0..self.random_images {
                let seed = self.rng.next_u64();
                self.crash(disk, Kept::Random(seed), metadata);
            }
        }
    }

    /// One crash image: recovered, recovered again after a second crash in the middle of the epoch start, and written on.
    fn crash(&mut self, disk: &Disk, kept: Kept<'_>, metadata: usize) {
        self.count(|tally| tally.images += 1);
        let mut disk = disk.clone();
        disk.crash(kept, metadata);
        let first = recover(&mut disk, self.config, self.model.meta).expect("a crash alone damages nothing");
        self.model.check(&first);
        let cut = first.report.verdict == Verdict::Cut;
        self.count(|tally| tally.cuts += u64::from(cut));
        let expected = presented(&first);

        let mut second = Shell::over(disk, first.log);
        second.pump();
        let seed = self.rng.next_u64();
        second.disk.crash(Kept::Random(seed), usize::MAX);
        let again = recover(&mut second.disk, self.config, self.model.meta).expect("a crash alone damages nothing");
        assert_eq!(presented(&again), expected, "recovery presents the same again");
        if self.rng.chance(10) {
            self.write_on(second.disk, again);
        }
    }

    /// The recovered log takes appends, and what was cut never comes back.
    fn write_on(&mut self, disk: Disk, recovered: garboard_wal::Recovered) {
        let (mut entries, state) = presented(&recovered);
        let (last, _) = recovered.log.last();
        let mut shell = Shell::over(disk, recovered.log);
        let more = append(last + 1, 1, state.term + 1, 33, state.commit);
        entries.extend(more.entries.iter().filter(|entry| entry.index > self.model.meta.applied_index).cloned());
        shell.append(more);
        shell.settle();
        shell.disk.crash(Kept::Nothing, usize::MAX);
        let third = recover(&mut shell.disk, self.config, self.model.meta).expect("a crash alone damages nothing");
        assert_eq!(third.entries, entries);
        assert_eq!(third.hard_state.term, state.term + 1);
    }

    fn append(&mut self, append: Append) {
        let number = self.shell.append(append.clone());
        self.model.append(number, append);
    }

    /// Loses power and is opened with another configuration.
    fn reopen(&mut self, config: LogConfig) {
        let mut disk = std::mem::take(&mut self.shell.disk);
        let seed = self.rng.next_u64();
        disk.crash(Kept::Random(seed), usize::MAX);
        let recovered = recover(&mut disk, config, self.model.meta).expect("a crash alone damages nothing");
        let state = self.model.check(&recovered);
        self.model.reopen(state);
        self.shell = Shell::over(disk, recovered.log);
        self.shell.steps = Some(Vec::new());
        self.config = config;
        self.drive();
    }

    /// Starts what can start and crashes after each effect, then completes one write after the other, newest first, and
    /// crashes after each.
    fn drive(&mut self) {
        loop {
            while let Some(effect) = self.shell.log.poll_effect(self.shell.now) {
                self.shell.start(effect).expect("a sound disk");
                self.crash_everywhere();
            }
            let Some(at) = self.shell.in_flight.len().checked_sub(1) else { return };
            self.shell.complete(at).expect("a sound disk");
            self.model.acknowledge(self.shell.log.durable());
            self.crash_everywhere();
        }
    }

    fn checkpoint(&mut self, applied_index: u64) {
        let anchor = self.shell.log.anchor(applied_index);
        let applied_term = self.model.durable.term_at(applied_index);
        self.model.meta = MetaFacts { anchor: Some(anchor), applied_index, applied_term };
        self.crash_everywhere();
        self.shell.log.handle_checkpoint(&anchor);
    }

    /// A run that meets everything: votes, small and large batches, a replaced suffix, seals, full segments, an oversize
    /// entry, and in each round checkpoints and recycled segments.
    ///
    /// `grown` is what the log is opened with in the end, so that its manifest is replaced.
    pub fn script(mut self, rounds: u64, grown: LogConfig) {
        self.drive();
        self.append(Append { entries: Vec::new(), hard_state: HardState { term: 1, vote: 2, commit: 0 } });
        self.drive();
        for index in 1..=6 {
            self.append(append(index, 1, 1, 300, index - 1));
            if index % 2 == 0 {
                self.drive();
            }
        }
        self.append(append(6, 2, 2, 5_000, 5));
        self.append(append(7, 3, 3, 100, 6));
        self.drive();
        assert!(self.shell.fire(), "a seal is due");
        self.drive();
        let mut next = 10;
        for round in 0..rounds {
            for len in [7_000, 7_000, 6_000 + 17 * usize::try_from(round).expect("small"), 7_000] {
                self.append(append(next, 2, 3, len, next - 1));
                next += 2;
                self.drive();
            }
            self.checkpoint(next - 4 - round % 3);
            self.drive();
        }
        self.append(append(next, 1, 4, 70_000, next - 1));
        self.append(append(next + 1, 1, 4, 70, next - 1));
        self.drive();
        self.checkpoint(next - 1);
        self.drive();
        assert!(self.shell.log.stats().recycled_count > 0, "{:?}", self.shell.log.stats());
        self.reopen(grown);
        self.append(append(next + 2, 3, 5, 900, next));
        self.drive();
        self.checkpoint(next + 1);
        self.drive();
    }
}
