//! The driver itself.

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;
use garboard_transport::{Rejection, ReplicaFacts};
use garboard_wal as wal;
use garboard_wal::{Append, AppendNumber};
use raft::eraftpb::{Entry, HardState, Message, MessageType};
use raft::{Config, RawNode, Ready, SnapshotStatus, StateRole};

use super::acknowledged::Acknowledged;
use super::membership::{ChangeKind, Membership, MembershipChange};
use super::store::{Keep, LogStore, from_log, to_log};
use crate::canary::{self, Canary};
use crate::limits;

/// Bytes of entries in one message to a peer.
const MESSAGE_BYTES_MAX: u64 = 1024 * 1024;
/// Messages to one peer that may be unanswered.
const MESSAGES_IN_FLIGHT_MAX: usize = 256;
/// Bytes of committed entries that come out of one step.
const COMMITTED_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The spread of election timers beyond the election timeout: a part of it. Whoever is first wakes the others up early
/// enough, and a shorter spread finds a new leader sooner.
const PATIENCE_SPREAD: usize = 4;
/// Attempts to be elected follow each other at least this far apart while no leader is known, and each waits a random time
/// on top.
const HUNT_INTERVAL: Duration = Duration::from_millis(60);
/// A member waits this much longer for each one that stands before it among the voters, so that they seldom meet.
const HUNT_STEP: Duration = Duration::from_millis(15);
/// The longest wait between two attempts, as a part of the election timeout.
const HUNT_PART_MAX: u32 = 2;
/// After a pause of the process at most this many election timeouts' worth of ticks are made up for.
const CATCH_UP_TIMEOUTS_MAX: u32 = 2;

/// How a member takes part in Raft.
#[derive(Clone, Debug)]
pub struct RaftConfig {
    /// The member's id; not 0.
    pub id: u64,
    /// Differs at each start of the member, so that contexts of reads are unique over starts.
    pub boot: u64,
    /// How long without a leader until an election.
    pub election_timeout: Duration,
    /// How often a leader shows that it is one.
    pub heartbeat_interval: Duration,
    /// Seed of the election timer's jitter.
    pub seed: u64,
    /// Commands of applied entries that are kept in memory for members that lag.
    pub catch_up_commands: u64,
}

/// What a member's Raft starts from.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Everything up to here is applied: what the index says.
    pub applied_index: u64,
    /// The term of that index.
    pub applied_term: u64,
    /// The membership at that index.
    pub membership: Membership,
    /// The hard state of the log.
    pub hard_state: wal::HardState,
    /// The log's entries; those at or below the applied index are left out.
    pub entries: Vec<wal::Entry>,
}

/// What a member is in its current term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads.
    Leader,
    /// It follows, or looks for a leader; the leader's id, 0 when none is known.
    Follower(u64),
}

/// Where a proposal went in the log. It is in effect when an entry of that index *and* term is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// Only a leader proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this member does not lead")]
pub struct NotLeader;

/// A read index was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadConfirmed {
    /// The number that [`RaftDriver::read_index`] gave.
    pub number: u64,
    /// The read may be served once this index is applied.
    pub index: u64,
}

/// What one step of the driver brings.
#[derive(Debug, Default)]
pub struct Step {
    /// Entries to apply, in order. Each is durable here.
    pub committed: Vec<wal::Entry>,
    /// Reads whose index is known.
    pub reads: Vec<ReadConfirmed>,
    /// Messages for other members.
    pub messages: Vec<Message>,
    /// The role changed, or the leader.
    pub role: Option<Role>,
    /// A snapshot at this index has taken the place of the log.
    pub restored: Option<u64>,
}

/// A step of raft-rs that waits for the log.
struct InFlight {
    /// raft-rs's number of it.
    ready: u64,
    /// Its append; none when it has nothing that must be durable.
    append: Option<AppendNumber>,
    /// What may leave once it is durable.
    messages: Vec<Message>,
    /// The index of the snapshot that it restored.
    restored: Option<u64>,
}

/// Raft of one member.
pub struct RaftDriver {
    node: RawNode<LogStore>,
    boot: u64,
    /// The state that the last append carried.
    hard_state: wal::HardState,
    /// Steps whose state is not yet durable, in order.
    in_flight: VecDeque<InFlight>,
    /// Messages that became free to leave.
    released: Vec<Message>,
    membership: Membership,
    /// Its members, in no order.
    peers: Vec<u64>,
    /// Members that were removed: nothing of theirs is heard.
    removed: Vec<u64>,
    role: Role,
    reads_issued: u64,
    /// Commands of applied entries that are kept for members that lag.
    catch_up_commands: u64,
    timer: Timer,
    hunt: Option<Hunt>,
    /// Whether this member may try to lead.
    may_campaign: bool,
    acknowledged: Acknowledged,
}

/// A member that knows no leader tries to become one, again and again.
#[derive(Clone, Copy, Debug)]
struct Hunt {
    /// When it tries next.
    next: Duration,
    /// The shortest wait after that.
    interval: Duration,
    /// The term in which it was found to wait for votes.
    candidate_in: u64,
}

/// Ticks and the election timer.
struct Timer {
    last_tick: Duration,
    election_ticks: usize,
    /// Ticks without a leader after which this member campaigns; redrawn after each attempt.
    patience: usize,
    random: u64,
}

impl Timer {
    fn draw(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn redraw(&mut self) {
        let spread = u64::try_from(self.election_ticks.div_ceil(PATIENCE_SPREAD)).expect("a tick count is small");
        let jitter = usize::try_from(self.draw() % spread).expect("less than a tick count");
        self.patience = self.election_ticks + jitter;
    }

    /// A random part of a duration.
    fn part_of(&mut self, duration: Duration) -> Duration {
        let micros = u64::try_from(duration.as_micros()).expect("a wait is short").max(1);
        Duration::from_micros(self.draw() % micros)
    }
}

impl RaftDriver {
    /// Starts from what the log and the index hold. A member that is the only voter campaigns at once.
    pub fn new(now: Duration, config: &RaftConfig, restored: Restored) -> RaftDriver {
        let ticks = |duration: Duration| {
            usize::try_from(duration.as_millis() / limits::TICK.as_millis()).expect("a timeout is short").max(1)
        };
        let heartbeat_ticks = ticks(config.heartbeat_interval);
        let election_ticks = ticks(config.election_timeout).max(heartbeat_ticks + 1);
        let hard_state = wal::HardState {
            // The index may be ahead of the commit index that the log recorded: what is applied is committed.
            commit: restored.hard_state.commit.max(restored.applied_index),
            ..restored.hard_state
        };
        let raft_hard_state = HardState {
            term: hard_state.term,
            vote: hard_state.vote,
            commit: hard_state.commit,
            ..HardState::default()
        };
        let Restored { applied_index, applied_term, membership, entries, .. } = restored;
        let mut store = LogStore::new(applied_index, applied_term, raft_hard_state, membership.clone());
        let entries: Vec<Entry> = entries.iter().filter(|entry| entry.index > applied_index).map(from_log).collect();
        store.append(&entries);
        assert!(hard_state.commit <= store.newest_index(), "the log holds every entry it knows to be committed");
        let raft_config = Config {
            id: config.id,
            election_tick: election_ticks,
            heartbeat_tick: heartbeat_ticks,
            applied: applied_index,
            max_size_per_msg: MESSAGE_BYTES_MAX,
            max_inflight_msgs: MESSAGES_IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            // raft-rs draws its own timeout from a generator that no seed reaches. Ours is always shorter.
            min_election_tick: 2 * election_ticks,
            max_election_tick: 2 * election_ticks + 1,
            max_committed_size_per_ready: COMMITTED_BYTES_MAX,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node =
            RawNode::new(&raft_config, store, &logger).expect("the configuration was checked and the state fits");
        let mut timer = Timer { last_tick: now, election_ticks, patience: 0, random: config.seed };
        timer.redraw();
        let mut driver = RaftDriver {
            node,
            boot: config.boot,
            hard_state,
            in_flight: VecDeque::new(),
            released: Vec::new(),
            peers: membership.voters.iter().chain(&membership.learners).copied().collect(),
            membership,
            removed: Vec::new(),
            role: Role::Follower(0),
            reads_issued: 0,
            catch_up_commands: config.catch_up_commands,
            timer,
            hunt: None,
            may_campaign: true,
            acknowledged: Acknowledged::default(),
        };
        driver.campaign_if_alone();
        driver
    }

    /// This member's id.
    pub fn id(&self) -> u64 {
        self.node.raft.id
    }

    /// The current term.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// The newest index known to be committed.
    pub fn commit_index(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// The role that the last step told.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The membership up to the applied entries.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Whether this member is the only one. What it has published is then all that anybody was ever answered.
    pub fn is_alone(&self) -> bool {
        self.membership.is_only(self.id())
    }

    /// Whether this member leads and has committed an entry of its own term: only then does it know what is committed.
    pub fn knows_commit_index(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.node.raft.commit_to_current_term()
    }

    /// Bytes of the entries in memory that are not applied.
    pub fn unapplied_bytes(&self) -> u64 {
        self.node.store().unapplied_bytes()
    }

    /// Puts data into the log, if this member leads.
    pub fn propose(&mut self, data: Bytes) -> Result<Proposed, NotLeader> {
        assert!(!data.is_empty(), "an entry without data is raft-rs's own");
        self.propose_entry(Entry { data, ..Entry::default() })
    }

    /// Whether a change of membership may be under way: raft-rs would turn another one into an empty entry.
    pub fn has_pending_change(&self) -> bool {
        self.node.raft.has_pending_conf()
    }

    /// How far the log of a member, or of this one, is known to match this leader's; nothing if it is no member or this
    /// one does not lead.
    pub fn matched(&self, id: u64) -> Option<u64> {
        let leads = self.node.raft.state == StateRole::Leader;
        self.node.raft.prs().get(id).filter(|_| leads).map(|progress| progress.matched)
    }

    /// Proposes a change of membership, if this member leads and no other change is under way. `data` is what the log
    /// holds of it.
    pub fn propose_change(&mut self, data: Vec<u8>, change: MembershipChange) -> Result<Proposed, NotLeader> {
        if self.node.raft.state != StateRole::Leader || self.has_pending_change() {
            return Err(NotLeader);
        }
        let before = self.newest_index();
        self.node.propose_conf_change(data, change.to_conf_change()).map_err(|_| NotLeader)?;
        assert_eq!(self.newest_index(), before + 1, "an accepted proposal is one entry");
        Ok(Proposed { index: before + 1, term: self.term() })
    }

    fn propose_entry(&mut self, entry: Entry) -> Result<Proposed, NotLeader> {
        // raft-rs would send a follower's proposal to the leader, and drop it in silence when there is none.
        if self.node.raft.state != StateRole::Leader {
            return Err(NotLeader);
        }
        let before = self.newest_index();
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.id();
        message.mut_entries().push(entry);
        self.node.step(message).map_err(|_| NotLeader)?;
        assert_eq!(self.newest_index(), before + 1, "an accepted proposal is one entry");
        Ok(Proposed { index: before + 1, term: self.term() })
    }

    fn newest_index(&self) -> u64 {
        self.node.raft.raft_log.last_index()
    }

    /// Asks for a read index. Returns the number that confirms it; none while no answer can come: without a leader, or
    /// before a leader's first commit of its term, when raft-rs would drop the question in silence. Ask again later.
    pub fn read_index(&mut self) -> Option<u64> {
        let askable = match self.node.raft.state {
            StateRole::Leader => self.knows_commit_index(),
            _ => self.node.raft.leader_id != 0,
        };
        if !askable {
            return None;
        }
        self.reads_issued += 1;
        let mut context = Vec::with_capacity(3 * size_of::<u64>());
        for part in [self.id(), self.boot, self.reads_issued] {
            context.extend(part.to_le_bytes());
        }
        self.node.read_index(context);
        Some(self.reads_issued)
    }

    /// Everything up to this index is applied. What lies behind `needed_from` is kept for the receiver of a snapshot.
    pub fn handle_applied(&mut self, index: u64, needed_from: Option<u64>) {
        self.node.advance_apply_to(index);
        let alone = self.is_alone();
        let keep = Keep {
            bytes: if alone { 0 } else { limits::CATCH_UP_BYTES_MAX },
            commands: if alone { 0 } else { self.catch_up_commands },
            behind: needed_from.map(|index| (index, limits::CATCH_UP_TRANSFER_BYTES_MAX)),
        };
        self.node.mut_store().handle_applied(index, &self.membership, keep);
    }

    /// Whether a snapshot at this entry would take this member further than its log does.
    pub fn needs_snapshot(&self, index: u64, term: u64) -> bool {
        let raft = &self.node.raft;
        raft.state != StateRole::Leader && index > raft.raft_log.committed && !raft.raft_log.match_term(index, term)
    }

    /// Hands a snapshot to raft-rs whose image is durable: a member sent it that had applied that entry, and this member
    /// needs it. [`Step::restored`] tells of it. False while no leader is known in whose name that could be done.
    pub fn restore(&mut self, index: u64, term: u64, membership: &Membership) -> bool {
        assert!(self.needs_snapshot(index, term), "the caller has asked");
        // What is applied anywhere is committed for ever: a later leader's log holds it, too, and it is that one that must
        // hear how far this member is.
        let message = self.snapshot_message(index, term, membership);
        if message.from == 0 || term > message.term {
            return false;
        }
        self.node.step(message).is_ok() && self.node.snap().is_some()
    }

    /// The leader offers a snapshot that this member does not need: it does not know how far this member's log is, and no
    /// entry that it still has would make it find out. It is told as raft-rs tells who sends a snapshot in vain.
    pub fn decline(&mut self, leader: u64, index: u64, term: u64, membership: &Membership) {
        let raft = &self.node.raft;
        let follows = raft.state == StateRole::Follower && raft.leader_id == leader && leader != 0;
        if !follows || self.needs_snapshot(index, term) {
            return;
        }
        let pending = |node: &RawNode<LogStore>| node.snap().map(|snap| snap.get_metadata().index);
        let before = pending(&self.node);
        let message = self.snapshot_message(index, term, membership);
        let _ = self.node.step(message);
        assert_eq!(pending(&self.node), before, "what is not needed is not taken");
    }

    /// A snapshot as its leader would send it.
    fn snapshot_message(&self, index: u64, term: u64, membership: &Membership) -> Message {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        (message.from, message.to, message.term) = (self.node.raft.leader_id, self.id(), self.term());
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (index, term);
        *metadata.mut_conf_state() = membership.to_conf_state();
        message
    }

    /// What became of a snapshot that raft-rs wanted to be sent.
    pub fn report_snapshot(&mut self, to: u64, installed: bool) {
        let status = if installed { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(to, status);
    }

    /// A committed change of membership is applied.
    pub fn apply_change(&mut self, change: MembershipChange) {
        // raft-rs refuses a change that makes no sense, on every member alike; it is then without effect.
        if let Ok(state) = self.node.apply_conf_change(&change.to_conf_change()) {
            self.set_membership(Membership::from_conf_state(&state));
        }
        if change.kind != ChangeKind::Remove {
            self.node.mut_store().note_joiner();
        }
        self.campaign_if_alone();
    }

    fn set_membership(&mut self, membership: Membership) {
        self.peers = membership.voters.iter().chain(&membership.learners).copied().collect();
        self.membership = membership;
    }

    /// Members that were removed.
    pub fn set_removed(&mut self, removed: impl Iterator<Item = u64>) {
        self.removed = removed.collect();
    }

    /// Whether the membership up to the applied entries names a member.
    pub fn is_member(&self, id: u64) -> bool {
        self.peers.contains(&id)
    }

    /// A message that the member `from` sent. One that does not fit is dropped, as if the network had lost it.
    ///
    /// # Errors
    /// Why raft-rs may not see it.
    pub fn handle_message(&mut self, from: u64, message: Message) -> Result<(), Rejection> {
        let facts = ReplicaFacts {
            self_id: self.id(),
            term: self.term(),
            committed: self.commit_index(),
            last_index: self.newest_index(),
            peers: &self.peers,
            removed: &self.removed,
        };
        garboard_transport::validate(&message, from, &facts)?;
        // Whoever joins does not know what the cluster was founded with: entries from the first one on say too little.
        if self.membership.is_empty() && message.get_msg_type() == MessageType::MsgAppend && message.index == 0 {
            return Ok(());
        }
        if !self.is_for_raft(&message) {
            return Ok(());
        }
        let is_append = message.get_msg_type() == MessageType::MsgAppend;
        let (is_empty, committed) = (message.get_entries().is_empty(), self.commit_index());
        // raft-rs drops what does not fit its state.
        let _ = self.node.step(message);
        if is_append {
            self.spare_known_answer(from, is_empty && self.commit_index() > committed);
        }
        Ok(())
    }

    /// Takes back the answer that raft-rs has just made to an append, if it tells the leader nothing.
    fn spare_known_answer(&mut self, from: u64, brought_commit_only: bool) {
        let messages = &mut self.node.raft.msgs;
        let is_answer =
            |message: &&Message| message.get_msg_type() == MessageType::MsgAppendResponse && message.to == from;
        if let Some(answer) = messages.last().filter(is_answer)
            && self.acknowledged.is_known(answer, brought_commit_only)
        {
            messages.pop();
        }
    }

    /// Whether raft-rs is to see a message that was found sound.
    fn is_for_raft(&self, message: &Message) -> bool {
        let raft = &self.node.raft;
        match message.get_msg_type() {
            // Proposals come in messages of our own, leadership is handed over by who has it, and an image reaches
            // raft-rs by another way.
            MessageType::MsgPropose | MessageType::MsgTransferLeader | MessageType::MsgSnapshot => false,
            // raft-rs would pass it on in the name of who asked first.
            MessageType::MsgReadIndex => raft.state == StateRole::Leader,
            // Nobody can have granted what was not asked for yet: the request waits for this member's log, and raft-rs
            // ends the process of a leader whose log is behind.
            MessageType::MsgRequestVoteResponse => {
                raft.state != StateRole::Candidate || raft.raft_log.persisted == raft.raft_log.last_index()
            }
            MessageType::MsgTimeoutNow => self.may_campaign && !self.is_restoring(),
            _ => true,
        }
    }

    /// Hands leadership to another voter; [`RaftDriver::transferee`] tells how long that is under way. Until it ends,
    /// nothing can be proposed.
    pub fn transfer(&mut self, target: u64) {
        assert!(self.membership.voters.contains(&target), "only a voter leads");
        self.node.transfer_leader(target);
    }

    /// To whom leadership is being handed.
    pub fn transferee(&self) -> Option<u64> {
        self.node.raft.lead_transferee
    }

    /// The voter that can take leadership over soonest: of those that were heard from lately the one that has most of
    /// the log.
    pub fn best_transferee(&self) -> Option<u64> {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader {
            return None;
        }
        let voters = self.membership.voters.iter().copied().filter(|id| *id != raft.id);
        let rank = |id: &u64| raft.prs().get(*id).map(|progress| (progress.recent_active, progress.matched));
        voters.max_by_key(rank)
    }

    /// Gives leadership up without an heir.
    pub fn step_down(&mut self) {
        if self.node.raft.state == StateRole::Leader {
            let term = self.term();
            self.node.raft.become_follower(term, 0);
        }
    }

    /// The process of the member `gone` has died. If it led, it is forgotten, so that this member may vote, and this
    /// member tries to lead after a short wait, until a leader is known.
    pub fn forget_leader(&mut self, now: Duration, gone: u64) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Follower || raft.leader_id != gone || gone == 0 {
            return;
        }
        let term = raft.term;
        raft.become_follower(term, 0);
        let before = self.membership.voters.iter().filter(|id| **id != gone && **id < self.id()).count();
        let wait = HUNT_STEP * u32::try_from(before).expect("clusters are small") + self.timer.part_of(HUNT_STEP);
        self.hunt = Some(Hunt { next: now + wait, interval: HUNT_INTERVAL, candidate_in: 0 });
    }

    /// There is a new link to a member: what was said on an earlier one may be lost.
    pub fn handle_link(&mut self) {
        self.acknowledged.forget();
    }

    /// A member has lost what it had acknowledged: if this one leads, it counts none of it any more, and finds out anew
    /// what that member has.
    pub fn withdraw_acknowledged(&mut self, id: u64) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader || id == raft.id || canary::is_on(Canary::LostAcknowledgementsCount) {
            return;
        }
        let next = raft.raft_log.last_index() + 1;
        if let Some(progress) = raft.mut_prs().get_mut(id) {
            (progress.matched, progress.committed_index) = (0, 0);
            (progress.pending_snapshot, progress.pending_request_snapshot) = (0, 0);
            progress.become_probe();
            progress.next_idx = next;
            self.node.mut_store().note_refilled();
        }
    }

    /// Whether the log holds a change of the members that is not applied.
    pub fn has_unapplied_change(&self) -> bool {
        self.node.store().has_unapplied_change()
    }

    /// This member may have voted and answered in terms up to this one, and does not remember it: it enters the term, and
    /// nobody has its vote there.
    pub fn enter_term(&mut self, term: u64) {
        let raft = &mut self.node.raft;
        assert!(term >= raft.term && raft.state == StateRole::Follower, "it was silent until now");
        raft.become_follower(term, 0);
        raft.vote = raft.id;
    }

    /// What was sent to a member last may be lost.
    pub fn report_unreachable(&mut self, id: u64) {
        self.acknowledged.forget();
        if self.is_member(id) {
            self.node.report_unreachable(id);
        }
    }

    /// Whether this member may try to lead. A member whose log stalls may not: it could not even vote for itself.
    pub fn set_may_campaign(&mut self, may: bool) {
        self.may_campaign = may;
    }

    /// Appends up to this number are durable, in this process's order.
    pub fn handle_durable(&mut self, durable: AppendNumber) {
        let (mut persisted, mut restored) = (None, None);
        while let Some(step) = self.in_flight.front() {
            if step.append.is_some_and(|append| append > durable) {
                break;
            }
            let step = self.in_flight.pop_front().expect("the front was just seen");
            persisted = Some(step.ready);
            restored = step.restored.or(restored);
            self.released.extend(step.messages);
        }
        if let Some(ready) = persisted {
            self.node.on_persist_ready(ready);
        }
        if let Some(index) = restored {
            self.node.advance_apply_to(index);
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.is_quiet() {
            self.timer.last_tick = now;
            return;
        }
        let due = now.saturating_sub(self.timer.last_tick).as_millis() / limits::TICK.as_millis();
        let due = u32::try_from(due).unwrap_or(u32::MAX);
        let election_ticks = u32::try_from(self.timer.election_ticks).expect("a tick count is small");
        let caught_up = election_ticks * CATCH_UP_TIMEOUTS_MAX;
        if due > caught_up {
            self.timer.last_tick = now - limits::TICK * caught_up;
        }
        for _ in 0..due.min(caught_up) {
            self.timer.last_tick += limits::TICK;
            self.node.tick();
            self.campaign_if_impatient(now);
        }
        self.hunt(now);
    }

    /// When [`RaftDriver::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.is_quiet() {
            return None;
        }
        let tick = self.timer.last_tick + limits::TICK;
        Some(self.hunt.map_or(tick, |hunt| hunt.next.min(tick)))
    }

    /// A leader without peers has nobody to send heartbeats to, and never loses its quorum.
    fn is_quiet(&self) -> bool {
        self.is_alone() && self.node.raft.state == StateRole::Leader
    }

    fn campaign_if_alone(&mut self) {
        if self.is_alone() && self.node.raft.state != StateRole::Leader {
            self.campaign();
        }
    }

    fn campaign_if_impatient(&mut self, now: Duration) {
        let raft = &self.node.raft;
        if raft.state == StateRole::Leader || !raft.promotable() || raft.election_elapsed < self.timer.patience {
            return;
        }
        self.campaign();
        // A pre-candidate's clock goes on; the next attempt waits a whole patience again, or what a hunt says.
        self.node.raft.election_elapsed = 0;
        self.timer.redraw();
        if self.hunt.is_none() {
            let wait = HUNT_INTERVAL + self.timer.part_of(HUNT_INTERVAL);
            self.hunt = Some(Hunt { next: now + wait, interval: HUNT_INTERVAL * 2, candidate_in: 0 });
        }
    }

    /// Tries to lead if no leader is known and it is time to.
    fn hunt(&mut self, now: Duration) {
        let Some(hunt) = self.hunt else { return };
        let raft = &self.node.raft;
        if raft.state == StateRole::Leader || raft.leader_id != 0 || !raft.promotable() {
            self.hunt = None;
            return;
        }
        if now < hunt.next {
            return;
        }
        // A candidate waits for votes, which wait for the voters' disks. When they were split it begins anew.
        let candidate_in = if raft.state == StateRole::Candidate { raft.term } else { 0 };
        if candidate_in == 0 || candidate_in == hunt.candidate_in {
            self.campaign();
        }
        let ticks = u32::try_from(self.timer.election_ticks).expect("a tick count is small");
        let longest = (limits::TICK * ticks / HUNT_PART_MAX).max(HUNT_INTERVAL);
        let next = now + hunt.interval + self.timer.part_of(hunt.interval);
        self.hunt = Some(Hunt { next, interval: (hunt.interval * 2).min(longest), candidate_in });
    }

    /// Whether a snapshot has taken the log's place and is not durable there. The entries before it are gone, and raft-rs
    /// may not count them as applied before it counts the snapshot as durable: meanwhile it would look for what is not
    /// applied, and end the process when it does not find it.
    fn is_restoring(&self) -> bool {
        !canary::is_on(Canary::CampaignBeforeDurable) && self.in_flight.iter().any(|step| step.restored.is_some())
    }

    fn campaign(&mut self) {
        if !self.may_campaign || self.is_restoring() {
            return;
        }
        // It fails only for reasons that a later attempt overcomes, such as an unapplied change of membership.
        let _ = self.node.campaign();
    }

    /// The next step. `append` hands an append to the log and gives its number. Call until there is none.
    pub fn poll(&mut self, append: &mut dyn FnMut(Append) -> AppendNumber) -> Option<Step> {
        if !self.node.has_ready() {
            if self.released.is_empty() {
                return None;
            }
            return Some(Step { messages: std::mem::take(&mut self.released), ..Step::default() });
        }
        let mut ready = self.node.ready();
        let restored = self.take_over_snapshot(&ready);
        let mut step = Step {
            committed: ready.take_committed_entries().iter().map(to_log).collect(),
            reads: ready.take_read_states().iter().filter_map(|state| self.read_confirmed(state)).collect(),
            messages: std::mem::take(&mut self.released),
            role: None,
            restored,
        };
        step.messages.extend(ready.take_messages());
        let append = self.append(&mut ready, append);
        let (late, early) = ready.take_persisted_messages().into_iter().partition(speaks_of_durable_state);
        step.messages.extend::<Vec<Message>>(early);
        self.in_flight.push_back(InFlight { ready: ready.number(), append, messages: late, restored });
        self.node.advance_append_async(ready);
        step.role = self.role_change();
        // Steps without an append are as durable as what stands before them.
        while self.in_flight.front().is_some_and(|step| step.append.is_none()) {
            let step = self.in_flight.pop_front().expect("the front was just seen");
            self.node.on_persist_ready(step.ready);
            self.released.extend(step.messages);
        }
        Some(step)
    }

    /// A snapshot takes the place of the entries in memory, at once: raft-rs reads what is there.
    fn take_over_snapshot(&mut self, ready: &Ready) -> Option<u64> {
        if ready.snapshot().is_empty() {
            return None;
        }
        let metadata = ready.snapshot().get_metadata();
        self.set_membership(Membership::from_conf_state(ready.snapshot().get_metadata().get_conf_state()));
        self.node.mut_store().restore(metadata.index, metadata.term, self.membership.clone());
        Some(metadata.index)
    }

    fn append(&mut self, ready: &mut Ready, append: &mut dyn FnMut(Append) -> AppendNumber) -> Option<AppendNumber> {
        if let Some(state) = ready.hs() {
            let vote = if canary::is_on(Canary::VoteForgotten) { 0 } else { state.vote };
            self.hard_state = wal::HardState { term: state.term, vote, commit: state.commit };
        }
        // A commit index that moved by itself rides with the next append: a restart finds it out anew.
        if !ready.must_sync() {
            return None;
        }
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        let entries = entries.iter().map(to_log).collect();
        Some(append(Append { entries, hard_state: self.hard_state }))
    }

    fn read_confirmed(&self, state: &raft::ReadState) -> Option<ReadConfirmed> {
        let mut parts = state
            .request_ctx
            .chunks_exact(size_of::<u64>())
            .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("chunks have exactly this length")));
        let [id, boot, number] = [parts.next()?, parts.next()?, parts.next()?];
        (id == self.id() && boot == self.boot).then_some(ReadConfirmed { number, index: state.index })
    }

    fn role_change(&mut self) -> Option<Role> {
        let raft = &self.node.raft;
        let role = if raft.state == StateRole::Leader { Role::Leader } else { Role::Follower(raft.leader_id) };
        (std::mem::replace(&mut self.role, role) != role).then_some(role)
    }
}

/// Whether a message of a member that does not lead rests on state that must be durable first. Answers to heartbeats
/// and pre-votes, and questions for a read index, rest on nothing.
fn speaks_of_durable_state(message: &Message) -> bool {
    if canary::is_on(Canary::FollowerAcksEarly) {
        return false;
    }
    !matches!(
        message.get_msg_type(),
        MessageType::MsgHeartbeatResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgReadIndex
            | MessageType::MsgReadIndexResp
    )
}
