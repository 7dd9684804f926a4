//! One QUIC connection and its streams.

use core::time::Duration;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use quinn_proto::{Dir, ReadError, StreamId, VarInt, WriteError};

use super::LinkKind;
use super::event::CloseCode;
use super::limits::{CONTROL_SEND_BYTES, DATAGRAMS_PER_TRANSMIT, STREAM_SEND_BYTES};
use super::peer::Queue;
use crate::FrameReader;

/// Most bytes in one piece that the kernel cuts into datagrams.
const TRANSMIT_BYTES_MAX: usize = 65_000;
/// Streams that each side may open: one for each lane of a connection.
const STREAMS_MAX: usize = 2;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No hello has been accepted yet.
    Opening,
    /// The other end is this peer.
    Up(u64, LinkKind),
    /// It is being closed, or lost. Nothing that still comes counts.
    Over,
}

/// A stream that the other side has opened.
pub struct Incoming {
    id: StreamId,
    pub reader: FrameReader,
}

/// A connection.
pub struct Connection {
    pub quic: quinn_proto::Connection,
    /// For whom and what this member dialed it; none if it was dialed by the other side.
    pub dialed: Option<(u64, LinkKind)>,
    /// The socket on which its datagrams come.
    pub socket: Option<u32>,
    pub phase: Phase,
    /// When it is closed for want of a hello.
    pub hello_by: Duration,
    /// What has come of the other side's hello.
    pub hello: BytesMut,
    /// Whether this side's hello has been sent.
    pub said_hello: bool,
    /// Whether it waits to be asked for datagrams.
    pub is_sendable: bool,
    incoming: [Option<Incoming>; STREAMS_MAX],
    outgoing: [Option<StreamId>; STREAMS_MAX],
}

/// The other side did something with its streams that it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBroken;

impl Connection {
    pub fn new(quic: quinn_proto::Connection, dialed: Option<(u64, LinkKind)>, hello_by: Duration) -> Self {
        Self {
            quic,
            dialed,
            socket: None,
            phase: Phase::Opening,
            hello_by,
            hello: BytesMut::new(),
            said_hello: false,
            is_sendable: false,
            incoming: [None, None],
            outgoing: [None, None],
        }
    }

    /// Opens this side's first stream and sends its hello there.
    pub fn say_hello(&mut self, hello: &[u8]) -> Result<(), StreamBroken> {
        assert!(!self.said_hello, "a hello is said once");
        let id = self.open(0)?;
        let written = self.quic.send_stream(id).write(hello);
        self.said_hello = true;
        if written == Ok(hello.len()) { Ok(()) } else { Err(StreamBroken) }
    }

    /// Opens the streams of the lanes behind the first.
    pub fn open_lanes(&mut self, kind: LinkKind) -> Result<(), StreamBroken> {
        for index in 1..kind.lanes().len() {
            self.open(index)?;
        }
        Ok(())
    }

    fn open(&mut self, index: usize) -> Result<StreamId, StreamBroken> {
        let id = self.quic.streams().open(Dir::Uni).ok_or(StreamBroken)?;
        assert_eq!(usize::try_from(id.index()), Ok(index), "streams are opened in the order of the lanes");
        // What is first in order goes first into every datagram.
        let priority = i32::try_from(STREAMS_MAX - index).expect("there are few streams");
        let _ = self.quic.send_stream(id).set_priority(priority);
        self.outgoing[index] = Some(id);
        Ok(id)
    }

    /// Takes in the streams that the other side has opened.
    pub fn accept_streams(&mut self) -> Result<(), StreamBroken> {
        while let Some(id) = self.quic.streams().accept(Dir::Uni) {
            let index = usize::try_from(id.index()).map_err(|_| StreamBroken)?;
            let place = self.incoming.get_mut(index).ok_or(StreamBroken)?;
            *place = Some(Incoming { id, reader: FrameReader::new() });
        }
        Ok(())
    }

    /// Everything that has come on a stream and was not read yet.
    pub fn read(&mut self, index: usize) -> Result<Vec<Bytes>, StreamBroken> {
        let Some(Incoming { id, .. }) = &self.incoming[index] else { return Ok(Vec::new()) };
        let mut stream = self.quic.recv_stream(*id);
        let mut chunks = stream.read(true).map_err(|_| StreamBroken)?;
        let mut pieces = Vec::new();
        let outcome = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => pieces.push(chunk.bytes),
                Err(ReadError::Blocked) => break Ok(pieces),
                // Lanes last as long as their connection.
                Ok(None) | Err(ReadError::Reset(_)) => break Err(StreamBroken),
            }
        };
        // Room that this gives the other side is told with the next datagram, which is asked for in any case.
        let _ = chunks.finalize();
        outcome
    }

    /// The reader of a stream that has been taken in.
    pub fn reader(&mut self, index: usize) -> Option<&mut FrameReader> {
        self.incoming[index].as_mut().map(|incoming| &mut incoming.reader)
    }

    /// Gives QUIC what it takes of a lane's queue. The log may hold less than the connection as a whole, so that there
    /// is always room for a heartbeat.
    pub fn write(&mut self, index: usize, queue: &mut Queue) {
        let Some(id) = self.outgoing[index] else { return };
        let beyond = if index == 0 { CONTROL_SEND_BYTES } else { 0 };
        self.quic.set_send_window(STREAM_SEND_BYTES + beyond);
        while !queue.is_empty() {
            match self.quic.send_stream(id).write_chunks(queue.chunks()) {
                Ok(written) => queue.taken(written.bytes, written.chunks),
                Err(WriteError::Blocked | WriteError::Stopped(_) | WriteError::ClosedStream) => break,
            }
        }
    }

    /// Closes the connection. Nothing that still comes counts.
    pub fn close(&mut self, now: Instant, code: CloseCode, reason: String) {
        self.phase = Phase::Over;
        self.quic.close(now, code.number(), Bytes::from(reason));
    }

    /// How many datagrams may go to the kernel in one piece.
    pub fn datagrams_max(&self) -> usize {
        (TRANSMIT_BYTES_MAX / usize::from(self.quic.current_mtu().max(1))).clamp(1, DATAGRAMS_PER_TRANSMIT)
    }

    /// How many acknowledgements have come, which only the other end can have made.
    pub fn acknowledged(&self) -> u64 {
        self.quic.stats().frame_rx.acks
    }
}

const _: () = assert!(VarInt::MAX.into_inner() > STREAM_SEND_BYTES);
