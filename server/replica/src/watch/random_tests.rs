//! Watches against a model, under everything at once: clients that stall, batches that reach the hub late, restored
//! snapshots, compaction, missing pages, small bounds, fragments, cancellations and reused ids.
//!
//! The model is the whole history. What a watcher has received must at any time be a prefix of what it is to see, ending
//! between revisions; progress must be true; and once everybody reads, nothing may be missing.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::tests::{Bench, watch};
use super::{CatchUpBudget, StreamId, WatchConfig, WatchCreate, WatchResponse};
use crate::events::{Event, EventBatch};
use crate::read::fault::miss_one_in;
use crate::read::fixture::{Change, Dice, bytes, seeds, span};
use crate::request::{KeyRange, KeyValue};

/// A watcher as its client knows it.
#[derive(Debug)]
struct Watched {
    create: WatchCreate,
    /// The first revision it is to see.
    start: i64,
    /// How many of the events it is to see it has seen.
    seen: usize,
    /// The revision of the last event seen, and whether a fragment ended with it.
    last: (i64, bool),
    progress: i64,
    /// It fell behind the floor.
    compacted: bool,
    /// Its stream has read everything all along, and its start was not below the floor.
    never_behind: bool,
}

/// A reply that a client is to read, in the order in which it asked.
#[derive(Debug)]
enum Reply {
    Created(i64, Box<Watched>),
    Refused,
    Canceled(i64),
}

/// One client's stream.
struct Client {
    id: StreamId,
    /// Reads whatever there is after every step.
    attentive: bool,
    replies: VecDeque<Reply>,
    /// Ids the server knows.
    taken: BTreeMap<i64, ()>,
    next_id: i64,
    /// Watchers whose creation the client has read.
    watched: BTreeMap<i64, Watched>,
    /// The watcher of which the last response was a fragment.
    in_fragment: Option<i64>,
    progress_asked: VecDeque<i64>,
}

struct World {
    bench: Bench,
    dice: Dice,
    clients: Vec<Client>,
    /// Batches that the hub is still to be told.
    on_the_way: VecDeque<Arc<EventBatch>>,
    /// What every key held, by revision.
    states: BTreeMap<i64, BTreeMap<Bytes, KeyValue>>,
    counts: Counts,
}

/// That everything happens which should.
#[derive(Debug, Default)]
struct Counts {
    events: u64,
    fragments: u64,
    compacted: u64,
    progress: u64,
    periodic: u64,
    previous: u64,
}

fn config(dice: &mut Dice) -> WatchConfig {
    let mut size = |low, high| usize::try_from(dice.between(low, high)).unwrap();
    WatchConfig {
        fragment_bytes: u64::try_from(size(100, 600)).unwrap(),
        stream_pending_bytes: size(100, 3_000),
        hub_recent_bytes: size(200, 6_000),
        hub_history_bytes: size(200, 6_000),
        response_bytes: size(1, 1_000),
        catch_up: CatchUpBudget { records: size(1, 30), bytes: size(1, 3_000) },
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let bench = Bench::new(config(&mut dice));
        let states = BTreeMap::from([(1, BTreeMap::new())]);
        let (clients, on_the_way, counts) = (Vec::new(), VecDeque::new(), Counts::default());
        let mut world = Self { bench, dice, clients, on_the_way, states, counts };
        for index in 0..3 {
            world.open(index == 0);
        }
        world
    }

    fn open(&mut self, attentive: bool) {
        let id = self.bench.hub.open_stream(self.bench.now, Duration::from_secs(5));
        self.clients.push(Client {
            id,
            attentive,
            replies: VecDeque::new(),
            taken: BTreeMap::new(),
            next_id: 0,
            watched: BTreeMap::new(),
            in_fragment: None,
            progress_asked: VecDeque::new(),
        });
    }

    fn step(&mut self) {
        let client = self.pick();
        match self.dice.below(40) {
            0..=11 => self.write(),
            12..=21 => self.tell_hub(),
            22..=25 => self.create(client),
            26 => self.cancel(client),
            27 | 28 => self.ask_progress(client),
            29 => self.tick(),
            30 => self.compact(),
            31 if self.dice.one_in(4) => self.restore(),
            32 if self.dice.one_in(4) && !self.clients[client].attentive => self.reopen(client),
            _ => {
                for _ in 0..self.dice.below(6) {
                    self.read(client);
                }
            }
        }
        let stats = self.bench.hub.stats();
        let config = &self.bench.hub.config;
        let largest_revision = 3_000;
        assert!(stats.pending_bytes <= self.clients.len() * (config.stream_pending_bytes + largest_revision));
        assert!(stats.held_bytes <= config.hub_recent_bytes + config.hub_history_bytes + 2 * largest_revision);
        for client in 0..self.clients.len() {
            while self.clients[client].attentive && self.read(client) {}
        }
    }

    fn pick(&mut self) -> usize {
        usize::try_from(self.dice.below(u64::try_from(self.clients.len()).unwrap())).unwrap()
    }

    fn write(&mut self) {
        let mut txns = Vec::new();
        for _ in 0..=self.dice.below(3) {
            let width = if self.dice.one_in(10) { 12 } else { self.dice.below(3) };
            let mut changes: Vec<Change> = (0..=width).map(|sub| self.change(sub)).collect();
            // A deletion from a key on may take what the same transaction put.
            if self.dice.one_in(6)
                && let Some(Change::Put(key, ..)) = changes.first().cloned()
            {
                changes.push(Change::Delete(key));
            }
            txns.push(changes);
        }
        let start = self.bench.store.history.len();
        if let Some(batch) = self.bench.store.apply(&txns) {
            self.on_the_way.push_back(batch);
        }
        for event in &self.bench.store.history[start..] {
            let (_, newest) = self.states.last_key_value().unwrap();
            let mut state = newest.clone();
            if event.deleted {
                state.remove(&event.kv.key);
            } else {
                state.insert(event.kv.key.clone(), event.kv.clone());
            }
            self.states.insert(event.revision.main, state);
        }
    }

    fn change(&mut self, sub: u64) -> Change {
        let key = bytes(&format!("{}{sub:02}", ["a", "b", "c"][usize::try_from(self.dice.below(3)).unwrap()]));
        if self.dice.one_in(3) {
            return Change::Delete(key);
        }
        let value = format!("{}{}", self.dice.below(100), "v".repeat(usize::try_from(self.dice.below(100)).unwrap()));
        Change::Put(key, bytes(&value), self.dice.between(0, 1))
    }

    fn tell_hub(&mut self) {
        if let Some(batch) = self.on_the_way.pop_front() {
            self.bench.hub.handle_events(&batch);
        }
    }

    fn restore(&mut self) {
        self.on_the_way.clear();
        self.bench.hub.handle_restore(self.bench.store.revision);
    }

    fn compact(&mut self) {
        let floor = self.dice.between(self.bench.store.compacted.max(1), self.bench.store.revision);
        // Of a key that the floor's own transaction changed twice, compaction keeps the last change alone, as in etcd; what
        // a watcher from there on sees of the first depends on whether the batch is still in memory.
        let at_floor = self.bench.store.history.iter().filter(|event| event.revision.main == floor);
        let mut keys: Vec<&Bytes> = at_floor.map(|event| &event.kv.key).collect();
        keys.sort();
        let twice = keys.windows(2).any(|pair| pair[0] == pair[1]);
        if floor > self.bench.store.compacted && !twice {
            // The hub may be told too late of events that are below the floor by then.
            let told = self.on_the_way.is_empty();
            let watched = self.clients.iter_mut().flat_map(|client| client.watched.values_mut());
            watched.for_each(|watched| watched.never_behind &= told);
            let physical = self.dice.one_in(2);
            self.bench.store.compact(floor, physical);
        }
    }

    fn create(&mut self, client: usize) {
        if !self.bench.hub.accepts_requests(self.clients[client].id) {
            return;
        }
        let dice = &mut self.dice;
        let key = format!("{}{:02}", ["a", "b", "c"][usize::try_from(dice.below(3)).unwrap()], dice.below(3));
        let keys = match dice.below(6) {
            0 => KeyRange::All,
            1 => span("b", "c"),
            2 => span("a01", "b02"),
            3 => KeyRange::FromKey(bytes("b01")),
            _ => KeyRange::Point(bytes(&key)),
        };
        let revision = self.bench.store.revision;
        let create = WatchCreate {
            // −1 is left out: it would be taken for progress of the whole stream.
            watch_id: if dice.one_in(3) { [-2, dice.between(0, 9)][usize::from(dice.one_in(2))] } else { 0 },
            start_revision: [0, 0, dice.between(-1, revision), revision + dice.between(0, 9)]
                [usize::try_from(dice.below(4)).unwrap()],
            progress_notify: dice.one_in(2),
            prev_kv: dice.one_in(2),
            fragment: dice.one_in(2),
            no_put: dice.one_in(8),
            no_delete: dice.one_in(8),
            ..watch(keys)
        };
        let asked = &mut self.clients[client];
        self.bench.create(asked.id, create.clone());
        if create.start_revision < 0 || (create.watch_id != 0 && asked.taken.contains_key(&create.watch_id)) {
            asked.replies.push_back(Reply::Refused);
            return;
        }
        let mut watch_id = create.watch_id;
        if watch_id == 0 {
            while asked.taken.contains_key(&asked.next_id) {
                asked.next_id += 1;
            }
            watch_id = asked.next_id;
            asked.next_id += 1;
        }
        asked.taken.insert(watch_id, ());
        let start = if create.start_revision > 0 { create.start_revision } else { revision + 1 };
        let never_behind = asked.attentive && start >= self.bench.store.compacted;
        let watched = Watched { create, start, seen: 0, last: (0, false), progress: 0, compacted: false, never_behind };
        asked.replies.push_back(Reply::Created(watch_id, Box::new(watched)));
    }

    fn cancel(&mut self, client: usize) {
        let asked = &mut self.clients[client];
        let watch_id = self.dice.between(-2, 12);
        let snapshot = self.bench.store.snapshot();
        if self.bench.hub.cancel(asked.id, watch_id, &snapshot.view()).is_ok()
            && asked.taken.remove(&watch_id).is_some()
        {
            asked.replies.push_back(Reply::Canceled(watch_id));
        }
    }

    fn ask_progress(&mut self, client: usize) {
        let snapshot = self.bench.store.snapshot();
        let asked = &mut self.clients[client];
        self.bench.hub.request_progress(asked.id, &snapshot.view());
        asked.progress_asked.push_back(self.bench.store.revision);
    }

    fn tick(&mut self) {
        self.bench.now += Duration::from_millis(self.dice.below(8_000));
        self.bench.hub.handle_timeout(self.bench.now);
    }

    fn reopen(&mut self, client: usize) {
        let closed = self.clients.remove(client);
        self.bench.hub.close_stream(closed.id);
        self.open(closed.attentive);
    }

    /// Reads one response, if there is one, and holds it against the model. Whether the stream may have more.
    fn read(&mut self, client: usize) -> bool {
        let id = self.clients[client].id;
        let Some(response) = self.bench.pull(id) else {
            let mut again = false;
            while let Some(ready) = self.bench.hub.poll_ready() {
                again |= ready == id;
            }
            return again;
        };
        let reading = self.clients[client].in_fragment.take();
        assert!(reading.is_none_or(|watch_id| watch_id == response.watch_id && !response.events.is_empty()));
        if response.compact_revision != 0 {
            self.read_compacted(client, &response);
        } else if response.created || response.canceled {
            self.read_reply(client, &response);
        } else if response.events.is_empty() {
            self.read_progress(client, &response);
        } else {
            self.read_events(client, &response);
        }
        true
    }

    fn read_reply(&mut self, client: usize, response: &WatchResponse) {
        let client = &mut self.clients[client];
        match client.replies.pop_front().expect("a reply to a request") {
            Reply::Created(watch_id, watched) => {
                assert!(response.created && !response.canceled && response.watch_id == watch_id);
                assert!(client.watched.insert(watch_id, *watched).is_none());
            }
            Reply::Refused => {
                assert!(response.created && response.canceled && response.watch_id == -1);
                assert!(response.cancel_reason.is_some());
            }
            Reply::Canceled(watch_id) => {
                assert!(response.canceled && !response.created && response.watch_id == watch_id);
                let watched = client.watched.remove(&watch_id).expect("its creation was read before");
                assert!(!watched.last.1, "a revision is finished before its watcher is canceled");
            }
        }
    }

    fn read_compacted(&mut self, client: usize, response: &WatchResponse) {
        let watched = self.clients[client].watched.get_mut(&response.watch_id).expect("a watcher");
        assert!(response.canceled && !response.created && response.header_revision == 0);
        assert_eq!(response.compact_revision, self.bench.store.compacted);
        assert!(!watched.compacted && !watched.last.1);
        assert!(!watched.never_behind, "a watcher that is read never falls behind the floor");
        watched.compacted = true;
        self.counts.compacted += 1;
    }

    fn read_progress(&mut self, client: usize, response: &WatchResponse) {
        let revision = response.header_revision;
        assert!(revision <= self.bench.hub.revision());
        let client = &mut self.clients[client];
        if response.watch_id == -1 {
            self.counts.progress += 1;
            assert!(client.progress_asked.contains(&revision), "it was asked for");
            assert!(client.watched.values().all(|watched| !watched.compacted));
            assert!(client.replies.is_empty());
        } else {
            self.counts.periodic += 1;
            let watched = &client.watched[&response.watch_id];
            assert!(watched.create.progress_notify && revision >= watched.start - 1 && !watched.compacted);
        }
        let all = response.watch_id == -1;
        for (_, watched) in client.watched.iter_mut().filter(|(id, _)| all || **id == response.watch_id) {
            let due = expected(&self.bench.store.history, watched).take_while(|event| event.revision.main <= revision);
            assert!(watched.seen >= due.count(), "progress says that everything up to {revision} was sent");
            watched.progress = watched.progress.max(revision);
        }
    }

    fn read_events(&mut self, client: usize, response: &WatchResponse) {
        let (history, compacted) = (&self.bench.store.history, self.bench.store.compacted);
        let client = &mut self.clients[client];
        let watched = client.watched.get_mut(&response.watch_id).expect("a watcher whose creation was read");
        assert!(!watched.compacted, "a canceled watcher is silent");
        assert!(response.header_revision >= response.events.last().unwrap().event().revision.main);
        assert!(!response.fragment || watched.create.fragment);
        let mut due: Vec<&Event> = expected(history, watched).skip(watched.seen).collect();
        due.truncate(response.events.len());
        assert_eq!(due.len(), response.events.len(), "no event is sent twice or invented");
        for (sent, due) in response.events.iter().zip(due) {
            assert_eq!((&sent.event().kv, sent.event().deleted), (&due.kv, due.deleted), "in order, each once");
            let revision = due.revision.main;
            assert!(revision > watched.progress, "no event comes after the progress that covers it");
            let before = self.states.range(..revision).next_back().and_then(|(_, state)| state.get(&due.kv.key));
            let before = before.filter(|_| watched.create.prev_kv && !due.is_create());
            // What was looked up before the floor passed it may still be sent.
            let left_out = sent.previous().is_none() && revision <= compacted;
            assert!(left_out || sent.previous() == before, "the pair before, where it is known");
            self.counts.previous += u64::from(sent.previous().is_some());
        }
        let first = response.events[0].event().revision.main;
        assert!(first != watched.last.0 || watched.last.1, "a revision is whole in one response, or in fragments");
        watched.seen += response.events.len();
        watched.last = (response.events.last().unwrap().event().revision.main, response.fragment);
        client.in_fragment = response.fragment.then_some(response.watch_id);
        self.counts.events += u64::try_from(response.events.len()).unwrap();
        self.counts.fragments += u64::from(response.fragment);
    }

    /// Everybody reads: nothing may be missing, and progress must come.
    fn finish(&mut self) {
        miss_one_in(0, 0);
        while !self.on_the_way.is_empty() {
            self.tell_hub();
        }
        for client in 0..self.clients.len() {
            while self.read(client) {}
            let history = &self.bench.store.history;
            for (watch_id, watched) in self.clients[client].watched.iter().filter(|(_, watched)| !watched.compacted) {
                assert_eq!(watched.seen, expected(history, watched).count(), "watcher {watch_id} misses nothing");
            }
            assert!(self.clients[client].replies.is_empty() && self.clients[client].in_fragment.is_none());
            let revision = self.bench.store.revision;
            let watched = &self.clients[client].watched;
            let started = |watched: &Watched| !watched.compacted && watched.create.start_revision <= revision;
            if !watched.is_empty() && watched.values().all(started) {
                self.clients[client].progress_asked.clear();
                self.ask_progress(client);
                let before = self.counts.progress;
                while self.read(client) {}
                assert_eq!(self.counts.progress, before + 1, "progress comes when all watchers are synced");
            }
        }
        let stats = self.bench.hub.stats();
        assert_eq!((stats.pending_bytes, stats.slow_watchers), (0, 0));
    }
}

/// The events that a watcher is to see, from the beginning.
fn expected<'h>(history: &'h [Event], watched: &Watched) -> impl Iterator<Item = &'h Event> {
    let (create, start) = (watched.create.clone(), watched.start);
    history.iter().filter(move |event| {
        let passes = if event.deleted { !create.no_delete } else { !create.no_put };
        event.revision.main >= start && passes && create.keys.contains(&event.kv.key)
    })
}

#[test]
fn every_watcher_sees_what_the_history_says_whatever_happens() {
    let mut total = Counts::default();
    let totals = std::cell::RefCell::new(&mut total);
    seeds(300, |seed| {
        let mut world = World::new(seed);
        let one_in = if world.dice.one_in(2) { 15 } else { 0 };
        miss_one_in(one_in, world.dice.next());
        for _ in 0..250 {
            world.step();
        }
        world.finish();
        let mut total = totals.borrow_mut();
        total.events += world.counts.events;
        total.fragments += world.counts.fragments;
        total.compacted += world.counts.compacted;
        total.progress += world.counts.progress;
        total.periodic += world.counts.periodic;
        total.previous += world.counts.previous;
    });
    if std::env::var_os("GARBOARD_SEED").is_none() {
        let Counts { events, fragments, compacted, progress, periodic, previous } = total;
        let rarest = [events, fragments, compacted, progress, periodic, previous].into_iter().min();
        assert!(rarest >= Some(100), "everything is put to the test: {total:?}");
    }
}
