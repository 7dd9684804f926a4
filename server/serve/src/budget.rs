//! A number of bytes that a core may hold for its clients, and those who wait for their share.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::limits::MEDIUM_ANSWER_BYTES;

/// A budget of bytes. Clones are the same budget.
///
/// Shares are given in the order in which they were asked for, so that a large one is not starved by small ones. One
/// larger than the whole budget counts as the whole. One core uses it; a share may travel to another thread with what it
/// was taken for.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Mutex<State>>);

/// Room for answers: one budget for small ones, and one for large ones.
#[derive(Clone, Debug)]
pub struct Answers {
    small: Budget,
    large: Budget,
}

impl Answers {
    /// Room for so many bytes in all; for each budget so many may wait.
    pub fn new(capacity: usize, waiters_max: usize) -> Answers {
        let small = capacity / 4;
        Answers { small: Budget::new(small, waiters_max), large: Budget::new(capacity - small, waiters_max) }
    }

    /// The budget of an answer of so many bytes.
    pub fn of(&self, bytes: usize) -> &Budget {
        if bytes <= MEDIUM_ANSWER_BYTES { &self.small } else { &self.large }
    }

    /// Whether somebody waits.
    pub fn is_contended(&self) -> bool {
        self.small.is_contended() || self.large.is_contended()
    }
}

#[derive(Debug)]
struct State {
    capacity: usize,
    waiters_max: usize,
    /// Bytes that are taken; more than the capacity where a share grew.
    taken: usize,
    waiting: VecDeque<Waiter>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    bytes: usize,
    granted: bool,
    waker: Waker,
}

/// So many wait for a budget that nobody else may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many wait for the budget")]
pub struct Overcrowded;

impl Budget {
    /// A budget of which nothing is taken, for which so many may wait.
    pub fn new(capacity: usize, waiters_max: usize) -> Budget {
        Budget(Arc::new(Mutex::new(State { capacity, waiters_max, taken: 0, waiting: VecDeque::new(), next: 0 })))
    }

    /// A share, once there is room and all that asked before have theirs.
    pub fn take(&self, bytes: usize) -> Take {
        Take { budget: self.clone(), bytes, number: None }
    }

    /// A share at once, whether or not there is room: for what is there already.
    pub fn force(&self, bytes: usize) -> Share {
        self.lock().taken += bytes;
        Share { budget: self.clone(), bytes }
    }

    /// Whether a share of so many bytes would be given at once.
    pub fn has_room(&self, bytes: usize) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.has_room(bytes.min(state.capacity))
    }

    /// Whether somebody waits.
    pub fn is_contended(&self) -> bool {
        self.lock().waiting.iter().any(|waiter| !waiter.granted)
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let granted = {
            let mut state = self.lock();
            state.taken -= bytes;
            state.grant()
        };
        granted.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn has_room(&self, bytes: usize) -> bool {
        self.taken.saturating_add(bytes) <= self.capacity
    }

    /// Gives shares to those in front, as far as they fit; returns whom to wake.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(at) = self.waiting.iter().position(|waiter| !waiter.granted) {
            let bytes = self.waiting[at].bytes;
            if !self.has_room(bytes) {
                break;
            }
            self.taken += bytes;
            self.waiting[at].granted = true;
            wakers.push(self.waiting[at].waker.clone());
        }
        wakers
    }
}

/// The future of a share. Dropping it gives up the place in the line.
#[derive(Debug)]
pub struct Take {
    budget: Budget,
    bytes: usize,
    number: Option<u64>,
}

impl Future for Take {
    type Output = Result<Share, Overcrowded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let budget = self.budget.clone();
        let mut state = budget.lock();
        let bytes = self.bytes.min(state.capacity);
        let Some(number) = self.number else {
            if state.waiting.is_empty() && state.has_room(bytes) {
                state.taken += bytes;
                return Poll::Ready(Ok(Share { budget: budget.clone(), bytes }));
            }
            if state.waiting.len() >= state.waiters_max {
                return Poll::Ready(Err(Overcrowded));
            }
            state.next += 1;
            let number = state.next;
            state.waiting.push_back(Waiter { number, bytes, granted: false, waker: cx.waker().clone() });
            self.number = Some(number);
            return Poll::Pending;
        };
        let at =
            state.waiting.iter().position(|waiter| waiter.number == number).expect("it waits while its future lives");
        if state.waiting[at].granted {
            state.waiting.remove(at);
            self.number = None;
            return Poll::Ready(Ok(Share { budget: budget.clone(), bytes }));
        }
        state.waiting[at].waker.clone_from(cx.waker());
        Poll::Pending
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let granted = {
            let mut state = self.budget.lock();
            let at = state.waiting.iter().position(|waiter| waiter.number == number);
            let waiter = at.and_then(|at| state.waiting.remove(at)).expect("it waits while its future lives");
            if waiter.granted {
                state.taken -= waiter.bytes;
            }
            state.grant()
        };
        granted.into_iter().for_each(Waker::wake);
    }
}

/// Bytes taken of a budget, given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    /// Makes it what was needed in the end. One that grows may exceed the budget.
    pub fn resize(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.lock().taken += bytes - self.bytes;
        } else {
            self.budget.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Share {
    /// As [`resize`](Self::resize), but false, and nothing is changed, where it would grow beyond the budget or past
    /// those who wait.
    pub fn fit(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes {
            let mut state = self.budget.lock();
            let bytes = bytes.min(state.capacity).max(self.bytes);
            let more = bytes - self.bytes;
            if more > 0 && (!state.waiting.is_empty() || !state.has_room(more)) {
                return false;
            }
            state.taken += more;
            drop(state);
            self.bytes = bytes;
            return true;
        }
        self.resize(bytes);
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Bytes that hold something until the last of them is gone.
pub fn hold(bytes: Vec<u8>, held: impl Send + 'static) -> Bytes {
    struct Holding<T> {
        bytes: Vec<u8>,
        _held: T,
    }
    impl<T> AsRef<[u8]> for Holding<T> {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Bytes::from_owner(Holding { bytes, _held: held })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn try_take(take: &mut Take) -> Option<Result<Share, Overcrowded>> {
        take.now_or_never()
    }

    #[test]
    fn shares_are_given_in_order_however_small() {
        let budget = Budget::new(10, 100);
        let first = budget.take(6).now_or_never().unwrap().unwrap();
        let (mut large, mut small) = (budget.take(8), budget.take(1));
        assert!(try_take(&mut large).is_none() && try_take(&mut small).is_none(), "the small one does not pass by");
        assert!(budget.is_contended());
        drop(first);
        let large = try_take(&mut large).unwrap().unwrap();
        let small = try_take(&mut small).unwrap().unwrap();
        assert_eq!(budget.taken(), 9);
        drop((large, small));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_share_larger_than_the_budget_is_taken_alone() {
        let budget = Budget::new(10, 100);
        let first = budget.take(1).now_or_never().unwrap().unwrap();
        let mut all = budget.take(100);
        assert!(try_take(&mut all).is_none());
        drop(first);
        let all = try_take(&mut all).unwrap().unwrap();
        assert!(budget.take(1).now_or_never().is_none());
        drop(all);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn who_gives_up_waiting_gives_up_what_was_granted() {
        let budget = Budget::new(10, 100);
        let first = budget.take(10).now_or_never().unwrap().unwrap();
        let (mut second, mut third) = (budget.take(10), budget.take(10));
        assert!(try_take(&mut second).is_none() && try_take(&mut third).is_none());
        drop(first);
        drop(second);
        assert!(try_take(&mut third).unwrap().is_ok());
        assert!(!budget.is_contended());
    }

    #[test]
    fn beyond_so_many_nobody_may_wait() {
        let budget = Budget::new(1, 100);
        let _all = budget.take(1).now_or_never().unwrap().unwrap();
        let mut line: Vec<Take> = (0..100).map(|_| budget.take(1)).collect();
        assert!(line.iter_mut().all(|take| try_take(take).is_none()));
        assert_eq!(budget.take(1).now_or_never().unwrap().unwrap_err(), Overcrowded);
        line.pop();
        assert!(budget.take(1).now_or_never().is_none());
    }

    #[test]
    fn a_share_is_given_back_with_the_last_of_its_bytes() {
        let budget = Budget::new(10, 100);
        let mut share = budget.take(8).now_or_never().unwrap().unwrap();
        share.resize(4);
        assert_eq!(budget.taken(), 4);
        let mut bytes = hold(vec![1, 2, 3, 4], share);
        let tail = bytes.split_off(2);
        drop(bytes);
        assert_eq!(budget.taken(), 4);
        drop(tail);
        assert_eq!(budget.taken(), 0);
    }
}
