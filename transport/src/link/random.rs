//! Randomness from a seed that was given.

use std::sync::{Arc, Mutex, PoisonError};

use quinn_proto::{ConnectionId, ConnectionIdGenerator};

/// Bytes in a connection id. Eight, as quinn's own have: a packet of an earlier process can be told by its token.
const CONNECTION_ID_BYTES: usize = 8;

/// SplitMix64 (Steele, Lea, Flood 2014): what needs to be spread, not secret.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A seed for something else.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        for part in seed.chunks_exact_mut(8) {
            part.copy_from_slice(&self.draw().to_le_bytes());
        }
        seed
    }
}

/// Connection ids from a seed; all generators of one endpoint draw from the same sequence, so that none comes twice.
#[derive(Clone)]
pub struct ConnectionIds(Arc<Mutex<Random>>);

impl ConnectionIds {
    pub fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(random)))
    }

    pub fn next(&self) -> ConnectionId {
        let drawn = self.0.lock().unwrap_or_else(PoisonError::into_inner).draw();
        ConnectionId::new(&drawn.to_le_bytes())
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        self.next()
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<core::time::Duration> {
        None
    }
}
