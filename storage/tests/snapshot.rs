//! An index is filled from a snapshot of another: what arrives is what was there, the old index is served until it has
//! arrived, and a crash leaves one or the other.
#![allow(clippy::unwrap_used)]

mod support;

use garboard_simdisk::Rng;
use garboard_storage::{CompactionProgress, Export, ExportStep, ImportError, Position, Snapshot, limits};
use support::images::{Depth, assert_opens_to_one_of, crash_images, script_step};
use support::model::Model;
use support::random::{key, value};
use support::{Rig, assert_same, config, open, settle};

const CLUSTER_ID: u64 = 11;

/// The export of what a rig has published, with the copy of its system tree.
fn export(rig: &Rig) -> Export {
    let pin = rig.reader.pin();
    let mut export = Export::begin(&pin.view(), CLUSTER_ID);
    while !settle(&rig.reader, || export.copy(&pin.view())) {}
    export
}

fn step(rig: &Rig, export: &mut Export) -> ExportStep {
    settle(&rig.reader, || export.step(&rig.reader.pin().view()))
}

fn txn(rig: &mut Rig, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        let key = key(rng);
        if rng.chance(70) {
            let value = value(rng);
            let lease = if rng.chance(10) { rng.next_u64().cast_signed() } else { 0 };
            rig.put(&key, &value, lease);
        } else {
            rig.delete(&key);
        }
    }
    rig.end_txn();
    if rng.chance(20) {
        let (key, value) = (key(rng), value(rng));
        rig.system_put(&key, &value);
    }
    rig.publish();
}

fn filled(rng: &mut Rng, transactions: u64) -> Rig {
    let mut rig = Rig::create();
    rig.finish_io(rng);
    for _ in 0..transactions {
        txn(&mut rig, rng);
        if rng.chance(5) {
            rig.compact(
                rig.model.revision - rng.below(10).cast_signed().min(rig.model.revision - rig.model.compacted.max(0)),
            );
        }
        if rng.chance(20) && rig.index.compaction_pending() {
            rig.compaction_step(20);
        }
        if rng.chance(10) {
            rig.checkpoint(rng);
        }
    }
    rig
}

/// Makes what was imported durable and installs it.
fn install(rig: &mut Rig, rng: &mut Rng, model: &Model) {
    while !rig.index.is_import_saved() {
        rig.finish_io(rng);
        rig.start_checkpoint();
        rig.finish_io(rng);
    }
    rig.finish_io(rng);
    rig.index.start_install(&model.applied.to_le_bytes(), b"conf");
    rig.finish_io(rng);
    assert!(!rig.index.is_installing());
    assert_eq!(rig.durable, Some(model.applied));
    rig.model = model.clone();
}

fn run(seed: u64) {
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let transactions = 20 + rng.below(150);
    let mut sender = filled(&mut rng, transactions);
    let older = rng.below(60);
    let mut receiver = filled(&mut rng, older);
    let expected = sender.model.clone();
    let mut export = export(&sender);
    let mut sent: Vec<Position> = Vec::new();
    let mut pinned: Vec<(Snapshot, Model)> = Vec::new();
    receiver.index.begin_import();
    let mut taken = 0;
    loop {
        // Both go on meanwhile, but for physical compaction at the sender's.
        if rng.chance(60) {
            txn(&mut sender, &mut rng);
        }
        if rng.chance(10) {
            sender.index.set_compacted(sender.model.revision);
            sender.model.compacted = sender.model.revision;
            sender.publish();
        }
        if rng.chance(10) {
            sender.checkpoint(&mut rng);
        }
        if rng.chance(20) {
            txn(&mut receiver, &mut rng);
        }
        if rng.chance(10) {
            pinned.push((receiver.reader.pin(), receiver.model.clone()));
        }
        if rng.chance(20) {
            receiver.start_checkpoint();
        }
        receiver.io_step(&mut rng);
        let position = export.position().clone();
        let chunk = match step(&sender, &mut export) {
            ExportStep::Chunk(chunk) => chunk,
            ExportStep::Again => continue,
            ExportStep::Done => break,
        };
        assert!(chunk.bytes.len() <= limits::SNAPSHOT_CHUNK_BYTES);
        sent.push(position);
        assert_eq!(usize::try_from(chunk.number).unwrap() + 1, sent.len());
        if rng.chance(20) {
            // Some chunks before this one are lost, too.
            let lost = usize::try_from(rng.below(3)).unwrap().min(sent.len() - 1 - taken);
            sent.truncate(sent.len() - lost);
            let from = sent.pop().unwrap();
            export.rewind(from);
            continue;
        }
        if rng.chance(50) {
            // It waits with others for the acknowledgement.
            continue;
        }
        // All that were sent have arrived: send them again from the first that was not taken.
        export.rewind(sent[taken].clone());
        let until = sent.len();
        sent.truncate(taken);
        while taken < until {
            let position = export.position().clone();
            match step(&sender, &mut export) {
                ExportStep::Chunk(chunk) => {
                    sent.push(position);
                    receiver.index.import_chunk(&chunk.bytes).unwrap();
                    taken += 1;
                }
                ExportStep::Again => {}
                ExportStep::Done => break,
            }
            while !receiver.index.can_import() {
                receiver.start_checkpoint();
                receiver.io_step(&mut rng);
            }
        }
        let position = export.position().clone();
        export.forget(&position);
    }
    if taken < sent.len() {
        export.rewind(sent[taken].clone());
        loop {
            match step(&sender, &mut export) {
                ExportStep::Chunk(chunk) => receiver.index.import_chunk(&chunk.bytes).unwrap(),
                ExportStep::Again => {}
                ExportStep::Done => break,
            }
        }
    }
    assert!(receiver.index.is_import_complete());
    receiver.assert_same();
    install(&mut receiver, &mut rng, &expected);
    receiver.assert_same();
    receiver.index.check().unwrap();
    for (snapshot, model) in &pinned {
        assert_same(&receiver.reader, snapshot.view(), model);
    }
    let (index, facts, _) = open(receiver.disk()).unwrap();
    assert_eq!(facts.applied.index, expected.applied);
    assert_same(&index.reader(), index.reader().pin().view(), &expected);
    index.check().unwrap();
    // It goes on as an index that was never replaced.
    for _ in 0..30 {
        txn(&mut receiver, &mut rng);
        if rng.chance(30) {
            receiver.checkpoint(&mut rng);
        }
    }
    for (snapshot, model) in &pinned {
        assert_same(&receiver.reader, snapshot.view(), model);
    }
    drop(pinned);
    receiver.compact(receiver.model.revision);
    receiver.finish_compaction();
    receiver.checkpoint(&mut rng);
    receiver.assert_same();
    receiver.index.check().unwrap();
    let (index, ..) = open(receiver.disk()).unwrap();
    assert_same(&index.reader(), index.reader().pin().view(), &receiver.model);
    index.check().unwrap();
}

/// `SEEDS=n` tries so many, `SEED=n` one of them.
#[test]
fn what_arrives_is_what_was_there_whatever_both_indexes_do_meanwhile() {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    match number("SEED") {
        Some(seed) => run(seed),
        None => (0..number("SEEDS").unwrap_or(30)).for_each(run),
    }
}

/// A reader holds on to an index, of whose pages it has read none and some are not in the file, while a snapshot takes that
/// index's place and the new one writes as much as it likes.
fn old_pages_stay_for_their_reader(seed: u64) {
    let mut rng = Rng::new(seed);
    let sender = filled(&mut rng, 60);
    let mut before = filled(&mut rng, 60);
    before.checkpoint(&mut rng);
    let (index, _, file) = open(before.disk()).unwrap();
    let mut receiver = Rig::around(index, file, before.model.clone());
    txn(&mut receiver, &mut rng);
    let (pin, model) = (receiver.reader.pin(), receiver.model.clone());
    receiver.index.begin_import();
    for chunk in chunks(&sender) {
        receiver.index.import_chunk(&chunk).unwrap();
    }
    install(&mut receiver, &mut rng, &sender.model);
    let write_some = |receiver: &mut Rig, rng: &mut Rng| {
        for _ in 0..50 {
            txn(receiver, rng);
            if rng.chance(10) {
                receiver.checkpoint(rng);
            }
        }
    };
    write_some(&mut receiver, &mut rng);
    assert_same(&receiver.reader, pin.view(), &model);
    // Only then are its pages of use to others.
    let free = receiver.index.size().free_bytes;
    drop(pin);
    receiver.publish();
    receiver.publish();
    assert!(receiver.index.size().free_bytes > free);
    write_some(&mut receiver, &mut rng);
    receiver.assert_same();
    receiver.index.check().unwrap();
}

#[test]
fn a_reader_of_an_index_that_is_replaced_finds_all_of_it_until_it_lets_go() {
    (0..10).for_each(old_pages_stay_for_their_reader);
}

fn chunks(rig: &Rig) -> Vec<Vec<u8>> {
    let mut export = export(rig);
    let mut chunks = Vec::new();
    loop {
        match step(rig, &mut export) {
            ExportStep::Chunk(chunk) => chunks.push(chunk.bytes.to_vec()),
            ExportStep::Again => {}
            ExportStep::Done => return chunks,
        }
    }
}

#[test]
fn a_crash_at_any_moment_leaves_the_old_index_or_the_new_one() {
    let mut rng = Rng::new(7);
    let mut sender = Rig::create();
    let mut receiver = Rig::create();
    for rig in [&mut sender, &mut receiver] {
        rig.finish_io(&mut rng);
        for round in 0..4 {
            script_step(rig, &mut rng, round);
        }
        rig.checkpoint(&mut rng);
    }
    for round in 4..10 {
        script_step(&mut sender, &mut rng, round);
    }
    let old = (receiver.model.applied, receiver.model.clone());
    let new = (sender.model.applied, sender.model.clone());
    assert!(new.0 > old.0);
    let depth = Depth { random: 3, torn: 3 };
    let mut images = 0;
    let mut unsynced = 0;
    let mut crash = |rig: &Rig, rng: &mut Rng, allowed: &[(u64, Model)]| {
        let disk = rig.disk();
        let newest = disk.unsynced_sectors().saturating_sub(unsynced);
        unsynced = disk.unsynced_sectors();
        for image in crash_images(&disk, newest, rng, depth) {
            images += 1;
            assert_opens_to_one_of(image, allowed, &format!("image {images}"));
        }
    };
    receiver.index.begin_import();
    for chunk in chunks(&sender) {
        for part in chunk.chunks(chunk.len() / 3 + 1) {
            receiver.index.import_chunk(part).unwrap();
            receiver.start_checkpoint();
            while receiver.io_step(&mut rng) {
                crash(&receiver, &mut rng, std::slice::from_ref(&old));
            }
        }
    }
    assert!(receiver.index.is_import_saved());
    receiver.index.start_install(&new.0.to_le_bytes(), b"conf");
    let mut seen_new = false;
    while receiver.io_step(&mut rng) {
        crash(&receiver, &mut rng, &[old.clone(), new.clone()]);
        let is_new = receiver.reader.pin().view().applied().index == new.0;
        if is_new && !seen_new {
            // Readers see it once it can't be lost any more.
            assert_opens_to_one_of(receiver.disk(), std::slice::from_ref(&new), "seen");
        }
        seen_new |= is_new;
    }
    assert!(seen_new);
    crash(&receiver, &mut rng, std::slice::from_ref(&new));
    println!("{images} crash images");
    assert!(images > 100);
}

#[test]
fn an_import_that_is_given_up_leaves_its_space_to_others() {
    let mut rng = Rng::new(3);
    let sender = filled(&mut rng, 150);
    let chunks = chunks(&sender);
    let mut receiver = filled(&mut rng, 10);
    receiver.checkpoint(&mut rng);
    let mut sizes = Vec::new();
    for round in 0..6 {
        receiver.index.begin_import();
        for chunk in &chunks {
            receiver.index.import_chunk(chunk).unwrap();
            if round % 2 == 0 {
                receiver.start_checkpoint();
                receiver.io_step(&mut rng);
            }
        }
        receiver.index.drop_import();
        for _ in 0..10 {
            receiver.put(b"k", b"v", 0);
            receiver.publish();
        }
        receiver.checkpoint(&mut rng);
        receiver.checkpoint(&mut rng);
        receiver.index.check().unwrap();
        sizes.push(receiver.index.size().file_bytes);
    }
    assert_eq!(sizes[2], sizes[5], "{sizes:?}");
    receiver.assert_same();
}

#[test]
fn memory_stays_within_the_bound_of_changed_pages_and_one_chunk() {
    let mut rng = Rng::new(5);
    let mut sender = Rig::create();
    sender.finish_io(&mut rng);
    for n in 0..30_000u64 {
        // Keys that come in no order.
        sender.put(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(), &[7; 700], 0);
        sender.publish();
        if sender.index.wants_checkpoint() {
            sender.checkpoint(&mut rng);
        }
    }
    let mut export = export(&sender);
    let mut receiver = Rig::create();
    receiver.finish_io(&mut rng);
    receiver.index.begin_import();
    let bound = config().dirty_bytes_max;
    loop {
        let chunk = match step(&sender, &mut export) {
            ExportStep::Chunk(chunk) => chunk,
            ExportStep::Again => continue,
            ExportStep::Done => break,
        };
        while !receiver.index.can_import() {
            receiver.start_checkpoint();
            receiver.io_step(&mut rng);
        }
        receiver.index.import_chunk(&chunk.bytes).unwrap();
        assert!(receiver.index.dirty_bytes() < bound, "{}", receiver.index.dirty_bytes());
        assert!(!receiver.index.must_wait(), "the index itself can go on");
    }
    assert!(receiver.index.import_bytes() > 2 * bound);
    let model = sender.model.clone();
    install(&mut receiver, &mut rng, &model);
    receiver.index.check().unwrap();
    receiver.assert_same();
}

#[test]
fn a_stream_that_is_wrong_is_refused_and_leaves_nothing() {
    let mut rng = Rng::new(9);
    let sender = filled(&mut rng, 40);
    let whole: Vec<u8> = chunks(&sender).concat();
    let mut receiver = filled(&mut rng, 5);
    assert_eq!(receiver.index.import_chunk(&whole), Err(ImportError::Unexpected));
    let mut refused = 0;
    for _ in 0..300 {
        let mut wrong = whole.clone();
        // Most of it is values, which can be anything.
        let at = if rng.chance(50) { rng.index(40) } else { wrong.len() - 1 - rng.index(400) };
        wrong[at] ^= 1 << rng.below(8);
        receiver.index.begin_import();
        if receiver.index.import_chunk(&wrong).is_err() {
            assert_eq!(receiver.index.import_bytes(), 0);
            refused += 1;
        }
    }
    assert!(refused > 20, "{refused}");
    receiver.index.begin_import();
    receiver.index.import_chunk(&whole[..whole.len() - 1]).unwrap();
    assert!(!receiver.index.is_import_complete());
    receiver.index.drop_import();
    receiver.index.check().unwrap();
    receiver.assert_same();
}

#[test]
fn an_empty_index_and_one_in_the_middle_of_compaction_arrive_as_they_are() {
    let mut rng = Rng::new(1);
    for puts in [0, 200] {
        let mut sender = Rig::create();
        sender.finish_io(&mut rng);
        for n in 0..puts {
            sender.put(b"k", format!("{n}").as_bytes(), 0);
            sender.publish();
        }
        if puts > 0 {
            sender.compact(150);
            let running = sender.compaction_step(20);
            assert!(matches!(running, CompactionProgress::Running { .. }));
        }
        let mut receiver = filled(&mut rng, 10);
        receiver.index.begin_import();
        for chunk in chunks(&sender) {
            receiver.index.import_chunk(&chunk).unwrap();
        }
        let model = sender.model.clone();
        install(&mut receiver, &mut rng, &model);
        receiver.assert_same();
        assert_eq!(receiver.index.compaction_pending(), puts > 0);
        receiver.finish_compaction();
        receiver.index.check().unwrap();
        receiver.assert_same();
    }
}

#[cfg(feature = "canaries")]
mod canaries {
    use garboard_storage::canary::{Canary, plant};

    use super::*;

    #[test]
    fn pages_of_a_replaced_index_that_are_used_again_under_a_reader_are_noticed() {
        let fails = |seed: &u64| {
            let _planted = plant(Canary::RetiredPinsIgnored);
            std::panic::catch_unwind(|| old_pages_stay_for_their_reader(*seed)).is_err()
        };
        let caught = (0..10).find(fails);
        println!("caught at seed {caught:?}");
        assert!(caught.is_some());
    }
}
