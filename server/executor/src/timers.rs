//! Timers, in the order in which they are due.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::deadline;
use crate::tasks::Local;

/// What sleeps on one executor.
#[derive(Default)]
pub struct Timers {
    sleeping: BTreeMap<(Instant, u64), Waker>,
    /// Tells timers of the same instant apart.
    sequence: u64,
}

impl Timers {
    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.sleeping.keys().next().map(|(due, _)| *due)
    }

    /// Wakes those that are due.
    pub fn fire(&mut self, now: impl FnOnce() -> Instant) {
        if self.sleeping.is_empty() {
            return;
        }
        let now = now();
        while let Some(entry) = self.sleeping.first_entry() {
            if entry.key().0 > now {
                return;
            }
            entry.remove().wake();
        }
    }
}

/// Resolves once `duration` has passed, on this thread's executor.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { due: deadline(duration), key: None }
}

/// A timer; dropping it takes it back.
#[derive(Debug)]
#[must_use = "a timer does nothing unless it is awaited"]
pub struct Sleep {
    due: Instant,
    /// Its sequence number, once it waits.
    key: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let local = Local::current();
        let mut timers = local.timers.borrow_mut();
        let due = self.due;
        if let Some(key) = self.key {
            return match timers.sleeping.get_mut(&(due, key)) {
                Some(waker) => {
                    waker.clone_from(cx.waker());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            };
        }
        if due <= Instant::now() {
            return Poll::Ready(());
        }
        timers.sequence += 1;
        let key = timers.sequence;
        timers.sleeping.insert((due, key), cx.waker().clone());
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            Local::current().timers.borrow_mut().sleeping.remove(&(self.due, key));
        }
    }
}
