//! The core a connection lives on, as the API sees it.
//!
//! A [`Core`] belongs to one thread. It sends a connection's requests to the keyspace's home core and brings the answers
//! back, hands out snapshots for reads, and knows what every reply's header says. It names no executor: what it needs of
//! one ([`Edge`]) the shell provides.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use garboard_replica::Error;
use garboard_replica::envelope::{Envelope, Request, Response, Ticket};
use garboard_replica::events::EventBatch;
use garboard_replica::request::{Context, KeyspaceId};
use garboard_replica::watch::WatchConfig;
use garboard_storage::{NeedPage, Reader, Snapshot};

use crate::api::{MESSAGE_OVERHEAD_BYTES, Watches};
use crate::stages::ReplyTimes;

/// A future that stays on its core.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Work for a thread that may block.
pub type BlockingWork = Box<dyn FnOnce() + Send>;

/// What a core needs of the executor it runs on.
pub trait Edge {
    /// The time since this process's start.
    fn now(&self) -> Duration;
    /// Resolves after a while.
    fn sleep(&self, duration: Duration) -> LocalFuture<()>;
    /// Resolves once the work was done on a thread that may block.
    fn blocking(&self, work: BlockingWork) -> LocalFuture<()>;
    /// Lets the core's other tasks run.
    fn yield_now(&self) -> LocalFuture<()>;
    /// Ends the process: the state on disk can't be relied upon.
    fn fatal(&self, message: String) -> !;
}

/// Who this member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster it belongs to.
    pub cluster_id: u64,
    /// Its own id.
    pub member_id: u64,
    /// Its name.
    pub name: String,
    /// Where peers reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
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
    /// Set once the server is stopping.
    pub stopping: AtomicBool,
    /// How long answers to writes took on each core.
    pub replies: Vec<ReplyTimes>,
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
    outbox: RefCell<Vec<Envelope>>,
    outbox_waker: Cell<Option<Waker>>,
    /// When the oldest of them was asked.
    outbox_since: Cell<Option<Duration>>,
    /// When the write was published whose answer was taken last.
    answered_from: Cell<Option<Duration>>,
    watches: Watches,
}

impl Core {
    /// A core's face. `index` is the core's number and appears in its tickets.
    pub fn new(index: u16, shared: Arc<Shared>, edge: Rc<dyn Edge>, reader: Reader) -> Core {
        let fragment_bytes = u64::try_from(shared.limits.max_request_bytes + MESSAGE_OVERHEAD_BYTES);
        let config = WatchConfig::new(fragment_bytes.expect("lengths fit 64 bits"));
        let watches = Watches::new(config, reader.revision());
        Core(Rc::new(Inner {
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

    /// Sends a request to the home core and waits for its answer, at most the request's time limit.
    ///
    /// # Errors
    /// What the home core answers; [`Error::TooManyRequests`] when this core has too many under way;
    /// [`Error::Timeout`] when no answer came in time, in which case a write may still take effect.
    pub async fn request(&self, context: Context, request: Request) -> Result<Response, Error> {
        if self.0.shared.stopping.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let limits = &self.0.shared.limits;
        let now = self.0.edge.now();
        let deadline = now + limits.request_timeout;
        let slot = self.0.pending.borrow_mut().open(deadline, limits.max_pending_requests)?;
        if self.0.outbox_since.get().is_none() {
            self.0.outbox_since.set(Some(now));
        }
        let ticket = Ticket { core: self.0.index, sequence: slot.ticket_sequence() };
        self.0.outbox.borrow_mut().push(Envelope { ticket, context, request });
        if let Some(waker) = self.0.outbox_waker.take() {
            waker.wake();
        }
        Answer { core: self.clone(), slot }.await
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
            Err(error) => self.0.edge.fatal(error.to_string()),
        }
        let failure = Arc::new(std::sync::Mutex::new(None));
        let outcome = failure.clone();
        let work = move || {
            if let Err(error) = reader.load(need.0) {
                *outcome.lock().expect("no holder of this lock panics") = Some(error.to_string());
            }
        };
        self.0.edge.blocking(Box::new(work)).await;
        drop(snapshot);
        let failed = failure.lock().expect("no holder of this lock panics").take();
        if let Some(message) = failed {
            self.0.edge.fatal(message);
        }
    }

    /// Lets the core's other tasks run.
    pub async fn yield_now(&self) {
        self.0.edge.yield_now().await;
    }

    /// Resolves after a while.
    pub async fn sleep(&self, duration: Duration) {
        self.0.edge.sleep(duration).await;
    }

    /// The time since this process's start.
    pub fn now(&self) -> Duration {
        self.0.edge.now()
    }

    /// Who this member is.
    pub fn identity(&self) -> &Identity {
        &self.0.shared.identity
    }

    /// Bounds on requests.
    pub fn limits(&self) -> &RequestLimits {
        &self.0.shared.limits
    }

    /// The newest Raft term known.
    pub fn raft_term(&self) -> u64 {
        self.0.shared.raft_term.load(Ordering::Relaxed)
    }

    /// Takes what waits for the home core, once there is something.
    pub async fn take_outbox(&self) -> Vec<Envelope> {
        poll_fn(|cx| self.poll_outbox(cx)).await;
        std::mem::take(&mut *self.0.outbox.borrow_mut())
    }

    /// Takes what waits for the home core now, if anything.
    pub fn drain_outbox(&self, into: &mut Vec<Envelope>) {
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
        self.0.watches.handle_events(events);
    }

    /// This core's watches.
    pub fn watches(&self) -> &Watches {
        &self.0.watches
    }

    /// Answers requests whose time is over, and looks which watches are to be told how far they are.
    pub fn expire_requests(&self) {
        let now = self.0.edge.now();
        self.0.watches.handle_timeout(now);
        self.0.pending.borrow_mut().expire(now);
    }
}

/// The future of a request's answer. Dropping it gives the slot back.
struct Answer {
    core: Core,
    slot: SlotId,
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
        self.core.0.pending.borrow_mut().close(self.slot);
    }
}

/// Names a slot and the request it was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

impl Pending {
    fn open(&mut self, deadline: Duration, max_open: usize) -> Result<SlotId, Error> {
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
        self.deadlines.push_back((deadline, id));
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

    fn close(&mut self, id: SlotId) {
        if let Some(state) = self.live(id) {
            *state = Slot::Free;
            self.free.push(id.slot);
        }
    }

    fn expire(&mut self, now: Duration) {
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
