//! The receiving side: one snapshot at a time.

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use super::message::{Chunk, Offer, Progress, State};
use crate::limits::{TRANSFER_CHUNKS_IN_FLIGHT_MAX, TRANSFER_IDLE_MAX, TRANSFER_RETRY_PAUSE};

/// How far the snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is none.
    Idle,
    /// It is arriving.
    Receiving,
    /// All of it is built into trees, which are being made durable.
    Saving,
    /// It is being put in the index's place.
    Installing,
}

/// A snapshot that has filled this member, for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Who sent it.
    pub from: u64,
    /// The entry that it includes last.
    pub index: u64,
    /// Its bytes, as they were sent.
    pub bytes: u64,
    /// How long that took, from the offer until it was in the index's place.
    pub took: Duration,
}

impl core::fmt::Display for Fill {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Fill { from, index, bytes, took } = self;
        write!(f, "member {from:x} has filled this member with a snapshot up to entry {index}: ")?;
        write!(f, "{bytes} bytes in {:.1} s", took.as_secs_f64())
    }
}

/// A snapshot that is arriving.
#[derive(Debug)]
struct Receiving {
    from: u64,
    offer: Offer,
    received: u64,
    imported: u64,
    /// Of the stream as far as it is received.
    checksum: u32,
    last_received: bool,
    waiting: VecDeque<Bytes>,
    /// All that was received.
    bytes: u64,
    began: Duration,
    heard: Duration,
    stage: Stage,
}

/// The receiving side.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    receiving: Option<Receiving>,
    /// Offers are put off until then: one has failed.
    busy_until: Duration,
    /// The transfer that was installed last, and from whom.
    installed: Option<(u64, u64)>,
}

impl Receiver {
    pub(crate) fn stage(&self) -> Stage {
        self.receiving.as_ref().map_or(Stage::Idle, |receiving| receiving.stage)
    }

    /// What is arriving, and from whom.
    pub(crate) fn offer(&self) -> Option<(u64, &Offer)> {
        self.receiving.as_ref().map(|receiving| (receiving.from, &receiving.offer))
    }

    /// What has arrived so far, and since when it has been arriving.
    pub(crate) fn arrived(&self, now: Duration) -> Option<Fill> {
        self.receiving.as_ref().map(|receiving| Fill {
            from: receiving.from,
            index: receiving.offer.index,
            bytes: receiving.bytes,
            took: now.saturating_sub(receiving.began),
        })
    }

    /// An offer came. True if it begins a transfer; then what was being built is given up. The answer is
    /// [`Receiver::answer`].
    pub(crate) fn handle_offer(&mut self, now: Duration, from: u64, offer: &Offer) -> bool {
        if let Some(receiving) = &mut self.receiving {
            if receiving.from == from && receiving.offer.id == offer.id {
                receiving.heard = now;
                return false;
            }
            // One that is all there, or that another member goes on sending, is not given up for one that begins anew.
            let goes_on = receiving.from != from || receiving.stage != Stage::Receiving;
            if goes_on {
                return false;
            }
        }
        if now < self.busy_until || self.installed == Some((from, offer.id)) {
            return false;
        }
        self.receiving = Some(Receiving {
            from,
            offer: offer.clone(),
            received: 0,
            imported: 0,
            checksum: 0,
            last_received: false,
            waiting: VecDeque::new(),
            bytes: 0,
            began: now,
            heard: now,
            stage: Stage::Receiving,
        });
        true
    }

    /// A chunk came. True if it was the next one.
    pub(crate) fn handle_chunk(&mut self, now: Duration, from: u64, chunk: Chunk) -> Option<Progress> {
        let is_known = |receiving: &&mut Receiving| receiving.from == from && receiving.offer.id == chunk.id;
        let Some(receiving) = self.receiving.as_mut().filter(is_known) else {
            return Some(self.answer(from, chunk.id, false));
        };
        receiving.heard = now;
        // What came before, or what comes behind a gap: the sender finds out by its next offer.
        if chunk.number != receiving.received || receiving.last_received {
            return None;
        }
        let checksum = crc32c::crc32c_append(receiving.checksum, &chunk.bytes);
        if checksum != chunk.checksum || receiving.waiting.len() >= TRANSFER_CHUNKS_IN_FLIGHT_MAX {
            return Some(self.answer(from, chunk.id, true));
        }
        receiving.checksum = checksum;
        receiving.received += 1;
        receiving.last_received = chunk.is_last;
        receiving.bytes += u64::try_from(chunk.bytes.len()).expect("chunks are bounded");
        receiving.waiting.push_back(chunk.bytes);
        None
    }

    /// The next chunk to import.
    pub(crate) fn poll_import(&mut self) -> Option<Bytes> {
        self.receiving.as_mut()?.waiting.pop_front()
    }

    /// A chunk is imported; the sender is told.
    pub(crate) fn handle_imported(&mut self) -> Option<(u64, Progress)> {
        let receiving = self.receiving.as_mut()?;
        receiving.imported += 1;
        if receiving.last_received && receiving.waiting.is_empty() {
            receiving.stage = Stage::Saving;
        }
        let (from, id) = (receiving.from, receiving.offer.id);
        Some((from, self.answer(from, id, false)))
    }

    /// The image is durable, and put in the index's place from now on.
    pub(crate) fn begin_install(&mut self) {
        self.receiving.as_mut().expect("something is installed").stage = Stage::Installing;
    }

    /// It is in place; the sender is told.
    pub(crate) fn handle_installed(&mut self) -> (u64, Progress) {
        let receiving = self.receiving.take().expect("something is installed");
        self.installed = Some((receiving.from, receiving.offer.id));
        (receiving.from, self.answer(receiving.from, receiving.offer.id, false))
    }

    /// What arrives is given up; the sender is told why. After a failure the next offer is taken after a pause.
    pub(crate) fn give_up(&mut self, now: Duration, state: State) -> Option<(u64, Progress)> {
        let receiving = self.receiving.take()?;
        if state == State::Failed {
            self.busy_until = now + TRANSFER_RETRY_PAUSE;
        }
        let Receiving { from, offer, received, imported, .. } = receiving;
        Some((from, Progress { id: offer.id, received, imported, state, resend: false }))
    }

    /// How far a transfer is, as its sender is told.
    pub(crate) fn answer(&self, from: u64, id: u64, resend: bool) -> Progress {
        let nothing = Progress { id, received: 0, imported: 0, state: State::NotNeeded, resend: false };
        if self.installed == Some((from, id)) {
            return Progress { state: State::Installed, ..nothing };
        }
        match &self.receiving {
            Some(receiving) if receiving.from == from && receiving.offer.id == id => {
                let Receiving { received, imported, .. } = *receiving;
                Progress { id, received, imported, state: State::Going, resend }
            }
            _ => nothing,
        }
    }

    /// What a sender is told about its offer.
    pub(crate) fn answer_offer(&self, now: Duration, from: u64, id: u64) -> Progress {
        let answer = self.answer(from, id, true);
        let is_busy = self.receiving.is_some() || now < self.busy_until;
        let state = if answer.state == State::NotNeeded && is_busy { State::Busy } else { answer.state };
        Progress { state, ..answer }
    }

    /// When nothing was heard for too long.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let receiving = self.receiving.as_ref().filter(|receiving| receiving.stage == Stage::Receiving)?;
        Some(receiving.heard + TRANSFER_IDLE_MAX)
    }

    /// Whether nothing was heard for too long: what has arrived is of no use.
    pub(crate) fn is_abandoned(&self, now: Duration) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }
}
