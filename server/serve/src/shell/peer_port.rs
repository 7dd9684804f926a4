//! The peers' TCP port: tripwires of other members, their question whether TCP gets through, and the little that etcd's
//! peers tell over HTTP. Nothing here serves clients.
//!
//! What a connection is for is told by its first four bytes: `GBTW` is a tripwire, `GBTP` a question, anything else HTTP,
//! over TLS where peer URLs are `https`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use garboard_transport::link::TripwireToken;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use socket2::{Domain, Protocol, Type};

use super::peer_tls::TlsStream;
use crate::config::{ETCD_VERSION, STORAGE_VERSION};

/// A connection on the peers' port.
pub type Stream = garboard_executor::Socket<TcpStream>;

/// Begins a tripwire: then follow the dialer's and the answerer's member id, 8 bytes each, and the answerer's token.
const TRIPWIRE: [u8; 4] = *b"GBTW";
/// Begins the answer to a tripwire: then follows the dialer's token.
const TRIPWIRE_ANSWER: [u8; 4] = *b"GBTA";
/// The question whether TCP gets through, and its answer.
const QUESTION: [u8; 4] = *b"GBTP";
/// The first byte of TLS.
const TLS_HANDSHAKE: u8 = 22;
/// Go's answer to who speaks HTTP where TLS is expected.
const NO_TLS: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
const TRIPWIRE_BYTES: usize = 4 + 8 + 8 + 16;
const ANSWER_BYTES: usize = 4 + 16;

/// Most connections at once; further ones are closed.
const CONNECTIONS_MAX: u32 = 256;
/// How long a connection may take to say what it is for.
const OPENING_TIME: Duration = Duration::from_secs(5);
/// How long HTTP may go on on one connection.
const HTTP_TIME: Duration = Duration::from_secs(60);
/// How long a dial and what it begins with may take.
const DIAL_TIME: Duration = Duration::from_secs(2);

/// What the port knows.
pub struct Door {
    member_id: u64,
    cluster_id: u64,
    /// What others show to this member.
    token: TripwireToken,
    /// What this member shows to others, from their hellos.
    tokens: RefCell<BTreeMap<u64, TripwireToken>>,
    /// `/members` as JSON.
    members: RefCell<String>,
    /// HTTP is spoken over it alone, if there is one.
    tls: Option<Arc<rustls::ServerConfig>>,
    connections: Cell<u32>,
}

impl Door {
    /// A door of this member.
    pub fn new(member_id: u64, cluster_id: u64, token: TripwireToken) -> Door {
        Door {
            member_id,
            cluster_id,
            token,
            tokens: RefCell::default(),
            members: RefCell::new("[]\n".to_owned()),
            tls: None,
            connections: Cell::new(0),
        }
    }

    /// With TLS for HTTP.
    pub fn with_tls(self, tls: Option<Arc<rustls::ServerConfig>>) -> Door {
        Door { tls, ..self }
    }

    /// A peer said hello with this token.
    pub fn set_token(&self, peer: u64, token: TripwireToken) {
        self.tokens.borrow_mut().insert(peer, token);
    }

    /// The members as `/members` shows them.
    pub fn set_members(&self, json: String) {
        *self.members.borrow_mut() = json;
    }
}

/// Accepts connections for as long as the server lives.
pub async fn accept(listener: garboard_executor::Socket<TcpListener>, door: Rc<Door>) {
    loop {
        match listener.reading(TcpListener::accept).await {
            Ok((stream, _)) if door.connections.get() < CONNECTIONS_MAX => {
                door.connections.set(door.connections.get() + 1);
                let door = door.clone();
                garboard_executor::spawn(async move {
                    if let Err(error) = serve(stream, &door).await {
                        tracing::debug!("a connection on the peers' port ended: {error}");
                    }
                    door.connections.set(door.connections.get() - 1);
                });
            }
            Ok(_) => tracing::debug!("refused a connection on the peers' port: it has {CONNECTIONS_MAX} already"),
            Err(error) => {
                tracing::warn!("accepting a connection on the peers' port: {error}");
                garboard_executor::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, door: &Rc<Door>) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let stream = Stream::new(stream);
    let first = within(OPENING_TIME, first_bytes(&stream)).await?;
    match first {
        TRIPWIRE => hold_tripwire(&stream, door).await,
        QUESTION => {
            within(OPENING_TIME, read_exact(&stream, &mut [0; 4])).await?;
            write_all(&stream, &QUESTION).await
        }
        [first, ..] => match &door.tls {
            None => serve_http(stream, door.clone()).await,
            Some(tls) if first == TLS_HANDSHAKE => serve_http(TlsStream::new(stream, tls.clone())?, door.clone()).await,
            Some(_) => within(OPENING_TIME, refuse_plain(&stream)).await,
        },
    }
}

/// Tells who speaks HTTP that TLS is expected. What was asked is read to its end: closed with bytes unread, the connection
/// would be reset, and the answer lost.
async fn refuse_plain(stream: &Stream) -> io::Result<()> {
    write_all(stream, NO_TLS).await?;
    stream.writing(|stream| stream.shutdown(Shutdown::Write)).await?;
    until_ended(stream).await;
    Ok(())
}

/// The first bytes, which stay to be read.
async fn first_bytes(stream: &Stream) -> io::Result<[u8; 4]> {
    let mut first = [0; 4];
    loop {
        let count = stream.reading(|stream| stream.peek(&mut first)).await?;
        match count {
            4 => return Ok(first),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            // The rest is on its way. The kernel would say at once that there is something.
            _ => garboard_executor::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Checks who shows a token and of whom, proves who answers, and keeps the connection until the other side ends it: this
/// side ends it by dying.
async fn hold_tripwire(stream: &Stream, door: &Door) -> io::Result<()> {
    let mut bytes = [0; TRIPWIRE_BYTES];
    within(OPENING_TIME, read_exact(stream, &mut bytes)).await?;
    let from = number(&bytes[4..12]);
    let known = door.tokens.borrow().get(&from).copied();
    let (true, true, Some(proof)) = (number(&bytes[12..20]) == door.member_id, bytes[20..] == door.token, known) else {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a tripwire with a wrong token"));
    };
    let mut answer = [0; ANSWER_BYTES];
    answer[..4].copy_from_slice(&TRIPWIRE_ANSWER);
    answer[4..].copy_from_slice(&proof);
    write_all(stream, &answer).await?;
    until_ended(stream).await;
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns when the other side has ended the connection. What it sends is passed over.
async fn until_ended(stream: &Stream) {
    let mut bytes = [0; 64];
    while stream.reading(|mut stream| stream.read(&mut bytes)).await.is_ok_and(|count| count > 0) {}
}

/// Sets a tripwire to a member: it shows the member's token, and expects this member's own in return.
///
/// # Errors
/// Where nobody answers, or somebody else.
pub async fn set_tripwire(address: SocketAddr, door: &Door, peer: u64) -> io::Result<Tripwire> {
    let token = door.tokens.borrow().get(&peer).copied().ok_or(io::ErrorKind::NotFound)?;
    let mut bytes = [0; TRIPWIRE_BYTES];
    bytes[..4].copy_from_slice(&TRIPWIRE);
    bytes[4..12].copy_from_slice(&door.member_id.to_le_bytes());
    bytes[12..20].copy_from_slice(&peer.to_le_bytes());
    bytes[20..].copy_from_slice(&token);
    let mut answer = [0; ANSWER_BYTES];
    let stream = exchange(address, &bytes, &mut answer).await?;
    if answer[..4] != TRIPWIRE_ANSWER || answer[4..] != door.token {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "somebody else answers"));
    }
    Ok(Tripwire(stream))
}

/// A tripwire to another member.
pub struct Tripwire(Stream);

impl Tripwire {
    /// Returns when the other side's process, or somebody in between, has ended the connection.
    pub async fn tripped(&self) {
        until_ended(&self.0).await;
    }
}

/// Whether a member's process answers at an address over TCP.
pub async fn answers_over_tcp(address: SocketAddr) -> bool {
    let mut answer = [0; 4];
    exchange(address, &QUESTION, &mut answer).await.is_ok() && answer == QUESTION
}

/// Connects, sends, and reads as much as fits the answer.
async fn exchange(address: SocketAddr, bytes: &[u8], answer: &mut [u8]) -> io::Result<Stream> {
    within(DIAL_TIME, async {
        let stream = connect(address).await?;
        write_all(&stream, bytes).await?;
        read_exact(&stream, answer).await?;
        Ok(stream)
    })
    .await
}

async fn connect(address: SocketAddr) -> io::Result<Stream> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    let stream = Stream::new(socket.into());
    let is_connected = |stream: &TcpStream| match (stream.take_error()?, stream.peer_addr()) {
        (Some(error), _) => Err(error),
        (None, Ok(_)) => Ok(()),
        (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Err(io::ErrorKind::WouldBlock.into()),
        (None, Err(error)) => Err(error),
    };
    stream.writing(is_connected).await?;
    Ok(stream)
}

async fn read_exact(stream: &Stream, bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        match stream.reading(|mut stream| stream.read(rest)).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok(())
}

async fn write_all(stream: &Stream, bytes: &[u8]) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        written += stream.writing(|mut stream| stream.write(&bytes[written..])).await?;
    }
    Ok(())
}

async fn within<T>(time: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match select(pin!(work), pin!(garboard_executor::sleep(time))).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn serve_http<S: hyper::rt::Read + hyper::rt::Write + Unpin + 'static>(
    stream: S,
    door: Rc<Door>,
) -> io::Result<()> {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let response = respond(&request, &door);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = async {
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(stream, service);
        connection.await.map_err(io::Error::other)
    };
    within(HTTP_TIME, served).await
}

/// As etcd's peers answer.
fn respond<B>(request: &Request<B>, door: &Door) -> Response<Full<Bytes>> {
    let content = match request.uri().path() {
        "/version" => format!(
            r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{STORAGE_VERSION}","storage":"{STORAGE_VERSION}"}}"#
        ),
        "/members" => door.members.borrow().clone(),
        _ => return plain(StatusCode::NOT_FOUND, "404 page not found\n"),
    };
    if request.method() != Method::GET {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let mut response = Response::new(Full::from(content));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if request.uri().path() == "/members" {
        let id = HeaderValue::from_str(&format!("{:x}", door.cluster_id)).expect("digits are a header's value");
        response.headers_mut().insert("x-etcd-cluster-id", id);
    }
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> Door {
        let door = Door::new(1, 0xabc, [1; 16]);
        door.set_members("[{\"id\":1}]\n".to_owned());
        door
    }

    fn ask(method: Method, path: &str) -> Response<Full<Bytes>> {
        respond(&Request::builder().method(method).uri(path).body(()).unwrap(), &door())
    }

    #[test]
    fn http_answers_what_etcds_peers_answer_and_nothing_for_clients() {
        assert_eq!(ask(Method::GET, "/version").status(), StatusCode::OK);
        let members = ask(Method::GET, "/members");
        assert_eq!(members.headers()["x-etcd-cluster-id"], "abc");
        assert_eq!(ask(Method::POST, "/members").status(), StatusCode::METHOD_NOT_ALLOWED);
        for path in ["/", "/members/", "/v3/kv/put", "/health", "/metrics"] {
            assert_eq!(ask(Method::GET, path).status(), StatusCode::NOT_FOUND, "{path}");
        }
    }

    /// Runs `work` on an executor of its own, with a door that is open at the address it is given.
    fn with_door<F: Future<Output = ()> + 'static>(work: impl FnOnce(SocketAddr, Rc<Door>) -> F) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        garboard_executor::run(garboard_executor::Options::default(), || {
            let door = Rc::new(door());
            door.set_token(2, [2; 16]);
            garboard_executor::spawn(accept(garboard_executor::Socket::new(listener), door.clone()));
            work(address, door)
        })
        .unwrap();
    }

    /// Member 2, which has heard of member 1 as `token`.
    fn other(token: TripwireToken) -> Door {
        let other = Door::new(2, 0xabc, [2; 16]);
        other.set_token(1, token);
        other
    }

    #[test]
    fn a_tripwire_is_set_by_whoever_knows_the_token_and_by_nobody_else() {
        with_door(|address, _| async move {
            assert!(set_tripwire(address, &other([1; 16]), 1).await.is_ok());
            assert!(set_tripwire(address, &other([9; 16]), 1).await.is_err());
            let stranger = Door::new(3, 0xabc, [3; 16]);
            stranger.set_token(1, [1; 16]);
            assert!(set_tripwire(address, &stranger, 1).await.is_err(), "the door has had no hello of member 3");
            assert!(set_tripwire(address, &other([1; 16]), 2).await.is_err(), "no token is known of member 2");
        });
    }

    #[test]
    fn a_tripwire_trips_when_the_other_side_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; TRIPWIRE_BYTES]).unwrap();
            stream.write_all(&[&TRIPWIRE_ANSWER[..], &[2; 16]].concat()).unwrap();
        });
        let set = async move {
            let tripwire = set_tripwire(address, &other([1; 16]), 1).await.unwrap();
            tripwire.tripped().await;
        };
        garboard_executor::run(garboard_executor::Options::default(), || set).unwrap();
        server.join().unwrap();
    }

    #[test]
    fn the_question_whether_tcp_gets_through_is_answered() {
        with_door(|address, _| async move {
            assert!(answers_over_tcp(address).await);
        });
        assert!(!a_closed_port_answers(), "nobody listens there");
    }

    fn a_closed_port_answers() -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        garboard_executor::run(garboard_executor::Options::default(), move || answers_over_tcp(address)).unwrap()
    }
}
