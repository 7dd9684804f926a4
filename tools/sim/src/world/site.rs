//! A machine, with what lives and dies with its process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use garboard_replica::events::EventBatch;
use garboard_replica::watch::WatchHub;
use garboard_simdisk::Disk;

use super::streams::Stream;
use crate::node::Node;
use crate::plan::Fault;
use crate::rotten::Rotten;

/// A machine.
pub(super) struct Site {
    pub(super) node: Node,
    up: bool,
    /// Counts the process's lives.
    pub(super) life: u64,
    pub(super) next_ticket: u64,
    /// The applied index of the state last looked at.
    pub(super) published: Option<u64>,
    pub(super) hubs: Vec<Hub>,
    pub(super) streams: BTreeMap<u64, Stream>,
    /// Events until the process ends, and how.
    pub(super) doom: Option<(u64, Fault)>,
    /// I/O faults that were planned in this life.
    pub(super) io_faults: u64,
    /// A sector that was made to rot and was not found yet.
    pub(super) rotten: Option<Rotten>,
    /// The disk as it was some time ago, for writes that are lost.
    pub(super) older: Option<Disk>,
    /// What the last process had durable in its log.
    pub(super) durable_index: u64,
}

/// A core's hub, and when the last events that are under way to it arrive.
pub(super) struct Hub {
    pub(super) hub: WatchHub,
    pub(super) last_arrival: Duration,
}

impl Site {
    pub(super) fn new(node: Node) -> Site {
        Site {
            node,
            up: true,
            life: 1,
            next_ticket: 0,
            published: None,
            hubs: Vec::new(),
            streams: BTreeMap::new(),
            doom: None,
            io_faults: 0,
            rotten: None,
            older: None,
            durable_index: 0,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// The process is gone, and what it held.
    pub(super) fn end(&mut self) {
        self.durable_index = self.node.durable_index();
        self.node.end_process();
        self.up = false;
        self.life += 1;
        self.published = None;
        self.hubs.clear();
        self.streams.clear();
        self.doom = None;
        self.io_faults = 0;
    }

    pub(super) fn begin(&mut self) {
        self.up = true;
    }

    /// When a hub wants to be called, in the world's time.
    pub(super) fn hub_timeout(&self) -> Option<Duration> {
        let booted = self.node.now.saturating_sub(self.node.clock());
        self.hubs.iter().filter_map(|hub| hub.hub.poll_timeout()).min().map(|due| due + booted)
    }

    pub(super) fn hub_turn(&mut self) {
        let now = self.node.clock();
        for hub in &mut self.hubs {
            if hub.hub.poll_timeout().is_some_and(|due| due <= now) {
                hub.hub.handle_timeout(now);
            }
        }
    }

    pub(super) fn deliver(&mut self, hub: usize, batch: &Arc<EventBatch>) {
        self.hubs[hub].hub.handle_events(batch);
    }
}
