//! The edge: everything that touches files, sockets, clocks, threads and signals.
//!
//! [`run`] is a server's life: check the machine, lock the data directory, start the home core, which opens the member,
//! then the other cores, then listen, and stop in order when a signal says so.

mod bus_error;
pub mod cores;
mod corked;
pub mod data_dir;
mod edge;
mod files;
mod founding;
mod home;
mod homes;
mod index_file;
mod interrupts;
mod log_files;
mod log_reader;
mod memory;
mod mesh;
mod net;
mod peer_client;
mod peer_keys;
mod peer_log;
mod peer_port;
mod peer_tls;
mod peers;
mod probe;
mod repair;
mod salvage;
mod scrub;
mod signals;
mod start;
mod sync_choice;
mod timed_stream;

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use futures::channel::mpsc::{Receiver, Sender};
use futures::{SinkExt, StreamExt};
use garboard_replica::request::KeyspaceId;
use garboard_replica::watch::limits::HUB_RECENT_BYTES;
use garboard_storage::Reader;

use self::data_dir::DataDir;
use self::edge::CoreEdge;
pub use self::edge::with_sources;
use self::founding::Standing;
use self::home::{Home, Inbox};
use self::mesh::{Answers, Lane, Outgoing, ToCore, ToHome};
use self::net::{Accepted, ConnectionConfig, CoreLoad, Listener};
use self::peers::{PeerSockets, Peers};
use self::repair::RepairFiles;
pub use self::salvage::{Salvage, salvage};
pub use self::start::StartError;
use crate::config::{Config, GARBOARD_VERSION, ListenAddress};
use crate::core::{Core, Edge, Identity, RequestLimits, Shared, SharedMembers};
use crate::limits::{
    ANSWER_BYTES_PER_CORE, BUDGET_BYTES_MIN, BUDGET_SHARE_OF_MEMORY, PENDING_REQUESTS_MAX, REQUEST_BYTES_PER_CORE,
    STREAMS_PER_CONNECTION_MAX, TICK,
};
use crate::pace::HomeTraffic;
use crate::stages::ReplyTimes;

/// Stack of a core's thread. What is optimised needs a small part of it; what is not moves whole members over it.
const CORE_STACK_BYTES: usize = 16 << 20;

/// How often the home core looks whether the server is to stop.
const STOP_LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Serves until a signal asks to stop.
///
/// # Errors
/// What keeps the server from starting; nothing that was acknowledged is touched then.
pub fn run(config: Config) -> Result<(), StartError> {
    probe::io_uring_available().map_err(StartError::Machine)?;
    let dir = DataDir::lock(&config.data_dir, config.wal_dir.as_deref(), config.strict_permissions)?;
    if let Some(mode) = dir.open_to_others {
        tracing::warn!(
            "check file permission: {} has mode {mode:04o}, others can read it; the recommended mode is 0700",
            config.data_dir.display()
        );
    }
    let listeners = bind_all(&config)?;
    let peers = peers::bind(&config)?;
    let standing = founding::resolve(&dir, &config)?;
    let mut cpus = cores::usable(config.cores.map(|cores| usize::from(cores.get())));
    // While the home core waits for its write, nothing of ours is in the way of the interrupt that ends it.
    let home = interrupts::processor(dir.wal_path());
    cpus.sort_by_key(|cpu| Some(*cpu) != home);
    let home = homes::claim(&cpus);
    cpus.sort_by_key(|cpu| *cpu != home.processor);
    tracing::info!(version = GARBOARD_VERSION, "starting on processors {cpus:?}, the first is the keyspace's home");

    raise_descriptor_limit();
    let shared = Arc::new(shared(&config, &standing, memory::usable_bytes().unwrap_or(u64::MAX), cpus.len()));
    let stop = shared.clone();
    let server = Server {
        config,
        dir,
        standing,
        shared,
        loads: Arc::new(cpus.iter().map(|_| CoreLoad::default()).collect()),
        started: Instant::now(),
    };
    let (outcome, finished) = mpsc::channel();
    std::thread::Builder::new()
        .name("start".to_owned())
        .spawn(move || {
            let _ = outcome.send(server.run(&cpus, listeners, peers));
        })
        .map_err(|error| StartError::Machine(format!("starting a thread: {error}")))?;
    signals::wait_for(&stop, &finished)
}

/// Lets the process have as many descriptors as it may: each connection is one, and the usual soft limit is 1,024.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays at {:?}: {error}", limit.current);
    }
}

/// What a core gets of a budget: its default, or its part of the budget's share of the memory where that is less.
fn budget_per_core(default: usize, memory_bytes: u64, cores: usize) -> usize {
    let share = usize::try_from(memory_bytes / BUDGET_SHARE_OF_MEMORY).unwrap_or(usize::MAX) / cores;
    share.clamp(BUDGET_BYTES_MIN, default)
}

fn shared(config: &Config, standing: &Standing, memory_bytes: u64, cores: usize) -> Shared {
    Shared {
        identity: Identity { cluster_id: standing.cluster_id, member_id: standing.member_id },
        limits: RequestLimits {
            max_request_bytes: config.max_request_bytes,
            max_txn_ops: config.max_txn_ops,
            request_timeout: config.request_timeout(),
            max_pending_requests: PENDING_REQUESTS_MAX,
            request_bytes_per_core: budget_per_core(REQUEST_BYTES_PER_CORE, memory_bytes, cores),
            answer_bytes_per_core: budget_per_core(ANSWER_BYTES_PER_CORE, memory_bytes, cores),
            watch_bytes_per_core: budget_per_core(HUB_RECENT_BYTES, memory_bytes, cores),
        },
        raft_term: AtomicU64::new(0),
        leader: AtomicU64::new(0),
        leaderless: AtomicBool::new(false),
        traffic: HomeTraffic::default(),
        members: SharedMembers::default(),
        stopping: AtomicBool::new(false),
        refusing: AtomicBool::new(false),
        replies: (0..cores).map(|_| ReplyTimes::default()).collect(),
    }
}

fn connection_config(config: &Config, started: Instant) -> ConnectionConfig {
    ConnectionConfig {
        streams_max: config.max_concurrent_streams.min(STREAMS_PER_CONNECTION_MAX),
        keepalive_interval: config.keepalive_interval,
        keepalive_timeout: config.keepalive_timeout,
        watch_progress_interval: config.watch_progress_interval,
        started,
    }
}

fn bind_all(config: &Config) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    for address in &config.listen_client {
        listeners.push(net::bind(address).map_err(|source| listening_failed(address, source))?);
    }
    Ok(listeners)
}

fn listening_failed(address: &ListenAddress, source: io::Error) -> StartError {
    StartError::File { action: "listening on", path: address.to_string(), source }
}

/// What all cores of a server are started with.
struct Server {
    config: Config,
    dir: DataDir,
    standing: Standing,
    shared: Arc<Shared>,
    loads: Arc<Vec<CoreLoad>>,
    started: Instant,
}

impl Server {
    /// Starts the cores, and returns once the home core has stopped.
    fn run(self, cpus: &[usize], listeners: Vec<Listener>, peers: PeerSockets) -> Result<(), StartError> {
        let lanes: Vec<Lane> = cpus.iter().skip(1).map(|_| mesh::lane()).collect();
        let (home_ends, core_ends): (Vec<_>, Vec<_>) = lanes.into_iter().map(|lane| (lane.home, lane.core)).unzip();
        let (opened, reader) = mpsc::channel();
        let (shared, loads, started) = (self.shared.clone(), self.loads.clone(), self.started);
        let connections = connection_config(&self.config, started);
        // The future holds the whole member: it is moved about on the heap.
        let home = on_core(cpus[0], true, move || Box::pin(home_core(self, home_ends, listeners, peers, opened)))?;
        if let Ok(reader) = reader.recv() {
            for (position, (cpu, ends)) in cpus.iter().skip(1).zip(core_ends).enumerate() {
                let (shared, loads, reader) = (shared.clone(), loads.clone(), reader.clone());
                // It serves until the process ends.
                drop(on_core(*cpu, false, move || {
                    other_core(position + 1, shared, loads, started, reader, connections, ends)
                })?);
            }
        }
        let ended = home.join().map_err(|_| StartError::Machine("the home core failed".to_owned()))?;
        ended.map_err(|error| StartError::Machine(format!("the home core's executor: {error}")))?
    }
}

/// Runs a core's future on a thread of its own, bound to the core's processor. The home core's asks for short turns:
/// every write waits for it.
fn on_core<F>(
    processor: usize,
    short_turns: bool,
    main: impl FnOnce() -> F + Send + 'static,
) -> Result<CoreThread<F::Output>, StartError>
where
    F: Future + 'static,
    F::Output: Send + 'static,
{
    let options = garboard_executor::Options { processor: Some(processor), short_turns };
    std::thread::Builder::new()
        .name(format!("core-{processor}"))
        .stack_size(CORE_STACK_BYTES)
        .spawn(move || garboard_executor::run(options, main))
        .map_err(|error| StartError::Machine(format!("starting a thread for processor {processor}: {error}")))
}

type CoreThread<T> = std::thread::JoinHandle<io::Result<T>>;

/// The home core's ends of its queues with one other core, and that one's.
type HomeEnds = (Sender<ToCore>, Receiver<ToHome>);
type CoreEnds = (Sender<ToHome>, Receiver<ToCore>);

async fn home_core(
    server: Server,
    ends: Vec<HomeEnds>,
    listeners: Vec<Listener>,
    peers: PeerSockets,
    opened: mpsc::Sender<Reader>,
) -> Result<(), StartError> {
    let Server { config, dir, standing, shared, loads, started } = server;
    let edge = Rc::new(CoreEdge::new(started));
    let connections = connection_config(&config, started);
    let member = start::open_member(&dir, &config, &standing, edge.now()).await?;
    let reader = member.member.reader();
    let core = Core::new(0, shared.clone(), edge.clone(), reader.clone());
    // The others start only now: until the member is open there is nothing to serve.
    let _ = opened.send(reader);
    drop(opened);

    let inbox = Inbox::default();
    let peers = Peers::new(peers, &dir, &config, &standing, started, inbox.clone())?;
    let mut outgoing = vec![Outgoing::default()];
    for (to_core, mut from_core) in ends {
        let queue = Outgoing::default();
        outgoing.push(queue.clone());
        let inbox = inbox.clone();
        garboard_executor::spawn(queue.run(to_core));
        garboard_executor::spawn(async move {
            while let Some(ToHome::Requests { batch, since }) = from_core.next().await {
                inbox.requests(batch, since);
            }
        });
    }
    core.watches().set_progress_interval(config.watch_progress_interval);
    core_tasks(&core, &loads, 0);
    garboard_executor::spawn(net::measure_waiting(core.clone()));
    garboard_executor::spawn(wake_to_stop(shared.clone(), inbox.clone()));
    let home = Home {
        member: member.member,
        core: core.clone(),
        shared,
        log_files: member.log_files,
        index_file: member.index_file,
        inbox,
        peers,
        loads: loads.clone(),
        outgoing: outgoing.clone(),
        edge,
        is_leaving: false,
        repair: RepairFiles::of(&dir),
    };
    let keep = || start::mark_ready(&dir, &standing);
    home.run(keep, || {
        for (listener, address) in listeners.into_iter().zip(&config.listen_client) {
            let listener = net::listen(listener).map_err(|source| listening_failed(address, source))?;
            let place = placement(core.clone(), loads.clone(), outgoing.clone(), connections);
            garboard_executor::spawn(net::accept(listener, loads.clone(), place));
        }
        for address in &config.listen_client {
            tracing::info!(address = %address, "ready to serve client requests");
        }
        Ok(())
    })
    .await
}

/// Brings connections to the cores chosen for them.
fn placement(
    core: Core,
    loads: Arc<Vec<CoreLoad>>,
    outgoing: Vec<Outgoing>,
    connections: ConnectionConfig,
) -> impl Fn(usize, Accepted) {
    move |index, connection| {
        if core.is_stopping() {
            return;
        }
        match (net::admit(&loads[index]), index) {
            (None, _) => drop(connection),
            (Some(_), 0) => {
                garboard_executor::spawn(net::serve(core.clone(), connection, loads.clone(), 0, connections));
            }
            (Some(only), other) => {
                if only {
                    outgoing[other].push(ToCore::Restore(core.reader(KeyspaceId(0)).revision()));
                }
                outgoing[other].push(ToCore::Connection(connection));
            }
        }
    }
}

async fn other_core(
    index: usize,
    shared: Arc<Shared>,
    loads: Arc<Vec<CoreLoad>>,
    started: Instant,
    reader: Reader,
    connections: ConnectionConfig,
    (mut to_home, mut from_home): CoreEnds,
) {
    let edge = Rc::new(CoreEdge::new(started));
    let number = u16::try_from(index).unwrap_or(u16::MAX);
    let core = Core::new(number, shared, edge, reader);
    core.watches().set_progress_interval(connections.watch_progress_interval);
    core_tasks(&core, &loads, index);
    let sender = core.clone();
    garboard_executor::spawn(async move {
        loop {
            let batch = sender.take_outbox().await;
            let since = sender.take_outbox_since();
            if to_home.send(ToHome::Requests { batch, since }).await.is_err() {
                return;
            }
        }
    });
    while let Some(message) = from_home.next().await {
        match message {
            ToCore::Answers(Answers { answers, published }) => {
                for (ticket, result) in answers {
                    core.deliver(ticket, result, published);
                }
            }
            ToCore::Events(events, _share) => core.handle_events(&events),
            ToCore::Restore(revision) => core.watches().restore(revision),
            ToCore::Connection(connection) => {
                garboard_executor::spawn(net::serve(core.clone(), connection, loads.clone(), index, connections));
            }
        }
    }
}

/// Wakes the home core's loop once the server is to stop.
async fn wake_to_stop(shared: Arc<Shared>, inbox: Inbox) {
    loop {
        garboard_executor::sleep(STOP_LOOK_INTERVAL).await;
        if shared.stopping.load(Ordering::Relaxed) {
            inbox.ring();
        }
    }
}

/// What runs on every core beside its connections.
fn core_tasks(core: &Core, loads: &Arc<Vec<CoreLoad>>, index: usize) {
    garboard_executor::spawn(net::measure_load(loads.clone(), index));
    let ticking = core.clone();
    garboard_executor::spawn(async move {
        loop {
            ticking.sleep(TICK).await;
            ticking.tick();
        }
    });
    let core = core.clone();
    garboard_executor::spawn(async move {
        loop {
            let due = poll_fn(|cx| core.watches().poll_held(cx)).await;
            core.sleep(due.saturating_sub(core.now())).await;
            core.watches().wake_held(core.now());
        }
    });
}
