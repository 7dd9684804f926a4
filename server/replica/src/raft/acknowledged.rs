//! Which answers to a leader's appends tell it nothing.

use raft::eraftpb::Message;

/// What the leader at hand was told that this member holds.
///
/// raft-rs answers every append, one that only tells a newer commit index too. The leader knows what such an answer says
/// from the one to the entries themselves, and at one write at a time those answers were a third of all that members said
/// to each other. They are spared while the leader must have heard the earlier answer, or is about to: links deliver in
/// order, and whatever may have been lost with a link is told again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acknowledged {
    term: u64,
    leader: u64,
    index: u64,
}

impl Acknowledged {
    /// raft-rs has made this answer to an append. True if it is not to be sent: the append brought nothing but a newer
    /// commit index, and the leader was told of these entries before.
    pub(super) fn is_known(&mut self, answer: &Message, brought_commit_only: bool) -> bool {
        if answer.reject {
            // The leader looks for the place where the logs agree, and waits for each answer.
            self.forget();
            return false;
        }
        let told = (self.term, self.leader) == (answer.term, answer.to) && answer.index <= self.index;
        if told && brought_commit_only {
            return true;
        }
        *self = Acknowledged { term: answer.term, leader: answer.to, index: answer.index };
        false
    }

    /// What was said last may be lost.
    pub(super) fn forget(&mut self) {
        *self = Acknowledged::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(term: u64, index: u64) -> Message {
        Message { term, to: 1, index, ..Message::default() }
    }

    #[test]
    fn only_a_newer_commit_index_needs_no_answer_and_only_once_the_entries_were_acknowledged() {
        let mut acknowledged = Acknowledged::default();
        assert!(!acknowledged.is_known(&answer(2, 7), true), "nothing was told in this term");
        assert!(acknowledged.is_known(&answer(2, 7), true));
        assert!(!acknowledged.is_known(&answer(2, 7), false), "a leader that asks again wants to know");
        assert!(!acknowledged.is_known(&answer(2, 8), true), "these entries were not acknowledged");
        assert!(!acknowledged.is_known(&answer(3, 8), true), "another term's leader knows nothing");
    }

    #[test]
    fn after_a_refusal_or_a_lost_link_everything_is_answered() {
        let mut acknowledged = Acknowledged::default();
        acknowledged.is_known(&answer(2, 7), false);
        acknowledged.is_known(&Message { reject: true, ..answer(2, 9) }, false);
        assert!(!acknowledged.is_known(&answer(2, 7), true));
        acknowledged.forget();
        assert!(!acknowledged.is_known(&answer(2, 7), true));
    }
}
