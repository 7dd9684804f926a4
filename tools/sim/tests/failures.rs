//! A failed write, short write, full disk or failed sync at every point of a run of the whole member: it stops at once,
//! had acknowledged nothing that is not durable, asks for nothing more, and is right when it starts again.
//!
//! `SIM_COMMITS=n` sets how many commits a run has; 1,000 by hand.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use garboard_replica::Error;
use garboard_replica::envelope::{Request, Response, Ticket};
use garboard_replica::member::{Fatal, MemberConfig};
use garboard_replica::request::{Command, Put};
use garboard_sim::node::{Node, Stop, read};
use garboard_simdisk::{Disk, Fault, Kept, Operation, Rng};
use garboard_storage::IndexConfig;
use garboard_wal::LogConfig;

const KEYS: u64 = 37;
/// Commits between two checkpoints, and between two compactions.
const CHECKPOINT_EVERY: u64 = 20;
const COMPACT_EVERY: u64 = 45;
/// Commits after a restart.
const COMMITS_AFTER: u64 = 5;

fn put(number: u64) -> Command {
    let len = usize::try_from(number * 53 % 1_500).unwrap();
    Command::Put(Put {
        key: Bytes::from(format!("key-{:02}", number % KEYS)),
        value: Bytes::from([number.to_string().as_bytes(), &vec![b'.'; len]].concat()),
        lease: 0,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    })
}

/// A write that was acknowledged.
#[derive(Clone, Debug)]
struct Acknowledged {
    number: u64,
    revision: i64,
}

struct Run {
    node: Node,
    waiting: Vec<(Ticket, u64)>,
    acknowledged: Vec<Acknowledged>,
    refused: u64,
}

impl Run {
    fn new() -> Run {
        let log = LogConfig {
            segment_size_bytes: 64 << 10,
            batch_size_max_bytes: 16 << 10,
            writes_in_flight_max: 2,
            ..LogConfig::default()
        };
        let index = IndexConfig { checkpoint_bytes: 1 << 20, dirty_bytes_max: 2 << 20, ..IndexConfig::new(9, 7) };
        let node = Node::configured(Rng::new(1), MemberConfig::single(7), log, index);
        Run { node, waiting: Vec::new(), acknowledged: Vec::new(), refused: 0 }
    }

    /// Commits these, several at a time now and then, with checkpoints and compactions among them.
    fn commit(&mut self, numbers: std::ops::Range<u64>) -> Result<(), Stop> {
        for number in numbers {
            let ticket = self.node.write(put(number));
            self.waiting.push((ticket, number));
            if number % CHECKPOINT_EVERY == 7 {
                self.node.member.checkpoint();
            }
            if number % COMPACT_EVERY == 31 {
                let revision = self.node.reader().revision() - 3;
                self.node.write(Command::Compact { revision, physical: false });
            }
            if number % 3 == 0 {
                self.settle()?;
            } else {
                self.node.try_step()?;
            }
        }
        self.settle()
    }

    /// Runs until everything is answered and nothing is under way.
    fn settle(&mut self) -> Result<(), Stop> {
        while !self.waiting.is_empty() || self.node.has_io() {
            let going_on = self.node.try_step()?;
            self.take_answers();
            assert!(going_on || self.waiting.is_empty(), "everything is answered in the end");
        }
        Ok(())
    }

    fn take_answers(&mut self) {
        for (ticket, answer) in self.node.answers.drain(..) {
            let Some(at) = self.waiting.iter().position(|(waiting, _)| *waiting == ticket) else { continue };
            let (_, number) = self.waiting.swap_remove(at);
            match answer {
                Ok(Response::Write(reply)) => {
                    self.acknowledged.push(Acknowledged { number, revision: reply.revision });
                }
                Err(Error::NoSpace) => self.refused += 1,
                other => panic!("a put was answered with {other:?}"),
            }
        }
    }

    fn count(&self, operation: Operation) -> u64 {
        self.node.disk.lock().unwrap().count(operation)
    }

    /// Lets an operation fail, counted from the beginning.
    fn plan(&mut self, operation: Operation, at: u64, fault: Fault) {
        let until_then = at - self.count(operation);
        self.node.disk.lock().unwrap().plan(operation, until_then, fault);
    }

    /// The member has stopped: whatever comes in and whatever completes late, it asks for nothing and answers nothing.
    fn check_stopped(&mut self) {
        self.take_answers();
        let asked = [Operation::Write, Operation::Allocate].map(|operation| self.count(operation));
        let clock = self.node.clock();
        assert!(self.node.member.poll_effect(clock).is_none(), "a member that failed asks for nothing");
        self.node.send([Request::Write(put(0)), Request::ReadIndex]);
        self.node.member.handle_timeout(clock + Duration::from_secs(60));
        while self.node.has_io() {
            // The process would be gone by now; what it had asked for completes.
            let _ = self.node.try_step();
        }
        let effect = self.node.member.poll_effect(clock + Duration::from_secs(120));
        assert!(effect.is_none(), "{effect:?}");
        let answers = &self.node.answers;
        assert!(answers.iter().all(|(_, answer)| answer.is_err()), "nothing is acknowledged any more: {answers:?}");
        let after = [Operation::Write, Operation::Allocate].map(|operation| self.count(operation));
        assert_eq!(asked, after, "nothing is written and nothing is tried again");
    }

    /// Starts on this disk, and finds everything that was acknowledged.
    fn check_restart(&mut self, disk: Disk, context: &str) {
        *self.node.disk.lock().unwrap() = disk;
        self.waiting.clear();
        self.node.start_process().unwrap_or_else(|refusal| panic!("{context}: {refusal}"));
        assert_eq!(self.node.call(Request::ReadIndex), Ok(Response::ReadIndex), "{context}");
        self.check_all_there(context);
    }

    fn check_all_there(&self, context: &str) {
        let reader = self.node.reader();
        let compacted = read(&reader, |view| Ok(view.compacted()));
        for Acknowledged { number, revision } in &self.acknowledged {
            let Command::Put(put) = put(*number) else { unreachable!() };
            let at = (*revision).max(compacted);
            let found = read(&reader, |view| view.find(&put.key, at));
            let found = found.unwrap_or_else(|| panic!("{context}: commit {number} at revision {revision} is gone"));
            if found.modified.main != *revision {
                assert!(compacted > *revision && found.modified.main > *revision, "{context}: {number} is gone");
                continue;
            }
            let value = read(&reader, |view| {
                let mut value = Vec::new();
                view.value(found.modified, &mut value).map(|there| there.then_some(value))
            });
            assert_eq!(value.as_deref(), Some(&put.value[..]), "{context}: commit {number}");
        }
    }
}

/// What can go wrong. A full disk is only fatal where a write meets it: what prepares a file is tried again later.
const FATAL: [(Operation, Fault); 5] = [
    (Operation::Write, Fault::Error),
    (Operation::Write, Fault::Short(512)),
    (Operation::Write, Fault::Full),
    (Operation::Sync, Fault::Error),
    (Operation::Allocate, Fault::Error),
];

fn commits() -> u64 {
    std::env::var("SIM_COMMITS").map_or(60, |value| value.parse().unwrap())
}

/// How many operations a run without faults has after the store was made, and how many before.
fn operations(commits: u64, operation: Operation) -> (u64, u64) {
    let mut run = Run::new();
    let before = run.count(operation);
    run.commit(0..commits).unwrap();
    assert_eq!(run.acknowledged.len(), usize::try_from(commits).unwrap());
    (before, run.count(operation))
}

/// How many operations it takes until a new store takes its first commit.
fn made(operation: Operation) -> u64 {
    let mut run = Run::new();
    run.commit(0..1).unwrap();
    run.count(operation)
}

/// One run whose operation number `at` fails. False if that was none of the member's.
fn fail_at(commits: u64, operation: Operation, fault: Fault, at: u64) -> bool {
    let context = format!("{operation:?} {at} fails with {fault:?}");
    let mut run = Run::new();
    run.plan(operation, at, fault);
    let Err(stop) = run.commit(0..commits) else { return false };
    assert!(matches!(stop, Stop::Fatal(Fatal::Log(_) | Fatal::Index(_))), "{context}: {stop}");
    run.check_stopped();
    let disk = run.node.disk.lock().unwrap().clone();
    for kept in [Kept::Nothing, Kept::Everything, Kept::Random(at), Kept::Random(!at)] {
        let mut image = disk.clone();
        image.crash(kept, usize::MAX);
        run.check_restart(image, &context);
    }
    // Only the process ends. What could not be written is there or is not; then it works, and the power fails.
    let mut image = disk;
    image.settle_abandoned(&mut Rng::new(at));
    run.check_restart(image, &context);
    run.commit(commits..commits + COMMITS_AFTER).unwrap();
    run.node.member.checkpoint();
    run.settle().unwrap();
    let mut image = run.node.disk.lock().unwrap().clone();
    image.crash(Kept::Random(at), usize::MAX);
    run.check_restart(image, &context);
    true
}

#[test]
fn a_failed_operation_at_every_point_stops_the_member_and_loses_nothing() {
    let commits = commits();
    for (operation, fault) in FATAL {
        let (before, end) = operations(commits, operation);
        let went_on: Vec<u64> = (before..end).filter(|at| !fail_at(commits, operation, fault, *at)).collect();
        // The shell alone notes, once, that the store is served from.
        let noted = went_on.len();
        assert!(noted <= 1 && went_on.iter().all(|at| *at < made(operation)), "the member goes on after {went_on:?}");
        let points = end - before - u64::try_from(noted).unwrap();
        println!("{operation:?}, {fault:?}: stopped at each of {points} points of {commits} commits, 0 losses");
        assert!(points > 0, "{operation:?} is put to the test");
    }
}

#[test]
fn a_full_disk_while_a_file_grows_stops_nothing_and_loses_nothing() {
    let commits = commits();
    // A store whose first files find no room is not made.
    let made = made(Operation::Allocate);
    let (_, end) = operations(commits, Operation::Allocate);
    assert!(end > made, "files grow");
    for at in made..end {
        let context = format!("the disk is full at allocation {at}");
        let mut run = Run::new();
        run.plan(Operation::Allocate, at, Fault::Full);
        run.commit(0..commits).unwrap_or_else(|stop| panic!("{context}: {stop}"));
        assert_eq!(run.acknowledged.len() + usize::try_from(run.refused).unwrap(), usize::try_from(commits).unwrap());
        run.check_all_there(&context);
        let mut image = run.node.disk.lock().unwrap().clone();
        image.crash(Kept::Nothing, usize::MAX);
        run.check_restart(image, &context);
    }
}
