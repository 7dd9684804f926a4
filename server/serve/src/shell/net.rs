//! Client sockets: listening, placing connections on cores by load, and serving HTTP/2 on them.

use std::cell::Cell;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::future::{Either, FusedFuture, FutureExt, select};
use garboard_executor::sleep;
use socket2::{Domain, Protocol, Type};

use super::corked::Corked;
use super::edge::{CoreExecutor, CoreTimer};
use super::timed_stream::TimedStream;
use crate::api;
use crate::config::ListenAddress;
use crate::connection::Guarded;
use crate::core::Core;
use crate::limits::{
    ACCEPT_BACKLOG, CONNECTION_WINDOW_BYTES, CONNECTIONS_PER_CORE_MAX, FRAME_BYTES_MAX, HEADER_LIST_BYTES_MAX,
    HEADER_TABLE_BYTES, RESETS_FOR_ERRORS_MAX, RESETS_UNSEEN_MAX, STREAM_SEND_BUFFER_BYTES, STREAM_WINDOW_BYTES,
};

/// How often an address in use is tried again, and after which time.
const BIND_TRIES: u32 = 100;
const BIND_RETRY: Duration = Duration::from_millis(20);
/// The home core serves new connections itself while it is busy less than this, in thousandths.
const HOME_BUSY_PERMILLE: u32 = 700;

/// A connection on its way to the core that will serve it.
pub enum Accepted {
    /// Over IP.
    Tcp(TcpStream),
    /// Over a socket in the file system.
    Unix(UnixStream),
}

/// A socket that clients connect to, bound.
pub enum Listener {
    /// Over IP.
    Tcp(TcpListener),
    /// In the file system; bound when it is first listened on.
    Unix(PathBuf),
}

/// A socket that takes clients, on the executor that accepts them.
pub enum Listening {
    /// Over IP.
    Tcp(garboard_executor::Socket<TcpListener>),
    /// In the file system.
    Unix(garboard_executor::Socket<UnixListener>),
}

/// How busy a core is and how many connections it has; any core may read it.
#[derive(Debug, Default)]
pub struct CoreLoad {
    /// Share of the last interval the core's thread ran, in thousandths.
    pub busy_permille: AtomicU32,
    /// Connections it serves.
    pub connections: AtomicU32,
}

/// Binds a listening socket. The address is this server's alone: a second server on it gets an error instead of a share
/// of its connections.
///
/// # Errors
/// What the socket layer answers.
pub fn bind(address: &ListenAddress) -> io::Result<Listener> {
    match address {
        ListenAddress::Tcp(address) => patiently(|| listen_tcp(*address)).map(Listener::Tcp),
        ListenAddress::Unix(path) => {
            patiently(|| clear_socket(path))?;
            Ok(Listener::Unix(path.clone()))
        }
    }
}

/// Tries, and waits a little where the address is in use: the kernel takes a killed process's ring down in the
/// background, and only then are the sockets that it waited on free.
pub fn patiently<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..BIND_TRIES {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => std::thread::sleep(BIND_RETRY),
            outcome => return outcome,
        }
    }
    attempt()
}

/// Removes a socket file that nobody listens on any more: it would be in the way of the next bind. What is no socket
/// stays.
fn clear_socket(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bind_tcp(address)?;
    socket.listen(ACCEPT_BACKLOG)?;
    Ok(socket.into())
}

/// Binds an address, which is this server's alone.
///
/// # Errors
/// What the socket layer answers.
pub fn bind_tcp(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // A wildcard IPv6 address takes IPv4 clients too, as etcd's does.
        let _ = socket.set_only_v6(false);
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Takes a bound socket to this executor; from here on clients that connect wait to be accepted.
///
/// # Errors
/// Where a socket can't be made in the file system.
pub fn listen(listener: Listener) -> io::Result<Listening> {
    match listener {
        Listener::Tcp(listener) => Ok(Listening::Tcp(garboard_executor::Socket::new(listener))),
        Listener::Unix(path) => {
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            Ok(Listening::Unix(garboard_executor::Socket::new(listener)))
        }
    }
}

/// The core a new connection goes to: the home core (number 0) while little is going on there, else the least busy.
pub fn place(loads: &[CoreLoad]) -> usize {
    let busy = |load: &CoreLoad| load.busy_permille.load(Ordering::Relaxed);
    let connections = |load: &CoreLoad| load.connections.load(Ordering::Relaxed);
    if busy(&loads[0]) < HOME_BUSY_PERMILLE && connections(&loads[0]) < CONNECTIONS_PER_CORE_MAX {
        return 0;
    }
    (0..loads.len()).min_by_key(|core| (busy(&loads[*core]) / 50, connections(&loads[*core]))).unwrap_or(0)
}

/// Accepts connections for as long as the server lives, and hands each to `give` with the core chosen for it.
pub async fn accept(listener: Listening, loads: Arc<Vec<CoreLoad>>, give: impl Fn(usize, Accepted)) {
    loop {
        let accepted = match &listener {
            Listening::Tcp(listener) => {
                listener.reading(TcpListener::accept).await.map(|(stream, _)| Accepted::Tcp(stream))
            }
            Listening::Unix(listener) => {
                listener.reading(UnixListener::accept).await.map(|(stream, _)| Accepted::Unix(stream))
            }
        };
        hand_over(accepted, &loads, &give).await;
    }
}

async fn hand_over(accepted: io::Result<Accepted>, loads: &[CoreLoad], give: &impl Fn(usize, Accepted)) {
    match accepted {
        Ok(connection) => give(place(loads), connection),
        Err(error) => {
            // Out of descriptors, most likely: those in use go on, new ones wait.
            tracing::warn!("accepting a connection: {error}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Counts a connection in before it goes to its core; says whether it is the core's only one. Nothing when the core has
/// as many as it serves.
pub fn admit(load: &CoreLoad) -> Option<bool> {
    let others = load.connections.fetch_add(1, Ordering::Relaxed);
    if others < CONNECTIONS_PER_CORE_MAX {
        return Some(others == 0);
    }
    load.connections.fetch_sub(1, Ordering::Relaxed);
    tracing::warn!("refused a connection: each core serves {CONNECTIONS_PER_CORE_MAX} already");
    None
}

/// What a server's configuration says of its connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionConfig {
    /// Most calls under way.
    pub streams_max: u32,
    /// How long a connection may be silent before its client is asked whether it is there.
    pub keepalive_interval: Duration,
    /// How long the client may take to answer that.
    pub keepalive_timeout: Duration,
    /// How often a quiet watch is told how far it is.
    pub watch_progress_interval: Duration,
    /// What the cores' times count from.
    pub started: Instant,
}

/// Serves one admitted connection until it ends.
pub async fn serve(core: Core, connection: Accepted, load: Arc<Vec<CoreLoad>>, index: usize, config: ConnectionConfig) {
    let load = &load[index];
    let ended = match connection {
        Accepted::Tcp(stream) => {
            let _ = stream.set_nodelay(true);
            match stream.set_nonblocking(true) {
                Ok(()) => serve_stream(core, stream, config).await,
                Err(error) => Err(error.into()),
            }
        }
        Accepted::Unix(stream) => match stream.set_nonblocking(true) {
            Ok(()) => serve_stream(core, stream, config).await,
            Err(error) => Err(error.into()),
        },
    };
    if let Err(error) = ended {
        tracing::debug!("connection ended: {error}");
    }
    load.connections.fetch_sub(1, Ordering::Relaxed);
}

async fn serve_stream<S>(core: Core, socket: S, config: ConnectionConfig) -> Result<(), Box<dyn Error>>
where
    S: AsFd + Unpin + 'static,
{
    let guard = core.watch_connection();
    let connection = guard.connection().clone();
    let timer = CoreTimer::new(core.wheel().clone(), config.started);
    let routes = api::routes(core.clone(), connection.clone());
    let stream = Guarded::new(garboard_executor::Socket::new(socket), connection.clone());
    let stream = Corked::new(TimedStream::new(stream, core, routes.unsent()));
    let service = hyper_util::service::TowerToHyperService::new(routes);
    let served = hyper::server::conn::http2::Builder::new(CoreExecutor)
        .timer(timer)
        .keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout)
        .max_concurrent_streams(config.streams_max)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(STREAM_SEND_BUFFER_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .header_table_size(HEADER_TABLE_BYTES)
        .max_pending_accept_reset_streams(RESETS_UNSEEN_MAX)
        .max_local_error_reset_streams(RESETS_FOR_ERRORS_MAX)
        .serve_connection(stream.clone(), service);
    let mut served = pin!(served);
    let mut closing = pin!(connection.closing().fuse());
    let served = poll_fn(|cx| {
        if !closing.is_terminated() && closing.as_mut().poll(cx).is_ready() {
            served.as_mut().graceful_shutdown();
        }
        served.as_mut().poll(cx)
    });
    let served = pin!(stream.drive(served));
    match select(served, pin!(connection.ended())).await {
        Either::Left((outcome, _)) => Ok(outcome?),
        Either::Right((reason, _)) => {
            tracing::info!("closed a connection: {reason}");
            Ok(())
        }
    }
}

/// Keeps a core's load figure, for as long as the server lives.
pub async fn measure_load(loads: Arc<Vec<CoreLoad>>, index: usize) {
    const INTERVAL: Duration = Duration::from_millis(100);
    let last = Rc::new(Cell::new(thread_time()));
    loop {
        sleep(INTERVAL).await;
        let now = thread_time();
        let ran = now.saturating_sub(last.replace(now));
        let permille = u32::try_from(ran.as_micros() * 1000 / INTERVAL.as_micros()).unwrap_or(1000).min(1000);
        let figure = &loads[index].busy_permille;
        // Half of the old figure stays, so that one short burst moves no connection.
        figure.store((figure.load(Ordering::Relaxed) + permille) / 2, Ordering::Relaxed);
    }
}

/// Keeps the figure of how long the home core's thread waits for its processor, for as long as the server lives. Where
/// the kernel does not count that, no machine is crowded.
pub async fn measure_waiting(core: Core) {
    const INTERVAL: Duration = Duration::from_millis(100);
    let mut last = thread_waiting();
    while let Some(before) = last {
        sleep(INTERVAL).await;
        last = thread_waiting();
        let waited = last.unwrap_or(before).saturating_sub(before);
        core.note_waiting(waited, INTERVAL);
    }
}

/// How long this thread was ready to run and did not: the second figure of its `schedstat`, in nanoseconds.
fn thread_waiting() -> Option<Duration> {
    let figures = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    figures.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(figures: &[(u32, u32)]) -> Vec<CoreLoad> {
        let load = |&(busy, connections): &(u32, u32)| CoreLoad {
            busy_permille: AtomicU32::new(busy),
            connections: AtomicU32::new(connections),
        };
        figures.iter().map(load).collect()
    }

    #[test]
    fn a_quiet_home_core_serves_connections_itself() {
        assert_eq!(place(&loads(&[(100, 50), (0, 0)])), 0);
    }

    #[test]
    fn a_busy_home_core_gives_connections_to_the_least_busy() {
        assert_eq!(place(&loads(&[(900, 1), (500, 1), (100, 9)])), 2);
    }

    #[test]
    fn only_a_socket_nobody_listens_on_is_removed() {
        let folder = std::env::temp_dir().join(format!("garboard-net-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        assert!(clear_socket(&path).is_ok(), "nothing is in the way");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(clear_socket(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(clear_socket(&path).is_ok() && !path.exists());
        std::fs::write(&path, b"precious").unwrap();
        assert_eq!(clear_socket(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_second_server_on_an_address_is_refused() {
        let first = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        assert_eq!(listen_tcp(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
