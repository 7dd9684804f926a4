//! What a core needs of its executor.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use garboard_storage::PageError;

use super::bus_error;
use crate::core::{BlockingWork, Edge, LocalFuture};
use crate::wheel::{Until, Wheel};

/// The executor of one core.
#[derive(Clone, Copy, Debug)]
pub struct CoreEdge {
    started: Instant,
}

impl CoreEdge {
    /// `started` is the process's start: all cores count from it.
    pub fn new(started: Instant) -> CoreEdge {
        CoreEdge { started }
    }
}

impl Edge for CoreEdge {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn unix_seconds(&self) -> u64 {
        std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        Box::pin(garboard_executor::sleep(duration))
    }

    fn blocking(&self, work: BlockingWork) -> LocalFuture<()> {
        Box::pin(garboard_executor::blocking(work))
    }

    fn yield_now(&self) -> LocalFuture<()> {
        Box::pin(garboard_executor::yield_now())
    }

    fn page_failed(&self, error: PageError) -> ! {
        stop_over_page(&error)
    }
}

/// Runs hyper's connection tasks on the core that holds the connection.
#[derive(Clone, Copy, Debug)]
pub struct CoreExecutor;

impl<F> hyper::rt::Executor<F> for CoreExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        garboard_executor::spawn(future);
    }
}

/// hyper's deadlines, kept on the core's wheel.
#[derive(Clone, Debug)]
pub struct CoreTimer {
    wheel: Wheel,
    started: Instant,
}

impl CoreTimer {
    /// `started` is what the wheel counts from.
    pub fn new(wheel: Wheel, started: Instant) -> CoreTimer {
        CoreTimer { wheel, started }
    }
}

impl hyper::rt::Timer for CoreTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(CoreSleep(self.wheel.until(self.wheel.now() + duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(CoreSleep(self.wheel.until(deadline.saturating_duration_since(self.started))))
    }

    fn now(&self) -> Instant {
        self.started + self.wheel.now()
    }
}

struct CoreSleep(Until);

impl Future for CoreSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl hyper::rt::Sleep for CoreSleep {}

/// Ends the process at once, with a message that says why. Nothing that was not durable has been acknowledged.
pub fn stop_process(message: &str) -> ! {
    eprintln!("garboard: {message}");
    std::process::exit(1)
}

/// Ends the process over a page of the index that can't be read or is damaged, and says in which file, and what to do.
pub fn stop_over_page(error: &PageError) -> ! {
    let advice = if bus_error::leave_mark() { bus_error::REFILL_ADVICE } else { bus_error::RESTORE_ADVICE };
    stop_process(&format!(
        "{}: {}; nothing of it was served. {advice}",
        bus_error::watched_path().display(),
        with_sources(error)
    ))
}

/// An error's message and those of what caused it.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
