//! Failed writes and syncs at every point, short writes, and full disks. `WAL_COMMITS=n` sets how many appends a run has.

mod harness;

use garboard_simdisk::{Fault, Kept, Operation};
use garboard_wal::{LogConfig, LogFailure};
use harness::model::Model;
use harness::{Shell, append, genesis, recover, small};

const LOG_ID: u128 = 0xabc_def0_1234;

/// A run in which the n-th operation fails; what it acknowledged must be there after any crash.
fn run_with(config: LogConfig, operation: Operation, nth: u64, fault: Fault) -> Option<LogFailure> {
    let mut shell = Shell::create(config, LOG_ID);
    let effect = shell.log.poll_effect(shell.now).expect("the manifest");
    shell.start(effect).expect("not yet failing");
    shell.disk.plan(operation, nth, fault);
    let mut model = Model::new(genesis(LOG_ID));
    let commits = std::env::var("WAL_COMMITS").map_or(60, |value| value.parse().expect("a number"));
    for index in 1..=commits {
        let more = append(index, 1, 1, 40 * usize::try_from(index % 64).expect("small"), index - 1);
        let number = shell.append(more.clone());
        model.append(number, more);
        shell.pump();
        if index % 3 == 0 {
            shell.settle();
            model.acknowledge(shell.log.durable());
        }
        if index % 20 == 0 && shell.failure.is_none() {
            shell.fire();
            shell.settle();
        }
        if shell.failure.is_some() {
            break;
        }
    }
    model.acknowledge(shell.log.durable());
    let failure = shell.failure.clone();
    if failure.is_some() {
        check_poisoned(&mut shell, &mut model);
    }
    for bits in [0, u64::MAX, 0x5555_5555_5555_5555, 0x0f0f_0f0f_0f0f_0f0f, 0xff00_ff00_ff00_ff00] {
        let mut disk = shell.disk.clone();
        disk.crash(Kept::Bits(bits), usize::MAX);
        model.check(&recover(&mut disk, config, model.meta).expect("a failed write is like a torn one"));
    }
    failure
}

/// After the first failure nothing more is asked for or acknowledged, whatever completes late.
fn check_poisoned(shell: &mut Shell, model: &mut Model) {
    let durable = shell.log.durable();
    assert!(shell.log.is_poisoned());
    assert_eq!(shell.log.poll_timeout(), None);
    for write in std::mem::take(&mut shell.in_flight) {
        let late = shell.disk.complete(write.write);
        assert!(late.is_ok());
        assert_eq!(shell.log.handle_done(shell.now, write.op, Ok(())), Err(LogFailure::Poisoned));
    }
    let newest = model.newest().clone();
    let more = append(newest.last_index() + 1, 1, newest.hard_state.term, 10, newest.hard_state.commit);
    let number = shell.append(more.clone());
    model.append(number, more);
    assert_eq!(shell.log.poll_effect(shell.now), None);
    assert_eq!(shell.log.durable(), durable, "nothing is acknowledged after a failure");
}

#[test]
fn every_failed_write_and_sync_stops_the_log_before_anything_else_is_acknowledged() {
    for (operation, fault) in [
        (Operation::Write, Fault::Error),
        (Operation::Write, Fault::Short(512)),
        (Operation::Write, Fault::Full),
        (Operation::Sync, Fault::Error),
    ] {
        for config in [small(1, 1), small(1, 3), small(2, 2)] {
            let mut failures = 0;
            while let Some(failure) = run_with(config, operation, failures, fault) {
                assert_ne!(failure, LogFailure::Poisoned);
                failures += 1;
            }
            assert!(failures >= 20, "{operation:?} failed at {failures} points only");
        }
    }
}

#[test]
fn a_full_disk_while_a_segment_is_prepared_stops_nothing_and_shows_in_the_room_left() {
    let config = small(1, 2);
    let mut shell = Shell::create(config, LOG_ID);
    shell.settle();
    shell.disk.set_capacity(Some(shell.disk.used()));
    let mut index = 0;
    while !shell.log.disk_full() {
        index += 1;
        shell.append(append(index, 1, 1, 3_000, index - 1));
        shell.settle();
    }
    // What is prepared can still be filled to its end.
    let room = shell.log.room_bytes();
    assert!(room > 0 && room <= config.segment_size_bytes, "{room}");
    while shell.log.room_bytes() >= 4096 {
        index += 1;
        shell.append(append(index, 1, 1, 3_000, index - 1));
        shell.settle();
        assert_eq!(shell.log.durable().0, index);
    }
    // Beyond, appends wait, and nothing fails.
    shell.append(append(index + 1, 1, 1, 3_000, index - 1));
    shell.settle();
    assert_eq!(shell.log.durable().0, index);
    assert!(shell.log.disk_full() && shell.failure.is_none());

    // A checkpoint gives segments back without asking the disk.
    let mut checkpointed = recover(&mut shell.disk.clone(), config, genesis(LOG_ID)).expect("sound");
    assert_eq!(checkpointed.entries.len(), usize::try_from(index).expect("small"));
    assert!(checkpointed.log.poll_effect(shell.now).is_some());
    let anchor = shell.log.anchor(index - 1);
    shell.log.handle_checkpoint(&anchor);
    shell.settle();
    assert_eq!(shell.log.durable().0, index + 1);

    // Space alone is enough too, without help.
    shell.disk.set_capacity(None);
    let full_before = shell.log.stats().disk_full_count;
    while shell.log.disk_full() {
        assert!(shell.fire());
    }
    shell.settle();
    assert_eq!(shell.log.stats().disk_full_count, full_before);
    assert!(shell.log.room_bytes() >= config.segment_size_bytes / 2);
}
