//! Watch streams on every member, whose clients go on at another member where they break.

use std::time::Duration;

use garboard_replica::watch::{StreamId, WatchCreate};

use super::{Cluster, Event};
use crate::check::watch::StreamChecker;
use crate::outcome::{Check, short, violated};
use crate::workload::Workload;

/// Responses that a client takes at once.
const RESPONSES_AT_ONCE: usize = 8;
/// How long a client that reads at once takes to do so.
const EAGER: Duration = Duration::from_micros(50);
/// How long a client takes to watch again.
const AGAIN: Duration = Duration::from_millis(100);

/// A watch stream.
pub(super) struct Stream {
    id: StreamId,
    pub(super) checker: StreamChecker,
    /// How long its client takes to read; none: it never does.
    pace: Option<Duration>,
    /// The hub has something for it.
    named: bool,
    /// A read is on its way.
    scheduled: bool,
}

impl Cluster {
    /// Has the clients read whose streams a hub has named.
    pub(super) fn name_streams(&mut self, at: usize) {
        while let Some(id) = self.machines[at].hub.poll_ready() {
            let found = self.machines[at].streams.iter_mut().find(|(_, stream)| stream.id == id);
            let (token, stream) = found.expect("the hub names streams that are open");
            stream.named = true;
            let token = *token;
            self.schedule_stream(at, token);
        }
    }

    fn schedule_stream(&mut self, at: usize, token: u64) {
        let stream = self.machines[at].streams.get_mut(&token).expect("the caller found it");
        let Some(mean) = stream.pace else { return };
        if stream.named && !stream.scheduled {
            stream.scheduled = true;
            self.soon(Event::Stream { machine: at, stream: token }, mean);
        }
    }

    /// A client reads its stream.
    pub(super) fn read_stream(&mut self, at: usize, token: u64) -> Check {
        let now = self.now;
        let machine = &mut self.machines[at];
        let Some(stream) = machine.streams.get_mut(&token) else { return Ok(()) };
        if let Some(until) = machine.paused_until {
            self.after(Event::Stream { machine: at, stream: token }, until.saturating_sub(now) + EAGER);
            return Ok(());
        }
        stream.scheduled = false;
        let id = stream.id;
        machine.node.now = machine.node.now.max(now);
        for _ in 0..RESPONSES_AT_ONCE {
            let machine = &mut self.machines[at];
            let snapshot = machine.node.reader().pin();
            let view = snapshot.view();
            let (revision, floor) = (view.revision(), view.compacted());
            match machine.hub.next_response(id, &view) {
                Ok(Some(response)) => {
                    self.story
                        .tell(now, "watch", token, || format!("stream {token} of m{}: {}", at + 1, short(&response)));
                    if response.header_revision > revision {
                        return violated("a watch tells nothing of the future", revision.to_string(), short(&response));
                    }
                    let stream = machine.streams.get_mut(&token).expect("just seen");
                    let before = stream.checker.events;
                    stream.checker.received(&self.history.model, floor, &response)?;
                    self.summary.watch_events += stream.checker.events - before;
                }
                Ok(None) => {
                    machine.streams.get_mut(&token).expect("just seen").named = false;
                    break;
                }
                Err(need) => {
                    machine.streams.get_mut(&token).expect("just seen").scheduled = true;
                    machine.node.load_for_reader(need.0, snapshot, token);
                    machine.refresh();
                    return Ok(());
                }
            }
        }
        self.schedule_stream(at, token);
        self.name_streams(at);
        self.machines[at].refresh();
        Ok(())
    }

    /// A client watches, on a stream of its own or on one that is open.
    pub(super) fn watch(&mut self, at: usize) {
        let streams = u64::try_from(self.machines[at].streams.len()).expect("small");
        let full = streams >= self.plan.each.streams;
        let token = match self.any_stream(at).filter(|_| full || self.rng.chance(70)) {
            Some(token) => token,
            None => self.open_stream(at),
        };
        let create = Workload { rng: &mut self.rng, plan: &self.plan.each, model: &self.history.model }.watch();
        self.create_watch(at, token, create);
    }

    fn create_watch(&mut self, at: usize, token: u64, create: WatchCreate) {
        let machine = &mut self.machines[at];
        let stream = machine.streams.get_mut(&token).expect("the caller found it");
        if !machine.hub.accepts_requests(stream.id) {
            return;
        }
        let snapshot = machine.node.reader().pin();
        let view = snapshot.view();
        self.story.tell(self.now, "watch", token, || format!("stream {token} of m{}: asks for {create:?}", at + 1));
        stream.checker.create(&self.history.model, view.revision(), &create);
        machine.hub.create(machine.node.clock(), stream.id, create, &view).expect("it accepts requests");
        self.name_streams(at);
    }

    pub(super) fn any_stream(&mut self, at: usize) -> Option<u64> {
        let tokens: Vec<u64> = self.machines[at].streams.keys().copied().collect();
        (!tokens.is_empty()).then(|| tokens[self.rng.index(tokens.len())])
    }

    fn open_stream(&mut self, at: usize) -> u64 {
        let token = self.token();
        let pace = if self.calm || self.rng.below(100) >= self.plan.each.slow_readers {
            Some(EAGER)
        } else if self.rng.chance(30) {
            None
        } else {
            Some(Duration::from_micros(100 << self.rng.below(15)))
        };
        let machine = &mut self.machines[at];
        let id = machine.hub.open_stream(machine.node.clock(), self.plan.each.progress_interval);
        self.story.tell(self.now, "watch", token, || format!("stream {token} opens on m{}, read: {pace:?}", at + 1));
        let checker = StreamChecker::default();
        machine.streams.insert(token, Stream { id, checker, pace, named: false, scheduled: false });
        token
    }

    /// A client cancels a watch, or closes its stream, or goes on with it at another member.
    pub(super) fn unwatch(&mut self, at: usize) {
        let Some(token) = self.any_stream(at) else { return };
        let what = self.rng.below(100);
        let machine = &mut self.machines[at];
        let stream = machine.streams.get_mut(&token).expect("just found");
        if what < 40 {
            self.story.tell(self.now, "watch", token, || format!("stream {token} of m{} closes", at + 1));
            machine.hub.close_stream(stream.id);
            let watches = stream.checker.resume_points();
            machine.streams.remove(&token);
            if what < 30 && !watches.is_empty() {
                self.soon(Event::Rewatch(watches), AGAIN);
            }
            return;
        }
        let ids = stream.checker.ids();
        let id = if ids.is_empty() || self.rng.chance(10) { 99 } else { ids[self.rng.index(ids.len())] };
        if !machine.hub.accepts_requests(stream.id) {
            return;
        }
        self.story.tell(self.now, "watch", token, || format!("stream {token} of m{} cancels {id}", at + 1));
        let snapshot = machine.node.reader().pin();
        stream.checker.cancel(snapshot.view().revision(), id);
        machine.hub.cancel(stream.id, id, &snapshot.view()).expect("it accepts requests");
        self.name_streams(at);
    }

    /// A machine's process is gone: clients go on elsewhere, from where they are by what they were told.
    pub(super) fn break_streams(&mut self, at: usize) {
        let streams = std::mem::take(&mut self.machines[at].streams);
        for stream in streams.into_values() {
            let watches = stream.checker.resume_points();
            if !watches.is_empty() && self.rng.chance(80) {
                self.soon(Event::Rewatch(watches), AGAIN);
            }
        }
    }

    /// A client watches again, on any member.
    pub(super) fn rewatch(&mut self, watches: Vec<WatchCreate>) -> Check {
        let at = self.rng.index(self.machines.len());
        if !self.machines[at].runs() {
            self.soon(Event::Rewatch(watches), AGAIN);
            return Ok(());
        }
        self.machines[at].node.now = self.machines[at].node.now.max(self.now);
        let token = self.open_stream(at);
        self.summary.resumed_watches += u64::try_from(watches.len()).expect("small");
        for create in watches {
            self.create_watch(at, token, create);
        }
        self.observe(at)
    }

    /// A client asks how far its stream is.
    pub(super) fn ask_progress(&mut self, at: usize, token: u64) {
        let machine = &mut self.machines[at];
        let stream = machine.streams.get_mut(&token).expect("the caller found it");
        let snapshot = machine.node.reader().pin();
        let revision = snapshot.view().revision();
        self.story.tell(self.now, "watch", token, || {
            format!("stream {token} of m{} asks for progress at {revision}", at + 1)
        });
        stream.checker.ask_progress(revision);
        machine.hub.request_progress(stream.id, &snapshot.view());
        self.name_streams(at);
    }

    /// From now on every client reads at once.
    pub(super) fn read_all_streams(&mut self) {
        for at in 0..self.machines.len() {
            let tokens: Vec<u64> = self.machines[at].streams.keys().copied().collect();
            for token in tokens {
                self.machines[at].streams.get_mut(&token).expect("just listed").pace = Some(EAGER);
                self.schedule_stream(at, token);
            }
        }
    }
}
