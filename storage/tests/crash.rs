//! Crashes at every write and sync, rot everywhere, and a full disk.
#![allow(clippy::unwrap_used)]

mod support;

use garboard_simdisk::{Fault, Operation, Rng, Rot, SECTOR_SIZE};
use garboard_storage::{
    Applied, Bounds, Index, IndexFailure, IoFailure, IoOp, OpenError, PAGE_SIZE, PageFile, Revision, SpaceState,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use support::images::{Depth, EVERYWHERE, Enumeration, assert_opens_to_one_of, crash_images, script_step};
use support::{NAME, Rig, SimFile, assert_same, config, empty_disk, open, settle};

/// How thoroughly the smaller tests crash.
const SOME: Depth = Depth { random: 4, torn: 4 };

/// After a crash at any effect of a run the index opens to the newest durable checkpoint, or to the one under way if
/// its meta page was complete. `INDEX_IMAGES=n` gives every moment of many unsynced sectors so many random subsets, and
/// tears every write at every sector; `SEEDS=n` makes as many runs, `SEED=n` one of them.
#[test]
fn a_crash_at_any_write_or_sync_leads_to_a_checkpoint_as_it_was() {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(1),
    };
    let depth = match number("INDEX_IMAGES") {
        Some(random) => Depth { random, torn: EVERYWHERE },
        None => Depth { random: 4, torn: 3 },
    };
    let images = Rc::new(Cell::new(0));
    for seed in seeds {
        let before = images.get();
        Enumeration::new(seed, depth, Rc::clone(&images)).run();
        println!("seed {seed}: {} crash images", images.get() - before);
    }
    println!("{} crash images, 0 losses", images.get());
    assert!(images.get() > 1_000);
}

/// A crash while the file is being formatted leaves nothing that opens to anything but the empty store.
#[test]
fn a_crash_while_formatting_is_refused_or_opens_empty() {
    let mut rng = Rng::new(1);
    let mut rig = Rig::create();
    loop {
        let disk = rig.file.disk.lock().unwrap().clone();
        for image in crash_images(&disk, 0, &mut rng, Depth { random: 20, torn: 1 }) {
            if let Ok((index, facts, _)) = open(image) {
                assert_eq!((facts.applied, facts.revision), (Applied::default(), 1));
                index.check().unwrap();
            }
        }
        if !rig.io_step(&mut rng) {
            break;
        }
    }
}

/// A process that dies and a power loss later must not undo each other: what the second process reuses is safe only
/// once what the first left in the kernel's cache is durable.
#[test]
fn an_index_opens_after_any_number_of_crashes_in_its_checkpoints() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::create();
        rig.finish_io(&mut rng);
        for round in 0..10 {
            rig.put(b"key", &[round], 0);
            rig.publish();
            rig.start_checkpoint();
            for _ in 0..rng.below(14) {
                rig.io_step(&mut rng);
            }
            let mut disk = rig.file.disk.lock().unwrap().clone();
            disk.crash_at_random(&mut rng);
            let opened = open(disk).unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            let model = rig.checkpoints[&opened.1.applied.index].clone();
            rig = Rig::around(opened.0, opened.2, model);
            rig.assert_same();
        }
    }
}

#[test]
fn a_power_loss_after_a_process_died_between_meta_copies_finds_a_whole_checkpoint() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::create();
        rig.finish_io(&mut rng);
        for round in 0..3 {
            script_step(&mut rig, &mut rng, round);
            rig.checkpoint(&mut rng);
        }
        script_step(&mut rig, &mut rng, 4);
        let before = (rig.model.applied - 1, rig.checkpoints.values().next_back().unwrap().clone());
        let before = (before.1.applied, before.1);
        rig.start_checkpoint();
        let under_way = (rig.model.applied, rig.model.clone());
        for _ in 0..rng.index(40) {
            rig.io_step(&mut rng);
        }
        // The process dies; the kernel's cache stays.
        let (index, facts, file) = open(rig.file.disk.lock().unwrap().clone()).unwrap();
        let opened = if facts.applied.index == under_way.0 { under_way.clone() } else { before.clone() };
        let mut rig = Rig::around(index, file, opened.1.clone());
        script_step(&mut rig, &mut rng, 5);
        rig.start_checkpoint();
        let newest = (rig.model.applied, rig.model.clone());
        loop {
            let disk = rig.file.disk.lock().unwrap().clone();
            for image in crash_images(&disk, 0, &mut rng, SOME) {
                let allowed = [before.clone(), under_way.clone(), newest.clone()];
                assert_opens_to_one_of(image, &allowed, &format!("seed {seed}"));
            }
            if !rig.io_step(&mut rng) {
                break;
            }
        }
    }
}

/// Walks all that a view shows; true if every page that it needed could be trusted.
fn walks_to_the_end(index: &Index) -> bool {
    let reader = index.reader();
    let snapshot = reader.pin();
    let view = snapshot.view();
    let mut events = view.events(Revision::default());
    let mut cursor = view.cursor(Bounds::ALL, i64::MAX);
    let mut system = view.system_scan(b"");
    loop {
        match events.next() {
            Ok(Some(_)) => (),
            Ok(None) => break,
            Err(need) if reader.load(need.0).is_err() => return false,
            Err(_) => (),
        }
    }
    loop {
        match cursor.next().map(|next| next.is_some()) {
            Ok(true) => (),
            Ok(false) => break,
            Err(need) if reader.load(need.0).is_err() => return false,
            Err(_) => (),
        }
    }
    loop {
        match system.next() {
            Ok(Some(_)) => (),
            Ok(None) => return true,
            Err(need) if reader.load(need.0).is_err() => return false,
            Err(_) => (),
        }
    }
}

/// Every sector of the file, rotten in every way: either the index shows exactly what it should, or it says which page
/// is damaged, or opening refuses. Nothing wrong is ever shown.
#[test]
fn rot_anywhere_is_never_served() {
    let mut rng = Rng::new(3);
    let mut rig = Rig::create();
    rig.finish_io(&mut rng);
    let mut older = Vec::new();
    for round in 0..5 {
        script_step(&mut rig, &mut rng, round);
        rig.checkpoint(&mut rng);
        older.push(rig.file.disk.lock().unwrap().clone());
    }
    let disk = rig.file.disk.lock().unwrap().clone();
    let stale = &older[2];
    let used = rig.index.size();
    let sectors = (used.in_use_bytes + 64 * 4096) / u64::try_from(SECTOR_SIZE).unwrap();
    let (mut noticed, mut harmless) = (0, 0);
    for sector in 0..sectors {
        let rots = [
            Rot::Flip(rng.index(SECTOR_SIZE * 8)),
            Rot::Zero,
            Rot::Stale(stale),
            Rot::Misdirected { file: NAME, sector: rng.below(sectors) },
            Rot::Unreadable,
        ];
        for rot in rots {
            let mut disk = disk.clone();
            disk.rot(NAME, sector, rot).unwrap();
            let Ok((index, facts, _)) = open(disk) else {
                noticed += 1;
                continue;
            };
            assert_eq!(facts.applied.index, rig.model.applied, "sector {sector}");
            if walks_to_the_end(&index) {
                let reader = index.reader();
                assert_same(&reader, reader.pin().view(), &rig.model);
                harmless += 1;
            } else {
                assert!(index.check().is_err());
                noticed += 1;
            }
        }
    }
    println!("{noticed} noticed, {harmless} harmless");
    assert!(noticed > 300 && harmless > 300);
}

/// A whole page that was lost or that landed elsewhere has a right checksum, and is noticed all the same.
#[test]
fn a_lost_or_misdirected_write_of_a_whole_page_is_noticed() {
    let mut rng = Rng::new(4);
    let mut rig = Rig::create();
    rig.finish_io(&mut rng);
    for round in 0..3 {
        script_step(&mut rig, &mut rng, round);
        rig.checkpoint(&mut rng);
    }
    let stale = rig.file.disk.lock().unwrap().clone();
    for round in 3..9 {
        script_step(&mut rig, &mut rng, round);
        rig.checkpoint(&mut rng);
    }
    let disk = rig.file.disk.lock().unwrap().clone();
    let per_page = u64::try_from(PAGE_SIZE / SECTOR_SIZE).unwrap();
    let pages = rig.index.size().in_use_bytes / u64::try_from(PAGE_SIZE).unwrap() + 64;
    let mut noticed = 0;
    for page in 4..pages {
        for misdirected in [false, true] {
            let mut disk = disk.clone();
            let other = 4 + rng.below(pages - 4);
            for i in 0..per_page {
                let rot = if misdirected {
                    Rot::Misdirected { file: NAME, sector: other * per_page + i }
                } else {
                    Rot::Stale(&stale)
                };
                disk.rot(NAME, page * per_page + i, rot).unwrap();
            }
            let Ok((index, _, _)) = open(disk) else {
                noticed += 1;
                continue;
            };
            if walks_to_the_end(&index) {
                let reader = index.reader();
                assert_same(&reader, reader.pin().view(), &rig.model);
            } else {
                noticed += 1;
            }
        }
    }
    assert!(noticed > 50, "{noticed} noticed");
}

/// The newest generation's two copies rotting must not bring the one before back to life.
#[test]
fn a_rotten_newest_generation_is_refused_and_one_rotten_copy_is_not() {
    let mut rng = Rng::new(5);
    let mut rig = Rig::create();
    rig.finish_io(&mut rng);
    for round in 0..4 {
        script_step(&mut rig, &mut rng, round);
        rig.checkpoint(&mut rng);
    }
    // Generation 1 formatted the file, so the fourth checkpoint after it is generation 5: slots 2 and 3.
    let disk = rig.file.disk.lock().unwrap().clone();
    let rot = |slots: &[u64]| {
        let mut disk = disk.clone();
        for slot in slots {
            disk.rot(NAME, slot * u64::try_from(PAGE_SIZE / SECTOR_SIZE).unwrap(), Rot::Flip(900)).unwrap();
        }
        open(disk).map(|(_, facts, _)| facts.applied.index)
    };
    assert_eq!(rot(&[2]).unwrap(), rig.model.applied);
    assert_eq!(rot(&[3]).unwrap(), rig.model.applied);
    assert!(matches!(rot(&[2, 3]), Err(OpenError::NoMeta(_))));
    assert!(matches!(rot(&[0, 1, 2, 3]), Err(OpenError::NoMeta(_))));
}

/// A failed write or sync poisons the index; nothing is tried again.
#[test]
fn the_first_failed_write_or_sync_is_the_last_effect() {
    for (operation, nth) in [(Operation::Write, 0), (Operation::Write, 3), (Operation::Sync, 0), (Operation::Sync, 2)] {
        let mut rng = Rng::new(6);
        let mut rig = Rig::create();
        rig.finish_io(&mut rng);
        script_step(&mut rig, &mut rng, 0);
        rig.start_checkpoint();
        rig.file.disk.lock().unwrap().plan(operation, nth, Fault::Error);
        let failure = loop {
            let io = rig.index.poll_io().expect("the fault comes before the end");
            if let Err(failure) = rig.index.handle_io(io.id, rig.file.perform(&io.op)) {
                break failure;
            }
        };
        match operation {
            Operation::Write => assert!(matches!(failure, IndexFailure::Write { source: IoFailure::Errno(5), .. })),
            _ => assert!(matches!(failure, IndexFailure::Sync { source: IoFailure::Errno(5) })),
        }
        assert_eq!(rig.index.poll_io(), None);
        assert_eq!(rig.index.poll_checkpoint_done(), None);
    }
}

/// On a full disk the index says so, keeps what it has, lets deletes and compaction go on, and recovers.
#[test]
fn a_full_disk_is_survived() {
    let mut rng = Rng::new(7);
    let mut rig = Rig::create();
    rig.finish_io(&mut rng);
    let used = rig.file.disk.lock().unwrap().used();
    rig.file.disk.lock().unwrap().set_capacity(Some(used));
    let mut round = 0;
    while rig.index.space() == SpaceState::Enough {
        for i in 0..20 {
            rig.put(format!("big/{round}/{i}").as_bytes(), &vec![b'x'; 60_000], 0);
        }
        rig.publish();
        if round % 4 == 3 {
            rig.start_checkpoint();
            rig.finish_io(&mut rng);
        }
        round += 1;
        assert!(round < 1_000);
    }
    rig.assert_same();
    // Deletes and compaction fit what is kept in reserve.
    for old in 0..round {
        for i in 0..20 {
            rig.delete(format!("big/{old}/{i}").as_bytes());
        }
        rig.publish();
    }
    rig.compact(rig.model.revision);
    rig.finish_compaction();
    for _ in 0..3 {
        rig.start_checkpoint();
        rig.finish_io(&mut rng);
        rig.publish();
    }
    assert!(rig.durable.is_some_and(|durable| durable > 0), "a checkpoint was durable in spite of the full disk");
    rig.assert_same();
    rig.index.check().unwrap();
    assert_eq!(rig.index.space(), SpaceState::Enough, "what was freed inside the file is room enough");
    rig.file.disk.lock().unwrap().set_capacity(None);
    rig.put(b"again", b"there is room", 0);
    rig.publish();
    rig.checkpoint(&mut rng);
    assert_eq!(rig.index.space(), SpaceState::Enough);
}

/// Space comes back: rewriting the same keys for long, with compaction and checkpoints, does not let the file grow.
#[test]
fn a_steady_state_does_not_grow() {
    let mut rng = Rng::new(8);
    let mut rig = Rig::create();
    rig.finish_io(&mut rng);
    let mut sizes = Vec::new();
    for round in 0..60 {
        for i in 0..200 {
            let len = rng.index(3_000);
            rig.put(format!("key/{i:04}").as_bytes(), &vec![b'y'; len], 0);
            rig.end_txn();
        }
        rig.publish();
        rig.compact(rig.model.revision - 50);
        rig.finish_compaction();
        rig.checkpoint(&mut rng);
        sizes.push((round, rig.index.size()));
    }
    let (early, late) = (sizes[10].1, sizes[59].1);
    assert!(late.in_use_bytes <= early.in_use_bytes * 5 / 4, "{early:?} {late:?}");
    assert!(late.file_bytes - late.free_bytes <= (early.file_bytes - early.free_bytes) * 5 / 4, "{early:?} {late:?}");
    let used = |size: garboard_storage::IndexSize| size.file_bytes - size.free_bytes;
    assert!(used(late) < 8 << 20);
    rig.index.check().unwrap();
}

/// Growth is asked for before anything is written beyond the file's end.
#[test]
fn nothing_is_written_beyond_what_is_allocated() {
    let file = SimFile::new(empty_disk());
    let mut index = Index::create(config(), Arc::clone(&file) as Arc<dyn PageFile>);
    let mut revision = 1;
    index.start_checkpoint(b"", b"");
    for round in 0..10u64 {
        while let Some(io) = index.poll_io() {
            if let IoOp::Write { offset, bytes } = &io.op {
                assert!(offset + u64::try_from(bytes.len()).unwrap() <= file.len_bytes());
            }
            index.handle_io(io.id, file.perform(&io.op)).unwrap();
        }
        assert!(index.poll_checkpoint_done().is_some());
        for i in 0..40u64 {
            revision += 1;
            index.put(Revision { main: revision, sub: 0 }, &i.to_be_bytes(), &vec![7; 100_000], 0).unwrap();
        }
        index.publish(Applied { index: round + 1, term: 1 }, revision);
        index.start_checkpoint(b"", b"");
    }
    let reader = index.reader();
    let snapshot = reader.pin();
    assert_eq!(settle(&reader, || snapshot.view().count(Bounds::ALL, i64::MAX)), 40);
}

/// The background scrub finds every rotten page, and nothing in a sound file, while the file is being written.
#[test]
fn the_scrub_finds_rot_and_only_rot() {
    let mut rng = Rng::new(9);
    let mut rig = Rig::create();
    rig.finish_io(&mut rng);
    for round in 0..8 {
        script_step(&mut rig, &mut rng, round);
        rig.start_checkpoint();
        while rig.io_step(&mut rng) {
            let (pages, _) = rig.index.pages_in_file(0, 1_000);
            rig.reader.scrub(&pages).unwrap();
        }
    }
    let (pages, next) = rig.index.pages_in_file(0, usize::MAX);
    assert!(pages.len() > 20 && next.is_none());
    let per_page = u64::try_from(PAGE_SIZE / SECTOR_SIZE).unwrap();
    for &page in &pages {
        let clean = rig.file.disk.lock().unwrap().clone();
        let sector = u64::from(page) * per_page + rng.below(per_page);
        rig.file.disk.lock().unwrap().rot(NAME, sector, Rot::Flip(rng.index(SECTOR_SIZE * 8))).unwrap();
        assert!(rig.reader.scrub(&[page]).is_err());
        *rig.file.disk.lock().unwrap() = clean;
        rig.reader.scrub(&[page]).unwrap();
    }
    let some = rig.index.pages_in_file(0, 3);
    assert_eq!(some.0, pages[..3]);
    assert_eq!(rig.index.pages_in_file(some.1.unwrap(), usize::MAX).0, pages[3..]);
}

/// The net catches: a shell that reports syncs which it does not make loses checkpoints, and the crash images show it.
#[test]
fn a_shell_that_lies_about_syncs_is_caught() {
    let mut rng = Rng::new(10);
    let mut rig = Rig::create();
    rig.finish_io(&mut rng);
    let mut caught = 0;
    for round in 0..6 {
        script_step(&mut rig, &mut rng, round);
        rig.start_checkpoint();
        while let Some(io) = rig.index.poll_io() {
            let result = if io.op == IoOp::Sync { Ok(()) } else { rig.file.perform(&io.op) };
            rig.index.handle_io(io.id, result).unwrap();
        }
        assert!(rig.index.poll_checkpoint_done().is_some());
        let allowed = [(rig.model.applied, rig.model.clone())];
        let disk = rig.file.disk.lock().unwrap().clone();
        for image in crash_images(&disk, 0, &mut rng, SOME) {
            let opens = || assert_opens_to_one_of(image.clone(), &allowed, "a lying shell");
            caught += u32::from(std::panic::catch_unwind(std::panic::AssertUnwindSafe(opens)).is_err());
        }
    }
    assert!(caught > 10, "{caught} images caught");
}
