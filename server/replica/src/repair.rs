//! A member that has lost what it had acknowledged, until it has it again.
//!
//! `docs/rfd/0009-repair-from-peers.md` says why this is safe. The member that is repaired asks everyone it knows of, again
//! and again: [`RepairMessage::Ask`]. Who leads withdraws what this member had acknowledged before it answers; everyone says
//! its term. From the answers [`Repair`] learns the *floor*, a term below which this member says nothing, if its own last
//! one did not survive, and the *target*, a commit index up to which it has to hold everything before it counts in elections again.

mod machine;
mod mark;
mod message;

pub(crate) use machine::Repair;
pub use machine::RepairProgress;
pub use mark::{Mark, MarkError, Stage};
pub use message::{RepairAnswer, RepairDecodeError, RepairMessage};

/// What a member knows that has lost something of its log or of its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// The newest term that survived.
    pub term: u64,
    /// Its vote in that term; 0: none.
    pub vote: u64,
    /// Whether that was its last term and vote. If not it may have voted since, and the others have to say how far the
    /// terms are.
    pub is_state_known: bool,
    /// Members that it knows of.
    pub peers: Vec<u64>,
}

impl Loss {
    /// The newer of what two sources know. Both have to know the last state for it to be known.
    #[must_use]
    pub fn and_state(self, term: u64, vote: u64, is_state_known: bool) -> Loss {
        let is_newer = (term, vote != 0) > (self.term, self.vote != 0);
        let (term, vote) = if is_newer { (term, vote) } else { (self.term, self.vote) };
        Loss { term, vote, is_state_known: self.is_state_known && is_state_known, ..self }
    }
}
