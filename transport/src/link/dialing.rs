//! Who dials whom, whose connection counts, and when a link is up.
//!
//! Both members of a pair dial while they have no link, so that whichever can reach the other does. Of connections that
//! both stand the same one stays on both sides:
//! - another boot's replaces what an earlier process left;
//! - that of a peer which has lost more links than it had when the other was made: it has not got the other any more;
//! - of two dials that crossed, that of the member with the lower id;
//! - else the newer one.

use core::time::Duration;
use std::collections::VecDeque;

use quinn_proto::ConnectionHandle;

use super::config::{self, Trust};
use super::connection::{Connection, Phase};
use super::event::{CloseCode, DownReason, LinkEvent, Refusal};
use super::hello::Hello;
use super::limits::{ADDRESS_TIMEOUT, HELLO_TIMEOUT, RETRY_MAX, RETRY_MIN, STRANGERS_MAX};
use super::links::{Address, Links};
use super::peer::{Established, Peer};
use super::{Fingerprint, LinkKind};

/// How long one of several addresses is tried at first; each failure adds as much.
const ADDRESS_PATIENCE: Duration = Duration::from_millis(300);
/// How long the last of them is tried, and the longest that any is.
const DIAL_PATIENCE: Duration = Duration::from_secs(2);
/// Most addresses of a peer that are tried.
const ADDRESSES_MAX: usize = 16;

impl Links {
    /// Where a peer may be, which was asked for by [`LinkEvent::WantsAddress`]. They are tried in order; none at all
    /// means that its names can't be resolved now.
    pub fn handle_addresses(&mut self, now: Duration, peer: u64, addresses: Vec<Address>) {
        self.now = now;
        let Some(link) = self.link(peer, LinkKind::Main) else { return };
        if link.asked_at.take().is_none() || link.established.is_some() || link.dialing.is_some() {
            return;
        }
        link.addresses = VecDeque::from(addresses);
        link.addresses.truncate(ADDRESSES_MAX);
        if link.addresses.is_empty() {
            self.dial_failed(now, peer, LinkKind::Main);
        } else {
            self.dial_next(now, peer);
        }
    }

    fn link(&mut self, peer: u64, kind: LinkKind) -> Option<&mut super::peer::Link> {
        self.peers.get_mut(&peer).map(|peer| &mut peer.links[kind.index()])
    }

    pub(super) fn dial_what_is_due(&mut self, now: Duration) {
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            for kind in LinkKind::ALL {
                self.give_up_late_dial(now, id, kind);
            }
            let peer = self.peers.get_mut(&id).expect("nobody was forgotten meanwhile");
            let is_known = peer.is_known;
            let link = &mut peer.links[LinkKind::Main.index()];
            if link.asked_at.is_some_and(|asked| asked + ADDRESS_TIMEOUT <= now) {
                link.asked_at = None;
                link.dial_at = Some(now);
            }
            if link.dial_at.is_some_and(|due| due <= now) {
                link.dial_at = None;
                let is_wanted = is_known && link.established.is_none() && link.dialing.is_none();
                if is_wanted && link.addresses.is_empty() {
                    link.asked_at = Some(now);
                    self.tell(LinkEvent::WantsAddress { peer: id });
                } else if is_wanted {
                    self.dial_next(now, id);
                }
            }
            let bulk = &mut self.peers.get_mut(&id).expect("as above").links[LinkKind::Bulk.index()];
            if bulk.dial_at.is_some_and(|due| due <= now) {
                self.dial_bulk(now, id);
            }
        }
    }

    /// Goes on to the next address where the one that is tried does not answer.
    fn give_up_late_dial(&mut self, now: Duration, peer: u64, kind: LinkKind) {
        let Some(link) = self.link(peer, kind) else { return };
        let (Some(handle), Some(until)) = (link.dialing, link.dial_until) else { return };
        if until > now {
            return;
        }
        if let Some(connection) = self.connections.get(&handle.0) {
            let address = connection.quic.remote_address();
            let reason = "nothing comes back".to_owned();
            self.tell(LinkEvent::DialFailed { peer, address, reason, silent: true });
            self.close(now, handle, CloseCode::Superseded, "no answer in time".to_owned());
        }
        self.dial_failed(now, peer, kind);
    }

    /// Dials the next of a peer's addresses.
    fn dial_next(&mut self, now: Duration, id: u64) {
        let Some(link) = self.link(id, LinkKind::Main) else { return };
        let Some(Address { address, server_name }) = link.addresses.pop_front() else { return };
        let patience = match link.addresses.is_empty() {
            true => DIAL_PATIENCE,
            false => ADDRESS_PATIENCE.saturating_mul(link.attempts.saturating_add(1)).min(DIAL_PATIENCE),
        };
        link.dial_until = Some(now + patience);
        self.dial(now, id, LinkKind::Main, &Address { address, server_name });
    }

    /// Dials a peer's bulk connection, to where its main one comes from.
    pub(super) fn dial_bulk(&mut self, now: Duration, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.links[LinkKind::Bulk.index()].dial_at = None;
        let server_name = peer.server_name.clone();
        let has_nothing = peer.queue(crate::Lane::Bulk).is_empty();
        let [main, bulk] = &peer.links;
        if bulk.established.is_some() || bulk.dialing.is_some() || has_nothing {
            return;
        }
        let Some(main) = main.established.and_then(|main| self.connections.get(&main.handle.0)) else { return };
        let (address, socket) = (main.quic.remote_address(), main.socket);
        if let Some(handle) = self.dial(now, id, LinkKind::Bulk, &Address { address, server_name })
            && let Some(connection) = self.connections.get_mut(&handle.0)
        {
            connection.socket = socket;
        }
    }

    fn dial(&mut self, now: Duration, peer: u64, kind: LinkKind, to: &Address) -> Option<ConnectionHandle> {
        let instant = self.instant(now);
        match self.endpoint.connect(instant, self.quic.client.clone(), to.address, &to.server_name) {
            Ok((handle, quic)) => {
                let hello_by = now + self.config.idle_timeout + HELLO_TIMEOUT;
                self.connections.insert(handle.0, Connection::new(quic, Some((peer, kind)), hello_by));
                if let Some(link) = self.link(peer, kind) {
                    link.dialing = Some(handle);
                }
                self.touch(handle);
                Some(handle)
            }
            Err(error) => {
                let (address, reason) = (to.address, error.to_string());
                self.tell(LinkEvent::DialFailed { peer, address, reason, silent: false });
                self.dial_failed(now, peer, kind);
                None
            }
        }
    }

    /// A dial came to nothing: tries the next address, or all of them again after a while.
    fn dial_failed(&mut self, now: Duration, peer: u64, kind: LinkKind) {
        let spread = self.random.draw();
        let Some(link) = self.link(peer, kind) else { return };
        link.dialing = None;
        link.dial_until = None;
        if link.established.is_some() {
            return;
        }
        if !link.addresses.is_empty() {
            link.dial_at = Some(now);
            return;
        }
        let doubled = RETRY_MIN.saturating_mul(1 << link.attempts.min(10)).min(RETRY_MAX);
        link.attempts = link.attempts.saturating_add(1);
        link.dial_at = Some(now + doubled / 2 + share(doubled / 2, spread));
    }

    /// The handshake is done: who dialed speaks first.
    pub(super) fn connected(&mut self, now: Duration, handle: ConnectionHandle) {
        let Some((peer, kind)) = self.connections.get(&handle.0).and_then(|connection| connection.dialed) else {
            return;
        };
        self.greet(now, handle, kind, peer);
    }

    fn greet(&mut self, now: Duration, handle: ConnectionHandle, kind: LinkKind, to: u64) {
        let losses = self.link(to, kind).map_or(0, |link| link.losses);
        let hello = Hello {
            kind,
            cluster_id: self.config.cluster_id,
            from: self.config.member_id,
            to,
            boot: self.config.boot,
            losses,
            tripwire: self.config.tripwire,
        };
        let connection = self.connections.get_mut(&handle.0).expect("the caller has looked it up");
        if connection.say_hello(&hello.encode()).is_err() {
            self.refuse(now, handle, Refusal::Stream);
        }
    }

    /// The other side has said hello.
    pub(super) fn greeted(&mut self, now: Duration, handle: ConnectionHandle, hello: &Hello) {
        if let Err(refusal) = self.check(handle, hello) {
            return self.refuse(now, handle, refusal);
        }
        let (from, kind) = (hello.from, hello.kind);
        let dialed_here = self.connections[&handle.0].dialed.is_some();
        self.peers.entry(from).or_insert_with(|| Peer::new(false, String::new()));
        let current = self.peers[&from].links[kind.index()].established;
        if current.is_some_and(|current| !self.takes_over(&current, hello, dialed_here)) {
            if dialed_here {
                self.dial_failed(now, from, kind);
            }
            return self.close(now, handle, CloseCode::Superseded, "there is a link already".to_owned());
        }
        if let Some(current) = current {
            self.close(now, current.handle, CloseCode::Superseded, "a newer connection takes its place".to_owned());
            self.clear(from, kind);
        }
        self.establish(now, handle, hello, dialed_here, current);
    }

    /// Whether a new connection takes the place of the one that is there.
    fn takes_over(&self, current: &Established, hello: &Hello, dialed_here: bool) -> bool {
        if current.boot != hello.boot {
            true
        } else if current.losses != hello.losses {
            hello.losses > current.losses
        } else if current.dialed_here != dialed_here {
            dialed_here == (self.config.member_id < hello.from)
        } else {
            true
        }
    }

    fn establish(
        &mut self,
        now: Duration,
        handle: ConnectionHandle,
        hello: &Hello,
        dialed_here: bool,
        before: Option<Established>,
    ) {
        let (from, kind) = (hello.from, hello.kind);
        if !dialed_here {
            self.greet(now, handle, kind, from);
        }
        let connection = self.connections.get_mut(&handle.0).expect("a hello has just come on it");
        if connection.phase == Phase::Over || connection.open_lanes(kind).is_err() {
            return self.refuse(now, handle, Refusal::Stream);
        }
        connection.phase = Phase::Up(from, kind);
        let address = connection.quic.remote_address();
        let peer = self.peers.get_mut(&from).expect("the caller has put it there");
        peer.tripwire = hello.tripwire;
        let link = &mut peer.links[kind.index()];
        let (boot, losses) = (hello.boot, hello.losses);
        link.established = Some(Established { handle, dialed_here, boot, losses, since: now });
        link.attempts = 0;
        link.dial_at = None;
        link.dial_until = None;
        link.asked_at = None;
        link.addresses.clear();
        let other_dial = link.dialing.take().filter(|dialing| *dialing != handle);
        self.stop_dial(now, from, kind, other_dial);
        let restarted = before.is_some_and(|before| before.boot != boot);
        if kind == LinkKind::Main && restarted {
            self.drop_bulk(now, from);
            self.tell(LinkEvent::Down { peer: from, reason: DownReason::Restarted });
        }
        if kind == LinkKind::Main && (restarted || before.is_none()) {
            self.tell(LinkEvent::Up { peer: from, address, boot, tripwire: hello.tripwire });
        }
        self.touch(handle);
    }

    /// Ends a dial that has become needless. Where the lower id has said hello already, the other side may have taken
    /// that connection by now: it goes on, and takes over here too.
    fn stop_dial(&mut self, now: Duration, peer: u64, kind: LinkKind, dial: Option<ConnectionHandle>) {
        let Some(handle) = dial else { return };
        let Some(connection) = self.connections.get(&handle.0) else { return };
        if connection.said_hello && self.config.member_id < peer {
            if let Some(link) = self.link(peer, kind) {
                link.dialing = Some(handle);
            }
            return;
        }
        self.close(now, handle, CloseCode::Superseded, "there is a link already".to_owned());
    }

    /// Whether the other side is who it must be.
    fn check(&mut self, handle: ConnectionHandle, hello: &Hello) -> Result<(), Refusal> {
        let ours = self.config.member_id;
        let connection = &self.connections[&handle.0];
        if hello.cluster_id != self.config.cluster_id {
            return Err(Refusal::Cluster { theirs: hello.cluster_id, ours: self.config.cluster_id });
        }
        if hello.from == ours || hello.from == 0 {
            return Err(Refusal::Itself);
        }
        if self.removed.contains(&hello.from) {
            return Err(Refusal::Removed);
        }
        if hello.to != ours {
            return Err(Refusal::Member { wanted: hello.to, found: ours });
        }
        if let Some((wanted, kind)) = connection.dialed {
            if wanted != hello.from {
                return Err(Refusal::Member { wanted, found: hello.from });
            }
            if kind != hello.kind {
                return Err(Refusal::Kind);
            }
        }
        let is_known = self.peers.get(&hello.from).is_some_and(|peer| peer.is_known);
        let strangers = self.peers.values().filter(|peer| !peer.is_known).count();
        if !is_known && !self.peers.contains_key(&hello.from) && strangers >= STRANGERS_MAX {
            return Err(Refusal::Strangers);
        }
        let shown = config::fingerprint(connection.quic.crypto_session().peer_identity());
        self.check_key(hello.from, is_known, shown)
    }

    fn check_key(&mut self, member: u64, is_known: bool, shown: Option<Fingerprint>) -> Result<(), Refusal> {
        let Trust::FirstContact(remembered) = &mut self.config.trust else { return Ok(()) };
        let shown = shown.ok_or(Refusal::Key)?;
        match remembered.get(&member) {
            Some(known) if *known != shown => return Err(Refusal::Key),
            Some(_) => {}
            // Whoever is no member yet is remembered once it is one.
            None if !is_known => {}
            None => {
                remembered.insert(member, shown);
                self.tell(LinkEvent::Pinned { peer: member, fingerprint: shown });
            }
        }
        Ok(())
    }

    /// A connection is over: the link on it is down, or the dial has come to nothing.
    pub(super) fn gone(&mut self, now: Duration, handle: ConnectionHandle, reason: DownReason) {
        let Some(connection) = self.connections.get(&handle.0) else { return };
        match (connection.phase, connection.dialed) {
            (Phase::Up(peer, kind), _) => self.link_lost(now, handle, peer, kind, reason),
            (Phase::Opening, Some((peer, kind))) => {
                if self.link(peer, kind).is_some_and(|link| link.dialing == Some(handle)) {
                    self.dial_failed(now, peer, kind);
                }
            }
            (Phase::Opening | Phase::Over, _) => {}
        }
    }

    fn link_lost(&mut self, now: Duration, handle: ConnectionHandle, id: u64, kind: LinkKind, reason: DownReason) {
        let spread = self.random.draw();
        // The member with the lower id goes first: if both dial at the same moment, its connection is the one that stays.
        let behind = if self.config.member_id > id { RETRY_MIN } else { Duration::ZERO };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let is_known = peer.is_known;
        let link = &mut peer.links[kind.index()];
        if link.established.is_none_or(|established| established.handle != handle) {
            return;
        }
        link.established = None;
        link.losses += 1;
        if kind == LinkKind::Main && is_known && link.dialing.is_none() {
            link.dial_at = Some(now + behind + share(RETRY_MIN / 2, spread));
        }
        self.clear(id, kind);
        if kind == LinkKind::Main {
            self.drop_bulk(now, id);
            self.tell(LinkEvent::Down { peer: id, reason });
            if !is_known {
                self.peers.remove(&id);
            }
        }
    }

    /// The bulk connection does not outlive the main one.
    fn drop_bulk(&mut self, now: Duration, peer: u64) {
        let Some(link) = self.link(peer, LinkKind::Bulk) else { return };
        let established = link.established.take();
        link.losses += u64::from(established.is_some());
        link.dial_at = None;
        link.dial_until = None;
        let handles = established.map(|established| established.handle).into_iter().chain(link.dialing.take());
        for handle in handles.collect::<Vec<_>>() {
            self.close(now, handle, CloseCode::Superseded, "the main link is down".to_owned());
        }
        self.clear(peer, LinkKind::Bulk);
    }

    /// What waited to be sent is lost.
    fn clear(&mut self, peer: u64, kind: LinkKind) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            for lane in kind.lanes() {
                peer.queue(*lane).clear();
            }
        }
    }
}

/// A part of a time, as the dice say.
fn share(whole: Duration, spread: u64) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).expect("a wait is short");
    Duration::from_nanos(spread % nanos.max(1))
}
