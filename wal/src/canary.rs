//! Deliberate bugs of the log, for tests; see [`garboard_canary`].

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

garboard_canary::switch!();
