//! Follows the frames of a client's HTTP/2 bytes far enough to know whether the client is in the middle of something.
//!
//! It judges nothing: what is no HTTP/2 is hyper's to refuse.

/// Length of the connection preface.
const PREFACE_LEN: usize = 24;
/// Length of a frame's header.
const HEADER_LEN: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// What a client still has to send before it may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owes {
    /// The preface and the first frame.
    Greeting,
    /// The rest of a frame that is none of data, or of a list of headers.
    Headers,
    /// The rest of a frame of data.
    Data,
    /// Nothing.
    Nothing,
}

/// Follows one connection's frames.
#[derive(Debug)]
pub struct FrameScanner {
    /// Bytes of the preface that are to come.
    preface_left: usize,
    header: [u8; HEADER_LEN],
    header_len: usize,
    /// Bytes of the frame under way that are to come.
    payload_left: usize,
    is_data: bool,
    /// A list of headers goes on in the next frame.
    is_open: bool,
    /// Frames, or lists of headers, that ended.
    finished: u64,
}

impl Default for FrameScanner {
    fn default() -> FrameScanner {
        FrameScanner {
            preface_left: PREFACE_LEN,
            header: [0; HEADER_LEN],
            header_len: 0,
            payload_left: 0,
            is_data: false,
            is_open: false,
            finished: 0,
        }
    }
}

impl FrameScanner {
    /// What the client owes.
    pub fn owes(&self) -> Owes {
        if self.finished == 0 {
            Owes::Greeting
        } else if self.header_len == 0 {
            if self.is_open { Owes::Headers } else { Owes::Nothing }
        } else if self.header_len == HEADER_LEN && self.is_data {
            Owes::Data
        } else {
            Owes::Headers
        }
    }

    /// Frames, or lists of headers, that ended: it grows from one call to the next if what is owed is something new.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// The client sent these.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        let preface = bytes.len().min(self.preface_left);
        self.preface_left -= preface;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.header_len < HEADER_LEN {
                let len = bytes.len().min(HEADER_LEN - self.header_len);
                self.header[self.header_len..self.header_len + len].copy_from_slice(&bytes[..len]);
                self.header_len += len;
                bytes = &bytes[len..];
                if self.header_len < HEADER_LEN {
                    return;
                }
                self.begin_frame();
            } else {
                let len = bytes.len().min(self.payload_left);
                self.payload_left -= len;
                bytes = &bytes[len..];
            }
            if self.payload_left == 0 {
                self.end_frame();
            }
        }
    }

    fn begin_frame(&mut self) {
        let [a, b, c, kind, ..] = self.header;
        self.payload_left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.is_data = kind == DATA;
    }

    fn end_frame(&mut self) {
        let [_, _, _, kind, flags, ..] = self.header;
        self.header_len = 0;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.is_open = flags & END_HEADERS == 0;
        }
        if !self.is_open {
            self.finished += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1][..], payload].concat()
    }

    #[test]
    fn what_is_owed_is_the_same_wherever_the_bytes_are_cut() {
        let parts = [
            (vec![b'P'; PREFACE_LEN], Owes::Greeting),
            (frame(4, 0, &[]), Owes::Nothing),
            (frame(HEADERS, END_HEADERS, &[1; 20]), Owes::Nothing),
            (frame(DATA, 0, &[0; 300]), Owes::Nothing),
            (frame(HEADERS, 0, &[1; 4]), Owes::Headers),
            (frame(CONTINUATION, 0, &[1; 4]), Owes::Headers),
            (frame(CONTINUATION, END_HEADERS, &[]), Owes::Nothing),
            (frame(6, 0, &[0; 8]), Owes::Nothing),
        ];
        for step in [1, 2, 3, 7, 100, 1_000] {
            let mut scanner = FrameScanner::default();
            for (bytes, after) in &parts {
                for piece in bytes.chunks(step) {
                    scanner.receive(piece);
                }
                assert_eq!(scanner.owes(), *after, "in steps of {step}");
            }
            assert_eq!(scanner.finished(), 5);
        }
    }

    #[test]
    fn within_a_frame_its_rest_is_owed() {
        let mut scanner = FrameScanner::default();
        scanner.receive(&[vec![0; PREFACE_LEN], frame(4, 0, &[])].concat());
        let data = frame(DATA, 0, &[0; 10]);
        scanner.receive(&data[..5]);
        assert_eq!(scanner.owes(), Owes::Headers, "what frame it is to be is not known yet");
        scanner.receive(&data[5..12]);
        assert_eq!(scanner.owes(), Owes::Data);
        scanner.receive(&data[12..]);
        assert_eq!(scanner.owes(), Owes::Nothing);
        scanner.receive(&frame(6, 0, &[0; 8])[..12]);
        assert_eq!(scanner.owes(), Owes::Headers);
    }
}
