//! Deliberate bugs, planted one at a time, with which tests prove that their nets catch.
//!
//! Only the feature `canaries` brings them in, which tests alone turn on: without it [`is_on`] is a constant `false`, and
//! nothing of a bug is left in the program.

/// A deliberate bug of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A write that is done acknowledges every batch before it, although their writes are still in flight.
    AcknowledgedOutOfOrder,
    /// A batch's header says that every batch before it is durable, although they are still in flight.
    DurableClaimedEarly,
    /// A checkpoint gives all durable segments back, those behind its anchor too.
    SegmentReusedEarly,
    /// Recovery takes a batch whose body does not pass its checksum.
    TornBatchAccepted,
    /// Recovery does not ask what headers say of how much was durable.
    DurableSequenceIgnored,
    /// A log that is opened again goes on in the old epoch, without an epoch start.
    EpochStartMissing,
}

#[cfg(not(feature = "canaries"))]
pub(crate) const fn is_on(_: Canary) -> bool {
    false
}

#[cfg(feature = "canaries")]
mod switch {
    use std::cell::Cell;

    use super::Canary;

    thread_local! {
        static PLANTED: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    pub(crate) fn is_on(canary: Canary) -> bool {
        PLANTED.get() == Some(canary)
    }

    /// Keeps a bug in this thread's logs until it is dropped.
    #[derive(Debug)]
    #[must_use = "the bug is gone with it"]
    pub struct Planted(());

    /// Plants a bug in the logs of this thread.
    pub fn plant(canary: Canary) -> Planted {
        assert!(PLANTED.replace(Some(canary)).is_none(), "one bug at a time");
        Planted(())
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
}

#[cfg(feature = "canaries")]
pub(crate) use switch::is_on;
#[cfg(feature = "canaries")]
pub use switch::{Planted, plant};
