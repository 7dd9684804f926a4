//! What crosses cores: requests on their way to a keyspace's home core, and their answers on the way back.

use std::sync::Arc;

use garboard_storage::IndexSize;
use garboard_storage::hash::HashKv;

use crate::histogram::Stages;
use crate::members::{ChangeAction, Members};
use crate::request::{Alarm, Command, Context, Reply};

/// Names a request, so that its answer finds the connection that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The core that holds the connection.
    pub core: u16,
    /// The request's number on that core.
    pub sequence: u64,
}

/// Who waits for what only a leader can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A client of this member.
    Client(Ticket),
    /// Another member, for a client of its own.
    Member {
        /// Which.
        id: u64,
        /// Its process.
        boot: u64,
        /// Its question.
        number: u64,
    },
    /// A corruption check of this member's.
    Check {
        /// Its number.
        number: u64,
    },
}

/// What a core asks of the home core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Change state, through the log.
    Write(Command),
    /// Answer once the published state is at least as new as the moment of the request.
    ReadIndex,
    /// Renew a lease.
    LeaseKeepAlive {
        /// The lease.
        id: i64,
    },
    /// How long a lease has left.
    LeaseTimeToLive {
        /// The lease.
        id: i64,
    },
    /// All leases.
    LeaseList,
    /// The member's own figures.
    Status,
    /// A hint to give space back; space is reused without it.
    Defragment,
    /// The hash that a compaction to this revision computed. While it is being computed the answer waits, for a
    /// bounded time.
    KeptHash {
        /// The revision.
        revision: i64,
    },
    /// Where the time of writes went.
    Stages,
    /// Start saving the published state in the index's file.
    Checkpoint,
    /// Change the members.
    Member {
        /// The member that it is about.
        member_id: u64,
        /// What happens.
        action: ChangeAction,
    },
    /// Hand leadership to another member. Answered once that one leads.
    MoveLeader {
        /// To whom.
        target: u64,
    },
}

/// What the home core answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// What the command did. Durable, applied and published.
    Write(Reply),
    /// A snapshot pinned from now on is fresh enough.
    ReadIndex,
    /// The lease runs this long again; 0: there is no such lease.
    LeaseKeepAlive {
        /// The renewed time to live.
        ttl_seconds: i64,
    },
    /// A lease's remaining time; −1: there is no such lease.
    LeaseTimeToLive {
        /// What is left, in whole seconds.
        ttl_seconds: i64,
        /// What was granted.
        granted_ttl_seconds: i64,
    },
    /// The leases, the one that expires first in front.
    LeaseList(Vec<i64>),
    /// The member's figures.
    Status(Status),
    /// Nothing more to do.
    Defragment,
    /// The hash, if there was such a compaction and its hash is still kept.
    KeptHash(Option<HashKv>),
    /// The stages.
    Stages(Box<Stages>),
    /// A checkpoint is under way, or none is needed.
    Checkpoint {
        /// The newest index whose effects are published.
        published_index: u64,
        /// Up to where the newest durable checkpoint goes.
        saved_index: u64,
    },
    /// The change is made; the members after it.
    Members(Arc<Members>),
    /// The other member leads.
    MoveLeader,
}

/// A request under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Names it.
    pub ticket: Ticket,
    /// On whose behalf, and for which store.
    pub context: Context,
    /// What is asked.
    pub request: Request,
}

/// A member's figures, for status calls and headers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// The leader's member id; 0: none is known.
    pub leader: u64,
    /// The current term.
    pub raft_term: u64,
    /// The newest committed index.
    pub raft_index: u64,
    /// The newest applied index.
    pub raft_applied_index: u64,
    /// Whether this member has no vote.
    pub is_learner: bool,
    /// The store's newest revision.
    pub revision: i64,
    /// The logical floor; −1 before any compaction.
    pub compacted_revision: i64,
    /// Sizes of the index.
    pub size: IndexSize,
    /// The quota that `size.in_use_bytes` is held against; 0: off.
    pub quota_bytes: u64,
    /// The alarms that are raised, in order of member and kind.
    pub alarms: Vec<Alarm>,
    /// Commands proposed and not yet applied.
    pub pending_commands: u64,
    /// Leases that exist.
    pub lease_count: u64,
}
