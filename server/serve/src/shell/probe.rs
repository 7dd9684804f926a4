//! What this machine lets the server do: whether io_uring is to be had, and which core takes the log device's
//! interrupts.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use garboard_executor::SyncForm;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{files, interrupts};

/// Cores that are tried; a machine with more has a device with a queue for each, where it does not matter.
const CANDIDATES_MAX: usize = 8;
/// Writes timed for each core.
const WRITES: u64 = 5;
/// A core is the one with the interrupts when writes behind its busy loop take this many times as long as elsewhere.
const SLOWER_AT_LEAST: u32 = 4;
/// A write that takes this long waited for a processor.
const BUSY_LATENCY: Duration = Duration::from_millis(1);
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
            "the kernel has no io_uring, or a seccomp profile hides it: use Linux 5.13 or later, and allow the system \
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

/// What the log's device and this machine's processors do best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDevice {
    /// The core that takes the device's interrupts, as far as that can be told; else the first.
    pub home_core: usize,
    /// The form whose latency is the better one when some core is busy.
    pub sync_form: SyncForm,
}

/// Measures the log's device from `cores`, with each of them busy in turn.
///
/// Completing an O_DSYNC write can take work on the core that takes the interrupts; behind a busy loop there it waits for
/// the scheduler, thousands of microseconds. That tells which core it is, and whether O_DSYNC is a good choice on a
/// machine where somebody else may be busy on it.
///
/// Measuring takes about a tenth of a second, so what was found is kept in the log's folder for the next start.
///
/// Where the kernel names the one processor that takes the interrupts nothing is measured: that is the home, and a busy
/// neighbour there would slow O_DSYNC.
pub fn log_device(cores: &[usize], folder: &Path) -> LogDevice {
    if let Some(home_core) = interrupts::processor(folder).filter(|processor| cores.contains(processor)) {
        return LogDevice { home_core, sync_form: SyncForm::ThenFdatasync };
    }
    let conditions = Conditions::now(cores, folder);
    let kept = folder.join("device");
    if let Some(device) = conditions.as_ref().and_then(|conditions| conditions.recall(&kept)) {
        return device;
    }
    let path = folder.join("probe");
    let outcome = measure(&cores[..cores.len().min(CANDIDATES_MAX)], &path);
    let _ = fs::remove_file(&path);
    match outcome {
        Ok(measured) => {
            let device = choose(&measured);
            tracing::debug!(?measured, ?device, "probed the log's device");
            if let Some(conditions) = conditions.filter(|_| is_telling(&measured))
                && let Err(error) = files::write_durably(&kept, conditions.text(device).as_bytes())
            {
                // A full disk, perhaps: the next start measures again.
                tracing::debug!("keeping what was measured: {error}");
            }
            device
        }
        Err(error) => {
            tracing::debug!("probing the log's device: {error}");
            LogDevice { home_core: cores[0], sync_form: SyncForm::ThenFdatasync }
        }
    }
}

/// What a measurement holds for. Interrupts are placed anew when the machine boots.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Conditions {
    boot: String,
    device: u64,
    cores: Vec<usize>,
}

impl Conditions {
    /// Those of this process; `None` where the kernel does not tell.
    fn now(cores: &[usize], folder: &Path) -> Option<Conditions> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let device = fs::metadata(folder).ok()?.dev();
        Some(Conditions { boot, device, cores: cores.to_vec() })
    }

    /// What was kept, if it was measured under the same conditions.
    fn recall(&self, path: &Path) -> Option<LogDevice> {
        let text = fs::read_to_string(path).ok()?;
        let forms = [SyncForm::Dsync, SyncForm::ThenFdatasync].into_iter();
        let devices = forms.flat_map(|sync_form| {
            self.cores.iter().map(move |home_core| LogDevice { home_core: *home_core, sync_form })
        });
        devices.into_iter().find(|device| self.text(*device) == text)
    }

    /// The file's content for a measurement under these conditions.
    fn text(&self, LogDevice { home_core, sync_form }: LogDevice) -> String {
        let Conditions { boot, device, cores } = self;
        format!("boot {boot}\ndevice {device}\ncores {cores:?}\nhome {home_core}\nsync {sync_form:?}\n")
    }
}

/// Whether a measurement says something about the device, and not only that the machine was busy.
fn is_telling(measured: &[Measured]) -> bool {
    measured.iter().any(|core| core.dsync.min(core.then_fdatasync) < BUSY_LATENCY)
}

/// The median latency of each form while one core is busy.
#[derive(Clone, Copy, Debug)]
struct Measured {
    busy_core: usize,
    dsync: Duration,
    then_fdatasync: Duration,
}

fn measure(cores: &[usize], path: &Path) -> io::Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for (position, busy_core) in cores.iter().enumerate() {
        let timing = cores[(position + 1) % cores.len()];
        measured.push(Measured {
            busy_core: *busy_core,
            dsync: latency_behind(*busy_core, timing, path, SyncForm::Dsync)?,
            then_fdatasync: latency_behind(*busy_core, timing, path, SyncForm::ThenFdatasync)?,
        });
    }
    Ok(measured)
}

fn choose(measured: &[Measured]) -> LogDevice {
    let slowest = measured.iter().max_by_key(|core| core.dsync).expect("at least one core was measured");
    let fastest = measured.iter().map(|core| core.dsync).min().expect("at least one core was measured");
    let told = slowest.dsync >= fastest * SLOWER_AT_LEAST;
    let worst_then_fdatasync = measured.iter().map(|core| core.then_fdatasync).max().unwrap_or_default();
    LogDevice {
        home_core: if told { slowest.busy_core } else { measured[0].busy_core },
        // One operation instead of two, where nothing speaks against it. On a machine that is busy by itself both take
        // milliseconds, and the figures say nothing.
        sync_form: if slowest.dsync <= worst_then_fdatasync && slowest.dsync < BUSY_LATENCY {
            SyncForm::Dsync
        } else {
            SyncForm::ThenFdatasync
        },
    }
}

/// The median time of a synchronous write from core `timing` while core `busy` spins.
fn latency_behind(busy: usize, timing: usize, path: &Path, form: SyncForm) -> io::Result<Duration> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if pin_to(busy).is_ok() {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        });
        let timer = scope.spawn(|| pin_to(timing).and_then(|()| time_writes(path, form)));
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

fn time_writes(path: &Path, form: SyncForm) -> io::Result<Duration> {
    let flags = match form {
        SyncForm::Dsync => rustix::fs::OFlags::DSYNC.union(rustix::fs::OFlags::DIRECT),
        SyncForm::ThenFdatasync => rustix::fs::OFlags::DIRECT,
    };
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let filler = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    filler.write_all_at(&vec![0; BLOCK_BYTES * 8], 0)?;
    filler.sync_all()?;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    let descriptor = types::Fd(file.as_raw_fd());
    let mut ring = IoUring::new(4)?;
    let block = Block([0; BLOCK_BYTES]);
    let len = u32::try_from(BLOCK_BYTES).map_err(io::Error::other)?;
    let mut times = Vec::new();
    for number in 0..WRITES {
        let offset = number % 8 * BLOCK_BYTES as u64;
        let write = opcode::Write::new(descriptor, block.0.as_ptr(), len).offset(offset).build();
        let started = Instant::now();
        complete(&mut ring, &write)?;
        if form == SyncForm::ThenFdatasync {
            complete(&mut ring, &opcode::Fsync::new(descriptor).flags(types::FsyncFlags::DATASYNC).build())?;
        }
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// Submits an operation and waits for it. What it names must live until then.
fn complete(ring: &mut IoUring, operation: &squeue::Entry) -> io::Result<()> {
    // SAFETY: the callers' blocks and files outlive the operation: its completion is waited for right here.
    #[allow(unsafe_code)]
    unsafe {
        ring.submission().push(operation).map_err(io::Error::other)?;
    }
    ring.submit_and_wait(1)?;
    match ring.completion().next().map_or(-1, |entry| entry.result()) {
        error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(busy_core: usize, dsync_us: u64, then_fdatasync_us: u64) -> Measured {
        Measured {
            busy_core,
            dsync: Duration::from_micros(dsync_us),
            then_fdatasync: Duration::from_micros(then_fdatasync_us),
        }
    }

    #[test]
    fn the_core_behind_which_o_dsync_waits_is_the_home_and_o_dsync_is_not_used() {
        let device = choose(&[measured(0, 90, 110), measured(1, 4_000, 127)]);
        assert_eq!(device, LogDevice { home_core: 1, sync_form: SyncForm::ThenFdatasync });
    }

    #[test]
    fn o_dsync_is_used_where_no_busy_core_slows_it() {
        let device = choose(&[measured(2, 20, 35), measured(3, 22, 36)]);
        assert_eq!(device, LogDevice { home_core: 2, sync_form: SyncForm::Dsync });
    }

    #[test]
    fn what_was_measured_is_used_again_under_the_same_conditions_only() {
        let folder = std::env::temp_dir().join(format!("garboard-probe-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("device");
        let conditions = Conditions { boot: "b".to_owned(), device: 7, cores: vec![0, 1] };
        let device = LogDevice { home_core: 1, sync_form: SyncForm::ThenFdatasync };
        assert_eq!(conditions.recall(&path), None);
        files::write_durably(&path, conditions.text(device).as_bytes()).unwrap();
        assert_eq!(conditions.recall(&path), Some(device));
        for other in [
            Conditions { boot: "c".to_owned(), ..conditions.clone() },
            Conditions { device: 8, ..conditions.clone() },
            Conditions { cores: vec![1], ..conditions.clone() },
        ] {
            assert_eq!(other.recall(&path), None);
        }
        fs::write(&path, &conditions.text(device)[..20]).unwrap();
        assert_eq!(conditions.recall(&path), None, "a torn file");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_measurement_on_a_busy_machine_is_not_kept() {
        assert!(is_telling(&[measured(0, 90, 110), measured(1, 4_000, 127)]));
        assert!(!is_telling(&[measured(0, 4_000, 8_000), measured(1, 4_000, 8_000)]));
    }
}
