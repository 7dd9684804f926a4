//! What a watch stream's client may be sent, by etcd's guarantees: ordered, unique, reliable, atomic, resumable and
//! bookmarkable, with previous pairs, creations and filters right.
//!
//! A watcher's place is a position in the model's changes: the first one that it has not been sent or need not be sent.
//! Every response must go on exactly there.

use std::collections::{BTreeMap, VecDeque};

use garboard_replica::watch::{CancelReason, WatchCreate, WatchEvent, WatchResponse};

use crate::model::{Change, Model, contains};
use crate::outcome::{Check, same, short, violated};

/// A watcher as its client knows it.
#[derive(Clone, Debug)]
struct Watcher {
    create: WatchCreate,
    /// The first revision whose events it gets.
    start: i64,
    /// The first change that is still to come or to be passed over.
    next: usize,
    /// Everything up to this revision was sent.
    seen: i64,
    /// The client has learned that it fell behind the floor.
    compacted: bool,
}

/// A response to a request, which must come in the order of the requests.
#[derive(Clone, Debug)]
struct Owed {
    response: WatchResponse,
    /// The watcher that it announces.
    watcher: Option<Watcher>,
}

/// What a client knows of its stream.
#[derive(Clone, Debug, Default)]
pub struct StreamChecker {
    /// By id, those included whose creation is still to be told.
    watchers: BTreeMap<i64, Watcher>,
    next_id: i64,
    owed: VecDeque<Owed>,
    /// A response is being sent in parts: whose, and to what its parts belong once the client has canceled it.
    open: Option<(i64, Option<Watcher>)>,
    /// Revisions that progress was asked for and may be told.
    asked: VecDeque<i64>,
    /// Events received.
    pub events: u64,
    /// How often progress of the whole stream was told.
    pub told: u64,
}

impl StreamChecker {
    /// Ids of watchers that the client may cancel.
    pub fn ids(&self) -> Vec<i64> {
        self.watchers.keys().copied().collect()
    }

    /// Where a client would resume a watcher: its keys, and the first revision that it may have missed.
    pub fn resumable(&self, model: &Model) -> Vec<(WatchCreate, i64)> {
        let resume = |watcher: &Watcher| {
            let seen = model.changes().get(watcher.next).map_or(model.revision() + 1, |next| next.revision.main);
            (watcher.create.clone(), seen.max(watcher.start))
        };
        self.watchers.values().filter(|watcher| !watcher.compacted).map(resume).collect()
    }

    /// What the client asks for anew when its stream breaks: each watch, from the first revision that it may have missed
    /// by what it was told.
    pub fn resume_points(&self) -> Vec<WatchCreate> {
        let resume = |(id, watcher): (&i64, &Watcher)| {
            let announced = |owed: &Owed| owed.watcher.is_some() && owed.response.watch_id == *id;
            let start = match watcher.create.start_revision {
                // It has not been told from where on it watches.
                0 if self.owed.iter().any(announced) => 0,
                _ => watcher.start.max(watcher.seen + 1),
            };
            WatchCreate { watch_id: 0, start_revision: start, ..watcher.create.clone() }
        };
        self.watchers.iter().filter(|(_, watcher)| !watcher.compacted).map(resume).collect()
    }

    /// The client asks for a watch while the store is at `revision`.
    pub fn create(&mut self, model: &Model, revision: i64, create: &WatchCreate) {
        let refusal = if create.start_revision < 0 {
            Some(CancelReason::Compacted)
        } else if create.keys.is_empty() {
            Some(CancelReason::EmptyRange)
        } else if create.watch_id != 0 && self.watchers.contains_key(&create.watch_id) {
            Some(CancelReason::DuplicateId)
        } else {
            None
        };
        if refusal.is_some() {
            let response = WatchResponse {
                watch_id: -1,
                created: true,
                canceled: true,
                cancel_reason: refusal,
                header_revision: revision,
                ..WatchResponse::default()
            };
            self.owed.push_back(Owed { response, watcher: None });
            return;
        }
        let mut id = create.watch_id;
        if id == 0 {
            while self.watchers.contains_key(&self.next_id) {
                self.next_id += 1;
            }
            id = self.next_id;
            self.next_id += 1;
        }
        let start = if create.start_revision > 0 { create.start_revision } else { revision + 1 };
        let next = model.position_of(start);
        let watcher = Watcher { create: create.clone(), start, next, seen: 0, compacted: false };
        self.watchers.insert(id, watcher.clone());
        let response =
            WatchResponse { watch_id: id, created: true, header_revision: revision, ..WatchResponse::default() };
        self.owed.push_back(Owed { response, watcher: Some(watcher) });
    }

    /// The client cancels a watch.
    pub fn cancel(&mut self, revision: i64, id: i64) {
        let Some(watcher) = self.watchers.remove(&id) else { return };
        if let Some((open, kept)) = &mut self.open
            && *open == id
        {
            // The parts that follow belong to the first one that was canceled since; there may be a next one of its id.
            kept.get_or_insert(watcher);
        }
        let response =
            WatchResponse { watch_id: id, canceled: true, header_revision: revision, ..WatchResponse::default() };
        self.owed.push_back(Owed { response, watcher: None });
    }

    /// The client asks for progress; it need not be told.
    pub fn ask_progress(&mut self, revision: i64) {
        self.asked.push_back(revision);
    }

    /// Whether a watcher has been sent everything, and every request its answer.
    ///
    /// # Errors
    /// What is missing.
    pub fn check_complete(&self, model: &Model) -> Check {
        if let Some(owed) = self.owed.front() {
            return violated("every request of a watch stream is answered", short(&owed.response), "nothing");
        }
        for (id, watcher) in self.watchers.iter().filter(|(_, watcher)| !watcher.compacted) {
            let rest = &model.changes()[watcher.next..];
            if let Some(missing) = rest.iter().find(|change| watcher.must_get(model, model.compacted(), change)) {
                return violated(format!("watch {id} is sent every event"), short(missing), "nothing");
            }
        }
        Ok(())
    }

    /// Whether no watcher of the stream has fallen behind the floor, so that progress must be told if asked for.
    pub fn can_progress(&self, revision: i64) -> bool {
        !self.watchers.is_empty()
            && self.watchers.values().all(|watcher| !watcher.compacted && watcher.progress_from() <= revision)
    }

    /// A response arrives. `floor` is the published floor.
    ///
    /// # Errors
    /// When a guarantee is broken.
    pub fn received(&mut self, model: &Model, floor: i64, response: &WatchResponse) -> Check {
        if let Some((open, _)) = &self.open
            && (*open != response.watch_id || response.events.is_empty())
        {
            return violated("the parts of a response follow each other", format!("watch {open}"), short(response));
        }
        if response.created || (response.canceled && response.compact_revision == 0) {
            return self.owed_response(response);
        }
        if response.canceled {
            return self.fell_behind(floor, response);
        }
        if response.events.is_empty() {
            return self.progress(model, floor, response);
        }
        self.events_of(model, floor, response)
    }

    fn owed_response(&mut self, response: &WatchResponse) -> Check {
        let owed = self.owed.pop_front();
        same("a watch stream's answer", &owed.as_ref().map(|owed| &owed.response), &Some(response))
    }

    /// A watcher was canceled because it fell behind the floor.
    fn fell_behind(&mut self, floor: i64, response: &WatchResponse) -> Check {
        let plain = WatchResponse {
            watch_id: response.watch_id,
            canceled: true,
            compact_revision: response.compact_revision,
            ..WatchResponse::default()
        };
        same("a watch that fell behind is told so, and no more", &plain, response)?;
        self.check_announced(response)?;
        let Some(watcher) = self.watchers.get_mut(&response.watch_id).filter(|watcher| !watcher.compacted) else {
            return violated("only a watch that exists falls behind", "", short(response));
        };
        let needed = watcher.start.max(watcher.seen + 1);
        watcher.compacted = true;
        if needed < response.compact_revision && response.compact_revision <= floor {
            return Ok(());
        }
        violated(
            "a watch is canceled only when the floor has passed what it needs",
            format!("a floor above {needed} and up to {floor}"),
            short(response),
        )
    }

    /// A watcher says nothing before its creation is told.
    fn check_announced(&self, response: &WatchResponse) -> Check {
        let announced = |owed: &Owed| owed.watcher.is_some() && owed.response.watch_id == response.watch_id;
        if self.owed.iter().any(announced) {
            return violated("a watch's creation is told before anything else of it", "created", short(response));
        }
        Ok(())
    }

    fn progress(&mut self, model: &Model, floor: i64, response: &WatchResponse) -> Check {
        let revision = response.header_revision;
        let of_stream = response.watch_id == -1;
        if of_stream {
            let Some(position) = self.asked.iter().position(|asked| *asked == revision) else {
                return violated(
                    "progress is told to who asked, with the revision of then",
                    short(&self.asked),
                    short(response),
                );
            };
            self.asked.drain(..=position);
            self.told += 1;
        } else {
            self.check_announced(response)?;
        }
        let concerned: Vec<i64> =
            if of_stream { self.watchers.keys().copied().collect() } else { vec![response.watch_id] };
        for id in concerned {
            let Some(watcher) = self.watchers.get_mut(&id) else {
                return violated("progress is of a watch that exists", "", short(response));
            };
            let changes = &model.changes()[watcher.next..];
            let until = changes.partition_point(|change| change.revision.main <= revision);
            if let Some(missing) = changes[..until].iter().find(|change| watcher.must_get(model, floor, change)) {
                return violated(
                    format!("progress is told of watch {id} once it was sent every event up to then"),
                    short(missing),
                    short(response),
                );
            }
            // A watch that was made after progress was asked for has nothing to do with it.
            let lags = watcher.progress_from() > revision && !of_stream;
            if lags || revision > model.revision() {
                return violated(format!("progress of watch {id} is not of the future"), "", short(response));
            }
            watcher.next += until;
            watcher.seen = watcher.seen.max(revision);
        }
        Ok(())
    }

    fn events_of(&mut self, model: &Model, floor: i64, response: &WatchResponse) -> Check {
        let id = response.watch_id;
        let kept = self.open.take().and_then(|(_, kept)| kept);
        let is_kept = kept.is_some();
        if !is_kept {
            self.check_announced(response)?;
        }
        let Some(mut watcher) = kept.or_else(|| self.watchers.get(&id).cloned()) else {
            return violated("events are of a watch that exists", "", short(response));
        };
        if watcher.compacted {
            return violated("a canceled watch is sent nothing more", "", short(response));
        }
        if response.fragment && !watcher.create.fragment {
            return violated("a response is cut only where the client allows it", "", short(response));
        }
        if response.header_revision > model.revision() {
            return violated("a header's revision is not of the future", model.revision().to_string(), short(response));
        }
        for event in &response.events {
            watcher.take(model, floor, event)?;
            self.events += 1;
        }
        let last = response.events.last().map_or(0, |event| event.event().revision.main);
        if last > response.header_revision {
            return violated("a header's revision is no older than the events", last.to_string(), short(response));
        }
        let rest = model.changes()[watcher.next..].iter().take_while(|change| change.revision.main <= last);
        let rest = rest.into_iter().find(|change| watcher.must_get(model, floor, change)).cloned();
        if let Some(rest) = rest.filter(|_| !response.fragment) {
            return violated("a revision's events come together", short(&rest), short(response));
        }
        watcher.seen = if response.fragment { last - 1 } else { last };
        if response.fragment {
            self.open = Some((id, is_kept.then(|| watcher.clone())));
        }
        if !is_kept {
            self.watchers.insert(id, watcher);
        }
        Ok(())
    }
}

impl Watcher {
    fn wants(&self, change: &Change) -> bool {
        let filtered = if change.deleted { self.create.no_delete } else { self.create.no_put };
        change.revision.main >= self.start && !filtered && contains(&self.create.keys, &change.kv.key)
    }

    /// Whether it must be sent a change that it wants. Of several changes of a key in one transaction a compaction to
    /// that very revision leaves the last one alone; a watch may still begin there.
    fn must_get(&self, model: &Model, floor: i64, change: &Change) -> bool {
        self.wants(change) && (change.revision.main > floor || model.is_last_of_its_revision(change))
    }

    /// The first revision of which progress says something.
    fn progress_from(&self) -> i64 {
        if self.create.start_revision > 0 { self.start } else { self.start - 1 }
    }

    /// The next event must be the next change that the watcher wants.
    fn take(&mut self, model: &Model, floor: i64, received: &WatchEvent) -> Check {
        let event = received.event();
        let found =
            Change { revision: event.revision, deleted: event.deleted, kv: event.kv.clone(), previous: event.previous };
        let rest = &model.changes()[self.next..];
        let same = |expected: &Change| {
            (expected.revision, expected.deleted, &expected.kv) == (found.revision, found.deleted, &found.kv)
        };
        let next =
            rest.iter().position(|change| self.wants(change) && (same(change) || self.must_get(model, floor, change)));
        let Some(skipped) = next else {
            return violated("a watch is sent only what it asked for, once", "nothing more", short(&found));
        };
        // What an event replaced is not compared: one that was read from the history may not know it any more.
        let expected = &rest[skipped];
        if !same(expected) {
            return violated("a watch is sent every event it asked for, in order", short(expected), short(&found));
        }
        self.next += skipped + 1;
        let before = expected.revision.main - 1;
        // A creation shows nothing, even where the same transaction deleted the key first.
        let shows = self.create.prev_kv && (expected.deleted || expected.kv.version > 1);
        let previous = if shows { model.get(&expected.kv.key, before) } else { None };
        let lost = before < floor;
        if received.previous() == previous || (lost && received.previous().is_none()) {
            return Ok(());
        }
        violated(format!("the previous pair of {}", short(expected)), short(&previous), short(&received.previous()))
    }
}
