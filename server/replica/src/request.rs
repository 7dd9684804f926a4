//! What clients ask of a keyspace and what they are answered, in domain types.
//!
//! Wire bytes become these types at the edge and stop there: nothing behind it sees a raw `range_end`, a sort code or a
//! protobuf message.

use bytes::Bytes;

use crate::members::MemberChange;

/// Names one etcd-visible store within a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyspaceId(pub u32);

/// On whose behalf a request runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// A client that has not authenticated; allowed everything while authentication is off.
    Anonymous,
    /// The server itself: lease expiry, automatic compaction.
    Server,
    /// An authenticated user, as of a revision of the authentication store.
    User {
        /// The user's name.
        name: Bytes,
        /// The authentication store's revision when the token was issued.
        auth_revision: u64,
    },
}

/// What every request carries beside its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The store it is meant for.
    pub keyspace: KeyspaceId,
    /// On whose behalf it runs.
    pub principal: Principal,
}

/// A set of keys, as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRange {
    /// One key.
    Point(Bytes),
    /// All keys `start <= key < end`; empty when `end <= start`.
    Span {
        /// The first key that belongs to it.
        start: Bytes,
        /// The first key beyond it.
        end: Bytes,
    },
    /// All keys `>= start`.
    FromKey(Bytes),
    /// Every key.
    All,
}

/// The order of a range's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortOrder {
    /// As the target implies: key order, or ascending for any other target.
    None,
    /// Smallest first.
    Ascend,
    /// Largest first.
    Descend,
}

/// What a range's result is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortTarget {
    /// The key.
    Key,
    /// The version counter.
    Version,
    /// The creation revision.
    Create,
    /// The modification revision.
    Mod,
    /// The value.
    Value,
}

/// A read of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The keys.
    pub keys: KeyRange,
    /// Most keys to return; 0 or less: no limit.
    pub limit: i64,
    /// The revision to read at; 0 or less: the newest (inside a transaction a negative one is an error).
    pub revision: i64,
    /// Order of the result.
    pub order: SortOrder,
    /// What the order is by.
    pub target: SortTarget,
    /// Answer locally, perhaps stale, without asking the quorum.
    pub serializable: bool,
    /// Leave the values out.
    pub keys_only: bool,
    /// Return the count alone.
    pub count_only: bool,
    /// Smallest modification revision to return; 0: any.
    pub min_mod_revision: i64,
    /// Largest modification revision to return; 0: any.
    pub max_mod_revision: i64,
    /// Smallest creation revision to return; 0: any.
    pub min_create_revision: i64,
    /// Largest creation revision to return; 0: any.
    pub max_create_revision: i64,
}

/// A write of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The key; not empty.
    pub key: Bytes,
    /// The new value.
    pub value: Bytes,
    /// The lease to attach to; 0: none.
    pub lease: i64,
    /// Return what the key held before.
    pub prev_kv: bool,
    /// Keep the key's value.
    pub ignore_value: bool,
    /// Keep the key's lease.
    pub ignore_lease: bool,
}

/// A deletion of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRange {
    /// The keys.
    pub keys: KeyRange,
    /// Return what they held.
    pub prev_kv: bool,
}

/// How a compare relates what it finds to its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOperator {
    /// Found equals the operand.
    Equal,
    /// Found is greater than the operand.
    Greater,
    /// Found is less than the operand.
    Less,
    /// Found differs from the operand.
    NotEqual,
}

/// What a compare looks at, with its operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    /// The version counter.
    Version(i64),
    /// The creation revision.
    Create(i64),
    /// The modification revision.
    Mod(i64),
    /// The value.
    Value(Bytes),
    /// The attached lease.
    Lease(i64),
}

/// One condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The keys; the condition must hold for each.
    pub keys: KeyRange,
    /// The relation.
    pub operator: CompareOperator,
    /// What is looked at and what it is held against.
    pub target: CompareTarget,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Range(Range),
    /// Write.
    Put(Put),
    /// Delete.
    DeleteRange(DeleteRange),
    /// A transaction within.
    Txn(Txn),
}

/// Conditions, and what to do when they all hold or when one does not.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Txn {
    /// The conditions.
    pub compares: Vec<Compare>,
    /// Done when all hold.
    pub success: Vec<Operation>,
    /// Done otherwise.
    pub failure: Vec<Operation>,
}

/// The kinds of alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlarmKind {
    /// All kinds, where one is asked for.
    None,
    /// A member is out of space.
    NoSpace,
    /// A member's data differs from the others'.
    Corrupt,
}

/// One alarm that is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alarm {
    /// The member it is raised for.
    pub member_id: u64,
    /// Its kind.
    pub kind: AlarmKind,
}

/// What changes state, and therefore goes through the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Write one key.
    Put(Put),
    /// Delete keys.
    DeleteRange(DeleteRange),
    /// Run a transaction that may write.
    Txn(Txn),
    /// Forget history below a revision.
    Compact {
        /// The new floor.
        revision: i64,
        /// Answer only once the space is free to reuse.
        physical: bool,
    },
    /// Make a lease. The id is never 0 here: the edge has drawn one.
    LeaseGrant {
        /// The lease.
        id: i64,
        /// Time to live asked for, in seconds.
        ttl_seconds: i64,
    },
    /// End a lease and delete its keys.
    LeaseRevoke {
        /// The lease.
        id: i64,
    },
    /// Raise an alarm.
    AlarmActivate(Alarm),
    /// Take an alarm back.
    AlarmDeactivate(Alarm),
    /// Change a member's record alone: its URLs, or what it says of itself.
    Member(MemberChange),
}

/// A key with its value and history counters.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// Revision of its creation.
    pub create_revision: i64,
    /// Revision of its last change.
    pub mod_revision: i64,
    /// Number of changes since its creation.
    pub version: i64,
    /// The value.
    pub value: Bytes,
    /// The attached lease; 0: none.
    pub lease: i64,
}

/// What a range read found.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RangeResult {
    /// The keys, in the order asked for.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left some out.
    pub more: bool,
    /// Number of keys in the range, whatever limit and filters.
    pub count: i64,
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnResult {
    /// Whether all conditions held.
    pub succeeded: bool,
    /// What each operation of the branch returned, with the revision of the reply's own header.
    pub responses: Vec<OperationResult>,
}

/// What one operation of a transaction returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// A read; the header's revision and the result.
    Range(i64, RangeResult),
    /// A write; the header's revision and the previous pair if asked for.
    Put(i64, Option<KeyValue>),
    /// A deletion; the header's revision, how many, and the previous pairs if asked for.
    DeleteRange(i64, i64, Vec<KeyValue>),
    /// A transaction within; its header is empty.
    Txn(TxnResult),
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The previous pair if asked for.
    Put(Option<KeyValue>),
    /// How many keys went, and the previous pairs if asked for.
    DeleteRange(i64, Vec<KeyValue>),
    /// The branch taken and its results.
    Txn(TxnResult),
    /// The floor moved.
    Compact,
    /// The lease and the time to live it got, in seconds.
    LeaseGrant(i64, i64),
    /// The lease is gone.
    LeaseRevoke,
    /// The alarms this call changed.
    Alarm(Vec<Alarm>),
    /// The member's record is changed.
    Member,
}

/// An answer with the revision for its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The store's revision after the command.
    pub revision: i64,
    /// What it did.
    pub outcome: Outcome,
}
