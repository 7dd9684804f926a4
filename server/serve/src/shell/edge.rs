//! What a core needs of its executor, by glommio.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use glommio::timer::sleep;

use crate::core::{BlockingWork, Edge, LocalFuture};

/// The executor of one core.
#[derive(Clone, Copy, Debug)]
pub struct GlommioEdge {
    started: Instant,
}

impl GlommioEdge {
    /// `started` is the process's start: all cores count from it.
    pub fn new(started: Instant) -> GlommioEdge {
        GlommioEdge { started }
    }
}

impl Edge for GlommioEdge {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        Box::pin(sleep(duration))
    }

    fn blocking(&self, work: BlockingWork) -> LocalFuture<()> {
        Box::pin(glommio::executor().spawn_blocking(work))
    }

    fn yield_now(&self) -> LocalFuture<()> {
        Box::pin(yield_once())
    }

    fn fatal(&self, message: String) -> ! {
        stop_process(&message)
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
        glommio::spawn_local(future).detach();
    }
}

/// Goes to the back of the core's queue once.
pub async fn yield_once() {
    struct Yield(bool);
    impl Future for Yield {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<()> {
            if self.0 {
                return std::task::Poll::Ready(());
            }
            self.0 = true;
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        }
    }
    Yield(false).await;
}

/// Ends the process at once, with a message that says why. Nothing that was not durable has been acknowledged.
pub fn stop_process(message: &str) -> ! {
    eprintln!("garboard: {message}");
    std::process::exit(1)
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
