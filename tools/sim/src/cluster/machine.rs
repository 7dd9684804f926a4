//! A machine of a cluster, with what lives and dies with its process.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use garboard_replica::watch::{WatchConfig, WatchHub};
use garboard_simdisk::Disk;
use garboard_wal as wal;

use super::links::PeerLinks;
use super::watches::Stream;
use crate::check::reads::Read;
use crate::model::Model;
use crate::node::{Node, Start};
use crate::outcome::{Check, same, violated};
use crate::plan::Fault;
use crate::rotten::Rotten;

/// What a member has handed to its log.
#[derive(Debug, Default)]
pub(super) struct LogCopy {
    /// The index before the first entry that is kept.
    base: u64,
    entries: VecDeque<wal::Entry>,
    /// What was replaced and may stand on the disk after a crash all the same.
    replaced: Vec<wal::Entry>,
}

impl LogCopy {
    pub(super) fn last_index(&self) -> u64 {
        self.base + u64::try_from(self.entries.len()).expect("small")
    }

    pub(super) fn get(&self, index: u64) -> Option<&wal::Entry> {
        self.entries.get(usize::try_from(index.checked_sub(self.base + 1)?).ok()?)
    }

    /// A snapshot takes the place of everything: the log goes on behind it.
    pub(super) fn restore(&mut self, index: u64) {
        while self.last_index() > index || self.get(index).is_some() {
            self.replaced.extend(self.entries.pop_back());
        }
        self.entries.clear();
        self.base = index;
    }

    /// Whether an entry is one that was written, or stands behind a snapshot that holds it.
    pub(super) fn holds(&self, index: u64, term: u64) -> bool {
        index <= self.base || self.get(index).is_some_and(|entry| entry.term == term)
    }

    /// An entry is written; what stood at its place and behind is replaced.
    pub(super) fn write(&mut self, entry: wal::Entry) {
        if entry.index <= self.base {
            // It was on its way when a snapshot took its place.
            return;
        }
        if entry.index > self.last_index() + 1 {
            // The log begins anew behind a snapshot.
            self.entries.clear();
            self.base = entry.index - 1;
        }
        while self.last_index() >= entry.index {
            self.replaced.extend(self.entries.pop_back());
        }
        self.entries.push_back(entry);
    }

    /// What a start has not found is lost.
    fn lose(&mut self, start: &Start) {
        if start.applied_index >= self.base {
            return;
        }
        self.replaced.extend(std::mem::take(&mut self.entries));
        self.base = start.applied_index;
    }

    /// A process has found this on its disk, where its predecessor had everything up to `durable` durable.
    pub(super) fn found(&mut self, start: &Start, durable: u64) -> Check {
        if start.last_index < durable {
            return violated(
                "a start finds everything that was durable",
                format!("a last index of {durable} or more"),
                start.last_index.to_string(),
            );
        }
        for entry in &start.entries {
            let known = self.get(entry.index) == Some(entry)
                || (entry.index > durable && self.replaced.iter().any(|replaced| replaced == entry));
            if !known {
                return violated(
                    "a recovered entry is one that was written, and the newest one if that was durable",
                    format!("{:?}", self.get(entry.index)),
                    format!("{entry:?}"),
                );
            }
        }
        for entry in &start.entries {
            if self.get(entry.index) != Some(entry) {
                self.write(entry.clone());
            }
        }
        while self.last_index() > start.last_index {
            self.replaced.extend(self.entries.pop_back());
        }
        if start.founded {
            *self = LogCopy::default();
        }
        same("the log's last index", &start.last_index.max(self.base), &self.last_index().max(self.base))
    }
}

/// What reaches a process from outside.
#[derive(Debug)]
pub(super) enum Input {
    /// A message of another member.
    Message { from: u64, bytes: Bytes },
    /// A datagram of another member's links.
    Datagram { from: usize, bytes: Bytes },
    /// The end of the connection that shows that another member's process lives.
    Hangup { peer: u64 },
    /// Requests of a client, by number.
    Requests(Vec<u64>),
    /// A read that needs no proof.
    Read { client: usize, read: Box<Read> },
}

/// A machine.
pub(super) struct Machine {
    /// The member's id.
    pub(super) id: u64,
    pub(super) node: Node,
    /// The links of its process, where the seed has them.
    pub(super) links: Option<PeerLinks>,
    up: bool,
    /// Counts the process's lives.
    pub(super) life: u64,
    /// When the process has something to do by itself.
    pub(super) due: Option<Duration>,
    /// The process stands still until then.
    pub(super) paused_until: Option<Duration>,
    /// What came in meanwhile.
    pub(super) backlog: Vec<Input>,
    /// What the process handed to its log.
    pub(super) log: LogCopy,
    /// What the last process had durable in its log.
    durable_index: u64,
    /// The index of the state last looked at.
    pub(super) published: u64,
    /// Changes of the model that were handed out as events.
    pub(super) events_to: usize,
    pub(super) hub: WatchHub,
    pub(super) streams: BTreeMap<u64, Stream>,
    pub(super) next_ticket: u64,
    /// Requests under way, by ticket.
    pub(super) asks: BTreeMap<u64, u64>,
    /// Events until the process ends, and how.
    pub(super) doom: Option<(u64, Fault)>,
    /// I/O faults that were planned in this life.
    pub(super) io_faults: u64,
    /// The disk is or was full in this life.
    pub(super) was_full: bool,
    /// A sector that was made to rot and was not found yet.
    pub(super) rotten: Option<Rotten>,
    /// The disk as it was some time ago, for writes that are lost.
    pub(super) older: Option<Disk>,
}

impl Machine {
    pub(super) fn new(id: u64, node: Node, watch: WatchConfig) -> Machine {
        Machine {
            id,
            node,
            links: None,
            up: true,
            life: 1,
            due: None,
            paused_until: None,
            backlog: Vec::new(),
            log: LogCopy::default(),
            durable_index: 0,
            published: 0,
            events_to: 0,
            hub: WatchHub::new(watch, 1),
            streams: BTreeMap::new(),
            next_ticket: 0,
            asks: BTreeMap::new(),
            doom: None,
            io_faults: 0,
            was_full: false,
            rotten: None,
            older: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// Whether the process runs now.
    pub(super) fn runs(&self) -> bool {
        self.up && self.paused_until.is_none()
    }

    /// What is durable in its log, whether the process runs or not.
    pub(super) fn durable_index(&self) -> u64 {
        if self.up { self.node.durable_index() } else { self.durable_index }
    }

    /// Whether the member, which runs, may say in a message of this term that its log is durable up to this index.
    pub(super) fn may_acknowledge(&self, term: u64, index: u64) -> bool {
        let is_late = term < self.node.member.term();
        index <= self.durable_index() || (is_late && self.node.was_durable(term, index))
    }

    /// Whether it holds this entry durably.
    pub(super) fn holds(&self, index: u64, term: u64) -> bool {
        self.durable_index() >= index && self.log.holds(index, term)
    }

    /// Whether something of it has rotted, or was lost by that and is not there again yet.
    pub(super) fn is_struck(&self) -> bool {
        self.rotten.is_some() || self.node.is_under_repair_on_disk()
    }

    /// Whether everything that the process has written is durable, and known to be.
    pub(super) fn is_quiet(&self) -> bool {
        let member = &self.node.member;
        self.up && member.is_quiet() && !self.node.has_io() && member.log().poll_timeout().is_none()
    }

    /// A snapshot at this revision took the state's place, and no events say what it changed.
    pub(super) fn go_on_from(&mut self, model: &Model, revision: i64) {
        self.events_to = self.events_to.max(model.position_of(revision + 1));
        self.hub.handle_restore(revision);
    }

    /// Finds out when the process has something to do.
    pub(super) fn refresh(&mut self) {
        let hub = self.hub.poll_timeout().map(|due| self.node.world_time(due));
        let links = self.links.as_mut().and_then(|links| links.links.poll_timeout());
        let links = links.map(|due| self.node.world_time(due));
        let due = self.node.next_event().into_iter().chain(hub).chain(links).min();
        self.due = due.filter(|_| self.up).map(|due| due.max(self.paused_until.unwrap_or(Duration::ZERO)));
    }

    /// The process is gone, and what it held.
    pub(super) fn end(&mut self) {
        self.durable_index = self.node.durable_index();
        self.node.end_process();
        self.up = false;
        self.life += 1;
        self.due = None;
        self.paused_until = None;
        self.backlog.clear();
        self.streams.clear();
        self.asks.clear();
        self.doom = None;
        self.io_faults = 0;
        self.was_full = false;
    }

    /// A process runs again, on what it has found.
    pub(super) fn begin(&mut self, start: &Start, watch: WatchConfig) -> Check {
        let mut durable = self.durable_index;
        if self.node.member.is_under_repair() && start.last_index < durable {
            // It lacks something that was durable, and is not to count before it has it again.
            self.log.lose(start);
            (durable, self.published) = (0, start.applied_index);
        }
        if start.applied_index > self.published {
            // A snapshot was put in the state's place, and nobody was told yet.
            self.log.restore(start.applied_index);
            durable = 0;
        }
        self.up = true;
        self.hub = WatchHub::new(watch, start.revision);
        self.log.found(start, durable)
    }
}
