//! The sending side: one snapshot for each member that needs one, side by side.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use garboard_storage::{Export, ExportStep, NeedPage, PageId, Position, Reader, Snapshot};

use super::message::{Chunk, Offer, Progress, State, TransferMessage};
use crate::limits::{
    TRANSFER_CATCH_UP, TRANSFER_CHUNKS_IN_FLIGHT_MAX, TRANSFER_COPY_BYTES_MAX, TRANSFER_HOLD_MAX, TRANSFER_IDLE_MAX,
    TRANSFER_LOADS_MAX, TRANSFER_OFFER_INTERVAL, TRANSFERS_MAX,
};
use crate::raft::Membership;

/// What the sender wants done.
#[derive(Debug)]
pub(crate) enum Output {
    /// Send this.
    Send(u64, TransferMessage),
    /// Make a page resident that this root reaches.
    Load(PageId, Snapshot),
    /// A transfer has ended.
    Ended(u64, Outcome),
}

/// How a transfer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The receiver has the snapshot.
    Installed,
    /// It does not, for whatever reason.
    Failed,
}

/// One snapshot on its way.
#[derive(Debug)]
struct Sending {
    offer: Offer,
    export: Export,
    /// The root that *system* is copied from.
    pin: Option<Snapshot>,
    /// Whether the receiver has answered: chunks may go out.
    accepted: bool,
    /// Where the chunks begin that are sent and not imported; the first is number `imported`.
    in_flight: VecDeque<Position>,
    imported: u64,
    all_sent: bool,
    /// A page that is being loaded.
    loading: Option<PageId>,
    /// Physical compaction does not wait for it beyond this time.
    hold_until: Duration,
    heard: Duration,
    next_offer: Duration,
}

/// All snapshots on their way from this member.
#[derive(Debug)]
pub(crate) struct Sender {
    cluster_id: u64,
    bytes_per_second: u64,
    sends: BTreeMap<u64, Sending>,
    next_id: u64,
    /// When the next chunk may go, by the rate.
    next_chunk: Duration,
    /// The receiver whose turn it is not.
    last_served: u64,
    /// Snapshots that were installed a while ago, by the entry that they include last, and until when the receiver may
    /// need the entries behind.
    installed: VecDeque<(u64, Duration)>,
}

impl Sender {
    /// Ids of transfers begin with `first_id`, which no earlier start of the member has reached.
    pub(crate) fn new(cluster_id: u64, first_id: u64, bytes_per_second: u64) -> Sender {
        Sender {
            cluster_id,
            bytes_per_second: bytes_per_second.max(1),
            sends: BTreeMap::new(),
            next_id: first_id,
            next_chunk: Duration::ZERO,
            last_served: 0,
            installed: VecDeque::new(),
        }
    }

    /// Whether a snapshot is on its way to a member.
    pub(crate) fn is_sending_to(&self, to: u64) -> bool {
        self.sends.contains_key(&to)
    }

    /// Whether nothing is on its way and nothing is kept for anybody: no timer runs then.
    pub(crate) fn is_idle(&self) -> bool {
        self.sends.is_empty() && self.installed.is_empty()
    }

    /// The oldest entry that a snapshot on its way includes: its receiver will need those behind.
    pub(crate) fn oldest_index(&self) -> Option<u64> {
        let installed = self.installed.iter().map(|(index, _)| *index);
        self.sends.values().map(|sending| sending.offer.index).chain(installed).min()
    }

    /// Whether physical compaction must wait: something is read that it would take away.
    pub(crate) fn holds_compaction(&self) -> bool {
        self.sends.values().any(|sending| !sending.all_sent || !sending.in_flight.is_empty())
    }

    /// Begins to send what a pinned root shows of an index of this size. False if too much is under way already.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        to: u64,
        pin: Snapshot,
        size_bytes: u64,
        membership: Membership,
    ) -> bool {
        let copied: usize = self.sends.values().map(|sending| sending.export.copied_bytes()).sum();
        if self.sends.len() >= TRANSFERS_MAX || copied >= TRANSFER_COPY_BYTES_MAX {
            return false;
        }
        let export = Export::begin(&pin.view(), self.cluster_id);
        let hold_until = now + TRANSFER_HOLD_MAX.max(2 * duration_of(size_bytes, self.bytes_per_second));
        let applied = export.facts().applied;
        let offer = Offer { id: self.next_id, index: applied.index, term: applied.term, membership };
        self.next_id += 1;
        let sending = Sending {
            offer,
            export,
            pin: Some(pin),
            accepted: false,
            in_flight: VecDeque::new(),
            imported: 0,
            all_sent: false,
            loading: None,
            hold_until,
            heard: now,
            next_offer: now,
        };
        assert!(self.sends.insert(to, sending).is_none(), "one snapshot at a time to a member");
        true
    }

    /// A page is resident.
    pub(crate) fn handle_page_loaded(&mut self, page: PageId) {
        for sending in self.sends.values_mut() {
            sending.loading.take_if(|loading| *loading == page);
        }
    }

    /// A receiver says how far it is.
    pub(crate) fn handle_progress(&mut self, now: Duration, from: u64, progress: Progress) -> Option<Outcome> {
        let sending = self.sends.get_mut(&from).filter(|sending| sending.offer.id == progress.id)?;
        sending.heard = now;
        match progress.state {
            State::Busy => return None,
            State::Going => {
                if sending.handle_going(now, progress) {
                    return None;
                }
                self.sends.remove(&from);
                return Some(Outcome::Failed);
            }
            State::NotNeeded | State::Failed => {}
            State::Installed if sending.all_sent => {
                self.installed.push_back((sending.offer.index, now + TRANSFER_CATCH_UP));
                self.sends.remove(&from);
                return Some(Outcome::Installed);
            }
            State::Installed => {}
        }
        self.sends.remove(&from);
        Some(Outcome::Failed)
    }

    /// This member's own state was replaced by a newer one, in which what the snapshots on their way were made of may be
    /// compacted away. They are given up; to whom they went is told.
    pub(crate) fn handle_replaced(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(&mut self.sends).into_keys()
    }

    /// The link to a member is there again: what was on it is lost.
    pub(crate) fn handle_peer_up(&mut self, now: Duration, id: u64) {
        if let Some(sending) = self.sends.get_mut(&id) {
            sending.next_offer = now;
        }
    }

    /// When [`Sender::poll`] should be called again.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let offers = self.sends.values().map(|sending| {
            let offer = sending.pin.is_none().then_some(sending.next_offer);
            sending.gives_up_at().min(offer.unwrap_or(Duration::MAX))
        });
        let has_work = self.sends.values().any(|sending| sending.pin.is_some() && sending.loading.is_none());
        let has_chunks = self.sends.values().any(Sending::can_send);
        let work = has_work.then_some(Duration::ZERO);
        let kept = self.installed.front().map(|(_, until)| *until);
        offers.chain(work).chain(has_chunks.then_some(self.next_chunk)).chain(kept).min()
    }

    /// Does the next thing that is due; `None` when there is nothing now. What a call costs is bounded by a chunk.
    pub(crate) fn poll(&mut self, now: Duration, reader: &Reader) -> Option<Output> {
        while self.installed.pop_front_if(|(_, until)| *until <= now).is_some() {}
        if let Some((&to, _)) = self.sends.iter().find(|(_, sending)| sending.gives_up_at() <= now) {
            self.sends.remove(&to);
            return Some(Output::Ended(to, Outcome::Failed));
        }
        for (&to, sending) in &mut self.sends {
            if sending.pin.is_some() && sending.loading.is_none() {
                match sending.copy(reader) {
                    Ok(bytes) if bytes > TRANSFER_COPY_BYTES_MAX => {
                        self.sends.remove(&to);
                        return Some(Output::Ended(to, Outcome::Failed));
                    }
                    Ok(_) => {}
                    Err(page) => return Some(Output::Load(page, reader.pin())),
                }
            }
            if sending.pin.is_none() && sending.next_offer <= now {
                sending.next_offer = now + TRANSFER_OFFER_INTERVAL;
                return Some(Output::Send(to, TransferMessage::Offer(sending.offer.clone())));
            }
        }
        self.poll_chunk(now, reader)
    }

    fn poll_chunk(&mut self, now: Duration, reader: &Reader) -> Option<Output> {
        if self.next_chunk > now {
            return None;
        }
        // In turn, so that none waits for another.
        let ready = |(&to, sending): (&u64, &Sending)| sending.can_send().then_some(to);
        let after = self.sends.range(self.last_served + 1..).find_map(ready);
        let to = after.or_else(|| self.sends.iter().find_map(ready))?;
        self.last_served = to;
        let sending = self.sends.get_mut(&to).expect("just found");
        match sending.next_chunk(reader) {
            Ok(Some(chunk)) => {
                let bytes = u64::try_from(chunk.bytes.len()).expect("chunks are bounded");
                let pause = duration_of(bytes, self.bytes_per_second);
                self.next_chunk = self.next_chunk.max(now.saturating_sub(pause)) + pause;
                sending.next_offer = now + TRANSFER_OFFER_INTERVAL;
                Some(Output::Send(to, TransferMessage::Chunk(chunk)))
            }
            Ok(None) => None,
            Err(page) => Some(Output::Load(page, reader.pin())),
        }
    }
}

/// How long so many bytes take.
fn duration_of(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4))
}

impl Sending {
    /// When it is given up: nothing is heard, or physical compaction has waited for too long.
    fn gives_up_at(&self) -> Duration {
        (self.heard + TRANSFER_IDLE_MAX).min(self.hold_until)
    }

    fn can_send(&self) -> bool {
        self.accepted
            && self.pin.is_none()
            && !self.all_sent
            && self.loading.is_none()
            && self.in_flight.len() < TRANSFER_CHUNKS_IN_FLIGHT_MAX
    }

    /// Takes over how far the receiver is; false if that can't be.
    fn handle_going(&mut self, now: Duration, progress: Progress) -> bool {
        let sent = self.imported + u64::try_from(self.in_flight.len()).expect("few are in flight");
        // A receiver that was restarted has lost what it had.
        let is_lost = progress.resend && progress.received < self.imported;
        if progress.received > sent || is_lost {
            return false;
        }
        while self.imported < progress.imported {
            self.imported += 1;
            self.in_flight.pop_front();
        }
        let oldest = self.in_flight.front().unwrap_or(self.export.position()).clone();
        self.export.forget(&oldest);
        if progress.resend {
            self.go_back(progress.received);
            self.next_offer = now + TRANSFER_OFFER_INTERVAL;
        }
        self.accepted = true;
        true
    }

    /// What was sent behind these chunks is lost: it is sent again.
    fn go_back(&mut self, received: u64) {
        let kept = usize::try_from(received.saturating_sub(self.imported)).unwrap_or(usize::MAX);
        if kept < self.in_flight.len() {
            let lost = self.in_flight.drain(kept..).next().expect("some are behind");
            self.export.rewind(lost);
            self.all_sent = false;
        }
    }

    /// Copies some more of what changes in place, or says which page is missing.
    fn copy(&mut self, reader: &Reader) -> Result<usize, PageId> {
        let pin = self.pin.as_ref().expect("the caller has seen it");
        let (export, view) = (&mut self.export, pin.view());
        let done = match settle(reader, || export.copy(&view)) {
            Ok(done) => done,
            Err(page) => {
                self.loading = Some(page);
                return Err(page);
            }
        };
        if done {
            self.pin = None;
        }
        Ok(self.export.copied_bytes())
    }

    /// The next chunk; none if its making takes another step. Else the page that is missing, which the newest root reaches.
    fn next_chunk(&mut self, reader: &Reader) -> Result<Option<Chunk>, PageId> {
        let pin = reader.pin();
        let position = self.export.position().clone();
        let export = &mut self.export;
        let step = match settle(reader, || export.step(&pin.view())) {
            Ok(step) => step,
            Err(page) => {
                self.loading = Some(page);
                return Err(page);
            }
        };
        match step {
            ExportStep::Again => Ok(None),
            ExportStep::Done => {
                self.all_sent = true;
                Ok(None)
            }
            ExportStep::Chunk(chunk) => {
                self.in_flight.push_back(position);
                self.all_sent = chunk.is_last;
                let garboard_storage::Chunk { number, checksum, bytes, is_last } = chunk;
                Ok(Some(Chunk { id: self.offer.id, number, checksum, is_last, bytes }))
            }
        }
    }
}

/// Repeats a walk with what can be had without waiting, up to a bound; else names the page that it needs.
fn settle<T>(reader: &Reader, mut walk: impl FnMut() -> Result<T, NeedPage>) -> Result<T, PageId> {
    for _ in 0..TRANSFER_LOADS_MAX {
        match walk() {
            Ok(found) => return Ok(found),
            // A page that is damaged is found so by whoever loads it.
            Err(NeedPage(page)) => {
                if !reader.load_cached(page).is_ok_and(|loaded| loaded) {
                    return Err(page);
                }
            }
        }
    }
    walk().map_err(|NeedPage(page)| page)
}
