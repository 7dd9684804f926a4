//! A session without secrets, for the simulator: it goes through a handshake of the same flights as TLS, exchanges
//! identities and transport parameters, and marks packets with a checksum that binds them to their connection, so that
//! what belongs to another connection is told from what belongs to this one. It hides nothing from anybody.

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use quinn_proto::crypto::{
    self, AeadKey, CryptoError, ExportKeyingMaterialError, HandshakeTokenKey, HeaderKey, HmacKey, KeyPair, Keys,
    PacketKey, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};

use super::config::{Fingerprint, Security};

/// Bytes of the checksum at each packet's end.
const TAG_BYTES: usize = 8;
/// Bytes of the length before each flight of the handshake.
const LENGTH_BYTES: usize = 4;

/// Security that is none. `identity` stands for the public key; members with different ones are told apart by it.
pub fn security(identity: Fingerprint, reset_key: u64) -> Security {
    Security {
        client: Arc::new(NullConfig { identity }),
        server: Arc::new(NullConfig { identity }),
        reset_key: Arc::new(NullKey(reset_key)),
        token_key: Arc::new(NullKey(reset_key)),
    }
}

struct NullConfig {
    identity: Fingerprint,
}

impl crypto::ClientConfig for NullConfig {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        _server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(Box::new(NullSession::new(Side::Client, self.identity, params)))
    }
}

impl crypto::ServerConfig for NullConfig {
    fn initial_keys(&self, _version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(keys(hash(&[dst_cid])))
    }

    fn retry_tag(&self, _version: u32, _orig_dst_cid: &ConnectionId, _packet: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn start_session(self: Arc<Self>, _version: u32, params: &TransportParameters) -> Box<dyn Session> {
        Box::new(NullSession::new(Side::Server, self.identity, params))
    }
}

/// What the handshake waits for, in order; the client's and the server's own steps are told by their names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The client writes its identity and parameters, and the server reads them.
    ClientHello,
    /// The server writes its own, and the client reads them.
    ServerHello,
    /// The client takes the handshake's keys.
    ClientKeys,
    /// The server says that it is done, and the client hears it.
    ServerDone,
    /// The client says the same.
    ClientDone,
    Done,
}

struct NullSession {
    side: Side,
    step: Step,
    /// Identity and parameters of this side.
    own: Vec<u8>,
    /// Those of the other side, once they have come.
    other: Option<Vec<u8>>,
    /// Bytes of a flight that is not whole yet.
    incoming: Vec<u8>,
    announced: bool,
}

impl NullSession {
    fn new(side: Side, identity: Fingerprint, params: &TransportParameters) -> Self {
        let mut own = identity.to_vec();
        params.write(&mut own);
        Self { side, step: Step::ClientHello, own, other: None, incoming: Vec::new(), announced: false }
    }

    /// The whole flight at the front of what has come.
    fn take_flight(&mut self) -> Option<Vec<u8>> {
        let length = u32::from_le_bytes(*self.incoming.first_chunk::<LENGTH_BYTES>()?);
        let end = LENGTH_BYTES.checked_add(usize::try_from(length).ok()?)?;
        if self.incoming.len() < end {
            return None;
        }
        let rest = self.incoming.split_off(end);
        let mut flight = std::mem::replace(&mut self.incoming, rest);
        flight.drain(..LENGTH_BYTES);
        Some(flight)
    }

    fn secret(&self) -> u64 {
        let other = self.other.as_deref().unwrap_or_default();
        match self.side {
            Side::Client => hash(&[&self.own, other]),
            Side::Server => hash(&[other, &self.own]),
        }
    }
}

fn violation(reason: &str) -> TransportError {
    TransportError { code: TransportErrorCode::PROTOCOL_VIOLATION, frame: None, reason: reason.to_owned() }
}

fn put_flight(content: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(content.len()).expect("a flight is short");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(content);
}

impl Session for NullSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, _side: Side) -> Keys {
        keys(hash(&[dst_cid]))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.other.as_ref().map(|_| -> Box<dyn Any> { Box::new(()) })
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        let identity = *self.other.as_ref()?.first_chunk::<32>()?;
        Some(Box::new(identity))
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.step != Step::Done
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.incoming.extend_from_slice(bytes);
        while let Some(flight) = self.take_flight() {
            match (self.side, self.step) {
                (Side::Server, Step::ClientHello) => {
                    self.other = Some(flight);
                    self.step = Step::ServerHello;
                }
                (Side::Client, Step::ServerHello) => {
                    self.other = Some(flight);
                    self.step = Step::ClientKeys;
                }
                (Side::Client, Step::ServerDone) => self.step = Step::ClientDone,
                (Side::Server, Step::ClientDone) => self.step = Step::Done,
                _ => return Err(violation("an unexpected flight")),
            }
        }
        Ok(self.other.is_some() && !std::mem::replace(&mut self.announced, self.other.is_some()))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(other) = &self.other else { return Ok(None) };
        let mut params = other.get(32..).unwrap_or_default();
        TransportParameters::read(self.side, &mut params).map(Some).map_err(|error| violation(&error.to_string()))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        match (self.side, self.step) {
            (Side::Client, Step::ClientHello) => {
                put_flight(&self.own, out);
                self.step = Step::ServerHello;
                None
            }
            (Side::Server, Step::ServerHello) => {
                put_flight(&self.own, out);
                self.step = Step::ServerDone;
                Some(keys(self.secret()))
            }
            (Side::Client, Step::ClientKeys) => {
                self.step = Step::ServerDone;
                Some(keys(self.secret()))
            }
            (Side::Server, Step::ServerDone) => {
                put_flight(&[], out);
                self.step = Step::ClientDone;
                Some(keys(self.secret().rotate_left(1)))
            }
            (Side::Client, Step::ClientDone) => {
                put_flight(&[], out);
                self.step = Step::Done;
                Some(keys(self.secret().rotate_left(1)))
            }
            _ => None,
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        Some(keys(self.secret().rotate_left(1)).packet)
    }

    fn is_valid_retry(&self, _orig_dst_cid: &ConnectionId, _header: &[u8], _payload: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        let bytes = hash(&[label, context, &self.secret().to_le_bytes()]).to_le_bytes();
        for (to, from) in output.iter_mut().zip(bytes.iter().cycle()) {
            *to = *from;
        }
        Ok(())
    }
}

fn keys(secret: u64) -> Keys {
    let packet = |secret| -> Box<dyn PacketKey> { Box::new(NullKey(secret)) };
    let header = || -> Box<dyn HeaderKey> { Box::new(NullKey(0)) };
    Keys {
        header: KeyPair { local: header(), remote: header() },
        packet: KeyPair { local: packet(secret), remote: packet(secret) },
    }
}

/// FNV-1a over 8 bytes at a time: spreads well enough to tell one connection's packets from another's.
fn hash(parts: &[&[u8]]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        let mut words = part.chunks_exact(8);
        for word in &mut words {
            state = (state ^ u64::from_le_bytes(word.try_into().expect("eight bytes"))).wrapping_mul(PRIME);
            state ^= state >> 32;
        }
        for byte in words.remainder() {
            state = (state ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
        state = (state ^ u64::try_from(part.len()).expect("a length fits")).wrapping_mul(PRIME);
        state ^= state >> 29;
    }
    state
}

struct NullKey(u64);

impl NullKey {
    fn tag(&self, packet: u64, header: &[u8], payload: &[u8]) -> [u8; TAG_BYTES] {
        hash(&[&self.0.to_le_bytes(), &packet.to_le_bytes(), header, payload]).to_le_bytes()
    }
}

impl PacketKey for NullKey {
    fn encrypt(&self, packet: u64, bytes: &mut [u8], header_len: usize) {
        let (content, tag) = bytes.split_at_mut(bytes.len() - TAG_BYTES);
        let (header, payload) = content.split_at(header_len);
        tag.copy_from_slice(&self.tag(packet, header, payload));
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let Some(end) = payload.len().checked_sub(TAG_BYTES) else { return Err(CryptoError) };
        if payload[end..] != self.tag(packet, header, &payload[..end]) {
            return Err(CryptoError);
        }
        payload.truncate(end);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

impl HeaderKey for NullKey {
    fn decrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn encrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        0
    }
}

impl HmacKey for NullKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        let bytes = hash(&[&self.0.to_le_bytes(), data]).to_le_bytes();
        for (to, from) in signature.iter_mut().zip(bytes.iter().cycle()) {
            *to = *from;
        }
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let mut expected = [0; 32];
        self.sign(data, &mut expected);
        if signature == expected { Ok(()) } else { Err(CryptoError) }
    }
}

impl HandshakeTokenKey for NullKey {
    fn aead_from_hkdf(&self, _random_bytes: &[u8]) -> Box<dyn AeadKey> {
        Box::new(Self(self.0))
    }
}

impl AeadKey for NullKey {
    fn seal(&self, data: &mut Vec<u8>, additional_data: &[u8]) -> Result<(), CryptoError> {
        let tag = self.tag(0, additional_data, data);
        data.extend_from_slice(&tag);
        Ok(())
    }

    fn open<'a>(&self, data: &'a mut [u8], additional_data: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        let Some(end) = data.len().checked_sub(TAG_BYTES) else { return Err(CryptoError) };
        if data[end..] != self.tag(0, additional_data, &data[..end]) {
            return Err(CryptoError);
        }
        Ok(&mut data[..end])
    }
}
