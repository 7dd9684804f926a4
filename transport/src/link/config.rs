//! What links are made with.

use core::time::Duration;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::crypto::{self, HandshakeTokenKey, HmacKey};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, NoneTokenLog, NoneTokenStore,
    ServerConfig, TransportConfig, ValidationTokenConfig, VarInt,
};

use super::congestion::FlooredFactory;
use super::hello::TripwireToken;
use super::limits::{CONTROL_SEND_BYTES, STREAM_RECEIVE_BYTES, STREAM_SEND_BYTES};
use super::random::{ConnectionIds, Random};

/// What tells one public key from another: its SHA-256.
pub type Fingerprint = [u8; 32];

/// How the ends of a connection know each other: TLS, or the simulator's session without secrets.
#[derive(Clone)]
pub struct Security {
    /// For connections that this member dials.
    pub client: Arc<dyn crypto::ClientConfig>,
    /// For those that it is dialed on.
    pub server: Arc<dyn crypto::ServerConfig>,
    /// Signs what lets a peer notice that this member has restarted; the same at each start.
    pub reset_key: Arc<dyn HmacKey>,
    /// Signs address tokens.
    pub token_key: Arc<dyn HandshakeTokenKey>,
}

/// How a peer's key is held against its member id.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The certificate authority vouches: whoever it has certified may be any member, as with etcd.
    Authority,
    /// A member's key is what it was at first contact. These are known from earlier.
    FirstContact(BTreeMap<u64, Fingerprint>),
}

/// What links are made with.
#[derive(Clone)]
pub struct LinksConfig {
    /// This member.
    pub member_id: u64,
    /// Its cluster.
    pub cluster_id: u64,
    /// Differs at each start of this member.
    pub boot: u64,
    /// What the time 0 of all calls is. Only differences count.
    pub epoch: Instant,
    /// Seed of everything random.
    pub seed: [u8; 32],
    /// What peers show on their tripwire connections to this member.
    pub tripwire: TripwireToken,
    /// The session under the connections.
    pub security: Security,
    /// How keys are held against ids.
    pub trust: Trust,
    /// A connection on which nothing comes for this long is lost.
    pub idle_timeout: Duration,
    /// How often something is sent on a connection that is otherwise silent.
    pub keep_alive: Duration,
    /// Largest datagram that is probed for; none keeps to what always gets through.
    pub mtu_max: Option<u16>,
}

impl LinksConfig {
    /// With etcd's default timers.
    pub fn new(member_id: u64, cluster_id: u64, epoch: Instant, security: Security) -> Self {
        Self {
            member_id,
            cluster_id,
            boot: 0,
            epoch,
            seed: [0; 32],
            tripwire: [0; 16],
            security,
            trust: Trust::FirstContact(BTreeMap::new()),
            idle_timeout: Duration::from_millis(2_000),
            keep_alive: Duration::from_millis(500),
            mtu_max: None,
        }
    }
}

/// quinn's configurations.
pub(super) struct QuicConfigs {
    pub endpoint: Arc<EndpointConfig>,
    pub server: Arc<ServerConfig>,
    pub client: ClientConfig,
}

pub(super) fn quic_configs(config: &LinksConfig, random: &mut Random) -> QuicConfigs {
    let ids = ConnectionIds::new(Random::new(random.draw()));
    let mut endpoint = EndpointConfig::new(config.security.reset_key.clone());
    let generator = ids.clone();
    endpoint.cid_generator(move || Box::new(generator.clone()));
    endpoint.rng_seed(Some(config.seed));
    let transport = Arc::new(transport_config(config));
    let mut server = ServerConfig::new(config.security.server.clone(), config.security.token_key.clone());
    let mut tokens = ValidationTokenConfig::default();
    tokens.sent(0).log(Arc::new(NoneTokenLog));
    server.transport_config(transport.clone()).validation_token_config(tokens);
    let mut client = ClientConfig::new(config.security.client.clone());
    client.transport_config(transport).token_store(Arc::new(NoneTokenStore));
    client.initial_dst_cid_provider(Arc::new(move || ids.next()));
    QuicConfigs { endpoint: Arc::new(endpoint), server: Arc::new(server), client }
}

fn transport_config(config: &LinksConfig) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let mut acks = AckFrequencyConfig::default();
    // Acknowledgements mostly ride on answers. Late ones hold up nothing but the notice of a loss.
    acks.ack_eliciting_threshold(VarInt::from_u32(8)).max_ack_delay(Some(Duration::from_millis(5)));
    let idle = IdleTimeout::try_from(config.idle_timeout).expect("an idle timeout is some seconds");
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(2))
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(config.keep_alive))
        .stream_receive_window(VarInt::from_u32(STREAM_RECEIVE_BYTES))
        .send_window(STREAM_SEND_BYTES + CONTROL_SEND_BYTES)
        .initial_rtt(Duration::from_millis(50))
        .ack_frequency_config(Some(acks))
        .datagram_receive_buffer_size(None)
        .allow_spin(false)
        .congestion_controller_factory(Arc::new(FlooredFactory::new()))
        .mtu_discovery_config(config.mtu_max.map(|bytes| {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery.upper_bound(bytes);
            discovery
        }));
    transport
}

/// The fingerprint of what a session says of the other side.
pub(super) fn fingerprint(identity: Option<Box<dyn Any>>) -> Option<Fingerprint> {
    let identity = match identity?.downcast::<Fingerprint>() {
        Ok(fingerprint) => return Some(*fingerprint),
        Err(identity) => identity,
    };
    let chain = identity.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok()?;
    super::tls::fingerprint_of(chain.first()?)
}
