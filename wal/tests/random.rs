//! Random operations against a plain model, with crashes, seeded. Replay one seed with `WAL_SEED=n`, run more of them with
//! `WAL_SEEDS=n`.

mod harness;

use harness::random::{Run, STEPS, Seen, run};

const SEEDS_DEFAULT: u64 = 400;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_half_there_in_random_runs() {
    if let Some(seed) = variable("WAL_SEED") {
        run(seed);
        return;
    }
    let mut total = [0; 7];
    for seed in 0..variable("WAL_SEEDS").unwrap_or(SEEDS_DEFAULT) {
        let outcome = std::panic::catch_unwind(|| run(seed));
        let seen = outcome.unwrap_or_else(|_| panic!("seed {seed} failed: replay it with WAL_SEED={seed}"));
        let Seen { crashes, cuts, recycled, removed, seals, full_disks, snapshots } = seen;
        let counts = [crashes, cuts, recycled, removed, seals, full_disks, snapshots];
        total.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    println!("crashes, cuts, recycled, removed, seals, full disks, snapshots: {total:?}");
    assert!(total.iter().all(|count| *count > 50), "what hardly happens is not tested: {total:?}");
}

/// The canary: a shell that acknowledges before the write is durable must be caught.
#[test]
fn a_shell_that_acknowledges_too_early_is_caught() {
    let caught = (0..20).any(|seed| {
        std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            for _ in 0..STEPS {
                run.step();
                // What is in flight is called done, and the disk does not hear of it.
                for write in std::mem::take(&mut run.shell.in_flight) {
                    run.shell.log.handle_done(run.shell.now, write.op, Ok(())).expect("no failure is reported");
                }
                run.model.acknowledge(run.shell.log.durable());
            }
        })
        .is_err()
    });
    assert!(caught);
}
