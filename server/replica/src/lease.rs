//! Leases: which exist, and, on the leader, when they expire.
//!
//! That a lease exists, and the time to live it was granted, is replicated and lives in the *system* tree; so do the
//! keys attached to it. When it expires only the leader knows, in memory: renewals do not go through the log. A new
//! leader gives every lease its full time to live and an election timeout on top, so that nothing expires early.
//!
//! Promises:
//! - a lease is proposed for revocation only when its time to live has passed, by the monotonic time that is handed in,
//!   since its grant or its last renewal, whichever leader answered that;
//! - a lease that is expired and not yet revoked is never renewed: its keep-alives wait for the revocation;
//! - at most 1,000 revocations are proposed a second.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use crate::canary::{self, Canary};
use crate::envelope::Asker;
use crate::error::Error;
use crate::limits::{LEASE_TTL_MAX_SECONDS, REVOKE_BATCH_MAX, REVOKE_INTERVAL, REVOKE_RETRY, WAITING_KEEPALIVES_MAX};

/// One lease.
#[derive(Clone, Debug)]
struct Lease {
    ttl_seconds: i64,
    /// Tells a lease from an earlier one of the same id.
    generation: u64,
    /// When it expires; none on a member that does not lead.
    expiry: Option<Duration>,
    /// When the grant was applied here.
    granted_at: Duration,
    /// Grants and renewals before the last one of this lease: the order of leases that expire at the same instant.
    touched: u64,
    /// Its revocation was proposed; until this time it is not proposed again.
    revoking_until: Option<Duration>,
}

impl Lease {
    fn is_expired(&self, now: Duration) -> bool {
        self.expiry.is_some_and(|expiry| expiry <= now)
    }
}

/// What a keep-alive came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// Renewed for so many seconds.
    Renewed(i64),
    /// There is no such lease.
    Unknown,
    /// The lease is expired; who asked is answered when it is revoked.
    Waits,
}

/// A wake-up: when to look at a lease. The heap holds at least one for each lease that has an expiry, not later than
/// that; a renewal leaves it where it is.
type Wakeup = Reverse<(Duration, i64, u64)>;

/// The leases of a keyspace.
#[derive(Debug)]
pub struct Lessor {
    leases: BTreeMap<i64, Lease>,
    min_ttl_seconds: i64,
    /// What a new leader adds to each lease.
    extension: Duration,
    primary: bool,
    generations: u64,
    touches: u64,
    wakeups: BinaryHeap<Wakeup>,
    /// Keep-alives that wait for a revocation, by lease.
    waiting: HashMap<i64, Vec<Asker>>,
    waiting_count: usize,
    next_batch: Duration,
}

impl Lessor {
    /// The leases that the system tree holds. Timeouts decide the smallest time to live and the extension.
    pub fn new(
        election_timeout: Duration,
        heartbeat_interval: Duration,
        leases: impl IntoIterator<Item = (i64, i64)>,
    ) -> Lessor {
        let mut lessor = Lessor {
            leases: BTreeMap::new(),
            min_ttl_seconds: min_ttl_seconds(election_timeout, heartbeat_interval),
            extension: election_timeout,
            primary: false,
            generations: 0,
            touches: 0,
            wakeups: BinaryHeap::new(),
            waiting: HashMap::new(),
            waiting_count: 0,
            next_batch: Duration::ZERO,
        };
        for (id, ttl_seconds) in leases {
            lessor.insert(Duration::ZERO, id, ttl_seconds);
        }
        lessor
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Whether a lease exists.
    pub fn contains(&self, id: i64) -> bool {
        self.leases.contains_key(&id)
    }

    /// The time to live that a grant gets, or why it is refused.
    pub fn check_grant(&self, id: i64, ttl_seconds: i64) -> Result<i64, Error> {
        if id == 0 {
            return Err(Error::LeaseNotFound);
        }
        if ttl_seconds > LEASE_TTL_MAX_SECONDS {
            return Err(Error::LeaseTtlTooLarge);
        }
        if self.contains(id) {
            return Err(Error::LeaseExists);
        }
        Ok(ttl_seconds.max(self.min_ttl_seconds))
    }

    /// A grant that [`Lessor::check_grant`] let pass is applied.
    pub fn insert(&mut self, now: Duration, id: i64, ttl_seconds: i64) {
        assert!(!self.contains(id), "a grant was checked before");
        self.generations += 1;
        self.touches += 1;
        let (generation, touched) = (self.generations, self.touches);
        let lease = Lease { ttl_seconds, generation, expiry: None, granted_at: now, touched, revoking_until: None };
        self.leases.insert(id, lease);
        if self.primary {
            self.renew(now, id, Duration::ZERO);
        }
    }

    /// A revocation is applied. Returns the keep-alives that waited for it.
    pub fn remove(&mut self, id: i64) -> Vec<Asker> {
        assert!(self.leases.remove(&id).is_some(), "only a lease that exists is revoked");
        let askers = self.waiting.remove(&id).unwrap_or_default();
        self.waiting_count -= askers.len();
        askers
    }

    /// This member leads and has applied what earlier leaders committed.
    pub fn promote(&mut self, now: Duration) {
        if self.primary {
            return;
        }
        self.primary = true;
        self.wakeups.clear();
        let ids: Vec<i64> = self.leases.keys().copied().collect();
        for id in ids {
            self.renew(now, id, self.extension);
            if canary::is_on(Canary::NewLeaderExpiresEarly)
                && let Some(lease) = self.leases.get_mut(&id)
            {
                let passed = now.saturating_sub(lease.granted_at);
                lease.expiry = lease.expiry.map(|expiry| expiry.saturating_sub(self.extension + passed).max(now));
                self.wakeups.push(Reverse((now, id, lease.generation)));
            }
        }
    }

    /// This member no longer leads. Returns the keep-alives that waited for revocations, with their leases.
    pub fn demote(&mut self) -> Vec<(i64, Asker)> {
        self.primary = false;
        self.wakeups.clear();
        for lease in self.leases.values_mut() {
            lease.expiry = None;
            lease.revoking_until = None;
        }
        self.waiting_count = 0;
        let mut waiting: Vec<_> = self.waiting.drain().collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        waiting.into_iter().flat_map(|(id, askers)| askers.into_iter().map(move |asker| (id, asker))).collect()
    }

    /// Renews a lease. Only a member that has proved that it leads may ask.
    pub fn keep_alive(&mut self, now: Duration, id: i64, asker: Asker) -> Result<KeepAlive, Error> {
        if !self.primary {
            return Err(Error::LeaderChanged);
        }
        let Some(lease) = self.leases.get(&id) else { return Ok(KeepAlive::Unknown) };
        if !lease.is_expired(now) {
            let ttl_seconds = lease.ttl_seconds;
            self.renew(now, id, Duration::ZERO);
            return Ok(KeepAlive::Renewed(ttl_seconds));
        }
        if self.waiting_count >= WAITING_KEEPALIVES_MAX {
            return Err(Error::TooManyRequests);
        }
        self.waiting.entry(id).or_default().push(asker);
        self.waiting_count += 1;
        Ok(KeepAlive::Waits)
    }

    /// What a lease has left and what it was granted, in whole seconds; none when there is no such lease. A lease that
    /// is expired has 0 left until it is revoked.
    pub fn time_to_live(&self, now: Duration, id: i64) -> Option<(i64, i64)> {
        let lease = self.leases.get(&id)?;
        let left = match lease.expiry {
            Some(expiry) => i64::try_from(expiry.saturating_sub(now).as_secs()).unwrap_or(i64::MAX),
            None => lease.ttl_seconds,
        };
        Some((left, lease.ttl_seconds))
    }

    /// All leases, the one that expires first in front; of those that expire at once, the one that was granted or
    /// renewed first.
    pub fn list(&self) -> Vec<i64> {
        let mut leases: Vec<_> = self.leases.iter().map(|(id, lease)| (lease.expiry, lease.touched, *id)).collect();
        leases.sort_unstable();
        leases.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Leases whose revocation must be proposed now, at most a batch. Call at every timeout.
    pub fn take_expired(&mut self, now: Duration) -> Vec<i64> {
        let mut expired = Vec::new();
        if !self.primary || now < self.next_batch {
            return expired;
        }
        while let Some(&Reverse((at, id, generation))) = self.wakeups.peek() {
            if at > now || expired.len() == REVOKE_BATCH_MAX {
                break;
            }
            self.wakeups.pop();
            let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.generation == generation) else { continue };
            let expiry = lease.expiry.expect("a primary's leases have an expiry");
            let due = expiry.max(lease.revoking_until.unwrap_or(Duration::ZERO));
            if due > now {
                self.wakeups.push(Reverse((due, id, generation)));
                continue;
            }
            assert!(lease.is_expired(now), "nothing expires early");
            // Should the proposal be lost or refused, the next wake-up proposes again.
            let retry = now + REVOKE_RETRY;
            lease.revoking_until = Some(retry);
            self.wakeups.push(Reverse((retry, id, generation)));
            expired.push(id);
        }
        if !expired.is_empty() {
            self.next_batch = now + REVOKE_INTERVAL;
        }
        expired
    }

    /// When [`Lessor::take_expired`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let Reverse((at, _, _)) = self.wakeups.peek()?;
        Some((*at).max(self.next_batch))
    }

    fn renew(&mut self, now: Duration, id: i64, extension: Duration) {
        let lease = self.leases.get_mut(&id).expect("only a lease that exists is renewed");
        let ttl = Duration::from_secs(u64::try_from(lease.ttl_seconds).expect("a time to live is positive"));
        let expiry = now + ttl + extension;
        // A lease that a new leader has extended is not shortened by its first renewal.
        let has_wakeup = lease.expiry.is_some();
        self.touches += 1;
        lease.touched = self.touches;
        if !(has_wakeup && canary::is_on(Canary::LeaseRenewalLost)) {
            lease.expiry = lease.expiry.max(Some(expiry));
        }
        if !has_wakeup {
            self.wakeups.push(Reverse((expiry, id, lease.generation)));
        }
    }
}

/// The smallest time to live: one and a half election timeouts, counted in whole heartbeats, rounded up to seconds.
fn min_ttl_seconds(election_timeout: Duration, heartbeat_interval: Duration) -> i64 {
    let heartbeats = election_timeout.as_millis() / heartbeat_interval.as_millis().max(1);
    let millis = 3 * heartbeats / 2 * heartbeat_interval.as_millis();
    i64::try_from(millis.div_ceil(1_000)).expect("timeouts are short").max(1)
}

#[cfg(test)]
#[path = "lease/tests.rs"]
mod tests;
