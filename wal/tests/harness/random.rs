//! Random operations against the plain model, with crashes, from one seed.

use garboard_simdisk::{Disk, Rng};
use garboard_wal::{HardState, Log, LogConfig, MetaFacts, Verdict};

use super::model::{Model, State};
use super::{Shell, genesis, presented, recover, small};

pub const STEPS: usize = 400;

fn random_config(rng: &mut Rng) -> LogConfig {
    let shards = [1, 1, 2, 3][rng.index(4)];
    let seal_after_batches = if rng.chance(40) { 1 + rng.below(20) } else { 256 };
    LogConfig { seal_after_batches, ..small(shards, 1 + u16::try_from(rng.below(4)).expect("small")) }
}

/// One run: the log, its model, and the generator.
pub struct Run {
    rng: Rng,
    pub shell: Shell,
    pub model: Model,
    seen: Seen,
}

/// How often the rarer things happened, so that a test which never meets them fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub crashes: u64,
    pub cuts: u64,
    pub recycled: u64,
    pub removed: u64,
    pub seals: u64,
    pub full_disks: u64,
    pub snapshots: u64,
}

impl Run {
    pub fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let config = random_config(&mut rng);
        let log_id = u128::from(rng.next_u64());
        let mut shell = Shell::over(Disk::new(), Log::create(config, log_id).expect("valid"));
        // A store whose manifest never became durable was never created.
        let effect = shell.log.poll_effect(shell.now).expect("the manifest");
        shell.start(effect).expect("a sound disk");
        Run { rng, shell, model: Model::new(genesis(log_id)), seen: Seen::default() }
    }

    pub fn step(&mut self) {
        match self.rng.below(100) {
            0..=34 => {
                let append = self.model.random_append(&mut self.rng);
                let number = self.shell.append(append.clone());
                self.model.append(number, append);
            }
            35..=59 => self.shell.pump(),
            60..=86 => {
                if !self.shell.in_flight.is_empty() {
                    let at = self.rng.index(self.shell.in_flight.len());
                    self.shell.complete(at).expect("a sound disk");
                    self.model.acknowledge(self.shell.log.durable());
                }
            }
            87..=89 => drop(self.shell.fire()),
            90..=94 => self.checkpoint(),
            95 => self.snapshot(),
            96 => {
                let capacity = self.rng.chance(50).then(|| self.shell.disk.used() + 1024 * (1 + self.rng.below(200)));
                self.shell.disk.set_capacity(capacity);
            }
            _ => self.crash(),
        }
    }

    /// The index is saved as of some applied index: sometimes the crash comes before the log hears of it.
    fn checkpoint(&mut self) {
        let state = &self.model.durable;
        let from = self.model.meta.applied_index.max(state.base.0);
        let to = state.hard_state.commit.min(state.last_index());
        if to < from {
            return;
        }
        let applied_index = from + self.rng.below(to - from + 1);
        let anchor = self.shell.log.anchor(applied_index);
        let applied_term = state.term_at(applied_index);
        self.model.meta = MetaFacts { anchor: Some(anchor), applied_index, applied_term };
        if self.rng.chance(80) {
            self.shell.log.handle_checkpoint(&anchor);
        }
    }

    fn snapshot(&mut self) {
        let newest = self.model.newest().clone();
        let index = newest.last_index().max(newest.hard_state.commit) + 1 + self.rng.below(50);
        let term = newest.hard_state.term + self.rng.below(2);
        if term == 0 || !self.shell.in_flight.is_empty() {
            return;
        }
        let Some(anchor) = self.shell.log.install_snapshot(index, term) else { return };
        assert!(self.model.waiting.is_empty(), "a quiet log has acknowledged everything");
        if self.rng.chance(30) {
            // The crash comes before the flip of the meta page: the old log is there.
            return self.crash();
        }
        self.model.meta = MetaFacts { anchor: Some(anchor), applied_index: index, applied_term: term };
        self.seen.snapshots += 1;
        let hard_state = HardState {
            term: newest.hard_state.term.max(term),
            commit: newest.hard_state.commit.max(index),
            ..newest.hard_state
        };
        self.model.durable = State { base: (index, term), entries: Vec::new(), hard_state };
        if self.rng.chance(70) {
            self.shell.log.handle_checkpoint(&anchor);
        } else {
            self.crash();
        }
    }

    fn crash(&mut self) {
        let stats = self.shell.log.stats();
        self.seen.crashes += 1;
        self.seen.recycled += stats.recycled_count;
        self.seen.removed += stats.removed_count;
        self.seen.seals += stats.seal_count;
        self.seen.full_disks += stats.disk_full_count;
        let mut disk = std::mem::take(&mut self.shell.disk);
        disk.crash_at_random(&mut self.rng);
        let config = random_config(&mut self.rng);
        let first = recover(&mut disk, config, self.model.meta).expect("a crash alone damages nothing");
        let state = self.model.check(&first);
        let second = recover(&mut disk, config, self.model.meta).expect("as before");
        assert_eq!(presented(&first), presented(&second));
        self.seen.cuts += u64::from(first.report.verdict == Verdict::Cut);
        self.model.reopen(state);
        self.shell = Shell::over(disk, second.log);
        self.shell.disk.set_capacity(None);
    }

    fn end(&mut self) {
        self.shell.disk.set_capacity(None);
        while self.shell.log.disk_full() {
            self.shell.fire();
        }
        self.shell.settle();
        self.model.acknowledge(self.shell.log.durable());
        assert!(self.model.waiting.is_empty(), "a sound disk makes everything durable in the end");
        self.crash();
        let files = self.shell.log.stats().file_bytes;
        assert!(files < 256 << 20, "{files} bytes of segments");
    }
}

/// A whole run of a seed.
pub fn run(seed: u64) -> Seen {
    let mut run = Run::new(seed);
    for _ in 0..STEPS {
        run.step();
    }
    run.end();
    run.seen
}
