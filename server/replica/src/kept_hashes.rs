//! The hashes that compactions compute on their way, as etcd keeps them: what `HashKV` answers at a compacted revision.
//!
//! Members compare their states by them: each hashes the whole history since the compaction before, at a revision that
//! is the same for all of them, before any of it is removed.
//!
//! As in etcd, a compaction is hashed only if the one before had finished when it was asked for, only the newest
//! hashes are kept, and they are gone after a restart: entries that a start finds in the log are not hashed again.

use core::time::Duration;
use std::collections::VecDeque;

use garboard_storage::hash::{CompactionHasher, HashKv, Survivors};
use garboard_storage::{Paged, View};

use crate::envelope::Ticket;
use crate::limits::{COMPACTION_STEP_RECORDS, HASH_WAIT_MAX, HASH_WAITERS_MAX, KEPT_HASHES_MAX};

/// What is known about the hash of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It was computed by a compaction to this revision.
    Kept(HashKv),
    /// It is being computed: whoever asked is answered at its end.
    Waits,
    /// It is not known.
    Unknown,
}

/// Somebody who waits for the hash that is being computed.
#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    since: Duration,
}

/// The hashes of earlier compactions, and the one being computed.
#[derive(Debug, Default)]
pub struct KeptHashes {
    /// In order of revision.
    kept: VecDeque<HashKv>,
    /// There is at most one: a compaction asked for before it has ended follows an unfinished one.
    running: Option<CompactionHasher>,
    /// What the last hash found alive, which makes the next one cheaper.
    survivors: Option<Survivors>,
    /// Those who asked for the hash being computed, oldest first.
    waiters: VecDeque<Waiter>,
}

impl KeptHashes {
    /// A compaction to `revision` was asked for; an earlier one to `floor` has finished.
    pub fn begin(&mut self, floor: i64, revision: i64) {
        assert!(self.running.is_none(), "nothing is being hashed once a compaction has finished");
        self.running = Some(CompactionHasher::new(floor, revision, self.survivors.take()));
    }

    /// Whether a hash is being computed. Nothing that lies below its revision may be removed meanwhile.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The state was replaced: as after a start, no earlier compaction's hash is known. Those who wait are told in time.
    pub fn forget(&mut self) {
        self.kept.clear();
        (self.running, self.survivors) = (None, None);
    }

    /// Asks for the hash of a revision.
    pub fn lookup(&mut self, now: Duration, ticket: Ticket, revision: i64) -> Lookup {
        if let Some(kept) = self.kept.iter().find(|kept| kept.revision == revision) {
            return Lookup::Kept(*kept);
        }
        let is_next = self.running.as_ref().is_some_and(|running| running.revision() == revision);
        if !is_next || self.waiters.len() >= HASH_WAITERS_MAX {
            return Lookup::Unknown;
        }
        self.waiters.push_back(Waiter { ticket, since: now });
        Lookup::Waits
    }

    /// The hashes that are kept, in order of revision.
    pub fn kept(&self) -> impl Iterator<Item = &HashKv> {
        self.kept.iter()
    }

    /// A step of the hash being computed. Gives it, once it is complete, and those who wait for it.
    ///
    /// What it costs: a step goes over as many revisions as a step of physical compaction, or fewer large ones, with
    /// the same pauses between. In sum the first hash after a start reads every stored revision up to the compaction's
    /// once and looks up its key. Later ones do so for what was written since the compaction before and for runs of
    /// revisions in which something has died, and combine the remembered checksums of the rest. (That the rest is as
    /// it was written is the page checksums' promise, and the scrub's to look after.) It holds no root, so that space
    /// is reused meanwhile.
    pub fn step(&mut self, view: &View<'_>) -> Paged<Option<(HashKv, Vec<Ticket>)>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        let Some((hash, survivors)) = running.step(view, COMPACTION_STEP_RECORDS)? else { return Ok(None) };
        self.running = None;
        self.survivors = Some(survivors);
        assert!(self.kept.back().is_none_or(|newest| newest.revision < hash.revision), "compactions only go up");
        if self.kept.len() == KEPT_HASHES_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(hash);
        Ok(Some((hash, self.waiters.drain(..).map(|waiter| waiter.ticket).collect())))
    }

    /// When somebody has waited for too long.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.waiters.front().map(|waiter| waiter.since + HASH_WAIT_MAX)
    }

    /// Those who have waited for too long. The hash is not known to them.
    pub fn take_expired(&mut self, now: Duration) -> Vec<Ticket> {
        let expired = self.waiters.iter().take_while(|waiter| waiter.since + HASH_WAIT_MAX <= now).count();
        self.waiters.drain(..expired).map(|waiter| waiter.ticket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_too_long_for_a_hash_is_told_that_it_is_not_known() {
        let ticket = |sequence| Ticket { core: 0, sequence };
        let second = Duration::from_secs(1);
        let mut hashes = KeptHashes::default();
        assert_eq!(hashes.lookup(second, ticket(1), 9), Lookup::Unknown);
        hashes.begin(4, 9);
        assert_eq!(hashes.lookup(second, ticket(2), 8), Lookup::Unknown);
        assert_eq!(hashes.lookup(second, ticket(3), 9), Lookup::Waits);
        assert_eq!(hashes.lookup(2 * second, ticket(4), 9), Lookup::Waits);
        let due = hashes.poll_timeout().expect("somebody waits");
        assert_eq!(due, second + HASH_WAIT_MAX);
        assert_eq!(hashes.take_expired(due - Duration::from_nanos(1)), []);
        assert_eq!(hashes.take_expired(due), [ticket(3)]);
        assert_eq!(hashes.take_expired(due + second), [ticket(4)]);
        assert_eq!(hashes.poll_timeout(), None);
        assert!(hashes.is_running(), "the hash itself goes on");
    }

    #[test]
    fn no_more_wait_for_a_hash_than_the_bound() {
        let mut hashes = KeptHashes::default();
        hashes.begin(-1, 9);
        let mut ask = |sequence| hashes.lookup(Duration::ZERO, Ticket { core: 0, sequence }, 9);
        assert!((0..1_024).all(|sequence| ask(sequence) == Lookup::Waits));
        assert_eq!(ask(1_024), Lookup::Unknown);
    }
}
