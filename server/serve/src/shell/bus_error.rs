//! SIGBUS: what the kernel sends where a page of the mapped index can't be read. There is no answer that would not be
//! a guess, so the process ends, with a message that says which page of which file.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use garboard_storage::{MappedFile, PageFile};

use super::repair;

const PAGE_BYTES: u64 = 4_096;
/// What to do about a page where no other member can help.
pub const RESTORE_ADVICE: &str = "Check the device and the kernel's log, then start again; if it stays so, restore the \
                                  member from a snapshot into an empty --data-dir";
/// The same where others can.
pub const REFILL_ADVICE: &str = "Check the device and the kernel's log, then start again: this member is then refilled \
                                 from its peers";

/// The mapped index and its path; what was once set stays for as long as the process lives.
static WATCHED: AtomicPtr<Watched> = AtomicPtr::new(std::ptr::null_mut());

type Watched = (Arc<MappedFile>, Vec<u8>);

#[allow(unsafe_code)]
fn watched() -> Option<&'static Watched> {
    // SAFETY: the pointer is null or comes from a box that is never freed, and nobody has a unique reference to it.
    unsafe { WATCHED.load(Ordering::Acquire).as_ref() }
}

/// Watches over a mapped index: from now on a page of it that can't be read ends the process with a message. It takes the
/// place of one that was watched before.
///
/// # Errors
/// Where the handler can't be installed.
pub fn watch(index: Arc<MappedFile>, path: &Path) -> io::Result<()> {
    WATCHED.store(Box::into_raw(Box::new((index, path.as_os_str().as_bytes().to_vec()))), Ordering::Release);
    install()
}

/// The path of the index that is watched over.
pub fn watched_path() -> PathBuf {
    watched().map_or_else(PathBuf::new, |(_, path)| PathBuf::from(OsStr::from_bytes(path)))
}

#[allow(unsafe_code)]
fn install() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    // SAFETY: all zeros are a valid `sigaction`; the handler has the signature that SA_SIGINFO asks for and does only
    // what a signal handler may; the pointers are to values that outlive the call.
    let outcome = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes no lock, allocates nothing and needs little stack: it runs wherever a page was touched, on the few kilobytes that
/// a thread has for signals.
#[allow(unsafe_code)]
extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo, whose address field SIGBUS sets.
    let address = unsafe { (*info).si_addr() }.addr();
    let page = watched().and_then(|(index, path)| Some((index.map().page_at(address)?, path)));
    let Some((page, path)) = page else {
        // Not the index: end as the system does by default, at the same instruction.
        // SAFETY: changing a disposition is allowed in a handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        return;
    };
    let (number, offset) = (Digits::of(u64::from(page)), Digits::of(u64::from(page) * PAGE_BYTES));
    let advice = if leave_mark() { REFILL_ADVICE } else { RESTORE_ADVICE };
    let pieces: [&[u8]; 9] = [
        b"garboard: ",
        path,
        b": page ",
        number.text(),
        b" of the index (offset ",
        offset.text(),
        b") can't be read; nothing of it was served. ",
        advice.as_bytes(),
        b"\n",
    ];
    let vectors = pieces.map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
    // SAFETY: each vector is the memory of a piece, which is only read; both calls are allowed in a handler.
    unsafe {
        libc::writev(libc::STDERR_FILENO, vectors.as_ptr(), 9);
        libc::_exit(1);
    }
}

/// Leaves a mark that the index is damaged, durably, where other members can refill it at the next start. Takes no lock and
/// allocates nothing. False where there are none, or where it can't be written.
#[allow(unsafe_code)]
pub fn leave_mark() -> bool {
    let Some(prepared) = repair::prepared() else { return false };
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: the names end with a nought and live for ever, the text is memory that is only read, and every call is one
    // that a signal handler may make.
    unsafe {
        let file = libc::open(prepared.temporary.as_ptr(), flags, 0o600);
        if file < 0 {
            return false;
        }
        let wanted = prepared.text.len();
        let written = libc::write(file, prepared.text.as_ptr().cast(), wanted);
        usize::try_from(written) == Ok(wanted)
            && libc::fsync(file) == 0
            && libc::rename(prepared.temporary.as_ptr(), prepared.path.as_ptr()) == 0
    }
}

/// A number as text, made without allocating.
struct Digits {
    bytes: [u8; 20],
    first: usize,
}

impl Digits {
    fn of(number: u64) -> Digits {
        let mut digits = Digits { bytes: [b'0'; 20], first: 20 };
        let mut rest = number;
        while rest > 0 || digits.first == 20 {
            digits.first -= 1;
            // A remainder of ten is below ten, so the fallback is never taken; a handler must not unwind.
            digits.bytes[digits.first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        digits
    }

    fn text(&self) -> &[u8] {
        &self.bytes[self.first..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 7, 40_960, u64::MAX] {
            assert_eq!(Digits::of(number).text(), number.to_string().as_bytes());
        }
    }
}
