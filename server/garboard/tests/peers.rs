//! Members on one machine and what they say of each other.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test drives real processes, and what fails fails it"
)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::client::{CallError, Client};
use common::pem::pem;
use common::{Folder, Launch, Server, eventually, executable, files, free_port};
use garboard_proto::etcdserverpb::{
    HashKvRequest, HashKvResponse, MemberAddRequest, MemberAddResponse, MemberRemoveRequest, MemberRemoveResponse,
    RangeRequest,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three members, and where they are.
struct Members {
    folder: Folder,
    scheme: &'static str,
    flags: Vec<String>,
    peer_ports: [u16; 3],
    client_ports: [u16; 3],
}

impl Members {
    fn new(scheme: &'static str, flags: &[&'static str]) -> Members {
        let ports = || [free_port(), free_port(), free_port()];
        let (peer_ports, client_ports) = (ports(), ports());
        Members {
            folder: Folder::new(),
            scheme,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            peer_ports,
            client_ports,
        }
    }

    fn data(&self, member: usize) -> PathBuf {
        self.folder.path().join(NAMES[member])
    }

    fn peer_url(&self, member: usize) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.peer_ports[member])
    }

    fn initial_cluster(&self) -> Vec<String> {
        (0..3).map(|member| format!("{}={}", NAMES[member], self.peer_url(member))).collect()
    }

    fn launch(&self, member: usize, token: &str) -> Launch {
        let client = format!("http://127.0.0.1:{}", self.client_ports[member]);
        let data = self.data(member);
        let launch = Launch::member(&data, NAMES[member], &client, &self.peer_url(member), &self.initial_cluster())
            .arg(format!("--initial-cluster-token={token}"));
        self.flags.iter().fold(launch, |launch, flag| launch.arg(flag))
    }

    fn start(&self) -> Vec<Server> {
        let mut servers: Vec<Server> = (0..3).map(|member| self.launch(member, "one").spawn()).collect();
        for server in &mut servers {
            server.wait_for("ready to serve client requests");
        }
        servers
    }

    fn client_address(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.client_ports[member])
    }

    fn client(&self, member: usize) -> Client {
        Client::tcp(&self.client_address(member)).unwrap()
    }

    /// The id of a member, as it says itself.
    fn id(&self, member: usize) -> u64 {
        self.client(member).status().unwrap().header.unwrap().member_id
    }

    /// Writes through a member, as soon as it takes writes.
    fn write(&self, member: usize, keys: std::ops::Range<u32>) {
        let client = self.client(member);
        for key in keys {
            eventually("a write is acknowledged", || client.put(format!("{key:06}"), vec![b'v'; 500]).ok());
        }
    }

    /// What the TCP port of a member answers to a request.
    fn http(&self, member: usize, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.peer_ports[member])).unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn the_peers_port_tells_version_and_members_as_etcd_does_and_serves_no_clients() {
    let members = Members::new("http", &[]);
    let _servers = members.start();
    assert!(members.http(0, "GET /version").contains(r#""etcdserver":"3."#));
    let listed = eventually("all members have published themselves", || {
        let listed = members.http(1, "GET /members");
        (listed.matches("clientURLs").count() == 3).then_some(listed)
    });
    assert!(listed.to_lowercase().contains("x-etcd-cluster-id: "), "{listed}");
    assert!(NAMES.iter().all(|name| listed.contains(&format!(r#""name":"{name}""#))), "{listed}");
    for request in ["POST /v3/kv/range", "GET /health", "GET /"] {
        assert!(members.http(2, request).starts_with("HTTP/1.1 404"), "{request}");
    }
}

#[test]
fn a_killed_members_peers_notice_at_once_and_meet_it_again() {
    let members = Members::new("http", &[]);
    let mut servers = members.start();
    for killed in 0..3 {
        let others: Vec<usize> = (0..3).filter(|member| *member != killed).collect();
        servers[killed].kill();
        for other in &others {
            servers[*other].wait_for(&format!("({}) has ended: so did its TCP connection", NAMES[killed]));
        }
        servers[killed] = members.launch(killed, "one").start();
        servers[killed].wait_for("is there, at");
    }
}

/// Every member holds these keys, and all have the same history.
fn check_same(members: &Members, keys: u32) {
    eventually("all members have the same history", || {
        let revision = members.client(0).revision().ok()?;
        let hashes: Vec<u32> = (0..3)
            .filter_map(|member| {
                let request = HashKvRequest { revision };
                let answer = members.client(member).call("etcdserverpb.Maintenance/HashKV", &request);
                answer.ok().map(|answer: HashKvResponse| answer.hash)
            })
            .collect();
        (hashes.len() == 3 && hashes.iter().all(|hash| *hash == hashes[0])).then_some(())
    });
    for (member, name) in NAMES.iter().enumerate() {
        assert_eq!(members.client(member).keys().unwrap().0.len(), keys as usize, "member {name}");
    }
}

const REPAIRED: &str = "repaired: this member holds again all that it had acknowledged";

#[test]
fn a_member_whose_log_or_index_has_rotted_is_repaired_from_the_others_by_itself() {
    let members = Members::new("http", &[]);
    let mut servers = members.start();
    let wal = |member: usize| members.data(member).join("wal");
    let index = |member: usize| members.data(member).join("keyspace-0/index");
    let mut keys = 0;
    for (round, victim) in [0, 1, 2, 0].into_iter().enumerate() {
        members.write((victim + 1) % 3, keys..keys + 100);
        keys += 100;
        servers[victim].kill();
        match round {
            0 => {
                let batches: Vec<_> =
                    files::batches(&wal(victim)).into_iter().filter(|batch| batch.kind == 1).collect();
                let batch = &batches[batches.len() / 2];
                files::flip(&batch.path, batch.offset + 100);
            }
            1 => (0..4).for_each(|slot| files::overwrite(&index(victim), slot * 4096, &[0xa5; 4096])),
            2 => files::overwrite(&wal(victim).join("manifest"), 0, &[0xa5; 48]),
            _ => {
                (0..4).for_each(|slot| files::overwrite(&index(victim), slot * 4096, &[0; 4096]));
                for path in files::segments(&wal(victim)) {
                    files::overwrite(&path, 0, &vec![0; 1 << 20]);
                }
            }
        }
        // The others go on meanwhile.
        members.write((victim + 1) % 3, keys..keys + 20);
        keys += 20;
        servers[victim] = members.launch(victim, "one").spawn();
        servers[victim].wait_for("under repair: ");
        servers[victim].wait_for(REPAIRED);
        servers[victim].wait_for("ready to serve client requests");
        check_same(&members, keys);
        eventually("nothing is left of the repair", || {
            let left = [members.data(victim).join("repair"), index(victim).with_extension("damaged")];
            (!left.iter().any(|path| path.exists())).then_some(())
        });
    }
    // It counts as before: with another one gone, writes go on.
    servers[1].kill();
    members.write(0, keys..keys + 10);
    servers[1] = members.launch(1, "one").start();
    check_same(&members, keys + 10);
}

#[test]
fn a_member_that_finds_a_rotten_page_stops_and_its_next_start_is_refilled() {
    let members = Members::new("http", &[]);
    let mut servers = members.start();
    members.write(0, 0..200);
    // A stop leaves everything in the index's file.
    servers.remove(2).stop();
    let mut server = members.launch(2, "one").start();
    let index = members.data(2).join("keyspace-0/index");
    let len = std::fs::metadata(&index).unwrap().len();
    for page in (8 * 4096..len).step_by(4096).filter(|at| files::bytes_at(&index, *at, 4096) != [0; 4096]) {
        files::flip(&index, page + 2000);
    }
    let client = members.client(2);
    let stopped = eventually("it stops", || {
        let _ = client.get("000007");
        (!server.is_alive()).then(|| server.wait())
    });
    let said = server.said();
    assert_eq!(stopped.code(), Some(1), "{said}");
    assert!(said.contains("this member is then refilled from its peers"), "{said}");
    let mut server = members.launch(2, "one").spawn();
    server.wait_for(REPAIRED);
    server.wait_for("ready to serve client requests");
    check_same(&members, 200);
}

#[test]
fn over_https_without_certificates_members_make_keys_and_hold_each_other_to_them() {
    let members = Members::new("https", &["--peer-auto-tls"]);
    let mut servers = members.start();
    servers[0].kill();
    std::fs::remove_file(members.data(0).join("peer-key")).unwrap();
    servers[0] = members.launch(0, "one").spawn();
    servers[1].wait_for("it shows another key than the one that was remembered for it");
    servers[0].wait_for("refuses this member (wrong key)");
    // The operator has the others forget the old key.
    for other in [1, 2] {
        servers[other].kill();
        let pins = members.data(other).join("peer-pins");
        std::fs::remove_file(pins).unwrap();
        servers[other] = members.launch(other, "one").start();
    }
    servers[0].wait_for("ready to serve client requests");
}

#[test]
fn a_member_of_another_cluster_is_refused_and_both_say_why() {
    let members = Members::new("http", &[]);
    let mut first = members.launch(0, "one").spawn();
    let mut second = members.launch(1, "two").spawn();
    for server in [&mut first, &mut second] {
        server.wait_for("--initial-cluster-token?");
    }
}

#[test]
fn https_without_a_certificate_is_refused_with_the_flags_that_are_missing() {
    let members = Members::new("https", &[]);
    let said = members.launch(0, "one").refused();
    assert!(said.contains("--peer-cert-file") && said.contains("--peer-auto-tls"), "{said}");
}

/// True from when it is dropped: what goes on until then also ends where a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes as fast as answers come until it is over: when each came, or what came instead.
fn write_until(over: &AtomicBool, address: &str) -> (Vec<Instant>, Vec<CallError>) {
    let client = Client::tcp(address).unwrap();
    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        match client.put(format!("from/{address}"), "v") {
            Ok(_) => answered.push(Instant::now()),
            Err(error) => failed.push(error),
        }
    }
    (answered, failed)
}

#[test]
fn a_leader_that_is_removed_leaves_no_gap_of_an_election_and_fails_no_write() {
    let members = Members::new("http", &[]);
    let mut servers = members.start();
    let leads = |member: &usize| members.client(*member).status().unwrap().leader == members.id(*member);
    let leader = eventually("a leader", || (0..3).find(leads));
    let id = members.id(leader);
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let end = Over(&over);
        let writers: Vec<_> =
            others.iter().map(|other| scope.spawn(|| write_until(&over, &members.client_address(*other)))).collect();
        let client = members.client(leader);
        let removed: MemberRemoveResponse = eventually("its peers have been there for long enough", || {
            client.call("etcdserverpb.Cluster/MemberRemove", &MemberRemoveRequest { id }).ok()
        });
        assert_eq!(removed.members.len(), 2, "{removed:?}");
        assert!(removed.members.iter().all(|member| member.id != id));
        assert!(servers[leader].wait().success(), "a member that was removed ends well");
        std::thread::sleep(Duration::from_millis(200));
        drop(end);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let mut answered: Vec<Instant> = written.iter().flat_map(|(answered, _)| answered).copied().collect();
    answered.sort_unstable();
    let gap = answered.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    println!("{} writes, at most {gap:?} between two", answered.len());
    let failed: Vec<&CallError> = written.iter().flat_map(|(_, failed)| failed).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(gap < Duration::from_millis(900), "{gap:?} is an election");
}

#[test]
fn a_member_that_was_removed_while_it_was_down_is_told_so_and_ends() {
    let members = Members::new("http", &[]);
    let mut servers = members.start();
    let id = members.id(2);
    servers[2].kill();
    let client = members.client(0);
    let _: MemberRemoveResponse = eventually("its peers have been there for long enough", || {
        client.call("etcdserverpb.Cluster/MemberRemove", &MemberRemoveRequest { id }).ok()
    });
    servers[2] = members.launch(2, "one").spawn();
    servers[2].wait();
    let said = servers[2].said();
    assert!(said.contains("refuses this member (removed from the cluster)"), "{said}");
    assert!(said.contains("its data directory must be removed"), "{said}");
    let told =
        |server: &Server| server.output().contains("refused somebody at 127.0.0.1: the member has been permanently");
    assert!(servers[..2].iter().any(told), "{}", servers[0].output());
}

/// What a request's failure must be without a quorum: etcd's text, no earlier and not much later than its time limit, which is
/// 5 s and two election timeouts.
fn assert_timed_out<T: std::fmt::Debug>(asked: Instant, result: Result<T, CallError>) {
    const LIMIT: Duration = Duration::from_secs(7);
    let took = asked.elapsed();
    let error = result.expect_err("there is no quorum");
    assert!(error.text().starts_with("etcdserver: request timed out"), "{error:?}");
    assert!(took >= LIMIT && took < LIMIT + Duration::from_secs(3), "{took:?}");
}

#[test]
fn without_a_quorum_writes_fail_in_time_serializable_reads_go_on_and_all_resumes_when_it_is_back() {
    let members = Members::new("http", &[]);
    let mut servers = members.start();
    let client = members.client(0);
    eventually("a first write", || client.put("k", "v").ok());
    servers[1].kill();
    servers[2].kill();
    let serializable = RangeRequest { key: "k".into(), serializable: true, ..RangeRequest::default() };
    // At first the lone member may lead still or believe in a leader, then it knows that there is none.
    for _ in 0..2 {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let _over = Over(&over);
                let mut count = 0;
                while !over.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    assert_eq!(client.range(&serializable).unwrap().kvs.len(), 1);
                    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
                    count += 1;
                }
                count
            });
            let read = scope.spawn(|| assert_timed_out(Instant::now(), client.get("k")));
            let end = Over(&over);
            assert_timed_out(Instant::now(), client.put("k", "lost"));
            read.join().unwrap();
            drop(end);
            assert!(reads.join().unwrap() > 0);
        });
    }
    servers[1] = members.launch(1, "one").start();
    // On the connection that was there all the time, with nothing done to the member.
    eventually("a write", || client.put("k", "again").ok());
    assert_eq!(client.get("k").unwrap().unwrap().value, "again");
    assert_eq!(members.client(1).get("k").unwrap().unwrap().value, "again");
}

/// An authority for peers, and where its certificates lie.
struct Authority {
    folder: Folder,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Authority { folder: Folder::new(), issuer };
        std::fs::write(authority.folder.path().join("ca"), pem("CERTIFICATE", authority.issuer.der())).unwrap();
        authority
    }

    /// The flags of a member whose certificate has this common name.
    fn flags(&self, common_name: &str) -> Vec<String> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let path = |kind: &str| self.folder.path().join(format!("{common_name}-{kind}"));
        std::fs::write(path("cert"), pem("CERTIFICATE", params.signed_by(&key, &self.issuer).unwrap().der())).unwrap();
        std::fs::write(path("key"), pem("PRIVATE KEY", key.serialized_der())).unwrap();
        vec![
            format!("--peer-cert-file={}", path("cert").display()),
            format!("--peer-key-file={}", path("key").display()),
            format!("--peer-trusted-ca-file={}", self.folder.path().join("ca").display()),
            "--peer-client-cert-auth".to_owned(),
            "--peer-cert-allowed-cn=member".to_owned(),
        ]
    }
}

#[test]
fn over_https_with_an_authority_a_member_joins_a_running_cluster_and_one_with_a_wrong_name_does_not() {
    let authority = Authority::new();
    let mut members = Members::new("https", &[]);
    members.flags = authority.flags("member");
    let _servers = members.start();
    let refused = members.http(0, "GET /members");
    assert!(refused.contains("Client sent an HTTP request to an HTTPS server."), "{refused}");
    let peer_url = format!("https://127.0.0.1:{}", free_port());
    let client = members.client(0);
    let add = MemberAddRequest { peer_ur_ls: vec![peer_url.clone()], is_learner: true };
    let _: MemberAddResponse = eventually("its peers have been there for long enough", || {
        client.call("etcdserverpb.Cluster/MemberAdd", &add).ok()
    });
    let join = |flags: Vec<String>| {
        let client_url = format!("http://127.0.0.1:{}", free_port());
        let launch = Launch::bare(Command::new(executable()))
            .arg("serve")
            .arg(format!("--data-dir={}", members.folder.path().join("d").display()))
            .arg("--name=d")
            .arg(format!("--listen-client-urls={client_url}"))
            .arg(format!("--advertise-client-urls={client_url}"))
            .arg(format!("--listen-peer-urls={peer_url}"))
            .arg(format!("--initial-advertise-peer-urls={peer_url}"))
            .arg(format!("--initial-cluster={},d={peer_url}", members.initial_cluster().join(",")))
            .arg("--initial-cluster-state=existing");
        flags.iter().fold(launch, |launch, flag| launch.arg(flag))
    };
    let said = join(authority.flags("stranger")).refused();
    assert!(said.contains("could not retrieve cluster information"), "{said}");
    join(authority.flags("member")).start().wait_for("has filled this member with a snapshot");
}

#[test]
fn a_member_whose_certificate_is_not_believed_is_refused_and_both_say_why() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let mut members = Members::new("https", &[]);
    members.flags = ours.flags("member");
    let mut servers = members.start();
    let no_such_name =
        "other error: the certificate's common name \\\"stranger\\\" is none that --peer-cert-allowed-cn allows";
    for (flags, reason) in
        [(theirs.flags("member"), "invalid peer certificate: "), (ours.flags("stranger"), no_such_name)]
    {
        servers[2].kill();
        members.flags = flags;
        servers[2] = members.launch(2, "one").spawn();
        servers[0].wait_for(&format!("TLS with it fails: {reason}"));
        servers[2].wait_for(&format!("refuses this member (wrong key): {reason}"));
    }
    members.client(0).put("k", "the others go on").unwrap();
    servers[2].kill();
    members.flags = ours.flags("member");
    servers[2] = members.launch(2, "one").start();
}
