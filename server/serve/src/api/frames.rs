//! gRPC's framing, both ways: a body is a sequence of messages, each behind a byte of flags and four of length.
//!
//! The framing is here and not a library's because what it says to malformed input is part of etcd's surface (the texts
//! are grpc-go's, on which etcd runs), and because a request's bytes then go from the received frame into the log, and
//! an answer's from the index into the sent one, without being copied in between.

use std::convert::Infallible;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use flate2::read::GzDecoder;
use futures::Stream;
use garboard_replica::Error;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use prost::Message;
use tonic::Status;

use super::errors::status;
use crate::budget::{Budget, Share};
use crate::limits::REQUEST_PAUSE_MAX;
use crate::wheel::Wheel;

/// Length of the flags and the length before each message.
const PREFIX_LEN: usize = 5;

/// Longest message that gRPC clients of etcd take.
pub const SEND_LEN_MAX: u64 = 0x7fff_ffff;

/// How the messages of a request may be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// They may not.
    Identity,
    /// Each whose flag says so is a gzip file.
    Gzip,
}

/// Reads the messages of a request's body, each of a bounded length.
#[derive(Debug)]
pub struct MessageReader<B> {
    body: B,
    encoding: Encoding,
    len_max: usize,
    wheel: Wheel,
    budget: Budget,
    /// The room of the message under way, once its length is known.
    admitted: Option<Share>,
    /// The room of the message that was taken last.
    share: Option<Share>,
    /// Received and not yet taken.
    chunk: Bytes,
    /// The beginning of a message that came in several pieces; empty while there is none.
    partial: BytesMut,
}

impl<B> MessageReader<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// A reader of messages of at most `len_max` bytes, for which `budget` has room.
    pub fn new(body: B, encoding: Encoding, len_max: usize, wheel: Wheel, budget: Budget) -> MessageReader<B> {
        let (chunk, partial) = (Bytes::new(), BytesMut::new());
        MessageReader { body, encoding, len_max, wheel, budget, admitted: None, share: None, chunk, partial }
    }

    /// The room of the message that was taken last. If nobody takes it, it comes free with the next call of
    /// [`next`](Self::next).
    pub fn take_share(&mut self) -> Option<Share> {
        self.share.take()
    }

    /// The next message; nothing at the body's end. Dropping the future before it is done loses nothing.
    ///
    /// # Errors
    /// When a message is too long, there is no room for it, or the body ends within one.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        self.share = None;
        loop {
            if self.admitted.is_none()
                && let Some(len) = self.announced()?
            {
                let share = self.budget.take(len).await.map_err(|_| status(Error::TooManyRequests))?;
                self.admitted = Some(share);
            }
            if let Some((compressed, message)) = self.take()? {
                self.share = self.admitted.take();
                return if compressed { self.decompress(&message).map(Some) } else { Ok(Some(message)) };
            }
            // Whatever is left of a chunk has been moved.
            debug_assert!(self.chunk.is_empty());
            match self.next_frame().await? {
                None if self.partial.is_empty() => return Ok(None),
                None => return Err(Status::internal("unexpected EOF")),
                Some(Err(_)) => return Err(Status::cancelled("context canceled")),
                Some(Ok(frame)) => self.chunk = frame.into_data().unwrap_or_default(),
            }
        }
    }

    /// The body's next frame. Within a message its client may not pause while others wait for the message's room.
    async fn next_frame(&mut self) -> Result<Option<Result<Frame<Bytes>, B::Error>>, Status> {
        if self.admitted.is_none() {
            return Ok(self.body.frame().await);
        }
        loop {
            let patience = self.wheel.now() + REQUEST_PAUSE_MAX;
            if let Some(frame) = self.wheel.within(patience, self.body.frame()).await {
                return Ok(frame);
            }
            if self.budget.is_contended() {
                return Err(status(Error::TooManyRequests));
            }
        }
    }

    /// The length of the message under way, once it is known.
    fn announced(&mut self) -> Result<Option<usize>, Status> {
        if self.partial.is_empty() {
            return Ok(self.prefix(&self.chunk)?.map(|(_, len)| len));
        }
        if !self.fill(PREFIX_LEN) {
            return Ok(None);
        }
        Ok(self.prefix(&self.partial)?.map(|(_, len)| len))
    }

    /// Whether the body is known to have nothing left.
    pub fn is_at_end(&self) -> bool {
        self.chunk.is_empty() && self.partial.is_empty() && self.body.is_end_stream()
    }

    /// Takes a whole message, if there is one, with whether it is compressed.
    fn take(&mut self) -> Result<Option<(bool, Bytes)>, Status> {
        if self.partial.is_empty() {
            if let Some((compressed, len)) = self.prefix(&self.chunk)?
                && self.chunk.len() - PREFIX_LEN >= len
            {
                self.chunk.advance(PREFIX_LEN);
                return Ok(Some((compressed, self.chunk.split_to(len))));
            }
            if self.chunk.is_empty() {
                return Ok(None);
            }
        }
        if !self.fill(PREFIX_LEN) {
            return Ok(None);
        }
        let (compressed, len) = self.prefix(&self.partial)?.expect("the prefix is there");
        if !self.fill(PREFIX_LEN + len) {
            return Ok(None);
        }
        self.partial.advance(PREFIX_LEN);
        Ok(Some((compressed, self.partial.split().freeze())))
    }

    /// Moves bytes from the chunk until so many are gathered, if it has them.
    fn fill(&mut self, target: usize) -> bool {
        let missing = target.saturating_sub(self.partial.len());
        self.partial.reserve(missing);
        let piece = self.chunk.split_to(missing.min(self.chunk.len()));
        self.partial.extend_from_slice(&piece);
        self.partial.len() >= target
    }

    /// Reads flags and length at the start of some bytes, if they are all there.
    fn prefix(&self, bytes: &[u8]) -> Result<Option<(bool, usize)>, Status> {
        let Some(prefix) = bytes.first_chunk::<PREFIX_LEN>() else { return Ok(None) };
        let [flags, length @ ..] = *prefix;
        let len = usize::try_from(u32::from_be_bytes(length)).expect("a usize has 32 bits at least");
        if len > self.len_max {
            return Err(too_large(len, self.len_max));
        }
        let compressed = match (flags, self.encoding) {
            (0, _) => false,
            (1, Encoding::Gzip) => true,
            (1, Encoding::Identity) => {
                return Err(Status::internal("grpc: compressed flag set with identity or empty encoding"));
            }
            (other, _) => return Err(Status::internal(format!("grpc: received unexpected payload format {other}"))),
        };
        Ok(Some((compressed, len)))
    }

    fn decompress(&mut self, message: &[u8]) -> Result<Bytes, Status> {
        let mut plain = Vec::new();
        let bound = u64::try_from(self.len_max).unwrap_or(u64::MAX).saturating_add(1);
        let outcome = GzDecoder::new(message).take(bound).read_to_end(&mut plain);
        outcome
            .map_err(|error| Status::internal(format!("grpc: failed to decompress the received message: {error}")))?;
        if plain.len() > self.len_max {
            let (len, len_max) = (plain.len(), self.len_max);
            let text = format!("grpc: message after decompression larger than max ({len} vs. {len_max})");
            return Err(Status::resource_exhausted(text));
        }
        if let Some(share) = &mut self.share {
            share.resize(plain.len());
        }
        Ok(plain.into())
    }
}

fn too_large(len: usize, len_max: usize) -> Status {
    Status::resource_exhausted(format!("grpc: received message larger than max ({len} vs. {len_max})"))
}

/// Flags and length before a message of so many bytes.
///
/// # Errors
/// When clients would not take a message of that length.
pub fn prefix(len: u64) -> Result<[u8; PREFIX_LEN], Status> {
    match u32::try_from(len) {
        Ok(short) if len <= SEND_LEN_MAX => {
            let [a, b, c, d] = short.to_be_bytes();
            Ok([0, a, b, c, d])
        }
        _ => Err(Status::resource_exhausted(format!(
            "grpc: trying to send message larger than max ({len} vs. {SEND_LEN_MAX})"
        ))),
    }
}

/// A message behind its prefix.
///
/// # Errors
/// When clients would not take a message of that length.
pub fn frame(message: &impl Message) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::new();
    put_frame(message, &mut bytes)?;
    Ok(bytes)
}

/// Appends a message behind its prefix.
///
/// # Errors
/// As [`frame`]; then nothing is appended.
pub fn put_frame(message: &impl Message, bytes: &mut Vec<u8>) -> Result<(), Status> {
    let len = message.encoded_len();
    let prefix = prefix(u64::try_from(len).expect("lengths fit 64 bits"))?;
    bytes.reserve(PREFIX_LEN + len);
    bytes.extend_from_slice(&prefix);
    message.encode_raw(bytes);
    Ok(())
}

/// Framed messages, or pieces of them, on their way to a client. An error ends the call.
pub type FrameStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>>>>;

/// A response's body: messages, then the call's status.
pub enum GrpcBody {
    /// Nothing: the status stands in the headers.
    Empty,
    /// One message, and success.
    Message(Bytes),
    /// The status of success.
    Success,
    /// Messages as they come; the status follows the last one.
    Stream(FrameStream),
    /// Plain bytes for what is no gRPC call.
    Plain(Bytes),
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let frame = match this {
            GrpcBody::Empty => return Poll::Ready(None),
            GrpcBody::Message(message) => {
                let message = std::mem::take(message);
                *this = GrpcBody::Success;
                Frame::data(message)
            }
            GrpcBody::Success => {
                *this = GrpcBody::Empty;
                Frame::trailers(trailers(&Status::ok("")))
            }
            GrpcBody::Stream(stream) => match ready!(stream.as_mut().poll_next(cx)) {
                Some(Ok(bytes)) => Frame::data(bytes),
                end => {
                    let status = end.map_or_else(|| Status::ok(""), |failed| failed.expect_err("successes are above"));
                    *this = GrpcBody::Empty;
                    Frame::trailers(trailers(&status))
                }
            },
            GrpcBody::Plain(bytes) => {
                let bytes = std::mem::take(bytes);
                *this = GrpcBody::Empty;
                Frame::data(bytes)
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, GrpcBody::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            GrpcBody::Empty | GrpcBody::Success => SizeHint::with_exact(0),
            GrpcBody::Message(bytes) | GrpcBody::Plain(bytes) => {
                SizeHint::with_exact(u64::try_from(bytes.len()).expect("lengths fit 64 bits"))
            }
            GrpcBody::Stream(_) => SizeHint::default(),
        }
    }
}

/// The headers that end a call.
pub fn trailers(status: &Status) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(2);
    status.add_header(&mut headers).expect("a status's text is percent-encoded");
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use futures::stream;
    use http_body_util::StreamBody;
    use std::io::Write;
    use tonic::Code;

    /// A body that comes in the given pieces.
    fn body(pieces: Vec<Vec<u8>>) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        StreamBody::new(stream::iter(pieces.into_iter().map(|piece| Ok(Frame::data(Bytes::from(piece))))))
    }

    fn framed(flags: u8, message: &[u8]) -> Vec<u8> {
        let len = u32::try_from(message.len()).unwrap();
        [&[flags], &len.to_be_bytes()[..], message].concat()
    }

    fn reader<B>(body: B, encoding: Encoding, len_max: usize) -> MessageReader<B>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        MessageReader::new(body, encoding, len_max, Wheel::default(), Budget::new(1 << 20, 16))
    }

    fn read_all(pieces: Vec<Vec<u8>>, encoding: Encoding, len_max: usize) -> (Vec<Bytes>, Option<Status>) {
        let mut reader = reader(body(pieces), encoding, len_max);
        let mut messages = Vec::new();
        loop {
            match block_on(reader.next()) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return (messages, None),
                Err(status) => return (messages, Some(status)),
            }
        }
    }

    fn failure(pieces: Vec<Vec<u8>>, encoding: Encoding) -> (Code, String) {
        let status = read_all(pieces, encoding, 8).1.expect("should fail");
        (status.code(), status.message().to_owned())
    }

    #[test]
    fn messages_are_the_same_wherever_the_body_is_cut() {
        let messages: [&[u8]; 4] = [b"first", b"", b"the third one", b"x"];
        let whole: Vec<u8> = messages.iter().flat_map(|message| framed(0, message)).collect();
        for first in 0..=whole.len() {
            for second in first..=whole.len() {
                let pieces = [&whole[..first], &whole[first..second], &whole[second..]].map(<[u8]>::to_vec);
                let (read, failed) = read_all(pieces.to_vec(), Encoding::Identity, 64);
                assert!(failed.is_none());
                assert_eq!(read, messages, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn a_message_that_came_in_one_piece_is_not_copied() {
        let piece = Bytes::from(framed(0, b"value"));
        let start = piece.as_ptr();
        let frames = stream::iter([Ok::<_, Infallible>(Frame::data(piece))]);
        let mut reader = reader(StreamBody::new(frames), Encoding::Identity, 64);
        let message = block_on(reader.next()).unwrap().unwrap();
        assert_eq!(message.as_ptr(), start.wrapping_add(PREFIX_LEN));
    }

    #[test]
    fn malformed_bodies_get_grpc_gos_answers() {
        let too_large = "grpc: received message larger than max (9 vs. 8)".to_owned();
        assert_eq!(failure(vec![framed(0, &[0; 9])], Encoding::Identity), (Code::ResourceExhausted, too_large.clone()));
        // The length alone is enough: nothing of the message needs to be received.
        assert_eq!(failure(vec![framed(0, &[0; 9])[..5].to_vec()], Encoding::Identity).1, too_large);
        let cut = framed(0, b"cut")[..6].to_vec();
        assert_eq!(failure(vec![cut], Encoding::Identity), (Code::Internal, "unexpected EOF".to_owned()));
        let flagged = "grpc: compressed flag set with identity or empty encoding".to_owned();
        assert_eq!(failure(vec![framed(1, b"a")], Encoding::Identity), (Code::Internal, flagged));
        let strange = "grpc: received unexpected payload format 2".to_owned();
        assert_eq!(failure(vec![framed(2, b"a")], Encoding::Gzip), (Code::Internal, strange));
    }

    #[test]
    fn gzip_is_taken_where_it_was_announced_and_bounded_by_the_plain_length() {
        let pack = |plain: &[u8]| {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            writer.write_all(plain).unwrap();
            framed(1, &writer.finish().unwrap())
        };
        let (messages, failed) = read_all(vec![pack(b"plain"), framed(0, b"as is")], Encoding::Gzip, 64);
        assert!(failed.is_none());
        assert_eq!(messages, [&b"plain"[..], b"as is"]);
        let status = read_all(vec![pack(&[0; 1_000])], Encoding::Gzip, 64).1.unwrap();
        assert_eq!(status.message(), "grpc: message after decompression larger than max (65 vs. 64)");
        assert_eq!(read_all(vec![framed(1, b"no gzip")], Encoding::Gzip, 64).1.unwrap().code(), Code::Internal);
    }

    #[test]
    fn a_message_no_client_would_take_is_not_sent() {
        assert_eq!(prefix(258).unwrap(), [0, 0, 0, 1, 2]);
        assert!(prefix(SEND_LEN_MAX).is_ok());
        let status = prefix(SEND_LEN_MAX + 1).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "grpc: trying to send message larger than max (2147483648 vs. 2147483647)");
    }
}
