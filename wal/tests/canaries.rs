//! Each deliberate bug of the log is caught by the net that is named beside it, and the net is quiet without the bug.

mod harness;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Instant;

use garboard_wal::canary::{Canary, plant};
use harness::images::{Enumeration, Tally};
use harness::{random, rot, small};

/// Random subsets for each moment of many unsynced sectors.
const RANDOM_IMAGES: u64 = 6;
/// Seeds that the random net tries.
const SEEDS: u64 = 60;

/// What a net tried until it found something, if it did.
type Caught = Option<(u64, &'static str)>;

/// Crash images of the scripted run.
fn images() -> Caught {
    let mut before = 0;
    for (config, grown) in [(small(1, 1), small(1, 2)), (small(1, 3), small(2, 3)), (small(2, 2), small(3, 2))] {
        let tally = Rc::new(Cell::new(Tally::default()));
        let run = || Enumeration::new(config, RANDOM_IMAGES, Rc::clone(&tally)).script(3, grown);
        let outcome = catch_unwind(AssertUnwindSafe(run));
        before += tally.get().images;
        if outcome.is_err() {
            return Some((before, "images"));
        }
    }
    None
}

/// Random runs against the model.
fn random() -> Caught {
    let fails = |seed: &u64| catch_unwind(|| random::run(*seed)).is_err();
    (0..SEEDS).find(fails).map(|seed| (seed + 1, "seeds"))
}

/// Rot of every sector of durable batches, the newest first.
fn rot_sweep() -> Caught {
    let case = rot::case(small(1, 1), 12, true);
    let sweeps = |batch: &rot::Batch| catch_unwind(AssertUnwindSafe(|| case.sweep(&[*batch], false))).is_err();
    let batches = u64::try_from(case.batches.iter().rev().position(sweeps)?).expect("few");
    Some((batches + 1, "batches"))
}

#[expect(clippy::disallowed_methods, reason = "how long it took is printed, and decides nothing")]
fn assert_caught(canary: Canary, net: fn() -> Caught) {
    let started = Instant::now();
    let planted = plant(canary);
    let (count, unit) = net().unwrap_or_else(|| panic!("{canary:?} is not caught"));
    drop(planted);
    println!("{canary:?}: caught after {count} {unit}, {:.2} s", started.elapsed().as_secs_f64());
}

#[test]
fn the_nets_are_quiet_without_a_bug() {
    assert_eq!((images(), random(), rot_sweep()), (None, None, None));
}

#[test]
fn crash_images_catch_what_is_acknowledged_before_it_is_durable() {
    assert_caught(Canary::AcknowledgedOutOfOrder, images);
}

#[test]
fn crash_images_catch_a_header_that_claims_too_much() {
    assert_caught(Canary::DurableClaimedEarly, images);
}

#[test]
fn crash_images_catch_a_segment_that_is_reused_too_early() {
    assert_caught(Canary::SegmentReusedEarly, images);
}

#[test]
fn crash_images_catch_a_torn_batch_that_is_accepted() {
    assert_caught(Canary::TornBatchAccepted, images);
}

#[test]
fn rot_catches_a_recovery_that_cuts_what_was_durable() {
    assert_caught(Canary::DurableSequenceIgnored, rot_sweep);
}

#[test]
fn random_runs_catch_a_missing_epoch_start() {
    assert_caught(Canary::EpochStartMissing, random);
}
