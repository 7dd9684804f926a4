//! A crash at every write and every completion of a scripted run: every subset of the unsynced sectors up to ten of them,
//! every write torn at every sector, and random subsets beyond. `WAL_IMAGES=n` sets how many random subsets each moment
//! of more than ten sectors gets.

mod harness;

use garboard_simdisk::{Disk, Kept, Rng};
use garboard_wal::{Append, HardState, LogConfig, MetaFacts, Verdict};
use harness::model::Model;
use harness::{Shell, append, genesis, presented, recover, small};

const LOG_ID: u128 = 0xfeed_0000_1111_2222_3333;

/// What was tried.
#[derive(Default, Debug)]
struct Tally {
    images: u64,
    cuts: u64,
}

struct Enumeration {
    config: LogConfig,
    shell: Shell,
    model: Model,
    rng: Rng,
    random_images: u64,
    tally: Tally,
}

impl Enumeration {
    fn new(config: LogConfig) -> Enumeration {
        let mut shell = Shell::create(config, LOG_ID);
        let effect = shell.log.poll_effect(shell.now).expect("the manifest");
        shell.start(effect).expect("a sound disk");
        let images = std::env::var("WAL_IMAGES").map_or(24, |value| value.parse().expect("a number"));
        let model = Model::new(genesis(LOG_ID));
        Enumeration { config, shell, model, rng: Rng::new(1), random_images: images, tally: Tally::default() }
    }

    /// Crashes here in every way.
    fn crash_everywhere(&mut self) {
        let count = self.shell.disk.unsynced_sectors();
        for metadata in 0..=self.shell.disk.unsynced_metadata() {
            if count <= 10 {
                for bits in 0..1u64 << count {
                    self.crash(Kept::Bits(bits), metadata);
                }
                continue;
            }
            for torn_at in 0..=count {
                let prefix: Vec<bool> = (0..count).map(|at| at < torn_at).collect();
                let suffix: Vec<bool> = prefix.iter().map(|kept| !kept).collect();
                let hole: Vec<bool> = (0..count).map(|at| at != torn_at).collect();
                let alone: Vec<bool> = hole.iter().map(|kept| !kept).collect();
                for mask in [prefix, suffix, hole, alone] {
                    self.crash(Kept::Mask(&mask), metadata);
                }
            }
            for _ in 0..self.random_images {
                let seed = self.rng.next_u64();
                self.crash(Kept::Random(seed), metadata);
            }
        }
    }

    /// One crash image: recovered, recovered again after a second crash in the middle of the epoch start, and written on.
    fn crash(&mut self, kept: Kept<'_>, metadata: usize) {
        let mut disk = self.shell.disk.clone();
        disk.crash(kept, metadata);
        let first = recover(&mut disk, self.config, self.model.meta).expect("a crash alone damages nothing");
        self.model.check(&first);
        self.tally.images += 1;
        self.tally.cuts += u64::from(first.report.verdict == Verdict::Cut);
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
    /// entry, checkpoints and recycled segments.
    fn script(mut self) -> Tally {
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
        for round in 0..3 {
            for _ in 0..4 {
                self.append(append(next, 2, 3, 7_000, next - 1));
                next += 2;
                self.drive();
            }
            self.checkpoint(next - 4 - round);
            self.drive();
        }
        self.append(append(next, 1, 4, 70_000, next - 1));
        self.append(append(next + 1, 1, 4, 70, next - 1));
        self.drive();
        self.checkpoint(next - 1);
        self.drive();
        assert!(self.shell.log.stats().recycled_count > 0, "{:?}", self.shell.log.stats());
        self.tally
    }
}

#[test]
fn every_crash_image_of_a_run_with_one_write_in_flight_is_recovered() {
    let tally = Enumeration::new(small(1, 1)).script();
    println!("{tally:?}");
    assert!(tally.images > 1_000, "{tally:?}");
}

#[test]
fn every_crash_image_of_a_run_striped_over_two_shards_is_recovered() {
    let tally = Enumeration::new(small(2, 2)).script();
    println!("{tally:?}");
    assert!(tally.images > 1_000 && tally.cuts > 100, "{tally:?}");
}
