//! Responses leave, one at a time, as the client takes them.

use std::collections::VecDeque;

use garboard_storage::{Paged, View};

use super::hub::WatchHub;
use super::limits::{RESPONSE_FRAME_BYTES, RESPONSES_PER_CATCH_UP};
use super::response::{WatchEvent, WatchResponse};
use super::slab::Key;
use super::state::{Outgoing, Position, StreamId, Watcher};
use crate::canary::{self, Canary};
use crate::events::Event;
use crate::read::fault::may_miss;
use crate::request::KeyValue;

impl WatchHub {
    /// The stream's next response, or `None` when there is nothing for it now.
    ///
    /// After `None` the stream is named by [`poll_ready`](Self::poll_ready) once there is something again; that may be
    /// at once, when it has a long history to catch up with and others are to have their turn. After a missing page the
    /// call is made again, with a view of the newest root.
    pub fn next_response(&mut self, id: StreamId, view: &View<'_>) -> Paged<Option<WatchResponse>> {
        self.check_view(view);
        if self.streams.get(id.0).is_none() {
            return Ok(None);
        }
        if let Some(response) = self.pending_response(id, view)? {
            return Ok(Some(response));
        }
        if let Some(stream) = self.streams.get(id.0)
            && !stream.lagging.is_empty()
        {
            self.catch_up(id, view)?;
            if let Some(response) = self.pending_response(id, view)? {
                return Ok(Some(response));
            }
        }
        let stream = self.streams.get_mut(id.0).expect("it was found above");
        stream.waiting = true;
        if !stream.lagging.is_empty() {
            self.wake(id);
        }
        Ok(None)
    }

    /// A response for which everything is there, or nearly: previous pairs may have to be read.
    fn pending_response(&mut self, id: StreamId, view: &View<'_>) -> Paged<Option<WatchResponse>> {
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        if stream.outgoing.is_some() {
            return self.send_outgoing(id, view).map(Some);
        }
        if stream.control.is_empty() && stream.served >= RESPONSES_PER_CATCH_UP && !stream.lagging.is_empty() {
            self.catch_up(id, view)?;
        }
        // Catching up may have canceled a watcher.
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        if let Some(response) = stream.control.pop_front() {
            return Ok(Some(response));
        }
        if self.take_pending(id) {
            return self.send_outgoing(id, view).map(Some);
        }
        Ok(self.due_progress(id).or_else(|| self.asked_progress(id)))
    }

    /// Takes a response's worth of events off the watcher whose turn it is.
    fn take_pending(&mut self, id: StreamId) -> bool {
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        while let Some(key) = stream.queue.pop_front() {
            stream.progress_patience = stream.progress_patience.saturating_sub(1);
            let Some(watcher) = self.watchers.get_mut(key) else {
                continue;
            };
            watcher.queued = false;
            let (events, bytes) = watcher.take_front(self.config.response_bytes);
            if events.is_empty() {
                continue;
            }
            stream.pending_bytes -= bytes;
            watcher.quiet = false;
            stream.enqueue(key, watcher);
            stream.served += 1;
            stream.outgoing = Some(Outgoing {
                watcher: key,
                watch_id: watcher.watch_id,
                header_revision: self.revision,
                prev_kv: watcher.prev_kv,
                fragment: watcher.fragment,
                events,
                looked_up: 0,
                started: false,
            });
            return true;
        }
        false
    }

    /// Sends what is on its way out: all of it, or the next fragment.
    fn send_outgoing(&mut self, id: StreamId, view: &View<'_>) -> Paged<WatchResponse> {
        let fragment_bytes = self.config.fragment_bytes;
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        let outgoing = stream.outgoing.as_mut().expect("the caller found it");
        look_up_previous(outgoing, view)?;
        outgoing.started = true;
        let events = if outgoing.fragment { fragment(&mut outgoing.events, fragment_bytes) } else { None };
        let more = events.is_some();
        let response = WatchResponse {
            watch_id: outgoing.watch_id,
            header_revision: outgoing.header_revision,
            fragment: more,
            events: events.unwrap_or_else(|| std::mem::take(&mut outgoing.events).into()),
            ..WatchResponse::default()
        };
        if !more {
            stream.outgoing = None;
        }
        Ok(response)
    }

    /// Periodic progress of a watcher that is still quiet.
    fn due_progress(&mut self, id: StreamId) -> Option<WatchResponse> {
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        while let Some(key) = stream.due.pop_front() {
            let Some(watcher) = self.watchers.get_mut(key) else {
                continue;
            };
            watcher.due = false;
            let synced = matches!(watcher.position, Position::Synced { .. }) && watcher.pending.is_empty();
            if synced && watcher.quiet && watcher.progress_from <= self.revision {
                let (watch_id, header_revision) = (watcher.watch_id, self.revision);
                return Some(WatchResponse { watch_id, header_revision, ..WatchResponse::default() });
            }
        }
        None
    }

    /// Progress that the client asked for, once every event up to its revision was sent.
    fn asked_progress(&mut self, id: StreamId) -> Option<WatchResponse> {
        let stream = self.streams.get_mut(id.0).expect("the caller found it");
        if stream.compacted > 0 {
            stream.progress.clear();
        }
        let Some(&revision) = stream.progress.front() else {
            self.progress_asked.remove(&id);
            return None;
        };
        if self.revision < revision || stream.progress_patience > 0 {
            return None;
        }
        let watchers = &self.watchers;
        let pending = |key: &Key| watchers.get(*key).and_then(Watcher::first_pending);
        let unsent = stream.queue.iter().filter_map(pending).chain(stream.lagging.first().map(|(cursor, _)| *cursor));
        if unsent.min().is_some_and(|unsent| unsent <= revision) && !canary::is_on(Canary::ProgressAhead) {
            // Looking is as much work as there are watchers in the queue: it waits until they had a turn.
            stream.progress_patience = stream.queue.len();
            return None;
        }
        stream.progress.pop_front();
        Some(WatchResponse { watch_id: -1, header_revision: revision, ..WatchResponse::default() })
    }
}

/// Reads the previous pairs of events that replaced something. On a missing page what was found stays.
fn look_up_previous(outgoing: &mut Outgoing, view: &View<'_>) -> Paged<()> {
    if !outgoing.prev_kv {
        return Ok(());
    }
    for event in outgoing.events.iter_mut().skip(outgoing.looked_up) {
        let previous = previous_pair(event.event(), view)?;
        event.set_previous(previous);
        outgoing.looked_up += 1;
    }
    Ok(())
}

/// What an event's key held one revision before it; nothing for a creation, and nothing once that is compacted.
fn previous_pair(event: &Event, view: &View<'_>) -> Paged<Option<KeyValue>> {
    let before = event.kv.mod_revision - 1;
    if event.is_create() || before < view.compacted() {
        return Ok(None);
    }
    let revision = match event.previous {
        Some(revision) if revision.main <= before => revision,
        // It replaced what the same transaction wrote; what counts is what was there before the transaction.
        Some(_) => {
            may_miss()?;
            match view.find(&event.kv.key, before)? {
                Some(version) => version.modified,
                None => return Ok(None),
            }
        }
        None => return Ok(None),
    };
    may_miss()?;
    let record = view.record(revision)?;
    Ok(record.filter(|record| !record.deleted).map(|record| KeyValue {
        key: record.key,
        create_revision: record.create_revision,
        mod_revision: record.revision.main,
        version: record.version,
        value: record.value,
        lease: record.lease,
    }))
}

/// Takes the events of the next fragment; `None` when what is left fits in one response or is a single event.
fn fragment(events: &mut VecDeque<WatchEvent>, limit: u64) -> Option<Vec<WatchEvent>> {
    let mut length = RESPONSE_FRAME_BYTES;
    for (index, event) in events.iter().enumerate() {
        length += event.encoded_len();
        if length >= limit && index > 0 {
            return Some(events.drain(..index).collect());
        }
    }
    None
}
