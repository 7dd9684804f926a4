//! The network between members: messages are encoded, take their time, and meet with whatever the seed has drawn.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use garboard_replica::peer::PeerMessage;
use garboard_simdisk::Rng;
use garboard_transport::{FrameBody, FrameReader, Lane};

use super::plan::NetworkPlan;
use crate::outcome::{Check, violated};

/// What goes wrong between two members, in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    cut_until: Duration,
    slow_until: Duration,
    /// What it adds while it is slow, at most.
    slowness: Duration,
    /// When the last message of each lane arrives.
    last_arrival: [Duration; 3],
}

/// The network.
pub(super) struct Network {
    pub(super) plan: NetworkPlan,
    rng: Rng,
    size: usize,
    links: Vec<Link>,
    /// Messages that were handed in, and those that arrive.
    pub(super) sent: u64,
    pub(super) lost: u64,
}

impl Network {
    pub(super) fn new(plan: NetworkPlan, rng: Rng, size: usize) -> Network {
        Network { plan, rng, size, links: vec![Link::default(); size * size], sent: 0, lost: 0 }
    }

    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.size + to]
    }

    /// Nothing gets from one member to another until then.
    pub(super) fn cut(&mut self, from: usize, to: usize, until: Duration) {
        let link = self.link(from, to);
        link.cut_until = link.cut_until.max(until);
    }

    /// Messages from one member to another take up to so much longer until then.
    pub(super) fn slow_down(&mut self, from: usize, to: usize, until: Duration, slowness: Duration) {
        let link = self.link(from, to);
        (link.slow_until, link.slowness) = (until, slowness);
    }

    /// Nothing goes wrong any more.
    pub(super) fn heal(&mut self) {
        self.plan = NetworkPlan::calm();
        for link in &mut self.links {
            (link.cut_until, link.slow_until) = (Duration::ZERO, Duration::ZERO);
        }
    }

    /// When a message arrives: never, once or twice.
    pub(super) fn arrivals(&mut self, now: Duration, from: usize, to: usize, lane: Lane) -> [Option<Duration>; 2] {
        self.sent += 1;
        let plan = self.plan;
        if now < self.link(from, to).cut_until || self.rng.below(10_000) < plan.loss {
            self.lost += 1;
            return [None, None];
        }
        let first = self.arrival(now, from, to, lane);
        let twice = plan.duplicates > 0 && self.rng.below(10_000) < plan.duplicates;
        [Some(first), twice.then(|| self.arrival(now, from, to, lane))]
    }

    fn arrival(&mut self, now: Duration, from: usize, to: usize, lane: Lane) -> Duration {
        let plan = self.plan;
        let up_to = |rng: &mut Rng, most: Duration| {
            Duration::from_nanos(rng.below(u64::try_from(most.as_nanos()).expect("short") + 1))
        };
        let mut arrival = now + plan.base + up_to(&mut self.rng, plan.jitter);
        if plan.late.0 > 0 && self.rng.below(10_000) < plan.late.0 {
            arrival += up_to(&mut self.rng, plan.late.1);
        }
        let link = *self.link(from, to);
        if now < link.slow_until {
            arrival += up_to(&mut self.rng, link.slowness);
        }
        if !plan.reorders {
            let lane = match lane {
                Lane::Control => 0,
                Lane::Log => 1,
                Lane::Bulk => 2,
            };
            let last = &mut self.link(from, to).last_arrival[lane];
            arrival = arrival.max(*last);
            *last = arrival;
        }
        arrival
    }
}

/// A message as a link carries it.
pub(super) fn encode(message: &PeerMessage) -> Check<Bytes> {
    let mut bytes = BytesMut::new();
    let framed = match message {
        PeerMessage::Raft(message) => garboard_transport::encode(0, message, &mut bytes),
        other => {
            let body = other.encode().expect("only Raft's messages have frames of their own");
            garboard_transport::encode_opaque(0, &body, &mut bytes)
        }
    };
    match framed {
        Ok(()) => Ok(bytes.freeze()),
        Err(error) => violated("what a member sends can be framed", "", format!("{error}: {message:?}")),
    }
}

/// What a link brings.
pub(super) fn decode(bytes: &[u8]) -> Check<PeerMessage> {
    let mut reader = FrameReader::new();
    match reader.handle_bytes(bytes).map(|_| reader.poll_frame()) {
        Ok(Some(frame)) => read_body(frame.body),
        other => violated("what was framed can be read", "", format!("{other:?}")),
    }
}

/// What the body of a frame says.
pub(super) fn read_body(body: FrameBody) -> Check<PeerMessage> {
    match body {
        FrameBody::Raft(message) => Ok(PeerMessage::Raft(message)),
        FrameBody::Opaque(body) => match PeerMessage::decode(&body) {
            Ok(message) => Ok(message),
            Err(error) => violated("what a member sends can be read", "", error.to_string()),
        },
    }
}
