//! A cluster: members on machines of their own, a network between them, clients on all of them, faults everywhere.
//!
//! As in a world of one member, one event happens, then everything that it brought about is looked at, then the next one
//! happens. What members write into their logs and publish makes one history, which everything is held against.

mod clients;
mod deposed;
mod ending;
mod faults;
mod links;
mod machine;
mod network;
mod plan;
mod watches;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use bytes::Bytes;
use garboard_replica::auto_compaction::AutoCompaction;
use garboard_replica::corruption::CheckNote;
use garboard_replica::member::MemberConfig;
use garboard_replica::peer::PeerMessage;
use garboard_replica::raft::Membership;
use garboard_replica::watch::WatchCreate;
use garboard_simdisk::Rng;
use garboard_storage::IndexConfig;
use raft::eraftpb::{Message, MessageType};

use crate::check::history::{History, Setting, Shown};
use crate::node::Node;
use crate::outcome::{Check, Summary, same, violated};
use crate::plan::{Fault, Options};
use crate::story::Story;
use clients::{Client, Op, ReadTask};
use deposed::Deposed;
use links::PeerLinks;
use machine::{Input, Machine};
use network::Network;
use plan::ClusterPlan;

pub(crate) use plan::draw_members;

/// More than any seed needs, for each second that it lasts: beyond it the world turns without getting anywhere.
const EVENTS_MAX_PER_SECOND: u64 = 50_000;

/// What happens in the world.
#[derive(Debug)]
enum Event {
    /// A client sends its next request.
    Client(usize),
    /// A client waits no longer for the answer to a request.
    GiveUp(u64),
    /// A client reads its watch stream.
    Stream { machine: usize, stream: u64 },
    /// A client watches again, after its stream broke.
    Rewatch(Vec<WatchCreate>),
    /// A long read goes on.
    Read(u64),
    /// A message arrives.
    Deliver { to: usize, from: u64, bytes: Bytes },
    /// A datagram arrives.
    Datagram { to: usize, from: usize, bytes: Bytes },
    /// The connection that shows that another member's process lives is broken.
    Hangup { to: usize, peer: u64 },
    /// A process that stood still goes on.
    Resume { machine: usize, life: u64 },
    /// A process starts.
    Start(usize),
    /// A disk has room again.
    Room(usize),
    /// A fault of this kind comes.
    Fault(usize),
    /// The leader is replaced without knowing it, or asked then.
    OldLeader,
    /// A sector rots, once its machine is quiet.
    Rot { machine: usize, tries: u32 },
}

/// An event and when it happens.
struct Scheduled {
    due: Duration,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// A cluster and everything around it.
pub struct Cluster {
    plan: ClusterPlan,
    rng: Rng,
    now: Duration,
    queue: BinaryHeap<Reverse<Scheduled>>,
    next_event: u64,
    machines: Vec<Machine>,
    network: Network,
    history: History,
    clients: Vec<Client>,
    ops: BTreeMap<u64, Op>,
    next_op: u64,
    reads: BTreeMap<u64, ReadTask>,
    next_token: u64,
    /// Who led, by term.
    leaders: BTreeMap<u64, u64>,
    /// Whom members voted for, by voter and term.
    votes: BTreeMap<(u64, u64), u64>,
    /// Leaders that are replaced without knowing it, if the seed has them.
    deposed: Option<Deposed>,
    /// The faults have stopped, and the clients too.
    calm: bool,
    turns: u64,
    story: Story,
    /// What the seed went through.
    pub summary: Summary,
}

impl Cluster {
    /// Draws a cluster of so many members.
    pub fn new(seed: u64, options: &Options, members: usize) -> Cluster {
        let mut rng = plan::stream(seed);
        let mut plan = ClusterPlan::draw(&mut rng, options, members);
        if options.steady.is_none() {
            plan.each.member.corruption = plan::draw_checks(seed);
        }
        let network_rng = Rng::new(rng.next_u64());
        let setting = Setting {
            has_quota: plan.each.member.quota_bytes >= 0,
            compacts: plan.each.member.auto_compaction != AutoCompaction::Off,
            extension: plan.each.member.election_timeout,
            drift_ppm_max: plan.drift_ppm,
        };
        let machines = (1..).take(members).map(|id| make_machine(&mut rng, &plan, id)).collect();
        let mut cluster = Cluster {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            next_event: 0,
            machines,
            network: Network::new(plan.network, network_rng, links::MEMBERS_MAX),
            history: History::new(setting),
            clients: (0..plan.each.clients).map(|_| Client::default()).collect(),
            ops: BTreeMap::new(),
            next_op: 0,
            reads: BTreeMap::new(),
            next_token: 0,
            leaders: BTreeMap::new(),
            votes: BTreeMap::new(),
            deposed: None,
            calm: false,
            turns: 0,
            story: Story::new(options.story),
            summary: Summary::default(),
            rng,
            plan,
        };
        for machine in &mut cluster.machines {
            machine.node.sabotage = options.sabotage;
        }
        if cluster.plan.links {
            cluster.link();
        }
        cluster.begin(seed);
        cluster.begin_deposing(seed, options);
        cluster
    }

    /// Gives every member links to all others.
    #[expect(clippy::disallowed_methods, reason = "links count from a moment; which one it is shows nowhere")]
    fn link(&mut self) {
        let epoch = std::time::Instant::now();
        for machine in &mut self.machines {
            let seed = self.rng.next_u64();
            let links = PeerLinks::new(epoch, seed, machine.id, machine.node.starts, BTreeMap::new());
            machine.links = Some(links);
        }
        for at in 0..self.machines.len() {
            self.meet(at);
        }
    }

    /// A process learns of the other members.
    fn meet(&mut self, at: usize) {
        let ids: Vec<u64> = self.machines.iter().map(|machine| machine.id).collect();
        let machine = &mut self.machines[at];
        let now = machine.node.clock();
        if let Some(links) = &mut machine.links {
            links.set_peers(now, &ids, &[]);
            return;
        }
        // Without links, whoever runs is heard.
        for other in (0..self.machines.len()).filter(|other| *other != at).collect::<Vec<_>>() {
            for (one, two) in [(at, other), (other, at)] {
                let (runs, peer) = (self.machines[two].is_up(), self.machines[two].id);
                let node = &mut self.machines[one].node;
                if runs {
                    node.member.handle_peer_up(node.clock(), peer);
                    node.drain();
                }
            }
        }
    }

    fn begin(&mut self, seed: u64) {
        let plan = &self.plan;
        self.story.tell(self.now, "seed", seed, || {
            let faults: Vec<_> = plan.faults.iter().map(|(fault, mean)| format!("{} {mean:?}", fault.name())).collect();
            format!(
                "{seed}: {} members{} for {:?}, {} clients that ask again after {:?} and wait {:?}; {:?}; clocks off by \
                 {} ppm; faults every: [{}]; I/O up to {:?}; log {:?}; checkpoint at {} KiB; quota {}; {:?}",
                plan.members,
                if plan.links { " with links" } else { "" },
                plan.lasts,
                plan.each.clients,
                plan.each.think,
                plan.client_patience,
                plan.network,
                plan.drift_ppm,
                faults.join(", "),
                plan.each.latency.io_max,
                plan.each.log,
                plan.each.index.checkpoint_bytes >> 10,
                plan.each.member.quota_bytes,
                plan.each.member.auto_compaction,
            )
        });
        for client in 0..self.clients.len() {
            self.clients[client].at = self.rng.index(self.machines.len());
            self.think(client, self.plan.each.think);
        }
        for number in 0..self.plan.faults.len() {
            self.soon(Event::Fault(number), self.plan.faults[number].1);
        }
    }

    /// Runs the seed to its end.
    ///
    /// # Errors
    /// The first promise that was not kept.
    pub fn run(&mut self) -> Check {
        let result = self.act().and_then(|()| self.finish());
        result.map_err(|mut violation| {
            violation.at = self.now;
            violation
        })
    }

    /// Figures of what happened so far.
    pub fn close(&mut self) {
        self.summary.simulated = self.now;
        self.summary.cluster_time = self.now;
        self.summary.acknowledged_writes = self.history.acknowledged;
        self.summary.expiries = self.history.leases.expiries;
        self.summary.messages = self.network.sent;
        self.summary.digest = self.story.digest();
    }

    fn act(&mut self) -> Check {
        for at in 0..self.machines.len() {
            self.machines[at].node.drain();
            if !self.plan.links {
                self.meet(at);
            }
            self.observe(at)?;
        }
        self.run_for(self.plan.lasts)
    }

    fn run_for(&mut self, duration: Duration) -> Check {
        let until = self.now + duration;
        while self.next_due().is_some_and(|due| due <= until) {
            self.turn()?;
        }
        self.now = until;
        Ok(())
    }

    fn next_machine(&self) -> Option<(Duration, usize)> {
        self.machines.iter().enumerate().filter_map(|(at, machine)| Some((machine.due?, at))).min()
    }

    fn next_due(&self) -> Option<Duration> {
        let machine = self.next_machine().map(|(due, _)| due);
        machine.into_iter().chain(self.queue.peek().map(|Reverse(next)| next.due)).min()
    }

    /// One event.
    fn turn(&mut self) -> Check {
        self.turns += 1;
        if self.turns > EVENTS_MAX_PER_SECOND * (60 + self.now.as_secs()) {
            return violated("the world gets somewhere", "", format!("{} events", self.turns));
        }
        let world = self.queue.peek().map(|Reverse(next)| next.due);
        match (self.next_machine(), world) {
            (Some((due, at)), world) if world.is_none_or(|world| due <= world) => {
                self.now = self.now.max(due);
                self.machine_turn(at)
            }
            (_, Some(due)) => {
                self.now = self.now.max(due);
                let Reverse(next) = self.queue.pop().expect("just seen");
                self.happen(next.event)
            }
            (_, None) => violated("something is always going to happen", "", "nothing"),
        }
    }

    fn machine_turn(&mut self, at: usize) -> Check {
        let now = self.now;
        let machine = &mut self.machines[at];
        machine.node.now = machine.node.now.max(now);
        let clock = machine.node.clock();
        if machine.hub.poll_timeout().is_some_and(|due| due <= clock) {
            machine.hub.handle_timeout(clock);
            self.name_streams(at);
        }
        let machine = &mut self.machines[at];
        if let Some(links) = &mut machine.links
            && links.links.poll_timeout().is_some_and(|due| due <= clock)
        {
            links.links.handle_timeout(clock);
        }
        if machine.node.next_event().is_some_and(|due| due <= now)
            && let Err(stop) = machine.node.advance(now)
        {
            return self.stopped(at, &stop);
        }
        self.observe(at)?;
        self.count_down(at)
    }

    fn happen(&mut self, event: Event) -> Check {
        match event {
            Event::Client(client) => self.client_turn(client),
            Event::GiveUp(number) => {
                self.give_up(number);
                Ok(())
            }
            Event::Stream { machine, stream } => self.read_stream(machine, stream),
            Event::Rewatch(watches) => self.rewatch(watches),
            Event::Read(token) => self.step_read(token),
            Event::Deliver { to, from, bytes } => self.input(to, Input::Message { from, bytes }),
            Event::Datagram { to, from, bytes } => self.input(to, Input::Datagram { from, bytes }),
            Event::Hangup { to, peer } => self.input(to, Input::Hangup { peer }),
            Event::Resume { machine, life } => self.resume_machine(machine, life),
            Event::Start(at) => self.start(at),
            Event::Room(at) => {
                self.lift_capacity(at);
                Ok(())
            }
            Event::Fault(number) => self.fault(number),
            Event::OldLeader => self.old_leader_turn(),
            Event::Rot { machine, tries } => self.try_rot(machine, tries),
        }
    }

    /// Has something happen after a random while of about this mean.
    fn soon(&mut self, event: Event, mean: Duration) {
        let nanos = u64::try_from(mean.as_nanos()).expect("simulated times are short");
        let delay = Duration::from_nanos(self.rng.below(2 * nanos + 1));
        self.after(event, delay);
    }

    fn after(&mut self, event: Event, delay: Duration) {
        self.next_event += 1;
        self.queue.push(Reverse(Scheduled { due: self.now + delay, number: self.next_event, event }));
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Something reaches a process; while it stands still it waits, and without one it is lost.
    fn input(&mut self, at: usize, input: Input) -> Check {
        let machine = &mut self.machines[at];
        if !machine.is_up() {
            return Ok(());
        }
        if machine.paused_until.is_some() {
            machine.backlog.push(input);
            return Ok(());
        }
        machine.node.now = machine.node.now.max(self.now);
        match input {
            Input::Message { from, bytes } => self.deliver(at, from, &bytes),
            Input::Datagram { from, bytes } => self.take_datagram(at, from, &bytes),
            Input::Hangup { peer } => self.hang_up(at, peer),
            Input::Requests(numbers) => self.hand_in(at, &numbers),
            Input::Read { client, read } => self.begin_read(at, client, *read, 0),
        }
    }

    fn deliver(&mut self, at: usize, from: u64, bytes: &[u8]) -> Check {
        let message = network::decode(bytes)?;
        let node = &mut self.machines[at].node;
        let now = node.clock();
        node.member.handle_message(now, from, message);
        node.drain();
        self.observe(at)
    }

    /// Looks at everything that a machine has done since the last look, and at what follows from that by itself.
    fn observe(&mut self, at: usize) -> Check {
        self.look(at)?;
        while self.take_link_event(at)? {
            self.look(at)?;
        }
        self.transmit(at);
        self.machines[at].refresh();
        Ok(())
    }

    fn look(&mut self, at: usize) -> Check {
        if let Some(failure) = self.machines[at].node.member.failure() {
            return violated("no member fails over what it is sent", "", format!("m{}: {failure}", at + 1));
        }
        self.observe_checks(at)?;
        let now = self.now;
        if std::mem::take(&mut self.machines[at].node.repaired) {
            self.story.tell(now, "repaired", at as u64, || format!("m{} is repaired", at + 1));
            *self.summary.faults.entry("repaired").or_default() += 1;
        }
        let mut restored = std::mem::take(&mut self.machines[at].node.restored);
        if !restored.is_empty() {
            let machine = &mut self.machines[at];
            let index = machine.node.restored_index;
            self.story.tell(now, "filled", index, || format!("m{} is filled by a snapshot at {index}", at + 1));
            self.summary.restored += 1;
            machine.log.restore(index);
        }
        for entry in std::mem::take(&mut self.machines[at].node.logged) {
            self.story.tell(now, "log", entry.index, || {
                format!("m{} writes entry {} of term {}", at + 1, entry.index, entry.term)
            });
            self.history.written(now, &entry);
            self.machines[at].log.write(entry);
        }
        self.observe_published(at)?;
        self.observe_leader(at)?;
        self.carry_messages(at)?;
        for batch in std::mem::take(&mut self.machines[at].node.events) {
            let machine = &mut self.machines[at];
            while restored.first().is_some_and(|revision| *revision < batch.first_revision) {
                machine.go_on_from(&self.history.model, restored.remove(0));
            }
            self.history.check_events(&mut machine.events_to, &batch)?;
            machine.hub.handle_events(&batch);
            self.name_streams(at);
        }
        for revision in restored {
            self.machines[at].go_on_from(&self.history.model, revision);
            self.name_streams(at);
        }
        for (ticket, result) in std::mem::take(&mut self.machines[at].node.answers) {
            self.answered(at, ticket, result)?;
        }
        for token in std::mem::take(&mut self.machines[at].node.loaded) {
            self.resume(at, token);
        }
        Ok(())
    }

    /// Members compare their states, and all of them are equal.
    fn observe_checks(&mut self, at: usize) -> Check {
        let node = &mut self.machines[at].node;
        if let Some(mismatch) = node.differs {
            return violated("members that start are equal to others", "", format!("m{}: {mismatch}", at + 1));
        }
        for note in std::mem::take(&mut node.checks) {
            match note {
                CheckNote::Done { kind, revision, equal, skipped } => {
                    self.summary.compared += u64::try_from(equal).expect("clusters are small");
                    self.story.tell(self.now, "compared", revision.unsigned_abs(), || {
                        format!("m{}: {kind} at revision {revision}: {equal} are equal, {skipped} passed over", at + 1)
                    });
                }
                note => return violated("members that are compared are equal", "", format!("m{}: {note}", at + 1)),
            }
        }
        Ok(())
    }

    fn observe_published(&mut self, at: usize) -> Check {
        let machine = &mut self.machines[at];
        let snapshot = machine.node.reader().pin();
        let view = snapshot.view();
        let index = view.applied().index;
        let before = machine.published;
        if index == before {
            return Ok(());
        }
        let found = Shown { revision: view.revision(), compacted: view.compacted() };
        self.story.tell(self.now, "publish", index, || {
            format!("m{} index {index}: revision {}, floor {}", at + 1, found.revision, found.compacted)
        });
        let id = machine.id;
        if index < before || index > machine.durable_index() {
            return violated(
                format!("what m{id} publishes goes on, and is durable there"),
                format!("from {before} to {}", machine.durable_index()),
                index.to_string(),
            );
        }
        machine.published = index;
        for number in before + 1..=index {
            self.agree(at, number)?;
        }
        same(&format!("what m{id} shows with index {index}"), &self.history.shown(index), &found)
    }

    /// A member publishes an entry: either nobody has yet, or it was the same one.
    fn agree(&mut self, at: usize, index: u64) -> Check {
        let id = self.machines[at].id;
        let entry = self.machines[at].log.get(index);
        if self.history.entry(index).is_none() && self.machines[at].log.holds(index, 0) {
            return violated("a snapshot holds what is committed", format!("entry {index}"), "nothing");
        }
        match (self.history.entry(index), entry) {
            (Some(committed), Some(entry)) => {
                same(&format!("entry {index}, as m{id} and others have it"), committed, entry)
            }
            // A snapshot brought what it holds.
            (Some(_), None) => Ok(()),
            (None, None) => violated("what is published is in the log", format!("entry {index} on m{id}"), "nothing"),
            (None, Some(entry)) => {
                let entry = entry.clone();
                let holders = self.machines.iter().filter(|machine| machine.holds(index, entry.term)).count();
                if holders * 2 <= self.machines.len() {
                    return violated(
                        "what is committed is durable on most members",
                        format!("entry {index} of term {} on most of {}", entry.term, self.machines.len()),
                        format!("on {holders}"),
                    );
                }
                self.history.commit(self.now, &entry)
            }
        }
    }

    fn observe_leader(&mut self, at: usize) -> Check {
        let machine = &self.machines[at];
        if !machine.node.member.leads() {
            return Ok(());
        }
        let (id, term) = (machine.id, machine.node.member.term());
        match self.leaders.get(&term) {
            Some(leader) if *leader == id => Ok(()),
            Some(leader) => violated(format!("term {term} has one leader"), format!("m{leader}"), format!("m{id}")),
            None => {
                self.leaders.insert(term, id);
                self.story.tell(self.now, "leader", term, || format!("m{id} leads in term {term}"));
                Ok(())
            }
        }
    }

    fn carry_messages(&mut self, at: usize) -> Check {
        while let Some((to, message)) = self.machines[at].node.member.poll_message() {
            if let PeerMessage::Raft(message) = &message {
                self.check_message(at, message)?;
            }
            let Some(lane) = message.lane() else {
                return violated("only what is for others is sent", "", format!("{message:?}"));
            };
            if self.machines[at].links.is_some() {
                self.send_over_link(at, to, lane, &message)?;
                continue;
            }
            let to = usize::try_from(to - 1).expect("ids are small");
            let bytes = network::encode(&message)?;
            let (now, from) = (self.now, self.machines[at].id);
            for arrival in self.network.arrivals(now, at, to, lane).into_iter().flatten() {
                self.after(Event::Deliver { to, from, bytes: bytes.clone() }, arrival - now);
            }
        }
        Ok(())
    }

    /// What a member says of its state is durable, and it votes once in a term.
    fn check_message(&mut self, at: usize, message: &Message) -> Check {
        let machine = &self.machines[at];
        let vote = match message.get_msg_type() {
            MessageType::MsgAppendResponse
                if !message.reject && !machine.may_acknowledge(message.term, message.index) =>
            {
                return violated(
                    format!("m{} acknowledges what is durable, in term {}", machine.id, machine.node.member.term()),
                    format!("up to {}", machine.durable_index()),
                    format!("{} in term {}", message.index, message.term),
                );
            }
            MessageType::MsgRequestVoteResponse if !message.reject => message.to,
            MessageType::MsgRequestVote => machine.id,
            _ => return Ok(()),
        };
        let first = *self.votes.entry((machine.id, message.term)).or_insert(vote);
        same(&format!("m{}'s vote in term {}", machine.id, message.term), &first, &vote)
    }
}

fn make_machine(rng: &mut Rng, plan: &ClusterPlan, id: u64) -> Machine {
    let voters = (1..).take(plan.members).collect();
    let config = MemberConfig {
        member_id: id,
        seed: rng.next_u64(),
        initial_members: Membership { voters, learners: Vec::new() },
        ..plan.each.member.clone()
    };
    let index = IndexConfig { member_id: id, ..plan.each.index.clone() };
    let mut node = Node::configured(Rng::new(rng.next_u64()), config, plan.each.log, index);
    node.latency = plan.each.latency;
    if plan.drift_ppm > 0 {
        let bound = u64::from(plan.drift_ppm);
        let drift = i64::try_from(rng.below(2 * bound + 1)).expect("small") - i64::from(plan.drift_ppm);
        node.process_clock.drift_ppm = i32::try_from(drift).expect("small");
    }
    Machine::new(id, node, plan.each.watch)
}

/// Whether a fault breaks an operation of a disk.
fn breaks_io(fault: Fault) -> bool {
    matches!(fault, Fault::SyncError | Fault::WriteError | Fault::ShortWrite | Fault::ReadError | Fault::AllocateError)
}
