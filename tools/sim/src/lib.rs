//! A simulator: a cluster of members, or one alone, on simulated disks, clocks and network, with simulated clients, in
//! one thread, from one seed.
//!
//! The production [`Member`](garboard_replica::Member), log and index run unchanged. [`run_seed`] draws a mix of
//! requests and faults, runs it in virtual time, holds everything that is said and stored against a model, and ends in
//! a calm phase in which everything that was promised must come about. The same seed gives the same story.
//!
//! `docs/simulator.md` says how the world, the faults and the checkers are built, and how to read a story.

#![forbid(unsafe_code)]

pub mod check;
mod cli;
mod cluster;
pub mod model;
pub mod node;
mod outcome;
mod panics;
mod plan;
mod rotten;
mod story;
mod workload;
mod world;

pub use cli::{SimArgs, run};
pub use cluster::Cluster;
pub use node::Sabotage;
pub use outcome::{Outcome, Summary, Violation};
pub use plan::{CLUSTER_FAULTS, FAULTS, Fault, Options, Steady};
pub use world::World;

/// Runs one seed to its end. A panic anywhere is a violation.
pub fn run_seed(seed: u64, options: &Options) -> Outcome {
    let mut summary = Summary::default();
    let result = panics::catch(|| match options.members.unwrap_or_else(|| cluster::draw_members(seed)) {
        0 | 1 => {
            let mut world = World::new(seed, options);
            let result = world.run();
            world.close();
            (result, world.summary)
        }
        members => {
            let mut cluster = Cluster::new(seed, options, members);
            let result = cluster.run();
            cluster.close();
            (result, cluster.summary)
        }
    });
    let violation = match result {
        Ok((result, told)) => {
            summary = told;
            result.err().map(|violation| *violation)
        }
        Err(text) => Some(Violation {
            at: std::time::Duration::ZERO,
            what: "nothing panics".to_owned(),
            expected: String::new(),
            found: text,
        }),
    };
    Outcome { seed, summary, violation }
}
