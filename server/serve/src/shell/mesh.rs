//! Queues between the home core and the others: bounded, one producer and one consumer each, carrying whole batches.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::SinkExt;
use futures::channel::mpsc::{self, Receiver, Sender};
use garboard_replica::Error;
use garboard_replica::envelope::{Response, Ticket};
use garboard_replica::events::EventBatch;
use garboard_replica::watch::limits::EVENT_OVERHEAD_BYTES;

use super::net::Accepted;
use crate::budget::{Budget, Share};
use crate::core::Outbound;
use crate::limits::{BACKLOG_BYTES_MAX, BACKLOG_MESSAGES_MAX, QUEUE_MESSAGES};

/// What the home core sends to another one.
pub enum ToCore {
    /// Answers for the core's connections.
    Answers(Answers),
    /// What was applied and published, and the share it has of what may be on its way.
    Events(Arc<EventBatch>, Share),
    /// Nothing up to this revision was sent; a core that had no connections learns it before its first one.
    Restore(i64),
    /// A connection to serve.
    Connection(Accepted),
}

/// What another core sends to the home core.
pub enum ToHome {
    /// Its connections' requests.
    Requests {
        /// The requests.
        batch: Vec<Outbound>,
        /// When the oldest of them was asked.
        since: Option<Duration>,
    },
}

/// Answers for one core's connections.
#[derive(Default)]
pub struct Answers {
    /// The answers, in order.
    pub answers: Vec<(Ticket, Result<Response, Error>)>,
    /// When the first of the writes was published that they answer.
    pub published: Option<Duration>,
}

/// Both ends of a core's queues, before the executors take them.
pub struct Lane {
    /// The home core's ends.
    pub home: (Sender<ToCore>, Receiver<ToHome>),
    /// The other core's ends.
    pub core: (Sender<ToHome>, Receiver<ToCore>),
}

/// Makes the queues between the home core and one other.
pub fn lane() -> Lane {
    let (to_core, from_home) = mpsc::channel(QUEUE_MESSAGES);
    let (to_home, from_core) = mpsc::channel(QUEUE_MESSAGES);
    Lane { home: (to_core, from_core), core: (to_home, from_home) }
}

/// The home core's outgoing side towards one core: what does not fit the queue waits here, in order.
#[derive(Clone)]
pub struct Outgoing(Rc<OutgoingState>);

struct OutgoingState {
    /// Bytes of events that are on their way.
    bytes: Budget,
    waiting: RefCell<VecDeque<ToCore>>,
    waker: Cell<Option<Waker>>,
}

impl Default for Outgoing {
    fn default() -> Outgoing {
        let bytes = Budget::new(BACKLOG_BYTES_MAX, 0);
        Outgoing(Rc::new(OutgoingState { bytes, waiting: RefCell::default(), waker: Cell::default() }))
    }
}

impl Outgoing {
    /// Queues events of so many bytes.
    pub fn push_events(&self, events: Arc<EventBatch>, bytes: usize) {
        self.push(ToCore::Events(events, self.0.bytes.force(bytes)));
    }

    /// Queues a message behind all earlier ones.
    pub fn push(&self, message: ToCore) {
        self.0.waiting.borrow_mut().push_back(message);
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }

    /// Whether so much waits that no more should come.
    pub fn is_full(&self) -> bool {
        self.0.waiting.borrow().len() >= BACKLOG_MESSAGES_MAX || self.0.bytes.taken() >= BACKLOG_BYTES_MAX
    }

    /// Moves messages into the queue, for as long as the other core lives.
    pub async fn run(self, mut queue: Sender<ToCore>) {
        loop {
            let message = poll_fn(|cx| match self.0.waiting.borrow_mut().pop_front() {
                Some(message) => Poll::Ready(message),
                None => {
                    self.0.waker.set(Some(cx.waker().clone()));
                    Poll::Pending
                }
            })
            .await;
            if queue.send(message).await.is_err() {
                return;
            }
        }
    }
}

/// What a batch of events takes on its way.
pub fn batch_bytes(batch: &EventBatch) -> usize {
    batch.events.iter().map(|event| event.kv.key.len() + event.kv.value.len() + EVENT_OVERHEAD_BYTES).sum()
}
