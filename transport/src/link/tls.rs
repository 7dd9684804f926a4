//! TLS 1.3 under the connections: both sides always show a key.
//!
//! Either a certificate authority vouches for the members ([`with_authority`]), or each member has a key of its own that
//! was made once, and who holds which is remembered at first contact ([`with_own_key`]). TLS then only proves that the
//! other side holds the key that it shows; [`Links`](super::Links) holds it against the member's id.

use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use ring::{digest, hkdf, hmac};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use super::config::{Fingerprint, Security};

/// The application protocol that both sides name.
const PROTOCOL: &[u8] = b"garboard-peer";

/// Why certificates or keys can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file holds no certificate or key in PEM form.
    #[error("{0} holds no {1} in PEM form")]
    Pem(&'static str, &'static str),
    /// The library refuses them.
    #[error("the certificate or its key can't be used: {0}")]
    Refused(String),
    /// No key could be made.
    #[error("no key could be made: {0}")]
    Making(String),
}

/// A member's own key and the certificate that carries it, both in DER form.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnKey {
    /// A certificate that the key signed itself.
    pub certificate: Vec<u8>,
    /// The private key, PKCS #8.
    pub key: Vec<u8>,
}

impl core::fmt::Debug for OwnKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("OwnKey").finish_non_exhaustive()
    }
}

impl OwnKey {
    /// Makes a key. The operating system gives the randomness.
    ///
    /// # Errors
    /// Where it gives none.
    pub fn make() -> Result<Self, TlsError> {
        let making = |error: rcgen::Error| TlsError::Making(error.to_string());
        let key = rcgen::KeyPair::generate().map_err(making)?;
        let params = rcgen::CertificateParams::new(vec!["garboard-peer".to_owned()]).map_err(making)?;
        let certificate = params.self_signed(&key).map_err(making)?;
        Ok(Self { certificate: certificate.der().to_vec(), key: key.serialize_der() })
    }

    /// What peers remember of it.
    pub fn fingerprint(&self) -> Fingerprint {
        sha256(&self.certificate)
    }
}

/// Security from a certificate and key in PEM form, and the authorities that vouch for peers.
///
/// # Errors
/// Where a part is missing, or the parts do not fit each other.
pub fn with_authority(
    certificate: &[u8],
    key: &[u8],
    authorities: &[u8],
    reset_secret: &[u8; 32],
) -> Result<Security, TlsError> {
    let chain = certificates(certificate, "the peer certificate file")?;
    let key = private_key(key)?;
    let mut roots = RootCertStore::empty();
    for root in certificates(authorities, "the peers' trusted CA file")? {
        roots.add(root).map_err(refused)?;
    }
    let (roots, provider) = (Arc::new(roots), Arc::new(crypto_provider()));
    let server = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone());
    let client = WebPkiClientVerifier::builder_with_provider(roots, provider);
    security(chain, key, server.build().map_err(refused)?, client.build().map_err(refused)?, reset_secret)
}

/// Security from a key of the member's own: any key is taken from peers, if they prove that they hold it.
///
/// # Errors
/// Where the key can't be used.
pub fn with_own_key(own: &OwnKey, reset_secret: &[u8; 32]) -> Result<Security, TlsError> {
    let chain = vec![CertificateDer::from(own.certificate.clone())];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.key.clone()));
    let any = Arc::new(AnyKey(Arc::new(crypto_provider())));
    security(chain, key, any.clone(), any, reset_secret)
}

/// The same, from a certificate and key in PEM form that no authority of ours vouches for.
///
/// # Errors
/// Where the parts do not fit each other.
pub fn with_unvouched(certificate: &[u8], key: &[u8], reset_secret: &[u8; 32]) -> Result<Security, TlsError> {
    let chain = certificates(certificate, "the peer certificate file")?;
    let any = Arc::new(AnyKey(Arc::new(crypto_provider())));
    security(chain, private_key(key)?, any.clone(), any, reset_secret)
}

fn certificates(pem: &[u8], file: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    found.ok().filter(|chain| !chain.is_empty()).ok_or(TlsError::Pem(file, "certificate"))
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::Pem("the peer key file", "private key"))
}

fn refused(error: impl std::error::Error) -> TlsError {
    TlsError::Refused(error.to_string())
}

fn security(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    server_verifier: Arc<dyn ServerCertVerifier>,
    client_verifier: Arc<dyn ClientCertVerifier>,
    reset_secret: &[u8; 32],
) -> Result<Security, TlsError> {
    let versions = [&rustls::version::TLS13];
    let mut client = rustls::ClientConfig::builder_with_provider(Arc::new(crypto_provider()))
        .with_protocol_versions(&versions)
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(server_verifier)
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map_err(refused)?;
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    client.resumption = Resumption::disabled();
    let mut server = rustls::ServerConfig::builder_with_provider(Arc::new(crypto_provider()))
        .with_protocol_versions(&versions)
        .map_err(refused)?
        .with_client_cert_verifier(client_verifier)
        .with_single_cert(chain, key)
        .map_err(refused)?;
    server.alpn_protocols = vec![PROTOCOL.to_vec()];
    server.send_tls13_tickets = 0;
    Ok(Security {
        client: Arc::new(QuicClientConfig::try_from(client).map_err(refused)?),
        server: Arc::new(QuicServerConfig::try_from(server).map_err(refused)?),
        reset_key: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset_secret)),
        token_key: Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"garboard address tokens").extract(reset_secret)),
    })
}

/// AES-128 first: peers are machines that have it in hardware.
fn crypto_provider() -> CryptoProvider {
    let suites = vec![
        provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
        provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
        provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider { cipher_suites: suites, ..provider::default_provider() }
}

/// The fingerprint of a certificate.
pub fn fingerprint_of(certificate: &CertificateDer<'_>) -> Option<Fingerprint> {
    Some(sha256(certificate))
}

fn sha256(bytes: &[u8]) -> Fingerprint {
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    fingerprint
}

/// Takes every key whose holder proves that it holds it.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl AnyKey {
    fn check(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn no_tls12() -> rustls::Error {
    rustls::Error::General("only TLS 1.3 is spoken".to_owned())
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
