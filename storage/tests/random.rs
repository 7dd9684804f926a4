//! Random operations against ordered maps.

#![allow(clippy::unwrap_used)]

mod support;

use support::random::run;

#[test]
fn random_operations_show_what_ordered_maps_show() {
    if let Ok(seed) = std::env::var("SEED") {
        let steps = std::env::var("STEPS").map_or(700, |steps| steps.parse().unwrap());
        return run(seed.parse().unwrap(), steps);
    }
    let seeds = std::env::var("SEEDS").map_or(60, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        run(seed, 700);
    }
}
