//! Finds the frames in a stream of bytes.

use crate::format::{DecodeError, HEADER_BYTES, Header};
use crate::{PeerFrame, body, limits};
use bytes::Bytes;

/// Finds the frames in a stream of bytes, one after the other.
///
/// Call [`handle_bytes`](Self::handle_bytes) with what came in. It takes what the current frame still needs and says
/// how much that was; when [`poll_frame`](Self::poll_frame) has given the frame away, call it again with the rest. So
/// the reader never holds more than one frame. It makes room for a body only after the header's checksum has fitted and
/// its length is within [`limits::BODY_BYTES_MAX`], and no more than twice what has arrived, beyond a small first step:
/// a length alone takes no memory.
///
/// After an error the stream is given up, for nothing tells where the next frame would begin: the link must close it.
#[derive(Debug)]
pub struct FrameReader {
    state: State,
}

#[derive(Debug)]
enum State {
    /// The first bytes of a header: fewer than a header has.
    Header {
        bytes: [u8; HEADER_BYTES],
        length: usize,
    },
    /// The first bytes of a body: fewer than the header promises.
    Body {
        header: Header,
        bytes: Vec<u8>,
    },
    /// A frame that is to be fetched before the next byte is taken.
    Complete(Box<PeerFrame>),
    GivenUp,
}

impl State {
    const START: Self = Self::Header { bytes: [0; HEADER_BYTES], length: 0 };
}

impl Default for FrameReader {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameReader {
    /// At the beginning of a stream.
    pub fn new() -> Self {
        Self { state: State::START }
    }

    /// Takes bytes from the front of `input` and says how many. It stops at the end of a frame; while a frame waits to
    /// be fetched it takes none.
    pub fn handle_bytes(&mut self, input: &[u8]) -> Result<usize, DecodeError> {
        let mut taken = 0;
        loop {
            let step = self.advance(&input[taken..]);
            match step {
                Ok(Some(count)) => taken += count,
                Ok(None) => return Ok(taken),
                Err(error) => {
                    self.state = State::GivenUp;
                    return Err(error);
                }
            }
        }
    }

    /// Takes what one header or one body still lacks. None if it can do nothing more with this input.
    fn advance(&mut self, input: &[u8]) -> Result<Option<usize>, DecodeError> {
        match &mut self.state {
            State::Header { bytes, length } => {
                let count = input.len().min(HEADER_BYTES - *length);
                bytes[*length..*length + count].copy_from_slice(&input[..count]);
                *length += count;
                if *length < HEADER_BYTES {
                    // A stream that is none of ours is noticed by its first bytes, however few have come.
                    let known = (*length).min(crate::MAGIC.len());
                    return if bytes[..known] == crate::MAGIC[..known] {
                        Ok((count > 0).then_some(count))
                    } else {
                        Err(DecodeError::Magic)
                    };
                }
                let header = Header::decode(bytes)?;
                self.state = State::Body { header, bytes: Vec::new() };
                Ok(Some(count))
            }
            State::Body { header, bytes } => {
                let count = input.len().min(body_bytes(header) - bytes.len());
                make_room(bytes, count, body_bytes(header));
                bytes.extend_from_slice(&input[..count]);
                if bytes.len() < body_bytes(header) {
                    return Ok((count > 0).then_some(count));
                }
                let frame = body::decode(header, Bytes::from(std::mem::take(bytes)))?;
                self.state = State::Complete(Box::new(frame));
                Ok(Some(count))
            }
            State::Complete(_) => Ok(None),
            State::GivenUp => Err(DecodeError::GivenUp),
        }
    }

    /// The frame whose last byte has been taken, once.
    pub fn poll_frame(&mut self) -> Option<PeerFrame> {
        if !matches!(self.state, State::Complete(_)) {
            return None;
        }
        match std::mem::replace(&mut self.state, State::START) {
            State::Complete(frame) => Some(*frame),
            State::Header { .. } | State::Body { .. } | State::GivenUp => unreachable!("the state was complete"),
        }
    }

    /// Whether the stream may end here: no frame has begun, and none waits to be fetched.
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Header { length: 0, .. })
    }

    /// Bytes of memory that the reader holds for the frame that it is reading.
    pub fn buffered_capacity(&self) -> usize {
        match &self.state {
            State::Body { bytes, .. } => bytes.capacity(),
            State::Header { .. } | State::Complete(_) | State::GivenUp => 0,
        }
    }
}

/// Room for `count` more bytes: twice what there is, and never beyond the body's end, so that the last step leaves none
/// over.
fn make_room(bytes: &mut Vec<u8>, count: usize, body_bytes: usize) {
    let needed = bytes.len() + count;
    assert!(needed <= body_bytes, "no byte behind the body is taken");
    if needed > bytes.capacity() {
        let wanted = needed.max(bytes.capacity().saturating_mul(2)).max(limits::BODY_FIRST_STEP_BYTES).min(body_bytes);
        bytes.reserve_exact(wanted - bytes.len());
    }
}

fn body_bytes(header: &Header) -> usize {
    usize::try_from(header.body_bytes).expect("the body's bound fits the address space")
}
