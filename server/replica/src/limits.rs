//! Bounds of a replica. Everything that can grow has one, with a stated behaviour when it is reached.

use core::time::Duration;

/// A Raft entry is closed once its encoded commands reach this size. A single command may exceed it: it then has the
/// entry to itself.
pub const ENTRY_BYTES_MAX: usize = 256 * 1024;

/// A Raft entry is closed once it holds this many commands.
pub const ENTRY_COMMANDS_MAX: usize = 1_024;

/// Commands committed and not yet applied beyond which new writes are answered [`crate::Error::TooManyRequests`].
pub const UNAPPLIED_COMMANDS_MAX: u64 = 5_000;

/// Commands proposed and not yet applied beyond which new writes are answered [`crate::Error::TooManyRequests`].
pub const PENDING_COMMANDS_MAX: u64 = 65_536;

/// Encoded bytes proposed and not yet applied beyond which new writes are answered
/// [`crate::Error::TooManyRequests`]. It also bounds the memory cache of log entries above the applied index.
pub const PENDING_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Bytes of applied entries that a member keeps in memory for members that lag. Who lags further needs a snapshot.
pub const CATCH_UP_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Messages for other members that nobody has taken. Beyond it the oldest are dropped, as a network would.
pub const MESSAGES_MAX: usize = 4_096;

/// Bytes of one forward: an entry that holds one request of the largest size that a server can be set to take.
pub const FORWARD_BYTES_MAX: usize = garboard_transport::limits::BODY_BYTES_MAX as usize - 4_096;

/// Ranges of refused writes in one message.
pub const REFUSED_RANGES_MAX: usize = ENTRY_COMMANDS_MAX;

/// Reads that wait for a read index beyond which new ones are answered [`crate::Error::TooManyRequests`].
pub const WAITING_READS_MAX: usize = 65_536;

/// What a request may take beside two election timeouts: then it is answered [`crate::Error::Timeout`] or a text that says
/// more.
pub const REQUEST_TIME_BASE: Duration = Duration::from_secs(5);

/// Writes of this member's clients that are under way beyond which new ones are answered
/// [`crate::Error::TooManyRequests`].
pub const OUTBOX_WRITES_MAX: usize = 65_536;

/// The same in bytes.
pub const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Writes that whom they were sent to did not take, because it does not lead, are sent again after this long, if no
/// other leader was heard of before.
pub const FORWARD_PAUSE: Duration = Duration::from_millis(50);

/// Bytes of forwarded writes that a leader keeps while it hands leadership over, or until it may refuse. What is beyond
/// is dropped: its member sends it again.
pub const HELD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Ranges of refused writes that a leader remembers for each member, for answers that got lost. Those of older ones are
/// found out when a later write is applied.
pub const REMEMBERED_REFUSALS_MAX: usize = 256;

/// Questions to the leader that wait for its answers, beyond which new ones are answered
/// [`crate::Error::TooManyRequests`].
pub const QUESTIONS_MAX: usize = 65_536;

/// A question that the leader has not answered is asked again after this long.
pub const QUESTION_RETRY: Duration = Duration::from_millis(500);

/// Streams that need a leader end when there was none for so many election timeouts.
pub const LEADERLESS_ELECTIONS: u32 = 3;

/// A leader that heard from a quorum serves keep-alives without asking it again for so many heartbeats.
pub const PROOF_HEARTBEATS: u32 = 3;

/// A read index that was asked for and not confirmed is asked for anew after this long.
pub const READ_INDEX_RETRY: Duration = Duration::from_millis(500);

/// Commands applied before the state is published and answers leave, rounded up to whole entries.
pub const APPLY_BATCH_COMMANDS: usize = 1_024;

/// Revisions examined by one step of physical compaction.
pub const COMPACTION_STEP_RECORDS: usize = 32;

/// Pause between two steps of physical compaction.
pub const COMPACTION_PAUSE: Duration = Duration::from_micros(500);

/// Hashes of compactions that are kept, as many as etcd keeps. Beyond it the oldest is forgotten.
pub const KEPT_HASHES_MAX: usize = 10;

/// Requests that wait for the hash of the compaction under way. Further ones are told that it is not known.
pub const HASH_WAITERS_MAX: usize = 1_024;

/// A request that has waited this long for the hash of the compaction under way is told that it is not known.
pub const HASH_WAIT_MAX: Duration = Duration::from_secs(3);

/// Log behind the newest checkpoint above which the next one is due. What a start replays is bounded by about twice as
/// much: the next checkpoint hurries so that it is done before the log has grown by as much again.
pub const CHECKPOINT_LOG_BYTES: u64 = 32 * 1024 * 1024;

/// How long a stop waits for its checkpoint. What is not saved by then is replayed at the next start.
pub const STOP_SAVE_MAX: Duration = Duration::from_secs(2);

/// While a full disk stops checkpoints, one is tried this often.
pub const CHECKPOINT_RETRY: Duration = Duration::from_secs(1);

/// How long a leader whose disk is full waits before it asks another member once more to lead instead.
pub const FULL_DISK_HANDOVER_RETRY: Duration = Duration::from_secs(5);

/// While the index has as many changed pages in memory as it may, apply looks this often whether it can go on.
pub const APPLY_RETRY: Duration = Duration::from_millis(1);

/// The longest time to live of a lease, in seconds.
pub const LEASE_TTL_MAX_SECONDS: i64 = 9_000_000_000;

/// Leases whose expiry is proposed in one entry.
pub const REVOKE_BATCH_MAX: usize = 100;

/// Time between two such entries: together with [`REVOKE_BATCH_MAX`] at most 1,000 expiries a second.
pub const REVOKE_INTERVAL: Duration = Duration::from_millis(100);

/// When the revocation of an expired lease failed, it is proposed again after this long.
pub const REVOKE_RETRY: Duration = Duration::from_secs(3);

/// Keep-alives that wait for expired leases to be revoked, beyond which new ones are answered
/// [`crate::Error::TooManyRequests`].
pub const WAITING_KEEPALIVES_MAX: usize = 65_536;

/// Most members of a cluster, learners included. Beyond it adding one is refused.
pub const MEMBERS_MAX: usize = 64;

/// Most learners, as etcd has it by default. Beyond it adding one is refused.
pub const LEARNERS_MAX_DEFAULT: usize = 1;

/// Most URLs of a member for its peers, and for its clients. A change with more is refused.
pub const URLS_PER_MEMBER_MAX: usize = 64;

/// Longest URL, and longest name, of a member, in bytes. A change with a longer one is refused.
pub const URL_BYTES_MAX: usize = 4_096;

/// A peer counts as connected, where members are added or removed, once it has been for so long without a break.
pub const CONNECTED_MIN: Duration = Duration::from_secs(5);

/// Changes of the members that wait for their turn or for their answer. Further ones are answered
/// [`crate::Error::TooManyRequests`].
pub const MEMBER_CHANGES_MAX: usize = 64;

/// A change of the members that is not done after this long is answered [`crate::Error::Timeout`].
pub const MEMBER_CHANGE_WAIT_MAX: Duration = Duration::from_secs(7);

/// While what a member says of itself is not in its record, it says it this often.
pub const PUBLISH_RETRY: Duration = Duration::from_secs(1);

/// Length of a Raft tick.
pub const TICK: Duration = Duration::from_millis(10);

/// Revisions between the records of the automatic compaction's window: the window is divided by this.
pub const AUTO_COMPACTION_DIVISOR: u32 = 10;

/// How often automatic compaction by revision looks.
pub const AUTO_COMPACTION_REVISION_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Fixed cost of a key-value pair against the quota, beside its key and value.
pub const QUOTA_COST_PAIR: u64 = 256;

/// Cost of a lease against the quota.
pub const QUOTA_COST_LEASE: u64 = 64;

/// The quota when none is given.
pub const QUOTA_DEFAULT_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// Depth to which transactions nest: what the entry decoder follows and evaluation accepts. Validation allows no more
/// levels than operations.
pub const TXN_DEPTH_MAX: usize = 160;

const _: () = assert!(REVOKE_BATCH_MAX as u128 * 1_000 / REVOKE_INTERVAL.as_millis() <= 1_000);
const _: () = assert!(UNAPPLIED_COMMANDS_MAX <= PENDING_COMMANDS_MAX);
const _: () = assert!(ENTRY_BYTES_MAX as u64 <= PENDING_BYTES_MAX);

/// Bytes a second of all snapshots that a member sends, together, unless its configuration says otherwise.
pub const TRANSFER_BYTES_PER_SECOND: u64 = 32 * 1024 * 1024;

/// Chunks of a snapshot that were sent and are not built into trees. The sender waits beyond it, and the receiver keeps no
/// more in memory.
pub const TRANSFER_CHUNKS_IN_FLIGHT_MAX: usize = 8;

/// Snapshots that a member sends at once. Who needs one beyond that asks again.
pub const TRANSFERS_MAX: usize = 8;

/// Bytes that the copies of the *system* tree take for snapshots on their way, beyond which no other is begun; one that is
/// larger by itself can't be sent.
pub const TRANSFER_COPY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Pages that one step of a sender reads from the kernel's cache before it lets others have their turn.
pub const TRANSFER_LOADS_MAX: usize = 64;

/// A sender that has nothing to send, or has heard nothing, repeats its offer after this long.
pub const TRANSFER_OFFER_INTERVAL: Duration = Duration::from_secs(1);

/// A side that hears nothing of the other for this long gives up.
pub const TRANSFER_IDLE_MAX: Duration = Duration::from_secs(30);

/// Entries behind a snapshot that was installed are kept for its receiver for this long.
pub const TRANSFER_CATCH_UP: Duration = Duration::from_secs(30);

/// Physical compaction waits for a snapshot that is being sent no longer than this, or than twice the time that the index
/// takes at the rate; the snapshot is given up then.
pub const TRANSFER_HOLD_MAX: Duration = Duration::from_secs(10 * 60);

/// A receiver that could not take a snapshot in takes no other for this long.
pub const TRANSFER_RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Commands of applied entries that a member keeps in memory for members that lag, by default. Who lags further needs a
/// snapshot.
pub const CATCH_UP_COMMANDS: u64 = 5_000;

/// Bytes of applied entries that a member keeps in memory for the receivers of snapshots on their way, which need them
/// afterwards.
pub const CATCH_UP_TRANSFER_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How often a member under repair asks the others again.
pub const REPAIR_ASK_INTERVAL: Duration = Duration::from_millis(250);

/// How often it says what it waits for.
pub const REPAIR_NOTICE_INTERVAL: Duration = Duration::from_secs(5);

/// Revisions that one step of a hash for a corruption check goes over: some tens of microseconds.
pub const HASH_STEP_RECORDS: usize = 64;

/// Pause between two such steps.
pub const HASH_PAUSE: Duration = Duration::from_micros(100);

/// The same while writes are under way, which long reads give way to.
pub const HASH_PAUSE_BUSY: Duration = Duration::from_micros(450);

/// Hashes for corruption checks that are wanted at once, one of each member. Who asks beyond is told that it is busy.
pub const HASH_QUESTIONS_MAX: usize = MEMBERS_MAX + 1;

/// A member that is asked for its hash as of an entry has this long to apply it. Then it is passed over.
pub const HASH_LAG_MAX: Duration = Duration::from_secs(3);

/// In a corruption check, members that have not answered are asked again after this long.
pub const CHECK_AGAIN: Duration = Duration::from_secs(1);

/// How often a corruption check is tried where members lag or compact meanwhile. Then they are passed over.
pub const CHECK_ATTEMPTS_MAX: u32 = 4;

/// Pause between two attempts.
pub const CHECK_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A leader that can't prove for so long that it is one gives a check up.
pub const CHECK_PROOF_MAX: Duration = Duration::from_secs(10);

/// What a leader's check may take. Who has not answered then is passed over.
pub const CHECK_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// How long the initial check waits for what the others have shown by then. After that it compares what there is.
pub const INITIAL_CHECK_JOIN_MAX: Duration = Duration::from_secs(3);

/// Members to which there is no link so long after the initial check asked are passed over in it.
pub const INITIAL_CHECK_LINK_MAX: Duration = Duration::from_secs(1);

/// What the initial check may take. Who has not answered then is passed over.
pub const INITIAL_CHECK_MAX: Duration = Duration::from_secs(30);
