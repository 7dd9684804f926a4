//! Members' links joined by a network that delays, loses, reorders and cuts as it is told, in simulated time.

#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests, of which each test uses its part")]

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use garboard_transport::link::{
    Address, Arrival, CloseCode, DownReason, Fingerprint, LinkEvent, Links, LinksConfig, PeerInfo, Refusal, Security,
    SendError, Trust, null,
};
use garboard_transport::{FrameBody, Lane, encode_opaque};

const CLUSTER: u64 = 0xc1;
/// What would wait longer on a member's way out is lost.
const QUEUE_MAX: Duration = ms(100);

pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A frame with a number and so many bytes.
pub fn frame(number: u64, bytes: usize) -> Bytes {
    let mut body = vec![0; bytes.max(8)];
    body[..8].copy_from_slice(&number.to_le_bytes());
    let mut out = BytesMut::new();
    encode_opaque(0, &body, &mut out).unwrap();
    out.freeze()
}

/// The number in a frame's body.
pub fn number(body: &[u8]) -> u64 {
    u64::from_le_bytes(body[..8].try_into().unwrap())
}

struct Node {
    links: Links,
    address: SocketAddr,
    cluster: u64,
    key: Fingerprint,
    boot: u64,
    peers: Vec<u64>,
    removed: Vec<u64>,
    pins: BTreeMap<u64, Fingerprint>,
    is_running: bool,
    received: BTreeMap<(u64, Lane), Vec<Bytes>>,
    downs: BTreeMap<u64, Vec<DownReason>>,
    refusals: Vec<Refusal>,
    refused_by: Vec<CloseCode>,
    events: Vec<LinkEvent>,
}

struct Datagram {
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

pub struct Net {
    seed: u64,
    random: u64,
    epoch: Instant,
    pub now: Duration,
    nodes: BTreeMap<u64, Node>,
    /// By when they arrive.
    under_way: BTreeMap<(Duration, u64), Datagram>,
    sequence: u64,
    cuts: BTreeSet<(u64, u64)>,
    also: BTreeMap<u64, Vec<SocketAddr>>,
    aliases: BTreeMap<u64, u64>,
    pub loss_percent: u64,
    pub delay: Duration,
    pub jitter: Duration,
    /// Of each member's way out.
    pub bytes_per_second: Option<u64>,
    free_at: BTreeMap<u64, Duration>,
    pub sent_datagrams: u64,
    trace: crc32fast::Hasher,
}

impl Net {
    #[allow(clippy::disallowed_methods, reason = "the start that all times are counted from")]
    pub fn new(seed: u64) -> Net {
        Net {
            seed,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            epoch: Instant::now(),
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            under_way: BTreeMap::new(),
            sequence: 0,
            cuts: BTreeSet::new(),
            also: BTreeMap::new(),
            aliases: BTreeMap::new(),
            loss_percent: 0,
            delay: Duration::from_micros(500),
            jitter: Duration::ZERO,
            bytes_per_second: None,
            free_at: BTreeMap::new(),
            sent_datagrams: 0,
            trace: crc32fast::Hasher::new(),
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn config(
        &self,
        id: u64,
        cluster: u64,
        boot: u64,
        key: Fingerprint,
        pins: &BTreeMap<u64, Fingerprint>,
    ) -> LinksConfig {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8] = u8::try_from(id).unwrap();
        seed[9] = u8::try_from(boot).unwrap();
        LinksConfig {
            boot: boot + id * 1_000,
            seed,
            tripwire: [u8::try_from(id).unwrap(); 16],
            trust: Trust::FirstContact(pins.clone()),
            ..LinksConfig::new(id, cluster, self.epoch, null::security(key, id))
        }
    }

    pub fn add(&mut self, id: u64) {
        self.add_of_cluster(id, CLUSTER);
    }

    pub fn add_of_cluster(&mut self, id: u64, cluster: u64) {
        let key = [u8::try_from(id).unwrap(); 32];
        let config = self.config(id, cluster, 0, key, &BTreeMap::new());
        self.add_node(id, cluster, key, config);
    }

    /// A member whose links are no simulated ones.
    pub fn add_with(&mut self, id: u64, security: Security, trust: Trust) {
        let config = self.config(id, CLUSTER, 0, [0; 32], &BTreeMap::new());
        self.add_node(id, CLUSTER, [0; 32], LinksConfig { security, trust, ..config });
    }

    fn add_node(&mut self, id: u64, cluster: u64, key: Fingerprint, config: LinksConfig) {
        let links = Links::new(config);
        let node = Node {
            links,
            address: format!("10.0.0.{id}:2380").parse().unwrap(),
            cluster,
            key,
            boot: 0,
            peers: Vec::new(),
            removed: Vec::new(),
            pins: BTreeMap::new(),
            is_running: true,
            received: BTreeMap::new(),
            downs: BTreeMap::new(),
            refusals: Vec::new(),
            refused_by: Vec::new(),
            events: Vec::new(),
        };
        self.nodes.insert(id, node);
    }

    /// Everybody knows everybody.
    pub fn meet_all(&mut self) {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        for id in &ids {
            self.meet(*id, &ids, &[]);
        }
    }

    pub fn meet(&mut self, id: u64, peers: &[u64], removed: &[u64]) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        node.peers = peers.to_vec();
        node.removed = removed.to_vec();
        let infos: Vec<PeerInfo> =
            peers.iter().map(|id| PeerInfo { id: *id, server_name: "peer".to_owned() }).collect();
        node.links.set_peers(now, &infos, removed);
    }

    pub fn restart(&mut self, id: u64) {
        let key = self.nodes[&id].key;
        self.restart_with_key(id, key);
    }

    /// Its process ends without a word, and another one is there at once.
    pub fn restart_with_key(&mut self, id: u64, key: Fingerprint) {
        let node = &self.nodes[&id];
        let (cluster, boot, pins) = (node.cluster, node.boot + 1, node.pins.clone());
        let (peers, removed) = (node.peers.clone(), node.removed.clone());
        let links = Links::new(self.config(id, cluster, boot, key, &pins));
        let node = self.nodes.get_mut(&id).unwrap();
        (node.links, node.boot, node.key) = (links, boot, key);
        self.meet(id, &peers, &removed);
    }

    pub fn stop(&mut self, id: u64) {
        let now = self.now;
        self.nodes.get_mut(&id).unwrap().links.stop(now);
        self.collect(id);
        self.nodes.get_mut(&id).unwrap().is_running = false;
    }

    pub fn move_to(&mut self, id: u64, address: SocketAddr) {
        self.nodes.get_mut(&id).unwrap().address = address;
    }

    /// Another address that `id` is said to have, and which is tried first.
    pub fn also_at(&mut self, id: u64, address: SocketAddr) {
        self.also.entry(id).or_default().push(address);
    }

    /// The address of `id` is that of `other`.
    pub fn alias(&mut self, id: u64, other: u64) {
        self.aliases.insert(id, other);
    }

    pub fn cut(&mut self, from: u64, to: u64) {
        self.cuts.insert((from, to));
    }

    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    pub fn links(&self, id: u64) -> &Links {
        &self.nodes[&id].links
    }

    pub fn is_up(&self, id: u64, peer: u64) -> bool {
        self.nodes[&id].links.is_up(peer)
    }

    pub fn all_up(&self) -> bool {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        ids.iter().all(|id| ids.iter().all(|other| id == other || self.is_up(*id, *other)))
    }

    pub fn received(&self, id: u64, from: u64, lane: Lane) -> &[Bytes] {
        self.nodes[&id].received.get(&(from, lane)).map_or(&[], Vec::as_slice)
    }

    pub fn clear_received(&mut self) {
        self.nodes.values_mut().for_each(|node| node.received.clear());
    }

    pub fn downs(&self, id: u64, peer: u64) -> &[DownReason] {
        self.nodes[&id].downs.get(&peer).map_or(&[], Vec::as_slice)
    }

    pub fn refusals(&self, id: u64) -> &[Refusal] {
        &self.nodes[&id].refusals
    }

    pub fn refused_by(&self, id: u64) -> &[CloseCode] {
        &self.nodes[&id].refused_by
    }

    pub fn take_events(&mut self, id: u64) -> Vec<LinkEvent> {
        std::mem::take(&mut self.nodes.get_mut(&id).unwrap().events)
    }

    pub fn trace(&self) -> u32 {
        self.trace.clone().finalize()
    }

    pub fn send(&mut self, from: u64, to: u64, lane: Lane, frame: Bytes) -> Result<(), SendError> {
        let now = self.now;
        let outcome = self.nodes.get_mut(&from).unwrap().links.send(now, to, lane, frame);
        self.collect(from);
        outcome
    }

    pub fn probe(&mut self, id: u64, peer: u64, patience: Duration) {
        let now = self.now;
        self.take_events(id);
        self.nodes.get_mut(&id).unwrap().links.probe(now, peer, patience);
        self.collect(id);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    /// Runs until `done`, at most for `time`.
    pub fn run_until(&mut self, time: Duration, done: impl Fn(&Net) -> bool) {
        let end = self.now + time;
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.collect(id);
        }
        while !done(self) {
            let arrival = self.under_way.keys().next().map(|(at, _)| *at);
            let timers = self.nodes.values_mut().filter(|node| node.is_running);
            let timer = timers.filter_map(|node| node.links.poll_timeout()).min();
            let next = arrival.into_iter().chain(timer).min().unwrap_or(end).max(self.now);
            if next > end {
                break;
            }
            self.now = next;
            if arrival == Some(next) {
                let (_, datagram) = self.under_way.pop_first().unwrap();
                self.deliver(datagram);
            } else if next == end {
                break;
            } else {
                for id in self.nodes.keys().copied().collect::<Vec<_>>() {
                    let node = self.nodes.get_mut(&id).unwrap();
                    if node.is_running && node.links.poll_timeout().is_some_and(|due| due <= next) {
                        node.links.handle_timeout(next);
                        self.collect(id);
                    }
                }
            }
        }
        if !done(self) {
            self.now = end;
        }
    }

    fn member_at(&self, address: SocketAddr) -> Option<u64> {
        self.nodes.iter().find(|(_, node)| node.address == address).map(|(id, _)| *id)
    }

    fn deliver(&mut self, datagram: Datagram) {
        let Some(to) = self.member_at(datagram.to) else { return };
        let now = self.now;
        self.trace.update(&datagram.bytes);
        let node = self.nodes.get_mut(&to).unwrap();
        if !node.is_running {
            return;
        }
        let arrival = Arrival { socket: 0, from: datagram.from, local_ip: None, ecn: None };
        node.links.handle_datagram(now, arrival, BytesMut::from(&datagram.bytes[..]));
        self.collect(to);
    }

    /// Takes what a member tells and sends.
    fn collect(&mut self, id: u64) {
        let mut buffer = Vec::new();
        loop {
            let now = self.now;
            let node = self.nodes.get_mut(&id).unwrap();
            if !node.is_running {
                return;
            }
            if let Some(event) = node.links.poll_event() {
                self.event(id, event);
                continue;
            }
            buffer.clear();
            let Some(transmit) = node.links.poll_transmit(now, &mut buffer) else { break };
            let step = transmit.segment_bytes.unwrap_or(transmit.bytes).max(1);
            for bytes in buffer.chunks(step) {
                self.launch(id, transmit.to, bytes);
            }
        }
    }

    fn launch(&mut self, from: u64, to: SocketAddr, bytes: &[u8]) {
        self.sent_datagrams += 1;
        let lost = self.draw(100) < self.loss_percent;
        let jitter = u64::try_from(self.jitter.as_micros()).unwrap();
        let jitter = if jitter == 0 { 0 } else { self.draw(jitter) };
        let cut = self.member_at(to).is_some_and(|to| self.cuts.contains(&(from, to)));
        let mut departs = self.now;
        let mut lost = lost;
        if let Some(rate) = self.bytes_per_second {
            let free_at = self.free_at.entry(from).or_default();
            let waits = free_at.saturating_sub(departs);
            departs += waits + Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / rate);
            lost |= waits > QUEUE_MAX;
            if !lost {
                *free_at = departs;
            }
        }
        if lost || cut {
            return;
        }
        self.sequence += 1;
        let at = departs + self.delay + Duration::from_micros(jitter);
        let from = self.nodes[&from].address;
        self.under_way.insert((at, self.sequence), Datagram { from, to, bytes: bytes.to_vec() });
    }

    fn event(&mut self, id: u64, event: LinkEvent) {
        let now = self.now;
        if let LinkEvent::WantsAddress { peer } = event {
            let other = self.aliases.get(&peer).copied().unwrap_or(peer);
            let mut addresses = self.also.get(&peer).cloned().unwrap_or_default();
            addresses.extend(self.nodes.get(&other).map(|node| node.address));
            let given = addresses.into_iter().map(|address| Address { address, server_name: "peer".to_owned() });
            self.nodes.get_mut(&id).unwrap().links.handle_addresses(now, peer, given.collect());
            return;
        }
        self.trace.update(format!("{now:?} {id} {event:?}").as_bytes());
        let node = self.nodes.get_mut(&id).unwrap();
        match &event {
            LinkEvent::Frame { from, lane, frame } => {
                let FrameBody::Opaque(body) = &frame.body else { panic!("only opaque frames are sent here") };
                node.received.entry((*from, *lane)).or_default().push(body.clone());
                return;
            }
            LinkEvent::Down { peer, reason } => node.downs.entry(*peer).or_default().push(reason.clone()),
            LinkEvent::Refused { refusal, .. } => node.refusals.push(refusal.clone()),
            LinkEvent::RefusedBy { code, .. } => node.refused_by.push(*code),
            LinkEvent::Pinned { peer, fingerprint } => drop(node.pins.insert(*peer, *fingerprint)),
            _ => {}
        }
        node.events.push(event);
    }
}
