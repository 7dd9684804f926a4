//! Links over TLS: who is believed and who is not.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod net;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use garboard_transport::Lane;
use garboard_transport::link::tls::{self, Allowed, Credentials, OwnKey, TlsError};
use garboard_transport::link::{CloseCode, LinkEvent, Refusal, Security, Trust};
use net::{Net, frame, ms};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, date_time_ymd,
};

const RESET: [u8; 32] = [7; 32];

fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for (count, three) in der.chunks(3).enumerate() {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let digit = char::from(DIGITS[(bits >> (18 - 6 * at)) as usize & 63]);
            text.push(if at <= three.len() { digit } else { '=' });
        }
        if count % 16 == 15 {
            text.push('\n');
        }
    }
    format!("{text}\n-----END {label}-----\n").into_bytes()
}

/// An authority, and what it certifies.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(vec!["authority".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> Vec<u8> {
        pem("CERTIFICATE", self.0.der())
    }

    /// A certificate for a host, and its key.
    fn certify(&self, host: &str) -> (Vec<u8>, Vec<u8>) {
        let (certificate, key, _) = self.certify_as(host, "member");
        (certificate, key)
    }

    /// The same with a common name; and the certificate's serial number.
    fn certify_as(&self, host: &str, name: &str) -> (Vec<u8>, Vec<u8>, u64) {
        static NEXT: AtomicU64 = AtomicU64::new(1_000);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(serial.into());
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (pem("CERTIFICATE", certificate.der()), pem("PRIVATE KEY", key.serialized_der()), serial)
    }

    /// A list that revokes a certificate.
    fn revoke(&self, serial: u64) -> Vec<u8> {
        let revoked = RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        pem("X509 CRL", params.signed_by(&self.0).unwrap().der())
    }
}

fn own_key(key: &OwnKey) -> Security {
    Credentials::with_own_key(key).links(&RESET).unwrap()
}

fn vouched(
    certificate: &[u8],
    key: &[u8],
    roots: &[u8],
    revoked: Option<&[u8]>,
    allowed: &Allowed,
) -> Result<Credentials, TlsError> {
    Credentials::with_authority(certificate, key, &tls::Authority { roots, revoked, allowed })
}

/// Two members whose certificates and authorities these are.
fn two(authorities: [&Authority; 2], trusted: [&Authority; 2], hosts: [&str; 2]) -> Net {
    let mut net = Net::new(1);
    for (at, id) in [1, 2].into_iter().enumerate() {
        let (certificate, key) = authorities[at].certify(hosts[at]);
        let security =
            vouched(&certificate, &key, &trusted[at].pem(), None, &Allowed::Any).unwrap().links(&RESET).unwrap();
        net.add_with(id, security, Trust::Authority);
    }
    net.meet_all();
    net.run_for(ms(1_000));
    net
}

fn speak(net: &mut Net) {
    net.send(1, 2, Lane::Log, frame(1, 100_000)).unwrap();
    net.send(2, 1, Lane::Bulk, frame(2, 100_000)).unwrap();
    net.run_for(ms(500));
    assert_eq!((net.received(2, 1, Lane::Log).len(), net.received(1, 2, Lane::Bulk).len()), (1, 1));
}

#[test]
fn members_with_keys_of_their_own_believe_each_other_and_remember() {
    let mut net = Net::new(1);
    for id in [1, 2] {
        let key = OwnKey::make().unwrap();
        net.add_with(id, own_key(&key), Trust::FirstContact(BTreeMap::new()));
    }
    net.meet_all();
    net.run_for(ms(500));
    assert!(net.all_up());
    speak(&mut net);
    let pinned = |event: &LinkEvent| matches!(event, LinkEvent::Pinned { peer: 2, .. });
    assert!(net.take_events(1).iter().any(pinned));
}

#[test]
fn another_key_than_the_remembered_one_is_refused() {
    let mut net = Net::new(1);
    let keys = [OwnKey::make().unwrap(), OwnKey::make().unwrap()];
    let remembered = BTreeMap::from([(2, OwnKey::make().unwrap().fingerprint())]);
    net.add_with(1, own_key(&keys[0]), Trust::FirstContact(remembered));
    net.add_with(2, own_key(&keys[1]), Trust::FirstContact(BTreeMap::new()));
    net.meet_all();
    net.run_for(ms(500));
    assert!(!net.is_up(1, 2) && !net.is_up(2, 1));
    assert!(net.refusals(1).contains(&garboard_transport::link::Refusal::Key));
}

#[test]
fn members_that_one_authority_has_certified_believe_each_other() {
    let authority = Authority::new();
    let mut net = two([&authority; 2], [&authority; 2], ["peer"; 2]);
    assert!(net.all_up());
    speak(&mut net);
}

#[test]
fn a_certificate_of_another_authority_is_refused_by_either_side() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let mut net = two([&ours, &theirs], [&ours, &ours], ["peer"; 2]);
    assert!(!net.is_up(1, 2) && !net.is_up(2, 1));
    assert_refuses(&mut net, 1, 2);
    let mut net = two([&ours, &theirs], [&theirs, &theirs], ["peer"; 2]);
    assert!(!net.is_up(1, 2) && !net.is_up(2, 1), "member 2 does not believe member 1");
    assert_refuses(&mut net, 2, 1);
}

/// One member refuses the other as one that dials and as one that is dialed; both are told why.
fn assert_refuses(net: &mut Net, by: u64, other: u64) {
    let unknown = |reason: &str| reason.contains("invalid peer certificate");
    let told = net.take_events(by);
    for dialed in [None, Some(other)] {
        let refused = |event: &LinkEvent| matches!(event, LinkEvent::Refused { peer, refusal: Refusal::Tls(reason), .. } if *peer == dialed && unknown(reason));
        assert!(told.iter().any(refused), "{told:?}");
    }
    let told = net.take_events(other);
    for dialed in [None, Some(by)] {
        let refused = |event: &LinkEvent| matches!(event, LinkEvent::RefusedBy { peer, code: CloseCode::Key, reason, .. } if *peer == dialed && unknown(reason));
        assert!(told.iter().any(refused), "{told:?}");
    }
}

#[test]
fn a_certificate_for_another_host_than_was_dialed_is_refused() {
    let authority = Authority::new();
    // Member 2 can dial member 1, whose certificate names the host; member 1 can't dial member 2.
    let mut net = two([&authority; 2], [&authority; 2], ["peer", "elsewhere"]);
    let refused =
        |event: &LinkEvent| matches!(event, LinkEvent::Refused { peer: Some(2), refusal: Refusal::Tls(_), .. });
    assert!(net.take_events(1).iter().any(refused));
    assert!(net.is_up(1, 2) && net.is_up(2, 1), "whichever can reach the other does");
}

#[test]
fn what_is_no_certificate_is_refused_with_the_reason() {
    let authority = Authority::new();
    let (certificate, key) = authority.certify("peer");
    let refused = |certificate: &[u8], key: &[u8], authorities: &[u8]| {
        let made = vouched(certificate, key, authorities, None, &Allowed::Any).and_then(|made| made.links(&RESET));
        made.err().expect("it can't be used").to_string()
    };
    assert!(refused(b"nonsense", &key, &authority.pem()).contains("--peer-cert-file holds no certificate"));
    assert!(refused(&certificate, b"nonsense", &authority.pem()).contains("--peer-key-file holds no private key"));
    assert!(refused(&certificate, &key, b"nonsense").contains("--peer-trusted-ca-file holds no certificate"));
    let (_, other) = authority.certify("peer");
    assert!(
        refused(&certificate, &other, &authority.pem())
            .starts_with("this member's certificate with its key can't be used: ")
    );
    for list in [&b"nonsense"[..], &pem("X509 CRL", b"nonsense")] {
        let made = vouched(&certificate, &key, &authority.pem(), Some(list), &Allowed::Any);
        assert!(made.err().unwrap().to_string().starts_with("the file of --peer-crl-file can't be used: "));
    }
}

/// Two members that one authority has certified, with these common names, and what member 1 asks of others.
fn two_named(names: [&str; 2], allowed: &Allowed, revoke: Option<usize>) -> Net {
    let authority = Authority::new();
    let mut net = Net::new(1);
    let made = names.map(|name| authority.certify_as("peer", name));
    let list = revoke.map(|at| authority.revoke(made[at].2));
    for (at, id) in [1, 2].into_iter().enumerate() {
        let (certificate, key, _) = &made[at];
        let (revoked, allowed) = if at == 0 { (list.as_deref(), allowed) } else { (None, &Allowed::Any) };
        let security = vouched(certificate, key, &authority.pem(), revoked, allowed).unwrap().links(&RESET).unwrap();
        net.add_with(id, security, Trust::Authority);
    }
    net.meet_all();
    net.run_for(ms(1_000));
    net
}

#[test]
fn a_certificate_must_carry_an_allowed_name_where_some_are_given() {
    let allowed = |names: &[&str]| Allowed::CommonNames(names.iter().map(|name| (*name).to_owned()).collect());
    assert!(two_named(["one", "two"], &allowed(&["three", "two"]), None).all_up());
    assert!(!two_named(["one", "two"], &allowed(&["one"]), None).is_up(1, 2));
    let hosts = |host: &str| Allowed::Hostnames(vec![host.to_owned()]);
    assert!(two_named(["one", "two"], &hosts("peer"), None).all_up());
    assert!(!two_named(["one", "two"], &hosts("two"), None).is_up(1, 2), "a common name is no host");
}

#[test]
fn a_certificate_that_was_revoked_is_refused_and_others_are_not() {
    assert!(!two_named(["one", "two"], &Allowed::Any, Some(1)).is_up(1, 2));
    assert!(two_named(["one", "two"], &Allowed::Any, Some(0)).all_up(), "member 1 is not told of itself");
}
