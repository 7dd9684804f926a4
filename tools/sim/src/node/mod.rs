//! A shell in one thread: a member on a simulated disk, in simulated time.
//!
//! A node owns what one machine has: a disk, a clock and the process on it. It carries the member's effects out as the
//! real shell does, except that every completion takes a random time and completions overtake each other. What the
//! member says comes out in [`Node::answers`] and [`Node::events`], what it writes into its log in [`Node::logged`].
//! Everything random comes from [`Node::rng`].

mod clock;
mod io;
mod open;

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use garboard_replica::corruption::{CheckNote, Mismatch};
use garboard_replica::envelope::{Envelope, Request, Response, Ticket};
use garboard_replica::events::EventBatch;
use garboard_replica::member::{Effect, Fatal, Member, MemberConfig, Notice};
use garboard_replica::members::Members;
use garboard_replica::raft::Membership;
use garboard_replica::request::{Command, Context, KeyspaceId, Outcome, Principal, Reply};
use garboard_replica::{Error, member};
use garboard_simdisk::{Disk, Rng};
use garboard_storage::{Applied, IndexConfig, PageError, PageId, Paged, Reader, Snapshot, View};
use garboard_wal as wal;

pub use clock::Clock;
pub use io::SimFile;
use io::{LogWrite, Pending};
pub use open::{Found, Refusal, Rescue};

/// The index's file.
pub const INDEX_FILE: &str = "index";
const MEMBER_ID: u64 = 7;
const CLUSTER_ID: u64 = 9;
/// Addresses for the index: its file never grows near that.
const RESERVE_BYTES: usize = 1 << 30;

/// Whom tests ask for, by default.
pub fn context() -> Context {
    Context { keyspace: KeyspaceId(0), principal: Principal::Anonymous }
}

/// Why the process has stopped.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The member says so.
    #[error(transparent)]
    Fatal(#[from] Fatal),
    /// A page can't be read or is damaged.
    #[error("a page of the index can't be served")]
    Page(#[from] PageError),
}

/// What the shell does wrong on purpose, so that tests can see that it is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// Tell the member that a log write is durable before it is.
    pub early_completion: bool,
}

/// How long I/O takes.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// The longest time that an operation takes by itself.
    pub io_max: Duration,
    /// How much longer a page takes.
    pub page_delay: Duration,
}

/// What recovery decided, for whoever watches.
#[derive(Clone, Debug)]
pub struct Start {
    /// The log's last index.
    pub last_index: u64,
    /// The entries above the index's applied one.
    pub entries: Vec<wal::Entry>,
    /// What the index had applied, and its revision.
    pub applied_index: u64,
    /// The index's revision.
    pub revision: i64,
    /// The store is new: nothing was there, or nothing that anyone had relied on.
    pub founded: bool,
    /// Batches that recovery cut.
    pub cut_count: u64,
}

/// A member, its disk and its clock.
pub struct Node {
    /// The disk.
    pub disk: Arc<Mutex<Disk>>,
    /// The only source of chance.
    pub rng: Rng,
    /// The time in the world; the process counts from its own start.
    pub now: Duration,
    /// The member's configuration.
    pub config: MemberConfig,
    /// The log's.
    pub log_config: wal::LogConfig,
    /// The index's.
    pub index_config: IndexConfig,
    /// What the shell does wrong.
    pub sabotage: Sabotage,
    /// How long I/O takes.
    pub latency: Latency,
    /// Longest pause between a process's end and the next start.
    pub restart_pause: Duration,
    /// The member.
    pub member: Member,
    file: Arc<SimFile>,
    /// How the process's clock goes.
    pub process_clock: Clock,
    stalled_until: Duration,
    /// Completions by time and a number that keeps them apart.
    due: BinaryHeap<std::cmp::Reverse<(Duration, u64)>>,
    pending: BTreeMap<u64, Pending>,
    next_pending: u64,
    next_ticket: u64,
    /// Answers since they were last taken, in order.
    pub answers: Vec<(Ticket, Result<Response, Error>)>,
    /// The members as the member told them last.
    pub members: Arc<Members>,
    /// Published changes since they were last taken, in order.
    pub events: Vec<Arc<EventBatch>>,
    /// Revisions of snapshots that took the state's place since they were last taken.
    pub restored: Vec<i64>,
    /// The index of the last of them.
    pub restored_index: u64,
    /// Entries that were handed to the disk since they were last taken, in order.
    pub logged: Vec<wal::Entry>,
    /// What corruption checks told since this was last taken.
    pub checks: Vec<CheckNote>,
    /// The initial corruption check found that the member differs from another: it must not serve.
    pub differs: Option<Mismatch>,
    /// Pages that readers asked for and that are there since this was last taken.
    pub loaded: Vec<u64>,
    log_id: u128,
    writes: VecDeque<LogWrite>,
    durable_index: u64,
    /// How far the log of this process was once durable whose last entry was of a term, by that term.
    durable_in: BTreeMap<u64, u64>,
    last_event_revision: i64,
    /// Whether somebody may have relied on what is on the disk.
    served: bool,
    /// What is on the disk is a beginning, under repair, that nobody relies on yet.
    is_clearing: bool,
    /// Whether a repair has ended. Taken by whoever looks.
    pub repaired: bool,
    /// How often the process was started.
    pub starts: u64,
}

impl Node {
    /// A new member with what etcd has as defaults, small segments and frequent checkpoints.
    pub fn new(seed: u64) -> Node {
        Node::with(seed, MemberConfig::single(MEMBER_ID))
    }

    /// A new member with this configuration.
    pub fn with(seed: u64, config: MemberConfig) -> Node {
        let log_config = wal::LogConfig {
            segment_size_bytes: 1 << 20,
            batch_size_max_bytes: 256 << 10,
            ..wal::LogConfig::default()
        };
        let mut rng = Rng::new(seed);
        let mut index_config = IndexConfig::new(CLUSTER_ID, MEMBER_ID);
        // From one checkpoint after the other to none at all.
        if rng.chance(75) {
            index_config.checkpoint_bytes = (64 << 10) << rng.below(4);
            index_config.dirty_bytes_max = 2 * index_config.checkpoint_bytes;
        }
        Node::configured(rng, config, log_config, index_config)
    }

    /// A new member with all of these.
    pub fn configured(
        mut rng: Rng,
        config: MemberConfig,
        log_config: wal::LogConfig,
        index_config: IndexConfig,
    ) -> Node {
        let disk = Arc::new(Mutex::new(Disk::new()));
        let Found { member, file, log_id } =
            open::found(&disk, &config, log_config, &index_config, &mut rng, Duration::ZERO);
        Node {
            disk,
            rng,
            now: Duration::ZERO,
            config,
            log_config,
            index_config,
            sabotage: Sabotage::default(),
            latency: Latency { io_max: Duration::from_millis(2), page_delay: Duration::ZERO },
            restart_pause: Duration::from_secs(3),
            member,
            file,
            process_clock: Clock::default(),
            stalled_until: Duration::ZERO,
            due: BinaryHeap::new(),
            pending: BTreeMap::new(),
            next_pending: 0,
            next_ticket: 0,
            answers: Vec::new(),
            members: Arc::default(),
            events: Vec::new(),
            restored: Vec::new(),
            restored_index: 0,
            logged: Vec::new(),
            checks: Vec::new(),
            differs: None,
            loaded: Vec::new(),
            log_id,
            writes: VecDeque::new(),
            durable_index: 0,
            durable_in: BTreeMap::new(),
            last_event_revision: 1,
            served: false,
            is_clearing: false,
            repaired: false,
            starts: 1,
        }
    }

    /// The process's own monotonic clock.
    pub fn clock(&self) -> Duration {
        self.process_clock.at(self.now)
    }

    /// When the process's clock will show this time.
    pub fn world_time(&self, clock: Duration) -> Duration {
        self.process_clock.when(clock)
    }

    /// Pins published roots.
    pub fn reader(&self) -> Reader {
        self.member.reader()
    }

    /// The last index of the log up to which every entry was durable when its write ended, and none is being replaced.
    pub fn durable_index(&self) -> u64 {
        let replaced = self.writes.iter().filter_map(|write| write.first_index).min();
        replaced.map_or(self.durable_index, |first| self.durable_index.min(first - 1))
    }

    /// Whether the log, as it was in some term or before, was durable up to this index. The entries may have been replaced
    /// since, in later terms: what a member says late of an earlier term is no less true for that.
    pub fn was_durable(&self, term: u64, index: u64) -> bool {
        self.durable_in.range(..=term).any(|(_, durable)| *durable >= index)
    }

    pub(super) fn note_durable(&mut self, term: u64, index: u64) {
        self.durable_index = index;
        let durable = self.durable_in.entry(term).or_default();
        *durable = index.max(*durable);
    }

    /// Whether the member is one of several: it is relied on as soon as its log is, whether it leads or not.
    fn has_peers(&self) -> bool {
        self.config.initial_members != Membership::single(self.config.member_id)
    }

    /// Whether the member answers clients: it leads, and what was there before is applied.
    pub fn is_serving(&self) -> bool {
        self.served && self.member.is_ready()
    }

    /// Hands requests in, as one batch, and returns their tickets. Nothing runs yet.
    pub fn send(&mut self, requests: impl IntoIterator<Item = Request>) -> Vec<Ticket> {
        self.send_as(requests, |_| context())
    }

    /// Like [`Node::send`], each request on behalf of whom its ticket says.
    pub fn send_as(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
        context: impl Fn(Ticket) -> Context,
    ) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let mut batch = Vec::new();
        for request in requests {
            self.next_ticket += 1;
            let ticket = Ticket { core: 0, sequence: self.next_ticket };
            tickets.push(ticket);
            batch.push(Envelope { ticket, context: context(ticket), request });
        }
        self.member.handle_requests(self.clock(), batch);
        self.drain();
        tickets
    }

    /// Hands one write in.
    pub fn write(&mut self, command: Command) -> Ticket {
        self.send([Request::Write(command)])[0]
    }

    /// Sends one request and runs until it is answered.
    ///
    /// # Errors
    /// The member's answer.
    pub fn call(&mut self, request: Request) -> Result<Response, Error> {
        let ticket = self.send([request])[0];
        self.wait(ticket)
    }

    /// Runs until a request is answered.
    ///
    /// # Errors
    /// The member's answer.
    ///
    /// # Panics
    /// When it never is.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Response, Error> {
        for _ in 0..1_000_000 {
            if let Some(at) = self.answers.iter().position(|(answered, _)| *answered == ticket) {
                return self.answers.remove(at).1;
            }
            assert!(self.step(), "nothing is left to happen and the request is not answered");
        }
        panic!("the request is not answered");
    }

    /// Sends one write and runs until it is answered.
    ///
    /// # Errors
    /// The member's answer.
    ///
    /// # Panics
    /// When the answer is not a write's.
    pub fn execute(&mut self, command: Command) -> Result<Reply, Error> {
        match self.call(Request::Write(command))? {
            Response::Write(reply) => Ok(reply),
            other => panic!("a write was answered with {other:?}"),
        }
    }

    /// Runs until `until`, and sets the time to it.
    pub fn run_until(&mut self, until: Duration) {
        self.drain();
        while let Some(next) = self.next_event().filter(|next| *next <= until) {
            self.advance(next).expect("nothing fails in this test");
        }
        self.now = self.now.max(until);
    }

    /// Runs for a while.
    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(self.now + duration);
    }

    /// Runs until nothing is due any more within a second.
    pub fn settle(&mut self) {
        self.run_for(Duration::from_secs(1));
    }

    /// One event. False when nothing will ever happen by itself.
    pub fn step(&mut self) -> bool {
        self.try_step().expect("nothing fails in this test")
    }

    /// One event, if it is due within a while; otherwise the while passes.
    pub fn step_within(&mut self, limit: Duration) {
        self.drain();
        match self.next_event().filter(|next| *next <= self.now + limit) {
            Some(next) => self.advance(next).expect("nothing fails in this test"),
            None => self.now += limit,
        }
    }

    /// Like [`Node::step`], where I/O may fail.
    ///
    /// # Errors
    /// Why the process stops.
    pub fn try_step(&mut self) -> Result<bool, Stop> {
        self.drain();
        let Some(next) = self.next_event() else { return Ok(false) };
        self.advance(next)?;
        Ok(true)
    }

    /// When something happens next by itself.
    pub fn next_event(&self) -> Option<Duration> {
        let io = self.due.peek().map(|std::cmp::Reverse((at, _))| *at);
        let timeout = self.member.poll_timeout().map(|at| self.world_time(at));
        io.into_iter().chain(timeout).min()
    }

    /// Lets the one thing happen that [`Node::next_event`] names, no earlier than at `to`.
    ///
    /// # Errors
    /// Why the process stops.
    pub fn advance(&mut self, to: Duration) -> Result<(), Stop> {
        self.now = self.now.max(to);
        let io = self.due.peek().map(|std::cmp::Reverse((at, _))| *at).filter(|at| *at <= self.now);
        if io.is_some() {
            let std::cmp::Reverse((_, number)) = self.due.pop().expect("just seen");
            let pending = self.pending.remove(&number).expect("what is due is pending");
            self.complete(pending)?;
        } else {
            self.member.handle_timeout(self.clock());
        }
        self.drain();
        Ok(())
    }

    /// The disk answers nothing until then.
    pub fn stall_until(&mut self, until: Duration) {
        self.stalled_until = self.stalled_until.max(until);
        self.hold_until(until);
    }

    /// Whether the disk has something under way.
    pub fn has_io(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether pages are on their way that the member asked for.
    pub fn loads_pages(&self) -> bool {
        self.pending.values().any(|pending| matches!(pending, Pending::Page(_)))
    }

    /// A reader needs a page; [`Node::loaded`] says `token` once it is there.
    pub fn load_for_reader(&mut self, page: PageId, pin: Snapshot, token: u64) {
        self.start(Pending::ReaderPage { page, _pin: pin, token });
    }

    /// Takes effects until there is none.
    pub fn drain(&mut self) {
        while let Some(effect) = self.member.poll_effect(self.clock()) {
            // Before the first answer leaves.
            if !self.served && self.member.is_ready() {
                self.mark_served();
            }
            match effect {
                Effect::Answer { ticket, result } => {
                    self.check_answer(&result);
                    self.answers.push((ticket, result));
                }
                Effect::Events(events) => {
                    assert!(events.first_revision > self.last_event_revision, "events come in order");
                    assert!(events.last_revision <= self.member.reader().revision(), "events follow the publish");
                    let revisions: Vec<_> = events.events.iter().map(|event| event.revision).collect();
                    assert!(revisions.is_sorted_by(|a, b| a < b), "events of a batch are in order");
                    self.last_event_revision = events.last_revision;
                    self.events.push(events);
                }
                Effect::Members(members) => self.members = members,
                // Tests ask the member itself.
                Effect::Removed => {}
                Effect::Repaired => self.end_repair(),
                Effect::Restored { revision, .. } => {
                    assert!(revision >= self.last_event_revision, "no snapshot goes back");
                    assert!(revision <= self.member.reader().revision(), "a snapshot is told of once it is published");
                    self.last_event_revision = revision;
                    self.restored.push(revision);
                    // The image is durable in the index's place, and the log begins behind it.
                    let Applied { index: applied, term } = self.member.reader().pin().view().applied();
                    self.note_durable(term, applied);
                    self.restored_index = applied;
                    self.writes.retain(|write| write.first_index.is_some_and(|first| first > applied));
                }
                Effect::LoadPage(page) => self.start(Pending::Page(page)),
                Effect::Index(io) => self.start_index(io),
                Effect::Log(effect) => self.start_log(effect),
                Effect::Notice(Notice::Check(note)) => self.checks.push(note),
                Effect::Notice(_) => {}
                Effect::Corrupt(mismatch) => self.differs = Some(mismatch),
            }
        }
        if !self.served && self.member.is_ready() {
            self.mark_served();
        }
    }

    /// The answer to a write leaves after what it says is published, and after its events.
    fn check_answer(&self, result: &Result<Response, Error>) {
        let Ok(Response::Write(reply)) = result else { return };
        assert!(reply.revision <= self.member.reader().revision(), "an answer follows the publish");
        if matches!(reply.outcome, Outcome::Put(_)) {
            assert!(reply.revision <= self.last_event_revision, "an answer follows the events");
        }
    }

    /// Loses power and starts again. What was asked and not answered is lost to its clients.
    pub fn crash(&mut self) {
        self.power_off();
        self.restart();
    }

    /// The process ends without a word and starts again; the disk keeps what it was given.
    pub fn restart(&mut self) {
        self.now += Duration::from_nanos(self.rng.below(nanos(self.restart_pause).max(1)));
        self.start_process().unwrap_or_else(|refusal| panic!("the member does not open: {refusal}"));
    }

    /// Loses power.
    pub fn power_off(&mut self) {
        self.end_process();
        self.disk.lock().expect("one thread").crash_at_random(&mut self.rng);
    }

    /// What the process has under way completes no earlier than this: it stands still until then.
    pub fn hold_until(&mut self, until: Duration) {
        let due = std::mem::take(&mut self.due);
        self.due =
            due.into_iter().map(|std::cmp::Reverse((at, number))| std::cmp::Reverse((at.max(until), number))).collect();
    }

    /// The process is gone with all that it had in memory.
    pub fn end_process(&mut self) {
        self.due.clear();
        self.pending.clear();
        self.answers.clear();
        self.events.clear();
        self.restored.clear();
        self.logged.clear();
        self.loaded.clear();
        self.checks.clear();
        self.differs = None;
        self.writes.clear();
        self.stalled_until = Duration::ZERO;
    }

    /// Starts the process on what is on the disk.
    ///
    /// # Errors
    /// Why the member does not open. Nothing was written.
    pub fn start_process(&mut self) -> Result<Start, Refusal> {
        self.start_with(Rescue::Nothing)
    }

    /// Starts the process; a damaged log is cut where an operator says so.
    ///
    /// # Errors
    /// Why the member does not open.
    pub fn start_with(&mut self, rescue: Rescue) -> Result<Start, Refusal> {
        self.end_process();
        self.starts += 1;
        self.config.boot += 1;
        self.process_clock.start(self.now);
        let start = self.open(rescue)?;
        self.durable_in.clear();
        self.note_durable(0, start.last_index);
        self.last_event_revision = start.revision;
        self.drain();
        Ok(start)
    }

    fn start(&mut self, pending: Pending) {
        let mut at = self.now + Duration::from_nanos(self.rng.below(nanos(self.latency.io_max).max(1)) + 1);
        if matches!(pending, Pending::Page(_) | Pending::ReaderPage { .. }) {
            at += self.latency.page_delay;
        }
        if self.stalled_until > self.now {
            at += self.stalled_until - self.now;
        }
        self.next_pending += 1;
        self.due.push(std::cmp::Reverse((at, self.next_pending)));
        self.pending.insert(self.next_pending, pending);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("simulated times are short")
}

/// Reads the published state, loading pages as they are missing.
pub fn read<T>(reader: &Reader, mut read: impl FnMut(&View<'_>) -> Paged<T>) -> T {
    let snapshot = reader.pin();
    loop {
        match read(&snapshot.view()) {
            Ok(value) => return value,
            Err(need) => reader.load(need.0).expect("pages are readable in this test"),
        }
    }
}

/// Why a member can't be opened, as [`garboard_replica::member`] says.
pub type MemberOpenError = member::OpenError;
