//! What this machine lets the server do: whether io_uring is to be had, and which core takes the log device's
//! interrupts.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Cores that are tried; a machine with more has a device with a queue for each, where it does not matter.
const CANDIDATES_MAX: usize = 8;
/// Writes timed for each core.
const WRITES: u64 = 5;
/// A core is the one with the interrupts when writes behind its busy loop take this many times as long as elsewhere.
const SLOWER_AT_LEAST: u32 = 4;
const BLOCK_BYTES: usize = 4096;

/// Checks that io_uring can be used.
///
/// # Errors
/// A text that says what forbids it and what to allow.
pub fn io_uring_available() -> Result<(), String> {
    let error = match IoUring::new(4) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let advice = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOSYS) => {
            "the kernel has no io_uring, or a seccomp profile hides it: use Linux 5.8 or later, and allow the system \
             calls io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"
        }
        Some(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => {
            "io_uring is forbidden here: allow the system calls io_uring_setup, io_uring_enter and io_uring_register in \
             the container's seccomp profile (containerd's default one forbids them), and set the sysctl \
             kernel.io_uring_disabled to 0"
        }
        Some(rustix::io::Errno::NOMEM) => {
            "the locked-memory limit is too low: raise it to 8 MiB (`ulimit -l 8192`, or LimitMEMLOCK=8M in the unit)"
        }
        _ => "see the kernel's log",
    };
    Err(format!("io_uring can't be set up ({error}); {advice}"))
}

/// The core that should be the home core: the one that takes the interrupts of the device below `folder`, as far as
/// that can be told; else the first.
///
/// Completing an asynchronous synchronous write takes work on the interrupt's core; behind a busy loop there it waits
/// for the scheduler. So each core in turn gets a busy loop while another one times writes.
pub fn interrupt_core(cores: &[usize], folder: &Path) -> usize {
    let candidates = &cores[..cores.len().min(CANDIDATES_MAX)];
    if candidates.len() < 2 {
        return cores[0];
    }
    let path = folder.join("probe");
    let mut latencies = Vec::new();
    for (position, busy) in candidates.iter().enumerate() {
        let timing = candidates[(position + 1) % candidates.len()];
        match latency_behind(*busy, timing, &path) {
            Ok(latency) => latencies.push((latency, *busy)),
            Err(error) => {
                tracing::debug!("probing core {busy}: {error}");
                break;
            }
        }
    }
    let _ = fs::remove_file(&path);
    if latencies.len() < candidates.len() {
        return cores[0];
    }
    latencies.sort();
    let (fastest, slowest) = (latencies[0].0, latencies[latencies.len() - 1]);
    tracing::debug!("synchronous writes behind a busy loop, by core: {latencies:?}");
    if slowest.0 >= fastest * SLOWER_AT_LEAST { slowest.1 } else { cores[0] }
}

/// The median time of a synchronous write from core `timing` while core `busy` spins.
fn latency_behind(busy: usize, timing: usize, path: &Path) -> io::Result<Duration> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if pin_to(busy).is_ok() {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        });
        let timer = scope.spawn(|| pin_to(timing).and_then(|()| time_writes(path)));
        let outcome = timer.join().unwrap_or_else(|_| Err(io::Error::other("the probe failed")));
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

fn pin_to(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

fn time_writes(path: &Path) -> io::Result<Duration> {
    let flags = rustix::fs::OFlags::DSYNC.union(rustix::fs::OFlags::DIRECT).bits();
    let flags = i32::try_from(flags).map_err(io::Error::other)?;
    let filler = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    filler.write_all_at(&vec![0; BLOCK_BYTES * 8], 0)?;
    filler.sync_all()?;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    let mut ring = IoUring::new(4)?;
    let block = Block([0; BLOCK_BYTES]);
    let mut times = Vec::new();
    for number in 0..WRITES {
        let len = u32::try_from(BLOCK_BYTES).map_err(io::Error::other)?;
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), block.0.as_ptr(), len)
            .offset(number % 8 * BLOCK_BYTES as u64)
            .build();
        let started = Instant::now();
        // SAFETY: the block and the file outlive the operation: its completion is waited for below.
        #[allow(unsafe_code)]
        unsafe {
            ring.submission().push(&write).map_err(io::Error::other)?;
        }
        ring.submit_and_wait(1)?;
        let result = ring.completion().next().map_or(-1, |entry| entry.result());
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}
