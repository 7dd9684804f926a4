//! All links of one member.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ConnectionError, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint, Event, Incoming, StreamEvent,
};

use super::config::{self, LinksConfig, QuicConfigs};
use super::connection::{Connection, Phase};
use super::event::{CloseCode, DownReason, LinkEvent, Refusal, tls_failure};
use super::hello::Hello;
use super::limits::{CONNECTIONS_PER_PEER, HELLO_TIMEOUT, RECEIVED_BYTES, STRANGERS_MAX};
use super::peer::{Peer, Probe};
use super::random::Random;
use super::{LinkKind, TripwireToken};
use crate::{FrameBody, Lane, PeerFrame};

/// A peer that links are kept up with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its member id.
    pub id: u64,
    /// The host that its certificate must name where an authority vouches for it, unless the address that is dialed
    /// comes with another one.
    pub server_name: String,
}

/// Where a peer may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub address: SocketAddr,
    /// The host name that it was resolved from.
    pub server_name: String,
}

/// How a datagram came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The caller's number of the socket.
    pub socket: u32,
    /// From where.
    pub from: SocketAddr,
    /// To which of this machine's addresses, if that is known.
    pub local_ip: Option<IpAddr>,
    /// What routers on the way have marked.
    pub ecn: Option<EcnCodepoint>,
}

/// Datagrams to send, all to one place. Their bytes are in the buffer that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The socket to send them from: the one that the other side sends to. None for a first datagram: any will do.
    pub socket: Option<u32>,
    /// Where to.
    pub to: SocketAddr,
    /// From which of this machine's addresses, if that matters.
    pub from_ip: Option<IpAddr>,
    /// How to mark them.
    pub ecn: Option<EcnCodepoint>,
    /// Bytes in all.
    pub bytes: usize,
    /// The length of each but the last, if there are several.
    pub segment_bytes: Option<usize>,
}

/// Why a frame was not taken. It is lost, as any message may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no link.
    #[error("there is no link with the peer")]
    Down,
    /// Too much waits to be sent on the lane.
    #[error("too much waits to be sent to the peer")]
    Full,
}

/// A link's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Since when the link is up.
    pub up_since: Option<Duration>,
    /// The path's round-trip time.
    pub rtt: Duration,
    /// Bytes of frames taken for sending.
    pub sent_bytes: u64,
    /// Bytes of frames received.
    pub received_bytes: u64,
    /// Control frames that were over the bound.
    pub dropped_control: u64,
    /// Log frames that were over the bound.
    pub dropped_log: u64,
    /// Bulk frames that were over the bound.
    pub dropped_bulk: u64,
}

/// All links of one member.
///
/// The calling order: any call that takes `now`, then [`poll_event`](Self::poll_event) and
/// [`poll_transmit`](Self::poll_transmit) until each has nothing more, then sleep until
/// [`poll_timeout`](Self::poll_timeout) or the next input. Frames that are sent one after the other before
/// `poll_transmit` share datagrams.
///
/// Promises:
/// - a frame comes whole, once, from the member that it is said to come from, or not at all;
/// - frames of one lane come in the order in which they were sent, with gaps where a link was lost or a queue was full;
/// - what waits on one lane does not hold up another, and nothing holds up the control lane but the path;
/// - memory is bounded for each peer, whatever it sends or fails to take.
pub struct Links {
    pub(super) config: LinksConfig,
    pub(super) endpoint: Endpoint,
    pub(super) quic: QuicConfigs,
    pub(super) connections: BTreeMap<usize, Connection>,
    pub(super) peers: BTreeMap<u64, Peer>,
    pub(super) removed: BTreeSet<u64>,
    pub(super) random: Random,
    /// The time of the last call.
    pub(super) now: Duration,
    /// Events, each with the bytes that it holds.
    events: VecDeque<(LinkEvent, usize)>,
    received_bytes: usize,
    /// Connections that are not read because too much waits to be fetched.
    paused: BTreeSet<usize>,
    /// Connections that something was done to.
    touched: BTreeSet<usize>,
    sendable: VecDeque<usize>,
    /// Answers that belong to no connection, with their bytes.
    answers: VecDeque<(Transmit, Vec<u8>)>,
    scratch: Vec<u8>,
}

impl Links {
    /// Links with nobody yet.
    pub fn new(config: LinksConfig) -> Self {
        let mut seed = [0; 8];
        seed.copy_from_slice(&config.seed[..8]);
        let mut random = Random::new(u64::from_le_bytes(seed) ^ config.boot ^ config.member_id);
        let quic = config::quic_configs(&config, &mut random);
        let may_probe_mtu = config.mtu_max.is_some();
        let rng_seed = Some(random.seed());
        let endpoint = Endpoint::new(quic.endpoint.clone(), Some(quic.server.clone()), may_probe_mtu, rng_seed);
        Self {
            config,
            endpoint,
            quic,
            connections: BTreeMap::new(),
            peers: BTreeMap::new(),
            removed: BTreeSet::new(),
            random,
            now: Duration::ZERO,
            events: VecDeque::new(),
            received_bytes: 0,
            paused: BTreeSet::new(),
            touched: BTreeSet::new(),
            sendable: VecDeque::new(),
            answers: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    pub(super) fn instant(&self, now: Duration) -> Instant {
        self.config.epoch + now
    }

    /// Names the members that links are kept up with, and those that were removed, which are cut off and never heard
    /// again. This member is passed over.
    pub fn set_peers(&mut self, now: Duration, peers: &[PeerInfo], removed: &[u64]) {
        self.now = now;
        self.removed = removed.iter().copied().collect();
        let known: BTreeSet<u64> = peers.iter().map(|peer| peer.id).collect();
        for info in peers.iter().filter(|info| info.id != self.config.member_id) {
            let peer = self.peers.entry(info.id).or_insert_with(|| Peer::new(false, String::new()));
            peer.server_name.clone_from(&info.server_name);
            if !std::mem::replace(&mut peer.is_known, true) && peer.links[0].established.is_none() {
                peer.links[0].dial_at = Some(now);
            }
        }
        let gone: Vec<u64> = self
            .peers
            .iter()
            .filter(|(id, peer)| self.removed.contains(id) || (peer.is_known && !known.contains(id)))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.forget(now, id);
        }
    }

    /// Cuts a peer off.
    fn forget(&mut self, now: Duration, id: u64) {
        let Some(peer) = self.peers.remove(&id) else { return };
        for link in &peer.links {
            let established = link.established.as_ref().map(|established| established.handle);
            for handle in established.into_iter().chain(link.dialing) {
                self.close(now, handle, CloseCode::Removed, Refusal::Removed.to_string());
            }
        }
        if peer.links[LinkKind::Main.index()].established.is_some() {
            self.tell(LinkEvent::Down { peer: id, reason: DownReason::Removed });
        }
    }

    /// Closes a connection; what waits to be sent on it is lost.
    pub(super) fn close(&mut self, now: Duration, handle: ConnectionHandle, code: CloseCode, reason: String) {
        let instant = self.instant(now);
        if let Some(connection) = self.connections.get_mut(&handle.0) {
            connection.close(instant, code, reason);
            self.touched.insert(handle.0);
        }
    }

    /// Tells all peers that this member stops. Send what [`poll_transmit`](Self::poll_transmit) gives, and no more.
    pub fn stop(&mut self, now: Duration) {
        self.now = now;
        for handle in self.connections.keys().copied().collect::<Vec<_>>() {
            self.close(now, ConnectionHandle(handle), CloseCode::Shutdown, "the member stops".to_owned());
        }
        for peer in self.peers.values_mut() {
            peer.is_known = false;
            peer.links = Default::default();
        }
    }

    /// A datagram came.
    pub fn handle_datagram(&mut self, now: Duration, arrival: Arrival, bytes: BytesMut) {
        self.now = now;
        let instant = self.instant(now);
        let Arrival { socket, from, local_ip, ecn } = arrival;
        self.scratch.clear();
        match self.endpoint.handle(instant, from, local_ip, ecn, bytes, &mut self.scratch) {
            None => {}
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connections.get_mut(&handle.0) {
                    connection.socket = Some(socket);
                    connection.quic.handle_event(event);
                    self.touched.insert(handle.0);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.take_in(now, socket, incoming),
            Some(DatagramEvent::Response(transmit)) => self.answer(Some(socket), transmit),
        }
    }

    /// Somebody dials this member.
    fn take_in(&mut self, now: Duration, socket: u32, incoming: Incoming) {
        let instant = self.instant(now);
        let known = self.peers.len().max(1) + STRANGERS_MAX;
        if self.connections.len() >= known * CONNECTIONS_PER_PEER {
            let transmit = self.endpoint.refuse(incoming, &mut self.scratch);
            self.answer(Some(socket), transmit);
            return;
        }
        match self.endpoint.accept(incoming, instant, &mut self.scratch, None) {
            Ok((handle, quic)) => {
                let mut connection = Connection::new(quic, None, now + HELLO_TIMEOUT);
                connection.socket = Some(socket);
                self.connections.insert(handle.0, connection);
                self.touched.insert(handle.0);
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.answer(Some(socket), transmit);
                }
            }
        }
    }

    fn answer(&mut self, socket: Option<u32>, transmit: quinn_proto::Transmit) {
        // They are rare; a flood of what needs answers is answered no faster than it is sent on.
        const ANSWERS_MAX: usize = 64;
        if self.answers.len() < ANSWERS_MAX {
            let bytes = self.scratch[..transmit.size].to_vec();
            self.answers.push_back((outgoing(socket, &transmit), bytes));
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        let instant = self.instant(now);
        let mut late = Vec::new();
        for (handle, connection) in &mut self.connections {
            if connection.quic.poll_timeout().is_some_and(|due| due <= instant) {
                connection.quic.handle_timeout(instant);
                self.touched.insert(*handle);
            }
            if connection.phase == Phase::Opening && connection.hello_by <= now {
                late.push(ConnectionHandle(*handle));
            }
        }
        for handle in late {
            self.refuse(now, handle, Refusal::Late);
        }
        self.settle(now);
        self.check_probes(now);
        self.dial_what_is_due(now);
        self.settle(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn poll_timeout(&mut self) -> Option<Duration> {
        let epoch = self.config.epoch;
        let connections = self.connections.values_mut().filter_map(|connection| {
            let hello_by = (connection.phase == Phase::Opening).then_some(connection.hello_by);
            let quic = connection.quic.poll_timeout().map(|due| due.saturating_duration_since(epoch));
            hello_by.into_iter().chain(quic).min()
        });
        let connections = connections.min();
        let peers = self.peers.values().filter_map(Peer::due).min();
        connections.into_iter().chain(peers).min()
    }

    /// The next datagrams to send, whose bytes are put into `buffer`, which must be empty.
    pub fn poll_transmit(&mut self, now: Duration, buffer: &mut Vec<u8>) -> Option<Transmit> {
        assert!(buffer.is_empty(), "the buffer holds what one call gives");
        self.now = now;
        self.settle(now);
        if let Some((transmit, bytes)) = self.answers.pop_front() {
            buffer.extend_from_slice(&bytes);
            return Some(transmit);
        }
        let instant = self.instant(now);
        while let Some(handle) = self.sendable.front().copied() {
            if let Some(connection) = self.connections.get_mut(&handle) {
                let most = connection.datagrams_max();
                if let Some(transmit) = connection.quic.poll_transmit(instant, most, buffer) {
                    return Some(outgoing(connection.socket, &transmit));
                }
                connection.is_sendable = false;
                self.exchange_endpoint_events(ConnectionHandle(handle));
            }
            self.sendable.pop_front();
        }
        None
    }

    /// Sends a frame, as [`encode`](crate::encode) or [`encode_opaque`](crate::encode_opaque) made it. It leaves with
    /// the next [`poll_transmit`](Self::poll_transmit), or once the path has room.
    ///
    /// # Errors
    /// Where it is lost: there is no link, or its lane's queue is full. The former is only said where the peer would
    /// have to be up for it; a bulk frame waits for its connection.
    pub fn send(&mut self, now: Duration, to: u64, lane: Lane, frame: Bytes) -> Result<(), SendError> {
        self.now = now;
        let peer = self.peers.get_mut(&to).ok_or(SendError::Down)?;
        if peer.links[LinkKind::Main.index()].established.is_none() {
            return Err(SendError::Down);
        }
        if !peer.push(lane, frame) {
            return Err(SendError::Full);
        }
        let link = &mut peer.links[LinkKind::of(lane).index()];
        match link.established {
            Some(established) => {
                self.touched.insert(established.handle.0);
            }
            None if link.dialing.is_none() && link.dial_at.is_none() => {
                link.dial_at = Some(now);
                self.dial_bulk(now, to);
            }
            None => {}
        }
        Ok(())
    }

    /// Bytes that may still be queued on a lane.
    pub fn room(&self, to: u64, lane: Lane) -> usize {
        self.peers.get(&to).map_or(0, |peer| peer.room(lane))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        if self.touched.is_empty() && self.events.is_empty() && !self.paused.is_empty() {
            for handle in std::mem::take(&mut self.paused) {
                self.read(self.now, ConnectionHandle(handle));
                self.touched.insert(handle);
            }
        }
        if !self.touched.is_empty() {
            self.settle(self.now);
        }
        let (event, bytes) = self.events.pop_front()?;
        self.received_bytes -= bytes;
        Some(event)
    }

    pub(super) fn touch(&mut self, handle: ConnectionHandle) {
        self.touched.insert(handle.0);
    }

    pub(super) fn tell(&mut self, event: LinkEvent) {
        self.events.push_back((event, 0));
    }

    /// Asks a peer whether it is there: [`LinkEvent::ProbeAnswered`] or, after `patience`, [`LinkEvent::ProbeSilent`]
    /// follows. What had been under way before does not count.
    pub fn probe(&mut self, now: Duration, peer: u64, patience: Duration) {
        self.now = now;
        let established = self.peers.get(&peer).and_then(|peer| peer.links[LinkKind::Main.index()].established);
        let connection = established.and_then(|established| self.connections.get_mut(&established.handle.0));
        let (Some(established), Some(connection)) = (established, connection) else {
            self.tell(LinkEvent::ProbeSilent { peer });
            return;
        };
        connection.quic.ping();
        let acknowledged = connection.acknowledged();
        self.touched.insert(established.handle.0);
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.probe = Some(Probe { acknowledged, until: now + patience });
        }
    }

    fn check_probes(&mut self, now: Duration) {
        let mut told = Vec::new();
        for (id, peer) in &mut self.peers {
            let Some(probe) = peer.probe else { continue };
            let established = peer.links[LinkKind::Main.index()].established;
            let connection = established.and_then(|established| self.connections.get(&established.handle.0));
            let answered = connection.is_some_and(|connection| connection.acknowledged() > probe.acknowledged);
            if answered || probe.until <= now {
                peer.probe = None;
                told.push((*id, answered));
            }
        }
        for (peer, answered) in told {
            let event = if answered { LinkEvent::ProbeAnswered { peer } } else { LinkEvent::ProbeSilent { peer } };
            self.tell(event);
        }
    }

    /// Whether a peer can be talked to.
    pub fn is_up(&self, peer: u64) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.links[LinkKind::Main.index()].established.is_some())
    }

    /// The member that shows this token on a tripwire connection, if it has had it from this member on a link that is up.
    pub fn tripwire_of(&self, peer: u64) -> Option<TripwireToken> {
        self.is_up(peer).then(|| self.peers[&peer].tripwire)
    }

    /// A peer's figures.
    pub fn stats(&self, id: u64) -> LinkStats {
        let Some(peer) = self.peers.get(&id) else { return LinkStats::default() };
        let established = peer.links[LinkKind::Main.index()].established;
        let connection = established.and_then(|established| self.connections.get(&established.handle.0));
        let [dropped_control, dropped_log, dropped_bulk] = peer.dropped;
        LinkStats {
            up_since: established.map(|established| established.since),
            rtt: connection.map(|connection| connection.quic.rtt()).unwrap_or_default(),
            sent_bytes: peer.sent_bytes,
            received_bytes: peer.received_bytes,
            dropped_control,
            dropped_log,
            dropped_bulk,
        }
    }

    /// Does everything that follows from what was done to connections.
    fn settle(&mut self, now: Duration) {
        while let Some(handle) = self.touched.pop_first() {
            self.drive(now, ConnectionHandle(handle));
        }
    }

    fn drive(&mut self, now: Duration, handle: ConnectionHandle) {
        let mut readable = false;
        while let Some(event) = self.connections.get_mut(&handle.0).and_then(|connection| connection.quic.poll()) {
            match event {
                Event::Connected => self.connected(now, handle),
                Event::ConnectionLost { reason } => self.lost(now, handle, &reason),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    let connection = self.connections.get_mut(&handle.0).expect("it was polled just now");
                    if connection.accept_streams().is_err() {
                        self.refuse(now, handle, Refusal::Stream);
                    }
                    readable = true;
                }
                Event::Stream(StreamEvent::Readable { .. }) => readable = true,
                _ => {}
            }
        }
        if readable {
            self.read(now, handle);
        }
        self.write(handle);
        if self.exchange_endpoint_events(handle) {
            return;
        }
        let probed = self.peer_on(handle).is_some_and(|peer| peer.probe.is_some());
        if probed {
            self.check_probes(now);
        }
        if let Some(connection) = self.connections.get_mut(&handle.0)
            && !std::mem::replace(&mut connection.is_sendable, true)
        {
            self.sendable.push_back(handle.0);
        }
    }

    fn peer_on(&self, handle: ConnectionHandle) -> Option<&Peer> {
        match self.connections.get(&handle.0)?.phase {
            Phase::Up(peer, _) => self.peers.get(&peer),
            Phase::Opening | Phase::Over => None,
        }
    }

    /// Carries events between a connection and the endpoint. True if the connection is over and forgotten.
    fn exchange_endpoint_events(&mut self, handle: ConnectionHandle) -> bool {
        let Some(connection) = self.connections.get_mut(&handle.0) else { return true };
        let mut is_drained = false;
        while let Some(event) = connection.quic.poll_endpoint_events() {
            is_drained |= event.is_drained();
            if let Some(answer) = self.endpoint.handle_event(handle, event) {
                connection.quic.handle_event(answer);
            }
        }
        if is_drained {
            self.connections.remove(&handle.0);
            self.paused.remove(&handle.0);
            self.touched.remove(&handle.0);
            self.sendable.retain(|queued| *queued != handle.0);
        }
        is_drained
    }

    /// Gives a connection what waits for its peer.
    fn write(&mut self, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get_mut(&handle.0) else { return };
        let Phase::Up(peer, kind) = connection.phase else { return };
        let Some(peer) = self.peers.get_mut(&peer) else { return };
        for (index, lane) in kind.lanes().iter().enumerate() {
            connection.write(index, peer.queue(*lane));
        }
    }

    /// Reads what has come on a connection.
    fn read(&mut self, now: Duration, handle: ConnectionHandle) {
        for index in 0..2 {
            let Some(connection) = self.connections.get_mut(&handle.0) else { return };
            let kind = match connection.phase {
                Phase::Over => return,
                Phase::Up(_, kind) => Some(kind),
                Phase::Opening if index == 0 => None,
                // Nothing counts before the hello; the other streams wait.
                Phase::Opening => return,
            };
            // Only the control stream is read whatever waits here.
            let may_wait = index > 0 || kind == Some(LinkKind::Bulk);
            if may_wait && self.received_bytes > RECEIVED_BYTES {
                self.paused.insert(handle.0);
                continue;
            }
            match connection.read(index) {
                Ok(pieces) => {
                    for piece in pieces {
                        self.take(now, handle, index, piece);
                    }
                }
                Err(_) => self.refuse(now, handle, Refusal::Stream),
            }
        }
    }

    /// Takes in a piece of a stream.
    fn take(&mut self, now: Duration, handle: ConnectionHandle, index: usize, mut piece: Bytes) {
        let Some(connection) = self.connections.get_mut(&handle.0) else { return };
        if connection.phase == Phase::Opening {
            connection.hello.extend_from_slice(&piece);
            match Hello::decode(&connection.hello) {
                Ok(None) => return,
                Ok(Some(hello)) => {
                    piece = connection.hello.split_off(super::HELLO_BYTES).freeze();
                    self.greeted(now, handle, &hello);
                }
                Err(error) => return self.refuse(now, handle, error.into()),
            }
        }
        let Some(connection) = self.connections.get_mut(&handle.0) else { return };
        let Phase::Up(from, kind) = connection.phase else { return };
        let (Some(reader), Some(lane)) = (connection.reader(index), kind.lanes().get(index).copied()) else {
            return self.refuse(now, handle, Refusal::Stream);
        };
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let taken = match reader.handle_bytes(rest) {
                Ok(taken) => taken,
                Err(error) => return self.refuse(now, handle, error.into()),
            };
            rest = &rest[taken..];
            let Some(frame) = reader.poll_frame() else { continue };
            if lane_of(&frame).is_some_and(|wanted| wanted != lane) {
                return self.refuse(now, handle, Refusal::Stream);
            }
            let bytes = size(&frame);
            self.received_bytes += bytes;
            self.events.push_back((LinkEvent::Frame { from, lane, frame }, bytes));
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.received_bytes += u64::try_from(piece.len()).expect("a piece fits in memory");
        }
    }

    /// Closes a connection over what came on it, and says so.
    pub(super) fn refuse(&mut self, now: Duration, handle: ConnectionHandle, refusal: Refusal) {
        let Some(connection) = self.connections.get(&handle.0) else { return };
        if connection.phase == Phase::Over {
            return;
        }
        let peer = match connection.phase {
            Phase::Up(peer, _) => Some(peer),
            Phase::Opening | Phase::Over => connection.dialed.map(|(peer, _)| peer),
        };
        let address = connection.quic.remote_address();
        let reason = refusal.to_string();
        let down = DownReason::Broken(reason.clone());
        self.gone(now, handle, down);
        self.close(now, handle, refusal.code(), reason);
        self.tell(LinkEvent::Refused { peer, address, refusal });
    }

    fn lost(&mut self, now: Duration, handle: ConnectionHandle, error: &ConnectionError) {
        let Some(connection) = self.connections.get(&handle.0) else { return };
        if connection.phase == Phase::Over {
            return;
        }
        let address = connection.quic.remote_address();
        let opening = connection.phase == Phase::Opening;
        let dialed = connection.dialed.map(|(peer, _)| peer);
        let peer = match connection.phase {
            Phase::Up(peer, _) => Some(peer),
            Phase::Opening | Phase::Over => dialed,
        };
        match (error, tls_failure(error)) {
            (ConnectionError::ApplicationClosed(close), _) if CloseCode::of(close.error_code).is_refusal() => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                let code = CloseCode::of(close.error_code);
                self.tell(LinkEvent::RefusedBy { peer, address, code, reason });
            }
            (_, Some((reason, true))) => {
                self.tell(LinkEvent::RefusedBy { peer, address, code: CloseCode::Key, reason });
            }
            (_, Some((reason, false))) => {
                self.tell(LinkEvent::Refused { peer, address, refusal: Refusal::Tls(reason) });
            }
            (error, None) => {
                if let (true, Some(peer)) = (opening, dialed) {
                    let silent = matches!(error, ConnectionError::TimedOut);
                    self.tell(LinkEvent::DialFailed { peer, address, reason: error.to_string(), silent });
                }
            }
        }
        self.gone(now, handle, super::event::down_reason(error));
        if let Some(connection) = self.connections.get_mut(&handle.0) {
            connection.phase = Phase::Over;
        }
    }
}

fn outgoing(socket: Option<u32>, transmit: &quinn_proto::Transmit) -> Transmit {
    Transmit {
        socket,
        to: transmit.destination,
        from_ip: transmit.src_ip,
        ecn: transmit.ecn,
        bytes: transmit.size,
        segment_bytes: transmit.segment_size,
    }
}

/// The lane on which a frame must come. What only the replica reads may come on any.
fn lane_of(frame: &PeerFrame) -> Option<Lane> {
    Lane::of(frame.raft()?.get_msg_type())
}

/// Roughly what a frame takes in memory.
fn size(frame: &PeerFrame) -> usize {
    let content = match &frame.body {
        FrameBody::Opaque(body) => body.len(),
        FrameBody::Raft(message) => message
            .get_entries()
            .iter()
            .map(|entry| size_of_val(entry) + entry.data.len() + entry.context.len())
            .sum::<usize>(),
    };
    size_of::<LinkEvent>() + content
}
