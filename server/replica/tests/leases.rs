//! Random grants, renewals, revocations and crashes: nothing expires early, and everything expires.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use garboard_replica::envelope::{Request, Response};
use garboard_replica::request::{Command, Put};
use garboard_sim::node::Node;

/// What clients know of a lease.
struct Lease {
    ttl: Duration,
    /// When it may expire, by the requests that were answered.
    earliest: Duration,
}

struct Run {
    sim: Node,
    leases: BTreeMap<i64, Lease>,
    next: i64,
}

impl Run {
    fn grant(&mut self) {
        self.next += 1;
        let (id, ttl_seconds) = (self.next, 2 + self.sim.rng.below(20) as i64);
        let ttl = Duration::from_secs(ttl_seconds as u64);
        self.sim.execute(Command::LeaseGrant { id, ttl_seconds }).unwrap();
        // It was applied before its answer, and at the earliest when it was sent.
        self.leases.insert(id, Lease { ttl, earliest: self.sim.now.saturating_sub(self.slack()) + ttl });
        let put = Put {
            key: key(id),
            value: Bytes::new(),
            lease: id,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        };
        self.sim.execute(Command::Put(put)).unwrap();
        self.check();
    }

    /// More than a request takes here.
    fn slack(&self) -> Duration {
        self.sim.latency.io_max * 20
    }

    fn any(&mut self) -> Option<i64> {
        let ids: Vec<i64> = self.leases.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[self.sim.rng.index(ids.len())])
    }

    fn renew(&mut self) {
        let Some(id) = self.any() else { return };
        let sent = self.sim.now;
        let answer = self.sim.call(Request::LeaseKeepAlive { id });
        let lease = self.leases.get_mut(&id).unwrap();
        match answer {
            Ok(Response::LeaseKeepAlive { ttl_seconds: 0 }) => {
                assert!(self.sim.now >= lease.earliest, "a renewal found the lease gone too early");
            }
            Ok(Response::LeaseKeepAlive { ttl_seconds }) => {
                assert_eq!(Duration::from_secs(ttl_seconds as u64), lease.ttl);
                lease.earliest = lease.earliest.max(sent + lease.ttl);
            }
            other => panic!("{other:?}"),
        }
        self.check();
    }

    /// Everything deleted so far was deleted by expiry, and none of it early.
    fn check(&mut self) {
        for batch in std::mem::take(&mut self.sim.events) {
            for event in batch.events.iter().filter(|event| event.deleted) {
                let id = std::str::from_utf8(&event.kv.key).unwrap().parse::<i64>().unwrap();
                if let Some(lease) = self.leases.remove(&id) {
                    assert!(self.sim.now >= lease.earliest, "lease {id} expired early");
                }
            }
        }
    }
}

fn key(id: i64) -> Bytes {
    Bytes::from(id.to_string())
}

fn run(seed: u64) -> usize {
    let mut run = Run { sim: Node::new(seed), leases: BTreeMap::new(), next: 0 };
    let mut expired = 0;
    for _ in 0..60 {
        let before = run.leases.len();
        match run.sim.rng.below(10) {
            0..=2 => run.grant(),
            3..=5 => run.renew(),
            6 if run.sim.rng.chance(40) => {
                run.sim.crash();
                run.sim.call(Request::ReadIndex).unwrap();
                run.check();
            }
            _ => {
                // Small steps: what expires is seen at most one of them late, never early.
                let until = run.sim.now + Duration::from_millis(run.sim.rng.below(4_000));
                while run.sim.now < until {
                    run.sim.run_for(Duration::from_millis(50));
                    run.check();
                }
            }
        }
        expired += before.saturating_sub(run.leases.len());
    }
    run.sim.run_for(Duration::from_secs(60));
    run.check();
    assert!(run.leases.is_empty(), "everything expires in the end");
    assert_eq!(run.sim.call(Request::LeaseList), Ok(Response::LeaseList(vec![])));
    expired
}

#[test]
fn no_lease_expires_early_and_every_lease_expires() {
    let seeds = match std::env::var("GARBOARD_SEED").ok().and_then(|seed| seed.parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..200,
    };
    let mut expired = 0;
    for seed in seeds {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(count) => expired += count,
            Err(panic) => {
                eprintln!("failed with GARBOARD_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(expired > 0, "some leases expired while others were renewed");
}

#[test]
fn the_expiry_of_a_lease_never_ends_the_next_one_of_its_id() {
    let mut sim = Node::new(1);
    let id = 5;
    sim.execute(Command::LeaseGrant { id, ttl_seconds: 2 }).unwrap();
    // The lease expires while its revocation and the next grant wait for the disk, and again and again.
    sim.stall_until(sim.now + Duration::from_secs(12));
    let grant = Command::LeaseGrant { id, ttl_seconds: 60 };
    sim.send([Request::Write(Command::LeaseRevoke { id }), Request::Write(grant)]);
    sim.run_for(Duration::from_secs(20));
    let Ok(Response::LeaseTimeToLive { ttl_seconds, .. }) = sim.call(Request::LeaseTimeToLive { id }) else { panic!() };
    assert!(ttl_seconds > 45, "{ttl_seconds} seconds are left");
}
