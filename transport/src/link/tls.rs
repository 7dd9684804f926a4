//! TLS 1.3 under the connections: both sides always show a key.
//!
//! Either a certificate authority vouches for the members ([`Credentials::with_authority`]), or each member has a key of its
//! own that was made once, and who holds which is remembered at first contact ([`Credentials::with_own_key`]). TLS then only
//! proves that the other side holds the key that it shows; [`Links`](super::Links) holds it against the member's id.

use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use ring::{digest, hkdf, hmac};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, SignatureScheme};

use super::config::{Fingerprint, Security};

/// How the files are called where one does not serve.
const CERTIFICATE_FILE: &str = "the file of --peer-cert-file";
const KEY_FILE: &str = "the file of --peer-key-file";
const PAIR: &str = "this member's certificate with its key";
const AUTHORITY_FILE: &str = "the file of --peer-trusted-ca-file";
const REVOKED_FILE: &str = "the file of --peer-crl-file";

/// The application protocol that both sides name.
const PROTOCOL: &[u8] = b"garboard-peer";

/// Why certificates or keys can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file holds no certificate or key in PEM form.
    #[error("{0} holds no {1} in PEM form")]
    Pem(&'static str, &'static str),
    /// What a file holds does not serve.
    #[error("{0} can't be used: {1}")]
    Unfit(&'static str, String),
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

/// Who is believed to be a member, beside what a key proves.
pub struct Authority<'a> {
    /// The authorities that vouch for peers, in PEM form.
    pub roots: &'a [u8],
    /// Lists of certificates that are not to be believed any more, in PEM or DER form.
    pub revoked: Option<&'a [u8]>,
    /// What a certificate must carry besides.
    pub allowed: &'a Allowed,
}

/// What the certificates of peers must carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// Whatever the authority has certified.
    #[default]
    Any,
    /// One of these as its subject's common name.
    CommonNames(Vec<String>),
    /// One of these as a host that it is good for.
    Hostnames(Vec<String>),
}

/// What a member shows its peers and whom it believes, for QUIC and for TCP alike.
#[derive(Clone, Debug)]
pub struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    verifier: Arc<Verifier>,
}

impl Credentials {
    /// A certificate and its key in PEM form, and who is believed.
    ///
    /// # Errors
    /// Where a part is missing, or the parts do not fit each other.
    pub fn with_authority(certificate: &[u8], key: &[u8], authority: &Authority<'_>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for root in certificates(authority.roots, AUTHORITY_FILE)? {
            roots.add(root).map_err(|error| unfit(AUTHORITY_FILE, &error))?;
        }
        let revoked = authority.revoked.map_or(Ok(Vec::new()), revocations)?;
        let (roots, provider) = (Arc::new(roots), Arc::new(crypto_provider()));
        // As etcd: a certificate is refused that a list names; one that no list speaks of is not.
        let server = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
            .with_crls(revoked.clone())
            .allow_unknown_revocation_status()
            .build();
        let client = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .with_crls(revoked)
            .allow_unknown_revocation_status()
            .build();
        // The authority is known to be there: what can be wrong still is a list.
        let server = server.map_err(|error| unfit(REVOKED_FILE, &error))?;
        let client = client.map_err(|error| unfit(REVOKED_FILE, &error))?;
        let vouching = Vouching { server, client, allowed: authority.allowed.clone() };
        Credentials::new(certificate, key, Verifier { provider, vouching: Some(vouching) })
    }

    /// A key of the member's own: any key is taken from peers, if they prove that they hold it.
    pub fn with_own_key(own: &OwnKey) -> Self {
        let chain = vec![CertificateDer::from(own.certificate.clone())];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.key.clone()));
        Credentials { chain, key: Arc::new(key), verifier: Arc::new(Verifier::of_any_key()) }
    }

    /// The same, from a certificate and key in PEM form that no authority of ours vouches for.
    ///
    /// # Errors
    /// Where a part is missing.
    pub fn with_unvouched(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Credentials::new(certificate, key, Verifier::of_any_key())
    }

    fn new(certificate: &[u8], key: &[u8], verifier: Verifier) -> Result<Self, TlsError> {
        let chain = certificates(certificate, CERTIFICATE_FILE)?;
        Ok(Credentials { chain, key: Arc::new(private_key(key)?), verifier: Arc::new(verifier) })
    }

    /// TLS for a connection that this member dials; what is spoken on it has this name.
    ///
    /// # Errors
    /// Where the parts do not fit each other.
    pub fn client(&self, protocol: &[u8]) -> Result<rustls::ClientConfig, TlsError> {
        let mut client = rustls::ClientConfig::builder_with_provider(Arc::new(crypto_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit(PAIR, &error))?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier.clone())
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| unfit(PAIR, &error))?;
        client.alpn_protocols = vec![protocol.to_vec()];
        client.resumption = Resumption::disabled();
        Ok(client)
    }

    /// TLS for connections that this member is dialed on.
    ///
    /// # Errors
    /// Where the parts do not fit each other.
    pub fn server(&self, protocol: &[u8]) -> Result<rustls::ServerConfig, TlsError> {
        let mut server = rustls::ServerConfig::builder_with_provider(Arc::new(crypto_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit(PAIR, &error))?
            .with_client_cert_verifier(self.verifier.clone())
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(|error| unfit(PAIR, &error))?;
        server.alpn_protocols = vec![protocol.to_vec()];
        server.send_tls13_tickets = 0;
        Ok(server)
    }

    /// Security for the links. `reset_secret` signs what tells peers that this member has restarted.
    ///
    /// # Errors
    /// Where the parts do not fit each other.
    pub fn links(&self, reset_secret: &[u8; 32]) -> Result<Security, TlsError> {
        let client = QuicClientConfig::try_from(self.client(PROTOCOL)?).map_err(|error| unfit(PAIR, &error))?;
        let server = QuicServerConfig::try_from(self.server(PROTOCOL)?).map_err(|error| unfit(PAIR, &error))?;
        Ok(Security {
            client: Arc::new(client),
            server: Arc::new(server),
            reset_key: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset_secret)),
            token_key: Arc::new(hkdf::Salt::new(hkdf::HKDF_SHA256, b"garboard address tokens").extract(reset_secret)),
        })
    }
}

/// Lists in PEM form, or a single one in DER form, as etcd takes them.
fn revocations(file: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    if !file.trim_ascii_start().starts_with(b"-----") {
        return Ok(vec![CertificateRevocationListDer::from(file.to_vec())]);
    }
    let found = CertificateRevocationListDer::pem_slice_iter(file).collect::<Result<Vec<_>, _>>();
    let found = found.ok().filter(|lists| !lists.is_empty());
    found.ok_or(TlsError::Pem(REVOKED_FILE, "revocation list"))
}

fn certificates(pem: &[u8], file: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    found.ok().filter(|chain| !chain.is_empty()).ok_or(TlsError::Pem(file, "certificate"))
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::Pem(KEY_FILE, "private key"))
}

fn unfit(what: &'static str, error: &dyn std::error::Error) -> TlsError {
    TlsError::Unfit(what, error.to_string())
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

/// Who is believed: whom an authority vouches for, or else whoever proves that it holds the key that it shows.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    vouching: Option<Vouching>,
}

/// An authority's word, and what must hold besides.
#[derive(Debug)]
struct Vouching {
    server: Arc<dyn ServerCertVerifier>,
    client: Arc<dyn ClientCertVerifier>,
    allowed: Allowed,
}

impl Verifier {
    fn of_any_key() -> Verifier {
        Verifier { provider: Arc::new(crypto_provider()), vouching: None }
    }
}

/// Why a certificate that the authority vouches for is refused still.
#[derive(Debug, thiserror::Error)]
enum NotAllowed {
    #[error("the certificate's common name {0:?} is none that --peer-cert-allowed-cn allows")]
    CommonName(String),
    #[error("the certificate is good for no host that --peer-cert-allowed-hostname allows")]
    Hostname,
}

impl Allowed {
    /// Checks a certificate that the authority has been found to vouch for.
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let refusal = match self {
            Allowed::Any => return Ok(()),
            Allowed::CommonNames(names) => {
                let found = common_name(certificate).unwrap_or_default();
                if names.contains(&found) {
                    return Ok(());
                }
                NotAllowed::CommonName(found)
            }
            Allowed::Hostnames(names) => {
                let certificate = ParsedCertificate::try_from(certificate)?;
                let is_good_for = |name: &ServerName<'_>| verify_server_name(&certificate, name).is_ok();
                if names.iter().any(|name| ServerName::try_from(name.as_str()).is_ok_and(|name| is_good_for(&name))) {
                    return Ok(());
                }
                NotAllowed::Hostname
            }
        };
        Err(OtherError(Arc::new(refusal)).into())
    }
}

/// What both traits of rustls want alike.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(vouching) = &self.vouching else { return Ok(ServerCertVerified::assertion()) };
        let verified =
            vouching.server.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        vouching.allowed.check(end_entity)?;
        Ok(verified)
    }

    signatures!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.vouching.as_ref().map_or(&[], |vouching| vouching.client.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let Some(vouching) = &self.vouching else { return Ok(ClientCertVerified::assertion()) };
        let verified = vouching.client.verify_client_cert(end_entity, intermediates, now)?;
        vouching.allowed.check(end_entity)?;
        Ok(verified)
    }

    signatures!();
}

/// The subject's last common name, which is the one that etcd looks at. Empty names are none.
fn common_name(certificate: &[u8]) -> Option<String> {
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const VERSION: u8 = 0xa0;
    const OBJECT_ID: u8 = 0x06;
    /// Object identifier 2.5.4.3.
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    let mut outer = Der(certificate);
    let mut signed = Der(Der(outer.take(SEQUENCE)?).take(SEQUENCE)?);
    if signed.0.first() == Some(&VERSION) {
        signed.any()?;
    }
    // Serial number, algorithm, issuer, validity.
    for _ in 0..4 {
        signed.any()?;
    }
    let mut subject = Der(signed.take(SEQUENCE)?);
    let mut found = None;
    while !subject.0.is_empty() {
        let mut set = Der(subject.take(SET)?);
        while !set.0.is_empty() {
            let mut pair = Der(set.take(SEQUENCE)?);
            let is_common_name = pair.take(OBJECT_ID)? == COMMON_NAME;
            let (_, value) = pair.any()?;
            if is_common_name {
                found = Some(String::from_utf8(value.to_vec()).ok()?);
            }
        }
    }
    found
}

/// Reads DER, element by element.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next element's tag and content; none where it does not end within what is there, or is longer than 16 MiB.
    fn any(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The next element's content, if it has this tag.
    fn take(&mut self, expected: u8) -> Option<&'a [u8]> {
        self.any().filter(|(tag, _)| *tag == expected).map(|(_, content)| content)
    }
}
