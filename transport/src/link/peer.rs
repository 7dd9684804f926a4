//! What is known of one peer, and what waits to be sent to it.

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;
use quinn_proto::ConnectionHandle;

use super::hello::TripwireToken;
use super::limits::{ADDRESS_TIMEOUT, BULK_QUEUE_BYTES, CONTROL_QUEUE_BYTES, LOG_QUEUE_BYTES};
use super::links::Address;
use crate::Lane;

/// Frames of one lane that wait to be sent.
#[derive(Debug, Default)]
pub struct Queue {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl Queue {
    /// Adds a frame, unless it goes beyond `bytes_max`; one alone may.
    pub fn push(&mut self, frame: Bytes, bytes_max: usize) -> bool {
        let fits = self.frames.is_empty() || self.bytes + frame.len() <= bytes_max;
        if fits {
            self.bytes += frame.len();
            self.frames.push_back(frame);
        }
        fits
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn chunks(&mut self) -> &mut [Bytes] {
        self.frames.make_contiguous()
    }

    /// So much of the front was taken: whole frames, and maybe a part of the next, which the taker has shortened.
    pub fn taken(&mut self, bytes: usize, frames: usize) {
        self.frames.drain(..frames);
        self.bytes -= bytes;
        assert!(self.bytes > 0 || self.frames.iter().all(Bytes::is_empty), "the queue's bytes are those of its frames");
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The connection that carries a link.
#[derive(Clone, Copy, Debug)]
pub struct Established {
    pub handle: ConnectionHandle,
    pub dialed_here: bool,
    pub boot: u64,
    /// The peer's count of lost links as its hello had it.
    pub losses: u64,
    pub since: Duration,
}

/// One of the two links with a peer.
#[derive(Debug, Default)]
pub struct Link {
    pub established: Option<Established>,
    /// A connection that this member dials.
    pub dialing: Option<ConnectionHandle>,
    /// When the dial under way gives way to the next address.
    pub dial_until: Option<Duration>,
    /// How often the link was lost since this member's start.
    pub losses: u64,
    /// Failures since the link was last up.
    pub attempts: u32,
    /// When the peer is to be dialed next.
    pub dial_at: Option<Duration>,
    /// Since when an address is awaited.
    pub asked_at: Option<Duration>,
    /// Addresses that have not been tried since they were given.
    pub addresses: VecDeque<Address>,
}

/// A question whether a peer is there.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The acknowledgements that had come when it was asked.
    pub acknowledged: u64,
    pub until: Duration,
}

/// A peer.
#[derive(Debug)]
pub struct Peer {
    /// Whether it is among those that were named. Others are answered but never dialed.
    pub is_known: bool,
    /// What its certificate must name.
    pub server_name: String,
    /// By `LinkKind::index`.
    pub links: [Link; 2],
    /// By lane.
    queues: [Queue; 3],
    pub tripwire: TripwireToken,
    pub probe: Option<Probe>,
    /// Frames that were over a bound, by lane.
    pub dropped: [u64; 3],
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

fn place(lane: Lane) -> usize {
    match lane {
        Lane::Control => 0,
        Lane::Log => 1,
        Lane::Bulk => 2,
    }
}

fn bytes_max(lane: Lane) -> usize {
    match lane {
        Lane::Control => CONTROL_QUEUE_BYTES,
        Lane::Log => LOG_QUEUE_BYTES,
        Lane::Bulk => BULK_QUEUE_BYTES,
    }
}

impl Peer {
    pub fn new(is_known: bool, server_name: String) -> Self {
        Self {
            is_known,
            server_name,
            links: [Link::default(), Link::default()],
            queues: [Queue::default(), Queue::default(), Queue::default()],
            tripwire: [0; 16],
            probe: None,
            dropped: [0; 3],
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    pub fn queue(&mut self, lane: Lane) -> &mut Queue {
        &mut self.queues[place(lane)]
    }

    /// Bytes that may still be queued on a lane.
    pub fn room(&self, lane: Lane) -> usize {
        bytes_max(lane).saturating_sub(self.queues[place(lane)].bytes)
    }

    /// When something is to be done about the peer.
    pub fn due(&self) -> Option<Duration> {
        let links = self.links.iter().flat_map(|link| {
            let asked = link.asked_at.map(|asked| asked + ADDRESS_TIMEOUT);
            [link.dial_at, link.dial_until, asked].into_iter().flatten()
        });
        links.chain(self.probe.map(|probe| probe.until)).min()
    }

    /// Adds a frame to its lane's queue. False if it was over the bound.
    pub fn push(&mut self, lane: Lane, frame: Bytes) -> bool {
        let length = u64::try_from(frame.len()).expect("a frame fits in memory");
        let fits = self.queue(lane).push(frame, bytes_max(lane));
        if fits {
            self.sent_bytes += length;
        } else {
            self.dropped[place(lane)] += 1;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_takes_what_fits_and_any_one_frame_alone() {
        let mut queue = Queue::default();
        assert!(queue.push(Bytes::from(vec![0; 100]), 10), "it waits alone");
        assert!(!queue.push(Bytes::from(vec![0; 1]), 10));
        queue.taken(100, 1);
        assert!(queue.is_empty());
        assert!(queue.push(Bytes::from(vec![0; 4]), 10) && queue.push(Bytes::from(vec![0; 6]), 10));
        assert!(!queue.push(Bytes::from(vec![0; 1]), 10));
        assert_eq!(queue.bytes, 10);
    }
}
