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
use garboard_replica::envelope::{Envelope, Response, Ticket};
use garboard_replica::events::EventBatch;

use super::net::Accepted;

/// Messages a queue holds before its producer waits.
pub const QUEUE_MESSAGES: usize = 256;

/// Messages that may wait for one core before the home core stops taking requests.
pub const BACKLOG_MESSAGES_MAX: usize = 4096;

/// What the home core sends to another one.
pub enum ToCore {
    /// Answers for the core's connections.
    Answers(Answers),
    /// What was applied and published.
    Events(Arc<EventBatch>),
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
        batch: Vec<Envelope>,
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
#[derive(Clone, Default)]
pub struct Outgoing(Rc<OutgoingState>);

#[derive(Default)]
struct OutgoingState {
    waiting: RefCell<VecDeque<ToCore>>,
    waker: Cell<Option<Waker>>,
}

impl Outgoing {
    /// Queues a message behind all earlier ones.
    pub fn push(&self, message: ToCore) {
        self.0.waiting.borrow_mut().push_back(message);
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }

    /// Messages that wait.
    pub fn backlog(&self) -> usize {
        self.0.waiting.borrow().len()
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
