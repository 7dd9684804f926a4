//! How long a thread runs before another has its turn.

use std::time::Duration;

/// The shortest turn that Linux grants.
const SHORT_TURN: Duration = Duration::from_micros(100);

/// Asks for short turns for this thread. Since Linux 6.12 the scheduler takes an ordinary thread's wish for the length of
/// its turns (`sched_setattr(2)`, `sched_runtime`): one with shorter turns has an earlier deadline and interrupts one with
/// longer ones when it wakes. An older kernel ignores the wish, or refuses it, and nothing changes.
pub fn ask_for_short_turns() {
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).expect("a small structure"),
        sched_policy: u32::try_from(libc::SCHED_OTHER).expect("a small number"),
        sched_flags: 0,
        sched_nice: nice(),
        sched_priority: 0,
        sched_runtime: u64::try_from(SHORT_TURN.as_nanos()).expect("a short time"),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure outlives the call, which reads as many bytes as its first field says. It is a wish: where it
    // is refused the thread runs as any other.
    #[allow(unsafe_code)]
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
    }
}

/// The niceness this thread has, which stays.
fn nice() -> i32 {
    // SAFETY: the call takes no memory.
    #[allow(unsafe_code)]
    unsafe {
        libc::getpriority(libc::PRIO_PROCESS, 0)
    }
}
