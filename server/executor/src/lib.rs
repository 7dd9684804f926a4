//! One thread's executor: tasks, timers, sockets and files over one io_uring.
//!
//! [`run`] makes the calling thread an executor and drives a future on it. Everything else here belongs to the executor of
//! the thread it is called on: [`spawn`], [`sleep`], [`blocking`], [`Socket`], [`File`]. Nothing but wakers crosses
//! threads; a waker that is used elsewhere brings its task back to the thread that owns it.
//!
//! A turn of the loop runs the tasks that are ready and, unless the kernel is to be handed something first, those that they
//! make ready, a few times over; then it enters the kernel once: it submits what the tasks asked for, and waits only if no
//! task is ready. What completes makes tasks ready for the next turn. So a put that
//! has the server to itself costs one entry for each thing it really waits for, and under load one entry serves many.

// An executor is what reads the clock and starts threads for everybody else.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod blocking;
mod file;
mod ring;
mod socket;
mod tasks;
mod timers;
mod turns;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub use self::blocking::blocking;
pub use self::file::{AlignedBuffer, BLOCK_BYTES, File, SyncForm};
pub use self::socket::Socket;
use self::tasks::Local;
pub use self::timers::{Sleep, sleep};

/// What an executor is started with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The processor its thread is bound to; none lets the kernel choose.
    pub processor: Option<usize>,
    /// Whether its thread asks the kernel for the shortest turns on its processor. It gets as much of the processor as
    /// before, but when something wakes it, it need not wait for the end of another thread's long turn.
    pub short_turns: bool,
}

/// Makes this thread an executor, and returns once `main`'s future has finished. Tasks that have not finished by then
/// never run again; what they hold is not dropped.
///
/// # Errors
/// When the kernel gives no io_uring, or the processor is not to be had.
///
/// # Panics
/// When this thread is an executor already.
pub fn run<F>(options: Options, main: impl FnOnce() -> F) -> io::Result<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    if let Some(processor) = options.processor {
        let mut set = rustix::thread::CpuSet::new();
        set.set(processor);
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    if options.short_turns {
        turns::ask_for_short_turns();
    }
    let local = Local::enter(options.processor)?;
    let outcome = Rc::new(RefCell::new(None));
    let filled = outcome.clone();
    // It may be large, and spawning moves what it is given several times.
    let main = Box::pin(main());
    spawn(async move {
        let output = main.await;
        *filled.borrow_mut() = Some(output);
        Local::current().finish();
    });
    loop {
        if let Some(output) = outcome.borrow_mut().take() {
            local.leave();
            return Ok(output);
        }
        local.turn()?;
    }
}

/// Adds a task to this thread's executor. It runs until it ends by itself.
///
/// # Panics
/// When this thread is no executor.
pub fn spawn<F>(future: F)
where
    F: Future + 'static,
    F::Output: 'static,
{
    Local::current().spawn(future);
}

/// Goes to the back of this executor's queue once.
pub async fn yield_now() {
    struct Yield(bool);
    impl Future for Yield {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if self.0 {
                return Poll::Ready(());
            }
            self.0 = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
    Yield(false).await;
}

/// Goes on in this executor's next turn: after the tasks that this one has made ready and those that they make ready in
/// turn, and after the kernel was handed what they asked for.
pub async fn after_turn() {
    let mut asked = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        Local::current().go_on_after(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// The time at which a timer that is set now for `duration` is due; far away where it does not fit the clock.
fn deadline(duration: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + duration.min(FAR)
}
