//! Leases: none ends early, and each ends.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::outcome::{Check, violated};

/// What is known of a lease.
#[derive(Clone, Copy, Debug)]
struct Lease {
    ttl: Duration,
    /// It may not end before this, by what clients were answered.
    earliest: Duration,
    /// Tells it from an earlier one of the same id.
    generation: u64,
}

/// What is known of all leases.
#[derive(Clone, Debug)]
pub struct Leases {
    leases: BTreeMap<i64, Lease>,
    generations: u64,
    /// What a new leader adds.
    extension: Duration,
    /// By how many parts of a million a member's clock may go too fast.
    drift_ppm_max: u32,
    /// Leases that expired.
    pub expiries: u64,
}

impl Leases {
    /// No leases.
    pub fn new(extension: Duration) -> Leases {
        Leases { leases: BTreeMap::new(), generations: 0, extension, drift_ppm_max: 0, expiries: 0 }
    }

    /// No leases, where clocks may be so much too fast.
    pub fn with_drift(extension: Duration, drift_ppm_max: u32) -> Leases {
        Leases { drift_ppm_max, ..Leases::new(extension) }
    }

    /// The least true time that a member's clock may take for this.
    fn at_least(&self, duration: Duration) -> Duration {
        let nanos = duration.as_nanos() * 1_000_000 / (1_000_000 + u128::from(self.drift_ppm_max));
        u64::try_from(nanos).map_or(duration, Duration::from_nanos)
    }

    /// A lease was granted, not before it was asked for.
    pub fn granted(&mut self, id: i64, ttl_seconds: i64, asked: Duration) {
        let ttl = self.at_least(Duration::from_secs(ttl_seconds.unsigned_abs()));
        self.generations += 1;
        let lease = Lease { ttl, earliest: asked.saturating_add(ttl), generation: self.generations };
        self.leases.insert(id, lease);
    }

    /// Tells a lease from earlier and later ones of the same id.
    pub fn generation(&self, id: i64) -> Option<u64> {
        self.leases.get(&id).map(|lease| lease.generation)
    }

    /// A client was told that its lease is renewed; it had asked at `asked`.
    pub fn renewed(&mut self, id: i64, asked: Duration) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.earliest = lease.earliest.max(asked.saturating_add(lease.ttl));
        }
    }

    /// A process has started: every lease has its whole time again, and some more.
    pub fn promoted(&mut self, now: Duration) {
        for lease in self.leases.values_mut() {
            lease.earliest = now.saturating_add(lease.ttl).saturating_add(self.extension);
        }
    }

    /// A lease's end was proposed because it expired.
    ///
    /// # Errors
    /// When it is too early.
    pub fn check_expiry(&self, now: Duration, id: i64) -> Check {
        match self.leases.get(&id) {
            Some(lease) if now < lease.earliest => violated(
                format!("lease {id} does not expire early"),
                format!("not before {:.6} s", lease.earliest.as_secs_f64()),
                format!("at {:.6} s", now.as_secs_f64()),
            ),
            _ => Ok(()),
        }
    }

    /// A lease has ended.
    ///
    /// # Errors
    /// When it expired, and too early.
    pub fn revoked(&mut self, logged_at: Duration, id: i64, expired: bool) -> Check {
        if expired {
            self.check_expiry(logged_at, id)?;
            self.expiries += 1;
        }
        self.leases.remove(&id);
        Ok(())
    }

    /// When a lease ends at the earliest, by what clients were answered so far.
    pub fn earliest(&self, id: i64) -> Option<Duration> {
        self.leases.get(&id).map(|lease| lease.earliest)
    }
}
