//! Files that are written durably, past the page cache or through it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::tasks::Local;

/// What O_DIRECT wants addresses, offsets and lengths to be a multiple of.
pub const BLOCK_BYTES: usize = 4096;

/// How a write is made synchronous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncForm {
    /// One operation whose completion says that it is durable (RWF_DSYNC).
    Dsync,
    /// A write, and an fdatasync that the kernel begins when the write has ended.
    ThenFdatasync,
}

/// Memory the device can read directly. All of it is initialised.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

impl AlignedBuffer {
    /// `len` zero bytes, at an address that is a multiple of [`BLOCK_BYTES`].
    pub fn zeroed(len: usize) -> AlignedBuffer {
        let capacity = len.max(1).next_multiple_of(BLOCK_BYTES);
        let layout = layout(capacity);
        // SAFETY: the layout's size is not zero.
        #[allow(unsafe_code)]
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => AlignedBuffer { start, len, capacity },
            None => handle_alloc_error(layout),
        }
    }

    /// Makes it `len` bytes long, of whatever was in it; `false` if it is too small.
    pub fn set_len(&mut self, len: usize) -> bool {
        let fits = len <= self.capacity;
        if fits {
            self.len = len;
        }
        fits
    }

    /// Its length, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes it could hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Its bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is this buffer's alone, initialised, and `len` is at most its capacity.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len)
        }
    }

    /// Where it begins.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        #[allow(unsafe_code)]
        unsafe {
            dealloc(self.start.as_ptr(), layout(self.capacity));
        }
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, BLOCK_BYTES).expect("buffers are far smaller than the address space")
}

/// An open file that this thread's executor writes.
#[derive(Debug)]
pub struct File(Rc<OwnedFd>);

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        File(Rc::new(file.into()))
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl File {
    /// Writes a buffer, durably, and gives it back with the number of bytes that were written. A write whose future is
    /// dropped goes on.
    ///
    /// # Errors
    /// What the device answers to the write or to the sync.
    pub fn write(
        &self,
        buffer: AlignedBuffer,
        offset: u64,
        form: SyncForm,
    ) -> impl Future<Output = (io::Result<usize>, AlignedBuffer)> + use<> {
        let key = Local::current().ring.borrow_mut().write(&self.0, buffer, offset, form);
        InFlight { key: Some(key) }
    }
}

/// A write on its way.
struct InFlight {
    /// Its name in the ring, until it has ended.
    key: Option<usize>,
}

impl Future for InFlight {
    type Output = (io::Result<usize>, AlignedBuffer);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let key = self.key.expect("not polled again after its end");
        let outcome = std::task::ready!(Local::current().ring.borrow_mut().poll_write(key, cx));
        self.key = None;
        Poll::Ready(outcome)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            Local::current().ring.borrow_mut().abandon_write(key);
        }
    }
}
