//! The home core's loop: takes requests of all cores in batches, drives the member, carries out its effects, and sends
//! answers and events back to the cores.
//!
//! One pass of the loop is one batch: everything that arrived since the last pass is proposed together. Nothing in a
//! pass waits; writes, page reads and checkpoints run as tasks of their own and come back as completions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use garboard_replica::corruption::Mismatch;
use garboard_replica::member::{Effect, Fatal, Member};
use garboard_replica::members::Members;
use garboard_replica::request::KeyspaceId;
use garboard_storage::{IndexIo, IoFailure, IoId, IoOp, PageId};
use garboard_wal::{DiskError, LogFailure, OpId};

use super::edge::{stop_process, with_sources};
use super::index_file::IndexFile;
use super::log_files::LogFiles;
use super::mesh::{Answers, Outgoing, ToCore, batch_bytes};
use super::net::CoreLoad;
use super::peers::{PeerEvent, Peers};
use super::repair::{self, RepairFiles};
use super::scrub::Scrub;
use super::start::StartError;
use crate::canary::{self, Canary};
use crate::config::Url;
use crate::core::{Core, Edge, LocalFuture, Outbound, Shared};
use crate::peer_http::members_json;

/// How long the checkpoint's writer rests after each write, so that the log's writes find the device free.
const PACE_REST: Duration = Duration::from_millis(1);

/// A start without a leader serves what needs none after this time.
const SERVE_WITHOUT_LEADER_AFTER: Duration = Duration::from_secs(5);
/// How long a member that was removed goes on before it ends, as etcd does.
const LEAVE_DELAY: Duration = Duration::from_secs(1);

/// How long a member that stops goes on taking requests, while its clients are told to go to others.
const STOP_NOTICE: Duration = Duration::from_millis(250);

/// What tasks bring back to the loop.
enum Completion {
    Log(OpId, io::Result<()>),
    Index(IoId, io::Result<()>),
    Page(PageId),
}

/// What waits for the next pass of the loop.
#[derive(Clone, Default)]
pub struct Inbox(Rc<InboxState>);

#[derive(Default)]
struct InboxState {
    requests: RefCell<Vec<Outbound>>,
    /// When the oldest of them was asked.
    since: Cell<Option<Duration>>,
    completions: RefCell<Vec<Completion>>,
    /// Whether the loop is to make a pass although nothing else waits.
    rung: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Inbox {
    /// Adds another core's requests, the oldest of which was asked at `since`.
    pub fn requests(&self, mut batch: Vec<Outbound>, since: Option<Duration>) {
        self.0.requests.borrow_mut().append(&mut batch);
        self.0.since.set(self.0.since.get().into_iter().chain(since).min());
        self.wake();
    }

    fn complete(&self, completion: Completion) {
        self.0.completions.borrow_mut().push(completion);
        self.wake();
    }

    /// Has the loop make a pass.
    pub fn ring(&self) {
        self.0.rung.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }

    fn take_call(&self) -> bool {
        self.0.rung.take() || !self.0.requests.borrow().is_empty() || !self.0.completions.borrow().is_empty()
    }
}

/// The home core.
pub struct Home {
    /// The member it drives.
    pub member: Member,
    /// The home core as its own connections see it.
    pub core: Core,
    /// What all cores share.
    pub shared: Arc<Shared>,
    /// The log's files.
    pub log_files: LogFiles,
    /// The index's file.
    pub index_file: IndexFile,
    /// What tasks and other cores bring.
    pub inbox: Inbox,
    /// The other members.
    pub peers: Peers,
    /// How many connections each core has.
    pub loads: Arc<Vec<CoreLoad>>,
    /// Towards the other cores; the home core's own place (0) is unused.
    pub outgoing: Vec<Outgoing>,
    /// The executor.
    pub edge: Rc<dyn Edge>,
    /// This member was removed, and is about to end.
    pub is_leaving: bool,
    /// What is kept of a repair.
    pub repair: RepairFiles,
}

impl Home {
    /// Runs until the server stops; what was under way then is durable or was never acknowledged. `keep` is called once
    /// the member's log holds what others will count on, before they hear of it, and `serve` once the member can serve.
    ///
    /// # Errors
    /// What `keep` or `serve` answers.
    pub async fn run(
        mut self,
        keep: impl FnOnce() -> Result<(), StartError>,
        serve: impl FnOnce() -> Result<(), StartError>,
    ) -> Result<(), StartError> {
        let (mut keep, mut serve) = (Some(keep), Some(serve));
        let index_queue = IndexQueue::default();
        let writer = write_index(index_queue.clone(), self.index_file.clone(), self.inbox.clone(), self.edge.clone());
        garboard_executor::spawn(writer);
        let mut scrub = Scrub::new(self.edge.now());
        let mut alarm = Alarm::default();
        let mut batch = Vec::new();
        let mut stopping_since = None;
        let mut answers: Vec<Answers> = self.outgoing.iter().map(|_| Answers::default()).collect();
        loop {
            let now = self.edge.now();
            self.take_completions(now);
            if self.member.holds_promises()
                && let Some(keep) = keep.take()
            {
                keep()?;
            }
            self.hear_peers(now);
            let held_back = self.outgoing.iter().any(Outgoing::is_full);
            if !held_back {
                batch.append(&mut self.inbox.0.requests.borrow_mut());
                self.core.drain_outbox(&mut batch);
                // For those whose time is over nobody waits any more.
                batch.retain(|request| request.deadline > now);
                let asked = self.inbox.0.since.take().into_iter().chain(self.core.take_outbox_since()).min();
                if !batch.is_empty() {
                    let requests = batch.drain(..).map(|Outbound { envelope, .. }| envelope);
                    self.member.handle_requests_since(now, asked.unwrap_or(now), requests);
                }
            }
            if self.member.poll_timeout().is_some_and(|due| due <= now) {
                self.member.handle_timeout(now);
            }
            if !self.member.is_quiet() {
                self.shared.traffic.note_writes(now);
            }
            // What goes to the peers leaves before this member's own log is written: their writes end later than its own.
            self.talk_to_peers(now);
            self.pump(&index_queue, &mut answers);
            self.talk_to_peers(now);
            index_queue.hurry(self.member.is_checkpoint_urgent());
            scrub.step(now, self.member.machine().index(), &self.inbox);
            for (core, answers) in answers.iter_mut().enumerate() {
                if !answers.answers.is_empty() {
                    self.outgoing[core].push(ToCore::Answers(std::mem::take(answers)));
                }
            }
            repair::note_peers(self.member.has_other_voters());
            self.shared.raft_term.store(self.member.term(), Ordering::Relaxed);
            self.shared.leader.store(self.member.leader(), Ordering::Relaxed);
            self.shared.leaderless.store(self.member.is_leaderless(now), Ordering::Relaxed);
            if self.can_serve(now)
                && let Some(serve) = serve.take()
            {
                serve()?;
            }
            let stopping = self.shared.stopping.load(Ordering::Relaxed);
            index_queue.0.stopping.set(stopping);
            if stopping {
                // Clients of a member among others go elsewhere, and lose no call by it.
                let since = *stopping_since.get_or_insert(now);
                let told = self.member.is_alone() || now >= since + STOP_NOTICE;
                self.shared.refusing.store(told, Ordering::Relaxed);
                let stopped = self.member.prepare_stop(now);
                // Whoever is to lead hears of it now.
                self.say_all(now);
                self.transmit(now);
                if stopped && told {
                    self.peers.stop(now);
                    return Ok(());
                }
            }
            if self.member.has_messages() {
                // Nobody waits for what is left; the answers leave first.
                garboard_executor::after_turn().await;
                let now = self.edge.now();
                self.say_all(now);
                self.transmit(now);
            }
            // The tasks that work a backlog off run on this core, too.
            let due = [self.member.poll_timeout(), scrub.poll_timeout(), self.peers.poll_timeout()];
            let due = due.into_iter().flatten().min();
            if held_back || self.peers.is_behind() || due.is_some_and(|due| due <= now) {
                garboard_executor::yield_now().await;
            } else {
                self.wait(due, &mut alarm).await;
            }
        }
    }

    /// Whether clients are served: once this member has what the store held when it started, or among others after a while
    /// without a leader, for what needs none; and once the initial corruption check has passed, if there is one.
    fn can_serve(&self, now: Duration) -> bool {
        let can = self.member.may_serve() || (now >= SERVE_WITHOUT_LEADER_AFTER && self.member.is_settled());
        can && self.member.is_checked()
    }

    /// Takes what the peers have sent, and does what is due with them.
    fn hear_peers(&mut self, now: Duration) {
        self.peers.receive(now, &mut Context::from_waker(Waker::noop()));
        self.peers.handle_due(now);
        while let Some(event) = self.peers.poll_event(now) {
            match event {
                PeerEvent::Message(from, message) => self.member.handle_message(now, from, message),
                PeerEvent::Up(peer) => self.member.handle_peer_up(now, peer),
                PeerEvent::Down(peer) => self.member.handle_peer_down(now, peer),
                PeerEvent::Gone(peer) => self.member.handle_leader_gone(now, peer),
                PeerEvent::Removed => self.member.handle_removed(),
            }
        }
    }

    /// Sends the peers what there is for them, if somebody waits for any of it.
    fn talk_to_peers(&mut self, now: Duration) {
        if self.member.has_pressing_messages() {
            self.say_all(now);
        }
        self.transmit(now);
    }

    fn say_all(&mut self, now: Duration) {
        while let Some((to, message)) = self.member.poll_message() {
            if !self.peers.send(now, to, &message) {
                self.member.handle_unsent(to, &message);
            }
        }
    }

    fn transmit(&mut self, now: Duration) {
        self.peers.transmit(now, &mut Context::from_waker(Waker::noop()));
    }

    fn take_completions(&mut self, now: Duration) {
        let completions = std::mem::take(&mut *self.inbox.0.completions.borrow_mut());
        for completion in completions {
            let outcome = match completion {
                Completion::Log(op, result) => self.member.handle_log_done(now, op, result.map_err(log_error)),
                Completion::Index(id, result) => {
                    self.member.handle_index_done(now, id, result.map_err(|error| IoFailure::of(&error)))
                }
                Completion::Page(page) => {
                    self.member.handle_page_loaded(now, page);
                    Ok(())
                }
            };
            if let Err(fatal) = outcome {
                self.stop(&fatal);
            }
        }
    }

    /// Ends the process, and says which file failed and what to do.
    fn stop(&self, fatal: &Fatal) -> ! {
        let file = match fatal {
            Fatal::Log(
                LogFailure::Write { shard, segment, .. }
                | LogFailure::Prepare { shard, segment, .. }
                | LogFailure::Remove { shard, segment, .. },
            ) => self.log_files.path(*shard, *segment),
            Fatal::Log(_) => self.log_files.folder().join("manifest"),
            Fatal::Index(_) => self.index_file.path().to_path_buf(),
            _ => self.log_files.folder().to_path_buf(),
        };
        stop_process(&format!(
            "{}: {}; nothing that was not durable was acknowledged. Check the device and the kernel's log, then start \
             again: the log is checked at every start",
            file.display(),
            with_sources(fatal)
        ))
    }

    /// Ends the process over a state that differs from another member's, and says what to do.
    fn refuse_to_serve(&self, mismatch: &Mismatch) -> ! {
        stop_process(&format!(
            "{}: the initial corruption check found data inconsistency with peers: {mismatch}; nothing was served. Find \
             out which state is right (`etcdctl endpoint hashkv --cluster --rev {}` shows what the members that serve \
             have). If it is not this one's, remove the member from the cluster, empty its --data-dir, and add it again. \
             If it is, do so with the other member, and start this one again; without --feature-gates=\
             InitialCorruptCheck=true it starts all the same",
            self.index_file.path().display(),
            mismatch.revision
        ))
    }

    fn pump(&mut self, index_queue: &IndexQueue, answers: &mut [Answers]) {
        while let Some(effect) = self.member.poll_effect(self.edge.now()) {
            match effect {
                Effect::Log(effect) => self.log_effect(effect),
                Effect::Index(io) => index_queue.push(io),
                Effect::LoadPage(page) => self.load_page(page),
                Effect::Notice(notice) if notice.is_alarming() => tracing::warn!("{notice}"),
                Effect::Notice(notice) => tracing::info!("{notice}"),
                Effect::Corrupt(mismatch) => self.refuse_to_serve(&mismatch),
                Effect::Events(events) => {
                    let mut bytes = None;
                    for (core, load) in self.outgoing.iter().zip(self.loads.iter()).skip(1) {
                        // A core without connections has no watches; it is told of the revision before its first one.
                        if load.connections.load(Ordering::Relaxed) > 0 {
                            let bytes = *bytes.get_or_insert_with(|| batch_bytes(&events));
                            core.push_events(events.clone(), bytes);
                        }
                    }
                    self.core.handle_events(&events);
                }
                Effect::Members(members) => self.set_members(members),
                Effect::Removed => self.leave(),
                Effect::Repaired => self.end_repair(),
                Effect::Restored { revision, fill } => {
                    tracing::info!("{fill}");
                    for core in self.outgoing.iter().skip(1) {
                        core.push(ToCore::Restore(revision));
                    }
                    self.core.watches().restore(revision);
                }
                Effect::Answer { ticket, result } => {
                    let published = self.member.answered_from();
                    if ticket.core == 0 {
                        self.core.deliver(ticket, result, published);
                        continue;
                    }
                    let batch = &mut answers[usize::from(ticket.core)];
                    batch.answers.push((ticket, result));
                    batch.published = batch.published.or(published);
                }
            }
        }
    }

    /// These are the members from now on, for the links and for every core.
    fn set_members(&mut self, members: Arc<Members>) {
        let removed: Vec<u64> = members.removed().collect();
        let others = members.iter().map(|member| {
            let urls = member.peer_urls.iter().filter_map(|url| Url::parse(url).ok()).collect();
            (member.id, member.name.as_str(), urls)
        });
        self.peers.set_members(self.edge.now(), others, &removed, members_json(&members));
        self.shared.members.set(members, self.shared.identity.member_id);
    }

    /// The member holds again what it may have acknowledged.
    fn end_repair(&self) {
        match self.repair.remove_mark() {
            Ok(()) => tracing::info!("repaired: this member holds again all that it had acknowledged"),
            Err(error) => tracing::warn!("repaired, but that can't be noted, so the next start is a repair: {error}"),
        }
        let repair = self.repair.clone();
        spawn(async move {
            if let Err(error) = garboard_executor::blocking(move || repair.remove_aside()).await {
                tracing::warn!("what was set aside for the repair can't be removed: {error}");
            }
        });
    }

    /// The member was removed: it ends, once its answers and messages had their time to leave.
    fn leave(&mut self) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        tracing::error!("the member has been permanently removed from the cluster; its data directory must be removed");
        let (shared, inbox) = (self.shared.clone(), self.inbox.clone());
        spawn(async move {
            garboard_executor::sleep(LEAVE_DELAY).await;
            shared.stopping.store(true, Ordering::Relaxed);
            inbox.ring();
        });
    }

    fn log_effect(&mut self, effect: garboard_wal::Effect) {
        let files = self.log_files.clone();
        let inbox = self.inbox.clone();
        match effect {
            garboard_wal::Effect::Write { op, shard, segment, offset, len } => {
                let mut buffer = files.buffer(len);
                self.member.fill(op, buffer.bytes_mut());
                let write = files.write(shard, segment, offset, buffer);
                let done_early = canary::is_on(Canary::DoneBeforeWritten);
                if done_early {
                    inbox.complete(Completion::Log(op, Ok(())));
                }
                spawn(async move {
                    let result = write.await;
                    if done_early {
                        return;
                    }
                    let result = if canary::is_on(Canary::FailurePassedOver) { Ok(()) } else { result };
                    inbox.complete(Completion::Log(op, named(result, "writing", &files.path(shard, segment), offset)));
                });
            }
            garboard_wal::Effect::PrepareSegment { op, shard, segment, size_bytes } => spawn(async move {
                let result = files.prepare(shard, segment, size_bytes).await;
                inbox.complete(Completion::Log(op, named(result, "preparing", &files.path(shard, segment), 0)));
            }),
            garboard_wal::Effect::Remove { op, shard, segment } => spawn(async move {
                let result = files.remove(shard, segment).await;
                inbox.complete(Completion::Log(op, named(result, "removing", &files.path(shard, segment), 0)));
            }),
            garboard_wal::Effect::WriteManifest { op, bytes } => spawn(async move {
                let result = files.write_manifest(bytes).await;
                inbox.complete(Completion::Log(op, result));
            }),
        }
    }

    fn load_page(&self, page: PageId) {
        let keyspace = KeyspaceId(0);
        let core = self.core.clone();
        let inbox = self.inbox.clone();
        spawn(async move {
            let snapshot = core.reader(keyspace).pin();
            core.load(snapshot, garboard_storage::NeedPage(page)).await;
            inbox.complete(Completion::Page(page));
        });
    }

    /// Waits for work, or until something is due.
    async fn wait(&mut self, due: Option<Duration>, alarm: &mut Alarm) {
        poll_fn(|cx| {
            if self.inbox.take_call() {
                return Poll::Ready(());
            }
            self.inbox.0.waker.set(Some(cx.waker().clone()));
            if self.peers.receive(self.edge.now(), cx) {
                return Poll::Ready(());
            }
            if self.peers.is_held() {
                self.peers.transmit(self.edge.now(), cx);
            }
            if self.core.poll_outbox(cx).is_ready() {
                return Poll::Ready(());
            }
            due.map_or(Poll::Pending, |due| alarm.poll(due, &*self.edge, cx))
        })
        .await;
    }
}

/// The loop's timer. Deadlines mostly move back while it runs, so it is left to ring early rather than set anew for each
/// of them.
#[derive(Default)]
struct Alarm {
    set: Option<(Duration, LocalFuture<()>)>,
}

impl Alarm {
    /// Ready at `due`, or some time earlier.
    fn poll(&mut self, due: Duration, edge: &dyn Edge, cx: &mut Context<'_>) -> Poll<()> {
        if self.set.as_ref().is_none_or(|(at, _)| *at > due) {
            self.set = Some((due, edge.sleep(due.saturating_sub(edge.now()))));
        }
        let rung = self.set.as_mut().is_none_or(|(_, timer)| timer.as_mut().poll(cx).is_ready());
        if rung {
            self.set = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

fn spawn(task: impl Future<Output = ()> + 'static) {
    garboard_executor::spawn(task);
}

/// Says which file an error is about; the error's kind and number stay.
fn named(result: io::Result<()>, action: &str, path: &std::path::Path, offset: u64) -> io::Result<()> {
    if let Err(error) = &result {
        tracing::warn!("{action} {} at offset {offset}: {error}", path.display());
    }
    result
}

/// What a failed operation means to the log.
pub fn log_error(error: io::Error) -> DiskError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskError::Full,
        _ => DiskError::Io { errno: error.raw_os_error().unwrap_or(0) },
    }
}

/// Checkpoint operations in the order in which the index gave them.
#[derive(Clone, Default)]
struct IndexQueue(Rc<IndexQueueState>);

#[derive(Default)]
struct IndexQueueState {
    waiting: RefCell<VecDeque<IndexIo>>,
    /// Whether writers wait for the checkpoint, or the log outruns it.
    hurried: Cell<bool>,
    /// Whether the server is about to stop.
    stopping: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl IndexQueue {
    fn push(&self, io: IndexIo) {
        self.0.waiting.borrow_mut().push_back(io);
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }

    fn hurry(&self, hurried: bool) {
        self.0.hurried.set(hurried);
    }

    async fn next(&self) -> IndexIo {
        poll_fn(|cx| match self.0.waiting.borrow_mut().pop_front() {
            Some(io) => Poll::Ready(io),
            None => {
                self.0.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// Carries out checkpoint operations one after the other, with rests.
async fn write_index(queue: IndexQueue, file: IndexFile, inbox: Inbox, edge: Rc<dyn Edge>) {
    loop {
        let IndexIo { id, op } = queue.next().await;
        let target = file.clone();
        let is_write = matches!(op, IoOp::Write { .. });
        // The last checkpoint stands in nobody's way.
        let wait = !queue.0.stopping.get();
        let work = move || match op {
            IoOp::Write { offset, bytes } => target.write(offset, &bytes, wait),
            IoOp::Sync => target.sync(),
            IoOp::Grow { new_size } => target.grow(new_size),
        };
        let result = garboard_executor::blocking(work).await;
        if let Err(error) = &result {
            tracing::warn!("the index file {}: {error}", file.path().display());
        }
        inbox.complete(Completion::Index(id, result));
        if is_write && !queue.0.hurried.get() {
            edge.sleep(PACE_REST).await;
        }
    }
}
