//! A timer that is exact to tens of microseconds: the executor's own counts whole milliseconds, which is longer than
//! the latencies that it would pace.

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// A one-shot timer of the kernel, awaited like a socket.
#[derive(Debug)]
pub struct FineTimer {
    timer: AsyncFd<OwnedFd>,
}

impl FineTimer {
    /// Makes the timer; must be called within the executor that will await it.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "its replacement is unsafe, for types that close or swap their descriptor; an owned one does not"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer })
    }

    /// Waits for `duration` and no shorter.
    pub async fn sleep(&self, duration: Duration) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let tv_sec = i64::try_from(duration.as_secs()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // A value of nought would switch the timer off.
        let value = Timespec { tv_sec, tv_nsec: duration.subsec_nanos().max(1).into() };
        let setting = Itimerspec { it_interval: zero, it_value: value };
        rustix::time::timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &setting)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut expirations = [0; 8];
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut expirations)?));
            match read {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_timer_never_fires_early() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = FineTimer::new().unwrap();
            for micros in [0, 1, 50, 300, 1_500] {
                let (start, wanted) = (Instant::now(), Duration::from_micros(micros));
                timer.sleep(wanted).await.unwrap();
                assert!(start.elapsed() >= wanted);
            }
        });
    }
}
