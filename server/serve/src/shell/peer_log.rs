//! What the operator is told of the peers: each change once, and what repeats at every try only now and then.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use garboard_transport::link::LinkEvent;

/// How long a line that says the same of the same peer is held back.
const REPEAT_AFTER: Duration = Duration::from_secs(30);
/// Most lines that are remembered for it.
const REMEMBERED_MAX: usize = 256;

/// Tells the operator.
#[derive(Default)]
pub struct PeerLog {
    names: BTreeMap<u64, String>,
    /// When something was said last.
    said: BTreeMap<(u64, String), Duration>,
}

impl PeerLog {
    /// A member's name, for the lines about it.
    pub fn set_name(&mut self, id: u64, name: &str) {
        self.names.insert(id, name.to_owned());
    }

    fn peer(&self, id: u64) -> String {
        match self.names.get(&id).filter(|name| !name.is_empty()) {
            Some(name) => format!("{id:x} ({name})"),
            None => format!("{id:x}"),
        }
    }

    fn is_new(&mut self, now: Duration, peer: u64, text: &str) -> bool {
        if self.said.len() > REMEMBERED_MAX {
            self.said.clear();
        }
        let key = (peer, text.to_owned());
        let is_new = self.said.get(&key).is_none_or(|said| *said + REPEAT_AFTER <= now);
        if is_new {
            self.said.insert(key, now);
        }
        is_new
    }

    fn warn(&mut self, now: Duration, peer: u64, text: String) {
        if self.is_new(now, peer, &text) {
            tracing::warn!("{text}");
        }
    }

    /// A message that could not be read.
    pub fn unreadable(&mut self, now: Duration, from: u64, error: &dyn Display) {
        let text = format!("a message of peer {} can't be read: {error}", self.peer(from));
        self.warn(now, from, text);
    }

    /// A peer's name that the resolver does not know.
    pub fn unresolved(&mut self, now: Duration, peer: u64, failure: &str) {
        let text = format!("peer {} is not reached: {failure}", self.peer(peer));
        self.warn(now, peer, text);
    }

    /// Says what an event means, if it means something to an operator.
    pub fn note(&mut self, now: Duration, event: &LinkEvent) {
        match event {
            LinkEvent::Up { peer, address, .. } => {
                tracing::info!("peer {} is there, at {address}", self.peer(*peer));
                self.said.retain(|(about, _), _| about != peer);
            }
            LinkEvent::Down { peer, reason } => tracing::warn!("lost peer {}: {reason}", self.peer(*peer)),
            LinkEvent::DialFailed { peer, address, reason, .. } => {
                let text = format!("peer {} is not reached at {address}: {reason}", self.peer(*peer));
                self.warn(now, *peer, text);
            }
            LinkEvent::Refused { peer, address, refusal } => {
                let who = peer.map_or_else(|| "somebody".to_owned(), |peer| format!("peer {}", self.peer(peer)));
                self.warn(now, peer.unwrap_or(0), format!("refused {who} at {}: {refusal}", address.ip()));
            }
            LinkEvent::RefusedBy { peer, address, code, reason } => {
                let who = peer.map_or_else(|| "somebody".to_owned(), |peer| format!("peer {}", self.peer(peer)));
                let text = format!("{who} at {} refuses this member ({code}): {reason}", address.ip());
                self.warn(now, peer.unwrap_or(0), text);
            }
            LinkEvent::ProbeSilent { peer } => tracing::warn!(
                "the process of peer {} has ended: so did its TCP connection, and it does not answer",
                self.peer(*peer)
            ),
            LinkEvent::Pinned { peer, fingerprint } => {
                let start: String = fingerprint[..8].iter().map(|byte| format!("{byte:02x}")).collect();
                tracing::info!("remembered the key of peer {}: SHA-256 {start}…", self.peer(*peer));
            }
            _ => {}
        }
    }
}
