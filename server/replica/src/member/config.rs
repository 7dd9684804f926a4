//! What a member is made of.

use core::time::Duration;

use garboard_storage::{Index, OpenFacts, Paged};
use garboard_wal as wal;

use crate::alarm::Alarms;
use crate::apply::Machine;
use crate::auto_compaction::AutoCompaction;
use crate::corruption::CorruptionChecks;
use crate::lease::Lessor;
use crate::limits::{
    CATCH_UP_COMMANDS, CHECKPOINT_LOG_BYTES, LEARNERS_MAX_DEFAULT, PENDING_BYTES_MAX, REQUEST_TIME_BASE,
    TRANSFER_BYTES_PER_SECOND,
};
use crate::members::{Attributes, MemberRecord, Members};
use crate::quota::Quota;
use crate::raft::{Membership, MembershipError, RaftConfig, Restored};
use crate::repair::Loss;
use crate::request::KeyspaceId;
use crate::sessions::Sessions;
use crate::system::{self, SystemError};

/// A member's configuration.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The store.
    pub keyspace: KeyspaceId,
    /// The member's id; not 0.
    pub member_id: u64,
    /// Differs at each start of the member, and is larger than at any earlier one as long as its clock does not go back.
    pub boot: u64,
    /// The members of a new cluster. Where the index knows a membership, that counts.
    pub initial_members: Membership,
    /// What is known of them. The others have an empty record until they say who they are.
    pub initial_records: Vec<MemberRecord>,
    /// What this member says of itself once there is a leader; nothing: it says nothing.
    pub attributes: Option<Attributes>,
    /// Whether changes of the members that could lose the quorum are refused.
    pub strict_reconfig: bool,
    /// Most learners.
    pub learners_max: usize,
    /// Make this member the only one, whatever its log says. What it holds stays.
    pub force_new_cluster: bool,
    /// How long without a leader until an election.
    pub election_timeout: Duration,
    /// How often a leader shows that it is one.
    pub heartbeat_interval: Duration,
    /// Seed of the election timer's jitter.
    pub seed: u64,
    /// The quota as the flag gives it: 0 is the default, a negative number switches it off.
    pub quota_bytes: i64,
    /// Automatic compaction.
    pub auto_compaction: AutoCompaction,
    /// Prepared log space below which, when the disk is full, writes that grow the store are refused.
    pub log_reserve_bytes: u64,
    /// Log behind the newest checkpoint above which the next one is due, which bounds what a start replays to about twice
    /// as much.
    pub checkpoint_log_bytes: u64,
    /// See [`PENDING_BYTES_MAX`], which is its default.
    pub pending_bytes_max: u64,
    /// Commands of applied entries that are kept in memory for members that lag; see [`CATCH_UP_COMMANDS`].
    pub catch_up_commands: u64,
    /// Bytes a second of the snapshots that it sends; see [`TRANSFER_BYTES_PER_SECOND`].
    pub transfer_bytes_per_second: u64,
    /// This member has lost something that it had acknowledged, and what it knows of itself. Given at every start until
    /// [`super::Effect::Repaired`]; a member that starts with nothing has no initial members then.
    pub loss: Option<Loss>,
    /// Which checks of members' states it makes.
    pub corruption: CorruptionChecks,
}

impl MemberConfig {
    /// The only member of a new cluster, with etcd's defaults.
    pub fn single(member_id: u64) -> MemberConfig {
        MemberConfig {
            keyspace: KeyspaceId(0),
            member_id,
            boot: 0,
            initial_members: Membership::single(member_id),
            initial_records: Vec::new(),
            attributes: None,
            strict_reconfig: true,
            learners_max: LEARNERS_MAX_DEFAULT,
            force_new_cluster: false,
            election_timeout: Duration::from_millis(1_000),
            heartbeat_interval: Duration::from_millis(100),
            seed: member_id,
            quota_bytes: 0,
            auto_compaction: AutoCompaction::Off,
            log_reserve_bytes: wal::limits::ROOM_RESERVE_DEFAULT_BYTES,
            checkpoint_log_bytes: CHECKPOINT_LOG_BYTES,
            pending_bytes_max: PENDING_BYTES_MAX,
            catch_up_commands: CATCH_UP_COMMANDS,
            transfer_bytes_per_second: TRANSFER_BYTES_PER_SECOND,
            loss: None,
            corruption: CorruptionChecks::default(),
        }
    }

    /// The records of a new cluster.
    pub(super) fn founding_members(&self) -> Members {
        let mut members = Members::founding(self.initial_records.iter().cloned());
        members.complete(&self.initial_members);
        members
    }

    pub(super) fn raft(&self) -> RaftConfig {
        RaftConfig {
            id: self.member_id,
            boot: self.boot,
            election_timeout: self.election_timeout,
            heartbeat_interval: self.heartbeat_interval,
            seed: self.seed,
            catch_up_commands: self.catch_up_commands,
        }
    }

    /// The machine over an index, with its tables read from it.
    pub(super) fn machine(&self, index: Index, membership: &Membership) -> Result<Machine, OpenError> {
        let Tables { lessor, alarms, members, sessions } = self.tables(&index, membership)?;
        Ok(Machine::new(index, lessor, alarms, members, sessions, Quota::from_flag(self.quota_bytes)))
    }

    /// The tables that an index holds.
    pub(super) fn tables(&self, index: &Index, membership: &Membership) -> Result<Tables, OpenError> {
        let leases = resident(index, |index| system::leases(&index.view()))?;
        let alarms = resident(index, |index| system::alarms(&index.view()))?;
        let members = resident(index, |index| Members::restore(&index.view(), membership))?;
        let sessions = resident(index, |index| system::sessions(&index.view()))?;
        let lessor = Lessor::new(self.election_timeout, self.heartbeat_interval, leases?);
        let (alarms, sessions) = (Alarms::restore(alarms?), Sessions::restore(sessions?));
        Ok(Tables { lessor, alarms, members: members?, sessions })
    }

    /// How long a request waits at most: etcd's time limit.
    pub fn request_timeout(&self) -> Duration {
        REQUEST_TIME_BASE + 2 * self.election_timeout
    }
}

/// The tables that an index holds.
pub(super) struct Tables {
    pub(super) lessor: Lessor,
    pub(super) alarms: Alarms,
    pub(super) members: Members,
    pub(super) sessions: Sessions,
}

/// Reads from an index while opening, when waiting for the disk holds nobody up.
fn resident<T>(index: &Index, mut read: impl FnMut(&Index) -> Paged<T>) -> Result<T, OpenError> {
    let reader = index.reader();
    loop {
        match read(index) {
            Ok(value) => return Ok(value),
            Err(need) => reader.load(need.0)?,
        }
    }
}

/// Why a member can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The index's tables can't be read.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A page of the index can't be loaded.
    #[error("the index's tables can't be loaded")]
    Page(#[from] garboard_storage::PageError),
    /// The membership in the index's meta page can't be read.
    #[error("the membership in the index can't be read")]
    Membership(#[from] MembershipError),
}

/// What the log and the index hold at a start.
#[derive(Clone, Debug)]
pub struct RecoveredState {
    /// The index's applied state.
    pub applied: garboard_storage::Applied,
    /// The membership at that point.
    pub membership: Membership,
    /// The log's hard state.
    pub hard_state: wal::HardState,
    /// The log's entries beyond the applied index.
    pub entries: Vec<wal::Entry>,
}

impl RecoveredState {
    /// From what opening the index and recovering the log gave.
    pub fn new(
        config: &MemberConfig,
        facts: &OpenFacts,
        hard_state: wal::HardState,
        entries: Vec<wal::Entry>,
    ) -> Result<RecoveredState, MembershipError> {
        let membership = if config.force_new_cluster {
            Membership::single(config.member_id)
        } else if facts.conf.is_empty() {
            config.initial_members.clone()
        } else {
            Membership::from_bytes(&facts.conf)?
        };
        Ok(RecoveredState { applied: facts.applied, membership, hard_state, entries })
    }

    pub(super) fn founding(config: &MemberConfig) -> RecoveredState {
        RecoveredState {
            applied: garboard_storage::Applied::default(),
            membership: config.initial_members.clone(),
            hard_state: wal::HardState::default(),
            entries: Vec::new(),
        }
    }

    pub(super) fn restored(self) -> Restored {
        Restored {
            applied_index: self.applied.index,
            applied_term: self.applied.term,
            membership: self.membership,
            hard_state: self.hard_state,
            entries: self.entries,
        }
    }
}
