//! Threads for what may block: file-system metadata, page reads.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::oneshot;

/// Most threads of the process that may block at once; further work waits its turn.
const THREADS_MAX: usize = 8;
/// How long a thread with nothing to do stays.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Stack of such a thread: what runs on it walks no deep structures.
const STACK_BYTES: usize = 256 << 10;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Pool {
    waiting: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { waiting: VecDeque::new(), threads: 0, idle: 0 });
static WORK_CAME: Condvar = Condvar::new();

/// Runs `work` on a thread that may block. It is done even if nobody waits for the future.
///
/// # Panics
/// The future panics when `work` did.
pub fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = T> {
    let (done, outcome) = oneshot::channel();
    enqueue(Box::new(move || drop(done.send(work()))));
    async move { outcome.await.expect("the work on the blocking thread did not panic") }
}

fn enqueue(work: Work) {
    let mut pool = lock();
    pool.waiting.push_back(work);
    if pool.idle < pool.waiting.len() && pool.threads < THREADS_MAX {
        let thread = std::thread::Builder::new().name("blocking".to_owned()).stack_size(STACK_BYTES);
        if thread.spawn(serve).is_ok() {
            pool.threads += 1;
        }
        assert!(pool.threads > 0, "no thread can be started for work that blocks");
    }
    drop(pool);
    WORK_CAME.notify_one();
}

fn serve() {
    let mut pool = lock();
    loop {
        if let Some(work) = pool.waiting.pop_front() {
            drop(pool);
            // A thread that dies of a panic must not be counted on; whoever waits for the work learns of it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            pool = lock();
            continue;
        }
        pool.idle += 1;
        let (returned, waited) = WORK_CAME.wait_timeout(pool, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
        pool = returned;
        pool.idle -= 1;
        if waited.timed_out() && pool.waiting.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}

fn lock() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}
