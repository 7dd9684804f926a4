//! One member of one keyspace, whole: Raft, log, apply, index, leases, composed without any I/O of their own.
//!
//! The calling order: any `handle_*`, then [`Member::poll_effect`] until it has nothing more, then sleep until
//! [`Member::poll_timeout`] or the next input. Effects may be carried out in any order and at the same time; each `Log`
//! and `Index` effect is answered by [`Member::handle_log_done`] or [`Member::handle_index_done`], each `LoadPage` by
//! [`Member::handle_page_loaded`] once the page is resident (loading is [`garboard_storage::Reader::load`]; a page that
//! can't be loaded ends the process).
//!
//! Promises:
//! - the answer to a write leaves only after its entry is durable here and on a quorum, applied and published;
//! - the events of a batch leave after it is published, in order, and before the batch's answers;
//! - a read index is answered only when everything that was answered before it was asked is published;
//! - what is applied never runs ahead of what is durable in the log;
//! - no lease expires early, whatever happens to the wall clock or the leader.

mod applying;
mod checks;
mod config;
mod forwarding;
mod leadership;
mod membership;
mod questions;
mod reads;
mod repairs;
mod transfers;
mod upkeep;
mod writes;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use garboard_storage::{Applied, Index, IndexFailure, IndexIo, IoFailure, IoId, PageId, Reader};
use garboard_wal as wal;
use raft::eraftpb::MessageType;

pub use config::{MemberConfig, OpenError, RecoveredState};

use crate::apply::Machine;
use crate::auto_compaction::AutoCompactor;
use crate::canary::{self, Canary};
use crate::codec::DecodeError;
use crate::corruption::{CheckNote, Mismatch};
use crate::envelope::{Asker, Envelope, Request, Response, Status, Ticket};
use crate::error::Error;
use crate::events::EventBatch;
use crate::histogram::Stages;
use crate::kept_hashes::KeptHashes;
use crate::limits::MESSAGES_MAX;
use crate::members::{Members, MembersError};
use crate::outbox::Outbox;
use crate::peer::{PeerMessage, What};
use crate::raft::{RaftDriver, Role, Step};
use crate::repair::RepairProgress;
use crate::transfer::{Fill, Receiver, Sender};
use applying::Applying;
use checks::Checks;
use forwarding::{Forwarding, Refusee};
use leadership::Leadership;
use membership::Changes;
use questions::Questions;
use reads::Reads;
use repairs::Repairs;
use transfers::Installing;
use writes::{AskedAlarm, Proposal};

/// What the shell must do.
#[derive(Debug)]
pub enum Effect {
    /// For the log's files. Call [`Member::fill`] for each write, in order.
    Log(wal::Effect),
    /// For the index's file.
    Index(IndexIo),
    /// Make a page resident.
    LoadPage(PageId),
    /// Bring an answer to the core that asked.
    Answer {
        /// Whose answer.
        ticket: Ticket,
        /// The answer.
        result: Result<Response, Error>,
    },
    /// Bring changes to the watch hub of every core.
    Events(Arc<EventBatch>),
    /// These are the members from now on. The first effect of every start.
    Members(Arc<Members>),
    /// This member was removed: it stops, once answers and messages had their time to leave.
    Removed,
    /// The state was replaced: tell the watch hub of every core, and the operator.
    Restored {
        /// The revision of the new state. No events lead there.
        revision: i64,
        /// Where it came from.
        fill: Fill,
    },
    /// This member holds again what it may have acknowledged: [`MemberConfig::loss`] is over.
    Repaired,
    /// Tell the operator.
    Notice(Notice),
    /// This member's state and another one's differ: it must not serve.
    Corrupt(Mismatch),
}

/// What an operator should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The log has stalled, and this member led.
    LogStalled {
        /// Since when.
        stalled: Duration,
        /// Who is asked to lead instead; none: nobody can.
        target: Option<u64>,
    },
    /// The log has stalled and no other member took leadership over: this one gave it up.
    SteppedDown {
        /// Since when.
        stalled: Duration,
    },
    /// The disk is full, and this member led.
    DiskFull {
        /// Who is asked to lead instead.
        target: u64,
    },
    /// This member is under repair.
    UnderRepair(RepairProgress),
    /// What a corruption check has to tell.
    Check(CheckNote),
}

impl Notice {
    /// Whether something is wrong.
    pub fn is_alarming(&self) -> bool {
        match self {
            Notice::LogStalled { .. }
            | Notice::SteppedDown { .. }
            | Notice::DiskFull { .. }
            | Notice::UnderRepair(_) => true,
            Notice::Check(note) => note.is_alarming(),
        }
    }
}

impl core::fmt::Display for Notice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Notice::LogStalled { stalled, target: Some(target) } => {
                write!(f, "a write of the log takes {} ms so far; ", stalled.as_millis())?;
                write!(f, "leadership is handed to member {target:x}")
            }
            Notice::LogStalled { stalled, target: None } => {
                write!(f, "a write of the log takes {} ms so far, and no other member can lead", stalled.as_millis())
            }
            Notice::UnderRepair(progress) => progress.fmt(f),
            Notice::SteppedDown { stalled } => {
                write!(f, "a write of the log takes {} ms so far; ", stalled.as_millis())?;
                write!(f, "this member does not lead any more")
            }
            Notice::DiskFull { target } => {
                write!(f, "the disk is full and writes are refused; leadership is handed to member {target:x}")
            }
            Notice::Check(note) => note.fmt(f),
        }
    }
}

/// Why the process must stop. Nothing is answered any more.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The log failed.
    #[error("the log failed")]
    Log(#[from] wal::LogFailure),
    /// The index failed.
    #[error("the index failed")]
    Index(#[from] IndexFailure),
    /// A committed entry cannot be read.
    #[error("entry {index} of the log cannot be read")]
    Entry {
        /// The entry's index.
        index: u64,
        /// Why.
        source: DecodeError,
    },
    /// A committed change of membership cannot be read.
    #[error("the membership change in entry {index} of the log cannot be read")]
    Membership {
        /// The entry's index.
        index: u64,
        /// Why.
        source: MembersError,
    },
    /// The tables of a snapshot that was installed cannot be read.
    #[error("the snapshot that was installed cannot be read")]
    Snapshot(#[source] OpenError),
    /// A committed entry is for another store.
    #[error("entry {index} of the log is for keyspace {found}")]
    Keyspace {
        /// The entry's index.
        index: u64,
        /// The keyspace it names.
        found: u32,
    },
}

/// One member of one keyspace.
pub struct Member {
    config: MemberConfig,
    raft: RaftDriver,
    log: wal::Log,
    machine: Machine,
    /// Proposals that are not applied, in order of their indexes.
    proposals: VecDeque<Proposal>,
    pending_commands: u64,
    /// Writes of this member's clients, where there are other members.
    outbox: Outbox,
    forwarding: Forwarding,
    questions: Questions,
    leadership: Leadership,
    applying: Applying,
    reads: Reads,
    /// Answers and events on their way out, in order.
    out: VecDeque<Outgoing>,
    /// For other members.
    messages: VecDeque<(u64, PeerMessage)>,
    sender: Sender,
    receiver: Receiver,
    /// What raft-rs is to be told of while a snapshot is put in the index's place.
    installing: Option<Installing>,
    /// Answers to compactions that wait for the physical work, by the floor it works towards.
    compactions: BTreeMap<i64, Vec<Answer>>,
    hashes: KeptHashes,
    auto_compactor: AutoCompactor,
    changes: Changes,
    repairs: Repairs,
    checks: Checks,
    /// When the next step of physical compaction is due.
    next_compaction: Duration,
    /// When a checkpoint is tried again that a full disk stopped.
    next_checkpoint_retry: Duration,
    /// What a start would have replayed when the newest checkpoint was started.
    checkpoint_began_at: u64,
    /// This start had so much to replay that a checkpoint is due, and none has been finished since. Where members die
    /// young again and again the log would grow from start to start, so that checkpoint does not rest.
    replayed_much: bool,
    /// A stop was asked for, and does not wait for answers beyond this time.
    answer_by: Option<Duration>,
    /// A stop was asked for, and does not wait for its checkpoint beyond this time.
    stop_by: Option<Duration>,
    /// The checkpoint of the stop was started.
    stop_saved: bool,
    /// Apply waits for the index's changed pages to become fewer, and looks again at this time.
    stalled_until: Option<Duration>,
    /// A new member holds its log back until its first meta page is durable.
    founding: bool,
    /// Appends that are not durable, in order.
    undurable: VecDeque<Undurable>,
    /// The append that the log was given last.
    newest_append: wal::AppendNumber,
    /// The last index that is durable here.
    durable_index: u64,
    /// The last entry that the log held when the member started.
    replayed_to: u64,
    /// The index of the first entry of the current term, once this member leads.
    term_start: Option<u64>,
    /// A NOSPACE alarm of this member was proposed, or asked for, and is not applied.
    alarm_proposed: bool,
    /// The leader was asked for that alarm.
    alarm_asked: Option<AskedAlarm>,
    /// The newest entry that took a NOSPACE alarm back, since the start.
    alarm_disarmed: u64,
    /// Writes refused by the quota, answered once that alarm is applied: until then it would not show, and a smaller
    /// write could still go through after one that was refused.
    refused: Vec<Refusee>,
    stages: Stages,
    /// When what the last effect answers was published.
    answered_from: Option<Duration>,
    /// Up to where the newest durable checkpoint goes.
    saved_index: u64,
    failure: Option<Fatal>,
    /// A failure was reported: from then on nothing is asked for and nothing is answered.
    stopped: bool,
}

/// An append that is not durable.
#[derive(Clone, Copy, Debug)]
struct Undurable {
    number: wal::AppendNumber,
    /// Its last entry.
    last: u64,
    /// When the log was given it.
    since: Duration,
}

/// An answer and whose it is.
type Answer = (Ticket, Result<Response, Error>);

/// An effect for other cores, and when what it answers was published if it answers a write.
struct Outgoing {
    effect: Effect,
    published: Option<Duration>,
}

impl Member {
    /// A member of a new cluster, with an empty index and an empty log. Its log is held back until the index's first
    /// meta page, which names the log's start, is durable.
    pub fn create(now: Duration, config: MemberConfig, log: wal::Log, index: Index) -> Member {
        let state = RecoveredState::founding(&config);
        let founding = config.founding_members();
        let mut member = Member::assemble(now, config, log, index, state, Some(founding))
            .expect("an empty index holds nothing that can't be read");
        member.founding = true;
        member.start_checkpoint();
        member
    }

    /// A member that was here before. `state` is what the log's recovery and the index's opening gave; committed entries
    /// beyond the index's state are applied the usual way before reads are answered.
    pub fn open(
        now: Duration,
        config: MemberConfig,
        log: wal::Log,
        index: Index,
        state: RecoveredState,
    ) -> Result<Member, OpenError> {
        Member::assemble(now, config, log, index, state, None)
    }

    fn assemble(
        now: Duration,
        config: MemberConfig,
        log: wal::Log,
        index: Index,
        state: RecoveredState,
        founding: Option<Members>,
    ) -> Result<Member, OpenError> {
        let mut machine = config.machine(index, &state.membership)?;
        if let Some(members) = founding {
            machine.found_members(members);
            let published = machine.publish(Applied::default());
            published.expect("the pages of an empty index are resident");
        }
        let forced_from = config.force_new_cluster.then(|| log.last().0);
        let (mut log, mut restored) = (log, state.restored());
        let newest_append = repairs::keep_state(&mut log, &mut restored, config.loss.as_ref());
        let raft = RaftDriver::new(now, &config.raft(), restored);
        let applied = machine.index().view().applied();
        let before = machine.sessions().record(config.member_id).session;
        let checks = Checks::new(now, &config, applied.index == 0 && log.last().0 == 0);
        let session = forwarding::next_session(config.boot.saturating_add(1), before);
        let mut member = Member {
            raft,
            outbox: Outbox::new(config.member_id, config.keyspace, session),
            forwarding: Forwarding::default(),
            questions: Questions::default(),
            leadership: Leadership::new(now),
            proposals: VecDeque::new(),
            pending_commands: 0,
            applying: Applying::new(applied, machine.revision()),
            reads: Reads::default(),
            out: VecDeque::new(),
            messages: VecDeque::new(),
            sender: config.sender(machine.index()),
            receiver: Receiver::default(),
            installing: None,
            compactions: BTreeMap::new(),
            hashes: KeptHashes::default(),
            auto_compactor: AutoCompactor::new(now, config.auto_compaction),
            changes: Changes::new(forced_from),
            repairs: Repairs::new(now, &config),
            checks,
            next_compaction: now,
            next_checkpoint_retry: now,
            checkpoint_began_at: 0,
            replayed_much: log.replay_bytes() >= config.checkpoint_log_bytes,
            answer_by: None,
            stop_by: None,
            stop_saved: false,
            stalled_until: None,
            founding: false,
            undurable: VecDeque::new(),
            newest_append,
            durable_index: log.last().0,
            replayed_to: log.last().0,
            term_start: None,
            alarm_proposed: false,
            alarm_asked: None,
            alarm_disarmed: 0,
            refused: Vec::new(),
            stages: Stages::default(),
            answered_from: None,
            saved_index: applied.index,
            failure: None,
            stopped: false,
            log,
            machine,
            config,
        };
        member.raft.set_removed(member.machine.members().removed());
        let counts = member.counts_in_elections();
        member.raft.set_may_campaign(counts);
        member.announce_members();
        member.pump(now);
        member.force_if_due();
        Ok(member)
    }

    /// Pins snapshots, on any core.
    pub fn reader(&self) -> Reader {
        self.machine.index().reader()
    }

    /// Whether this member leads and has applied everything that earlier terms committed: reads are answered.
    pub fn is_ready(&self) -> bool {
        self.term_start.is_some_and(|start| self.applying.published().index >= start)
    }

    /// Whether there are no other members.
    pub fn is_alone(&self) -> bool {
        self.raft.is_alone()
    }

    /// Whether this member leads.
    pub fn leads(&self) -> bool {
        self.raft.role() == Role::Leader
    }

    /// Whether the log holds anything that others may come to count on, such as a vote. Messages that speak of it leave
    /// only after that.
    pub fn holds_promises(&self) -> bool {
        self.log.durable() > wal::AppendNumber::default() || self.durable_index > 0
    }

    /// The current term.
    pub fn term(&self) -> u64 {
        self.raft.term()
    }

    /// Whether nothing is under way: every proposal is durable, applied and answered.
    pub fn is_quiet(&self) -> bool {
        let answered = self.proposals.is_empty() && self.outbox.is_empty() && self.out.is_empty();
        answered && self.undurable.is_empty()
    }

    /// Where the time of writes went, up to the publishing of what they did.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// When the write was published that the last effect answers; nothing if it answers none. What comes after is the
    /// shell's to count.
    pub fn answered_from(&self) -> Option<Duration> {
        self.answered_from
    }

    /// The log, for its figures.
    pub fn log(&self) -> &wal::Log {
        &self.log
    }

    /// The machine, for its figures.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Saves the published state in the index's file, so that the next start has less of the log to replay. Done once
    /// the effects of the index that follow are done. False while it can't start: ask again after the next effects.
    pub fn checkpoint(&mut self) -> bool {
        let can_start = !self.applying.is_mid_batch() && !self.is_installing();
        if can_start {
            self.start_checkpoint();
        }
        can_start
    }

    /// Why the member has stopped, if it has.
    pub fn failure(&self) -> Option<&Fatal> {
        self.failure.as_ref()
    }

    /// Requests of one core or of several. The writes among them join one Raft entry, or as few as their size allows.
    pub fn handle_requests(&mut self, now: Duration, batch: impl IntoIterator<Item = Envelope>) {
        self.handle_requests_since(now, now, batch);
    }

    /// The same, with the time at which the oldest of them was asked: where it counts as having been before.
    pub fn handle_requests_since(&mut self, now: Duration, asked: Duration, batch: impl IntoIterator<Item = Envelope>) {
        let mut writes = self.begin_writes(asked);
        for Envelope { ticket, context, request } in batch {
            match request {
                Request::Write(command) => self.write(now, &mut writes, ticket, &context, command),
                Request::ReadIndex => self.read(now, Asker::Client(ticket), reads::Kind::ReadIndex),
                Request::LeaseKeepAlive { id } => self.ask_leader(now, ticket, What::KeepAlive { id }),
                Request::LeaseTimeToLive { id } => self.ask_leader(now, ticket, What::TimeToLive { id }),
                Request::MoveLeader { target } => self.move_leader(now, ticket, target),
                Request::LeaseList => {
                    let leases = self.machine.lessor().list();
                    self.answer(ticket, Ok(Response::LeaseList(leases)));
                }
                Request::Status => {
                    let status = self.status();
                    self.answer(ticket, Ok(Response::Status(status)));
                }
                Request::Stages => {
                    let stages = Box::new(self.stages.clone());
                    self.answer(ticket, Ok(Response::Stages(stages)));
                }
                Request::Checkpoint => {
                    let response = self.checkpoint_on_request();
                    self.answer(ticket, Ok(response));
                }
                Request::KeptHash { revision } => self.kept_hash(now, ticket, revision),
                Request::Member { member_id, action } => self.change_members(now, ticket, member_id, action),
                // Space is reused without it.
                Request::Defragment => self.answer(ticket, Ok(Response::Defragment)),
            }
        }
        self.finish_writes(now, writes);
        self.pump(now);
    }

    /// The member's figures.
    pub fn status(&self) -> Status {
        let view = self.machine.index().view();
        Status {
            leader: self.leader(),
            raft_term: self.raft.term(),
            raft_index: self.raft.commit_index(),
            raft_applied_index: self.applying.published().index,
            is_learner: self.raft.membership().learners.contains(&self.raft.id()),
            revision: self.applying.published_revision(),
            compacted_revision: view.compacted(),
            size: self.machine.index().size(),
            quota_bytes: self.machine.quota().bytes(),
            alarms: self.machine.alarms().list(),
            pending_commands: self.pending_commands,
            lease_count: u64::try_from(self.machine.lessor().len()).expect("leases fit in memory"),
        }
    }

    /// The next message for another member, and whom it is for. Taken after every `handle_*`, like effects.
    pub fn poll_message(&mut self) -> Option<(u64, PeerMessage)> {
        self.messages.pop_front()
    }

    /// Whether there are messages for other members.
    pub fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Whether somebody waits for one of them: all but a newer commit index alone is waited for, and that too if it ends
    /// the wait for a write of another member's clients.
    pub fn has_pressing_messages(&self) -> bool {
        let tells_commit_only = |message: &PeerMessage| match message {
            PeerMessage::Raft(message) => {
                message.get_msg_type() == MessageType::MsgAppend && message.get_entries().is_empty()
            }
            _ => false,
        };
        let mut committed = self.proposals.iter().take_while(|proposal| proposal.committed.is_some());
        self.messages.iter().any(|(_, message)| !tells_commit_only(message))
            || (self.has_messages() && committed.any(|proposal| proposal.is_forwarded))
    }

    /// A message that was to go to a member had no room, or no link to go on: what it said of the log is said again.
    pub fn handle_unsent(&mut self, to: u64, message: &PeerMessage) {
        if matches!(message, PeerMessage::Raft(message) if message.get_msg_type() == MessageType::MsgAppend) {
            self.raft.report_unreachable(to);
        }
    }

    /// A message of the member `from`, by whom the link has authenticated. Raft's are checked before they get further.
    pub fn handle_message(&mut self, now: Duration, from: u64, message: PeerMessage) {
        match message {
            PeerMessage::Raft(message) if self.may_hear(&message) => {
                let _ = self.raft.handle_message(from, message);
            }
            PeerMessage::Raft(_) => {}
            PeerMessage::Repair(message) => self.handle_repair_message(from, &message),
            PeerMessage::Member(message) => self.handle_member_message(now, from, message),
            PeerMessage::Transfer(message) => self.handle_transfer_message(now, from, message),
            PeerMessage::Forward(data) => self.handle_forward(now, from, data),
            PeerMessage::Refused(refused) => self.handle_refused(now, from, refused),
            PeerMessage::Question(question) => self.handle_question(now, from, question),
            PeerMessage::Answer(answer) => self.handle_answer(now, answer),
            PeerMessage::Hash(message) => self.handle_hash_message(now, from, message),
            PeerMessage::Full { index } => self.handle_full(now, from, index),
        }
        self.pump(now);
    }

    /// An effect of the log is done.
    ///
    /// # Errors
    /// The process must stop: nothing that is not durable was answered, and nothing will be.
    pub fn handle_log_done(
        &mut self,
        now: Duration,
        op: wal::OpId,
        result: Result<(), wal::DiskError>,
    ) -> Result<(), Fatal> {
        let outcome = self.log.handle_done(now, op, result).map_err(Fatal::from).and_then(|()| {
            let durable = self.log.durable();
            self.stamp_durable(now, durable);
            self.raft.handle_durable(durable);
            self.pump(now);
            self.failure.take().map_or(Ok(()), Err)
        });
        self.stopped |= outcome.is_err();
        outcome
    }

    /// An effect of the index is done.
    ///
    /// # Errors
    /// The process must stop.
    pub fn handle_index_done(&mut self, now: Duration, id: IoId, result: Result<(), IoFailure>) -> Result<(), Fatal> {
        let outcome = self.machine.index_mut().handle_io(id, result).map_err(Fatal::from).and_then(|()| {
            self.finish_checkpoints(now);
            self.pump(now);
            self.failure.take().map_or(Ok(()), Err)
        });
        self.stopped |= outcome.is_err();
        outcome
    }

    /// A page that was asked for is resident.
    pub fn handle_page_loaded(&mut self, now: Duration, page: PageId) {
        self.applying.page_loaded(page);
        self.sender.handle_page_loaded(page);
        self.checks.handle_page_loaded(page);
        self.pump(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.raft.handle_timeout(now);
        self.log.handle_timeout(now);
        self.expire_reads(now);
        self.expire_writes(now);
        self.expire_questions(now);
        self.watch_disk(now);
        self.expire_leases(now);
        self.compact_automatically(now);
        self.expire_hash_waiters(now);
        self.compact_physically(now);
        self.retry_checkpoint(now);
        self.expire_changes(now);
        self.drive_repair(now);
        self.expire_alarm(now);
        self.drive_checks(now);
        self.stalled_until = self.stalled_until.filter(|until| *until > now);
        self.pump(now);
    }

    /// When [`Member::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let compaction = self.compaction_due();
        [
            self.raft.poll_timeout(),
            self.log.poll_timeout(),
            self.reads.poll_timeout(self.config.request_timeout()),
            self.writes_timeout(),
            self.questions_timeout(),
            self.leadership_timeout(),
            self.machine.lessor().poll_timeout(),
            self.auto_compactor.poll_timeout(),
            compaction,
            self.hashes.poll_timeout(),
            self.checkpoint_retry(),
            self.changes_timeout(),
            self.alarm_timeout(),
            self.checks_timeout(),
            self.stalled_until,
            self.transfer_timeout(),
            self.repair_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The next effect. Writes of the log come first, then answers and events, then the index; when there are none,
    /// committed entries are applied.
    pub fn poll_effect(&mut self, now: Duration) -> Option<Effect> {
        if self.stopped || self.failure.is_some() || self.log.is_poisoned() {
            return None;
        }
        loop {
            if !self.founding
                && let Some(effect) = self.log.poll_effect(now)
            {
                if matches!(effect, wal::Effect::Write { .. }) {
                    self.stamp_written(now);
                }
                return Some(Effect::Log(effect));
            }
            if !self.holds_answers()
                && let Some(outgoing) = self.out.pop_front()
            {
                self.answered_from = outgoing.published;
                return Some(outgoing.effect);
            }
            if let Some(page) = self.applying.poll_load() {
                return Some(Effect::LoadPage(page));
            }
            if let Some(io) = self.poll_index_io() {
                return Some(Effect::Index(io));
            }
            if !self.apply_some(now) {
                return None;
            }
        }
    }

    /// Fills the buffer of a log write that was handed out.
    pub fn fill(&mut self, op: wal::OpId, buffer: &mut [u8]) {
        self.log.fill(op, buffer);
    }

    /// Carries what raft-rs wants to the log, to apply and to waiting reads, until it wants nothing more.
    fn pump(&mut self, now: Duration) {
        loop {
            self.pump_raft(now);
            self.finish_repair();
            if self.failure.is_some() || !self.drive_transfers(now) {
                return;
            }
        }
    }

    fn pump_raft(&mut self, now: Duration) {
        self.ask_for_reads(now);
        self.propose_changes(now);
        self.keep_published(now);
        loop {
            while let Some(step) = self.poll_raft(now) {
                if canary::is_on(Canary::AckBeforeSync) || canary::is_on(Canary::ApplyAboveDurable) {
                    self.take_for_durable(now);
                }
                assert!(step.restored.is_none() || self.is_installing(), "only an image that is durable is restored");
                if step.restored.is_some() && canary::is_on(Canary::SnapshotBeforeDurable) {
                    let newest = self.newest_append;
                    self.raft.handle_durable(newest);
                }
                if let Some(role) = step.role {
                    self.role_changed(now, role);
                }
                for entry in step.committed {
                    self.stamp_committed(now, entry.index);
                    if let Err(failure) = self.applying.push(entry, self.config.keyspace) {
                        self.failure = Some(failure);
                        return;
                    }
                }
                for message in step.messages {
                    self.send(now, message);
                }
                for read in step.reads {
                    self.read_confirmed(now, read);
                }
                // A leader's first commit of its term lets reads be asked for.
                self.ask_for_reads(now);
            }
            self.follow_transfer(now);
            if !self.flush_writes(now) {
                break;
            }
        }
        let beyond = self.messages.len().saturating_sub(MESSAGES_MAX);
        self.messages.drain(..beyond);
    }

    /// The next step of raft-rs, its append on its way to the log.
    fn poll_raft(&mut self, now: Duration) -> Option<Step> {
        let (log, proposals, undurable) = (&mut self.log, &mut self.proposals, &mut self.undurable);
        let newest = &mut self.newest_append;
        let mut replaced = Vec::new();
        let mut append = |append: wal::Append| {
            let last = append.entries.last().map(|entry| entry.index);
            replaced.extend(writes::take_replaced(proposals, &append.entries));
            let number = log.append(append);
            *newest = number;
            if let Some(last) = last {
                undurable.push_back(Undurable { number, last, since: now });
                writes::note_append(proposals, last, number);
            }
            number
        };
        let step = self.raft.poll(&mut append);
        self.proposals_lost(now, replaced);
        step
    }

    /// The bug of [`Canary::AckBeforeSync`]: everything that the log was handed is taken for durable.
    fn take_for_durable(&mut self, now: Duration) {
        if let Some(Undurable { number: newest, .. }) = self.undurable.back().copied() {
            self.stamp_durable(now, newest);
            self.raft.handle_durable(newest);
        }
    }

    /// The bug of [`Canary::ApplyAboveDurable`] is not seen in answers: they wait for the log.
    fn holds_answers(&self) -> bool {
        let stats = self.log.stats();
        canary::is_on(Canary::ApplyAboveDurable) && (stats.in_flight_count > 0 || stats.waiting_bytes > 0)
    }

    fn answer(&mut self, ticket: Ticket, result: Result<Response, Error>) {
        self.out.push_back(Outgoing { effect: Effect::Answer { ticket, result }, published: None });
    }
}
