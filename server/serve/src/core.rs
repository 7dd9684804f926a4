//! The core a connection lives on, as the API sees it.
//!
//! A [`Core`] belongs to one thread. It sends a connection's requests to the keyspace's home core and brings the answers
//! back, hands out snapshots for reads, and knows what every reply's header says. It names no executor: what it needs of
//! one ([`Edge`]) the shell provides.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use garboard_replica::Error;
use garboard_replica::envelope::{Envelope, Request, Response, Ticket};
use garboard_replica::events::EventBatch;
use garboard_replica::members::Members;
use garboard_replica::request::{Context, KeyspaceId};
use garboard_replica::watch::WatchConfig;
use garboard_storage::{NeedPage, PageError, Reader, Snapshot};

use crate::api::{MESSAGE_OVERHEAD_BYTES, Watches};
use crate::budget::{Answers, Budget, Share};
use crate::connection::{Connection, Ended};
use crate::limits::{
    ANSWER_SHARE_PER_CONNECTION, ANSWER_STALL, BUDGET_WAITERS_MAX, CALLS_PER_CORE_MAX, HOME_ANSWER_GRACE,
    LONG_STEPS_PER_CORE, SORTS_PER_CORE_MAX,
};
use crate::pace::{HomeTraffic, Pace};
use crate::stages::ReplyTimes;
use crate::wheel::Wheel;

/// The number of the keyspace's home core.
const HOME_CORE: u16 = 0;

/// A future that stays on its core.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Work for a thread that may block.
pub type BlockingWork = Box<dyn FnOnce() + Send>;

/// What a core needs of the executor it runs on.
pub trait Edge {
    /// The time since this process's start.
    fn now(&self) -> Duration;
    /// The wall clock's seconds since 1970.
    fn unix_seconds(&self) -> u64;
    /// Resolves after a while.
    fn sleep(&self, duration: Duration) -> LocalFuture<()>;
    /// Resolves once the work was done on a thread that may block.
    fn blocking(&self, work: BlockingWork) -> LocalFuture<()>;
    /// Lets the core's other tasks run.
    fn yield_now(&self) -> LocalFuture<()>;
    /// Ends the process: a page of the index can't be relied upon, and is never served.
    fn page_failed(&self, error: PageError) -> !;
}

/// Who this member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster it belongs to.
    pub cluster_id: u64,
    /// Its own id.
    pub member_id: u64,
}

/// Bounds on what one request may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Largest encoded request, in bytes.
    pub max_request_bytes: usize,
    /// Most operations in a transaction.
    pub max_txn_ops: usize,
    /// How long a request may take before it is answered with [`Error::Timeout`].
    pub request_timeout: Duration,
    /// Most requests that wait for the home core at once, on each core.
    pub max_pending_requests: usize,
    /// Bytes of requests that each core holds on their way to the log, most.
    pub request_bytes_per_core: usize,
    /// Bytes of answers that each core holds until their clients have taken them, most.
    pub answer_bytes_per_core: usize,
    /// Bytes of published batches that each core holds for its watches, most; a quarter more of what is read anew.
    pub watch_bytes_per_core: usize,
}

/// What all cores share and any may read at any time.
#[derive(Debug)]
pub struct Shared {
    /// Who this member is.
    pub identity: Identity,
    /// Bounds on requests.
    pub limits: RequestLimits,
    /// The newest Raft term known, for headers.
    pub raft_term: AtomicU64,
    /// The leader's id as far as this member knows; 0: none.
    pub leader: AtomicU64,
    /// There has been no leader for so long that streams which need one end.
    pub leaderless: AtomicBool,
    /// How the home core fares.
    pub traffic: HomeTraffic,
    /// The members as of what is published.
    pub members: SharedMembers,
    /// Set once the server is stopping.
    pub stopping: AtomicBool,
    /// Set once it takes no more requests: its clients had their time to go elsewhere.
    pub refusing: AtomicBool,
    /// How long answers to writes took on each core.
    pub replies: Vec<ReplyTimes>,
}

/// The members, as every core sees them. They change rarely, and no request that is frequent looks at more than a flag.
#[derive(Debug, Default)]
pub struct SharedMembers {
    members: Mutex<Arc<Members>>,
    is_learner: AtomicBool,
}

impl SharedMembers {
    /// The members.
    pub fn get(&self) -> Arc<Members> {
        self.members.lock().expect("no holder of this lock panics").clone()
    }

    /// These are the members from now on; `own_id` is this one's.
    pub fn set(&self, members: Arc<Members>, own_id: u64) {
        let is_learner = members.get(own_id).is_some_and(|member| member.is_learner);
        self.is_learner.store(is_learner, Ordering::Relaxed);
        *self.members.lock().expect("no holder of this lock panics") = members;
    }

    /// Whether this member has no vote.
    pub fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }
}

/// A request on its way to the home core.
pub struct Outbound {
    /// What is asked, and for whom.
    pub envelope: Envelope,
    /// When nobody waits for the answer any more: it is dropped then instead of being carried out.
    pub deadline: Duration,
    /// The room set aside for its bytes, given back once they are in the log's hands.
    pub share: Option<Share>,
}

/// The core a connection lives on. Clones name the same core; it never leaves its thread.
#[derive(Clone)]
pub struct Core(Rc<Inner>);

struct Inner {
    index: u16,
    shared: Arc<Shared>,
    edge: Rc<dyn Edge>,
    reader: Reader,
    pending: RefCell<Pending>,
    /// Requests on their way to the home core; taken whole by the shell.
    outbox: RefCell<Vec<Outbound>>,
    outbox_waker: Cell<Option<Waker>>,
    /// When the oldest of them was asked.
    outbox_since: Cell<Option<Duration>>,
    /// When the write was published whose answer was taken last.
    answered_from: Cell<Option<Duration>>,
    watches: Watches,
    wheel: Wheel,
    /// Bytes of requests on their way to the home core, or in the making.
    requests: Budget,
    /// Bytes of answers that their clients have not taken.
    answers: Answers,
    /// Reads that sort many rows.
    sorts: Budget,
    /// Steps of long reads.
    steps: Budget,
    pace: Pace,
    calls: Cell<usize>,
    connections: RefCell<BTreeMap<u64, Connection>>,
    next_connection: Cell<u64>,
    /// Streams that end when there is no leader for long.
    leader_watches: RefCell<BTreeMap<u64, Waker>>,
    next_leader_watch: Cell<u64>,
}

impl Core {
    /// A core's face. `index` is the core's number and appears in its tickets.
    pub fn new(index: u16, shared: Arc<Shared>, edge: Rc<dyn Edge>, reader: Reader) -> Core {
        let fragment_bytes = u64::try_from(shared.limits.max_request_bytes + MESSAGE_OVERHEAD_BYTES);
        let config = WatchConfig {
            hub_recent_bytes: shared.limits.watch_bytes_per_core,
            hub_history_bytes: shared.limits.watch_bytes_per_core / 4,
            ..WatchConfig::new(fragment_bytes.expect("lengths fit 64 bits"))
        };
        let watches = Watches::new(config, reader.revision());
        let RequestLimits { request_bytes_per_core, answer_bytes_per_core, .. } = shared.limits;
        let wheel = Wheel::default();
        wheel.advance(edge.now());
        Core(Rc::new(Inner {
            wheel,
            requests: Budget::new(request_bytes_per_core, BUDGET_WAITERS_MAX),
            answers: Answers::new(answer_bytes_per_core, BUDGET_WAITERS_MAX),
            sorts: Budget::new(SORTS_PER_CORE_MAX, BUDGET_WAITERS_MAX),
            // The calls are bounded, so that those who wait are.
            steps: Budget::new(LONG_STEPS_PER_CORE, usize::MAX),
            pace: Pace::default(),
            calls: Cell::new(0),
            connections: RefCell::default(),
            next_connection: Cell::new(0),
            leader_watches: RefCell::default(),
            next_leader_watch: Cell::new(0),
            index,
            shared,
            edge,
            reader,
            pending: RefCell::new(Pending::default()),
            outbox: RefCell::new(Vec::new()),
            outbox_waker: Cell::new(None),
            outbox_since: Cell::new(None),
            answered_from: Cell::new(None),
            watches,
        }))
    }

    /// Sends a request to the home core and waits for its answer, at most the request's time limit, and not beyond
    /// `deadline` if there is one. `share` is the room set aside for the request's bytes.
    ///
    /// # Errors
    /// What the home core answers; [`Error::TooManyRequests`] when this core has too many under way;
    /// [`Error::Timeout`] when no answer came in time, in which case a write may still take effect.
    pub async fn request(
        &self,
        context: Context,
        request: Request,
        deadline: Option<Duration>,
        share: Option<Share>,
    ) -> Result<Response, Error> {
        if self.0.shared.refusing.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let limits = &self.0.shared.limits;
        let now = self.0.edge.now();
        // The home core says more about what took too long; this is for when it says nothing.
        let limit = now + limits.request_timeout + HOME_ANSWER_GRACE;
        let own = deadline.filter(|deadline| *deadline < limit);
        let slot = self.0.pending.borrow_mut().open(limit, own, limits.max_pending_requests)?;
        if self.0.outbox_since.get().is_none() {
            self.0.outbox_since.set(Some(now));
        }
        let ticket = Ticket { core: self.0.index, sequence: slot.ticket_sequence() };
        let envelope = Envelope { ticket, context, request };
        self.0.outbox.borrow_mut().push(Outbound { envelope, deadline: own.unwrap_or(limit), share });
        if let Some(waker) = self.0.outbox_waker.take() {
            waker.wake();
        }
        Answer { core: self.clone(), slot, own_deadline: own }.await
    }

    /// Counts a call in, until what is returned is dropped. Nothing when the core has as many as it may.
    pub fn begin_call(&self) -> Option<CallGuard> {
        let calls = self.0.calls.get();
        (calls < CALLS_PER_CORE_MAX).then(|| {
            self.0.calls.set(calls + 1);
            CallGuard { core: self.clone() }
        })
    }

    /// Keeps an eye on a new connection, until what is returned is dropped.
    pub fn watch_connection(&self) -> ConnectionGuard {
        let bytes = self.0.shared.limits.answer_bytes_per_core / ANSWER_SHARE_PER_CONNECTION;
        let connection = Connection::new(self.0.wheel.clone(), bytes);
        let number = self.0.next_connection.get();
        self.0.next_connection.set(number + 1);
        self.0.connections.borrow_mut().insert(number, connection.clone());
        ConnectionGuard { core: self.clone(), number, connection }
    }

    /// The core's coarse deadlines.
    pub fn wheel(&self) -> &Wheel {
        &self.0.wheel
    }

    /// The room for requests on their way to the log.
    pub fn request_budget(&self) -> &Budget {
        &self.0.requests
    }

    /// The room for answers that wait for their clients.
    pub fn answers(&self) -> &Answers {
        &self.0.answers
    }

    /// The places for steps of long reads.
    pub fn step_budget(&self) -> &Budget {
        &self.0.steps
    }

    /// The places for reads that sort many rows.
    pub fn sort_budget(&self) -> &Budget {
        &self.0.sorts
    }

    /// Where snapshots of a keyspace come from.
    pub fn reader(&self, keyspace: KeyspaceId) -> &Reader {
        debug_assert_eq!(keyspace, KeyspaceId(0), "one keyspace is served");
        &self.0.reader
    }

    /// Makes a page resident that a read over `snapshot` asked for; the snapshot keeps the page from being used for
    /// something else until then. A page that can't be read or fails its checksum ends the process: it is never served.
    pub async fn load(&self, snapshot: Snapshot, need: NeedPage) {
        let reader = self.0.reader.clone();
        match reader.load_cached(need.0) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => self.0.edge.page_failed(error),
        }
        let failure = Arc::new(std::sync::Mutex::new(None));
        let outcome = failure.clone();
        let work = move || {
            if let Err(error) = reader.load(need.0) {
                *outcome.lock().expect("no holder of this lock panics") = Some(error);
            }
        };
        self.0.edge.blocking(Box::new(work)).await;
        drop(snapshot);
        let failed = failure.lock().expect("no holder of this lock panics").take();
        if let Some(error) = failed {
            self.0.edge.page_failed(error);
        }
    }

    /// Lets the core's other tasks run.
    pub async fn yield_now(&self) {
        self.0.edge.yield_now().await;
    }

    /// Waits until the next step of a long read may begin, and lets the core's other tasks run at least once.
    pub async fn begin_long_step(&self) {
        let now = self.now();
        let held = self.0.shared.traffic.holds_reads(now, self.0.index == HOME_CORE);
        match held.then(|| self.0.pace.claim(now)).flatten() {
            Some(wait) => self.sleep(wait).await,
            None => self.yield_now().await,
        }
    }

    /// The home core's thread waited for its processor for `waited` of an interval.
    pub fn note_waiting(&self, waited: Duration, interval: Duration) {
        self.0.shared.traffic.note_waiting(self.now(), waited, interval);
    }

    /// Resolves after a while.
    pub async fn sleep(&self, duration: Duration) {
        self.0.edge.sleep(duration).await;
    }

    /// The time since this process's start.
    pub fn now(&self) -> Duration {
        self.0.edge.now()
    }

    /// The wall clock's seconds since 1970.
    pub fn unix_seconds(&self) -> u64 {
        self.0.edge.unix_seconds()
    }

    /// Who this member is.
    pub fn identity(&self) -> &Identity {
        &self.0.shared.identity
    }

    /// The members as of what is published.
    pub fn members(&self) -> &SharedMembers {
        &self.0.shared.members
    }

    /// Bounds on requests.
    pub fn limits(&self) -> &RequestLimits {
        &self.0.shared.limits
    }

    /// Whether the server is stopping: new connections are for others.
    pub fn is_stopping(&self) -> bool {
        self.0.shared.stopping.load(Ordering::Relaxed)
    }

    /// Whether a leader is known.
    pub fn has_leader(&self) -> bool {
        self.0.shared.leader.load(Ordering::Relaxed) != 0
    }

    #[cfg(test)]
    pub(crate) fn set_leader_for_tests(&self, leader: u64, leaderless: bool) {
        self.0.shared.leader.store(leader, Ordering::Relaxed);
        self.0.shared.leaderless.store(leaderless, Ordering::Relaxed);
    }

    /// For a stream that ends when there is no leader for long.
    pub fn leader_watch(&self) -> LeaderWatch {
        let number = self.0.next_leader_watch.get();
        self.0.next_leader_watch.set(number + 1);
        LeaderWatch { core: self.clone(), number }
    }

    /// The newest Raft term known.
    pub fn raft_term(&self) -> u64 {
        self.0.shared.raft_term.load(Ordering::Relaxed)
    }

    /// Takes what waits for the home core, once there is something.
    pub async fn take_outbox(&self) -> Vec<Outbound> {
        poll_fn(|cx| self.poll_outbox(cx)).await;
        std::mem::take(&mut *self.0.outbox.borrow_mut())
    }

    /// Takes what waits for the home core now, if anything.
    pub fn drain_outbox(&self, into: &mut Vec<Outbound>) {
        into.append(&mut self.0.outbox.borrow_mut());
    }

    /// Whether something waits for the home core; if not, the task is woken when something does.
    pub fn poll_outbox(&self, cx: &mut TaskContext<'_>) -> Poll<()> {
        if !self.0.outbox.borrow().is_empty() {
            return Poll::Ready(());
        }
        self.0.outbox_waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// When the oldest request was asked that was taken from the outbox since the last call of this.
    pub fn take_outbox_since(&self) -> Option<Duration> {
        self.0.outbox_since.take()
    }

    /// Hands an answer to whoever waits for it, with the time at which the write was published that it answers. One that
    /// nobody waits for any more is dropped.
    pub fn deliver(&self, ticket: Ticket, result: Result<Response, Error>, published: Option<Duration>) {
        debug_assert_eq!(ticket.core, self.0.index, "an answer came to the wrong core");
        self.0.pending.borrow_mut().deliver(ticket.sequence, Delivery { result, published });
    }

    /// When the write was published that was answered last; asked right after the request's future is ready, once.
    /// Nothing if it was no write.
    pub fn take_answered_from(&self) -> Option<Duration> {
        self.0.answered_from.take()
    }

    /// The answer to a write that was published then is in its connection's socket.
    pub fn record_reply(&self, published: Duration) {
        if let Some(times) = self.0.shared.replies.get(usize::from(self.0.index)) {
            times.record(self.0.edge.now().saturating_sub(published));
        }
    }

    /// How long answers to writes took, core by core.
    pub fn replies(&self) -> &[ReplyTimes] {
        &self.0.shared.replies
    }

    /// Hands what was applied and published to this core's watches.
    pub fn handle_events(&self, events: &Arc<EventBatch>) {
        self.0.watches.handle_events(self.now(), events);
    }

    /// This core's watches.
    pub fn watches(&self) -> &Watches {
        &self.0.watches
    }

    /// Time has passed: answers requests whose time is over, looks which watches are to be told how far they are, and
    /// which clients have let a deadline pass.
    pub fn tick(&self) {
        let now = self.0.edge.now();
        self.0.wheel.advance(now);
        self.0.watches.handle_timeout(now);
        self.0.pending.borrow_mut().expire(now);
        if self.0.shared.leaderless.load(Ordering::Relaxed) {
            std::mem::take(&mut *self.0.leader_watches.borrow_mut()).into_values().for_each(Waker::wake);
        }
        let connections = self.0.connections.borrow();
        connections.values().for_each(|connection| connection.look(now));
        if self.is_stopping() {
            connections.values().for_each(Connection::close);
        }
        if self.0.answers.is_contended() || self.0.sorts.is_contended() {
            self.end_unread(connections.values(), now);
        }
    }

    /// Ends connections whose clients take nothing, those with the most unread first, until a good part of the answers'
    /// room comes free.
    fn end_unread<'c>(&self, connections: impl Iterator<Item = &'c Connection>, now: Duration) {
        let unread = connections.filter_map(|connection| Some((connection.unread_for(now, ANSWER_STALL)?, connection)));
        let mut unread: Vec<(usize, &Connection)> = unread.collect();
        unread.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut freed = 0;
        for (bytes, connection) in unread {
            if freed >= self.0.shared.limits.answer_bytes_per_core / 4 {
                break;
            }
            freed += bytes;
            connection.end(Ended::AnswersUnread);
        }
    }
}

/// Somebody who wants to know when there is no leader for long, until it is dropped.
pub struct LeaderWatch {
    core: Core,
    number: u64,
}

impl LeaderWatch {
    /// Ready once there has been no leader for long; otherwise the task is woken then.
    pub fn poll_leaderless(&self, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.core.0.shared.leaderless.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        self.core.0.leader_watches.borrow_mut().insert(self.number, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for LeaderWatch {
    fn drop(&mut self) {
        self.core.0.leader_watches.borrow_mut().remove(&self.number);
    }
}

/// A call under way, counted until it is dropped.
pub struct CallGuard {
    core: Core,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let calls = &self.core.0.calls;
        calls.set(calls.get() - 1);
    }
}

/// A connection that its core keeps an eye on.
pub struct ConnectionGuard {
    core: Core,
    number: u64,
    connection: Connection,
}

impl ConnectionGuard {
    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.core.0.connections.borrow_mut().remove(&self.number);
    }
}

/// The future of a request's answer. Dropping it gives the slot back.
struct Answer {
    core: Core,
    slot: SlotId,
    /// The deadline that is the caller's own, if it is.
    own_deadline: Option<Duration>,
}

impl Future for Answer {
    type Output = Result<Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let polled = self.core.0.pending.borrow_mut().poll(self.slot, cx.waker());
        polled.map(|Delivery { result, published }| {
            self.core.0.answered_from.set(published);
            result
        })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.core.0.pending.borrow_mut().close(self.slot, self.own_deadline);
    }
}

/// Names a slot and the request it was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SlotId {
    slot: u32,
    generation: u32,
}

impl SlotId {
    fn ticket_sequence(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    fn from_ticket_sequence(sequence: u64) -> SlotId {
        let low = u32::try_from(sequence & u64::from(u32::MAX)).expect("masked to 32 bits");
        let high = u32::try_from(sequence >> 32).expect("shifted to 32 bits");
        SlotId { slot: low, generation: high }
    }
}

enum Slot {
    Free,
    Waiting(Option<Waker>),
    Done(Delivery),
}

/// An answer, and when the write was published that it answers.
struct Delivery {
    result: Result<Response, Error>,
    published: Option<Duration>,
}

/// The requests that wait for an answer. A slot is used again under a new generation, so a late answer finds nobody.
#[derive(Default)]
struct Pending {
    slots: Vec<(u32, Slot)>,
    free: Vec<u32>,
    /// Deadlines in the order of opening; all requests have the same limit, so that is their order in time.
    deadlines: VecDeque<(Duration, SlotId)>,
    /// Those of requests whose callers wait less.
    own_deadlines: BTreeSet<(Duration, SlotId)>,
}

impl Pending {
    fn open(&mut self, limit: Duration, own: Option<Duration>, max_open: usize) -> Result<SlotId, Error> {
        if self.slots.len() - self.free.len() >= max_open {
            return Err(Error::TooManyRequests);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push((0, Slot::Free));
                u32::try_from(self.slots.len() - 1).expect("bounded by max_open")
            }
        };
        let (generation, state) = &mut self.slots[slot as usize];
        *generation = generation.wrapping_add(1);
        *state = Slot::Waiting(None);
        let id = SlotId { slot, generation: *generation };
        match own {
            Some(own) => drop(self.own_deadlines.insert((own, id))),
            None => self.deadlines.push_back((limit, id)),
        }
        Ok(id)
    }

    fn live(&mut self, id: SlotId) -> Option<&mut Slot> {
        let (generation, state) = self.slots.get_mut(id.slot as usize)?;
        (*generation == id.generation && !matches!(state, Slot::Free)).then_some(state)
    }

    fn finish(&mut self, id: SlotId, delivery: Delivery) {
        if let Some(state) = self.live(id)
            && let Slot::Waiting(waker) = state
        {
            let waker = waker.take();
            *state = Slot::Done(delivery);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn deliver(&mut self, sequence: u64, delivery: Delivery) {
        self.finish(SlotId::from_ticket_sequence(sequence), delivery);
    }

    fn poll(&mut self, id: SlotId, waker: &Waker) -> Poll<Delivery> {
        let state = self.live(id).expect("the slot is open while its future lives");
        match std::mem::replace(state, Slot::Waiting(None)) {
            Slot::Done(delivery) => Poll::Ready(delivery),
            Slot::Waiting(_) => {
                *state = Slot::Waiting(Some(waker.clone()));
                Poll::Pending
            }
            Slot::Free => unreachable!("live slots are not free"),
        }
    }

    fn close(&mut self, id: SlotId, own_deadline: Option<Duration>) {
        if let Some(deadline) = own_deadline {
            self.own_deadlines.remove(&(deadline, id));
        }
        if let Some(state) = self.live(id) {
            *state = Slot::Free;
            self.free.push(id.slot);
        }
    }

    fn expire(&mut self, now: Duration) {
        while let Some((_, id)) = self.own_deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.own_deadlines.pop_first();
            self.finish(id, Delivery { result: Err(Error::Timeout), published: None });
        }
        while let Some(&(deadline, id)) = self.deadlines.front() {
            if deadline > now && self.live(id).is_some() {
                break;
            }
            self.deadlines.pop_front();
            if deadline <= now {
                self.finish(id, Delivery { result: Err(Error::Timeout), published: None });
            }
        }
    }
}
