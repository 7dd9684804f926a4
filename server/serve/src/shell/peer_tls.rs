//! TLS on the peers' TCP port, where peer URLs are `https`: what this member shows and whom it believes, a stream for the
//! server's side, and what a client's connections are made with.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use garboard_transport::link::tls::{Authority, Credentials, OwnKey, TlsError};
use hyper::rt::{ReadBuf, ReadBufCursor};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

use super::peer_port::Stream;
use super::start::StartError;
use crate::config::PeerTls;

/// What is spoken over TLS on the TCP port.
const PROTOCOL: &[u8] = b"http/1.1";
/// Bytes that are read at once.
const PIECE_BYTES: usize = 4096;

/// What this member shows its peers and whom it believes.
///
/// # Errors
/// Where a file can't be read, or does not hold what it should.
pub fn credentials(tls: &PeerTls, own: &OwnKey) -> Result<Credentials, StartError> {
    let (certificate, key, authorities, revoked, allowed) = match tls {
        PeerTls::OwnKey | PeerTls::AutoTls => return Ok(Credentials::with_own_key(own)),
        PeerTls::Files { certificate, key, authorities, revoked, allowed } => {
            (read(certificate)?, read(key)?, authorities, revoked, allowed)
        }
    };
    let made = match authorities {
        None => Credentials::with_unvouched(&certificate, &key),
        Some(authorities) => {
            let (roots, revoked) = (read(authorities)?, revoked.as_ref().map(read).transpose()?);
            let authority = Authority { roots: &roots, revoked: revoked.as_deref(), allowed };
            Credentials::with_authority(&certificate, &key, &authority)
        }
    };
    made.map_err(|error| unfit(&error))
}

fn read(path: &PathBuf) -> Result<Vec<u8>, StartError> {
    let failed = |source| StartError::File { action: "reading", path: path.display().to_string(), source };
    std::fs::read(path).map_err(failed)
}

fn unfit(error: &TlsError) -> StartError {
    StartError::Setting(super::edge::with_sources(error))
}

/// For connections on the TCP port; none where peer URLs are not `https`.
///
/// # Errors
/// Where what is shown does not fit together.
pub fn server(tls: &PeerTls, credentials: &Credentials) -> Result<Option<Arc<ServerConfig>>, StartError> {
    let is_plain = *tls == PeerTls::OwnKey;
    let made = (!is_plain).then(|| credentials.server(PROTOCOL).map(Arc::new)).transpose();
    made.map_err(|error| unfit(&error))
}

/// For connections to other members' TCP ports.
///
/// # Errors
/// Where what is shown does not fit together.
pub fn client(credentials: &Credentials) -> Result<Arc<ClientConfig>, StartError> {
    credentials.client(PROTOCOL).map(Arc::new).map_err(|error| unfit(&error))
}

/// A connection on the TCP port, over TLS.
pub struct TlsStream {
    socket: Stream,
    tls: ServerConnection,
    /// Encrypted bytes on their way to the socket.
    outgoing: Vec<u8>,
}

impl TlsStream {
    /// Nothing was read from the socket yet.
    ///
    /// # Errors
    /// Where the configuration does not serve.
    pub fn new(socket: Stream, config: Arc<ServerConfig>) -> io::Result<TlsStream> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(TlsStream { socket, tls, outgoing: Vec::new() })
    }

    /// Sends what TLS wants to send.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while self.tls.wants_write() {
                self.tls.write_tls(&mut self.outgoing)?;
            }
            if self.outgoing.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let count = ready!(hyper::rt::Write::poll_write(Pin::new(&mut self.socket), cx, &self.outgoing))?;
            self.outgoing.drain(..count);
        }
    }

    /// Takes more encrypted bytes in.
    fn poll_feed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut piece = [0; PIECE_BYTES];
        let mut buffer = ReadBuf::new(&mut piece);
        ready!(hyper::rt::Read::poll_read(Pin::new(&mut self.socket), cx, buffer.unfilled()))?;
        let mut rest = buffer.filled();
        loop {
            // No bytes tell TLS that none will come.
            self.tls.read_tls(&mut rest)?;
            if let Err(error) = self.tls.process_new_packets() {
                // The other side is told why, if there is room.
                let _ = self.poll_drain(cx);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
            if rest.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl hyper::rt::Read for TlsStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut piece = [0; PIECE_BYTES];
        let room = into.remaining().min(PIECE_BYTES);
        loop {
            match self.tls.reader().read(&mut piece[..room]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    into.put_slice(&piece[..outcome?]);
                    return Poll::Ready(Ok(()));
                }
            }
            ready!(self.poll_drain(cx))?;
            ready!(self.poll_feed(cx))?;
        }
    }
}

impl hyper::rt::Write for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx))?;
        let count = self.tls.writer().write(bytes)?;
        // What has no room now leaves with the next call.
        if let Poll::Ready(outcome) = self.poll_drain(cx) {
            outcome?;
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_drain(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.send_close_notify();
        ready!(self.poll_drain(cx))?;
        hyper::rt::Write::poll_shutdown(Pin::new(&mut self.socket), cx)
    }
}

/// Has an HTTP client speak TLS as this says where a URL is `https`.
#[derive(Debug)]
pub struct TlsConnector(pub Arc<ClientConfig>);

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, TlsTransport>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        let transport = chained.expect("TLS is spoken over what was connected before");
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|_| ureq::Error::Tls("the URL names no host"))?;
        let mut tls = ClientConnection::new(self.0.clone(), name).map_err(io::Error::other)?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        tls.complete_io(&mut socket)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(TlsTransport { buffers, stream: StreamOwned::new(tls, socket) })))
    }
}

/// A connection of an HTTP client, over TLS.
pub struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl core::fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TlsTransport").finish_non_exhaustive()
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        Ok(self.stream.write_all(&self.buffers.output()[..amount])?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let count = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
