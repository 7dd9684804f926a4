//! The io_uring of one executor: what is in flight, and what completed.
//!
//! An operation keeps its place in the slab until the kernel has posted the last completion it will post for it, whether
//! or not anybody still waits. So memory that the kernel may touch is never freed under it, and a place is never used for
//! something else while an old completion is on its way.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use slab::Slab;

use crate::file::{AlignedBuffer, SyncForm};
use crate::socket::Readiness;

/// Operations that can be handed to the kernel at once.
const SUBMISSION_ENTRIES: u32 = 256;
/// Completions that fit before the kernel keeps them elsewhere; sockets post one for each arrival.
const COMPLETION_ENTRIES: u32 = 4096;

/// The bell's own mark on its completions.
const BELL: u64 = u64::MAX;
/// The mark of completions that nobody needs.
const IGNORED: u64 = u64::MAX - 1;
/// Set on the first of two linked operations; both share a place in the slab.
const FIRST: u64 = 1 << 62;

/// `enter` is to run what the kernel has put off for this thread.
const ENTER_GETEVENTS: u32 = 1;

/// What is asked of sockets, once for the socket's life: what comes, and where room is not asked for by itself, that too.
const ARRIVALS: u32 = (libc_poll::IN | libc_poll::RDHUP) as u32;
const ROOM: u32 = libc_poll::OUT as u32;

/// The kernel's poll bits.
mod libc_poll {
    use rustix::event::PollFlags;

    pub const IN: u16 = PollFlags::IN.bits();
    pub const OUT: u16 = PollFlags::OUT.bits();
    pub const RDHUP: u16 = PollFlags::RDHUP.bits();
    pub const HUP: u16 = PollFlags::HUP.bits();
    pub const ERR: u16 = PollFlags::ERR.bits();
}

/// An executor's io_uring.
pub struct Ring {
    ring: IoUring,
    operations: Slab<Operation>,
    /// Whether the kernel can leave out the completion of a first operation that went well.
    skips_success: bool,
    /// Sockets whose standing request ended and is to be made again.
    lapsed: Vec<usize>,
}

enum Operation {
    /// A socket's standing request to be told of what it is ready for.
    Watch(Rc<Readiness>),
    /// A question for room, answered once.
    Room(Rc<Readiness>),
    /// A synchronous write.
    Write(Write),
}

/// A synchronous write in the kernel's hands: one operation, or a write and the sync that is linked to it.
struct Write {
    buffer: AlignedBuffer,
    /// Keeps the descriptor from being used for another file before the kernel has taken it.
    _file: Rc<OwnedFd>,
    /// How the first of two ended, once that is known.
    first: Option<i32>,
    /// How the last one ended.
    last: Option<i32>,
    /// Whether a first one that went well completes visibly.
    first_is_shown: bool,
    linked: bool,
    waker: Option<Waker>,
    abandoned: bool,
}

impl Write {
    /// Whether the kernel is done with it. Where a first operation that goes well is not shown, one that fails is, and is
    /// then the only one: the completion of the last one, which it cancels, is left out.
    fn is_done(&self) -> bool {
        if self.linked && self.first_is_shown {
            return self.first.is_some() && self.last.is_some();
        }
        self.first.is_some() || self.last.is_some()
    }

    /// The bytes written, all of them durable.
    fn outcome(&self) -> io::Result<usize> {
        let written = if self.linked { self.first.unwrap_or(self.whole_length()) } else { self.last.unwrap_or(0) };
        let count = usize::try_from(written).map_err(|_| io::Error::from_raw_os_error(-written))?;
        if self.linked && count == self.buffer.len() {
            let synced = self.last.unwrap_or(0);
            if synced < 0 {
                return Err(io::Error::from_raw_os_error(-synced));
            }
        }
        Ok(count)
    }

    fn whole_length(&self) -> i32 {
        i32::try_from(self.buffer.len()).expect("checked when the write began")
    }
}

impl Ring {
    /// A ring for this thread.
    ///
    /// # Errors
    /// What the kernel answers; `Unsupported` where it is too old.
    pub fn new(processor: Option<usize>) -> io::Result<Ring> {
        let ring = build()?;
        if let Some(processor) = processor {
            keep_workers_on(&ring, processor);
        }
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring here is older than Linux 5.13's"));
        }
        let skips_success = ring.params().is_feature_skip_cqe_on_success();
        Ok(Ring { ring, operations: Slab::new(), skips_success, lapsed: Vec::new() })
    }

    /// Has the next ring of the bell end a wait.
    pub fn listen(&mut self, bell: &OwnedFd) {
        let poll = opcode::PollAdd::new(Fd(bell.as_raw_fd()), u32::from(libc_poll::IN)).build().user_data(BELL);
        // SAFETY: the operation names no memory, and the bell lives as long as the ring.
        #[allow(unsafe_code)]
        unsafe {
            self.push(&[poll]);
        }
    }

    /// Begins a durable write of a whole buffer.
    pub fn write(&mut self, file: &Rc<OwnedFd>, buffer: AlignedBuffer, offset: u64, form: SyncForm) -> usize {
        let descriptor = Fd(file.as_raw_fd());
        let len = i32::try_from(buffer.len()).expect("a write is shorter than 2 GiB");
        let linked = form == SyncForm::ThenFdatasync;
        let key = self.operations.vacant_key();
        let write = opcode::Write::new(descriptor, buffer.as_ptr(), len.unsigned_abs()).offset(offset);
        let shown = !self.skips_success;
        self.operations.insert(Operation::Write(Write {
            buffer,
            _file: file.clone(),
            first: None,
            last: None,
            first_is_shown: shown,
            linked,
            waker: None,
            abandoned: false,
        }));
        // SAFETY: buffer and descriptor stay in the slab until the kernel has posted the last completion.
        #[allow(unsafe_code)]
        unsafe {
            if linked {
                let skip = if shown { Flags::empty() } else { Flags::SKIP_SUCCESS };
                let write = write.build().flags(Flags::IO_LINK | skip).user_data(key as u64 | FIRST);
                let sync = opcode::Fsync::new(descriptor).flags(FsyncFlags::DATASYNC);
                self.push(&[write, sync.build().user_data(key as u64)]);
            } else {
                let dsync = i32::try_from(rustix::io::ReadWriteFlags::DSYNC.bits()).expect("a small flag");
                self.push(&[write.rw_flags(dsync).build().user_data(key as u64)]);
            }
        }
        key
    }

    /// How a write ended, and its buffer.
    pub fn poll_write(&mut self, key: usize, cx: &mut Context<'_>) -> Poll<(io::Result<usize>, AlignedBuffer)> {
        match &mut self.operations[key] {
            Operation::Write(write) if write.is_done() => {}
            Operation::Write(write) => {
                write.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Operation::Watch(_) | Operation::Room(_) => unreachable!("the key of a write names a write"),
        }
        let Operation::Write(write) = self.operations.remove(key) else { unreachable!("looked at just now") };
        Poll::Ready((write.outcome(), write.buffer))
    }

    /// Nobody waits for a write any more; it goes on.
    pub fn abandon_write(&mut self, key: usize) {
        if let Operation::Write(write) = &mut self.operations[key] {
            write.abandoned = true;
            if write.is_done() {
                self.operations.remove(key);
            }
        }
    }

    /// Asks to be told, for a socket's life, when it becomes ready for something.
    pub fn watch(&mut self, socket: &impl AsFd, readiness: Rc<Readiness>) -> usize {
        readiness.descriptor.set(socket.as_fd().as_raw_fd());
        let key = self.operations.insert(Operation::Watch(readiness));
        self.ask(key);
        key
    }

    fn ask(&mut self, key: usize) {
        let Operation::Watch(readiness) = &self.operations[key] else { unreachable!("only sockets are watched") };
        readiness.asked.set(true);
        let events = if readiness.room_on_request.get() { ARRIVALS } else { ARRIVALS | ROOM };
        let poll = opcode::PollAdd::new(Fd(readiness.descriptor.get()), events).multi(true).build();
        // SAFETY: the operation names no memory. A descriptor that is closed before the kernel sees the operation is
        // followed by the request to forget it.
        #[allow(unsafe_code)]
        unsafe {
            self.push(&[poll.user_data(key as u64)]);
        }
    }

    /// Asks to be told once when a socket has room.
    pub fn ask_for_room(&mut self, readiness: &Rc<Readiness>) {
        let key = self.operations.insert(Operation::Room(readiness.clone()));
        readiness.room_asked.set(Some(key));
        let poll = opcode::PollAdd::new(Fd(readiness.descriptor.get()), ROOM).build().user_data(key as u64);
        // SAFETY: the operation names no memory; the descriptor is treated as for `ask`.
        #[allow(unsafe_code)]
        unsafe {
            self.push(&[poll]);
        }
    }

    /// A socket is closed: what was asked for it is taken back.
    pub fn forget(&mut self, key: usize) {
        let Operation::Watch(readiness) = &self.operations[key] else { unreachable!("only sockets are watched") };
        readiness.closed.set(true);
        let room_asked = readiness.room_asked.get();
        if readiness.asked.get() {
            self.take_back(key);
        } else {
            self.operations.remove(key);
        }
        if let Some(key) = room_asked {
            self.take_back(key);
        }
    }

    /// Has a question end; its place in the slab becomes free when the kernel has said so.
    fn take_back(&mut self, key: usize) {
        let remove = opcode::PollRemove::new(key as u64).build().user_data(IGNORED);
        // SAFETY: the operation names no memory.
        #[allow(unsafe_code)]
        unsafe {
            self.push(&[remove]);
        }
    }

    /// Queues operations that belong together.
    ///
    /// # Safety
    /// What they name must live until their last completion.
    #[allow(unsafe_code)]
    unsafe fn push(&mut self, entries: &[Entry]) {
        loop {
            {
                let mut queue = self.ring.submission();
                // SAFETY: passed on to the caller.
                if unsafe { queue.push_multiple(entries) }.is_ok() {
                    return;
                }
            }
            // The kernel takes what is queued, unless it is short of memory; then there is nothing but to ask again.
            let _ = self.ring.submit();
        }
    }

    /// Whether something waits to be handed to the kernel.
    pub fn has_queued(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Hands what is queued to the kernel, and lets it run what it has put off for this thread.
    pub fn submit(&mut self) -> io::Result<()> {
        let (queued, put_off) = {
            let queue = self.ring.submission();
            (queue.len(), queue.taskrun() || queue.cq_overflow())
        };
        if queued == 0 && !put_off {
            return Ok(());
        }
        let queued = u32::try_from(queued).expect("no more than the queue's entries");
        // SAFETY: everything queued was pushed under `push`'s promise, and no argument is given.
        #[allow(unsafe_code)]
        let entered = unsafe { self.ring.submitter().enter::<()>(queued, 0, ENTER_GETEVENTS, None) };
        tolerate(entered)
    }

    /// Hands what is queued to the kernel, and waits until something completes or the time is over.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let time = timeout.map(Timespec::from);
        let args = match &time {
            Some(time) => SubmitArgs::new().timespec(time),
            None => SubmitArgs::new(),
        };
        tolerate(self.ring.submitter().submit_with_args(1, &args))
    }

    /// Takes in what completed, and wakes whoever waits for it. Says whether the bell rang.
    pub fn reap(&mut self) -> bool {
        let mut rung = false;
        let Ring { ring, operations, lapsed, .. } = self;
        for completion in ring.completion() {
            match completion.user_data() {
                BELL => rung = true,
                IGNORED => {}
                mark => {
                    let key = usize::try_from(mark & !FIRST).expect("a key of the slab");
                    match &mut operations[key] {
                        Operation::Watch(readiness) => {
                            let more = cqueue::more(completion.flags());
                            readiness.asked.set(more);
                            if !readiness.closed.get() {
                                tell(readiness, completion.result());
                                if !more && readiness.failure.get() == 0 {
                                    lapsed.push(key);
                                }
                            } else if !more {
                                operations.remove(key);
                            }
                        }
                        Operation::Room(readiness) => {
                            readiness.room_asked.set(None);
                            if !readiness.closed.get() {
                                tell(readiness, completion.result());
                            }
                            operations.remove(key);
                        }
                        Operation::Write(write) => {
                            let half = if mark & FIRST == 0 { &mut write.last } else { &mut write.first };
                            *half = Some(completion.result());
                            if write.is_done() {
                                if let Some(waker) = write.waker.take() {
                                    waker.wake();
                                }
                                if write.abandoned {
                                    operations.remove(key);
                                }
                            }
                        }
                    }
                }
            }
        }
        while let Some(key) = self.lapsed.pop() {
            self.ask(key);
        }
        rung
    }
}

/// Tells a socket's owner what it became ready for.
fn tell(readiness: &Readiness, result: i32) {
    if result < 0 {
        readiness.fail(-result);
        return;
    }
    let events = u16::try_from(result & 0xffff).expect("masked to 16 bits");
    let over = events & (libc_poll::HUP | libc_poll::ERR) != 0;
    if over || events & libc_poll::RDHUP != 0 {
        readiness.hung_up.set(true);
    }
    if over || events & (libc_poll::IN | libc_poll::RDHUP) != 0 {
        readiness.readable();
    }
    if over || events & libc_poll::OUT != 0 {
        readiness.writable();
    }
}

/// The kernel's ways to say "later": the loop comes again.
fn tolerate(outcome: io::Result<usize>) -> io::Result<()> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(
                rustix::io::Errno::TIME | rustix::io::Errno::INTR | rustix::io::Errno::BUSY | rustix::io::Errno::AGAIN,
            ) => Ok(()),
            _ => Err(error),
        },
    }
}

/// Has the kernel's workers, who carry out syncs, run where their executor runs: it waits for them, and other processors
/// may be busy. A kernel that is too old for it (before 5.14) places them as it likes.
fn keep_workers_on(ring: &IoUring, processor: usize) {
    // SAFETY: a set of no processors is all zeroes, and the macro's function checks its bounds.
    #[allow(unsafe_code)]
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        set
    };
    let _ = ring.submitter().register_iowq_aff(&set);
}

/// The leanest ring this kernel has: one whose work runs when this thread enters (Linux 6.1), or at its next system call
/// (5.19), or by interrupting it.
fn build() -> io::Result<IoUring> {
    let mut deferred = IoUring::builder();
    deferred.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut cooperative = IoUring::builder();
    cooperative.setup_coop_taskrun().setup_taskrun_flag();
    let mut plain = IoUring::builder();
    for builder in [&mut deferred, &mut cooperative] {
        match builder.setup_clamp().setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {}
            outcome => return outcome,
        }
    }
    plain.setup_clamp().setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES)
}
