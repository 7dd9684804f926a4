//! The queue of tasks that are ready, and the loop's turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;
use std::time::Instant;

use async_task::Runnable;
use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::ring::Ring;
use crate::timers::Timers;

/// Tasks that run before the kernel is looked at again. Completions wait no longer than these take.
const TASKS_PER_TURN: usize = 256;
/// How often tasks that others have made ready run in the same turn: an answer goes through three on its way out.
const ROUNDS_PER_TURN: usize = 4;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// What belongs to an executor's thread alone.
pub struct Local {
    remote: Arc<Remote>,
    ready: RefCell<VecDeque<Runnable>>,
    /// Who goes on once this turn is over.
    after: RefCell<Vec<Waker>>,
    /// The loop's own connection to the kernel.
    pub ring: RefCell<Ring>,
    /// What sleeps.
    pub timers: RefCell<Timers>,
    /// Whether the kernel has been asked to tell of the bell.
    bell_armed: Cell<bool>,
    /// Set once nothing more is to be waited for.
    finished: Cell<bool>,
}

/// What other threads may touch: the way in for tasks that are woken there.
struct Remote {
    woken: SegQueue<Runnable>,
    bell: OwnedFd,
    /// Set while the loop may be waiting in the kernel; only then is the bell rung.
    asleep: AtomicBool,
}

impl Local {
    /// Makes this thread an executor.
    pub fn enter(processor: Option<usize>) -> io::Result<Rc<Local>> {
        let remote = Remote {
            woken: SegQueue::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            asleep: AtomicBool::new(false),
        };
        let local = Rc::new(Local {
            remote: Arc::new(remote),
            ready: RefCell::new(VecDeque::new()),
            after: RefCell::default(),
            ring: RefCell::new(Ring::new(processor)?),
            timers: RefCell::new(Timers::default()),
            bell_armed: Cell::new(false),
            finished: Cell::new(false),
        });
        CURRENT.with_borrow_mut(|current| {
            assert!(current.is_none(), "this thread is an executor already");
            *current = Some(local.clone());
        });
        Ok(local)
    }

    /// Has no turn wait from now on.
    pub fn finish(&self) {
        self.finished.set(true);
    }

    /// Ends the executor. What its tasks hold may be in the kernel's hands still, so it is left where it is.
    pub fn leave(self: Rc<Local>) {
        let current = CURRENT.with_borrow_mut(Option::take);
        std::mem::forget(current);
        std::mem::forget(self);
    }

    /// The executor of this thread.
    pub fn current() -> Rc<Local> {
        CURRENT.with_borrow(|current| current.clone()).expect("called on a thread that is an executor")
    }

    /// Adds a task.
    pub fn spawn<F>(&self, future: F)
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let remote = self.remote.clone();
        let (runnable, task) = async_task::spawn_local(future, move |runnable| remote.schedule(runnable));
        task.detach();
        self.ready.borrow_mut().push_back(runnable);
    }

    /// Runs what is ready, then lets the kernel work; waits for it if nothing is ready.
    pub fn turn(&self) -> io::Result<()> {
        self.take_woken();
        for _ in 0..ROUNDS_PER_TURN {
            self.run_ready();
            // What goes to the kernel does not wait for what comes after it.
            if self.ready.borrow().is_empty() || self.ring.borrow_mut().has_queued() {
                break;
            }
        }
        for waker in self.after.take() {
            waker.wake();
        }
        self.timers.borrow_mut().fire(Instant::now);
        if !self.bell_armed.replace(true) {
            self.ring.borrow_mut().listen(&self.remote.bell);
        }
        let timeout = self.timers.borrow().next();
        let idle = !self.finished.get() && self.ready.borrow().is_empty() && self.remote.fall_asleep();
        let outcome = if idle {
            let timeout = timeout.map(|due| due.saturating_duration_since(Instant::now()));
            self.ring.borrow_mut().wait(timeout)
        } else {
            self.ring.borrow_mut().submit()
        };
        self.remote.asleep.store(false, Ordering::Relaxed);
        outcome?;
        let rung = self.ring.borrow_mut().reap();
        if rung {
            self.remote.silence();
            self.bell_armed.set(false);
        }
        Ok(())
    }

    /// Runs what is ready now, but not what becomes ready by it.
    fn run_ready(&self) {
        let count = self.ready.borrow().len().min(TASKS_PER_TURN);
        for _ in 0..count {
            let next = self.ready.borrow_mut().pop_front();
            match next {
                Some(task) => drop(task.run()),
                None => break,
            }
        }
    }

    /// Has a task go on in the next turn, after all that became ready in this one.
    pub fn go_on_after(&self, waker: Waker) {
        self.after.borrow_mut().push(waker);
    }

    fn take_woken(&self) {
        let mut ready = self.ready.borrow_mut();
        while let Some(task) = self.remote.woken.pop() {
            ready.push_back(task);
        }
    }
}

impl Remote {
    /// Makes a task ready, on whichever thread it was woken.
    fn schedule(self: &Arc<Remote>, task: Runnable) {
        let elsewhere = CURRENT.try_with(|current| {
            let current = current.borrow();
            match current.as_ref() {
                Some(local) if Arc::ptr_eq(&local.remote, self) => {
                    local.ready.borrow_mut().push_back(task);
                    None
                }
                _ => Some(task),
            }
        });
        if let Ok(Some(task)) = elsewhere {
            self.woken.push(task);
            // Pairs with the fence of `fall_asleep`: either this thread sees the loop asleep, or the loop sees the task.
            fence(Ordering::SeqCst);
            if self.asleep.swap(false, Ordering::Relaxed) {
                // A full counter rings as well.
                let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
            }
        }
    }

    /// Says that the loop is about to wait; `false` if a task came in meanwhile.
    fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.woken.is_empty() {
            return true;
        }
        self.asleep.store(false, Ordering::Relaxed);
        false
    }

    /// Takes the bell's counter back to nothing.
    fn silence(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut counter);
    }
}
