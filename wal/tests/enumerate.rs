//! A crash at every write and completion of a scripted run, in every way ([`harness::images`] says which). `WAL_IMAGES=n`
//! sets how many random subsets each moment of more than ten unsynced sectors gets, `WAL_ROUNDS=n` how long the script is.

mod harness;

use std::cell::Cell;
use std::rc::Rc;

use garboard_wal::LogConfig;
use harness::images::{Enumeration, Tally};
use harness::small;

/// Runs the script with this configuration; says what was tried.
fn enumerate(config: LogConfig, grown: LogConfig) -> Tally {
    let number = |name, default| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let (images, rounds) = (number("WAL_IMAGES", 24), number("WAL_ROUNDS", 3));
    let tally = Rc::new(Cell::new(Tally::default()));
    Enumeration::new(config, images, Rc::clone(&tally)).script(rounds, grown);
    let Tally { images, moments, cuts } = tally.get();
    println!("{images} crash images at {moments} moments, {cuts} with something cut: 0 losses");
    assert!(images > 1_000 && moments > 50);
    tally.get()
}

#[test]
fn every_crash_image_of_a_run_with_one_write_in_flight_is_recovered() {
    enumerate(small(1, 1), small(1, 2));
}

#[test]
fn every_crash_image_of_a_run_with_several_writes_in_flight_is_recovered() {
    let tally = enumerate(small(1, 3), small(2, 3));
    assert!(tally.cuts > 100, "{tally:?}");
}

#[test]
fn every_crash_image_of_a_run_striped_over_two_shards_is_recovered() {
    let tally = enumerate(small(2, 2), small(3, 2));
    assert!(tally.cuts > 100, "{tally:?}");
}
