//! What a cluster's seed is like. It is drawn from a stream of its own, so that seeds of one member keep theirs.

use std::time::Duration;

use garboard_replica::corruption::CorruptionChecks;
use garboard_simdisk::Rng;

use crate::plan::{CLUSTER_FAULTS, Fault, Options, Plan};

/// Requests of a seed whose length is the usual one.
const USUAL_OPS: u64 = 500;

/// How messages travel between members.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkPlan {
    /// The least time that a message takes.
    pub(super) base: Duration,
    /// What chance adds at most.
    pub(super) jitter: Duration,
    /// Messages that take a long time, in ten thousand, and how long at most.
    pub(super) late: (u64, Duration),
    /// Messages lost, in ten thousand.
    pub(super) loss: u64,
    /// Messages that arrive twice, in ten thousand.
    pub(super) duplicates: u64,
    /// Messages of a lane overtake each other.
    pub(super) reorders: bool,
}

impl NetworkPlan {
    /// Nothing goes wrong.
    pub(super) fn calm() -> NetworkPlan {
        NetworkPlan {
            base: Duration::from_micros(100),
            jitter: Duration::from_millis(1),
            late: (0, Duration::ZERO),
            loss: 0,
            duplicates: 0,
            reorders: false,
        }
    }

    fn draw(rng: &mut Rng, has: impl Fn(Fault) -> bool) -> NetworkPlan {
        let drawn = NetworkPlan {
            base: Duration::from_micros(20 << rng.below(10)),
            jitter: Duration::from_micros(10 << rng.below(12)),
            late: if rng.chance(60) {
                (0, Duration::ZERO)
            } else {
                (1 + rng.below(200), Duration::from_millis(10 << rng.below(9)))
            },
            loss: 1 << rng.below(12),
            duplicates: 1 << rng.below(12),
            reorders: has(Fault::Reorder),
        };
        NetworkPlan {
            loss: if has(Fault::Loss) { drawn.loss } else { 0 },
            duplicates: if has(Fault::Duplicate) { drawn.duplicates } else { 0 },
            ..drawn
        }
    }
}

/// What a cluster's seed has drawn.
#[derive(Clone, Debug)]
pub(super) struct ClusterPlan {
    /// How many members.
    pub(super) members: usize,
    /// What they and their clients are like.
    pub(super) each: Plan,
    /// Messages travel over the production links; otherwise each by itself.
    pub(super) links: bool,
    /// How messages travel.
    pub(super) network: NetworkPlan,
    /// Faults that come now and then, with the mean time between two.
    pub(super) faults: Vec<(Fault, Duration)>,
    /// How long faults and clients go on.
    pub(super) lasts: Duration,
    /// By how many parts of a million each clock goes too fast or too slow at most.
    pub(super) drift_ppm: u32,
    /// How long clients wait for an answer.
    pub(super) client_patience: Duration,
}

/// How many members a seed has.
pub(crate) fn draw_members(seed: u64) -> usize {
    match stream(seed).below(10) {
        0..=1 => 1,
        2..=6 => 3,
        7..=8 => 5,
        _ => 7,
    }
}

/// A cluster's stream of chance.
pub(super) fn stream(seed: u64) -> Rng {
    let mut rng = Rng::new(seed ^ 0x636c_7573_7465_7221);
    Rng::new(rng.next_u64())
}

/// Which corruption checks members make: none in most seeds. They have a stream of their own, so that those seeds keep
/// what they mean.
pub(super) fn draw_checks(seed: u64) -> CorruptionChecks {
    let mut rng = Rng::new(seed ^ 0x6861_7368_6573_2121);
    let mut rng = Rng::new(rng.next_u64());
    if !rng.chance(35) {
        return CorruptionChecks::default();
    }
    let mut interval = || {
        let drawn = Duration::from_millis(100 << rng.below(7));
        rng.chance(80).then_some(drawn)
    };
    CorruptionChecks { periodic: interval(), compactions: interval(), initial: rng.chance(60) }
}

impl ClusterPlan {
    pub(super) fn draw(rng: &mut Rng, options: &Options, members: usize) -> ClusterPlan {
        let mut each = Plan::draw(rng, options);
        each.faults.clear();
        if rng.chance(60) {
            // So little that members that lag need a snapshot.
            each.member.catch_up_commands = 1 << rng.below(9);
        }
        if rng.chance(50) {
            each.member.transfer_bytes_per_second = (16 << 10) << rng.below(10);
        }
        let mut drawn = Vec::new();
        for fault in CLUSTER_FAULTS {
            let often = Duration::from_millis(1_000 << rng.below(6));
            if (rng.chance(30) || options.force.contains(&fault)) && !options.disable.contains(&fault) {
                drawn.push((fault, often));
            }
        }
        let steady = options.steady;
        if steady.is_some() {
            drawn.clear();
        }
        let has = |fault| drawn.iter().any(|(other, _)| *other == fault);
        let network = NetworkPlan::draw(rng, has);
        let drift_ppm = 100 << rng.below(7);
        let drift_ppm = if has(Fault::Drift) { drift_ppm } else { 0 };
        let lasts = Duration::from_millis((15_000 << rng.below(4)) + rng.below(5_000)) * scale(options.ops) / 100;
        // A seed asks about as much whatever its length.
        let lasts = steady.map_or(lasts, |steady| steady.lasts);
        let clients = 2 + rng.below(6);
        let think = lasts / u32::try_from((100 + options.ops * (1 + rng.below(3)) / 2) / clients + 1).expect("small");
        each.clients = clients;
        let think = steady.map_or(think, |_| Duration::from_secs(4));
        let links = rng.chance(60);
        let network = steady.map_or(network, |steady| NetworkPlan {
            base: Duration::ZERO,
            jitter: steady.delay,
            loss: steady.loss,
            reorders: true,
            ..NetworkPlan::calm()
        });
        each.think = think;
        drawn.retain(|(fault, _)| !is_condition(*fault));
        ClusterPlan {
            members,
            links: steady.map_or(links, |steady| steady.links),
            each,
            network,
            faults: drawn,
            lasts,
            drift_ppm,
            client_patience: Duration::from_millis(300 << rng.below(5)),
        }
    }
}

/// Hundredths of the usual length.
fn scale(ops: u64) -> u32 {
    u32::try_from((ops * 100 / USUAL_OPS).clamp(1, 100_000)).expect("just bounded")
}

/// Whether it goes on for the whole seed.
fn is_condition(fault: Fault) -> bool {
    matches!(fault, Fault::Loss | Fault::Duplicate | Fault::Reorder | Fault::Drift)
}
