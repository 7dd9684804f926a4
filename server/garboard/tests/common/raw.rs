//! A client that speaks HTTP/2 by hand and so can be as slow, silent or greedy as no library lets it be.
#![allow(clippy::disallowed_types, reason = "a test drives real sockets")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use prost::Message;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// One frame.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![len[1], len[2], len[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The headers of a call, encoded without any table.
pub fn call_headers(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    put_text(&mut block, 0x04, path);
    put_text(&mut block, 0x01, "localhost");
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")].iter().chain(more) {
        put_text(&mut block, 0x00, name);
        put_length(&mut block, value.len());
        block.extend_from_slice(value.as_bytes());
    }
    block
}

fn put_text(block: &mut Vec<u8>, lead: u8, text: &str) {
    block.push(lead);
    put_length(block, text.len());
    block.extend_from_slice(text.as_bytes());
}

fn put_length(block: &mut Vec<u8>, mut len: usize) {
    if len < 127 {
        return block.push(u8::try_from(len).unwrap());
    }
    block.push(127);
    len -= 127;
    while len >= 128 {
        block.push(u8::try_from(len % 128 + 128).unwrap());
        len /= 128;
    }
    block.push(u8::try_from(len).unwrap());
}

/// A gRPC message behind its prefix.
pub fn grpc(message: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.encoded_len()).unwrap().to_be_bytes());
    message.encode(&mut bytes).unwrap();
    bytes
}

/// A connection.
pub struct Raw {
    stream: TcpStream,
    next: u32,
    /// Messages that came in part, by stream.
    partial: HashMap<u32, Vec<u8>>,
}

impl Raw {
    /// Connects, and says nothing.
    pub fn connect(port: u16) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Raw { stream, next: 1, partial: HashMap::new() }
    }

    /// Connects and greets; the server may send `window` bytes ahead on each call and 2 GiB on the connection.
    pub fn greeted(port: u16, window: u32) -> Raw {
        let mut raw = Raw::connect(port);
        let mut settings = vec![0, 4];
        settings.extend_from_slice(&window.to_be_bytes());
        let update = frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes());
        raw.send(&[PREFACE, &frame(SETTINGS, 0, 0, &settings), &update].concat());
        raw
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends, and says whether the connection still took it.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Begins a call with one message; its stream. With `open` the client's side stays open.
    pub fn call(&mut self, path: &str, message: &impl Message, open: bool) -> u32 {
        self.call_with(path, message, open, &[])
    }

    pub fn call_with(&mut self, path: &str, message: &impl Message, open: bool, more: &[(&str, &str)]) -> u32 {
        let stream = self.next;
        self.next += 2;
        let message = grpc(message);
        let mut bytes = frame(HEADERS, END_HEADERS, stream, &call_headers(path, more));
        let mut pieces = message.chunks(16_384).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if open || pieces.peek().is_some() { 0 } else { END_STREAM };
            bytes.extend_from_slice(&frame(DATA, flags, stream, piece));
        }
        self.send(&bytes);
        stream
    }

    /// Lets the server send so many bytes more on a call.
    pub fn allow(&mut self, stream: u32, bytes: u32) {
        self.send(&frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()));
    }

    /// How long a read waits.
    pub fn set_patience(&mut self, patience: Duration) {
        self.stream.set_read_timeout(Some(patience)).unwrap();
    }

    /// The next frame; what only needs an acknowledgement gets it.
    pub fn frame(&mut self) -> io::Result<Frame> {
        loop {
            let mut header = [0; 9];
            self.stream.read_exact(&mut header)?;
            let [a, b, c, kind, flags, s @ ..] = header;
            let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
            self.stream.read_exact(&mut payload)?;
            match kind {
                SETTINGS if flags & ACK == 0 => self.stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
                PING if flags & ACK == 0 => self.stream.write_all(&frame(PING, ACK, 0, &payload))?,
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => return Ok(Frame { kind, flags, stream: u32::from_be_bytes(s), payload }),
            }
        }
    }

    /// The next whole message of a call, with windows opened as it comes; nothing at its end.
    pub fn message<A: Message + Default>(&mut self, stream: u32) -> io::Result<Option<A>> {
        loop {
            let partial = self.partial.entry(stream).or_default();
            if let Some((prefix, rest)) = partial.split_first_chunk::<5>() {
                let len = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
                if rest.len() >= len {
                    let message = A::decode(&rest[..len]).map_err(io::Error::other)?;
                    partial.drain(..5 + len);
                    return Ok(Some(message));
                }
            }
            let frame = self.frame()?;
            if frame.kind == DATA {
                let len = u32::try_from(frame.payload.len()).unwrap();
                self.partial.entry(frame.stream).or_default().extend_from_slice(&frame.payload);
                if len > 0 {
                    self.allow(frame.stream, len);
                    self.allow(0, len);
                }
            }
            if frame.stream == stream && (frame.kind == RST_STREAM || frame.flags & END_STREAM != 0) {
                return Ok(None);
            }
            if frame.kind == GOAWAY {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    /// Whether the server has closed the connection; waits for it as long as reads do.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    return !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                }
            }
        }
    }
}
