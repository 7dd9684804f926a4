//! Coarse deadlines of one core.
//!
//! Nobody sets a timer of the executor for a call or a connection: whoever waits leaves a waker here, and the core's one
//! tick calls those whose time has come. A deadline is met up to a tick late, and what is done before it costs nothing.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The deadlines of one core. Clones are the same wheel. It may be named from other threads, as hyper's timers demand,
/// but one core uses it, so that its lock is always free.
#[derive(Clone, Debug, Default)]
pub struct Wheel(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The time of the last tick, in nanoseconds since the process's start.
    now: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    wakers: BTreeMap<Place, Waker>,
    next: u64,
}

/// A deadline, and a number that tells those at the same time apart.
type Place = (Duration, u64);

impl Wheel {
    /// Time has passed: wakes those whose deadline has come.
    pub fn advance(&self, now: Duration) {
        self.0.now.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let due = {
            let mut waiting = self.lock();
            let later = waiting.wakers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut waiting.wakers, later)
        };
        due.into_values().for_each(Waker::wake);
    }

    /// The time of the last tick.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now.load(Ordering::Relaxed))
    }

    /// Resolves at the first tick at or after a time.
    pub fn until(&self, deadline: Duration) -> Until {
        Until { wheel: self.clone(), deadline, place: None, waker: None }
    }

    /// A future's value, or nothing when the deadline comes first.
    pub async fn within<T>(&self, deadline: Duration, future: impl Future<Output = T>) -> Option<T> {
        let future = std::pin::pin!(future);
        match futures::future::select(future, self.until(deadline)).await {
            futures::future::Either::Left((value, _)) => Some(value),
            futures::future::Either::Right(((), _)) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().expect("no holder of this lock panics")
    }
}

/// The future of a deadline.
#[derive(Debug)]
pub struct Until {
    wheel: Wheel,
    deadline: Duration,
    place: Option<Place>,
    /// What the wheel calls, so that it is told of another one only.
    waker: Option<Waker>,
}

impl Future for Until {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.wheel.now() >= self.deadline {
            return Poll::Ready(());
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let place = {
            let mut waiting = self.wheel.lock();
            let place = self.place.unwrap_or_else(|| {
                waiting.next += 1;
                (self.deadline, waiting.next)
            });
            waiting.wakers.insert(place, cx.waker().clone());
            place
        };
        self.place = Some(place);
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Until {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.wheel.lock().wakers.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_is_met_at_the_first_tick_at_or_after_it() {
        let wheel = Wheel::default();
        let mut until = wheel.until(2 * SECOND);
        assert_eq!((&mut until).now_or_never(), None);
        wheel.advance(SECOND);
        assert_eq!((&mut until).now_or_never(), None);
        wheel.advance(2 * SECOND);
        assert_eq!((&mut until).now_or_never(), Some(()));
    }

    #[test]
    fn what_is_done_in_time_leaves_nothing_behind() {
        let wheel = Wheel::default();
        assert_eq!(wheel.within(SECOND, async { 7 }).now_or_never(), Some(Some(7)));
        let mut pending = Box::pin(wheel.within(SECOND, futures::future::pending::<()>()));
        assert_eq!(pending.as_mut().now_or_never(), None);
        assert_eq!(wheel.lock().wakers.len(), 1);
        drop(pending);
        assert_eq!(wheel.lock().wakers.len(), 0);
    }
}
