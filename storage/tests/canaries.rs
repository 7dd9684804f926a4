//! Each deliberate bug of the index is caught by the net that is named beside it, and the net is quiet without the bug.

mod support;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Instant;

use garboard_storage::canary::{Canary, plant};
use support::images::{Depth, Enumeration};
use support::random;

/// Runs of the script that are crashed everywhere.
const SCRIPTS: u64 = 1;
/// Seeds that the random net tries, and the steps of each.
const SEEDS: u64 = 20;
const STEPS: usize = 500;

/// What a net tried until it found something, if it did.
type Caught = Option<(u64, &'static str)>;

/// Crash images of the scripted run.
fn images() -> Caught {
    let images = Rc::new(Cell::new(0));
    let depth = Depth { random: 2, torn: 2 };
    let fails = |seed: u64| {
        let run = || Enumeration::new(seed, depth, Rc::clone(&images)).run();
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    (0..SCRIPTS).any(fails).then(|| (images.get(), "images"))
}

/// Random runs against ordered maps.
fn random() -> Caught {
    let fails = |seed: &u64| catch_unwind(|| random::run(*seed, STEPS)).is_err();
    (0..SEEDS).find(fails).map(|seed| (seed + 1, "seeds"))
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
    assert_eq!((images(), random()), (None, None));
}

#[test]
fn crash_images_catch_a_meta_page_that_is_written_before_its_pages_are_durable() {
    assert_caught(Canary::MetaBeforePages, images);
}

#[test]
fn crash_images_catch_two_copies_of_a_meta_page_that_are_written_together() {
    assert_caught(Canary::MetaCopiesTogether, images);
}

#[test]
fn crash_images_catch_a_free_map_that_is_written_in_place() {
    assert_caught(Canary::FreeMapInPlace, images);
}

#[test]
fn crash_images_catch_a_page_that_is_reused_before_a_checkpoint_without_it_is_durable() {
    assert_caught(Canary::ReusedBeforeCheckpoint, images);
}

#[test]
fn random_runs_catch_a_page_that_is_reused_under_a_reader() {
    assert_caught(Canary::PinsIgnored, random);
}

#[test]
fn random_runs_catch_a_tombstone_that_compaction_takes_too_early() {
    assert_caught(Canary::FloorTombstoneLost, random);
}

#[test]
fn random_runs_catch_a_revision_that_falls_after_a_crash_in_compaction() {
    assert_caught(Canary::RevisionFromRecords, random);
}
