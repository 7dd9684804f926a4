//! Watch streams: hubs on several cores, and clients that read quickly, slowly or not at all.

use std::sync::Arc;
use std::time::Duration;

use garboard_replica::events::EventBatch;
use garboard_replica::watch::{StreamId, WatchCreate, WatchHub};

use super::site::Hub;
use super::{Event, World};
use crate::check::watch::StreamChecker;
use crate::outcome::{Check, short};
use crate::workload::Workload;

/// Responses that a client takes at once.
const RESPONSES_AT_ONCE: usize = 8;
/// How long a client that reads at once takes to do so.
const EAGER: Duration = Duration::from_micros(20);

/// How a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Eager,
    Slow(Duration),
    Never,
}

/// A watch stream.
pub(super) struct Stream {
    hub: usize,
    id: StreamId,
    pub(super) checker: StreamChecker,
    pace: Pace,
    /// The hub has something for it.
    named: bool,
    /// A read is on its way.
    scheduled: bool,
}

impl World {
    /// Hubs as a process has them at its start.
    pub(super) fn open_hubs(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let revision = site.node.reader().revision();
        let hub = |_| Hub { hub: WatchHub::new(self.plan.watch, revision), last_arrival: Duration::ZERO };
        site.hubs = (0..self.plan.hubs).map(hub).collect();
    }

    /// Brings published changes to every hub: to the first at once, to the others a while later.
    pub(super) fn spread(&mut self, at: usize, batch: Arc<EventBatch>) {
        let nanos = u64::try_from(self.plan.hub_delay.as_nanos()).expect("short");
        for hub in 1..self.sites[at].hubs.len() {
            let delay = Duration::from_nanos(self.rng.below(nanos + 1));
            let site = &mut self.sites[at];
            let arrival = (self.now + delay).max(site.hubs[hub].last_arrival);
            site.hubs[hub].last_arrival = arrival;
            let event = Event::Hub { site: at, life: site.life, hub, batch: Arc::clone(&batch) };
            self.after(event, arrival - self.now);
        }
        self.sites[at].deliver(0, &batch);
        self.name_streams(at);
    }

    /// Has the clients read whose streams a hub has named.
    pub(super) fn name_streams(&mut self, at: usize) {
        for hub in 0..self.sites[at].hubs.len() {
            while let Some(id) = self.sites[at].hubs[hub].hub.poll_ready() {
                let mut streams = self.sites[at].streams.iter_mut();
                let found = streams.find(|(_, stream)| stream.hub == hub && stream.id == id);
                let (token, stream) = found.expect("the hub names streams that are open");
                stream.named = true;
                let token = *token;
                self.schedule_stream(at, token);
            }
        }
    }

    fn schedule_stream(&mut self, at: usize, token: u64) {
        let stream = self.sites[at].streams.get_mut(&token).expect("the caller found it");
        let mean = match stream.pace {
            Pace::Eager => EAGER,
            Pace::Slow(mean) => mean,
            Pace::Never => return,
        };
        if stream.named && !stream.scheduled {
            stream.scheduled = true;
            self.soon(Event::Stream { site: at, stream: token }, mean);
        }
    }

    /// A page that a stream waited for is there.
    pub(super) fn resume_stream(&mut self, at: usize, token: u64) {
        self.after(Event::Stream { site: at, stream: token }, Duration::ZERO);
    }

    /// A client reads its stream.
    pub(super) fn read_stream(&mut self, at: usize, token: u64) -> Check {
        let now = self.now;
        let Some(stream) = self.sites[at].streams.get_mut(&token) else { return Ok(()) };
        stream.scheduled = false;
        let (hub, id) = (stream.hub, stream.id);
        for _ in 0..RESPONSES_AT_ONCE {
            let site = &mut self.sites[at];
            let snapshot = site.node.reader().pin();
            let view = snapshot.view();
            let floor = view.compacted();
            match site.hubs[hub].hub.next_response(id, &view) {
                Ok(Some(response)) => {
                    self.story.tell(now, "watch", token, || format!("stream {token}: {}", short(&response)));
                    let stream = site.streams.get_mut(&token).expect("just seen");
                    let before = stream.checker.events;
                    stream.checker.received(&self.checker.model, floor, &response)?;
                    self.summary.watch_events += stream.checker.events - before;
                }
                Ok(None) => {
                    site.streams.get_mut(&token).expect("just seen").named = false;
                    break;
                }
                Err(need) => {
                    site.streams.get_mut(&token).expect("just seen").scheduled = true;
                    site.node.load_for_reader(need.0, snapshot, token);
                    return Ok(());
                }
            }
        }
        self.schedule_stream(at, token);
        self.name_streams(at);
        Ok(())
    }

    /// A client watches, on a stream of its own or on one that is open.
    pub(super) fn watch(&mut self, at: usize) {
        let full = self.sites[at].streams.len() >= usize::try_from(self.plan.streams).expect("small");
        let token = match self.any_stream(at).filter(|_| full || self.rng.chance(70)) {
            Some(token) => token,
            None => self.open_stream(at),
        };
        let create = self.draw_watch(at, token);
        let site = &mut self.sites[at];
        let stream = site.streams.get_mut(&token).expect("just found or made");
        let hub = &mut site.hubs[stream.hub].hub;
        if !hub.accepts_requests(stream.id) {
            return;
        }
        let snapshot = site.node.reader().pin();
        let view = snapshot.view();
        self.story.tell(self.now, "watch", token, || format!("stream {token}: asks for {create:?}"));
        stream.checker.create(&self.checker.model, view.revision(), &create);
        hub.create(site.node.clock(), stream.id, create, &view).expect("it accepts requests");
        self.name_streams(at);
    }

    /// A watch as it comes, or one that goes on where another one is.
    fn draw_watch(&mut self, at: usize, token: u64) -> WatchCreate {
        let resumable = self.sites[at].streams[&token].checker.resumable(&self.checker.model);
        if !resumable.is_empty() && self.rng.chance(30) {
            let (create, start_revision) = resumable[self.rng.index(resumable.len())].clone();
            return WatchCreate { watch_id: 0, start_revision, ..create };
        }
        Workload { rng: &mut self.rng, plan: &self.plan, model: &self.checker.model }.watch()
    }

    pub(super) fn any_stream(&mut self, at: usize) -> Option<u64> {
        let tokens: Vec<u64> = self.sites[at].streams.keys().copied().collect();
        (!tokens.is_empty()).then(|| tokens[self.rng.index(tokens.len())])
    }

    fn open_stream(&mut self, at: usize) -> u64 {
        let token = self.token();
        let hub = self.rng.index(self.sites[at].hubs.len());
        let pace = if self.rng.below(100) >= self.plan.slow_readers {
            Pace::Eager
        } else if self.rng.chance(30) {
            Pace::Never
        } else {
            Pace::Slow(Duration::from_micros(100 << self.rng.below(15)))
        };
        let site = &mut self.sites[at];
        let id = site.hubs[hub].hub.open_stream(site.node.clock(), self.plan.progress_interval);
        self.story.tell(self.now, "watch", token, || format!("stream {token} opens on core {hub}, read: {pace:?}"));
        let checker = StreamChecker::default();
        site.streams.insert(token, Stream { hub, id, checker, pace, named: false, scheduled: false });
        token
    }

    /// A client cancels a watch, or closes its stream.
    pub(super) fn unwatch(&mut self, at: usize) {
        let Some(token) = self.any_stream(at) else { return };
        let close = self.rng.chance(15);
        let site = &mut self.sites[at];
        let stream = site.streams.get_mut(&token).expect("just found");
        let hub = &mut site.hubs[stream.hub].hub;
        if close {
            self.story.tell(self.now, "watch", token, || format!("stream {token} closes"));
            hub.close_stream(stream.id);
            site.streams.remove(&token);
            return;
        }
        let ids = stream.checker.ids();
        let id = if ids.is_empty() || self.rng.chance(10) { 99 } else { ids[self.rng.index(ids.len())] };
        if !hub.accepts_requests(stream.id) {
            return;
        }
        self.story.tell(self.now, "watch", token, || format!("stream {token} cancels {id}"));
        let snapshot = site.node.reader().pin();
        stream.checker.cancel(snapshot.view().revision(), id);
        hub.cancel(stream.id, id, &snapshot.view()).expect("it accepts requests");
        self.name_streams(at);
    }

    /// A client asks how far its stream is.
    pub(super) fn ask_progress(&mut self, at: usize, token: u64) {
        let site = &mut self.sites[at];
        let stream = site.streams.get_mut(&token).expect("the caller found it");
        let snapshot = site.node.reader().pin();
        let revision = snapshot.view().revision();
        self.story.tell(self.now, "watch", token, || format!("stream {token} asks for progress at {revision}"));
        stream.checker.ask_progress(revision);
        site.hubs[stream.hub].hub.request_progress(stream.id, &snapshot.view());
        self.name_streams(at);
    }

    /// From now on every client reads at once.
    pub(super) fn read_all_streams(&mut self, at: usize) {
        let tokens: Vec<u64> = self.sites[at].streams.keys().copied().collect();
        for token in tokens {
            self.sites[at].streams.get_mut(&token).expect("just listed").pace = Pace::Eager;
            self.schedule_stream(at, token);
        }
    }
}
