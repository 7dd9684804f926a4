//! What must be proved before it is answered: reads, renewals of leases, remaining times.
//!
//! Requests that wait share one read index: while one is asked for, later requests gather for the next. An index that is
//! confirmed is answered once everything up to it is published.

use core::time::Duration;
use std::collections::BTreeMap;

use super::Member;
use crate::canary::{self, Canary};
use crate::envelope::{Asker, Response};
use crate::error::Error;
use crate::lease::KeepAlive;
use crate::limits::{READ_INDEX_RETRY, WAITING_READS_MAX};
use crate::peer::What;
use crate::raft::ReadConfirmed;

/// What waits for the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ReadIndex,
    KeepAlive(i64),
    TimeToLive(i64),
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    asker: Asker,
    kind: Kind,
    since: Duration,
}

/// A read index that was asked for.
#[derive(Debug)]
struct Asked {
    number: u64,
    at: Duration,
    waiters: Vec<Waiter>,
}

/// Requests that wait.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// For the next read index, oldest first.
    queued: Vec<Waiter>,
    asked: Option<Asked>,
    /// By the index that must be published.
    confirmed: BTreeMap<u64, Vec<Waiter>>,
    count: usize,
}

impl Reads {
    pub(super) fn poll_timeout(&self, time_limit: Duration) -> Option<Duration> {
        let retry = self.asked.as_ref().map(|asked| asked.at + READ_INDEX_RETRY);
        // Waiters are in order of time within each list; a confirmed one waits for apply alone.
        let oldest = self.queued.first().map(|waiter| waiter.since + time_limit);
        retry.into_iter().chain(oldest).min()
    }
}

impl Member {
    pub(super) fn read(&mut self, now: Duration, asker: Asker, kind: Kind) {
        // Without other members, nobody was ever answered anything that is not published here.
        let alone = self.raft.is_alone() && (self.is_ready() || canary::is_on(Canary::StaleReadAfterStart));
        if alone || self.needs_no_proof(now, kind) {
            self.serve(now, asker, kind);
        } else if self.reads.count >= WAITING_READS_MAX {
            self.answer_asker(asker, Err(Error::TooManyRequests));
        } else {
            self.reads.count += 1;
            self.reads.queued.push(Waiter { asker, kind, since: now });
        }
    }

    /// Whether a question about a lease can be answered at once: this member leads, a quorum has said so a short while
    /// ago, and it knows the lease. A new leader gives every lease more time than that while is long.
    fn needs_no_proof(&self, now: Duration, kind: Kind) -> bool {
        match kind {
            Kind::ReadIndex => canary::is_on(Canary::ReadIndexUnproved) && self.leads() && self.is_ready(),
            Kind::KeepAlive(id) | Kind::TimeToLive(id) => self.is_proved(now) && self.machine.lessor().contains(id),
        }
    }

    /// Asks for a read index on behalf of everything queued, unless one is being asked for.
    pub(super) fn ask_for_reads(&mut self, now: Duration) {
        if self.reads.queued.is_empty() || self.reads.asked.is_some() {
            return;
        }
        if let Some(number) = self.raft.read_index() {
            let waiters = std::mem::take(&mut self.reads.queued);
            self.reads.asked = Some(Asked { number, at: now, waiters });
        }
    }

    pub(super) fn read_confirmed(&mut self, now: Duration, read: ReadConfirmed) {
        // An answer to an earlier question, which was asked anew, comes too late to count.
        let Some(asked) = self.reads.asked.take_if(|asked| asked.number == read.number) else { return };
        if self.leads() {
            self.leadership.proved_at = self.leadership.proved_at.max(Some(asked.at));
        }
        self.reads.confirmed.entry(read.index).or_default().extend(asked.waiters);
        self.serve_confirmed(now);
    }

    /// Answers reads whose index is published.
    pub(super) fn serve_confirmed(&mut self, now: Duration) {
        let published = self.applying.published().index;
        while let Some(entry) = self.reads.confirmed.first_entry().filter(|entry| *entry.key() <= published) {
            for waiter in entry.remove() {
                self.reads.count -= 1;
                self.serve(now, waiter.asker, waiter.kind);
            }
        }
    }

    fn serve(&mut self, now: Duration, asker: Asker, kind: Kind) {
        let result = match kind {
            Kind::ReadIndex => Ok(Response::ReadIndex),
            Kind::KeepAlive(id) => match self.machine.lessor_mut().keep_alive(now, id, asker) {
                Ok(KeepAlive::Renewed(ttl_seconds)) => Ok(Response::LeaseKeepAlive { ttl_seconds }),
                Ok(KeepAlive::Unknown) => Ok(Response::LeaseKeepAlive { ttl_seconds: 0 }),
                Ok(KeepAlive::Waits) => return,
                Err(Error::LeaderChanged) => return self.pass_on(now, What::KeepAlive { id }, asker),
                Err(error) => Err(error),
            },
            // A member that does not lead does not know when a lease expires.
            Kind::TimeToLive(id) if !self.leads() => return self.pass_on(now, What::TimeToLive { id }, asker),
            Kind::TimeToLive(id) => {
                let (ttl_seconds, granted_ttl_seconds) = self.machine.lessor().time_to_live(now, id).unwrap_or((-1, 0));
                Ok(Response::LeaseTimeToLive { ttl_seconds, granted_ttl_seconds })
            }
        };
        self.answer_asker(asker, result);
    }

    /// Asks anew for what was lost on the way, and gives up on what has waited too long.
    pub(super) fn expire_reads(&mut self, now: Duration) {
        if self.reads.asked.as_ref().is_some_and(|asked| asked.at + READ_INDEX_RETRY <= now) {
            self.leader_changed_for_reads();
        }
        let Some(by) = now.checked_sub(self.config.request_timeout()) else { return };
        let expired = self.reads.queued.iter().take_while(|waiter| waiter.since <= by).count();
        let expired: Vec<Waiter> = self.reads.queued.drain(..expired).collect();
        self.reads.count -= expired.len();
        for Waiter { asker, .. } in expired {
            self.answer_asker(asker, Err(Error::Timeout));
        }
    }

    /// Whom the read index was asked of may not answer any more: it is asked for anew.
    pub(super) fn leader_changed_for_reads(&mut self) {
        if let Some(asked) = self.reads.asked.take() {
            let later = std::mem::replace(&mut self.reads.queued, asked.waiters);
            self.reads.queued.extend(later);
        }
    }
}
