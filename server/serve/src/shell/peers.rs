//! The home core's way to its peers: UDP sockets around the links.
//!
//! Datagrams are read and written by the home core's own task: a message of a peer goes to the member in the pass that
//! the kernel woke for it, and what the member says leaves in the pass that said it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures::channel::oneshot;
use futures::future::{Either, select};
use garboard_replica::peer::PeerMessage;
use garboard_transport::link::tls::Credentials;
use garboard_transport::link::{
    Address, Arrival, CloseCode, DownReason, EcnCodepoint, Fingerprint, LinkEvent, Links, LinksConfig, PeerInfo,
    Transmit, TripwireToken, Trust,
};
use garboard_transport::{FrameBody, encode, encode_opaque};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Type};

use super::data_dir::DataDir;
use super::founding::Standing;
use super::home::Inbox;
use super::net::{self, patiently};
use super::peer_keys::{self, PeerKey};
use super::peer_log::PeerLog;
use super::peer_port::{self, Door};
use super::peer_tls;
use super::start::{StartError, random_id};
use crate::config::{Config, PeerTls, Url};
use crate::limits::ACCEPT_BACKLOG;

/// The only keyspace, for now.
const KEYSPACE: u64 = 0;
/// Datagrams that one system call takes, each up to what the kernel may have joined of several.
const RECEIVE_BATCH: usize = 8;
const RECEIVE_BYTES: usize = 64 * 1024;
/// System calls that one pass makes to receive; what is left waits for the next.
const RECEIVES_PER_PASS: usize = 16;
/// What is asked of the kernel for each socket's buffers; it may give less.
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// Largest datagram that is probed for: networks with jumbo frames, and loopback, take it.
const MTU_MAX: u16 = 8_952;

/// How long a peer may take to answer a probe after its tripwire has tripped: at least this, and not more than that.
const PROBE_TIME_MIN: Duration = Duration::from_millis(60);
const PROBE_TIME_MAX: Duration = Duration::from_millis(100);
/// How long a tripwire that can't be set rests at first, and at most.
const TRIPWIRE_FIRST_RETRY: Duration = Duration::from_millis(50);
const TRIPWIRE_LAST_RETRY: Duration = Duration::from_secs(2);
/// How long after it has tripped it is set again, if the peer is there.
const TRIPWIRE_AGAIN: Duration = Duration::from_millis(500);
/// How often it is asked whether TCP reaches a peer that UDP does not.
const ASK_TCP_AGAIN: Duration = Duration::from_secs(30);

/// What the home core is told.
pub enum PeerEvent {
    /// A peer said something.
    Message(u64, PeerMessage),
    /// A peer can be talked to.
    Up(u64),
    /// A peer can't be talked to any more.
    Down(u64),
    /// A peer's process has ended.
    Gone(u64),
    /// This member was removed from the cluster, as a peer says.
    Removed,
}

struct PeerSocket {
    socket: garboard_executor::Socket<socket2::Socket>,
    state: UdpSocketState,
}

/// Sockets for peers, bound. They are brought to an executor by [`Peers::new`].
pub struct PeerSockets {
    /// For tripwires and HTTP.
    tcp: Vec<socket2::Socket>,
    listening: Vec<socket2::Socket>,
    /// For connections that this member dials: for IPv4 and IPv6, where the machine has it.
    dialing: [Option<socket2::Socket>; 2],
}

/// Binds the addresses for peers.
///
/// # Errors
/// Where one is not to be had.
pub fn bind(config: &Config) -> Result<PeerSockets, StartError> {
    let (mut tcp, mut listening) = (Vec::new(), Vec::new());
    for address in &config.listen_peer {
        let failed = |action| move |source| StartError::File { action, path: address.to_string(), source };
        tcp.push(patiently(|| net::bind_tcp(*address)).map_err(failed("listening for peers on TCP"))?);
        listening.push(patiently(|| bind_udp(*address)).map_err(failed("listening for peers on UDP"))?);
    }
    let any = |ip: IpAddr| bind_udp(SocketAddr::new(ip, 0)).ok();
    let dialing = [any(Ipv4Addr::UNSPECIFIED.into()), any(Ipv6Addr::UNSPECIFIED.into())];
    Ok(PeerSockets { tcp, listening, dialing })
}

/// Nothing is shared: a second server on the address gets an error instead of a part of the datagrams.
fn bind_udp(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified() || address.port() == 0)?;
    }
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Peers' addresses on their way from the resolver to the loop.
type Resolved = Rc<RefCell<Vec<(u64, LookedUp)>>>;

/// What the resolver says of a peer's URLs.
#[derive(Default)]
struct LookedUp {
    addresses: Vec<Address>,
    failures: Vec<String>,
}

/// The peers' keys, and where they are kept.
struct Pins {
    known: RefCell<BTreeMap<u64, Fingerprint>>,
    path: PathBuf,
    /// Whether a task writes them; what is added meanwhile it writes as well.
    is_saving: Cell<bool>,
}

impl Pins {
    /// Remembers a key. Losing the file costs nothing but that the key is taken at first contact once more.
    fn remember(self: &Rc<Self>, peer: u64, fingerprint: Fingerprint) {
        self.known.borrow_mut().insert(peer, fingerprint);
        if self.is_saving.replace(true) {
            return;
        }
        let pins = self.clone();
        garboard_executor::spawn(async move {
            let mut saved = 0;
            while pins.known.borrow().len() > saved {
                let (known, path) = (pins.known.borrow().clone(), pins.path.clone());
                saved = known.len();
                let outcome = garboard_executor::blocking(move || peer_keys::save_pins(&path, &known)).await;
                if let Err(error) = outcome {
                    tracing::warn!("writing {}: {error}; peers' keys are not remembered", pins.path.display());
                }
            }
            pins.is_saving.set(false);
        });
    }
}

/// The peers, as the home core's loop sees them.
pub struct Peers {
    links: Links,
    sockets: Vec<PeerSocket>,
    /// The places of the sockets that dial.
    dialing: [Option<u32>; 2],
    urls: BTreeMap<u64, Vec<Url>>,
    /// Addresses that came from the resolver.
    resolved: Resolved,
    inbox: Inbox,
    pins: Rc<Pins>,
    door: Rc<Door>,
    /// Dropped, it ends the tripwire to a peer.
    tripwires: BTreeMap<u64, oneshot::Sender<()>>,
    /// Tripwires that have tripped: the peer and its boot.
    tripped: Rc<RefCell<Vec<(u64, u64)>>>,
    /// The boot of each peer whose link is up.
    boots: BTreeMap<u64, u64>,
    /// When it was asked last whether TCP reaches a peer that UDP does not.
    asked_tcp: BTreeMap<u64, Duration>,
    /// What the home core is told next.
    events: VecDeque<PeerEvent>,
    log: PeerLog,
    is_behind: bool,
    received: Vec<u8>,
    outgoing: Vec<u8>,
    /// Datagrams in `outgoing` for which their socket had no room.
    held: Option<Transmit>,
    frame: BytesMut,
}

impl Peers {
    /// Takes bound sockets to this executor. `boot` differs at each start.
    ///
    /// # Errors
    /// Where the kernel refuses, or this member's key can't be had.
    pub fn new(
        sockets: PeerSockets,
        dir: &DataDir,
        config: &Config,
        standing: &Standing,
        epoch: Instant,
        inbox: Inbox,
    ) -> Result<Peers, StartError> {
        let key = own_key(dir)?;
        let credentials = peer_tls::credentials(&config.peer_tls, &key.own)?;
        let links = links_config(dir, config, standing, &credentials, &key, epoch)?;
        let known = match &links.trust {
            Trust::FirstContact(pins) => pins.clone(),
            Trust::Authority => BTreeMap::new(),
        };
        let pins = Pins { known: RefCell::new(known), path: dir.peer_pins_path(), is_saving: Cell::new(false) };
        let failed =
            |source| StartError::File { action: "preparing", path: "the sockets for peers".to_owned(), source };
        let tls = peer_tls::server(&config.peer_tls, &credentials)?;
        let door = Rc::new(Door::new(links.member_id, links.cluster_id, links.tripwire).with_tls(tls));
        for socket in sockets.tcp {
            // Whoever asks a member that is only about to start hears at once that it is not there.
            socket.listen(ACCEPT_BACKLOG).map_err(failed)?;
            let listener = garboard_executor::Socket::new(TcpListener::from(socket));
            garboard_executor::spawn(peer_port::accept(listener, door.clone()));
        }
        let mut taken = Vec::new();
        let mut dialing = [None, None];
        let listening = sockets.listening.into_iter().map(|socket| (socket, None));
        let dial = sockets.dialing.into_iter().enumerate();
        let all = listening.chain(dial.filter_map(|(family, socket)| Some((socket?, Some(family)))));
        for (socket, family) in all {
            let state = UdpSocketState::new(UdpSockRef::from(&socket)).map_err(failed)?;
            if let Some(family) = family {
                dialing[family] = u32::try_from(taken.len()).ok();
            }
            taken.push(PeerSocket { socket: garboard_executor::Socket::for_datagrams(socket), state });
        }
        Ok(Peers {
            links: Links::new(links),
            sockets: taken,
            dialing,
            urls: BTreeMap::new(),
            resolved: Rc::default(),
            inbox,
            pins: Rc::new(pins),
            door,
            tripwires: BTreeMap::new(),
            tripped: Rc::default(),
            boots: BTreeMap::new(),
            asked_tcp: BTreeMap::new(),
            events: VecDeque::new(),
            log: PeerLog::default(),
            is_behind: false,
            received: vec![0; RECEIVE_BATCH * RECEIVE_BYTES],
            outgoing: Vec::new(),
            held: None,
            frame: BytesMut::new(),
        })
    }

    /// The members from now on, with their names and peer URLs, those that were removed, and `/members` as JSON.
    pub fn set_members<'a>(
        &mut self,
        now: Duration,
        members: impl Iterator<Item = (u64, &'a str, Vec<Url>)>,
        removed: &[u64],
        json: String,
    ) {
        self.door.set_members(json);
        self.urls.clear();
        let mut infos = Vec::new();
        for (id, name, urls) in members {
            let server_name = urls.first().and_then(Url::host).unwrap_or("peer").to_owned();
            infos.push(PeerInfo { id, server_name });
            self.log.set_name(id, name);
            self.urls.insert(id, urls);
        }
        self.links.set_peers(now, &infos, removed);
    }

    /// Takes the datagrams that have come. Asked with the loop's waker, it wakes the loop when more come. True if
    /// something came.
    pub fn receive(&mut self, now: Duration, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        self.is_behind = false;
        for index in 0..self.sockets.len() {
            for round in 1..=RECEIVES_PER_PASS {
                self.is_behind |= round == RECEIVES_PER_PASS;
                match self.receive_some(now, index, cx) {
                    Some(count) => {
                        any = true;
                        if count < RECEIVE_BATCH {
                            // What comes from now on is told anew; asking once more has the waker set.
                            self.sockets[index].socket.drained();
                        }
                    }
                    None => break,
                }
            }
        }
        any
    }

    fn receive_some(&mut self, now: Duration, index: usize, cx: &mut Context<'_>) -> Option<usize> {
        let PeerSocket { socket, state } = &self.sockets[index];
        let mut metas = [RecvMeta::default(); RECEIVE_BATCH];
        let received = {
            let mut parts = self.received.chunks_mut(RECEIVE_BYTES);
            let mut slices: [IoSliceMut<'_>; RECEIVE_BATCH] =
                std::array::from_fn(|_| IoSliceMut::new(parts.next().expect("the buffer has a part for each")));
            let mut reading =
                pin!(socket.reading(|socket| state.recv(UdpSockRef::from(socket), &mut slices, &mut metas)));
            reading.as_mut().poll(cx)
        };
        let count = match received {
            Poll::Pending => return None,
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(error)) => {
                tracing::debug!("receiving from peers: {error}");
                return None;
            }
        };
        let socket = u32::try_from(index).expect("there are few sockets");
        for (meta, part) in metas[..count].iter().zip(self.received.chunks(RECEIVE_BYTES)) {
            let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
            let arrival = Arrival { socket, from: meta.addr, local_ip: meta.dst_ip, ecn };
            for datagram in part[..meta.len].chunks(meta.stride.max(1)) {
                self.links.handle_datagram(now, arrival, BytesMut::from(datagram));
            }
        }
        Some(count)
    }

    /// Whether more may have come than the last call took. The loop has to let its core's other tasks run before it goes
    /// on: nothing that the kernel has done is seen meanwhile.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Does what is due.
    pub fn handle_due(&mut self, now: Duration) {
        for (peer, LookedUp { addresses, failures }) in self.resolved.take() {
            for failure in failures {
                self.log.unresolved(now, peer, &failure);
            }
            self.links.handle_addresses(now, peer, addresses);
        }
        for (peer, boot) in self.tripped.take() {
            // Somebody in between may have ended the connection: the peer is asked itself.
            if self.boots.get(&peer) == Some(&boot) {
                let patience = (4 * self.links.stats(peer).rtt).clamp(PROBE_TIME_MIN, PROBE_TIME_MAX);
                self.links.probe(now, peer, patience);
            }
        }
        if self.links.poll_timeout().is_some_and(|due| due <= now) {
            self.links.handle_timeout(now);
        }
    }

    /// When [`Peers::handle_due`] wants to be called.
    pub fn poll_timeout(&mut self) -> Option<Duration> {
        self.links.poll_timeout()
    }

    /// The next thing for the member.
    pub fn poll_event(&mut self, now: Duration) -> Option<PeerEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let event = self.links.poll_event()?;
            self.log.note(now, &event);
            match event {
                LinkEvent::Frame { from, frame, .. } if frame.keyspace == KEYSPACE => match frame.body {
                    FrameBody::Raft(message) => return Some(PeerEvent::Message(from, PeerMessage::Raft(message))),
                    FrameBody::Opaque(body) => match PeerMessage::decode(&body) {
                        Ok(message) => return Some(PeerEvent::Message(from, message)),
                        Err(error) => self.log.unreadable(now, from, &error),
                    },
                },
                LinkEvent::Up { peer, boot, tripwire, .. } => self.up(peer, boot, tripwire),
                LinkEvent::Down { peer, reason } => self.down(now, peer, &reason),
                LinkEvent::RefusedBy { code: CloseCode::Removed, .. } => return Some(PeerEvent::Removed),
                LinkEvent::ProbeSilent { peer } => return Some(PeerEvent::Gone(peer)),
                LinkEvent::DialFailed { peer, address, silent: true, .. } => {
                    self.ask_over_tcp(now, peer, Some(address))
                }
                LinkEvent::WantsAddress { peer } => self.resolve(peer),
                LinkEvent::Pinned { peer, fingerprint } => self.pins.remember(peer, fingerprint),
                _ => {}
            }
        }
    }

    fn up(&mut self, peer: u64, boot: u64, token: TripwireToken) {
        self.boots.insert(peer, boot);
        self.asked_tcp.remove(&peer);
        self.door.set_token(peer, token);
        self.events.push_back(PeerEvent::Up(peer));
        let (cancel, cancelled) = oneshot::channel();
        self.tripwires.insert(peer, cancel);
        let urls = self.urls.get(&peer).cloned().unwrap_or_default();
        let (door, tripped, inbox) = (self.door.clone(), self.tripped.clone(), self.inbox.clone());
        let watch = async move {
            let mut may_be_gone = true;
            loop {
                watch_process(peer, &urls, &door, may_be_gone).await;
                may_be_gone = false;
                tripped.borrow_mut().push((peer, boot));
                inbox.ring();
                garboard_executor::sleep(TRIPWIRE_AGAIN).await;
            }
        };
        garboard_executor::spawn(async move {
            match select(pin!(watch), cancelled).await {
                Either::Left((never, _)) => never,
                Either::Right(_) => {}
            }
        });
    }

    fn down(&mut self, now: Duration, peer: u64, reason: &DownReason) {
        self.boots.remove(&peer);
        self.tripwires.remove(&peer);
        if reason.process_ended() {
            self.events.push_back(PeerEvent::Gone(peer));
        }
        if *reason == DownReason::Silent {
            self.ask_over_tcp(now, peer, None);
        }
        self.events.push_back(PeerEvent::Down(peer));
    }

    /// Finds out whether a peer that UDP does not reach is reached by TCP, and says so: a firewall is the cause then.
    fn ask_over_tcp(&mut self, now: Duration, peer: u64, address: Option<SocketAddr>) {
        if self.asked_tcp.get(&peer).is_some_and(|asked| *asked + ASK_TCP_AGAIN > now) {
            return;
        }
        self.asked_tcp.insert(peer, now);
        let urls = self.urls.get(&peer).cloned().unwrap_or_default();
        garboard_executor::spawn(async move {
            let addresses = match address {
                Some(address) => vec![address],
                None => look_up(urls).await.addresses.into_iter().map(|found| found.address).collect(),
            };
            for address in addresses {
                if peer_port::answers_over_tcp(address).await {
                    tracing::error!(
                        "UDP does not get through to peer {peer:x} at {address}, but TCP does: let UDP through to port {} \
                         there and back, members talk over QUIC",
                        address.port()
                    );
                }
            }
        });
    }

    /// Looks a peer's names up, on a thread that may block.
    fn resolve(&mut self, peer: u64) {
        let urls = self.urls.get(&peer).cloned().unwrap_or_default();
        let (resolved, inbox) = (self.resolved.clone(), self.inbox.clone());
        garboard_executor::spawn(async move {
            let looked_up = look_up(urls).await;
            resolved.borrow_mut().push((peer, looked_up));
            inbox.ring();
        });
    }

    /// Says something to a peer. What there is no room or no link for is lost, as a network would lose it: false then.
    pub fn send(&mut self, now: Duration, to: u64, message: &PeerMessage) -> bool {
        let Some(lane) = message.lane() else { return true };
        let encoded = match message {
            PeerMessage::Raft(message) => encode(KEYSPACE, message, &mut self.frame),
            other => {
                let body = other.encode().expect("everything but Raft's messages has a body of its own");
                encode_opaque(KEYSPACE, &body, &mut self.frame)
            }
        };
        match encoded {
            Ok(()) => {
                let frame = self.frame.split().freeze();
                self.links.send(now, to, lane, frame).is_ok()
            }
            Err(error) => {
                tracing::warn!("a message to member {to:016x} can't be sent: {error}");
                false
            }
        }
    }

    /// Sends what is to be sent, as far as the sockets have room. Asked with the loop's waker, it wakes the loop when
    /// they have room again.
    pub fn transmit(&mut self, now: Duration, cx: &mut Context<'_>) {
        loop {
            let transmit = match self.held.take() {
                Some(held) => held,
                None => {
                    self.outgoing.clear();
                    let Some(transmit) = self.links.poll_transmit(now, &mut self.outgoing) else { return };
                    transmit
                }
            };
            if !self.hand_over(&transmit, cx) {
                self.held = Some(transmit);
                return;
            }
        }
    }

    /// Whether something waits for room in a socket.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    fn hand_over(&mut self, transmit: &Transmit, cx: &mut Context<'_>) -> bool {
        let family = usize::from(transmit.to.is_ipv6());
        let Some(PeerSocket { socket, state }) =
            transmit.socket.or(self.dialing[family]).and_then(|index| self.sockets.get(usize::try_from(index).ok()?))
        else {
            return true;
        };
        let segment = transmit.segment_bytes.unwrap_or(transmit.bytes).max(1);
        let step = segment * state.max_gso_segments().max(1);
        // A kernel that does not cut datagrams itself gets them one by one; those that it has are not sent again.
        for contents in self.outgoing[..transmit.bytes].chunks(step) {
            let piece = quinn_udp::Transmit {
                destination: transmit.to,
                ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
                contents,
                segment_size: (contents.len() > segment).then_some(segment),
                src_ip: transmit.from_ip,
            };
            let mut writing = pin!(socket.writing(|socket| match state.try_send(UdpSockRef::from(socket), &piece) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
                // An unreachable network or a probe that is too large is as good as a lost datagram.
                _ => Ok(()),
            }));
            if writing.as_mut().poll(cx).is_pending() {
                return false;
            }
        }
        true
    }

    /// Tells the peers that this member stops.
    pub fn stop(&mut self, now: Duration) {
        self.links.stop(now);
        self.transmit(now, &mut Context::from_waker(Waker::noop()));
    }
}

/// Returns when a tripwire that had been set to a peer has tripped; sets it as often as it takes. `may_be_gone`: nobody at
/// the peer's port trips it as well, for the process may have ended since it said hello.
async fn watch_process(peer: u64, urls: &[Url], door: &Door, may_be_gone: bool) {
    let mut rest = TRIPWIRE_FIRST_RETRY;
    loop {
        for Address { address, .. } in look_up(urls.to_vec()).await.addresses {
            match peer_port::set_tripwire(address, door, peer).await {
                Ok(tripwire) => return tripwire.tripped().await,
                Err(error) if may_be_gone && error.kind() == io::ErrorKind::ConnectionRefused => return,
                Err(error) => tracing::debug!("no tripwire to peer {peer:x} at {address}: {error}"),
            }
        }
        garboard_executor::sleep(rest).await;
        rest = (2 * rest).min(TRIPWIRE_LAST_RETRY);
    }
}

/// Looks names up on a thread that may block.
async fn look_up(urls: Vec<Url>) -> LookedUp {
    garboard_executor::blocking(move || resolve(&urls)).await
}

fn resolve(urls: &[Url]) -> LookedUp {
    let mut found = LookedUp::default();
    for url in urls {
        let Some((host, port)) = url.host_and_port() else { continue };
        match std::net::ToSocketAddrs::to_socket_addrs(&(host, port)) {
            Ok(addresses) => {
                let addresses = addresses.map(|address| Address { address, server_name: host.to_owned() });
                found.addresses.extend(addresses);
            }
            Err(error) => found.failures.push(format!("{url} can't be resolved: {error}")),
        }
    }
    found
}

/// This member's own key; made if there is none.
///
/// # Errors
/// Where it can't be had.
pub fn own_key(dir: &DataDir) -> Result<PeerKey, StartError> {
    let made = PeerKey::load_or_make(&dir.peer_key_path(), random_32()?);
    made.map_err(|error| StartError::Setting(super::edge::with_sources(&error)))
}

fn random_32() -> Result<[u8; 32], StartError> {
    let mut whole = [0; 32];
    for half in whole.chunks_mut(16) {
        half.copy_from_slice(&random_id()?.to_le_bytes());
    }
    Ok(whole)
}

fn links_config(
    dir: &DataDir,
    config: &Config,
    standing: &Standing,
    credentials: &Credentials,
    key: &PeerKey,
    epoch: Instant,
) -> Result<LinksConfig, StartError> {
    let setting = |error: &dyn std::error::Error| StartError::Setting(super::edge::with_sources(error));
    let trust = match &config.peer_tls {
        PeerTls::Files { authorities: Some(_), .. } => Trust::Authority,
        _ => Trust::FirstContact(peer_keys::load_pins(&dir.peer_pins_path()).map_err(|error| setting(&error))?),
    };
    let security = credentials.links(&key.reset_secret).map_err(|error| setting(&error))?;
    let random = || random_id().map(u128::to_le_bytes);
    let boot = random()?.first_chunk().copied().map(u64::from_le_bytes).expect("sixteen bytes hold eight");
    let (member_id, cluster_id) = (standing.member_id, standing.cluster_id);
    Ok(LinksConfig {
        boot,
        seed: random_32()?,
        tripwire: random()?,
        trust,
        idle_timeout: (2 * config.election_timeout).clamp(Duration::from_secs(2), Duration::from_secs(4)),
        keep_alive: config.heartbeat_interval.max(Duration::from_millis(100)) * 4,
        mtu_max: Some(MTU_MAX),
        ..LinksConfig::new(member_id, cluster_id, epoch, security)
    })
}
