//! Rot, lost writes, misdirected writes and unreadable sectors, sector by sector: what was acknowledged is presented or
//! refused with its place, never anything else.

mod harness;

use garboard_simdisk::{Disk, Rot};
use garboard_wal::{Append, Entry, HardState, MetaFacts, RecoveryError, Verdict, Why};
use harness::rot::{LOG_ID, SECTOR, case};
use harness::{Shell, append, entry, genesis, presented, read_all, recover, segment_name, small};

#[test]
fn rot_of_any_batch_that_a_later_one_confirms_is_refused_with_file_offset_and_index() {
    for config in [small(1, 1), small(2, 1)] {
        let case = case(config, 30, false);
        let confirmed = &case.batches[..case.batches.len() - 1];
        let refused = case.sweep(confirmed, true);
        assert!(refused > 500, "{refused}");
    }
}

#[test]
fn rot_of_the_last_batch_is_refused_once_it_is_sealed() {
    for count in 3..9 {
        let case = case(small(1, 1), count, true);
        let last = &case.batches[case.batches.len() - 1..];
        let refused = case.sweep(last, last[0].offset > 0);
        assert!(refused > 0);
    }
}

#[test]
fn rot_of_the_last_batch_before_its_seal_loses_that_batch_and_no_other() {
    let case = case(small(1, 1), 12, false);
    let last = case.batches.last().expect("there are batches");
    let mut lost = 0;
    for sector in 0..last.content_bytes.div_ceil(SECTOR) {
        for mut disk in case.rotten(last, sector) {
            let recovered = recover(&mut disk, case.config, case.meta).expect("a torn tail is cut");
            let (entries, _) = presented(&recovered);
            if entries.len() + 1 == case.entries.len() {
                assert_eq!(entries[..], case.entries[..entries.len()]);
                lost += 1;
            } else {
                assert!(case.is_whole(&recovered));
            }
        }
    }
    assert!(lost > 0, "the window that the documents state exists");
}

#[test]
fn rot_of_a_seal_or_of_what_lies_below_the_anchor_changes_nothing() {
    let config = small(1, 1);
    let mut shell = Shell::create(config, LOG_ID);
    for index in 1..=20 {
        shell.append(append(index, 1, 1, 3_000, index));
        shell.settle();
    }
    assert!(shell.fire());
    shell.settle();
    let (shard, segment, offset, _) = shell.written.pop().expect("the seal");
    let expected = presented(&recover(&mut shell.disk, config, genesis(LOG_ID)).expect("sound"));
    for bit in [0, 100, 1000, 1535] {
        let mut disk = shell.disk.clone();
        disk.rot(&segment_name(shard, segment), offset / SECTOR, Rot::Flip(bit)).expect("there");
        assert_eq!(presented(&recover(&mut disk, config, genesis(LOG_ID)).expect("sound")), expected);
    }

    let anchor = shell.log.anchor(15);
    let meta = MetaFacts { anchor: Some(anchor), applied_index: 15, applied_term: 1 };
    for &(shard, segment, offset, len) in &shell.written[..15] {
        for sector in 0..u64::try_from(len).expect("small") / SECTOR {
            for rot in [Rot::Zero, Rot::Flip(9), Rot::Unreadable] {
                let mut disk = shell.disk.clone();
                disk.rot(&segment_name(shard, segment), offset / SECTOR + sector, rot).expect("there");
                let recovered = recover(&mut disk, config, meta).expect("what is below the anchor is not needed");
                assert_eq!(recovered.entries, expected.0[15..]);
            }
        }
    }
}

/// Puts back what a file held in an older image of the disk.
fn put_back(disk: &mut Disk, older: &Disk, name: &str, size: u64) {
    for sector in 0..size / SECTOR {
        disk.rot(name, sector, Rot::Stale(older)).expect("the file was there");
    }
}

#[test]
fn a_segment_of_an_older_generation_never_joins() {
    let config = small(1, 1);
    let mut shell = Shell::create(config, LOG_ID);
    let mut meta = genesis(LOG_ID);
    let mut images = Vec::new();
    for index in 1..=200 {
        shell.append(append(index, 1, 1, 3_000, index));
        shell.settle();
        if index % 10 == 0 {
            images.push(shell.disk.clone());
            let anchor = shell.log.anchor(index - 5);
            meta = MetaFacts { anchor: Some(anchor), applied_index: index - 5, applied_term: 1 };
            shell.log.handle_checkpoint(&anchor);
        }
    }
    assert!(shell.log.stats().recycled_count > 3);
    let expected = presented(&recover(&mut shell.disk, config, meta).expect("sound"));
    let names: Vec<(String, u64)> = shell.disk.list().map(|(name, size)| (name.to_owned(), size)).collect();
    let mut refused = 0;
    for older in &images {
        for (name, size) in names.iter().filter(|(name, _)| name.contains("segment")) {
            if older.size(name).is_err() {
                continue;
            }
            let mut disk = shell.disk.clone();
            put_back(&mut disk, older, name, *size);
            match recover(&mut disk, config, meta) {
                Ok(recovered) => assert_eq!(presented(&recovered), expected),
                Err(RecoveryError::Damaged(damage)) => {
                    assert_eq!(damage.why, Why::Hole);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 0, "live segments were among them");
}

#[test]
fn a_segment_copied_to_another_name_or_shard_counts_for_nothing() {
    let case = case(small(2, 1), 20, true);
    let names: Vec<(String, u64)> = case.disk.list().map(|(name, size)| (name.to_owned(), size)).collect();
    let (source, size) = names.iter().find(|(name, _)| *name == segment_name(0, 1)).expect("there");
    for target in [segment_name(1, 77), segment_name(0, 99)] {
        let mut disk = case.disk.clone();
        disk.create(&target, *size).expect("room");
        for sector in 0..size / SECTOR {
            disk.rot(&target, sector, Rot::Misdirected { file: source, sector }).expect("there");
        }
        let recovered = recover(&mut disk, case.config, case.meta).expect("a copy is no batch");
        assert!(case.is_whole(&recovered));
        assert!(recovered.report.misplaced_count > 0);
    }
}

#[test]
fn a_log_without_a_meta_page_or_with_another_stores_is_refused() {
    let mut case = case(small(1, 1), 3, false);
    let missing = MetaFacts::default();
    assert!(matches!(recover(&mut case.disk, case.config, missing), Err(RecoveryError::NoMeta { why: Why::NoMeta })));
    let foreign = genesis(LOG_ID + 1);
    assert!(matches!(recover(&mut case.disk, case.config, foreign), Err(RecoveryError::Foreign)));
    let ahead = MetaFacts { applied_index: 4, applied_term: 1, ..genesis(LOG_ID) };
    let Err(RecoveryError::Damaged(damage)) = recover(&mut case.disk, case.config, ahead) else { panic!("accepted") };
    assert_eq!((damage.why, damage.index), (Why::AppliedBeyondEnd, 4));
    let other_term = MetaFacts { applied_index: 3, applied_term: 9, ..genesis(LOG_ID) };
    let Err(RecoveryError::Damaged(damage)) = recover(&mut case.disk, case.config, other_term) else {
        panic!("accepted")
    };
    assert_eq!(damage.why, Why::BrokenOrder);
}

#[test]
fn a_hole_is_repaired_with_the_entries_of_peers_in_one_step_and_the_vote_is_kept() {
    let config = small(1, 1);
    let mut shell = Shell::create(config, LOG_ID);
    for index in 1..=20 {
        shell.append(append(index, 1, 1, 900, index - 1));
        shell.settle();
    }
    let vote = HardState { term: 9, vote: 3, commit: 19 };
    shell.append(Append { entries: Vec::new(), hard_state: vote });
    shell.settle();
    let (shard, segment, offset, _) = shell.written[12];
    shell.disk.rot(&segment_name(shard, segment), offset / SECTOR, Rot::Zero).expect("there");

    let mut recovery = read_all(&mut shell.disk, config, genesis(LOG_ID)).expect("it belongs together");
    let Err(RecoveryError::Damaged(damage)) = recovery.judge() else { panic!("not noticed") };
    assert_eq!((damage.index, damage.repairable), (12, true));
    let peers: Vec<Entry> = (damage.index..=20).map(|index| entry(index, 1, 900)).collect();
    let repaired = recovery.finish_repaired(peers).expect("the entries continue the log");
    let expected: Vec<Entry> = (1..=20).map(|index| entry(index, 1, 900)).collect();
    assert_eq!(presented(&repaired), (expected.clone(), vote));

    // A crash before the repair is durable leaves the damage to be repaired again; after it, a sound log.
    let mut shell = Shell::over(shell.disk, repaired.log);
    shell.pump();
    for bits in 0..64 {
        let mut disk = shell.disk.clone();
        disk.crash(garboard_simdisk::Kept::Random(bits), usize::MAX);
        match recover(&mut disk, config, genesis(LOG_ID)) {
            Ok(recovered) => assert_eq!(presented(&recovered), (expected.clone(), vote)),
            Err(RecoveryError::Damaged(again)) => assert_eq!(again.index, 12),
            Err(error) => panic!("{error}"),
        }
    }
    shell.append(append(21, 1, 9, 50, 20));
    shell.settle();
    let recovered = recover(&mut shell.disk, config, genesis(LOG_ID)).expect("sound again");
    assert_eq!(recovered.report.verdict, Verdict::Open);
    assert_eq!(recovered.entries.len(), 21);
}

#[test]
fn salvage_keeps_what_lies_before_the_damage_and_the_log_goes_on() {
    let config = small(1, 1);
    let case = case(config, 20, true);
    let mut disk = case.disk.clone();
    let batch = case.batches[10];
    disk.rot(&segment_name(batch.shard, batch.segment), batch.offset / SECTOR, Rot::Flip(77)).expect("there");
    let recovery = read_all(&mut disk, config, case.meta).expect("it belongs together");
    let salvaged = recovery.finish_repaired(Vec::new()).expect("salvage");
    assert_eq!(salvaged.entries, case.entries[..9]);
    assert_eq!((salvaged.hard_state.term, salvaged.hard_state.commit), (case.hard_state.term, 9));
    let mut shell = Shell::over(disk, salvaged.log);
    shell.settle();
    let recovered = recover(&mut shell.disk, config, case.meta).expect("the old claims are void");
    assert_eq!(recovered.entries, case.entries[..9]);
}
