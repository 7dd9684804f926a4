//! Seeds that run with every test: a number of new ones, and all that ever failed.
//!
//! `GARBOARD_SEEDS=n` runs more than the usual number, `GARBOARD_FROM=s` others; `garboard sim` runs them with progress.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::time::Duration;

use garboard_sim::{Options, Outcome, Sabotage, Steady, Summary, run_seed};

/// Seeds of the quick form.
const SEEDS: u64 = 160;
/// Seeds of clusters in the quick form.
const CLUSTER_SEEDS: u64 = 60;
/// Events of a calm seed at each of which it is crashed once.
const CRASH_EVENTS: u64 = 250;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs seeds; fails with all violations among them.
fn run_all(seeds: impl Iterator<Item = (u64, Options)>) -> Summary {
    let (mut sum, mut violations) = (Summary::default(), String::new());
    for (seed, options) in seeds {
        let Outcome { summary, violation, .. } = run_seed(seed, &options);
        sum.add(&summary);
        if let Some(violation) = violation {
            writeln!(violations, "seed {seed}, crash at {:?}: {violation}", options.crash_at).unwrap();
        }
    }
    assert!(violations.is_empty(), "{violations}");
    sum
}

#[test]
fn no_seed_breaks_a_promise() {
    let from = variable("GARBOARD_FROM").unwrap_or(0);
    let seeds = from..from + variable("GARBOARD_SEEDS").unwrap_or(SEEDS);
    let sum = run_all(seeds.map(|seed| (seed, Options::alone())));
    eprintln!("{sum:?}");
    // What never happens proves nothing.
    assert!(sum.acknowledged_writes > 10_000 && sum.reads > 1_000 && sum.watch_events > 1_000 && sum.expiries > 10);
    for fault in garboard_sim::FAULTS {
        assert!(sum.faults.get(fault.name()).is_some_and(|count| *count > 0), "no {}", fault.name());
    }
}

#[test]
fn no_cluster_breaks_a_promise() {
    let from = variable("GARBOARD_FROM").unwrap_or(0);
    let seeds = from..from + variable("GARBOARD_SEEDS").unwrap_or(CLUSTER_SEEDS);
    let members = |seed| if seed % 4 == 3 { 5 } else { 3 };
    let sum = run_all(seeds.map(|seed| (seed, Options { members: Some(members(seed)), ..Options::default() })));
    eprintln!("{sum:?}");
    // What never happens proves nothing.
    assert!(sum.acknowledged_writes > 5_000 && sum.reads > 1_000 && sum.watch_events > 1_000 && sum.expiries > 10);
    assert!(sum.elections > 100 && sum.resumed_watches > 100 && sum.restarts > 100);
}

/// Three members whose messages take up to 7 ms, one in a hundred of which are lost.
fn assert_no_election(lasts: Duration) {
    for links in [false, true] {
        let steady = Steady { lasts, delay: Duration::from_millis(7), loss: 100, links };
        let options = Options { members: Some(3), steady: Some(steady), ..Options::default() };
        let sum = run_all(std::iter::once((1, options)));
        eprintln!("{sum:?}");
        assert_eq!(sum.elections, 1, "the first leader leads to the end, links: {links}");
        assert!(sum.acknowledged_writes > 100);
    }
}

#[test]
fn jitter_and_loss_start_no_election() {
    assert_no_election(Duration::from_secs(600));
}

#[test]
#[ignore = "a day takes minutes"]
fn jitter_and_loss_start_no_election_for_a_day() {
    assert_no_election(Duration::from_secs(24 * 3_600));
}

#[test]
fn seeds_that_once_failed_break_no_promise() {
    let list = include_str!("../seeds.txt");
    let seeds = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    run_all(seeds.map(|line| {
        let name = line.split_whitespace().next().unwrap();
        let (seed, members) = name.split_once('/').unwrap_or((name, "1"));
        let options = Options { members: Some(members.parse().unwrap()), ..Options::default() };
        (seed.parse().unwrap(), options)
    }));
}

#[test]
fn a_crash_at_every_event_of_a_seed_breaks_no_promise() {
    let at = |event| (7, Options { ops: 1_000, crash_at: Some(event), ..Options::alone() });
    let sum = run_all((0..CRASH_EVENTS).map(at));
    assert!(sum.restarts >= CRASH_EVENTS);
}

#[test]
fn the_same_seed_tells_the_same_story() {
    for (seed, members) in (0..8).map(|seed| (seed, 1)).chain([(8, 3), (9, 5), (10, 3)]) {
        let options = Options { members: Some(members), ..Options::default() };
        let (one, two) = (run_seed(seed, &options), run_seed(seed, &options));
        assert_eq!(one, two, "seed {seed}");
    }
    let digest = |seed| run_seed(seed, &Options::alone()).summary.digest;
    assert_ne!(digest(1), digest(2));
}

#[test]
fn an_acknowledgement_before_its_write_is_durable_is_caught() {
    let sabotage = Sabotage { early_completion: true };
    let options = Options { sabotage, ..Options::alone() };
    let caught = (0..5).filter_map(|seed| run_seed(seed, &options).violation).count();
    assert_eq!(caught, 5, "the simulator notices what is acknowledged and not durable");
}
