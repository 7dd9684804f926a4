//! Why a request is refused, in the terms of the domain. The edge maps each to its gRPC code and text, in one place.

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A key is empty where one must be given.
    #[error("key is not provided")]
    EmptyKey,
    /// A put that keeps value or lease names an absent key, or an operation of a transaction is empty.
    #[error("key not found")]
    KeyNotFound,
    /// A put keeps its value and gives one.
    #[error("value is provided")]
    ValueProvided,
    /// A put keeps its lease and gives one.
    #[error("lease is provided")]
    LeaseProvided,
    /// A transaction has more operations than allowed.
    #[error("too many operations in txn request")]
    TooManyOperations,
    /// A branch of a transaction writes a key twice.
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    /// A sort order or target is none of the known ones.
    #[error("invalid sort option")]
    InvalidSortOption,
    /// The request is larger than allowed.
    #[error("request is too large")]
    RequestTooLarge,
    /// The revision asked for is below the floor.
    #[error("required revision has been compacted")]
    Compacted,
    /// The revision asked for does not exist yet.
    #[error("required revision is a future revision")]
    FutureRevision,
    /// A lease's time to live is beyond the largest one.
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    /// No such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// A lease of that id exists.
    #[error("lease already exists")]
    LeaseExists,
    /// The store is full: quota, disk, or an alarm about either.
    #[error("database space exceeded")]
    NoSpace,
    /// A member's data differs from the others'.
    #[error("corrupt cluster")]
    Corrupt,
    /// Proposals run too far ahead of apply, or a queue is full.
    #[error("too many requests")]
    TooManyRequests,
    /// There is no leader to ask.
    #[error("no leader")]
    NoLeader,
    /// Leadership changed while the request was under way.
    #[error("leader changed")]
    LeaderChanged,
    /// There is no such member, or it was removed.
    #[error("member not found")]
    MemberNotFound,
    /// A member of that id exists.
    #[error("member ID already exist")]
    MemberExists,
    /// Another member has one of those peer URLs.
    #[error("peer URLs already exist")]
    PeerUrlExists,
    /// The URLs of a member are none, or too many or too long.
    #[error("given member URLs are invalid")]
    BadMemberUrls,
    /// Too few members have started for the change to be safe.
    #[error("re-configuration failed due to not enough started members")]
    NotEnoughStarted,
    /// Too few members are connected for the change to be safe.
    #[error("unhealthy cluster")]
    Unhealthy,
    /// The member to promote votes already.
    #[error("can only promote a learner member")]
    MemberNotLearner,
    /// The learner to promote lags.
    #[error("can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    /// There are as many learners as there may be.
    #[error("too many learner members in cluster")]
    TooManyLearners,
    /// There are as many members as there may be.
    #[error("too many members in cluster")]
    TooManyMembers,
    /// A member without a vote does not do that.
    #[error("rpc not supported for learner")]
    NotForLearner,
    /// This member does not lead, and only the leader can do that.
    #[error("not leader")]
    NotLeader,
    /// Leadership can't go to that member.
    #[error("bad leader transferee")]
    BadLeaderTransferee,
    /// Leadership did not go over in time.
    #[error("request timed out, leader transfer took too long")]
    LeaderTransferTimeout,
    /// The request was not done in time, which began as an earlier leader failed; it may still take effect.
    #[error("request timed out, possibly due to previous leader failure")]
    LeaderFailedTimeout,
    /// The request was not done in time, and the link to the leader, or to a quorum, was lost meanwhile; it may still
    /// take effect.
    #[error("request timed out, possibly due to connection lost")]
    ConnectionLostTimeout,
    /// The server is stopping.
    #[error("server stopped")]
    Stopped,
    /// The request was not done in time; it may still take effect.
    #[error("request timed out")]
    Timeout,
}
