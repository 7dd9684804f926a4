//! Members compare their states by the hash that etcd's `HashKV` gives, and name whoever differs.
//!
//! Three checks, as etcd has them. The *initial* one: before a member serves, it compares its state with those of the
//! others, and refuses to serve where one differs. The *periodic* one: the leader has every member hash its state at
//! one revision. The one of *compactions*: the leader compares the hashes that compactions computed on their way. Where
//! members differ, the leader raises the CORRUPT alarm for those that are few, and for member 0, which means the whole
//! cluster, where none of the states is that of most members.
//!
//! A false alarm stops the writes of a sound cluster, so two hashes are compared only if they must be equal. What is
//! committed is the same on all members, and a member publishes nothing else. So its history up to a revision, with a
//! compaction floor, follows from the entry that it has applied, whoever leads and whenever it is looked at:
//!
//! - hashes are compared only at the same revision *and* the same floor. Whoever compacts in between, lags, restarts or
//!   can't be reached is passed over, and the check is tried again at a newer revision;
//! - the hash of a compaction is compared only with another one of a compaction;
//! - a member that has applied the entry with which the leader showed a revision, and has no such revision, differs; so
//!   does one that has more revisions than the leader, at an entry that the leader has applied. A member that has not
//!   applied the entry is waited for, and then passed over.
//!
//! [`Checker`] decides what is compared when, [`Hashing`] hashes a member's own state in bounded steps, [`judge`] tells
//! whom the findings blame.

mod checker;
mod hashing;
mod message;
mod verdict;

use core::fmt;
use core::time::Duration;

pub use checker::{Action, Checker, Facts, Link};
pub use hashing::{Done, HashAsker, Hashing, Step, Wanted};
pub use message::{Finding, HashAnswer, HashMessage, HashQuestion, HashWhat};
pub use verdict::{Seen, judge};

/// Which checks a member makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorruptionChecks {
    /// Whether a member compares its state with those of others before it serves.
    pub initial: bool,
    /// How often a leader has all members hash their states.
    pub periodic: Option<Duration>,
    /// How often a leader compares the hashes of compactions.
    pub compactions: Option<Duration>,
}

/// Which of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// Before a member serves.
    Initial,
    /// Of all states.
    Periodic,
    /// Of compactions.
    Compaction,
}

/// Two members differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The other member.
    pub member: u64,
    /// The revision.
    pub revision: i64,
    /// The compaction floor of both.
    pub compact_revision: i64,
    /// This member's hash.
    pub own: u32,
    /// What the other one has.
    pub other: Seen,
}

/// What a check has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckNote {
    /// It is done: so many others were compared and so many passed over.
    Done {
        /// Which.
        kind: CheckKind,
        /// The revision.
        revision: i64,
        /// Others that are equal.
        equal: usize,
        /// Others that were passed over.
        skipped: usize,
    },
    /// Another member differs from this one.
    Differs {
        /// Found by which check.
        kind: CheckKind,
        /// How.
        mismatch: Mismatch,
    },
    /// A CORRUPT alarm is raised for this member; 0: for the whole cluster.
    Raised {
        /// Which.
        member: u64,
    },
}

impl CheckNote {
    /// Whether something is wrong.
    pub fn is_alarming(&self) -> bool {
        !matches!(self, CheckNote::Done { .. })
    }
}

impl fmt::Display for CheckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CheckKind::Initial => "initial corruption check",
            CheckKind::Periodic => "corruption check",
            CheckKind::Compaction => "compaction hash check",
        })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { member, revision, compact_revision, own, .. } = self;
        match self.other {
            Seen::Hash(other) => {
                write!(
                    f,
                    "at revision {revision} (compact revision {compact_revision}) the state of this member has "
                )?;
                write!(f, "the hash {own} and that of member {member:x} the hash {other}")
            }
            Seen::Short => {
                write!(f, "this member has revision {revision}, and member {member:x}, which has applied as much, ")?;
                write!(f, "does not")
            }
            Seen::Ahead => {
                write!(
                    f,
                    "member {member:x} has later revisions than this one (which compared revision {revision}), "
                )?;
                write!(f, "though it has not applied more")
            }
        }
    }
}

impl fmt::Display for CheckNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckNote::Done { kind, revision, equal, skipped } => {
                write!(f, "finished the {kind} at revision {revision}: {equal} other members are equal, ")?;
                write!(f, "{skipped} were passed over")
            }
            CheckNote::Differs { kind, mismatch } => write!(f, "the {kind} found that members differ: {mismatch}"),
            CheckNote::Raised { member: 0 } => {
                f.write_str("no state is that of most members: the CORRUPT alarm is raised for member 0, all of them")
            }
            CheckNote::Raised { member } => write!(f, "the CORRUPT alarm is raised for member {member:x}"),
        }
    }
}
