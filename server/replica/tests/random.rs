//! Random requests against the model, with crashes at random points.
//!
//! `GARBOARD_SEED=n` replays one seed; `GARBOARD_SEEDS=n` runs more than the usual number.

#![allow(clippy::unwrap_used)]

mod model;
mod sim;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response, Ticket};
use garboard_replica::request::{
    Command, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange, KeyValue, Operation, Put, Range, Reply,
    SortOrder, SortTarget, Txn,
};
use garboard_replica::validate;
use garboard_simdisk::Rng;
use garboard_storage::{Bounds, Reader};
use model::Model;
use sim::{Sabotage, Sim, read};

/// What is said when no prefix of the commands with everything that was answered is there after a crash.
const LOST: &str = "a prefix of what was submitted, with everything acknowledged, survives";

/// So long that no lease expires by itself.
const LONG_TTL_SECONDS: i64 = 1_000_000;

fn any_key(rng: &mut Rng) -> Bytes {
    let names = ["a", "b", "c", "ca", "cb", "d", "key-with-a-longer-name", "z"];
    Bytes::from_static(names[rng.index(names.len())].as_bytes())
}

fn any_value(rng: &mut Rng) -> Bytes {
    let len = match rng.below(10) {
        0 => 0,
        1 => 5_000,
        _ => rng.index(20),
    };
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    Bytes::from(bytes)
}

fn any_keys(rng: &mut Rng) -> KeyRange {
    match rng.below(6) {
        0..=2 => KeyRange::Point(any_key(rng)),
        3 => KeyRange::Span { start: any_key(rng), end: any_key(rng) },
        4 => KeyRange::FromKey(any_key(rng)),
        _ => KeyRange::All,
    }
}

fn any_lease(rng: &mut Rng) -> i64 {
    if rng.chance(60) { 0 } else { rng.below(5) as i64 - 2 }
}

fn any_put(rng: &mut Rng) -> Put {
    let (ignore_value, ignore_lease) = (rng.chance(10), rng.chance(10));
    Put {
        key: any_key(rng),
        value: if ignore_value { Bytes::new() } else { any_value(rng) },
        lease: if ignore_lease { 0 } else { any_lease(rng) },
        prev_kv: rng.chance(30),
        ignore_value,
        ignore_lease,
    }
}

fn any_delete(rng: &mut Rng) -> DeleteRange {
    DeleteRange { keys: any_keys(rng), prev_kv: rng.chance(50) }
}

fn any_revision(rng: &mut Rng, model: &Model) -> i64 {
    rng.below(model.revision as u64 + 3) as i64 - 1
}

fn any_range(rng: &mut Rng, model: &Model) -> Range {
    Range {
        keys: any_keys(rng),
        limit: rng.below(4) as i64 - 1,
        revision: if rng.chance(70) { 0 } else { any_revision(rng, model) },
        order: SortOrder::None,
        target: SortTarget::Key,
        serializable: rng.chance(50),
        keys_only: false,
        count_only: rng.chance(20),
        min_mod_revision: 0,
        max_mod_revision: 0,
        min_create_revision: 0,
        max_create_revision: 0,
    }
}

fn any_compare(rng: &mut Rng, model: &Model) -> Compare {
    let operators =
        [CompareOperator::Equal, CompareOperator::NotEqual, CompareOperator::Greater, CompareOperator::Less];
    let operator = operators[rng.index(operators.len())];
    let target = match rng.below(5) {
        0 => CompareTarget::Version(rng.below(3) as i64),
        1 => CompareTarget::Create(any_revision(rng, model)),
        2 => CompareTarget::Mod(any_revision(rng, model)),
        3 => CompareTarget::Value(any_value(rng)),
        _ => CompareTarget::Lease(any_lease(rng)),
    };
    Compare { keys: any_keys(rng), operator, target }
}

fn any_txn(rng: &mut Rng, model: &Model, depth: usize) -> Txn {
    let branch = |rng: &mut Rng| {
        let count = rng.index(4);
        let operation = |rng: &mut Rng| match rng.below(if depth < 3 { 8 } else { 7 }) {
            0..=1 => Operation::Range(any_range(rng, model)),
            2..=4 => Operation::Put(any_put(rng)),
            5..=6 => Operation::DeleteRange(any_delete(rng)),
            _ => Operation::Txn(any_txn(rng, model, depth + 1)),
        };
        (0..count).map(|_| operation(rng)).collect::<Vec<_>>()
    };
    let compares = (0..rng.index(3)).map(|_| any_compare(rng, model)).collect();
    Txn { compares, success: branch(rng), failure: branch(rng) }
}

fn any_command(rng: &mut Rng, model: &Model) -> Command {
    loop {
        let command = match rng.below(20) {
            0..=7 => Command::Put(any_put(rng)),
            8..=9 => Command::DeleteRange(any_delete(rng)),
            10..=15 => Command::Txn(any_txn(rng, model, 0)),
            16 => Command::Compact { revision: any_revision(rng, model), physical: rng.chance(50) },
            17..=18 => {
                let id = [-2, -1, 1, 2][rng.index(4)];
                Command::LeaseGrant { id, ttl_seconds: LONG_TTL_SECONDS }
            }
            _ => Command::LeaseRevoke { id: rng.below(5) as i64 - 2 },
        };
        if validate::check_command(&command, &validate::Limits::default()).is_ok() {
            return command;
        }
    }
}

/// A command under way.
struct Submitted {
    ticket: Ticket,
    expected: Result<Reply, Error>,
    /// The model once it has taken effect.
    after: Model,
}

struct Run {
    sim: Sim,
    rng: Rng,
    /// With everything that was submitted.
    model: Model,
    /// The model before the first of `submitted`.
    base: Model,
    submitted: VecDeque<Submitted>,
    answered: HashMap<Ticket, Result<Response, Error>>,
    acknowledged: u64,
    crashes: u64,
    checkpoints: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            sim: Sim::new(seed),
            rng: Rng::new(seed ^ 0x5EED),
            model: Model::new(),
            base: Model::new(),
            submitted: VecDeque::new(),
            answered: HashMap::new(),
            acknowledged: 0,
            crashes: 0,
            checkpoints: 0,
        }
    }

    fn submit(&mut self) {
        let count = 1 + self.rng.index(8);
        let commands: Vec<Command> = (0..count).map(|_| any_command(&mut self.rng, &self.model)).collect();
        let expected: Vec<_> = commands
            .iter()
            .map(|command| {
                let expected = self.model.execute(command);
                (expected, self.model.clone())
            })
            .collect();
        let tickets = self.sim.send(commands.into_iter().map(Request::Write));
        for (ticket, (expected, after)) in tickets.into_iter().zip(expected) {
            self.submitted.push_back(Submitted { ticket, expected, after });
        }
    }

    /// Compares answers that came in with what the model expects.
    fn check_answers(&mut self) {
        self.answered.extend(self.sim.answers.drain(..));
        while let Some(front) = self.submitted.front() {
            let Some(answer) = self.answered.remove(&front.ticket) else { break };
            let submitted = self.submitted.pop_front().unwrap();
            assert_eq!(answer, submitted.expected.map(Response::Write));
            self.base = submitted.after;
            self.acknowledged += 1;
        }
    }

    fn crash(&mut self) {
        self.check_answers();
        // Answers may overtake those of physical compactions: everything up to the last answered one must survive.
        let answered = |submitted: &Submitted| self.answered.contains_key(&submitted.ticket);
        let acknowledged = self.submitted.iter().rposition(answered).map_or(0, |last| last + 1);
        if self.rng.chance(80) {
            self.sim.crash()
        } else {
            self.sim.restart()
        }
        self.crashes += 1;
        self.checkpoints += u64::from(self.sim.member.log().base().sequence() > 1);
        assert_eq!(self.sim.call(Request::ReadIndex), Ok(Response::ReadIndex));
        let leases = self.leases();
        let mut survivors = (acknowledged..=self.submitted.len()).map(|count| match count {
            0 => &self.base,
            count => &self.submitted[count - 1].after,
        });
        let reader = self.sim.reader();
        let (revision, compacted) = read(&reader, |view| Ok((view.revision(), view.compacted())));
        let survivor = survivors.find(|model| {
            model.revision == revision
                && model.compacted == compacted
                && model.leases.keys().copied().collect::<Vec<_>>() == leases
                && model.live(i64::MAX) == live(&reader, i64::MAX)
        });
        let survivor = survivor.expect(LOST).clone();
        self.model = survivor.clone();
        self.base = survivor;
        self.submitted.clear();
        self.answered.clear();
        self.sim.answers.clear();
    }

    fn leases(&mut self) -> Vec<i64> {
        let Ok(Response::LeaseList(mut leases)) = self.sim.call(Request::LeaseList) else { panic!("no list") };
        leases.sort_unstable();
        leases
    }

    /// Runs until everything is answered and compares the whole history that must be readable.
    fn check_history(&mut self) {
        self.sim.settle();
        self.check_answers();
        assert!(self.submitted.is_empty(), "everything is answered");
        let reader = self.sim.reader();
        let newest = read(&reader, |view| Ok((view.revision(), view.compacted())));
        assert_eq!(newest, (self.model.revision, self.model.compacted));
        for revision in self.model.compacted.max(1)..=self.model.revision {
            assert_eq!(live(&reader, revision), self.model.live(revision), "at revision {revision}");
        }
        for id in self.model.leases.keys() {
            let attached = read(&reader, |view| garboard_replica::system::attached_keys(view, *id));
            let live = self.model.live(i64::MAX);
            let expected: Vec<_> = live.into_iter().filter(|pair| pair.lease == *id).map(|pair| pair.key).collect();
            assert_eq!(attached, expected, "keys of lease {id}");
        }
        assert_eq!(self.leases(), self.model.leases.keys().copied().collect::<Vec<_>>());
    }
}

fn live(reader: &Reader, at: i64) -> Vec<KeyValue> {
    read(reader, |view| {
        let mut pairs = Vec::new();
        let mut cursor = view.cursor(Bounds::ALL, at);
        while let Some((key, version)) = cursor.next()? {
            let mut value = Vec::new();
            assert!(view.value(version.modified, &mut value)?);
            pairs.push(KeyValue {
                key: Bytes::copy_from_slice(key),
                create_revision: version.create_revision,
                mod_revision: version.modified.main,
                version: version.version,
                value: Bytes::from(value),
                lease: version.lease,
            });
        }
        Ok(pairs)
    })
}

fn run(seed: u64, sabotage: Sabotage) -> [u64; 3] {
    let mut run = Run::new(seed);
    run.sim.sabotage = sabotage;
    for _ in 0..150 {
        match run.rng.below(20) {
            0..=7 => run.submit(),
            8 if run.rng.chance(30) => run.crash(),
            9 if run.rng.chance(20) => run.check_history(),
            10 if run.rng.chance(40) => {
                run.sim.member.checkpoint();
            }
            _ => {
                for _ in 0..run.rng.index(10) {
                    run.sim.step_within(Duration::from_secs(1));
                }
                run.check_answers();
            }
        }
    }
    run.check_history();
    run.crash();
    run.check_history();
    [run.acknowledged, run.crashes, run.checkpoints]
}

#[test]
fn every_acknowledged_write_is_there_and_every_answer_is_etcds() {
    let variable = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let seeds = match variable("GARBOARD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("GARBOARD_SEEDS").unwrap_or(100),
    };
    let mut sums = [0; 3];
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run(seed, Sabotage::default()));
        match outcome {
            Ok(counts) => sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
            Err(panic) => {
                eprintln!("failed with GARBOARD_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let [acknowledged, crashes, checkpoints] = sums;
    eprintln!("{acknowledged} acknowledged writes, {crashes} crashes, {checkpoints} with a checkpoint to start from");
    assert!(sums.iter().all(|sum| *sum > 0));
}

/// Events of the script: starts and ends of I/O, timeouts, requests and checkpoints among them.
const SCRIPT_EVENTS: u64 = 200;
/// How often it is crashed at each of them, each time with other sectors lost.
const SCRIPT_FATES: u64 = 3;

#[test]
fn a_crash_at_every_event_of_a_script_loses_nothing_that_was_acknowledged() {
    let (mut acknowledged, mut checkpoints) = (0, 0);
    for events in 0..SCRIPT_EVENTS {
        for fate in 0..SCRIPT_FATES {
            let mut run = Run::new(7);
            for event in 0..events {
                if event % 3 == 0 {
                    run.submit();
                }
                if event % 40 == 25 {
                    run.sim.member.checkpoint();
                }
                run.sim.step_within(Duration::from_secs(1));
                run.check_answers();
            }
            run.sim.rng = Rng::new(1 + fate * SCRIPT_EVENTS + events);
            acknowledged += run.acknowledged;
            run.crash();
            run.check_history();
            checkpoints += run.checkpoints;
        }
    }
    assert!(acknowledged > 10_000 && checkpoints > 100, "{acknowledged} writes, {checkpoints} checkpoints");
}

#[test]
fn an_answer_before_its_write_is_durable_would_be_caught() {
    let sabotage = Sabotage { early_completion: true };
    let caught = (0..30).filter(|seed| {
        let Err(panic) = std::panic::catch_unwind(|| run(*seed, sabotage)) else { return false };
        let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        message.contains(LOST)
    });
    assert!(caught.count() > 0, "the model notices that an acknowledged write is gone");
}
