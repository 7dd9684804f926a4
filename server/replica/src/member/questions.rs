//! Questions that only the leader can answer, from members that do not lead: renewals of leases, remaining times.
//!
//! A question can be asked any number of times. So it is asked anew whenever the leader changes or an answer fails to
//! come, until its time is over.

use core::time::Duration;
use std::collections::BTreeMap;

use super::Member;
use super::reads::Kind;
use crate::envelope::{Asker, Response, Ticket};
use crate::error::Error;
use crate::limits::{ENTRY_COMMANDS_MAX, FORWARD_PAUSE, QUESTION_RETRY, QUESTIONS_MAX};
use crate::peer::{Answer, AnswerContent, PeerMessage, Question, Refusal, What};
use crate::raft::Role;

/// A question that waits for its answer.
#[derive(Debug)]
struct Open {
    ticket: Ticket,
    what: What,
    since: Duration,
}

/// Questions of this member's clients.
#[derive(Debug, Default)]
pub(super) struct Questions {
    last: u64,
    /// By number, and so in the order of asking.
    open: BTreeMap<u64, Open>,
    /// When all of them are asked again.
    again_at: Option<Duration>,
}

impl Member {
    /// Answers what only the leader can, or asks whoever leads.
    pub(super) fn ask_leader(&mut self, now: Duration, ticket: Ticket, what: What) {
        if self.leads() || self.raft.is_alone() {
            self.read(now, Asker::Client(ticket), kind_of(what));
            return;
        }
        if self.questions.open.len() >= QUESTIONS_MAX {
            self.answer(ticket, Err(Error::TooManyRequests));
            return;
        }
        self.questions.last += 1;
        let number = self.questions.last;
        self.questions.open.insert(number, Open { ticket, what, since: now });
        self.send_question(number, what);
        self.questions.again_at.get_or_insert(now + QUESTION_RETRY);
    }

    fn send_question(&mut self, number: u64, what: What) {
        if let Role::Follower(leader) = self.raft.role()
            && leader != 0
        {
            let question = Question { boot: self.config.boot, number, what };
            self.messages.push_back((leader, PeerMessage::Question(question)));
        }
    }

    /// What waited for a leader's answer here goes to whoever leads now.
    pub(super) fn pass_on(&mut self, now: Duration, what: What, asker: Asker) {
        match asker {
            Asker::Client(ticket) => self.ask_leader(now, ticket, what),
            Asker::Member { .. } => self.answer_asker(asker, Err(Error::NotLeader)),
            Asker::Check { .. } => {}
        }
    }

    /// Another member's question.
    pub(super) fn handle_question(&mut self, now: Duration, from: u64, question: Question) {
        if !self.raft.is_member(from) {
            return;
        }
        let asker = Asker::Member { id: from, boot: question.boot, number: question.number };
        if self.leads() {
            self.read(now, asker, kind_of(question.what));
        } else {
            self.answer_asker(asker, Err(Error::NotLeader));
        }
    }

    /// The answer to a question of this member's.
    pub(super) fn handle_answer(&mut self, now: Duration, answer: Answer) {
        if answer.boot != self.config.boot {
            return;
        }
        let Some(open) = self.questions.open.remove(&answer.number) else { return };
        let response = match (open.what, answer.content) {
            (What::KeepAlive { .. }, AnswerContent::KeepAlive { ttl_seconds }) => {
                Ok(Response::LeaseKeepAlive { ttl_seconds })
            }
            (What::TimeToLive { .. }, AnswerContent::TimeToLive { ttl_seconds, granted_ttl_seconds }) => {
                Ok(Response::LeaseTimeToLive { ttl_seconds, granted_ttl_seconds })
            }
            (_, AnswerContent::Refused(Refusal::TooManyRequests)) => Err(Error::TooManyRequests),
            // It does not lead, or says what was not asked: the question stays.
            _ => {
                self.questions.open.insert(answer.number, open);
                let soon = now + FORWARD_PAUSE;
                self.questions.again_at = Some(self.questions.again_at.map_or(soon, |at| at.min(soon)));
                return;
            }
        };
        self.answer(open.ticket, response);
    }

    /// Tells whoever asked.
    pub(super) fn answer_asker(&mut self, asker: Asker, result: Result<Response, Error>) {
        let (id, boot, number) = match asker {
            Asker::Client(ticket) => return self.answer(ticket, result),
            Asker::Check { number } => {
                if result.is_ok() {
                    self.check_proved(number);
                }
                return;
            }
            Asker::Member { id, boot, number } => (id, boot, number),
        };
        let content = match result {
            Ok(Response::LeaseKeepAlive { ttl_seconds }) => AnswerContent::KeepAlive { ttl_seconds },
            Ok(Response::LeaseTimeToLive { ttl_seconds, granted_ttl_seconds }) => {
                AnswerContent::TimeToLive { ttl_seconds, granted_ttl_seconds }
            }
            Err(Error::TooManyRequests) => AnswerContent::Refused(Refusal::TooManyRequests),
            // Whoever asked asks again, until its own time is over.
            Ok(_) | Err(_) => AnswerContent::Refused(Refusal::NotLeader),
        };
        self.messages.push_back((id, PeerMessage::Answer(Answer { boot, number, content })));
    }

    /// Asks everything again, the oldest first where it is much.
    pub(super) fn ask_again(&mut self, now: Duration) {
        if self.questions.open.is_empty() {
            return;
        }
        self.questions.again_at = Some(now + QUESTION_RETRY);
        let open = self.questions.open.iter().take(ENTRY_COMMANDS_MAX);
        let questions: Vec<(u64, What)> = open.map(|(number, open)| (*number, open.what)).collect();
        for (number, what) in questions {
            self.send_question(number, what);
        }
    }

    pub(super) fn leader_changed_for_questions(&mut self, now: Duration) {
        if self.leads() {
            let open = std::mem::take(&mut self.questions.open);
            for Open { ticket, what, .. } in open.into_values() {
                self.read(now, Asker::Client(ticket), kind_of(what));
            }
        } else {
            self.ask_again(now);
        }
    }

    pub(super) fn expire_questions(&mut self, now: Duration) {
        while let Some(entry) = self.questions.open.first_entry()
            && entry.get().since + self.config.request_timeout() <= now
        {
            let open = entry.remove();
            self.answer(open.ticket, Err(Error::Timeout));
        }
        if self.questions.again_at.is_some_and(|at| at <= now) {
            self.questions.again_at = None;
            self.ask_again(now);
        }
    }

    pub(super) fn questions_timeout(&self) -> Option<Duration> {
        let expiry = self.questions.open.values().next().map(|open| open.since + self.config.request_timeout());
        self.questions.again_at.into_iter().chain(expiry).min()
    }
}

fn kind_of(what: What) -> Kind {
    match what {
        What::KeepAlive { id } => Kind::KeepAlive(id),
        What::TimeToLive { id } => Kind::TimeToLive(id),
    }
}
