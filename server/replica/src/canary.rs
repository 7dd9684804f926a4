//! Deliberate bugs of the replica, for tests; see [`garboard_canary`].

/// A deliberate bug of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// An entry counts as durable once it was handed to the log (etcd's issue 14370).
    AckBeforeSync,
    /// A vote is not made durable: after a crash the member votes again in the same term.
    VoteForgotten,
    /// Entries are applied before they are durable; their answers wait.
    ApplyAboveDurable,
    /// The applied index that is saved trails what is applied, so that an entry is applied again (etcd's issue 13766).
    SavedIndexBehind,
    /// The log forgets what a checkpoint will hold before the checkpoint is durable (etcd's issue 18055).
    LogForgottenEarly,
    /// Reads are answered before what was acknowledged in an earlier life is applied.
    StaleReadAfterStart,
    /// A put within a transaction makes its event twice (etcd's issue 17247).
    TxnEventTwice,
    /// A range within a transaction may read what is compacted (etcd's issue 18667).
    CompactedReadInTxn,
    /// A renewal does not move a lease's expiry.
    LeaseRenewalLost,
    /// Progress is told while events before it are unsent, and to streams that are behind (etcd's issue 15220).
    ProgressAhead,
    /// Events for which a stalled stream has no room are lost (etcd's issue 17529).
    StarvedEventsLost,
    /// A watch from a future revision is sent events before it (etcd's issue 20221).
    FutureWatchEarly,
    /// A forwarded write that was seen takes effect again.
    RetriesForgotten,
    /// A leader answers a read without asking the others whether it still leads (etcd's issue 20418).
    ReadIndexUnproved,
    /// A follower acknowledges entries that are not durable.
    FollowerAcksEarly,
    /// A new leader counts on a lease's time from its grant, and not from the renewals that the old one answered.
    NewLeaderExpiresEarly,
    /// A watcher that fell behind the floor goes on from there, and is not told (etcd's issue 18089).
    CompactedWatchSkips,
    /// A snapshot is acknowledged before its image is durable in the index's place.
    SnapshotBeforeDurable,
    /// Watchers are not told that a snapshot took the state's place: they go on behind it (etcd's issue 15271).
    RestoredWatchSkips,
    /// Pages that are being loaded while a snapshot takes the state's place are used again before they are there.
    LoadsUnpinned,
    /// A member tries to lead while what a snapshot put in its log's place is not durable.
    CampaignBeforeDurable,
    /// A member that has lost what it acknowledged takes part in elections at once.
    RepairedVotesAtOnce,
    /// A leader goes on counting what a member has lost.
    LostAcknowledgementsCount,
    /// Member 2 stores another value now and then than it was told, and tells watches of.
    StoresDifferently,
}

garboard_canary::switch!();
