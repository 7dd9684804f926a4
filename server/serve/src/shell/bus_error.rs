//! SIGBUS: what the kernel sends where a page of the mapped index can't be read. There is no answer that would not be
//! a guess, so the process ends, with a message that says which page of which file.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use garboard_storage::{MappedFile, PageFile};

const PAGE_BYTES: u64 = 4_096;
const ADVICE: &[u8] = b") can't be read; nothing of it was served. Check the device and the kernel's log, then start \
    again; if it stays so, restore the member from a snapshot into an empty --data-dir\n";

/// The mapped index and its path; once set, it stays for as long as the process lives.
static WATCHED: OnceLock<(Arc<MappedFile>, Vec<u8>)> = OnceLock::new();

/// Watches over a mapped index: from now on a page of it that can't be read ends the process with a message.
///
/// # Errors
/// Where the handler can't be installed.
pub fn watch(index: Arc<MappedFile>, path: &Path) -> io::Result<()> {
    assert!(WATCHED.set((index, path.as_os_str().as_bytes().to_vec())).is_ok(), "a process serves one index");
    install()
}

/// The path of the index that is watched over.
pub fn watched_path() -> PathBuf {
    WATCHED.get().map_or_else(PathBuf::new, |(_, path)| PathBuf::from(OsStr::from_bytes(path)))
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
    let page = WATCHED.get().and_then(|(index, path)| Some((index.map().page_at(address)?, path)));
    let Some((page, path)) = page else {
        // Not the index: end as the system does by default, at the same instruction.
        // SAFETY: changing a disposition is allowed in a handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        return;
    };
    let (number, offset) = (Digits::of(u64::from(page)), Digits::of(u64::from(page) * PAGE_BYTES));
    let pieces: [&[u8]; 7] =
        [b"garboard: ", path, b": page ", number.text(), b" of the index (offset ", offset.text(), ADVICE];
    let vectors = pieces.map(|piece| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
    // SAFETY: each vector is the memory of a piece, which is only read; both calls are allowed in a handler.
    unsafe {
        libc::writev(libc::STDERR_FILENO, vectors.as_ptr(), 7);
        libc::_exit(1);
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
