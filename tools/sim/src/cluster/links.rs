//! The production links between members, with a session without secrets in TLS's place, over the simulated network; and
//! what the shell does beside them: addresses, keys seen at first contact, tripwires.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use garboard_replica::peer::PeerMessage;
use garboard_transport::Lane;
use garboard_transport::link::{
    Address, Arrival, Fingerprint, LinkEvent, Links, LinksConfig, PeerInfo, Refusal, Trust, null,
};

use super::network;
use super::{Cluster, Event};
use crate::outcome::{Check, violated};

const CLUSTER_ID: u64 = 9;
const PORT: u16 = 2380;
/// How long a member that a tripwire speaks of has to answer.
const PROBE_PATIENCE: Duration = Duration::from_millis(80);
/// Members beyond those that a cluster begins with.
pub(super) const MEMBERS_MAX: usize = 24;

/// A member's links.
pub(super) struct PeerLinks {
    epoch: Instant,
    seed: u64,
    /// Keys of other members, as they were at first contact.
    pins: BTreeMap<u64, Fingerprint>,
    pub(super) links: Links,
    buffer: Vec<u8>,
}

fn address_of(at: usize) -> SocketAddr {
    let host = u8::try_from(at + 1).expect("clusters are small");
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), PORT)
}

fn machine_at(address: SocketAddr) -> usize {
    match address.ip() {
        IpAddr::V4(ip) => usize::from(ip.octets()[3]) - 1,
        IpAddr::V6(_) => unreachable!("members have addresses of version 4"),
    }
}

impl PeerLinks {
    /// Links of a process.
    pub(super) fn new(epoch: Instant, seed: u64, id: u64, boot: u64, pins: BTreeMap<u64, Fingerprint>) -> PeerLinks {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&id.to_le_bytes());
        let mut random = [0; 32];
        random[..8].copy_from_slice(&seed.to_le_bytes());
        random[8..16].copy_from_slice(&boot.to_le_bytes());
        let config = LinksConfig {
            boot,
            seed: random,
            trust: Trust::FirstContact(pins.clone()),
            ..LinksConfig::new(id, CLUSTER_ID, epoch, null::security(key, seed))
        };
        PeerLinks { epoch, seed, pins, links: Links::new(config), buffer: Vec::new() }
    }

    /// Links of the next process on the same machine.
    pub(super) fn again(&self, id: u64, boot: u64) -> PeerLinks {
        PeerLinks::new(self.epoch, self.seed, id, boot, self.pins.clone())
    }

    /// Names the members.
    pub(super) fn set_peers(&mut self, now: Duration, ids: &[u64], removed: &[u64]) {
        let info = |id: &u64| PeerInfo { id: *id, server_name: String::new() };
        let peers: Vec<PeerInfo> = ids.iter().map(info).collect();
        self.links.set_peers(now, &peers, removed);
    }
}

impl Cluster {
    /// A datagram arrives.
    pub(super) fn take_datagram(&mut self, at: usize, from: usize, bytes: &Bytes) -> Check {
        let machine = &mut self.machines[at];
        let now = machine.node.clock();
        if let Some(links) = &mut machine.links {
            let arrival = Arrival { socket: 0, from: address_of(from), local_ip: None, ecn: None };
            links.links.handle_datagram(now, arrival, BytesMut::from(&bytes[..]));
        }
        self.observe(at)
    }

    /// The connection that shows that another process lives is broken.
    pub(super) fn hang_up(&mut self, at: usize, peer: u64) -> Check {
        let machine = &mut self.machines[at];
        let now = machine.node.clock();
        if let Some(links) = &mut machine.links {
            links.links.probe(now, peer, PROBE_PATIENCE);
        }
        self.observe(at)
    }

    /// A process has ended, and its kernel lives: the others' tripwires tell.
    pub(super) fn trip(&mut self, at: usize) {
        let peer = self.machines[at].id;
        for to in (0..self.machines.len()).filter(|to| *to != at).collect::<Vec<_>>() {
            if let [Some(arrival), _] = self.network.arrivals(self.now, at, to, Lane::Bulk) {
                self.after(Event::Hangup { to, peer }, arrival - self.now);
            }
        }
    }

    /// Hands a message to the link with its member.
    pub(super) fn send_over_link(&mut self, at: usize, to: u64, lane: Lane, message: &PeerMessage) -> Check {
        let frame = network::encode(message)?;
        let machine = &mut self.machines[at];
        let now = machine.node.clock();
        if let Some(links) = &mut machine.links
            && links.links.send(now, to, lane, frame).is_err()
        {
            // It is lost, as any message may be.
            self.network.lost += 1;
        }
        Ok(())
    }

    /// The next thing that a machine's links tell. False when there is none.
    pub(super) fn take_link_event(&mut self, at: usize) -> Check<bool> {
        let machine = &mut self.machines[at];
        let Some(links) = &mut machine.links else { return Ok(false) };
        let Some(event) = links.links.poll_event() else { return Ok(false) };
        let now = machine.node.clock();
        let member = &mut machine.node.member;
        match event {
            LinkEvent::Frame { from, frame, .. } => {
                let message = network::read_body(frame.body)?;
                member.handle_message(now, from, message);
            }
            LinkEvent::Up { peer, .. } => {
                self.story.tell(self.now, "up", peer, || format!("m{}: the link to m{peer} is up", at + 1));
                member.handle_peer_up(now, peer);
            }
            LinkEvent::Down { peer, reason } => {
                self.story.tell(self.now, "down", peer, || format!("m{}: the link to m{peer}: {reason}", at + 1));
                member.handle_peer_down(now, peer);
            }
            LinkEvent::WantsAddress { peer } => {
                let address = address_of(usize::try_from(peer - 1).expect("ids are small"));
                let server_name = String::new();
                links.links.handle_addresses(now, peer, vec![Address { address, server_name }]);
            }
            LinkEvent::Pinned { peer, fingerprint } => {
                links.pins.insert(peer, fingerprint);
            }
            LinkEvent::ProbeSilent { peer } => {
                self.story.tell(self.now, "gone", peer, || format!("m{}: the process of m{peer} is gone", at + 1));
                member.handle_leader_gone(now, peer);
            }
            // It may have been cut off before it could say who it is.
            LinkEvent::Refused { refusal: Refusal::Late, .. } => {}
            LinkEvent::Refused { refusal, .. } => {
                return violated("no member of a cluster is refused", "", format!("m{}: {refusal}", at + 1));
            }
            LinkEvent::DialFailed { .. } | LinkEvent::RefusedBy { .. } | LinkEvent::ProbeAnswered { .. } => {}
        }
        machine.node.drain();
        Ok(true)
    }

    /// Sends what a machine's links have to send.
    pub(super) fn transmit(&mut self, at: usize) {
        let clock = self.machines[at].node.clock();
        loop {
            let Some(links) = &mut self.machines[at].links else { return };
            let mut buffer = std::mem::take(&mut links.buffer);
            buffer.clear();
            let Some(transmit) = links.links.poll_transmit(clock, &mut buffer) else {
                links.buffer = buffer;
                return;
            };
            let to = machine_at(transmit.to);
            for datagram in buffer[..transmit.bytes].chunks(transmit.segment_bytes.unwrap_or(transmit.bytes).max(1)) {
                let bytes = Bytes::copy_from_slice(datagram);
                for arrival in self.network.arrivals(self.now, at, to, Lane::Control).into_iter().flatten() {
                    self.after(Event::Datagram { to, from: at, bytes: bytes.clone() }, arrival - self.now);
                }
            }
            if let Some(links) = &mut self.machines[at].links {
                links.buffer = buffer;
            }
        }
    }
}
