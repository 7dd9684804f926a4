//! What the log promises, one by one, without chance.

mod harness;

use core::time::Duration;

use garboard_wal::{Append, AppendNumber, Effect, HardState, Log, LogConfig, MetaFacts, Verdict};
use harness::{Shell, append, entry, genesis, presented, read_from, recover, segment_name, small, start_recovery};

const LOG_ID: u128 = 0x1234_5678_9abc_def0;

#[test]
fn what_was_acknowledged_is_there_after_a_crash() {
    let mut shell = Shell::create(small(1, 2), LOG_ID);
    let mut expected = Vec::new();
    for index in 1..=40 {
        let number = shell.append(append(index, 1, 1, 900, index - 1));
        expected.push(entry(index, 1, 900));
        shell.settle();
        assert_eq!(shell.log.durable(), number);
    }
    shell.disk.crash(garboard_simdisk::Kept::Nothing, 0);
    let recovered = recover(&mut shell.disk, small(1, 2), genesis(LOG_ID)).unwrap();
    assert_eq!(recovered.entries, expected);
    assert_eq!(recovered.hard_state, HardState { term: 1, vote: 1, commit: 39 });
    assert_eq!(recovered.report.verdict, Verdict::Open);

    let mut shell = Shell::over(shell.disk, recovered.log);
    shell.append(append(41, 2, 2, 10, 40));
    shell.settle();
    expected.extend([entry(41, 2, 10), entry(42, 2, 10)]);
    shell.disk.crash(garboard_simdisk::Kept::Nothing, 0);
    let recovered = recover(&mut shell.disk, small(1, 2), genesis(LOG_ID)).unwrap();
    assert_eq!(recovered.entries, expected);
}

#[test]
fn a_lone_append_is_written_at_once_and_what_arrives_meanwhile_shares_the_next_write() {
    let config = LogConfig { writes_in_flight_max: 1, ..small(1, 1) };
    let mut shell = Shell::create(config, LOG_ID);
    shell.settle();
    let before = shell.log.stats().batch_count;
    shell.append(append(1, 1, 1, 100, 0));
    shell.pump();
    assert_eq!(shell.in_flight.len(), 1);
    for index in 2..=9 {
        shell.append(append(index, 1, 1, 100, 0));
        shell.pump();
    }
    assert_eq!(shell.in_flight.len(), 1);
    shell.settle();
    assert_eq!(shell.log.durable(), AppendNumber(9));
    assert_eq!(shell.log.stats().batch_count - before, 2);
}

#[test]
fn only_the_contiguous_prefix_counts_as_durable() {
    let mut shell = Shell::create(small(2, 2), LOG_ID);
    shell.settle();
    let numbers: Vec<AppendNumber> = (1..=4)
        .map(|index| {
            let number = shell.append(append(index, 1, 1, 100, 0));
            shell.pump();
            number
        })
        .collect();
    assert_eq!(shell.in_flight.len(), 4);
    shell.complete(2).unwrap();
    shell.complete(1).unwrap();
    assert_eq!(shell.log.durable(), AppendNumber(0));
    shell.complete(0).unwrap();
    assert_eq!(shell.log.durable(), numbers[2]);
    shell.complete(0).unwrap();
    assert_eq!(shell.log.durable(), numbers[3]);
}

#[test]
fn an_entry_larger_than_a_segment_gets_one_of_its_own_that_goes_when_it_is_not_needed() {
    let mut shell = Shell::create(small(1, 2), LOG_ID);
    shell.append(append(1, 1, 1, 100, 0));
    shell.append(append(2, 1, 1, 200_000, 0));
    shell.append(append(3, 1, 1, 100, 0));
    shell.settle();
    assert_eq!(shell.log.durable(), AppendNumber(3));
    let expected = vec![entry(1, 1, 100), entry(2, 1, 200_000), entry(3, 1, 100)];
    let recovered = recover(&mut shell.disk.clone(), small(1, 2), genesis(LOG_ID)).unwrap();
    assert_eq!(recovered.entries, expected);

    let files = |shell: &Shell| shell.disk.list().filter(|(_, size)| *size > 100_000).count();
    assert_eq!(files(&shell), 1);
    shell.append(append(4, 1, 1, 100, 3));
    shell.settle();
    let anchor = shell.log.anchor(4);
    shell.log.handle_checkpoint(&anchor);
    shell.settle();
    assert_eq!(files(&shell), 0);
}

#[test]
fn segments_below_a_durable_anchor_are_used_again_and_replay_starts_behind_it() {
    let config = small(1, 2);
    let mut shell = Shell::create(config, LOG_ID);
    let mut meta = genesis(LOG_ID);
    for index in 1..=400 {
        shell.append(append(index, 1, 1, 900, index - 1));
        shell.settle();
        if index % 20 == 0 {
            let anchor = shell.log.anchor(index - 1);
            meta = MetaFacts { anchor: Some(anchor), applied_index: index - 1, applied_term: 1 };
            shell.log.handle_checkpoint(&anchor);
            shell.settle();
        }
    }
    assert!(shell.log.stats().recycled_count > 10, "{:?}", shell.log.stats());
    assert!(shell.log.stats().file_bytes <= 5 * config.segment_size_bytes);
    let recovered = recover(&mut shell.disk, config, meta).unwrap();
    assert_eq!(recovered.entries, vec![entry(400, 1, 900)]);
}

#[test]
fn a_conflicting_suffix_is_replaced_by_the_append_that_conflicts() {
    let mut shell = Shell::create(small(1, 2), LOG_ID);
    shell.append(append(1, 10, 1, 50, 4));
    shell.settle();
    shell.append(append(6, 2, 3, 50, 5));
    shell.append(append(7, 3, 4, 50, 5));
    shell.settle();
    let mut expected: Vec<_> = (1..=5).map(|index| entry(index, 1, 50)).collect();
    expected.push(entry(6, 3, 50));
    expected.extend((7..=9).map(|index| entry(index, 4, 50)));
    let recovered = recover(&mut shell.disk, small(1, 2), genesis(LOG_ID)).unwrap();
    assert_eq!(recovered.entries, expected);
    assert_eq!(recovered.log.last(), (9, 4));
}

#[test]
#[should_panic(expected = "nothing committed is replaced")]
fn an_append_that_replaces_a_committed_entry_stops_the_process() {
    let mut log = Log::create(small(1, 1), LOG_ID).unwrap();
    log.append(append(1, 3, 1, 10, 2));
    log.append(append(2, 1, 2, 10, 2));
}

#[test]
fn a_vote_alone_is_durable_and_its_term_never_falls() {
    let mut shell = Shell::create(small(1, 2), LOG_ID);
    let state = HardState { term: 7, vote: 3, commit: 0 };
    let number = shell.append(Append { entries: Vec::new(), hard_state: state });
    shell.settle();
    assert_eq!(shell.log.durable(), number);
    let recovered = recover(&mut shell.disk, small(1, 2), genesis(LOG_ID)).unwrap();
    assert_eq!(recovered.hard_state, state);
}

#[test]
fn an_idle_log_is_sealed_once_in_another_segment() {
    let mut shell = Shell::create(small(1, 2), LOG_ID);
    shell.append(append(1, 1, 1, 100, 0));
    shell.settle();
    let (_, segment, ..) = *shell.written.last().unwrap();
    assert!(shell.fire());
    shell.settle();
    assert_eq!(shell.log.stats().seal_count, 1);
    assert_ne!(shell.written.last().unwrap().1, segment);
    assert!(!shell.fire(), "nothing more to seal");
}

#[test]
fn a_log_that_never_falls_idle_is_sealed_after_so_many_batches() {
    let config = LogConfig { seal_after_batches: 4, writes_in_flight_max: 2, ..small(1, 2) };
    let mut shell = Shell::create(config, LOG_ID);
    shell.settle();
    // One write is always in flight, so the log is never idle and no time passes.
    shell.append(append(1, 1, 1, 100, 0));
    shell.pump();
    for index in 2..=40 {
        shell.append(append(index, 1, 1, 100, index - 1));
        shell.pump();
        shell.complete(0).unwrap();
    }
    let seals = shell.log.stats().seal_count;
    assert!((7..=11).contains(&seals), "{seals} seals of 40 batches");
    // The segment that holds the batches is lost: what the seals say shows it.
    let (shard, segment, ..) = shell.written[0];
    shell.disk.remove(&segment_name(shard, segment)).unwrap();
    assert!(recover(&mut shell.disk, config, genesis(LOG_ID)).is_err());
}

#[test]
fn a_seal_in_flight_delays_no_batch_and_is_never_overwritten() {
    let mut shell = Shell::create(small(1, 1), LOG_ID);
    shell.append(append(1, 1, 1, 100, 0));
    shell.settle();
    assert!(shell.fire());
    shell.pump();
    let seal = shell.in_flight[0];
    for index in 2..=20 {
        shell.append(append(index, 1, 1, 7_000, index - 1));
        shell.pump();
        assert_eq!(shell.in_flight.len(), 2);
        shell.complete(1).unwrap();
    }
    assert!(shell.written.iter().skip(3).any(|place| place.1 == seal.place.1), "the sealed segment is in use");
    shell.complete(0).unwrap();
    let recovered = recover(&mut shell.disk, small(1, 1), genesis(LOG_ID)).unwrap();
    assert_eq!(recovered.entries.len(), 20);
}

#[test]
fn nothing_is_written_before_the_epoch_start_is_durable() {
    let mut shell = Shell::create(small(1, 2), LOG_ID);
    shell.append(append(1, 3, 1, 100, 0));
    shell.settle();
    let recovered = recover(&mut shell.disk, small(1, 2), genesis(LOG_ID)).unwrap();
    let mut shell = Shell::over(shell.disk, recovered.log);
    shell.append(append(4, 1, 1, 100, 0));
    shell.pump();
    assert_eq!(shell.in_flight.len(), 1);
    shell.complete(0).unwrap();
    assert_eq!(shell.log.durable(), AppendNumber(0));
    shell.pump();
    assert_eq!(shell.in_flight.len(), 1);
    shell.complete(0).unwrap();
    assert_eq!(shell.log.durable(), AppendNumber(1));
}

#[test]
fn the_shell_is_asked_for_the_manifest_first_and_for_two_segments_a_shard() {
    let config = LogConfig::for_shards(3);
    let mut log = Log::create(config, LOG_ID).unwrap();
    let Some(Effect::WriteManifest { op, .. }) = log.poll_effect(Duration::ZERO) else { panic!("no manifest") };
    assert_eq!(log.poll_effect(Duration::ZERO), None);
    log.handle_done(Duration::ZERO, op, Ok(())).unwrap();
    let mut reserved = 0;
    while let Some(effect) = log.poll_effect(Duration::ZERO) {
        let Effect::PrepareSegment { size_bytes, .. } = effect else { panic!("{effect:?}") };
        reserved += size_bytes;
    }
    assert_eq!(reserved, config.reserved_at_start_bytes());
}

#[test]
fn recovery_writes_nothing_and_presents_the_same_twice() {
    let mut shell = Shell::create(small(1, 2), LOG_ID);
    for index in 1..=30 {
        shell.append(append(index, 1, 1, 500, 0));
        shell.settle();
    }
    let first = recover(&mut shell.disk, small(1, 2), genesis(LOG_ID)).unwrap();
    let second = recover(&mut shell.disk, small(1, 2), genesis(LOG_ID)).unwrap();
    assert_eq!(presented(&first), presented(&second));
    let mut shell = Shell::over(shell.disk, second.log);
    shell.settle();
    let third = recover(&mut shell.disk, small(1, 2), genesis(LOG_ID)).unwrap();
    assert_eq!(presented(&first), presented(&third));
}

#[test]
fn a_snapshot_takes_the_place_of_the_log_with_one_flip_of_the_meta_page() {
    let config = small(1, 2);
    let mut shell = Shell::create(config, LOG_ID);
    shell.append(append(1, 10, 1, 50, 4));
    shell.settle();
    let anchor = shell.log.install_snapshot(100, 5).unwrap();
    shell.append(append(101, 2, 6, 50, 100));
    shell.settle();
    assert_eq!(shell.log.durable(), AppendNumber(1), "nothing behind the snapshot before its flip");

    let before = recover(&mut shell.disk.clone(), config, genesis(LOG_ID)).unwrap();
    assert_eq!(before.entries.len(), 10);
    let meta = MetaFacts { anchor: Some(anchor), applied_index: 100, applied_term: 5 };
    let flipped = recover(&mut shell.disk.clone(), config, meta).unwrap();
    assert_eq!((flipped.entries.len(), flipped.hard_state.commit), (0, 100));

    shell.log.handle_checkpoint(&anchor);
    shell.settle();
    assert_eq!(shell.log.durable(), AppendNumber(2));
    let after = recover(&mut shell.disk, config, meta).unwrap();
    assert_eq!(after.entries, vec![entry(101, 6, 50), entry(102, 6, 50)]);
}

#[test]
fn segments_that_are_read_side_by_side_in_any_order_open_the_same_log() {
    let mut shell = Shell::create(small(2, 2), LOG_ID);
    for index in 1..=200 {
        shell.append(append(index, 1, 1, 900, index - 1));
        shell.settle();
    }
    shell.disk.crash(garboard_simdisk::Kept::Nothing, 0);
    let expected = recover(&mut shell.disk, small(2, 2), genesis(LOG_ID)).unwrap();
    assert!(expected.report.segment_count > 4);

    let mut recovery = start_recovery(&mut shell.disk, small(2, 2), genesis(LOG_ID)).unwrap();
    let mut segments: Vec<_> = std::iter::from_fn(|| recovery.take_segment()).collect();
    while let Some(mut segment) = segments.pop() {
        while let Some(read) = segment.poll_read() {
            let bytes = read_from(&mut shell.disk, read);
            segment.handle_read(read, bytes.as_deref().map_err(|error| *error));
        }
        recovery.handle_segment(segment);
    }
    let recovered = recovery.finish().unwrap();
    assert_eq!(presented(&recovered), presented(&expected));
    assert_eq!(recovered.report, expected.report);
}
