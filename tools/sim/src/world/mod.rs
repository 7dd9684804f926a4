//! The world: machines, clients and faults in virtual time, one event after the other.
//!
//! An event happens on a machine (an I/O is done, a timer is due) or in the world (a client acts, a stream is read, a
//! fault begins or ends). After each one everything that it brought about is looked at by the checkers, before the next
//! one happens.

mod clients;
mod ending;
mod faults;
mod reads;
mod site;
mod streams;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use garboard_replica::envelope::{Request, Response, Ticket};
use garboard_replica::events::EventBatch;
use garboard_replica::request::{Context, KeyspaceId, Principal};
use garboard_replica::{Error, auto_compaction::AutoCompaction};
use garboard_simdisk::Rng;
use std::sync::Arc;

use crate::check::{Checker, Setting};
use crate::node::Node;
use crate::outcome::{Check, Summary, violated};
use crate::plan::{MEMBER_ID, Options, Plan};
use crate::story::Story;
use clients::{Ask, Client};
use reads::ReadTask;
use site::Site;

/// More than any seed needs: beyond it the world turns without getting anywhere.
const EVENTS_MAX: u64 = 5_000_000;

/// What happens in the world.
#[derive(Debug)]
enum Event {
    /// A client sends its next request.
    Client(usize),
    /// A client reads its watch stream.
    Stream { site: usize, stream: u64 },
    /// Events reach another core's hub.
    Hub { site: usize, life: u64, hub: usize, batch: Arc<EventBatch> },
    /// A long read goes on.
    Read(u64),
    /// A process starts.
    Start(usize),
    /// The disk has room again.
    Room(usize),
}

/// A machine's name in a world of one.
const ONLY: usize = 0;

/// Everything.
pub struct World {
    options: Options,
    plan: Plan,
    rng: Rng,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    sites: Vec<Site>,
    checker: Checker,
    clients: Vec<Client>,
    asks: BTreeMap<u64, Ask>,
    reads: BTreeMap<u64, ReadTask>,
    next_token: u64,
    /// No client sends anything until this is over.
    hold: bool,
    /// The faults have stopped, and the clients too.
    calm: bool,
    /// Events on machines.
    turns: u64,
    story: Story,
    /// What the seed went through.
    pub summary: Summary,
}

impl World {
    /// Draws a world.
    pub fn new(seed: u64, options: &Options) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng, options);
        let node_rng = Rng::new(rng.next_u64());
        let mut node = Node::configured(node_rng, plan.member.clone(), plan.log, plan.index.clone());
        node.latency = plan.latency;
        node.sabotage = options.sabotage;
        let setting = Setting {
            member_id: MEMBER_ID,
            has_quota: plan.member.quota_bytes >= 0,
            compacts: plan.member.auto_compaction != AutoCompaction::Off,
            extension: plan.member.election_timeout,
        };
        let mut world = World {
            options: options.clone(),
            rng,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            sites: vec![Site::new(node)],
            checker: Checker::new(setting),
            clients: (0..plan.clients).map(|_| Client::default()).collect(),
            asks: BTreeMap::new(),
            reads: BTreeMap::new(),
            next_token: 0,
            hold: false,
            calm: false,
            turns: 0,
            story: Story::new(options.story),
            summary: Summary::default(),
            plan,
        };
        world.begin(seed);
        world
    }

    fn begin(&mut self, seed: u64) {
        let plan = &self.plan;
        self.story.tell(self.now, "seed", seed, || {
            let faults: Vec<_> = plan.faults.iter().map(|(fault, often)| format!("{} {often}", fault.name())).collect();
            format!(
                "{seed}: {} clients, a request after {:?}, {} keys; faults in 10,000 requests: [{}]; \
                 I/O up to {:?}, pages {:?} more; log {:?}; checkpoint at {} KiB, wait at {} KiB; quota {}; {:?}; \
                 {} hubs",
                plan.clients,
                plan.think,
                plan.keys,
                faults.join(", "),
                plan.latency.io_max,
                plan.latency.page_delay,
                plan.log,
                plan.index.checkpoint_bytes >> 10,
                plan.index.dirty_bytes_max >> 10,
                plan.member.quota_bytes,
                plan.member.auto_compaction,
                plan.hubs,
            )
        });
        for client in 0..self.clients.len() {
            self.soon(Event::Client(client), self.plan.think);
        }
        self.sites[ONLY].node.drain();
        self.open_hubs(ONLY);
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
        self.summary.acknowledged_writes = self.checker.acknowledged;
        self.summary.expiries = self.checker.leases.expiries;
        self.summary.digest = self.story.digest();
    }

    fn act(&mut self) -> Check {
        while self.summary.requests < self.options.ops && !self.is_crash_over() {
            self.turn()?;
        }
        Ok(())
    }

    /// With a crash at one event, the run ends some time after it.
    fn is_crash_over(&self) -> bool {
        self.options.crash_at.is_some_and(|event| self.turns > event + 50)
    }

    /// When the next thing happens, and whether a machine does it.
    fn next(&self) -> Option<(Duration, Source)> {
        let machines = self.sites.iter().enumerate().filter(|(_, site)| site.is_up());
        let machine = machines.filter_map(|(at, site)| site.node.next_event().map(|due| (due, Source::Machine(at))));
        let hubs = self.sites.iter().enumerate().filter(|(_, site)| site.is_up());
        let hub = hubs.filter_map(|(at, site)| site.hub_timeout().map(|due| (due, Source::Hubs(at))));
        let world = self.queue.peek().map(|Reverse((due, _))| (*due, Source::World));
        machine.chain(hub).chain(world).min()
    }

    /// One event.
    fn turn(&mut self) -> Check {
        self.turns += 1;
        if self.turns > EVENTS_MAX {
            return violated("the world gets somewhere", "", format!("{EVENTS_MAX} events"));
        }
        let Some((due, source)) = self.next() else {
            return violated("something is always going to happen", "", "nothing");
        };
        self.now = self.now.max(due);
        for site in &mut self.sites {
            site.node.now = site.node.now.max(self.now);
        }
        match source {
            Source::Machine(at) => self.machine_turn(at),
            Source::Hubs(at) => {
                self.sites[at].hub_turn();
                self.name_streams(at);
                Ok(())
            }
            Source::World => {
                let Reverse((_, number)) = self.queue.pop().expect("just seen");
                let event = self.events.remove(&number).expect("what is due is known");
                self.happen(event)
            }
        }
    }

    fn machine_turn(&mut self, at: usize) -> Check {
        let now = self.now;
        let result = self.sites[at].node.advance(now);
        self.now = self.now.max(self.sites[at].node.now);
        match result {
            Ok(()) => self.observe(at)?,
            Err(stop) => return self.stopped(at, &stop),
        }
        self.maybe_crash(at)
    }

    fn happen(&mut self, event: Event) -> Check {
        match event {
            Event::Client(client) => self.client_turn(client),
            Event::Stream { site, stream } => self.read_stream(site, stream),
            Event::Hub { site, life, hub, batch } => {
                if self.sites[site].life == life {
                    self.sites[site].deliver(hub, &batch);
                    self.name_streams(site);
                }
                Ok(())
            }
            Event::Read(token) => self.step_read(token),
            Event::Start(at) => self.start(at),
            Event::Room(at) => {
                self.lift_capacity(at);
                Ok(())
            }
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
        self.queue.push(Reverse((self.now + delay, self.next_event)));
        self.events.insert(self.next_event, event);
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Hands requests to a machine and looks at what that brings about.
    fn send(&mut self, at: usize, asks: Vec<(Request, Ask)>) -> Check {
        let led = self.sites[at].node.member.leads();
        let now = self.now;
        let first = self.sites[at].next_ticket + 1;
        let requests: Vec<Request> = asks.iter().map(|(request, _)| request.clone()).collect();
        for (number, (request, ask)) in (first..).zip(asks) {
            if let Request::Write(command) = &request {
                self.checker.submitted(now, Ticket { core: 0, sequence: number }, command, led);
            }
            self.story.tell(now, "request", number, || format!("#{number} of client {}: {request:?}", ask.client));
            self.clients[ask.client].outstanding += usize::from(ask.blocks());
            self.asks.insert(number, ask);
        }
        let site = &mut self.sites[at];
        site.next_ticket += u64::try_from(requests.len()).expect("small");
        site.node.now = now;
        let tickets = site.node.send_as(requests, |ticket| Context {
            keyspace: KeyspaceId(0),
            principal: Principal::User { name: bytes::Bytes::new(), auth_revision: ticket.sequence },
        });
        assert_eq!(tickets.first().map_or(first, |ticket| ticket.sequence), first, "tickets are counted");
        self.observe(at)
    }

    /// Looks at everything that a machine has done since the last look.
    fn observe(&mut self, at: usize) -> Check {
        let now = self.now;
        for entry in std::mem::take(&mut self.sites[at].node.logged) {
            self.story
                .tell(now, "log", entry.index, || format!("entry {} of term {} is written", entry.index, entry.term));
            self.checker.logged(now, entry)?;
        }
        self.observe_published(at)?;
        for batch in std::mem::take(&mut self.sites[at].node.events) {
            self.checker.events(&batch)?;
            self.spread(at, batch);
        }
        let durable = self.sites[at].node.durable_index();
        for (ticket, result) in std::mem::take(&mut self.sites[at].node.answers) {
            self.answered(at, ticket, result, durable)?;
        }
        for token in std::mem::take(&mut self.sites[at].node.loaded) {
            self.resume(at, token);
        }
        Ok(())
    }

    fn observe_published(&mut self, at: usize) -> Check {
        let site = &mut self.sites[at];
        let snapshot = site.node.reader().pin();
        let view = snapshot.view();
        let index = view.applied().index;
        if site.published == Some(index) {
            return Ok(());
        }
        site.published = Some(index);
        let (revision, compacted) = (view.revision(), view.compacted());
        self.story
            .tell(self.now, "publish", index, || format!("index {index}: revision {revision}, floor {compacted}"));
        self.checker.published(index, site.node.durable_index(), revision, compacted)
    }

    fn answered(&mut self, at: usize, ticket: Ticket, result: Result<Response, Error>, durable: u64) -> Check {
        let number = ticket.sequence;
        self.story.tell(self.now, "answer", number, || format!("#{number}: {}", crate::outcome::short(&result)));
        let Some(ask) = self.asks.remove(&number) else {
            return violated("who asks once is answered once", "", format!("#{number}: {result:?}"));
        };
        self.check_ask(at, ticket, ask, result, durable)
    }
}

/// Who does the next thing. In this order where several are due at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Machine(usize),
    Hubs(usize),
    World,
}
