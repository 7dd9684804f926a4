//! What this machine lets the server do.

use io_uring::IoUring;

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
